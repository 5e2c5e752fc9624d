//! The way from an image of any size to one of a given size.

use image::imageops::FilterType;

use super::Augment;

/// The options of the images that a placeholder takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageOptions {
    /// The treatment of images whose sides have another ratio than those of an example.
    pub resize: Resize,
    /// The computation of new pixels.
    pub interpolation: Interpolation,
    /// The random changes of the images that are trained with.
    pub augment: Option<Augment>,
}

/// The treatment of images whose sides have another ratio; the names are those of Keras.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resize {
    /// The whole image, with other proportions.
    #[default]
    Stretch,
    /// The largest part in the middle that has the ratio.
    CropToAspectRatio,
    /// The whole image in the middle, with black pixels around it.
    PadToAspectRatio,
}

impl Resize {
    /// All, with their names in files.
    pub const NAMES: [(&str, Resize); 3] = [
        ("stretch", Resize::Stretch),
        ("crop_to_aspect_ratio", Resize::CropToAspectRatio),
        ("pad_to_aspect_ratio", Resize::PadToAspectRatio),
    ];
}

/// The computation of new pixels. A filter is as wide as the pixels of the larger image need, as in TensorFlow with
/// `antialias`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    Nearest,
    /// A triangle as the filter.
    #[default]
    Bilinear,
    /// Keys's cubic filter, with a = -0.5.
    Bicubic,
    Lanczos3,
}

impl Interpolation {
    /// All, with their names in files.
    pub const NAMES: [(&str, Interpolation); 4] = [
        ("nearest", Interpolation::Nearest),
        ("bilinear", Interpolation::Bilinear),
        ("bicubic", Interpolation::Bicubic),
        ("lanczos3", Interpolation::Lanczos3),
    ];

    pub(super) fn filter(self) -> FilterType {
        match self {
            Interpolation::Nearest => FilterType::Nearest,
            Interpolation::Bilinear => FilterType::Triangle,
            Interpolation::Bicubic => FilterType::CatmullRom,
            Interpolation::Lanczos3 => FilterType::Lanczos3,
        }
    }
}

/// The height and width that images get, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// Height and width.
    pub size: [usize; 2],
    pub resize: Resize,
    pub interpolation: Interpolation,
}

impl Resizing {
    /// To this height and width, in the usual way.
    pub fn to(size: [usize; 2]) -> Resizing {
        Resizing { size, resize: Resize::default(), interpolation: Interpolation::default() }
    }

    /// The part of an image of this height and width that is taken, and the height and width that it gets, for a result of
    /// this height and width.
    pub(super) fn part(&self, own: [u32; 2], wanted: [u32; 2]) -> Part {
        let ([height, width], [new_height, new_width]) = (own.map(u64::from), wanted.map(u64::from));
        // With the wanted ratio: the height for this width, and the width for this height.
        let (for_width, for_height) = (width * new_height / new_width, height * new_width / new_height);
        let whole = Part { begin: [0, 0], size: own, inner: wanted };
        match self.resize {
            Resize::Stretch => whole,
            Resize::CropToAspectRatio => {
                let size = [for_width.clamp(1, height), for_height.clamp(1, width)].map(|side| side as u32);
                Part { begin: [(own[0] - size[0]) / 2, (own[1] - size[1]) / 2], size, ..whole }
            }
            Resize::PadToAspectRatio => {
                let rounded = |a: u64, b: u64, c: u64| (a * b + c / 2) / c;
                let inner = match width * new_height > height * new_width {
                    true => [rounded(height, new_width, width), new_width],
                    false => [new_height, rounded(width, new_height, height)],
                };
                Part { inner: inner.map(|side| side.max(1) as u32), ..whole }
            }
        }
    }
}

/// A part of an image, and the size that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The first row and column.
    pub begin: [u32; 2],
    pub size: [u32; 2],
    pub inner: [u32; 2],
}

