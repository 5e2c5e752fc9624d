//! Matrix products. Transposition is a view; a matrix is copied for it only if that makes the product faster.

use meshtf_kernels::{KernelNode, call};
use meshtf_loops::vector::{MatrixView, ONE_ROW_CHUNKS, Panels, one_row};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape, Tensor, constant};
use smallvec::SmallVec;

use super::array::{Array, Site, done};
use super::elementwise::arrays;
use super::gemm::{UNPACKED, is_better_in_order, matrix, multiply};
use super::kept::{Kept, Source};
use super::memory::Backing;
use super::{Body, blocks, dense, fits, products};
use crate::{EngineOutcome, Value, Values};

/// Most multiplications of a product that this module computes instead of the backend.
pub(super) const MOST_ALONE: usize = 1 << 18;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let (transpose_left, transpose_right, batches) = match node.op {
        "MatMul" => (node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?, Batches::None),
        "BatchMatMul" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Same),
        "BatchMatMulV2" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Broadcast),
        _ => return Ok(None),
    };
    let mut weights = Kept::new(B::IN_PLACE && node.is_constant(1));
    Ok(Some(Box::new(move |site, inputs| {
        let shape = product(inputs[0].shape(), transpose_left, inputs[1].shape(), transpose_right, batches);
        let Some(shape) = shape.filter(|shape| fits::<B>(shape, inputs[0].dtype())) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        if !transpose_left
            && let [x, y] = inputs.as_slice()
            && let Some(product) = product_with(&mut weights, x, y, transpose_right)?
        {
            return dense::done(&shape, product);
        }
        if B::IN_PLACE
            && !transpose_left
            && let [x, y] = inputs.as_slice()
            && y.len() >= LEAST_OF_ROW
            && let Some(matrix) = matrix(y, transpose_right)
            && let Some(product) = product_of_row(x, matrix)?
        {
            return dense::done(&shape, product);
        }
        if !B::REMOTE
            && let [x @ Value::Host(_), y @ Value::Host(_)] = inputs.as_slice()
            && let Some(answer) = small_product([x, y], [transpose_left, transpose_right], &shape)
        {
            return Ok(EngineOutcome::Done(Values::from_iter([Value::Host(answer)])));
        }
        if B::IN_PLACE
            && let [x, y] = inputs.as_slice()
            && let Some(answer) = products::faster_here([x, y], [transpose_left, transpose_right])?
        {
            return Ok(EngineOutcome::Done(Values::from_iter([answer])));
        }
        let [x, y] = arrays(site, inputs)?;
        let rank = shape.rank();
        let (x, y) = (transposed(x.lifted(rank)?, transpose_left), transposed(y.lifted(rank)?, transpose_right));
        done(product_of(site, x, y, shape)?)
    })))
}

/// Fewest elements of weights that are kept in panels; for fewer, the step from input to output takes longer than the product.
const LEAST_WEIGHTS: usize = 1 << 12;

/// Fewest elements of another matrix that threads share for one row: 4 MiB.
const LEAST_OF_ROW: usize = 1 << 20;

/// The product with weights that are a constant matrix: in panels that are kept, if there is memory for them. One row
/// reads the matrix from its place, once, as fast as its panels, so that weights which never meet more are not in memory twice.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for the product.
fn product_with(
    weights: &mut Kept<Panels<'static>>,
    x: &Value,
    y: &Value,
    is_transposed: bool,
) -> Result<Option<Vec<f32>>> {
    if y.len() < LEAST_WEIGHTS {
        return Ok(None);
    }
    if let Value::Host(tensor) = y
        && constant::is_kept(tensor)
        && let Some(product) = product_alone(weights, x, tensor, is_transposed)?
    {
        return Ok(Some(product));
    }
    let Some(matrix) = matrix(y, is_transposed) else { return Ok(None) };
    if weights.is_constant()
        && let Some(product) = product_of_row(x, matrix)?
    {
        return Ok(Some(product));
    }
    let ([inner, columns], [down, along]) = (matrix.dims, matrix.steps);
    let source = Source::of(matrix.elements, [inner, columns, down, along]);
    let make = || Some(Panels::packed(matrix));
    let Some(panels) = weights.form(y, Some(source), panel_bytes(matrix.dims), make) else { return Ok(None) };
    by_panels(x, panels)
}

