//! The Rust types of elements, and macros that write code once for several of them.

use std::ops::{Add, Div, Mul, Neg, Sub};

use half::{bf16, f16};
use num_complex::Complex;

use super::{DType, Data};

/// A Rust type that is an element type.
pub trait Element: Clone + PartialEq + Send + Sync + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// The elements, if they are of this type.
    fn slice(data: &Data) -> Option<&[Self]>;
    /// The elements for writing, if they are of this type.
    fn vec_mut(data: &mut Data) -> Option<&mut Vec<Self>>;
    /// Takes the elements out, if they are of this type.
    fn from_data(data: Data) -> Option<Vec<Self>>;
    /// The elements of a tensor of this dtype.
    fn into_data(elements: Vec<Self>) -> Data;
}

/// The types that can be added and multiplied: integers, floats and complex numbers. Integer arithmetic wraps, as in
/// TensorFlow's kernels.
pub trait Ring: Element + Copy + Default {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The sum.
    fn add(self, other: Self) -> Self;
    /// The difference: `self - other`.
    fn sub(self, other: Self) -> Self;
    /// The product.
    fn mul(self, other: Self) -> Self;
    /// The value with the other sign.
    fn neg(self) -> Self;
}

/// Integers and floats.
pub trait Numeric: Ring + PartialOrd {
    /// The least value; minus infinity for floats.
    const LOWEST: Self;
    /// The greatest value; infinity for floats.
    const HIGHEST: Self;
    /// Like Rust's `as`: the nearest `f64`.
    fn to_f64(self) -> f64;
    /// Like Rust's `as`: saturating from a float to an integer.
    fn from_f64(value: f64) -> Self;
    /// Like Rust's `as`: wrapping between integers, saturating from a float.
    fn to_i64(self) -> i64;
    /// Like Rust's `as`.
    fn from_i64(value: i64) -> Self;
}

/// float16, bfloat16, float32 and float64. Half floats are computed in f32 and rounded after each operation.
pub trait Float:
    Numeric + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// Applies a function of f32 or f64, whichever holds this type exactly.
    fn map(self, narrow: impl Fn(f32) -> f32, wide: impl Fn(f64) -> f64) -> Self;
}

/// The integer types.
pub trait Integer: Numeric + Ord + Eq + std::hash::Hash {
    /// Number of bits, including the sign bit.
    const BITS: u32;
    /// The quotient, rounded towards 0; `None` if `other` is 0 or the quotient is not in range.
    fn checked_div(self, other: Self) -> Option<Self>;
    /// The remainder, with the sign of `self`; `None` if `other` is 0 or the quotient is not in range.
    fn checked_rem(self, other: Self) -> Option<Self>;
    /// The quotient, rounded towards 0; the least value by -1 is itself.
    ///
    /// # Panics
    /// If `other` is 0.
    fn wrapping_div(self, other: Self) -> Self;
    /// The remainder, with the sign of `self`; that of the least value by -1 is 0.
    ///
    /// # Panics
    /// If `other` is 0.
    fn wrapping_rem(self, other: Self) -> Self;
    /// Bitwise and.
    fn and(self, other: Self) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(self, other: Self) -> Self;
    /// Bitwise complement.
    fn not(self) -> Self;
    /// The power, truncated to the lowest [`BITS`](Integer::BITS) bits.
    fn wrapping_pow(self, exponent: u32) -> Self;
}

