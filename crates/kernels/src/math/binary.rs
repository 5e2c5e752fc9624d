//! Elementwise ops of two inputs with one dtype: arithmetic, bits, and gradients that are plain arithmetic.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Float, Integer, Numeric, Tensor, with_type};

use super::super::call::{check_text_bytes, input_dtype, kernel as call};
use super::super::real::{flushed, ln, ln_1p};
use super::super::{HostKernel, KernelNode, Registry};
use super::gamma::{gamma_sample_by_alpha, igamma_by_a};
use super::special::{igamma, polygamma, zeta};
use super::{complex, widened, zip, zip_to};

pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(
        [
            "Add",
            "AddV2",
            "Atan2",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
            "Div",
            "DivNoNan",
            "FloorMod",
            "Igamma",
            "IgammaGradA",
            "Igammac",
            "LeftShift",
            "LogicalAnd",
            "LogicalOr",
            "Maximum",
            "Minimum",
            "Mod",
            "Mul",
            "MulNoNan",
            "NextAfter",
            "Polygamma",
            "Pow",
            "RandomGammaGrad",
            "RealDiv",
            "RightShift",
            "Sub",
            "TruncateMod",
            "Xdivy",
            "Xlog1py",
            "Xlogy",
            "Zeta",
        ],
        |node| kernel(node, false),
    );
    // Their formulas have several steps; half floats are rounded after each step, as in TensorFlow.
    ops.insert_all(
        ["FloorDiv", "InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad", "SquaredDifference", "TruncateDiv"],
        |node| kernel(node, true),
    );
}

fn kernel(node: &KernelNode, has_steps: bool) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    let found = match (node.op, dtype) {
        ("Add", DType::String) => Some(call(concatenate)),
        ("LogicalAnd", DType::Bool) => Some(binary(|x: bool, y| x & y)),
        ("LogicalOr", DType::Bool) => Some(binary(|x: bool, y| x | y)),
        (op, dtype) if dtype.is_complex() => complex::binary(op, dtype),
        (op, DType::F16) if has_steps => stepwise::<half::f16>(op),
        (op, DType::BF16) if has_steps => stepwise::<half::bf16>(op),
        (op, dtype) => widened(dtype, |wide| {
            with_type!(wide, T => numeric::<T>(op); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
                .flatten()
                .or_else(|| with_type!(wide, T => float::<T>(op); F32 f32, F64 f64).flatten())
                .or_else(|| with_type!(wide, T => integer::<T>(op, dtype); I32 i32, I64 i64, U64 u64).flatten())
        }),
    };
    Ok(found)
}

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

/// A function of float64, for every float type. It is slow enough that a call through a pointer does not matter.
fn wide<T: Float>(f: fn(f64, f64) -> f64) -> HostKernel {
    binary(move |x: T, y: T| T::from_f64(f(x.to_f64(), y.to_f64())))
}

