//! Rules for powers.

use burn_ir::{BinaryOpIr, ScalarIr, ScalarOpIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use crate::values::dtype;
use crate::{Lowering, Scalar};

impl Lowering<'_> {
    /// A tensor to the power of another, which for floats may be of integers.
    pub(super) fn powi(&mut self, op: &BinaryOpIr) -> Result<()> {
        let (base, exponent) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
        let of = dtype(op.lhs.dtype)?;
        let exponent = self.cast(exponent, dtype(op.rhs.dtype)?, of)?;
        let value = self.power(base, exponent.into(), of)?;
        self.write(&op.out, value)
    }

    /// A tensor to the power of a scalar. Common known exponents have separate ops, which differ from the power only for -0
    /// and -inf, and there only for the exponents 0.5 and -0.5.
    pub(crate) fn power_scalar(&mut self, op: &ScalarOpIr) -> Result<()> {
        let base = self.read(&op.lhs)?;
        let of = dtype(op.lhs.dtype)?;
        let known = match self.scalar(op.rhs)? {
            Scalar::Known(ScalarIr::Float(x)) => Some(x),
            Scalar::Known(ScalarIr::Int(x)) => Some(x as f64),
            Scalar::Known(ScalarIr::UInt(x)) => Some(x as f64),
            Scalar::Known(ScalarIr::Bool(_)) | Scalar::Fed(_) => None,
        };
        let value = match known {
            Some(0.0) => self.node("OnesLike", [base.into()])?,
            Some(1.0) => base,
            Some(2.0) => self.node("Square", [base.into()])?,
            Some(-1.0) if of.is_float() => self.node("Reciprocal", [base.into()])?,
            Some(0.5) if of.is_float() => self.node("Sqrt", [base.into()])?,
            Some(-0.5) if of.is_float() => self.node("Rsqrt", [base.into()])?,
            _ => {
                let exponent = self.scalar_input(op.rhs, of)?;
                self.power(base, exponent, of)?
            }
        };
        self.write(&op.out, value)
    }

    /// Pow, which does not exist for unsigned integers: as bits, their powers are those of signed ones.
    fn power(&mut self, base: Output, exponent: Input, of: DType) -> Result<Output> {
        if !of.is_unsigned_integer() {
            return self.node("Pow", [base.into(), exponent]);
        }
        let base = self.cast(base, of, DType::I64)?;
        let exponent = self.node_with("Cast", [exponent], &[("DstT", DType::I64.into())])?;
        let value = self.node("Pow", [base.into(), exponent.into()])?;
        self.cast(value, DType::I64, of)
    }
}
