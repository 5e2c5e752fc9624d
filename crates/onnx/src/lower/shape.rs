//! Constants, shapes, and ops that arrange elements in another shape or order.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("Concat", 1, concat),
    onnx("Constant", 1, constant),
    onnx("ConstantOfShape", 9, constant_of_shape),
    onnx("DepthToSpace", 1, depth_to_space),
    onnx("Expand", 8, expand),
    onnx("EyeLike", 9, eye_like),
    onnx("Flatten", 1, flatten),
    onnx("Identity", 1, identity),
    onnx("Range", 11, range),
    onnx("Reshape", 1, reshape),
    onnx("Shape", 1, shape),
    onnx("Size", 1, size),
    onnx("SpaceToDepth", 1, space_to_depth),
    onnx("Split", 1, split),
    onnx("Squeeze", 1, squeeze),
    onnx("Tile", 1, tile),
    onnx("Transpose", 1, transpose),
    onnx("Trilu", 14, trilu),
    onnx("Unsqueeze", 1, unsqueeze),
];

fn constant(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (value, elem) = if let Some(proto) = n.tensor_attr("value") {
        cx.weight(proto)?
    } else if let Some(proto) = n.attr("sparse_value").and_then(|attr| attr.sparse_tensor.as_deref()) {
        crate::weight::sparse(proto, None)?
    } else {
        let text = |bytes: &prost::bytes::Bytes| bytes.to_vec();
        let value = if let Some(attr) = n.attr("value_float") {
            Tensor::scalar(attr.f.unwrap_or(0.0))
        } else if let Some(attr) = n.attr("value_int") {
            Tensor::scalar(attr.i.unwrap_or(0))
        } else if let Some(values) = n.floats("value_floats") {
            Tensor::vector(values.to_vec())
        } else if let Some(values) = n.ints("value_ints") {
            Tensor::vector(values.to_vec())
        } else if let Some(attr) = n.attr("value_string") {
            Tensor::scalar(attr.s.as_ref().map(text).unwrap_or_default())
        } else if let Some(attr) = n.attr("value_strings") {
            Tensor::vector(attr.strings.iter().map(text).collect::<Vec<_>>())
        } else {
            return Err(Failure::invalid("it states no value"));
        };
        let elem = Elem::of(value.dtype());
        (value, elem)
    };
    let name = cx.em.scope().to_owned();
    one(cx.held_constant(&format!("{name}/Const"), value, elem)?)
}

fn constant_of_shape(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let shape = n.input(0)?;
    let (value, elem) = match n.tensor_attr("value") {
        Some(proto) => cx.weight(proto)?,
        None => (Tensor::vector(vec![0f32]), Elem::FLOAT),
    };
    let value = value.reshaped(meshtf_tensor::Shape::scalar())?;
    let filled = op!(cx.em, "Fill", shape, value)?;
    one(cx.em.with_elem(filled, elem)?)
}

fn identity(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    match n.value(0) {
        Some(Value::Tensor(x)) => {
            let elem = cx.em.elem(*x);
            let y = op!(cx.em, "Identity", *x)?;
            cx.em.set_elem(y, elem);
            one(y)
        }
        Some(other) => Ok(vec![other.clone()]),
        None => Err(Failure::invalid("input 0 is missing")),
    }
}

/// Keeps the element type of the input, which the dtype may not tell.
pub fn like(cx: &mut Cx, x: Output, y: Output) -> Result<Vec<Value>> {
    let elem = cx.em.elem(x);
    let y = if elem.is_held() { cx.em.with_elem(y, elem)? } else { y };
    one(y)
}

fn shape(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (start, end) = (n.int("start", 0), n.maybe_int("end"));
    let shape = cx.shape_of(x)?;
    if start == 0 && end.is_none() {
        return one(shape);
    }
    let rank = cx.em.rank(x)? as i64;
    let limit = |at: i64| if at < 0 { at + rank } else { at }.clamp(0, rank);
    let (start, end) = (limit(start), limit(end.unwrap_or(rank)));
    one(cx.slice(shape, 0, Size::Known(start), Some(Size::Known(end.max(start))))?)
}

