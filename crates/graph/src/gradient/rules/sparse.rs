//! Gradients of sparse tensors, which consist of indices, values and shape: the values have gradients.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("sparse_add", |c| {
        let (a, b, sum, dy) = (c.x(0), c.x(3), c.y(0), c.d(1)?);
        let each = c.op("SparseAddGrad").input(dy).input(a).input(b).input(sum).build()?;
        Ok(at(&[(1, each), (4, each.port(1))]))
    }),
    ("sparse_reorder", |c| {
        // The numbers of the values are reordered in the same way, which gives the origin of each.
        let (indices, shape, dy) = (c.x(0), c.x(2), c.d(1)?);
        let sizes = c.op("Shape").input(indices).build()?;
        let count = c.element(sizes, 0)?;
        let numbers = c.op("Range").name("range").input(0).input(count).input(1).build()?;
        let ordered = c.op("SparseReorder").input(indices).input(numbers).input(shape).build()?;
        let places = c.un("InvertPermutation", ordered.port(1))?;
        let values = c.op("GatherV2").input(dy).input(places).input(0).build()?;
        Ok(at(&[(1, values)]))
    }),
    ("sparse_slice", |c| {
        let (indices, start, kept, dy) = (c.x(0), c.x(3), c.y(0), c.d(1)?);
        let values = c.op("SparseSliceGrad").input(dy).input(indices).input(start).input(kept).build()?;
        Ok(at(&[(1, values)]))
    }),
    ("sparse_fill_empty_rows", |c| {
        let (places, dy) = (c.y(3), c.d(1)?);
        let both = c.bin("SparseFillEmptyRowsGrad", places, dy)?;
        Ok(at(&[(1, both), (3, both.port(1))]))
    }),
    ("sparse_to_dense", |c| {
        let (indices, dy) = (c.x(0), c.dy()?);
        let (rank, of_values) = (c.rank(indices), c.rank(c.x(2)));
        let (Some(rank), Some(of_values)) = (rank, of_values) else {
            return Err(Stop::Unsupported("needs to know the ranks of its indices and values".to_owned()));
        };
        // The element numbers of a vector are indices with one component.
        let indices = match rank {
            0 => c.reshape(indices, [1, 1])?,
            1 => c.op("ExpandDims").input(indices).input(1).build()?,
            _ => indices,
        };
        let each = c.bin("GatherNd", dy, indices)?;
        let all = whole_sum(c, each, 1)?;
        let flat = c.reshape(dy, [-1])?;
        let whole = whole_sum(c, flat, 1)?;
        let default = c.sub(whole, all)?;
        Ok(at(&[(2, if of_values == 0 { all } else { each }), (3, default)]))
    }),
    ("sparse_tensor_dense_add", |c| {
        let (indices, dy) = (c.x(0), c.dy()?);
        let values = c.bin("GatherNd", dy, indices)?;
        Ok(at(&[(1, values), (3, dy)]))
    }),
    ("sparse_reduce_sum", |c| {
        let (indices, shape, axes, dy) = (c.x(0), c.x(2), c.x(3), c.dy()?);
        // The shape with 1 for the axes that are summed over.
        let rank = c.un("Size", shape)?;
        let from_start = c.add(axes, rank)?;
        let axes = c.op("FloorMod").name("mod").input(from_start).input(rank).build()?;
        let axes = c.reshape(axes, [-1])?;
        let ones = c.un("OnesLike", axes)?;
        let ones = c.cast(ones, DType::I64)?;
        let every = c.op("Range").name("range").input(0).input(rank).input(1).build()?;
        let kept = c.op("DynamicStitch").input(every).input(axes).input(shape).input(ones).build()?;
        let dy = c.reshape(dy, kept)?;
        let indices = scaled(c, indices, shape, kept)?;
        let values = c.bin("GatherNd", dy, indices)?;
        Ok(at(&[(1, values)]))
    }),
    ("sparse_tensor_dense_matmul", matmul),
    ("sparse_dense_cwise_mul", |c| {
        let (values, dy) = (c.x(1), c.dy()?);
        let (indices, dense) = taken(c)?;
        let (by_values, by_dense) = (c.mul(dy, dense)?, c.mul(dy, values)?);
        let by_dense = put(c, indices, by_dense)?;
        Ok(at(&[(1, by_values), (3, by_dense)]))
    }),
    ("sparse_dense_cwise_div", |c| {
        let (values, dy) = (c.x(1), c.dy()?);
        let (indices, dense) = taken(c)?;
        let by_values = c.div(dy, dense)?;
        let quotient = c.div(values, dense)?;
        let by_dense = c.mul(by_values, quotient)?;
        let by_dense = c.neg(by_dense)?;
        let by_dense = put(c, indices, by_dense)?;
        Ok(at(&[(1, by_values), (3, by_dense)]))
    }),
    ("sparse_dense_cwise_add", |c| {
        let dy = c.dy()?;
        let (indices, _) = taken(c)?;
        let by_dense = put(c, indices, dy)?;
        Ok(at(&[(1, dy), (3, by_dense)]))
    }),
    ("sparse_softmax", |c| {
        let (indices, shape, y, dy) = (c.x(0), c.x(2), c.y(0), c.dy()?);
        let product = c.mul(y, dy)?;
        let sum = c.op("SparseReduceSum").input(indices).input(product).input(shape).input([-1]);
        let sum = sum.attr("keep_dims", true).build()?;
        let sum = c.neg(sum)?;
        let rest = c.op("SparseDenseCwiseAdd").input(indices).input(dy).input(shape).input(sum).build()?;
        let values = c.mul(rest, y)?;
        Ok(at(&[(1, values)]))
    }),
];

