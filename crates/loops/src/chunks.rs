//! Parallel computation of independent elements, in chunks that are spread over the threads.

use std::sync::{Mutex, PoisonError};

/// The number of threads that share the work.
pub use crate::threads::count as threads;
use crate::threads::share;
use crate::turn::{BLOCK, look};

/// Chunks per thread between two checks for cancellation, so that no thread waits long for the other threads.
const CHUNKS: usize = 4;

/// The number of elements in a chunk if each takes `work`, in the unit of [`BLOCK`].
#[inline]
pub fn chunk(work: usize) -> usize {
    (BLOCK / CHUNKS / work.max(1)).max(1)
}

/// Least work of a chunk for which it pays to wake another thread.
const LEAST: usize = BLOCK / 64;

/// As [`chunk`], for `places` elements: small enough that each thread gets several chunks, unless those would be too small to
/// pay.
#[inline]
pub fn even_chunk(places: usize, work: usize) -> usize {
    evenly(places, work, threads())
}

fn evenly(places: usize, work: usize, threads: usize) -> usize {
    let even = places.div_ceil(threads * CHUNKS).max(LEAST / work.max(1));
    chunk(work).min(even).max(1)
}

/// Computes all chunks, with a check for cancellation before each round. A single chunk stays on the calling thread.
pub fn in_chunks<L: Send>(mut chunks: impl Iterator<Item = L>, compute: impl Fn(L) + Sync) {
    loop {
        look();
        let some: Vec<Mutex<Option<L>>> =
            chunks.by_ref().take(threads() * CHUNKS).map(|chunk| Mutex::new(Some(chunk))).collect();
        let compute = |index: usize| {
            let chunk = some[index].lock().unwrap_or_else(PoisonError::into_inner).take();
            chunk.into_iter().for_each(&compute);
        };
        match some.len() {
            0 => return,
            1 => compute(0),
            count => share(count, &compute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_even_unless_they_are_too_small_or_too_large() {
        // Elements, work of each, threads, and the size of a chunk.
        for (places, work, threads, want) in [
            (800, LEAST, 2, 16),
            (800, LEAST / 10, 2, 100),
            (800, LEAST / 1024, 2, 1024),
            (8, LEAST, 64, 1),
            (0, 0, 1, LEAST),
            (1_000_000, LEAST, 1, BLOCK / CHUNKS / LEAST),
            (1_000_000, usize::MAX, 1, 1),
        ] {
            assert_eq!(evenly(places, work, threads), want, "{places} of {work} on {threads}");
        }
    }
}
