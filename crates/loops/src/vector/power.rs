//! Powers of float32. The logarithm, its product and the exponential are computed in float64, since the error of the result
//! grows with the logarithm.
//!
//! As in C, and so in TensorFlow: 1 to any power and anything to the power 0 is 1, even for NaN; a negative number has powers
//! with whole exponents only. Denormals count as zero.

use super::target::MulAdd;
use super::walk::Two;

/// Adding this rounds a double of less than 2^51 to a whole number, which is then in the lowest bits of the sum.
const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// Floats from here on are even.
const EVEN: f64 = 16_777_216.0;

/// x^y, within 0.51 units in the last place.
#[derive(Clone, Copy)]
pub struct Power;

impl Two for Power {
    const WORK: usize = 32;

    #[inline(always)]
    fn of<M: MulAdd>(self, x: f32, y: f32) -> f32 {
        let size = x.abs();
        let size = if size < f32::MIN_POSITIVE { 0.0 } else { size };
        let exponent = if y.abs() < f32::MIN_POSITIVE { 0.0 } else { f64::from(y) };
        let power = exp2(exponent * log2(size)) as f32;
        // Zero times infinity would give NaN for these.
        let power = if size == 1.0 && !y.is_nan() { 1.0 } else { power };
        let whole = (exponent + ROUNDER) - ROUNDER == exponent || exponent.abs() >= EVEN;
        let half = 0.5 * exponent;
        let is_odd = whole && (half + ROUNDER) - ROUNDER != half && exponent.abs() < EVEN;
        let is_negative = x.is_sign_negative();
        let power = if is_negative && is_odd { -power } else { power };
        let has_none = is_negative && !whole && size > 0.0 && size < f32::INFINITY;
        let power = if has_none { f32::NAN } else { power };
        if exponent == 0.0 || x == 1.0 { 1.0 } else { power }
    }
}

/// The logarithm to base 2 of a number that is not negative.
#[inline(always)]
fn log2(x: f32) -> f64 {
    // x = 2^n m with m between the root of a half and that of two.
    let shifted = x.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let n = f64::from((shifted as i32) >> 23);
    let m = f64::from(f32::from_bits((shifted & 0x7f_ffff).wrapping_add(std::f32::consts::FRAC_1_SQRT_2.to_bits())));
    // ln m = 2 artanh s
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let high = ((0.243_176_518_655_495 * square + 0.261_421_800_909_125_2) * square + 0.320_617_115_683_062_8) * square;
    let middle = ((high + 0.412_198_391_038_823_3) * square + 0.577_078_017_324_422_4) * square;
    let finite = n + s * ((middle + 0.961_796_693_924_124_6) * square + 2.885_390_081_777_927);
    let or_endless = if x < f32::INFINITY { finite } else { f64::from(x) };
    if x == 0.0 { f64::NEG_INFINITY } else { or_endless }
}

/// 2^x; infinity or zero if x is beyond the exponents of a float.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    let x = if x < -300.0 { -300.0 } else { x };
    let x = if x > 300.0 { 300.0 } else { x };
    let rounded = x + ROUNDER;
    let r = x - (rounded - ROUNDER);
    let n = rounded.to_bits().wrapping_sub(ROUNDER.to_bits());
    let scale = f64::from_bits(n.wrapping_add(1023) << 52);
    let high = ((1.325_080_343_626_900_5e-6 * r + 1.530_370_070_846_582e-5) * r + 1.540_347_519_731_044e-4) * r;
    let middle = ((high + 1.333_347_847_366_321e-3) * r + 9.618_129_135_219_703e-3) * r + 5.550_410_906_325_925e-2;
    let rest = (middle * r + 0.240_226_506_958_885_67) * r + 0.693_147_180_556_832_4;
    (1.0 + r * rest) * scale
}

#[cfg(test)]
mod tests {
    use super::super::target::RoundedOnce;
    use super::super::tests::{DENORMAL, units};
    use super::*;

    #[test]
    fn powers_are_within_their_bound_everywhere() {
        let bases = (0..1 << 9).map(|i| f32::from_bits(i << 22 | ((0x12_345 * i) & 0x3f_ffff)));
        let exponents = [0.5, -0.5, 1.0, -1.0, 1.5, 2.0, 2.2, 3.0, -3.0, 7.3, -20.25, 0.001, 100.0, 1e-30, 1e30, -1e30];
        for x in bases.filter(|x| !x.is_subnormal()) {
            for y in exponents {
                for x in [x, -x] {
                    let (got, want) = (Power.of::<RoundedOnce>(x, y), f64::from(x).powf(f64::from(y)));
                    let off = units(got, want);
                    assert!(off <= 0.51, "{x:?}^{y:?} = {got:?}, not {want:?}: {off} units");
                }
            }
        }
        // Near 1, where a small error of the logarithm is a large error of the power.
        for i in -2000..2000 {
            let (x, y) = (1.0 + i as f32 / 65_536.0, 9_000.0 + i as f32);
            assert!(units(Power.of::<RoundedOnce>(x, y), f64::from(x).powf(f64::from(y))) <= 0.51, "{x:?}^{y:?}");
        }
    }

    #[test]
    fn special_powers_are_those_of_c() {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            -2.0,
            0.5,
            -0.5,
            3.0,
            -3.0,
            16_777_215.0,
            -16_777_215.0,
            16_777_216.0,
            1e38,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
        ];
        let check = |x: f32, y: f32, want: f32| {
            let got = Power.of::<RoundedOnce>(x, y);
            let same = if want.is_nan() { got.is_nan() } else { got.to_bits() == want.to_bits() };
            // A result between the smallest normal float and zero counts as zero when kernels run.
            assert!(same || want.is_subnormal(), "{x:?}^{y:?} = {got:?}, not {want:?}");
        };
        for x in special {
            for y in special {
                check(x, y, x.powf(y));
            }
            check(x, DENORMAL, 1.0);
        }
        check(DENORMAL, 2.0, 0.0);
        check(-DENORMAL, -3.0, f32::NEG_INFINITY);
    }
}
