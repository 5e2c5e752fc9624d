//! The counts of the process's heap: bytes in use, and bytes that a budget has admitted and that are not in use yet.
//!
//! They are the process's and no budget's, since it has one allocator, which cannot know for whom a block is. A thread counts
//! the bytes that it allocates by itself first: every allocation is counted, and must not wait for the others.
//!
//! Nothing in this module allocates: the allocator calls it.

use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// A thread counts this many bytes by itself before it updates the shared count.
const BATCH: usize = 64 << 10;

/// A result smaller than this is made even if the budget is exhausted, so that steps that keep nothing can continue.
pub(super) const SMALL: usize = 64 << 10;

/// Containers stop growing at 1/32 below the budget, and small results at 1/32 above it: a process whose containers fill the
/// budget can still run steps.
pub(super) const SHARE: usize = 32;

/// Memory in use and memory reserved, in bytes.
pub(super) struct Heap {
    /// May lag by one [`BATCH`] per thread, and so be negative at first.
    in_use: AtomicIsize,
    /// Admitted, but not in use yet.
    reserved: AtomicUsize,
}

pub(super) static HEAP: Heap = Heap::new();

thread_local! {
    // Neither has a destructor, since the allocator is called before and after everything else in a thread.
    /// Bytes that this thread allocated or freed since it last updated the shared count.
    static UNTOLD: Cell<isize> = const { Cell::new(0) };
    /// Bytes reserved for the op that runs on this thread; `None` outside a [`Turn`](super::Turn).
    pub(super) static PROMISED: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Heap {
    const fn new() -> Heap {
        Heap { in_use: AtomicIsize::new(0), reserved: AtomicUsize::new(0) }
    }

    fn in_use(&self) -> usize {
        usize::try_from(self.in_use.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Whether this many bytes fit below the limit now.
    #[inline]
    pub fn fits(&self, limit: usize, bytes: usize) -> bool {
        let in_use = self.in_use();
        if bytes < SMALL {
            return in_use + bytes <= limit.saturating_add(limit / SHARE);
        }
        in_use.saturating_add(self.reserved.load(Ordering::Relaxed)).saturating_add(bytes) <= limit
    }

    /// Whether containers may grow.
    #[inline]
    pub fn may_grow(&self, limit: usize) -> bool {
        self.in_use() <= limit - limit / SHARE
    }

    /// Whether a message of which this many bytes have arrived, and are in use, may continue to arrive.
    pub fn may_keep(&self, limit: usize, bytes: usize) -> bool {
        let in_use = self.in_use();
        if bytes < SMALL {
            return in_use <= limit.saturating_add(limit / SHARE);
        }
        in_use.saturating_add(self.reserved.load(Ordering::Relaxed)) <= limit - limit / SHARE
    }

    /// Reserves bytes if they fit in addition to the existing reservations.
    pub fn try_reserve(&self, limit: usize, bytes: usize) -> bool {
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = self.in_use().saturating_add(reserved) <= limit;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Releases reserved bytes.
    #[inline]
    pub fn release(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserves a large result for the op that runs on this thread, in place of its previous reservation.
    pub fn promise(&self, limit: usize, bytes: usize) -> bool {
        if PROMISED.get().is_none() || limit == usize::MAX {
            return self.fits(limit, bytes);
        }
        self.forget_promise();
        let fits = self.try_reserve(limit, bytes);
        PROMISED.set(Some(if fits { bytes } else { 0 }));
        fits
    }

    pub fn forget_promise(&self) {
        let promised = PROMISED.replace(Some(0)).unwrap_or(0);
        if promised > 0 {
            self.release(promised);
        }
    }

    /// Adds the bytes that a thread allocated or freed since its last update to the shared count.
    fn tell(&self, change: isize) {
        self.in_use.fetch_add(change, Ordering::Relaxed);
        // Memory promised to this thread's op is in use now, and counted.
        if let (Ok(taken), Some(promised @ 1..)) = (usize::try_from(change), PROMISED.get()) {
            let kept = promised.min(taken);
            PROMISED.set(Some(promised - kept));
            self.release(kept);
        }
    }
}

/// How many bytes the heap of this process holds.
#[inline]
pub fn in_use() -> usize {
    HEAP.in_use()
}

/// The allocator handed out this many bytes.
#[inline]
pub fn took(bytes: usize) {
    count(bytes as isize);
}

/// The allocator took this many bytes back.
#[inline]
pub fn gave(bytes: usize) {
    count(-(bytes as isize));
}

#[inline]
fn count(change: isize) {
    UNTOLD.with(|untold| {
        let sum = untold.get() + change;
        if sum.unsigned_abs() < BATCH {
            untold.set(sum);
        } else {
            untold.set(0);
            tell(sum);
        }
    });
}

#[cold]
fn tell(change: isize) {
    HEAP.tell(change);
}

/// Updates the shared count; called when a thread ends.
#[inline]
pub fn tell_all() {
    HEAP.in_use.fetch_add(UNTOLD.replace(0), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_neither_in_use_nor_reserved_is_available() {
        let (heap, limit) = (Heap::new(), 100 << 20);
        heap.in_use.store(60 << 20, Ordering::Relaxed);
        assert!(heap.try_reserve(limit, 30 << 20));
        assert!(!heap.try_reserve(limit, 11 << 20), "30 of the 40 are reserved");
        assert!(heap.try_reserve(limit, 10 << 20), "the refused reservation left nothing behind");
        assert!(!heap.try_reserve(limit, 1));
        heap.reserved.fetch_sub(40 << 20, Ordering::Relaxed);
        heap.in_use.fetch_add(40 << 20, Ordering::Relaxed);
        assert!(!heap.fits(limit, SMALL));
        assert!(heap.fits(limit, SMALL - 1), "small results go on");
        heap.in_use.fetch_add(4 << 20, Ordering::Relaxed);
        assert!(!heap.fits(limit, 1), "but not for ever");
        heap.in_use.store(-5, Ordering::Relaxed);
        assert_eq!(heap.in_use(), 0);
    }

    #[test]
    fn large_messages_end_before_small_ones() {
        let (heap, limit) = (Heap::new(), 64 << 20);
        let check = |in_use: usize, reserved: usize, large: bool, small: bool| {
            heap.in_use.store((in_use << 20) as isize, Ordering::Relaxed);
            heap.reserved.store(reserved << 20, Ordering::Relaxed);
            assert_eq!(
                (heap.may_keep(limit, SMALL), heap.may_keep(limit, SMALL - 1)),
                (large, small),
                "{in_use} and {reserved}"
            );
        };
        // 1/32 of these 64 MiB is 2 MiB.
        check(62, 0, true, true);
        check(40, 22, true, true);
        check(40, 23, false, true);
        check(63, 0, false, true);
        check(66, 0, false, true);
        check(67, 0, false, false);
        assert!(Heap::new().may_keep(usize::MAX, 1 << 40));
    }

    #[test]
    fn memory_promised_to_an_op_is_reserved_until_allocated() {
        let (heap, limit) = (Heap::new(), 100 << 20);
        let reserved = || heap.reserved.load(Ordering::Relaxed) >> 20;
        PROMISED.set(Some(0));
        assert!(heap.promise(limit, 60 << 20) && reserved() == 60);
        // The second request replaces the first; no other op is promised memory.
        assert!(heap.promise(limit, 70 << 20) && reserved() == 70);
        assert!(!heap.try_reserve(limit, 31 << 20));
        // Part of it is allocated, and so counted once.
        heap.tell(40 << 20);
        assert_eq!((reserved(), heap.in_use() >> 20), (30, 40));
        heap.tell(-(10 << 20));
        assert_eq!((reserved(), heap.in_use() >> 20), (30, 30));
        assert!(!heap.promise(limit, 71 << 20) && reserved() == 0, "a refusal reserves nothing");
        assert!(heap.promise(limit, 70 << 20));
        heap.forget_promise();
        assert_eq!(reserved(), 0);
        // Outside an op, memory is not reserved but only checked.
        PROMISED.set(None);
        assert!(heap.promise(limit, 70 << 20) && reserved() == 0);
    }
}
