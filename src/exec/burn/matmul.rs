//! Matrix products. Transposition is a view: nothing is copied for it.

#![allow(unsafe_code, reason = "gemm takes pointers")]

use smallvec::SmallVec;

use super::array::{Array, Site, done};
use super::elementwise::arrays;
use super::memory::Backing;
use super::{Body, blocks};
use crate::exec::engine::{EngineOutcome, Value, Values};
use crate::exec::kernel::{KernelNode, call};
use crate::failure::Result;
use crate::tensor::{Shape, Tensor};

/// Most multiplications of a product that is computed here instead of by the backend.
const MOST_ALONE: usize = 1 << 18;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let (transpose_left, transpose_right, batches) = match node.op {
        "MatMul" => (node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?, Batches::None),
        "BatchMatMul" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Same),
        "BatchMatMulV2" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Broadcast),
        _ => return Ok(None),
    };
    Ok(Some(Box::new(move |site, inputs| {
        let shape = product(inputs[0].shape(), transpose_left, inputs[1].shape(), transpose_right, batches);
        let Some(shape) = shape.filter(|shape| shape.is_allowed(inputs[0].dtype())) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        if !B::REMOTE
            && let [Value::Host(x), Value::Host(y)] = inputs.as_slice()
            && let Some(answer) = small_product([x, y], [transpose_left, transpose_right], &shape)
        {
            return Ok(EngineOutcome::Done(Values::from_iter([Value::Host(answer)])));
        }
        let [x, y] = arrays(site, inputs)?;
        let rank = shape.rank();
        let (x, y) = (transposed(x.lifted(rank)?, transpose_left), transposed(y.lifted(rank)?, transpose_right));
        if !B::REMOTE && multiplications(&x.shape, &shape) > 2 * MOST_AT_ONCE {
            return done(in_blocks(site, x, y, shape)?);
        }
        done(Array::<B> { raw: B::float_matmul(x.raw, y.raw), dtype: x.dtype, shape, home: x.home })
    })))
}

/// Most multiplications of the backend between two checks whether the step was given up: about twenty milliseconds of
/// a few cores. Narrower blocks read their operands more often, which slows large products down.
pub(super) const MOST_AT_ONCE: usize = 1 << 31;

/// The rows and columns of a part of a matrix are multiples of this, if it is that large.
const ALIGNED: usize = 64;

/// How many multiplications a product of this shape takes whose left operand has the shape `x`.
fn multiplications(x: &Shape, product: &Shape) -> usize {
    let inner = x.dims().last().copied().unwrap_or(1);
    call::product(product.dims()).saturating_mul(inner)
}

/// The product by blocks of the result, each of which the backend computes at once.
fn in_blocks<B: Backing>(site: &Site<B>, x: Array<B>, y: Array<B>, shape: Shape) -> Result<Array<B>> {
    let (rank, inner) = (shape.rank(), x.shape.dims()[x.shape.rank() - 1]);
    let block = block(shape.dims(), inner);
    blocks::by_blocks(&site.device, x.dtype, shape, &block, |ranges| {
        let (mut left, mut right) = (ranges.clone(), ranges.clone());
        (left[rank - 1], right[rank - 2]) = ((0, inner), (0, inner));
        Ok(B::float_matmul(blocks::part(&x, &left).raw, blocks::part(&y, &right).raw))
    })
}

/// The sizes of a product's blocks: as many of the last dimensions as [`MOST_AT_ONCE`] allows; of a matrix that is too
/// large by itself, a part about as wide as high.
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

/// The product of two float32 matrices on the host, directly from and to their elements; `None` for another dtype, or
/// if it is large enough for the backend to spread it over threads.
fn small_product([x, y]: [&Tensor; 2], [transpose_x, transpose_y]: [bool; 2], shape: &Shape) -> Option<Tensor> {
    let (&[m, n], &[x0, x1]) = (shape.dims(), x.dims()) else { return None };
    let k = if transpose_x { x0 } else { x1 };
    if m * n * k > MOST_ALONE {
        return None;
    }
    let (xs, ys) = (x.slice::<f32>().ok()?, y.slice::<f32>().ok()?);
    let mut answer = vec![0f32; m * n];
    multiply([m, k, n], (xs, transpose_x), (ys, transpose_y), &mut answer);
    Some(Tensor::from_vec(shape.clone(), answer))
}

/// Writes the product of `x` (`m` by `k`) and `y` (`k` by `n`) over `to`, on this thread. Every matrix is stored by
/// rows, or by columns if it is marked as transposed.
pub(super) fn multiply([m, k, n]: [usize; 3], x: (&[f32], bool), y: (&[f32], bool), to: &mut [f32]) {
    let ((xs, transpose_x), (ys, transpose_y)) = (x, y);
    assert!(xs.len() == m * k && ys.len() == k * n && to.len() == m * n, "the slices have the sizes of the matrices");
    // The distance to the next column, and to the next row.
    let steps = |rows: usize, columns: usize, transpose: bool| {
        let (column, row) = if transpose { (rows, 1) } else { (1, columns) };
        (column as isize, row as isize)
    };
    let ((x_column, x_row), (y_column, y_row)) = (steps(m, k, transpose_x), steps(k, n, transpose_y));
    let (to, x, y, alone) = (to.as_mut_ptr(), xs.as_ptr(), ys.as_ptr(), gemm::Parallelism::None);
    let n_step = n as isize;
    // SAFETY: the lengths above are those of matrices of these sizes, by rows or columns; `to` is borrowed exclusively
    // and overlaps neither of the others.
    unsafe {
        gemm::gemm(
            m, n, k, to, 1, n_step, false, x, x_column, x_row, y, y_column, y_row, 0.0, 1.0, false, false, false, alone,
        );
    }
}

fn transposed<B: Backing>(x: Array<B>, really: bool) -> Array<B> {
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
    use super::*;

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
