//! Sine, cosine, tangent and arctangent of float32, without a branch or a table, so that a loop over them can be vectorised.
//!
//! All of it is computed in float64: subtracting multiples of a right angle from an argument cancels most of its digits, and
//! the remainder still has more than the precision of float32. The polynomials interpolate their functions at Chebyshev
//! points of the interval.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, PI};

use super::functions::signed_as;

/// Greatest magnitude of an argument of [`sin`], [`cos`] and [`tan`]: their multiples of a right angle are exact up to this
/// one.
pub const LARGEST: f32 = 1_048_576.0;

/// Adding this rounds a float64 of less than 2^51 to a whole number, which is then in the lowest bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// A right angle in two parts: the first has 33 bits, so that its products with numbers of 20 bits are exact.
const RIGHT_HIGH: f64 = 1.570_796_326_734_125_6;
const RIGHT_LOW: f64 = 6.077_100_506_506_192e-11;

/// A polynomial, by its coefficients, highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    coefficients.into_iter().reduce(|sum, coefficient| sum * x + coefficient).unwrap_or(0.0)
}

/// Sine and cosine of the remainder of an angle after a multiple of a right angle, at most half a right angle; and that
/// multiple.
#[inline(always)]
fn parts(x: f32) -> ([f64; 2], u32) {
    let x = f64::from(x);
    let rounded = x * FRAC_2_PI + ROUNDER;
    let count = rounded - ROUNDER;
    let rest = (x - count * RIGHT_HIGH) - count * RIGHT_LOW;
    let square = rest * rest;
    let beyond_rest = polynomial(
        square,
        [2.724_931_436_041_68e-6, -1.984_008_201_501_512_8e-4, 8.333_331_865_963_796e-3, -1.666_666_666_383_277_6e-1],
    );
    let beyond_one = polynomial(
        square,
        [
            2.446_311_703_806_160_8e-5,
            -1.388_758_397_341_132_6e-3,
            4.166_665_054_848_831e-2,
            -4.999_999_996_887_210_5e-1,
        ],
    );
    ([rest + rest * square * beyond_rest, 1.0 + square * beyond_one], rounded.to_bits() as u32)
}

/// The sine of an angle of `rights` right angles plus the remainder.
#[inline(always)]
fn turned([sine, cosine]: [f64; 2], rights: u32) -> f32 {
    let size = if rights & 1 == 0 { sine } else { cosine };
    (if rights & 2 == 0 { size } else { -size }) as f32
}

/// The sine of an angle up to [`LARGEST`], within 0.51 units in the last place.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    let (of_rest, rights) = parts(x);
    let sine = turned(of_rest, rights);
    // The sum of zeros of both signs would not be minus zero.
    if x == 0.0 { x } else { sine }
}

/// The cosine of an angle up to [`LARGEST`], within 0.51 units in the last place.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    let (of_rest, rights) = parts(x);
    turned(of_rest, rights.wrapping_add(1))
}

/// The tangent of an angle up to [`LARGEST`], within 0.51 units in the last place.
#[inline(always)]
pub fn tan(x: f32) -> f32 {
    let ([sine, cosine], rights) = parts(x);
    let is_turned = rights & 1 == 1;
    let (over, under) = (if is_turned { -cosine } else { sine }, if is_turned { sine } else { cosine });
    let tangent = (over / under) as f32;
    if x == 0.0 { x } else { tangent }
}

