//! Uncompressed BMP files of 8, 24 or 32 bits per pixel, with the range and the errors of TensorFlow's op. The library
//! `image`, which reads training images (`data/images.rs` of `meshtf-train`), reads and writes more than the op does.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape};

/// The shape and the elements of an image, from the upper left corner on.
///
/// # Errors
/// InvalidArgument if the bytes are not a BMP file, or if it has another number of channels than `wanted`.
pub(super) fn decode(bytes: &[u8], wanted: usize) -> Result<(Shape, Vec<u8>)> {
    if wanted == 1 {
        return Err(Failure::invalid("`channels` must be 0, 3 or 4 for BMP, but got 1"));
    }
    let number = |at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        word.map(i32::from_le_bytes).ok_or_else(|| {
            Failure::invalid(format!(
                "Incomplete bmp content, requires at least 32 bytes to find the header size, width, height, and bpp, got {} \
                 bytes",
                bytes.len()
            ))
        })
    };
    let (begin, width, height, bits) = (number(10)?, number(18)?, number(22)?, number(28)? & 0xffff);
    let channels = match bits {
        8 => 1,
        24 => 3,
        32 => 4,
        other => {
            return Err(Failure::invalid(format!(
                "Number of channels inherent in the image must be 1, 3 or 4, was {}",
                other / 8
            )));
        }
    };
    let gets_alpha = (wanted, channels) == (4, 3);
    if wanted != 0 && wanted != channels && !gets_alpha {
        return Err(Failure::invalid(format!(
            "channels attribute {wanted} does not match bits per pixel from file {channels}"
        )));
    }
    let invalid = |_| Failure::invalid(format!("Invalid bmp: {width} by {height} pixels from byte {begin} on"));
    if width <= 0 || height == 0 {
        return Err(Failure::invalid(if height == 0 { "Height must be nonzero" } else { "Width must be positive" }));
    }
    let width = usize::try_from(width).map_err(invalid)?;
    let (rows, is_top_down) = (height.unsigned_abs() as usize, height < 0);
    let begin = usize::try_from(begin).map_err(invalid)?;
    let shape = Shape::from([rows, width, if gets_alpha { 4 } else { channels }]);
    let total = shape.checked_elements(DType::U8)?;
    // Rows begin at multiples of four bytes.
    let stride = (channels * width).next_multiple_of(4);
    let needed =
        stride.saturating_mul(rows.saturating_sub(1)).saturating_add(if rows > 0 { channels * width } else { 0 });
    let Some(data) = bytes.get(begin..).filter(|data| data.len() >= needed) else {
        let why = format!(
            "Incomplete bmp content, requires at least {} bytes, got {} bytes",
            begin.saturating_add(needed),
            bytes.len()
        );
        return Err(Failure::invalid(why));
    };
    let mut pixels = Vec::with_capacity(total);
    for row in 0..rows {
        let at = if is_top_down { row } else { rows - 1 - row } * stride;
        for pixel in data[at..at + channels * width].chunks_exact(channels) {
            match *pixel {
                [b, g, r] if gets_alpha => pixels.extend([r, g, b, 255]),
                [b, g, r] => pixels.extend([r, g, b]),
                [b, g, r, a] => pixels.extend([r, g, b, a]),
                ref one => pixels.extend_from_slice(one),
            }
        }
    }
    Ok((shape, pixels))
}
