//! An allocator that counts, on top of the one of the `meshtf` command.

#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use meshtf::Allocator;

/// Counts the requests of all threads while [`counted`] runs; otherwise it only checks a flag.
pub struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The requests to the allocator.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub calls: u64,
    pub bytes: u64,
}

/// The requests of a call to the allocator, on any thread.
pub fn counted(call: impl FnOnce()) -> Count {
    let before = (CALLS.load(Relaxed), BYTES.load(Relaxed));
    IS_COUNTING.store(true, Relaxed);
    call();
    IS_COUNTING.store(false, Relaxed);
    Count { calls: CALLS.load(Relaxed) - before.0, bytes: BYTES.load(Relaxed) - before.1 }
}

fn count(bytes: usize) {
    if IS_COUNTING.load(Relaxed) {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes as u64, Relaxed);
    }
}

// SAFETY: every call is forwarded to the other allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { Allocator.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { Allocator.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.saturating_sub(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { Allocator.realloc(block, layout, size) }
    }
}