/// The product of one row and a matrix, which is read in its place, by all threads; `None` for several rows, or if the matrix has
/// gaps.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for it.
fn product_of_row(x: &Value, matrix: MatrixView) -> Result<Option<Vec<f32>>> {
    let [inner, columns] = matrix.dims;
    if x.len() != inner {
        return Ok(None);
    }
    budget::admit(columns.saturating_mul(ONE_ROW_CHUNKS * size_of::<f32>()))?;
    let x = dense::in_order(x.clone())?;
    Ok(dense::floats(&x).and_then(|x| one_row(x, matrix)))
}

/// As [`product_with`], of several rows and a constant whose elements are in its panels alone from then on.
fn product_alone(
    weights: &mut Kept<Panels<'static>>,
    x: &Value,
    tensor: &Tensor,
    is_transposed: bool,
) -> Result<Option<Vec<f32>>> {
    let (&[rows, columns], DType::F32) = (tensor.dims(), tensor.dtype()) else { return Ok(None) };
    let (mut dims, mut steps) = ([rows, columns], [columns, 1]);
    if is_transposed {
        dims.reverse();
        steps.reverse();
    }
    let [inner, columns] = dims;
    if x.len() <= inner {
        return Ok(None);
    }
    let layout = [inner, columns, steps[0], steps[1]];
    let make = |elements: &[f32]| Some(Panels::packed(MatrixView { elements, dims, steps }));
    let Some(panels) = weights.form_alone(tensor, layout, panel_bytes(dims), make) else { return Ok(None) };
    by_panels(x, panels)
}

/// The bytes of the panels of a matrix.
fn panel_bytes([inner, columns]: [usize; 2]) -> usize {
    inner.saturating_mul(columns.next_multiple_of(LANES)).saturating_mul(size_of::<f32>())
}

/// The product with a matrix in panels; `None` if the rows are not in this process's memory.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for it.
fn by_panels(x: &Value, panels: &Panels) -> Result<Option<Vec<f32>>> {
    let x = dense::in_order(x.clone())?;
    let Some(elements) = dense::floats(&x) else { return Ok(None) };
    let inner = panels.dims()[0];
    let rows = elements.len() / inner.max(1);
    budget::admit(rows.saturating_mul(panels.dims()[1]).saturating_mul(size_of::<f32>()))?;
    Ok(Some(panels.product(MatrixView { elements, dims: [rows, inner], steps: [inner, 1] })))
}

/// The product of matrices, of the rank of its shape, whose batches are broadcast.
pub(super) fn product_of<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape) -> Result<Array<B>> {
    if let Some(raw) = B::products(&x.raw, &y.raw) {
        return Ok(Array { raw, dtype: x.dtype, shape, home: x.home });
    }
    let way = Way::of(&x, &y, &shape);
    computed(site, x, y, shape, way)
}

