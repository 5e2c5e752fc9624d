//! The special function that libm does not have.

use std::f64::consts::PI;

/// The derivative of the logarithm of gamma, to about 1e-14: NaN at zero and the negative integers.
pub fn digamma(x: f64) -> f64 {
    if x.is_nan() || x == f64::NEG_INFINITY || (x <= 0.0 && x.fract() == 0.0) {
        return f64::NAN;
    }
    if x == f64::INFINITY {
        return x;
    }
    if x < 0.0 {
        return digamma(1.0 - x) - PI / (PI * (x % 1.0)).tan();
    }
    let (mut x, mut below) = (x, 0.0);
    while x < 10.0 {
        below += 1.0 / x;
        x += 1.0;
    }
    let inverse = 1.0 / (x * x);
    let terms = [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32_760.0, 1.0 / 12.0];
    let series = polynomial(&terms, inverse) * inverse;
    x.ln() - 0.5 / x - series - below
}

/// A polynomial in `x`, its coefficients from the constant one on.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let check = |got: f64, want: f64| assert!((got - want).abs() <= 1e-14 * want.abs().max(1.0), "{got} {want}");
        // The harmonic numbers less Euler's constant, and by reflection.
        const EULER: f64 = 0.577_215_664_901_532_9;
        check(digamma(1.0), -EULER);
        check(digamma(3.0), 1.5 - EULER);
        check(digamma(0.5), -EULER - 2.0 * std::f64::consts::LN_2);
        check(digamma(-0.5), 2.0 - EULER - 2.0 * std::f64::consts::LN_2);
    }
}
