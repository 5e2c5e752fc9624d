//! Functions of several numbers with several results, over the rows of as many matrices: the gates of a recurrent cell.
//!
//! A compiler does not vectorise a loop over ten slices, since it cannot know that they are apart. Here a block of each is
//! copied to an array. Nor does it vectorise a loop with several results and a division: a function with divisions computes
//! one result after another, each of them for all lanes of a block.

use super::target::{FusedWork, MulAdd, widest_fused};

/// Elements of a block: the floats of the widest register.
const LANES: usize = 16;

/// A block of numbers, one for each lane.
pub type Block = [f32; LANES];

/// A function of `I` numbers with `O` results. To be inlined always.
pub trait Many<const I: usize, const O: usize>: Copy {
    /// The results in each lane.
    fn of<M: MulAdd>(self, x: &[Block; I]) -> [Block; O];
}

/// The results in each lane of a function with one division at most.
#[inline(always)]
pub fn each<const I: usize>(x: [&Block; I], f: impl Fn([f32; I]) -> f32) -> Block {
    let mut to = [0f32; LANES];
    for (lane, to) in to.iter_mut().enumerate() {
        *to = f(x.map(|x| x[lane]));
    }
    to
}

/// The results in each lane of a function without a division.
#[inline(always)]
pub fn lanes<const I: usize, const O: usize>(x: &[Block; I], f: impl Fn([f32; I]) -> [f32; O]) -> [Block; O] {
    let mut results = [[0f32; LANES]; O];
    for lane in 0..LANES {
        let mut own = [0f32; I];
        for (own, x) in own.iter_mut().zip(x) {
            *own = x[lane];
        }
        for (result, y) in results.iter_mut().zip(f(own)) {
            result[lane] = y;
        }
    }
    results
}

/// The rows of a matrix, from its first element on, or one row that is repeated: the distance between rows is then 0.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    pub elements: &'a [f32],
    pub apart: usize,
}

/// The rows of a result: in one of several slices, its first element, and the distance between rows.
#[derive(Clone, Copy)]
pub struct Slot {
    pub slice: usize,
    pub at: usize,
    pub apart: usize,
}

/// Writes the results of `f` for each position of these rows of `len` elements.
///
/// # Panics
/// If a row exceeds its slice.
pub fn many<const I: usize, const O: usize>(
    [rows, len]: [usize; 2],
    from: [Strided; I],
    to: &mut [&mut [f32]],
    slots: [Slot; O],
    f: impl Many<I, O>,
) {
    widest_fused(Blocks { rows, len, from, to, slots, f });
}

struct Blocks<'a, 'b, F, const I: usize, const O: usize> {
    rows: usize,
    len: usize,
    from: [Strided<'a>; I],
    to: &'a mut [&'b mut [f32]],
    slots: [Slot; O],
    f: F,
}

impl<F: Many<I, O>, const I: usize, const O: usize> FusedWork for Blocks<'_, '_, F, I, O> {
    #[inline(always)]
    fn run<M: MulAdd>(mut self) {
        let whole = self.len - self.len % LANES;
        for row in 0..self.rows {
            for first in (0..whole).step_by(LANES) {
                self.block::<M>(row, first, LANES);
            }
            if whole < self.len {
                self.block::<M>(row, whole, self.len - whole);
            }
        }
    }
}

impl<F: Many<I, O>, const I: usize, const O: usize> Blocks<'_, '_, F, I, O> {
    #[inline(always)]
    fn block<M: MulAdd>(&mut self, row: usize, first: usize, len: usize) {
        let mut own = [[0f32; LANES]; I];
        for (own, from) in own.iter_mut().zip(&self.from) {
            own[..len].copy_from_slice(&from.elements[row * from.apart + first..][..len]);
        }
        let results = self.f.of::<M>(&own);
        for (result, slot) in results.iter().zip(&self.slots) {
            self.to[slot.slice][slot.at + row * slot.apart + first..][..len].copy_from_slice(&result[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct SumAndDifference;

    impl Many<2, 2> for SumAndDifference {
        #[inline(always)]
        fn of<M: MulAdd>(self, [x, y]: &[Block; 2]) -> [Block; 2] {
            [each([x, y], |[x, y]| x + y), each([x, y], |[x, y]| x - y)]
        }
    }

    #[test]
    fn results_of_rows_of_every_length_are_those_of_a_loop() {
        for (rows, len) in [(1, 1), (3, 16), (2, 15), (4, 33), (0, 7), (5, 0)] {
            let xs: Vec<f32> = (0..rows * (len + 2)).map(|i| (i * 7919 % 101) as f32).collect();
            let ys: Vec<f32> = (0..len).map(|i| i as f32 / 2.0).collect();
            let from = [Strided { elements: &xs, apart: len + 2 }, Strided { elements: &ys, apart: 0 }];
            let (mut both, mut sums) = (vec![-1f32; rows * (len + 3)], vec![-1f32; rows * len]);
            let slots = [Slot { slice: 1, at: 0, apart: len }, Slot { slice: 0, at: 3, apart: len + 3 }];
            many([rows, len], from, &mut [&mut both, &mut sums], slots, SumAndDifference);
            for (row, column) in (0..rows).flat_map(|row| (0..len).map(move |column| (row, column))) {
                let (x, y) = (xs[row * (len + 2) + column], ys[column]);
                let got = (sums[row * len + column], both[row * (len + 3) + 3 + column]);
                assert_eq!(got, (x + y, x - y), "{rows} rows of {len}: {row}, {column}");
            }
            assert!(both.chunks(len + 3).all(|row| row[..3] == [-1.0; 3]), "nothing else is written");
        }
    }
}
