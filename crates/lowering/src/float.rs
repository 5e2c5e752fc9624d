//! Rules for operations on floats alone.

use burn_ir::{BinaryOpIr, CrossOpIr, FloatOperationIr, MatmulOpIr, UnaryOpIr};
use meshtf_graph::{Input, Output};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};

use super::compose::{axis, number};
use super::values::dtype;
use super::{Lowering, refused};

impl Lowering<'_> {
    pub(super) fn float(&mut self, op: &FloatOperationIr) -> Result<()> {
        use FloatOperationIr as Op;
        match op {
            Op::Exp(op) => self.unary("Exp", op),
            Op::Log(op) => self.unary("Log", op),
            Op::Log1p(op) => self.unary("Log1p", op),
            Op::Erf(op) => self.unary("Erf", op),
            Op::Sqrt(op) => self.unary("Sqrt", op),
            Op::Recip(op) => self.unary("Reciprocal", op),
            Op::Sin(op) => self.unary("Sin", op),
            Op::Cos(op) => self.unary("Cos", op),
            Op::Tan(op) => self.unary("Tan", op),
            Op::Sinh(op) => self.unary("Sinh", op),
            Op::Cosh(op) => self.unary("Cosh", op),
            Op::Tanh(op) => self.unary("Tanh", op),
            Op::ArcSin(op) => self.unary("Asin", op),
            Op::ArcCos(op) => self.unary("Acos", op),
            Op::ArcTan(op) => self.unary("Atan", op),
            Op::ArcSinh(op) => self.unary("Asinh", op),
            Op::ArcCosh(op) => self.unary("Acosh", op),
            Op::ArcTanh(op) => self.unary("Atanh", op),
            Op::ArcTan2(op) => self.binary("Atan2", op),
            Op::Round(op) => self.unary("Round", op),
            Op::Floor(op) => self.unary("Floor", op),
            Op::Ceil(op) => self.unary("Ceil", op),
            Op::Trunc(op) => self.trunc(op),
            Op::IsNan(op) => self.unary("IsNan", op),
            Op::IsInf(op) => self.unary("IsInf", op),
            Op::Powf(op) => self.binary("Pow", op),
            Op::PowfScalar(op) => self.power_scalar(op),
            Op::Hypot(op) => self.hypot(op),
            Op::IntoInt(op) => self.converted(op),
            Op::Matmul(op) => self.matmul(op),
            Op::Cross(op) => self.cross(op),
            Op::Random(op) => self.random(op),
            Op::Quantize(_) => Err(refused("Quantize", "quantized tensors do not run on the mesh")),
            Op::Dequantize(_) => Err(refused("Dequantize", "quantized tensors do not run on the mesh")),
            Op::GridSample2d(op) => self.grid_sample(op),
        }
    }

    /// A product of matrices. One op; if the batch of the right operand is one, the rows of the left one are one tall matrix.
    pub(super) fn matmul(&mut self, op: &MatmulOpIr) -> Result<()> {
        let (lhs, rhs) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
        let ([.., rows, inner], [.., _, columns]) = (&op.lhs.shape[..], &op.rhs.shape[..]) else {
            return Err(meshtf_tensor::failure::Failure::invalid("a product of matrices needs at least 2 dims"));
        };
        let of = dtype(op.lhs.dtype)?;
        // There are no ops for the smallest integers, whose products wrap like the lowest bits of larger ones.
        let wide = if matches!(of, DType::I8 | DType::I16) { DType::I32 } else { of };
        let (lhs, rhs) = (self.cast(lhs, of, wide)?, self.cast(rhs, of, wide)?);
        let batch = |shape: &[usize]| shape[..shape.len() - 2].iter().product::<usize>();
        let value = if batch(&op.rhs.shape) == 1 {
            let lhs = self.reshape(lhs, &op.lhs.shape, &[batch(&op.lhs.shape) * rows, *inner])?;
            let rhs = self.reshape(rhs, &op.rhs.shape, &[*inner, *columns])?;
            let value = self.node("MatMul", [lhs.into(), rhs.into()])?;
            self.reshape(value, &[batch(&op.lhs.shape) * rows, *columns], &op.out.shape)?
        } else {
            self.node("BatchMatMulV2", [lhs.into(), rhs.into()])?
        };
        let value = self.cast(value, wide, of)?;
        self.write(&op.out, value)
    }

    /// Rounding towards zero, which keeps NaN, infinities and the sign of 0.
    fn trunc(&mut self, op: &UnaryOpIr) -> Result<()> {
        let value = self.read(&op.input)?;
        let negative = self.node("Less", [value.into(), number(0.0, dtype(op.input.dtype)?)?])?;
        let (up, down) = (self.node("Ceil", [value.into()])?, self.node("Floor", [value.into()])?);
        let value = self.node("SelectV2", [negative.into(), up.into(), down.into()])?;
        self.write(&op.out, value)
    }

    /// The root of the sum of squares, in float64: so it overflows for float64 alone, from 1e154 on.
    fn hypot(&mut self, op: &BinaryOpIr) -> Result<()> {
        let of = dtype(op.lhs.dtype)?;
        let mut square = |tensor| -> Result<Output> {
            let value = self.read(tensor)?;
            let value = self.cast(value, of, DType::F64)?;
            self.node("Square", [value.into()])
        };
        let (lhs, rhs) = (square(&op.lhs)?, square(&op.rhs)?);
        let value = self.node("AddV2", [lhs.into(), rhs.into()])?;
        let value = self.node("Sqrt", [value.into()])?;
        let value = self.cast(value, DType::F64, of)?;
        self.write(&op.out, value)
    }

    /// a × b along a dim of length 3. With r as the rotation of the dim by one, r(a × b) = a·r(b) − r(a)·b.
    fn cross(&mut self, op: &CrossOpIr) -> Result<()> {
        let (lhs, rhs) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
        let (lhs_turned, rhs_turned) = (self.turned(lhs, op.dim)?, self.turned(rhs, op.dim)?);
        let plus = self.node("Mul", [lhs.into(), rhs_turned.into()])?;
        let minus = self.node("Mul", [lhs_turned.into(), rhs.into()])?;
        let value = self.node("Sub", [plus.into(), minus.into()])?;
        let value = self.turned(value, op.dim)?;
        self.write(&op.out, value)
    }

    /// A tensor rotated along a dim: its elements move by one towards the start, and the first one to the end.
    fn turned(&mut self, value: Output, dim: usize) -> Result<Output> {
        self.node("Roll", [value.into(), Input::Value(Tensor::scalar(-1)), axis(dim)?])
    }
}
