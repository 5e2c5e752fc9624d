//! Exponential, logarithm, logistic function, hyperbolic tangent, error function and rounding of float32, without a branch or a
//! table, so that a loop over them can be vectorised. Those of angles are in `angles`.
//!
//! Each is a polynomial on a small interval, to which the argument is reduced. The bounds of the errors are those of the
//! tests below, which compare with the same function in float64. The polynomials interpolate their functions at Chebyshev
//! points of the interval.

use super::target::MulAdd;

/// Adding this rounds a float of less than 2^22 to a whole number, which is then in the lowest bits of the sum.
const ROUNDER: f32 = 12_582_912.0;
/// The natural logarithm of 2 in two parts: the first has so few bits that its products with exponents are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// A polynomial, by its coefficients, highest power first.
#[inline(always)]
fn polynomial<M: MulAdd, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients.into_iter().reduce(|sum, coefficient| M::mul_add(sum, x, coefficient)).unwrap_or(0.0)
}

/// 2^n, for n from -126 to 127; any number for another.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `x` within limits; NaN stays NaN.
#[inline(always)]
fn limited(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// A number with the sign of another.
#[inline(always)]
pub fn signed_as(size: f32, x: f32) -> f32 {
    f32::from_bits(size.to_bits() & 0x7fff_ffff | x.to_bits() & 0x8000_0000)
}

/// The nearest whole number; ties to even.
#[inline(always)]
pub fn rint(x: f32) -> f32 {
    // From here on, all floats are whole numbers.
    const WHOLE: f32 = 8_388_608.0;
    let size = (x.abs() + WHOLE) - WHOLE;
    if x.abs() < WHOLE { signed_as(size, x) } else { x }
}

/// The greatest whole number that is not greater.
#[inline(always)]
pub fn floor(x: f32) -> f32 {
    let near = rint(x);
    if near > x { near - 1.0 } else { near }
}

/// The least whole number that is not less.
#[inline(always)]
pub fn ceil(x: f32) -> f32 {
    let near = rint(x);
    let up = signed_as(near + 1.0, x);
    if near < x { up } else { near }
}

/// e^x as the product of a number near 1 and a power of two: the difference of the number from 1, and the exponent. If `x` is
/// not between -105 and 89, they are any numbers.
#[inline(always)]
fn exp_parts<M: MulAdd>(x: f32) -> (f32, i32) {
    let rounded = M::mul_add(x, std::f32::consts::LOG2_E, ROUNDER);
    let whole = rounded - ROUNDER;
    let n = rounded.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let r = M::mul_add(whole, -LN_2_LOW, M::mul_add(whole, -LN_2_HIGH, x));
    let rest = polynomial::<M, 5>(r, [1.392_637_6e-3, 8.363_333e-3, 4.166_655_3e-2, 1.666_657_6e-1, 0.5]);
    (M::mul_add(r * r, rest, r), n)
}

/// e^x, within 1.1 units in the last place. A result below the least normal number is zero.
#[inline(always)]
pub fn exp<M: MulAdd>(x: f32) -> f32 {
    // The logarithms of the least and of the greatest normal number.
    const LEAST: f32 = -87.336_54;
    const GREATEST: f32 = 88.722_83;
    let (beyond_one, n) = exp_parts::<M>(x);
    // n goes to the exponent's bits: 2^n by itself may overflow although the product does not.
    let within = f32::from_bits((1.0 + beyond_one).to_bits().wrapping_add((n as u32) << 23));
    let or_zero = if x < LEAST { 0.0 } else { within };
    // Otherwise x is too great, or NaN; the product is infinity or NaN.
    if x <= GREATEST { or_zero } else { x * f32::INFINITY }
}

/// e^x - 1 for x from -30 to 80, without cancellation near zero.
#[inline(always)]
fn exp_m1_within<M: MulAdd>(x: f32) -> f32 {
    let (beyond_one, n) = exp_parts::<M>(x);
    let power = power_of_two(n);
    M::mul_add(beyond_one, power, power - 1.0)
}

/// e^x - 1, within 2 units in the last place.
#[inline(always)]
pub fn exp_m1<M: MulAdd>(x: f32) -> f32 {
    // Below -30, this is -1.
    let size = exp_m1_within::<M>(limited(x, -30.0, 80.0));
    let size = if x > 80.0 { exp::<M>(x) } else { size };
    signed_as(size, x)
}

/// 1 / (1 + e^-x), within 3 units in the last place.
#[inline(always)]
pub fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<M>(-x))
}

