//! Products of many matrices and one right matrix, which is packed once: the weights of a recurrent cell, by which every step
//! of a sequence is multiplied, or a matrix that many rows read.
//!
//! The columns are in panels as wide as a tile (`tile`), each of them contiguous. A matrix that few rows read is left where it
//! is, since packing takes as long as reading it twice.

use std::borrow::Cow;
use std::ops::Range;

use super::cut::summed;
use super::lanes::Width;
use super::place::joined;
use super::product::MatrixView;
use super::tile::{ColumnRun, Left, Product, Right, most_columns, most_rows, multiply};
use super::transpose::transpose;
use crate::chunks::{in_chunks, threads};

/// Fewest multiplications of a chunk of rows, some microseconds of one thread, and most between two checks for cancellation,
/// about a millisecond.
const CHUNK: std::ops::RangeInclusive<usize> = 1 << 18..=1 << 26;
/// Chunks for each thread, so that no thread waits long for the other threads.
const CHUNKS: usize = 4;
/// Most rows whose product is shared by columns.
const FEW: usize = 28;
/// Fewest multiplications of a chunk of columns: few rows take longer to read the weights than to multiply.
const FEWEST: usize = 1 << 17;

/// A right matrix.
pub struct Panels<'a> {
    width: Width,
    /// Rows and columns.
    dims: [usize; 2],
    elements: Cow<'a, [f32]>,
    /// The distance between the rows of a panel, except for those of the last one if the matrix is packed.
    down: usize,
    /// The distance between panels.
    apart: usize,
    is_packed: bool,
}

/// The elements of a matrix of this size, by its steps, from contiguous panels as wide as a tile.
pub(super) fn unpacked(width: Width, packed: &[f32], [inner, columns]: [usize; 2], steps: [usize; 2]) -> Vec<f32> {
    assert!(steps == [columns, 1] || steps == [1, inner], "the elements lie side by side");
    let mut all = vec![0f32; inner * columns];
    for first in (0..columns).step_by(most_columns(width)) {
        let count = most_columns(width).min(columns - first);
        let down = count.next_multiple_of(width.lanes());
        let panel = &packed[first * inner..][..inner * down];
        for (row, from) in panel.chunks_exact(down).enumerate() {
            if steps[1] == 1 {
                all[row * steps[0] + first..][..count].copy_from_slice(&from[..count]);
            } else {
                all[row + first * inner..].iter_mut().step_by(inner).zip(&from[..count]).for_each(|(to, &x)| *to = x);
            }
        }
    }
    all
}

impl<'a> Panels<'a> {
    /// The panels of a matrix by which `rows` rows are to be multiplied.
    #[inline]
    pub fn of(y: MatrixView<'a>, rows: usize) -> Panels<'a> {
        Panels::with(Width::widest(), y, rows)
    }

    /// The panels of a matrix that is kept for many products, packed whatever their rows.
    pub fn packed(y: MatrixView) -> Panels<'static> {
        let panels = Panels::with(Width::widest(), y, usize::MAX);
        Panels { elements: Cow::Owned(panels.elements.into_owned()), ..panels }
    }

    /// The elements of the matrix that was packed, bit by bit; `steps` are those by which it was read.
    ///
    /// # Panics
    /// If it was not packed, or if elements by those steps do not lie side by side.
    pub fn unpacked(&self, steps: [usize; 2]) -> Vec<f32> {
        assert!(self.is_packed, "the elements lie in panels");
        unpacked(self.width, &self.elements, self.dims, steps)
    }

    /// Rows and columns of the matrix.
    pub fn dims(&self) -> [usize; 2] {
        self.dims
    }

