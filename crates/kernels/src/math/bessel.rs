//! Bessel functions of orders 0 and 1, in float64: of the first and the second kind by libm, the modified ones here.
//!
//! The formulas are those of the NIST Digital Library of Mathematical Functions (<https://dlmf.nist.gov>), by section. At the
//! ends of the domains the values are TensorFlow's: the functions of the second kind are infinite at and below zero, and none
//! but the modified ones of the second kind has a value at infinity.

use libm::{j0, j1, y0, y1};

use super::special::bessel_ie;

/// Euler's constant.
pub(super) const EULER: f64 = 0.577_215_664_901_532_9;

/// The function of the first kind, J.
pub(super) fn first(order: u32, x: f64) -> f64 {
    match order {
        _ if x.is_infinite() => f64::NAN,
        0 => j0(x),
        _ => j1(x),
    }
}

/// The function of the second kind, Y.
pub(super) fn second(order: u32, x: f64) -> f64 {
    match order {
        _ if x <= 0.0 => f64::NEG_INFINITY,
        _ if x.is_infinite() => f64::NAN,
        0 => y0(x),
        _ => y1(x),
    }
}

/// Y of order 1 for float32 and narrower: TensorFlow divides zero by zero at zero.
pub(super) fn second_of_order_1_narrow(x: f32) -> f32 {
    if x == 0.0 { f32::NAN } else { second(1, x.into()) as f32 }
}

/// The modified function of the first kind, I.
pub(super) fn modified_first(order: u32, x: f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { bessel_ie(order, x) * x.abs().exp() }
}

/// The modified function of the second kind, K; times `exp(x)` if `is_scaled`.
pub(super) fn modified_second(order: u32, x: f64, is_scaled: bool) -> f64 {
    if x.is_nan() || x == f64::INFINITY {
        return if x.is_nan() { x } else { 0.0 };
    }
    if x <= 0.0 {
        return f64::INFINITY;
    }
    if x > 2.0 {
        let scaled = by_integral(order, x);
        return if is_scaled { scaled } else { scaled * (-x).exp() };
    }
    let value = if order == 0 { series_of_order_0(x) } else { series_of_order_1(x) };
    if is_scaled { value * x.exp() } else { value }
}

/// 10.31.2
fn series_of_order_0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut harmonic, mut sum) = (1.0, 0.0, 0.0);
    for k in 1..20 {
        let k = f64::from(k);
        term *= quarter / (k * k);
        harmonic += 1.0 / k;
        sum += term * harmonic;
    }
    sum - ((x / 2.0).ln() + EULER) * modified_first(0, x)
}

/// 10.31.1
fn series_of_order_1(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    // The digamma functions of k + 1 and k + 2, added.
    let (mut term, mut digammas, mut sum) = (1.0, 1.0 - 2.0 * EULER, 0.0);
    for k in 0..20 {
        sum += term * digammas;
        let next = f64::from(k) + 1.0;
        term *= quarter / (next * (next + 1.0));
        digammas += 1.0 / next + 1.0 / (next + 1.0);
    }
    1.0 / x + (x / 2.0).ln() * modified_first(1, x) - x / 4.0 * sum
}

/// 10.32.9 times `exp(x)`, by the trapezoidal rule, whose error decreases exponentially with the number of its points: with
/// these steps it is below that of the sum.
fn by_integral(order: u32, x: f64) -> f64 {
    let step = (0.65 / x.sqrt()).min(0.2);
    let mut sum = 0.5;
    for i in 1..100 {
        let t = step * f64::from(i);
        let half = (0.5 * t).sinh();
        let exponent = 2.0 * x * half * half;
        let weight = if order == 0 { 1.0 } else { t.cosh() };
        sum += (-exponent).exp() * weight;
        if exponent > 45.0 {
            break;
        }
    }
    sum * step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abramowitz and Stegun, tables 9.1 and 9.8.
    #[test]
    fn known_values() {
        let check = |got: f64, want: f64| assert!((got / want - 1.0).abs() <= 2e-9, "{got} {want}");
        check(first(0, 1.0), 0.765_197_686_557_97);
        check(first(1, 1.0), 0.440_050_585_7);
        check(second(0, 1.0), 0.088_256_964_2);
        check(second(1, 1.0), -0.781_212_821_3);
        check(modified_second(0, 1.0, true), 1.144_463_079_7);
        check(modified_second(1, 5.0, true), 0.600_273_858_788_312_5);
        // The series and the integral meet at 2.
        for order in [0, 1] {
            let (below, above) = (modified_second(order, 2.0, true), modified_second(order, 2.0 + 1e-15, true));
            assert!((below / above - 1.0).abs() < 1e-14, "{below} {above}");
        }
        // 10.28.2: the Wronskian.
        for x in [0.01, 0.7, 1.9, 2.1, 7.0, 33.0, 200.0] {
            let [i0, i1] = [0, 1].map(|order| bessel_ie(order, x));
            let [k0, k1] = [0, 1].map(|order| modified_second(order, x, true));
            assert!(((i0 * k1 + i1 * k0) * x - 1.0).abs() < 1e-14, "{x}");
        }
    }
}