macro_rules! element {
    ($($type:ty => $variant:ident),*; $($stored:ty => $quantized:ident),*) => {
        $(impl Element for $type {
            const DTYPE: DType = DType::$variant;
            #[inline]
            fn slice(data: &Data) -> Option<&[Self]> {
                if let Data::$variant(v) = data { Some(v) } else { None }
            }
            #[inline]
            fn vec_mut(data: &mut Data) -> Option<&mut Vec<Self>> {
                if let Data::$variant(v) = data { Some(v) } else { None }
            }
            #[inline]
            fn from_data(data: Data) -> Option<Vec<Self>> {
                if let Data::$variant(v) = data { Some(v) } else { None }
            }
            #[inline]
            fn into_data(elements: Vec<Self>) -> Data {
                Data::$variant(elements)
            }
        })*

        impl Data {
            /// The dtype of the elements.
            #[inline]
            pub fn dtype(&self) -> DType {
                match self {
                    $(Data::$variant(_) => DType::$variant,)*
                    $(Data::$quantized(_) => DType::$quantized,)*
                }
            }

            /// Number of elements.
            #[inline]
            pub fn len(&self) -> usize {
                match self {
                    $(Data::$variant(v) => v.len(),)*
                    $(Data::$quantized(v) => v.len(),)*
                }
            }

            /// Whether there are no elements.
            #[inline]
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// `n` zeros; false for bool, the empty string for strings.
            ///
            /// # Panics
            /// For [`DType::Resource`] and [`DType::Variant`], whose values are never host tensors.
            #[inline]
            pub fn zeros(dtype: DType, n: usize) -> Data {
                match dtype {
                    $(DType::$variant => Data::$variant(vec![Default::default(); n]),)*
                    $(DType::$quantized => Data::$quantized(vec![0; n]),)*
                    DType::Resource | DType::Variant => panic!("a {dtype} is not a host tensor"),
                }
            }
        }
    };
}

element! {
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    bool => Bool, Vec<u8> => String, Complex<f32> => C64, Complex<f64> => C128;
    i8 => QI8, u8 => QU8, i16 => QI16, u16 => QU16, i32 => QI32
}

macro_rules! bytes_of {
    ($self:expr, $cast:path, $data:ident => $string:expr, $bool:expr) => {
        match $self {
            $data::F16(v) => Some($cast(v)),
            $data::BF16(v) => Some($cast(v)),
            $data::F32(v) => Some($cast(v)),
            $data::F64(v) => Some($cast(v)),
            $data::I8(v) | $data::QI8(v) => Some($cast(v)),
            $data::I16(v) | $data::QI16(v) => Some($cast(v)),
            $data::I32(v) | $data::QI32(v) => Some($cast(v)),
            $data::I64(v) => Some($cast(v)),
            $data::U8(v) | $data::QU8(v) => Some($cast(v)),
            $data::U16(v) | $data::QU16(v) => Some($cast(v)),
            $data::U32(v) => Some($cast(v)),
            $data::U64(v) => Some($cast(v)),
            $data::C64(v) => Some($cast(v)),
            $data::C128(v) => Some($cast(v)),
            $data::Bool(v) => $bool(v),
            $data::String(_) => $string,
        }
    };
}

impl Data {
    /// The elements as bytes in this machine's order (little-endian on every supported machine); `None` for strings.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        bytes_of!(self, bytemuck::cast_slice, Data => None, |v| Some(bytemuck::cast_slice::<bool, u8>(v)))
    }

    /// The elements as bytes to be filled in; `None` for strings, and for bool, for which not every byte is valid.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        bytes_of!(self, bytemuck::cast_slice_mut, Data => None, |_| None)
    }
}

#[cfg(target_endian = "big")]
compile_error!("meshtf sends tensors as they lie in memory and needs a little-endian machine");

macro_rules! integer {
    ($($type:ty),*) => {
        $(impl Ring for $type {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            fn neg(self) -> Self { self.wrapping_neg() }
        }
        impl Numeric for $type {
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            #[inline]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline]
            fn from_f64(value: f64) -> Self { value as $type }
            #[inline]
            fn to_i64(self) -> i64 { self as i64 }
            #[inline]
            fn from_i64(value: i64) -> Self { value as $type }
        }
        impl Integer for $type {
            const BITS: u32 = <$type>::BITS;
            #[inline]
            fn checked_div(self, other: Self) -> Option<Self> { self.checked_div(other) }
            #[inline]
            fn checked_rem(self, other: Self) -> Option<Self> { self.checked_rem(other) }
            #[inline]
            fn wrapping_div(self, other: Self) -> Self { self.wrapping_div(other) }
            #[inline]
            fn wrapping_rem(self, other: Self) -> Self { self.wrapping_rem(other) }
            #[inline]
            fn and(self, other: Self) -> Self { self & other }
            #[inline]
            fn or(self, other: Self) -> Self { self | other }
            #[inline]
            fn xor(self, other: Self) -> Self { self ^ other }
            #[inline]
            fn not(self) -> Self { !self }
            #[inline]
            fn wrapping_pow(self, exponent: u32) -> Self { self.wrapping_pow(exponent) }
        })*
    };
}

