//! Images as values of an input: its layout, size, channels and dtype say how.

use std::path::Path;

use meshtf::trainer::folder::{ImageFolder, is_image as is_named_image, other_image};
use meshtf_tensor::failure::counted;
use meshtf_tensor::{DType, PartialShape, Tensor, literal, memory};
use meshtf_train::data::{Images, Interpolation, Resizing};

use super::options::{How, Layout};
use super::{Want, cast};

/// Numbers of channels by which the axis of the channels is known.
const CHANNELS: [usize; 3] = [1, 3, 4];
/// The channels of an input that does not state them: red, green and blue.
const RGB: usize = 3;
/// The values of a byte.
const BYTES: usize = 256;

/// Whether a file is an image, or a folder, which can only be one of images.
pub(super) fn is_image(file: &str) -> bool {
    let path = Path::new(file);
    path.is_dir() || is_named_image(path) || other_image(file, path).is_some()
}

/// The axes of an input that takes images.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axes {
    layout: Layout,
    /// Whether the first axis counts images.
    has_batch: bool,
    /// Whether an axis has the channels.
    has_channels: bool,
    channels: Option<usize>,
    size: [Option<usize>; 2],
}

impl Axes {
    /// Those of an input of this shape.
    fn of(shape: &PartialShape, stated: Option<Layout>) -> Result<Axes, String> {
        let is_channels = |size: Option<usize>| size.is_some_and(|size| CHANNELS.contains(&size));
        let axes = |layout, has_batch, channels: Option<Option<usize>>, size| Axes {
            layout,
            has_batch,
            has_channels: channels.is_some(),
            channels: channels.unwrap_or(Some(1)),
            size,
        };
        let layout = |first: Option<usize>, last: Option<usize>| match (stated, is_channels(first), is_channels(last)) {
            (Some(layout), ..) => Some(layout),
            (None, true, false) => Some(Layout::ChannelsFirst),
            (None, false, true) => Some(Layout::ChannelsLast),
            // An axis of one entry may be another one.
            (None, true, true) if first == Some(1) && last != Some(1) => Some(Layout::ChannelsLast),
            (None, true, true) if last == Some(1) && first != Some(1) => Some(Layout::ChannelsFirst),
            (None, ..) => None,
        };
        let placed = |has_batch, [a, b, c]: [Option<usize>; 3], layout| match layout {
            Layout::ChannelsFirst => axes(layout, has_batch, Some(a), [b, c]),
            Layout::ChannelsLast => axes(layout, has_batch, Some(c), [a, b]),
        };
        let unclear =
            || format!("the input's shape {shape} does not say where the channels are: use --layout NCHW or NHWC");
        match shape.0.as_deref() {
            None => Ok(placed(true, [None; 3], stated.unwrap_or(Layout::ChannelsLast))),
            Some(&[_, a, b, c]) => match layout(a, c) {
                Some(layout) => Ok(placed(true, [a, b, c], layout)),
                None => Err(unclear()),
            },
            Some(&[a, b, c]) => match layout(a, c) {
                Some(layout) => Ok(placed(false, [a, b, c], layout)),
                // Grey images without an axis of channels.
                None if b.is_some() && c.is_some() => Ok(axes(Layout::ChannelsLast, true, None, [b, c])),
                None => Err(unclear()),
            },
            Some(&[a, b]) => Ok(axes(Layout::ChannelsLast, false, None, [a, b])),
            Some(_) => Err(format!("the input's shape {shape} is not one of images, which have 2 to 4 axes")),
        }
    }
}

/// Said of a file for which options were given that do nothing.
pub(super) const AS_IT_IS: &str =
    "is fed as it is: --scale, --size and the other options for images do not apply to it";

