//! Rules for the operations of burn's `ActivationOperationIr`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use burn_ir::{ActivationOperationIr, BinaryOpIr, HardSigmoidOpIr, ScalarOpIr, UnaryOpIr};
use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::compose::number;
use super::values::dtype;
use super::{Lowering, Scalar};

impl Lowering<'_> {
    pub(super) fn activation(&mut self, op: &ActivationOperationIr) -> Result<()> {
        use ActivationOperationIr as Op;
        match op {
            Op::Relu(op) => self.function("Relu", op),
            // The gradient's first operand is the output, which is positive where the input is.
            Op::ReluBackward(op) => {
                let (output, gradient) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
                let answer = self.node("ReluGrad", [gradient.into(), output.into()])?;
                self.write(&op.out, answer)
            }
            Op::LeakyRelu(op) => self.leaky_relu(op),
            Op::PRelu(op) => {
                let (x, slope) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
                let scaled = self.node("Mul", [x.into(), slope.into()])?;
                let answer = self.where_negative(x, scaled, dtype(op.lhs.dtype)?)?;
                self.write(&op.out, answer)
            }
            Op::Gelu(op) => self.gelu(op),
            Op::GeluBackward(op) => self.gelu_backward(op),
            Op::Sigmoid(op) => self.function("Sigmoid", op),
            Op::SigmoidBackward(op) => {
                let (output, gradient) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
                let answer = self.node("SigmoidGrad", [output.into(), gradient.into()])?;
                self.write(&op.out, answer)
            }
            Op::HardSigmoid(op) => self.hard_sigmoid(op),
            // log(sigmoid(x)) = -log(1 + exp(-x))
            Op::LogSigmoid(op) => {
                let x = self.read(&op.input)?;
                let negative = self.node("Neg", [x.into()])?;
                let softplus = self.node("Softplus", [negative.into()])?;
                let answer = self.node("Neg", [softplus.into()])?;
                self.write(&op.out, answer)
            }
            // The derivative is sigmoid(-x).
            Op::LogSigmoidBackward(op) => {
                let (x, gradient) = (self.read(&op.lhs)?, self.read(&op.rhs)?);
                let negative = self.node("Neg", [x.into()])?;
                let slope = self.node("Sigmoid", [negative.into()])?;
                let answer = self.node("Mul", [gradient.into(), slope.into()])?;
                self.write(&op.out, answer)
            }
            Op::Softmax(op) => {
                let x = self.read(&op.input)?;
                let answer = self.over_dim("Softmax", x, op.axis, op.input.shape.rank())?;
                self.write(&op.out, answer)
            }
            Op::LogSoftmax(op) => {
                let x = self.read(&op.input)?;
                let answer = self.over_dim("LogSoftmax", x, op.axis, op.input.shape.rank())?;
                self.write(&op.out, answer)
            }
            Op::Softmin(op) => {
                let x = self.read(&op.input)?;
                let negative = self.node("Neg", [x.into()])?;
                let answer = self.over_dim("Softmax", negative, op.axis, op.input.shape.rank())?;
                self.write(&op.out, answer)
            }
        }
    }

    /// An op of one tensor.
    fn function(&mut self, name: &str, op: &UnaryOpIr) -> Result<()> {
        let x = self.read(&op.input)?;
        let answer = self.node(name, [x.into()])?;
        self.write(&op.out, answer)
    }

    /// An op along the last dim, applied along another one.
    fn over_dim(&mut self, name: &str, x: Output, dim: usize, rank: usize) -> Result<Output> {
        let x = self.swap_last(x, dim, rank)?;
        let answer = self.node(name, [x.into()])?;
        self.swap_last(answer, dim, rank)
    }

    /// `other` where `x` is negative, else `x`. NaN stays NaN.
    fn where_negative(&mut self, x: Output, other: Output, dtype: DType) -> Result<Output> {
        let negative = self.node("Less", [x.into(), number(0.0, dtype)?])?;
        self.node("SelectV2", [negative.into(), other.into(), x.into()])
    }

    fn leaky_relu(&mut self, op: &ScalarOpIr) -> Result<()> {
        let (x, dtype) = (self.read(&op.lhs)?, dtype(op.lhs.dtype)?);
        // The op's slope is an attribute, and a float32.
        let answer = match self.scalar(op.rhs)? {
            Scalar::Known(slope) if dtype != DType::F64 => {
                let slope: f32 = slope.elem();
                self.node_with("LeakyRelu", [x.into()], &[("alpha", slope.into())])?
            }
            Scalar::Known(_) | Scalar::Fed(_) => {
                let slope = self.scalar_input(op.rhs, dtype)?;
                let scaled = self.node("Mul", [x.into(), slope])?;
                self.where_negative(x, scaled, dtype)?
            }
        };
        self.write(&op.out, answer)
    }

    /// x/2 · (1 + erf(x/√2))
    fn gelu(&mut self, op: &UnaryOpIr) -> Result<()> {
        let (x, dtype) = (self.read(&op.input)?, dtype(op.input.dtype)?);
        let share = self.normal_distribution(x, dtype)?;
        let answer = self.node("Mul", [x.into(), share.into()])?;
        self.write(&op.out, answer)
    }

    /// The gradient times the derivative, which is Φ(x) + x · φ(x).
    fn gelu_backward(&mut self, op: &BinaryOpIr) -> Result<()> {
        let (x, gradient, dtype) = (self.read(&op.lhs)?, self.read(&op.rhs)?, dtype(op.lhs.dtype)?);
        let share = self.normal_distribution(x, dtype)?;
        let square = self.node("Square", [x.into()])?;
        let exponent = self.node("Mul", [square.into(), number(-0.5, dtype)?])?;
        let bell = self.node("Exp", [exponent.into()])?;
        let bell = self.node("Mul", [bell.into(), number((2.0 * PI).sqrt().recip(), dtype)?])?;
        let rest = self.node("Mul", [x.into(), bell.into()])?;
        let slope = self.node("AddV2", [share.into(), rest.into()])?;
        let answer = self.node("Mul", [gradient.into(), slope.into()])?;
        self.write(&op.out, answer)
    }

    /// Φ(x) = (1 + erf(x/√2)) / 2, the share of the standard normal distribution below x.
    fn normal_distribution(&mut self, x: Output, dtype: DType) -> Result<Output> {
        let scaled = self.node("Mul", [x.into(), number(FRAC_1_SQRT_2, dtype)?])?;
        let erf = self.node("Erf", [scaled.into()])?;
        let raised = self.node("AddV2", [erf.into(), number(1.0, dtype)?])?;
        self.node("Mul", [raised.into(), number(0.5, dtype)?])
    }

    /// alpha · x + beta, between 0 and 1.
    fn hard_sigmoid(&mut self, op: &HardSigmoidOpIr) -> Result<()> {
        let (x, dtype) = (self.read(&op.tensor)?, dtype(op.tensor.dtype)?);
        let (alpha, beta) = (self.scalar_input(op.alpha, dtype)?, self.scalar_input(op.beta, dtype)?);
        let scaled = self.node("Mul", [x.into(), alpha])?;
        let moved = self.node("AddV2", [scaled.into(), beta])?;
        let above = self.node("Maximum", [moved.into(), number(0.0, dtype)?])?;
        let answer = self.node("Minimum", [above.into(), number(1.0, dtype)?])?;
        self.write(&op.out, answer)
    }
}
