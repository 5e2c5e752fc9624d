//! Convolutions and transposed convolutions over one, two or three axes. Images are `[batch, channels, spatial…]` in both
//! vocabularies; filters are `[out, in, spatial…]` in ONNX, and `[spatial…, in, out]` in the ops.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, transposed};

use super::window::{Padding, Window, all_sides};
use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("CausalConvWithState", 27, causal),
    onnx("Col2Im", 18, col_to_image),
    onnx("Conv", 1, conv),
    onnx("ConvTranspose", 1, conv_transpose),
    onnx("DeformConv", 19, deformable),
];

/// The sizes of a filter's spatial axes, which must agree with an attribute.
fn kernel(cx: &Cx, n: &Node, filter: Output) -> Result<Vec<i64>> {
    let dims = cx.em.dims(filter).ok_or_else(|| unsupported("unsupported: a filter whose rank is not known"))?;
    if dims.len() < 3 {
        return Err(Failure::invalid(format!("its filter has the rank {}; it takes at least 3", dims.len())));
    }
    let own: Option<Vec<i64>> = dims[2..].iter().map(|size| size.map(|size| size as i64)).collect();
    match (own, n.ints("kernel_shape")) {
        (Some(own), Some(stated)) if own != stated => {
            Err(Failure::invalid(format!("kernel_shape is {stated:?}, and the filter's is {own:?}")))
        }
        (Some(own), _) => Ok(own),
        (None, Some(stated)) => Ok(stated.to_vec()),
        (None, None) => Err(unsupported("unsupported: a filter whose sizes are not known")),
    }
}

fn conv(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, filter, bias) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let window = Window::of(n, kernel(cx, n, filter)?)?;
    one(convolved(cx, x, filter, bias, window, n.int("group", 1))?)
}

/// A convolution by ONNX's rules.
pub fn convolved(
    cx: &mut Cx,
    x: Output,
    filter: Output,
    bias: Option<Output>,
    window: Window,
    group: i64,
) -> Result<Output> {
    let spatial = window.spatial();
    let x = cx.of_rank(x, spatial + 2)?;
    if cx.em.rank(x)? != spatial + 2 {
        return Err(Failure::invalid(format!(
            "its input has the rank {}, and its filter {}",
            cx.em.rank(x)?,
            spatial + 2
        )));
    }
    if spatial > 3 {
        return Err(unsupported("unsupported: a convolution over more than three axes"));
    }
    let channels = cx.em.size(x, 1).map(|size| size as i64);
    let inner = cx.em.size(filter, 1).map(|size| size as i64);
    if let (Some(channels), Some(inner)) = (channels, inner)
        && channels != inner * group
    {
        return Err(Failure::invalid(format!(
            "its input has {channels} channels; {group} groups of {inner} are {}",
            inner * group
        )));
    }
    let (mut x, mut filter) = (x, filter);
    if spatial == 1 {
        (x, filter) = (cx.unsqueeze(x, &[2])?, cx.unsqueeze(filter, &[2])?);
    }
    let window = window.lifted();
    let mut attrs = vec![("strides", Window::outer(&window.stride)), ("dilations", Window::outer(&window.dilation))];
    let wide = spatial == 3;
    attrs.push(("data_format", if wide { "NCDHW" } else { "NCHW" }.into()));
    match &window.padding {
        Padding::Same { is_upper: true } => attrs.push(("padding", "SAME".into())),
        _ => {
            let (window, image) = window.clone().closed(cx, x, None)?;
            x = image;
            let (sides, more) = window.sides(cx, x)?;
            let is_negative = sides.iter().any(|side| side.0 < 0 || side.1 < 0);
            if sides.iter().all(|&side| side == (0, 0)) {
                attrs.push(("padding", "VALID".into()));
            } else if wide || is_negative {
                x = padded(cx, x, &all_sides(&sides, &more))?;
                attrs.push(("padding", "VALID".into()));
            } else {
                let flat: Vec<i64> = [0; 4].into_iter().chain(sides.iter().flat_map(|side| [side.0, side.1])).collect();
                attrs.push(("padding", "EXPLICIT".into()));
                attrs.push(("explicit_paddings", flat.into()));
            }
        }
    }
    let is_depthwise = group > 1
        && !wide
        && inner == Some(1)
        && window.stride.iter().all(|&stride| stride == window.stride[0])
        && cx.em.size(filter, 0).is_some_and(|out| out as i64 % group == 0);
    let mut y = if is_depthwise {
        let out = cx.em.size(filter, 0).unwrap_or(0) as i64;
        let sizes: Vec<Size> =
            [group, out / group].into_iter().chain(window.kernel.iter().copied()).map(Size::Known).collect();
        let filter = cx.reshape(filter, &sizes)?;
        let filter = arranged(cx, filter, &[2, 3, 0, 1])?;
        cx.em.add("DepthwiseConv2dNative", vec![x.into(), filter.into()], &attrs)?
    } else {
        let rank = window.spatial() + 2;
        let order: Vec<usize> = (2..rank).chain([1, 0]).collect();
        let filter = arranged(cx, filter, &order)?;
        cx.em.add(if wide { "Conv3D" } else { "Conv2D" }, vec![x.into(), filter.into()], &attrs)?
    };
    y = biased(cx, y, bias)?;
    if spatial == 1 { cx.squeeze(y, &[2]) } else { Ok(y) }
}

