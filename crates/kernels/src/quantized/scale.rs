//! The arithmetic of ranges: which real number an integer stands for, and the other way round.
//!
//! TensorFlow computes this in two ways that differ in the last bits: number by number in float64 ([`Range`]), and for whole
//! tensors in float32 ([`ToReal`], [`FromReal`]). Each op uses the one that TensorFlow's kernel uses.

use std::marker::PhantomData;

use meshtf_tensor::Integer;

/// The real numbers that the least and the greatest integer stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub min: f32,
    pub max: f32,
}

/// The number of integers of a type.
fn steps<T: Integer>() -> f64 {
    2f64.powi(T::BITS as i32)
}

impl Range {
    /// The real number that an integer stands for.
    #[inline]
    pub fn real<T: Integer>(self, x: T) -> f32 {
        if self.min == self.max {
            return self.min;
        }
        let scale = self.width::<T>() / steps::<T>();
        let offset = x.to_i64() as f64 - T::LOWEST.to_i64() as f64;
        let min = (self.min / scale as f32).round() * scale as f32;
        (f64::from(min) + offset * scale) as f32
    }

    /// The integer that stands for a real number, which may be out of the range of `T`.
    #[inline]
    pub fn whole<T: Integer>(self, x: f32) -> i64 {
        let lowest = T::LOWEST.to_i64();
        if self.min == self.max {
            return lowest;
        }
        let scale = steps::<T>() / self.width::<T>();
        let whole = (f64::from(x) * scale).round() - (f64::from(self.min) * scale).round();
        long(whole).wrapping_add(lowest)
    }

    /// The integer that stands for a real number, or the nearest that there is.
    #[inline]
    pub fn quantized<T: Integer>(self, x: f32) -> T {
        T::from_i64(self.whole::<T>(x).clamp(T::LOWEST.to_i64(), T::HIGHEST.to_i64()))
    }

    /// The integer zero point, as an int32.
    pub fn zero<T: Integer>(self) -> i32 {
        self.whole::<T>(0.0) as i32
    }

    /// An integer as one of another range.
    #[inline]
    pub fn requantized<A: Integer, B: Integer>(self, x: A, to: Range) -> B {
        to.quantized(self.real(x))
    }

    /// The difference between the numbers that neighbouring integers stand for.
    fn level<T: Integer>(self) -> f32 {
        (self.max - self.min) / (T::HIGHEST.to_i64() - T::LOWEST.to_i64()) as f32
    }

    /// The range of products, as `C`, of an `A` of one range and a `B` of another.
    pub fn of_product<A: Integer, B: Integer, C: Integer>(a: Range, b: Range) -> Range {
        let level = a.level::<A>() * b.level::<B>();
        Range { min: level * C::LOWEST.to_i64() as f32, max: level * C::HIGHEST.to_i64() as f32 }
    }

    /// The distance that the integers cover, of which each takes one step.
    fn width<T: Integer>(self) -> f64 {
        f64::from(self.max - self.min) * (steps::<T>() / (steps::<T>() - 1.0))
    }
}

/// From integers to real numbers, in float32.
#[derive(Clone, Copy)]
pub struct ToReal {
    first: f32,
    scale: f32,
}

impl ToReal {
    pub fn new<T: Integer>(range: Range) -> ToReal {
        let Range { min, max } = range;
        let scale = (f64::from(max - min) / (steps::<T>() - 1.0)) as f32;
        let rounded = if max == min { min } else { (min / scale).round() * scale };
        ToReal { first: rounded - T::LOWEST.to_i64() as f32 * scale, scale }
    }

    #[inline]
    pub fn real<T: Integer>(self, x: T) -> f32 {
        self.first + x.to_i64() as f32 * self.scale
    }
}

/// From real numbers to integers, in float32.
#[derive(Clone, Copy)]
pub struct FromReal<T> {
    scale: f32,
    /// The integer of 0, with the other sign.
    shift: f32,
    lowest: f32,
    highest: f32,
    of: PhantomData<T>,
}

