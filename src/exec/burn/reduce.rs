//! Sums and their kin over some of the dimensions, and what is made of them: softmax, cross entropy.

use smallvec::SmallVec;

use super::array::{Array, Site, done};
use super::elementwise::arrays;
use super::memory::Backing;
use super::{Body, admit_answer, blocks};
use crate::exec::engine::{Ran, Value, Values};
use crate::exec::kernel::KernelNode;
use crate::failure::Result;
use crate::tensor::Shape;

type Raw<B> = <B as Backing>::Raw;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let over_axes = |fold| -> Result<Option<Body<B>>> { Ok(Some(reduction(fold, node.attrs.bool("keep_dims")?))) };
    match node.op {
        "Sum" => over_axes(Fold::Sum),
        "Mean" => over_axes(Fold::Mean),
        "Max" => over_axes(Fold::Max),
        "Min" => over_axes(Fold::Min),
        "Prod" => over_axes(Fold::Prod),
        "Softmax" => Ok(Some(along_rows(|x, axis| B::softmax(x, axis)))),
        "LogSoftmax" => Ok(Some(along_rows(|x, axis| B::log_softmax(x, axis)))),
        "BiasAddGrad" => Ok(Some(bias_add_grad(node.attrs.str("data_format")? == "NCHW"))),
        "L2Loss" if B::REMOTE => Ok(Some(Box::new(|site, inputs| {
            let [x] = arrays(site, inputs)?;
            let squares = x.map(|raw| B::float_mul(raw.clone(), raw));
            let sum = fold(squares, Fold::Sum, |_| true, Shape::scalar());
            done(sum.map(|raw| B::float_mul_scalar(raw, 0.5f32.into())))
        }))),
        "SoftmaxCrossEntropyWithLogits" if B::REMOTE => Ok(Some(Box::new(cross_entropy))),
        _ => Ok(None),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fold {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
}

fn reduction<B: Backing>(kind: Fold, keep_dims: bool) -> Body<B> {
    Box::new(move |site, mut inputs| {
        let rank = inputs[0].rank();
        let Some(reduced) = axes(&inputs[1], rank)? else { return Ok(Ran::Declined(inputs)) };
        let sizes = inputs[0].shape().dims().iter().zip(&reduced);
        let shape: Shape = if keep_dims {
            sizes.map(|(&size, &gone)| if gone { 1 } else { size }).collect()
        } else {
            sizes.filter(|&(_, &gone)| !gone).map(|(&size, _)| size).collect()
        };
        if shape == *inputs[0].shape() {
            // No dimension of more than one element goes, as in the gradient of what did not broadcast.
            inputs.truncate(1);
            return Ok(Ran::Done(inputs));
        }
        if !B::REMOTE {
            shape.checked_elements(inputs[0].dtype())?;
        }
        let [x] = arrays(site, inputs)?;
        done(fold(x, kind, |axis| reduced[axis], shape))
    })
}

/// Which dimensions the axes name; `None` where one is out of range or named twice.
fn axes(value: &Value, rank: usize) -> Result<Option<SmallVec<[bool; 8]>>> {
    let mut reduced = SmallVec::<[bool; 8]>::from_elem(false, rank);
    for axis in value.clone().into_host()?.to_i64s()? {
        let from_front = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_front).ok().and_then(|axis| reduced.get_mut(axis)) {
            Some(reduced) if !*reduced => *reduced = true,
            _ => return Ok(None),
        }
    }
    Ok(Some(reduced))
}

