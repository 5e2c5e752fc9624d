//! Derivatives with respect to the shape parameter: of the incomplete gamma function, and of samples of the gamma
//! distribution.
//!
//! Both are derivatives of a power series below the mean and of a continued fraction above it, differentiated term by
//! term in float64, as in TensorFlow's Eigen.

use libm::lgamma;

use super::special::digamma;

/// The number of terms after which a series or a fraction ends, converged or not.
const MOST_TERMS: usize = 2000;

/// The bound beyond which the numerators and denominators of a fraction are all divided by it.
const BIG: f64 = 1.0 / f64::EPSILON;

/// A function `scale * value`, where `scale` is `x^a e^-x / gamma(a)` for the fraction and that over `a` for the series.
struct Scaled {
    scale: f64,
    /// The derivative of the logarithm of `scale` with respect to `a`.
    scale_slope: f64,
    value: f64,
    /// The derivative of `value` with respect to `a`.
    slope: f64,
}

/// The derivative of the regularized lower incomplete gamma function with respect to `a`.
#[inline]
pub fn igamma_by_a(a: f64, x: f64) -> f64 {
    by_a(a, x, |it| it.scale * (it.value * it.scale_slope + it.slope))
}

/// The derivative of a sample of the gamma distribution with respect to its parameter `alpha`, by implicit
/// differentiation: the derivative of its cumulative probability with respect to `alpha`, over its density, negated.
#[inline]
pub fn gamma_sample_by_alpha(alpha: f64, sample: f64) -> f64 {
    // The density is `scale * alpha / sample` for the series, and `scale / sample` for the fraction.
    let is_above = sample > 1.0 && sample > alpha;
    let by = if is_above { sample } else { sample / alpha };
    by_a(alpha, sample, |it| -(it.value * it.scale_slope + it.slope) * by)
}

/// `of` applied to the series of the lower function or, negated, to the fraction of the upper function.
fn by_a(a: f64, x: f64, of: impl Fn(Scaled) -> f64) -> f64 {
    if a.is_nan() || x.is_nan() {
        return f64::NAN;
    }
    if x == 0.0 {
        return 0.0;
    }
    if x < 0.0 || a <= 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() && x > a {
        return -0.0;
    }
    let logarithm = a * x.ln() - x - lgamma(a);
    let scale = if logarithm < -f64::MAX.ln() || logarithm.is_nan() { 0.0 } else { logarithm.exp() };
    let is_above = x > 1.0 && x > a;
    match (scale == 0.0, is_above) {
        (true, true) => -0.0,
        (true, false) => 0.0,
        (false, true) => -of(fraction(a, x, scale)),
        (false, false) => of(series(a, x, scale)),
    }
}

/// The power series of the lower function.
fn series(a: f64, x: f64, scale: f64) -> Scaled {
    let (mut at, mut term, mut value) = (a, 1.0, 1.0);
    let (mut term_slope, mut slope) = (0.0f64, 0.0f64);
    for _ in 0..MOST_TERMS {
        at += 1.0;
        let factor = x / at;
        term_slope = factor * term_slope - x / (at * at) * term;
        slope += term_slope;
        term *= factor;
        value += term;
        if term_slope.abs() <= f64::EPSILON * slope.abs() {
            break;
        }
    }
    Scaled { scale: scale / a, scale_slope: x.ln() - digamma(a + 1.0), value, slope }
}

/// The continued fraction of the upper function.
fn fraction(a: f64, x: f64, scale: f64) -> Scaled {
    // The numerators and denominators of the last two convergents, and their derivatives.
    let (mut before, mut last) = ([1.0, x, 0.0, 0.0], [x + 1.0, (x + 2.0 - a) * x, 0.0, -x]);
    let mut value = last[0] / last[1];
    let mut slope = (last[2] - value * last[3]) / last[1];
    for n in 1..=MOST_TERMS {
        let n = n as f64;
        let (y, z) = (1.0 - a + n, x + 2.0 - a + 2.0 * n);
        let next = |i: usize| last[i] * z - before[i] * y * n;
        let next_slope = |i: usize| next(i + 2) - last[i] + before[i] * n;
        let now = [next(0), next(1), next_slope(0), next_slope(1)];
        let mut is_done = false;
        if now[1] != 0.0 {
            value = now[0] / now[1];
            let before = std::mem::replace(&mut slope, (now[2] - value * now[3]) / now[1]);
            is_done = (slope - before).abs() <= f64::EPSILON;
        }
        (before, last) = (last, now);
        if is_done {
            break;
        }
        if now[0].abs() > BIG {
            before = before.map(|x| x / BIG);
            last = last.map(|x| x / BIG);
        }
    }
    Scaled { scale, scale_slope: x.ln() - digamma(a), value, slope }
}
