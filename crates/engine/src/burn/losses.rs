//! The cross entropy of float32 in this process's memory, with rows of labels. Other inputs are left to the host.

use meshtf_kernels::KernelNode;
use meshtf_loops::vector;
use meshtf_tensor::Shape;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use smallvec::smallvec;

use super::dense::{Direct, floats, made, over};
use crate::{EngineOutcome, Values};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    Ok(match node.op {
        "SoftmaxCrossEntropyWithLogits" => Some(Box::new(cross_entropy)),
        _ => None,
    })
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
