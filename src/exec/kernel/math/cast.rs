//! Cast, from every dtype to every other.

use super::super::call::{input_dtype, kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode};
use super::map_to;
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Data, Float, Integer, Numeric, Tensor, with_float, with_integer};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    if node.op != "Cast" {
        return Ok(None);
    }
    let (from, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    if from != to && [from, to].iter().any(|dtype| matches!(dtype, DType::String | DType::Resource)) {
        return no_kernel(node);
    }
    Ok(Some(call(move |[x]| cast(x, to))))
}

/// `x` as `to`. A float becomes the integer towards zero; where that does not fit, what this machine's processors
/// answer (TensorFlow's result too): the least integer for int32 and int64.
///
/// # Errors
/// InvalidArgument between strings and numbers.
pub fn cast(x: Tensor, to: DType) -> Result<Tensor> {
    if x.dtype() == to {
        return Ok(x);
    }
    let wrong = || Failure::invalid(format!("Cast from {} to {to} is not supported", x.dtype()));
    if let Data::Bool(values) = x.data() {
        let ones: Vec<u8> = values.iter().map(|&value| u8::from(value)).collect();
        return if to == DType::U8 {
            Tensor::new(x.shape().clone(), Data::U8(ones))
        } else {
            from_integer::<u8>(&Tensor::new(x.shape().clone(), Data::U8(ones))?, to).unwrap_or_else(|| Err(wrong()))
        };
    }
    with_integer!(x.dtype(), S => from_integer::<S>(&x, to))
        .or_else(|| with_float!(x.dtype(), S => from_float::<S>(&x, to)))
        .flatten()
        .unwrap_or_else(|| Err(wrong()))
}

fn from_integer<S: Integer>(x: &Tensor, to: DType) -> Option<Result<Tensor>> {
    if to == DType::Bool {
        return Some(map_to(x, |x: &S| *x != S::ZERO));
    }
    with_integer!(to, R => map_to(x, |x: &S| R::from_i64(x.to_i64()))).or_else(|| match to {
        // In one rounding: through f64 a 64-bit integer would be rounded twice.
        DType::F32 => Some(map_to(x, |x: &S| wide(*x) as f32)),
        DType::F64 => Some(map_to(x, |x: &S| wide(*x) as f64)),
        DType::F16 => Some(map_to(x, |x: &S| half::f16::from_f32(wide(*x) as f32))),
        DType::BF16 => Some(map_to(x, |x: &S| half::bf16::from_f32(wide(*x) as f32))),
        _ => None,
    })
}

/// Any integer, exactly.
fn wide<S: Integer>(x: S) -> i128 {
    let bits = x.to_i64();
    if S::DTYPE == DType::U64 { i128::from(bits as u64) } else { i128::from(bits) }
}

fn from_float<S: Float>(x: &Tensor, to: DType) -> Option<Result<Tensor>> {
    match to {
        DType::Bool => Some(map_to(x, |x: &S| *x != S::ZERO)),
        DType::F16 if !S::WIDE => Some(map_to(x, |x: &S| half::f16::from_f32(x.to_f64() as f32))),
        DType::BF16 => Some(map_to(x, |x: &S| half::bf16::from_f32(x.to_f64() as f32))),
        _ => with_float!(to, R => map_to(x, |x: &S| R::from_f64(x.to_f64())))
            .or_else(|| with_integer!(to, R => map_to(x, |x: &S| to_integer::<R>(x.to_f64())))),
    }
}

/// What the processor's conversions answer, by way of the next of int32 and int64 that is wider.
fn to_integer<R: Integer>(x: f64) -> R {
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    match R::DTYPE {
        DType::U32 | DType::I64 => R::from_i64(if (-TWO_63..TWO_63).contains(&x) { x as i64 } else { i64::MIN }),
        DType::U64 if (TWO_63..2.0 * TWO_63).contains(&x) => R::from_i64(x as u64 as i64),
        DType::U64 => R::from_i64(if (-TWO_63..TWO_63).contains(&x) { x as i64 } else { i64::MIN }),
        _ => {
            let x = x.trunc();
            let fits = (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&x);
            R::from_i64(i64::from(if fits { x as i32 } else { i32::MIN }))
        }
    }
}
