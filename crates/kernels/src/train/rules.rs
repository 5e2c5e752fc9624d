//! The rules of optimizers: the new element of each slot, from its old element and that of the gradient. TensorFlow's
//! formulas, evaluated in the same order.

use meshtf_tensor::Float;

use super::super::real::{abs, exp, max, pow, rsqrt, sign, sqrt};

/// The new elements of the variable and its slots, in the op's order, from their old elements and that of the gradient.
pub trait Rule<T, const V: usize>: Fn([T; V], T) -> [T; V] + Copy + Send + Sync {}

impl<T, const V: usize, R: Fn([T; V], T) -> [T; V] + Copy + Send + Sync> Rule<T, V> for R {}

#[inline]
pub fn gradient_descent<T: Float>([lr]: [T; 1]) -> impl Rule<T, 1> {
    move |[var], g| [var - g * lr]
}

#[inline]
pub fn proximal_gradient_descent<T: Float>([lr, l1, l2]: [T; 3]) -> impl Rule<T, 1> {
    move |[var], g| [proximal(var - g * lr, lr, l1, l2)]
}

#[inline]
pub fn momentum<T: Float>([lr, momentum]: [T; 2], nesterov: bool) -> impl Rule<T, 2> {
    move |[var, accum], g| {
        let accum = accum * momentum + g;
        [var - if nesterov { g * lr + accum * momentum * lr } else { accum * lr }, accum]
    }
}

#[inline]
pub fn keras_momentum<T: Float>([lr, momentum]: [T; 2], nesterov: bool) -> impl Rule<T, 2> {
    move |[var, accum], g| {
        let accum = accum * momentum - g * lr;
        [var + if nesterov { accum * momentum - g * lr } else { accum }, accum]
    }
}

#[inline]
pub fn adagrad<T: Float>([lr]: [T; 1], update_slots: bool) -> impl Rule<T, 2> {
    move |[var, accum], g| {
        let accum = if update_slots { accum + g * g } else { accum };
        [var - g * lr * rsqrt(accum), accum]
    }
}

#[inline]
pub fn adagrad_v2<T: Float>([lr, epsilon]: [T; 2], update_slots: bool) -> impl Rule<T, 2> {
    move |[var, accum], g| {
        let accum = if update_slots { accum + g * g } else { accum };
        [var - g * lr / (sqrt(accum) + epsilon), accum]
    }
}

#[inline]
pub fn proximal_adagrad<T: Float>([lr, l1, l2]: [T; 3]) -> impl Rule<T, 2> {
    move |[var, accum], g| {
        let accum = accum + g * g;
        let rate = lr * rsqrt(accum);
        [proximal(var - g * rate, rate, l1, l2), accum]
    }
}

/// Dual averaging: the variable is recomputed from the sum of the gradients and the sum of their squares.
#[inline]
pub fn adagrad_da<T: Float>([lr, l1, l2, step]: [T; 4]) -> impl Rule<T, 3> {
    move |[_, sum, squares], g| {
        let (sum, squares) = (sum + g, squares + g * g);
        let divisor = lr * l2 * step + sqrt(squares);
        let towards = if l1 > T::ZERO { sign(sum) * max(abs(sum) - l1 * step, T::ZERO) } else { sum };
        [-lr * towards / divisor, sum, squares]
    }
}

#[inline]
pub fn adadelta<T: Float>([lr, rho, epsilon]: [T; 3]) -> impl Rule<T, 3> {
    move |[var, accum, accum_update], g| {
        let accum = accum * rho + g * g * (T::ONE - rho);
        let update = sqrt(accum_update + epsilon) * rsqrt(accum + epsilon) * g;
        [var - update * lr, accum, accum_update * rho + update * update * (T::ONE - rho)]
    }
}

#[inline]
pub fn adam<T: Float>(rates: [T; 6], nesterov: bool) -> impl Rule<T, 3> {
    let [beta1_power, beta2_power, lr, beta1, beta2, epsilon] = rates;
    let alpha = lr * sqrt(T::ONE - beta2_power) / (T::ONE - beta1_power);
    move |[var, m, v], g| {
        let (m, v) = (m + (g - m) * (T::ONE - beta1), v + (g * g - v) * (T::ONE - beta2));
        let direction = if nesterov { g * (T::ONE - beta1) + beta1 * m } else { m };
        [var - direction * alpha / (sqrt(v) + epsilon), m, v]
    }
}

#[inline]
pub fn adam_with_amsgrad<T: Float>(rates: [T; 6]) -> impl Rule<T, 4> {
    let [beta1_power, beta2_power, lr, beta1, beta2, epsilon] = rates;
    let alpha = lr * sqrt(T::ONE - beta2_power) / (T::ONE - beta1_power);
    move |[var, m, v, vhat], g| {
        let (m, v) = (m + (g - m) * (T::ONE - beta1), v + (g * g - v) * (T::ONE - beta2));
        let vhat = max(vhat, v);
        [var - m * alpha / (sqrt(vhat) + epsilon), m, v, vhat]
    }
}

