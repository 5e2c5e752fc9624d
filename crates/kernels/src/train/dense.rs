//! Updates by a dense gradient, which has the variable's shape.

use meshtf_tensor::{Ring, with_complex};

use super::rules::*;
use super::slots::{Slots, change_all};
use super::*;
use crate::update;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_update(["ApplyGradientDescent", "ResourceApplyGradientDescent"], |node| {
        let dtype = node.attrs.dtype("T")?;
        if dtype.is_complex() {
            let roles = Roles::of(node)?;
            return Ok(with_complex!(dtype, T => complex_descent::<T>(roles)));
        }
        by_float!(node, |roles, T| dense(roles, gradient_descent::<T>))
    });
    ops.insert_update(["ApplyProximalGradientDescent", "ResourceApplyProximalGradientDescent"], |node| {
        by_float!(node, |roles, T| dense(roles, proximal_gradient_descent::<T>))
    });
    ops.insert_update(["ApplyMomentum", "ResourceApplyMomentum"], |node| {
        let nesterov = flag(node, "use_nesterov", false)?;
        by_float!(node, |roles, T| dense(roles, move |r: [T; 2]| momentum(r, nesterov)))
    });
    ops.insert_update(["ResourceApplyKerasMomentum"], |node| {
        let nesterov = flag(node, "use_nesterov", false)?;
        by_float!(node, |roles, T| dense(roles, move |r: [T; 2]| keras_momentum(r, nesterov)))
    });
    ops.insert_update(["ApplyAdagrad", "ResourceApplyAdagrad"], |node| {
        let update_slots = flag(node, "update_slots", true)?;
        by_float!(node, |roles, T| dense(roles, move |r: [T; 1]| adagrad(r, update_slots)))
    });
    ops.insert_update(["ApplyAdagradV2", "ResourceApplyAdagradV2"], |node| {
        let update_slots = flag(node, "update_slots", true)?;
        by_float!(node, |roles, T| dense(roles, move |r: [T; 2]| adagrad_v2(r, update_slots)))
    });
    ops.insert_update(["ApplyProximalAdagrad", "ResourceApplyProximalAdagrad"], |node| {
        by_float!(node, |roles, T| dense(roles, proximal_adagrad::<T>))
    });
    ops.insert_update(["ApplyAdagradDA", "ResourceApplyAdagradDA"], |node| {
        by_float!(node, |roles, T| dense(roles, adagrad_da::<T>))
    });
    ops.insert_update(["ApplyAdadelta", "ResourceApplyAdadelta"], |node| {
        by_float!(node, |roles, T| dense(roles, adadelta::<T>))
    });
    ops.insert_update(["ApplyAdam", "ResourceApplyAdam"], |node| {
        let nesterov = flag(node, "use_nesterov", false)?;
        by_float!(node, |roles, T| dense(roles, move |r: [T; 6]| adam(r, nesterov)))
    });
    ops.insert_update(["ResourceApplyAdamWithAmsgrad"], |node| {
        by_float!(node, |roles, T| dense(roles, adam_with_amsgrad::<T>))
    });
    ops.insert_update(["ApplyAdaMax", "ResourceApplyAdaMax"], |node| {
        by_float!(node, |roles, T| dense(roles, ada_max::<T>))
    });
    ops.insert_update(["ApplyRMSProp", "ResourceApplyRMSProp"], |node| {
        by_float!(node, |roles, T| dense(roles, rms_prop::<T>))
    });
    ops.insert_update(["ApplyCenteredRMSProp", "ResourceApplyCenteredRMSProp"], |node| {
        by_float!(node, |roles, T| dense(roles, centered_rms_prop::<T>))
    });
    ops.insert_update(["ApplyFtrl", "ResourceApplyFtrl"], |node| {
        let by_lr = flag(node, "multiply_linear_by_lr", false)?;
        by_float!(node, |roles, T| checked(roles, move |v, g: &[T], [lr, l1, l2, power]| {
            change_by_ftrl(v, g, [lr, l1, l2, T::ZERO, power], by_lr);
        }))
    });
    ops.insert_update(["ApplyFtrlV2", "ResourceApplyFtrlV2"], |node| {
        let by_lr = flag(node, "multiply_linear_by_lr", false)?;
        by_float!(node, |roles, T| checked(roles, move |v, g: &[T], r| change_by_ftrl(v, g, r, by_lr)))
    });
    ops.insert_update(["ApplyAddSign", "ResourceApplyAddSign"], |node| {
        by_float!(node, |roles, T| dense(roles, add_sign::<T>))
    });
    ops.insert_update(["ApplyPowerSign", "ResourceApplyPowerSign"], |node| {
        by_float!(node, |roles, T| dense(roles, power_sign::<T>))
    });
}

/// An update by the rule that `with_rates` returns for the rates.
fn dense<T: Float, R: Rule<T, V>, const V: usize, const S: usize>(
    roles: Roles,
    with_rates: impl Fn([T; S]) -> R + Send + 'static,
) -> Update
where
    for<'a> [&'a mut [T]; V]: Slots<T, V>,
{
    checked(roles, move |variables, grad, rates| change_all(variables, grad, with_rates(rates)))
}

/// Wraps `change(variables, gradient, rates)` in the checks that every dense update needs.
fn checked<T: Float, const V: usize, const S: usize>(
    roles: Roles,
    change: impl Fn([&mut [T]; V], &[T], [T; S]) + Send + 'static,
) -> Update {
    Update::new(V, move |variables, rest| {
        let rates = roles.rates(rest)?;
        let grad = roles.grad(rest)?;
        if let Some(var) = variables.first()
            && var.shape() != grad.shape()
        {
            return Err(Failure::invalid(format!(
                "{} and {} do not have the same shape {} {}",
                roles.variables[0],
                roles.grad.0,
                var.shape(),
                grad.shape()
            )));
        }
        change(update::slots(variables, &roles.variables)?, grad.slice()?, rates);
        Ok(())
    })
}

/// Gradient descent of complex variables.
fn complex_descent<T: Ring>(roles: Roles) -> Update {
    Update::new(1, move |variables, rest| {
        let (grad, rate) = (roles.grad(rest)?, input(rest, 0, "alpha")?);
        let [var] = variables else { return Err(Failure::invalid("expected one variable")) };
        if rate.rank() != 0 {
            return Err(Failure::invalid(format!("alpha is not a scalar: {}", rate.shape())));
        }
        if var.shape() != grad.shape() {
            let why = format!("var and delta do not have the same shape {} {}", var.shape(), grad.shape());
            return Err(Failure::invalid(why));
        }
        let rate = rate.item::<T>()?;
        let grad = grad.slice::<T>()?;
        var.slice_mut::<T>()?.iter_mut().zip(grad).for_each(|(var, &g)| *var = var.sub(g.mul(rate)));
        Ok(())
    })
}

#[inline]
fn change_by_ftrl<T: Float>(variables: [&mut [T]; 3], grad: &[T], rates: [T; 5], by_lr: bool) {
    if takes_roots(rates) {
        change_all(variables, grad, ftrl::<T, true>(rates, by_lr));
    } else {
        change_all(variables, grad, ftrl::<T, false>(rates, by_lr));
    }
}