    fn with(width: Width, y: MatrixView<'a>, rows: usize) -> Panels<'a> {
        let (dims, wide) = (y.dims, most_columns(width));
        let [inner, columns] = dims;
        if y.steps[1] == 1 && rows <= most_rows(width) && columns.is_multiple_of(width.lanes()) {
            let elements = Cow::Borrowed(y.elements);
            return Panels { width, dims, elements, down: y.steps[0], apart: wide, is_packed: false };
        }
        let mut packed = vec![0f32; inner * columns.next_multiple_of(width.lanes())];
        for first in (0..columns).step_by(wide) {
            let count = wide.min(columns - first);
            let down = count.next_multiple_of(width.lanes());
            let panel = &mut packed[first * inner..][..inner * down];
            let from = y.elements.get(first * y.steps[1]..).unwrap_or_default();
            if y.steps[0] == 1 {
                transpose(from, y.steps[1], panel, down, [inner, count]);
                continue;
            }
            for (row, to) in panel.chunks_exact_mut(down).enumerate() {
                let from = &from[row * y.steps[0]..];
                if y.steps[1] == 1 {
                    to[..count].copy_from_slice(&from[..count]);
                } else {
                    to.iter_mut().zip(from.iter().step_by(y.steps[1])).take(count).for_each(|(to, &x)| *to = x);
                }
            }
        }
        Panels { width, dims, elements: Cow::Owned(packed), down: wide, apart: inner * wide, is_packed: true }
    }

    /// Adds the product of `x` and this matrix to `to`, or overwrites `to` with it, on this thread. Every sum is added in the
    /// order of its terms.
    ///
    /// # Panics
    /// If the sizes do not fit, or a matrix is not within its elements.
    pub fn multiply(&self, x: MatrixView, adds: bool, to: &mut [f32]) {
        self.part(x, 0..self.dims[1], adds, to);
    }

    /// As [`Panels::multiply`], for the columns of some panels.
    fn part(&self, x: MatrixView, part: Range<usize>, adds: bool, to: &mut [f32]) {
        let (inner, columns) = (self.dims[0], part.len());
        let rows = x.dims[0];
        assert!(x.dims[1] == inner && rows.checked_mul(columns) == Some(to.len()), "there is a place for every sum");
        if to.is_empty() || inner == 0 {
            if !adds {
                to.fill(0.0);
            }
            return;
        }
        let run = [ColumnRun { at: 0, len: inner, right: 0 }];
        // Tiles of about the same height keep the processor busier than full ones and a remainder.
        let height = rows.div_ceil(rows.div_ceil(most_rows(self.width)));
        for first in (0..columns).step_by(most_columns(self.width)) {
            let wide = most_columns(self.width).min(columns - first);
            let panel = (part.start + first) / most_columns(self.width);
            let down = if self.is_packed { wide.next_multiple_of(self.width.lanes()) } else { self.down };
            let right = Right { from: &self.elements[panel * self.apart..], down };
            for row in (0..rows).step_by(height) {
                let left =
                    Left { from: &x.elements[row * x.steps[0]..], runs: &run, along: x.steps[1], down: x.steps[0] };
                let (rows, to) = (height.min(rows - row), &mut to[row * columns + first..]);
                multiply(self.width, left, right, Product { to, down: columns, rows, columns: wide, is_added: adds });
            }
        }
    }

    /// As [`Panels::multiply`], on all threads if that pays, with checks for cancellation.
    ///
    /// # Panics
    /// As [`Panels::multiply`].
    pub fn spread(&self, x: MatrixView, adds: bool, to: &mut [f32]) {
        let [inner, columns] = self.dims;
        let rows = self.chunk(x.dims[0], 1);
        in_chunks(to.chunks_mut((rows * columns).max(1)).enumerate(), |(i, to)| {
            let count = to.len() / columns;
            self.multiply(x.part([i * rows, 0], [count, inner]), adds, to);
        });
        if columns == 0 {
            assert!(to.is_empty(), "there is a place for every sum");
        }
    }

    /// The product of `x` and this matrix, on all threads if that pays, with checks for cancellation. Every sum is added in the
    /// order of its terms.
    ///
    /// # Panics
    /// As [`Panels::multiply`].
    pub fn product(&self, x: MatrixView) -> Vec<f32> {
        let ([rows, inner], columns) = (x.dims, self.dims[1]);
        if rows > FEW || columns <= most_columns(self.width) {
            let chunk = self.chunk(rows, 1);
            return summed(rows * columns, std::iter::repeat((chunk * columns).max(1)), |from, to| {
                self.multiply(x.part([from / columns, 0], [to.len() / columns, inner]), false, to);
            });
        }
        // Few rows read the weights once: each thread has a part of the columns.
        let wide = most_columns(self.width);
        let work = rows.saturating_mul(inner).saturating_mul(wide).max(1);
        let panels =
            columns.div_ceil(wide).div_ceil(CHUNKS * threads()).max(FEWEST / work).min((CHUNK.end() / work).max(1));
        if rows == 1 {
            return summed(columns, std::iter::repeat(panels * wide), |from, to| {
                self.part(x, from..from + to.len(), false, to);
            });
        }
        let mut parts = vec![Vec::new(); columns.div_ceil(panels * wide)];
        in_chunks(parts.iter_mut().enumerate(), |(i, to)| {
            let part = i * panels * wide..columns.min((i + 1) * panels * wide);
            *to = vec![0f32; rows * part.len()];
            self.part(x, part, false, to);
        });
        joined(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), rows)
    }