integer!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! float {
    ($($type:ty, $zero:expr, $one:expr, $to_f64:expr, $from_f64:expr;)*) => {
        $(impl Ring for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            #[inline]
            fn add(self, other: Self) -> Self { self + other }
            #[inline]
            fn sub(self, other: Self) -> Self { self - other }
            #[inline]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline]
            fn neg(self) -> Self { -self }
        }
        impl Numeric for $type {
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            #[inline]
            fn to_f64(self) -> f64 { $to_f64(self) }
            #[inline]
            fn from_f64(value: f64) -> Self { $from_f64(value) }
            #[inline]
            fn to_i64(self) -> i64 { $to_f64(self) as i64 }
            #[inline]
            fn from_i64(value: i64) -> Self { $from_f64(value as f64) }
        })*
    };
}

float! {
    f16, f16::ZERO, f16::ONE, f16::to_f64, f16::from_f64;
    bf16, bf16::ZERO, bf16::ONE, bf16::to_f64, bf16::from_f64;
    f32, 0.0, 1.0, f64::from, |x| x as f32;
    f64, 0.0, 1.0, |x| x, |x| x;
}

macro_rules! complex {
    ($($part:ty),*) => {
        $(impl Ring for Complex<$part> {
            const ZERO: Self = Complex::new(0.0, 0.0);
            const ONE: Self = Complex::new(1.0, 0.0);
            #[inline]
            fn add(self, other: Self) -> Self { self + other }
            #[inline]
            fn sub(self, other: Self) -> Self { self - other }
            #[inline]
            fn mul(self, other: Self) -> Self { self * other }
            #[inline]
            fn neg(self) -> Self { -self }
        })*
    };
}

complex!(f32, f64);

impl Float for f16 {
    #[inline]
    fn map(self, narrow: impl Fn(f32) -> f32, _wide: impl Fn(f64) -> f64) -> Self {
        f16::from_f32(narrow(self.to_f32()))
    }
}

impl Float for bf16 {
    #[inline]
    fn map(self, narrow: impl Fn(f32) -> f32, _wide: impl Fn(f64) -> f64) -> Self {
        bf16::from_f32(narrow(self.to_f32()))
    }
}

impl Float for f32 {
    #[inline]
    fn map(self, narrow: impl Fn(f32) -> f32, _wide: impl Fn(f64) -> f64) -> Self {
        narrow(self)
    }
}

impl Float for f64 {
    #[inline]
    fn map(self, _narrow: impl Fn(f32) -> f32, wide: impl Fn(f64) -> f64) -> Self {
        wide(self)
    }
}

/// `with_float!(dtype, T => body)`: `Some(body)` with `T` the type of that float dtype, `None` for any other dtype.
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body; F16 $crate::half::f16, BF16 $crate::half::bf16, F32 f32, F64 f64)
    };
}

/// Like `with_float!`, for integers (not bool).
#[macro_export]
macro_rules! with_integer {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}

/// Like `with_float!`, for floats and integers.
#[macro_export]
macro_rules! with_number {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            F16 $crate::half::f16, BF16 $crate::half::bf16, F32 f32, F64 f64,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}

/// Like `with_float!`, for floats, integers and complex numbers.
#[macro_export]
macro_rules! with_ring {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            F16 $crate::half::f16, BF16 $crate::half::bf16, F32 f32, F64 f64,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64,
            C64 $crate::Complex<f32>, C128 $crate::Complex<f64>)
    };
}

/// Like `with_float!`, for complex numbers.
#[macro_export]
macro_rules! with_complex {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            C64 $crate::Complex<f32>, C128 $crate::Complex<f64>)
    };
}

/// Like `with_float!`, for the listed dtypes; without a list, for every dtype that a host tensor can have, except the quantised
/// ones, which [`with_moved!`](crate::with_moved) and [`with_quantized!`](crate::with_quantized) have.
#[macro_export]
macro_rules! with_type {
    ($dtype:expr, $t:ident => $body:expr; $($variant:ident $type:ty),*) => {
        match $dtype {
            $($crate::DType::$variant => {
                type $t = $type;
                Some($body)
            })*
            _ => None,
        }
    };
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::with_type!($dtype, $t => $body;
            F16 $crate::half::f16, BF16 $crate::half::bf16, F32 f32, F64 f64,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64,
            Bool bool, String Vec<u8>,
            C64 $crate::Complex<f32>, C128 $crate::Complex<f64>)
    };
}