/// The method of a product.
///
/// flex's gemm copies the right operand into panels first. It reads one that is stored by rows line by line, but one that is
/// a transposed view element by element, each from another row; if those rows are a multiple of 1 KiB apart, they also evict
/// each other from the L1 cache. That is negligible compared with the multiplications if the left operand has many rows, and
/// most of the work if it has few.
///
/// Billions of operations per second on one thread of a 5th generation EPYC, for `m` by `k` times the transpose of `n` by
/// `k`, and in the last column the same with both operands transposed:
///
/// | m, k, n | direct | copied | swapped, copied | swapped | swapped, both |
/// |---|---|---|---|---|---|
/// | 32, 1024, 1024 | 19 | 52 | 108 | 103 | 111 |
/// | 64, 1024, 3136 | 32 | 45 | 96 | 90 | 101 |
/// | 128, 512, 512 | 62 | 94 | 105 | 92 | 110 |
/// | 64, 1000, 1000 | 86 | 75 | 110 | 111 | 113 |
/// | 512, 1024, 256 | 88 | 109 | 96 | 70 | 110 |
/// | 2048, 1024, 1024 | 99 | 102 | 88 | 85 | 95 |
/// | 64, 64, 64 | 88 | 78 | | 66 | 66 |
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// The operands as they are.
    Direct,
    /// With the right operand put in order.
    Copied,
    /// As the transpose of `yᵀ xᵀ`, for which only the small matrices are moved if `x` has few rows; `xᵀ` is put in order
    /// first if it is `copied`.
    Swapped { copied: bool },
}

// Nanoseconds on one thread of a 5th generation EPYC, as are those of `packing`.
/// To put a matrix in order, per element: 0.45 in the cache, more in memory.
const COPYING: f64 = 0.6;
/// Per multiplication, at 110 billion operations per second.
const MULTIPLYING: f64 = 0.018;
/// The least saving of a method other than the direct one, since it takes more steps and memory.
const LEAST_SAVING: f64 = 5000.0;
/// The least saving as a share of the product's time.
const LEAST_SHARE: f64 = 1.0 / 32.0;

/// The rows of a product are rounded up to a multiple of this: the floats of a register.
const LANES: usize = 16;

/// Nanoseconds to pack an element of a matrix if the next one is `step` floats away.
fn packing(step: usize) -> f64 {
    match step.trailing_zeros() {
        ..8 => 0.25,
        8 => 0.75,
        9 => 1.85,
        _ => 2.75,
    }
}

impl Way {
    /// The fastest method for this product of `x` and `y`.
    fn of<B: Backing>(x: &Array<B>, y: &Array<B>, product: &Shape) -> Way {
        let (Some(x_steps), Some([1, step]), DType::F32) = (B::steps(&x.raw), B::steps(&y.raw), x.dtype) else {
            return Way::Direct;
        };
        let Some((batch, &[m, n])) = product.dims().split_last_chunk() else { return Way::Direct };
        // The backend has functions for vectors, and for few rows by few columns.
        if m == 1 || n == 1 || m * n <= UNPACKED {
            return Way::Direct;
        }
        let (batch, k) = (call::product(batch) as f64, x.shape.dims()[x.shape.rank() - 1]);
        let elements = |array: &Array<B>| call::product(array.shape.dims()) as f64;
        let of_matrix = |rows: usize, columns: usize| batch * rows as f64 * columns as f64;
        // The time for rows that only pad registers.
        let filling = |rows: usize, others: usize| {
            MULTIPLYING * of_matrix(rows.next_multiple_of(LANES) - rows, k) * others as f64
        };
        let direct = packing(step.unsigned_abs()) * of_matrix(n, k) + filling(n, m);
        let copied = COPYING * elements(y) + filling(n, m);
        // Swapped, `x` is packed, unless it is a transposed view itself.
        let (left, copies_left) = match x_steps {
            [1, _] => (0.0, false),
            [step, 1] => {
                let (packed, copied) = (packing(step.unsigned_abs()) * of_matrix(m, k), COPYING * elements(x));
                (packed.min(copied), copied < packed)
            }
            _ => return Way::Direct,
        };
        let swapped = left + COPYING * of_matrix(m, n) + filling(m, n);
        let least_saving = LEAST_SAVING.max(LEAST_SHARE * (MULTIPLYING * of_matrix(m, n) * k as f64 + direct));
        if copied.min(swapped) + least_saving > direct {
            Way::Direct
        } else if copied < swapped {
            Way::Copied
        } else {
            Way::Swapped { copied: copies_left }
        }
    }
}

