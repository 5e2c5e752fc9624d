//! Tensors in the memory of Python's arrays: a large array that a run feeds to other processes is sent from where it is.
//!
//! A tensor owns a vector, which returns its memory to the allocator. The allocator of this module knows which memory is an
//! array's, and releases the array instead. Nobody writes to such a tensor: it is shared as long as its run, and what may still
//! hold it then only sends it.

#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to implement, and the memory of an array is known by its address"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use meshtf::tensor::{Element, Tensor};
use pyo3::prelude::*;

/// The size from which an array is borrowed. A smaller one is copied in less time than a step takes.
const LEAST_BYTES: usize = 1 << 20;
/// Most arrays that are borrowed at a time; further ones are copied.
const MAX_BORROWED: usize = 1024;

/// The address of each array that is borrowed, as often as it is. Each entry keeps its array.
static BORROWED: Mutex<Vec<(usize, Py<PyAny>)>> = Mutex::new(Vec::new());
/// The number of entries, so that the allocator seldom looks.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A tensor in the memory of an array; `None` for an array that is better copied.
///
/// # Safety
/// The array has that many elements of the type from that address on, and keeps them there as long as it exists.
pub unsafe fn borrow<T: Element>(array: &Bound<'_, PyAny>, address: usize, count: usize) -> Option<Tensor> {
    let first = address as *mut T;
    if count.checked_mul(size_of::<T>())? < LEAST_BYTES || !first.is_aligned() {
        return None;
    }
    {
        let mut all = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_BORROWED {
            return None;
        }
        all.push((address, array.clone().unbind()));
        COUNT.store(all.len(), Ordering::Release);
    }
    // SAFETY: the caller's guarantees. The vector's memory is returned to `Allocator`, which finds it in the list.
    Some(Tensor::vector(unsafe { Vec::from_raw_parts(first, count, count) }))
}

/// The array of a block that is given back, if it is one's.
fn array_at(block: *mut u8, layout: Layout) -> Option<Py<PyAny>> {
    if layout.size() < LEAST_BYTES || COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let mut all = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = all.iter().position(|(address, _)| *address == block as usize)?;
    let (_, array) = all.swap_remove(found);
    COUNT.store(all.len(), Ordering::Release);
    Some(array)
}

/// meshtf's allocator, which keeps the memory of large arrays for the next ones, and does not own Python's.
pub struct Allocator;

// SAFETY: everything is the inner allocator's, except blocks of arrays, which are neither freed nor resized.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { meshtf::Allocator.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { meshtf::Allocator.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match array_at(block, layout) {
            // Without Python's lock, the array is released when a thread next has it.
            Some(array) => drop(array),
            // SAFETY: the caller's guarantees are passed on.
            None => unsafe { meshtf::Allocator.dealloc(block, layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(array) = array_at(block, layout) else {
            // SAFETY: the caller's guarantees are passed on.
            return unsafe { meshtf::Allocator.realloc(block, layout, size) };
        };
        // SAFETY: the size is not zero and does not overflow, by the caller's guarantees; the blocks do not overlap.
        unsafe {
            let new = meshtf::Allocator.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if new.is_null() {
                // The block stays as it was.
                put_back(block, array);
            } else {
                block.copy_to_nonoverlapping(new, size.min(layout.size()));
                drop(array);
            }
            new
        }
    }
}

#[cold]
fn put_back(block: *mut u8, array: Py<PyAny>) {
    let mut all = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
    all.push((block as usize, array));
    COUNT.store(all.len(), Ordering::Release);
}
