//! Gradients of the incomplete gamma functions, and of gamma-distributed random numbers.

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::Call;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("igamma", |c| {
        let [by_a, by_x] = incomplete(c)?;
        c.reduced_pair(Some(by_a), Some(by_x))
    }),
    ("igammac", |c| {
        let [by_a, by_x] = incomplete(c)?;
        let (by_a, by_x) = (c.neg(by_a)?, c.neg(by_x)?);
        c.reduced_pair(Some(by_a), Some(by_x))
    }),
    ("random_gamma", |c| {
        check_dtype(c)?;
        let (sizes, alpha, sample, dy) = (c.x(0), c.x(1), c.y(0), c.dy()?);
        // One dimension of size 1 for each that the samples have in front of those of alpha.
        let count = c.op("Size").input(sizes).build()?;
        let one_more = c.op("Pack").name("stack").input(count).build()?;
        let ones = c.bin("Fill", one_more, 1)?;
        let shape = c.shape(alpha)?;
        let shape = c.concat([ones, shape], 0)?;
        let alpha = c.reshape(alpha, shape)?;
        let slope = c.bin("RandomGammaGrad", alpha, sample)?;
        let by_sample = c.mul(dy, slope)?;
        let axes = c.op("Range").name("range").input(0).input(count).input(1).build()?;
        let by_alpha = c.sum(by_sample, axes, false)?;
        Ok(vec![None, Some(Gradient::Dense(by_alpha))])
    }),
];

/// The gradients of the lower incomplete gamma function, before the sums over broadcast axes.
fn incomplete(c: &mut Call) -> Result<[Output; 2], Stop> {
    check_dtype(c)?;
    let (a, x, dy) = (c.x(0), c.x(1), c.dy()?);
    let slope = c.bin("IgammaGradA", a, x)?;
    let by_a = c.mul(dy, slope)?;
    // Computed by logarithms, since the gamma function of `a` may be large.
    let less = c.sub(a, c.num(1.0))?;
    let (log, of_a, negative) = (c.un("Log", x)?, c.un("Lgamma", a)?, c.neg(x)?);
    let power = c.mul(less, log)?;
    let exponent = c.add(negative, power)?;
    let exponent = c.sub(exponent, of_a)?;
    let density = c.un("Exp", exponent)?;
    Ok([by_a, c.mul(dy, density)?])
}

/// TensorFlow has the derivatives only in float32 and float64.
fn check_dtype(c: &Call) -> Result<(), Stop> {
    match c.t() {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(Stop::Unsupported(format!("has a gradient for float32 and float64, not for {other}"))),
    }
}
