//! The threads over which kernels spread their work, as many as there are cores.
//!
//! A thread that has a kernel to spread computes parts of it itself, and others join it while parts are left. So a kernel never
//! waits for a thread to wake up, which takes longer than many a kernel: one that is late finds nothing to do. A thread that has
//! no work looks for some for a while before it sleeps, because the next kernel of a step follows soon.
//!
//! Not rayon: there, a thread from outside of the pool only waits for its kernel, which starts after two threads have been woken.

#![allow(
    unsafe_code,
    reason = "threads of the pool compute a closure that is borrowed from the frame that waits for them"
)]

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use smallvec::SmallVec;

use crate::denormals::Denormals;
use crate::turn::apart;

/// How often a thread without work looks for some before it sleeps: for 100 to 200 µs, when other processes may have the core.
const LOOKS: usize = 256;

/// Pauses between two looks.
const PAUSES: usize = 16;

/// How often a thread that waits for the last parts of its kernel looks before it sleeps.
const LAST_LOOKS: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// Threads, and their work.
struct Pool {
    threads: usize,
    /// Those that the system did not refuse.
    started: AtomicUsize,
    work: Mutex<Work>,
    /// How many threads could be of use, beyond those that have been found. For a moment, it may be too low by those that
    /// look for a kernel that has just ended.
    wanted: AtomicIsize,
}

#[derive(Default)]
struct Work {
    /// Kernels that may have parts left, while their frames wait.
    kernels: Vec<NonNull<Kernel<'static>>>,
    jobs: VecDeque<Job>,
    looking: usize,
    /// The last is woken first: its core still has some of what it computed.
    asleep: Vec<Thread>,
}

// SAFETY: a pointer in `kernels` is that of a `Kernel`, which is `Sync`, for as long as it is in there.
unsafe impl Send for Work {}

/// A kernel whose parts are computed by its frame and by the threads that join it. Each has a range of neighbouring parts, the
/// frame the first, and then takes those that the others have not begun. So of several kernels on the same elements, a thread
/// has the same ones in its cache.
struct Kernel<'a> {
    compute: &'a (dyn Fn(usize) + Sync),
    parts: usize,
    /// By range, the number of its parts that have begun; more if threads have looked for another.
    begun: SmallVec<[AtomicUsize; 4]>,
    /// Threads that may still join. Changes while `Pool::work` is locked.
    room: AtomicUsize,
    /// Threads that have joined and not left.
    joined: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    frame: Thread,
    denormals: Denormals,
}

thread_local! {
    /// The pool of the threads of this frame.
    static CURRENT: Cell<Option<&'static Pool>> = const { Cell::new(None) };
    static SPREAD: Cell<usize> = const { Cell::new(0) };
}

/// The number of kernels that this thread has spread over others since it began.
pub fn spread() -> usize {
    SPREAD.get()
}

/// The number of threads that share the work of a kernel.
#[inline]
pub fn count() -> usize {
    current().threads
}

/// Computes all parts, each once, on this thread and on those of the pool that have time; returns when the last has ended.
///
/// Not generic, so that it is compiled once: monomorphised for each kind of part, this code was a third of this crate and an
/// eighth of the host kernels.
///
/// # Panics
/// As a part does; the parts that have not begun are then not computed.
pub fn share(parts: usize, compute: &(dyn Fn(usize) + Sync)) {
    let pool = current();
    let helpers = parts.min(pool.threads).saturating_sub(1);
    if helpers == 0 {
        return (0..parts).for_each(|part| apart(|| compute(part)));
    }
    SPREAD.set(SPREAD.get().wrapping_add(1));
    let kernel = Kernel {
        compute,
        parts,
        begun: (0..=helpers).map(|_| AtomicUsize::new(0)).collect(),
        room: AtomicUsize::new(helpers),
        joined: AtomicUsize::new(0),
        panic: Mutex::default(),
        frame: thread::current(),
        denormals: Denormals::of_this_thread(),
    };
    let open = Open::new(pool, &kernel);
    kernel.compute(0);
    drop(open);
    let panic = kernel.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Runs a job on a thread of the pool, after those that were given before; on this one if the system has refused all threads. It
/// treats denormal floats as this thread does. It should not wait; a panic in it is ignored.
pub fn spawn(job: impl FnOnce() + Send + 'static) {
    let (pool, denormals) = (current(), Denormals::of_this_thread());
    if pool.started.load(Ordering::Relaxed) == 0 {
        let _panicked = catch_unwind(AssertUnwindSafe(job));
        return;
    }
    let mut work = pool.lock();
    work.jobs.push_back(Box::new(move || {
        denormals.set();
        job();
    }));
    pool.want(work, 1);
}

/// Runs `frame` with a pool of so many threads of its own, which stay.
#[cfg(test)]
pub(crate) fn with<T>(threads: usize, frame: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(Some(Pool::start(threads)));
    let result = frame();
    CURRENT.set(before);
    result
}

fn current() -> &'static Pool {
    static ALL: OnceLock<&'static Pool> = OnceLock::new();
    CURRENT.get().unwrap_or_else(|| {
        let pool = *ALL.get_or_init(|| Pool::start(thread::available_parallelism().map_or(1, usize::from)));
        CURRENT.set(Some(pool));
        pool
    })
}

