//! Answers whose places are computed alike and apart: in lots, side by side if there are threads for it.

#[cfg(feature = "exec")]
use crate::exec::turn::apart;
use crate::exec::turn::{BLOCK, look};

/// Lots per thread between two looks, so that no thread waits long for the others.
const LOTS: usize = 4;

/// How many places make a lot if each takes so much work, counted as for [`BLOCK`].
pub fn lot(work: usize) -> usize {
    (BLOCK / LOTS / work.max(1)).max(1)
}

/// Least work of a lot for which it pays to wake another thread.
const LEAST: usize = BLOCK / 64;

/// As [`lot`], of so many places: no larger than that each thread gets some lots of all, if those pay.
pub fn even_lot(places: usize, work: usize) -> usize {
    evenly(places, work, threads())
}

fn evenly(places: usize, work: usize, threads: usize) -> usize {
    let even = places.div_ceil(threads * LOTS).max(LEAST / work.max(1));
    lot(work).min(even).max(1)
}

/// Computes all lots, and looks now and then whether the step was given up. A single lot stays on this thread.
pub fn in_lots<L: Send>(mut lots: impl Iterator<Item = L>, compute: impl Fn(L) + Sync) {
    loop {
        look();
        let mut some: Vec<L> = lots.by_ref().take(threads() * LOTS).collect();
        match some.len() {
            0 => return,
            1 => some.drain(..).for_each(&compute),
            _ => side_by_side(some, &compute),
        }
    }
}

/// How many threads share the work.
#[cfg(feature = "exec")]
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// How many threads share the work.
#[cfg(not(feature = "exec"))]
pub fn threads() -> usize {
    1
}

#[cfg(feature = "exec")]
fn side_by_side<L: Send>(lots: Vec<L>, compute: &(impl Fn(L) + Sync)) {
    use rayon::prelude::*;

    lots.into_par_iter().with_max_len(1).for_each(|lot| apart(|| compute(lot)));
}

#[cfg(not(feature = "exec"))]
fn side_by_side<L>(lots: Vec<L>, compute: &impl Fn(L)) {
    lots.into_iter().for_each(compute);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_are_even_unless_they_are_too_small_or_too_large() {
        // Places, what each takes, threads, and the lot.
        for (places, work, threads, want) in [
            (800, LEAST, 2, 16),
            (800, LEAST / 10, 2, 100),
            (800, LEAST / 1024, 2, 1024),
            (8, LEAST, 64, 1),
            (0, 0, 1, LEAST),
            (1_000_000, LEAST, 1, BLOCK / LOTS / LEAST),
            (1_000_000, usize::MAX, 1, 1),
        ] {
            assert_eq!(evenly(places, work, threads), want, "{places} of {work} on {threads}");
        }
    }
}