/// Pixels of the size `inner` in the middle of zeros.
pub(super) fn padded(pixels: Vec<u8>, inner: [usize; 2], size: [usize; 2], channels: usize) -> Vec<u8> {
    if inner == size {
        return pixels;
    }
    let mut all = vec![0; size[0] * size[1] * channels];
    let (top, left) = ((size[0] - inner[0]) / 2, (size[1] - inner[1]) / 2);
    let rows = all.chunks_exact_mut(size[1] * channels).skip(top);
    for (row, own) in rows.zip(pixels.chunks_exact(inner[1] * channels)) {
        row[left * channels..][..own.len()].copy_from_slice(own);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::read_resized;
    use super::*;

    #[test]
    fn the_part_has_the_ratio_of_the_result() {
        let part = |resize: Resize, own, wanted| Resizing { resize, ..Resizing::to([0, 0]) }.part(own, wanted);
        let cases = [
            (Resize::Stretch, [4, 6], [2, 2], [0, 0], [4, 6], [2, 2]),
            // Keras: the sides are rounded down, and so is the half of the rest.
            (Resize::CropToAspectRatio, [4, 6], [2, 2], [0, 1], [4, 4], [2, 2]),
            (Resize::CropToAspectRatio, [7, 4], [10, 20], [2, 0], [2, 4], [10, 20]),
            (Resize::CropToAspectRatio, [1, 9], [1, 20], [0, 0], [1, 9], [1, 20]),
            (Resize::CropToAspectRatio, [9, 1], [1, 20], [4, 0], [1, 1], [1, 20]),
            (Resize::PadToAspectRatio, [4, 6], [3, 3], [0, 0], [4, 6], [2, 3]),
            (Resize::PadToAspectRatio, [6, 4], [3, 3], [0, 0], [6, 4], [3, 2]),
            (Resize::PadToAspectRatio, [1, 900], [8, 8], [0, 0], [1, 900], [1, 8]),
            (Resize::PadToAspectRatio, [2, 2], [8, 8], [0, 0], [2, 2], [8, 8]),
        ];
        for (resize, own, wanted, begin, size, inner) in cases {
            assert_eq!(part(resize, own, wanted), Part { begin, size, inner }, "{resize:?} {own:?}");
        }
    }

    /// Of `(numpy.arange(48).reshape(6, 8) ** 2 % 251)`, by TensorFlow 2.21's `tf.image.resize`, with `antialias` except for
    /// "nearest"; the last one by Keras 3.15's `keras.ops.image.resize`. Filters of floats are rounded differently.
    #[test]
    fn pixels_are_those_of_tensorflow() {
        let pixels: Vec<u8> = (0..48u32).map(|i| (i * i % 251) as u8).collect();
        let mut file = std::io::Cursor::new(Vec::new());
        let image = image::GrayImage::from_raw(8, 6, pixels).unwrap();
        image.write_to(&mut file, image::ImageFormat::Png).unwrap();
        let bytes = file.into_inner();
        let crop = Resizing { resize: Resize::CropToAspectRatio, ..Resizing::to([4, 4]) };
        let with = |interpolation| Resizing { interpolation, ..Resizing::to([3, 2]) };
        let cases: [(Resizing, &[i32]); 6] = [
            (with(Interpolation::Bilinear), &[55, 108, 103, 142, 109, 115]),
            (with(Interpolation::Bicubic), &[48, 109, 105, 149, 110, 113]),
            (with(Interpolation::Lanczos3), &[43, 110, 107, 156, 109, 110]),
            (with(Interpolation::Nearest), &[100, 196, 174, 147, 7, 108]),
            (
                Resizing::to([7, 11]),
                &[
                    0, 1, 2, 4, 8, 12, 18, 25, 33, 41, 49, 50, 58, 69, 80, 93, 107, 121, 137, 154, 172, 187, 26, 42,
                    63, 84, 107, 131, 155, 181, 208, 170, 98, 40, 64, 94, 126, 158, 129, 101, 137, 174, 160, 118, 55,
                    87, 127, 169, 212, 130, 49, 94, 141, 153, 139, 36, 76, 110, 124, 177, 132, 76, 92, 147, 124, 55,
                    94, 142, 122, 11, 73, 136, 142, 24, 79, 146, 201,
                ],
            ),
            (crop, &[34, 49, 68, 90, 74, 116, 146, 196, 121, 175, 86, 147, 111, 113, 104, 107]),
        ];
        for (resizing, wanted) in cases {
            let read = read_resized(&bytes, 1, Some(resizing)).unwrap();
            assert_eq!(read.dims(), [resizing.size[0], resizing.size[1], 1]);
            let close = read.slice::<u8>().unwrap().iter().zip(wanted).all(|(&a, b)| (i32::from(a) - b).abs() <= 1);
            assert!(close && read.len() == wanted.len(), "{resizing:?}: {read:?}");
        }
    }

    #[test]
    fn the_rest_is_black() {
        assert_eq!(padded(vec![1, 2, 3, 4], [1, 2], [3, 2], 2), [0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(padded(vec![1, 2], [2, 1], [2, 4], 1), [0, 1, 0, 0, 0, 2, 0, 0]);
    }
}
