//! A row-by-row walk over operands of different shapes, which pairs their elements as broadcasting does.
//!
//! Dimensions that are contiguous in every operand are merged, so that equal shapes, a scalar operand and a bias row all
//! become a few long rows. This file handles offsets only, never elements.

use meshtf_loops::turn::{ELEMENTS, Pace, look};
use meshtf_tensor::Shape;
use smallvec::SmallVec;

/// A joint walk over `K` row-major operands, each broadcast to one shape.
pub struct Broadcast<const K: usize> {
    /// Sizes of the walk's dimensions, outermost first; the last is the length of a row.
    dims: SmallVec<[usize; 4]>,
    /// The stride of each operand along each dimension; 0 if it is broadcast there.
    strides: SmallVec<[[usize; K]; 4]>,
    elements: usize,
}

impl<const K: usize> Broadcast<K> {
    /// A walk over `shape`, to which every operand can be broadcast.
    pub fn new(shape: &Shape, operands: [&Shape; K]) -> Self {
        let rank = shape.rank();
        let mut walk = Broadcast { dims: SmallVec::new(), strides: SmallVec::new(), elements: 1 };
        let mut next = [1usize; K];
        // From the innermost dimension outwards; each is merged into the one before if every operand allows it.
        for axis in (0..rank).rev() {
            let size = shape.dims()[axis];
            walk.elements *= size;
            let mut stride = [0; K];
            for (k, operand) in operands.iter().enumerate() {
                let own = (axis + operand.rank()).checked_sub(rank).map_or(1, |own_axis| operand.dims()[own_axis]);
                if own != 1 {
                    stride[k] = next[k];
                    next[k] *= own;
                }
            }
            if size == 1 {
                continue;
            }
            match (walk.dims.last_mut(), walk.strides.last()) {
                (Some(inner), Some(inner_stride)) if (0..K).all(|k| stride[k] == inner_stride[k] * *inner) => {
                    *inner *= size;
                }
                _ => {
                    walk.dims.push(size);
                    walk.strides.push(stride);
                }
            }
        }
        if walk.dims.is_empty() {
            walk.dims.push(1);
            walk.strides.push([1; K]);
        }
        walk.dims.reverse();
        walk.strides.reverse();
        walk
    }

    /// A walk over operands that all have this number of elements.
    #[inline]
    pub fn flat(elements: usize) -> Self {
        Broadcast { dims: smallvec::smallvec![elements], strides: smallvec::smallvec![[1; K]], elements }
    }

    /// The dimensions, outermost first: the size of each, and the stride of each operand along it.
    #[inline]
    pub fn dims(&self) -> impl Iterator<Item = (usize, [usize; K])> {
        self.dims.iter().copied().zip(self.strides.iter().copied())
    }

    /// The number of elements in a row.
    #[inline]
    pub fn row(&self) -> usize {
        self.dims[self.dims.len() - 1]
    }

    /// The stride of each operand along a row: 1, or 0 if it is broadcast.
    #[inline]
    pub fn steps(&self) -> [usize; K] {
        self.strides[self.strides.len() - 1]
    }

    /// For each row, in order, the offset of each operand's first element.
    #[inline]
    pub fn rows(&self) -> BroadcastRows<'_, K> {
        let outer = self.dims.len() - 1;
        let next = (self.elements > 0).then_some([0; K]);
        BroadcastRows { walk: self, index: SmallVec::from_elem(0, outer), next, pace: Pace::new() }
    }

    /// The rows in blocks of at most [`ELEMENTS`]: for each block, the offset of each operand's first element, and the
    /// number of elements.
    #[inline]
    pub fn blocks(&self) -> BroadcastBlocks<'_, K> {
        BroadcastBlocks { rows: self.rows(), at: [0; K], left: 0 }
    }
}

/// The rows of a [`Broadcast`]; checks periodically whether the step was cancelled.
pub struct BroadcastRows<'a, const K: usize> {
    walk: &'a Broadcast<K>,
    /// The next row's index in each dimension but the last.
    index: SmallVec<[usize; 4]>,
    next: Option<[usize; K]>,
    pace: Pace,
}

