//! How tensors' elements are repeated as they are broadcast to a larger shape, tiled, or shown by a view.
//!
//! The answer is walked run by run: in a run, the elements of a tensor either lie side by side or are one and the same. This
//! file computes places, and copies elements; nothing here computes on them.

use std::mem::MaybeUninit;

use smallvec::{SmallVec, smallvec};

/// Shorter runs cost more than their elements: those are repeated in memory first.
const SHORT: usize = 16;

/// A few elements that are repeated over and over are first repeated until there are as many.
const ENOUGH: usize = 128;

/// One dimension of an answer: its size, and how far the elements of neighbours along it lie apart in each of N tensors.
pub type Along<const N: usize> = (usize, [usize; N]);

/// Where a walk over an answer of N tensors is. Along the last dimension, their elements are side by side or the same.
pub(super) struct Walk<'a, const N: usize> {
    dims: &'a [Along<N>],
    /// The position along each dimension.
    index: SmallVec<[usize; 4]>,
    offsets: [usize; N],
}

impl<'a, const N: usize> Walk<'a, N> {
    /// A walk that begins at this place of the answer, which has some.
    pub(super) fn from(dims: &'a [Along<N>], mut place: usize) -> Walk<'a, N> {
        let (mut index, mut offsets) = (smallvec![0; dims.len()], [0; N]);
        for (index, (size, strides)) in index.iter_mut().zip(dims).rev() {
            *index = place % size;
            place /= size;
            (0..N).for_each(|k| offsets[k] += *index * strides[k]);
        }
        Walk { dims, index, offsets }
    }

    /// The offsets in the tensors here, and how many places of a row are next, of at most so many.
    #[inline(always)]
    pub(super) fn next(&mut self, most: usize) -> ([usize; N], usize) {
        let (now, last) = (self.offsets, self.dims.len().wrapping_sub(1));
        let step = self.dims.get(last).map_or(0, |(size, _)| (size - self.index[last]).min(most));
        self.advance(self.dims.len(), step);
        (now, step)
    }

    /// As [`Walk::next`], of whole rows at once, if the next place begins one: the offsets, how many rows, how far those lie
    /// apart in each tensor, and how many places a row has. Otherwise, one part of a row.
    #[inline(always)]
    fn next_rows(&mut self, most: usize) -> ([usize; N], usize, [usize; N], usize) {
        if let [.., (count, apart), (len, _)] = *self.dims
            && let [.., row, 0] = *self.index
            && most >= len
        {
            let (now, rows) = (self.offsets, (count - row).min(most / len));
            self.advance(self.dims.len() - 1, rows);
            return (now, rows, apart, len);
        }
        let (now, step) = self.next(most);
        (now, 1, [0; N], step)
    }

    /// Goes on by so many steps along the last of the first `count` dimensions, but not beyond its end.
    #[inline(always)]
    fn advance(&mut self, count: usize, steps: usize) {
        let mut by = steps;
        for ((size, strides), index) in self.dims[..count].iter().zip(&mut self.index).rev() {
            *index += by;
            (0..N).for_each(|k| self.offsets[k] += by * strides[k]);
            if *index < *size {
                break;
            }
            *index = 0;
            (0..N).for_each(|k| self.offsets[k] -= size * strides[k]);
            // Then one row, plane and so on.
            by = 1;
        }
    }

    /// How far each tensor's elements lie apart along a row: 1, or 0 if they are the same.
    pub(super) fn steps(&self) -> [usize; N] {
        self.dims.last().map_or([0; N], |last| last.1)
    }
}

/// Which of a tensor's elements stands at each place of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The answer's dimensions, outermost first. Those that follow each other without a gap are one.
    dims: SmallVec<[Along<1>; 4]>,
}

impl Repeat {
    /// Every element once.
    pub fn none(len: usize) -> Repeat {
        Repeat { dims: smallvec![(len, [1])] }
    }

    /// Broadcasts a tensor of the shape `own` to `whole`; `None` if it cannot be.
    pub fn new(whole: &[usize], own: &[usize]) -> Option<Repeat> {
        let missing = whole.len().checked_sub(own.len())?;
        let of_own = |axis: usize| axis.checked_sub(missing).map_or(1, |axis| own[axis]);
        if whole.iter().enumerate().any(|(axis, &size)| of_own(axis) != size && of_own(axis) != 1) {
            return None;
        }
        let mut next = 1;
        Some(Repeat::merged(whole.iter().enumerate().rev().map(|(axis, &size)| {
            let own = of_own(axis);
            let stride = if own == 1 { 0 } else { next };
            next *= own;
            (size, [stride])
        })))
    }

