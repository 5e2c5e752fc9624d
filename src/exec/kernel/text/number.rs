//! StringToNumber: text parsed as a number, spaces around it allowed.

use std::str::FromStr;

use super::super::call::{kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Element, Tensor};

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    Ok(match output_dtype(node, 0)? {
        DType::F32 => parser::<f32>(),
        DType::F64 => parser::<f64>(),
        DType::I32 => parser::<i32>(),
        DType::I64 => parser::<i64>(),
        DType::U32 => parser::<u32>(),
        DType::U64 => parser::<u64>(),
        _ => return no_kernel(node),
    })
}

fn parser<T: Element + FromStr>() -> HostKernel {
    call(|[x]: [Tensor; 1]| {
        let numbers = x
            .slice::<Vec<u8>>()?
            .iter()
            .map(|text| {
                std::str::from_utf8(text).ok().and_then(|text| text.trim_ascii().parse::<T>().ok()).ok_or_else(|| {
                    Failure::invalid(format!(
                        "StringToNumberOp could not correctly convert string: {}",
                        String::from_utf8_lossy(text)
                    ))
                })
            })
            .collect::<Result<Vec<T>>>()?;
        Ok(Tensor::from_vec(x.shape().clone(), numbers))
    })
}
