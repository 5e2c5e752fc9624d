//! Elementwise ops of one input.

use libm::{acosh, asinh, erf, erfc, lgamma};
use meshtf_loops::vector;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Float, Integer, Numeric, Ring, Tensor, with_integer};

use super::super::call::{input_dtype, kernel as call, one, owned};
use super::super::real::{exp, flushed, ln};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::bessel;
use super::complex::{self, ONE, quotient};
use super::formula::{self, Formula};
use super::integral::{dawson, exponential, fresnel, spence};
use super::special::{bessel_ie, digamma, erfinv, ndtri};
use super::{map, map_to, zip};

macro_rules! floats {
    ($f:expr) => { formula_of!(floats: T => unary::<T>($f)) };
}

macro_rules! floats_by_steps {
    ($f:expr) => { formula_of!(floats_by_steps: T => unary::<T>($f)) };
}

macro_rules! halves {
    ($f:expr) => { formula_of!(halves: T => unary::<T>($f)) };
}

macro_rules! integers {
    ($f:expr) => { formula_of!(integers: T => unary::<T>($f)) };
}

macro_rules! numbers {
    ($f:expr) => { formula_of!(numbers: T => unary::<T>($f)) };
}

/// A method of `f32` and `f64`.
macro_rules! methods {
    ($f:ident) => {
        floats!(|x| x.map(f32::$f, f64::$f))
    };
}

/// A function of `f64`, for every float.
macro_rules! in_f64 {
    ($f:expr) => {
        floats!(|x| x.map(|x| ($f)(f64::from(x)) as f32, $f))
    };
}

macro_rules! tests {
    ($f:expr) => { formula_of!(floats: T => test::<T>($f)) };
}

/// A function of complex numbers with float64 parts.
macro_rules! complex {
    ($f:expr) => { formula_of!(complex: T => complex::unary::<T>($f)) };
}