/// The hyperbolic tangent, within 3 units in the last place.
#[inline(always)]
pub fn tanh<M: MulAdd>(x: f32) -> f32 {
    // Beyond 10, the tangent is 1.
    let t = exp_m1_within::<M>(limited(2.0 * x.abs(), 0.0, 20.0));
    signed_as(t / (t + 2.0), x)
}

/// The error function, within 2 units in the last place.
#[inline(always)]
pub fn erf<M: MulAdd>(x: f32) -> f32 {
    // Beyond 4, it is 1.
    let size = limited(x.abs(), 0.0, 4.0);
    let near_zero =
        [7.875_875e-5, -8.016_864e-4, 5.189_087e-3, -2.685_421e-2, 1.128_359_4e-1, -3.761_262_6e-1, 1.283_791_7e-1];
    // One product: a part of the least float would be a denormal.
    let from_series = size * (1.0 + polynomial::<M, 7>(size * size, near_zero));
    // The difference from 1 is e to the power of a polynomial.
    let beyond = [
        1.637_151_4e-6,
        -4.605_804_5e-5,
        5.968_056_5e-4,
        -4.759_596e-3,
        2.642_113_5e-2,
        -1.100_800_9e-1,
        -6.318_260_4e-1,
        -1.130_233_4,
        3.201_380_6e-4,
    ];
    let (beyond_one, n) = exp_parts::<M>(polynomial::<M, 9>(size, beyond));
    let from_exp = 1.0 - (1.0 + beyond_one) * power_of_two(n);
    signed_as(if size < 1.0 { from_series } else { from_exp }, x)
}

/// The natural logarithm, within 1 unit in the last place. Denormals count as zero, as on all kernel threads.
#[inline(always)]
pub fn ln<M: MulAdd>(x: f32) -> f32 {
    // x = 2^n m with m between the root of a half and that of two.
    let shifted = x.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let n = ((shifted as i32) >> 23) as f32;
    let m = f32::from_bits((shifted & 0x7f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits()));
    let f = m - 1.0;
    let square = f * f;
    let near_one = [
        6.971_612e-2,
        -1.147_973_4e-1,
        1.168_542e-1,
        -1.242_568_7e-1,
        1.424_905_8e-1,
        -1.666_780_2e-1,
        2.000_071_6e-1,
        -2.499_999_7e-1,
        3.333_333e-1,
    ];
    let rest = polynomial::<M, 9>(f, near_one);
    let small = M::mul_add(f * square, rest, M::mul_add(n, LN_2_LOW, -0.5 * square));
    let finite = M::mul_add(n, LN_2_HIGH, f + small);
    let or_endless = if x < f32::INFINITY { finite } else { x };
    let or_zero = if x < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { or_endless };
    if x <= -f32::MIN_POSITIVE { f32::NAN } else { or_zero }
}

/// ln(1 + x), within 2 units in the last place.
#[inline(always)]
pub fn ln_1p<M: MulAdd>(x: f32) -> f32 {
    let sum = 1.0 + x;
    // The error of rounding the sum.
    let rest = x - (sum - 1.0);
    let whole = ln::<M>(sum);
    let finite = whole + rest / sum;
    let size = if x < f32::INFINITY && sum > 0.0 { finite } else { whole };
    if size == 0.0 { x } else { size }
}

/// ln(1 + e^x), within 8 units in the last place: as in TensorFlow, it is e^x, or x, beyond a limit.
#[inline(always)]
pub fn softplus<M: MulAdd>(x: f32) -> f32 {
    const LIMIT: f32 = 13.942_385;
    let power = exp::<M>(x);
    let size = if x < -LIMIT { power } else { ln_1p::<M>(power) };
    if x > LIMIT { x } else { size }
}

#[cfg(test)]
mod tests {
    use super::super::target::{RoundedOnce, RoundedTwice};
    use super::super::tests::{DENORMAL, units};
    use super::*;

    type M = RoundedOnce;

