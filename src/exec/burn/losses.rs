//! Losses of float32 that lies in this process's memory: half the sum of the squares, and the cross entropy with rows of labels.
//! What does not fit is left to the host.

use smallvec::smallvec;

use super::dense::{Direct, floats, made, over};
use crate::exec::engine::{EngineOutcome, Value, Values};
use crate::exec::kernel::KernelNode;
use crate::exec::vector;
use crate::failure::Result;
use crate::memory as budget;
use crate::tensor::{Shape, Tensor};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    Ok(match node.op {
        "L2Loss" => Some(Box::new(l2_loss)),
        "SoftmaxCrossEntropyWithLogits" => Some(Box::new(cross_entropy)),
        _ => None,
    })
}

fn l2_loss(inputs: Values) -> Result<EngineOutcome> {
    let Some(xs) = floats(&inputs[0]) else { return Ok(EngineOutcome::Declined(inputs)) };
    let loss = Tensor::scalar((vector::squares(xs) / 2.0) as f32);
    Ok(EngineOutcome::Done(smallvec![Value::Host(loss)]))
}

/// The loss of each row, and its gradient, which is written over the logits if they are not shared.
fn cross_entropy(mut inputs: Values) -> Result<EngineOutcome> {
    let is_same = inputs.len() == 2 && inputs[0].shape() == inputs[1].shape();
    let (left, right) = inputs.split_at_mut(1);
    let (logits, labels) = (&mut left[0], right.first().and_then(floats).unwrap_or_default());
    let &[rows, classes] = logits.shape().dims() else { return Ok(EngineOutcome::Declined(inputs)) };
    if !is_same || labels.is_empty() || floats(logits).is_none() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let bytes = size_of::<f32>().saturating_mul(rows);
    budget::admit(if logits.is_unshared() { bytes } else { bytes.saturating_add(size_of_val(labels)) })?;
    let mut losses = vec![0f32; rows];
    let gradient = if over(logits, |logits| vector::cross_entropy(logits, classes, labels, &mut losses)) {
        inputs.swap_remove(0)
    } else {
        let all = floats(logits).unwrap_or_default();
        made(logits.shape(), vector::cross_entropy_of(all, classes, labels, &mut losses))
    };
    Ok(EngineOutcome::Done(smallvec![made(&Shape::from([rows]), losses), gradient]))
}
