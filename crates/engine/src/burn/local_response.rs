//! Local response normalisation of float32 in this process's memory, and its gradient. Other inputs are left to the host.

use meshtf_kernels::{KernelNode, local_response};
use meshtf_loops::vector::LocalResponse;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;

use super::dense::{Direct, done, floats, over};
use crate::{EngineOutcome, Value, Values};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    let run = match node.op {
        "LRN" => forward,
        "LRNGrad" => backward,
        _ => return Ok(None),
    };
    let norm = local_response(node)?;
    Ok(Some(Box::new(move |inputs| run(&norm, inputs))))
}

/// The number of channels, if there are four dimensions and the elements are contiguous and not empty.
fn channels(value: &Value) -> Option<usize> {
    let &[_, _, _, channels] = value.shape().dims() else { return None };
    floats(value).filter(|floats| !floats.is_empty()).map(|_| channels)
}

fn forward(norm: &LocalResponse, mut inputs: Values) -> Result<EngineOutcome> {
    let Some(channels) = channels(&inputs[0]) else { return Ok(EngineOutcome::Declined(inputs)) };
    budget::admit(norm.scratch_bytes(channels))?;
    if over(&mut inputs[0], |xs| norm.normalise_over(xs, channels)) {
        return Ok(EngineOutcome::Done(inputs));
    }
    let Some(xs) = floats(&inputs[0]) else { return Ok(EngineOutcome::Declined(inputs)) };
    budget::admit(size_of_val(xs))?;
    done(inputs[0].shape(), norm.normalised(xs, channels))
}

fn backward(norm: &LocalResponse, inputs: Values) -> Result<EngineOutcome> {
    let [gradient, x, y] = inputs.as_slice() else { return Ok(EngineOutcome::Declined(inputs)) };
    let is_same = gradient.shape() == x.shape() && y.shape() == x.shape();
    let (Some(channels), Some(dy), Some(xs), Some(ys), true) =
        (channels(x), floats(gradient), floats(x), floats(y), is_same)
    else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    budget::admit(norm.scratch_bytes(channels).saturating_add(size_of_val(dy)))?;
    done(x.shape(), norm.gradient(dy, xs, ys, channels))
}
