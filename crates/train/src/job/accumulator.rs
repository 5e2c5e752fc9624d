//! Conditional accumulators: the contributions to an update are added up until the update takes them; late ones are dropped.

use meshtf_graph::gradient::{Gradient, Rows, dense};
use meshtf_graph::variable::ops::{binary, cast, on, scalar, unary};
use meshtf_graph::variable::{Variable, read};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::Drain;
use crate::clip;

/// An accumulator of a training, on the device of the tensor that it is for.
pub(super) struct Accumulator {
    handle: Output,
    dtype: DType,
    shape: Shape,
    /// Whether it takes rows. Then each gradient has one more row than the variable, of ones: in the sum, that row is the
    /// number of gradients.
    is_sparse: bool,
    device: String,
}

impl Accumulator {
    /// For gradients of a variable such as this one. `role` is unique among the accumulators of the training.
    pub fn for_gradient(g: &mut GraphBuilder, role: &str, variable: &Variable, like: &Gradient) -> Result<Accumulator> {
        let Variable { name, dtype, shape, device, .. } = variable;
        // There are no sparse accumulators of other dtypes.
        let can_be_sparse = matches!(dtype, DType::F16 | DType::F32 | DType::F64) && shape.elements() != Some(0);
        if !matches!(like, Gradient::Sparse(_)) || !can_be_sparse {
            return Accumulator::dense(g, role, name, *dtype, shape, device);
        }
        let handle = on(g, device, |g| {
            let shared = format!("train/sum/{role}/{name}/{dtype}{shape}");
            let node = g.op("SparseConditionalAccumulator").name(&format!("train/sum/{role}")).attr("dtype", *dtype);
            let node = node.attr("shape", with_count(shape)).attr("reduction_type", "SUM");
            node.attr("shared_name", shared.as_str()).build()
        })?;
        Ok(Accumulator { handle, dtype: *dtype, shape: shape.clone(), is_sparse: true, device: device.clone() })
    }

    /// For whole tensors.
    pub fn dense(
        g: &mut GraphBuilder,
        role: &str,
        name: &str,
        dtype: DType,
        shape: &Shape,
        device: &str,
    ) -> Result<Accumulator> {
        let handle = on(g, device, |g| {
            // Other models have other accumulators.
            let shared = format!("train/mean/{role}/{name}/{dtype}{shape}");
            let node = g.op("ResourceConditionalAccumulator").name(&format!("train/mean/{role}"));
            node.attr("dtype", dtype).attr("shape", shape.clone()).attr("shared_name", shared.as_str()).build()
        })?;
        Ok(Accumulator { handle, dtype, shape: shape.clone(), is_sparse: false, device: device.to_owned() })
    }

    /// Adds the delivery of a gradient for the update of a step.
    pub fn bring(&self, g: &mut GraphBuilder, step: Output, gradient: Gradient) -> Result<Output> {
        let from = g.device_of(clip::values(&gradient));
        let rows = match gradient {
            Gradient::Sparse(rows) if self.is_sparse => rows,
            _ => {
                let value = on(g, &from, |g| dense(g, gradient))?;
                return on(g, &self.device, |g| {
                    g.op("ResourceAccumulatorApplyGradient").input(self.handle).input(step).input(value).build()
                });
            }
        };
        let (indices, values) = on(g, &from, |g| {
            let indices = cast(g, rows.indices, DType::I64)?;
            let last = g.constant("count_at", [self.count_at()])?;
            let row: Vec<i32> =
                std::iter::once(1).chain(self.shape.dims()[1..].iter().map(|&size| size as i32)).collect();
            let ones = binary(g, "Fill", Tensor::vector(row), scalar(self.dtype, 1.0)?)?;
            let indices = g.op("ConcatV2").inputs([indices, last]).input(0).build()?;
            Ok((indices, g.op("ConcatV2").inputs([rows.values, ones]).input(0).build()?))
        })?;
        on(g, &self.device, |g| {
            let apply =
                g.op("SparseAccumulatorApplyGradient").input(self.handle).input(step).input(indices).input(values);
            apply.input(sizes(&with_count(&self.shape))).attr("has_known_shape", true).build()
        })
    }

