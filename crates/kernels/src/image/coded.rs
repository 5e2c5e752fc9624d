//! The decoding and encoding of images as PNG, JPEG, GIF and BMP files.

mod bmp;
pub(crate) mod encode;

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::{AnimationDecoder, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::{kernel as call, no_kernel, output_dtype};
use super::super::{HostKernel, KernelNode, Registry};

/// The output that a node requests.
struct Wanted {
    op: String,
    codec: Codec,
    /// The number of channels; 0 for that of the file.
    channels: usize,
    dtype: DType,
    /// For a JPEG, the factor by which each side is reduced.
    ratio: usize,
    /// Whether a GIF may have several frames.
    animations: bool,
}

/// The files that an op decodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Codec {
    /// Any but BMP.
    Jpeg,
    /// A part of a JPEG only.
    CroppedJpeg,
    /// Any but BMP.
    Png,
    /// Any but BMP; the result has an axis of frames.
    Gif,
    Bmp,
    Any,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DecodeJpeg", |node| kernel(node, Codec::Jpeg));
    ops.insert("DecodeAndCropJpeg", |node| kernel(node, Codec::CroppedJpeg));
    ops.insert("DecodePng", |node| kernel(node, Codec::Png));
    ops.insert("DecodeGif", |node| kernel(node, Codec::Gif));
    ops.insert("DecodeBmp", |node| kernel(node, Codec::Bmp));
    ops.insert("DecodeImage", |node| kernel(node, Codec::Any));
    ops.insert("ExtractJpegShape", |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(Some(call(move |[contents]| {
            let image = decoder(bytes_of(&contents)?, ImageFormat::Jpeg)?;
            let (width, height) = image.dimensions();
            let channels = i64::from(image.color_type().channel_count());
            super::super::cast(Tensor::vector(vec![i64::from(height), i64::from(width), channels]), dtype)
        })))
    });
    encode::register(ops);
}

fn kernel(node: &KernelNode, codec: Codec) -> Result<Option<HostKernel>> {
    let attr = |name: &str| node.attrs.get(name).is_some();
    let stated = if attr("channels") { node.attrs.int("channels")? } else { 0 };
    if !matches!(stated, 0 | 1 | 3 | 4) {
        return Err(Failure::invalid(format!("`channels` must be 0, 1, 3 or 4 but got {stated}")));
    }
    let ratio = if attr("ratio") { node.attrs.int("ratio")? } else { 1 };
    if !matches!(ratio, 1 | 2 | 4 | 8) {
        return Err(Failure::invalid(format!("ratio must be 1, 2, 4, or 8, got {ratio}")));
    }
    let dtype = output_dtype(node, 0)?;
    if !matches!(dtype, DType::U8 | DType::U16 | DType::F32) {
        return no_kernel(node);
    }
    let animations = codec == Codec::Gif || attr("expand_animations") && node.attrs.bool("expand_animations")?;
    let wanted =
        Wanted { op: node.op.to_owned(), codec, channels: stated as usize, dtype, ratio: ratio as usize, animations };
    if codec == Codec::CroppedJpeg {
        return Ok(Some(call(move |[contents, window]| cropped(wanted.decode(&contents)?, &window))));
    }
    Ok(Some(call(move |[contents]| wanted.decode(&contents))))
}

fn bytes_of(contents: &Tensor) -> Result<&[u8]> {
    if contents.rank() != 0 {
        return Err(Failure::invalid(format!("`contents` must be scalar but got shape {}", contents.shape())));
    }
    Ok(&contents.slice::<Vec<u8>>()?[0])
}