/// Folds the dimensions that `reduced` says, as few of burn's reductions as do it: neighbours become one dimension.
fn fold<B: Backing>(x: Array<B>, kind: Fold, reduced: impl Fn(usize) -> bool, shape: Shape) -> Array<B> {
    let mut runs = SmallVec::<[(usize, bool); 8]>::new();
    for (axis, &size) in x.shape.dims().iter().enumerate().filter(|&(_, &size)| size != 1) {
        match runs.last_mut() {
            Some((run, gone)) if *gone == reduced(axis) => *run *= size,
            _ => runs.push((size, reduced(axis))),
        }
    }
    if !runs.iter().any(|&(_, gone)| gone) {
        return x.reshape(shape);
    }
    let count: usize = runs.iter().filter(|run| run.1).map(|run| run.0).product();
    let dtype = x.dtype;
    let flat = x.reshape(runs.iter().map(|run| run.0).collect());
    let narrow = dtype.size() == Some(2);
    let raw = if runs.len() == 1 {
        match kind {
            Fold::Sum => B::float_sum(flat.raw),
            // A sum of many half floats may overflow where their mean does not.
            Fold::Mean if narrow => B::float_mean(flat.raw),
            Fold::Mean => B::float_div_scalar(B::float_sum(flat.raw), (count as f64).into()),
            Fold::Max => B::float_max(flat.raw),
            Fold::Min => B::float_min(flat.raw),
            Fold::Prod => B::float_prod(flat.raw),
        }
    } else {
        let folded = runs.iter().enumerate().filter(|(_, run)| run.1).fold(flat.raw, |raw, (axis, _)| match kind {
            Fold::Mean if narrow => B::float_mean_dim(raw, axis),
            Fold::Sum | Fold::Mean => B::float_sum_dim(raw, axis),
            Fold::Max => B::float_max_dim(raw, axis),
            Fold::Min => B::float_min_dim(raw, axis),
            Fold::Prod => B::float_prod_dim(raw, axis),
        });
        if kind == Fold::Mean && !narrow { B::float_div_scalar(folded, (count as f64).into()) } else { folded }
    };
    let kept = if runs.len() == 1 {
        Shape::from([1])
    } else {
        runs.iter().map(|&(size, gone)| if gone { 1 } else { size }).collect()
    };
    Array { raw, dtype, shape: kept, home: flat.home }.reshape(shape)
}

/// A function of each row of the last dimension.
fn along_rows<B: Backing>(function: fn(Raw<B>, usize) -> Raw<B>) -> Body<B> {
    Box::new(move |site, inputs| {
        let Some(axis) = inputs[0].rank().checked_sub(1) else { return Ok(Ran::Declined(inputs)) };
        admit_answer(&inputs)?;
        let [x] = arrays(site, inputs)?;
        if blocks::is_much::<B>(&x.shape) {
            return done(blocks::elementwise(site, x.dtype, x.shape.clone(), 1, [x], |[raw]| function(raw, axis)));
        }
        done(x.map(|raw| function(raw, axis)))
    })
}

fn bias_add_grad<B: Backing>(channels_first: bool) -> Body<B> {
    Box::new(move |site, inputs| {
        let shape = inputs[0].shape();
        if shape.rank() < 2 {
            return Ok(Ran::Declined(inputs));
        }
        let channels = if channels_first { 1 } else { shape.rank() - 1 };
        let answer = Shape::from([shape.dims()[channels]]);
        let [x] = arrays(site, inputs)?;
        done(fold(x, Fold::Sum, |axis| axis != channels, answer))
    })
}

/// The loss of each row, and its gradient with respect to the logits.
fn cross_entropy<B: Backing>(site: &Site<B>, inputs: Values) -> Result<Ran> {
    if inputs[0].rank() != 2 || inputs[0].shape() != inputs[1].shape() {
        return Ok(Ran::Declined(inputs));
    }
    let [logits, labels] = arrays(site, inputs)?;
    let rows = Shape::from([logits.shape.dims()[0]]);
    let logs = logits.map(|raw| B::log_softmax(raw, 1));
    let gradient = Array { raw: B::float_sub(B::float_exp(logs.raw.clone()), labels.raw.clone()), ..logs.clone() };
    let weighted = labels.map(|raw| B::float_neg(B::float_mul(raw, logs.raw)));
    let loss = fold(weighted, Fold::Sum, |axis| axis == 1, rows);
    Ok(Ran::Done(Values::from_iter([loss.value(), gradient.value()])))
}