fn size(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(op!(cx.em, "Size", x; "out_type" => DType::I64)?)
}

/// A 0 in the shape stands for the size of the input along that axis.
fn reshape(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let target = match n.ints("shape").filter(|_| n.version < 5) {
        Some(shape) => cx.ints(shape)?,
        None => n.input(1)?,
    };
    if n.flag("allowzero", false) {
        let y = op!(cx.em, "Reshape", x, target)?;
        return like(cx, x, y);
    }
    let y = match cx.em.some_ints(target) {
        // Only a 0 that is stated can be such a 0: a size that is computed is that of another tensor.
        Some(sizes)
            if sizes.iter().all(|size| size.is_some())
                || sizes.iter().all(|size| *size != Some(0)) && is_of_sizes(cx, target) =>
        {
            if sizes.contains(&Some(0)) {
                let stated: Vec<Size> = sizes
                    .iter()
                    .enumerate()
                    .map(|(axis, size)| match size {
                        Some(0) => cx.size(x, axis),
                        size => Ok(Size::Known(size.unwrap_or(-1))),
                    })
                    .collect::<Result<_>>()?;
                let has_open = stated.iter().any(|size| matches!(size, Size::Known(-1)));
                if has_open {
                    let shape = cx.packed(&stated)?;
                    op!(cx.em, "Reshape", x, shape)?
                } else {
                    cx.reshape(x, &stated)?
                }
            } else {
                op!(cx.em, "Reshape", x, target)?
            }
        }
        _ => {
            let Some(count) = cx.em.size(target, 0) else {
                let y = op!(cx.em, "Reshape", x, target)?;
                return like(cx, x, y);
            };
            let own = cx.shape_of(x)?;
            let rank = cx.em.rank(x)?;
            let own = match rank.cmp(&count) {
                std::cmp::Ordering::Less => cx.pad(own, &[(0, (count - rank) as i64)], None)?,
                _ => cx.slice(own, 0, Size::Known(0), Some(count.into()))?,
            };
            let target = cx.long(target)?;
            let is_zero = op!(cx.em, "Equal", target, 0i64)?;
            let target = op!(cx.em, "SelectV2", is_zero, own, target)?;
            op!(cx.em, "Reshape", x, target)?
        }
    };
    like(cx, x, y)
}

/// Whether the elements of a vector that are not known are sizes of tensors, as far as its node tells.
fn is_of_sizes(cx: &Cx, target: Output) -> bool {
    let graph = cx.em.graph();
    let node = graph.node(target.node);
    match node.op.name {
        "Shape" => true,
        "ConcatV2" | "Pack" | "ExpandDims" | "Reshape" | "Squeeze" | "Cast" | "GatherV2" | "StridedSlice" | "Slice"
        | "Identity" => {
            let inputs = match node.op.name {
                "ConcatV2" => &node.inputs[..node.inputs.len() - 1],
                "Pack" => &node.inputs[..],
                _ => &node.inputs[..1],
            };
            inputs.iter().all(|&input| cx.em.known(input).is_some() || is_of_sizes(cx, input))
        }
        _ => false,
    }
}

fn flatten(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let sizes = cx.sizes(x)?;
    let axis = n.int("axis", 1);
    let axis = usize::try_from(if axis < 0 { axis + sizes.len() as i64 } else { axis }).unwrap_or(usize::MAX);
    if axis > sizes.len() {
        return Err(Failure::invalid(format!("axis {axis} is not one of a tensor of rank {}", sizes.len())));
    }
    let (outer, inner) = (cx.product(&sizes[..axis])?, cx.product(&sizes[axis..])?);
    let y = cx.reshape(x, &[outer, inner])?;
    like(cx, x, y)
}

fn expand(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, shape) = (n.input(0)?, n.input(1)?);
    let own = cx.shape_of(x)?;
    let shape = cx.long(shape)?;
    let target = match (cx.em.ints(own), cx.em.ints(shape)) {
        (Some(own), Some(shape)) => {
            let sizes = |shape: &[i64]| meshtf_tensor::Shape::from_i64s(shape);
            let both = sizes(&own)?.broadcast(&sizes(&shape)?)?;
            cx.ints(&both.dims().iter().map(|&size| size as i64).collect::<Vec<_>>())?
        }
        _ => op!(cx.em, "BroadcastArgs", own, shape)?,
    };
    let y = op!(cx.em, "BroadcastTo", x, target)?;
    like(cx, x, y)
}