#[inline]
pub fn ada_max<T: Float>([beta1_power, lr, beta1, beta2, epsilon]: [T; 5]) -> impl Rule<T, 3> {
    let alpha = lr / (T::ONE - beta1_power);
    move |[var, m, v], g| {
        let (m, v) = (m + (g - m) * (T::ONE - beta1), max(beta2 * v, abs(g)));
        [var - alpha * (m / (v + epsilon)), m, v]
    }
}

#[inline]
pub fn rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Rule<T, 3> {
    move |[var, ms, mom], g| {
        let ms = ms + (g * g - ms) * (T::ONE - rho);
        let mom = mom * momentum + g * lr / sqrt(ms + epsilon);
        [var - mom, ms, mom]
    }
}

#[inline]
pub fn sparse_rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Rule<T, 3> {
    move |[var, ms, mom], g| {
        let ms = ms * rho + g * g * (T::ONE - rho);
        let mom = mom * momentum + rsqrt(ms + epsilon) * lr * g;
        [var - mom, ms, mom]
    }
}

#[inline]
pub fn centered_rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Rule<T, 4> {
    move |[var, mg, ms, mom], g| {
        let (mg, ms) = (mg + (g - mg) * (T::ONE - rho), ms + (g * g - ms) * (T::ONE - rho));
        let variance = (ms - mg * mg) + epsilon;
        let mom = mom * momentum + g * lr / sqrt(variance);
        [var - mom, mg, ms, mom]
    }
}

#[inline]
pub fn sparse_centered_rms_prop<T: Float>([lr, rho, momentum, epsilon]: [T; 4]) -> impl Rule<T, 4> {
    move |[var, mg, ms, mom], g| {
        let (mg, ms) = (g * (T::ONE - rho) + mg * rho, ms * rho + g * g * (T::ONE - rho));
        let variance = ms + epsilon - mg * mg;
        let mom = mom * momentum + rsqrt(variance) * lr * g;
        [var - mom, mg, ms, mom]
    }
}

/// FTRL; `l2_shrinkage` is 0 in the forms without shrinkage. `IS_ROOT` is the result of [`takes_roots`]: a loop over
/// square roots can be vectorised.
pub fn ftrl<T: Float, const IS_ROOT: bool>(rates: [T; 5], by_lr: bool) -> impl Rule<T, 3> {
    let [lr, l1, l2, l2_shrinkage, power] = rates;
    let two = T::ONE + T::ONE;
    move |[var, accum, linear], g| {
        let root = |x: T| if IS_ROOT { sqrt(x) } else { pow(x, -power) };
        let shrunk = if l2_shrinkage > T::ZERO { g + two * l2_shrinkage * var } else { g };
        let sum = accum + g * g;
        let (old_root, new_root) = (root(accum), root(sum));
        let (linear, l1, quadratic) = if by_lr {
            (linear + (shrunk * lr - (new_root - old_root) * var), l1 * lr, new_root + two * l2 * lr)
        } else {
            (linear + (shrunk - (new_root - old_root) / lr * var), l1, new_root / lr + two * l2)
        };
        let var = if abs(linear) > l1 { (l1 * sign(linear) - linear) / quadratic } else { T::ZERO };
        [var, sum, linear]
    }
}

/// Whether FTRL with these rates raises to the power 0.5.
#[inline]
pub fn takes_roots<T: Float>([.., power]: [T; 5]) -> bool {
    power.to_f64() == -0.5
}

#[inline]
pub fn add_sign<T: Float>([lr, alpha, sign_decay, beta]: [T; 4]) -> impl Rule<T, 2> {
    move |[var, m], g| {
        let m = m * beta + g * (T::ONE - beta);
        [var - lr * (alpha + sign_decay * (sign(g) * sign(m))) * g, m]
    }
}

#[inline]
pub fn power_sign<T: Float>([lr, log_base, sign_decay, beta]: [T; 4]) -> impl Rule<T, 2> {
    // The product of two signs is one of three numbers or NaN.
    let power = |signs: T| exp(log_base * sign_decay * signs);
    let (of_equal, of_opposite, of_zero) = (power(T::ONE), power(-T::ONE), power(T::ZERO));
    move |[var, m], g| {
        let m = m * beta + g * (T::ONE - beta);
        let signs = sign(g) * sign(m);
        let power = if signs < T::ZERO { of_opposite } else { of_zero + signs * T::ZERO };
        let power = if signs > T::ZERO { of_equal } else { power };
        [var - lr * power * g, m]
    }
}

/// Shrinks `v` towards zero by `l1` and scales it down by `l2`: the proximal step of L1 and L2 regularization.
#[inline]
fn proximal<T: Float>(v: T, rate: T, l1: T, l2: T) -> T {
    let divisor = T::ONE + l2 * rate;
    if l1 > T::ZERO { sign(v) * max(abs(v) - rate * l1, T::ZERO) / divisor } else { v / divisor }
}
