//! Resizing along some axes: the coordinates of the results in the input, and the elements there or between them.
//!
//! Coordinates are computed by nodes, in float64. Where all sizes are known while the model is read, they become constants.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[onnx("Resize", 10, resize), onnx("Upsample", 7, resize)];

/// The way in which a tensor is resized along one axis.
struct Along<'a> {
    /// The number of elements, a float64 scalar.
    own: Output,
    /// The new number by the old one, or as stated; float64.
    scale: Output,
    /// The coordinates of the results, float64.
    at: Output,
    n: &'a Node<'a>,
}

fn wide(cx: &mut Cx, size: Size) -> Result<Output> {
    let size = cx.scalar(size)?;
    cx.cast(size, DType::F64)
}

/// Elements of a vector, each if it is stated for the axes.
fn element(cx: &mut Cx, vector: Output, i: usize, dtype: DType) -> Result<Output> {
    let value = op!(cx.em, "GatherV2", vector, i as i64, 0i64)?;
    cx.cast(value, dtype)
}

fn resize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let is_new = n.proto.op_type == "Resize" && n.version >= 11;
    let axes = match n.ints("axes") {
        Some(axes) => cx.axes(axes, rank)?,
        None => (0..rank).collect(),
    };
    let (scales, sizes) = if is_new {
        // An input without elements is one that is left out.
        let given = |cx: &Cx, i: usize| -> Result<Option<Output>> {
            Ok(n.maybe(i)?.filter(|&input| cx.em.size(input, 0) != Some(0)))
        };
        (given(cx, 2)?, given(cx, 3)?)
    } else {
        let scales = match n.floats("scales") {
            Some(scales) => cx.em.constant(Tensor::vector(scales.to_vec()))?,
            None => n.input(1)?,
        };
        (Some(scales), None)
    };
    // The scale and the new size of each axis.
    let mut new: Vec<(Size, Output)> = Vec::new();
    if let Some(sizes) = sizes {
        let sizes = cx.long(sizes)?;
        let mut ratios = Vec::new();
        for (i, &axis) in axes.iter().enumerate() {
            let size = match cx.em.some_ints(sizes).and_then(|all| all.get(i).copied().flatten()) {
                Some(size) => Size::Known(size),
                None => Size::Of(op!(cx.em, "GatherV2", sizes, i as i64, 0i64)?),
            };
            let own = cx.size(x, axis)?;
            let (to, from) = (wide(cx, size)?, wide(cx, own)?);
            ratios.push(op!(cx.em, "RealDiv", to, from)?);
            new.push((size, ratios[i]));
        }
        let policy = n.str("keep_aspect_ratio_policy", "stretch")?;
        if policy != "stretch" {
            let name = if policy == "not_larger" { "Minimum" } else { "Maximum" };
            let Some((&first, rest)) = ratios.split_first() else { return Err(Failure::invalid("it has no axes")) };
            let scale = rest.iter().try_fold(first, |scale, &ratio| op!(cx.em, name, scale, ratio))?;
            for (entry, &axis) in new.iter_mut().zip(&axes) {
                let own = cx.size(x, axis)?;
                let own = wide(cx, own)?;
                let size = op!(cx.em, "Mul", own, scale)?;
                let size = op!(cx.em, "AddV2", size, 0.5)?;
                let size = op!(cx.em, "Floor", size)?;
                *entry = (known(cx, size)?, scale);
            }
        }
    } else {
        let scales = scales.ok_or_else(|| Failure::invalid("it states neither scales nor sizes"))?;
        for (i, &axis) in axes.iter().enumerate() {
            let scale = element(cx, scales, i, DType::F32)?;
            let own = cx.size(x, axis)?;
            let size = if cx.em.floats(scale).is_some_and(|all| all == [1.0]) {
                own
            } else {
                let own = cx.scalar(own)?;
                let own = cx.cast(own, DType::F32)?;
                let size = op!(cx.em, "Mul", own, scale)?;
                let size = op!(cx.em, "Floor", size)?;
                known(cx, size)?
            };
            new.push((size, cx.cast(scale, DType::F64)?));
        }
    }
    let dtype = cx.em.dtype(x);
    let mode = n.str("mode", "nearest")?;
    let is_nearest = mode == "nearest";
    // The rest is a computation with shares of elements.
    let mut y = if is_nearest || dtype.is_float() { x } else { cx.cast(x, DType::F32)? };
    let mut outside: Option<Output> = None;
    for (i, &axis) in axes.iter().enumerate() {
        let own = cx.size(x, axis)?;
        let (size, scale) = new[i];
        let is_same = matches!((own, size), (Size::Known(a), Size::Known(b)) if a == b);
        if is_same
            && cx.em.floats(scale).is_some_and(|all| all == [1.0])
            && n.str("coordinate_transformation_mode", "")? != "tf_crop_and_resize"
        {
            continue;
        }
        let at = coordinates(cx, n, own, size, scale, (i, axes.len()), (is_new, sizes.is_some()))?;
        let own_wide = wide(cx, own)?;
        let along = Along { own: own_wide, scale, at, n };
        y = match mode {
            "nearest" => nearest(cx, y, axis, &along, is_new)?,
            "linear" if !n.flag("antialias", false) => linear(cx, y, axis, &along)?,
            "linear" | "cubic" => by_matrix(cx, y, axis, own, &along, mode == "cubic")?,
            other => return Err(Failure::invalid(format!("mode is {other:?}; it must be nearest, linear or cubic"))),
        };
        if n.str("coordinate_transformation_mode", "")? == "tf_crop_and_resize" {
            let low = op!(cx.em, "Less", along.at, 0.0)?;
            let last = op!(cx.em, "Sub", along.own, 1.0)?;
            let high = op!(cx.em, "Greater", along.at, last)?;
            let own = op!(cx.em, "LogicalOr", low, high)?;
            let own = cx.unsqueeze(own, &(1..rank - axis).collect::<Vec<_>>())?;
            outside = Some(match outside {
                None => own,
                Some(other) => op!(cx.em, "LogicalOr", other, own)?,
            });
        }
    }
    if let Some(outside) = outside {
        let value = cx.em.number(n.float("extrapolation_value", 0.0).into(), cx.em.dtype(y))?;
        y = op!(cx.em, "SelectV2", outside, value, y)?;
    }
    if cx.em.dtype(y) != dtype {
        y = if dtype.is_integer() { rounded(cx, y, dtype)? } else { cx.cast(y, dtype)? };
    }
    if y == x { one(op!(cx.em, "Identity", x)?) } else { one(y) }
}

