//! Transposition of matrices, tile by tile.

#![allow(unsafe_code, reason = "a tile is read and written where it was checked to lie")]

use super::lanes::{Lanes, Registered, Width};

/// Rows and columns that are transposed at a time: the number of floats in a cache line.
pub const TILE: usize = 16;

/// Writes the columns of `from`, which begin `stride` apart, to the rows of `to`, which begin `step` apart.
///
/// # Panics
/// If a column or a row exceeds its slice.
pub fn transpose(from: &[f32], stride: usize, to: &mut [f32], step: usize, sizes: [usize; 2]) {
    with(Width::widest(), from, stride, to, step, sizes);
}

fn with(width: Width, from: &[f32], stride: usize, to: &mut [f32], step: usize, [rows, columns]: [usize; 2]) {
    if rows == 0 || columns == 0 {
        return;
    }
    // Saturating: a sum that wrapped could pass.
    let end = |lines: usize, apart: usize, len: usize| (lines - 1).saturating_mul(apart).saturating_add(len);
    assert!(end(columns, stride, rows) <= from.len(), "the columns lie within their slice");
    assert!(end(rows, step, columns) <= to.len(), "the rows lie within their slice");
    width.run(Transposition { from, stride, to, step, rows, columns });
}

/// A transposition, with its bounds checked.
struct Transposition<'a> {
    from: &'a [f32],
    stride: usize,
    to: &'a mut [f32],
    step: usize,
    rows: usize,
    columns: usize,
}

impl Registered for Transposition<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Transposition { from, stride, to, step, rows, columns } = self;
        for column in (0..columns).step_by(TILE) {
            let wide = TILE.min(columns - column);
            for row in (0..rows).step_by(TILE) {
                let high = TILE.min(rows - row);
                let (from, to) = (&from[column * stride + row..], &mut to[row * step + column..]);
                if (wide, high) == (TILE, TILE) {
                    // SAFETY: `with` checked the bounds of the last row and the last column; the registers are the
                    // processor's.
                    unsafe { L::transpose(from.as_ptr(), stride, to.as_mut_ptr(), step) }
                    continue;
                }
                for j in 0..wide {
                    for i in 0..high {
                        to[i * step + j] = from[j * stride + i];
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
    fn every_processor_transposes_alike() {
        for (width, [rows, columns]) in
            Width::all().flat_map(|width| [[1, 1], [16, 16], [15, 17], [48, 32], [33, 50]].map(|sizes| (width, sizes)))
        {
            let (stride, step) = (rows + 3, columns + 5);
            let from: Vec<f32> = (0..columns * stride).map(|i| i as f32).collect();
            let mut to = vec![-1f32; rows * step];
            with(width, &from, stride, &mut to, step, [rows, columns]);
            for (i, row) in to.chunks(step).enumerate() {
                let want = (0..step).map(|j| if j < columns { (j * stride + i) as f32 } else { -1.0 });
                assert!(row.iter().copied().eq(want), "{rows} by {columns} with {width:?}: row {i}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "the columns lie within their slice")]
    fn what_lies_beyond_its_slice_is_not_read() {
        transpose(&[0.0; 16 * 16], usize::MAX / 15 + 2, &mut [0.0; 16 * 16], 16, [16, 16]);
    }
}
