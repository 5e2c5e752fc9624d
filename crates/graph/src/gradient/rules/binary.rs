//! Gradients of elementwise functions of two tensors, which are broadcast with each other.

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Call, Grads, all, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("add", |c| {
        let dy = c.dy()?;
        c.reduced_pair(Some(dy), Some(dy))
    }),
    ("add_n", |c| Ok(vec![c.gradient(0); c.node.inputs.len()])),
    ("sub", |c| {
        let dy = c.dy()?;
        let negative = c.neg(dy)?;
        c.reduced_pair(Some(dy), Some(negative))
    }),
    ("mul", |c| {
        let ([x, y], dy) = (conjugates(c)?, c.dy()?);
        let by_x = c.bin("Mul", dy, y)?;
        let by_y = c.bin("Mul", x, dy)?;
        c.reduced_pair(Some(by_x), Some(by_y))
    }),
    // As for Xdivy, Xlogy and Xlog1py, without conjugates, like TensorFlow.
    ("mul_no_nan", |c| {
        let (x, y, dy) = (c.x(0), c.x(1), c.dy()?);
        let by_x = c.bin("MulNoNan", dy, y)?;
        let by_y = c.bin("MulNoNan", x, dy)?;
        c.reduced_pair(Some(by_x), Some(by_y))
    }),
    ("div", |c| quotient(c, "RealDiv")),
    ("div_no_nan", |c| quotient(c, "DivNoNan")),
    ("floor_mod", |c| {
        let (x, y, dy) = (c.x(0), c.x(1), c.dy()?);
        let floor = c.bin("FloorDiv", x, y)?;
        let negative = c.neg(floor)?;
        let by_y = c.mul(dy, negative)?;
        c.reduced_pair(Some(dy), Some(by_y))
    }),
    ("pow", power),
    ("betainc", |c| {
        // With respect to x alone. Computed as the exponential of a sum of logarithms, since the factors may be large.
        let (a, b, x, dy) = (c.x(0), c.x(1), c.x(2), c.dy()?);
        let both = c.add(a, b)?;
        let (of_a, of_b, of_both) = (c.un("Lgamma", a)?, c.un("Lgamma", b)?, c.un("Lgamma", both)?);
        let beta = c.add(of_a, of_b)?;
        let beta = c.sub(beta, of_both)?;
        let (less_a, less_b, negative) = (c.sub(a, c.num(1.0))?, c.sub(b, c.num(1.0))?, c.neg(x)?);
        let (of_rest, of_x) = (c.bin("Xlog1py", less_b, negative)?, c.bin("Xlogy", less_a, x)?);
        let exponent = c.add(of_rest, of_x)?;
        let exponent = c.sub(exponent, beta)?;
        let slope = c.un("Exp", exponent)?;
        let by_x = c.mul(dy, slope)?;
        let by_x = c.reduced(by_x, x, a)?;
        Ok(vec![None, None, Some(Gradient::Dense(by_x))])
    }),
    ("polygamma", |c| {
        let (n, x, dy) = (c.x(0), c.x(1), c.dy()?);
        let next = c.add(n, c.num(1.0))?;
        let slope = c.bin("Polygamma", next, x)?;
        let by_x = c.mul(dy, slope)?;
        c.reduced_pair(None, Some(by_x))
    }),
    ("zeta", |c| {
        let (x, q, dy) = (c.x(0), c.x(1), c.dy()?);
        let next = c.add(x, c.num(1.0))?;
        let zeta = c.bin("Zeta", next, q)?;
        let slope = c.mul(x, zeta)?;
        let by_q = c.mul(dy, slope)?;
        let by_q = c.neg(by_q)?;
        c.reduced_pair(None, Some(by_q))
    }),
    ("next_after", |c| {
        let (towards, dy) = (c.x(1), c.dy()?);
        let zeros = c.un("ZerosLike", towards)?;
        c.reduced_pair(Some(dy), Some(zeros))
    }),
    ("clip_by_value", clipped),
    ("maximum", |c| chosen(c, "GreaterEqual")),
    ("minimum", |c| chosen(c, "LessEqual")),
    ("squared_difference", |c| {
        let (x, y, dy) = (c.x(0), c.x(1), c.dy()?);
        let twice = c.mul(dy, c.num(2.0))?;
        let difference = c.sub(x, y)?;
        let by_x = c.mul(twice, difference)?;
        let by_y = c.neg(by_x)?;
        c.reduced_pair(Some(by_x), Some(by_y))
    }),
    ("atan2", |c| {
        let (y, x, dz) = (c.x(0), c.x(1), c.dy()?);
        let (squares_x, squares_y) = (c.un("Square", x)?, c.un("Square", y)?);
        let squares = c.add(squares_x, squares_y)?;
        let share = c.div(dz, squares)?;
        let by_y = c.mul(x, share)?;
        let negative = c.neg(y)?;
        let by_x = c.mul(negative, share)?;
        c.reduced_pair(Some(by_y), Some(by_x))
    }),
    ("xdivy", |c| {
        let (x, y) = (c.x(0), c.x(1));
        let negative = c.neg(x)?;
        let square = c.un("Square", y)?;
        let by_y = c.bin("Xdivy", negative, square)?;
        where_x_is_not_zero(c, "Xdivy", by_y)
    }),
    ("xlogy", |c| {
        let (x, y) = (c.x(0), c.x(1));
        let by_y = c.bin("Xdivy", x, y)?;
        where_x_is_not_zero(c, "Xlogy", by_y)
    }),
    ("xlog1py", |c| {
        let (x, y) = (c.x(0), c.x(1));
        let sum = c.add(y, c.num(1.0))?;
        let by_y = c.bin("Xdivy", x, sum)?;
        where_x_is_not_zero(c, "Xlog1py", by_y)
    }),
    ("select", |c| {
        let (condition, dy) = (c.x(0), c.dy()?);
        let zeros = c.un("ZerosLike", dy)?;
        let by_t = c.op("Select").input(condition).input(dy).input(zeros).build()?;
        let by_e = c.op("Select").input(condition).input(zeros).input(dy).build()?;
        Ok(vec![None, Some(Gradient::Dense(by_t)), Some(Gradient::Dense(by_e))])
    }),
    ("select_v2", |c| {
        let (condition, t, e, y, dy) = (c.x(0), c.x(1), c.x(2), c.y(0), c.dy()?);
        let by_t = c.select(condition, dy, c.num(0.0))?;
        let by_t = c.reduced(by_t, t, y)?;
        let by_e = c.select(condition, c.num(0.0), dy)?;
        let by_e = c.reduced(by_e, e, y)?;
        Ok(vec![None, Some(Gradient::Dense(by_t)), Some(Gradient::Dense(by_e))])
    }),
    ("complex", |c| {
        let (dy, part) = (c.dy()?, c.t());
        let [re, im] = ["Real", "Imag"].map(|op| Ok::<_, Stop>(c.op(op).input(dy).attr("Tout", part).build()?));
        c.reduced_pair(Some(re?), Some(im?))
    }),
    ("cast", |c| {
        let (from, to) = (c.dtype(c.x(0)), c.node.outputs[0].dtype);
        if !from.is_differentiable() || !to.is_differentiable() {
            return Ok(Vec::new());
        }
        let dy = c.dy()?;
        one(c.cast(dy, from)?)
    }),
];

