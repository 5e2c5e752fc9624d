//! Products of matrices, read and written in place: on one thread, by tiles that all threads share, or many small ones.

#![allow(unsafe_code, reason = "gemm takes pointers")]

use std::ops::Range;

use burn_backend::TensorData;
use burn_flex::FlexTensor;
use meshtf_loops::chunks;
use meshtf_loops::vector::{MatrixView, by_transpose, is_small_product, small_products};
use smallvec::SmallVec;

use crate::{Memory, Value};

/// A value as a matrix of float32 in this process's memory; `None` if it is not one, is empty, is stored elsewhere or has
/// negative strides.
pub(super) fn matrix(value: &Value, is_transposed: bool) -> Option<MatrixView<'_>> {
    let &[rows, columns] = value.shape().dims() else { return None };
    let mut matrix = match value {
        Value::Host(tensor) => {
            let matrix = MatrixView { elements: tensor.slice().ok()?, dims: [rows, columns], steps: [columns, 1] };
            matrix.lies_within().then_some(matrix)
        }
        Value::Device(tensor) => match tensor.memory.as_ref() {
            Some(Memory::Flex(raw)) => matrix_of_flex(raw),
            _ => None,
        },
    }?;
    if is_transposed {
        matrix.dims.reverse();
        matrix.steps.reverse();
    }
    Some(matrix)
}

/// A tensor as a matrix of float32; `None` if it is not one, is empty, or has negative strides.
pub(super) fn matrix_of_flex(raw: &FlexTensor) -> Option<MatrixView<'_>> {
    let matrices = Matrices::of(raw)?;
    matrices.batch.is_empty().then(|| matrices.from(matrices.elements))
}

/// The products of the small matrices in two tensors of one rank, 3 or more; their other dimensions are broadcast. `None` if
/// they are not small, are not of float32, or are contiguous neither by rows nor by columns.
pub(super) fn products_of_flex(x: &FlexTensor, y: &FlexTensor) -> Option<FlexTensor> {
    let (x, y) = (Matrices::of(x)?, Matrices::of(y)?);
    let ([m, k], n) = (x.dims, y.dims[1]);
    let fits = k == y.dims[0] && x.batch.len() == y.batch.len() && !x.batch.is_empty();
    if !fits || !is_small_product([m, k, n]) || !y.steps.contains(&1) {
        return None;
    }
    let mut dims: Vec<usize> = x.batch.iter().zip(&y.batch).map(|(x, y)| x[0].max(y[0])).collect();
    let products = small_products(dims.iter().product(), |i| [x.of_number(i, &dims), y.of_number(i, &dims)]);
    dims.extend([m, n]);
    Some(FlexTensor::from_data(TensorData::new(products, dims)))
}

/// The matrices of float32 in a tensor.
struct Matrices<'a> {
    elements: &'a [f32],
    /// For each dimension before the last two: its size and its stride.
    batch: SmallVec<[[usize; 2]; 4]>,
    /// As those of [`MatrixView`].
    dims: [usize; 2],
    steps: [usize; 2],
}

