//! Updates by a sparse gradient: its rows update the rows of the variable that `indices` names, in that order. A row
//! named twice is updated twice.

use super::*;
use crate::exec::kernel::update;
use crate::tensor::Ring;

pub(super) fn update(node: &KernelNode, op: &str) -> Result<Option<Update>> {
    let nesterov = flag(node, "use_nesterov", false)?;
    let update_slots = flag(node, "update_slots", true)?;
    let by_lr = flag(node, "multiply_linear_by_lr", false)?;
    let roles = Roles::of(node)?;
    with_dtype(node, |dtype| {
        with_float!(dtype, T => Some(match op {
            "SparseApplyProximalGradientDescent" => sparse(roles, |r: [T; 3]| Ok(proximal_gradient_descent(r))),
            "SparseApplyMomentum" => sparse(roles, move |r: [T; 2]| Ok(momentum(r, nesterov))),
            "SparseApplyKerasMomentum" => sparse(roles, move |r: [T; 2]| Ok(keras_momentum(r, nesterov))),
            "SparseApplyAdagrad" => sparse(roles, move |r: [T; 1]| Ok(adagrad(r, update_slots))),
            "SparseApplyAdagradV2" => sparse(roles, move |r: [T; 2]| Ok(adagrad_v2(r, update_slots))),
            "SparseApplyAdagradDA" => sparse(roles, |r: [T; 4]| Ok(adagrad_da_rule(r))),
            "SparseApplyProximalAdagrad" => sparse(roles, |r: [T; 3]| Ok(proximal_adagrad(r))),
            "SparseApplyAdadelta" => sparse(roles, |r: [T; 3]| Ok(adadelta(r))),
            "SparseApplyRMSProp" => sparse(roles, |r: [T; 4]| Ok(rms_prop(r))),
            "SparseApplyCenteredRMSProp" => sparse(roles, |r: [T; 4]| Ok(centered_rms_prop(r))),
            "SparseApplyFtrl" => sparse(roles, move |[lr, l1, l2, power]: [T; 4]| {
                ftrl([lr, l1, l2, T::ZERO, power], by_lr)
            }),
            "SparseApplyFtrlV2" => sparse(roles, move |r: [T; 5]| ftrl(r, by_lr)),
            _ => return None,
        }))
        .flatten()
    })
}

/// Wraps a rule for one element, which `with_rates` makes of the rates, in the checks of every sparse update.
fn sparse<T: Float, R: Fn([&mut T; V], T), const V: usize, const S: usize>(
    roles: Roles,
    with_rates: impl Fn([T; S]) -> Result<R> + Send + 'static,
) -> Update {
    Update::new(V, move |variables, rest| {
        let rule = with_rates(roles.rates(rest)?)?;
        let grad = roles.grad(rest)?;
        let indices = input(rest, roles.indices.unwrap_or(usize::MAX), "indices")?;
        let rows = check_rows(variables, grad, indices)?;
        let mut slots: [&mut [T]; V] = update::slots(variables, &roles.variables)?;
        let grad = grad.slice::<T>()?;
        let width = grad.len().checked_div(rows.len()).unwrap_or(0);
        for (i, row) in rows.into_iter().enumerate() {
            for (j, &g) in grad[i * width..][..width].iter().enumerate() {
                rule(slots.each_mut().map(|slot| &mut slot[row * width + j]), g);
            }
        }
        Ok(())
    })
}

