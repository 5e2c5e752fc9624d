//! Products of matrices, directly from and to their elements: on one thread, or by tiles that all threads share.

#![allow(unsafe_code, reason = "gemm takes pointers")]

use std::ops::Range;

use burn_flex::FlexTensor;

use crate::exec::engine::{Memory, Value};
use crate::exec::lots;
use crate::exec::vector::{MatrixView, by_transpose};

/// The matrix of float32 in this process's memory that a value is; `None` if it is none, is empty, or lies elsewhere or
/// backwards.
pub(super) fn matrix(value: &Value, is_transposed: bool) -> Option<MatrixView<'_>> {
    let &[rows, columns] = value.shape().dims() else { return None };
    let matrix = match value {
        Value::Host(tensor) => {
            Some(MatrixView { elements: tensor.slice().ok()?, dims: [rows, columns], steps: [columns, 1] })
        }
        Value::Device(tensor) => match tensor.memory.as_ref() {
            Some(Memory::Flex(raw)) => matrix_of_flex(raw),
            _ => None,
        },
    };
    let mut matrix = matrix.filter(lies_within)?;
    if is_transposed {
        matrix.dims.reverse();
        matrix.steps.reverse();
    }
    Some(matrix)
}

/// The matrix of float32 that a tensor is; `None` if it is none, is empty, or lies backwards.
pub(super) fn matrix_of_flex(raw: &FlexTensor) -> Option<MatrixView<'_>> {
    let (layout, is_float) = (raw.layout(), raw.dtype() == burn_backend::DType::F32);
    let (&[rows, columns], &[row, column]) = (layout.shape().as_slice(), layout.strides()) else { return None };
    let steps = [usize::try_from(row).ok()?, usize::try_from(column).ok()?];
    let elements = is_float.then(|| raw.storage::<f32>())?.get(layout.start_offset()..)?;
    Some(MatrixView { elements, dims: [rows, columns], steps }).filter(lies_within)
}

/// Whether it has elements, and all of them are there.
fn lies_within(matrix: &MatrixView) -> bool {
    let last = |i: usize| matrix.dims[i].checked_sub(1)?.checked_mul(matrix.steps[i]);
    let last = || last(0)?.checked_add(last(1)?);
    last().is_some_and(|last| last < matrix.elements.len())
}

/// Adds the product of `x` and `y` to `to`, or writes it over that. `y` is put in order first if it is a transpose and the
/// product is `in_order`.
///
/// # Panics
/// If a matrix is not within its elements, or the sizes do not fit.
pub(super) fn multiply(x: MatrixView, y: MatrixView, in_order: bool, adds: bool, to: &mut [f32]) {
    assert!(lies_within(&x) && lies_within(&y), "the matrices have elements");
    let [k, n] = y.dims;
    let m = x.dims[0];
    assert!(x.dims[1] == k && to.len() == m * n, "the sizes were compared");
    if in_order {
        return by_transpose(x, y, adds, to);
    }
    // SAFETY: the matrices lie within their elements; `to` is borrowed exclusively, and of `m` by `n` elements.
    unsafe { multiply_to(&x, &y, adds, to.as_mut_ptr(), n) };
}

/// Adds the product of `x` and `y` to what begins at `to`, or writes it over that; its rows lie `down` floats apart.
///
/// # Safety
/// The matrices lie within their elements, and are of fitting sizes; nothing else uses what the product is written to.
unsafe fn multiply_to(x: &MatrixView, y: &MatrixView, adds: bool, to: *mut f32, down: usize) {
    let ([m, k], n) = (x.dims, y.dims[1]);
    let [[x_row, x_column], [y_row, y_column]] = [x.steps, y.steps].map(|steps| steps.map(|step| step as isize));
    let (left, right, alone) = (x.elements.as_ptr(), y.elements.as_ptr(), gemm::Parallelism::None);
    let (down, old) = (down as isize, if adds { 1.0 } else { 0.0 });
    // SAFETY: the last element of each factor is there, and so are those before it; the caller vouches for the product's places.
    unsafe {
        gemm::gemm(
            m, n, k, to, 1, down, adds, left, x_column, x_row, right, y_column, y_row, old, 1.0, false, false, false,
            alone,
        );
    }
}

/// So many multiplications, 0.13 milliseconds on one thread, are worth the way to another. Five million, one after the other in a
/// step that has nothing else for that thread, take a fifth longer with it.
const SHARED: usize = 7 << 20;

/// Tiles for each thread, so that one that begins late leaves others to the rest.
const TILES: usize = 2;

/// The product of two matrices by tiles, which all threads share; `None` if it is small, or a matrix is a vector.
///
/// gemm's own threads wait for each other to pack a matrix, and again at each part of what is summed up, and each wait takes as
/// long as the last of them. A tile is computed without the others.
///
/// # Panics
/// If a matrix is not within its elements, or the sizes do not fit.
pub(super) fn spread(x: MatrixView, y: MatrixView) -> Option<Vec<f32>> {
    let ([m, k], n) = (x.dims, y.dims[1]);
    let is_large = m.saturating_mul(n).saturating_mul(k) >= SHARED;
    (is_large && m.min(n) > 1 && lots::threads() > 1).then(|| by_tiles(x, y, TILES * lots::threads()))
}

