//! Elementwise ops of one input.

use libm::{acosh, asinh, erf, erfc, lgamma};
use meshtf_loops::vector;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{
    DType, Element, Float, Integer, Numeric, Ring, Tensor, with_complex, with_float, with_integer, with_type,
};

use super::super::call::{input_dtype, kernel as call, one, owned};
use super::super::real::{exp, flushed, ln};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::special::{bessel_ie, digamma, erfinv, ndtri};
use super::{complex, map, map_to, widened, zip};

pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(
        [
            "Abs",
            "Acos",
            "Acosh",
            "AddN",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "BesselI0e",
            "BesselI1e",
            "Ceil",
            "Cos",
            "Cosh",
            "Digamma",
            "Erf",
            "Erfc",
            "Erfinv",
            "Exp",
            "Expm1",
            "Floor",
            "Invert",
            "IsFinite",
            "IsInf",
            "IsNan",
            "Lgamma",
            "Log",
            "Log1p",
            "LogicalNot",
            "Ndtri",
            "Neg",
            "PopulationCount",
            "Reciprocal",
            "Rint",
            "Round",
            "Rsqrt",
            "Sigmoid",
            "Sign",
            "Sin",
            "Sinh",
            "Sqrt",
            "Square",
            "Tan",
            "Tanh",
        ],
        kernel,
    );
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 0)?;
    let found = match node.op {
        "AddN" if dtype.is_complex() => with_complex!(dtype, T => Box::new(add_n::<T>) as HostKernel),
        op if dtype.is_complex() => complex::unary(op, dtype),
        "LogicalNot" => Some(unary(|x: bool| !x)),
        "PopulationCount" => with_integer!(dtype, T => call(|[x]: [Tensor; 1]| {
            map_to(&x, |x: &T| (x.to_i64() as u64 & (u64::MAX >> (64 - T::BITS))).count_ones() as u8)
        })),
        op if dtype == DType::F32
            && let Some(op) = vector::unary(op) =>
        {
            Some(call(move |[x]| {
                let mut x = owned(x)?;
                (op.over)(x.slice_mut::<f32>()?);
                Ok(x)
            }))
        }
        "Rsqrt" => with_float!(dtype, T => unary(|x: T| x.map(|x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt()))),
        "Sigmoid" => match dtype {
            DType::F16 => Some(unary(sigmoid_of_half::<half::f16>)),
            DType::BF16 => Some(unary(sigmoid_of_half::<half::bf16>)),
            _ => with_type!(dtype, T => unary(|x: T| T::ONE / (T::ONE + exp(-x))); F32 f32, F64 f64),
        },
        _ => widened(dtype, |dtype| {
            with_type!(dtype, T => numeric::<T>(node.op); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
                .flatten()
                .or_else(|| with_type!(dtype, T => float::<T>(node.op); F32 f32, F64 f64).flatten())
                .or_else(|| with_type!(dtype, T => integer::<T>(node.op); I32 i32, I64 i64, U64 u64).flatten())
        }),
    };
    Ok(found)
}

/// TensorFlow's formula, with each step rounded.
#[inline]
fn sigmoid_of_half<T: Float>(x: T) -> T {
    let e = exp(x);
    if e == T::HIGHEST { T::ONE } else { e / (T::ONE + e) }
}

fn unary<T: Element + Copy>(f: impl Fn(T) -> T + Copy + Send + 'static) -> HostKernel {
    call(move |[x]| map(x, f))
}

fn test<T: Element>(f: impl Fn(&T) -> bool + Copy + Send + 'static) -> HostKernel {
    call(move |[x]| map_to(&x, f))
}

fn numeric<T: Numeric>(op: &str) -> Option<HostKernel> {
    Some(match op {
        "AddN" => Box::new(add_n::<T>),
        "Neg" => unary(T::neg),
        "Square" => unary(|x: T| x.mul(x)),
        _ => return None,
    })
}

fn integer<T: Integer>(op: &str) -> Option<HostKernel> {
    Some(match op {
        "Abs" => unary(|x: T| if x < T::ZERO { x.neg() } else { x }),
        "Sign" => unary(|x: T| match x.cmp(&T::ZERO) {
            std::cmp::Ordering::Less => T::ZERO.sub(T::ONE),
            std::cmp::Ordering::Equal => T::ZERO,
            std::cmp::Ordering::Greater => T::ONE,
        }),
        "Round" => unary(|x: T| x),
        "Invert" => unary(T::not),
        _ => return None,
    })
}

