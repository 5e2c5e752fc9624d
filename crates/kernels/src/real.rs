//! Helpers of kernels for real numbers, f32 and f64, and the elementary functions of every float type. Half floats are
//! widened before the computation and rounded once after it.

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Data, Float, Tensor};

use super::{HostKernel, KernelNode};

/// `with_real!(dtype, T => body)`: `Some(body)` with `T` the type in which floats of this dtype are computed (f32, or f64
/// for float64), `None` for any other dtype.
macro_rules! with_real {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            meshtf_tensor::DType::F16 | ::meshtf_tensor::DType::BF16 | ::meshtf_tensor::DType::F32 => {
                type $t = f32;
                Some($body)
            }
            meshtf_tensor::DType::F64 => {
                type $t = f64;
                Some($body)
            }
            _ => None,
        }
    };
}
pub(crate) use with_real;

/// Adapts a kernel that computes in f32 to a node with half-float inputs or outputs: those inputs are widened, those
/// outputs rounded.
pub fn widened(node: &KernelNode, mut kernel: HostKernel) -> HostKernel {
    if !node.inputs.iter().chain(node.outputs.iter().map(|output| &output.dtype)).any(|&dtype| is_half(dtype)) {
        return kernel;
    }
    let outputs: Vec<DType> = node.outputs.iter().map(|output| output.dtype).collect();
    Box::new(move |inputs| {
        let results = kernel(inputs.into_iter().map(widen).collect())?;
        results.into_iter().zip(&outputs).map(|(result, &dtype)| narrow(result, dtype)).collect()
    })
}

#[inline]
fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A half-float tensor as f32; any other tensor unchanged.
pub fn widen(tensor: Tensor) -> Tensor {
    let wide = match tensor.data() {
        Data::F16(v) => v.iter().map(|x| x.to_f32()).collect(),
        Data::BF16(v) => v.iter().map(|x| x.to_f32()).collect(),
        _ => return tensor,
    };
    Tensor::from_vec::<f32>(tensor.shape().clone(), wide)
}

/// An f32 tensor as `dtype` if that is a half float; any other tensor unchanged.
///
/// # Errors
/// Never for f32 tensors.
pub fn narrow(tensor: Tensor, dtype: DType) -> Result<Tensor> {
    if tensor.dtype() != DType::F32 || !is_half(dtype) {
        return Ok(tensor);
    }
    let wide = tensor.slice::<f32>()?;
    let data = match dtype {
        DType::F16 => Data::F16(wide.iter().map(|&x| half::f16::from_f32(x)).collect()),
        _ => Data::BF16(wide.iter().map(|&x| half::bf16::from_f32(x)).collect()),
    };
    Tensor::new(tensor.shape().clone(), data)
}

/// Zero for a denormal, as kernel threads treat it; for C library functions that examine a number's bits. The check
/// examines the bits too: the compiler is unaware of the threads' mode and would remove a comparison with zero.
#[inline]
pub fn flushed<T: Float>(x: T) -> T {
    x.map(
        |x| if x.is_subnormal() { 0f32.copysign(x) } else { x },
        |x| if x.is_subnormal() { 0f64.copysign(x) } else { x },
    )
}

#[inline]
pub fn sqrt<T: Float>(x: T) -> T {
    x.map(f32::sqrt, f64::sqrt)
}

/// The reciprocal square root, in two steps, each of which rounds a half float.
#[inline]
pub fn rsqrt<T: Float>(x: T) -> T {
    T::ONE / sqrt(x)
}

#[inline]
pub fn exp<T: Float>(x: T) -> T {
    x.map(f32::exp, f64::exp)
}

#[inline]
pub fn exp_m1<T: Float>(x: T) -> T {
    x.map(f32::exp_m1, f64::exp_m1)
}

#[inline]
pub fn ln<T: Float>(x: T) -> T {
    flushed(x).map(f32::ln, f64::ln)
}

#[inline]
pub fn ln_1p<T: Float>(x: T) -> T {
    x.map(f32::ln_1p, f64::ln_1p)
}

#[inline]
pub fn pow<T: Float>(x: T, y: T) -> T {
    let y = y.to_f64();
    x.map(|x| x.powf(y as f32), |x| x.powf(y))
}

#[inline]
pub fn abs<T: Float>(x: T) -> T {
    x.map(f32::abs, f64::abs)
}

/// The order of two numbers with NaN last, which is total, as sorting requires.
#[inline]
pub fn order<T: PartialOrd>(a: &T, b: &T) -> std::cmp::Ordering {
    let is_none = |x: &T| x.partial_cmp(x).is_none();
    a.partial_cmp(b).unwrap_or_else(|| is_none(a).cmp(&is_none(b)))
}

/// The larger of two; the first if they cannot be compared.
#[inline]
pub fn max<T: Float>(a: T, b: T) -> T {
    if a < b { b } else { a }
}

/// 1, -1, or the number itself if it is neither positive nor negative.
#[inline]
pub fn sign<T: Float>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        -T::ONE
    } else {
        x
    }
}
