//! Kernels of older ops that a newer op replaces: each runs the newer op's kernel with its inputs rearranged. Ops that
//! take the newer op's inputs unchanged are not in this module: see `graph::op::OpDef::runs_as`.

use meshtf_graph::{Attr, OutputType};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::call::input_dtype;
use super::real::widen;
use super::{HostKernel, Inputs, KernelNode, Registry};

type Arrange = Box<dyn FnMut(Inputs) -> Result<Inputs> + Send>;

/// A node of the newer op that a node of an older op is translated to.
struct Newer {
    op: &'static str,
    /// The attributes that the older op lacks.
    attrs: Vec<(&'static str, Attr)>,
    inputs: Vec<DType>,
    /// The outputs that the newer op has after those of the older op.
    more_outputs: Vec<DType>,
    arrange: Arrange,
}

impl Newer {
    fn new(op: &'static str, inputs: Vec<DType>, arrange: Arrange) -> Newer {
        Newer { op, attrs: Vec::new(), inputs, more_outputs: Vec::new(), arrange }
    }

    /// A newer op that has these inputs after those of the older one.
    fn followed_by(node: &KernelNode, op: &'static str, more: &[Tensor]) -> Newer {
        let dtypes = node.inputs.iter().copied().chain(more.iter().map(Tensor::dtype)).collect();
        let more = more.to_vec();
        let arrange = Box::new(move |mut inputs: Inputs| {
            inputs.extend(more.iter().cloned());
            Ok(inputs)
        });
        Newer::new(op, dtypes, arrange)
    }

    fn attr(mut self, name: &'static str, value: impl Into<Attr>) -> Newer {
        self.attrs.push((name, value.into()));
        self
    }

    /// With diagonals aligned as by the older op.
    fn left_aligned(self) -> Newer {
        self.attr("align", Attr::Str(b"LEFT_LEFT".to_vec()))
    }

