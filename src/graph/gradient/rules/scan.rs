//! Running sums and products.

use super::Rule;
use crate::graph::Output;
use crate::graph::gradient::call::{Added, Call, one};

pub(super) fn named(op: &str) -> Option<Rule> {
    Some(match op {
        "Cumsum" => |c| {
            let dy = c.dy()?;
            one(running_back(c, dy)?)
        },
        "Cumprod" => |c| {
            let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
            let product = c.mul(y, dy)?;
            let sums = running_back(c, product)?;
            one(c.bin("DivNoNan", sums, x)?)
        },
        _ => return None,
    })
}

/// The running sum in the other direction.
fn running_back(c: &mut Call, of: Output) -> Added {
    let (axis, exclusive, reverse) = (c.x(1), c.flag("exclusive"), c.flag("reverse"));
    Ok(c.op("Cumsum").input(of).input(axis).attr("exclusive", exclusive).attr("reverse", !reverse).build()?)
}