/// Padding by zeros, of which a negative number cuts.
fn padded(cx: &mut Cx, x: Output, sides: &[(i64, i64)]) -> Result<Output> {
    let mut y = x;
    for (axis, side) in sides.iter().enumerate().filter(|(_, side)| side.0 < 0 || side.1 < 0) {
        let size = cx.size(y, axis)?;
        let end = cx.compute("Sub", size, Size::Known((-side.1).max(0)))?;
        y = cx.slice(y, axis, Size::Known((-side.0).max(0)), Some(end))?;
    }
    let sides: Vec<(i64, i64)> = sides.iter().map(|side| (side.0.max(0), side.1.max(0))).collect();
    cx.pad(y, &sides, None)
}

fn biased(cx: &mut Cx, y: Output, bias: Option<Output>) -> Result<Output> {
    let Some(bias) = bias else { return Ok(y) };
    op!(cx.em, "BiasAdd", y, bias; "data_format" => "NCHW")
}

/// A transposed tensor; of a constant, the constant is transposed while the model is read.
pub fn arranged(cx: &mut Cx, x: Output, order: &[usize]) -> Result<Output> {
    let Some(known) = cx.em.known(x).cloned() else { return cx.transpose(x, order) };
    let name = format!("{}/arranged", cx.em.graph().node(x.node).name);
    let value = transposed(&known, order)?;
    cx.em.constant_named(&name, value)
}