impl<T: Integer> FromReal<T> {
    pub fn new(range: Range) -> FromReal<T> {
        let Range { min, max } = range;
        let scale = if max == min { 0.0 } else { ((steps::<T>() - 1.0) / f64::from(max - min)) as f32 };
        let lowest = T::LOWEST.to_i64() as f32;
        // The greatest int32 is no float32, and the next one is out of range.
        let highest = (T::HIGHEST.to_i64() as f32).min(2_147_483_520.0);
        FromReal { scale, shift: (min * scale).round() - lowest, lowest, highest, of: PhantomData }
    }

    #[inline]
    pub fn quantized(self, x: f32) -> T {
        let whole = (x * self.scale).round() - self.shift;
        truncated(least(most(whole, self.lowest), self.highest))
    }
}

/// The lesser of two numbers: the first if either is NaN.
#[inline]
pub fn least(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

/// The greater of two numbers: the first if either is NaN.
#[inline]
pub fn most(a: f32, b: f32) -> f32 {
    if a < b { b } else { a }
}

/// The integer part of a number; the least int64 if it is out of range, as processors convert.
#[inline]
fn long(x: f64) -> i64 {
    if x >= i64::MIN as f64 && x < -(i64::MIN as f64) { x as i64 } else { i64::MIN }
}

/// The integer part of a number as an int32, of which `T` has the lowest bits; the least int32 if it is out of range.
#[inline]
pub fn truncated<T: Integer>(x: f32) -> T {
    let whole = if x >= i32::MIN as f32 && x < -(i32::MIN as f32) { x as i32 } else { i32::MIN };
    T::from_i64(i64::from(whole))
}

/// From integers of one range to those of another, in float32.
pub fn between<A: Integer, B: Integer>(from: Range, to: Range) -> impl Fn(A) -> B {
    let (real, whole) = (ToReal::new::<A>(from), FromReal::<B>::new(to));
    move |x| whole.quantized(real.real(x))
}

/// From the int32s of one range to the uint8s of another, with fixed-point numbers of 16 bits after the point.
pub fn down(from: Range, to: Range) -> impl Fn(i32) -> u8 {
    const POINT: f64 = 65_536.0;
    let (width, new_width) = (from.max - from.min, to.max - to.min);
    let centre = (f64::from(from.min + from.max) / 2.0) as f32;
    let (scale, first, new_first) = match new_width == 0.0 {
        true => (0, 0, 0),
        false => (
            long(255.0 * POINT * f64::from(width) / f64::from(new_width)),
            long(f64::from(centre * (255.0 / f64::from(new_width)) as f32 * POINT as f32)),
            long(POINT * (f64::from(to.min) * 255.0) / f64::from(new_width)),
        ),
    };
    let first = first.wrapping_sub(new_first).wrapping_add(1 << 15);
    move |x| {
        let fixed = (i64::from(x).wrapping_mul(scale) >> 32).wrapping_add(first);
        (fixed >> 16).clamp(0, 255) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_its_least_and_greatest_integers() {
        let range = Range { min: -1.0, max: 1.0 };
        assert_eq!((range.quantized::<u8>(-1.0), range.quantized::<u8>(1.0)), (0, 255));
        assert_eq!((range.quantized::<i8>(-7.0), range.quantized::<i8>(7.0)), (-128, 127));
        assert_eq!(FromReal::<u8>::new(range).quantized(1.0), 255);
        // 127.5 steps below 0 are rounded to 128.
        assert_eq!(range.zero::<u8>(), 128);
        assert_eq!(Range { min: 0.0, max: 255.0 }.real(128u8), 128.0);
        assert_eq!(Range { min: 3.0, max: 3.0 }.real(9u8), 3.0);
    }

    #[test]
    fn numbers_that_no_integer_is_near_do_not_overflow() {
        assert_eq!(long(f64::NAN), i64::MIN);
        assert_eq!(long(1e300), i64::MIN);
        assert_eq!(truncated::<i32>(f32::INFINITY), i32::MIN);
        assert_eq!(truncated::<u8>(259.9), 3);
        let wild = Range { min: f32::NAN, max: f32::INFINITY };
        let _ =
            (wild.quantized::<i8>(1.0), wild.real(1i8), down(wild, wild)(i32::MIN), between::<i32, u8>(wild, wild)(7));
    }
}
