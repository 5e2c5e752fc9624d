//! MNIST's idx files: two zero bytes, the type, the number of dimensions, their sizes in 4 bytes each, the elements;
//! big-endian.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::npy::Head;
use meshtf_tensor::{DType, Shape, Tensor};

/// Reads the bytes of an idx file.
///
/// # Errors
/// InvalidArgument if they are not an idx file, or not as long as their header states.
pub fn read(bytes: &[u8]) -> Result<Tensor> {
    let (dtype, shape, begin) = header(bytes, bytes.len() as u64)?;
    let elements = &bytes[begin..];
    let width = dtype.size().unwrap_or(1);
    if width == 1 {
        return Tensor::from_bytes(dtype, shape, elements);
    }
    let turned: Vec<u8> = elements.chunks_exact(width).flat_map(|element| element.iter().rev().copied()).collect();
    Tensor::from_bytes(dtype, shape, &turned)
}

/// The location of the examples in a file of `length` bytes with this beginning; `None` if it is one value.
///
/// # Errors
/// InvalidArgument if it is not an idx file, or not as long as its header states.
pub fn head(start: &[u8], length: u64) -> Result<Option<Head>> {
    let (dtype, shape, begin) = header(start, length)?;
    Ok(Head::of(dtype, true, shape.dims(), begin as u64))
}

/// The dtype and the shape of a file of `length` bytes with this beginning, and the offset of its elements.
fn header(start: &[u8], length: u64) -> Result<(DType, Shape, usize)> {
    let wrong = |why: String| Failure::invalid(format!("not a valid idx file: {why}"));
    let [0, 0, kind, rank, rest @ ..] = start else {
        return Err(wrong("it does not begin with two zero bytes, a type and a number of dimensions".to_owned()));
    };
    let dtype = match kind {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0b => DType::I16,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        _ => return Err(wrong(format!("it has no type {kind:#04x}"))),
    };
    let rank = usize::from(*rank);
    let Some(sizes) = rest.get(..4 * rank) else {
        return Err(wrong(format!("its {rank} sizes are cut off")));
    };
    let sizes = sizes.chunks_exact(4).map(|size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize);
    let shape: Shape = sizes.collect();
    let (begin, width) = (4 + 4 * rank, dtype.size().unwrap_or(1));
    let wanted = shape.elements().and_then(|count| count.checked_mul(width));
    let follow = length.saturating_sub(begin as u64);
    if wanted.map(|bytes| bytes as u64) != Some(follow) {
        return Err(wrong(format!("shape {shape} of {dtype} does not take the {follow} bytes that follow")));
    }
    Ok((dtype, shape, begin))
}
