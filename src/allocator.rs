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

/// Returns memory that is free to the system, which the allocator would keep for some seconds: after work that took much and is
/// not repeated.
#[cold]
pub fn give_back() {
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

/// The addresses of the program's code, and of its constants that no relocation changes.
static CODE: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Sets for how long free memory is kept, and ends [`rest`], at the first block of work.
fn begin_work() {
    if !IS_AT_WORK.load(Ordering::Relaxed) && !IS_AT_WORK.swap(true, Ordering::Relaxed) {
        // SAFETY: sets a number, which may be set at any time; it allocates nothing.
        unsafe { mi_option_set_default(PURGE_DELAY, KEPT_MS) };
        advise_pages(loaded(&RESERVED), true);
    }
}

/// Begins a node in a process whose allocator this is, with `rest`.
pub fn begin() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    store(&CODE, code_around(&maps, begin as fn() as usize));
    if let Some(reserved) = mapping_of(&maps, maps.as_ptr() as usize) {
        store(&RESERVED, reserved);
        rest();
    }
}

/// Keeps to small pages until there is work, and returns free memory to the system, as well as the pages of the program that
/// only its start needed: its code is mapped in again where it runs, from the file that the system has cached. mimalloc
/// requests large pages for the gigabyte that it reserves first. Does nothing in a program of another allocator.
pub(crate) fn rest() {
    let reserved = loaded(&RESERVED);
    if !reserved.is_empty() {
        give_back();
        advise_pages(reserved, false);
        unmap(loaded(&CODE));
        IS_AT_WORK.store(false, Ordering::Relaxed);
    }
}

/// Returns the pages that only the start or a rare event needed, if the process has no work.
pub fn settle() {
    if !IS_AT_WORK.load(Ordering::Relaxed) {
        rest();
    }
}

fn store(place: &(AtomicUsize, AtomicUsize), range: Range<usize>) {
    place.0.store(range.start, Ordering::Relaxed);
    place.1.store(range.end, Ordering::Relaxed);
}

fn loaded(place: &(AtomicUsize, AtomicUsize)) -> Range<usize> {
    place.0.load(Ordering::Relaxed)..place.1.load(Ordering::Relaxed)
}

/// The mapping of the code at an address, with the read-only ones of the same file that end where it begins: of a file's parts
/// those that nobody writes. The constants that the loader relocates come after the code. Empty if it is not found.
fn code_around(maps: &str, address: usize) -> Range<usize> {
    let mut code = 0..0;
    let mut of = "";
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights), Some(file)) = (words.next(), words.next(), words.nth(3)) else { continue };
        let Some(range) = range_of(range) else { continue };
        match rights {
            "r--p" | "r-xp" if file == of && range.start == code.end => code.end = range.end,
            "r--p" | "r-xp" => (code, of) = (range.clone(), file),
            _ => continue,
        }
        if rights == "r-xp" && range.contains(&address) && file.starts_with('/') {
            return code;
        }
    }
    0..0
}

/// The mapping of an address, by the lines of `/proc/self/maps`: `7f3df2b65000-7f3df2cbb000 rw-p …`
fn mapping_of(maps: &str, address: usize) -> Option<Range<usize>> {
    maps.lines().filter_map(|line| range_of(line.split(' ').next()?)).find(|range| range.contains(&address))
}

/// `7f3df2b65000-7f3df2cbb000`
fn range_of(text: &str) -> Option<Range<usize>> {
    let (start, end) = text.split_once('-')?;
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16));
    Some(start.ok()?..end.ok()?)
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

/// Gives back the pages of a file that is mapped read-only.
#[cfg(target_os = "linux")]
fn unmap(code: Range<usize>) {
    use rustix::mm::{Advice, madvise};
    if !code.is_empty() {
        // SAFETY: nobody has written to these pages, which are mapped without that right. So the next access finds what was
        // there: the file's content, which an executable keeps while it runs.
        let _ = unsafe { madvise(code.start as *mut std::ffi::c_void, code.len(), Advice::LinuxDontNeed) };
    }
}

#[cfg(not(target_os = "linux"))]
fn unmap(_code: Range<usize>) {}

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
    fn the_code_of_a_program_ends_before_what_the_loader_writes() {
        let maps = "\
5a0000-5a1000 r--p 00000000 08:01 7 /opt/other
600000-700000 r--p 00000000 08:01 9 /opt/meshtf
700000-a00000 r-xp 00100000 08:01 9 /opt/meshtf
a00000-a80000 r--p 00400000 08:01 9 /opt/meshtf
a80000-a90000 rw-p 00480000 08:01 9 /opt/meshtf
b00000-b10000 rw-p 00000000 00:00 0
7f3df2d31000-7f3df2da5000 r-xp 0000d000 08:01 3 /lib/libm.so.6
";
        assert_eq!(code_around(maps, 0x70_0010), 0x60_0000..0xa0_0000);
        assert_eq!(code_around(maps, 0x7f3d_f2d3_1000), 0x7f3d_f2d3_1000..0x7f3d_f2da_5000);
        for address in [0x60_0000, 0xa0_0000, 0xb0_0000, 1] {
            assert!(code_around(maps, address).is_empty(), "{address:x}");
        }
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
