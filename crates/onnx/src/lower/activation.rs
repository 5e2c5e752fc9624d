//! Activations: relu and its kin, sigmoid, softmax.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::logic::unary;
use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("Celu", 12, celu),
    onnx("Elu", 1, elu),
    onnx("Gelu", 20, gelu),
    super::microsoft("Gelu", gelu),
    super::microsoft("FastGelu", fast_gelu),
    super::microsoft("BiasGelu", bias_gelu),
    super::microsoft("QuickGelu", quick_gelu),
    onnx("HardSigmoid", 1, hard_sigmoid),
    onnx("HardSwish", 14, hard_swish),
    onnx("Hardmax", 1, hardmax),
    onnx("LeakyRelu", 1, leaky_relu),
    onnx("LogSoftmax", 1, |cx, n| softmax(cx, n, "LogSoftmax")),
    onnx("Mish", 18, mish),
    onnx("PRelu", 1, prelu),
    onnx("Relu", 1, |cx, n| unary(cx, n, "Relu")),
    onnx("Selu", 1, selu),
    onnx("Shrink", 9, shrink),
    onnx("Sigmoid", 1, |cx, n| unary(cx, n, "Sigmoid")),
    onnx("Softmax", 1, |cx, n| softmax(cx, n, "Softmax")),
    onnx("Softplus", 1, |cx, n| unary(cx, n, "Softplus")),
    onnx("Softsign", 1, |cx, n| unary(cx, n, "Softsign")),
    onnx("SwiGLU", 28, swiglu),
    onnx("Swish", 24, swish),
    onnx("ThresholdedRelu", 1, thresholded_relu),
];

fn elu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, alpha) = (n.input(0)?, n.float("alpha", 1.0));
    if alpha == 1.0 {
        return one(op!(cx.em, "Elu", x)?);
    }
    one(exponential(cx, x, alpha.into(), 1.0)?)
}

/// `scale * (x if x > 0 else alpha * (exp(x) - 1))`.
fn exponential(cx: &mut Cx, x: Output, alpha: f64, scale: f64) -> Result<Output> {
    let low = op!(cx.em, "Expm1", x)?;
    let low = op!(cx.em, "Mul", low, alpha * scale)?;
    let high = if scale == 1.0 { x } else { op!(cx.em, "Mul", x, scale)? };
    let positive = op!(cx.em, "Greater", x, 0.0)?;
    op!(cx.em, "SelectV2", positive, high, low)
}

fn selu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (alpha, gamma) = (n.float("alpha", 1.673_263_2), n.float("gamma", 1.050_701));
    one(exponential(cx, x, alpha.into(), gamma.into())?)
}

fn celu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, alpha) = (n.input(0)?, f64::from(n.float("alpha", 1.0)));
    let low = op!(cx.em, "RealDiv", x, alpha)?;
    let low = op!(cx.em, "Expm1", low)?;
    let low = op!(cx.em, "Mul", low, alpha)?;
    let low = op!(cx.em, "Minimum", low, 0.0)?;
    let high = op!(cx.em, "Maximum", x, 0.0)?;
    one(op!(cx.em, "AddV2", high, low)?)
}

fn gelu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    match n.str("approximate", "none")? {
        "none" => one(gelu_by_erf(cx, x)?),
        "tanh" => one(gelu_by_tanh(cx, x)?),
        other => Err(Failure::invalid(format!("approximate is {other:?}; it must be none or tanh"))),
    }
}

pub fn gelu_by_erf(cx: &mut Cx, x: Output) -> Result<Output> {
    let y = op!(cx.em, "Mul", x, std::f64::consts::FRAC_1_SQRT_2)?;
    let y = op!(cx.em, "Erf", y)?;
    let y = op!(cx.em, "AddV2", y, 1.0)?;
    let half = op!(cx.em, "Mul", x, 0.5)?;
    op!(cx.em, "Mul", half, y)
}

pub fn gelu_by_tanh(cx: &mut Cx, x: Output) -> Result<Output> {
    let square = op!(cx.em, "Square", x)?;
    let y = op!(cx.em, "Mul", square, 0.044_715)?;
    let y = op!(cx.em, "AddV2", y, 1.0)?;
    let y = op!(cx.em, "Mul", y, x)?;
    let y = op!(cx.em, "Mul", y, (2.0 / std::f64::consts::PI).sqrt())?;
    let y = op!(cx.em, "Tanh", y)?;
    let y = op!(cx.em, "AddV2", y, 1.0)?;
    let half = op!(cx.em, "Mul", x, 0.5)?;
    op!(cx.em, "Mul", half, y)
}

fn with_bias(cx: &mut Cx, n: &Node) -> Result<Output> {
    let x = n.input(0)?;
    match n.maybe(1)? {
        Some(bias) => op!(cx.em, "AddV2", x, bias),
        None => Ok(x),
    }
}

fn fast_gelu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = with_bias(cx, n)?;
    one(gelu_by_tanh(cx, x)?)
}

fn bias_gelu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = with_bias(cx, n)?;
    one(gelu_by_erf(cx, x)?)
}

fn quick_gelu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, alpha) = (n.input(0)?, n.float("alpha", 1.702));
    one(gated(cx, x, alpha.into())?)
}

