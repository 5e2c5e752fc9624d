//! Gradients of normalisations: over the batch, and over neighbouring channels.

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, all, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("lrn", |c| {
        let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
        one(c.with_attrs("LRNGrad", &[dy, x, y], &["depth_radius", "bias", "alpha", "beta"])?)
    }),
    ("fused_batch_norm", |c| batch_norm(c, "FusedBatchNormGrad", 2)),
    ("fused_batch_norm_v2", |c| batch_norm(c, "FusedBatchNormGradV2", 2)),
    ("fused_batch_norm_v3", |c| batch_norm(c, "FusedBatchNormGradV3", 3)),
];

fn batch_norm(c: &mut Call, op: &str, reserved: u32) -> Grads {
    let (x, scale, dy) = (c.x(0), c.x(1), c.dy()?);
    let is_training = c.flag("is_training");
    let format = c.node.attrs.str("data_format").unwrap_or("NHWC").to_owned();
    if is_training {
        let mut inputs = vec![dy, x, scale];
        inputs.extend((0..reserved).map(|i| c.y(3 + i)));
        let node = c.with_attrs(op, &inputs, &["epsilon", "data_format", "is_training"])?;
        return all([node, node.port(1), node.port(2)]);
    }
    // With the mean and variance given, the gradient is computed with the channels last.
    let (last, first, channels_last): (&[i32], &[i32], &str) = match format.as_str() {
        "NCHW" => (&[0, 2, 3, 1], &[0, 3, 1, 2], "NHWC"),
        "NCDHW" => (&[0, 2, 3, 4, 1], &[0, 4, 1, 2, 3], "NDHWC"),
        "NDHWC" => (&[], &[], "NDHWC"),
        _ => (&[], &[], "NHWC"),
    };
    let (mean, variance) = (c.x(3), c.x(4));
    let (x, dy) = (turned(c, x, last)?, turned(c, dy, last)?);
    let mut inputs = vec![dy, x, scale, mean, variance];
    inputs.extend((2..reserved).map(|i| c.y(3 + i)));
    let epsilon = c.attr("epsilon");
    let node = c.op(op).inputs(inputs).attr("epsilon", epsilon).attr("data_format", channels_last);
    let node = node.attr("is_training", false).build()?;
    let by_x = turned(c, node, first)?;
    all([by_x, node.port(1), node.port(2)])
}

/// A tensor with its axes in another order; unchanged if no order is given.
fn turned(c: &mut Call, x: Output, order: &[i32]) -> Added {
    if order.is_empty() { Ok(x) } else { c.bin("Transpose", x, order) }
}
