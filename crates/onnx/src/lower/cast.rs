//! Conversions between element types.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::elem::{Elem, NarrowFloat, Special};
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[onnx("BitCast", 26, bit_cast), onnx("Cast", 1, cast), onnx("CastLike", 15, cast_like)];

/// The numbers of element types by the names that opset 1 to 5 use.
fn named(name: &str) -> Option<Elem> {
    (1..=16).map(Elem).find(|elem| elem.name().eq_ignore_ascii_case(name))
}

fn cast(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let to = match n.maybe_int("to").filter(|_| n.version >= 6) {
        Some(to) => Elem(i32::try_from(to).unwrap_or(0)),
        None => {
            let name = n.str("to", "")?;
            named(name).ok_or_else(|| Failure::invalid(format!("it casts to {name:?}, which is no element type")))?
        }
    };
    convert(cx, n, to)
}

fn cast_like(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let like = n.input(1)?;
    convert(cx, n, cx.em.elem(like))
}

fn convert(cx: &mut Cx, n: &Node, to: Elem) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let saturate = n.flag("saturate", true);
    let mode = n.str("round_mode", "up")?;
    let y = converted(cx, x, to, saturate, mode)?;
    if y == x { one(op!(cx.em, "Identity", x)?) } else { one(y) }
}

/// A tensor as elements of another type.
pub fn converted(cx: &mut Cx, x: Output, to: Elem, saturate: bool, mode: &str) -> Result<Output> {
    let (from, dtype) = (cx.em.elem(x), to.dtype()?);
    if from == to {
        return Ok(x);
    }
    if let Some((bits, is_signed)) = to.narrow_int() {
        let whole = cx.cast(x, DType::I32)?;
        let narrow = wrapped(cx, whole, bits, is_signed)?;
        let narrow = cx.cast(narrow, dtype)?;
        return cx.em.with_elem(narrow, to);
    }
    if let Some(format) = to.narrow_float() {
        let x = cx.cast(x, DType::F32)?;
        let y = rounded(cx, x, format, saturate || to == Elem::F4_E2M1)?;
        return cx.em.with_elem(y, to);
    }
    if to == Elem::F8_E8M0 {
        let x = cx.cast(x, DType::F32)?;
        let y = power_of_two(cx, x, saturate, mode)?;
        return cx.em.with_elem(y, to);
    }
    match (cx.em.dtype(x), dtype) {
        (DType::String, DType::String) => Ok(x),
        (DType::String, DType::Bool) => Err(crate::unsupported("unsupported: a cast of strings to bools")),
        (DType::String, _) => {
            let through = match dtype {
                DType::F16 | DType::BF16 => DType::F32,
                DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I32,
                other => other,
            };
            let y = op!(cx.em, "StringToNumber", x; "out_type" => through)?;
            cx.cast(y, dtype)
        }
        (own, DType::String) => {
            let x = if matches!(own, DType::F16 | DType::BF16) { cx.cast(x, DType::F32)? } else { x };
            op!(cx.em, "AsString", x; "shortest" => true)
        }
        (own, _) if own == dtype => cx.em.with_elem(x, to),
        _ => cx.cast(x, dtype),
    }
}

/// The lower bits of integers, as signed or unsigned ones.
fn wrapped(cx: &mut Cx, x: Output, bits: u32, is_signed: bool) -> Result<Output> {
    if is_signed {
        let shift = 32 - bits as i32;
        let up = op!(cx.em, "LeftShift", x, shift)?;
        return op!(cx.em, "RightShift", up, shift);
    }
    op!(cx.em, "BitwiseAnd", x, (1i32 << bits) - 1)
}