    /// The kernel of the older op's node.
    fn kernel(self, node: &KernelNode) -> Result<Option<HostKernel>> {
        let Newer { op, attrs, inputs, more_outputs, mut arrange } = self;
        let mut all = node.attrs.clone();
        attrs.into_iter().for_each(|(name, value)| all.set(name, value));
        let more = more_outputs.into_iter().map(|dtype| OutputType { dtype, is_ref: false });
        let outputs: Vec<OutputType> = node.outputs.iter().copied().chain(more).collect();
        let wanted = node.outputs.len();
        let newer = KernelNode { name: node.name, op, attrs: &all, inputs: &inputs, outputs: &outputs, constants: 0 };
        let Some(mut kernel) = super::compile(&newer)? else { return Ok(None) };
        Ok(Some(Box::new(move |inputs| {
            let mut outputs = kernel(arrange(inputs)?)?;
            outputs.truncate(wanted);
            Ok(outputs)
        })))
    }
}

/// Registers the older forms of other ops.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("Gather", |node| {
        Newer::followed_by(node, "GatherV2", &[Tensor::scalar(0i32)]).attr("batch_dims", 0i64).kernel(node)
    });
    ops.insert("Concat", |node| {
        let mut dtypes = node.inputs.to_vec();
        dtypes.rotate_left(1);
        let arrange = Box::new(|mut inputs: Inputs| {
            inputs.rotate_left(1);
            Ok(inputs)
        });
        Newer::new("ConcatV2", dtypes, arrange).kernel(node)
    });
    ops.insert("InTopK", |node| {
        Newer::followed_by(node, "InTopKV2", &[Tensor::scalar(node.attrs.int("k")?)]).kernel(node)
    });
    ops.insert("TopK", |node| Newer::followed_by(node, "TopKV2", &[Tensor::scalar(node.attrs.int("k")?)]).kernel(node));
    ops.insert("Reverse", |node| {
        Newer::new("ReverseV2", vec![input_dtype(node, 0)?, DType::I32], Box::new(reversed_axes)).kernel(node)
    });
    ops.insert("MatrixDiag", |node| {
        let Some(padding) = zero(input_dtype(node, 0)?)? else { return Ok(None) };
        let none = Tensor::scalar(-1i32);
        let more = [Tensor::scalar(0i32), none.clone(), none, padding];
        Newer::followed_by(node, "MatrixDiagV3", &more).left_aligned().kernel(node)
    });
    ops.insert("MatrixDiagPart", |node| {
        let Some(padding) = zero(input_dtype(node, 0)?)? else { return Ok(None) };
        Newer::followed_by(node, "MatrixDiagPartV3", &[Tensor::scalar(0i32), padding]).left_aligned().kernel(node)
    });
    ops.insert("MatrixDiagV2", |node| Newer::followed_by(node, "MatrixDiagV3", &[]).left_aligned().kernel(node));
    ops.insert("MatrixDiagPartV2", |node| {
        Newer::followed_by(node, "MatrixDiagPartV3", &[]).left_aligned().kernel(node)
    });
    ops.insert("MatrixSetDiag", |node| {
        Newer::followed_by(node, "MatrixSetDiagV3", &[Tensor::scalar(0i32)]).left_aligned().kernel(node)
    });
    ops.insert("MatrixSetDiagV2", |node| Newer::followed_by(node, "MatrixSetDiagV3", &[]).left_aligned().kernel(node));
    ops.insert_all(["FusedBatchNorm", "FusedBatchNormV2"], |node| {
        let newer = Newer::followed_by(node, "FusedBatchNormV3", &[]);
        Newer { more_outputs: vec![DType::F32], ..newer }.kernel(node)
    });
    ops.insert_all(["FusedBatchNormGrad", "FusedBatchNormGradV2"], |node| {
        Newer::followed_by(node, "FusedBatchNormGradV3", &[Tensor::vector(Vec::<f32>::new())]).kernel(node)
    });
    ops.insert("Conv3DBackpropInput", |node| with_sizes(node, "Conv3DBackpropInputV2", 0));
    ops.insert("Conv3DBackpropFilter", |node| with_sizes(node, "Conv3DBackpropFilterV2", 1));
    ops.insert("SpaceToBatch", |node| with_blocks(node, "SpaceToBatchND"));
    ops.insert("BatchToSpace", |node| with_blocks(node, "BatchToSpaceND"));
    ops.insert("SparseMatMul", |node| {
        let arrange = Box::new(|inputs: Inputs| Ok(inputs.into_iter().map(widen).collect()));
        Newer::new("MatMul", vec![DType::F32; 2], arrange).kernel(node)
    });
    ops.insert("Bincount", |node| {
        let arrange = Box::new(|mut inputs: Inputs| {
            // One count for any number of dimensions.
            for place in [0, 2] {
                let flat = Shape::from([inputs[place].len()]);
                inputs[place] = inputs[place].clone().reshaped(flat)?;
            }
            Ok(inputs)
        });
        Newer::new("DenseBincount", node.inputs.to_vec(), arrange).attr("binary_output", false).kernel(node)
    });
}

/// The scalar 0 of a dtype; `None` for handles.
fn zero(dtype: DType) -> Result<Option<Tensor>> {
    if dtype.is_handle() { Ok(None) } else { Tensor::zeros(dtype, Shape::scalar()).map(Some) }
}

/// The newer op takes the sizes of the tensor whose gradient it computes, not the tensor.
fn with_sizes(node: &KernelNode, op: &'static str, place: usize) -> Result<Option<HostKernel>> {
    let mut dtypes = node.inputs.to_vec();
    dtypes[place] = DType::I32;
    let arrange = Box::new(move |mut inputs: Inputs| {
        let sizes = inputs[place].dims().iter().map(|&size| size as i32).collect();
        inputs[place] = Tensor::vector(sizes);
        Ok(inputs)
    });
    Newer::new(op, dtypes, arrange).attr("data_format", Attr::Str(b"NDHWC".to_vec())).kernel(node)
}

/// The newer op takes the sizes of a block as an input.
fn with_blocks(node: &KernelNode, op: &'static str) -> Result<Option<HostKernel>> {
    let block = Tensor::vector(vec![node.attrs.int("block_size")?; 2]);
    let dtypes = vec![input_dtype(node, 0)?, DType::I64, input_dtype(node, 1)?];
    let arrange = Box::new(move |mut inputs: Inputs| {
        inputs.insert(1, block.clone());
        Ok(inputs)
    });
    Newer::new(op, dtypes, arrange).kernel(node)
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
