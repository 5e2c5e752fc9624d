//! The updates of optimizers, of the domain ai.onnx.preview.training.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::{Operator, Rule};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

const fn training(name: &'static str, rule: Rule) -> Operator {
    Operator { domain: "ai.onnx.preview.training", name, since: 1, rule }
}

pub const TABLE: &[Operator] = &[training("Adagrad", adagrad), training("Adam", adam), training("Momentum", momentum)];

/// Groups of the inputs after rate and step: so many parts, each with a tensor for every variable.
fn parts(n: &Node, count: usize) -> Result<Vec<Vec<Output>>> {
    let all = n.all()?;
    let rest = all.get(2..).unwrap_or_default();
    if rest.is_empty() || !rest.len().is_multiple_of(count) {
        return Err(Failure::invalid(format!("its {} tensors are no {count} for each variable", rest.len())));
    }
    Ok(rest.chunks(rest.len() / count).map(<[Output]>::to_vec).collect())
}

/// The gradient, with the decay of the variable.
fn regularised(cx: &mut Cx, n: &Node, x: Output, gradient: Output) -> Result<Output> {
    let decay = op!(cx.em, "Mul", x, f64::from(n.float("norm_coefficient", 0.0)))?;
    op!(cx.em, "AddV2", gradient, decay)
}

fn mixed(cx: &mut Cx, old: Output, keep: f64, new: Output, share: f64) -> Result<Output> {
    let (old, new) = (op!(cx.em, "Mul", old, keep)?, op!(cx.em, "Mul", new, share)?);
    op!(cx.em, "AddV2", old, new)
}

fn adagrad(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (rate, step) = (n.input(0)?, n.input(1)?);
    let parts = parts(n, 3)?;
    let (mut new, mut sums) = (Vec::new(), Vec::new());
    let dtype = cx.em.dtype(rate);
    let step = cx.cast(step, dtype)?;
    let decay = op!(cx.em, "Mul", step, f64::from(n.float("decay_factor", 0.0)))?;
    let decay = op!(cx.em, "AddV2", decay, 1.0)?;
    let rate = op!(cx.em, "RealDiv", rate, decay)?;
    for ((&x, &gradient), &sum) in parts[0].iter().zip(&parts[1]).zip(&parts[2]) {
        let gradient = regularised(cx, n, x, gradient)?;
        let square = op!(cx.em, "Square", gradient)?;
        let sum = op!(cx.em, "AddV2", sum, square)?;
        let root = op!(cx.em, "Sqrt", sum)?;
        let root = op!(cx.em, "AddV2", root, f64::from(n.float("epsilon", 1e-6)))?;
        let change = op!(cx.em, "Mul", rate, gradient)?;
        let change = op!(cx.em, "RealDiv", change, root)?;
        new.push(op!(cx.em, "Sub", x, change)?.into());
        sums.push(sum.into());
    }
    new.extend(sums);
    Ok(new)
}

fn adam(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (rate, step) = (n.input(0)?, n.input(1)?);
    let parts = parts(n, 4)?;
    let (alpha, beta) = (f64::from(n.float("alpha", 0.9)), f64::from(n.float("beta", 0.999)));
    let dtype = cx.em.dtype(rate);
    // The moments are biased at the beginning; step 0 has no correction.
    let wide = cx.cast(step, DType::F64)?;
    let one = cx.em.number(1.0, DType::F64)?;
    let power = |cx: &mut Cx, base: f64| -> Result<Output> {
        let power = op!(cx.em, "Pow", meshtf_tensor::Tensor::scalar(base), wide)?;
        op!(cx.em, "Sub", 1.0, power)
    };
    let (first, second) = (power(cx, alpha)?, power(cx, beta)?);
    let second = op!(cx.em, "Sqrt", second)?;
    let factor = op!(cx.em, "RealDiv", second, first)?;
    let later = op!(cx.em, "Greater", wide, 0.0)?;
    let factor = op!(cx.em, "SelectV2", later, factor, one)?;
    let factor = cx.cast(factor, dtype)?;
    let rate = op!(cx.em, "Mul", rate, factor)?;
    let (mut new, mut means, mut squares) = (Vec::new(), Vec::new(), Vec::new());
    for (i, &x) in parts[0].iter().enumerate() {
        let gradient = regularised(cx, n, x, parts[1][i])?;
        let mean = mixed(cx, parts[2][i], alpha, gradient, 1.0 - alpha)?;
        let square = op!(cx.em, "Square", gradient)?;
        let square = mixed(cx, parts[3][i], beta, square, 1.0 - beta)?;
        let root = op!(cx.em, "Sqrt", square)?;
        let root = op!(cx.em, "AddV2", root, f64::from(n.float("epsilon", 1e-6)))?;
        let change = op!(cx.em, "RealDiv", mean, root)?;
        let change = op!(cx.em, "Mul", rate, change)?;
        let x = op!(cx.em, "Sub", x, change)?;
        let post = f64::from(n.float("norm_coefficient_post", 0.0));
        let x = if post == 0.0 { x } else { op!(cx.em, "Mul", x, 1.0 - post)? };
        new.push(x.into());
        means.push(mean.into());
        squares.push(square.into());
    }
    new.extend(means);
    new.extend(squares);
    Ok(new)
}

fn momentum(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (rate, step) = (n.input(0)?, n.input(1)?);
    let parts = parts(n, 3)?;
    let (alpha, beta) = (f64::from(n.float("alpha", 0.0)), f64::from(n.float("beta", 0.0)));
    let is_nesterov = n.str("mode", "standard")? == "nesterov";
    let dtype = cx.em.dtype(rate);
    // The first gradient is taken whole.
    let wide = cx.cast(step, dtype)?;
    let later = op!(cx.em, "Greater", wide, 0.0)?;
    let (share, whole) = (cx.em.number(beta, dtype)?, cx.em.number(1.0, dtype)?);
    let share = op!(cx.em, "SelectV2", later, share, whole)?;
    let (mut new, mut kept) = (Vec::new(), Vec::new());
    for ((&x, &gradient), &old) in parts[0].iter().zip(&parts[1]).zip(&parts[2]) {
        let gradient = regularised(cx, n, x, gradient)?;
        let old = op!(cx.em, "Mul", old, alpha)?;
        let own = op!(cx.em, "Mul", gradient, share)?;
        let state = op!(cx.em, "AddV2", old, own)?;
        let change = if is_nesterov {
            let ahead = op!(cx.em, "Mul", state, alpha)?;
            op!(cx.em, "AddV2", gradient, ahead)?
        } else {
            state
        };
        let change = op!(cx.em, "Mul", rate, change)?;
        new.push(op!(cx.em, "Sub", x, change)?.into());
        kept.push(state.into());
    }
    new.extend(kept);
    Ok(new)
}
