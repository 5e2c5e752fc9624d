//! Rules for reductions: to one element (shape \[1\]), and along dims, which are kept with length 1.

use burn_ir::{ReduceDimOpIr, ReduceDimWithIndicesOpIr, ReduceDimsOpIr, ReduceOpIr, TensorIr};
use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use crate::Lowering;
use crate::compose::{axis, sizes};
use crate::values::dtype;

impl Lowering<'_> {
    pub(super) fn reduced(&mut self, reduction: &str, op: &ReduceOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        let value = self.reduce_all(reduction, value, &op.input.shape)?;
        self.write(&op.out, value)
    }

    pub(super) fn reduced_along(&mut self, reduction: &str, op: &ReduceDimOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        let value = self.reduce(reduction, value, &op.input.shape, &[op.axis])?;
        self.write(&op.out, value)
    }

    pub(super) fn sum_dims(&mut self, op: &ReduceDimsOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        let value = self.reduce("Sum", value, &op.input.shape, &op.axes)?;
        self.write(&op.out, value)
    }

    pub(super) fn max_abs(&mut self, op: &ReduceOpIr) -> Result<()> {
        let value = self.magnitude(&op.input)?;
        let value = self.reduce_all("Max", value, &op.input.shape)?;
        self.write(&op.out, value)
    }

    pub(super) fn max_abs_along(&mut self, op: &ReduceDimOpIr) -> Result<()> {
        let value = self.magnitude(&op.input)?;
        let value = self.reduce("Max", value, &op.input.shape, &[op.axis])?;
        self.write(&op.out, value)
    }

    pub(super) fn arg(&mut self, reduction: &str, op: &ReduceDimOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        self.position(reduction, value, op.axis, &op.out)
    }

    pub(super) fn with_indices(&mut self, reduction: &str, arg: &str, op: &ReduceDimWithIndicesOpIr) -> Result<()> {
        let value = self.read(&op.tensor)?;
        let reduced = self.reduce(reduction, value, &op.tensor.shape, &[op.dim])?;
        self.write(&op.out, reduced)?;
        self.position(arg, value, op.dim, &op.out_indices)
    }

    /// The position of the extremum along a dim; the dim is kept with length 1.
    fn position(&mut self, op: &str, value: Output, dim: usize, out: &TensorIr) -> Result<()> {
        let to = dtype(out.dtype)?;
        let native = if matches!(to, DType::I16 | DType::I32 | DType::U16) { to } else { DType::I64 };
        let at = self.node_with(op, [value.into(), axis(dim)?], &[("output_type", native.into())])?;
        let at = self.node("Reshape", [at.into(), sizes(&out.shape)?])?;
        let at = self.cast(at, native, to)?;
        self.write(out, at)
    }

    fn magnitude(&mut self, tensor: &TensorIr) -> Result<Output> {
        let value = self.read(tensor)?;
        if dtype(tensor.dtype)?.is_unsigned_integer() {
            return Ok(value);
        }
        self.node("Abs", [value.into()])
    }
}
