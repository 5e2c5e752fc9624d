//! Values on a GPU that are computed when they are needed, many by one kernel.
//!
//! A launch takes longer than the computation of most values of a model, so the number of launches decides how long a step
//! takes. An op whose value can wait is not computed, but remembered (`node`), with its inputs: functions of elements, views,
//! sums, small products, the new values of variables. Something else needs the value sooner or later: a kernel of the backend, or
//! the host. Then a program is made of all that leads to it (`plan`), which one kernel runs (`kernel`), beside those of other
//! values that can be computed at the same time (`launch`). New values of variables wait until one of them is needed or
//! something is read, so that one kernel updates all of them.
//!
//! A value never changes, so that it does not matter when it is computed. It keeps its inputs in memory meanwhile; the number of
//! functions and of inputs that one waits for is bounded.

#![cfg_attr(not(feature = "wgpu"), allow(dead_code, reason = "only the engine of a GPU reads it"))]

#[cfg(feature = "wgpu")]
mod kernel;
#[cfg(feature = "wgpu")]
mod launch;
#[cfg(feature = "wgpu")]
mod node;
#[cfg(feature = "wgpu")]
mod ops;
#[cfg(feature = "wgpu")]
mod plan;

use meshtf_kernels::KernelNode;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;
#[cfg(feature = "wgpu")]
pub use node::{Deferred, flush_with};
#[cfg(feature = "wgpu")]
pub use ops::begin;

use super::bits::{BinaryFunction, ComparisonFunction, UnaryFunction};
use super::layout::Masks;
use super::updates::UpdateRule;

/// An op whose values can wait.
pub enum Deferral {
    One(UnaryFunction),
    /// A function of two values, or of one that stands for both; whether they have to have one shape.
    Pair(Pairing, bool),
    Power,
    /// Of the inputs in order, or exchanged.
    Comparison(ComparisonFunction, bool),
    And,
    Or,
    Not,
    Select {
        broadcasts: bool,
    },
    ToFloat,
    /// AddN.
    Sum,
    Bias {
        channels_first: bool,
    },
    /// As large as the input, filled with a number.
    Like(f32),
    Fill,
    Reshape,
    ExpandDims,
    Squeeze(Vec<i64>),
    Transpose,
    Slice,
    StridedSlice(Masks),
    Split(usize),
    Unpack {
        count: i64,
        along: i64,
    },
    BroadcastTo,
    Tile,
    Concat,
    Pack(i64),
    Fold {
        keeps: bool,
        kind: Kind,
    },
    BatchNorm(BatchNorm),
    Softmax {
        is_log: bool,
    },
    /// With the number of a class for each row, or with probabilities.
    CrossEntropy {
        is_sparse: bool,
    },
    BiasGrad {
        channels_first: bool,
    },
    /// L2Loss.
    HalfSquares,
    Product([bool; 2]),
    Update(UpdateRule),
    /// AssignAdd or AssignSub.
    Assign(Pairing),
}

/// A batch normalisation whose running averages start anew, or its gradient.
pub struct BatchNorm {
    pub epsilon: f32,
    pub is_training: bool,
    pub is_backward: bool,
    pub rank: usize,
    /// The dimension of the channels.
    pub axis: usize,
}

/// A reduction.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Sum,
    Mean,
    Max,
}

/// A function of two numbers.
#[derive(Clone, Copy)]
pub enum Pairing {
    Two(BinaryFunction),
    Add,
    Sub,
    Mul,
    Div,
}

impl Deferral {
    /// The op of a node over float32; `None` if its value cannot wait.
    pub fn of(node: &KernelNode) -> Result<Option<Deferral>> {
        let is_taken = |dtype: &DType| !dtype.is_differentiable() || *dtype == DType::F32;
        if !node.inputs.iter().all(is_taken) || !node.outputs.iter().all(|output| is_taken(&output.dtype)) {
            return Ok(None);
        }
        // Its first input may be the handle of a variable.
        if UpdateRule::of(node)?.is_some() || node.op.starts_with("AssignAdd") || node.op.starts_with("AssignSub") {
            let is_float = node.inputs.contains(&DType::F32);
            return if is_float { Deferral::of_floats(node) } else { Ok(None) };
        }
        let data = match node.op {
            "Split" => 1,
            _ => 0,
        };
        let is_float = node.inputs.get(data) == Some(&DType::F32);
        if !is_float && node.inputs.get(data) != Some(&DType::Bool) {
            // Its inputs are a shape and a number.
            let is_fill = node.op == "Fill" && node.outputs.first().is_some_and(|output| output.dtype == DType::F32);
            return Ok(is_fill.then_some(Deferral::Fill));
        }
        if let Some(of_any) = Deferral::of_any(node)? {
            return Ok(Some(of_any));
        }
        if is_float { Deferral::of_floats(node) } else { Deferral::of_bools(node) }
    }

    /// Ops on elements of any dtype.
    fn of_any(node: &KernelNode) -> Result<Option<Deferral>> {
        Ok(Some(match node.op {
            "Reshape" => Deferral::Reshape,
            "ExpandDims" => Deferral::ExpandDims,
            "Squeeze" => {
                Deferral::Squeeze(node.attrs.ints("squeeze_dims").or_else(|_| node.attrs.ints("axis"))?.to_vec())
            }
            "Transpose" => Deferral::Transpose,
            "Slice" => Deferral::Slice,
            "StridedSlice" => Deferral::StridedSlice(Masks::of(node)?),
            "Split" => Deferral::Split(usize::try_from(node.attrs.int("num_split")?).unwrap_or(0)),
            "Unpack" => Deferral::Unpack { count: node.attrs.int("num")?, along: node.attrs.int("axis")? },
            "BroadcastTo" => Deferral::BroadcastTo,
            "Tile" => Deferral::Tile,
            "ConcatV2" => Deferral::Concat,
            "Pack" => Deferral::Pack(node.attrs.int("axis")?),
            _ => return Ok(None),
        }))
    }

