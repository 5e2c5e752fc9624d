//! Kernels of older ops that a newer op replaces: each runs the newer op's kernel with its inputs rearranged. Ops that
//! take the newer op's inputs unchanged are not in this module: see `graph::op::OpDef::runs_as`.

use meshtf_graph::{Attr, OutputType};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::call::{input_dtype, no_kernel};
use super::real::widen;
use super::{HostKernel, Inputs, KernelNode};

/// The translation of a node of an older op to one of a newer op.
struct Newer {
    op: &'static str,
    /// The attributes that the older op lacks.
    attrs: Vec<(&'static str, Attr)>,
    inputs: Vec<DType>,
    /// The outputs that the newer op has after those of the older op.
    more_outputs: Vec<DType>,
    arrange: Box<dyn FnMut(Inputs) -> Result<Inputs> + Send>,
}

/// The kernel of a node with an older form of another op.
///
/// # Errors
/// As the newer op's.
pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let Some(newer) = newer(node)? else { return Ok(None) };
    let Newer { op, attrs, inputs, more_outputs, mut arrange } = newer;
    let mut all = node.attrs.clone();
    attrs.into_iter().for_each(|(name, value)| all.set(name, value));
    let more = more_outputs.into_iter().map(|dtype| OutputType { dtype, is_ref: false });
    let outputs: Vec<OutputType> = node.outputs.iter().copied().chain(more).collect();
    let wanted = node.outputs.len();
    let Some(mut kernel) =
        super::compile(&KernelNode { name: node.name, op, attrs: &all, inputs: &inputs, outputs: &outputs })?
    else {
        return Ok(None);
    };
    Ok(Some(Box::new(move |inputs| {
        let mut outputs = kernel(arrange(inputs)?)?;
        outputs.truncate(wanted);
        Ok(outputs)
    })))
}

