//! Gradients of ops that read some elements of a tensor, or write some into it.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::gradient::Gradient;
use crate::gradient::call::{Call, Grads, one};
use crate::{Input, Output};

const MASKS: &[&str] = &["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"];

pub(super) const RULES: &[(&str, Rule)] = &[
    ("slice", |c| {
        let (x, begin, y, dy) = (c.x(0), c.x(1), c.y(0), c.dy()?);
        let dtype = c.dtype(begin);
        let (whole, size) = (c.shape_as(x, dtype)?, c.shape_as(y, dtype)?);
        let rest = c.sub(whole, size)?;
        let after = c.sub(rest, begin)?;
        let paddings = c.op("Pack").name("stack").input(begin).input(after).attr("axis", 1).build()?;
        one(c.bin("Pad", dy, paddings)?)
    }),
    ("strided_slice", |c| {
        let (x, begin, end, strides, dy) = (c.x(0), c.x(1), c.x(2), c.x(3), c.dy()?);
        let shape = c.shape_as(x, c.dtype(begin))?;
        one(c.with_attrs("StridedSliceGrad", &[shape, begin, end, strides, dy], MASKS)?)
    }),
    ("strided_slice_grad", |c| {
        let (begin, end, strides, dz) = (c.x(1), c.x(2), c.x(3), c.dy()?);
        let slice = c.with_attrs("StridedSlice", &[dz, begin, end, strides], MASKS)?;
        Ok(vec![None, None, None, None, Some(Gradient::Dense(slice))])
    }),
    ("tensor_strided_slice_update", |c| {
        let (begin, end, strides, value, dy) = (c.x(1), c.x(2), c.x(3), c.x(4), c.dy()?);
        let slice = c.with_attrs("StridedSlice", &[dy, begin, end, strides], MASKS)?;
        let zeros = c.un("ZerosLike", slice)?;
        let rest = c.with_attrs("TensorStridedSliceUpdate", &[dy, begin, end, strides, zeros], MASKS)?;
        // The value may have been broadcast to the slice.
        let (value_shape, slice_shape) = (c.shape(value)?, c.shape_of_added(slice)?);
        let axes = c.bin("BroadcastGradientArgs", value_shape, slice_shape)?;
        let sum = c.sum(slice, axes, true)?;
        let by_value = c.reshape(sum, value_shape)?;
        Ok(vec![Some(Gradient::Dense(rest)), None, None, None, Some(Gradient::Dense(by_value))])
    }),
    ("gather", |c| {
        let shape = c.shape(c.x(0))?;
        rows(c, shape)
    }),
    ("resource_gather", |c| {
        if c.node.attrs.int("batch_dims").is_ok_and(|axes| axes != 0) {
            return Err(Stop::Unsupported("is not supported with batch_dims".to_owned()));
        }
        let handle = c.x(0);
        let shape = c.un("VariableShape", handle)?;
        rows(c, shape)
    }),
    ("gather_v2", |c| {
        if c.constant(2).is_some_and(|axis| axis == [0]) {
            let shape = c.shape(c.x(0))?;
            return rows(c, shape);
        }
        gather_along(c)
    }),
    ("gather_nd", |c| {
        let (x, dtype) = (c.x(0), c.dtype(c.x(1)));
        let shape = c.shape_as(x, dtype)?;
        slices(c, shape)
    }),
    ("resource_gather_nd", |c| {
        let (handle, dtype) = (c.x(0), c.dtype(c.x(1)));
        let shape = c.op("VariableShape").input(handle).attr("out_type", dtype).build()?;
        slices(c, shape)
    }),
    ("scatter_nd", |c| {
        let (indices, dy) = (c.x(0), c.dy()?);
        let by_updates = c.bin("GatherNd", dy, indices)?;
        Ok(vec![None, Some(Gradient::Dense(by_updates))])
    }),
    ("tensor_scatter_update", |c| {
        let (indices, updates, dy) = (c.x(1), c.x(2), c.dy()?);
        let zeros = c.un("ZerosLike", updates)?;
        let rest = c.op("TensorScatterUpdate").input(dy).input(indices).input(zeros).build()?;
        let by_updates = c.bin("GatherNd", dy, indices)?;
        Ok(vec![Some(Gradient::Dense(rest)), None, Some(Gradient::Dense(by_updates))])
    }),
    ("tensor_scatter_add", |c| {
        let (indices, dy) = (c.x(1), c.dy()?);
        let by_updates = c.bin("GatherNd", dy, indices)?;
        Ok(vec![Some(Gradient::Dense(dy)), None, Some(Gradient::Dense(by_updates))])
    }),
    ("tensor_scatter_sub", |c| {
        let (indices, dy) = (c.x(1), c.dy()?);
        let taken = c.bin("GatherNd", dy, indices)?;
        let by_updates = c.neg(taken)?;
        Ok(vec![Some(Gradient::Dense(dy)), None, Some(Gradient::Dense(by_updates))])
    }),
    ("tensor_scatter_extreme", scatter_extreme),
    ("top_k", top_k),
    ("approx_top_k", |c| {
        let rank = c.rank(c.x(0)).ok_or_else(|| Stop::Unsupported("needs to know the rank of its input".to_owned()))?;
        match c.node.attrs.int("reduction_dimension") {
            Ok(axis) if axis == -1 || axis == rank as i64 - 1 => top_k(c),
            _ => Err(Stop::Unsupported("has a gradient along the last dimension alone".to_owned())),
        }
    }),
    ("nth_element", |c| {
        // The gradient is shared by the elements that are equal to the result.
        let (x, y, dy, dtype) = (c.x(0), c.y(0), c.dy()?, c.t());
        let y = c.op("ExpandDims").input(y).input(-1).build()?;
        let is_it = c.bin("Equal", y, x)?;
        let is_it = c.cast(is_it, dtype)?;
        let count = c.sum(is_it, [-1], true)?;
        let share = c.div(is_it, count)?;
        let dy = c.op("ExpandDims").input(dy).input(-1).build()?;
        one(c.mul(share, dy)?)
    }),
];

