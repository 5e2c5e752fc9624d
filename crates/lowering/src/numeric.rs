//! Rules for operations on numbers, floats and integers alike.

mod cumulative;
mod order;
mod pad;
mod power;
mod reduce;

use burn_ir::{ClampOpIr, NumericOperationIr, TensorIr, UnaryOpIr};
use meshtf_tensor::failure::Result;

use super::Lowering;
use super::compose::number;
use super::values::dtype;

impl Lowering<'_> {
    pub(super) fn numeric(&mut self, op: &NumericOperationIr) -> Result<()> {
        use NumericOperationIr as Op;
        match op {
            Op::Add(op) => self.binary("AddV2", op),
            Op::AddScalar(op) => self.with_scalar("AddV2", op),
            Op::Sub(op) => self.binary("Sub", op),
            Op::SubScalar(op) => self.with_scalar("Sub", op),
            Op::Mul(op) => self.binary("Mul", op),
            Op::MulScalar(op) => self.with_scalar("Mul", op),
            Op::Div(op) => self.binary(division(&op.lhs)?, op),
            Op::DivScalar(op) => self.with_scalar(division(&op.lhs)?, op),
            // The sign is that of the divisor.
            Op::Rem(op) => self.binary("FloorMod", op),
            Op::RemScalar(op) => self.with_scalar("FloorMod", op),
            Op::Powi(op) => self.powi(op),
            Op::PowiScalar(op) => self.power_scalar(op),
            Op::Abs(op) => self.abs(op),
            Op::Neg(op) => self.neg(op),
            Op::Sign(op) => self.sign(op),
            Op::Full(op) => self.filled(&op.out, op.value),
            Op::IntRandom(op) => self.random(op),
            Op::Clamp(op) => self.clamp(op),
            Op::ClampMin(op) => self.with_scalar("Maximum", op),
            Op::ClampMax(op) => self.with_scalar("Minimum", op),
            Op::Pad(op) => self.pad(op),
            Op::Greater(op) => self.binary("Greater", op),
            Op::GreaterElem(op) => self.with_scalar("Greater", op),
            Op::GreaterEqual(op) => self.binary("GreaterEqual", op),
            Op::GreaterEqualElem(op) => self.with_scalar("GreaterEqual", op),
            Op::Lower(op) => self.binary("Less", op),
            Op::LowerElem(op) => self.with_scalar("Less", op),
            Op::LowerEqual(op) => self.binary("LessEqual", op),
            Op::LowerEqualElem(op) => self.with_scalar("LessEqual", op),
            Op::Mean(op) => self.reduced("Mean", op),
            Op::Sum(op) => self.reduced("Sum", op),
            Op::Prod(op) => self.reduced("Prod", op),
            Op::Max(op) => self.reduced("Max", op),
            Op::Min(op) => self.reduced("Min", op),
            Op::MeanDim(op) => self.reduced_along("Mean", op),
            Op::SumDim(op) => self.reduced_along("Sum", op),
            Op::ProdDim(op) => self.reduced_along("Prod", op),
            Op::MaxDim(op) => self.reduced_along("Max", op),
            Op::MinDim(op) => self.reduced_along("Min", op),
            Op::SumDims(op) => self.sum_dims(op),
            Op::MaxAbs(op) => self.max_abs(op),
            Op::MaxAbsDim(op) => self.max_abs_along(op),
            Op::ArgMax(op) => self.arg("ArgMax", op),
            Op::ArgMin(op) => self.arg("ArgMin", op),
            Op::MaxDimWithIndices(op) => self.with_indices("Max", "ArgMax", op),
            Op::MinDimWithIndices(op) => self.with_indices("Min", "ArgMin", op),
            Op::TopK(op) => self.top_k(&op.input, op.axis, op.accumulator_len, Some(&op.out), None),
            Op::ArgTopK(op) => self.top_k(&op.input, op.axis, op.accumulator_len, None, Some(&op.out)),
            Op::TopKWithIndices(op) => self.top_k(&op.tensor, op.dim, op.k, Some(&op.out), Some(&op.out_indices)),
            Op::Sort(op) => self.sort(&op.input, op.dim, op.descending, Some(&op.out), None),
            Op::ArgSort(op) => self.sort(&op.input, op.dim, op.descending, None, Some(&op.out)),
            Op::SortWithIndices(op) => {
                self.sort(&op.input, op.dim, op.descending, Some(&op.out), Some(&op.out_indices))
            }
            Op::CumSum(op) => self.cumulative("Cumsum", op),
            Op::CumProd(op) => self.cumulative("Cumprod", op),
            Op::CumMin(op) => self.running("Minimum", op),
            Op::CumMax(op) => self.running("Maximum", op),
        }
    }

    fn abs(&mut self, op: &UnaryOpIr) -> Result<()> {
        if dtype(op.input.dtype)?.is_unsigned_integer() {
            let value = self.read(&op.input)?;
            return self.write(&op.out, value);
        }
        self.unary("Abs", op)
    }

    fn neg(&mut self, op: &UnaryOpIr) -> Result<()> {
        let of = dtype(op.input.dtype)?;
        if !of.is_unsigned_integer() {
            return self.unary("Neg", op);
        }
        let value = self.read(&op.input)?;
        let value = self.node("Sub", [number(0.0, of)?, value.into()])?;
        self.write(&op.out, value)
    }

    fn sign(&mut self, op: &UnaryOpIr) -> Result<()> {
        let of = dtype(op.input.dtype)?;
        if !of.is_unsigned_integer() {
            return self.unary("Sign", op);
        }
        let value = self.read(&op.input)?;
        let value = self.node("Minimum", [value.into(), number(1.0, of)?])?;
        self.write(&op.out, value)
    }

    fn clamp(&mut self, op: &ClampOpIr) -> Result<()> {
        let of = dtype(op.tensor.dtype)?;
        let value = self.read(&op.tensor)?;
        let min = self.scalar_input(op.min, of)?;
        let value = self.node("Maximum", [value.into(), min])?;
        let max = self.scalar_input(op.max, of)?;
        let value = self.node("Minimum", [value.into(), max])?;
        self.write(&op.out, value)
    }
}

/// The op of a division; integers are divided towards zero.
fn division(of: &TensorIr) -> Result<&'static str> {
    Ok(if dtype(of.dtype)?.is_float() { "RealDiv" } else { "TruncateDiv" })
}