fn newer(node: &KernelNode) -> Result<Option<Newer>> {
    let dtype = input_dtype(node, 0);
    let own = || node.inputs.to_vec();
    let followed_by = |more: &[DType]| [node.inputs, more].concat();
    let mut attrs = Vec::new();
    let mut more_outputs = Vec::new();
    let left_left = Attr::Str(b"LEFT_LEFT".to_vec());
    type Arrange = Box<dyn FnMut(Inputs) -> Result<Inputs> + Send>;
    let (op, inputs, arrange): (_, _, Arrange) = match node.op {
        "Gather" => {
            attrs.push(("batch_dims", Attr::Int(0)));
            ("GatherV2", followed_by(&[DType::I32]), push(&[Tensor::scalar(0i32)]))
        }
        "Concat" => {
            let mut dtypes = own();
            dtypes.rotate_left(1);
            (
                "ConcatV2",
                dtypes,
                Box::new(|mut inputs| {
                    inputs.rotate_left(1);
                    Ok(inputs)
                }),
            )
        }
        "InTopK" => ("InTopKV2", followed_by(&[DType::I64]), push(&[Tensor::scalar(node.attrs.int("k")?)])),
        "TopK" => ("TopKV2", followed_by(&[DType::I64]), push(&[Tensor::scalar(node.attrs.int("k")?)])),
        "Reverse" => ("ReverseV2", vec![dtype?, DType::I32], Box::new(reversed_axes)),
        "MatrixDiag" | "MatrixDiagPart" if dtype.as_ref().is_ok_and(|dtype| dtype.is_handle()) => {
            return no_kernel(node);
        }
        "MatrixDiag" => {
            attrs.push(("align", left_left));
            let padding = Tensor::zeros(dtype.clone()?, Shape::scalar())?;
            let none = Tensor::scalar(-1i32);
            let dtypes = followed_by(&[DType::I32, DType::I32, DType::I32, dtype?]);
            ("MatrixDiagV3", dtypes, push(&[Tensor::scalar(0i32), none.clone(), none, padding]))
        }
        "MatrixDiagPart" => {
            attrs.push(("align", left_left));
            let padding = Tensor::zeros(dtype.clone()?, Shape::scalar())?;
            ("MatrixDiagPartV3", followed_by(&[DType::I32, dtype?]), push(&[Tensor::scalar(0i32), padding]))
        }
        "MatrixDiagV2" | "MatrixDiagPartV2" => {
            attrs.push(("align", left_left));
            let op = if node.op == "MatrixDiagV2" { "MatrixDiagV3" } else { "MatrixDiagPartV3" };
            (op, own(), push(&[]))
        }
        "MatrixSetDiag" => {
            attrs.push(("align", left_left));
            ("MatrixSetDiagV3", followed_by(&[DType::I32]), push(&[Tensor::scalar(0i32)]))
        }
        "MatrixSetDiagV2" => {
            attrs.push(("align", left_left));
            ("MatrixSetDiagV3", own(), push(&[]))
        }
        "FusedBatchNorm" | "FusedBatchNormV2" => {
            more_outputs.push(DType::F32);
            ("FusedBatchNormV3", own(), push(&[]))
        }
        "FusedBatchNormGrad" | "FusedBatchNormGradV2" => {
            ("FusedBatchNormGradV3", followed_by(&[DType::F32]), push(&[Tensor::vector(Vec::<f32>::new())]))
        }
        "Conv3DBackpropInput" | "Conv3DBackpropFilter" => {
            attrs.push(("data_format", Attr::Str(b"NDHWC".to_vec())));
            let (op, place) = match node.op {
                "Conv3DBackpropInput" => ("Conv3DBackpropInputV2", 0),
                _ => ("Conv3DBackpropFilterV2", 1),
            };
            let mut dtypes = own();
            dtypes[place] = DType::I32;
            // The newer op takes the sizes of the tensor whose gradient it computes, not the tensor.
            (
                op,
                dtypes,
                Box::new(move |mut inputs| {
                    let sizes = inputs[place].dims().iter().map(|&size| size as i32).collect();
                    inputs[place] = Tensor::vector(sizes);
                    Ok(inputs)
                }),
            )
        }
        "SpaceToBatch" | "BatchToSpace" => {
            let op = if node.op == "SpaceToBatch" { "SpaceToBatchND" } else { "BatchToSpaceND" };
            let block = Tensor::vector(vec![node.attrs.int("block_size")?; 2]);
            let dtypes = vec![dtype?, DType::I64, input_dtype(node, 1)?];
            (
                op,
                dtypes,
                Box::new(move |mut inputs| {
                    inputs.insert(1, block.clone());
                    Ok(inputs)
                }),
            )
        }
        "SparseMatMul" => {
            ("MatMul", vec![DType::F32; 2], Box::new(|inputs| Ok(inputs.into_iter().map(widen).collect())))
        }
        "Bincount" => {
            attrs.push(("binary_output", Attr::Bool(false)));
            (
                "DenseBincount",
                own(),
                Box::new(|mut inputs| {
                    // One count for any number of dimensions.
                    for place in [0, 2] {
                        let flat = Shape::from([inputs[place].len()]);
                        inputs[place] = inputs[place].clone().reshaped(flat)?;
                    }
                    Ok(inputs)
                }),
            )
        }
        _ => return Ok(None),
    };
    Ok(Some(Newer { op, attrs, inputs, more_outputs, arrange }))
}

/// Appends `more` to the inputs.
fn push(more: &[Tensor]) -> Box<dyn FnMut(Inputs) -> Result<Inputs> + Send> {
    let more = more.to_vec();
    Box::new(move |mut inputs| {
        inputs.extend(more.iter().cloned());
        Ok(inputs)
    })
}

/// The axes to reverse; the older op has a bool for each axis.
fn reversed_axes(mut inputs: Inputs) -> Result<Inputs> {
    let [x, dims] = &inputs[..] else { return Err(Failure::invalid("Reverse takes two inputs")) };
    if dims.rank() != 1 {
        return Err(Failure::invalid(format!("'dims' must be 1-dimension, not {}", dims.rank())));
    }
    if dims.len() != x.rank() {
        let why = format!(
            "'dims' must have the same number of values as 'input' has dimensions. 'input' has {}'dims' has {} values",
            x.rank(),
            dims.len()
        );
        return Err(Failure::invalid(why));
    }
    let axes = dims.slice::<bool>()?.iter().zip(0i32..).filter(|(is_reversed, _)| **is_reversed).map(|(_, axis)| axis);
    inputs[1] = Tensor::vector(axes.collect());
    Ok(inputs)
}