/// A transposed convolution is the gradient of a convolution with respect to its image. It is computed without padding, and the
/// result is cut to its size.
fn conv_transpose(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, filter, bias) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let window = Window::of(n, kernel(cx, n, filter)?)?;
    let (spatial, group) = (window.spatial(), n.int("group", 1));
    if spatial > 3 || cx.em.rank(x)? != spatial + 2 {
        return Err(unsupported(
            "unsupported: a transposed convolution over more than three axes, or of another rank than its filter",
        ));
    }
    let ints = |name: &str| n.ints(name).filter(|all| all.len() == spatial);
    let added = ints("output_padding").map_or_else(|| vec![0; spatial], <[i64]>::to_vec);
    let mut wanted = Vec::new();
    let mut before = Vec::new();
    let mut full = Vec::new();
    for i in 0..spatial {
        let (size, stride) = (cx.size(x, i + 2)?, Size::Known(window.stride[i]));
        let steps = cx.compute("Sub", size, Size::Known(1))?;
        let steps = cx.compute("Mul", steps, stride)?;
        let whole = cx.compute("AddV2", steps, Size::Known(window.extent(i)))?;
        full.push(whole);
        let shape = ints("output_shape").map(|shape| Size::Known(shape[i]));
        let shape = match (&window.padding, shape) {
            (Padding::Same { .. }, None) => Some(cx.compute("Mul", size, stride)?),
            (_, shape) => shape,
        };
        match shape {
            Some(shape) => {
                // The padding follows from the size of the output.
                let total = cx.compute("AddV2", whole, Size::Known(added[i]))?;
                let total = cx.compute("Sub", total, shape)?;
                let half = cx.compute("FloorDiv", total, Size::Known(2))?;
                let is_upper = matches!(window.padding, Padding::Same { is_upper: true });
                // The larger half lies before, unless auto_pad is SAME_UPPER.
                let first = if is_upper { half } else { cx.compute("Sub", total, half)? };
                before.push(first);
                wanted.push(shape);
            }
            None => {
                let Padding::Stated(sides) = &window.padding else { unreachable!("its shape was computed") };
                before.push(Size::Known(sides[i].0));
                let out = cx.compute("AddV2", whole, Size::Known(added[i] - sides[i].0 - sides[i].1))?;
                wanted.push(out);
            }
        }
    }
    let outer =
        cx.em.size(filter, 1).ok_or_else(|| unsupported("unsupported: a filter whose sizes are not known"))? as i64;
    let (mut image, mut weights) = (x, filter);
    if spatial == 1 {
        (image, weights) = (cx.unsqueeze(x, &[2])?, cx.unsqueeze(filter, &[2])?);
        full.insert(0, Size::Known(1));
    }
    let window = window.lifted();
    let rank = window.spatial() + 2;
    let order: Vec<usize> = (2..rank).chain([1, 0]).collect();
    let weights = arranged(cx, weights, &order)?;
    let batch = cx.size(x, 0)?;
    let sizes: Vec<Size> = [batch, Size::Known(outer * group)].into_iter().chain(full).collect();
    let sizes = cx.packed(&sizes)?;
    let sizes = cx.cast(sizes, DType::I32)?;
    let wide = rank == 5;
    let attrs: [(&str, Attr); 4] = [
        ("strides", Window::outer(&window.stride)),
        ("dilations", Window::outer(&window.dilation)),
        ("data_format", if wide { "NCDHW" } else { "NCHW" }.into()),
        ("padding", "VALID".into()),
    ];
    let name = if wide { "Conv3DBackpropInputV2" } else { "Conv2DBackpropInput" };
    let mut y = cx.em.add(name, vec![sizes.into(), weights.into(), image.into()], &attrs)?;
    if spatial == 1 {
        y = cx.squeeze(y, &[2])?;
    }
    for i in 0..spatial {
        y = fitted(cx, y, i + 2, before[i], wanted[i])?;
    }
    one(biased(cx, y, bias)?)
}

/// `size` elements along an axis from `before` on; zeros where there are none.
fn fitted(cx: &mut Cx, x: Output, axis: usize, before: Size, size: Size) -> Result<Output> {
    let own = cx.size(x, axis)?;
    let end = cx.compute("AddV2", before, size)?;
    if let (Size::Known(0), Size::Known(end), Size::Known(own)) = (before, end, own)
        && end == own
    {
        return Ok(x);
    }
    let zero = Size::Known(0);
    let from = cx.compute("Maximum", before, zero)?;
    let to = cx.compute("Minimum", end, own)?;
    let y = cx.slice(x, axis, from, Some(to))?;
    let negative = cx.compute("Sub", zero, before)?;
    let low = cx.compute("Maximum", negative, zero)?;
    let high = cx.compute("Sub", end, own)?;
    let high = cx.compute("Maximum", high, zero)?;
    if let (Size::Known(0), Size::Known(0)) = (low, high) {
        return Ok(y);
    }
    let rank = cx.em.rank(y)?;
    let pairs: Vec<Size> = (0..rank).flat_map(|at| if at == axis { [low, high] } else { [zero; 2] }).collect();
    let pairs = cx.packed(&pairs)?;
    let pairs = cx.reshape(pairs, &[rank.into(), Size::Known(2)])?;
    op!(cx.em, "Pad", y, pairs)
}

