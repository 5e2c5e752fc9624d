//! Kernels that take long, in parallel: one on the step's own thread, the others on the threads over which kernels spread their
//! work. So no more threads compute than there are cores. A kernel that spreads its own work is none of them: it leaves no
//! core to others, and two of them would only share the caches.
//!
//! Kernels that take long are known from earlier steps, some of which are measured. Such a kernel is held back until another
//! one is ready, and then goes to the pool, and the other is held back. The one that is held back when the step needs an answer
//! runs on the step's thread. A kernel gets its inputs in its turn, so the value of a reference does not depend on when it runs.
//! All ops that touch state run on the step's thread, in its order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use meshtf_loops::{threads, turn};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory::{Budget, Turn};

use super::answer::compute;
use crate::program::{Act, CompiledPiece, PieceCode};
use crate::state::Outcome;
use crate::step_memory::Tally;
use crate::token::{Token, Tokens};

/// A shorter kernel is not worth the way to another thread and back: some 20 µs if the machine is idle, and a multiple of that
/// if it is not.
const HEAVY: Duration = Duration::from_micros(250);

/// A longer kernel would occupy the pool for too long. As a rule, it has work for all threads by itself.
const LONGEST: Duration = Duration::from_millis(30);

/// Most kernels of all devices in the pool at a time: more would only wait for a thread.
const MOST_IN_POOL: usize = 16;

/// Kernels in the pool.
static IN_POOL: AtomicUsize = AtomicUsize::new(0);

/// One step in this many is measured, and also the second and third; the first is not typical.
const MEASURED: u32 = 64;

/// The kernels of a device that may run in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// No kernel.
    Never,
    /// Kernels for which it pays.
    IfHeavy,
    /// All kernels that can.
    Always,
}

impl Beside {
    /// The best choice on this machine, for a device whose kernels compute on its cores, or do not.
    pub fn by_cores(computes_here: bool) -> Beside {
        if computes_here && threads::count() > 1 { Beside::IfHeavy } else { Beside::Never }
    }
}

/// The kernels of one piece that are held back or run in parallel with its thread.
pub(super) struct SideKernels {
    /// By node: its duration in microseconds; 0 if it is not known.
    costs: Vec<u32>,
    /// Steps that have begun.
    steps: u32,
    /// The step is measured.
    pub measures: bool,
    /// Some kernels can be held back.
    pays: bool,
    /// The kernel that is held back: the last of those that are ready.
    held: Option<Ready>,
    in_pool: usize,
    done: (Sender<Done>, Receiver<Done>),
}

/// A kernel with its inputs.
pub(super) struct Ready {
    /// Its index among the placed nodes.
    pub at: u32,
    pub inputs: Tokens,
}

/// A kernel that returns from the pool.
pub(super) struct Done {
    pub at: u32,
    pub node: u32,
    act: Act,
    pub began: Instant,
    pub ended: Instant,
    /// It spread its work over other threads.
    pub has_spread: bool,
    /// Its answer, or its panic.
    pub answer: std::result::Result<Result<Outcome>, Box<dyn Any + Send>>,
}

impl SideKernels {
    pub fn new(nodes: usize) -> SideKernels {
        let costs = vec![0; nodes];
        SideKernels { costs, steps: 0, measures: false, pays: false, held: None, in_pool: 0, done: mpsc::channel() }
    }

    pub fn begin(&mut self) {
        self.steps = self.steps.wrapping_add(1);
        self.measures = matches!(self.steps, 2 | 3) || self.steps.is_multiple_of(MEASURED);
    }

    /// To be called when the step has run; decides whether the next steps hold kernels back.
    pub fn end(&mut self, code: &PieceCode) {
        if std::mem::take(&mut self.measures) {
            let placed = code.stages.iter().flat_map(|stages| &stages.nodes);
            self.pays = placed.filter(|placed| placed.is_pure && self.is_heavy(placed.node)).nth(1).is_some();
        }
    }

    /// Whether any kernel may be held back in this step.
    pub fn are_open(&self, beside: Beside) -> bool {
        match beside {
            Beside::Never => false,
            Beside::IfHeavy => self.pays,
            Beside::Always => true,
        }
    }

    /// Whether this kernel is to be held back, if any is.
    pub fn take(&self, beside: Beside, node: u32) -> bool {
        match beside {
            Beside::Never => false,
            Beside::IfHeavy => self.is_heavy(node),
            Beside::Always => true,
        }
    }

    fn is_heavy(&self, node: u32) -> bool {
        let cost = Duration::from_micros(self.costs[node as usize].into());
        (HEAVY..=LONGEST).contains(&cost)
    }

    /// Records the time of a kernel, as none if it spread its work. One slow run may be the machine's fault, a quick one never
    /// is.
    pub fn took(&mut self, node: u32, time: Duration, has_spread: bool) {
        let now = if has_spread { 0 } else { u32::try_from(time.as_micros()).unwrap_or(u32::MAX) };
        let cost = &mut self.costs[node as usize];
        *cost = if *cost == 0 || now < *cost { now } else { *cost + (now - *cost) / 4 };
    }