fn stepwise<T: Float>(op: &str) -> Option<HostKernel> {
    numeric::<T>(op).or_else(|| float::<T>(op))
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

fn numeric<T: Numeric>(op: &str) -> Option<HostKernel> {
    Some(match op {
        "Add" | "AddV2" => binary(T::add),
        "Sub" => binary(T::sub),
        "Mul" => binary(T::mul),
        "SquaredDifference" => binary(|x: T, y| x.sub(y).mul(x.sub(y))),
        // NaN on either side gives NaN, as in TensorFlow.
        "Maximum" => binary(|x: T, y| if x > y || x.partial_cmp(&x).is_none() { x } else { y }),
        "Minimum" => binary(|x: T, y| if x < y || x.partial_cmp(&x).is_none() { x } else { y }),
        _ => return None,
    })
}

fn float<T: Float>(op: &str) -> Option<HostKernel> {
    Some(match op {
        "RealDiv" | "Div" => binary(|x: T, y| x / y),
        "FloorDiv" => binary(|x: T, y| (x / y).map(f32::floor, f64::floor)),
        "TruncateDiv" => binary(|x: T, y| (x / y).map(f32::trunc, f64::trunc)),
        "FloorMod" => binary(|x: T, y| {
            let rest = remainder(x, y);
            if rest != T::ZERO && (rest < T::ZERO) != (y < T::ZERO) { rest + y } else { rest }
        }),
        "TruncateMod" | "Mod" => binary(remainder::<T>),
        "DivNoNan" => binary(|x: T, y| if y == T::ZERO { T::ZERO } else { x / y }),
        "Xdivy" => binary(|x: T, y| if x == T::ZERO { T::ZERO } else { x / y }),
        "MulNoNan" => binary(|x: T, y| if y == T::ZERO { T::ZERO } else { x * y }),
        "Xlogy" => binary(|x: T, y| if x == T::ZERO { T::ZERO } else { x * ln(y) }),
        "Xlog1py" => binary(|x: T, y| if x == T::ZERO { T::ZERO } else { x * ln_1p(y) }),
        "ReciprocalGrad" | "InvGrad" => gradient(|y: T, dy| if dy == T::ZERO { T::ZERO } else { -dy * y * y }),
        "Pow" => binary(|x: T, y| with_both(flushed(x), flushed(y), f32::powf, f64::powf)),
        "Atan2" => binary(|y: T, x| with_both(y, x, f32::atan2, f64::atan2)),
        "Igamma" => wide::<T>(|a, x| igamma(a, x, false)),
        "Igammac" => wide::<T>(|a, x| igamma(a, x, true)),
        "IgammaGradA" => wide::<T>(igamma_by_a),
        "RandomGammaGrad" => wide::<T>(gamma_sample_by_alpha),
        "NextAfter" => binary(|x: T, y| with_both(x, y, next_after!(f32), next_after!(f64))),
        "Polygamma" => wide::<T>(polygamma),
        "Zeta" => wide::<T>(zeta),
        // The inputs are the op's result and the incoming gradient.
        "SqrtGrad" => gradient(|y: T, dy| if dy == T::ZERO { T::ZERO } else { T::from_f64(0.5) * dy / y }),
        "RsqrtGrad" => {
            gradient(|y: T, dy| if dy == T::ZERO { T::ZERO } else { T::from_f64(-0.5) * (dy * y) * (y * y) })
        }
        _ => return None,
    })
}

fn integer<T: Integer>(op: &str, dtype: DType) -> Option<HostKernel> {
    // The distance of a shift, clamped to the width of the dtype as in TensorFlow, which keeps it defined.
    let most = dtype.size().map_or(0, |bytes| bytes as i64 * 8 - 1);
    let shift = move |places: T| match places.to_i64() {
        places if T::DTYPE == DType::U64 => (places as u64).min(most as u64) as u32,
        places => places.clamp(0, most) as u32,
    };
    Some(match op {
        "TruncateDiv" | "Div" => division(T::wrapping_div),
        "TruncateMod" | "Mod" => division(T::wrapping_rem),
        "FloorDiv" => division(|x: T, y| {
            let quotient = x.wrapping_div(y);
            if x.wrapping_rem(y) != T::ZERO && (x < T::ZERO) != (y < T::ZERO) { quotient.sub(T::ONE) } else { quotient }
        }),
        "FloorMod" => division(|x: T, y| {
            let rest = x.wrapping_rem(y);
            if rest != T::ZERO && (rest < T::ZERO) != (y < T::ZERO) { rest.add(y) } else { rest }
        }),
        "Pow" => call(|[x, y]| {
            if y.slice::<T>()?.iter().any(|&y| y < T::ZERO) {
                return Err(Failure::invalid("Integers to negative integer powers are not allowed"));
            }
            zip(x, y, power::<T>)
        }),
        "BitwiseAnd" => binary(T::and),
        "BitwiseOr" => binary(T::or),
        "BitwiseXor" => binary(T::xor),
        "RightShift" => {
            // An arithmetic shift rounds down; a large one leaves the sign only.
            binary(move |x: T, y| {
                let places = shift(y);
                if T::DTYPE == DType::U64 {
                    T::from_i64((x.to_i64() as u64 >> places) as i64)
                } else {
                    T::from_i64(x.to_i64() >> places)
                }
            })
        }
        "LeftShift" => binary(move |x: T, y| x.mul(T::from_i64(2).wrapping_pow(shift(y)))),
        _ => return None,
    })
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
