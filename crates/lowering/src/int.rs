//! Rules for operations on integers alone.

use burn_ir::{BinaryOpIr, IntOperationIr, ScalarIr, ScalarOpIr};
use meshtf_graph::Input;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::compose::number;
use super::values::{dtype, scalar_tensor};
use super::{Lowering, Scalar};

impl Lowering<'_> {
    pub(super) fn int(&mut self, op: &IntOperationIr) -> Result<()> {
        use IntOperationIr as Op;
        match op {
            Op::IntoFloat(op) => self.converted(op),
            Op::Matmul(op) => self.matmul(op),
            Op::BitwiseAnd(op) => self.binary("BitwiseAnd", op),
            Op::BitwiseAndScalar(op) => self.with_scalar("BitwiseAnd", op),
            Op::BitwiseOr(op) => self.binary("BitwiseOr", op),
            Op::BitwiseOrScalar(op) => self.with_scalar("BitwiseOr", op),
            Op::BitwiseXor(op) => self.binary("BitwiseXor", op),
            Op::BitwiseXorScalar(op) => self.with_scalar("BitwiseXor", op),
            Op::BitwiseNot(op) => self.unary("Invert", op),
            Op::BitwiseLeftShift(op) => self.shift("LeftShift", op),
            Op::BitwiseLeftShiftScalar(op) => self.shift_scalar("LeftShift", op),
            Op::BitwiseRightShift(op) => self.shift("RightShift", op),
            Op::BitwiseRightShiftScalar(op) => self.shift_scalar("RightShift", op),
        }
    }

    fn shift(&mut self, direction: &str, op: &BinaryOpIr) -> Result<()> {
        let (value, amount) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
        let amount = self.amount(amount.into(), dtype(op.lhs.dtype)?)?;
        let value = self.node(direction, [value.into(), amount])?;
        self.write(&op.out, value)
    }

    fn shift_scalar(&mut self, direction: &str, op: &ScalarOpIr) -> Result<()> {
        let value = self.read(&op.lhs)?;
        let of = dtype(op.lhs.dtype)?;
        let amount = match self.scalar(op.rhs)? {
            Scalar::Known(ScalarIr::Int(amount)) => {
                Input::Value(scalar_tensor(ScalarIr::Int(amount & last_bit(of)), of)?)
            }
            Scalar::Known(_) | Scalar::Fed(_) => {
                let amount = self.scalar_input(op.rhs, of)?;
                self.amount(amount, of)?
            }
        };
        let value = self.node(direction, [value.into(), amount])?;
        self.write(&op.out, value)
    }

    /// The amount of a shift, of which burn takes the lowest bits: modulo the width of the type.
    fn amount(&mut self, amount: Input, of: DType) -> Result<Input> {
        Ok(self.node("BitwiseAnd", [amount, number(last_bit(of) as f64, of)?])?.into())
    }
}

/// The index of a type's highest bit.
fn last_bit(of: DType) -> i64 {
    of.size().map_or(0, |bytes| bytes as i64 * 8 - 1)
}
