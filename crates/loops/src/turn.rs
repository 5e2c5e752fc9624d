//! The signal by which the turn of a step is asked to yield or is cancelled, and the check for it within a kernel.
//!
//! A kernel that may take long calls [`look`] between its blocks, every few milliseconds of work. If its step was cancelled,
//! `look` unwinds to the frame that runs the turn, and the turn ends; the result of the kernel would have had no consumer. An
//! op that changes state is never interrupted: it runs in [`whole`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The message from the threads of a device to the thread that runs a turn.
#[derive(Debug, Default)]
pub struct Signal(AtomicU8);

const GO_ON: u8 = 0;
const MAKE_WAY: u8 = 1;
const STOP: u8 = 2;

impl Signal {
    /// Begins a new turn: resets the signal.
    #[inline]
    pub fn clear(&self) {
        self.0.store(GO_ON, Ordering::Relaxed);
    }

    /// Asks the turn to end after the current op.
    #[inline]
    pub fn make_way(&self) {
        self.0.fetch_max(MAKE_WAY, Ordering::Relaxed);
    }

    /// Cancels the step: the current op ends, too.
    #[inline]
    pub fn stop(&self) {
        self.0.store(STOP, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != GO_ON
    }

    #[inline]
    pub fn says_stop(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STOP
    }
}

thread_local! {
    /// The signal of the turn that this thread runs.
    static CURRENT: RefCell<Option<Arc<Signal>>> = const { RefCell::new(None) };
    /// Whether the current op must not be interrupted.
    static IS_WHOLE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a turn whose kernels observe the signal.
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
#[inline]
pub fn current() -> Option<Arc<Signal>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs a part of a kernel, on its thread or another. The part ignores the signal of that thread; the kernel checks its own
/// between parts.
pub fn apart<T>(part: impl FnOnce() -> T) -> T {
    whole(part)
}

/// Runs an op that must not be interrupted: within it, [`look`] returns whatever the signal.
pub fn whole<T>(op: impl FnOnce() -> T) -> T {
    as_whole(true, op)
}

/// Runs a part that may be interrupted, within an op that runs in [`whole`].
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
    /// The number of checks on this thread, for tests.
    pub static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// The payload with which [`look`] unwinds.
struct Stopped;

/// Whether this unwinding is not a panic but the end of an op whose step was cancelled.
#[inline]
pub fn is_stop(panic: &(dyn Any + Send)) -> bool {
    panic.is::<Stopped>()
}

/// Whether the step whose kernel this thread runs was cancelled.
fn is_given_up() -> bool {
    !IS_WHOLE.get() && CURRENT.with_borrow(|signal| signal.as_ref().is_some_and(|signal| signal.says_stop()))
}

/// Ends the kernel that this thread runs, if its step was cancelled. Costs a few nanoseconds.
pub fn look() {
    LOOKS.set(LOOKS.get() + 1);
    if is_given_up() {
        // Not a panic: no message is printed, and no hook runs.
        resume_unwind(Box::new(Stopped));
    }
}

/// The work between two checks, in elements that a kernel reads or writes at about a nanosecond each.
pub const BLOCK: usize = 1 << 20;

/// Checks for cancellation once for every [`BLOCK`] of work.
pub struct Pace {
    left: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new()
    }
}

impl Pace {
    /// The first check comes after a [`BLOCK`] of work.
    #[inline]
    pub fn new() -> Pace {
        Pace { left: BLOCK }
    }

    /// Accounts for `work` about to be done.
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

/// The items of an iterator, each of which takes `work`, with a check for cancellation every [`BLOCK`] of work.
pub fn paced<I: Iterator>(items: I, work: usize) -> impl Iterator<Item = I::Item> {
    let mut pace = Pace::new();
    items.inspect(move |_| pace.go(work))
}

/// The number of elements between two checks of a function that may take a hundred nanoseconds for each.
pub const ELEMENTS: usize = BLOCK / 8;

/// The elements of a slice in blocks, with a check for cancellation between them.
pub fn blocks<T>(elements: &[T]) -> impl Iterator<Item = &[T]> {
    elements.chunks(ELEMENTS).enumerate().map(|(i, block)| looked(i, block))
}

/// As [`blocks`], mutable.
pub fn blocks_mut<T>(elements: &mut [T]) -> impl Iterator<Item = &mut [T]> {
    elements.chunks_mut(ELEMENTS).enumerate().map(|(i, block)| looked(i, block))
}

/// A copy of the elements, made in blocks.
pub fn copied<T: Clone>(elements: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(elements.len());
    blocks(elements).for_each(|block| copy.extend_from_slice(block));
    copy
}

/// A small slice is one block, and pays for no check.
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
                    // `whole` ends with its closure.
                    whole(|| ());
                    look();
                })
            };
            match catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(()) => assert!(!ends),
                Err(panic) => assert!(ends && is_stop(&*panic)),
            }
            // Outside of the turn the signal is ignored.
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
        // A stop is not downgraded to a request to yield.
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
