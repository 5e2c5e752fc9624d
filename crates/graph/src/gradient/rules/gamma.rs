//! Gradients of the incomplete gamma functions, and of random numbers of gamma distributions and of truncated normal ones, by
//! implicit differentiation (Figurnov et al., Implicit reparameterization gradients, 2018).

use meshtf_tensor::DType;

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads};

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
    ("stateless_random_gamma", |c| {
        check_dtype(c)?;
        // Alpha is the last input: after a seed, or after a key, a counter and an algorithm.
        let last = c.node.inputs.len() - 1;
        let (alpha, sample, dy) = (c.x(last), c.y(0), c.dy()?);
        let slope = c.bin("RandomGammaGrad", alpha, sample)?;
        let by_sample = c.mul(dy, slope)?;
        let by_alpha = reduced_to(c, by_sample, alpha)?;
        let mut grads: Vec<Option<Gradient>> = vec![None; last];
        grads.push(Some(Gradient::Dense(by_alpha)));
        Ok(grads)
    }),
    ("stateless_truncated_normal", truncated_normal),
];

/// A gradient of the samples, summed over the axes along which a parameter was broadcast.
fn reduced_to(c: &mut Call, gradient: Output, parameter: Output) -> Added {
    let sample = c.y(0);
    let (whole, own) = (c.shape(sample)?, c.shape(parameter)?);
    let axes = c.bin("BroadcastGradientArgs", whole, own)?;
    let sum = c.sum(gradient, axes.port(1), false)?;
    c.reshape(sum, own)
}

/// With respect to the mean, the deviation and the bounds.
fn truncated_normal(c: &mut Call) -> Grads {
    let (mean, deviation, low, high, sample, dy) = (c.x(2), c.x(3), c.x(4), c.x(5), c.y(0), c.dy()?);
    let (tiny, epsilon) = match c.t() {
        DType::F64 => (f64::MIN_POSITIVE, f64::EPSILON),
        DType::F16 => (half::f16::MIN_POSITIVE.into(), half::f16::EPSILON.into()),
        _ => (f32::MIN_POSITIVE.into(), f32::EPSILON.into()),
    };
    let normal = |c: &mut Call, x: Output| -> Added {
        let rest = c.sub(x, mean)?;
        c.div(rest, deviation)
    };
    let (low_z, high_z, z) = (normal(c, low)?, normal(c, high)?, normal(c, sample)?);
    let (below_low, below_high, below) = (share_below(c, low_z)?, share_below(c, high_z)?, share_below(c, z)?);
    let (part, whole) = (c.sub(below, below_low)?, c.sub(below_high, below_low)?);
    let share = c.div(part, whole)?;
    let (least, most) = (c.num(tiny), c.num(1.0 - epsilon));
    let share = c.op("ClipByValue").input(share).input(least).input(most).build()?;
    let (log, negative) = (c.un("Log", share)?, c.neg(share)?);
    let log_of_rest = c.un("Log1p", negative)?;
    let square = c.un("Square", z)?;
    let by_bound = |c: &mut Call, bound: Output, log: Output| -> Added {
        let own = c.un("Square", bound)?;
        let apart = c.sub(square, own)?;
        let half = c.mul(apart, c.num(0.5))?;
        let exponent = c.add(half, log)?;
        let slope = c.un("Exp", exponent)?;
        c.mul(dy, slope)
    };
    let (by_low, by_high) = (by_bound(c, low_z, log_of_rest)?, by_bound(c, high_z, log)?);
    let by_deviation = c.mul(dy, z)?;
    let mut grads = vec![None, None];
    for (gradient, parameter) in [(dy, mean), (by_deviation, deviation), (by_low, low), (by_high, high)] {
        grads.push(Some(Gradient::Dense(reduced_to(c, gradient, parameter)?)));
    }
    Ok(grads)
}

/// The share of a normal distribution below a number.
fn share_below(c: &mut Call, x: Output) -> Added {
    let scaled = c.mul(x, c.num(std::f64::consts::FRAC_1_SQRT_2))?;
    let size = c.un("Abs", scaled)?;
    let is_near = c.bin("Less", size, c.num(std::f64::consts::FRAC_1_SQRT_2))?;
    let is_above = c.bin("Greater", scaled, c.num(0.0))?;
    let (erf, erfc) = (c.un("Erf", scaled)?, c.un("Erfc", size)?);
    let near = c.add(c.num(1.0), erf)?;
    let above = c.sub(c.num(2.0), erfc)?;
    let far = c.select(is_above, above, erfc)?;
    let twice = c.select(is_near, near, far)?;
    c.mul(twice, c.num(0.5))
}

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
