//! Updates by a dense gradient, one function per optimizer.

use super::*;
use crate::exec::kernel::update;
use crate::exec::lots::{in_lots, lot};
use crate::exec::vector::{Work, widest};
use crate::tensor::{Ring, with_complex};

type Slots<'a, T, const V: usize> = [&'a mut [T]; V];

pub(super) fn update(node: &KernelNode, op: &str) -> Result<Option<Update>> {
    let nesterov = flag(node, "use_nesterov", false)?;
    let update_slots = flag(node, "update_slots", true)?;
    let by_lr = flag(node, "multiply_linear_by_lr", false)?;
    let roles = Roles::of(node)?;
    with_dtype(node, |dtype| {
        if op == "ApplyGradientDescent" && dtype.is_complex() {
            return with_complex!(dtype, T => complex_descent::<T>(roles));
        }
        with_float!(dtype, T => Some(match op {
            "ApplyGradientDescent" => dense(roles, |v, g: &[T], r| gradient_descent(v, g, r)),
            "ApplyProximalGradientDescent" => dense(roles, |v, g: &[T], r| proximal_gradient_descent(v, g, r)),
            "ApplyMomentum" => dense(roles, move |v, g: &[T], r| momentum(v, g, r, nesterov)),
            "ApplyKerasMomentum" => dense(roles, move |v, g: &[T], r| keras_momentum(v, g, r, nesterov)),
            "ApplyAdagrad" => dense(roles, move |v, g: &[T], r| adagrad(v, g, r, update_slots)),
            "ApplyAdagradV2" => dense(roles, move |v, g: &[T], r| adagrad_v2(v, g, r, update_slots)),
            "ApplyProximalAdagrad" => dense(roles, |v, g: &[T], r| proximal_adagrad(v, g, r)),
            "ApplyAdagradDA" => dense(roles, |v, g: &[T], r| adagrad_da(v, g, r)),
            "ApplyAdadelta" => dense(roles, |v, g: &[T], r| adadelta(v, g, r)),
            "ApplyAdam" => dense(roles, move |v, g: &[T], r| adam(v, g, r, nesterov)),
            "ApplyAdamWithAmsgrad" => dense(roles, |v, g: &[T], r| adam_with_amsgrad(v, g, r)),
            "ApplyAdaMax" => dense(roles, |v, g: &[T], r| ada_max(v, g, r)),
            "ApplyRMSProp" => dense(roles, |v, g: &[T], r| rms_prop(v, g, r)),
            "ApplyCenteredRMSProp" => dense(roles, |v, g: &[T], r| centered_rms_prop(v, g, r)),
            "ApplyFtrl" => dense(roles, move |v, g: &[T], [lr, l1, l2, power]| {
                ftrl(v, g, [lr, l1, l2, T::ZERO, power], by_lr)
            }),
            "ApplyFtrlV2" => dense(roles, move |v, g: &[T], r| ftrl(v, g, r, by_lr)),
            "ApplyAddSign" => dense(roles, |v, g: &[T], r| add_sign(v, g, r)),
            "ApplyPowerSign" => dense(roles, |v, g: &[T], r| power_sign(v, g, r)),
            _ => return None,
        }))
        .flatten()
    })
}