/// The rows that `indices` names. Checks them, and that `grad` has one row for each.
fn check_rows(variables: &[Tensor], grad: &Tensor, indices: &Tensor) -> Result<Vec<usize>> {
    let Some(var) = variables.first() else { return Err(Failure::invalid("no variable to update")) };
    if var.rank() == 0 {
        return Err(Failure::invalid("var must be at least 1 dimensional"));
    }
    if indices.rank() != 1 {
        return Err(Failure::invalid(format!("indices must be one-dimensional, got shape {}", indices.shape())));
    }
    if grad.dims().first() != indices.dims().first() {
        return Err(Failure::invalid(format!(
            "grad must be the same size as indices in the first dimension: grad is {}, indices {}",
            grad.shape(),
            indices.shape()
        )));
    }
    if grad.dims()[1..] != var.dims()[1..] {
        return Err(Failure::invalid(format!(
            "var and grad must match in every dimension but the first: {} and {}",
            var.shape(),
            grad.shape()
        )));
    }
    let limit = var.dims()[0];
    let check = |(i, index): (usize, i64)| {
        usize::try_from(index).ok().filter(|&row| row < limit).ok_or_else(|| {
            Failure::invalid(format!("Index {index} at offset {i} in indices is out of range [0, {limit})"))
        })
    };
    indices.to_i64s()?.into_iter().enumerate().map(check).collect()
}

fn proximal_gradient_descent<T: Float>([lr, l1, l2]: [T; 3]) -> impl Fn([&mut T; 1], T) {
    move |[var], g| *var = proximal(*var - g * lr, lr, l1, l2)
}

fn momentum<T: Float>([lr, momentum]: [T; 2], nesterov: bool) -> impl Fn([&mut T; 2], T) {
    move |[var, accum], g| {
        *accum = *accum * momentum + g;
        *var = *var - if nesterov { g * lr + *accum * momentum * lr } else { *accum * lr };
    }
}

fn keras_momentum<T: Float>([lr, momentum]: [T; 2], nesterov: bool) -> impl Fn([&mut T; 2], T) {
    move |[var, accum], g| {
        *accum = *accum * momentum - g * lr;
        *var = *var + if nesterov { *accum * momentum - g * lr } else { *accum };
    }
}

fn adagrad<T: Float>([lr]: [T; 1], update_slots: bool) -> impl Fn([&mut T; 2], T) {
    move |[var, accum], g| {
        if update_slots {
            *accum = *accum + g * g;
        }
        *var = *var - g * lr * rsqrt(*accum);
    }
}

fn adagrad_v2<T: Float>([lr, epsilon]: [T; 2], update_slots: bool) -> impl Fn([&mut T; 2], T) {
    move |[var, accum], g| {
        if update_slots {
            *accum = *accum + g * g;
        }
        *var = *var - g * lr / (sqrt(*accum) + epsilon);
    }
}

fn proximal_adagrad<T: Float>([lr, l1, l2]: [T; 3]) -> impl Fn([&mut T; 2], T) {
    move |[var, accum], g| {
        *accum = *accum + g * g;
        let rate = lr * rsqrt(*accum);
        *var = proximal(*var - g * rate, rate, l1, l2);
    }
}

fn adadelta<T: Float>([lr, rho, epsilon]: [T; 3]) -> impl Fn([&mut T; 3], T) {
    move |[var, accum, accum_update], g| {
        *accum = *accum * rho + g * g * (T::ONE - rho);
        let update = sqrt(*accum_update + epsilon) * rsqrt(*accum + epsilon) * g;
        *var = *var - update * lr;
        *accum_update = *accum_update * rho + update * update * (T::ONE - rho);
    }
}

fn rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Fn([&mut T; 3], T) {
    move |[var, ms, mom], g| {
        *ms = *ms * rho + g * g * (T::ONE - rho);
        *mom = *mom * momentum + rsqrt(*ms + epsilon) * lr * g;
        *var = *var - *mom;
    }
}

fn centered_rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Fn([&mut T; 4], T) {
    move |[var, mg, ms, mom], g| {
        *ms = *ms * rho + g * g * (T::ONE - rho);
        *mg = g * (T::ONE - rho) + *mg * rho;
        let variance = *ms + epsilon - *mg * *mg;
        *mom = *mom * momentum + rsqrt(variance) * lr * g;
        *var = *var - *mom;
    }
}

fn ftrl<T: Float>(rates: [T; 5], by_lr: bool) -> Result<impl Fn([&mut T; 3], T)> {
    check_ftrl(rates, by_lr)?;
    Ok(ftrl_rule(rates, by_lr))
}
