//! Quantised tensors: integers with a scale and a zero point, for the whole tensor, for each slice along an axis, or for blocks
//! of it.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::cast::converted;
use super::window::Window;
use super::{Operator, microsoft, one, onnx};
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("ConvInteger", 10, conv_integer),
    onnx("DequantizeLinear", 10, dequantize),
    microsoft("DequantizeLinear", dequantize),
    onnx("DynamicQuantizeLinear", 11, dynamic),
    onnx("MatMulInteger", 10, matmul_integer),
    microsoft("MatMulIntegerToFloat", matmul_integer_to_float),
    microsoft("DynamicQuantizeMatMul", dynamic_matmul),
    microsoft("MatMulNBits", matmul_bits),
    microsoft("QLinearAdd", |cx, n| elementwise(cx, n, "AddV2")),
    microsoft("QLinearMul", |cx, n| elementwise(cx, n, "Mul")),
    microsoft("QLinearSigmoid", |cx, n| activation(cx, n, "Sigmoid")),
    microsoft("QLinearLeakyRelu", |cx, n| activation(cx, n, "LeakyRelu")),
    microsoft("QLinearSoftmax", softmax),
    microsoft("QLinearGlobalAveragePool", global_average),
    microsoft("QLinearConcat", concat),
    onnx("QLinearConv", 10, conv),
    onnx("QLinearMatMul", 10, matmul),
    onnx("QuantizeLinear", 10, quantize),
    microsoft("QuantizeLinear", quantize),
];

/// A scale or zero point in the shape in which it meets the tensor: along an axis, or repeated for the blocks of it.
fn along(cx: &mut Cx, value: Output, x: Output, axis: i64, block: i64) -> Result<Output> {
    let (own, rank) = (cx.em.rank(value)?, cx.em.rank(x)?);
    if own == 0 || rank == 0 || cx.em.shape(value).known().is_some_and(|shape| shape.elements() == Some(1) && own == 1)
    {
        return if own == 0 { Ok(value) } else { cx.reshape(value, &[]) };
    }
    let axis = cx.axis(axis, rank)?;
    if own == 1 && block == 0 {
        return cx.unsqueeze(value, &(1..rank - axis).collect::<Vec<_>>());
    }
    if block <= 0 {
        return Ok(value);
    }
    // Each element is repeated for its block; the last block may be cut off.
    let size = cx.size(x, axis)?;
    let places = cx.range(size)?;
    let places = op!(cx.em, "FloorDiv", places, block)?;
    op!(cx.em, "GatherV2", value, places, axis as i64)
}

/// The float type of a scale.
fn float_of(cx: &Cx, scale: Output) -> DType {
    cx.em.dtype(scale)
}

/// Quantised elements as floats.
fn floats(cx: &mut Cx, x: Output, scale: Output, zero: Option<Output>, axis: i64, block: i64) -> Result<Output> {
    // float16 has not all integers of 16 bits, and a difference of two is one.
    let dtype = float_of(cx, scale);
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let mut y = cx.cast(x, wide)?;
    if let Some(zero) = zero {
        let zero = along(cx, zero, x, axis, block)?;
        let zero = cx.cast(zero, wide)?;
        y = op!(cx.em, "Sub", y, zero)?;
    }
    let scale = along(cx, scale, x, axis, block)?;
    let scale = cx.cast(scale, wide)?;
    let y = op!(cx.em, "Mul", y, scale)?;
    cx.cast(y, dtype)
}

fn dequantize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale, zero) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let y = floats(cx, x, scale, zero, n.int("axis", 1), n.int("block_size", 0))?;
    let to = match n.maybe_int("output_dtype").filter(|&to| to != 0) {
        Some(to) => Elem(i32::try_from(to).unwrap_or(0)).dtype()?,
        None => return one(y),
    };
    one(cx.cast(y, to)?)
}

/// The least and the greatest value of an integer type.
fn limits(elem: Elem) -> Option<(f64, f64)> {
    if let Some((bits, is_signed)) = elem.narrow_int() {
        let span = f64::from(1u32 << bits);
        return Some(if is_signed { (-span / 2.0, span / 2.0 - 1.0) } else { (0.0, span - 1.0) });
    }
    Some(match elem.dtype().ok()? {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::U16 => (0.0, 65535.0),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        _ => return None,
    })
}