/// Shares of integers are cut off, after what does not fit is limited.
fn rounded(cx: &mut Cx, y: Output, dtype: DType) -> Result<Output> {
    let (low, high) = match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        _ => return cx.cast(y, dtype),
    };
    let y = op!(cx.em, "Maximum", y, low)?;
    let y = op!(cx.em, "Minimum", y, high)?;
    cx.cast(y, dtype)
}

/// A float as a size.
fn known(cx: &mut Cx, size: Output) -> Result<Size> {
    let size = cx.long(size)?;
    Ok(match cx.em.ints(size).as_deref() {
        Some([size]) => Size::Known(*size),
        _ => Size::Of(size),
    })
}

/// The coordinates in the input of the results along an axis.
fn coordinates(
    cx: &mut Cx,
    n: &Node,
    own: Size,
    new: Size,
    scale: Output,
    (i, count): (usize, usize),
    (is_new, has_sizes): (bool, bool),
) -> Result<Output> {
    let range = cx.range(new)?;
    let x = cx.cast(range, DType::F64)?;
    let half = |cx: &mut Cx| -> Result<Output> {
        let at = op!(cx.em, "AddV2", x, 0.5)?;
        op!(cx.em, "RealDiv", at, scale)
    };
    // By scales, the new size is the product before it is rounded.
    let own = wide(cx, own)?;
    let last = if has_sizes { wide(cx, new)? } else { op!(cx.em, "Mul", own, scale)? };
    let steps = op!(cx.em, "Sub", last, 1.0)?;
    let extent = op!(cx.em, "Sub", own, 1.0)?;
    let mode = if is_new { n.str("coordinate_transformation_mode", "half_pixel")? } else { "asymmetric" };
    match mode {
        "half_pixel" => {
            let at = half(cx)?;
            op!(cx.em, "Sub", at, 0.5)
        }
        "half_pixel_symmetric" => {
            let ideal = op!(cx.em, "Mul", own, scale)?;
            let whole = wide(cx, new)?;
            let adjustment = op!(cx.em, "RealDiv", whole, ideal)?;
            let rest = op!(cx.em, "Sub", 1.0, adjustment)?;
            let centre = op!(cx.em, "Mul", own, 0.5)?;
            let offset = op!(cx.em, "Mul", centre, rest)?;
            let at = half(cx)?;
            let at = op!(cx.em, "Sub", at, 0.5)?;
            op!(cx.em, "AddV2", at, offset)
        }
        "pytorch_half_pixel" => {
            let at = half(cx)?;
            let at = op!(cx.em, "Sub", at, 0.5)?;
            let several = op!(cx.em, "Greater", last, 1.0)?;
            let zero = cx.em.number(0.0, DType::F64)?;
            op!(cx.em, "SelectV2", several, at, zero)
        }
        "align_corners" => {
            let steps = op!(cx.em, "Maximum", steps, 1.0)?;
            let at = op!(cx.em, "Mul", x, extent)?;
            op!(cx.em, "RealDiv", at, steps)
        }
        "asymmetric" => op!(cx.em, "RealDiv", x, scale),
        "tf_half_pixel_for_nn" => half(cx),
        "tf_crop_and_resize" => {
            let roi = n.input(1)?;
            let (start, end) = (element(cx, roi, i, DType::F64)?, element(cx, roi, count + i, DType::F64)?);
            let from = op!(cx.em, "Mul", start, extent)?;
            let span = op!(cx.em, "Sub", end, start)?;
            let span = op!(cx.em, "Mul", span, extent)?;
            let several = op!(cx.em, "Greater", last, 1.0)?;
            let steps = op!(cx.em, "Maximum", steps, 1.0)?;
            let step = op!(cx.em, "RealDiv", span, steps)?;
            let at = op!(cx.em, "Mul", x, step)?;
            let at = op!(cx.em, "AddV2", at, from)?;
            let centre = op!(cx.em, "AddV2", start, end)?;
            let centre = op!(cx.em, "Mul", centre, 0.5)?;
            let centre = op!(cx.em, "Mul", centre, extent)?;
            op!(cx.em, "SelectV2", several, at, centre)
        }
        other => Err(Failure::invalid(format!("coordinate_transformation_mode is {other:?}"))),
    }
}

