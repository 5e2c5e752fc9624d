//! Gradients of losses, and of the bias that is added before them.

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, all, one, some};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("softmax_cross_entropy_with_logits", |c| {
        let logits = c.x(0);
        let by_logits = by_logits(c)?;
        let log = c.un("LogSoftmax", logits)?;
        let negative = c.neg(log)?;
        let by_labels = by_row(c, negative)?;
        all([by_logits, by_labels])
    }),
    ("sparse_softmax_cross_entropy_with_logits", |c| {
        let by_logits = by_logits(c)?;
        some([Some(by_logits), None])
    }),
    ("ctc_loss", |c| {
        let slope = c.y(1);
        let why = "Currently there is no way to take the second derivative of ctc_loss due to the fused implementation's \
                       interaction with tf.gradients()";
        let slope = c.op("PreventGradient").input(slope).attr("message", why).build()?;
        one(by_row(c, slope)?)
    }),
    ("l2_loss", |c| {
        let (x, dy) = (c.x(0), c.dy()?);
        one(c.mul(x, dy)?)
    }),
    ("bias_add", |c| {
        let dy = c.dy()?;
        all([dy, c.with_attrs("BiasAddGrad", &[dy], &["data_format"])?])
    }),
    ("bias_add_v1", |c| {
        let dy = c.dy()?;
        all([dy, c.un("BiasAddGrad", dy)?])
    }),
    ("bias_add_grad", |c| {
        let (x, dz) = (c.x(0), c.dy()?);
        let shape = c.shape(x)?;
        if c.node.attrs.str("data_format").is_ok_and(|format| format == "NCHW") {
            // The channels are the second axis: the bias varies along it, and is broadcast along all that follow.
            let after = c.part(shape, 2, None)?;
            let ones = c.un("OnesLike", after)?;
            let channels = c.shape_of_added(dz)?;
            let bias_shape = c.concat([channels, ones], 0)?;
            let bias = c.reshape(dz, bias_shape)?;
            return one(c.bin("BroadcastTo", bias, shape)?);
        }
        one(c.bin("BroadcastTo", dz, shape)?)
    }),
];

/// The gradient of each row's loss times the row of a matrix.
fn by_row(c: &mut Call, matrix: Output) -> Added {
    let losses = c.d(0)?;
    let column = c.op("ExpandDims").input(losses).input(-1).build()?;
    c.mul(column, matrix)
}

/// With respect to the logits, whose gradient is already the second output; that output itself depends on the softmax.
fn by_logits(c: &mut Call) -> Added {
    let (logits, slope) = (c.x(0), c.y(1));
    let by_loss = by_row(c, slope)?;
    let Some(of_slope) = c.given(1)? else { return Ok(by_loss) };
    let softmax = c.un("Softmax", logits)?;
    let product = c.mul(of_slope, softmax)?;
    let sum = c.sum(product, [1], true)?;
    let difference = c.sub(of_slope, sum)?;
    let by_slope = c.mul(difference, softmax)?;
    c.add(by_loss, by_slope)
}