/// A kernel that threads may join; waits for those that did when it is dropped.
struct Open<'a> {
    pool: &'static Pool,
    kernel: &'a Kernel<'a>,
}

impl<'a> Open<'a> {
    fn new(pool: &'static Pool, kernel: &'a Kernel<'a>) -> Open<'a> {
        let mut work = pool.lock();
        work.kernels.push(NonNull::from(kernel).cast());
        pool.want(work, kernel.room.load(Ordering::Relaxed));
        Open { pool, kernel }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.kernel.leave();
        }
        let own = NonNull::from(self.kernel).cast();
        let mut work = self.pool.lock();
        work.kernels.retain(|kernel| *kernel != own);
        let room = self.kernel.room.load(Ordering::Relaxed);
        self.pool.wanted.fetch_sub(room as isize, Ordering::Relaxed);
        drop(work);
        let mut looks = 0;
        while self.kernel.joined.load(Ordering::Acquire) > 0 {
            match looks {
                LAST_LOOKS => thread::park(),
                _ => {
                    look_away();
                    looks += 1;
                }
            }
        }
    }
}

impl Kernel<'_> {
    /// Computes parts until all have begun: those of a range first.
    fn compute(&self, own: usize) {
        let ranges = self.begun.len();
        for range in (own..ranges).chain(0..own) {
            let [start, end] = [range, range + 1].map(|range| range * self.parts / ranges);
            loop {
                let part = start + self.begun[range].fetch_add(1, Ordering::Relaxed);
                if part >= end {
                    break;
                }
                apart(|| (self.compute)(part));
            }
        }
    }

    /// Lets no other part begin.
    fn leave(&self) {
        self.begun.iter().for_each(|begun| begun.store(self.parts, Ordering::Relaxed));
    }

    /// Computes parts on a thread that has joined.
    fn help(&self, own: usize) {
        self.denormals.set();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.compute(own))) {
            self.leave();
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
        // Once `joined` is 0, the frame may end, and with it the kernel.
        let frame = self.frame.clone();
        if self.joined.fetch_sub(1, Ordering::AcqRel) == 1 {
            frame.unpark();
        }
    }
}

impl Pool {
    fn start(threads: usize) -> &'static Pool {
        let pool = Pool { threads, started: AtomicUsize::new(0), work: Mutex::default(), wanted: AtomicIsize::new(0) };
        let pool: &'static Pool = Box::leak(Box::new(pool));
        // With fewer threads, kernels take longer; a frame computes its kernel without any.
        let start =
            |index: &usize| thread::Builder::new().name(format!("kernels-{index}")).spawn(|| pool.run()).is_ok();
        pool.started.store((0..threads).filter(start).count(), Ordering::Relaxed);
        pool
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets threads look for this much work that has been added.
    fn want(&self, mut work: MutexGuard<'_, Work>, more: usize) {
        let wanted = self.wanted.fetch_add(more as isize, Ordering::Relaxed) + more as isize;
        let woken = if wanted > work.looking as isize { work.asleep.pop() } else { None };
        drop(work);
        if let Some(woken) = woken {
            woken.unpark();
        }
    }

