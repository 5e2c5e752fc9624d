//! Activations and their gradients, element by element, in place if the input is not shared. Half floats are rounded at
//! every step of a formula, as in TensorFlow.

use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Element, Numeric, Ring, Tensor, with_complex, with_float, with_number};

use super::super::call::{input_dtype, kernel as call};
use super::super::math::{ONE, conjugate_gradient};
use super::super::real::{abs, exp, exp_m1, ln_1p};
use super::super::{HostKernel, Registry};

/// Selu's constants are chosen so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).
pub const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
pub const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

/// The kernel of an op for every numeric dtype.
macro_rules! numbers {
    ($t:ident => $kernel:expr) => {
        |node| Ok(with_number!(input_dtype(node, 0)?, $t => $kernel))
    };
}

/// The kernel of an op for every float dtype.
macro_rules! floats {
    ($t:ident => $kernel:expr) => {
        |node| Ok(with_float!(input_dtype(node, 0)?, $t => $kernel))
    };
}

/// As [`floats`], for an op that takes complex numbers, too.
macro_rules! floats_and_complex {
    ($t:ident => $kernel:expr, $of_complex:expr) => {
        |node| match input_dtype(node, 0)? {
            dtype if dtype.is_complex() => Ok(with_complex!(dtype, $t => conjugate_gradient::<$t>($of_complex))),
            dtype => Ok(with_float!(dtype, $t => $kernel)),
        }
    };
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Relu", numbers!(T => unary(rectified::<T>)));
    ops.insert(
        "Relu6",
        numbers!(T => {
            let six = T::from_i64(6);
            unary(move |x: T| rectified_up_to(x, six))
        }),
    );
    // A factor rather than a selection: infinity times zero is NaN.
    ops.insert("ReluGrad", numbers!(T => binary(|dy: T, x| dy.mul(if x > T::ZERO { T::ONE } else { T::ZERO }))));
    ops.insert(
        "Relu6Grad",
        numbers!(T => {
            let six = T::from_i64(6);
            binary(move |dy: T, x| dy.mul(if x > T::ZERO && x < six { T::ONE } else { T::ZERO }))
        }),
    );
    ops.insert("Elu", floats!(T => unary(|x: T| if x < T::ZERO { exp_m1(x) } else { x })));
    ops.insert("EluGrad", floats!(T => binary(|dy: T, y| if y < T::ZERO { (y + T::ONE) * dy } else { dy })));
    ops.insert(
        "Selu",
        floats!(T => {
            let (scale, scale_alpha) = (T::from_f64(SELU_SCALE), T::from_f64(SELU_SCALE_ALPHA));
            unary(move |x: T| if x < T::ZERO { scale_alpha * exp_m1(x) } else { scale * x })
        }),
    );
    ops.insert(
        "SeluGrad",
        floats!(T => {
            let (scale, scale_alpha) = (T::from_f64(SELU_SCALE), T::from_f64(SELU_SCALE_ALPHA));
            binary(move |dy: T, y| if y < T::ZERO { dy * (y + scale_alpha) } else { dy * scale })
        }),
    );
    ops.insert("LeakyRelu", |node| {
        let alpha = f64::from(node.attrs.float("alpha")?);
        Ok(with_float!(input_dtype(node, 0)?, T => {
            let alpha = T::from_f64(alpha);
            unary(move |x: T| if x > T::ZERO { x } else { x * alpha })
        }))
    });
    ops.insert("LeakyReluGrad", |node| {
        let alpha = f64::from(node.attrs.float("alpha")?);
        Ok(with_float!(input_dtype(node, 0)?, T => {
            let alpha = T::from_f64(alpha);
            binary(move |dy: T, x| if x > T::ZERO { dy } else { dy * alpha })
        }))
    });
    ops.insert(
        "Softplus",
        floats!(T => {
            // Beyond these, ln(1 + e^x) equals e^x, or x, within rounding. TensorFlow's epsilon of float16 is an eighth of it.
            let epsilon = if T::DTYPE == DType::F16 { epsilon(T::DTYPE) / 8.0 } else { epsilon(T::DTYPE) };
            let threshold = T::from_f64(epsilon.ln()) + T::from_f64(2.0);
            unary(move |x: T| {
                if x > -threshold {
                    x
                } else if x < threshold {
                    exp(x)
                } else {
                    ln_1p(exp(x))
                }
            })
        }),
    );
    ops.insert("SoftplusGrad", floats!(T => binary(|dy: T, x| dy / (exp(-x) + T::ONE))));
    ops.insert("Softsign", floats!(T => unary(|x: T| x / (abs(x) + T::ONE))));
    ops.insert(
        "SoftsignGrad",
        floats!(T => binary(|dy: T, x| {
            let divisor = abs(x) + T::ONE;
            dy / (divisor * divisor)
        })),
    );
    // These two take the op's result first, then the incoming gradient. As in TensorFlow, they do not use the conjugate.
    ops.insert(
        "SigmoidGrad",
        floats_and_complex!(T => binary(|y: T, dy| dy * y * (T::ONE - y)), |y, dy| dy * y.conj() * (ONE - y.conj())),
    );
    ops.insert(
        "TanhGrad",
        floats_and_complex!(T => binary(|y: T, dy| dy * (T::ONE - y * y)), |y, dy| dy * (ONE - y.conj() * y.conj())),
    );
}

/// A number, or 0 if it is negative. The comparison is written so that NaN stays NaN.
#[inline]
fn rectified<T: Numeric>(x: T) -> T {
    if x < T::ZERO { T::ZERO } else { x }
}

#[inline]
fn rectified_up_to<T: Numeric>(x: T, limit: T) -> T {
    if x > limit { limit } else { rectified(x) }
}

/// The distance of 1 to the next larger number of a float dtype.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::BF16 => half::bf16::EPSILON.to_f64(),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    }
}

fn unary<T: Element + Copy>(f: impl Fn(T) -> T + Send + 'static) -> HostKernel {
    call(move |[mut x]| {
        // Writes in place if the elements are not shared, otherwise into a copy.
        x.slice_mut::<T>()?.iter_mut().for_each(|x| *x = f(*x));
        Ok(x)
    })
}

/// For two tensors of one shape; nothing is broadcast.
fn binary<T: Element + Copy>(f: impl Fn(T, T) -> T + Send + 'static) -> HostKernel {
    call(move |[mut a, mut b]: [Tensor; 2]| {
        if a.shape() != b.shape() {
            return Err(Failure::invalid(format!(
                "both inputs must have the same size and shape. Input 0: {} != input 1: {}",
                a.shape(),
                b.shape()
            )));
        }
        if b.is_unique() && !a.is_unique() {
            let from = a.slice::<T>()?;
            b.slice_mut::<T>()?.iter_mut().zip(from).for_each(|(b, &a)| *b = f(a, *b));
            return Ok(b);
        }
        let from = b.slice::<T>()?;
        a.slice_mut::<T>()?.iter_mut().zip(from).for_each(|(a, &b)| *a = f(*a, b));
        Ok(a)
    })
}