/// Coordinates as indices within the input.
fn limited(cx: &mut Cx, at: Output, own: Output) -> Result<Output> {
    let last = op!(cx.em, "Sub", own, 1.0)?;
    let at = op!(cx.em, "Minimum", at, last)?;
    let at = op!(cx.em, "Maximum", at, 0.0)?;
    cx.long(at)
}

fn nearest(cx: &mut Cx, x: Output, axis: usize, along: &Along, is_new: bool) -> Result<Output> {
    let mode = if is_new { along.n.str("nearest_mode", "round_prefer_floor")? } else { "floor" };
    let at = match mode {
        "round_prefer_floor" => {
            let at = op!(cx.em, "Sub", along.at, 0.5)?;
            op!(cx.em, "Ceil", at)?
        }
        "round_prefer_ceil" => {
            let at = op!(cx.em, "AddV2", along.at, 0.5)?;
            op!(cx.em, "Floor", at)?
        }
        "floor" => op!(cx.em, "Floor", along.at)?,
        "ceil" => op!(cx.em, "Ceil", along.at)?,
        other => return Err(Failure::invalid(format!("nearest_mode is {other:?}"))),
    };
    let at = limited(cx, at, along.own)?;
    op!(cx.em, "GatherV2", x, at, axis as i64)
}

/// A vector along an axis of a tensor, to be multiplied with it.
fn along_axis(cx: &mut Cx, vector: Output, axis: usize, like: Output) -> Result<Output> {
    let rank = cx.em.rank(like)?;
    let vector = cx.cast(vector, cx.em.dtype(like))?;
    cx.unsqueeze(vector, &(1..rank - axis).collect::<Vec<_>>())
}

fn linear(cx: &mut Cx, x: Output, axis: usize, along: &Along) -> Result<Output> {
    let floor = op!(cx.em, "Floor", along.at)?;
    let share = op!(cx.em, "Sub", along.at, floor)?;
    let next = op!(cx.em, "AddV2", floor, 1.0)?;
    let (low, high) = (limited(cx, floor, along.own)?, limited(cx, next, along.own)?);
    let (low, high) = (op!(cx.em, "GatherV2", x, low, axis as i64)?, op!(cx.em, "GatherV2", x, high, axis as i64)?);
    let rest = op!(cx.em, "Sub", 1.0, share)?;
    let (share, rest) = (along_axis(cx, share, axis, x)?, along_axis(cx, rest, axis, x)?);
    let (low, high) = (op!(cx.em, "Mul", low, rest)?, op!(cx.em, "Mul", high, share)?);
    op!(cx.em, "AddV2", low, high)
}