/// The gradient of slices at multidimensional indices, for a tensor of this shape.
fn slices(c: &mut Call, shape: Output) -> Grads {
    let (indices, dy) = (c.x(1), c.dy()?);
    if let Some([_, Some(1)]) = c.sizes(indices).as_deref() {
        let indices = c.op("Squeeze").input(indices).attr("squeeze_dims", [-1i64]).build()?;
        return Ok(vec![Some(Call::rows(dy, indices, shape))]);
    }
    one(c.op("ScatterNd").input(indices).input(dy).input(shape).build()?)
}

/// The gradient of rows that were looked up in a table of that shape, an int32 vector.
fn rows(c: &mut Call, shape: Output) -> Grads {
    let (indices, dy) = (c.x(1), c.dy()?);
    let size = c.un("Size", indices)?;
    let count = c.op("ExpandDims").input(size).input(0).build()?;
    let tail = c.part(shape, 1, None)?;
    let values_shape = c.concat([count, tail], 0)?;
    let values = c.reshape(dy, values_shape)?;
    let indices = c.reshape(indices, count)?;
    Ok(vec![Some(Call::rows(values, indices, shape))])
}

/// The gradient of a gather along an axis other than the first, or per row of a batch: treated as one table, whose rows are
/// those of all batches, each with the elements along the other axes.
fn gather_along(c: &mut Call) -> Grads {
    let (x, indices, dy) = (c.x(0), c.x(1), c.dy()?);
    let Some(&[axis]) = c.constant(2).as_deref() else {
        return Err(Stop::Unsupported("needs an axis that is a constant".to_owned()));
    };
    let rank_of = |c: &Call, of: Output, what: &str| {
        c.rank(of).ok_or_else(|| Stop::Unsupported(format!("needs to know the rank of {what} to count from its end")))
    };
    let axis = if axis < 0 { axis + rank_of(c, x, "params")? as i64 } else { axis } as i32;
    let batch = c.node.attrs.int("batch_dims").unwrap_or(0);
    let batch = if batch < 0 { batch + rank_of(c, indices, "indices")? as i64 } else { batch } as i32;
    let (shape, of_indices) = (c.shape_as(x, DType::I64)?, c.shape_as(indices, DType::I64)?);
    let mut product = |of: Output, from: i32, to: Option<i32>| {
        let part = c.part(of, from, to)?;
        Ok::<Output, Stop>(c.op("Prod").input(part).input([0]).build()?)
    };
    let outer = product(shape, 0, Some(batch))?;
    let middle = product(shape, batch, Some(axis))?;
    let count = product(shape, axis, Some(axis + 1))?;
    let inner = product(shape, axis + 1, None)?;
    let taken = product(of_indices, batch, None)?;

    // [outer, middle, taken, inner] to [outer * taken, middle * inner]
    let sizes = pack(c, [outer, middle, taken, inner])?;
    let values = c.reshape(dy, sizes)?;
    let values = c.bin("Transpose", values, [0, 2, 1, 3])?;
    let (all_taken, row) = (c.mul(outer, taken)?, c.mul(middle, inner)?);
    let sizes = pack(c, [all_taken, row])?;
    let values = c.reshape(values, sizes)?;
    // The rows of the second batch come after those of the first, and so on.
    let indices = c.cast(indices, DType::I64)?;
    let sizes = pack(c, [outer, taken])?;
    let indices = c.reshape(indices, sizes)?;
    let batches = c.op("Range").name("range").input(0i64).input(outer).input(1i64).build()?;
    let starts = c.mul(batches, count)?;
    let starts = c.op("ExpandDims").input(starts).input(1).build()?;
    let indices = c.add(indices, starts)?;
    let indices = c.reshape(indices, [-1])?;
    let all_rows = c.mul(outer, count)?;
    let sums = c.op("UnsortedSegmentSum").input(values).input(indices).input(all_rows).build()?;
    let sizes = pack(c, [outer, count, middle, inner])?;
    let sums = c.reshape(sums, sizes)?;
    let sums = c.bin("Transpose", sums, [0, 2, 1, 3])?;
    one(c.reshape(sums, shape)?)
}

