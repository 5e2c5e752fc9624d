//! Slices, gathering and scattering, searches.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::{MAX_RANK, op};
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("Compress", 9, compress),
    onnx("Gather", 1, gather),
    onnx("GatherElements", 11, gather_elements),
    onnx("GatherND", 11, gather_nd),
    onnx("NonZero", 9, non_zero),
    onnx("OneHot", 9, one_hot),
    onnx("ReverseSequence", 10, reverse_sequence),
    onnx("Scatter", 9, scatter_elements),
    onnx("ScatterElements", 11, scatter_elements),
    onnx("ScatterND", 11, scatter_nd),
    onnx("Slice", 1, slice),
    onnx("TensorScatter", 24, tensor_scatter),
    onnx("TopK", 1, top_k),
    onnx("Unique", 11, unique),
];

/// Indices, of which negative ones count from the end.
fn wrapped(cx: &mut Cx, indices: Output, size: Size) -> Result<Output> {
    let indices = cx.long(indices)?;
    if let Some(known) = cx.em.ints(indices)
        && known.iter().all(|&at| at >= 0)
    {
        return Ok(indices);
    }
    let size = cx.scalar(size)?;
    let is_negative = op!(cx.em, "Less", indices, 0i64)?;
    let from_end = op!(cx.em, "AddV2", indices, size)?;
    op!(cx.em, "SelectV2", is_negative, from_end, indices)
}

fn like(cx: &mut Cx, x: Output, y: Output) -> Result<Vec<Value>> {
    let elem = cx.em.elem(x);
    let y = if elem.is_held() { cx.em.with_elem(y, elem)? } else { y };
    one(y)
}

fn gather(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, indices) = (n.input(0)?, n.input(1)?);
    let axis = cx.axis_of(x, n.int("axis", 0))?;
    let size = cx.size(x, axis)?;
    let indices = wrapped(cx, indices, size)?;
    let y = op!(cx.em, "GatherV2", x, indices, axis as i64)?;
    like(cx, x, y)
}

/// The indices of elements in all axes, of which those in one are given: `[…, rank]`.
fn places(cx: &mut Cx, indices: Output, axis: usize) -> Result<Output> {
    let rank = cx.em.rank(indices)?;
    let sizes = cx.sizes(indices)?;
    let shape = cx.packed(&sizes)?;
    let mut parts = Vec::new();
    for (own, &size) in sizes.iter().enumerate() {
        let part = if own == axis {
            indices
        } else {
            let range = cx.range(size)?;
            let dims: Vec<Size> = (0..rank).map(|at| if at == own { size } else { Size::Known(1) }).collect();
            let range = cx.reshape(range, &dims)?;
            op!(cx.em, "BroadcastTo", range, shape)?
        };
        parts.push(part.into());
    }
    cx.em.add("Pack", parts, &[("axis", (rank as i64).into())])
}

fn gather_elements(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, indices) = (n.input(0)?, n.input(1)?);
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", 0), rank)?;
    let size = cx.size(x, axis)?;
    let indices = wrapped(cx, indices, size)?;
    let places = places(cx, indices, axis)?;
    let y = op!(cx.em, "GatherNd", x, places)?;
    like(cx, x, y)
}

/// Indices of elements or slices, each of which may count from the end: `[…, depth]`.
fn wrapped_places(cx: &mut Cx, x: Output, indices: Output, first: usize) -> Result<Output> {
    let rank = cx.em.rank(indices)?;
    let depth = rank.checked_sub(1).and_then(|last| cx.em.size(indices, last));
    let depth = depth.ok_or_else(|| unsupported("unsupported: indices whose last size is not known"))?;
    let indices = cx.long(indices)?;
    if cx.em.ints(indices).is_some_and(|known| known.iter().all(|&at| at >= 0)) {
        return Ok(indices);
    }
    let sizes = cx.shape_of(x)?;
    let sizes = cx.slice(sizes, 0, first.into(), Some((first + depth).into()))?;
    let is_negative = op!(cx.em, "Less", indices, 0i64)?;
    let from_end = op!(cx.em, "AddV2", indices, sizes)?;
    op!(cx.em, "SelectV2", is_negative, from_end, indices)
}

