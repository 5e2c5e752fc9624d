//! Products of a matrix and the transpose of another, as the gradients of a layer's input are.
//!
//! A product reads its right matrix row by row, and the rows of a transpose are columns. They are put in order a panel at a time,
//! which stays in the processor's cache for all rows of the left matrix; the rest is products of small tiles (`tile`).

use super::lanes::Width;
use super::tile::{ColumnRun, Left, Product, Right, most_columns, most_rows, multiply};
use super::transpose::transpose;

/// A matrix, whose elements lie anywhere within a slice.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    /// From its first element on.
    pub elements: &'a [f32],
    /// Rows and columns.
    pub dims: [usize; 2],
    /// How far the next row lies, and the next column.
    pub steps: [usize; 2],
}

impl MatrixView<'_> {
    /// Some of its rows and columns: the first of each, and how many.
    ///
    /// # Panics
    /// If it does not have them.
    pub fn part(&self, first: [usize; 2], count: [usize; 2]) -> Self {
        let has = |i: usize| first[i] <= self.dims[i] && count[i] <= self.dims[i] - first[i];
        assert!(has(0) && has(1), "a part lies within its matrix");
        let at = first[0] * self.steps[0] + first[1] * self.steps[1];
        MatrixView { elements: self.elements.get(at..).unwrap_or_default(), dims: count, ..*self }
    }
}

/// Most rows of a panel: what it takes is bounded, and stays in the nearest caches.
const MOST_ROWS: usize = 1024;

/// Adds the product of `x` and `y` to `to`, or writes it over that. Every sum is added in an order that follows from the sizes
/// and the processor alone.
///
/// # Panics
/// If the neighbours within a column of `y` do not lie side by side, or the sizes of the matrices do not fit.
pub fn by_transpose(x: MatrixView, y: MatrixView, adds: bool, to: &mut [f32]) {
    by_transpose_with(Width::widest(), x, y, adds, to);
}

fn by_transpose_with(width: Width, x: MatrixView, y: MatrixView, adds: bool, to: &mut [f32]) {
    let [inner, columns] = y.dims;
    assert!(y.steps[0] == 1 && x.dims[1] == inner, "the right matrix is a transpose, and of as many rows");
    if to.is_empty() || columns == 0 {
        return;
    }
    if inner == 0 {
        to.iter_mut().for_each(|sum| *sum = if adds { *sum } else { 0.0 });
        return;
    }
    let rows = x.dims[0];
    assert!(rows.checked_mul(columns) == Some(to.len()), "there is a place for every sum");
    let tiles = rows.div_ceil(most_rows(width));
    // Tiles of about the same height keep the processor busier than full ones and a rest.
    let height = rows.div_ceil(tiles);
    let mut panel = vec![0f32; inner.min(MOST_ROWS) * most_columns(width)];
    for above in (0..inner).step_by(MOST_ROWS) {
        let deep = MOST_ROWS.min(inner - above);
        let run = [ColumnRun { at: above * x.steps[1], len: deep, right: 0 }];
        for column in (0..columns).step_by(most_columns(width)) {
            let wide = most_columns(width).min(columns - column);
            let down = wide.next_multiple_of(width.lanes());
            transpose(&y.elements[column * y.steps[1] + above..], y.steps[1], &mut panel, down, [deep, wide]);
            for row in (0..rows).step_by(height) {
                let left =
                    Left { from: &x.elements[row * x.steps[0]..], runs: &run, along: x.steps[1], down: x.steps[0] };
                let product = Product {
                    to: &mut to[row * columns + column..],
                    down: columns,
                    rows: height.min(rows - row),
                    columns: wide,
                    is_added: adds || above > 0,
                };
                multiply(width, left, Right { from: &panel, down }, product);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, so that every order of adding them up has the same sum.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 17) as f32 - 8.0).collect()
    }

    #[test]
    fn a_product_by_a_transpose_is_that_of_a_loop() {
        let sizes = [[1, 1, 1], [3, 5, 2], [14, 16, 32], [15, 17, 33], [29, 40, 48], [64, 130, 70], [7, 2060, 19]];
        for (width, [m, k, n]) in Width::all().flat_map(|width| sizes.map(|size| (width, size))) {
            let (left, right) = (numbers(m * k, 1), numbers(n * (k + 3), 5));
            for (steps, adds) in [([k, 1], false), ([1, m], false), ([k, 1], true)] {
                let x = MatrixView { elements: &left, dims: [m, k], steps };
                let y = MatrixView { elements: &right, dims: [k, n], steps: [1, k + 3] };
                let before = numbers(m * n, 9);
                let mut got = before.clone();
                by_transpose_with(width, x, y, adds, &mut got);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let term = |q: usize| left[i * steps[0] + q * steps[1]] * right[j * (k + 3) + q];
                    let sum: f32 = (0..k).map(term).sum();
                    let want = if adds { before[i * n + j] + sum } else { sum };
                    assert_eq!(got[i * n + j], want, "{m} by {k} by {n} with {width:?}, {steps:?}, {adds}: {i}, {j}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_added_where_there_is_nothing_to_multiply() {
        let x = MatrixView { elements: &[], dims: [2, 0], steps: [0, 1] };
        let y = MatrixView { elements: &[], dims: [0, 3], steps: [1, 0] };
        let mut sum = [7f32; 6];
        by_transpose(x, y, true, &mut sum);
        assert_eq!(sum, [7.0; 6]);
        by_transpose(x, y, false, &mut sum);
        assert_eq!(sum, [0.0; 6]);
    }
}
