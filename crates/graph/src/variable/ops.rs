//! Helpers that add simple nodes.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::render::number_text;
use meshtf_tensor::{DType, Tensor};

use crate::{GraphBuilder, Input, Output};

/// A float scalar of a dtype.
///
/// # Errors
/// InvalidArgument if the dtype is not a float, or is too coarse to distinguish the number from 0 or from 1: an optimizer would
/// make no progress.
pub fn scalar(dtype: DType, value: f64) -> Result<Tensor> {
    let tensor = rounded(dtype, value)?;
    let own = match tensor.dtype() {
        DType::F64 => value,
        DType::F32 => f64::from(value as f32),
        DType::F16 => half::f16::from_f64(value).to_f64(),
        _ => half::bf16::from_f64(value).to_f64(),
    };
    match value != own && (own == 0.0 || own == 1.0) {
        true => {
            let value = number_text(value);
            Err(Failure::invalid(format!("{value} is {own} as {dtype}; use float32 or another number")))
        }
        false => Ok(tensor),
    }
}

fn rounded(dtype: DType, value: f64) -> Result<Tensor> {
    match dtype {
        DType::F16 => Ok(Tensor::scalar(half::f16::from_f64(value))),
        DType::BF16 => Ok(Tensor::scalar(half::bf16::from_f64(value))),
        DType::F32 => Ok(Tensor::scalar(value as f32)),
        DType::F64 => Ok(Tensor::scalar(value)),
        other => Err(Failure::invalid(format!("expected a float dtype, and not {other}"))),
    }
}

pub fn unary(g: &mut GraphBuilder, op: &str, x: impl Into<Input>) -> Result<Output> {
    g.op(op).input(x).build()
}

pub fn binary(g: &mut GraphBuilder, op: &str, x: impl Into<Input>, y: impl Into<Input>) -> Result<Output> {
    g.op(op).input(x).input(y).build()
}

pub fn cast(g: &mut GraphBuilder, x: Output, to: DType) -> Result<Output> {
    g.op("Cast").input(x).attr("DstT", to).build()
}

/// Makes the nodes that `add` adds run on a device, or, if the device is empty, on that of the enclosing scope.
pub fn on<T>(g: &mut GraphBuilder, device: &str, add: impl FnOnce(&mut GraphBuilder) -> Result<T>) -> Result<T> {
    if device.is_empty() { add(g) } else { g.with_device(device, add) }
}
