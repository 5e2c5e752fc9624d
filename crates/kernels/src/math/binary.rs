//! Elementwise ops of two inputs with one dtype: arithmetic, bits, and gradients that are plain arithmetic.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Float, Integer, Tensor, with_type};

use super::super::call::{check_text_bytes, input_dtype, kernel as call};
use super::super::real::{flushed, ln, ln_1p};
use super::super::{HostKernel, KernelNode, Registry};
use super::complex::{self, ZERO, conjugate_gradient, quotient};
use super::formula::kernel;
use super::gamma::{gamma_sample_by_alpha, igamma_by_a};
use super::special::{igamma, polygamma, zeta};
use super::{widened, zip, zip_to};

/// The neighbour of `x` in the direction of `y`.
macro_rules! next_after {
    ($t:ty) => {
        |x: $t, y: $t| match x.partial_cmp(&y) {
            None => <$t>::NAN,
            Some(std::cmp::Ordering::Less) => x.next_up(),
            Some(std::cmp::Ordering::Equal) => y,
            Some(std::cmp::Ordering::Greater) => x.next_down(),
        }
    };
}

macro_rules! floats {
    ($f:expr) => { formula_of!(floats: T => binary::<T>($f)) };
}

macro_rules! floats_by_steps {
    ($f:expr) => { formula_of!(floats_by_steps: T => binary::<T>($f)) };
}

macro_rules! integers {
    ($f:expr) => { formula_of!(integers: T => binary::<T>($f)) };
}

/// A division of integers.
macro_rules! divisions {
    ($f:expr) => { formula_of!(integers: T => division::<T>($f)) };
}

macro_rules! numbers {
    ($f:expr) => { formula_of!(numbers: T => binary::<T>($f)) };
}

macro_rules! numbers_by_steps {
    ($f:expr) => { formula_of!(numbers_by_steps: T => binary::<T>($f)) };
}

/// A function of float64, for every float type. It is slow enough that a call through a pointer does not matter.
macro_rules! in_f64 {
    ($f:expr) => { formula_of!(floats: T => wide::<T>($f)) };
}

/// A function of complex numbers with float64 parts.
macro_rules! complex {
    ($f:expr) => { formula_of!(complex: T => complex::binary::<T>($f)) };
}

/// A function of complex numbers of the type itself.
macro_rules! exact_complex {
    ($f:expr) => { formula_of!(complex: T => binary::<T>($f)) };
}

/// Powers of integers.
macro_rules! powers {
    ($f:expr) => { formula_of!(integers: T => raised::<T>($f)) };
}

/// A function of the op's result and of the incoming gradient.
macro_rules! gradients {
    ($f:expr) => { formula_of!(floats_by_steps: T => gradient::<T>($f)) };
}

/// As [`gradients`], of the conjugate of the op's result.
macro_rules! complex_gradients {
    ($f:expr) => { formula_of!(complex: T => conjugate_gradient::<T>($f)) };
}

/// The kernel for one dtype.
macro_rules! only {
    ($dtype:ident, $kernel:expr) => {
        |dtype| (dtype == DType::$dtype).then(|| $kernel)
    };
}

