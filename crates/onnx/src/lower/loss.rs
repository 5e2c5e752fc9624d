//! Losses, and dropout.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("Dropout", 1, dropout),
    onnx("NegativeLogLikelihoodLoss", 12, likelihood),
    onnx("SoftmaxCrossEntropyLoss", 12, cross_entropy),
];

/// The loss of the logarithms of probabilities, whose classes are the axis 1.
fn loss(cx: &mut Cx, n: &Node, logs: Output) -> Result<Output> {
    let (labels, weights) = (n.input(1)?, n.maybe(2)?);
    let dtype = cx.em.dtype(logs);
    let (moved, _) = cx.moved_last(logs, 1)?;
    let labels = cx.long(labels)?;
    // An ignored label may be the number of no class.
    let ignored = match n.maybe_int("ignore_index") {
        Some(index) => Some(op!(cx.em, "Equal", labels, index)?),
        None => None,
    };
    let places = match ignored {
        Some(ignored) => {
            let zero = cx.em.constant(Tensor::scalar(0i64))?;
            op!(cx.em, "SelectV2", ignored, zero, labels)?
        }
        None => labels,
    };
    let rank = cx.em.rank(labels)? as i64;
    let taken = op!(cx.em, "GatherV2", moved, places, rank; "batch_dims" => rank)?;
    let mut losses = op!(cx.em, "Neg", taken)?;
    let mut shares = None;
    if let Some(weights) = weights {
        shares = Some(op!(cx.em, "GatherV2", weights, places, 0i64)?);
    }
    if let Some(ignored) = ignored {
        let zero = cx.em.number(0.0, dtype)?;
        let own = match shares {
            Some(shares) => shares,
            None => {
                let shape = cx.shape_of(losses)?;
                cx.fill(shape, 1.0, dtype)?
            }
        };
        shares = Some(op!(cx.em, "SelectV2", ignored, zero, own)?);
    }
    if let Some(shares) = shares {
        losses = op!(cx.em, "Mul", losses, shares)?;
    }
    let axes: Vec<usize> = (0..rank as usize).collect();
    match n.str("reduction", "mean")? {
        "none" => Ok(losses),
        "sum" => cx.reduce("Sum", losses, &axes, false),
        "mean" => match shares {
            None => cx.reduce("Mean", losses, &axes, false),
            Some(shares) => {
                let (sum, whole) = (cx.reduce("Sum", losses, &axes, false)?, cx.reduce("Sum", shares, &axes, false)?);
                op!(cx.em, "RealDiv", sum, whole)
            }
        },
        other => Err(Failure::invalid(format!("reduction is {other:?}; it must be none, sum or mean"))),
    }
}

fn likelihood(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let logs = n.input(0)?;
    super::one(loss(cx, n, logs)?)
}

fn cross_entropy(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let scores = n.input(0)?;
    let (moved, back) = cx.moved_last(scores, 1)?;
    let logs = op!(cx.em, "LogSoftmax", moved)?;
    let logs = cx.transpose(logs, &back)?;
    Ok(vec![loss(cx, n, logs)?.into(), logs.into()])
}

/// Outside of training dropout keeps every element.
fn dropout(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let dtype = cx.em.dtype(x);
    let shape = cx.shape_of(x)?;
    let training = match n.maybe(2)? {
        Some(mode) => match cx.em.ints(mode) {
            Some(known) => known.first() == Some(&1),
            None => return stepwise(cx, n, mode),
        },
        None => false,
    };
    let ratio = n.maybe(1)?;
    let is_none = ratio.is_some_and(|ratio| cx.em.floats(ratio).is_some_and(|all| all == [0.0]));
    if !training || is_none {
        let y = op!(cx.em, "Identity", x)?;
        // Before opset 10 the mask has the dtype of the input.
        let mask = cx.fill(shape, 1.0, if n.version < 10 { dtype } else { DType::Bool })?;
        return Ok(vec![y.into(), mask.into()]);
    }
    dropped(cx, n, x, ratio)
}

/// Elements are dropped at random, and the others scaled so that their mean stays.
fn dropped(cx: &mut Cx, n: &Node, x: Output, ratio: Option<Output>) -> Result<Vec<Value>> {
    let dtype = cx.em.dtype(x);
    let shape = cx.shape_of(x)?;
    let ratio = match ratio {
        Some(ratio) => cx.cast(ratio, DType::F32)?,
        None => cx.em.constant(Tensor::scalar(0.5f32))?,
    };
    let ratio = cx.reshape(ratio, &[] as &[Size])?;
    let seed = n.int("seed", 0);
    let numbers = op!(cx.em, "RandomUniform", shape; "dtype" => DType::F32, "seed" => seed)?;
    let mask = op!(cx.em, "GreaterEqual", numbers, ratio)?;
    let kept = op!(cx.em, "Sub", 1.0, ratio)?;
    let kept = cx.cast(kept, dtype)?;
    let scaled = op!(cx.em, "RealDiv", x, kept)?;
    let zero = cx.em.number(0.0, dtype)?;
    let y = op!(cx.em, "SelectV2", mask, scaled, zero)?;
    Ok(vec![y.into(), mask.into()])
}

/// Whether the model trains is fed.
fn stepwise(cx: &mut Cx, n: &Node, mode: Output) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let ratio = n.maybe(1)?;
    let outputs = dropped(cx, n, x, ratio)?;
    let mode = cx.reshape(mode, &[])?;
    let y = outputs[0].tensor()?;
    let y = op!(cx.em, "SelectV2", mode, y, x)?;
    let mask = outputs[1].tensor()?;
    let all = op!(cx.em, "LogicalNot", mode)?;
    let mask = op!(cx.em, "LogicalOr", mask, all)?;
    Ok(vec![y.into(), mask.into()])
}