fn computed<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape, way: Way) -> Result<Array<B>> {
    match way {
        Way::Direct => as_given(site, x, y, shape),
        Way::Copied => as_given(site, x, y.in_order()?, shape),
        Way::Swapped { copied } => swapped(site, x, y, shape, copied),
    }
}

/// The product as the transpose of `yᵀ xᵀ`, put in order.
fn swapped<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape, copied: bool) -> Result<Array<B>> {
    let (left, right) = (transposed(y, true), transposed(x, true));
    let right = if copied { right.in_order()? } else { right };
    let mut dims = shape.dims().to_vec();
    let rank = dims.len();
    dims.swap(rank - 2, rank - 1);
    transposed(as_given(site, left, right, dims.into())?, true).in_order()
}

/// The product of operands in their present layout.
fn as_given<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape) -> Result<Array<B>> {
    if !B::REMOTE && multiplications(&x.shape, &shape) > 2 * MOST_AT_ONCE {
        return in_blocks(site, x, y, shape);
    }
    Ok(Array { raw: at_once::<B>(x.raw, y.raw), dtype: x.dtype, shape, home: x.home })
}

fn at_once<B: Backing>(x: B::Raw, y: B::Raw) -> B::Raw {
    B::product(&x, &y).unwrap_or_else(|| B::float_matmul(x, y))
}

/// Multiplications of a block. Between two checks for cancellation, at most twice as many are done: for float32, a tenth of a
/// second of two cores. Narrower blocks read their operands more often: in four of them, a product of 2048 by 2048 takes a
/// tenth longer.
/// by 2048 takes a tenth longer.
const MOST_AT_ONCE: usize = 1 << 32;

/// The rows and columns of a part of a matrix are multiples of this, if it is that large.
const ALIGNED: usize = 64;

/// The number of multiplications of a product of this shape whose left operand has the shape `x`.
fn multiplications(x: &Shape, product: &Shape) -> usize {
    let inner = x.dims().last().copied().unwrap_or(1);
    call::product(product.dims()).saturating_mul(inner)
}

/// The product by blocks of the result, each of which is computed at once.
fn in_blocks<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape) -> Result<Array<B>> {
    let (rank, inner) = (shape.rank(), x.shape.dims()[x.shape.rank() - 1]);
    let block = block(shape.dims(), inner);
    blocks::by_blocks(&site.device, x.dtype, shape, &block, &mut |ranges| {
        let (mut left, mut right) = (ranges.clone(), ranges.clone());
        (left[rank - 1], right[rank - 2]) = ((0, inner), (0, inner));
        Ok(at_once::<B>(blocks::part(&x, &left).raw, blocks::part(&y, &right).raw))
    })
}

/// The sizes of a product's blocks: as many of the last dimensions as [`MOST_AT_ONCE`] allows; of a matrix that is too large
/// by itself, a part about as wide as high.
fn block(dims: &[usize], inner: usize) -> SmallVec<[usize; 8]> {
    let (rows, columns) = (dims.len() - 2, dims.len() - 1);
    let elements = (MOST_AT_ONCE / inner.max(1)).max(1);
    let side = elements.isqrt();
    let side = if side > ALIGNED { side / ALIGNED * ALIGNED } else { side.max(1) };
    let mut block = SmallVec::<[usize; 8]>::from_elem(1, dims.len());
    block[rows] = dims[rows].min(side.max(elements / dims[columns]));
    block[columns] = dims[columns].min((elements / block[rows]).max(1));
    let mut left = elements / (block[rows] * block[columns]).max(1);
    let mut is_whole = block[rows] == dims[rows] && block[columns] == dims[columns];
    for axis in (0..rows).rev() {
        if !is_whole {
            break;
        }
        block[axis] = dims[axis].min(left.max(1));
        left /= block[axis];
        is_whole = block[axis] == dims[axis];
    }
    block
}

/// The form that the dimensions before the last two may have.
#[derive(Clone, Copy, PartialEq)]
enum Batches {
    None,
    Same,
    Broadcast,
}

