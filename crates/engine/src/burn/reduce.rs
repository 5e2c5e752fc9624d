//! Reductions over some of the dimensions, and functions composed of them: softmax, cross entropy.

use burn_backend::TensorMetadata;
use burn_backend::tensor::IndexingUpdateOp;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Shape, Tensor};
use smallvec::SmallVec;

use super::array::{Array, Site, done, places};
use super::elementwise::{arrays, take};
use super::memory::{Backing, upload};
use super::{Body, admit_answer, blocks};
use crate::{EngineOutcome, Value, Values};

type Raw<B> = <B as Backing>::Raw;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let over_axes = |fold| -> Result<Option<Body<B>>> { Ok(Some(reduction(fold, node.attrs.bool("keep_dims")?))) };
    match node.op {
        "Sum" => over_axes(AxisFold::Sum),
        "Mean" => over_axes(AxisFold::Mean),
        "Max" => over_axes(AxisFold::Max),
        "Min" => over_axes(AxisFold::Min),
        "Prod" => over_axes(AxisFold::Prod),
        "Softmax" => Ok(Some(along_rows(|x, axis| B::softmax(x, axis)))),
        "LogSoftmax" => Ok(Some(along_rows(|x, axis| B::log_softmax(x, axis)))),
        "BiasAddGrad" => Ok(Some(bias_add_grad(node.attrs.str("data_format")? == "NCHW"))),
        "L2Loss" if B::REMOTE => Ok(Some(Box::new(|site, inputs| {
            let [x] = arrays(site, inputs)?;
            let squares = x.map(|raw| B::float_mul(raw.clone(), raw));
            let sum = fold(squares, AxisFold::Sum, |_| true, Shape::scalar())?;
            done(sum.map(|raw| B::float_mul_scalar(raw, 0.5f32.into())))
        }))),
        "SoftmaxCrossEntropyWithLogits" if B::REMOTE => Ok(Some(Box::new(cross_entropy))),
        "SparseSoftmaxCrossEntropyWithLogits" if B::REMOTE => Ok(Some(Box::new(sparse_cross_entropy))),
        _ => Ok(None),
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum AxisFold {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
}

fn reduction<B: Backing>(kind: AxisFold, keep_dims: bool) -> Body<B> {
    Box::new(move |site, mut inputs| {
        let rank = inputs[0].rank();
        let Some(reduced) = axes(&inputs[1], rank)? else { return Ok(EngineOutcome::Declined(inputs)) };
        let sizes = inputs[0].shape().dims().iter().zip(&reduced);
        let shape: Shape = if keep_dims {
            sizes.map(|(&size, &gone)| if gone { 1 } else { size }).collect()
        } else {
            sizes.filter(|&(_, &gone)| !gone).map(|(&size, _)| size).collect()
        };
        if shape == *inputs[0].shape() {
            // Only dimensions of size 1 are reduced, as in the gradient of operands that were not broadcast.
            inputs.truncate(1);
            return Ok(EngineOutcome::Done(inputs));
        }
        if !B::REMOTE {
            shape.checked_elements(inputs[0].dtype())?;
        }
        let [x] = arrays(site, inputs)?;
        done(fold(x, kind, |axis| reduced[axis], shape)?)
    })
}

/// The dimensions of the axes; `None` if one is out of range or occurs twice.
pub(super) fn axes(value: &Value, rank: usize) -> Result<Option<SmallVec<[bool; 8]>>> {
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

/// Folds the dimensions marked in `reduced` with as few of burn's reductions as possible, by merging neighbours.
pub(super) fn fold<B: Backing>(
    x: Array<B>,
    kind: AxisFold,
    reduced: impl Fn(usize) -> bool,
    shape: Shape,
) -> Result<Array<B>> {
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
    let gone: SmallVec<[bool; 8]> = runs.iter().map(|run| run.1).collect();
    let is_narrow = x.dtype.size() == Some(2);
    let flat = x.in_order()?.reshape(runs.iter().map(|run| run.0).collect())?;
    let folded = match kind {
        // The sum of many half floats may overflow although their mean does not. A GPU divides as it sums up.
        AxisFold::Mean if is_narrow || B::REMOTE => at_once(flat, kind, &gone),
        AxisFold::Mean => {
            in_parts(flat, AxisFold::Sum, &gone)?.map(|raw| B::float_div_scalar(raw, (count as f64).into()))
        }
        _ => in_parts(flat, kind, &gone)?,
    };
    folded.reshape(shape)
}

/// Folds the axes marked in `gone` by burn's reductions; they stay, with size 1.
fn at_once<B: Backing>(x: Array<B>, kind: AxisFold, gone: &[bool]) -> Array<B> {
    let kept = x.shape.dims().iter().zip(gone).map(|(&size, &gone)| if gone { 1 } else { size }).collect();
    let raw = if gone == [true] {
        match kind {
            AxisFold::Sum => B::float_sum(x.raw),
            AxisFold::Mean => B::float_mean(x.raw),
            AxisFold::Max => B::float_max(x.raw),
            AxisFold::Min => B::float_min(x.raw),
            AxisFold::Prod => B::float_prod(x.raw),
        }
    } else {
        gone.iter().enumerate().filter(|&(_, &gone)| gone).fold(x.raw, |raw, (axis, _)| match kind {
            AxisFold::Mean => B::float_mean_dim(raw, axis),
            AxisFold::Sum => B::float_sum_dim(raw, axis),
            AxisFold::Max => B::float_max_dim(raw, axis),
            AxisFold::Min => B::float_min_dim(raw, axis),
            AxisFold::Prod => B::float_prod_dim(raw, axis),
        })
    };
    Array { raw, shape: kept, ..x }
}

/// Like [`at_once`], for any kind but the mean. A large tensor is cut along its outermost axis: if that is kept, the result
/// is made part by part, each element as without parts; if it is reduced, the parts are folded together.
fn in_parts<B: Backing>(x: Array<B>, kind: AxisFold, gone: &[bool]) -> Result<Array<B>> {
    let dims: SmallVec<[usize; 8]> = x.shape.dims().iter().copied().collect();
    let is_cut = |axis: &usize| dims[*axis] > 1;
    let Some(outer) = (0..dims.len()).find(is_cut).filter(|_| blocks::is_large::<B>(&x.shape)) else {
        return Ok(at_once(x, kind, gone));
    };
    let elements: usize = dims.iter().product();
    let kept = (outer..dims.len()).find(|axis| is_cut(axis) && !gone[*axis]);
    // Rows that are large by themselves are cut before they are folded.
    let cut = kept.filter(|_| elements / dims[outer] > blocks::MOST_ELEMENTS).unwrap_or(outer);
    let most = (blocks::MOST_ELEMENTS / (elements / dims[cut])).max(1);
    if !gone[cut] {
        let shape: Shape = dims.iter().zip(gone).map(|(&size, &gone)| if gone { 1 } else { size }).collect();
        let mut block: SmallVec<[usize; 8]> = shape.dims().iter().copied().collect();
        block[cut] = most;
        return blocks::by_blocks(&x.raw.device(), x.dtype, shape, &block, &mut |ranges| {
            let (from, count) = ranges[cut];
            Ok(in_parts(x.clone().narrow(cut, from, count), kind, gone)?.raw)
        });
    }
    let part = |from: usize| {
        turn::look();
        in_parts(x.clone().narrow(cut, from, most.min(dims[cut] - from)), kind, gone)
    };
    let first = part(0)?;
    (most..dims[cut]).step_by(most).try_fold(first, |folded, from| {
        let next = part(from)?;
        match kind {
            AxisFold::Sum | AxisFold::Mean => Ok(folded.map(|raw| B::float_add(raw, next.raw))),
            AxisFold::Prod => Ok(folded.map(|raw| B::float_mul(raw, next.raw))),
            AxisFold::Max | AxisFold::Min => {
                let only: SmallVec<[bool; 8]> = (0..dims.len()).map(|axis| axis == cut).collect();
                Ok(at_once(Array::concat(vec![folded, next], cut)?, kind, &only))
            }
        }
    })
}

/// A function of each row of the last dimension.
fn along_rows<B: Backing>(function: fn(Raw<B>, usize) -> Raw<B>) -> Body<B> {
    Box::new(move |site, inputs| {
        let Some(axis) = inputs[0].rank().checked_sub(1) else { return Ok(EngineOutcome::Declined(inputs)) };
        admit_answer(&inputs)?;
        let [x] = arrays(site, inputs)?;
        if blocks::is_large::<B>(&x.shape) {
            let shape = x.shape.clone();
            return done(blocks::elementwise(&site.device, x.dtype, shape, 1, [x], |[raw]| function(raw, axis))?);
        }
        done(x.map(|raw| function(raw, axis)))
    })
}

fn bias_add_grad<B: Backing>(channels_first: bool) -> Body<B> {
    Box::new(move |site, inputs| {
        let shape = inputs[0].shape();
        if shape.rank() < 2 {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let channels = if channels_first { 1 } else { shape.rank() - 1 };
        let answer = Shape::from([shape.dims()[channels]]);
        let [x] = arrays(site, inputs)?;
        done(fold(x, AxisFold::Sum, |axis| axis != channels, answer)?)
    })
}

/// The loss of each row, and its gradient with respect to the logits.
fn cross_entropy<B: Backing>(site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    if inputs[0].rank() != 2 || inputs[0].shape() != inputs[1].shape() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let [logits, labels] = arrays(site, inputs)?;
    let rows = Shape::from([logits.shape.dims()[0]]);
    let logs = logits.map(|raw| B::log_softmax(raw, 1));
    let gradient = Array { raw: B::float_sub(B::float_exp(logs.raw.clone()), labels.raw.clone()), ..logs.clone() };
    let weighted = labels.map(|raw| B::float_neg(B::float_mul(raw, logs.raw)));
    let loss = fold(weighted, AxisFold::Sum, |axis| axis == 1, rows)?;
    Ok(EngineOutcome::Done(Values::from_iter([loss.value(), gradient.value()])))
}

/// As [`cross_entropy`], with the index of a class for each row, on the host. An invalid index is left to the host.
fn sparse_cross_entropy<B: Backing>(site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let (&[rows, classes], Value::Host(labels)) = (inputs[0].shape().dims(), &inputs[1]) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let Some(labels) = places(labels, classes)?.filter(|labels| labels.len() == rows && inputs[1].rank() == 1) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let labels = upload::<B>(Tensor::from_vec([rows, 1], labels), &site.device, site.bools);
    let logits = site.array(take(inputs, 0))?;
    let logs = logits.map(|raw| B::log_softmax(raw, 1));
    let one_less = site.full(-1.0, logs.dtype, Shape::from([rows, 1])).raw;
    let less = |raw| B::float_scatter(1, B::float_exp(raw), labels.clone(), one_less, IndexingUpdateOp::Add);
    let gradient = logs.clone().map(less);
    let loss = Array::<B> {
        raw: B::float_neg(B::float_gather(1, logs.raw, labels)),
        shape: Shape::from([rows, 1]),
        ..gradient.clone()
    };
    Ok(EngineOutcome::Done(Values::from_iter([loss.reshape(Shape::from([rows]))?.value(), gradient.value()])))
}
