//! GatherV2 and GatherNd of float32 in this process's memory: only the indexed slices are read.

use meshtf_kernels::{Gather, KernelNode, ignores_bad_indices, nd_slices};
use meshtf_loops::vector;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::dense::{Direct, done, floats};
use crate::{EngineOutcome, Value, Values};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    if node.inputs[0] != DType::F32 {
        return Ok(None);
    }
    Ok(match node.op {
        "GatherV2" => {
            let batch_dims = node.attrs.int("batch_dims")?;
            Some(Box::new(move |inputs| along_axis(inputs, batch_dims)))
        }
        "GatherNd" => {
            let ignore = ignores_bad_indices(node)?;
            Some(Box::new(move |inputs| by_coordinates(inputs, ignore)))
        }
        _ => None,
    })
}

fn along_axis(inputs: Values, batch_dims: i64) -> Result<EngineOutcome> {
    let [params, Value::Host(indices), Value::Host(axis)] = inputs.as_slice() else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let Some(from) = floats(params).filter(|_| axis.rank() == 0) else { return Ok(EngineOutcome::Declined(inputs)) };
    let gather = Gather::new(params.shape(), indices, axis.to_i64()?, batch_dims)?;
    if gather.shape.checked_elements(DType::F32)? == 0 {
        return Ok(EngineOutcome::Declined(inputs));
    }
    done(&gather.shape, vector::slices(from, gather.inner, gather.slices(), |slice| Some(gather.offset(slice))))
}

fn by_coordinates(inputs: Values, ignore: bool) -> Result<EngineOutcome> {
    let [params, Value::Host(indices)] = inputs.as_slice() else { return Ok(EngineOutcome::Declined(inputs)) };
    let Some(from) = floats(params) else { return Ok(EngineOutcome::Declined(inputs)) };
    let (offsets, inner, shape) = nd_slices(params.shape(), indices, ignore)?;
    if shape.checked_elements(DType::F32)? == 0 {
        return Ok(EngineOutcome::Declined(inputs));
    }
    done(&shape, vector::slices(from, inner, offsets.len(), |slice| offsets[slice]))
}