fn gather_nd(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, indices) = (n.input(0)?, n.input(1)?);
    let batch = usize::try_from(n.int("batch_dims", 0)).map_err(|_| Failure::invalid("batch_dims is negative"))?;
    let indices = wrapped_places(cx, x, indices, batch)?;
    if batch == 0 {
        let y = op!(cx.em, "GatherNd", x, indices)?;
        return like(cx, x, y);
    }
    // The batch is one axis, whose index is put before the others.
    let (own, at) = (cx.sizes(x)?, cx.sizes(indices)?);
    if batch >= own.len() || batch >= at.len() {
        return Err(Failure::invalid(format!(
            "batch_dims is {batch}, and the inputs are of ranks {} and {}",
            own.len(),
            at.len()
        )));
    }
    let all = cx.product(&own[..batch])?;
    let mut flat = vec![all];
    flat.extend_from_slice(&own[batch..]);
    let x_flat = cx.reshape(x, &flat)?;
    let mut dims = vec![all];
    dims.extend_from_slice(&at[batch..]);
    let indices = cx.reshape(indices, &dims)?;
    let range = cx.range(all)?;
    let mut spread = vec![all];
    spread.resize(dims.len(), Size::Known(1));
    let range = cx.reshape(range, &spread)?;
    dims.pop();
    dims.push(Size::Known(1));
    let shape = cx.packed(&dims)?;
    let range = op!(cx.em, "BroadcastTo", range, shape)?;
    let indices = cx.concat(&[range, indices], dims.len() - 1)?;
    let y = op!(cx.em, "GatherNd", x_flat, indices)?;
    let depth = match at.last() {
        Some(Size::Known(depth)) => *depth as usize,
        _ => return Err(unsupported("unsupported: indices whose last size is not known")),
    };
    let mut out: Vec<Size> = at[..at.len() - 1].to_vec();
    out.extend_from_slice(own.get(batch + depth..).unwrap_or_default());
    let y = cx.reshape(y, &out)?;
    like(cx, x, y)
}

fn scatter(cx: &mut Cx, x: Output, places: Output, updates: Output, how: &str) -> Result<Output> {
    let name = match how {
        "none" => "TensorScatterUpdate",
        "add" => "TensorScatterAdd",
        "max" => "TensorScatterMax",
        "min" => "TensorScatterMin",
        "mul" => {
            return multiplied(cx, x, places, updates);
        }
        other => {
            return Err(Failure::invalid(format!("reduction is {other:?}; it must be none, add, mul, max or min")));
        }
    };
    op!(cx.em, name, x, places, updates)
}

/// Multiplies elements by all updates at their places: the updates are grouped by the number of their element.
fn multiplied(cx: &mut Cx, x: Output, places: Output, updates: Output) -> Result<Output> {
    let sizes = cx.sizes(x)?;
    let depth = cx.em.rank(places)? - 1;
    let depth =
        cx.em.size(places, depth).ok_or_else(|| unsupported("unsupported: indices whose last size is not known"))?;
    // The number of each place: strides by the sizes of the axes that it indexes.
    let mut strides = vec![Size::Known(1); depth];
    for at in (1..depth).rev() {
        strides[at - 1] = cx.compute("Mul", strides[at], sizes[at])?;
    }
    let strides = cx.packed(&strides)?;
    let places = cx.long(places)?;
    let numbers = op!(cx.em, "Mul", places, strides)?;
    let last = cx.em.rank(numbers)? - 1;
    let numbers = cx.reduce("Sum", numbers, &[last], false)?;
    let numbers = op!(cx.em, "Reshape", numbers, [-1i64])?;
    let count = cx.product(&sizes[..depth])?;
    let rest = cx.product(&sizes[depth..])?;
    let updates = cx.packed(&[Size::Known(-1), rest]).and_then(|shape| op!(cx.em, "Reshape", updates, shape))?;
    let count = cx.scalar(count)?;
    let factors = op!(cx.em, "UnsortedSegmentProd", updates, numbers, count)?;
    let factors = cx.reshape(factors, &sizes)?;
    op!(cx.em, "Mul", x, factors)
}