/// The format that the first bytes indicate.
fn format(bytes: &[u8]) -> Option<ImageFormat> {
    match bytes {
        [0xff, 0xd8, 0xff, ..] => Some(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', ..] => Some(ImageFormat::Png),
        [b'G', b'I', b'F', b'8', ..] => Some(ImageFormat::Gif),
        [b'B', b'M', ..] => Some(ImageFormat::Bmp),
        _ => None,
    }
}

#[inline]
fn invalid(format: ImageFormat, error: &ImageError) -> Failure {
    let name = format!("{format:?}").to_uppercase();
    match error {
        ImageError::Limits(_) => Failure::new(Code::ResourceExhausted, format!("a {name} image is too large: {error}")),
        _ => Failure::invalid(format!("Invalid {name} data: {error}")),
    }
}

/// A decoder, after a check that a tensor has room for the image.
fn decoder(bytes: &[u8], format: ImageFormat) -> Result<impl ImageDecoder + '_> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits());
    let decoder = reader.into_decoder().map_err(|error| invalid(format, &error))?;
    let (width, height) = decoder.dimensions();
    // Memory for the largest dtype, and as much again for the decoder.
    let elements = Shape::from([height as usize, width as usize, 4]).checked_elements(DType::F32)?;
    memory::admit(2 * elements)?;
    Ok(decoder)
}

#[inline]
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(1 << 30);
    limits
}

/// The elements of an image, of 8 or 16 bits each.
enum Pixels {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

impl Wanted {
    fn decode(&self, contents: &Tensor) -> Result<Tensor> {
        let bytes = bytes_of(contents)?;
        if bytes.is_empty() {
            return Err(Failure::invalid("Input is empty."));
        }
        let unknown = || Failure::invalid("Unknown image file format. One of JPEG, PNG, GIF, BMP required.");
        // TensorFlow 1's op for BMP files does not look at their first bytes.
        let format = format(bytes).or((self.codec == Codec::Bmp).then_some(ImageFormat::Bmp)).ok_or_else(unknown)?;
        // Only the newest of the ops accepts a BMP in place of another format.
        let is_allowed = match self.codec {
            Codec::Bmp => format == ImageFormat::Bmp,
            Codec::CroppedJpeg => format == ImageFormat::Jpeg,
            Codec::Any => true,
            Codec::Jpeg | Codec::Png | Codec::Gif => format != ImageFormat::Bmp,
        };
        if !is_allowed {
            let name = format!("{format:?}").to_uppercase();
            let decoder = name.to_lowercase();
            return Err(Failure::invalid(match self.codec {
                Codec::CroppedJpeg => format!("{} operation can run on JPEG only, but detected {name}.", self.op),
                Codec::Bmp => format!(
                    "Trying to decode {name} format using {} op. Use `decode_{decoder}` or `decode_image` instead.",
                    self.op
                ),
                _ => format!(
                    "Trying to decode {name} format using a wrong op. Use `decode_{decoder}` or `decode_image` instead. Op used: {}",
                    self.op
                ),
            }));
        }
        turn::look();
        match format {
            ImageFormat::Gif => self.frames(bytes),
            ImageFormat::Bmp => {
                let (shape, pixels) = bmp::decode(bytes, self.channels)?;
                self.tensor(shape, Pixels::Bytes(pixels), format)
            }
            _ => {
                let image = DynamicImage::from_decoder(decoder(bytes, format)?);
                let image = image.map_err(|error| invalid(format, &error))?;
                let image = self.picture(image, format)?;
                if self.codec == Codec::Gif {
                    let frame = [&[1], image.dims()].concat();
                    return image.reshaped(frame);
                }
                Ok(image)
            }
        }
    }

    /// The tensor of a PNG or a JPEG.
    fn picture(&self, image: DynamicImage, format: ImageFormat) -> Result<Tensor> {
        let (height, width) = (image.height() as usize, image.width() as usize);
        let own = usize::from(image.color().channel_count());
        let channels = match self.channels {
            0 if self.codec == Codec::Gif => 3,
            0 => own,
            4 if format == ImageFormat::Jpeg => {
                return Err(Failure::invalid("`channels` must be 0, 1, 3 for JPEG, but got 4"));
            }
            stated => stated,
        };
        let is_wide = image.color().bytes_per_pixel() as usize / own == 2;
        let pixels = match (channels, is_wide) {
            (1, _) if format == ImageFormat::Jpeg && own == 3 => Pixels::Bytes(luminance(&image.into_rgb8())),
            (1, false) if own >= 3 => {
                Pixels::Bytes(image.into_rgb8().pixels().map(|pixel| grey_byte(pixel.0)).collect())
            }
            (1, true) if own >= 3 => {
                Pixels::Words(image.into_rgb16().pixels().map(|pixel| grey_word(pixel.0)).collect())
            }
            (1, false) => Pixels::Bytes(image.into_luma8().into_raw()),
            (2, false) => Pixels::Bytes(image.into_luma_alpha8().into_raw()),
            (3, false) => Pixels::Bytes(image.into_rgb8().into_raw()),
            (_, false) => Pixels::Bytes(image.into_rgba8().into_raw()),
            (1, true) => Pixels::Words(image.into_luma16().into_raw()),
            (2, true) => Pixels::Words(image.into_luma_alpha16().into_raw()),
            (3, true) => Pixels::Words(image.into_rgb16().into_raw()),
            (_, true) => Pixels::Words(image.into_rgba16().into_raw()),
        };
        match (format, self.ratio, pixels) {
            (ImageFormat::Jpeg, 2.., Pixels::Bytes(pixels)) => {
                let (shape, smaller) = shrunk(&pixels, [height, width, channels], self.ratio);
                self.tensor(shape, Pixels::Bytes(smaller), format)
            }
            (_, _, pixels) => self.tensor(Shape::from([height, width, channels]), pixels, format),
        }
    }

