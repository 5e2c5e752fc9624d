//! Updates of variables on a GPU, so that neither they nor their gradients leave it.
//!
//! A kernel takes the variables' values and then the op's other inputs, and returns the new values. The rates lie on
//! the host, as single numbers do. On a CPU, the host updates in one pass, for which burn needs several.

use super::Body;
use super::array::{Array, Site, host_scalar};
use super::memory::Backing;
use crate::exec::engine::{EngineOutcome, Values};
use crate::exec::kernel::KernelNode;
use crate::failure::Result;

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if !B::REMOTE {
        return Ok(None);
    }
    let nesterov = node.attrs.bool("use_nesterov").unwrap_or(false);
    Ok(Some(match node.op {
        "AssignAdd" | "AssignAddVariableOp" => update(|[var]: [Array<B>; 1], value, []| [add(var, value)]),
        "AssignSub" | "AssignSubVariableOp" => update(|[var]: [Array<B>; 1], value, []| [sub(var, value)]),
        "ApplyGradientDescent" | "ResourceApplyGradientDescent" => {
            update(|[var]: [Array<B>; 1], delta, [alpha]| [sub(var, scale(delta, alpha))])
        }
        "ApplyMomentum" | "ResourceApplyMomentum" => {
            update(move |[var, accum]: [Array<B>; 2], grad: Array<B>, [lr, momentum]| {
                let accum = add(scale(accum, momentum), grad.clone());
                let step = if nesterov { add(grad, scale(accum.clone(), momentum)) } else { accum.clone() };
                [sub(var, scale(step, lr)), accum]
            })
        }
        "ApplyAdam" | "ResourceApplyAdam" => update(
            move |[var, m, v]: [Array<B>; 3], grad: Array<B>, [beta1_power, beta2_power, lr, beta1, beta2, epsilon]| {
                let m = add(m.clone(), scale(sub(grad.clone(), m), 1.0 - beta1));
                let square = grad.clone().map(|raw| B::float_mul(raw.clone(), raw));
                let v = add(v.clone(), scale(sub(square, v), 1.0 - beta2));
                let along = if nesterov { add(scale(grad, 1.0 - beta1), scale(m.clone(), beta1)) } else { m.clone() };
                let alpha = lr * (1.0 - beta2_power).sqrt() / (1.0 - beta1_power);
                let below = v.clone().map(|raw| B::float_add_scalar(B::float_sqrt(raw), epsilon.into()));
                let step = scale(along, alpha).map(|raw| B::float_div(raw, below.raw));
                [sub(var, step), m, v]
            },
        ),
        _ => return Ok(None),
    }))
}

/// A kernel of `V` variables, `R` rates and one tensor of the variables' shape, which may stand among the rates. If the
/// variables are single numbers and so cannot be told from rates, the host updates them.
fn update<B: Backing, const V: usize, const R: usize>(
    rule: impl Fn([Array<B>; V], Array<B>, [f64; R]) -> [Array<B>; V] + Send + 'static,
) -> Body<B> {
    Box::new(move |site: &Site<B>, inputs: Values| {
        let shape = inputs[0].shape();
        let is_rate = |i: usize| R > 0 && host_scalar(&inputs[i]).is_some();
        let rates: Vec<f64> =
            (V..inputs.len()).filter(|&i| is_rate(i)).filter_map(|i| host_scalar(&inputs[i])).collect();
        let arrays: Vec<usize> = (0..inputs.len()).filter(|&i| i < V || !is_rate(i)).collect();
        let fits = shape.elements() != Some(1) && arrays.iter().all(|&i| inputs[i].shape() == shape);
        let (Ok(rates), true, true) = (<[f64; R]>::try_from(rates), fits, arrays.len() == V + 1) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let mut held = Vec::with_capacity(V + 1);
        for (i, value) in inputs.into_iter().enumerate() {
            if arrays.contains(&i) {
                held.push(site.array(value)?);
            }
        }
        let gradient = held.pop();
        let (Ok(variables), Some(gradient)) = (<[Array<B>; V]>::try_from(held), gradient) else {
            unreachable!("they were counted above");
        };
        Ok(EngineOutcome::Done(rule(variables, gradient, rates).into_iter().map(Array::value).collect()))
    })
}

fn add<B: Backing>(x: Array<B>, y: Array<B>) -> Array<B> {
    x.map(|raw| B::float_add(raw, y.raw))
}

fn sub<B: Backing>(x: Array<B>, y: Array<B>) -> Array<B> {
    x.map(|raw| B::float_sub(raw, y.raw))
}

fn scale<B: Backing>(x: Array<B>, by: f64) -> Array<B> {
    x.map(|raw| B::float_mul_scalar(raw, by.into()))
}