fn scatter_elements(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, indices, updates) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", 0), rank)?;
    let size = cx.size(x, axis)?;
    let indices = wrapped(cx, indices, size)?;
    let places = places(cx, indices, axis)?;
    let y = scatter(cx, x, places, updates, n.str("reduction", "none")?)?;
    like(cx, x, y)
}

fn scatter_nd(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, indices, updates) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let places = wrapped_places(cx, x, indices, 0)?;
    let y = scatter(cx, x, places, updates, n.str("reduction", "none")?)?;
    like(cx, x, y)
}

/// The axes up to the last one that a slice states, if the tensor's rank is open: those after it stay whole.
fn leading(cx: &Cx, n: &Node) -> Option<usize> {
    let ints = |i: usize| n.maybe(i).ok().flatten().and_then(|input| cx.em.ints(input));
    let axes = if n.version < 10 { n.ints("axes").map(<[i64]>::to_vec) } else { ints(3) };
    let count = || if n.version < 10 { n.ints("starts").map(<[i64]>::len) } else { cx.em.size(n.input(1).ok()?, 0) };
    let leading = match axes {
        Some(axes) if axes.iter().any(|&axis| axis < 0) => None,
        Some(axes) => usize::try_from(axes.iter().max()?.checked_add(1)?).ok(),
        None if n.version >= 10 && n.maybe(3).ok()?.is_some() => None,
        None => count(),
    };
    leading.filter(|&leading| leading <= MAX_RANK)
}

fn slice(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    if n.version >= 10
        && [3, 4].iter().any(|&i| n.maybe(i).ok().flatten().is_some_and(|input| cx.em.ints(input).is_none()))
    {
        // Begin and end have a number for every axis.
        let rank = cx.em.rank(x)?;
        return open_slice(cx, n, x, rank);
    }
    let rank = match (cx.em.rank(x), leading(cx, n)) {
        (Err(_), Some(leading)) => leading,
        (rank, _) => rank?,
    };
    let (starts, ends, axes, steps) = if n.version < 10 {
        let list = |name: &str| n.ints(name).ok_or_else(|| Failure::invalid(format!("it states no {name}")));
        (cx.ints(list("starts")?)?, cx.ints(list("ends")?)?, n.ints("axes").map(<[i64]>::to_vec), None)
    } else {
        let axes = match n.maybe(3)? {
            Some(axes) => Some(cx.needed(axes, "axes")?),
            None => None,
        };
        let steps = match n.maybe(4)? {
            Some(steps) => Some(cx.needed(steps, "steps")?),
            None => None,
        };
        (n.input(1)?, n.input(2)?, axes, steps)
    };
    let (starts, ends) = (cx.long(starts)?, cx.long(ends)?);
    let count = match &axes {
        Some(axes) => axes.len(),
        None => {
            cx.em.size(starts, 0).ok_or_else(|| unsupported("unsupported: a number of starts that is not known"))?
        }
    };
    let axes = cx.axes(&axes.unwrap_or_else(|| (0..count as i64).collect()), rank)?;
    let steps = steps.unwrap_or_else(|| vec![1; count]);
    if steps.len() != count || steps.contains(&0) {
        return Err(Failure::invalid("its steps are not one for each axis, or one is 0"));
    }
    let bound = |cx: &mut Cx, of: Output, i: usize| -> Result<Size> {
        match cx.em.some_ints(of).and_then(|all| all.get(i).copied().flatten()) {
            Some(at) => Ok(Size::Known(at)),
            None => Ok(Size::Of(op!(cx.em, "GatherV2", of, i as i64, 0i64)?)),
        }
    };
    let mut begin = vec![Size::Known(0); rank];
    let mut end = vec![Size::Known(0); rank];
    let mut strides = vec![1i64; rank];
    let (mut begin_mask, mut end_mask) = ((1i64 << rank) - 1, (1i64 << rank) - 1);
    for (i, &axis) in axes.iter().enumerate() {
        begin_mask &= !(1 << axis);
        end_mask &= !(1 << axis);
        let (from, mut to) = (bound(cx, starts, i)?, bound(cx, ends, i)?);
        // Numbers beyond the ends stand for the ends. A reverse slice to the very beginning ends before it.
        if let Size::Known(at) = to {
            if (steps[i] > 0 && at >= i64::from(i32::MAX)) || (steps[i] < 0 && at <= i64::from(i32::MIN) + 1) {
                end_mask |= 1 << axis;
                to = Size::Known(0);
            } else if let (true, Some(size)) = (steps[i] < 0, cx.em.size(x, axis)) {
                // Below the beginning by more than the size.
                if at < -(size as i64) {
                    end_mask |= 1 << axis;
                    to = Size::Known(0);
                }
            }
        }
        let from = match from {
            Size::Known(at) if at >= i64::from(i32::MAX) => Size::Known(i64::from(i32::MAX)),
            Size::Known(at) if at <= i64::from(i32::MIN) => Size::Known(i64::from(i32::MIN)),
            other => other,
        };
        (begin[axis], end[axis], strides[axis]) = (from, to, steps[i]);
    }
    let (begin, end) = (cx.packed(&begin)?, cx.packed(&end)?);
    let y = op!(cx.em, "StridedSlice", x, begin, end, strides; "begin_mask" => begin_mask, "end_mask" => end_mask)?;
    like(cx, x, y)
}

