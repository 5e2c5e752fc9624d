//! ExtractGlimpse: a window of each image, with noise in the part outside the image.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};

use super::super::call::{one, take};
use super::super::random::Dice;
use super::super::{HostKernel, KernelNode, Registry};
use super::sizes_of;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ExtractGlimpse", |node| kernel(node, true));
    ops.insert("ExtractGlimpseV2", |node| kernel(node, false));
}

fn kernel(node: &KernelNode, is_first: bool) -> Result<Option<HostKernel>> {
    let places =
        Places { is_first, are_normalized: node.attrs.bool("normalized")?, are_centered: node.attrs.bool("centered")? };
    let noise = noise(node)?;
    let (seed, seed2) = Dice::unpredictable_seeds();
    let mut dice = Dice::seeded(seed, seed2);
    Ok(Some(Box::new(move |inputs| {
        let [images, size, offsets] = take(inputs)?;
        glimpses(&images, &size, &offsets, &places, noise, &mut dice).map(one)
    })))
}

/// The contents of a window outside its image.
#[derive(Clone, Copy)]
enum Noise {
    Zero,
    /// Uniform between the least and the greatest number of the image.
    Uniform,
    /// Normal, with the mean and deviation of the image's channel.
    Gaussian,
}

fn noise(node: &KernelNode) -> Result<Noise> {
    let is_uniform = node.attrs.bool("uniform_noise")?;
    match node.attrs.str("noise")? {
        "" if is_uniform => Ok(Noise::Uniform),
        "" => Ok(Noise::Gaussian),
        "uniform" => Ok(Noise::Uniform),
        _ if is_uniform => Err(Failure::invalid("The uniform_noise should not be True when noise is not uniform")),
        "gaussian" => Ok(Noise::Gaussian),
        "zero" => Ok(Noise::Zero),
        other => Err(Failure::invalid(format!("The noise could only be uniform, gaussian, or zero, got {other}"))),
    }
}

/// The interpretation of offsets as positions of windows.
struct Places {
    /// Whether offsets always mean the centres of windows, as in the first version of the op.
    is_first: bool,
    /// Whether the unit of offsets is the size of the image or, if they are centered, half of it.
    are_normalized: bool,
    are_centered: bool,
}

impl Places {
    /// The start of a window of a given size, along an axis of an image.
    fn start(&self, offset: f32, image: usize, window: usize) -> i64 {
        let (image, window) = (image as f32, window as f32);
        let at = if self.are_normalized { offset * image } else { offset };
        let start = match (self.is_first, self.are_normalized, self.are_centered) {
            (true, _, true) | (false, true, true) => at / 2.0 + image / 2.0 - window / 2.0,
            (true, _, false) => at - window / 2.0,
            (false, false, true) => at + image / 2.0,
            (false, _, false) => at,
        };
        start as i64
    }
}

/// The overlap of a window with its image, along one axis.
struct Overlap {
    /// Its start in the image, and in the window.
    from: usize,
    to: usize,
    size: usize,
    is_whole: bool,
}

fn overlap(start: i64, window: usize, image: usize) -> Overlap {
    let (window, image) = (window as i64, image as i64);
    let (size, to) = if start < 0 {
        let size = window.saturating_add(start).max(0);
        (size, window - size)
    } else {
        (image.saturating_sub(start).clamp(0, window), 0)
    };
    let from = start.clamp(0, image);
    let (from, to, size) = (from as usize, to as usize, size.min(image) as usize);
    Overlap { from, to, size, is_whole: start >= 0 && size as i64 == window }
}

