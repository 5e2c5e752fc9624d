//! Three-dimensional pooling of float32 in this process's memory, channels last (`meshtf_loops::vector`). Other inputs are
//! left to the host.

use meshtf_kernels::{KernelNode, PoolAttrs};
use meshtf_loops::vector::Pool;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};

use super::Body;
use super::dense::{self, floats};
use super::depthwise::sizes;
use super::memory::Backing;
use crate::{EngineOutcome, Values};

/// The pool over volumes of this shape, and the shape of its output; `None` if the host is to compute it, or to report an
/// error.
fn over(attrs: &PoolAttrs, volumes: &Shape) -> Option<(Pool, Shape)> {
    let windows = attrs.over(volumes).ok()?;
    let (answer, [depth, height, width]) = (windows.output_shape(3), windows.axes);
    let pool = Pool { batch: windows.batch, depth, height, width, channels: windows.channels };
    let fits = !volumes.dims().contains(&0) && answer.is_allowed(DType::F32) && pool.is_paced();
    fits.then_some((pool, answer))
}

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let function: fn(&PoolAttrs, &Values) -> Result<Option<EngineOutcome>> = match node.op {
        "AvgPool3D" => |attrs, inputs| answer(attrs, inputs, Pool::mean),
        "AvgPool3DGrad" => mean_gradient,
        "MaxPool3D" => |attrs, inputs| answer(attrs, inputs, Pool::max),
        "MaxPool3DGrad" => greatest_gradient,
        _ => return Ok(None),
    };
    // Errors in the attributes are reported by the host.
    let Some((attrs, None)) = PoolAttrs::of(node, 3).ok() else { return Ok(None) };
    if !B::IN_PLACE || !attrs.has_channels_last() || node.outputs[0].dtype != DType::F32 {
        return Ok(None);
    }
    Ok(Some(Box::new(move |_, inputs: Values| {
        let inputs = inputs.into_iter().map(dense::in_order).collect::<Result<Values>>()?;
        Ok(function(&attrs, &inputs)?.unwrap_or(EngineOutcome::Declined(inputs)))
    })))
}

/// A number for each window.
fn answer(attrs: &PoolAttrs, inputs: &Values, of: impl Fn(&Pool, &[f32]) -> Vec<f32>) -> Result<Option<EngineOutcome>> {
    let (Some((pool, answer)), Some(pixels)) = (over(attrs, inputs[0].shape()), floats(&inputs[0])) else {
        return Ok(None);
    };
    answer.checked_elements(DType::F32)?;
    dense::done(&answer, of(&pool, pixels)).map(Some)
}

fn greatest_gradient(attrs: &PoolAttrs, inputs: &Values) -> Result<Option<EngineOutcome>> {
    let volumes = inputs[0].shape();
    let Some((pool, answer)) = over(attrs, volumes) else { return Ok(None) };
    let (Some(pixels), Some(gradient)) = (floats(&inputs[0]), floats(&inputs[2])) else { return Ok(None) };
    if *inputs[1].shape() != answer || *inputs[2].shape() != answer {
        return Ok(None);
    }
    volumes.checked_elements(DType::F32)?;
    dense::done(volumes, pool.max_gradient(pixels, gradient)).map(Some)
}

fn mean_gradient(attrs: &PoolAttrs, inputs: &Values) -> Result<Option<EngineOutcome>> {
    let Some(volumes) = sizes(&inputs[0]) else { return Ok(None) };
    let (Some((pool, answer)), Some(gradient)) = (over(attrs, &volumes), floats(&inputs[1])) else { return Ok(None) };
    if *inputs[1].shape() != answer {
        return Ok(None);
    }
    volumes.checked_elements(DType::F32)?;
    dense::done(&volumes, pool.mean_gradient(gradient)).map(Some)
}