/// A slice whose axes or steps only a step computes: begin, end and stride of every axis are.
fn open_slice(cx: &mut Cx, n: &Node, x: Output, rank: usize) -> Result<Vec<Value>> {
    let mut lists = Vec::new();
    let shape = cx.shape_of(x)?;
    let (zeros, ones) = (cx.ints(&vec![0; rank])?, cx.ints(&vec![1; rank])?);
    let starts = n.input(1)?;
    let places = match n.maybe(3)? {
        Some(axes) => cx.open_axes(axes, rank)?,
        None => {
            let count = cx.size(starts, 0)?;
            let range = cx.range(count)?;
            cx.unsqueeze(range, &[1])?
        }
    };
    for (all, own) in [(zeros, Some(starts)), (shape, Some(n.input(2)?)), (ones, n.maybe(4)?)] {
        lists.push(match own {
            Some(own) => {
                let own = cx.long(own)?;
                op!(cx.em, "TensorScatterUpdate", all, places, own)?
            }
            None => all,
        });
    }
    let y = op!(cx.em, "StridedSlice", x, lists[0], lists[1], lists[2])?;
    let y = cx.of_rank(y, rank)?;
    like(cx, x, y)
}

fn compress(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (mut x, condition) = (n.input(0)?, n.input(1)?);
    let axis = match n.maybe_int("axis") {
        Some(axis) => {
            let rank = cx.em.rank(x)?;
            cx.axis(axis, rank)?
        }
        None => {
            x = op!(cx.em, "Reshape", x, [-1i64])?;
            0
        }
    };
    let places = op!(cx.em, "Where", condition)?;
    let places = op!(cx.em, "Reshape", places, [-1i64])?;
    one(op!(cx.em, "GatherV2", x, places, axis as i64)?)
}

fn non_zero(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let mut x = n.input(0)?;
    if cx.em.rank(x)? == 0 {
        x = cx.reshape(x, &[Size::Known(1)])?;
        let places = op!(cx.em, "Where", x)?;
        // A scalar has no axes: as many columns as it has elements that are not zero, and no rows.
        let none = cx.slice(places, 1, Size::Known(0), Some(Size::Known(0)))?;
        return one(cx.transpose(none, &[1, 0])?);
    }
    let places = op!(cx.em, "Where", x)?;
    one(cx.transpose(places, &[1, 0])?)
}