    #[test]
    fn functions_are_within_their_bounds_everywhere() {
        let check = |name: &str, functions: [fn(f32) -> f32; 2], exactly: fn(f64) -> f64, bound: f64| {
            // Every sign and exponent, with 257 mantissas each, and a finer walk where the arguments are usual.
            let all = (0..=u32::MAX >> 15).map(|bits| f32::from_bits(bits << 15 | bits & 0x7fff));
            let usual = (-16_000..16_000).map(|i| i as f32 / 1_000.3);
            for x in all.chain(usual).filter(|x| !x.is_subnormal()) {
                for function in functions {
                    let (got, want) = (function(x), exactly(f64::from(x)));
                    let off = units(got, want);
                    assert!(off <= bound, "{name}({x:?}) = {got:?}, not {want:?}: {off} units");
                }
            }
        };
        check("exp", [exp::<M>, exp::<RoundedTwice>], f64::exp, 1.1);
        check("tanh", [tanh::<M>, tanh::<RoundedTwice>], f64::tanh, 3.0);
        check("sigmoid", [sigmoid::<M>, sigmoid::<RoundedTwice>], |x| 1.0 / (1.0 + (-x).exp()), 3.0);
        check("ln", [ln::<M>, ln::<RoundedTwice>], f64::ln, 1.0);
        check("exp_m1", [exp_m1::<M>, exp_m1::<RoundedTwice>], f64::exp_m1, 2.0);
        check("ln_1p", [ln_1p::<M>, ln_1p::<RoundedTwice>], f64::ln_1p, 2.0);
        check("erf", [erf::<M>, erf::<RoundedTwice>], libm::erf, 2.0);
        check(
            "softplus",
            [softplus::<M>, softplus::<RoundedTwice>],
            |x| if x > 40.0 { x } else { x.exp().ln_1p() },
            8.0,
        );
    }

    #[test]
    fn whole_numbers_are_those_of_the_standard_library() {
        let halves = (-4000..4000).map(|i| i as f32 / 8.0);
        let all = (0..=u32::MAX >> 12).map(|bits| f32::from_bits(bits << 12 | bits & 0xfff));
        let near = [8_388_607.5f32, 8_388_608.0, 8_388_609.0, 4_194_303.5, 0.499_999_97, 1.0 - f32::EPSILON / 2.0];
        let near = near.into_iter().flat_map(|x| [x, -x]);
        for x in halves.chain(all).chain(near).filter(|x| !x.is_subnormal()) {
            for (got, want, name) in
                [(rint(x), x.round_ties_even(), "rint"), (floor(x), x.floor(), "floor"), (ceil(x), x.ceil(), "ceil")]
            {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{name}({x:?}) = {got:?}, not {want:?}");
            }
        }
    }

    #[test]
    fn the_ends_and_zeros_are_exact() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        // Argument, and the four functions of it.
        let rows = [
            (0.0, [1.0, 0.0, 0.5, -inf]),
            (-0.0, [1.0, -0.0, 0.5, -inf]),
            (inf, [inf, 1.0, 1.0, inf]),
            (-inf, [0.0, -1.0, 0.0, nan]),
            (nan, [nan, nan, nan, nan]),
            (-nan, [nan, nan, nan, nan]),
            (f32::MAX, [inf, 1.0, 1.0, 88.722_84]),
            (f32::MIN, [0.0, -1.0, 0.0, nan]),
            (f32::MIN_POSITIVE, [1.0, f32::MIN_POSITIVE, 0.5, -87.336_55]),
            (1.0, [std::f32::consts::E, 0.761_594_2, 0.731_058_6, 0.0]),
        ];
        for (x, want) in rows {
            for ((got, want), name) in [exp::<M>(x), tanh::<M>(x), sigmoid::<M>(x), ln::<M>(x)]
                .into_iter()
                .zip(want)
                .zip(["exp", "tanh", "sigmoid", "ln"])
            {
                let same =
                    if want == 0.0 { got.to_bits() == want.to_bits() } else { units(got, f64::from(want)) <= 2.0 };
                assert!(same, "{name}({x:?}) = {got:?}, not {want:?}");
            }
        }
        // On both sides of the limits of e^x.
        for (within, beyond, want) in [(88.722_83f32, 88.722_84, inf), (-87.336_54, -87.336_55, 0.0)] {
            assert!(units(exp::<M>(within), f64::from(within).exp()) <= 1.1, "{within}");
            assert!(exp::<M>(within).is_normal() && exp::<M>(beyond) == want, "{within}");
        }
        for x in [DENORMAL, -DENORMAL] {
            assert_eq!((exp::<M>(x), sigmoid::<M>(x), ln::<M>(x)), (1.0, 0.5, -inf));
            assert!(tanh::<M>(x) == x || tanh::<M>(x) == 0.0, "a denormal is its own tangent, or zero");
            assert_eq!(tanh::<M>(x).is_sign_negative(), x.is_sign_negative());
        }
    }
}