/// Columns, each of a window's elements, are added up to an image.
fn col_to_image(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, image, block) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let spatial = cx.em.size(image, 0).filter(|&spatial| (1..=8).contains(&spatial));
    let spatial = spatial.ok_or_else(|| unsupported("unsupported: a number of spatial axes that is not known"))?;
    let list = |name: &str, default: i64, count: usize| -> Result<Vec<i64>> {
        let all = n.ints(name).map_or_else(|| vec![default; count], <[i64]>::to_vec);
        let fits = all.len() == count && all.iter().all(|n| (0..1 << 20).contains(n));
        if fits { Ok(all) } else { Err(Failure::invalid(format!("{name} is {all:?}"))) }
    };
    let (strides, dilations, pads) =
        (list("strides", 1, spatial)?, list("dilations", 1, spatial)?, list("pads", 0, 2 * spatial)?);
    let (image, block) = (cx.long(image)?, cx.long(block)?);
    let entry = |cx: &mut Cx, of: Output, i: usize| -> Result<Size> {
        Ok(match cx.em.some_ints(of).and_then(|all| all.get(i).copied().flatten()) {
            Some(size) => Size::Known(size),
            None => Size::Of(op!(cx.em, "GatherV2", of, i as i64, 0i64)?),
        })
    };
    let (mut sizes, mut blocks, mut whole, mut counts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in 0..spatial {
        let (size, own) = (entry(cx, image, i)?, entry(cx, block, i)?);
        let padded = cx.compute("AddV2", size, Size::Known(pads[i] + pads[spatial + i]))?;
        let steps = cx.compute("Sub", own, Size::Known(1))?;
        let extent = cx.compute("Mul", steps, Size::Known(dilations[i]))?;
        let rest = cx.compute("Sub", padded, extent)?;
        let rest = cx.compute("Sub", rest, Size::Known(1))?;
        let count = cx.compute("FloorDiv", rest, Size::Known(strides[i].max(1)))?;
        counts.push(cx.compute("AddV2", count, Size::Known(1))?);
        sizes.push(size);
        blocks.push(own);
        whole.push(padded);
    }
    // The place in the padded image of each element of each window: [block…, positions…].
    let mut places: Option<Output> = None;
    let mut stride = Size::Known(1);
    for i in (0..spatial).rev() {
        let mut along = Vec::new();
        for (at, count, step) in [(i, blocks[i], dilations[i]), (spatial + i, counts[i], strides[i])] {
            let range = cx.range(count)?;
            let range = op!(cx.em, "Mul", range, step)?;
            let dims: Vec<Size> = (0..2 * spatial).map(|own| if own == at { count } else { Size::Known(1) }).collect();
            along.push(cx.reshape(range, &dims)?);
        }
        let both = op!(cx.em, "AddV2", along[0], along[1])?;
        let step = cx.scalar(stride)?;
        let both = op!(cx.em, "Mul", both, step)?;
        places = Some(match places {
            None => both,
            Some(other) => op!(cx.em, "AddV2", other, both)?,
        });
        stride = cx.compute("Mul", stride, whole[i])?;
    }
    let places = places.ok_or_else(|| Failure::invalid("it has no spatial axes"))?;
    let places = op!(cx.em, "Reshape", places, [-1i64])?;
    let (batch, depth) = (cx.size(x, 0)?, cx.size(x, 1)?);
    let inner = cx.product(&blocks)?;
    let channels = cx.compute("FloorDiv", depth, inner)?;
    let rows = cx.compute("Mul", batch, channels)?;
    let total = cx.product(&counts)?;
    let columns = cx.compute("Mul", inner, total)?;
    let flat = cx.reshape(x, &[rows, columns])?;
    let flat = cx.transpose(flat, &[1, 0])?;
    let elements = cx.product(&whole)?;
    let elements = cx.scalar(elements)?;
    let sums = op!(cx.em, "UnsortedSegmentSum", flat, places, elements)?;
    let sums = cx.transpose(sums, &[1, 0])?;
    let padded: Vec<Size> = [batch, channels].into_iter().chain(whole).collect();
    let mut y = cx.reshape(sums, &padded)?;
    for i in 0..spatial {
        let end = cx.compute("AddV2", sizes[i], Size::Known(pads[i]))?;
        y = cx.slice(y, i + 2, Size::Known(pads[i]), Some(end))?;
    }
    one(y)
}