fn one_hot(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (indices, depth, values) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let rank = cx.em.rank(indices)? + 1;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let depth = if cx.em.rank(depth)? > 0 { cx.reshape(depth, &[])? } else { depth };
    let depth = cx.long(depth)?;
    let indices = cx.long(indices)?;
    let is_negative = op!(cx.em, "Less", indices, 0i64)?;
    let from_end = op!(cx.em, "AddV2", indices, depth)?;
    let indices = op!(cx.em, "SelectV2", is_negative, from_end, indices)?;
    let depth = cx.cast(depth, DType::I32)?;
    let (off, on) = (op!(cx.em, "GatherV2", values, 0i64, 0i64)?, op!(cx.em, "GatherV2", values, 1i64, 0i64)?);
    one(op!(cx.em, "OneHot", indices, depth, on, off; "axis" => axis as i64)?)
}

fn reverse_sequence(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, lengths) = (n.input(0)?, n.input(1)?);
    let (batch, time) = (n.int("batch_axis", 1), n.int("time_axis", 0));
    one(op!(cx.em, "ReverseSequence", x, lengths; "batch_dim" => batch, "seq_dim" => time)?)
}

/// Rows of a cache are overwritten from an index on, one for each element of the batch.
fn tensor_scatter(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (past, update) = (n.input(0)?, n.input(1)?);
    let rank = cx.em.rank(past)?;
    let axis = cx.axis(n.int("axis", -2), rank)?;
    let (sizes, batch) = (cx.sizes(update)?, cx.size(past, 0)?);
    let whole = cx.size(past, axis)?;
    let starts = match n.maybe(2)? {
        Some(starts) => cx.long(starts)?,
        None => {
            let shape = cx.packed(&[batch])?;
            cx.fill(shape, 0.0, DType::I64)?
        }
    };
    let range = cx.range(sizes[axis])?;
    let starts = cx.unsqueeze(starts, &[1])?;
    let mut rows = op!(cx.em, "AddV2", starts, range)?;
    if n.str("mode", "linear")? == "circular" {
        let whole = cx.scalar(whole)?;
        rows = op!(cx.em, "FloorMod", rows, whole)?;
    }
    // The batch and the axis come first; the rest of a row is one slice.
    let order: Vec<usize> = [0, axis].into_iter().chain((1..rank).filter(|&own| own != axis)).collect();
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    let (past, update) = (cx.transpose(past, &order)?, cx.transpose(update, &order)?);
    let batches = cx.range(batch)?;
    let batches = cx.unsqueeze(batches, &[1])?;
    let shape = cx.shape_of(rows)?;
    let batches = op!(cx.em, "BroadcastTo", batches, shape)?;
    let places = op!(cx.em, "Pack", batches, rows; "axis" => 2i64)?;
    let y = op!(cx.em, "TensorScatterUpdate", past, places, update)?;
    one(cx.transpose(y, &back)?)
}

fn top_k(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let k = match n.maybe(1)? {
        Some(k) => cx.reshape(k, &[])?,
        None => cx.em.constant(Tensor::scalar(n.int("k", 1)))?,
    };
    let largest = n.flag("largest", true);
    let (mut moved, back) = cx.moved_last(x, axis)?;
    let dtype = cx.em.dtype(x);
    // The smallest are the largest of the complements.
    if !largest {
        moved = if dtype.is_integer() { op!(cx.em, "Invert", moved)? } else { op!(cx.em, "Neg", moved)? };
    }
    let args = vec![moved.into(), k.into()];
    let attrs = [("sorted", n.flag("sorted", true).into()), ("index_type", DType::I64.into())];
    let outputs = cx.em.many("TopKV2", args, &attrs, 2)?;
    let mut values = outputs[0];
    if !largest {
        values = if dtype.is_integer() { op!(cx.em, "Invert", values)? } else { op!(cx.em, "Neg", values)? };
    }
    let (values, at) = (cx.transpose(values, &back)?, cx.transpose(outputs[1], &back)?);
    Ok(vec![values.into(), at.into()])
}

