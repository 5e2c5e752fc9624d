//! Gradients of activation functions.

use super::Rule;
use crate::gradient::call::{Call, Grads, all, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("relu", |c| of_output(c, "ReluGrad")),
    ("relu6", |c| of_output(c, "Relu6Grad")),
    ("elu", |c| of_output(c, "EluGrad")),
    ("selu", |c| of_output(c, "SeluGrad")),
    ("softplus", |c| of_input(c, "SoftplusGrad")),
    ("softsign", |c| of_input(c, "SoftsignGrad")),
    ("leaky_relu", |c| of_input(c, "LeakyReluGrad")),
    ("relu_grad", |c| {
        let (x, dz) = (c.x(1), c.dy()?);
        let by_g = c.with_attrs(c.node.op.name, &[dz, x], &["alpha"])?;
        all([by_g, c.un("ZerosLike", x)?])
    }),
    ("elu_grad", |c| {
        // Where y < 0, the gradient is g times y times a constant.
        let (g, y, dz) = (c.x(0), c.x(1), c.dy()?);
        let by_g = c.bin(c.node.op.name, dz, y)?;
        let is_negative = c.bin("Less", y, c.num(0.0))?;
        let product = c.mul(dz, g)?;
        let zeros = c.un("ZerosLike", y)?;
        all([by_g, c.select(is_negative, product, zeros)?])
    }),
    ("softplus_grad", |c| {
        let (g, x, dz) = (c.x(0), c.x(1), c.dy()?);
        let by_g = c.bin("SoftplusGrad", dz, x)?;
        let sigmoid = c.un("Sigmoid", x)?;
        let product = c.mul(dz, g)?;
        all([by_g, c.bin("SigmoidGrad", sigmoid, product)?])
    }),
    ("softsign_grad", |c| {
        // z = g / (1 + |x|)^2
        let (x, z, dz) = (c.x(1), c.y(0), c.dy()?);
        let by_g = c.bin("SoftsignGrad", dz, x)?;
        let size = c.un("Abs", x)?;
        let sum = c.add(size, c.num(1.0))?;
        let sign = c.un("Sign", x)?;
        let slope = c.mul(sign, c.num(-2.0))?;
        let slope = c.div(slope, sum)?;
        let product = c.mul(dz, z)?;
        all([by_g, c.mul(product, slope)?])
    }),
    ("softmax", |c| {
        let (y, dy) = (c.y(0), c.dy()?);
        let product = c.mul(dy, y)?;
        let sum = c.sum(product, [-1], true)?;
        let difference = c.sub(dy, sum)?;
        one(c.mul(difference, y)?)
    }),
    ("log_softmax", |c| {
        let (y, dy) = (c.y(0), c.dy()?);
        let softmax = c.un("Exp", y)?;
        let sum = c.sum(dy, [-1], true)?;
        let product = c.mul(sum, softmax)?;
        one(c.sub(dy, product)?)
    }),
];

fn of_output(c: &mut Call, op: &str) -> Grads {
    let (y, dy) = (c.y(0), c.dy()?);
    one(c.bin(op, dy, y)?)
}

fn of_input(c: &mut Call, op: &str) -> Grads {
    let (x, dy) = (c.x(0), c.dy()?);
    one(c.with_attrs(op, &[dy, x], &["alpha"])?)
}
