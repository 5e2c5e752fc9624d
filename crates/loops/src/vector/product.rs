//! Products of a matrix and the transpose of another, as in the gradient of a layer's input, and batches of small products.
//!
//! A product reads its right matrix row by row, and the rows of a transpose are columns. They are packed a panel at a time,
//! which stays in the processor's cache for all rows of the left matrix; the rest is products of small tiles (`tile`). A
//! right matrix whose rows are contiguous is read in place if the product is small.

use super::cut::summed;
use super::lanes::Width;
use super::tile::{ColumnRun, Left, Product, Right, most_columns, most_rows, multiply};
use super::transpose::transpose;
use crate::chunks::threads;

/// A strided matrix within a slice.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    /// From its first element on.
    pub elements: &'a [f32],
    /// Rows and columns.
    pub dims: [usize; 2],
    /// The strides of rows and of columns.
    pub steps: [usize; 2],
}

impl MatrixView<'_> {
    /// Whether it has elements, all of them within its slice.
    pub fn lies_within(&self) -> bool {
        let last = |i: usize| self.dims[i].checked_sub(1)?.checked_mul(self.steps[i]);
        let last = || last(0)?.checked_add(last(1)?);
        last().is_some_and(|last| last < self.elements.len())
    }

    /// A block of it: the first row and column, and the number of each.
    ///
    /// # Panics
    /// If they are outside of the matrix.
    #[inline]
    pub fn part(&self, first: [usize; 2], count: [usize; 2]) -> Self {
        let has = |i: usize| first[i] <= self.dims[i] && count[i] <= self.dims[i] - first[i];
        assert!(has(0) && has(1), "a part lies within its matrix");
        let at = first[0] * self.steps[0] + first[1] * self.steps[1];
        MatrixView { elements: self.elements.get(at..).unwrap_or_default(), dims: count, ..*self }
    }
}

/// Most rows of a panel: its size is bounded, so that it stays in the nearest caches.
const MOST_ROWS: usize = 1024;

/// Adds the product of `x` and `y` to `to`, or overwrites `to` with it. Every sum is added in an order that follows from the
/// sizes and the processor alone.
///
/// # Panics
/// If the columns of `y` are not contiguous, or the sizes of the matrices do not fit.
#[inline]
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
    assert!(x.dims[0].checked_mul(columns) == Some(to.len()), "there is a place for every sum");
    let mut panel = vec![0f32; inner.min(MOST_ROWS) * most_columns(width)];
    for above in (0..inner).step_by(MOST_ROWS) {
        let deep = MOST_ROWS.min(inner - above);
        let run = [ColumnRun { at: above * x.steps[1], len: deep, right: 0 }];
        for column in (0..columns).step_by(most_columns(width)) {
            let wide = most_columns(width).min(columns - column);
            let down = wide.next_multiple_of(width.lanes());
            transpose(&y.elements[column * y.steps[1] + above..], y.steps[1], &mut panel, down, [deep, wide]);
            let to = Product {
                to: &mut to[column..],
                down: columns,
                rows: x.dims[0],
                columns: wide,
                is_added: adds || above > 0,
            };
            down_the_rows(width, x, &run, Right { from: &panel, down }, to);
        }
    }
}

/// The product of all rows of `x` and a few columns, tile by tile.
fn down_the_rows(width: Width, x: MatrixView, run: &[ColumnRun], right: Right, product: Product) {
    let Product { to, down, rows, columns, is_added } = product;
    // Tiles of about the same height keep the processor busier than full ones and a remainder.
    let height = rows.div_ceil(rows.div_ceil(most_rows(width)));
    for row in (0..rows).step_by(height) {
        let left = Left { from: &x.elements[row * x.steps[0]..], runs: run, along: x.steps[1], down: x.steps[0] };
        let rows = height.min(rows - row);
        multiply(width, left, right, Product { to: &mut to[row * down..], down, rows, columns, is_added });
    }
}

/// Whether a product of `m` rows, with `k` products in each sum, and `n` columns is small: a larger one is worth packing, a
/// deeper one panels, and one of fewer columns would fill no register.
#[inline]
pub fn is_small_product([m, k, n]: [usize; 3]) -> bool {
    let work = m.saturating_mul(k).saturating_mul(n);
    (1..=1 << 20).contains(&work) && k <= MOST_ROWS && n >= 8
}