fn by_tiles(x: MatrixView, y: MatrixView, wanted: usize) -> Vec<f32> {
    assert!(lies_within(&x) && lies_within(&y), "the matrices have elements");
    let ([m, k], n) = (x.dims, y.dims[1]);
    assert!(y.dims[0] == k, "the sizes were compared");
    let [down, across] = tiles([m, k, n], wanted);
    let mut product = Vec::<f32>::with_capacity(m * n);
    let to = Start(product.as_mut_ptr());
    let tiles = parts(m, down, TILE_ROWS).flat_map(|rows| {
        let across = parts(n, across, TILE_COLUMNS);
        across.map(move |columns| (rows.clone(), columns))
    });
    lots::in_lots(tiles, |(rows, columns)| {
        let x = x.part([rows.start, 0], [rows.len(), k]);
        let y = y.part([0, columns.start], [k, columns.len()]);
        // SAFETY: parts lie within their matrices; a tile begins within the product's memory, and no other has its places.
        unsafe { multiply_to(&x, &y, false, to.at(rows.start * n + columns.start), n) };
    });
    // SAFETY: there is memory for so many, and the tiles have filled all of it.
    unsafe { product.set_len(m * n) };
    product
}

/// Where a product begins that threads fill.
struct Start(*mut f32);

// SAFETY: each thread writes to places of its own.
unsafe impl Sync for Start {}

impl Start {
    /// # Safety
    /// So many floats have memory there.
    unsafe fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: the caller vouches for it.
        unsafe { self.0.add(offset) }
    }
}

/// Rows and columns of gemm's kernels with the widest registers; those of the others divide them.
const TILE_ROWS: usize = 8;
const TILE_COLUMNS: usize = 48;

/// Into how many tiles a product of `m` rows, with `k` products in each sum, and `n` columns is cut, down and across: as many as
/// are wanted if they do not become too small, of which each packs its columns anew.
fn tiles([m, k, n]: [usize; 3], wanted: usize) -> [usize; 2] {
    let least = [2 * TILE_ROWS, TILE_COLUMNS];
    let mut count = [1, 1];
    while count[0] * count[1] < wanted {
        let is_high = count == [1, 1] || m / count[0] >= n / count[1];
        let further = |side: usize| {
            let mut count = count;
            count[side] *= 2;
            let size = [m / count[0], n / count[1]];
            // gemm has another order of adding up for few rows by few columns, and cuts sums at other places if there are up to
            // 64 of both. No bit of the answer is to depend on how many threads share it.
            let is_usual = size[0] * size[1] > 2 * UNPACKED;
            let is_cut_alike = k <= 512 || size[0] > 64 + TILE_ROWS || size[1] > 64 + TILE_COLUMNS;
            (size[side] >= least[side] && is_usual && is_cut_alike).then_some(count)
        };
        let Some(next) = further(usize::from(!is_high)).or_else(|| further(usize::from(is_high))) else { break };
        count = next;
    }
    count
}

/// The parts of rows or columns, of about the same size and, but for the last, a multiple of `unit`.
fn parts(size: usize, count: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let units = size.div_ceil(unit);
    let begin = move |part: usize| (part * units / count * unit).min(size);
    (0..count).map(move |part| begin(part)..begin(part + 1)).filter(|part| !part.is_empty())
}

/// Whether the product of so many rows and `y`, a transpose, takes less time if `y` is put in order. gemm reads it element by
/// element, each from another row, which takes up to four times as long. It has other ways for few rows or few columns, and
/// beside very many rows it does not matter.
pub(super) fn is_better_in_order(rows: usize, y: &MatrixView) -> bool {
    let [step, apart] = y.steps;
    step == 1 && apart >= 16 && (3..=1024).contains(&rows) && rows * y.dims[1] > UNPACKED
}

/// Up to this many elements of a product of rows by rows are computed without packing.
pub(super) const UNPACKED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -0.5 and 0.5.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed) % 1013) as f32 / 1013.0 - 0.5).collect()
    }

    #[test]
    fn a_product_by_tiles_is_that_of_one_thread_bit_for_bit() {
        let sizes = [[256, 256, 256], [250, 71, 245], [64, 600, 156], [200, 1024, 60], [1000, 40, 9], [33, 513, 97]];
        for [m, k, n] in sizes {
            let (left, right) = (numbers(m * k, 3), numbers(k * n, 5));
            for [x_steps, y_steps] in [[[k, 1], [n, 1]], [[1, m], [n, 1]], [[k, 1], [1, k]]] {
                let x = MatrixView { elements: &left, dims: [m, k], steps: x_steps };
                let y = MatrixView { elements: &right, dims: [k, n], steps: y_steps };
                let mut want = vec![0f32; m * n];
                multiply(x, y, false, false, &mut want);
                for wanted in [1, 2, 3, 4, 8, 12, 64] {
                    let got = by_tiles(x, y, wanted);
                    let differ = got.iter().zip(&want).filter(|(got, want)| got.to_bits() != want.to_bits()).count();
                    assert_eq!(
                        (got.len(), differ),
                        (want.len(), 0),
                        "{m} by {k} by {n}, {x_steps:?}, {y_steps:?}, {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn tiles_are_as_many_as_wanted_unless_that_makes_them_too_small() {
        let cases = [
            ([512, 512, 512], 4, [2, 2]),
            ([128, 784, 1024], 4, [2, 2]),
            ([64, 156, 512], 4, [2, 2]),
            ([2000, 500, 300], 4, [4, 1]),
            ([1024, 1024, 1024], 32, [8, 4]),
            // Whose parts would be summed in another order.
            ([100, 1024, 60], 4, [1, 1]),
            ([20, 1024, 100], 4, [1, 1]),
            // Of few rows, or few columns.
            ([17, 512, 4096], 8, [1, 8]),
            ([4096, 512, 20], 8, [8, 1]),
            ([17, 512, 90], 8, [1, 1]),
        ];
        for (sizes, wanted, count) in cases {
            assert_eq!(tiles(sizes, wanted), count, "{sizes:?}, {wanted}");
        }
        let parts: Vec<_> = parts(100, 3, 8).collect();
        assert_eq!(parts, [0..32, 32..64, 64..100]);
    }
}
