//! Rules for operations on tensors of any kind: shapes, masks, comparisons for equality, creation.

mod index;
mod slice;

use burn_ir::{BaseOperationIr, CastOpIr, CreationOpIr, MaskFillOpIr, ReduceDimOpIr, ReduceOpIr, ScalarIr, TensorIr};
use burn_ir::{CatOpIr, RepeatDimOpIr, UnfoldOpIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};
use smallvec::SmallVec;

use super::compose::{axis, integers, number, sizes};
use super::values::{dtype, scalar_tensor};
use super::{Lowering, Scalar};

impl Lowering<'_> {
    pub(super) fn base(&mut self, op: &BaseOperationIr) -> Result<()> {
        use BaseOperationIr as Op;
        match op {
            Op::Reshape(op) => {
                let value = self.read(&op.input)?;
                let value = self.reshape(value, &op.input.shape, &op.out.shape)?;
                self.write(&op.out, value)
            }
            Op::SwapDims(op) => {
                let order = super::compose::swapped(op.input.shape.len(), op.dim1, op.dim2);
                self.permuted(&op.input, &order, &op.out)
            }
            Op::Permute(op) => self.permuted(&op.input, &op.axes, &op.out),
            Op::Flip(op) => {
                let value = self.read(&op.input)?;
                let value = self.node("ReverseV2", [value.into(), sizes(&op.axes)?])?;
                self.write(&op.out, value)
            }
            Op::Expand(op) => {
                let value = self.read(&op.input)?;
                let value = self.broadcast(value, &op.input.shape, &op.out.shape)?;
                self.write(&op.out, value)
            }
            Op::Unfold(op) => self.unfold(op),
            Op::Slice(op) => self.slice(op),
            Op::SliceAssign(op) => self.slice_assign(op),
            Op::Select(op) => self.select(op),
            Op::SelectAssign(op) => self.select_assign(op),
            Op::Gather(op) => self.gather(op),
            Op::Scatter(op) => self.scatter(op),
            Op::GatherNd(op) => self.gather_nd(op),
            Op::ScatterNd(op) => self.scatter_nd(op),
            Op::MaskWhere(op) => {
                let (tensor, mask, value) = (self.read(&op.tensor)?, self.read(&op.mask)?, self.read(&op.value)?);
                let value = self.node("SelectV2", [mask.into(), value.into(), tensor.into()])?;
                self.write(&op.out, value)
            }
            Op::MaskFill(op) => self.mask_fill(op),
            Op::Equal(op) => self.binary("Equal", op),
            Op::EqualElem(op) => self.with_scalar("Equal", op),
            Op::NotEqual(op) => self.binary("NotEqual", op),
            Op::NotEqualElem(op) => self.with_scalar("NotEqual", op),
            Op::RepeatDim(op) => self.repeat_dim(op),
            Op::Cat(op) => self.cat(op),
            Op::Cast(op) => self.converted(op),
            Op::Empty(op) | Op::Zeros(op) => self.created(op, 0.0),
            Op::Ones(op) => self.created(op, 1.0),
            Op::All(op) => self.truth("All", op),
            Op::Any(op) => self.truth("Any", op),
            Op::AllDim(op) => self.truth_along("All", op),
            Op::AnyDim(op) => self.truth_along("Any", op),
        }
    }

    /// A tensor in another dtype: floats become integers as by Rust's `as`, and numbers are true if they are not 0.
    pub(super) fn converted(&mut self, op: &CastOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        let value = self.cast(value, dtype(op.input.dtype)?, dtype(op.out.dtype)?)?;
        self.write(&op.out, value)
    }

    /// A tensor whose elements are all this scalar: a constant if it is one known element, else a Fill.
    pub(super) fn filled(&mut self, out: &TensorIr, value: ScalarIr) -> Result<()> {
        let to = dtype(out.dtype)?;
        let value = match self.scalar(value)? {
            Scalar::Known(value) if out.shape.iter().product::<usize>() == 1 => {
                let one = scalar_tensor(value, to)?.reshaped(&out.shape[..])?;
                self.graph.constant("full", one)?
            }
            Scalar::Known(_) | Scalar::Fed(_) => {
                let value = self.scalar_input(value, to)?;
                self.node("Fill", [sizes(&out.shape)?, value])?
            }
        };
        self.write(out, value)
    }

    fn created(&mut self, op: &CreationOpIr, value: f64) -> Result<()> {
        let to = dtype(op.out.dtype)?;
        let value = number(value, to)?;
        let value = self.node("Fill", [sizes(&op.out.shape)?, value])?;
        self.write(&op.out, value)
    }

    fn permuted(&mut self, input: &TensorIr, order: &[usize], out: &TensorIr) -> Result<()> {
        let value = self.read(input)?;
        let value = self.transpose(value, order)?;
        self.write(out, value)
    }

    fn mask_fill(&mut self, op: &MaskFillOpIr) -> Result<()> {
        let (tensor, mask) = (self.read(&op.tensor)?, self.read(&op.mask)?);
        let value = self.scalar_input(op.value, dtype(op.tensor.dtype)?)?;
        let value = self.node("SelectV2", [mask.into(), value, tensor.into()])?;
        self.write(&op.out, value)
    }

    fn repeat_dim(&mut self, op: &RepeatDimOpIr) -> Result<()> {
        let tensor = self.read(&op.tensor)?;
        let mut times: SmallVec<[usize; 8]> = op.tensor.shape.iter().map(|_| 1).collect();
        *times.get_mut(op.dim).ok_or_else(|| no_dim(op.dim))? = op.times;
        let value = self.node("Tile", [tensor.into(), sizes(&times)?])?;
        self.write(&op.out, value)
    }

    fn cat(&mut self, op: &CatOpIr) -> Result<()> {
        let values: Result<Vec<Output>> = op.tensors.iter().map(|tensor| self.read(tensor)).collect();
        let value = match values?.as_slice() {
            [one] => *one,
            values => {
                let values = values.iter().map(|&value| Input::Output(value)).chain([axis(op.dim)?]);
                self.graph.op("ConcatV2").inputs(values).build()?
            }
        };
        self.write(&op.out, value)
    }

    /// Windows along a dim: gathered as [.., windows, size, ..], with the size then moved last.
    fn unfold(&mut self, op: &UnfoldOpIr) -> Result<()> {
        let input = self.read(&op.input)?;
        let rank = op.input.shape.len();
        let windows = *op.out.shape.get(op.dim).ok_or_else(|| no_dim(op.dim))?;
        let positions = (0..windows).flat_map(|window| (0..op.size).map(move |i| window * op.step + i));
        let positions = integers(positions, DType::I32)?.reshaped([windows, op.size])?;
        let value = self.node("GatherV2", [input.into(), positions.into(), axis(op.dim)?])?;
        let order: SmallVec<[usize; 8]> = (0..=rank).filter(|&dim| dim != op.dim + 1).chain([op.dim + 1]).collect();
        let value = self.transpose(value, &order)?;
        self.write(&op.out, value)
    }

    /// Whether all, or any, of the elements are true; shape \[1\].
    fn truth(&mut self, reduction: &str, op: &ReduceOpIr) -> Result<()> {
        let value = self.truths(&op.input)?;
        let value = self.reduce_all(reduction, value, &op.input.shape)?;
        self.write(&op.out, value)
    }

    fn truth_along(&mut self, reduction: &str, op: &ReduceDimOpIr) -> Result<()> {
        let value = self.truths(&op.input)?;
        let value = self.reduce(reduction, value, &op.input.shape, &[op.axis])?;
        self.write(&op.out, value)
    }

    /// A tensor as bools: numbers are true if they are not 0.
    fn truths(&mut self, tensor: &TensorIr) -> Result<Output> {
        let value = self.read(tensor)?;
        match dtype(tensor.dtype)? {
            DType::Bool => Ok(value),
            dtype => self.node("NotEqual", [value.into(), number(0.0, dtype)?]),
        }
    }
}

pub(super) fn no_dim(dim: usize) -> Failure {
    Failure::invalid(format!("there is no dim {dim}"))
}