/// Fewest multiplications of a chunk of small products, some microseconds of one thread, and most between two checks for
/// cancellation.
const CHUNK: std::ops::RangeInclusive<usize> = 1 << 18..=1 << 24;
/// Chunks for each thread, so that no thread waits long for the other threads.
const CHUNKS: usize = 8;

/// `count` small products, concatenated: `matrices` returns the two factors of each. All have the sizes of the first. Every
/// sum is added in the order of its terms.
///
/// # Panics
/// If the products are not small, or a right matrix is contiguous neither within its rows nor within its columns.
pub fn small_products<'a>(count: usize, matrices: impl Fn(usize) -> [MatrixView<'a>; 2] + Sync) -> Vec<f32> {
    let [x, y] = matrices(0);
    assert!(is_small_product([x.dims[0], x.dims[1], y.dims[1]]), "the products are small");
    let product = x.dims[0] * y.dims[1];
    let work = product * x.dims[1];
    let chunk =
        count.div_ceil(CHUNKS * threads()).saturating_mul(work).clamp(*CHUNK.start(), *CHUNK.end()).div_ceil(work);
    summed(count * product, std::iter::repeat(chunk * product), |from, products| {
        for (i, to) in products.chunks_mut(product).enumerate() {
            let [x, y] = matrices(from / product + i);
            match y.steps {
                [_, 1] => by_rows(Width::widest(), x, y, to),
                _ => by_transpose(x, y, false, to),
            }
        }
    })
}

/// Writes the product of `x` and `y`, whose rows are contiguous, to `to`.
fn by_rows(width: Width, x: MatrixView, y: MatrixView, to: &mut [f32]) {
    let [inner, columns] = y.dims;
    assert!(y.steps[1] == 1 && x.dims[1] == inner, "the right matrix is of rows, and of as many");
    assert!(x.dims[0] * columns == to.len() && inner > 0, "there is a place for every sum");
    let run = [ColumnRun { at: 0, len: inner, right: 0 }];
    let mut panel = Vec::new();
    for column in (0..columns).step_by(most_columns(width)) {
        let wide = most_columns(width).min(columns - column);
        let down = wide.next_multiple_of(width.lanes());
        let right = match wide == down {
            true => Right { from: &y.elements[column..], down: y.steps[0] },
            // The last columns, padded with zeros to whole registers.
            false => {
                panel.resize(inner * down, 0.0);
                for (row, to) in panel.chunks_mut(down).enumerate() {
                    to[..wide].copy_from_slice(&y.elements[row * y.steps[0] + column..][..wide]);
                }
                Right { from: &panel, down }
            }
        };
        let to = Product { to: &mut to[column..], down: columns, rows: x.dims[0], columns: wide, is_added: false };
        down_the_rows(width, x, &run, right, to);
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
    fn small_products_are_those_of_a_loop() {
        let sizes = [[1, 1, 1, 8], [3, 5, 2, 9], [40, 33, 20, 32], [9, 64, 32, 64], [5, 17, 70, 41], [70, 16, 64, 16]];
        for [count, m, k, n] in sizes {
            for (x_steps, y_steps) in [([k, 1], [n, 1]), ([1, m], [n, 1]), ([k, 1], [1, k])] {
                let (left, right) = (numbers(count * m * k, 1), numbers(count * k * n, 5));
                let matrices = |i: usize| {
                    let x = MatrixView { elements: &left[i * m * k..][..m * k], dims: [m, k], steps: x_steps };
                    [x, MatrixView { elements: &right[i * k * n..][..k * n], dims: [k, n], steps: y_steps }]
                };
                let got = small_products(count, matrices);
                let of = |at: usize| {
                    let (i, row, column) = (at / (m * n), at / n % m, at % n);
                    let [x, y] = matrices(i);
                    let x = |q: usize| x.elements[row * x_steps[0] + q * x_steps[1]];
                    (0..k).map(|q| x(q) * y.elements[q * y_steps[0] + column * y_steps[1]]).sum::<f32>()
                };
                let wrong = (0..count * m * n).filter(|&at| got[at] != of(at)).count();
                assert_eq!(
                    (got.len(), wrong),
                    (count * m * n, 0),
                    "{count} of {m} by {k} by {n}, {x_steps:?}, {y_steps:?}"
                );
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