impl<const K: usize> Iterator for BroadcastRows<'_, K> {
    type Item = [usize; K];

    // Kept out of line, since every kernel that walks rows would contain a copy.
    #[inline(never)]
    fn next(&mut self) -> Option<[usize; K]> {
        self.advance()
    }
}

impl<const K: usize> BroadcastRows<'_, K> {
    fn advance(&mut self) -> Option<[usize; K]> {
        let now = self.next?;
        self.pace.go(self.walk.row());
        let mut offsets = now;
        for (axis, index) in self.index.iter_mut().enumerate().rev() {
            let (size, strides) = (self.walk.dims[axis], &self.walk.strides[axis]);
            *index += 1;
            if *index < size {
                (0..K).for_each(|k| offsets[k] += strides[k]);
                self.next = Some(offsets);
                return Some(now);
            }
            (0..K).for_each(|k| offsets[k] -= strides[k] * (size - 1));
            *index = 0;
        }
        self.next = None;
        Some(now)
    }
}

/// The rows of a [`Broadcast`] in blocks; checks between blocks whether the step was cancelled.
pub struct BroadcastBlocks<'a, const K: usize> {
    rows: BroadcastRows<'a, K>,
    /// The offsets at which the next block of this row begins.
    at: [usize; K],
    /// The number of elements of this row after that offset.
    left: usize,
}

impl<const K: usize> Iterator for BroadcastBlocks<'_, K> {
    type Item = ([usize; K], usize);

    // Kept out of line, as for rows.
    #[inline(never)]
    fn next(&mut self) -> Option<([usize; K], usize)> {
        let walk = self.rows.walk;
        if self.left == 0 {
            self.at = self.rows.advance()?;
            self.left = walk.row();
        } else {
            look();
        }
        let (at, steps, count) = (self.at, walk.steps(), self.left.min(ELEMENTS));
        (0..K).for_each(|k| self.at[k] += steps[k] * count);
        self.left -= count;
        Some((at, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_merge_as_far_as_the_operands_allow() {
        let check = |shape: &[usize], a: &[usize], b: &[usize], row: usize, steps: [usize; 2], want: &[[usize; 2]]| {
            let walk = Broadcast::new(&shape.into(), [&a.into(), &b.into()]);
            let rows: Vec<_> = walk.rows().collect();
            assert_eq!((walk.row(), walk.steps(), rows.as_slice()), (row, steps, want), "{a:?} with {b:?}");
        };
        check(&[2, 3, 4], &[2, 3, 4], &[2, 3, 4], 24, [1, 1], &[[0, 0]]);
        check(&[2, 3], &[2, 3], &[], 6, [1, 0], &[[0, 0]]);
        check(&[2, 3], &[2, 3], &[3], 3, [1, 1], &[[0, 0], [3, 0]]);
        check(&[2, 3], &[2, 1], &[1, 3], 3, [0, 1], &[[0, 0], [1, 0]]);
        check(&[2, 1, 3], &[2, 1, 3], &[1, 1, 1], 6, [1, 0], &[[0, 0]]);
        check(&[0, 3], &[0, 3], &[3], 3, [1, 1], &[]);
        check(&[], &[], &[], 1, [1, 1], &[[0, 0]]);
    }

    #[test]
    fn long_rows_come_in_blocks() {
        let blocks = |shape: &[usize], a: &[usize], b: &[usize]| -> Vec<([usize; 2], usize)> {
            Broadcast::new(&shape.into(), [&a.into(), &b.into()]).blocks().collect()
        };
        let long = ELEMENTS + 5;
        assert_eq!(blocks(&[2, 3], &[2, 3], &[3]), [([0, 0], 3), ([3, 0], 3)]);
        assert_eq!(
            blocks(&[2, long], &[2, long], &[2, 1]),
            [([0, 0], ELEMENTS), ([ELEMENTS, 0], 5), ([long, 1], ELEMENTS), ([long + ELEMENTS, 1], 5)]
        );
        assert_eq!(blocks(&[0, 3], &[0, 3], &[3]), []);
    }
}
