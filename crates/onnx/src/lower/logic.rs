//! Comparisons, logic, bits and selection.

use meshtf_tensor::failure::{Failure, Result};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("And", 1, |cx, n| two(cx, n, "LogicalAnd")),
    onnx("BitShift", 11, shift),
    onnx("BitwiseAnd", 18, |cx, n| two(cx, n, "BitwiseAnd")),
    onnx("BitwiseNot", 18, |cx, n| unary(cx, n, "Invert")),
    onnx("BitwiseOr", 18, |cx, n| two(cx, n, "BitwiseOr")),
    onnx("BitwiseXor", 18, |cx, n| two(cx, n, "BitwiseXor")),
    onnx("Equal", 1, |cx, n| two(cx, n, "Equal")),
    onnx("Greater", 1, |cx, n| two(cx, n, "Greater")),
    onnx("GreaterOrEqual", 12, |cx, n| two(cx, n, "GreaterEqual")),
    onnx("IsInf", 10, is_inf),
    onnx("IsNaN", 9, |cx, n| unary(cx, n, "IsNan")),
    onnx("Less", 1, |cx, n| two(cx, n, "Less")),
    onnx("LessOrEqual", 12, |cx, n| two(cx, n, "LessEqual")),
    onnx("Not", 1, |cx, n| unary(cx, n, "LogicalNot")),
    onnx("Or", 1, |cx, n| two(cx, n, "LogicalOr")),
    onnx("Where", 9, select),
    onnx("Xor", 1, |cx, n| two(cx, n, "NotEqual")),
];

/// An op on two tensors, which before opset 7 broadcast only if an attribute says so: `axis` is where the second begins.
pub fn two(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let (x, mut y) = (n.input(0)?, n.input(1)?);
    if n.version < 7 && n.proto.domain.is_empty() && n.int("broadcast", 0) != 0 && n.has("axis") {
        let (rank, own) = (cx.em.rank(x)?, cx.em.rank(y)?);
        let axis = cx.axis(n.int("axis", 0), rank)?;
        let after = rank.saturating_sub(axis + own);
        y = cx.unsqueeze(y, &(own..own + after).collect::<Vec<_>>())?;
    }
    one(op!(cx.em, name, x, y)?)
}

/// An op on one tensor.
pub fn unary(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(op!(cx.em, name, x)?)
}

/// A shift by more bits than there are, or by a negative number, leaves none: zero, or the sign.
fn shift(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, by) = (n.input(0)?, n.input(1)?);
    let dtype = cx.em.dtype(x);
    let bits = dtype.size().unwrap_or(1) as f64 * 8.0;
    let is_left = match n.str("direction", "")? {
        "LEFT" => true,
        "RIGHT" => false,
        other => return Err(Failure::invalid(format!("direction is {other:?}; it must be LEFT or RIGHT"))),
    };
    let mut is_beyond = op!(cx.em, "GreaterEqual", by, bits)?;
    if dtype.is_signed_integer() {
        let is_negative = op!(cx.em, "Less", by, 0.0)?;
        is_beyond = op!(cx.em, "LogicalOr", is_beyond, is_negative)?;
    }
    let last = cx.em.number(bits - 1.0, dtype)?;
    let by = op!(cx.em, "SelectV2", is_beyond, last, by)?;
    let y = op!(cx.em, if is_left { "LeftShift" } else { "RightShift" }, x, by)?;
    if !is_left && dtype.is_signed_integer() {
        return one(y);
    }
    let zero = cx.em.number(0.0, dtype)?;
    one(op!(cx.em, "SelectV2", is_beyond, zero, y)?)
}

fn is_inf(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (negative, positive) = (n.flag("detect_negative", true), n.flag("detect_positive", true));
    let found = match (negative, positive) {
        (true, true) => op!(cx.em, "IsInf", x)?,
        (true, false) => op!(cx.em, "Equal", x, f64::NEG_INFINITY)?,
        (false, true) => op!(cx.em, "Equal", x, f64::INFINITY)?,
        (false, false) => op!(cx.em, "NotEqual", x, x)
            .and_then(|nan| op!(cx.em, "LogicalAnd", nan, meshtf_tensor::Tensor::scalar(false)))?,
    };
    one(found)
}

fn select(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (condition, x, y) = (n.input(0)?, n.input(1)?, n.input(2)?);
    one(op!(cx.em, "SelectV2", condition, x, y)?)
}
