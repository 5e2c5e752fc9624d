//! The ops EncodePng and EncodeJpeg.

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder, ImageError};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::super::Registry;
use super::super::super::call::{input_dtype, kernel as call, product};

/// Registers the ops that encode images.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("EncodePng", |node| {
        if !matches!(input_dtype(node, 0)?, DType::U8 | DType::U16) {
            return Ok(None);
        }
        let level = node.attrs.int("compression")?;
        if !(-1..=9).contains(&level) {
            return Err(Failure::invalid(format!("compression should be in [-1,9], got {level}")));
        }
        Ok(Some(call(move |[images]| encode_pngs(&images, level))))
    });
    ops.insert("EncodeJpeg", |node| {
        if input_dtype(node, 0)? != DType::U8 {
            return Ok(None);
        }
        let wanted = match node.attrs.str("format")? {
            "" => None,
            "grayscale" => Some(1),
            "rgb" => Some(3),
            other => return Err(Failure::invalid(format!("format must be '', grayscale or rgb, got {other}"))),
        };
        let quality = node.attrs.int("quality")?;
        if !(0..=100).contains(&quality) {
            return Err(Failure::invalid(format!("quality must be in [0,100], got {quality}")));
        }
        Ok(Some(call(move |[image]| encode_jpeg(&image, wanted, quality as u8))))
    });
    ops.insert("EncodeJpegVariableQuality", |_| Ok(Some(call(|[image, quality]| encode_jpeg_of(&image, &quality)))));
}

/// A JPEG file of an image of one or three channels.
fn encode_jpeg_of(image: &Tensor, quality: &Tensor) -> Result<Tensor> {
    if quality.rank() != 0 {
        return Err(Failure::invalid(format!("quality must be scalar: {}", quality.shape())));
    }
    let stated = quality.to_i64()?;
    let quality = u8::try_from(stated).ok().filter(|quality| *quality <= 100);
    let quality = quality.ok_or_else(|| Failure::invalid(format!("quality must be in [0,100], got {stated}")))?;
    encode_jpeg(image, None, quality)
}

fn encode_pngs(images: &Tensor, level: i64) -> Result<Tensor> {
    let [batch @ .., height, width, channels] = images.dims() else {
        return Err(Failure::invalid(format!("image must be at least 3-dimensional, got shape {}", images.shape())));
    };
    let (size, count) = (height * width * channels, product(batch));
    let wide = images.dtype() == DType::U16;
    let bytes = images.bytes().unwrap_or(&[]);
    let size = if wide { 2 * size } else { size };
    let mut files = Vec::with_capacity(count);
    for i in 0..count {
        turn::look();
        files.push(png(&bytes[i * size..(i + 1) * size], [*height, *width, *channels], wide, level)?);
    }
    Ok(Tensor::from_vec(Shape::from(batch), files))
}

/// A PNG file of an image of 8-bit or, if `wide`, 16-bit elements.
///
/// # Errors
/// InvalidArgument for an unsupported number of channels or invalid sizes; ResourceExhausted if memory is short.
pub(crate) fn png(bytes: &[u8], [height, width, channels]: [usize; 3], wide: bool, level: i64) -> Result<Vec<u8>> {
    let color = match (channels, wide) {
        (1, false) => ExtendedColorType::L8,
        (2, false) => ExtendedColorType::La8,
        (3, false) => ExtendedColorType::Rgb8,
        (4, false) => ExtendedColorType::Rgba8,
        (1, true) => ExtendedColorType::L16,
        (2, true) => ExtendedColorType::La16,
        (3, true) => ExtendedColorType::Rgb16,
        (4, true) => ExtendedColorType::Rgba16,
        _ => return Err(Failure::invalid(format!("image must have 1, 2, 3, or 4 channels, has {channels}"))),
    };
    let compression = match level {
        -1 => CompressionType::Default,
        0 => CompressionType::Uncompressed,
        level => CompressionType::Level(level as u8),
    };
    let (width, height) = sides(width, height)?;
    memory::admit(bytes.len())?;
    let mut file = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut file, compression, FilterType::Adaptive);
    encoder.write_image(bytes, width, height, color).map_err(|error| failed(&error))?;
    Ok(file)
}

fn encode_jpeg(image: &Tensor, wanted: Option<usize>, quality: u8) -> Result<Tensor> {
    let &[height, width, channels] = image.dims() else {
        return Err(Failure::invalid(format!("image must be 3-dimensional, got shape {}", image.shape())));
    };
    if !matches!(channels, 1 | 3) {
        return Err(Failure::invalid(format!("image must have 1 or 3 channels, got {channels}")));
    }
    if let Some(wanted) = wanted.filter(|&wanted| wanted != channels) {
        let name = if wanted == 1 { "grayscale" } else { "RGB" };
        return Err(Failure::invalid(format!("format {name} expects {wanted} channels, got {channels}")));
    }
    let color = if channels == 1 { ExtendedColorType::L8 } else { ExtendedColorType::Rgb8 };
    let (width, height) = sides(width, height)?;
    memory::admit(image.len())?;
    let mut file = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut file, quality.max(1));
    encoder.encode(image.slice::<u8>()?, width, height, color).map_err(|error| failed(&error))?;
    Ok(Tensor::scalar(file))
}

fn sides(width: usize, height: usize) -> Result<(u32, u32)> {
    match (u32::try_from(width), u32::try_from(height)) {
        (Ok(width @ 1..), Ok(height @ 1..)) => Ok((width, height)),
        _ => Err(Failure::invalid(format!("cannot encode an image of {height} by {width} pixels"))),
    }
}

#[inline]
fn failed(error: &ImageError) -> Failure {
    match error {
        ImageError::Limits(_) => Failure::new(Code::ResourceExhausted, format!("cannot encode an image: {error}")),
        _ => Failure::invalid(format!("cannot encode an image: {error}")),
    }
}