/// The shape of the product; `None` if the operands do not match.
fn product(x: &Shape, transpose_x: bool, y: &Shape, transpose_y: bool, batches: Batches) -> Option<Shape> {
    let (x_batch, [x0, x1]) = x.dims().split_last_chunk()?;
    let (y_batch, [y0, y1]) = y.dims().split_last_chunk()?;
    let (rows, inner) = if transpose_x { (x1, x0) } else { (x0, x1) };
    let (same, columns) = if transpose_y { (y1, y0) } else { (y0, y1) };
    let fits = match batches {
        Batches::None => x_batch.is_empty() && y_batch.is_empty(),
        Batches::Same => x_batch == y_batch,
        Batches::Broadcast => true,
    };
    if inner != same || !fits {
        return None;
    }
    let batch = Shape::from(x_batch).broadcast(&Shape::from(y_batch)).ok()?;
    Some(batch.dims().iter().chain([rows, columns]).copied().collect())
}

/// The product of two float32 matrices on the host, read and written in place; `None` for another dtype, or if it is large
/// enough for the backend to spread it over threads.
fn small_product(inputs: [&Value; 2], [transpose_x, transpose_y]: [bool; 2], shape: &Shape) -> Option<Tensor> {
    let [x, y] = inputs;
    let (x, y) = (matrix(x, transpose_x)?, matrix(y, transpose_y)?);
    let &[m, n] = shape.dims() else { return None };
    if m * n * x.dims[1] > MOST_ALONE {
        return None;
    }
    let mut answer = vec![0f32; m * n];
    multiply(x, y, is_better_in_order(m, &y), false, &mut answer);
    Some(Tensor::from_vec(shape.clone(), answer))
}

pub(super) fn transposed<B: Backing>(x: Array<B>, really: bool) -> Array<B> {
    if !really {
        return x;
    }
    let rank = x.shape.rank();
    let mut axes: SmallVec<[usize; 8]> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    x.permute(&axes)
}

#[cfg(test)]
mod tests {
    use burn_backend::BoolDType;
    use burn_flex::Flex;

    use super::*;

    /// Numbers between -0.5 and 0.5.
    fn numbers(shape: &[usize], seed: usize) -> Tensor {
        let number = |i: usize| ((i * 7919 + seed) % 1013) as f32 / 1013.0 - 0.5;
        Tensor::from_vec(shape, (0..shape.iter().product()).map(number).collect())
    }

    /// Batches of the operands; rows, inner size and columns; the way if the right operand is transposed, and if both are.
    type Case<'a> = (&'a [usize], &'a [usize], [usize; 3], [Way; 2]);