/// A vector of scalars.
fn pack<const N: usize>(c: &mut Call, scalars: [Output; N]) -> Result<Output, Stop> {
    Ok(c.op("Pack").name("stack").inputs(scalars).build()?)
}

/// The gradient is shared by the elements that are equal to the greatest or least.
fn scatter_extreme(c: &mut Call) -> Grads {
    let (x, indices, updates, y, dy, dtype) = (c.x(0), c.x(1), c.x(2), c.y(0), c.dy()?, c.t());
    let is_x = c.bin("Equal", x, y)?;
    let is_x = c.cast(is_x, dtype)?;
    let taken = c.bin("GatherNd", y, indices)?;
    let is_update = c.bin("Equal", updates, taken)?;
    let is_update = c.cast(is_update, dtype)?;
    let shape = c.shape_as(x, c.dtype(indices))?;
    let updates = c.op("ScatterNd").input(indices).input(is_update).input(shape).build()?;
    let count = c.add(is_x, updates)?;
    let share = c.div(dy, count)?;
    let by_x = c.mul(share, is_x)?;
    let shares = c.bin("GatherNd", share, indices)?;
    let by_updates = c.mul(shares, is_update)?;
    Ok(vec![Some(Gradient::Dense(by_x)), None, Some(Gradient::Dense(by_updates))])
}

fn top_k(c: &mut Call) -> Grads {
    let (x, places, dy) = (c.x(0), c.y(1), c.dy()?);
    let shape = c.shape(x)?;
    let row = c.element(shape, -1)?;
    let taken = c.shape(places)?;
    let taken = c.part(taken, -1, None)?;
    let places = c.cast(places, DType::I32)?;
    let sizes = c.concat([Input::from([-1]), taken.into()], 0)?;
    let places = c.reshape(places, sizes)?;
    // The positions count from the start of each row; those of the second row come after those of the first.
    let of_places = c.shape_of_added(places)?;
    let rows = c.element(of_places, 0)?;
    let end = c.mul(rows, row)?;
    let starts = c.op("Range").name("range").input(0).input(end).input(row).build()?;
    let starts = c.op("ExpandDims").input(starts).input(-1).build()?;
    let places = c.add(places, starts)?;
    let places = c.reshape(places, [-1, 1])?;
    let flat = c.reshape(dy, [-1])?;
    let size = c.op("Prod").input(shape).input([0]).attr("keep_dims", true).build()?;
    let all = c.op("ScatterNd").input(places).input(flat).input(size).build()?;
    one(c.reshape(all, shape)?)
}
