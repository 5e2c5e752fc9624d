//! Matrix products for convolutions, packed into panels that stay in the cache, in loops that the compiler vectorises.
//!
//! The crate gemm sums f32 in f32 and does not support integers. A product of this module can also be cancelled between
//! its blocks.

use meshtf_loops::turn::Pace;
use meshtf_tensor::{Numeric, Ring};

/// Rows and columns of the block of the result that is kept in registers.
const ROWS: usize = 4;
const COLUMNS: usize = 8;
/// Depth and columns of the right matrix's panel that is packed at once: 256 KiB of f32.
const DEPTH: usize = 256;
const WIDTH: usize = 256;

/// An element of a product, and the type of its sums. Single precision is summed in double precision, so that the result
/// is within one rounding of the exact one in any order of summation.
pub trait Term: Numeric {
    type Sum: Numeric;
    fn widen(self) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
}

impl Term for f32 {
    type Sum = f64;

    #[inline]
    fn widen(self) -> f64 {
        self.into()
    }

    #[inline]
    fn narrow(sum: f64) -> f32 {
        sum as f32
    }
}

macro_rules! sums_itself {
    ($($type:ty),*) => {
        $(impl Term for $type {
            type Sum = $type;

            #[inline]
            fn widen(self) -> $type {
                self
            }

            #[inline]
            fn narrow(sum: $type) -> $type {
                sum
            }
        })*
    };
}

sums_itself!(f64, i32, i64);

/// A matrix inside a slice: element (i, j) is at `i * step[0] + j * step[1]`.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    pub data: &'a [T],
    pub step: [usize; 2],
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// A matrix of consecutive rows of `step` elements.
    #[inline]
    pub fn rows(data: &'a [T], step: usize) -> Self {
        Matrix { data, step: [step, 1] }
    }

    #[inline]
    pub fn transposed(self) -> Self {
        Matrix { step: [self.step[1], self.step[0]], ..self }
    }

    #[inline]
    fn at(&self, i: usize, j: usize) -> T {
        self.data[i * self.step[0] + j * self.step[1]]
    }
}

/// Adds the product of `a` (`m` by `k`) and `b` (`k` by `n`) to `c`, whose rows are `stride` apart.
pub fn add_product<T: Term>([m, n, k]: [usize; 3], a: Matrix<T>, b: Matrix<T>, c: &mut [T], stride: usize) {
    let mut right = vec![T::ZERO; DEPTH.min(k) * WIDTH.min(n.next_multiple_of(COLUMNS))];
    let mut left = vec![T::ZERO; DEPTH.min(k) * ROWS];
    let mut pace = Pace::new();
    for k0 in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - k0);
        for n0 in (0..n).step_by(WIDTH) {
            let width = WIDTH.min(n - n0);
            for (panel, j0) in right.chunks_mut(depth * COLUMNS).zip((0..width).step_by(COLUMNS)) {
                pack(panel, COLUMNS, COLUMNS.min(width - j0), |p, j| b.at(k0 + p, n0 + j0 + j));
            }
            for m0 in (0..m).step_by(ROWS) {
                pace.go(depth * width);
                let height = ROWS.min(m - m0);
                let left = &mut left[..depth * ROWS];
                pack(left, ROWS, height, |p, i| a.at(m0 + i, k0 + p));
                for (panel, j0) in right.chunks(depth * COLUMNS).zip((0..width).step_by(COLUMNS)) {
                    let block = multiply(left, panel);
                    for (i, row) in block.iter().enumerate().take(height) {
                        let at = (m0 + i) * stride + n0 + j0;
                        let columns = COLUMNS.min(width - j0);
                        for (c, &x) in c[at..at + columns].iter_mut().zip(row) {
                            *c = T::add(*c, T::narrow(x));
                        }
                    }
                }
            }
        }
    }
}

/// Fills `panel` with groups of `size` elements: the first `used` of each from `at(group, index)`, the rest zero.
#[inline]
fn pack<T: Numeric>(panel: &mut [T], size: usize, used: usize, at: impl Fn(usize, usize) -> T) {
    for (p, group) in panel.chunks_exact_mut(size).enumerate() {
        for (j, to) in group.iter_mut().enumerate() {
            *to = if j < used { at(p, j) } else { T::ZERO };
        }
    }
}

fn multiply<T: Term>(left: &[T], right: &[T]) -> [[T::Sum; COLUMNS]; ROWS] {
    let mut block = [[T::Sum::ZERO; COLUMNS]; ROWS];
    for (a, b) in left.as_chunks::<ROWS>().0.iter().zip(right.as_chunks::<COLUMNS>().0) {
        for (row, &a) in block.iter_mut().zip(a) {
            for (c, &b) in row.iter_mut().zip(b) {
                *c = T::Sum::add(*c, T::Sum::mul(a.widen(), b.widen()));
            }
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_every_shape_around_the_block_sizes() {
        for [m, n, k] in [[1, 1, 1], [4, 8, 3], [5, 9, 300], [3, 300, 2], [9, 17, 257], [2, 0, 3], [0, 2, 3], [2, 3, 0]]
        {
            let a: Vec<i64> = (0..m * k).map(|i| i as i64 % 7 - 3).collect();
            let b: Vec<i64> = (0..k * n).map(|i| i as i64 % 5 - 2).collect();
            let want: Vec<i64> = (0..m * n)
                .map(|at| 1 + (0..k).map(|p| a[at / n.max(1) * k + p] * b[p * n + at % n.max(1)]).sum::<i64>())
                .collect();
            let mut c = vec![1; m * n];
            add_product([m, n, k], Matrix::rows(&a, k), Matrix::rows(&b, n), &mut c, n);
            assert_eq!(c, want, "{m} {n} {k}");
            let flipped: Vec<i64> = (0..k * m).map(|at| a[at % m.max(1) * k + at / m.max(1)]).collect();
            let mut c = vec![1; m * n];
            add_product([m, n, k], Matrix::rows(&flipped, m).transposed(), Matrix::rows(&b, n), &mut c, n);
            assert_eq!(c, want, "{m} {n} {k} transposed");
        }
    }
}