pub(super) fn register(ops: &mut Registry) {
    formulas! { ops, kernel;
        "Add": numbers(T::add), exact_complex(T::add), only(String, call(concatenate));
        "AddV2": numbers(T::add), exact_complex(T::add);
        "Sub": numbers(T::sub), exact_complex(T::sub);
        "Mul": numbers(T::mul), exact_complex(T::mul);
        "SquaredDifference": numbers_by_steps(|x, y| x.sub(y).mul(x.sub(y))), complex(|x, y| (x - y) * (x - y).conj());
        // NaN on either side gives NaN, as in TensorFlow.
        "Maximum": numbers(|x, y| if x > y || x.partial_cmp(&x).is_none() { x } else { y });
        "Minimum": numbers(|x, y| if x < y || x.partial_cmp(&x).is_none() { x } else { y });
        "RealDiv": floats(divide), complex(quotient);
        "Div": floats(divide), divisions(T::wrapping_div), complex(quotient);
        "FloorDiv": floats_by_steps(|x, y| (x / y).map(f32::floor, f64::floor)), divisions(floor_div);
        "TruncateDiv": floats_by_steps(|x, y| (x / y).map(f32::trunc, f64::trunc)), divisions(T::wrapping_div);
        "FloorMod": floats(floor_remainder), divisions(floor_mod);
        "Mod", "TruncateMod": floats(remainder), divisions(T::wrapping_rem);
        "DivNoNan": floats(|x, y| if y == T::ZERO { T::ZERO } else { x / y }),
            complex(|x, y| if y == ZERO { ZERO } else { quotient(x, y) });
        "MulNoNan": floats(|x, y| if y == T::ZERO { T::ZERO } else { x * y }),
            complex(|x, y| if y == ZERO { ZERO } else { x * y });
        "Xdivy": floats(|x, y| if x == T::ZERO { T::ZERO } else { x / y }),
            complex(|x, y| if x == ZERO { ZERO } else { quotient(x, y) });
        "Xlogy": floats(|x, y| if x == T::ZERO { T::ZERO } else { x * ln(y) }),
            complex(|x, y| if x == ZERO { ZERO } else { x * complex::ln(y) });
        "Xlog1py": floats(|x, y| if x == T::ZERO { T::ZERO } else { x * ln_1p(y) }),
            complex(|x, y| if x == ZERO { ZERO } else { x * complex::ln_1p(y) });
        "Pow": floats(|x, y| with_both(flushed(x), flushed(y), f32::powf, f64::powf)), powers(power), complex(complex::pow);
        "Atan2": floats(|y, x| with_both(y, x, f32::atan2, f64::atan2));
        "NextAfter": floats(|x, y| with_both(x, y, next_after!(f32), next_after!(f64)));
        "Igamma": in_f64(|a, x| igamma(a, x, false));
        "Igammac": in_f64(|a, x| igamma(a, x, true));
        "IgammaGradA": in_f64(igamma_by_a);
        "RandomGammaGrad": in_f64(gamma_sample_by_alpha);
        "Polygamma": in_f64(polygamma);
        "Zeta": in_f64(zeta);
        "BitwiseAnd": integers(T::and);
        "BitwiseOr": integers(T::or);
        "BitwiseXor": integers(T::xor);
        "LogicalAnd": only(Bool, binary(|x: bool, y| x & y));
        "LogicalOr": only(Bool, binary(|x: bool, y| x | y));
        "InvGrad", "ReciprocalGrad": gradients(|y, dy| if dy == T::ZERO { T::ZERO } else { -dy * y * y }),
            complex_gradients(|y, dy| -dy * y * y);
        "SqrtGrad": gradients(|y, dy| if dy == T::ZERO { T::ZERO } else { T::from_f64(0.5) * dy / y }),
            complex_gradients(|y, dy| quotient(dy * 0.5, y));
        "RsqrtGrad": gradients(|y, dy| if dy == T::ZERO { T::ZERO } else { T::from_f64(-0.5) * (dy * y) * (y * y) }),
            complex_gradients(|y, dy| dy * y * y * y * -0.5);
    }
    ops.insert("LeftShift", |node| {
        shift(node, |dtype, most| with_type!(dtype, T => left_shift::<T>(most); I32 i32, I64 i64, U64 u64))
    });
    ops.insert("RightShift", |node| {
        shift(node, |dtype, most| with_type!(dtype, T => right_shift::<T>(most); I32 i32, I64 i64, U64 u64))
    });
}

/// A shift: `kernel` for the wide dtype and the greatest distance, the width of the dtype less one as in TensorFlow.
fn shift(node: &KernelNode, kernel: fn(DType, i64) -> Option<HostKernel>) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    let most = dtype.size().map_or(0, |bytes| bytes as i64 * 8 - 1);
    Ok(widened(dtype, |wide| kernel(wide, most)))
}

/// The distance of a shift, clamped, which keeps it defined.
#[inline]
fn distance<T: Integer>(places: T, most: i64) -> u32 {
    match places.to_i64() {
        places if T::DTYPE == DType::U64 => (places as u64).min(most as u64) as u32,
        places => places.clamp(0, most) as u32,
    }
}

fn left_shift<T: Integer>(most: i64) -> HostKernel {
    binary(move |x: T, y| x.mul(T::from_i64(2).wrapping_pow(distance(y, most))))
}

/// An arithmetic shift rounds down; a large one leaves the sign only.
fn right_shift<T: Integer>(most: i64) -> HostKernel {
    binary(move |x: T, y| {
        let places = distance(y, most);
        if T::DTYPE == DType::U64 {
            T::from_i64((x.to_i64() as u64 >> places) as i64)
        } else {
            T::from_i64(x.to_i64() >> places)
        }
    })
}

