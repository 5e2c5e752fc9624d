//! The allocator of the `meshtf` command.
//!
//! mimalloc, which keeps the memory of large tensors for the next ones, while the system's allocator would return it and fault
//! it in again page by page. It keeps it for longer than its default: a training allocates and frees the same tensors in each
//! step, and a fresh page costs more than the work of most ops on it. Large tensors are placed on large pages if the system has
//! them: a matrix product jumps from row to row, and on pages of 4 KiB each jump misses the TLB. Until it has work, a node
//! keeps to small pages: on large ones, it would hold three times as much. Allocations are counted for the process's
//! [memory budget](meshtf_tensor::memory).

#![allow(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use meshtf_tensor::memory;
use mimalloc::MiMalloc;

/// For how many milliseconds free memory is kept, unless `MIMALLOC_PURGE_DELAY` is set.
const KEPT_MS: c_long = 10_000;

unsafe extern "C" {
    // mimalloc's own functions; its crate declares them only together with many others.
    fn mi_collect(force: bool);
    fn mi_option_set_default(option: c_int, value: c_long);
}
/// The number of that option in mimalloc.
const PURGE_DELAY: c_int = 15;

/// For a program's `#[global_allocator]`. A library does not decide about its program's memory, so it is only used if a program
/// declares it, as `meshtf` and the benches do.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;
///
/// let tensor = meshtf::tensor::Tensor::zeros(meshtf::tensor::DType::F32, [1024, 1024])?;
/// assert_eq!(tensor.byte_len(), 4 << 20);
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// From this size on, large pages are requested for a block; smaller ones would leave too much of one unused.
const LARGE_BYTES: usize = 4 << 20;
/// The size of a block from which the process has work.
const WORK_BYTES: usize = 256 << 10;

// SAFETY: everything is mimalloc's; advice about pages changes neither addresses nor contents.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        let block = unsafe { again(|| MiMalloc.alloc(layout)) };
        took(block, layout.size());
        block
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        let block = unsafe { again(|| MiMalloc.alloc_zeroed(layout)) };
        took(block, layout.size());
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        memory::gave(layout.size());
        // SAFETY: the caller's guarantees are passed on.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's guarantees are passed on.
        let block = unsafe { again(|| MiMalloc.realloc(block, layout, size)) };
        if !block.is_null() {
            memory::gave(layout.size());
        }
        took(block, size);
        block
    }
}

/// A block; if the system has none, returns idle memory to it and tries once more.
#[inline]
fn again(mut ask: impl FnMut() -> *mut u8) -> *mut u8 {
    let block = ask();
    if block.is_null() {
        give_back();
        return ask();
    }
    block
}

#[cold]
fn give_back() {
    // SAFETY: any thread may call it at any time.
    unsafe { mi_collect(true) };
}

/// Counts a block if there is one.
#[inline]
fn took(block: *mut u8, size: usize) {
    if !block.is_null() {
        memory::took(size);
    }
    advise(block, size);
}

/// Requests large pages for a large block that has not been written to yet. The pages at its ends may contain other blocks,
/// which is harmless, and the system may refuse.
#[inline]
fn advise(block: *mut u8, size: usize) {
    if size >= WORK_BYTES && !block.is_null() {
        begin_work();
        if size >= LARGE_BYTES {
            advise_large(block, size);
        }
    }
}

/// Whether a block of work has been taken since the start, or since [`rest`].
static IS_AT_WORK: AtomicBool = AtomicBool::new(false);

/// The addresses that are on small pages while there is no work.
static RESERVED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Sets for how long free memory is kept, and ends [`rest`], at the first block of work.
fn begin_work() {
    if !IS_AT_WORK.load(Ordering::Relaxed) && !IS_AT_WORK.swap(true, Ordering::Relaxed) {
        // SAFETY: sets a number, which may be set at any time; it allocates nothing.
        unsafe { mi_option_set_default(PURGE_DELAY, KEPT_MS) };
        let [start, end] = [&RESERVED.0, &RESERVED.1].map(|address| address.load(Ordering::Relaxed));
        advise_pages(start..end, true);
    }
}

/// Begins a node in a process whose allocator this is, with `rest`.
pub fn begin() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    if let Some(reserved) = mapping_of(&maps, maps.as_ptr() as usize) {
        RESERVED.0.store(reserved.start, Ordering::Relaxed);
        RESERVED.1.store(reserved.end, Ordering::Relaxed);
        rest();
    }
}

/// Keeps to small pages until there is work, and returns free memory to the system. mimalloc requests large pages for the
/// gigabyte that it reserves first. Does nothing in a program of another allocator.
pub(crate) fn rest() {
    let [start, end] = [&RESERVED.0, &RESERVED.1].map(|address| address.load(Ordering::Relaxed));
    if end > 0 {
        give_back();
        advise_pages(start..end, false);
        IS_AT_WORK.store(false, Ordering::Relaxed);
    }
}

/// The mapping of an address, by the lines of `/proc/self/maps`: `7f3df2b65000-7f3df2cbb000 rw-p …`
fn mapping_of(maps: &str, address: usize) -> Option<Range<usize>> {
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16));
        Some(start.ok()?..end.ok()?)
    });
    ranges.into_iter().find(|range| range.contains(&address))
}

#[cold]
fn advise_large(block: *mut u8, size: usize) {
    const PAGE: usize = 2 << 20;
    let start = block as usize & !(PAGE - 1);
    advise_pages(start..(block as usize + size).next_multiple_of(PAGE), true);
}

/// Requests large pages for these addresses, or small ones.
#[cfg(target_os = "linux")]
fn advise_pages(addresses: Range<usize>, are_large: bool) {
    use rustix::mm::{Advice, madvise};
    let advice = if are_large { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    if !addresses.is_empty() {
        // SAFETY: advice to the kernel about addresses; it accesses no memory, and fails for unmapped addresses.
        let _ = unsafe { madvise(addresses.start as *mut std::ffi::c_void, addresses.len(), advice) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_pages(_addresses: Range<usize>, _are_large: bool) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_of_an_address_is_found() {
        let maps = "2d8a1400000-2d8e1400000 rw-p 00000000 00:00 0\n7f3df2d31000-7f3df2da5000 r-xp 0000d000 08:01 7 /lib/libm.so.6\n";
        assert_eq!(mapping_of(maps, 0x2d8_a140_0010), Some(0x2d8_a140_0000..0x2d8_e140_0000));
        assert_eq!(mapping_of(maps, 0x2d8_e140_0000), None);
        assert_eq!(mapping_of("", 1), None);
    }

    #[test]
    fn blocks_of_all_sizes_are_zeroed_grown_and_given_back() {
        for size in [1, 4096, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES + 5] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            // SAFETY: each block is used with its layout, and written within its bounds only.
            unsafe {
                let block = Allocator.alloc_zeroed(layout);
                assert!(!block.is_null() && (block as usize).is_multiple_of(64));
                assert_eq!((*block, *block.add(size - 1)), (0, 0));
                block.write_bytes(7, size);
                let grown = Allocator.realloc(block, layout, size * 2);
                assert_eq!((*grown, *grown.add(size - 1)), (7, 7));
                grown.add(size).write_bytes(9, size);
                Allocator.dealloc(grown, Layout::from_size_align(size * 2, 64).unwrap());
            }
        }
    }
}