impl<'a> Matrices<'a> {
    /// `None` if the tensor is of rank 1 or less or of another dtype, is empty, or has negative strides.
    fn of(raw: &'a FlexTensor) -> Option<Matrices<'a>> {
        let layout = raw.layout();
        if layout.num_dims() < 2 || raw.dtype() != burn_backend::DType::F32 {
            return None;
        }
        let steps: Option<SmallVec<[usize; 8]>> =
            layout.strides().iter().map(|&step| usize::try_from(step).ok()).collect();
        let mut all = layout.shape().as_slice().iter().zip(steps?).map(|(&size, step)| [size, step]);
        let batch = all.by_ref().take(layout.num_dims() - 2).collect();
        let ([rows, down], [columns, along]) = (all.next()?, all.next()?);
        let elements = raw.storage::<f32>().get(layout.start_offset()..)?;
        let matrices = Matrices { elements, batch, dims: [rows, columns], steps: [down, along] };
        let last = matrices
            .batch
            .iter()
            .try_fold(0usize, |last, &[size, step]| last.checked_add(size.checked_sub(1)?.checked_mul(step)?))?;
        matrices.from(elements.get(last..)?).lies_within().then_some(matrices)
    }

    fn from(&self, elements: &'a [f32]) -> MatrixView<'a> {
        MatrixView { elements, dims: self.dims, steps: self.steps }
    }

    /// The matrix with index `number` if they are broadcast to these dimensions.
    fn of_number(&self, mut number: usize, dims: &[usize]) -> MatrixView<'a> {
        let mut at = 0;
        for (&size, &[own, step]) in dims.iter().zip(&self.batch).rev() {
            at += if own > 1 { number % size * step } else { 0 };
            number /= size;
        }
        self.from(&self.elements[at..])
    }
}

/// Adds the product of `x` and `y` to `to`, or overwrites `to` with it. `y` is put in order first if it is a transpose and
/// the product is `in_order`.
///
/// # Panics
/// If a matrix is not within its elements, or the sizes do not fit.
pub(super) fn multiply(x: MatrixView, y: MatrixView, in_order: bool, adds: bool, to: &mut [f32]) {
    assert!(x.lies_within() && y.lies_within(), "the matrices have elements");
    let [k, n] = y.dims;
    let m = x.dims[0];
    assert!(x.dims[1] == k && m.checked_mul(n) == Some(to.len()), "the sizes were compared");
    if in_order {
        return by_transpose(x, y, adds, to);
    }
    // SAFETY: the matrices are within their elements; `to` is borrowed exclusively, and of `m` by `n` elements.
    unsafe { multiply_to(&x, &y, adds, to.as_mut_ptr(), n) };
}

/// Adds the product of `x` and `y` to the matrix at `to`, or overwrites it; its rows are `down` floats apart.
///
/// # Safety
/// The matrices are within their elements, and are of fitting sizes. The product has memory at `to`, which has no other user,
/// and is initialised if it `adds`.
unsafe fn multiply_to(x: &MatrixView, y: &MatrixView, adds: bool, to: *mut f32, down: usize) {
    let ([m, k], n) = (x.dims, y.dims[1]);
    let [[x_row, x_column], [y_row, y_column]] = [x.steps, y.steps].map(|steps| steps.map(|step| step as isize));
    let (left, right, alone) = (x.elements.as_ptr(), y.elements.as_ptr(), gemm::Parallelism::None);
    let (down, old) = (down as isize, if adds { 1.0 } else { 0.0 });
    // SAFETY: the last element of each factor exists, and so do those before it; the caller guarantees the product's memory.
    unsafe {
        gemm::gemm(
            m, n, k, to, 1, down, adds, left, x_column, x_row, right, y_column, y_row, old, 1.0, false, false, false,
            alone,
        );
    }
}

/// The number of multiplications, 0.13 milliseconds on one thread, from which a product is worth sharing with another thread,
/// as in burn-flex. Products of five million, one after the other in a step that has no other work for that thread, take a
/// fifth longer with it.
pub(super) const SHARED: usize = 192 * 192 * 192;

/// Tiles for each thread, so that a thread that begins late leaves tiles to the other threads.
const TILES: usize = 2;

/// The product of two matrices by tiles, which all threads share; `None` if it is small, a matrix is a vector, or there is no
/// tile for each thread.
///
/// gemm's threads wait for each other to pack a matrix, and again at each part of the inner dimension, and each wait takes as
/// long as the slowest of them. A tile is computed independently of the other tiles.
///
/// # Panics
/// If a matrix is not within its elements, or the sizes do not fit.
pub(super) fn spread(x: MatrixView, y: MatrixView) -> Option<Vec<f32>> {
    let ([m, k], n) = (x.dims, y.dims[1]);
    let (is_large, threads) = (m.saturating_mul(n).saturating_mul(k) >= SHARED, chunks::threads());
    if !is_large || m.min(n) == 1 || threads == 1 {
        return None;
    }
    let [down, across] = tiles([m, k, n], TILES * threads);
    (down * across >= threads).then(|| by_tiles(x, y, [down, across]))
}

/// The product of two matrices by a number of tiles, down and across.
fn by_tiles(x: MatrixView, y: MatrixView, [down, across]: [usize; 2]) -> Vec<f32> {
    assert!(x.lies_within() && y.lies_within(), "the matrices have elements");
    let ([m, k], n) = (x.dims, y.dims[1]);
    assert!(y.dims[0] == k, "the sizes were compared");
    let len = m.checked_mul(n).expect("the product's size was checked");
    let mut product = Vec::<f32>::with_capacity(len);
    let to = Start(product.as_mut_ptr());
    let tiles = parts(m, down, TILE_ROWS).flat_map(|rows| {
        let across = parts(n, across, TILE_COLUMNS);
        across.map(move |columns| (rows.clone(), columns))
    });
    chunks::in_chunks(tiles, |(rows, columns)| {
        let x = x.part([rows.start, 0], [rows.len(), k]);
        let y = y.part([0, columns.start], [k, columns.len()]);
        // SAFETY: parts are within their matrices; a tile begins within the product's memory, and no other tile has its
        // elements.
        unsafe { multiply_to(&x, &y, false, to.at(rows.start * n + columns.start), n) };
    });
    // SAFETY: there is memory for `len` elements, and the tiles have filled all of it.
    unsafe { product.set_len(len) };
    product
}

/// The start of a product that several threads fill.
struct Start(*mut f32);

// SAFETY: each thread writes to separate elements.
unsafe impl Sync for Start {}

impl Start {
    /// # Safety
    /// `offset` floats from the start are within the allocation.
    unsafe fn at(&self, offset: usize) -> *mut f32 {
        // SAFETY: the caller guarantees it.
        unsafe { self.0.add(offset) }
    }
}

/// Multiples of the rows and columns that gemm's kernels compute at once: 6 by 64 with the widest registers, 6 or 4 by 16.
const TILE_ROWS: usize = 12;
const TILE_COLUMNS: usize = 64;

/// The number of tiles into which a product of `m` rows, with `k` products in each sum, and `n` columns is cut, down and
/// across: as many as `wanted`, if they do not become too small. The first cut prefers the rows, which costs less to pack;
/// each further cut prefers the longer side.
fn tiles([m, k, n]: [usize; 3], wanted: usize) -> [usize; 2] {
    let least = [2 * TILE_ROWS, TILE_COLUMNS];
    let mut count = [1, 1];
    while count[0] * count[1] < wanted {
        let halved = |side: usize| {
            let mut count = count;
            count[side] *= 2;
            let size = [m / count[0], n / count[1]];
            // A part may be smaller than that by almost a unit. gemm has another order of summation for few rows by few
            // columns, and cuts sums at other positions if there are up to 64 of both. No bit of the result may depend on the
            // number of threads that share it.
            let is_usual = size[0] * size[1] > 4 * UNPACKED;
            let is_cut_alike = k <= 512 || size[0] > 64 + TILE_ROWS || size[1] > 64 + TILE_COLUMNS;
            (size[side] >= least[side] && is_usual && is_cut_alike).then_some(count)
        };
        let sides = if count == [1, 1] || m / count[0] >= n / count[1] { [0, 1] } else { [1, 0] };
        let Some(next) = sides.into_iter().find_map(halved) else { break };
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

/// Whether the product of `rows` rows and `y`, a transpose, takes less time if `y` is put in order. gemm reads it element by
/// element, each from another row, which takes up to four times as long. It has other methods for few rows or few columns,
/// and for very many rows the difference is negligible.
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
        let sizes = [[256, 256, 256], [250, 71, 245], [64, 600, 156], [200, 1024, 60], [1000, 40, 9], [100, 2100, 150]];
        for [m, k, n] in sizes {
            let (left, right) = (numbers(m * k, 3), numbers(k * n, 5));
            for [x_steps, y_steps] in [[[k, 1], [n, 1]], [[1, m], [n, 1]], [[k, 1], [1, k]]] {
                let x = MatrixView { elements: &left, dims: [m, k], steps: x_steps };
                let y = MatrixView { elements: &right, dims: [k, n], steps: y_steps };
                let mut want = vec![0f32; m * n];
                multiply(x, y, false, false, &mut want);
                for wanted in [1, 2, 3, 4, 8, 12, 64] {
                    let got = by_tiles(x, y, tiles([m, k, n], wanted));
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
    fn small_products_of_views_are_broadcast() {
        let tensor = |dims: &[usize], seed| {
            let count = dims.iter().product();
            let whole = |i: usize| ((i * 7919 + seed) % 17) as f32 - 8.0;
            FlexTensor::from_data(TensorData::new((0..count).map(whole).collect::<Vec<f32>>(), dims))
        };
        // Two batches of three, of 5 by 4 and 4 by 9: the left ones are the same for all batches, the right ones for all three.
        let x = tensor(&[1, 3, 4, 5], 1).transpose(2, 3);
        for (y, steps) in [(tensor(&[2, 1, 4, 9], 5), [9, 1]), (tensor(&[2, 1, 9, 4], 5).transpose(2, 3), [1, 4])] {
            let got = products_of_flex(&x, &y).expect("small products");
            assert_eq!(got.layout().shape().as_slice(), [2, 3, 5, 9]);
            let (left, right) = (x.storage::<f32>(), y.storage::<f32>());
            for (at, &got) in got.storage::<f32>().iter().enumerate() {
                let [i, j, row, column] = [at / 135, at / 45 % 3, at / 9 % 5, at % 9];
                let term = |q: usize| left[j * 20 + q * 5 + row] * right[i * 36 + q * steps[0] + column * steps[1]];
                assert_eq!(got, (0..4).map(term).sum::<f32>(), "{i}, {j}, {row}, {column}, {steps:?}");
            }
        }
        let none = [
            (tensor(&[3, 5, 4], 1), tensor(&[3, 4, 7], 1)),
            (tensor(&[5, 4], 1), tensor(&[4, 9], 1)),
            (tensor(&[2, 128, 128], 1), tensor(&[2, 128, 128], 1)),
            (tensor(&[2, 4, 0], 1), tensor(&[2, 0, 9], 1)),
        ];
        assert!(none.iter().all(|(x, y)| products_of_flex(x, y).is_none()));
        // A matrix that is a part of a larger one, with the strides of that.
        let matrix = tensor(&[6, 10], 1).narrow(0, 2, 3).transpose(0, 1);
        let view = matrix_of_flex(&matrix).expect("a matrix");
        assert_eq!((view.elements[1], view.dims, view.steps), (((21 * 7919 + 1) % 17) as f32 - 8.0, [10, 3], [1, 10]));
    }

    #[test]
    fn tiles_are_as_many_as_wanted_unless_that_makes_them_too_small() {
        let cases = [
            ([512, 512, 512], 4, [2, 2]),
            ([128, 784, 1024], 4, [2, 2]),
            ([64, 156, 512], 4, [2, 2]),
            ([2000, 500, 300], 4, [4, 1]),
            ([1024, 1024, 1024], 32, [8, 4]),
            // A product whose parts would be summed in another order.
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
