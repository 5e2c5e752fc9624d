//! Activation functions, forward and backward.

use burn_backend::DType;
use burn_ir::ActivationOperationIr::{self as Activation, *};
use burn_ir::*;

use crate::case::{Case, Cases};

const SHAPES: [&[usize]; 5] = [&[8], &[2, 5], &[2, 3, 2], &[1, 2, 2, 3], &[1]];
const ODD: [f64; 9] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 100.0, -100.0, 20.0, -20.0];

pub fn fill(cases: &mut Cases) {
    let mut add = |build: &dyn Fn(&Case) -> Activation| cases.add(|c| OperationIr::Activation(build(c)));
    for build in [Relu, Gelu, Sigmoid, LogSigmoid] as [fn(UnaryOpIr) -> Activation; 4] {
        for shape in SHAPES {
            add(&|c| build(UnaryOpIr::create(c.f32(shape), c.id())));
        }
        add(&|c| build(UnaryOpIr::create(c.of(DType::F32, &[9], &ODD), c.id())));
        for dtype in [DType::F64, DType::F16] {
            add(&|c| build(UnaryOpIr::create(c.any(dtype, &[4]), c.id())));
        }
    }
    for shape in SHAPES {
        // The output of the forward pass, or its input for the last two; and the gradient.
        add(&|c| ReluBackward(BinaryOpIr::create(c.within(DType::F32, shape, 0.0, 1.0), c.f32(shape), c.id())));
        add(&|c| SigmoidBackward(BinaryOpIr::create(c.within(DType::F32, shape, 0.0, 1.0), c.f32(shape), c.id())));
        add(&|c| GeluBackward(BinaryOpIr::create(c.f32(shape), c.f32(shape), c.id())));
        add(&|c| LogSigmoidBackward(BinaryOpIr::create(c.f32(shape), c.f32(shape), c.id())));
        for slope in [0.01, 0.5, 0.0] {
            add(&|c| LeakyRelu(ScalarOpIr::create(c.f32(shape), ScalarIr::Float(slope), c.id())));
        }
        for (alpha, beta) in [(0.2, 0.5), (1.0, 0.0)] {
            let (alpha, beta) = (ScalarIr::Float(alpha), ScalarIr::Float(beta));
            add(&|c| HardSigmoid(HardSigmoidOpIr::create(c.f32(shape), alpha, beta, c.id())));
        }
        for dim in 0..shape.len() {
            add(&|c| Softmax(DimOpIr::create(c.f32(shape), dim, c.id())));
            add(&|c| LogSoftmax(DimOpIr::create(c.f32(shape), dim, c.id())));
            add(&|c| Softmin(DimOpIr::create(c.f32(shape), dim, c.id())));
        }
    }
    // One alpha for all, or one per channel.
    for (shape, alpha) in
        [(&[2, 3][..], &[1, 1][..]), (&[2, 3], &[1, 3]), (&[2, 3, 4], &[1, 3, 1]), (&[1, 2, 2, 2], &[1, 2, 1, 1])]
    {
        add(&|c| PRelu(BinaryOpIr::create(c.f32(shape), c.within(DType::F32, alpha, 0.0, 1.0), c.id())));
    }
    let large = [1000.0, 999.0, -1000.0, 0.0];
    let masked = [1.0, f64::NEG_INFINITY, 2.0, f64::NEG_INFINITY];
    for values in [large, masked] {
        add(&|c| Softmax(DimOpIr::create(c.of(DType::F32, &[4], &values), 0, c.id())));
        add(&|c| LogSoftmax(DimOpIr::create(c.of(DType::F32, &[4], &values), 0, c.id())));
    }
    add(&|c| Softmax(DimOpIr::create(c.any(DType::F64, &[2, 3]), 1, c.id())));
    add(&|c| Softmax(DimOpIr::create(c.any(DType::F16, &[2, 3]), 1, c.id())));
}