    /// The mean of the gradients once at least the required number of workers have delivered theirs.
    pub fn take(&self, g: &mut GraphBuilder, needed: usize) -> Result<Gradient> {
        let taken = self.taken(g, needed)?;
        if !self.is_sparse {
            return Ok(Gradient::Dense(taken));
        }
        on(g, &self.device, |g| {
            let (indices, values, count_at) = (taken, taken.port(1), Tensor::scalar(self.count_at()));
            let width: usize = self.shape.dims()[1..].iter().product();
            let flat = binary(g, "Reshape", values, [-1, width as i32])?;
            let column = g.op("Slice").input(flat).input([0, 0]).input([-1, 1]).build()?;
            let column = binary(g, "Reshape", column, [-1])?;
            let places = |g: &mut GraphBuilder, compare: &str| {
                let chosen = binary(g, compare, indices, count_at.clone())?;
                let chosen = unary(g, "Where", chosen)?;
                binary(g, "Reshape", chosen, [-1])
            };
            let take =
                |g: &mut GraphBuilder, of: Output, at: Output| g.op("GatherV2").input(of).input(at).input(0).build();
            let (counts, kept) = (places(g, "Equal")?, places(g, "NotEqual")?);
            let counts = take(g, column, counts)?;
            let count = binary(g, "Sum", counts, [0])?;
            let (indices, values) = (take(g, indices, kept)?, take(g, values, kept)?);
            let values = binary(g, "RealDiv", values, count)?;
            Ok(Gradient::Sparse(Rows { values, indices, dense_shape: g.constant("shape", sizes(&self.shape))? }))
        })
    }

    /// Adds the node that sets it to the update of the step counter.
    pub fn set_step(&self, g: &mut GraphBuilder, global_step: &Variable) -> Result<Output> {
        let device = global_step.device.clone();
        let now = on(g, &device, |g| read(g, global_step.handle, global_step.is_ref, DType::I64).build())?;
        let op = if self.is_sparse { "AccumulatorSetGlobalStep" } else { "ResourceAccumulatorSetGlobalStep" };
        on(g, &self.device, |g| binary(g, op, self.handle, now))
    }

    /// The nodes that drop its contents.
    pub fn drain(&self, g: &mut GraphBuilder) -> Result<Drain> {
        let op = if self.is_sparse { "AccumulatorNumAccumulated" } else { "ResourceAccumulatorNumAccumulated" };
        let size = on(g, &self.device, |g| g.op(op).input(self.handle).build())?;
        let drop = self.taken(g, 1)?;
        Ok(Drain { size: g.tensor_name(size), drop: g.tensor_name(drop) })
    }

    fn taken(&self, g: &mut GraphBuilder, needed: usize) -> Result<Output> {
        let needed = i32::try_from(needed).unwrap_or(i32::MAX);
        let op = if self.is_sparse { "SparseAccumulatorTakeGradient" } else { "ResourceAccumulatorTakeGradient" };
        on(g, &self.device, |g| g.op(op).input(self.handle).input(needed).attr("dtype", self.dtype).build())
    }

    /// The index of the row that counts the gradients.
    fn count_at(&self) -> i64 {
        self.shape.dims()[0] as i64
    }
}

/// The shape with the additional row.
fn with_count(shape: &Shape) -> Shape {
    let (rows, rest) = shape.dims().split_first().unwrap_or((&0, &[]));
    std::iter::once(rows + 1).chain(rest.iter().copied()).collect()
}

fn sizes(shape: &Shape) -> Tensor {
    Tensor::vector(shape.dims().iter().map(|&size| size as i64).collect())
}