fn transpose(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let x = match n.ints("perm") {
        Some(order) if cx.em.dims(x).is_none() => cx.of_rank(x, order.len())?,
        _ => x,
    };
    let rank = cx.em.rank(x)?;
    let order: Vec<usize> = match n.ints("perm") {
        Some(order) => cx.axes(order, rank)?,
        None => (0..rank).rev().collect(),
    };
    let mut seen = vec![false; rank];
    if order.len() != rank || order.iter().any(|&axis| std::mem::replace(&mut seen[axis], true)) {
        return Err(Failure::invalid(format!("perm is no order of the axes of a tensor of rank {rank}")));
    }
    let y = cx.transpose(x, &order)?;
    like(cx, x, y)
}

fn concat(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let parts = n.all()?;
    let first = *parts.first().ok_or_else(|| Failure::invalid("it takes at least one input"))?;
    let axis = if n.version < 4 { n.int("axis", 1) } else { n.int("axis", 0) };
    if let [only] = parts[..] {
        let y = op!(cx.em, "Identity", only)?;
        return like(cx, only, y);
    }
    let axis = match parts.iter().find_map(|&part| cx.em.dims(part)) {
        Some(dims) => cx.axis(axis, dims.len())? as i64,
        None => axis,
    };
    let args = parts.iter().map(|&part| part.into()).chain([axis.into()]).collect();
    let y = cx.em.add("ConcatV2", args, &[])?;
    like(cx, first, y)
}

fn split(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", 0), rank)?;
    let count = n.outputs();
    let stated = match n.maybe(1)? {
        Some(sizes) => Some(sizes),
        None => match n.ints("split") {
            Some(sizes) => Some(cx.ints(sizes)?),
            None => None,
        },
    };
    if let Some(sizes) = stated {
        if count == 1 {
            return like(cx, x, x);
        }
        let args = vec![x.into(), sizes.into(), (axis as i32).into()];
        let parts = cx.em.many("SplitV", args, &[("num_split", (count as i64).into())], count)?;
        return each(cx, x, parts);
    }
    let count = usize::try_from(n.int("num_outputs", count as i64)).unwrap_or(0);
    if count == 0 || count > 1 << 16 {
        return Err(Failure::invalid(format!("num_outputs is {count}")));
    }
    if let Some(size) = cx.em.size(x, axis).filter(|size| size % count != 0) {
        // The last part is smaller.
        let part = size.div_ceil(count);
        let sizes: Vec<i64> = (0..count).map(|i| size.saturating_sub(i * part).min(part) as i64).collect();
        let sizes = cx.ints(&sizes)?;
        let args = vec![x.into(), sizes.into(), (axis as i32).into()];
        let parts = cx.em.many("SplitV", args, &[("num_split", (count as i64).into())], count)?;
        return each(cx, x, parts);
    }
    let parts = cx.split(x, axis, count)?;
    each(cx, x, parts)
}

fn each(cx: &mut Cx, x: Output, parts: Vec<Output>) -> Result<Vec<Value>> {
    parts.into_iter().map(|part| like(cx, x, part).map(|mut one| one.remove(0))).collect()
}

/// The axes of Squeeze and Unsqueeze, as an attribute or an input.
enum Axes {
    All,
    Known(Vec<i64>),
    /// A vector that a step computes, of so many axes.
    Open(Output, usize),
}

fn stated_axes(cx: &mut Cx, n: &Node) -> Result<Axes> {
    let Some(axes) = n.maybe(1)? else {
        return Ok(n.ints("axes").map_or(Axes::All, |axes| Axes::Known(axes.to_vec())));
    };
    match (cx.em.ints(axes), cx.em.dims(axes).as_deref()) {
        (Some(known), _) => Ok(Axes::Known(known)),
        (None, Some([])) => Ok(Axes::Open(axes, 1)),
        (None, Some([Some(count)])) => Ok(Axes::Open(axes, *count)),
        _ => Err(unsupported("unsupported: a number of axes that only a step computes")),
    }
}