/// A depthwise convolution that looks back only, with the elements before the input as a state.
fn causal(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, filter, bias) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let kernel = kernel(cx, n, filter)?;
    let [length] = kernel[..] else { return Err(Failure::invalid("its filter is not of rank 3")) };
    let before = match n.maybe(3)? {
        Some(past) => cx.concat(&[past, x], 2)?,
        None => cx.pad(x, &[(0, 0), (0, 0), (length - 1, 0)], None)?,
    };
    let channels =
        cx.em.size(filter, 0).ok_or_else(|| unsupported("unsupported: a filter whose sizes are not known"))?;
    let window =
        Window { kernel, stride: vec![1], dilation: vec![1], padding: Padding::Stated(vec![(0, 0)]), ceil: false };
    let mut y = convolved(cx, before, filter, bias, window, channels as i64)?;
    match n.str("activation", "none")? {
        "none" | "" => {}
        "silu" | "swish" => {
            let gate = op!(cx.em, "Sigmoid", y)?;
            y = op!(cx.em, "Mul", y, gate)?;
        }
        other => return Err(Failure::invalid(format!("activation is {other:?}"))),
    }
    let size = cx.size(before, 2)?;
    let from = cx.compute("Sub", size, Size::Known(length - 1))?;
    let state = cx.slice(before, 2, from, Some(size))?;
    Ok(vec![y.into(), state.into()])
}