    fn of_bools(node: &KernelNode) -> Result<Option<Deferral>> {
        let is_of_floats = || node.inputs.get(1) == Some(&DType::F32) && node.inputs.get(2) == Some(&DType::F32);
        Ok(Some(match node.op {
            "LogicalAnd" => Deferral::And,
            "LogicalOr" => Deferral::Or,
            "LogicalNot" => Deferral::Not,
            "Select" | "SelectV2" if is_of_floats() => Deferral::Select { broadcasts: node.op == "SelectV2" },
            "Cast" if node.outputs.first().is_some_and(|output| output.dtype == DType::F32) => Deferral::ToFloat,
            _ => return Ok(None),
        }))
    }

    fn of_norm(node: &KernelNode) -> Result<Option<Deferral>> {
        let is_backward = node.op == "FusedBatchNormGradV3";
        // The host blends the running averages.
        if !is_backward && node.attrs.float("exponential_avg_factor")? != 1.0 {
            return Ok(None);
        }
        let format = node.attrs.str("data_format")?;
        Ok(Some(Deferral::BatchNorm(BatchNorm {
            epsilon: node.attrs.float("epsilon")?,
            is_training: node.attrs.bool("is_training")?,
            is_backward,
            rank: format.len(),
            axis: if format.starts_with("NC") { 1 } else { format.len() - 1 },
        })))
    }

    fn of_floats(node: &KernelNode) -> Result<Option<Deferral>> {
        if let Some(function) = UnaryFunction::of(node.op) {
            return Ok(Some(Deferral::One(function)));
        }
        if let Some(function) = BinaryFunction::of(node.op) {
            // A gradient has its feature's shape; nothing is broadcast.
            return Ok(Some(Deferral::Pair(Pairing::Two(function), node.op.ends_with("Grad"))));
        }
        if let Some(rule) = UpdateRule::of(node)? {
            return Ok(Some(Deferral::Update(rule)));
        }
        if let "FusedBatchNormV3" | "FusedBatchNormGradV3" = node.op {
            return Deferral::of_norm(node);
        }
        let slope = || -> Result<u32> { Ok(node.attrs.float("alpha")?.to_bits()) };
        let channels_first = || -> Result<bool> { Ok(node.attrs.str("data_format")? == "NCHW") };
        // With this attribute off, shapes that do not match give a result, not an error.
        let is_strict = node.attrs.bool("incompatible_shape_error").unwrap_or(true);
        let compared = |comparison| Deferral::Comparison(comparison, false);
        Ok(Some(match node.op {
            "LeakyRelu" => Deferral::One(UnaryFunction::LeakyRelu(slope()?)),
            "LeakyReluGrad" => Deferral::Pair(Pairing::Two(BinaryFunction::LeakyReluGrad(slope()?)), true),
            "Add" | "AddV2" => Deferral::Pair(Pairing::Add, false),
            "Sub" => Deferral::Pair(Pairing::Sub, false),
            "Mul" | "Square" => Deferral::Pair(Pairing::Mul, false),
            "RealDiv" => Deferral::Pair(Pairing::Div, false),
            "Pow" => Deferral::Power,
            "Equal" if is_strict => compared(ComparisonFunction::Equal),
            "NotEqual" if is_strict => compared(ComparisonFunction::NotEqual),
            "Greater" => compared(ComparisonFunction::Greater),
            "GreaterEqual" => compared(ComparisonFunction::GreaterEqual),
            "Less" => Deferral::Comparison(ComparisonFunction::Greater, true),
            "LessEqual" => Deferral::Comparison(ComparisonFunction::GreaterEqual, true),
            "AddN" => Deferral::Sum,
            "BiasAdd" => Deferral::Bias { channels_first: channels_first()? },
            "BiasAddGrad" => Deferral::BiasGrad { channels_first: channels_first()? },
            "ZerosLike" => Deferral::Like(0.0),
            "OnesLike" => Deferral::Like(1.0),
            "Sum" => Deferral::Fold { keeps: node.attrs.bool("keep_dims")?, kind: Kind::Sum },
            "Mean" => Deferral::Fold { keeps: node.attrs.bool("keep_dims")?, kind: Kind::Mean },
            "Max" => Deferral::Fold { keeps: node.attrs.bool("keep_dims")?, kind: Kind::Max },
            "Softmax" => Deferral::Softmax { is_log: false },
            "LogSoftmax" => Deferral::Softmax { is_log: true },
            "SoftmaxCrossEntropyWithLogits" => Deferral::CrossEntropy { is_sparse: false },
            "SparseSoftmaxCrossEntropyWithLogits" => Deferral::CrossEntropy { is_sparse: true },
            "L2Loss" => Deferral::HalfSquares,
            "MatMul" => Deferral::Product([node.attrs.bool("transpose_a")?, node.attrs.bool("transpose_b")?]),
            "AssignAdd" | "AssignAddVariableOp" => Deferral::Assign(Pairing::Add),
            "AssignSub" | "AssignSubVariableOp" => Deferral::Assign(Pairing::Sub),
            _ => return Ok(None),
        }))
    }
}

/// The outputs of an op that can wait, or its inputs.
///
/// # Errors
/// Those of whole numbers that cannot be read.
#[cfg(feature = "wgpu")]
pub fn deferred(
    op: &Deferral,
    inputs: crate::Values,
    device: &cubecl::Device,
    bools: burn_backend::BoolDType,
) -> Result<crate::EngineOutcome> {
    ops::deferred(op, inputs, &ops::Place { device, bools })
}
