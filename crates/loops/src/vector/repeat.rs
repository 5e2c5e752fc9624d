//! Repetition of tensors' elements: broadcast to a larger shape, tiled, or as a view.
//!
//! The output is walked run by run: in a run, the elements of a tensor are either contiguous or one and the same. This module
//! computes indices and copies elements; it does not compute on them.

use std::mem::MaybeUninit;

use smallvec::{SmallVec, smallvec};

/// Runs shorter than this cost more than their elements: their elements are repeated in memory first.
const SHORT: usize = 16;

/// A short sequence of elements that is repeated over and over is first repeated up to this length.
const ENOUGH: usize = 128;

/// One dimension of an output: its size, and its stride in each of N tensors.
pub type Along<const N: usize> = (usize, [usize; N]);

/// The position of a walk over an output of N tensors. Along the last dimension, their elements are contiguous or the same.
pub(super) struct Walk<'a, const N: usize> {
    dims: &'a [Along<N>],
    /// The position along each dimension.
    index: SmallVec<[usize; 4]>,
    offsets: [usize; N],
}

impl<'a, const N: usize> Walk<'a, N> {
    /// A walk that begins at this position of the output, which is not empty.
    pub(super) fn from(dims: &'a [Along<N>], mut place: usize) -> Walk<'a, N> {
        let (mut index, mut offsets) = (smallvec![0; dims.len()], [0; N]);
        for (index, (size, strides)) in index.iter_mut().zip(dims).rev() {
            *index = place % size;
            place /= size;
            (0..N).for_each(|k| offsets[k] += *index * strides[k]);
        }
        Walk { dims, index, offsets }
    }

    /// The current offsets in the tensors, and the number of positions of a row that are next, at most `most`.
    #[inline(always)]
    pub(super) fn next(&mut self, most: usize) -> ([usize; N], usize) {
        let (now, last) = (self.offsets, self.dims.len().wrapping_sub(1));
        let step = self.dims.get(last).map_or(0, |(size, _)| (size - self.index[last]).min(most));
        self.advance(self.dims.len(), step);
        (now, step)
    }

    /// As [`Walk::next`], of whole rows at once, if the next position begins one: the offsets, the number of rows, their
    /// stride in each tensor, and the number of positions in a row. Otherwise, one part of a row.
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

    /// Advances by `steps` along the last of the first `count` dimensions, but not beyond its end.
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

    /// The stride of each tensor along a row: 1, or 0 if its elements are the same.
    #[inline]
    pub(super) fn steps(&self) -> [usize; N] {
        self.dims.last().map_or([0; N], |last| last.1)
    }
}

/// The element of a tensor at each position of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The output's dimensions, outermost first. Those that follow each other without a gap are merged.
    dims: SmallVec<[Along<1>; 4]>,
}

impl Repeat {
    /// Every element once.
    #[inline]
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

    /// A tensor of the shape `own`, `times` along each dimension.
    pub(super) fn tiled(own: &[usize], times: &[usize]) -> Repeat {
        let mut next = 1;
        Repeat::merged(own.iter().zip(times).rev().flat_map(|(&size, &times)| {
            let stride = next;
            next *= size;
            [(size, [stride]), (times, [0])]
        }))
    }

    /// An output of these dimensions, which are given innermost first. Along the innermost of more than one position,
    /// elements are contiguous or the same.
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

    /// Whether every element is at its original index.
    #[inline]
    pub fn is_none(&self) -> bool {
        matches!(self.dims[..], [(_, [1])])
    }

    /// The number of positions of the output.
    #[inline]
    pub(super) fn places(&self) -> usize {
        self.dims.iter().map(|(size, _)| size).product()
    }

    /// Whether the runs are so short that the elements are better repeated in memory first.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.dims.len() > 1 && self.dims[self.dims.len() - 1].0 < SHORT
    }

    /// The stride of the elements of a run: 1 or 0.
    #[inline]
    pub(super) fn step(&self) -> usize {
        let (_, [step]) = self.dims[self.dims.len() - 1];
        step
    }

    /// If this is a short sequence over and over: a longer one, with its repetition.
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

    /// The runs of `count` positions of the output, from one on.
    #[inline]
    pub(super) fn runs(&self, from: usize, count: usize) -> Runs<'_> {
        // An empty output has no position to begin at.
        let dims = if count > 0 { &self.dims[..] } else { &[] };
        Runs { walk: Walk::from(dims, from), step: self.step(), left: count }
    }
}

/// Consecutive rows of an output, each of which is a run.
pub(super) struct Block {
    pub rows: usize,
    /// Positions of a row.
    pub len: usize,
    /// The index of the element at the first position, and the distance from there to that of the next row.
    pub first: usize,
    pub apart: usize,
}

/// The runs of some positions of an output.
pub(super) struct Runs<'a> {
    walk: Walk<'a, 1>,
    /// The stride of the elements of a run.
    step: usize,
    /// Positions that remain.
    left: usize,
}

impl Runs<'_> {
    /// The next rows of the output, or the rest of the current one, at most `most` positions.
    #[inline(always)]
    pub(super) fn next_block(&mut self, most: usize) -> Option<Block> {
        if self.left == 0 {
            return None;
        }
        let ([first], rows, [apart], len) = self.walk.next_rows(self.left.min(most));
        self.left -= rows * len;
        Some(Block { rows, len, first, apart })
    }

    /// Writes the elements at the next positions, to all of `to`.
    ///
    /// # Panics
    /// If there are fewer positions.
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
