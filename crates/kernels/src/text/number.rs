//! StringToNumber: text parsed as a number, with optional spaces around it.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Tensor};

use super::super::call::{kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode};

pub(super) fn kernel(node: &KernelNode) -> Result<HostKernel> {
    Ok(match output_dtype(node, 0)? {
        DType::F32 => parser(|text| text.parse().ok().or_else(|| hexadecimal(text).map(|x| x as f32))),
        DType::F64 => parser(|text| text.parse().ok().or_else(|| hexadecimal(text))),
        DType::I32 => parser(|text| text.parse::<i32>().ok()),
        DType::I64 => parser(|text| text.parse::<i64>().ok()),
        DType::U32 => parser(|text| text.parse::<u32>().ok()),
        DType::U64 => parser(|text| text.parse::<u64>().ok()),
        _ => return no_kernel(node),
    })
}

/// A hexadecimal integer of at most 64 bits, in the syntax of C's strtod.
fn hexadecimal(text: &str) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1.0, digits),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"))?;
    // Rust would accept a second sign.
    let is_plain = digits.starts_with(|digit: char| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_plain).map(|value| sign * value as f64)
}

fn parser<T: Element>(parse: fn(&str) -> Option<T>) -> HostKernel {
    call(move |[x]: [Tensor; 1]| {
        let numbers = x
            .slice::<Vec<u8>>()?
            .iter()
            .map(|text| {
                std::str::from_utf8(text).ok().and_then(|text| parse(text.trim_ascii())).ok_or_else(|| {
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
