//! A small product of matrices that stays in registers: the building block of convolutions and their gradients.
//!
//! The rows of the left matrix are a step apart, its columns one by one or in runs at arbitrary offsets: so the pixels under
//! a window are read in place, and no matrix of them is built.

#![allow(unsafe_code, reason = "the loop reads and writes what was checked before it")]

use super::lanes::{Lanes, Registered, Width};

/// Columns of the left matrix that are a step apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnRun {
    /// The offset of the first.
    pub at: usize,
    pub len: usize,
    /// The row of the right matrix that corresponds to the first.
    pub right: usize,
}

/// The left matrix: as many columns as the runs have.
#[derive(Clone, Copy)]
pub struct Left<'a> {
    pub from: &'a [f32],
    pub runs: &'a [ColumnRun],
    /// The stride of a row within a run, and the stride of a column.
    pub along: usize,
    pub down: usize,
}

/// The right matrix: a row for each column of the left one.
#[derive(Clone, Copy)]
pub struct Right<'a> {
    pub from: &'a [f32],
    /// The distance between rows.
    pub down: usize,
}

/// The destination of the product.
pub struct Product<'a> {
    pub to: &'a mut [f32],
    /// The distance between its rows.
    pub down: usize,
    pub rows: usize,
    pub columns: usize,
    /// Whether it is added to the existing values.
    pub is_added: bool,
}

/// Most rows of a product.
#[inline]
pub fn most_rows(width: Width) -> usize {
    match width.lanes() {
        // As many as there are registers for, with two for columns in each row: 32, or 16.
        16 => 14,
        _ if cfg!(target_arch = "aarch64") => 14,
        _ => 6,
    }
}

/// Most columns of a product, whose right matrix must have as many as whole registers hold.
#[inline]
pub fn most_columns(width: Width) -> usize {
    2 * width.lanes()
}

/// Computes a product of at most [`most_rows`] by [`most_columns`].
///
/// # Panics
/// If a matrix exceeds its slice, or the product is empty or too large.
pub fn multiply(width: Width, left: Left, right: Right, product: Product) {
    let (rows, columns) = (product.rows, product.columns);
    assert!((1..=most_rows(width)).contains(&rows) && (1..=most_columns(width)).contains(&columns), "a tile is small");
    let whole = columns.next_multiple_of(width.lanes());
    for run in left.runs.iter().filter(|run| run.len > 0) {
        // Saturating: a sum that wrapped could pass.
        let (along, down) = ((run.len - 1).saturating_mul(left.along), (rows - 1).saturating_mul(left.down));
        let last = run.at.saturating_add(along).saturating_add(down);
        assert!(last < left.from.len(), "the left matrix lies within its slice");
        let end = run.right.saturating_add(run.len - 1).saturating_mul(right.down).saturating_add(whole);
        assert!(end <= right.from.len(), "the right matrix lies within its slice");
    }
    let end = (rows - 1).saturating_mul(product.down).saturating_add(columns);
    assert!(end <= product.to.len(), "the product lies within its slice");
    width.run(Tile { left, right, product });
}

/// A product whose matrices were checked.
struct Tile<'a> {
    left: Left<'a>,
    right: Right<'a>,
    product: Product<'a>,
}

impl Registered for Tile<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        /// Calls the loop for these sizes, which are constants of the compiled loop.
        macro_rules! sized {
            ($($rows:literal)*) => {
                // SAFETY: `multiply` checked the matrices; the registers are those of the processor.
                match (self.product.rows, self.product.columns > L::COUNT) {
                    $(($rows, false) => unsafe { self.in_registers::<L, $rows, 1>() },
                    ($rows, true) => unsafe { self.in_registers::<L, $rows, 2>() },)*
                    _ => unreachable!("a tile is small"),
                }
            };
        }
        if L::COUNT == 16 || cfg!(target_arch = "aarch64") {
            sized!(1 2 3 4 5 6 7 8 9 10 11 12 13 14)
        } else {
            sized!(1 2 3 4 5 6)
        }
    }
}

impl Tile<'_> {
    /// # Safety
    /// `multiply` has checked the matrices, and the processor has the registers.
    #[inline(always)]
    unsafe fn in_registers<L: Lanes, const ROWS: usize, const WIDE: usize>(self) {
        let Tile { left, right, product } = self;
        // SAFETY: every position that is read or written is before one that was checked.
        unsafe {
            let mut sums = [[L::splat(0.0); WIDE]; ROWS];
            for run in left.runs {
                let mut x = left.from.as_ptr().wrapping_add(run.at);
                let mut weights = right.from.as_ptr().wrapping_add(run.right * right.down);
                for _ in 0..run.len {
                    let mut own = [L::splat(0.0); WIDE];
                    for (j, own) in own.iter_mut().enumerate() {
                        *own = L::load(weights.add(j * L::COUNT));
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let x = L::splat(*x.add(i * left.down));
                        for (sum, own) in sums.iter_mut().zip(own) {
                            *sum = sum.plus(x, own);
                        }
                    }
                    x = x.wrapping_add(left.along);
                    weights = weights.wrapping_add(right.down);
                }
            }
            for (i, sums) in sums.into_iter().enumerate() {
                let to = product.to.as_mut_ptr().add(i * product.down);
                for (j, sum) in sums.into_iter().enumerate() {
                    let to = to.add(j * L::COUNT);
                    let left = product.columns - j * L::COUNT;
                    if left < L::COUNT {
                        let mut own = [0f32; 16];
                        sum.store(own.as_mut_ptr());
                        for (k, x) in own.into_iter().enumerate().take(left) {
                            *to.add(k) = if product.is_added { *to.add(k) + x } else { x };
                        }
                    } else if product.is_added {
                        L::load(to).plus(sum, L::splat(1.0)).store(to);
                    } else {
                        sum.store(to);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_would_wrap_is_beyond_every_slice() {
        let refused = |down: usize, along: usize, right: usize, to: usize| {
            let (from, mut product) = (vec![0f32; 64], vec![0f32; 64]);
            let runs = [ColumnRun { at: 0, len: 4, right }];
            let left = Left { from: &from, runs: &runs, along, down };
            let right = Right { from: &from, down: 16 };
            let to = Product { to: &mut product, down: to, rows: 4, columns: 1, is_added: false };
            let run = std::panic::AssertUnwindSafe(|| multiply(Width::widest(), left, right, to));
            std::panic::catch_unwind(run).is_err()
        };
        // Three times this wraps to 2.
        let third = (usize::MAX / 3) + 1;
        assert!(
            refused(third, 1, 0, 16)
                && refused(1, third, 0, 16)
                && refused(1, 1, 1 << 60, 16)
                && refused(1, 1, 0, third)
        );
        assert!(!refused(1, 1, 0, 16));
    }
}
