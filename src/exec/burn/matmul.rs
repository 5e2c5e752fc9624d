//! Matrix products. Transposition is a view: nothing is copied for it.

use smallvec::SmallVec;

use super::Body;
use super::array::{Array, done};
use super::elementwise::arrays;
use super::memory::Backing;
use crate::exec::engine::Ran;
use crate::exec::kernel::KernelNode;
use crate::failure::Result;
use crate::tensor::Shape;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let (transpose_left, transpose_right, batches) = match node.op {
        "MatMul" => (node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?, Batches::None),
        "BatchMatMul" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Same),
        "BatchMatMulV2" => (node.attrs.bool("adj_x")?, node.attrs.bool("adj_y")?, Batches::Broadcast),
        _ => return Ok(None),
    };
    Ok(Some(Box::new(move |site, inputs| {
        let shape = product(inputs[0].shape(), transpose_left, inputs[1].shape(), transpose_right, batches);
        let Some(shape) = shape else { return Ok(Ran::Declined(inputs)) };
        let [x, y] = arrays(site, inputs)?;
        let rank = shape.rank();
        let (x, y) = (transposed(x.lifted(rank), transpose_left), transposed(y.lifted(rank), transpose_right));
        done(Array::<B> { raw: B::float_matmul(x.raw, y.raw), dtype: x.dtype, shape, home: x.home })
    })))
}

/// What the dimensions before the last two may be.
#[derive(Clone, Copy, PartialEq)]
enum Batches {
    None,
    Same,
    Broadcast,
}

/// The shape of the product; `None` where there is none.
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

fn transposed<B: Backing>(x: Array<B>, really: bool) -> Array<B> {
    if !really {
        return x;
    }
    let rank = x.shape.rank();
    let mut axes: SmallVec<[usize; 8]> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    x.permute(&axes)
}
