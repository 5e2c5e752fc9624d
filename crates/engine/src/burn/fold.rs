//! Reductions of float32 in this process's memory (`meshtf_loops::vector`). Other inputs are left to the backend's
//! reductions, or to the host.

use meshtf_kernels::KernelNode;
use meshtf_loops::vector::{Fold, Folding};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};

use super::dense::{Direct, done, floats, in_order};
use super::order;
use super::reduce::axes;
use crate::{EngineOutcome, Values};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<Direct>> {
    if node.inputs[0] != DType::F32 {
        return Ok(None);
    }
    let fold = match node.op {
        "Sum" => Fold::Sum,
        "Mean" => Fold::Mean,
        "Prod" => Fold::Product,
        "Max" => Fold::Greatest,
        "Min" => Fold::Least,
        "EuclideanNorm" => Fold::Norm,
        "L2Loss" => {
            return Ok(Some(Box::new(|inputs| {
                let all = inputs[0].shape().dims().iter().map(|&size| (size, true)).collect::<Vec<_>>();
                folded(Fold::HalfSquares, Folding::new(all), Shape::scalar(), inputs)
            })));
        }
        "BiasAddGrad" => {
            let channels_first = node.attrs.str("data_format")? == "NCHW";
            return Ok(Some(Box::new(move |inputs| bias_add_grad(channels_first, inputs))));
        }
        _ => return Ok(None),
    };
    let keep_dims = node.attrs.bool("keep_dims")?;
    Ok(Some(Box::new(move |inputs| reduced(fold, keep_dims, inputs))))
}

fn reduced(fold: Fold, keep_dims: bool, mut inputs: Values) -> Result<EngineOutcome> {
    let Some(gone) = axes(&inputs[1], inputs[0].rank())? else { return Ok(EngineOutcome::Declined(inputs)) };
    let dims = || inputs[0].shape().dims().iter().copied().zip(gone.iter().copied());
    let shape: Shape = if keep_dims {
        dims().map(|(size, gone)| if gone { 1 } else { size }).collect()
    } else {
        dims().filter(|dim| !dim.1).map(|dim| dim.0).collect()
    };
    // A view is reduced where it lies if the axes that stay are in the order of the memory.
    let stored = order::stored(&inputs[0]).filter(|axes| axes.iter().filter(|&&axis| !gone[axis]).is_sorted());
    let folding = match &stored {
        Some(axes) => Folding::new(axes.iter().map(|&axis| (inputs[0].shape().dims()[axis], gone[axis]))),
        None => Folding::new(dims()),
    };
    // An input that is its own result needs no copy.
    if !folding.is_some() && fold != Fold::Norm {
        return Ok(EngineOutcome::Declined(inputs));
    }
    if let Some(axes) = stored {
        let reduced = inputs.remove(0);
        inputs.insert(0, order::permuted(reduced, &axes)?);
    }
    folded(fold, folding, shape, inputs)
}

/// The sum of each channel.
fn bias_add_grad(channels_first: bool, inputs: Values) -> Result<EngineOutcome> {
    let dims = inputs[0].shape().dims();
    if dims.len() < 2 {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let channels = if channels_first { 1 } else { dims.len() - 1 };
    let folding = Folding::new(dims.iter().enumerate().map(|(axis, &size)| (size, axis != channels)));
    let shape = Shape::from([dims[channels]]);
    folded(Fold::Sum, folding, shape, inputs)
}

fn folded(fold: Fold, folding: Folding, shape: Shape, inputs: Values) -> Result<EngineOutcome> {
    let inputs: Values = inputs.into_iter().map(in_order).collect::<Result<_>>()?;
    let Some(xs) = floats(&inputs[0]).filter(|xs| !xs.is_empty()) else { return Ok(EngineOutcome::Declined(inputs)) };
    shape.checked_elements(DType::F32)?;
    budget::admit(folding.scratch_bytes())?;
    done(&shape, folding.folded(fold, xs))
}
