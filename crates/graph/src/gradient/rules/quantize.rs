//! Gradients of simulated quantization: as if the numbers had not been rounded.

use super::Rule;
use crate::gradient::call::{Call, Grads, all, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("quantize_and_dequantize", |c| one(c.dy()?)),
    ("quantize_and_dequantize_v4", |c| {
        let inputs = [c.dy()?, c.x(0), c.x(1), c.x(2)];
        let node = c.with_attrs("QuantizeAndDequantizeV4Grad", &inputs, &["axis"])?;
        all([node, node.port(1), node.port(2)])
    }),
    ("fake_quant_with_min_max_args", |c| {
        let inputs = [c.dy()?, c.x(0)];
        one(c.with_attrs("FakeQuantWithMinMaxArgsGradient", &inputs, &["min", "max", "num_bits", "narrow_range"])?)
    }),
    ("fake_quant_with_min_max_vars", |c| given(c, "FakeQuantWithMinMaxVarsGradient")),
    ("fake_quant_with_min_max_vars_per_channel", |c| given(c, "FakeQuantWithMinMaxVarsPerChannelGradient")),
];

/// The ends of the range have gradients, too.
fn given(c: &mut Call, op: &str) -> Grads {
    let inputs = [c.dy()?, c.x(0), c.x(1), c.x(2)];
    let node = c.with_attrs(op, &inputs, &["num_bits", "narrow_range"])?;
    all([node, node.port(1), node.port(2)])
}