/// Wraps `rule(variables, gradient, rates)` in the checks that every dense update needs.
fn dense<T: Float, const V: usize, const S: usize>(
    roles: Roles,
    rule: impl Fn(Slots<T, V>, &[T], [T; S]) + Send + 'static,
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
        rule(update::slots(variables, &roles.variables)?, grad.slice()?, rates);
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

fn gradient_descent<T: Float>([var]: Slots<T, 1>, grad: &[T], [lr]: [T; 1]) {
    for (var, &g) in var.iter_mut().zip(grad) {
        *var = *var - g * lr;
    }
}

fn proximal_gradient_descent<T: Float>([var]: Slots<T, 1>, grad: &[T], [lr, l1, l2]: [T; 3]) {
    for (var, &g) in var.iter_mut().zip(grad) {
        *var = proximal(*var - g * lr, lr, l1, l2);
    }
}

fn momentum<T: Float>([var, accum]: Slots<T, 2>, grad: &[T], [lr, momentum]: [T; 2], nesterov: bool) {
    for ((var, accum), &g) in var.iter_mut().zip(accum).zip(grad) {
        *accum = *accum * momentum + g;
        *var = *var - if nesterov { g * lr + *accum * momentum * lr } else { *accum * lr };
    }
}

fn keras_momentum<T: Float>([var, accum]: Slots<T, 2>, grad: &[T], [lr, momentum]: [T; 2], nesterov: bool) {
    for ((var, accum), &g) in var.iter_mut().zip(accum).zip(grad) {
        *accum = *accum * momentum - g * lr;
        *var = *var + if nesterov { *accum * momentum - g * lr } else { *accum };
    }
}

fn adagrad<T: Float>([var, accum]: Slots<T, 2>, grad: &[T], [lr]: [T; 1], update_slots: bool) {
    for ((var, accum), &g) in var.iter_mut().zip(accum).zip(grad) {
        if update_slots {
            *accum = *accum + g * g;
        }
        *var = *var - g * lr * rsqrt(*accum);
    }
}

fn adagrad_v2<T: Float>([var, accum]: Slots<T, 2>, grad: &[T], [lr, epsilon]: [T; 2], update_slots: bool) {
    for ((var, accum), &g) in var.iter_mut().zip(accum).zip(grad) {
        if update_slots {
            *accum = *accum + g * g;
        }
        *var = *var - g * lr / (sqrt(*accum) + epsilon);
    }
}

fn proximal_adagrad<T: Float>([var, accum]: Slots<T, 2>, grad: &[T], [lr, l1, l2]: [T; 3]) {
    for ((var, accum), &g) in var.iter_mut().zip(accum).zip(grad) {
        *accum = *accum + g * g;
        let rate = lr * rsqrt(*accum);
        *var = proximal(*var - g * rate, rate, l1, l2);
    }
}

fn adagrad_da<T: Float>([var, sum, squares]: Slots<T, 3>, grad: &[T], rates: [T; 4]) {
    let rule = adagrad_da_rule(rates);
    for (((var, sum), squares), &g) in var.iter_mut().zip(sum).zip(squares).zip(grad) {
        rule([var, sum, squares], g);
    }
}

fn adadelta<T: Float>([var, accum, accum_update]: Slots<T, 3>, grad: &[T], [lr, rho, epsilon]: [T; 3]) {
    for (((var, accum), accum_update), &g) in var.iter_mut().zip(accum).zip(accum_update).zip(grad) {
        *accum = *accum * rho + g * g * (T::ONE - rho);
        let update = sqrt(*accum_update + epsilon) * rsqrt(*accum + epsilon) * g;
        *var = *var - update * lr;
        *accum_update = *accum_update * rho + update * update * (T::ONE - rho);
    }
}

fn adam<T: Float>(
    [var, m, v]: Slots<T, 3>,
    grad: &[T],
    [beta1_power, beta2_power, lr, beta1, beta2, epsilon]: [T; 6],
    nesterov: bool,
) {
    let alpha = lr * sqrt(T::ONE - beta2_power) / (T::ONE - beta1_power);
    let (rates, lot) = ([alpha, beta1, beta2, epsilon], lot(WORK));
    let slots = var.chunks_mut(lot).zip(m.chunks_mut(lot)).zip(v.chunks_mut(lot));
    in_lots(slots.zip(grad.chunks(lot)), |(((var, m), v), grad)| widest(Adam { var, m, v, grad, rates, nesterov }));
}

/// What an element of Adam takes, counted as for [`lot`].
const WORK: usize = 4;

/// Adam of some elements.
struct Adam<'a, T> {
    var: &'a mut [T],
    m: &'a mut [T],
    v: &'a mut [T],
    grad: &'a [T],
    rates: [T; 4],
    nesterov: bool,
}

impl<T: Float> Work for Adam<'_, T> {
    #[inline(always)]
    fn run(self) {
        adam_alone(self.var, self.m, self.v, self.grad, self.rates, self.nesterov);
    }
}