/// A function of complex numbers of the type itself.
macro_rules! exact_complex {
    ($f:expr) => { formula_of!(complex: T => unary::<T>($f)) };
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("AddN", |node| {
        let formulas =
            [formula_of!(numbers: T => Box::new(add_n::<T>)), formula_of!(complex: T => Box::new(add_n::<T>))];
        formula::kernel(node, &formulas)
    });
    ops.insert("LogicalNot", |_| Ok(Some(unary(|x: bool| !x))));
    ops.insert("PopulationCount", |node| {
        Ok(with_integer!(input_dtype(node, 0)?, T => call(|[x]: [Tensor; 1]| {
            map_to(&x, |x: &T| (x.to_i64() as u64 & (u64::MAX >> (64 - T::BITS))).count_ones() as u8)
        })))
    });
    formulas! { ops, kernel;
        "Abs": integers(|x| if x < T::ZERO { x.neg() } else { x }), methods(abs);
        "Acos": methods(acos), complex(complex::acos);
        "Acosh": in_f64(acosh), complex(complex::acosh);
        "Asin": methods(asin), complex(complex::asin);
        "Asinh": in_f64(asinh), complex(complex::asinh);
        "Atan": methods(atan), complex(complex::atan);
        "Atanh": methods(atanh), complex(complex::atanh);
        "BesselI0": in_f64(|x| bessel::modified_first(0, x));
        "BesselI0e": in_f64(bessel_i0e);
        "BesselI1": in_f64(|x| bessel::modified_first(1, x));
        "BesselI1e": in_f64(bessel_i1e);
        "BesselJ0": in_f64(|x| bessel::first(0, x));
        "BesselJ1": in_f64(|x| bessel::first(1, x));
        "BesselK0": in_f64(|x| bessel::modified_second(0, x, false));
        "BesselK0e": in_f64(|x| bessel::modified_second(0, x, true));
        "BesselK1": in_f64(|x| bessel::modified_second(1, x, false));
        "BesselK1e": in_f64(|x| bessel::modified_second(1, x, true));
        "BesselY0": in_f64(|x| bessel::second(0, x));
        "BesselY1": floats(|x| x.map(bessel::second_of_order_1_narrow, |x| bessel::second(1, x)));
        "Ceil": floats(|x| flushed(x).map(f32::ceil, f64::ceil));
        "Cos": methods(cos), complex(complex::cos);
        "Cosh": methods(cosh), complex(complex::cosh);
        "Dawsn": in_f64(dawson);
        "Digamma": in_f64(digamma);
        "Erf": in_f64(erf);
        "Erfc": in_f64(erfc);
        "Erfinv": in_f64(erfinv);
        "Exp": methods(exp), complex(complex::exp);
        "Expint": in_f64(exponential);
        "Expm1": methods(exp_m1), complex(complex::exp_m1);
        "Floor": floats(|x| flushed(x).map(f32::floor, f64::floor));
        "FresnelCos": in_f64(|x| fresnel(x).0);
        "FresnelSin": in_f64(|x| fresnel(x).1);
        "Invert": integers(T::not);
        "IsFinite": tests(|x| *x > T::LOWEST && *x < T::HIGHEST);
        "IsInf": tests(|x| *x == T::LOWEST || *x == T::HIGHEST);
        "IsNan": tests(|x| x.partial_cmp(x).is_none());
        "Lgamma": floats(|x| x.map(lgamma_of_f32, lgamma_of_f64));
        "Log": floats(ln), complex(complex::ln);
        "Log1p": methods(ln_1p), complex(complex::ln_1p);
        "Ndtri": in_f64(ndtri);
        "Neg": numbers(T::neg), exact_complex(T::neg);
        "Reciprocal": floats(|x| T::ONE / x), complex(|z| quotient(ONE, z));
        "Rint": floats(nearest);
        "Round": integers(|x| x), floats(nearest);
        "Rsqrt": floats_by_steps(|x| x.map(|x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt())),
            complex(|z| quotient(ONE, complex::sqrt(z)));
        "Sigmoid": halves(sigmoid_of_half), floats(|x| T::ONE / (T::ONE + exp(-x))),
            complex(|z| quotient(ONE, ONE + complex::exp(-z)));
        "Sign": integers(sign_of_integer), floats(sign), complex(complex::sign);
        "Sin": methods(sin), complex(complex::sin);
        "Sinh": methods(sinh), complex(complex::sinh);
        "Spence": in_f64(spence);
        "Sqrt": methods(sqrt), complex(complex::sqrt);
        "Square": numbers(|x| x.mul(x)), exact_complex(|x| x.mul(x));
        "Tan": methods(tan), complex(complex::tan);
        "Tanh": methods(tanh), complex(complex::tanh);
    }
}

/// As [`formula::kernel`]; the vector loops compute float32, where they have the op.
fn kernel(node: &KernelNode, formulas: &[Formula]) -> Result<Option<HostKernel>> {
    if input_dtype(node, 0)? == DType::F32
        && let Some(op) = vector::unary(node.op)
    {
        return Ok(Some(call(move |[x]| {
            let mut x = owned(x)?;
            (op.over)(x.slice_mut::<f32>()?);
            Ok(x)
        })));
    }
    formula::kernel(node, formulas)
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

fn bessel_i0e(x: f64) -> f64 {
    bessel_ie(0, x)
}

fn bessel_i1e(x: f64) -> f64 {
    bessel_ie(1, x)
}

#[inline]
fn nearest<T: Float>(x: T) -> T {
    flushed(x).map(f32::round_ties_even, f64::round_ties_even)
}

#[inline]
fn sign_of_integer<T: Integer>(x: T) -> T {
    match x.cmp(&T::ZERO) {
        std::cmp::Ordering::Less => T::ZERO.sub(T::ONE),
        std::cmp::Ordering::Equal => T::ZERO,
        std::cmp::Ordering::Greater => T::ONE,
    }
}

#[inline]
fn sign<T: Float>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        -T::ONE
    } else {
        // Zero for zeros of either sign, NaN for NaN.
        x + T::ZERO
    }
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
