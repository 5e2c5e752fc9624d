//! How a tensor's elements are repeated as it is broadcast to a larger shape.
//!
//! The answer is walked run by run: in a run, the elements either lie side by side or are one and the same. This file
//! computes places, and copies elements; nothing here computes on them.

use std::mem::MaybeUninit;

use smallvec::{SmallVec, smallvec};

/// Shorter runs cost more than their elements: those are repeated in memory first.
const SHORT: usize = 16;

/// A few elements that are repeated over and over are first repeated until there are as many.
const ENOUGH: usize = 128;

/// Which of a tensor's elements stands at each place of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The answer's dimensions, outermost first: size, and how far the tensor's elements lie apart. Those that follow each
    /// other without a gap are one.
    dims: SmallVec<[(usize, usize); 4]>,
}

impl Repeat {
    /// Every element once.
    pub fn none(len: usize) -> Repeat {
        Repeat { dims: smallvec![(len, 1)] }
    }

    /// Broadcasts a tensor of the shape `own` to `whole`; `None` if it cannot be.
    pub fn new(whole: &[usize], own: &[usize]) -> Option<Repeat> {
        let missing = whole.len().checked_sub(own.len())?;
        let mut dims = SmallVec::<[(usize, usize); 4]>::new();
        let mut next = 1;
        for (axis, &size) in whole.iter().enumerate().rev() {
            let own = axis.checked_sub(missing).map_or(1, |axis| own[axis]);
            if own != size && own != 1 {
                return None;
            }
            let stride = if own == 1 { 0 } else { next };
            next *= own;
            match dims.last_mut() {
                _ if size == 1 => {}
                Some((inner, inner_stride)) if stride == *inner_stride * *inner => *inner *= size,
                _ => dims.push((size, stride)),
            }
        }
        dims.reverse();
        if dims.is_empty() {
            dims.push((1, 1));
        }
        Some(Repeat { dims })
    }

    /// Whether every element stands in its own place.
    pub fn is_none(&self) -> bool {
        matches!(self.dims[..], [(_, 1)])
    }

    /// Whether the runs are so short that the elements are better repeated in memory first.
    pub(super) fn is_short(&self) -> bool {
        self.dims.len() > 1 && self.row().0 < SHORT
    }

    /// How far the elements of a run lie apart: 1 or 0.
    pub(super) fn step(&self) -> usize {
        self.row().1
    }

    fn row(&self) -> (usize, usize) {
        self.dims[self.dims.len() - 1]
    }

    /// If these are few elements over and over: more of them, with how those are repeated.
    pub(super) fn unrolled(&self, elements: &[f32]) -> Option<(Vec<f32>, Repeat)> {
        match self.dims[..] {
            [(times, 0), (size, 1)] if size < ENOUGH && size * times > ENOUGH => {
                let size = size * ENOUGH.div_ceil(size);
                let more = elements.iter().copied().cycle().take(size).collect();
                Some((more, Repeat { dims: smallvec![(times, 0), (size, 1)] }))
            }
            _ => None,
        }
    }

    /// The runs of `count` places of the answer, from one on.
    pub(super) fn runs(&self, from: usize, count: usize) -> Runs<'_> {
        let (row, _) = self.row();
        let outer = &self.dims[..self.dims.len() - 1];
        let mut runs = Runs { repeat: self, index: smallvec![0; outer.len()], start: 0, within: 0, left: count };
        if count > 0 {
            let mut rows = from / row;
            runs.within = from % row;
            for (index, &(size, stride)) in runs.index.iter_mut().zip(outer).rev() {
                *index = rows % size;
                rows /= size;
                runs.start += *index * stride;
            }
        }
        runs
    }
}

/// The runs of some places of an answer: how many places, and which element of the tensor stands at the first.
pub(super) struct Runs<'a> {
    repeat: &'a Repeat,
    /// The row's index in each dimension but the last.
    index: SmallVec<[usize; 4]>,
    /// The element at the beginning of the row.
    start: usize,
    /// Places of the row that are done.
    within: usize,
    /// Places that are not.
    left: usize,
}

impl Runs<'_> {
    /// The next run, or so many places of it.
    fn up_to(&mut self, most: usize) -> Option<(usize, usize)> {
        if self.left == 0 {
            return None;
        }
        let (row, step) = self.repeat.row();
        let first = self.start + self.within * step;
        let count = (row - self.within).min(self.left).min(most);
        self.left -= count;
        self.within += count;
        if self.within == row {
            self.within = 0;
            for (index, &(size, stride)) in self.index.iter_mut().zip(&self.repeat.dims).rev() {
                *index += 1;
                self.start += stride;
                if *index < size {
                    break;
                }
                *index = 0;
                self.start -= size * stride;
            }
        }
        Some((count, first))
    }

    /// Writes what stands at the next places, to all of `to`.
    ///
    /// # Panics
    /// If there are fewer places.
    pub(super) fn write(&mut self, elements: &[f32], to: &mut [MaybeUninit<f32>]) {
        let step = self.repeat.step();
        let mut done = 0;
        while done < to.len() {
            let (count, first) = self.up_to(to.len() - done).expect("there are as many places");
            let to = &mut to[done..done + count];
            if step == 1 {
                to.write_copy_of_slice(&elements[first..first + count]);
            } else {
                let element = elements[first];
                to.iter_mut().for_each(|to| _ = to.write(element));
            }
            done += count;
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        self.up_to(usize::MAX)
    }
}
