//! Gradients of simulated quantization: as if the numbers had not been rounded.

use super::Rule;
use crate::gradient::call::{Call, Grads, all, one};

pub(super) fn named(op: &str) -> Option<Rule> {
    Some(match op {
        "QuantizeAndDequantize" | "QuantizeAndDequantizeV2" | "QuantizeAndDequantizeV3" => |c| one(c.dy()?),
        "FakeQuantWithMinMaxArgs" => |c| {
            let inputs = [c.dy()?, c.x(0)];
            one(c.with_attrs(
                "FakeQuantWithMinMaxArgsGradient",
                &inputs,
                &["min", "max", "num_bits", "narrow_range"],
            )?)
        },
        "FakeQuantWithMinMaxVars" => |c| given(c, "FakeQuantWithMinMaxVarsGradient"),
        "FakeQuantWithMinMaxVarsPerChannel" => |c| given(c, "FakeQuantWithMinMaxVarsPerChannelGradient"),
        _ => return None,
    })
}

/// The ends of the range have gradients, too.
fn given(c: &mut Call, op: &str) -> Grads {
    let inputs = [c.dy()?, c.x(0), c.x(1), c.x(2)];
    let node = c.with_attrs(op, &inputs, &["num_bits", "narrow_range"])?;
    all([node, node.port(1), node.port(2)])
}