    /// The frames of a GIF, each fully composed.
    fn frames(&self, bytes: &[u8]) -> Result<Tensor> {
        let broken = |error: ImageError| invalid(ImageFormat::Gif, &error);
        let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(broken)?;
        decoder.set_limits(limits()).map_err(broken)?;
        let (width, height) = decoder.dimensions();
        let (width, height) = (width as usize, height as usize);
        if !matches!(self.channels, 0 | 3) {
            return Err(Failure::invalid(format!("channels must be 0 or 3 for GIF, got {}", self.channels)));
        }
        let channels = 3;
        let size = Shape::from([height, width, channels]).checked_elements(self.dtype)?;
        // Memory for a frame, the one it is drawn over, and its elements in the requested dtype.
        let drawn = 3 * 4 * width * height;
        memory::admit(drawn)?;
        let (mut all, mut count): (Vec<u8>, usize) = (Vec::new(), 0);
        for frame in decoder.into_frames() {
            turn::look();
            let frame = DynamicImage::ImageRgba8(frame.map_err(broken)?.into_buffer()).into_rgb8();
            count += 1;
            Shape::from([count, height, width, channels]).checked_elements(self.dtype)?;
            let grows = all.capacity() - all.len() < size;
            memory::admit(drawn + if grows { 2 * all.len() + size } else { 0 })?;
            all.extend(frame.into_raw());
            if count > 1 && !self.animations && self.codec != Codec::Any {
                let why = "Got more than one frame, but animated gifs can only be decoded by tf.io.decode_gif or tf.io.decode_image";
                return Err(Failure::invalid(why));
            }
            if self.codec == Codec::Any && !self.animations {
                break;
            }
        }
        if count == 0 {
            return Err(Failure::invalid("Invalid GIF data: there is no frame"));
        }
        let shape = if self.animations {
            Shape::from([count, height, width, channels])
        } else {
            Shape::from([height, width, channels])
        };
        self.tensor(shape, Pixels::Bytes(all), ImageFormat::Gif)
    }