/// With an argument for each slice: of those alone the compiler knows that they do not overlap.
#[inline(always)]
fn adam_alone<T: Float>(
    var: &mut [T],
    m: &mut [T],
    v: &mut [T],
    grad: &[T],
    [alpha, beta1, beta2, epsilon]: [T; 4],
    nesterov: bool,
) {
    for (((var, m), v), &g) in var.iter_mut().zip(m).zip(v).zip(grad) {
        *m = *m + (g - *m) * (T::ONE - beta1);
        *v = *v + (g * g - *v) * (T::ONE - beta2);
        let direction = if nesterov { g * (T::ONE - beta1) + beta1 * *m } else { *m };
        *var = *var - direction * alpha / (sqrt(*v) + epsilon);
    }
}

fn adam_with_amsgrad<T: Float>(
    [var, m, v, vhat]: Slots<T, 4>,
    grad: &[T],
    [beta1_power, beta2_power, lr, beta1, beta2, epsilon]: [T; 6],
) {
    let alpha = lr * sqrt(T::ONE - beta2_power) / (T::ONE - beta1_power);
    for ((((var, m), v), vhat), &g) in var.iter_mut().zip(m).zip(v).zip(vhat).zip(grad) {
        *m = *m + (g - *m) * (T::ONE - beta1);
        *v = *v + (g * g - *v) * (T::ONE - beta2);
        *vhat = max(*vhat, *v);
        *var = *var - *m * alpha / (sqrt(*vhat) + epsilon);
    }
}

fn ada_max<T: Float>([var, m, v]: Slots<T, 3>, grad: &[T], [beta1_power, lr, beta1, beta2, epsilon]: [T; 5]) {
    let alpha = lr / (T::ONE - beta1_power);
    for (((var, m), v), &g) in var.iter_mut().zip(m).zip(v).zip(grad) {
        *m = *m + (g - *m) * (T::ONE - beta1);
        *v = max(beta2 * *v, abs(g));
        *var = *var - alpha * (*m / (*v + epsilon));
    }
}

fn rms_prop<T: Float>([var, ms, mom]: Slots<T, 3>, grad: &[T], [lr, rho, momentum, epsilon]: [T; 4]) {
    for (((var, ms), mom), &g) in var.iter_mut().zip(ms).zip(mom).zip(grad) {
        *ms = *ms + (g * g - *ms) * (T::ONE - rho);
        *mom = *mom * momentum + g * lr / sqrt(*ms + epsilon);
        *var = *var - *mom;
    }
}

fn centered_rms_prop<T: Float>([var, mg, ms, mom]: Slots<T, 4>, grad: &[T], [lr, rho, momentum, epsilon]: [T; 4]) {
    for ((((var, mg), ms), mom), &g) in var.iter_mut().zip(mg).zip(ms).zip(mom).zip(grad) {
        *ms = *ms + (g * g - *ms) * (T::ONE - rho);
        *mg = *mg + (g - *mg) * (T::ONE - rho);
        let variance = (*ms - *mg * *mg) + epsilon;
        *mom = *mom * momentum + g * lr / sqrt(variance);
        *var = *var - *mom;
    }
}

fn ftrl<T: Float>([var, accum, linear]: Slots<T, 3>, grad: &[T], rates: [T; 5], by_lr: bool) {
    let rule = ftrl_rule(rates, by_lr);
    for (((var, accum), linear), &g) in var.iter_mut().zip(accum).zip(linear).zip(grad) {
        rule([var, accum, linear], g);
    }
}

fn add_sign<T: Float>([var, m]: Slots<T, 2>, grad: &[T], [lr, alpha, sign_decay, beta]: [T; 4]) {
    for ((var, m), &g) in var.iter_mut().zip(m).zip(grad) {
        *m = *m * beta + g * (T::ONE - beta);
        *var = *var - lr * (alpha + sign_decay * (sign(g) * sign(*m))) * g;
    }
}

fn power_sign<T: Float>([var, m]: Slots<T, 2>, grad: &[T], [lr, log_base, sign_decay, beta]: [T; 4]) {
    for ((var, m), &g) in var.iter_mut().zip(m).zip(grad) {
        *m = *m * beta + g * (T::ONE - beta);
        *var = *var - lr * exp(log_base * sign_decay * (sign(g) * sign(*m))) * g;
    }
}