/// Floats as quantised elements of a type. `scale` and `zero` meet the tensor as they are.
fn quantized(cx: &mut Cx, x: Output, scale: Output, zero: Option<Output>, to: Elem, saturate: bool) -> Result<Output> {
    let y = op!(cx.em, "RealDiv", x, scale)?;
    let Some((low, high)) = limits(to) else {
        // Narrow floats have no zero point but zero.
        return converted(cx, y, to, saturate, "up");
    };
    let mut y = cx.cast(y, DType::F32)?;
    y = op!(cx.em, "Rint", y)?;
    if let Some(zero) = zero {
        let zero = cx.cast(zero, DType::F32)?;
        y = op!(cx.em, "AddV2", y, zero)?;
    }
    let y = op!(cx.em, "Maximum", y, low)?;
    let y = op!(cx.em, "Minimum", y, high)?;
    let dtype = to.dtype()?;
    // Through an int that has all values: a cast of floats to small ints may saturate elsewhere.
    let y = cx.cast(y, DType::I32)?;
    let y = cx.cast(y, dtype)?;
    cx.em.with_elem(y, to)
}

fn quantize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, scale, zero) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let to = match (zero, n.maybe_int("output_dtype").filter(|&to| to != 0)) {
        (Some(zero), _) => cx.em.elem(zero),
        (None, Some(to)) => Elem(i32::try_from(to).unwrap_or(0)),
        (None, None) => Elem::UINT8,
    };
    let (axis, block) = (n.int("axis", 1), n.int("block_size", 0));
    let scale = along(cx, scale, x, axis, block)?;
    let zero = match zero {
        Some(zero) => Some(along(cx, zero, x, axis, block)?),
        None => None,
    };
    // The division is in the wider of both types.
    let precision = match n.maybe_int("precision").filter(|&to| to != 0) {
        Some(to) => Elem(i32::try_from(to).unwrap_or(0)).dtype()?,
        None => float_of(cx, scale),
    };
    let (x, scale) = (cx.cast(x, precision)?, cx.cast(scale, precision)?);
    one(quantized(cx, x, scale, zero, to, n.flag("saturate", true))?)
}

fn dynamic(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (y, scale, zero) = dynamically(cx, x)?;
    Ok(vec![y.into(), scale.into(), zero.into()])
}

/// uint8 elements by the range of a tensor, with scale and zero point.
fn dynamically(cx: &mut Cx, x: Output) -> Result<(Output, Output, Output)> {
    let rank = cx.em.rank(x)?;
    let axes: Vec<usize> = (0..rank).collect();
    let (low, high) = (cx.reduce("Min", x, &axes, false)?, cx.reduce("Max", x, &axes, false)?);
    let (low, high) = (op!(cx.em, "Minimum", low, 0.0)?, op!(cx.em, "Maximum", high, 0.0)?);
    let span = op!(cx.em, "Sub", high, low)?;
    let scale = op!(cx.em, "RealDiv", span, 255.0)?;
    let is_flat = op!(cx.em, "Equal", scale, 0.0)?;
    let unit = cx.em.number(1.0, DType::F32)?;
    let safe = op!(cx.em, "SelectV2", is_flat, unit, scale)?;
    let zero = op!(cx.em, "RealDiv", low, safe)?;
    let zero = op!(cx.em, "Neg", zero)?;
    let zero = op!(cx.em, "Maximum", zero, 0.0)?;
    let zero = op!(cx.em, "Minimum", zero, 255.0)?;
    let zero = op!(cx.em, "Rint", zero)?;
    let zero = cx.cast(zero, DType::I32)?;
    let zero = cx.cast(zero, DType::U8)?;
    let y = quantized(cx, x, safe, Some(zero), Elem::UINT8, true)?;
    Ok((y, scale, zero))
}

/// Integers less their zero point, as int32. A zero point for each row or column is an axis of its own.
fn centred(cx: &mut Cx, x: Output, zero: Option<Output>, is_left: bool) -> Result<Output> {
    let wide = cx.cast(x, DType::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let mut zero = cx.cast(zero, DType::I32)?;
    if cx.em.rank(zero)? == 1 && is_left && cx.em.size(zero, 0) != Some(1) {
        zero = cx.unsqueeze(zero, &[1])?;
    }
    op!(cx.em, "Sub", wide, zero)
}

fn matmul_integer(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b, a_zero, b_zero) = (n.input(0)?, n.input(1)?, n.maybe(2)?, n.maybe(3)?);
    let (a, b) = (centred(cx, a, a_zero, true)?, centred(cx, b, b_zero, false)?);
    one(super::matmul::product(cx, a, b)?)
}