/// The angle from the first axis to the point (x, y), from -pi to pi, within 0.51 units in the last place. Zeros and infinities
/// count by their signs, as in C's `atan2`.
#[inline(always)]
pub fn atan2(y: f32, x: f32) -> f32 {
    /// The tangent of pi / 8.
    const EIGHTH: f64 = 0.414_213_562_373_095_03;
    let (across, up) = (f64::from(x.abs()), f64::from(y.abs()));
    let is_steep = up > across;
    let (less, more) = if is_steep { (across, up) } else { (up, across) };
    // From 0 to pi / 4; the upper half is computed from pi / 4 on.
    let is_far = less > EIGHTH * more || less == f64::INFINITY;
    let from_quarter = if less == more { 0.0 } else { less - more };
    let (over, under) = if is_far { (from_quarter, less + more) } else { (less, more) };
    // A choice of divisors, not of quotients, needs no branch around the division.
    let tangent = over / if more == 0.0 { 1.0 } else { under };
    let square = tangent * tangent;
    let beyond = polynomial(
        square,
        [
            5.046_128_167_603_517e-2,
            -8.623_896_669_600_505e-2,
            1.107_126_044_431_376_7e-1,
            -1.428_414_554_827_377_3e-1,
            1.999_997_715_397_420_6e-1,
            -3.333_333_327_895_157_6e-1,
        ],
    );
    let low = tangent + tangent * square * beyond + if is_far { FRAC_PI_4 } else { 0.0 };
    let steep = if is_steep { FRAC_PI_2 - low } else { low };
    // NaN is in the tangent already.
    signed_as((if x.is_sign_negative() { PI - steep } else { steep }) as f32, y)
}

/// The angle between -pi / 2 and pi / 2 that has this tangent, within 0.51 units in the last place.
#[inline(always)]
pub fn atan(x: f32) -> f32 {
    atan2(x, 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::units;
    use super::*;

    /// Every sign and exponent, with 257 mantissas each, and a finer walk where the arguments are usual.
    fn arguments() -> impl Iterator<Item = f32> {
        let all = (0..=u32::MAX >> 15).map(|bits| f32::from_bits(bits << 15 | bits & 0x7fff));
        let usual = (-40_000..40_000).map(|i| i as f32 / 1_000.3);
        // Multiples of a right angle, where most digits cancel.
        let rights = (0..600_000).step_by(7).map(|i| (f64::from(i) * FRAC_PI_2) as f32);
        all.chain(usual).chain(rights).filter(|x| !x.is_subnormal())
    }

    #[test]
    fn functions_are_within_their_bounds_everywhere() {
        let check = |name: &str, function: fn(f32) -> f32, exactly: fn(f64) -> f64, largest: f32| {
            for x in arguments().filter(|x| x.is_nan() || x.abs() <= largest) {
                let (got, want) = (function(x), exactly(f64::from(x)));
                let off = units(got, want);
                assert!(off <= 0.51, "{name}({x:?}) = {got:?}, not {want:?}: {off} units");
            }
        };
        check("sin", sin, f64::sin, LARGEST);
        check("cos", cos, f64::cos, LARGEST);
        check("tan", tan, f64::tan, LARGEST);
        check("atan", atan, f64::atan, f32::INFINITY);
    }

    #[test]
    fn angles_of_points_are_those_of_c() {
        let special = [0.0, 1.0, 3.5, 1e-30, 1e30, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
        let usual = (1..200).map(|i| (i * i) as f32 / 77.7);
        let all: Vec<f32> = special.into_iter().chain(usual).flat_map(|x| [x, -x]).collect();
        for (&y, &x) in all.iter().flat_map(|y| all.iter().map(move |x| (y, x))) {
            let (got, want) = (atan2(y, x), f64::from(y).atan2(f64::from(x)));
            assert!(units(got, want) <= 0.51, "atan2({y:?}, {x:?}) = {got:?}, not {want:?}");
            let same_zero = want != 0.0 || got.is_sign_negative() == want.is_sign_negative();
            assert!(same_zero, "atan2({y:?}, {x:?}) = {got:?}, not {want:?}");
        }
    }

    #[test]
    fn zeros_keep_their_signs() {
        for zero in [0.0f32, -0.0] {
            for got in [sin(zero), tan(zero), atan(zero)] {
                assert_eq!(got.to_bits(), zero.to_bits());
            }
            assert_eq!(cos(zero), 1.0);
        }
    }
}