/// The gradients of some inputs, by their indices.
fn at(grads: &[(usize, Output)]) -> Vec<Option<Gradient>> {
    let mut all = vec![None; grads.iter().map(|(place, _)| place + 1).max().unwrap_or(0)];
    for &(place, gradient) in grads {
        all[place] = Some(Gradient::Dense(gradient));
    }
    all
}

fn whole_sum(c: &mut Call, x: Output, rank: i32) -> Added {
    c.sum(x, (0..rank).collect::<Vec<i32>>(), false)
}

/// The indices of the elements of a smaller tensor that was repeated to a shape.
fn scaled(c: &mut Call, indices: Output, shape: Output, smaller: Output) -> Added {
    let factors = c.op("FloorDiv").name("floordiv").input(shape).input(smaller).build()?;
    Ok(c.op("FloorDiv").name("floordiv").input(indices).input(factors).build()?)
}

/// The elements of a dense tensor, broadcast to the shape of the sparse one, at the positions of the values, and their indices.
fn taken(c: &mut Call) -> Result<(Output, Output), Stop> {
    let (indices, shape, dense) = (c.x(0), c.x(2), c.x(3));
    let of_dense = c.shape_as(dense, DType::I64)?;
    let (rank, rank_of_dense) = (c.un("Size", shape)?, c.un("Size", of_dense)?);
    let added = c.sub(rank, rank_of_dense)?;
    let added = c.op("ExpandDims").input(added).input(0).build()?;
    let ones = c.bin("Fill", added, 1i64)?;
    let whole = c.concat([ones, of_dense], 0)?;
    let indices = scaled(c, indices, shape, whole)?;
    let start = c.concat([crate::Input::from([0]), added.into()], 0)?;
    let indices = c.op("Slice").input(indices).input(start).input([-1, -1]).build()?;
    let elements = c.bin("GatherNd", dense, indices)?;
    Ok((indices, elements))
}

/// A dense tensor of elements; those with the same index are added up.
fn put(c: &mut Call, indices: Output, elements: Output) -> Added {
    let shape = c.shape_as(c.x(3), DType::I64)?;
    Ok(c.op("ScatterNd").input(indices).input(elements).input(shape).build()?)
}

fn matmul(c: &mut Call) -> Grads {
    let (indices, values, shape, b, dy) = (c.x(0), c.x(1), c.x(2), c.x(3), c.dy()?);
    let (adjoint_a, adjoint_b) = (c.flag("adjoint_a"), c.flag("adjoint_b"));
    let product = c.op("SparseTensorDenseMatMul").input(indices).input(values).input(shape).input(dy);
    let mut by_b = product.attr("adjoint_a", !adjoint_a).build()?;
    let mut right = b;
    if adjoint_b {
        by_b = c.bin("Transpose", by_b, [1, 0])?;
        right = c.bin("Transpose", b, [1, 0])?;
    }
    let columns = c.op("Unpack").name("unstack").input(indices).attr("num", 2).attr("axis", 1).build()?;
    let (of_dy, of_b) = if adjoint_a { (columns.port(1), columns) } else { (columns, columns.port(1)) };
    let of_dy = c.op("GatherV2").input(dy).input(of_dy).input(0).build()?;
    let of_b = c.op("GatherV2").input(right).input(of_b).input(0).build()?;
    let products = c.mul(of_dy, of_b)?;
    let by_values = c.sum(products, [1], false)?;
    Ok(at(&[(1, by_values), (3, by_b)]))
}