macro_rules! functions {
    ($op:expr; $($name:literal => $f:ident),* $(,)?) => {
        match $op {
            $($name => Some(unary(|x: T| x.map(f32::$f, f64::$f))),)*
            _ => None,
        }
    };
}

/// TensorFlow flushes denormals to zero, but the C library recognizes a zero by its bits: for every denormal it, and so
/// TensorFlow, returns the logarithm of half the smallest one.
#[inline]
fn lgamma_of_f32(x: f32) -> f32 {
    if x.is_subnormal() { 150.0 * std::f32::consts::LN_2 } else { lgamma(f64::from(x)) as f32 }
}

#[inline]
fn lgamma_of_f64(x: f64) -> f64 {
    if x.is_subnormal() { 1075.0 * std::f64::consts::LN_2 } else { lgamma(x) }
}

fn float<T: Float>(op: &str) -> Option<HostKernel> {
    Some(match op {
        "Abs" => unary(|x: T| x.map(f32::abs, f64::abs)),
        "Sign" => unary(|x: T| {
            if x > T::ZERO {
                T::ONE
            } else if x < T::ZERO {
                -T::ONE
            } else {
                // Zero for zeros of either sign, NaN for NaN.
                x + T::ZERO
            }
        }),
        "Ceil" => unary(|x: T| flushed(x).map(f32::ceil, f64::ceil)),
        "Floor" => unary(|x: T| flushed(x).map(f32::floor, f64::floor)),
        "Rint" | "Round" => unary(|x: T| flushed(x).map(f32::round_ties_even, f64::round_ties_even)),
        "Log" => unary(ln::<T>),
        "Acosh" => unary(|x: T| x.map(|x| acosh(f64::from(x)) as f32, acosh)),
        "Asinh" => unary(|x: T| x.map(|x| asinh(f64::from(x)) as f32, asinh)),
        "Reciprocal" => unary(|x: T| T::ONE / x),
        "BesselI0e" => unary(|x: T| x.map(|x| bessel_ie(0, f64::from(x)) as f32, |x| bessel_ie(0, x))),
        "BesselI1e" => unary(|x: T| x.map(|x| bessel_ie(1, f64::from(x)) as f32, |x| bessel_ie(1, x))),
        "Erf" => unary(|x: T| x.map(|x| erf(f64::from(x)) as f32, erf)),
        "Erfc" => unary(|x: T| x.map(|x| erfc(f64::from(x)) as f32, erfc)),
        "Erfinv" => unary(|x: T| x.map(|x| erfinv(f64::from(x)) as f32, erfinv)),
        "Ndtri" => unary(|x: T| x.map(|x| ndtri(f64::from(x)) as f32, ndtri)),
        "Digamma" => unary(|x: T| x.map(|x| digamma(f64::from(x)) as f32, digamma)),
        "IsInf" => test(|x: &T| *x == T::LOWEST || *x == T::HIGHEST),
        "Lgamma" => unary(|x: T| x.map(lgamma_of_f32, lgamma_of_f64)),
        "IsNan" => test(|x: &T| x.partial_cmp(x).is_none()),
        "IsFinite" => test(|x: &T| *x > T::LOWEST && *x < T::HIGHEST),
        op => {
            return functions!(op;
                "Acos" => acos, "Asin" => asin, "Atanh" => atanh, "Atan" => atan, "Cos" => cos, "Cosh" => cosh, "Exp" => exp,
                "Expm1" => exp_m1, "Log1p" => ln_1p,
                "Sin" => sin, "Sinh" => sinh, "Sqrt" => sqrt, "Tan" => tan, "Tanh" => tanh);
        }
    })
}

fn add_n<T: Ring>(inputs: Inputs) -> Result<Outputs> {
    let mut inputs = inputs.into_iter();
    let Some(mut sum) = inputs.next() else { return Err(Failure::invalid("AddN takes at least one input")) };
    for (i, next) in inputs.enumerate() {
        if next.shape() != sum.shape() {
            return Err(Failure::invalid(format!(
                "Inputs to operation of type AddN must have the same size and shape. Input 0: {} != input {}: {}",
                sum.shape(),
                i + 1,
                next.shape()
            )));
        }
        sum = zip(sum, next, T::add)?;
    }
    Ok(one(sum))
}
