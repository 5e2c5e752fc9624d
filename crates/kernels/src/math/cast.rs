//! Cast, between any two dtypes, and the wide dtypes in which narrow ones are computed.
//!
//! A narrow dtype is converted through its wide one, so that code is compiled for each dtype rather than for each pair.

use meshtf_loops::vector::{To, converted};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Complex, DType, Element, Integer, Numeric, Tensor, with_type};

use super::super::call::{input_dtype, kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode, Registry};
use super::map_to;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Cast", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let (from, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    if from != to && [from, to].iter().any(|dtype| dtype.is_handle() || *dtype == DType::String) {
        return no_kernel(node);
    }
    if node.attrs.bool("Truncate")? {
        return Ok(Some(call(move |[x]| cast(truncated(x, to)?, to))));
    }
    Ok(Some(call(move |[x]| cast(x, to))))
}

/// Floats without the fraction bits that a narrower float lacks, so that the conversion truncates them instead of
/// rounding.
fn truncated(mut x: Tensor, to: DType) -> Result<Tensor> {
    let kept = match to {
        DType::F16 => 10,
        DType::BF16 => 7,
        DType::F32 | DType::C64 => 23,
        _ => return Ok(x),
    };
    match x.dtype() {
        DType::F32 if kept < 23 => {
            for x in x.slice_mut::<f32>()?.iter_mut().filter(|x| !x.is_nan()) {
                *x = f32::from_bits(x.to_bits() & (u32::MAX << (23 - kept)));
            }
        }
        DType::F64 => {
            for x in x.slice_mut::<f64>()?.iter_mut().filter(|x| !x.is_nan()) {
                *x = f64::from_bits(x.to_bits() & (u64::MAX << (52 - kept)));
            }
        }
        _ => {}
    }
    Ok(x)
}

/// The dtype in which kernels compute `dtype`; it represents all its values: float32 for the halves; int64 for integers
/// narrower than int32 and for uint32. A result that is cast back is rounded or wrapped once, as if it had been computed
/// in the narrow dtype.
#[inline]
pub fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::I8 | DType::I16 | DType::U8 | DType::U16 | DType::U32 => DType::I64,
        other => other,
    }
}

/// A kernel for `dtype` from one for its wide dtype: inputs of `dtype` are widened, and wide outputs cast back. The op's
/// other inputs and outputs must have dtypes other than the wide one.
pub fn widened(dtype: DType, compile: impl FnOnce(DType) -> Option<HostKernel>) -> Option<HostKernel> {
    let wide = wide(dtype);
    let kernel = compile(wide)?;
    Some(if wide == dtype { kernel } else { cast_around(dtype, wide, kernel) })
}

fn cast_around(dtype: DType, wide: DType, mut kernel: HostKernel) -> HostKernel {
    Box::new(move |inputs| {
        let widen = |x: Tensor| if x.dtype() == dtype { cast(x, wide) } else { Ok(x) };
        let outputs = kernel(inputs.into_iter().map(widen).collect::<Result<_>>()?)?;
        outputs.into_iter().map(|x| if x.dtype() == wide { cast(x, dtype) } else { Ok(x) }).collect()
    })
}