/// The product of centred whole numbers as floats, by their scales, and with the bias.
fn scaled_product(cx: &mut Cx, [a, b]: [Output; 2], scales: [Output; 2], bias: Option<Output>) -> Result<Vec<Value>> {
    let y = super::matmul::product(cx, a, b)?;
    let y = cx.cast(y, DType::F32)?;
    let [a_scale, b_scale] = scales;
    let scale = op!(cx.em, "Mul", a_scale, b_scale)?;
    let y = op!(cx.em, "Mul", y, scale)?;
    match bias {
        Some(bias) => one(op!(cx.em, "AddV2", y, bias)?),
        None => one(y),
    }
}

fn matmul_integer_to_float(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b) = (n.input(0)?, n.input(1)?);
    let (a_scale, b_scale) = (n.input(2)?, n.input(3)?);
    let (a_zero, b_zero, bias) = (n.maybe(4)?, n.maybe(5)?, n.maybe(6)?);
    let (a, b) = (centred(cx, a, a_zero, true)?, centred(cx, b, b_zero, false)?);
    scaled_product(cx, [a, b], [a_scale, b_scale], bias)
}

fn dynamic_matmul(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b, b_scale) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (b_zero, bias) = (n.maybe(3)?, n.maybe(4)?);
    let (a, a_scale, a_zero) = dynamically(cx, a)?;
    let (a, b) = (centred(cx, a, Some(a_zero), true)?, centred(cx, b, b_zero, false)?);
    scaled_product(cx, [a, b], [a_scale, b_scale], bias)
}

/// Weights less their zero point, as float32: while the model is read if both are constants.
pub(super) fn centred_floats(cx: &mut Cx, weights: Output, zero: Option<Output>) -> Result<Output> {
    let known = |x: Output| cx.em.known(x).and_then(|x| x.to_i64s().ok());
    let zeros = zero.map_or_else(|| Some(vec![0]), known);
    if let (Some(all), Some(zeros)) = (known(weights), zeros.filter(|zeros| !zeros.is_empty()))
        && let Some(dims) = cx.em.known(weights).map(|weights| weights.dims().to_vec())
        && all.len().is_multiple_of(zeros.len())
    {
        // A zero point for each column is repeated for the rows.
        let centred: Vec<f32> = all.iter().zip(zeros.iter().cycle()).map(|(code, zero)| (code - zero) as f32).collect();
        let name = format!("{}/centred", cx.em.graph().node(weights.node).name);
        return cx.em.constant_named(&name, Tensor::from_vec(dims, centred));
    }
    let wide = cx.cast(weights, DType::F32)?;
    let Some(zero) = zero else { return Ok(wide) };
    let zero = cx.cast(zero, DType::F32)?;
    op!(cx.em, "Sub", wide, zero)
}

/// The product of a tensor, quantised by its own range, and of centred weights, as floats. The sums of whole numbers are float32:
/// as accurate as the product with the scale, which is one, too.
pub(super) fn product_by_own_range(cx: &mut Cx, x: Output, weights: Output, scale: Output) -> Result<Output> {
    let (codes, own, zero) = dynamically(cx, x)?;
    let codes = cx.cast(codes, DType::F32)?;
    let zero = cx.cast(zero, DType::F32)?;
    let centred = op!(cx.em, "Sub", codes, zero)?;
    let product = super::matmul::product(cx, centred, weights)?;
    let scale = op!(cx.em, "Mul", own, scale)?;
    op!(cx.em, "Mul", product, scale)
}

/// A scale or zero point of rows (before the other operand) or of columns.
fn of_matrix(cx: &mut Cx, value: Output, is_left: bool) -> Result<Output> {
    if cx.em.rank(value)? == 1 && is_left && cx.em.size(value, 0) != Some(1) {
        return cx.unsqueeze(value, &[1]);
    }
    Ok(value)
}

fn matmul(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let mut operands = Vec::new();
    let mut scales = Vec::new();
    for (i, is_left) in [(0, true), (3, false)] {
        let (x, scale, zero) = (n.input(i)?, n.input(i + 1)?, n.input(i + 2)?);
        let (scale, zero) = (of_matrix(cx, scale, is_left)?, of_matrix(cx, zero, is_left)?);
        let wide = cx.cast(x, DType::I32)?;
        let zero = cx.cast(zero, DType::I32)?;
        operands.push(op!(cx.em, "Sub", wide, zero)?);
        scales.push(cx.cast(scale, DType::F32)?);
    }
    let (scale, zero) = (n.input(6)?, n.input(7)?);
    let sum = super::matmul::product(cx, operands[0], operands[1])?;
    let sum = cx.cast(sum, DType::F32)?;
    let both = op!(cx.em, "Mul", scales[0], scales[1])?;
    let y = op!(cx.em, "Mul", sum, both)?;
    let to = cx.em.elem(zero);
    let (scale, zero) = (of_matrix(cx, scale, true)?, of_matrix(cx, zero, true)?);
    let scale = cx.cast(scale, DType::F32)?;
    one(quantized(cx, y, scale, Some(zero), to, true)?)
}