/// `x * sigmoid(alpha * x)`.
fn gated(cx: &mut Cx, x: Output, alpha: f64) -> Result<Output> {
    let y = if alpha == 1.0 { x } else { op!(cx.em, "Mul", x, alpha)? };
    let y = op!(cx.em, "Sigmoid", y)?;
    op!(cx.em, "Mul", x, y)
}

fn swish(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, alpha) = (n.input(0)?, n.float("alpha", 1.0));
    one(gated(cx, x, alpha.into())?)
}

fn swiglu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (gate, x, alpha) = (n.input(0)?, n.input(1)?, n.float("alpha", 1.0));
    let gate = gated(cx, gate, alpha.into())?;
    one(op!(cx.em, "Mul", gate, x)?)
}

fn mish(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let y = op!(cx.em, "Softplus", x)?;
    let y = op!(cx.em, "Tanh", y)?;
    one(op!(cx.em, "Mul", x, y)?)
}

fn hard_sigmoid(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(hard(cx, x, n.float("alpha", 0.2).into(), n.float("beta", 0.5).into())?)
}

/// `alpha * x + beta`, limited to 0 and 1.
pub fn hard(cx: &mut Cx, x: Output, alpha: f64, beta: f64) -> Result<Output> {
    let y = op!(cx.em, "Mul", x, alpha)?;
    let y = op!(cx.em, "AddV2", y, beta)?;
    let y = op!(cx.em, "Maximum", y, 0.0)?;
    op!(cx.em, "Minimum", y, 1.0)
}

fn hard_swish(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let y = hard(cx, x, 1.0 / 6.0, 0.5)?;
    one(op!(cx.em, "Mul", x, y)?)
}

fn leaky_relu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(op!(cx.em, "LeakyRelu", x; "alpha" => n.float("alpha", 0.01))?)
}

fn prelu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, slope) = (n.input(0)?, n.input(1)?);
    // Before opset 7 a slope for each channel may come as a vector.
    let (rank, own) = (cx.em.rank(x)?, cx.em.rank(slope)?);
    let slope = match n.version < 7 && own == 1 && rank > 2 {
        true => cx.unsqueeze(slope, &(1..rank - 1).collect::<Vec<_>>())?,
        false => slope,
    };
    let low = op!(cx.em, "Mul", slope, x)?;
    let negative = op!(cx.em, "Less", x, 0.0)?;
    one(op!(cx.em, "SelectV2", negative, low, x)?)
}

fn thresholded_relu(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let passes = op!(cx.em, "Greater", x, f64::from(n.float("alpha", 1.0)))?;
    let zero = cx.em.number(0.0, cx.em.dtype(x))?;
    one(op!(cx.em, "SelectV2", passes, x, zero)?)
}

fn shrink(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, lambd, bias) = (n.input(0)?, f64::from(n.float("lambd", 0.5)), f64::from(n.float("bias", 0.0)));
    let zero = cx.em.number(0.0, cx.em.dtype(x))?;
    let (low, high) = (op!(cx.em, "AddV2", x, bias)?, op!(cx.em, "Sub", x, bias)?);
    let above = op!(cx.em, "Greater", x, lambd)?;
    let high = op!(cx.em, "SelectV2", above, high, zero)?;
    let below = op!(cx.em, "Less", x, -lambd)?;
    one(op!(cx.em, "SelectV2", below, low, high)?)
}

/// Before opset 13 the axes from `axis` on are one; since then there is one axis.
fn rows(cx: &mut Cx, n: &Node, rule: &mut dyn FnMut(&mut Cx, Output) -> Result<Output>) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    if n.version < 13 {
        let axis = crate::axis(n.int("axis", 1), rank.max(1)).unwrap_or(rank);
        let sizes = cx.sizes(x)?;
        let (outer, inner) = (cx.product(&sizes[..axis])?, cx.product(&sizes[axis..])?);
        let flat = cx.reshape(x, &[outer, inner])?;
        let y = rule(cx, flat)?;
        return one(cx.reshape(y, &sizes)?);
    }
    if rank == 0 {
        let flat = cx.reshape(x, &[Size::Known(1)])?;
        let y = rule(cx, flat)?;
        return one(cx.reshape(y, &[])?);
    }
    let axis = cx.axis(n.int("axis", -1), rank)?;
    let (moved, back) = cx.moved_last(x, axis)?;
    let y = rule(cx, moved)?;
    one(cx.transpose(y, &back)?)
}

fn softmax(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    rows(cx, n, &mut |cx, x| op!(cx.em, name, x))
}

fn hardmax(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    rows(cx, n, &mut |cx, x| {
        let (rank, dtype) = (cx.em.rank(x)?, cx.em.dtype(x));
        let at = op!(cx.em, "ArgMax", x, (rank - 1) as i32; "output_type" => DType::I64)?;
        let size = cx.size(x, rank - 1)?;
        let size = cx.scalar(size)?;
        let depth = cx.cast(size, DType::I32)?;
        let (on, off) = (cx.em.number(1.0, dtype)?, cx.em.number(0.0, dtype)?);
        op!(cx.em, "OneHot", at, depth, on, off)
    })
}