    /// The elements in the requested dtype, from 0 to its maximum, or to 1. As in TensorFlow, 8-bit elements become
    /// uint16 by widening in a PNG, which also supports 16 bits, and by multiplication by 256 in the other formats.
    fn tensor(&self, shape: Shape, pixels: Pixels, format: ImageFormat) -> Result<Tensor> {
        shape.checked_elements(self.dtype)?;
        let is_png = format == ImageFormat::Png;
        let share = |x: u8| {
            if is_png { f32::from(u16::from(x) * 257) * (1.0 / 65535.0) } else { f32::from(x) * (1.0 / 255.0) }
        };
        Ok(match (self.dtype, pixels) {
            (DType::U16, Pixels::Words(words)) => Tensor::from_vec(shape, words),
            (DType::U16, Pixels::Bytes(bytes)) => {
                let factor = if is_png { 257 } else { 256 };
                Tensor::from_vec(shape, bytes.into_iter().map(|x| u16::from(x) * factor).collect::<Vec<_>>())
            }
            (DType::F32, Pixels::Bytes(bytes)) => {
                Tensor::from_vec(shape, bytes.into_iter().map(share).collect::<Vec<_>>())
            }
            (DType::F32, Pixels::Words(words)) => {
                Tensor::from_vec(shape, words.into_iter().map(|x| f32::from(x) * (1.0 / 65535.0)).collect::<Vec<_>>())
            }
            (_, Pixels::Bytes(bytes)) => Tensor::from_vec(shape, bytes),
            (_, Pixels::Words(words)) => {
                Tensor::from_vec(shape, words.into_iter().map(|x| (x >> 8) as u8).collect::<Vec<_>>())
            }
        })
    }
}

/// The weights of red, green and blue in a grey pixel of a PNG, in parts of 2^15, as libpng rounds 0.299, 0.587 and the rest.
const GREY: [u32; 3] = [9797, 19234, 3737];

/// The grey value of a pixel of a PNG, which libpng truncates.
fn grey_byte([r, g, b]: [u8; 3]) -> u8 {
    let [red, green, blue] = GREY;
    match r == g && r == b {
        true => r,
        false => ((red * u32::from(r) + green * u32::from(g) + blue * u32::from(b)) >> 15) as u8,
    }
}

/// As [`grey_byte`], which libpng rounds in a PNG of 16 bits.
fn grey_word([r, g, b]: [u16; 3]) -> u16 {
    let [red, green, blue] = GREY;
    match r == g && r == b {
        true => r,
        false => ((red * u32::from(r) + green * u32::from(g) + blue * u32::from(b) + (1 << 14)) >> 15) as u16,
    }
}

/// The luminance of each pixel, as JPEG files define it.
fn luminance(image: &image::RgbImage) -> Vec<u8> {
    let one = |[r, g, b]: [u8; 3]| (19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + 32768) >> 16;
    image.pixels().map(|pixel| one(pixel.0) as u8).collect()
}

/// The means of squares of `ratio` pixels a side.
fn shrunk(pixels: &[u8], [height, width, channels]: [usize; 3], ratio: usize) -> (Shape, Vec<u8>) {
    let (rows, columns) = (height.div_ceil(ratio), width.div_ceil(ratio));
    let mut means = Vec::with_capacity(rows * columns * channels);
    for row in 0..rows {
        let ys = row * ratio..((row + 1) * ratio).min(height);
        for column in 0..columns {
            let xs = column * ratio..((column + 1) * ratio).min(width);
            for channel in 0..channels {
                let pixel = |y: usize, x: usize| u32::from(pixels[(y * width + x) * channels + channel]);
                let sum: u32 = ys.clone().flat_map(|y| xs.clone().map(move |x| (y, x))).map(|(y, x)| pixel(y, x)).sum();
                let count = (ys.len() * xs.len()) as u32;
                means.push(((sum + count / 2) / count) as u8);
            }
        }
    }
    (Shape::from([rows, columns, channels]), means)
}

/// The part of an image inside a window (y, x, height, width).
fn cropped(image: Tensor, window: &Tensor) -> Result<Tensor> {
    let sizes = window.to_i64s()?;
    let (1, &[y, x, height, width]) = (window.rank(), &sizes[..]) else {
        return Err(Failure::invalid(format!("crop_window must have four elements, got shape {}", window.shape())));
    };
    let [rows, columns, channels] = [image.dims()[0], image.dims()[1], image.dims()[2]];
    let within = |from: i64, count: i64, all: usize| {
        let (from, count) = (usize::try_from(from).ok()?, usize::try_from(count).ok().filter(|&count| count > 0)?);
        (from.checked_add(count)? <= all).then_some((from, count))
    };
    let (Some((y, height)), Some((x, width))) = (within(y, height, rows), within(x, width, columns)) else {
        return Err(Failure::invalid(format!(
            "Invalid crop window {sizes:?} of an image of {rows} by {columns} pixels"
        )));
    };
    let pixels = image.slice::<u8>()?;
    let row = |y: usize| &pixels[(y * columns + x) * channels..(y * columns + x + width) * channels];
    let part: Vec<u8> = (y..y + height).flat_map(row).copied().collect();
    Ok(Tensor::from_vec([height, width, channels], part))
}