/// `x` as `to`. A float is truncated towards zero; one that is out of range gives the result of the processor's
/// conversion (as in TensorFlow): the least integer for int32 and int64. A complex number as a real one loses its
/// imaginary part. A quantised number is the integer that it is stored as.
///
/// # Errors
/// InvalidArgument between strings and numbers.
pub fn cast(x: Tensor, to: DType) -> Result<Tensor> {
    let from = x.dtype();
    if from == to {
        return Ok(x);
    }
    if from.is_quantized() || to.is_quantized() {
        return cast(x.retyped(from.stored_as())?, to.stored_as())?.retyped(to);
    }
    let found = match (from, to) {
        (DType::Bool, DType::I32) => Some(map_to(&x, |&x: &bool| i32::from(x))),
        // The most frequent casts of models are vectorised and multithreaded.
        (DType::Bool, DType::F32) => Some(spread::<bool, f32>(&x)),
        (DType::U8, DType::F32) => Some(spread::<u8, f32>(&x)),
        (DType::I32, DType::F32) => Some(spread::<i32, f32>(&x)),
        (DType::I64, DType::F32) => Some(spread::<i64, f32>(&x)),
        (DType::F64, DType::F32) => Some(spread::<f64, f32>(&x)),
        (DType::F32, DType::F64) => Some(spread::<f32, f64>(&x)),
        (DType::F32, DType::Bool) => Some(spread::<f32, bool>(&x)),
        (DType::F32, DType::I32) => Some(spread::<f32, i32>(&x)),
        (DType::F32, DType::I64) => Some(spread::<f32, i64>(&x)),
        (DType::F32, DType::U8) => Some(spread::<f32, u8>(&x)),
        _ if to.is_complex() => {
            let real = if from.is_complex() { None } else { Some(cast(x.clone(), to.real())?) };
            match (real, to) {
                (Some(real), DType::C64) => Some(map_to(&real, |&re: &f32| Complex { re, im: 0.0 })),
                (Some(real), _) => Some(map_to(&real, |&re: &f64| Complex { re, im: 0.0 })),
                (None, DType::C64) => Some(map_to(&x, |x: &Complex<f64>| Complex { re: x.re as f32, im: x.im as f32 })),
                (None, _) => Some(map_to(&x, |x: &Complex<f32>| Complex { re: f64::from(x.re), im: f64::from(x.im) })),
            }
        }
        // The imaginary part is dropped.
        (DType::C64, _) => return cast(map_to(&x, |x: &Complex<f32>| x.re)?, to),
        (DType::C128, _) => return cast(map_to(&x, |x: &Complex<f64>| x.re)?, to),
        (DType::Bool, _) => return cast(cast(x, DType::I32)?, to),
        (DType::F16, DType::F32) => Some(map_to(&x, |x: &half::f16| x.to_f32())),
        (DType::BF16, DType::F32) => Some(map_to(&x, |x: &half::bf16| x.to_f32())),
        (DType::F32, DType::F16) => Some(map_to(&x, |&x: &f32| half::f16::from_f32(x))),
        (DType::F32, DType::BF16) => Some(map_to(&x, |&x: &f32| half::bf16::from_f32(x))),
        _ if wide(from) != from && to == wide(from) => {
            with_type!(from, S => map_to(&x, |&x: &S| i64::from(x)); I8 i8, I16 i16, U8 u8, U16 u16, U32 u32)
        }
        _ if wide(from) != from => return cast(cast(x, wide(from))?, to),
        (DType::I64, _) if wide(to) == DType::I64 && to != DType::I64 => {
            with_type!(to, R => map_to(&x, |&x: &i64| x as R); I8 i8, I16 i16, U8 u8, U16 u16, U32 u32)
        }
        // The processor converts to narrow integers through int32.
        (DType::F32 | DType::F64, DType::I8 | DType::I16 | DType::U8 | DType::U16) => {
            return cast(cast(x, DType::I32)?, to);
        }
        _ if wide(to) != to => return cast(cast(x, wide(to))?, to),
        (DType::F32 | DType::F64, _) => {
            with_type!(from, S => from_float::<S>(&x, to); F32 f32, F64 f64)
        }
        _ => with_type!(from, S => from_integer::<S>(&x, to); I32 i32, I64 i64, U64 u64),
    };
    found.unwrap_or_else(|| Err(Failure::invalid(format!("Cast from {from} to {to} is not supported"))))
}

fn spread<T: Element + To<R>, R: Element + Copy>(x: &Tensor) -> Result<Tensor> {
    x.shape().checked_elements(R::DTYPE)?;
    Ok(Tensor::from_vec(x.shape().clone(), converted(x.slice::<T>()?)))
}

fn from_integer<S: Integer>(x: &Tensor, to: DType) -> Result<Tensor> {
    let unsigned = S::DTYPE == DType::U64;
    match to {
        DType::Bool => map_to(x, |&x: &S| x != S::ZERO),
        // Rounded once: a conversion through float64 would round a 64-bit integer twice.
        DType::F32 if unsigned => map_to(x, |x: &S| x.to_i64() as u64 as f32),
        DType::F32 => map_to(x, |x: &S| x.to_i64() as f32),
        DType::F64 if unsigned => map_to(x, |x: &S| x.to_i64() as u64 as f64),
        DType::F64 => map_to(x, |x: &S| x.to_i64() as f64),
        DType::I32 => map_to(x, |x: &S| x.to_i64() as i32),
        DType::I64 => map_to(x, |x: &S| x.to_i64()),
        DType::U64 => map_to(x, |x: &S| x.to_i64() as u64),
        _ => Err(Failure::invalid(format!("Cast from {} to {to} is not supported", S::DTYPE))),
    }
}

fn from_float<S: Numeric>(x: &Tensor, to: DType) -> Result<Tensor> {
    let load = |x: &S| x.to_f64();
    const TWO_63: f64 = 9_223_372_036_854_775_808.0;
    let to_i64 = |x: f64| if (-TWO_63..TWO_63).contains(&x) { x as i64 } else { i64::MIN };
    let fits_i32 = |x: f64| x > f64::from(i32::MIN) - 1.0 && x < f64::from(i32::MAX) + 1.0;
    match to {
        DType::Bool => map_to(x, |x| load(x) != 0.0),
        DType::F32 => map_to(x, |x| load(x) as f32),
        DType::F64 => map_to(x, load),
        DType::I32 => map_to(x, |x| if fits_i32(load(x)) { load(x) as i32 } else { i32::MIN }),
        DType::I64 => map_to(x, |x| to_i64(load(x))),
        DType::U64 => {
            map_to(
                x,
                |x| if load(x) >= TWO_63 && load(x) < 2.0 * TWO_63 { load(x) as u64 } else { to_i64(load(x)) as u64 },
            )
        }
        _ => Err(Failure::invalid(format!("Cast from {} to {to} is not supported", S::DTYPE))),
    }
}
