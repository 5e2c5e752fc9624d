//! Integers from random bits.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::distribution::{each, groups};
use super::philox::{Bits, Philox};

/// int32 or int64 from `low` on, within `range`: the bits modulo the range, as in TensorFlow. `shape` has `n` elements.
pub fn between(dtype: DType, shape: Shape, n: usize, philox: Philox, low: i64, range: u64) -> Tensor {
    if dtype == DType::I32 {
        let (low, range) = (low as i32, range as u32);
        return Tensor::from_vec(
            shape,
            groups(n, philox, |bits| each(bits, |word| low.wrapping_add_unsigned(word % range))),
        );
    }
    let number = |word: u64| low.wrapping_add_unsigned(word % range);
    Tensor::from_vec(shape, groups(n, philox, |bits| pairs(bits).map(number)))
}

/// All integers of 32 or 64 bits are as likely: the bits as they are. `shape` has `n` elements.
///
/// # Errors
/// Invalid argument for another dtype.
pub fn of_all(dtype: DType, shape: Shape, n: usize, philox: Philox) -> Result<Tensor> {
    match dtype {
        DType::U32 => Ok(Tensor::from_vec(shape, groups(n, philox, |bits| bits))),
        DType::I32 => Ok(Tensor::from_vec(shape, groups(n, philox, |bits| each(bits, |word| word as i32)))),
        DType::U64 => Ok(Tensor::from_vec(shape, groups(n, philox, pairs))),
        DType::I64 => Ok(Tensor::from_vec(shape, groups(n, philox, |bits| pairs(bits).map(|word| word as i64)))),
        _ => Err(Failure::invalid(format!("random integers are of 32 or 64 bits, not {}", dtype.name()))),
    }
}

/// Two words make one of 64 bits, the low one first.
#[inline(always)]
fn pairs([a, b, c, d]: Bits) -> [u64; 2] {
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    [pair(a, b), pair(c, d)]
}