    #[test]
    fn every_way_answers_as_a_loop_does() {
        let site: Site<Flex> = Site { device: Default::default(), bools: BoolDType::Native, floats: vec![DType::F32] };
        let (direct, copied) = (Way::Direct, Way::Copied);
        let (swapped, swapped_view) = (Way::Swapped { copied: true }, Way::Swapped { copied: false });
        let cases: [Case; 16] = [
            (&[], &[], [1, 1024, 40], [direct, direct]),
            (&[], &[], [16, 1024, 16], [direct, direct]),
            (&[], &[], [17, 33, 19], [direct, direct]),
            (&[], &[], [40, 256, 9], [direct, direct]),
            (&[], &[], [16, 1024, 64], [swapped, swapped_view]),
            (&[], &[], [16, 1024, 17], [swapped, swapped_view]),
            (&[], &[], [6, 512, 130], [swapped, swapped_view]),
            (&[], &[], [30, 255, 300], [swapped_view, swapped_view]),
            (&[], &[], [30, 256, 300], [swapped, swapped_view]),
            (&[], &[], [16, 300, 300], [swapped_view, swapped_view]),
            (&[], &[], [100, 1024, 17], [copied, swapped_view]),
            (&[], &[], [600, 512, 32], [copied, copied]),
            (&[], &[], [900, 256, 144], [direct, direct]),
            (&[3], &[3], [32, 512, 70], [swapped, swapped_view]),
            (&[5], &[1], [32, 512, 70], [copied, swapped_view]),
            (&[1], &[5], [32, 512, 70], [swapped, swapped_view]),
        ];
        for (x_batch, y_batch, [m, k, n], ways) in cases {
            let batches: usize = x_batch.iter().chain(y_batch).copied().max().unwrap_or(1);
            for (transpose_x, transpose_y) in [(false, false), (true, false), (false, true), (true, true)] {
                let of = |batch: &[usize], rows: usize, columns: usize, transpose: bool, seed: usize| {
                    let sizes = if transpose { [columns, rows] } else { [rows, columns] };
                    numbers(&[batch, &sizes].concat(), seed)
                };
                let (x, y) = (of(x_batch, m, k, transpose_x, 1), of(y_batch, k, n, transpose_y, 5));
                let array =
                    |tensor: &Tensor, transpose| transposed(site.array(tensor.clone().into()).unwrap(), transpose);
                let mut dims = if x_batch.is_empty() { vec![] } else { vec![batches] };
                dims.extend([m, n]);
                let (left, right, shape) = (array(&x, transpose_x), array(&y, transpose_y), Shape::from(dims));
                let way = Way::of(&left, &right, &shape);
                let wanted = if transpose_y { ways[usize::from(transpose_x)] } else { direct };
                let case = format!("{x_batch:?}, {y_batch:?}: {m} by {k} by {n}, {transpose_x}, {transpose_y}");
                assert_eq!(way, wanted, "{case}");
                let got = computed(&site, left, right, shape, way).unwrap().value().into_host().unwrap();
                let (xs, ys, got) = (x.slice().unwrap(), y.slice().unwrap(), got.slice::<f32>().unwrap());
                assert_eq!(got.len(), batches * m * n, "{case}");
                let at = |all: &[f32], batch: usize, [rows, columns]: [usize; 2], [i, j]: [usize; 2], transpose| {
                    let first = batch * rows * columns % all.len();
                    f64::from(all[first + if transpose { j * rows + i } else { i * columns + j }])
                };
                // No number of columns is a multiple of 11: this step covers every row and column of the larger products.
                for (place, &got) in got.iter().enumerate().step_by(11) {
                    let (batch, i, j) = (place / (m * n), place / n % m, place % n);
                    let terms = (0..k).map(|l| {
                        at(xs, batch, [m, k], [i, l], transpose_x) * at(ys, batch, [k, n], [l, j], transpose_y)
                    });
                    let want: f64 = terms.sum();
                    assert!((f64::from(got) - want).abs() < 1e-4, "{case}: {got} for {want} at {i}, {j} of {batch}");
                }
            }
        }
    }

    #[test]
    fn one_row_needs_no_panels_of_constant_weights() {
        let (inner, columns) = (256, 100);
        for is_transposed in [false, true] {
            let sizes = if is_transposed { [columns, inner] } else { [inner, columns] };
            let y: Value = numbers(&sizes, 5).into();
            let other = y.clone();
            let mut weights = Kept::new(true);
            // The rows of each product, and whether the weights have panels after it.
            for (rows, is_formed) in [(1, false), (2, true), (1, true)] {
                let x = numbers(&[rows, inner], 3);
                let product = product_with(&mut weights, &x.clone().into(), &y, is_transposed).unwrap().unwrap();
                assert_eq!((product.len(), weights.is_formed()), (rows * columns, is_formed));
                let (xs, ys) = (x.slice::<f32>().unwrap(), dense::floats(&other).unwrap());
                for (at, got) in product.into_iter().enumerate() {
                    let (i, j) = (at / columns, at % columns);
                    let of = |l: usize| if is_transposed { ys[j * inner + l] } else { ys[l * columns + j] };
                    let want: f64 = (0..inner).map(|l| f64::from(xs[i * inner + l]) * f64::from(of(l))).sum();
                    assert!((f64::from(got) - want).abs() < 1e-4, "{rows}, {is_transposed}: {got} for {want} at {at}");
                }
            }
            let mut variable = Kept::new(false);
            let x: Value = numbers(&[1, inner], 3).into();
            assert!(product_with(&mut variable, &x, &y, is_transposed).unwrap().is_none());
        }
    }

