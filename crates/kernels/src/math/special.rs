//! Special functions that libm lacks, in float64.
//!
//! The formulas are those of the NIST Digital Library of Mathematical Functions (<https://dlmf.nist.gov>), by section.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use libm::{erfc, lgamma};

/// The number of terms after which a series or a continued fraction ends, converged or not.
const MOST_TERMS: usize = 5000;

/// The derivative of the logarithm of gamma, to about 1e-14; NaN at zero and the negative integers.
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

/// The quantile of the normal distribution for probability `p`; NaN outside `[0, 1]`.
pub fn ndtri(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    let lower = p.min(1.0 - p);
    if lower == 0.0 {
        return if p == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    let x = lower_tail(lower);
    if p > 0.5 { -x } else { x }
}

/// The quantile of a probability of at most one half: an estimate (Abramowitz and Stegun, 26.2.23, to 5e-4), and Halley's
/// method, each round of which triples the digits.
#[inline]
fn lower_tail(p: f64) -> f64 {
    let t = (-2.0 * p.ln()).sqrt();
    let estimate =
        polynomial(&[2.515_517, 0.802_853, 0.010_328], t) / polynomial(&[1.0, 1.432_788, 0.189_269, 0.001_308], t);
    (0..3).fold(estimate - t, |x, _| {
        let off = (0.5 * erfc(-x * FRAC_1_SQRT_2) - p) * (2.0 * PI).sqrt() * (0.5 * x * x).exp();
        x - off / (1.0 + 0.5 * x * off)
    })
}

/// The inverse of the error function; NaN outside `[-1, 1]`.
pub fn erfinv(y: f64) -> f64 {
    if y == 0.0 {
        return y;
    }
    // From the smaller tail, so that no digits are lost near either end; near zero from the first terms of the series.
    if y.abs() < 1e-3 {
        let z = PI * y * y;
        return 0.5 * PI.sqrt() * y * polynomial(&[1.0, 1.0 / 12.0, 7.0 / 480.0, 127.0 / 40_320.0], z);
    }
    -ndtri(0.5 * (1.0 - y.abs())) * FRAC_1_SQRT_2 * y.signum()
}

/// The regularized lower incomplete gamma function, or the upper one if `upper` (8.2.4).
pub fn igamma(a: f64, x: f64, upper: bool) -> f64 {
    if a.is_nan() || x.is_nan() || x < 0.0 || a <= 0.0 {
        return f64::NAN;
    }
    let other = |p: f64, is_upper: bool| if is_upper == upper { p } else { 1.0 - p };
    if x == 0.0 || a == f64::INFINITY {
        return if a == x { f64::NAN } else { other(0.0, false) };
    }
    if x == f64::INFINITY {
        return other(0.0, true);
    }
    let front = (a * x.ln() - x - lgamma(a)).exp();
    if x < a + 1.0 {
        // 8.11.4
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for n in 1..MOST_TERMS {
            term *= x / (a + n as f64);
            sum += term;
            if term <= sum * f64::EPSILON {
                break;
            }
        }
        return other(sum * front, false);
    }
    // 8.9.2, the even part.
    let fraction = continued_fraction(|n| {
        let n = n as f64;
        (if n == 0.0 { 1.0 } else { -n * (n - a) }, x + 2.0 * n + 1.0 - a)
    });
    other(fraction * front, true)
}

/// The regularized incomplete beta function (8.17).
pub fn betainc(a: f64, b: f64, x: f64) -> f64 {
    if !(a > 0.0 && b > 0.0 && (0.0..=1.0).contains(&x)) {
        return f64::NAN;
    }
    if x == 0.0 || x == 1.0 {
        return x;
    }
    // The fraction converges quickly below the mean; above it, by symmetry (8.17.4).
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - betainc_below(b, a, 1.0 - x, x);
    }
    betainc_below(a, b, x, 1.0 - x)
}

/// 8.17.22; `rest` is 1 - x.
fn betainc_below(a: f64, b: f64, x: f64, rest: f64) -> f64 {
    let front = (a * x.ln() + b * rest.ln() + lgamma(a + b) - lgamma(a) - lgamma(b)).exp() / a;
    let fraction = continued_fraction(|n| {
        let m = (n / 2) as f64;
        let numerator = match n {
            0 => 1.0,
            n if n % 2 == 0 => m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            _ => -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        };
        (numerator, 1.0)
    });
    front * fraction
}

/// a0 / (b0 + a1 / (b1 + ...)), given the pairs (a, b), by Lentz's method (3.10).
fn continued_fraction(terms: impl Fn(usize) -> (f64, f64)) -> f64 {
    let not_zero = |x: f64| if x.abs() < f64::MIN_POSITIVE { f64::MIN_POSITIVE } else { x };
    let (a, b) = terms(0);
    // For the denominator only; c and d are the ratios of successive numerators and denominators.
    let (mut c, mut d) = (not_zero(b), 0.0);
    let mut denominator = c;
    for n in 1..MOST_TERMS {
        let (a, b) = terms(n);
        d = 1.0 / not_zero(b + a * d);
        c = not_zero(b + a / c);
        denominator *= c * d;
        if (c * d - 1.0).abs() <= f64::EPSILON {
            break;
        }
    }
    a / denominator
}

