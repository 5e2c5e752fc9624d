//! The cut of bulk work into chunks, in parallel on several threads if there is enough of it: in place, on a copy, or into a
//! new vector.

#![allow(unsafe_code, reason = "a vector is filled before it is initialised")]

use std::mem::MaybeUninit;

use crate::chunks::{in_chunks, threads};

/// Fewest elements for which it pays to wake another thread, if each takes an addition.
pub(super) const FEWEST: usize = 1 << 18;
/// Most elements of a chunk: together with the other chunks of its round, about a millisecond between two checks for
/// cancellation.
pub(super) const MOST: usize = 1 << 18;
/// Chunks per thread, so that no thread waits long for the other threads.
const CHUNKS: usize = 4;
/// Elements that are copied and computed on while they are in the L1 cache.
pub(super) const NEAR: usize = 1 << 11;

/// The parameters of a cut.
#[derive(Clone, Copy)]
pub struct Cut {
    /// The parts, but for the last, are multiples of this.
    pub period: usize,
    /// The time for an element, relative to an addition.
    pub work: usize,
}

impl Cut {
    /// Anywhere, for elements that take an addition each.
    pub const ANYWHERE: Cut = Cut { period: 1, work: 1 };

    /// The number of elements, of `len`, in a chunk.
    #[inline]
    pub fn chunk(self, len: usize) -> usize {
        let fewest = FEWEST / self.work;
        let chunk = len.div_ceil(threads() * CHUNKS).clamp(fewest / 2, MOST);
        if len < fewest { len.max(1) } else { chunk.next_multiple_of(self.period) }
    }
}

/// Calls `act` with the index of the first element of each part of `xs`, and that part.
#[inline]
pub fn in_place(xs: &mut [f32], cut: Cut, act: impl Fn(usize, &mut [f32]) + Sync) {
    let chunk = cut.chunk(xs.len());
    in_chunks(xs.chunks_mut(chunk).enumerate(), |(i, part)| act(i * chunk, part));
}

/// As [`in_place`], on a copy.
pub fn on_copy(xs: &[f32], cut: Cut, act: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let near = NEAR.next_multiple_of(cut.period);
    made(xs.len(), cut.chunk(xs.len()), |from, places| {
        for (i, places) in places.chunks_mut(near).enumerate() {
            let at = from + i * near;
            act(at, places.write_copy_of_slice(&xs[at..][..places.len()]));
        }
    })
}

/// The slots of a part of a new vector. They are filled in order.
pub struct Places<'a, R> {
    all: &'a mut [MaybeUninit<R>],
    filled: usize,
}

impl<R: Copy> Places<'_, R> {
    /// The number of slots that are not filled yet.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.all.len() - self.filled
    }

    /// Fills the next `count` slots: each with the result of `of` for its number among them.
    #[inline(always)]
    pub fn each(&mut self, count: usize, of: impl Fn(usize) -> R) {
        for (i, place) in self.all[self.filled..][..count].iter_mut().enumerate() {
            place.write(of(i));
        }
        self.filled += count;
    }

    /// Fills the next slots with the results of `of` for `xs`.
    #[inline(always)]
    pub fn map<T: Copy>(&mut self, xs: &[T], of: impl Fn(T) -> R) {
        let places = &mut self.all[self.filled..][..xs.len()];
        places.iter_mut().zip(xs).for_each(|(place, &x)| _ = place.write(of(x)));
        self.filled += xs.len();
    }

    /// Fills the next slots with the results of `of` for each of `xs` and its `y`.
    ///
    /// # Panics
    /// If there are fewer `ys`.
    #[inline(always)]
    pub fn zip<T: Copy>(&mut self, xs: &[T], ys: &[T], of: impl Fn(T, T) -> R) {
        let (places, ys) = (&mut self.all[self.filled..][..xs.len()], &ys[..xs.len()]);
        places.iter_mut().zip(xs.iter().zip(ys)).for_each(|(place, (&x, &y))| _ = place.write(of(x, y)));
        self.filled += xs.len();
    }

    /// Fills the next slots with copies of these.
    #[inline(always)]
    pub fn copy(&mut self, from: &[R]) {
        self.all[self.filled..][..from.len()].write_copy_of_slice(from);
        self.filled += from.len();
    }
}

/// As `made`: `act` is called with the index of the first element of a part, and fills that part.
///
/// # Panics
/// If `act` leaves a slot unfilled.
pub fn anew<R: Copy + Send>(len: usize, cut: Cut, act: impl Fn(usize, &mut Places<R>) + Sync) -> Vec<R> {
    made(len, cut.chunk(len), |from, all| {
        let mut places = Places { all, filled: 0 };
        act(from, &mut places);
        assert_eq!(places.left(), 0, "every place is filled");
    })
}

/// A vector of `len` elements, which need no dropping, in chunks of `chunk`: `act` is called with the index of the first
/// element of each, and with its slots, of which it writes every one.
pub(super) fn made<R: Send>(len: usize, chunk: usize, act: impl Fn(usize, &mut [MaybeUninit<R>]) + Sync) -> Vec<R> {
    made_in(len, std::iter::repeat(chunk), act)
}

/// A vector of `len` sums, in chunks of these sizes: `act` is called with the index of the first of each, and adds to its
/// zeros, which were written just before.
///
/// # Panics
/// If the chunks are together fewer than `len` slots.
pub(super) fn summed(
    len: usize,
    sizes: impl Iterator<Item = usize>,
    act: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    made_in(len, sizes, |from, places: &mut [MaybeUninit<f32>]| {
        places.fill(MaybeUninit::new(0.0));
        // SAFETY: every slot was written.
        act(from, unsafe { places.assume_init_mut() });
    })
}

/// As [`made`], in chunks of these sizes, which are together at least `len` slots.
fn made_in<R: Send>(
    len: usize,
    sizes: impl Iterator<Item = usize>,
    act: impl Fn(usize, &mut [MaybeUninit<R>]) + Sync,
) -> Vec<R> {
    assert!(!std::mem::needs_drop::<R>(), "what was written is not dropped if the step is given up");
    let mut made = Vec::with_capacity(len);
    let mut rest = &mut made.spare_capacity_mut()[..len];
    let chunks = sizes.map_while(|size| {
        let (from, places) = (len - rest.len(), rest.split_off_mut(..size.min(rest.len()))?);
        (!places.is_empty()).then_some((from, places))
    });
    in_chunks(chunks, |(from, places)| act(from, places));
    assert!(rest.is_empty(), "the chunks are all of the elements");
    // SAFETY: the chunks cover all of the vector's slots, and `act` wrote each of them before `in_chunks` returned.
    unsafe { made.set_len(len) };
    made
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn sums_are_of_all_lots_however_long() {
        for sizes in [vec![1], vec![5, 5, 2], vec![1, 300_000, 7], vec![]] {
            let len: usize = sizes.iter().sum();
            // The last chunk may be longer than the remainder.
            let chunks = sizes.iter().enumerate().map(|(i, &size)| if i + 1 == sizes.len() { size + 3 } else { size });
            let sums =
                summed(len, chunks, |from, to| to.iter_mut().enumerate().for_each(|(i, x)| *x += (from + i) as f32));
            assert!(sums.iter().copied().eq((0..len).map(|i| i as f32)), "{sizes:?}");
        }
        let too_few = catch_unwind(AssertUnwindSafe(|| summed(10, [4, 5].into_iter(), |_, _| {})));
        assert!(too_few.is_err(), "no place is left as it was");
    }
}