/// 1 at the places of some axes, and 0 at the others.
fn marked(cx: &mut Cx, axes: Output, count: usize, rank: usize) -> Result<Output> {
    let places = cx.open_axes(axes, rank)?;
    op!(cx.em, "ScatterNd", places, vec![1i64; count], [rank as i64])
}

fn squeeze(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let y = match stated_axes(cx, n)? {
        Axes::Known(axes) if cx.em.dims(x).is_none() && !axes.is_empty() => {
            op!(cx.em, "Squeeze", x; "squeeze_dims" => axes)?
        }
        Axes::Known(axes) => {
            let axes = cx.axes(&axes, cx.em.rank(x)?)?;
            cx.squeeze(x, &axes)?
        }
        Axes::Open(axes, count) => {
            let rank = cx.em.rank(x)?;
            let marks = marked(cx, axes, count, rank)?;
            let stays = op!(cx.em, "Equal", marks, 0i64)?;
            let places = op!(cx.em, "Where", stays)?;
            let places = op!(cx.em, "Reshape", places, [-1i64])?;
            let shape = cx.shape_of(x)?;
            let shape = op!(cx.em, "GatherV2", shape, places, 0i64)?;
            let y = op!(cx.em, "Reshape", x, shape)?;
            cx.of_rank(y, rank.saturating_sub(count))?
        }
        Axes::All => match cx.static_shape(x) {
            Ok(shape) => {
                let axes: Vec<usize> = (0..shape.rank()).filter(|&axis| shape.dims()[axis] == 1).collect();
                cx.squeeze(x, &axes)?
            }
            // Those that are 1 in a step go, and the rank is open.
            Err(_) => op!(cx.em, "Squeeze", x)?,
        },
    };
    if y == x { identity(cx, n) } else { like(cx, x, y) }
}

fn unsqueeze(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let axes = match stated_axes(cx, n)? {
        Axes::All => return Err(Failure::invalid("it states no axes")),
        Axes::Known(axes) => axes,
        Axes::Open(axes, count) => {
            let rank = cx.em.rank(x)? + count;
            let marks = marked(cx, axes, count, rank)?;
            // The number of old axes before each new one.
            let old = op!(cx.em, "Sub", 1.0, marks)?;
            let places = op!(cx.em, "Cumsum", old, 0i64)?;
            let places = op!(cx.em, "Sub", places, 1i64)?;
            let places = op!(cx.em, "Maximum", places, 0i64)?;
            // A scalar has no axes; one more size is taken nowhere.
            let shape = cx.shape_of(x)?;
            let shape = cx.pad(shape, &[(0, 1)], None)?;
            let sizes = op!(cx.em, "GatherV2", shape, places, 0i64)?;
            let is_new = op!(cx.em, "Equal", marks, 1i64)?;
            let single = cx.em.constant(Tensor::scalar(1i64))?;
            let sizes = op!(cx.em, "SelectV2", is_new, single, sizes)?;
            let y = op!(cx.em, "Reshape", x, sizes)?;
            let y = cx.of_rank(y, rank)?;
            return like(cx, x, y);
        }
    };
    let axes = match cx.em.dims(x) {
        Some(dims) => cx.axes(&axes, dims.len() + axes.len())?,
        None if axes.len() == 1 => {
            let y = op!(cx.em, "ExpandDims", x, axes[0])?;
            return like(cx, x, y);
        }
        None => axes.iter().map(|&axis| cx.axis_of(x, axis)).collect::<Result<Vec<_>>>()?,
    };
    let y = cx.unsqueeze(x, &axes)?;
    like(cx, x, y)
}

fn tile(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, times) = (n.input(0)?, n.input(1)?);
    let y = op!(cx.em, "Tile", x, times)?;
    like(cx, x, y)
}