/// The unique elements, or slices along an axis, in their order or sorted.
fn unique(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let (x, axis) = match n.maybe_int("axis") {
        Some(axis) => (x, cx.axis(axis, rank)?),
        None => (op!(cx.em, "Reshape", x, [-1i64])?, 0),
    };
    let args = vec![x.into(), crate::emit::Arg::from([axis as i64])];
    let outputs = cx.em.many("UniqueWithCountsV2", args, &[("out_idx", DType::I64.into())], 3)?;
    let (values, inverse, counts) = (outputs[0], outputs[1], outputs[2]);
    // The first place of each: the least index of its members.
    let shape = cx.shape_of(inverse)?;
    let total = op!(cx.em, "GatherV2", shape, 0i64, 0i64)?;
    let range = op!(cx.em, "Range", 0i64, total, 1i64)?;
    let found = cx.shape_of(counts)?;
    let found = op!(cx.em, "GatherV2", found, 0i64, 0i64)?;
    let first = op!(cx.em, "UnsortedSegmentMin", range, inverse, found)?;
    if !n.flag("sorted", true) {
        return Ok(vec![values.into(), first.into(), inverse.into(), counts.into()]);
    }
    let order = sorted_order(cx, x, values, axis)?;
    let values = op!(cx.em, "GatherV2", values, order, axis as i64)?;
    let first = op!(cx.em, "GatherV2", first, order, 0i64)?;
    let counts = op!(cx.em, "GatherV2", counts, order, 0i64)?;
    let rank_of = op!(cx.em, "InvertPermutation", order)?;
    let inverse = op!(cx.em, "GatherV2", rank_of, inverse, 0i64)?;
    Ok(vec![values.into(), first.into(), inverse.into(), counts.into()])
}

/// The order that sorts slices along an axis, by their elements one after another.
fn sorted_order(cx: &mut Cx, from: Output, x: Output, axis: usize) -> Result<Output> {
    let rank = cx.em.rank(from)?;
    let x = cx.of_rank(x, rank)?;
    let ascending = |cx: &mut Cx, keys: Output| -> Result<Output> {
        let shape = cx.shape_of(keys)?;
        let count = op!(cx.em, "GatherV2", shape, 0i64, 0i64)?;
        let keys = if cx.em.dtype(keys).is_integer() { op!(cx.em, "Invert", keys)? } else { op!(cx.em, "Neg", keys)? };
        let attrs = [("index_type", DType::I64.into())];
        // Equal keys stay in their order.
        Ok(cx.em.many("TopKV2", vec![keys.into(), count.into()], &attrs, 2)?[1])
    };
    if rank == 1 {
        return ascending(cx, x);
    }
    // Sorted by the last element first, then by those before it, each time keeping the order of equal ones.
    let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&own| own != axis)).collect();
    let rows = cx.transpose(x, &order)?;
    let inner: Option<usize> = (0..rank).filter(|&own| own != axis).map(|own| cx.em.size(from, own)).product();
    let inner = inner.filter(|&inner| inner <= 256);
    let inner = inner.ok_or_else(|| {
        unsupported("unsupported: sorted unique slices of more than 256 elements, or of an unknown number")
    })?;
    let rows = op!(cx.em, "Reshape", rows, [-1i64, inner as i64])?;
    let shape = cx.shape_of(rows)?;
    let count = op!(cx.em, "GatherV2", shape, 0i64, 0i64)?;
    let mut all = op!(cx.em, "Range", 0i64, count, 1i64)?;
    for column in (0..inner).rev() {
        let keys = op!(cx.em, "GatherV2", rows, column as i64, 1i64)?;
        let keys = op!(cx.em, "GatherV2", keys, all, 0i64)?;
        let next = ascending(cx, keys)?;
        all = op!(cx.em, "GatherV2", all, next, 0i64)?;
    }
    Ok(all)
}