    /// The number of rows, of `rows` in all, that a thread multiplies at a time if each is multiplied `times` times.
    pub fn chunk(&self, rows: usize, times: usize) -> usize {
        let work = self.dims[0].saturating_mul(self.dims[1]).saturating_mul(times).max(1);
        chunk(rows, work, most_rows(self.width), threads())
    }
}

/// The size of chunks of about the same size for each thread, of rows that take `work` multiplications each; `tile` rows at
/// least, unless a thread would get none.
fn chunk(rows: usize, work: usize, tile: usize, threads: usize) -> usize {
    let least = rows.div_ceil(CHUNKS * threads).max(tile.min(rows.div_ceil(threads))).max(CHUNK.start().div_ceil(work));
    let count = rows.div_ceil(least.max(1));
    let even = if count > threads { count - count % threads } else { count };
    rows.div_ceil(even.max(1)).min(CHUNK.end() / work).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, so that every order of adding them up has the same sum.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn products_by_panels_are_those_of_a_loop() {
        let sizes = [
            [1, 1, 1],
            [3, 5, 2],
            [14, 16, 32],
            [15, 17, 33],
            [29, 40, 48],
            [64, 130, 70],
            [300, 60, 96],
            [1, 900, 700],
            [5, 400, 333],
        ];
        for (width, [m, k, n]) in Width::all().flat_map(|width| sizes.map(|size| (width, size))) {
            let (left, right, before) = (numbers(m * k, 1), numbers(k * n, 5), numbers(m * n, 9));
            for (x_steps, y_steps) in [([k, 1], [n, 1]), ([1, m], [1, k]), ([k, 1], [1, k])] {
                let x = MatrixView { elements: &left, dims: [m, k], steps: x_steps };
                let y = MatrixView { elements: &right, dims: [k, n], steps: y_steps };
                // Packed, and in place where that is possible.
                for (rows, adds) in [(usize::MAX, false), (1, false), (usize::MAX, true)] {
                    let panels = Panels::with(width, y, rows);
                    if rows == usize::MAX {
                        assert_eq!(panels.unpacked(y_steps), right);
                    }
                    let (mut alone, mut spread) = (before.clone(), before.clone());
                    panels.multiply(x, adds, &mut alone);
                    panels.spread(x, adds, &mut spread);
                    assert_eq!(alone, spread);
                    assert!(adds || alone == panels.product(x));
                    let term = |at: usize, q: usize| {
                        let (i, j) = (at / n, at % n);
                        left[i * x_steps[0] + q * x_steps[1]] * right[q * y_steps[0] + j * y_steps[1]]
                    };
                    for (at, got) in alone.into_iter().enumerate() {
                        let sum: f32 = (0..k).map(|q| term(at, q)).sum();
                        let want = if adds { before[at] + sum } else { sum };
                        assert_eq!(
                            got, want,
                            "{m} by {k} by {n} with {width:?}, {x_steps:?}, {y_steps:?}, {adds}: {at}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn chunks_are_even_and_of_whole_tiles_where_that_leaves_no_thread_without_work() {
        // Rows, work of each, rows of a tile, threads, and the size of a chunk.
        for (rows, work, tile, threads, want) in [
            (32, 1 << 20, 14, 2, 16),
            (64, 1 << 20, 14, 2, 16),
            (64, 1 << 20, 14, 4, 16),
            (2240, 1 << 14, 14, 2, 280),
            (2240, 1 << 14, 14, 1, 560),
            (3, 1 << 20, 14, 2, 2),
            (3, 1, 14, 2, 3),
            (100, 1 << 26, 14, 2, 1),
            (100, usize::MAX, 14, 2, 1),
            (0, 1, 14, 2, 1),
        ] {
            assert_eq!(chunk(rows, work, tile, threads), want, "{rows} rows of {work} on {threads}");
        }
    }

    #[test]
    fn nothing_is_added_where_there_is_nothing_to_multiply() {
        let panels = Panels::of(MatrixView { elements: &[], dims: [0, 3], steps: [3, 1] }, 2);
        let x = MatrixView { elements: &[], dims: [2, 0], steps: [0, 1] };
        let mut sum = [7f32; 6];
        panels.spread(x, true, &mut sum);
        assert_eq!(sum, [7.0; 6]);
        panels.spread(x, false, &mut sum);
        assert_eq!(sum, [0.0; 6]);
        let none = Panels::of(MatrixView { elements: &[], dims: [2, 0], steps: [0, 1] }, 2);
        none.spread(MatrixView { elements: &[1.0; 4], dims: [2, 2], steps: [2, 1] }, false, &mut []);
    }
}