/// The two inputs; of complex numbers, their conjugates.
fn conjugates(c: &mut Call) -> Result<[Output; 2], Stop> {
    let (x, y) = (c.x(0), c.x(1));
    Ok([c.conj(x)?, c.conj(y)?])
}

fn quotient(c: &mut Call, division: &str) -> Grads {
    let ([x, y], dz) = (conjugates(c)?, c.dy()?);
    let by_x = c.bin(division, dz, y)?;
    let negative = c.neg(x)?;
    let once = c.bin(division, negative, y)?;
    let twice = c.bin(division, once, y)?;
    let by_y = c.mul(dz, twice)?;
    c.reduced_pair(Some(by_x), Some(by_y))
}

fn power(c: &mut Call) -> Grads {
    let is_complex = c.t().is_complex();
    let ([x, y], z, dz) = (conjugates(c)?, c.y(0), c.dy()?);
    let z = c.conj(z)?;
    let less = c.sub(y, c.num(1.0))?;
    let lower = c.bin("Pow", x, less)?;
    let slope = c.mul(dz, y)?;
    let by_x = c.mul(slope, lower)?;
    // The logarithm of a non-positive number, or of the complex zero, counts as zero, and no gradient of it may be NaN.
    let is_positive = c.bin(if is_complex { "NotEqual" } else { "Greater" }, x, c.num(0.0))?;
    let safe = c.select(is_positive, x, c.num(1.0))?;
    let log = c.un("Log", safe)?;
    let zeros = c.un("ZerosLike", x)?;
    let log = c.select(is_positive, log, zeros)?;
    let slope = c.mul(dz, z)?;
    let by_y = c.mul(slope, log)?;
    c.reduced_pair(Some(by_x), Some(by_y))
}

/// For the greater or lesser of two: the gradient goes to the one for which `comparison` holds.
fn chosen(c: &mut Call, comparison: &str) -> Grads {
    let (x, y, dz) = (c.x(0), c.x(1), c.dy()?);
    let is_x = c.bin(comparison, x, y)?;
    let by_x = c.select(is_x, dz, c.num(0.0))?;
    let by_y = c.select(is_x, c.num(0.0), dz)?;
    c.reduced_pair(Some(by_x), Some(by_y))
}

/// The gradients of elements below or above the limits go to the limits.
fn clipped(c: &mut Call) -> Grads {
    let (x, least, most, dy) = (c.x(0), c.x(1), c.x(2), c.dy()?);
    let (is_below, is_above) = (c.bin("Less", x, least)?, c.bin("Greater", x, most)?);
    let is_beyond = c.bin("LogicalOr", is_below, is_above)?;
    let by_x = c.select(is_beyond, c.num(0.0), dy)?;
    let by_least = c.select(is_below, dy, c.num(0.0))?;
    let by_most = c.select(is_above, dy, c.num(0.0))?;
    all([c.reduced(by_x, x, least)?, c.reduced(by_least, least, x)?, c.reduced(by_most, most, x)?])
}

/// For an op that is zero where x is, and otherwise `x f(y)`: with respect to x it is `f(y)` where x is not zero.
fn where_x_is_not_zero(c: &mut Call, op: &str, derivative_by_y: Output) -> Grads {
    let (x, y, dz, dtype) = (c.x(0), c.x(1), c.dy()?, c.t());
    let is_not_zero = c.bin("NotEqual", x, c.num(0.0))?;
    let one_or_zero = c.cast(is_not_zero, dtype)?;
    let derivative = c.bin(op, one_or_zero, y)?;
    let by_x = c.mul(derivative, dz)?;
    let by_y = c.mul(derivative_by_y, dz)?;
    c.reduced_pair(Some(by_x), Some(by_y))
}