/// The images of a file or a folder, and a remark on sizes that were changed.
pub(super) fn read(file: &str, want: &Want, how: &How) -> Result<(Tensor, Option<String>), String> {
    let path = Path::new(file);
    if let Some(why) = other_image(file, path) {
        return Err(why);
    }
    let folder = if path.is_dir() {
        ImageFolder::list(path).map_err(|why| format!("{file}: {why}"))?
    } else {
        // A file that is missing is an error of reading.
        ImageFolder { classes: Vec::new(), images: vec![(path.to_owned(), 0)] }
    };
    let files = folder.named_images();
    let contents = |path: &Path| super::read(path).map_err(|trouble| trouble.to_string());
    if want.dtype == DType::String {
        if *how != How::default() {
            return Err(format!("{file} {AS_IT_IS}"));
        }
        return encoded(files.iter().map(|(path, _)| contents(path)), &want.shape).map(|tensor| (tensor, None));
    }
    let axes = Axes::of(&want.shape, how.layout)?;
    let channels = axes.channels.unwrap_or(RGB);
    how.check(channels)?;
    let size = match (how.size, axes.size) {
        (Some(size), own) => {
            let fits = (0..2).all(|side| own[side].is_none_or(|own| own == size[side]));
            let [height, width] = size;
            fits.then_some(Some(size)).ok_or_else(|| {
                format!("--size {height},{width} does not fit the input, {}{}", want.dtype, want.shape)
            })?
        }
        (None, [Some(height), Some(width)]) => Some([height, width]),
        (None, _) => None,
    };
    if !axes.has_batch && files.len() != 1 {
        return Err(format!(
            "{file} has {}, and the input, {}{}, takes one",
            counted(files.len(), "image"),
            want.dtype,
            want.shape
        ));
    }
    let resizing = size.map(|size| Resizing { size, resize: how.fit, interpolation: Interpolation::default() });
    let mut images = Images::resized(channels, resizing);
    let mut first = None;
    for (path, name) in &files {
        let bytes = contents(path)?;
        first = first.or_else(|| own_size(&bytes));
        let image = images.decode(&bytes).map_err(|failure| format!("{name}: {}", failure.message))?;
        if let (None, Some([height, width])) = (size, first)
            && [image.dims()[0], image.dims()[1]] != [height, width]
        {
            return Err(format!(
                "{name} is {} pixels high and {} wide, and the first image {height} and {width}: state the size that all get, as \
                 --size {height},{width}",
                image.dims()[0],
                image.dims()[1]
            ));
        }
        images.push(&image).map_err(|failure| format!("{name}: {}", failure.message))?;
    }
    let remark = match (first, size) {
        (Some(own), Some(size)) if own != size && how.size.is_none() => Some(format!(
            "{file}: {} by {} pixels, resized to {} by {}, the size of the input",
            own[1], own[0], size[1], size[0]
        )),
        _ => None,
    };
    let pixels = images.finish().map_err(|failure| failure.message)?;
    let values = values(&pixels, axes.layout, want.dtype, how)?;
    Ok((shaped(values, axes)?, remark))
}

/// The height and width in the head of an image.
fn own_size(bytes: &[u8]) -> Option<[usize; 2]> {
    let reader = image::ImageReader::new(std::io::Cursor::new(bytes)).with_guessed_format().ok()?;
    let (width, height) = reader.into_dimensions().ok()?;
    Some([height as usize, width as usize])
}

/// The bytes of files, for an input of strings.
fn encoded(files: impl Iterator<Item = Result<Vec<u8>, String>>, shape: &PartialShape) -> Result<Tensor, String> {
    let texts: Vec<Vec<u8>> = files.collect::<Result<_, _>>()?;
    let is_one = shape.0.as_ref().is_some_and(Vec::is_empty) && texts.len() == 1;
    let tensor = Tensor::vector(texts);
    if is_one { tensor.reshaped(Vec::new()).map_err(|failure| failure.message) } else { Ok(tensor) }
}

/// The values of pixels, `[images, height, width, channels]` of uint8, in a layout and of a dtype.
fn values(pixels: &Tensor, layout: Layout, dtype: DType, how: &How) -> Result<Tensor, String> {
    let &[count, height, width, channels] = pixels.dims() else { return Err("images have four axes".to_owned()) };
    // The value of each byte in each channel.
    let table = (0..channels).flat_map(|channel| (0..BYTES).map(move |byte| how.value(byte as f64, channel)));
    let table = Tensor::from_vec([channels, BYTES], table.collect::<Vec<f64>>());
    let table = cast(table, how.cast)?;
    let failed = |failure: meshtf_tensor::failure::Failure| failure.message;
    let table = literal::convert_feed(table, dtype).map_err(|failure| match dtype.is_integer() {
        true => format!("{}; --as {dtype} cuts fractions off", failure.message),
        false => failure.message,
    })?;
    let (Some(each), Some(table)) = (dtype.size(), table.bytes()) else {
        return Err(format!("expected {dtype}, got an image"));
    };
    let shape = match layout {
        Layout::ChannelsFirst => [count, channels, height, width],
        Layout::ChannelsLast => [count, height, width, channels],
    };
    meshtf_tensor::Shape::from(shape).checked_elements(dtype).map_err(failed)?;
    let pixels = pixels.slice::<u8>().map_err(failed)?;
    memory::admit(pixels.len().saturating_mul(each)).map_err(failed)?;
    let mut bytes = Vec::with_capacity(pixels.len() * each);
    let mut push = |channel: usize, pixel: u8| {
        let at = (channel * BYTES + usize::from(pixel)) * each;
        bytes.extend_from_slice(&table[at..at + each]);
    };
    match layout {
        Layout::ChannelsLast => (0..).zip(pixels).for_each(|(i, pixel)| push(i % channels, *pixel)),
        Layout::ChannelsFirst => {
            for image in pixels.chunks_exact((height * width * channels).max(1)) {
                for channel in 0..channels {
                    image.iter().skip(channel).step_by(channels).for_each(|pixel| push(channel, *pixel));
                }
            }
        }
    }
    Tensor::from_bytes(dtype, shape, &bytes).map_err(failed)
}

