//! Arithmetic, element by element.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::logic::{two, unary};
use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("Abs", 1, |cx, n| signed(cx, n, "Abs")),
    onnx("Acos", 7, |cx, n| unary(cx, n, "Acos")),
    onnx("Acosh", 9, |cx, n| unary(cx, n, "Acosh")),
    onnx("Add", 1, |cx, n| two(cx, n, "AddV2")),
    onnx("Asin", 7, |cx, n| unary(cx, n, "Asin")),
    onnx("Asinh", 9, |cx, n| unary(cx, n, "Asinh")),
    onnx("Atan", 7, |cx, n| unary(cx, n, "Atan")),
    onnx("Atanh", 9, |cx, n| unary(cx, n, "Atanh")),
    onnx("Ceil", 1, |cx, n| unary(cx, n, "Ceil")),
    onnx("Clip", 1, clip),
    onnx("Cos", 7, |cx, n| unary(cx, n, "Cos")),
    onnx("Cosh", 9, |cx, n| unary(cx, n, "Cosh")),
    onnx("CumProd", 26, |cx, n| cumulative(cx, n, "Cumprod")),
    onnx("CumSum", 11, |cx, n| cumulative(cx, n, "Cumsum")),
    onnx("Div", 1, divide),
    onnx("Erf", 9, |cx, n| unary(cx, n, "Erf")),
    onnx("Exp", 1, |cx, n| unary(cx, n, "Exp")),
    onnx("Floor", 1, |cx, n| unary(cx, n, "Floor")),
    onnx("Log", 1, |cx, n| unary(cx, n, "Log")),
    onnx("Max", 1, |cx, n| many(cx, n, "Maximum")),
    onnx("Mean", 1, mean),
    onnx("Min", 1, |cx, n| many(cx, n, "Minimum")),
    onnx("Mod", 10, modulo),
    onnx("Mul", 1, |cx, n| two(cx, n, "Mul")),
    onnx("Neg", 1, |cx, n| unary(cx, n, "Neg")),
    onnx("Pow", 1, power),
    onnx("Reciprocal", 1, |cx, n| unary(cx, n, "Reciprocal")),
    onnx("Round", 11, |cx, n| unary(cx, n, "Rint")),
    onnx("Sign", 9, |cx, n| signed(cx, n, "Sign")),
    onnx("Sin", 7, |cx, n| unary(cx, n, "Sin")),
    onnx("Sinh", 9, |cx, n| unary(cx, n, "Sinh")),
    onnx("Sqrt", 1, |cx, n| unary(cx, n, "Sqrt")),
    onnx("Sub", 1, |cx, n| two(cx, n, "Sub")),
    onnx("Sum", 1, |cx, n| many(cx, n, "AddV2")),
    onnx("Tan", 7, |cx, n| unary(cx, n, "Tan")),
    onnx("Tanh", 1, |cx, n| unary(cx, n, "Tanh")),
];

/// An op that TensorFlow has for signed numbers only.
fn signed(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let dtype = cx.em.dtype(x);
    if !dtype.is_unsigned_integer() {
        return one(op!(cx.em, name, x)?);
    }
    match name {
        "Abs" => one(x),
        _ => one(op!(cx.em, "Minimum", x, 1.0)?),
    }
}

/// An op over any number of tensors, two by two.
fn many(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let all = n.all()?;
    let (&first, rest) = all.split_first().ok_or_else(|| Failure::invalid("it takes at least one input"))?;
    let all = rest.iter().try_fold(first, |sum, &next| op!(cx.em, name, sum, next))?;
    if rest.is_empty() { one(op!(cx.em, "Identity", all)?) } else { one(all) }
}

fn mean(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let sum = many(cx, n, "AddV2")?[0].tensor()?;
    one(op!(cx.em, "RealDiv", sum, n.inputs.len() as f64)?)
}

fn divide(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let whole = cx.em.dtype(n.input(0)?).is_integer();
    two(cx, n, if whole { "TruncateDiv" } else { "RealDiv" })
}

