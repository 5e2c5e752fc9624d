//! Dawson's, Fresnel's and the exponential integral and Spence's function, in float64.
//!
//! The formulas are those of the NIST Digital Library of Mathematical Functions (<https://dlmf.nist.gov>), by section. At the
//! ends of the domains the values are TensorFlow's.

use std::f64::consts::{FRAC_PI_2, PI};

use meshtf_tensor::Complex;

use super::bessel::EULER;

/// The largest number of terms of a series or a continued fraction.
const MOST_TERMS: u32 = 500;

/// Dawson's integral (7.2.5).
pub(super) fn dawson(x: f64) -> f64 {
    let size = x.abs();
    if size > 1e9 {
        return 0.5 / x;
    }
    if size < 1.0 {
        // 7.6.1, of the error function of an imaginary argument, times the exponential.
        let (mut term, mut sum) = (x, x);
        for k in 1..40 {
            term *= -2.0 * x * x / f64::from(2 * k + 1);
            sum += term;
        }
        return sum;
    }
    // Rybicki's sum over odd multiples of the step; its error is exp(-(pi / (2 step))^2).
    const STEP: f64 = 0.25;
    let middle = 2.0 * (size / (2.0 * STEP)).round();
    let rest = size - middle * STEP;
    let mut sum = 0.0;
    for n in (-27..=27).step_by(2) {
        let n = f64::from(n);
        let away = rest - n * STEP;
        sum += (-away * away).exp() / (middle + n);
    }
    (sum / PI.sqrt()).copysign(x)
}

/// The exponential integral Ei (6.2.5) of a positive number; NaN below zero.
pub(super) fn exponential(x: f64) -> f64 {
    if x < 0.0 || x == f64::INFINITY {
        return f64::NAN;
    }
    if x > 40.0 {
        // 6.12.2: the terms decrease as long as they matter.
        let (mut term, mut sum) = (1.0, 1.0);
        for n in 1..40 {
            term *= f64::from(n) / x;
            sum += term;
            if term < f64::EPSILON / 4.0 {
                break;
            }
        }
        return x.exp() / x * sum;
    }
    // 6.6.1
    let (mut power, mut sum) = (1.0, 0.0);
    for n in 1..MOST_TERMS {
        let n = f64::from(n);
        power *= x / n;
        sum += power / n;
        if power < sum * f64::EPSILON / 4.0 {
            break;
        }
    }
    EULER + x.ln() + sum
}

/// Fresnel's cosine integral and his sine integral (7.2.7, 7.2.8).
pub(super) fn fresnel(x: f64) -> (f64, f64) {
    let size = x.abs();
    if size.is_nan() {
        return (x, x);
    }
    let (cosine, sine) = if size > 36_974.0 {
        // The distance to the limit is less than TensorFlow's error.
        (0.5, 0.5)
    } else if size < 1.5 {
        // 7.6.4 and 7.6.6: the terms of both series in turn.
        let square = FRAC_PI_2 * size * size;
        let (mut term, mut sums) = (size, [0.0, 0.0]);
        for k in 0..40 {
            let sign = if k % 4 < 2 { 1.0 } else { -1.0 };
            sums[k % 2] += sign * term / (2 * k + 1) as f64;
            term *= square / (k + 1) as f64;
        }
        (sums[0], sums[1])
    } else {
        // 7.5.8: by the error function of a complex number, and its continued fraction (7.9.3).
        let square = PI * size * size;
        let one = Complex::new(1.0, 0.0);
        let mut b = Complex::new(1.0, -square);
        let (mut c, mut d) = (Complex::new(1.0 / f64::MIN_POSITIVE, 0.0), one / b);
        let mut fraction = d;
        for k in 1..MOST_TERMS {
            let k = f64::from(k);
            let a = -(2.0 * k - 1.0) * 2.0 * k;
            b += 4.0;
            d = one / (d * a + b);
            c = b + Complex::new(a, 0.0) / c;
            let change = c * d;
            fraction *= change;
            if (change.re - 1.0).abs() + change.im.abs() < f64::EPSILON {
                break;
            }
        }
        fraction *= Complex::new(size, -size);
        // A whole turn is four quarters; the remainder of the square is exact.
        let phase = FRAC_PI_2 * (size * size % 4.0);
        let turned = Complex::new(phase.cos(), phase.sin()) * fraction;
        let both = Complex::new(0.5, 0.5) * (one - turned);
        (both.re, both.im)
    };
    (cosine.copysign(x), sine.copysign(x))
}

/// Spence's function, the dilogarithm of `1 - x` (25.12); NaN below zero.
pub(super) fn spence(x: f64) -> f64 {
    const AT_ZERO: f64 = PI * PI / 6.0;
    if x < 0.0 || x == f64::INFINITY {
        return f64::NAN;
    }
    if x == 0.0 {
        return AT_ZERO;
    }
    if x > 1.5 {
        let log = x.ln();
        return -0.5 * log * log - spence(1.0 / x);
    }
    if x < 0.5 {
        // 25.12.6
        return AT_ZERO - x.ln() * (-x).ln_1p() - spence(1.0 - x);
    }
    // The Bernoulli numbers over factorials: B2 / 3!, B4 / 5!, and so on, of the expansion by the logarithm.
    const TERMS: [f64; 8] = [
        1.0 / 36.0,
        -1.0 / 3600.0,
        1.0 / 211_680.0,
        -1.0 / 10_886_400.0,
        1.0 / 526_901_760.0,
        -691.0 / 16_999_766_784_000.0,
        1.0 / 1_120_863_744_000.0,
        -3617.0 / 181_400_588_328_960_000.0,
    ];
    let u = -(x - 1.0).ln_1p();
    let square = u * u;
    let tail = TERMS.iter().rev().fold(0.0, |sum, term| sum * square + term);
    u - 0.25 * square + u * square * tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let check = |got: f64, want: f64| assert!((got - want).abs() <= 4e-15 * want.abs().max(1.0), "{got} {want}");
        // The greatest value of Dawson's integral, and where the series meets the sum.
        check(dawson(0.924_138_873_004_591_8), 0.541_044_224_635_181_7);
        check(dawson(1.0 - 1e-16), dawson(1.0));
        check(dawson(-1e12), -5e-13);
        // The zero of the exponential integral, Ei(1), and where the series meets the asymptotic one.
        check(exponential(0.372_507_410_781_366_6), 0.0);
        check(exponential(1.0), 1.895_117_816_355_936_8);
        check(exponential(40f64.next_up()) / exponential(40.0), 1.0 + 40.0 * f64::EPSILON);
        // Fresnel's integrals at 1, and where the series meets the fraction.
        check(fresnel(1.0).0, 0.779_893_400_376_822_8);
        check(fresnel(-1.0).1, -0.438_259_147_390_354_8);
        check(fresnel(1.5 - 1e-16).0, fresnel(1.5).0);
        check(fresnel(1.5 - 1e-16).1, fresnel(1.5).1);
        // 25.12.1 at 1/2, and at 2: -pi^2 / 12.
        check(spence(0.5), PI * PI / 12.0 - 0.5 * std::f64::consts::LN_2.powi(2));
        check(spence(2.0), -PI * PI / 12.0);
    }
}