fn wide<T: Float>(f: fn(f64, f64) -> f64) -> HostKernel {
    binary(move |x: T, y: T| T::from_f64(f(x.to_f64(), y.to_f64())))
}

fn concatenate([x, y]: [Tensor; 2]) -> Result<Tensor> {
    let pairs = x.shape().broadcast(y.shape())?.elements().unwrap_or(usize::MAX);
    let longest = |x: &Tensor| x.slice::<Vec<u8>>().map(|x| x.iter().map(Vec::len).max().unwrap_or(0));
    check_text_bytes((longest(&x)? + longest(&y)?).saturating_mul(pairs))?;
    zip_to(&x, &y, |x: &Vec<u8>, y: &Vec<u8>| [x.as_slice(), y].concat())
}

fn binary<T: Element + Copy>(f: impl Fn(T, T) -> T + Copy + Send + 'static) -> HostKernel {
    call(move |[x, y]| zip(x, y, f))
}

/// Like [`binary`], but without broadcasting: a gradient has as many elements as its value.
fn gradient<T: Element + Copy>(f: impl Fn(T, T) -> T + Copy + Send + 'static) -> HostKernel {
    call(move |[y, dy]| zip_same(y, dy, f))
}

/// As [`zip`], of two tensors with the same number of elements; the result has the shape of the first.
pub(super) fn zip_same<T: Element + Copy>(
    y: Tensor,
    dy: Tensor,
    f: impl Fn(T, T) -> T + Copy + Send,
) -> Result<Tensor> {
    if y.len() != dy.len() {
        return Err(Failure::invalid(format!(
            "The two arguments to a cwise op must have same number of elements, got {} and {}",
            y.len(),
            dy.len()
        )));
    }
    let dy = dy.reshaped(y.shape().clone())?;
    zip(y, dy, f)
}

/// An integer division; it fails if a divisor is zero.
fn division<T: Integer>(f: impl Fn(T, T) -> T + Copy + Send + 'static) -> HostKernel {
    call(move |[x, y]: [Tensor; 2]| {
        if !x.is_empty() && y.slice::<T>()?.contains(&T::ZERO) {
            return Err(Failure::invalid("Integer division by zero"));
        }
        zip(x, y, f)
    })
}

/// Powers by a function of integers; it fails if an exponent is negative.
fn raised<T: Integer>(f: impl Fn(T, T) -> T + Copy + Send + 'static) -> HostKernel {
    call(move |[x, y]: [Tensor; 2]| {
        if y.slice::<T>()?.iter().any(|&y| y < T::ZERO) {
            return Err(Failure::invalid("Integers to negative integer powers are not allowed"));
        }
        zip(x, y, f)
    })
}

#[inline]
fn divide<T: Float>(x: T, y: T) -> T {
    x / y
}

/// A quotient that is rounded down.
#[inline]
fn floor_div<T: Integer>(x: T, y: T) -> T {
    let quotient = x.wrapping_div(y);
    if x.wrapping_rem(y) != T::ZERO && (x < T::ZERO) != (y < T::ZERO) { quotient.sub(T::ONE) } else { quotient }
}

/// A remainder with the sign of the divisor.
#[inline]
fn floor_mod<T: Integer>(x: T, y: T) -> T {
    let rest = x.wrapping_rem(y);
    if rest != T::ZERO && (rest < T::ZERO) != (y < T::ZERO) { rest.add(y) } else { rest }
}

/// As [`floor_mod`], of floats.
#[inline]
fn floor_remainder<T: Float>(x: T, y: T) -> T {
    let rest = remainder(x, y);
    if rest != T::ZERO && (rest < T::ZERO) != (y < T::ZERO) { rest + y } else { rest }
}

fn power<T: Integer>(mut base: T, exponent: T) -> T {
    // At most 63 squarings for any exponent.
    let (mut exponent, mut power) = (exponent.to_i64() as u64, T::ONE);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.mul(base);
        }
        base = base.mul(base);
        exponent >>= 1;
    }
    power
}

/// C's fmod; a denormal divisor counts as zero.
#[inline]
fn remainder<T: Float>(x: T, y: T) -> T {
    with_both(x, flushed(y), |x, y| x % y, |x, y| x % y)
}

/// A function of two floats, computed in f32 or f64, whichever represents the type exactly.
#[inline]
fn with_both<T: Float>(x: T, y: T, narrow: impl Fn(f32, f32) -> f32, wide: impl Fn(f64, f64) -> f64) -> T {
    let other = y.to_f64();
    x.map(|x| narrow(x, other as f32), |x| wide(x, other))
}