/// The remainder has the sign of the divisor, or with `fmod` that of the dividend.
fn modulo(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, y) = (n.input(0)?, n.input(1)?);
    if n.int("fmod", 0) == 0 {
        return one(op!(cx.em, "FloorMod", x, y)?);
    }
    let dtype = cx.em.dtype(x);
    if matches!(dtype, DType::I32 | DType::I64) || dtype.is_float() {
        return one(op!(cx.em, "TruncateMod", x, y)?);
    }
    let (x, y) = (cx.long(x)?, cx.long(y)?);
    let rest = op!(cx.em, "TruncateMod", x, y)?;
    one(cx.cast(rest, dtype)?)
}

/// The exponent may be of another dtype; the result has the dtype of the base.
fn power(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, y) = (n.input(0)?, n.input(1)?);
    let (dtype, other) = (cx.em.dtype(x), cx.em.dtype(y));
    if dtype == other && (dtype.is_float() || dtype.is_complex()) {
        // Common powers of a constant, which are faster by other ops and have gradients of their own.
        return match cx.em.floats(y).as_deref() {
            Some([2.0]) if cx.em.rank(y).is_ok_and(|rank| rank == 0) => one(op!(cx.em, "Square", x)?),
            Some([0.5]) if cx.em.rank(y).is_ok_and(|rank| rank == 0) => one(op!(cx.em, "Sqrt", x)?),
            _ => one(op!(cx.em, "Pow", x, y)?),
        };
    }
    // A power of integers by a fraction is computed in floats.
    let through = match (dtype, other) {
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        (DType::F16 | DType::BF16, _) => DType::F32,
        (_, other) if other.is_float() => DType::F64,
        (dtype, _) if dtype.is_float() => dtype,
        _ => DType::I64,
    };
    let (x, y) = (cx.cast(x, through)?, cx.cast(y, through)?);
    // TensorFlow refuses negative powers of integers; ONNX truncates them.
    let raised = if through == DType::I64 {
        let (x, y) = (cx.cast(x, DType::F64)?, cx.cast(y, DType::F64)?);
        op!(cx.em, "Pow", x, y)?
    } else {
        op!(cx.em, "Pow", x, y)?
    };
    one(cx.cast(raised, dtype)?)
}

fn clip(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let dtype = cx.em.dtype(x);
    let (low, high): (Option<Output>, Option<Output>) = if n.version < 11 {
        let bound = |cx: &mut Cx, name: &str| match n.has(name) {
            true => cx.em.number(n.float(name, 0.0).into(), dtype).map(Some),
            false => Ok(None),
        };
        (bound(cx, "min")?, bound(cx, "max")?)
    } else {
        (n.maybe(1)?, n.maybe(2)?)
    };
    let is = |bound: Option<Output>, value: f64| {
        bound.and_then(|bound| cx.em.floats(bound)).is_some_and(|all| all == [value])
    };
    if dtype == DType::F32 && is(low, 0.0) && is(high, 6.0) {
        return one(op!(cx.em, "Relu6", x)?);
    }
    let mut y = x;
    for (bound, name) in [(low, "Maximum"), (high, "Minimum")] {
        let Some(bound) = bound else { continue };
        // A bound is a scalar, but some exporters write a vector of one element.
        let bound = if cx.em.rank(bound)? > 0 { cx.reshape(bound, &[])? } else { bound };
        y = op!(cx.em, name, y, bound)?;
    }
    if y == x { one(op!(cx.em, "Identity", x)?) } else { one(y) }
}

fn cumulative(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let (x, axis) = (n.input(0)?, n.input(1)?);
    let axis = if cx.em.rank(axis)? > 0 { cx.reshape(axis, &[])? } else { axis };
    one(op!(cx.em, name, x, axis; "exclusive" => n.flag("exclusive", false), "reverse" => n.flag("reverse", false))?)
}