/// The convolution of integers, as float32, which has all sums that a layer has in practice, up to 2^24.
fn convolution(cx: &mut Cx, n: &Node, x: Output, w: Output, zeros: [Option<Output>; 2]) -> Result<Output> {
    let kernel: Option<Vec<i64>> =
        cx.em.dims(w).map(|dims| dims[2..].iter().map(|size| size.unwrap_or(0) as i64).collect());
    let kernel = kernel
        .filter(|kernel| !kernel.contains(&0))
        .ok_or_else(|| unsupported("unsupported: a filter whose sizes are not known"))?;
    let window = Window::of(n, kernel)?;
    let mut operands = Vec::new();
    for (x, zero) in [(x, zeros[0]), (w, zeros[1])] {
        let wide = cx.cast(x, DType::F32)?;
        operands.push(match zero {
            Some(zero) => {
                let mut zero = cx.cast(zero, DType::F32)?;
                if cx.em.rank(zero)? == 1 {
                    let rest = cx.em.rank(x)? - 1;
                    zero = cx.unsqueeze(zero, &(1..=rest).collect::<Vec<_>>())?;
                }
                op!(cx.em, "Sub", wide, zero)?
            }
            None => wide,
        });
    }
    super::conv::convolved(cx, operands[0], operands[1], None, window, n.int("group", 1))
}

fn conv_integer(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, w, zeros) = (n.input(0)?, n.input(1)?, [n.maybe(2)?, n.maybe(3)?]);
    let y = convolution(cx, n, x, w, zeros)?;
    one(cx.cast(y, DType::I32)?)
}

fn conv(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, x_scale, x_zero) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (w, w_scale, w_zero) = (n.input(3)?, n.input(4)?, n.input(5)?);
    let (scale, zero, bias) = (n.input(6)?, n.input(7)?, n.maybe(8)?);
    let mut y = convolution(cx, n, x, w, [Some(x_zero), Some(w_zero)])?;
    if let Some(bias) = bias {
        let bias = cx.cast(bias, DType::F32)?;
        y = op!(cx.em, "BiasAdd", y, bias; "data_format" => "NCHW")?;
    }
    let both = op!(cx.em, "Mul", x_scale, w_scale)?;
    let both = along(cx, both, y, 1, 0)?;
    let y = op!(cx.em, "Mul", y, both)?;
    let scale = along(cx, scale, y, 1, 0)?;
    let to = cx.em.elem(zero);
    let zero = along(cx, zero, y, 1, 0)?;
    one(quantized(cx, y, scale, Some(zero), to, true)?)
}

/// The quantised result of a rule on floats: from the tensor at an input, and with scale and zero point from two others.
fn requantized(cx: &mut Cx, n: &Node, y: Output, scale: usize, like: Output) -> Result<Vec<Value>> {
    let to = cx.em.elem(like);
    one(quantized(cx, y, n.input(scale)?, n.maybe(scale + 1)?, to, true)?)
}

fn elementwise(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let (a, b) = (n.input(0)?, n.input(3)?);
    let left = floats(cx, a, n.input(1)?, n.maybe(2)?, 0, 0)?;
    let right = floats(cx, b, n.input(4)?, n.maybe(5)?, 0, 0)?;
    let y = op!(cx.em, name, left, right)?;
    requantized(cx, n, y, 6, a)
}

fn activation(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let y = floats(cx, x, n.input(1)?, n.maybe(2)?, 0, 0)?;
    let y = match name {
        "LeakyRelu" => op!(cx.em, "LeakyRelu", y; "alpha" => n.float("alpha", 0.01))?,
        _ => op!(cx.em, name, y)?,
    };
    requantized(cx, n, y, 3, x)
}

fn softmax(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let y = floats(cx, x, n.input(1)?, n.maybe(2)?, 0, 0)?;
    let (moved, back) = cx.moved_last(y, axis)?;
    let y = op!(cx.em, "Softmax", moved)?;
    let y = cx.transpose(y, &back)?;
    requantized(cx, n, y, 3, x)
}

fn global_average(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axes: Vec<usize> = if n.flag("channels_last", false) { (1..rank - 1).collect() } else { (2..rank).collect() };
    let y = floats(cx, x, n.input(1)?, n.maybe(2)?, 0, 0)?;
    let y = cx.reduce("Mean", y, &axes, true)?;
    requantized(cx, n, y, 3, x)
}

