//! Gradients of running sums and products.

use half::f16;
use meshtf_tensor::DType;

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("cumsum", |c| {
        let dy = c.dy()?;
        one(running_back(c, dy)?)
    }),
    ("cumprod", |c| {
        let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
        let product = c.mul(y, dy)?;
        let sums = running_back(c, product)?;
        one(c.bin("DivNoNan", sums, x)?)
    }),
    ("cumulative_logsumexp", |c| {
        // A negative gradient has no logarithm: the negative part is handled separately.
        let dy = c.dy()?;
        let negative = c.neg(dy)?;
        let rising = log_sums_back(c, dy)?;
        let falling = log_sums_back(c, negative)?;
        one(c.sub(rising, falling)?)
    }),
];

/// The part of the result that the positive elements of a gradient contribute, summed as logarithms.
fn log_sums_back(c: &mut Call, dy: Output) -> Added {
    let (x, axis, y, exclusive, reverse) = (c.x(0), c.x(1), c.y(0), c.flag("exclusive"), c.flag("reverse"));
    let is_positive = c.bin("Greater", dy, c.num(0.0))?;
    let log = c.un("Log", dy)?;
    // Its exponential is zero, and it can be subtracted from itself, as the gradient of this does.
    let lowest = if c.t() == DType::F16 { f64::from(f16::MIN) } else { f64::from(f32::MIN) };
    let log = c.select(is_positive, log, c.num(lowest))?;
    let share = c.sub(log, y)?;
    let sums = c.op("CumulativeLogsumexp").input(share).input(axis);
    let sums = sums.attr("exclusive", exclusive).attr("reverse", !reverse).build()?;
    let sums = c.add(sums, x)?;
    c.un("Exp", sums)
}

/// The running sum in the other direction.
fn running_back(c: &mut Call, of: Output) -> Added {
    let (axis, exclusive, reverse) = (c.x(1), c.flag("exclusive"), c.flag("reverse"));
    Ok(c.op("Cumsum").input(of).input(axis).attr("exclusive", exclusive).attr("reverse", !reverse).build()?)
}