fn glimpses(
    images: &Tensor,
    size: &Tensor,
    offsets: &Tensor,
    places: &Places,
    noise: Noise,
    dice: &mut Dice,
) -> Result<Tensor> {
    let [batch, height, width, channels] = sizes_of(images, "input")?;
    let sides = size.to_i64s()?;
    let (1, &[rows, columns]) = (size.rank(), &sides[..]) else {
        let why = format!("input must be a vector of size 2 (height, width), got shape {}", size.shape());
        return Err(Failure::invalid(why));
    };
    let why = match offsets.dims() {
        [rows, _] if *rows != batch => format!("first dimension should be batch, {batch}"),
        [_, columns] if *columns != 2 => "second dimension should be of size 2 (y,x)".to_owned(),
        [_, _] => String::new(),
        _ => "offsets must be a matrix".to_owned(),
    };
    if !why.is_empty() {
        return Err(Failure::invalid(format!("{why}: got offsets of shape {}", offsets.shape())));
    }
    let shape = Shape::from_i64s(&[batch as i64, rows, columns, channels as i64])?;
    let count = shape.checked_elements(DType::F32)?;
    let (rows, columns) = (rows as usize, columns as usize);
    let mut out = vec![0.0; count];
    let (each, whole) = (height * width * channels, rows * columns * channels);
    if whole == 0 {
        return Ok(Tensor::from_vec(shape, out));
    }
    let mut pace = Pace::new();
    for (i, (window, at)) in out.chunks_exact_mut(whole).zip(offsets.slice::<f32>()?.chunks_exact(2)).enumerate() {
        let image = &images.slice::<f32>()?[i * each..][..each];
        let y = overlap(places.start(at[0], height, rows), rows, height);
        let x = overlap(places.start(at[1], width, columns), columns, width);
        pace.go(whole);
        if !(y.is_whole && x.is_whole) {
            pace.go(whole + each);
            fill(window, image, channels, noise, dice);
        }
        for row in 0..y.size {
            let from = ((y.from + row) * width + x.from) * channels;
            let to = ((y.to + row) * columns + x.to) * channels;
            window[to..to + x.size * channels].copy_from_slice(&image[from..from + x.size * channels]);
        }
    }
    Ok(Tensor::from_vec(shape, out))
}

/// Fills a window with noise.
fn fill(window: &mut [f32], image: &[f32], channels: usize, noise: Noise, dice: &mut Dice) {
    let ends = |values: &mut dyn Iterator<Item = f32>| {
        values.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), x| (least.min(x), most.max(x)))
    };
    match noise {
        _ if image.is_empty() => {}
        Noise::Zero => {}
        Noise::Uniform => {
            let (least, most) = ends(&mut image.iter().copied());
            window.iter_mut().for_each(|x| *x = least + dice.fraction() as f32 * (most - least));
        }
        Noise::Gaussian => {
            for channel in 0..channels {
                let own = || image[channel..].iter().step_by(channels).copied();
                let (least, most) = ends(&mut own());
                let count = (image.len() / channels) as f32;
                let mean = own().sum::<f32>() / count;
                let sigma = (own().map(|x| (x - mean).powi(2)).sum::<f32>() / count).sqrt();
                for x in window[channel..].iter_mut().step_by(channels) {
                    *x = (mean + normal(dice) * sigma).min(most).max(least);
                }
            }
        }
    }
}

/// A number of the normal distribution, by the Box-Muller method.
#[inline]
fn normal(dice: &mut Dice) -> f32 {
    let (length, turn) = (1.0 - dice.fraction(), dice.fraction());
    ((-2.0 * length.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contents of a window that begins above and left of its image.
    fn filled(noise: Noise) -> Vec<f32> {
        let pixels: Vec<f32> = (0..32).map(|i| i as f32 + 1.0).collect();
        let images = Tensor::from_vec([1, 4, 4, 2], pixels);
        let places = Places { is_first: true, are_normalized: false, are_centered: false };
        let offsets = Tensor::from_vec([1, 2], vec![0.0f32, 0.0]);
        let mut dice = Dice::seeded(3, 5);
        let made = glimpses(&images, &Tensor::vector(vec![4, 4]), &offsets, &places, noise, &mut dice).unwrap();
        made.into_vec().unwrap()
    }

    #[test]
    fn noise_is_as_the_image_where_it_is_not() {
        let inside = |i: usize| i / 8 >= 2 && i % 8 >= 4;
        for (noise, name) in [(Noise::Uniform, "uniform"), (Noise::Gaussian, "gaussian")] {
            let made = filled(noise);
            assert_eq!([made[20], made[21], made[30]], [1.0, 2.0, 11.0], "{name}");
            let drawn: Vec<f32> = made.iter().enumerate().filter(|(i, _)| !inside(*i)).map(|(_, &x)| x).collect();
            assert!(drawn.iter().all(|x| (1.0..=32.0).contains(x)), "{name}: {drawn:?}");
            assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]), "{name}: {drawn:?}");
        }
        assert_eq!(filled(Noise::Zero).iter().filter(|x| **x == 0.0).count(), 24);
    }
}