/// The Hurwitz zeta function of `x > 1` (25.11): the sum of `(n + q)^-x`, with its tail by the Euler-Maclaurin formula.
pub fn zeta(x: f64, q: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let is_even = x % 2.0 == 0.0;
    if x.is_nan() || q.is_nan() || x < 1.0 || (q <= 0.0 && q == q.floor() && !is_even) || (q < 0.0 && x != x.floor()) {
        return f64::NAN;
    }
    if q <= 0.0 && q == q.floor() {
        return f64::INFINITY;
    }
    if q < 0.0 {
        // Far below zero the sum has many terms. Those with a negative base are the difference of two sums that begin
        // above zero. The exponent is an integer in this case.
        let above = q - q.floor();
        let sign = if is_even { 1.0 } else { -1.0 };
        return zeta(x, above) + sign * (zeta(x, 1.0 - above) - zeta(x, 1.0 - q));
    }
    let (mut sum, mut at) = (0.0, q);
    while at < 12.0 {
        sum += at.powf(-x);
        at += 1.0;
    }
    sum += at.powf(1.0 - x) / (x - 1.0) + 0.5 * at.powf(-x);
    // The Bernoulli numbers over factorials: B2 / 2!, B4 / 4!, and so on.
    const TERMS: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
        -3617.0 / 10_670_622_842_880_000.0,
    ];
    let mut rising = x * at.powf(-x - 1.0);
    for (k, term) in TERMS.iter().enumerate() {
        sum += term * rising;
        let n = 2.0 * k as f64 + 1.0;
        rising *= (x + n) * (x + n + 1.0) / (at * at);
    }
    sum
}

/// Derivative `n + 1` of the logarithm of gamma; NaN if `n` is not an integer (5.15.1).
#[inline]
pub fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * lgamma(n + 1.0).exp() * zeta(n + 1.0, x)
}

/// The modified Bessel function of the first kind of that order, times `exp(-|x|)`.
pub fn bessel_ie(order: u32, x: f64) -> f64 {
    let size = x.abs();
    let sign = if order % 2 == 1 && x < 0.0 { -1.0 } else { 1.0 };
    if size.is_nan() || size.is_infinite() {
        return if size.is_nan() { size } else { 0.0 };
    }
    let order = f64::from(order);
    if size > 30.0 {
        // 10.40.1: the terms decrease as long as they matter.
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..40 {
            let odd = 2.0 * f64::from(k) - 1.0;
            term *= (odd * odd - 4.0 * order * order) / (8.0 * f64::from(k) * size);
            sum += term;
            if f64::abs(term) < f64::EPSILON / 4.0 {
                break;
            }
        }
        return sign * sum / (2.0 * PI * size).sqrt();
    }
    // 10.25.2: all terms have one sign.
    let (mut term, mut sum) = ((size / 2.0).powf(order), 0.0);
    for k in 1..200 {
        sum += term;
        term *= size * size / (4.0 * f64::from(k) * (f64::from(k) + order));
        if term < sum * f64::EPSILON / 4.0 {
            break;
        }
    }
    sign * (sum + term) * (-size).exp()
}

/// A polynomial in `x`; the coefficients begin with the constant.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let check = |got: f64, want: f64| assert!((got - want).abs() <= 1e-14 * want.abs().max(1.0), "{got} {want}");
        // The harmonic numbers less Euler's constant, and reflection.
        const EULER: f64 = 0.577_215_664_901_532_9;
        check(digamma(1.0), -EULER);
        check(digamma(3.0), 1.5 - EULER);
        check(digamma(0.5), -EULER - 2.0 * std::f64::consts::LN_2);
        check(digamma(-0.5), 2.0 - EULER - 2.0 * std::f64::consts::LN_2);
        // Elementary cases: P(1, x), I_x(a, 1), Q(1/2, x), and zeta(2), zeta(4).
        check(igamma(1.0, 0.7, false), 1.0 - (-0.7f64).exp());
        check(igamma(1.0, 30.0, true), (-30f64).exp());
        check(igamma(0.5, 4.0, true), erfc(2.0));
        check(betainc(2.5, 1.0, 0.3), 0.3f64.powf(2.5));
        check(betainc(1.0, 3.0, 0.9), 1.0 - 0.1f64.powi(3));
        check(zeta(2.0, 1.0), PI * PI / 6.0);
        check(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        check(zeta(3.0, -1.5), zeta(3.0, 0.5) - 8.0 - 8.0 / 27.0);
        check(zeta(2.0, -1e15 - 0.5), zeta(2.0, 0.5) * 2.0);
        check(polygamma(1.0, 0.5), PI * PI / 2.0);
        check(polygamma(2.0, 1.0), -2.0 * 1.202_056_903_159_594_2);
        check(bessel_ie(0, 1.0), 1.266_065_877_752_008_3 * (-1f64).exp());
        check(bessel_ie(1, -1.0), -0.565_159_103_992_485 * (-1f64).exp());
        // Both forms, on either side of their boundary.
        check(bessel_ie(0, 30.0), bessel_ie(0, 30.0 + 1e-12));
        check(bessel_ie(1, 30.0), bessel_ie(1, 30.0 + 1e-12));
        check(ndtri(0.975), 1.959_963_984_540_054);
    }

    #[test]
    fn inverses_lead_back() {
        for p in [1e-300, 1e-20, 1e-5, 0.02, 0.3, 0.5, 0.7, 0.999] {
            let back = 0.5 * erfc(-ndtri(p) * FRAC_1_SQRT_2);
            // In the tail, an error is multiplied by the square of the quantile.
            assert!((back / p - 1.0).abs() < 1e-12, "{p} {back}");
        }
        for y in [1e-20, 1e-6, 9.99e-4, 1.001e-3, 0.1, 0.5, 0.9, 0.9999] {
            for y in [y, -y] {
                assert!((libm::erf(erfinv(y)) / y - 1.0).abs() < 1e-13, "{y}");
            }
        }
    }
}