    /// The work of a thread.
    fn run(&'static self) {
        CURRENT.set(Some(self));
        loop {
            self.await_work();
            let mut work = self.lock();
            if let Some(job) = work.jobs.pop_front() {
                // One wakes the next, so that none has to wake many.
                self.want(work, 0);
                let _panicked = catch_unwind(AssertUnwindSafe(job));
                continue;
            }
            let found = work.kernels.iter().copied().find(|kernel| {
                // SAFETY: the frame of a kernel that is in the list waits for this lock before it ends.
                unsafe { kernel.as_ref() }.room.load(Ordering::Relaxed) > 0
            });
            let Some(kernel) = found else {
                self.wanted.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            // SAFETY: as above; and from `joined` on, the frame waits until this thread has left.
            let kernel = unsafe { kernel.as_ref() };
            let range = kernel.begun.len() - kernel.room.fetch_sub(1, Ordering::Relaxed);
            kernel.joined.fetch_add(1, Ordering::Relaxed);
            self.want(work, 0);
            kernel.help(range);
        }
    }

    /// Waits until this thread is wanted, and takes account of that.
    fn await_work(&self) {
        if self.claim() {
            return;
        }
        let mut work = self.lock();
        // A frame with a kernel has a core, and a thread that looks must not take it.
        if work.looking + 1 < self.threads {
            work.looking += 1;
            drop(work);
            let is_found = (0..LOOKS).any(|_| {
                look_away();
                self.wanted.load(Ordering::Relaxed) > 0 && self.claim()
            });
            work = self.lock();
            work.looking -= 1;
            if is_found {
                return;
            }
        }
        let own = thread::current();
        while !self.claim() {
            work.asleep.push(own.clone());
            drop(work);
            thread::park();
            work = self.lock();
            work.asleep.retain(|thread| thread.id() != own.id());
        }
    }

    fn claim(&self) -> bool {
        let less = |wanted: isize| (wanted > 0).then(|| wanted - 1);
        self.wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// Passes a moment without work.
fn look_away() {
    (0..PAUSES).for_each(|_| std::hint::spin_loop());
    thread::yield_now();
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc;

    use super::*;
    use crate::denormals::Flushed;

    #[test]
    fn each_part_is_computed_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            with(threads, || {
                assert_eq!(count(), threads);
                for parts in [0, 1, 2, 7, 1000] {
                    let before = spread();
                    let times: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                    share(parts, &|part| {
                        times[part].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(times.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{parts} on {threads}");
                    assert_eq!(spread() != before, threads > 1 && parts > 1, "{parts} on {threads}");
                }
            });
        }
    }

    /// Each part waits for the other, so one thread alone would never end.
    #[test]
    fn another_thread_joins_a_kernel() {
        with(2, || {
            let both = Barrier::new(2);
            for _ in 0..100 {
                share(2, &|_| {
                    both.wait();
                });
            }
        });
    }

    /// All threads of the pool are occupied by jobs that end after the kernel.
    #[test]
    fn a_kernel_needs_no_other_thread() {
        with(2, || {
            let (end, ends) = mpsc::channel::<()>();
            let ends = std::sync::Arc::new(Mutex::new(ends));
            for _ in 0..2 {
                let ends = std::sync::Arc::clone(&ends);
                spawn(move || {
                    let _ended = ends.lock().map(|ends| ends.recv());
                });
            }
            let sum = AtomicUsize::new(0);
            share(100, &|part| {
                sum.fetch_add(part, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
            drop(end);
        });
    }

    #[test]
    fn kernels_within_parts_and_jobs_share_the_threads() {
        with(3, || {
            let (done, all) = mpsc::channel();
            for _ in 0..20 {
                let done = done.clone();
                spawn(move || {
                    let sum = AtomicUsize::new(0);
                    share(10, &|outer| {
                        share(10, &|inner| {
                            sum.fetch_add(10 * outer + inner, Ordering::Relaxed);
                        })
                    });
                    done.send(sum.into_inner()).unwrap();
                });
            }
            drop(done);
            assert_eq!(all.iter().collect::<Vec<_>>(), [4950; 20]);
        });
    }

    #[test]
    fn a_panic_of_a_part_reaches_the_frame_and_ends_no_thread() {
        with(2, || {
            let both = Barrier::new(2);
            for _ in 0..4 {
                // One of the two is on the other thread.
                let ended = catch_unwind(AssertUnwindSafe(|| {
                    share(2, &|part| {
                        both.wait();
                        if part == 1 {
                            resume_unwind(Box::new("a part"));
                        }
                    });
                }));
                assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"a part"));
            }
            spawn(|| resume_unwind(Box::new("a job")));
            share(2, &|_| {
                both.wait();
            });
        });
    }

    #[test]
    fn parts_treat_denormals_as_their_frame_does() {
        with(2, || {
            let both = Barrier::new(2);
            let least = |wanted: f32| {
                share(2, &|_| {
                    both.wait();
                    assert_eq!(std::hint::black_box(f32::MIN_POSITIVE) / 2.0 == 0.0, wanted == 0.0);
                });
            };
            for _ in 0..3 {
                least(1.0);
                let _flushed = Flushed::begin();
                least(0.0);
            }
        });
    }
}
