//! Activations and their gradients, element by element, in place if the input is not shared. Half floats are rounded at
//! every step of a formula, as in TensorFlow.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Float, Numeric, Tensor, with_float, with_number};

use super::super::call::{input_dtype, kernel as call, no_kernel};
use super::super::math::complex_binary;
use super::super::real::{abs, exp, exp_m1, ln_1p};
use super::super::{HostKernel, KernelNode};

const OPS: &[&str] = &[
    "Elu",
    "EluGrad",
    "LeakyRelu",
    "LeakyReluGrad",
    "Relu",
    "Relu6",
    "Relu6Grad",
    "ReluGrad",
    "Selu",
    "SeluGrad",
    "SigmoidGrad",
    "Softplus",
    "SoftplusGrad",
    "Softsign",
    "SoftsignGrad",
    "TanhGrad",
];

/// Selu's constants are chosen so that activations keep mean 0 and variance 1 (Klambauer et al. 2017).
pub const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
pub const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    if !OPS.contains(&node.op) {
        return Ok(None);
    }
    let dtype = input_dtype(node, 0)?;
    let alpha = if node.op.starts_with("LeakyRelu") { f64::from(node.attrs.float("alpha")?) } else { 0.0 };
    let found = match node.op {
        "Relu" | "Relu6" | "Relu6Grad" | "ReluGrad" => with_number!(dtype, T => rectifier::<T>(node.op)).flatten(),
        op if dtype.is_complex() => complex_binary(op, dtype),
        op => with_float!(dtype, T => smooth::<T>(op, T::from_f64(alpha))).flatten(),
    };
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

fn rectifier<T: Numeric>(op: &str) -> Option<HostKernel> {
    let six = T::from_i64(6);
    // Comparisons are written so that NaN stays NaN.
    Some(match op {
        "Relu" => unary(|x: T| if x < T::ZERO { T::ZERO } else { x }),
        "Relu6" => unary(move |x: T| {
            if x < T::ZERO {
                T::ZERO
            } else if x > six {
                six
            } else {
                x
            }
        }),
        // A factor rather than a selection: infinity times zero is NaN.
        "ReluGrad" => binary(|dy: T, x| dy.mul(if x > T::ZERO { T::ONE } else { T::ZERO })),
        "Relu6Grad" => binary(move |dy: T, x| dy.mul(if x > T::ZERO && x < six { T::ONE } else { T::ZERO })),
        _ => return None,
    })
}

fn smooth<T: Float>(op: &str, alpha: T) -> Option<HostKernel> {
    let (scale, scale_alpha) = (T::from_f64(SELU_SCALE), T::from_f64(SELU_SCALE_ALPHA));
    // Beyond these, ln(1 + e^x) equals e^x, or x, within rounding.
    let epsilon = match T::DTYPE {
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::BF16 => half::bf16::EPSILON.to_f64(),
        DType::F32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    let threshold = T::from_f64(epsilon.ln()) + T::from_f64(2.0);
    Some(match op {
        "Elu" => unary(|x: T| if x < T::ZERO { exp_m1(x) } else { x }),
        "EluGrad" => binary(|dy: T, y| if y < T::ZERO { (y + T::ONE) * dy } else { dy }),
        "Selu" => unary(move |x: T| if x < T::ZERO { scale_alpha * exp_m1(x) } else { scale * x }),
        "SeluGrad" => binary(move |dy: T, y| if y < T::ZERO { dy * (y + scale_alpha) } else { dy * scale }),
        "LeakyRelu" => unary(move |x: T| if x > T::ZERO { x } else { x * alpha }),
        "LeakyReluGrad" => binary(move |dy: T, x| if x > T::ZERO { dy } else { dy * alpha }),
        "Softplus" => unary(move |x: T| {
            if x > -threshold {
                x
            } else if x < threshold {
                exp(x)
            } else {
                ln_1p(exp(x))
            }
        }),
        "SoftplusGrad" => binary(|dy: T, x| dy / (exp(-x) + T::ONE)),
        "Softsign" => unary(|x: T| x / (abs(x) + T::ONE)),
        "SoftsignGrad" => binary(|dy: T, x| {
            let divisor = abs(x) + T::ONE;
            dy / (divisor * divisor)
        }),
        // These two take the op's result first, then the incoming gradient.
        "SigmoidGrad" => binary(|y: T, dy| dy * y * (T::ONE - y)),
        "TanhGrad" => binary(|y: T, dy| dy * (T::ONE - y * y)),
        _ => return None,
    })
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