/// Images without the axes that the input lacks.
fn shaped(values: Tensor, axes: Axes) -> Result<Tensor, String> {
    let channels = if axes.layout == Layout::ChannelsFirst { 1 } else { 3 };
    let is_kept = |place: usize| match place {
        0 => axes.has_batch,
        place if place == channels => axes.has_channels,
        _ => true,
    };
    let dims: Vec<usize> =
        values.dims().iter().enumerate().filter(|(place, _)| is_kept(*place)).map(|(_, size)| *size).collect();
    values.reshaped(dims).map_err(|failure| failure.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axes_of_images_are_known_by_the_shape() {
        use Layout::{ChannelsFirst, ChannelsLast};
        let of = |sizes: &[Option<usize>], stated| Axes::of(&PartialShape::from(sizes.to_vec()), stated);
        let first = of(&[None, Some(3), Some(2), None], None).unwrap();
        assert_eq!((first.layout, first.channels, first.size), (ChannelsFirst, Some(3), [Some(2), None]));
        let last = of(&[Some(1), Some(8), Some(9), Some(1)], None).unwrap();
        assert_eq!((last.layout, last.channels, last.size), (ChannelsLast, Some(1), [Some(8), Some(9)]));
        assert!(of(&[None; 4], None).unwrap_err().contains("[?,?,?,?] does not say"));
        assert!(of(&[None, Some(3), Some(8), Some(3)], None).is_err());
        assert_eq!(of(&[Some(1), Some(2), Some(3)], None).unwrap().layout, ChannelsLast);
        assert_eq!(of(&[None; 4], Some(ChannelsFirst)).unwrap().channels, None);
        let grey = of(&[None, Some(28), Some(28)], None).unwrap();
        assert_eq!((grey.has_batch, grey.has_channels, grey.size), (true, false, [Some(28), Some(28)]));
        assert!(of(&[None, None, None], None).is_err_and(|why| why.contains("does not say where the channels are")));
        let one = of(&[Some(3), Some(28), Some(28)], None).unwrap();
        assert_eq!((one.has_batch, one.layout, one.channels), (false, ChannelsFirst, Some(3)));
        assert!(of(&[None], None).unwrap_err().contains("2 to 4 axes"));
        assert_eq!(Axes::of(&PartialShape::UNKNOWN, None).unwrap().layout, ChannelsLast);
    }

    #[test]
    fn pixels_are_scaled_and_transposed() {
        // One row of two pixels: (0, 51, 255) and (255, 102, 0).
        let pixels = Tensor::from_vec([1, 1, 2, 3], vec![0u8, 51, 255, 255, 102, 0]);
        let how =
            How { scale: Some(1.0 / 255.0), mean: vec![0.0, 0.2, 0.5], std: vec![1.0, 0.5, 0.25], ..How::default() };
        let got = values(&pixels, Layout::ChannelsFirst, DType::F32, &how).unwrap();
        assert_eq!(got.dims(), [1, 3, 1, 2]);
        // (51/255 - 0.2) / 0.5 = 0, (102/255 - 0.2) / 0.5 = 0.4, (1 - 0.5) / 0.25 = 2, -0.5 / 0.25 = -2.
        for (got, wanted) in got.slice::<f32>().unwrap().iter().zip([0f32, 1.0, 0.0, 0.4, 2.0, -2.0]) {
            assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
        }
        let plain = How::default();
        assert_eq!(values(&pixels, Layout::ChannelsLast, DType::U8, &plain).unwrap(), pixels);
        let half = How { scale: Some(0.5), ..How::default() };
        assert!(values(&pixels, Layout::ChannelsLast, DType::U8, &half).unwrap_err().contains("unchanged"));
        let cut = How { cast: Some(DType::U8), ..half };
        let cut = values(&pixels, Layout::ChannelsLast, DType::U8, &cut).unwrap();
        assert_eq!(cut.slice::<u8>().unwrap(), [0, 25, 127, 127, 51, 0]);
    }
}