    /// Whether a kernel has not answered yet.
    pub fn are_busy(&self) -> bool {
        self.held.is_some() || self.in_pool > 0
    }

    pub fn in_pool(&self) -> usize {
        self.in_pool
    }

    /// Takes a kernel that is ready: holds it back, and sends the one that was to the pool.
    pub fn add(&mut self, program: &mut CompiledPiece, ready: Ready) {
        if let Some(before) = self.held.replace(ready) {
            self.launch(program, before);
        }
    }

    /// Whether another kernel may go to the pool.
    pub fn have_free_thread(&self) -> bool {
        // The step's own thread computes, too.
        self.in_pool + 1 < threads::count() && IN_POOL.load(Ordering::Relaxed) < MOST_IN_POOL
    }

    /// The kernel that is held back, to be run by the step's thread.
    pub fn unhold(&mut self) -> Option<Ready> {
        self.held.take()
    }

    /// A kernel that is back from the pool, with its act put back in `acts`; waits for it if `waits`. `None` if there is none.
    pub fn back(&mut self, acts: &mut [Act], waits: bool) -> Option<Done> {
        if self.in_pool == 0 {
            return None;
        }
        let mut done = if waits { self.done.1.recv().ok()? } else { self.done.1.try_recv().ok()? };
        self.in_pool -= 1;
        acts[done.node as usize] = std::mem::replace(&mut done.act, Act::Nothing);
        Some(done)
    }

    pub fn tally(&self, tally: &mut Tally) {
        self.held.iter().for_each(|ready| tally.all(&ready.inputs));
    }

    /// Drops the kernel that is held back; no kernel is in the pool between two turns.
    pub fn clear(&mut self) {
        self.held = None;
    }

    fn launch(&mut self, program: &mut CompiledPiece, Ready { at, mut inputs }: Ready) {
        let Some(placed) = program.code.stages.as_ref().map(|stages| &stages.nodes[at as usize]) else { return };
        let node = placed.node;
        let mut act = std::mem::replace(&mut program.acts[node as usize], Act::Nothing);
        let (code, done, signal) =
            (Arc::clone(&program.code), self.done.0.clone(), turn::current().unwrap_or_default());
        let budget = Budget::current();
        self.in_pool += 1;
        IN_POOL.fetch_add(1, Ordering::Relaxed);
        threads::spawn(move || {
            let (began, spread) = (Instant::now(), threads::spread());
            let run = || {
                let _turn = Turn::begin(&budget);
                turn::within(&signal, || compute(&mut act, &code.nodes[node as usize], &mut inputs))
            };
            let answer = catch_unwind(AssertUnwindSafe(run));
            let (ended, has_spread) = (Instant::now(), threads::spread() != spread);
            drop((inputs, code));
            IN_POOL.fetch_sub(1, Ordering::Relaxed);
            let _step_is_gone = done.send(Done { at, node, act, began, ended, has_spread, answer });
        });
    }
}

/// The inputs of a kernel as they are now: for a reference, the current value of the variable.
pub(super) fn taken(inputs: &mut [Option<Token>]) -> Result<Tokens> {
    let now = |slot: &mut Option<Token>| match slot.take() {
        Some(Token::Ref(variable)) => variable.read().map(|value| Some(Token::Value(value))),
        other => Ok(other),
    };
    inputs.iter_mut().map(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_known_after_some_steps() {
        let check = |times: &[u64], wanted: bool| {
            let mut lanes = SideKernels::new(1);
            times.iter().for_each(|&time| lanes.took(0, Duration::from_micros(time), false));
            assert_eq!(lanes.take(Beside::IfHeavy, 0), wanted, "{times:?}");
            assert!(!lanes.take(Beside::Never, 0), "{times:?}");
        };
        let (heavy, longest) = (HEAVY.as_micros() as u64, LONGEST.as_micros() as u64);
        check(&[], false);
        check(&[heavy - 1], false);
        check(&[heavy], true);
        check(&[longest], true);
        check(&[longest + 1], false);
        // Slow once, because of the machine; then slow from now on.
        check(&[heavy / 2, 2 * heavy], false);
        check(&[heavy / 2, 2 * heavy, 2 * heavy, 2 * heavy], true);
        check(&[2 * heavy, heavy / 2], false);
        check(&[u64::MAX], false);
    }

    #[test]
    fn what_spreads_its_work_does_not_take_long() {
        let mut lanes = SideKernels::new(1);
        lanes.took(0, HEAVY, false);
        lanes.took(0, HEAVY, true);
        assert!(!lanes.take(Beside::IfHeavy, 0));
        lanes.took(0, HEAVY, false);
        assert!(lanes.take(Beside::IfHeavy, 0));
    }

    #[test]
    fn few_steps_are_measured() {
        let mut lanes = SideKernels::new(1);
        let measured = (1..=200).filter(|_| {
            lanes.begin();
            lanes.measures
        });
        assert_eq!(measured.collect::<Vec<_>>(), [2, 3, 64, 128, 192]);
    }
}