fn range(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let mut bounds = Vec::new();
    for i in 0..3 {
        let bound = n.input(i)?;
        bounds.push(if cx.em.rank(bound)? > 0 { cx.reshape(bound, &[])? } else { bound });
    }
    one(op!(cx.em, "Range", bounds[0], bounds[1], bounds[2])?)
}

fn eye_like(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let elem = n.maybe_int("dtype").map_or(cx.em.elem(x), |to| Elem(i32::try_from(to).unwrap_or(0)));
    let dtype = elem.dtype()?;
    let k = n.int("k", 0);
    let sizes = cx.sizes(x)?;
    let [rows, columns] = sizes[..] else { return Err(Failure::invalid("its input is not a matrix")) };
    let (rows, columns) = (cx.range(rows)?, cx.range(columns)?);
    let rows = cx.unsqueeze(rows, &[1])?;
    let rows = op!(cx.em, "AddV2", rows, k)?;
    let same = op!(cx.em, "Equal", rows, columns)?;
    let y = cx.cast(same, dtype)?;
    one(cx.em.with_elem(y, elem)?)
}

fn trilu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let upper = n.flag("upper", true);
    let k = match n.maybe(1)? {
        Some(k) if cx.em.rank(k)? > 0 => cx.reshape(k, &[])?,
        Some(k) => k,
        None => cx.em.constant(Tensor::scalar(0i64))?,
    };
    let rank = cx.em.rank(x)?;
    if rank < 2 {
        return Err(Failure::invalid("its input has fewer than two axes"));
    }
    let (rows, columns) = (cx.size(x, rank - 2)?, cx.size(x, rank - 1)?);
    let (rows, columns) = (cx.range(rows)?, cx.range(columns)?);
    let rows = cx.unsqueeze(rows, &[1])?;
    let rows = op!(cx.em, "AddV2", rows, k)?;
    let keeps = op!(cx.em, if upper { "GreaterEqual" } else { "LessEqual" }, columns, rows)?;
    let zero = match cx.em.dtype(x) {
        DType::Bool => cx.em.constant(Tensor::scalar(false))?,
        dtype => cx.em.number(0.0, dtype)?,
    };
    let y = op!(cx.em, "SelectV2", keeps, x, zero)?;
    like(cx, x, y)
}

fn block(n: &Node) -> Result<i64> {
    match n.int("blocksize", 0) {
        size @ 1.. => Ok(size),
        size => Err(Failure::invalid(format!("blocksize is {size}"))),
    }
}

fn depth_to_space(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, block) = (n.input(0)?, block(n)?);
    let sizes = cx.sizes(x)?;
    let [batch, depth, height, width] = sizes[..] else { return Err(Failure::invalid("its input is not of rank 4")) };
    let b = Size::Known(block);
    let depth = cx.compute("FloorDiv", depth, Size::Known(block * block))?;
    let (tall, wide) = (cx.compute("Mul", height, b)?, cx.compute("Mul", width, b)?);
    let (parts, order): (_, [usize; 6]) = match n.str("mode", "DCR")? {
        "CRD" => ([batch, depth, b, b, height, width], [0, 1, 4, 2, 5, 3]),
        _ => ([batch, b, b, depth, height, width], [0, 3, 4, 1, 5, 2]),
    };
    let y = cx.reshape(x, &parts)?;
    let y = cx.transpose(y, &order)?;
    one(cx.reshape(y, &[batch, depth, tall, wide])?)
}

fn space_to_depth(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, block) = (n.input(0)?, block(n)?);
    let sizes = cx.sizes(x)?;
    let [batch, depth, height, width] = sizes[..] else { return Err(Failure::invalid("its input is not of rank 4")) };
    let b = Size::Known(block);
    let (low, narrow) = (cx.compute("FloorDiv", height, b)?, cx.compute("FloorDiv", width, b)?);
    let deep = cx.compute("Mul", depth, Size::Known(block * block))?;
    let y = cx.reshape(x, &[batch, depth, low, b, narrow, b])?;
    let order: [usize; 6] = if n.str("mode", "DCR")? == "CRD" { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    let y = cx.transpose(y, &order)?;
    one(cx.reshape(y, &[batch, deep, low, narrow])?)
}
