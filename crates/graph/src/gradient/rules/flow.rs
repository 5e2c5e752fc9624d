//! Gradients of ops that pass values on: identities, reads of variables, the branches of conditionals.

use super::{Rule, Stop};
use crate::gradient::Gradient;
use crate::gradient::call::{Call, Grads, none, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("identity", |c| Ok(vec![c.gradient(0)])),
    ("identity_n", |c| Ok((0..c.node.outputs.len()).map(|port| c.gradient(port)).collect())),
    ("check_numerics", |c| {
        let given = c.node.attrs.str("message").unwrap_or("").to_owned();
        let message = format!("Not a number (NaN) or infinity (Inf) values detected in gradient. {given}");
        let dy = c.dy()?;
        one(c.op(c.node.op.name).input(dy).attr("message", message).build()?)
    }),
    ("prevent_gradient", |c| Err(Stop::Prevented(c.node.attrs.str("message").unwrap_or("").to_owned()))),
    ("switch", |c| {
        let (off, on) = (c.d(0)?, c.d(1)?);
        one(c.op("Merge").name("cond_grad").input(off).input(on).build()?)
    }),
    ("merge", merge),
    // The walk itself handles loops.
    ("loop", |_| Err(Stop::Loop)),
    ("stack_pop_v2", |_| Err(Stop::Unsupported("needs exactly one push and one pop for each stack".to_owned()))),
    ("stack_push_v2", |c| Ok(vec![None, c.gradient(0)])),
    ("fill", |c| {
        let dy = c.dy()?;
        let flat = c.reshape(dy, [-1])?;
        let sum = c.sum(flat, [0], false)?;
        Ok(vec![None, Some(Gradient::Dense(sum))])
    }),
];

/// The gradient goes to the input that arrived, by a Switch of the conditional that the Merge ends.
fn merge(c: &mut Call) -> Grads {
    let inputs = c.node.inputs.clone();
    let [first, second] = inputs[..] else {
        return Err(Stop::Unsupported(format!("is supported for two inputs, not {}", inputs.len())));
    };
    if c.gradient(0).is_none() {
        return none();
    }
    let (on_first, on_second) = (c.arrival(first), c.arrival(second));
    let (predicate, port) = match (&on_first, &on_second) {
        (Some(first), Some(second)) if first.port == second.port => {
            return Err(Stop::Unsupported(
                "needs its inputs to come from the two branches of one conditional".to_owned(),
            ));
        }
        (Some(first), _) => (first.predicate, first.port),
        (None, Some(second)) => (second.predicate, 1 - second.port),
        (None, None) => return Err(Stop::Unsupported("needs a conditional that its inputs come from".to_owned())),
    };
    let dy = c.dy()?;
    let switch = c.op("Switch").name("cond_grad").input(dy).input(predicate).build()?;
    Ok(vec![Some(Gradient::Dense(switch.port(port))), Some(Gradient::Dense(switch.port(1 - port)))])
}
