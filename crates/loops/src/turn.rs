//! How a step that has its turn is told to make way, or that it was given up; and how a kernel looks.
//!
//! A kernel that may take long calls [`look`] between its blocks, every few milliseconds of work. If its step was given
//! up, that unwinds, as far as where its thread runs the turn, which ends: nobody waits for what the kernel would have
//! answered. An op that changes state is never left in the middle: it runs [`whole`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What the threads of a device say to the one that runs a turn.
#[derive(Debug, Default)]
pub struct Signal(AtomicU8);

const GO_ON: u8 = 0;
const MAKE_WAY: u8 = 1;
const STOP: u8 = 2;

impl Signal {
    /// A new turn: nothing has been said.
    pub fn clear(&self) {
        self.0.store(GO_ON, Ordering::Relaxed);
    }

    /// The turn is to end after the op under way.
    pub fn make_way(&self) {
        self.0.fetch_max(MAKE_WAY, Ordering::Relaxed);
    }

    /// The step was given up: the op under way, too, is to end.
    pub fn stop(&self) {
        self.0.store(STOP, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != GO_ON
    }

    pub fn says_stop(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STOP
    }
}

thread_local! {
    /// The signal of the turn that this thread runs.
    static CURRENT: RefCell<Option<Arc<Signal>>> = const { RefCell::new(None) };
    /// The op under way must not be left in the middle.
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a turn, whose kernels hear of the signal.
pub fn within<T>(signal: &Arc<Signal>, turn: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<Signal>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(Arc::clone(signal))));
    turn()
}

/// The signal of the turn that this thread runs.
pub fn current() -> Option<Arc<Signal>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs a part of a kernel on whichever thread has time for it: one that waits for a kernel of another step, maybe. The part
/// looks at no signal, its own kernel does.
pub fn apart<T>(part: impl FnOnce() -> T) -> T {
    whole(part)
}

/// Runs what must not be left in the middle: within it, [`look`] goes on whatever was said.
pub fn whole<T>(op: impl FnOnce() -> T) -> T {
    as_whole(true, op)
}

/// Runs what may be left in the middle after all, within what runs [`whole`].
pub fn in_part<T>(op: impl FnOnce() -> T) -> T {
    as_whole(false, op)
}

fn as_whole<T>(is_whole: bool, op: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_WHOLE.set(self.0);
        }
    }
    let _restore = Restore(IS_WHOLE.replace(is_whole));
    op()
}

thread_local! {
    /// How often this thread has looked, for tests.
    pub static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// What [`look`] unwinds with.
struct Stopped;

/// Whether this unwinding is not a panic but the end of an op whose step was given up.
pub fn is_stop(panic: &(dyn Any + Send)) -> bool {
    panic.is::<Stopped>()
}

/// Whether the step whose kernel this thread runs was given up.
fn is_given_up() -> bool {
    !IS_WHOLE.get() && CURRENT.with_borrow(|signal| signal.as_ref().is_some_and(|signal| signal.says_stop()))
}

/// Ends the kernel that this thread runs, if its step was given up. Costs some nanoseconds.
pub fn look() {
    LOOKS.set(LOOKS.get() + 1);
    if is_given_up() {
        // Not a panic: no message is printed, and no hook runs.
        resume_unwind(Box::new(Stopped));
    }
}

/// So much work, in elements that a kernel reads or writes at about a nanosecond each, lies between two looks.
pub const BLOCK: usize = 1 << 20;

/// Looks once for every [`BLOCK`] of work.
pub struct Pace {
    left: usize,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { left: BLOCK }
    }

    /// So much more is about to be done.
    pub fn go(&mut self, work: usize) {
        match self.left.checked_sub(work) {
            Some(left) => self.left = left,
            None => {
                look();
                self.left = BLOCK;
            }
        }
    }
}

/// The items of an iterator, each of which makes so much work; with a look now and then.
pub fn paced<I: Iterator>(items: I, work: usize) -> impl Iterator<Item = I::Item> {
    let mut pace = Pace::new();
    items.inspect(move |_| pace.go(work))
}

/// So many elements at a time go through a function, which may take a hundred nanoseconds for each.
pub const ELEMENTS: usize = BLOCK / 8;

/// The elements of a slice in blocks, with a look between them.
pub fn blocks<T>(elements: &[T]) -> impl Iterator<Item = &[T]> {
    elements.chunks(ELEMENTS).enumerate().map(|(i, block)| looked(i, block))
}

/// As [`blocks`], to be written to.
pub fn blocks_mut<T>(elements: &mut [T]) -> impl Iterator<Item = &mut [T]> {
    elements.chunks_mut(ELEMENTS).enumerate().map(|(i, block)| looked(i, block))
}

/// A copy of the elements, made in blocks.
pub fn copied<T: Clone>(elements: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(elements.len());
    blocks(elements).for_each(|block| copy.extend_from_slice(block));
    copy
}

/// What is small is one block, and pays for no look.
fn looked<T>(i: usize, block: T) -> T {
    if i > 0 {
        look();
    }
    block
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_look_ends_only_what_was_given_up_and_may_be_left() {
        let check = |say: fn(&Signal), is_whole: bool, ends: bool| {
            let signal = Arc::new(Signal::default());
            say(&signal);
            let run = || {
                within(&signal, || {
                    if is_whole {
                        return whole(look);
                    }
                    // What must be whole says so for itself alone.
                    whole(|| ());
                    look();
                })
            };
            match catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(()) => assert!(!ends),
                Err(panic) => assert!(ends && is_stop(&*panic)),
            }
            // Outside of the turn nothing is reported.
            look();
        };
        check(|_| (), false, false);
        check(Signal::make_way, false, false);
        check(Signal::stop, false, true);
        check(Signal::stop, true, false);
        let signal = Arc::new(Signal::default());
        signal.stop();
        let in_whole = || within(&signal, || whole(|| in_part(look)));
        assert!(catch_unwind(std::panic::AssertUnwindSafe(in_whole)).is_err_and(|panic| is_stop(&*panic)));
        // Who was told to stop is not told to make way instead.
        check(|signal| (signal.stop(), signal.make_way()).1, false, true);
        check(|signal| (signal.stop(), signal.clear()).1, false, false);
    }

    #[test]
    fn a_pace_looks_once_for_each_block() {
        let signal = Arc::new(Signal::default());
        let ended_after = |work: usize| {
            let count = Cell::new(0);
            let run = || {
                within(&signal, || {
                    let mut pace = Pace::new();
                    signal.stop();
                    loop {
                        pace.go(work);
                        count.set(count.get() + 1);
                    }
                })
            };
            let ended: Result<(), _> = catch_unwind(std::panic::AssertUnwindSafe(run));
            assert!(is_stop(&*ended.unwrap_err()));
            count.get()
        };
        assert_eq!(ended_after(BLOCK / 4), 4);
        assert_eq!(ended_after(BLOCK + 1), 0);
    }
}
