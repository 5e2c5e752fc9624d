//! Conversion of numbers from one type to another.

use super::cut::{Cut, Places, anew};
use super::target::{Work, widest};

/// A number that converts to another type as TensorFlow's Cast does.
pub trait To<R>: Copy + Sync {
    /// To be inlined always.
    fn to(self) -> R;
}

macro_rules! conversions {
    ($($from:ty => $to:ty: |$x:ident| $body:expr;)*) => {
        $(impl To<$to> for $from {
            #[inline(always)]
            fn to(self) -> $to {
                let $x = self;
                $body
            }
        })*
    };
}

// Floats that do not fit, and NaN, give the result of the processor's own conversion: the least integer.
conversions! {
    bool => f32: |x| if x { 1.0 } else { 0.0 };
    u8 => f32: |x| f32::from(x);
    i32 => f32: |x| x as f32;
    i64 => f32: |x| x as f32;
    f64 => f32: |x| x as f32;
    f32 => f64: |x| f64::from(x);
    f32 => bool: |x| x != 0.0;
    f32 => i32: |x| truncated(x);
    f32 => i64: |x| if (-TWO_TO_63..TWO_TO_63).contains(&x) { x as i64 } else { i64::MIN };
    // By way of int32, of which the lowest bits are kept.
    f32 => u8: |x| To::<i32>::to(x) as u8;
}

/// A float without its fraction, by its bits: a loop over Rust's own conversion is not vectorised.
#[inline(always)]
fn truncated(x: f32) -> i32 {
    // The greatest biased exponent of a float below 2^31.
    const HIGHEST: u32 = 127 + 30;
    let bits = x.to_bits();
    let exponent = bits >> 23 & 0xff;
    let highest = (bits & 0x7f_ffff | 0x80_0000) << 7;
    let size = (highest >> HIGHEST.saturating_sub(exponent).min(31)) as i32;
    let signed = if bits >> 31 == 1 { -size } else { size };
    if exponent > HIGHEST { i32::MIN } else { signed }
}

#[cfg(test)]
const TWO_TO_31: f32 = 2_147_483_648.0;
const TWO_TO_63: f32 = 9_223_372_036_854_775_808.0;

struct Conversion<'a, 'p, T, R> {
    to: &'a mut Places<'p, R>,
    from: &'a [T],
}

impl<T: To<R>, R: Copy> Work for Conversion<'_, '_, T, R> {
    #[inline(always)]
    fn run(self) {
        let from = self.from;
        self.to.map(from, |x| x.to());
    }
}

/// Each of the numbers as one of the other type.
pub fn converted<T: To<R>, R: Copy + Send>(from: &[T]) -> Vec<R> {
    anew(from.len(), Cut::ANYWHERE, |at, to| widest(Conversion { from: &from[at..][..to.left()], to }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_what_is_no_number() {
        // 2^31 - 128 and 2^63 - 2^39 are the greatest floats that fit.
        let floats =
            [0.0, -0.0, 1.9, -1.9, 2_147_483_520.0, TWO_TO_31, -TWO_TO_31, f32::NAN, f32::INFINITY, 300.7, -1.5];
        let least = i32::MIN;
        let ints = [0, 0, 1, -1, 2_147_483_520, least, least, least, least, 300, -1];
        assert_eq!(converted::<f32, i32>(&floats), ints);
        // The lowest 8 of 32 bits.
        assert_eq!(converted::<f32, u8>(&floats), [0, 0, 1, 255, 128, 0, 0, 0, 0, 44, 255]);
        let is_some = [false, false, true, true, true, true, true, true, true, true, true];
        assert_eq!(converted::<f32, bool>(&floats), is_some);
        let long = [9_223_371_487_098_961_920.0, TWO_TO_63, -TWO_TO_63, f32::NAN, f32::NEG_INFINITY, -2.5, 4e9];
        let (most, least) = (9_223_371_487_098_961_920, i64::MIN);
        assert_eq!(converted::<f32, i64>(&long), [most, least, least, least, least, -2, 4_000_000_000]);
        // Ties round to even, once.
        assert_eq!(
            converted::<i32, f32>(&[16_777_217, 16_777_219, i32::MIN, -7]),
            [16_777_216.0, 16_777_220.0, -TWO_TO_31, -7.0]
        );
        let near = (1i64 << 62) + (1 << 38) + 1;
        assert_eq!(
            converted::<i64, f32>(&[near, i64::MIN, i64::MAX, 3]),
            [(1u64 << 62) as f32 + (1u64 << 39) as f32, -TWO_TO_63, TWO_TO_63, 3.0]
        );
        assert_eq!(converted::<f64, f32>(&[1.0 + 2f64.powi(-24), 1e39, -0.0]), [1.0, f32::INFINITY, 0.0]);
        assert_eq!(converted::<f32, f64>(&[0.1, f32::MAX]), [0.100_000_001_490_116_12, 3.402_823_466_385_288_6e38]);
        assert_eq!(converted::<u8, f32>(&[0, 255, 7]), [0.0, 255.0, 7.0]);
        assert_eq!(converted::<bool, f32>(&[true, false]), [1.0, 0.0]);
    }

    #[test]
    fn floats_of_every_exponent_lose_their_fractions() {
        for bits in (0..=u32::MAX >> 12).map(|bits| bits << 12 | bits & 0xfff) {
            let x = f32::from_bits(bits);
            let want = if (-TWO_TO_31..TWO_TO_31).contains(&x) { x as i32 } else { i32::MIN };
            assert_eq!(truncated(x), want, "{x:?}");
        }
    }

    #[test]
    fn every_number_is_converted_however_many_there_are() {
        for count in [0, 1, 33, (1 << 18) - 1, (1 << 18) + 1, (1 << 20) + 77] {
            let ints: Vec<i32> = (0..count).map(|i: i32| i.wrapping_mul(7919) % 100_003 - 50_000).collect();
            let floats = converted::<i32, f32>(&ints);
            assert!(floats.iter().zip(&ints).all(|(x, &i)| f64::from(*x) == f64::from(i)), "{count}");
            assert!(converted::<f32, i32>(&floats) == ints && floats.len() == ints.len(), "{count}");
            let flags: Vec<bool> = ints.iter().map(|i| i % 3 == 0).collect();
            let want = flags.iter().map(|&flag| f32::from(flag));
            assert!(converted::<bool, f32>(&flags).into_iter().eq(want), "{count}");
        }
    }
}