    #[test]
    fn one_row_reads_a_large_matrix_in_its_place() {
        let (inner, columns) = (1024, LEAST_OF_ROW / 1024 + 3);
        let y = numbers(&[inner, columns], 5);
        let (x, value) = (numbers(&[1, inner], 3), Value::from(y.clone()));
        let product = product_of_row(&x.clone().into(), matrix(&value, false).unwrap()).unwrap().unwrap();
        let (xs, ys) = (x.slice::<f32>().unwrap(), y.slice::<f32>().unwrap());
        for (column, &got) in product.iter().enumerate() {
            let terms = xs.iter().enumerate().map(|(row, x)| f64::from(*x) * f64::from(ys[row * columns + column]));
            let want: f64 = terms.sum();
            assert!((f64::from(got) - want).abs() < 1e-3, "{got} for {want} at {column}");
        }
        let rows = numbers(&[2, inner], 3).into();
        assert_eq!(product_of_row(&rows, matrix(&value, false).unwrap()), Ok(None), "two rows");
    }

    #[test]
    fn a_large_constant_is_in_its_panels_alone() {
        let (inner, columns) = (256, 100);
        for is_transposed in [false, true] {
            let sizes = if is_transposed { [columns, inner] } else { [inner, columns] };
            let plain = numbers(&sizes, 5);
            let large = constant::kept(numbers(&sizes, 5));
            let [mut of_plain, mut of_large] = [(), ()].map(|()| Kept::new(true));
            // One row reads the matrix in its place, where it stays from then on.
            for (rows, is_there) in [(3, false), (3, false), (1, true), (2, true)] {
                let x: Value = numbers(&[rows, inner], 3).into();
                let product = |weights: &mut Kept<Panels<'static>>, y: &Tensor| {
                    product_with(weights, &x, &Value::Host(y.clone()), is_transposed).unwrap().unwrap()
                };
                assert_eq!(product(&mut of_large, &large), product(&mut of_plain, &plain), "{rows}, {is_transposed}");
                assert_eq!(constant::is_at_hand(&large), is_there, "{rows}, {is_transposed}");
            }
            assert_eq!(large, plain);
        }
    }

    #[test]
    fn blocks_cover_the_product_and_stay_within_the_limit() {
        let check = |dims: &[usize], inner: usize, most_blocks: usize| {
            let block = block(dims, inner);
            let work = call::product(&block).saturating_mul(inner);
            assert!(work <= MOST_AT_ONCE || block.iter().all(|&size| size == 1), "{dims:?} by {inner}: {block:?}");
            let (mut start, mut covered, mut blocks) = (vec![0; dims.len()], 0, 0);
            loop {
                let sizes = start.iter().zip(dims).zip(&block).map(|((from, size), block)| (size - from).min(*block));
                covered += sizes.product::<usize>();
                blocks += 1;
                if !blocks::advance(&mut start, &block, dims) {
                    break;
                }
            }
            assert_eq!(covered, call::product(dims), "{dims:?} by {inner}: {block:?}");
            assert!(blocks <= most_blocks, "{dims:?} by {inner}: {blocks} blocks of {block:?}");
        };
        check(&[2048, 2048], 2048, 12);
        check(&[14000, 14000], 14000, 2700);
        check(&[3, 5], 1 << 29, 15);
        check(&[1, 1 << 20], 1 << 12, 8);
        check(&[1 << 20, 1], 1 << 12, 8);
        check(&[7, 64, 512, 512], 512, 60);
        check(&[3, 2, 1500, 1500], 1500, 48);
    }
}