/// Each result is a weighted sum over the axis: a product with a matrix of weights. The elements before and after the axis equal
/// its first and last one, or do not count.
fn by_matrix(cx: &mut Cx, x: Output, axis: usize, own: Size, along: &Along, is_cubic: bool) -> Result<Output> {
    let excludes = along.n.flag("exclude_outside", false);
    let reach = if is_cubic { 2.0 } else { 1.0 };
    // A filter for a smaller image is wider, by the scale.
    let shrink = match along.n.flag("antialias", false) {
        true => op!(cx.em, "Minimum", along.scale, 1.0)?,
        false => cx.em.number(1.0, DType::F64)?,
    };
    let extent = op!(cx.em, "RealDiv", reach, shrink)?;
    let extent = op!(cx.em, "Ceil", extent)?;
    let extent = op!(cx.em, "AddV2", extent, 1.0)?;
    let extent = known(cx, extent)?;
    let both = cx.compute("Mul", extent, Size::Known(2))?;
    let whole = cx.compute("AddV2", own, both)?;
    let places = cx.range(whole)?;
    let extent = cx.scalar(extent)?;
    let places = op!(cx.em, "Sub", places, extent)?;
    let places = cx.cast(places, DType::F64)?;
    let at = cx.unsqueeze(along.at, &[1])?;
    let distance = op!(cx.em, "Sub", places, at)?;
    let distance = op!(cx.em, "Mul", distance, shrink)?;
    let distance = op!(cx.em, "Abs", distance)?;
    let mut weights = if is_cubic {
        cubic(cx, distance, along.n.float("cubic_coeff_a", -0.75).into())?
    } else {
        let rest = op!(cx.em, "Sub", 1.0, distance)?;
        op!(cx.em, "Maximum", rest, 0.0)?
    };
    if excludes {
        let low = op!(cx.em, "GreaterEqual", places, 0.0)?;
        let high = op!(cx.em, "Less", places, along.own)?;
        let inside = op!(cx.em, "LogicalAnd", low, high)?;
        let zero = cx.em.number(0.0, DType::F64)?;
        weights = op!(cx.em, "SelectV2", inside, weights, zero)?;
    }
    let sum = cx.reduce("Sum", weights, &[1], true)?;
    let weights = op!(cx.em, "RealDiv", weights, sum)?;
    let weights = cx.cast(weights, cx.em.dtype(x))?;
    let places = limited(cx, places, along.own)?;
    let padded = op!(cx.em, "GatherV2", x, places, axis as i64)?;
    let (moved, back) = cx.moved_last(padded, axis)?;
    let weights = op!(cx.em, "Transpose", weights, [1i64, 0])?;
    let y = super::matmul::product(cx, moved, weights)?;
    cx.transpose(y, &back)
}

/// The cubic filter of a distance.
fn cubic(cx: &mut Cx, d: Output, a: f64) -> Result<Output> {
    // ((a + 2)·d - (a + 3))·d² + 1 up to 1, and ((d - 5)·d + 8)·d·a - 4a up to 2.
    let square = op!(cx.em, "Mul", d, d)?;
    let near = op!(cx.em, "Mul", d, a + 2.0)?;
    let near = op!(cx.em, "Sub", near, a + 3.0)?;
    let near = op!(cx.em, "Mul", near, square)?;
    let near = op!(cx.em, "AddV2", near, 1.0)?;
    let far = op!(cx.em, "Sub", d, 5.0)?;
    let far = op!(cx.em, "Mul", far, d)?;
    let far = op!(cx.em, "AddV2", far, 8.0)?;
    let far = op!(cx.em, "Mul", far, d)?;
    let far = op!(cx.em, "Sub", far, 4.0)?;
    let far = op!(cx.em, "Mul", far, a)?;
    let zero = cx.em.number(0.0, DType::F64)?;
    let is_far = op!(cx.em, "Less", d, 2.0)?;
    let far = op!(cx.em, "SelectV2", is_far, far, zero)?;
    let is_near = op!(cx.em, "LessEqual", d, 1.0)?;
    op!(cx.em, "SelectV2", is_near, near, far)
}