/// float32 rounded to the nearest value of a narrow format, to the even one of two.
fn rounded(cx: &mut Cx, x: Output, format: NarrowFloat, saturate: bool) -> Result<Output> {
    /// The exponent of a float32, in place.
    const EXPONENT: i32 = 0x7f80_0000;
    let bits = op!(cx.em, "Bitcast", x; "type" => DType::I32)?;
    let bits = op!(cx.em, "BitwiseAnd", bits, EXPONENT)?;
    let power = op!(cx.em, "Bitcast", bits; "type" => DType::F32)?;
    let power = op!(cx.em, "Maximum", power, f64::from(format.least_exponent()).exp2())?;
    // Of infinities, too: infinity by infinity would be NaN.
    let power = op!(cx.em, "Minimum", power, 100f64.exp2())?;
    let step = op!(cx.em, "Mul", power, (-f64::from(format.mantissa)).exp2())?;
    let steps = op!(cx.em, "RealDiv", x, step)?;
    let steps = op!(cx.em, "Rint", steps)?;
    let mut y = op!(cx.em, "Mul", steps, step)?;
    let max = f64::from(format.max);
    let (above, below) = match (saturate, format.special) {
        (true, _) => (max, -max),
        (false, Special::Ieee) => (f64::INFINITY, f64::NEG_INFINITY),
        (false, _) => (f64::NAN, f64::NAN),
    };
    for (test, limit, value) in [("Greater", max, above), ("Less", -max, below)] {
        let beyond = op!(cx.em, test, y, limit)?;
        let value = cx.em.number(value, DType::F32)?;
        y = op!(cx.em, "SelectV2", beyond, value, y)?;
    }
    if format.special == Special::NegativeZeroIsNan {
        let is_zero = op!(cx.em, "Equal", y, 0.0)?;
        let zero = cx.em.number(0.0, DType::F32)?;
        y = op!(cx.em, "SelectV2", is_zero, zero, y)?;
    }
    Ok(y)
}

/// The power of two to which the magnitude of a float32 is rounded: up, down, or to the nearest.
fn power_of_two(cx: &mut Cx, x: Output, saturate: bool, mode: &str) -> Result<Output> {
    const EXPONENT: i32 = 0x7f80_0000;
    let magnitude = op!(cx.em, "Abs", x)?;
    let bits = op!(cx.em, "Bitcast", magnitude; "type" => DType::I32)?;
    // Added to the mantissa: the sum carries into the exponent.
    let carry = match mode {
        "up" => 0x007f_ffff,
        "nearest" => 0x0040_0000,
        "down" => 0,
        other => return Err(Failure::invalid(format!("round_mode is {other:?}; it must be up, down or nearest"))),
    };
    let sum = op!(cx.em, "AddV2", bits, carry)?;
    let exponent = op!(cx.em, "BitwiseAnd", sum, EXPONENT)?;
    let power = op!(cx.em, "Bitcast", exponent; "type" => DType::F32)?;
    let least = cx.em.constant(Tensor::scalar(f32::from_bits(1 << 22)))?;
    let is_small = op!(cx.em, "Less", power, f64::from(f32::MIN_POSITIVE))?;
    let mut y = op!(cx.em, "SelectV2", is_small, least, power)?;
    let largest = if saturate { 127f64.exp2() } else { f64::NAN };
    let largest = cx.em.number(largest, DType::F32)?;
    let is_large = op!(cx.em, "IsInf", power)?;
    y = op!(cx.em, "SelectV2", is_large, largest, y)?;
    let is_nan = op!(cx.em, "IsNan", x)?;
    op!(cx.em, "SelectV2", is_nan, x, y)
}

fn bit_cast(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let to = Elem(i32::try_from(n.int("to", 0)).unwrap_or(0));
    let (from, dtype) = (cx.em.elem(x), to.dtype()?);
    if from == to {
        return one(op!(cx.em, "Identity", x)?);
    }
    if from.is_held() || to.is_held() {
        let narrow = |elem: Elem| elem.narrow_int().map(|(bits, _)| bits);
        if let (Some(own), Some((bits, is_signed))) = (narrow(from), to.narrow_int())
            && own == bits
        {
            let whole = cx.cast(x, DType::I32)?;
            let y = wrapped(cx, whole, bits, is_signed)?;
            let y = cx.cast(y, dtype)?;
            return one(cx.em.with_elem(y, to)?);
        }
        return Err(crate::unsupported(format!("unsupported: the bits of {} as {}", from.name(), to.name())));
    }
    if from == Elem::BOOL {
        let bytes = cx.cast(x, DType::U8)?;
        return one(op!(cx.em, "Bitcast", bytes; "type" => dtype)?);
    }
    if to == Elem::BOOL {
        return one(cx.cast(x, DType::Bool)?);
    }
    one(op!(cx.em, "Bitcast", x; "type" => dtype)?)
}
