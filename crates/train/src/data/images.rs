//! Images as tensors: PNG, JPEG, BMP and GIF.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, MAX_TEXT_BYTES, Shape, Tensor};

use super::kind::kind_of;
use super::resize::{Resizing, padded};

/// Most pixels in a row or a column of an image.
const MAX_SIDE: u32 = 1 << 15;
/// The formats that are taken.
const FORMATS: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp, ImageFormat::Gif];

/// Reads one image, `[height, width, channels]` of uint8. With 1 channel, it is grey; with 2, grey with alpha; with 3, red,
/// green and blue; with 4, these with alpha. An image of a `size` (height and width) other than the given one is
/// interpolated.
///
/// # Errors
/// InvalidArgument if the bytes are not an image, or for another number of channels; ResourceExhausted if it is too large.
pub fn read_image(bytes: &[u8], channels: usize, size: Option<[usize; 2]>) -> Result<Tensor> {
    read_resized(bytes, channels, size.map(Resizing::to))
}

/// As [`read_image`], with a size that is reached in a given way.
///
/// # Errors
/// Those of [`read_image`].
pub fn read_resized(bytes: &[u8], channels: usize, resizing: Option<Resizing>) -> Result<Tensor> {
    let wrong = |error: &dyn std::fmt::Display| Failure::invalid(format!("not a valid image: {error}"));
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| wrong(&error))?;
    if reader.format().is_none_or(|format| !FORMATS.contains(&format)) {
        return Err(wrong(&format_args!("the content is {}; expected PNG, JPEG, BMP or GIF", kind_of(bytes))));
    }
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    reader.limits(limits.clone());
    let decoder = reader.into_decoder().map_err(|error| wrong(&error))?;
    let bytes = decoder.total_bytes();
    limits.reserve(bytes).map_err(|error| wrong(&error))?;
    memory::admit(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| wrong(&error))?;
    let mut size = [image.height() as usize, image.width() as usize];
    if let Some(resizing) = resizing {
        let side = |side: usize| {
            let fits = u32::try_from(side).ok().filter(|side| (1..=MAX_SIDE).contains(side));
            fits.ok_or_else(|| Failure::invalid(format!("a side of {side} pixels; expected 1 to {MAX_SIDE}")))
        };
        let wanted = [side(resizing.size[0])?, side(resizing.size[1])?];
        let own = [image.height(), image.width()];
        if own.contains(&0) {
            return Err(wrong(&"it has no pixels"));
        }
        let part = resizing.part(own, wanted);
        if part.size != own {
            memory::admit(usize::try_from(bytes).unwrap_or(usize::MAX))?;
            image = image.crop_imm(part.begin[1], part.begin[0], part.size[1], part.size[0]);
        }
        if part.size != part.inner {
            memory::admit(between(part.size[1], part.inner)?)?;
            image = image.resize_exact(part.inner[1], part.inner[0], resizing.interpolation.filter());
        }
        size = resizing.size;
    }
    let inner = [image.height() as usize, image.width() as usize];
    let [height, width] = size;
    Shape::from([height, width, channels]).checked_elements(DType::U8)?;
    let pixels = match channels {
        1 => image.into_luma8().into_raw(),
        2 => image.into_luma_alpha8().into_raw(),
        3 => image.into_rgb8().into_raw(),
        4 => image.into_rgba8().into_raw(),
        _ => return Err(Failure::invalid(format!("an image has 1 to 4 channels, not {channels}"))),
    };
    Tensor::new([height, width, channels], Data::U8(padded(pixels, inner, size, channels)))
}

/// The bytes of the largest intermediate image of the interpolation: four float32 a pixel, with the new height, and the old
/// or the new width.
fn between(old_width: u32, [height, width]: [u32; 2]) -> Result<usize> {
    let sizes = [16, height as usize, old_width.max(width) as usize];
    let bytes = Shape::from(sizes).elements().filter(|bytes| *bytes <= MAX_TEXT_BYTES);
    bytes.ok_or_else(|| {
        let why = format!("to interpolate a width of {old_width} to {height} by {width} pixels takes too much memory");
        Failure::new(Code::ResourceExhausted, why)
    })
}

/// Images of one size, one after another.
#[derive(Debug)]
pub struct Images {
    channels: usize,
    resizing: Option<Resizing>,
    /// The height and width of the first.
    size: Option<[usize; 2]>,
    pixels: Vec<u8>,
    count: usize,
}

impl Images {
    /// Images of this many channels, interpolated to a height and width, or all of one size.
    pub fn new(channels: usize, resized: Option<[usize; 2]>) -> Images {
        Images::resized(channels, resized.map(Resizing::to))
    }

    /// As [`new`](Images::new), with a size that is reached in a given way.
    pub fn resized(channels: usize, resizing: Option<Resizing>) -> Images {
        Images { channels, resizing, size: None, pixels: Vec::new(), count: 0 }
    }

    /// As [`resized`](Images::resized), but the first must have this height and width, too.
    pub fn of_size(channels: usize, resizing: Option<Resizing>, size: [usize; 2]) -> Images {
        Images { size: Some(size), ..Images::resized(channels, resizing) }
    }

    /// Adds the image in a file's bytes.
    ///
    /// # Errors
    /// Those of [`read_image`]; InvalidArgument if it has another size than the first.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let image = self.decode(bytes)?;
        self.push(&image)
    }

    /// An image in a file's bytes, to be added.
    ///
    /// # Errors
    /// Those of [`read_image`].
    pub fn decode(&self, bytes: &[u8]) -> Result<Tensor> {
        read_resized(bytes, self.channels, self.resizing)
    }

    /// Adds an image.
    ///
    /// # Errors
    /// InvalidArgument if it has another size than the first.
    pub fn push(&mut self, image: &Tensor) -> Result<()> {
        let own = [image.dims()[0], image.dims()[1]];
        let [height, width] = *self.size.get_or_insert(own);
        if own != [height, width] {
            return Err(Failure::invalid(format!(
                "it is {} pixels high and {} wide, and the first image {height} and {width}: state the size that all get, as \
                 \"size\": [{height}, {width}], or a placeholder of the shape [null, {height}, {width}, {}]",
                own[0], own[1], self.channels
            )));
        }
        Shape::from([self.count + 1, height, width, self.channels]).checked_elements(DType::U8)?;
        let bytes = image.bytes().unwrap_or_default();
        memory::admit(self.pixels.len().max(bytes.len()))?;
        self.pixels.extend_from_slice(bytes);
        self.count += 1;
        Ok(())
    }

    /// All of them, `[images, height, width, channels]` of uint8.
    ///
    /// # Errors
    /// InvalidArgument if there is none.
    pub fn finish(self) -> Result<Tensor> {
        let [height, width] = self.size.ok_or_else(|| Failure::invalid("there is no image"))?;
        Tensor::new([self.count, height, width, self.channels], Data::U8(self.pixels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_takes_the_wider_of_two_widths() {
        assert_eq!(between(100, [20, 10]).unwrap(), 16 * 20 * 100);
        assert_eq!(between(10, [20, 30]).unwrap(), 16 * 20 * 30);
        let refused = between(MAX_SIDE, [MAX_SIDE, 1]).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
    }
}