    /// A tensor of the shape `own` so many `times` along each dimension.
    pub(super) fn tiled(own: &[usize], times: &[usize]) -> Repeat {
        let mut next = 1;
        Repeat::merged(own.iter().zip(times).rev().flat_map(|(&size, &times)| {
            let stride = next;
            next *= size;
            [(size, [stride]), (times, [0])]
        }))
    }

    /// An answer of these dimensions, which are given innermost first. Along the innermost of more than one place, elements lie
    /// side by side or are the same.
    pub fn merged(all: impl Iterator<Item = Along<1>>) -> Repeat {
        let mut dims = SmallVec::<[Along<1>; 4]>::new();
        for (size, [stride]) in all.filter(|(size, _)| *size != 1) {
            match dims.last_mut() {
                Some((inner, [inner_stride])) if stride == *inner_stride * *inner => *inner *= size,
                _ => dims.push((size, [stride])),
            }
        }
        dims.reverse();
        debug_assert!(dims.last().is_none_or(|(_, [step])| *step <= 1), "a run is of neighbours or of one element");
        if dims.is_empty() {
            dims.push((1, [1]));
        }
        Repeat { dims }
    }

    /// Whether every element stands in its own place.
    pub fn is_none(&self) -> bool {
        matches!(self.dims[..], [(_, [1])])
    }

    /// How many places the answer has.
    pub(super) fn places(&self) -> usize {
        self.dims.iter().map(|(size, _)| size).product()
    }

    /// Whether the runs are so short that the elements are better repeated in memory first.
    pub fn is_short(&self) -> bool {
        self.dims.len() > 1 && self.dims[self.dims.len() - 1].0 < SHORT
    }

    /// How far the elements of a run lie apart: 1 or 0.
    pub(super) fn step(&self) -> usize {
        let (_, [step]) = self.dims[self.dims.len() - 1];
        step
    }

    /// If these are few elements over and over: more of them, with how those are repeated.
    pub(super) fn unrolled(&self, elements: &[f32]) -> Option<(Vec<f32>, Repeat)> {
        match self.dims[..] {
            [(times, [0]), (size, [1])] if size < ENOUGH && size * times > ENOUGH => {
                let size = size * ENOUGH.div_ceil(size);
                let more = elements.iter().copied().cycle().take(size).collect();
                Some((more, Repeat { dims: smallvec![(times, [0]), (size, [1])] }))
            }
            _ => None,
        }
    }

    /// The runs of `count` places of the answer, from one on.
    pub(super) fn runs(&self, from: usize, count: usize) -> Runs<'_> {
        // An answer without places has no place to begin at.
        let dims = if count > 0 { &self.dims[..] } else { &[] };
        Runs { walk: Walk::from(dims, from), step: self.step(), left: count }
    }
}

/// Rows of an answer that follow each other, each of which is a run.
pub(super) struct Block {
    pub rows: usize,
    /// Places of a row.
    pub len: usize,
    /// Which element stands at the first place, and how far from there that of the next row is.
    pub first: usize,
    pub apart: usize,
}

/// The runs of some places of an answer.
pub(super) struct Runs<'a> {
    walk: Walk<'a, 1>,
    /// How far the elements of a run lie apart.
    step: usize,
    /// Places that are left.
    left: usize,
}

impl Runs<'_> {
    /// The next rows of the answer, or what is next of one, of at most so many places.
    #[inline(always)]
    pub(super) fn next_block(&mut self, most: usize) -> Option<Block> {
        if self.left == 0 {
            return None;
        }
        let ([first], rows, [apart], len) = self.walk.next_rows(self.left.min(most));
        self.left -= rows * len;
        Some(Block { rows, len, first, apart })
    }

    /// Writes what stands at the next places, to all of `to`.
    ///
    /// # Panics
    /// If there are fewer places.
    pub(super) fn write<T: Clone>(&mut self, elements: &[T], to: &mut [MaybeUninit<T>]) {
        let mut rest = to;
        while !rest.is_empty() {
            let Block { rows, len, first, apart } = self.next_block(rest.len()).expect("there are as many places");
            let (own, others) = rest.split_at_mut(rows * len);
            for (i, own) in own.chunks_exact_mut(len).enumerate() {
                let from = &elements[first + i * apart..];
                if self.step == 1 {
                    own.iter_mut().zip(&from[..len]).for_each(|(to, element)| _ = to.write(element.clone()));
                } else {
                    own.iter_mut().for_each(|to| _ = to.write(from[0].clone()));
                }
            }
            rest = others;
        }
    }
}