fn concat(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let like = n.input(1)?;
    let mut parts = Vec::new();
    for i in (2..n.inputs.len()).step_by(3) {
        parts.push(floats(cx, n.input(i)?, n.input(i + 1)?, n.maybe(i + 2)?, 0, 0)?);
    }
    let first = *parts.first().ok_or_else(|| Failure::invalid("it takes at least one tensor"))?;
    let rank = cx.em.rank(first)?;
    let axis = cx.axis(n.int("axis", 0), rank)?;
    let y = cx.concat(&parts, axis)?;
    requantized(cx, n, y, 0, like)
}

/// A product with a matrix whose columns are quantised in blocks, several elements to a byte.
fn matmul_bits(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b, scales, zeros, order, bias) =
        (n.input(0)?, n.input(1)?, n.input(2)?, n.maybe(3)?, n.maybe(4)?, n.maybe(5)?);
    let (k, columns, bits, block) = (n.int("K", 0), n.int("N", 0), n.int("bits", 4), n.int("block_size", 0));
    if k < 1 || columns < 1 || block < 16 || !matches!(bits, 2 | 4 | 8) {
        return Err(Failure::invalid(format!("K is {k}, N {columns}, bits {bits}, block_size {block}")));
    }
    if order.is_some() {
        return Err(unsupported("unsupported: g_idx of MatMulNBits"));
    }
    let blocks = k.div_euclid(block) + i64::from(k % block != 0);
    let per = 8 / bits;
    let known = |sizes: &[i64]| -> Vec<Size> { sizes.iter().map(|&size| Size::Known(size)).collect() };
    // [columns, blocks * block]
    let codes = unpacked_bits(cx, b, bits, &[columns, blocks * block / per])?;
    let codes = cx.reshape(codes, &known(&[columns, blocks, block]))?;
    let dtype = cx.em.dtype(a);
    let codes = cx.cast(codes, dtype)?;
    let zeros = match zeros {
        None => None,
        Some(zeros) if cx.em.dtype(zeros).is_float() => Some(cx.reshape(zeros, &known(&[columns, blocks, 1]))?),
        Some(zeros) => {
            let bytes = (blocks + per - 1) / per;
            let all = unpacked_bits(cx, zeros, bits, &[columns, bytes])?;
            let all = cx.slice(all, 1, Size::Known(0), Some(Size::Known(blocks)))?;
            let all = cx.cast(all, dtype)?;
            Some(cx.unsqueeze(all, &[2])?)
        }
    };
    let centred = match zeros {
        Some(zeros) => op!(cx.em, "Sub", codes, zeros)?,
        None => op!(cx.em, "Sub", codes, f64::from(1u32 << (bits - 1)))?,
    };
    let scales = cx.reshape(scales, &known(&[columns, blocks, 1]))?;
    let scales = cx.cast(scales, dtype)?;
    let weights = op!(cx.em, "Mul", centred, scales)?;
    let weights = cx.reshape(weights, &known(&[columns, blocks * block]))?;
    let weights = cx.slice(weights, 1, Size::Known(0), Some(Size::Known(k)))?;
    let weights = cx.transpose(weights, &[1, 0])?;
    let y = super::matmul::product(cx, a, weights)?;
    match bias {
        Some(bias) => one(op!(cx.em, "AddV2", y, bias)?),
        None => one(y),
    }
}

/// The elements of bytes, the lower bits first: `[rows, bytes * elements in a byte]`, as uint8.
fn unpacked_bits(cx: &mut Cx, bytes: Output, bits: i64, sizes: &[i64; 2]) -> Result<Output> {
    let known: Vec<Size> = sizes.iter().map(|&size| Size::Known(size)).collect();
    let bytes = cx.reshape(bytes, &known)?;
    let bytes = cx.cast(bytes, DType::U8)?;
    if bits == 8 {
        return Ok(bytes);
    }
    let per = 8 / bits;
    let bytes = cx.unsqueeze(bytes, &[2])?;
    let shifts: Vec<u8> = (0..per).map(|i| (i * bits) as u8).collect();
    let parts = op!(cx.em, "RightShift", bytes, Tensor::vector(shifts))?;
    let parts = op!(cx.em, "BitwiseAnd", parts, Tensor::scalar((1u8 << bits) - 1))?;
    cx.reshape(parts, &[Size::Known(sizes[0]), Size::Known(sizes[1] * per)])
}