/// A convolution whose elements under a window are displaced by offsets, and read between the pixels.
fn deformable(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, filter, offset) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (bias, mask) = (n.maybe(3)?, n.maybe(4)?);
    let window = Window::of(n, kernel(cx, n, filter)?)?;
    let (group, offset_group) = (n.int("group", 1), n.int("offset_group", 1));
    let (image, filters) = (cx.static_shape(x)?, cx.static_shape(filter)?);
    let (&[batch, channels, height, width], &[out, inner, kh, kw]) = (image.dims(), filters.dims()) else {
        return Err(unsupported("unsupported: a deformable convolution over other than two axes"));
    };
    if group < 1 || offset_group < 1 || channels as i64 % offset_group != 0 || inner as i64 * group != channels as i64 {
        return Err(Failure::invalid("its groups do not divide its channels"));
    }
    let (sides, _) = window.sides(cx, x)?;
    let size = |i: usize, own: usize| {
        (own as i64 + sides[i].0 + sides[i].1 - window.extent(i)).div_euclid(window.stride[i]) + 1
    };
    let (rows, columns) = (size(0, height), size(1, width));
    let (g, k) = (offset_group, (kh * kw) as i64);
    let known = |sizes: &[i64]| -> Vec<Size> { sizes.iter().map(|&size| Size::Known(size)).collect() };
    let b = batch as i64;
    // [batch, offset group, kernel, 2, rows, columns]
    let offset = cx.reshape(offset, &known(&[b, g, k, 2, rows, columns]))?;
    let dtype = cx.em.dtype(x);
    let mut base = Vec::new();
    for (axis, &(before, _)) in sides.iter().enumerate() {
        let count = if axis == 0 { rows } else { columns };
        for at in 0..k {
            let place = if axis == 0 { at / kw as i64 } else { at % kw as i64 };
            for i in 0..rows * columns {
                let position = if axis == 0 { i / columns } else { i % columns };
                debug_assert!(position < count);
                base.push((position * window.stride[axis] - before + place * window.dilation[axis]) as f64);
            }
        }
    }
    let mut at = Vec::new();
    let half = base.len() / 2;
    for axis in 0..2 {
        let own: Vec<f32> = base[axis * half..(axis + 1) * half].iter().map(|&value| value as f32).collect();
        let own = meshtf_tensor::Tensor::from_vec([1, 1, k as usize, rows as usize, columns as usize], own);
        let own = cx.em.constant(own)?;
        let own = cx.cast(own, dtype)?;
        let moved = op!(cx.em, "GatherV2", offset, axis as i64, 3i64)?;
        at.push(op!(cx.em, "AddV2", moved, own)?);
    }
    // Bilinear: each of the four neighbours, by its share.
    let per = channels as i64 / g;
    let flat = cx.reshape(x, &known(&[b, g, per, (height * width) as i64]))?;
    let flat = cx.transpose(flat, &[0, 1, 3, 2])?;
    let mut sum = None;
    for corner in 0..4 {
        let mut weight = None;
        let mut number = None;
        let mut is_inside = None;
        for (axis, limit) in [(0usize, height), (1, width)] {
            let floor = op!(cx.em, "Floor", at[axis])?;
            let place = if corner >> axis & 1 == 0 { floor } else { op!(cx.em, "AddV2", floor, 1.0)? };
            let distance = op!(cx.em, "Sub", at[axis], place)?;
            let distance = op!(cx.em, "Abs", distance)?;
            let share = op!(cx.em, "Mul", distance, -1.0)?;
            let share = op!(cx.em, "AddV2", share, 1.0)?;
            let whole = cx.cast(place, DType::I64)?;
            let low = op!(cx.em, "GreaterEqual", whole, 0i64)?;
            let high = op!(cx.em, "Less", whole, limit as i64)?;
            let inside = op!(cx.em, "LogicalAnd", low, high)?;
            let whole = op!(cx.em, "Maximum", whole, 0i64)?;
            let whole = op!(cx.em, "Minimum", whole, limit as i64 - 1)?;
            weight = Some(match weight {
                None => share,
                Some(other) => op!(cx.em, "Mul", other, share)?,
            });
            is_inside = Some(match is_inside {
                None => inside,
                Some(other) => op!(cx.em, "LogicalAnd", other, inside)?,
            });
            number = Some(match number {
                None => op!(cx.em, "Mul", whole, width as i64)?,
                Some(other) => op!(cx.em, "AddV2", other, whole)?,
            });
        }
        let (Some(weight), Some(number), Some(inside)) = (weight, number, is_inside) else { continue };
        let zero = cx.em.number(0.0, dtype)?;
        let weight = op!(cx.em, "SelectV2", inside, weight, zero)?;
        // [batch, group, kernel, rows, columns, channels of the group]
        let values = op!(cx.em, "GatherV2", flat, number, 2i64; "batch_dims" => 2i64)?;
        let weight = cx.unsqueeze(weight, &[5])?;
        let part = op!(cx.em, "Mul", values, weight)?;
        sum = Some(match sum {
            None => part,
            Some(other) => op!(cx.em, "AddV2", other, part)?,
        });
    }
    let mut taken = sum.ok_or_else(|| Failure::invalid("it has no elements"))?;
    if let Some(mask) = mask {
        let mask = cx.reshape(mask, &known(&[b, g, k, rows, columns, 1]))?;
        taken = op!(cx.em, "Mul", taken, mask)?;
    }
    // [batch, rows, columns, offset group, channels, kernel], then by groups of the filter.
    let taken = cx.transpose(taken, &[0, 3, 4, 1, 5, 2])?;
    let per_group = channels as i64 / group * k;
    let taken = cx.reshape(taken, &known(&[b * rows * columns, group, per_group]))?;
    let taken = cx.transpose(taken, &[1, 0, 2])?;
    let filter = cx.reshape(filter, &known(&[group, out as i64 / group, per_group]))?;
    let y = op!(cx.em, "BatchMatMulV2", taken, filter; "adj_y" => true)?;
    let y = cx.transpose(y, &[1, 0, 2])?;
    let y = cx.reshape(y, &known(&[b, rows, columns, out as i64]))?;
    let y = cx.transpose(y, &[0, 3, 1, 2])?;
    one(biased(cx, y, bias)?)
}
