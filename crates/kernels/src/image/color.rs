//! RGBToHSV, HSVToRGB, AdjustContrastv2, AdjustHue and AdjustSaturation.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Tensor};

use super::super::call::{input_dtype, kernel as call, owned, product};
use super::super::real::{widened, with_real};
use super::super::{Registry, cast};

/// TensorFlow's error code for pixels without three channels.
const UNFIT: Code = Code::FailedPrecondition;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RGBToHSV", |node| {
        let kernel = with_real!(input_dtype(node, 0)?, T => call(|[images]| each_pixel::<T>(images, UNFIT, to_hsv)));
        Ok(kernel.map(|kernel| widened(node, kernel)))
    });
    ops.insert("HSVToRGB", |node| {
        let kernel = with_real!(input_dtype(node, 0)?, T => call(|[images]| each_pixel::<T>(images, UNFIT, from_hsv)));
        Ok(kernel.map(|kernel| widened(node, kernel)))
    });
    ops.insert("AdjustContrastv2", |node| {
        let kernel = call(|[images, factor]| contrast(images, scalar(&factor, "contrast_factor")?));
        Ok(Some(widened(node, kernel)))
    });
    ops.insert("AdjustContrast", |_| {
        Ok(Some(call(|[images, factor, least, most]| {
            let (factor, bounds) =
                (scalar(&factor, "contrast_factor")?, [scalar(&least, "min_value")?, scalar(&most, "max_value")?]);
            let mut images = contrast(cast(images, DType::F32)?, factor)?;
            // The lower bound counts if it is above the upper one.
            images.slice_mut::<f32>()?.iter_mut().for_each(|x| *x = x.min(bounds[1]).max(bounds[0]));
            Ok(images)
        })))
    });
    ops.insert("AdjustHue", |node| {
        let kernel = call(|[images, delta]| {
            let delta = scalar(&delta, "delta")?;
            at_least_3d(&images)?;
            each_pixel::<f32>(images, Code::InvalidArgument, |pixel| turned(pixel, delta))
        });
        Ok(Some(widened(node, kernel)))
    });
    ops.insert("AdjustSaturation", |node| {
        let kernel = call(|[images, scale]| {
            let scale = scalar(&scale, "scale")?;
            at_least_3d(&images)?;
            each_pixel::<f32>(images, Code::InvalidArgument, |pixel| saturated(pixel, scale))
        });
        Ok(Some(widened(node, kernel)))
    });
}

fn scalar(tensor: &Tensor, what: &str) -> Result<f32> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{what} must be scalar: {}", tensor.shape())));
    }
    tensor.item::<f32>()
}

fn at_least_3d(images: &Tensor) -> Result<()> {
    if images.rank() < 3 {
        return Err(Failure::invalid(format!("input must be at least 3-D, got shape{}", images.shape())));
    }
    Ok(())
}

/// Replaces each pixel, in place if the images are not shared; `code` is the error code for pixels without three
/// channels.
fn each_pixel<T: Float>(images: Tensor, code: Code, f: impl Fn([T; 3]) -> [T; 3]) -> Result<Tensor> {
    match images.dims() {
        [.., 3] => {}
        [] => return Err(Failure::invalid("input must be at least 1-D")),
        [.., other] => {
            let why = format!("input must have 3 channels but instead has {other} channels.");
            return Err(Failure::new(code, why));
        }
    }
    let mut images = owned(images)?;
    let mut pace = Pace::new();
    for pixel in images.slice_mut::<T>()?.as_chunks_mut::<3>().0 {
        pace.go(20);
        *pixel = f(*pixel);
    }
    Ok(images)
}

#[inline]
fn of<T: Numeric>(value: f64) -> T {
    T::from_f64(value)
}

#[inline]
fn most<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

#[inline]
fn least<T: PartialOrd>(a: T, b: T) -> T {
    if b < a { b } else { a }
}

fn to_hsv<T: Float>([r, g, b]: [T; 3]) -> [T; 3] {
    let value = most(most(r, g), b);
    let range = value - least(least(r, g), b);
    let saturation = if value > T::ZERO { range / value } else { T::ZERO };
    if range <= T::ZERO {
        return [T::ZERO, saturation, value];
    }
    let norm = T::ONE / (of::<T>(6.0) * range);
    let hue = if r == value {
        norm * (g - b)
    } else if g == value {
        norm * (b - r) + of::<T>(2.0) / of(6.0)
    } else {
        norm * (r - g) + of::<T>(4.0) / of(6.0)
    };
    [if hue < T::ZERO { hue + T::ONE } else { hue }, saturation, value]
}

#[inline]
fn from_hsv<T: Float>([h, s, v]: [T; 3]) -> [T; 3] {
    let (dh, without) = (h * of(6.0), T::ONE - s);
    let absolute = |x: T| if x < T::ZERO { -x } else { x };
    let share = |x: T| most(least(x, T::ONE), T::ZERO);
    let r = share(absolute(dh - of(3.0)) - T::ONE);
    let g = share(-absolute(dh - of(2.0)) + of(2.0));
    let b = share(-absolute(dh - of(4.0)) + of(2.0));
    [r, g, b].map(|x| (without + s * x) * v)
}

/// Scales each channel of each image about its mean.
fn contrast(images: Tensor, factor: f32) -> Result<Tensor> {
    at_least_3d(&images)?;
    let rank = images.rank();
    let channels = images.dims()[rank - 1];
    let size = product(&images.dims()[rank - 3..]);
    let mut images = owned(images)?;
    if size == 0 {
        return Ok(images);
    }
    let mut pace = Pace::new();
    for image in images.slice_mut::<f32>()?.chunks_exact_mut(size) {
        let mut means = vec![0f64; channels];
        for pixel in image.chunks_exact(channels) {
            pace.go(3 * channels);
            means.iter_mut().zip(pixel).for_each(|(mean, &x)| *mean += f64::from(x));
        }
        let count = (size / channels) as f64;
        let means: Vec<f32> = means.into_iter().map(|sum| (sum / count) as f32).collect();
        for pixel in image.chunks_exact_mut(channels) {
            pace.go(3 * channels);
            pixel.iter_mut().zip(&means).for_each(|(x, &mean)| *x = (*x - mean) * factor + mean);
        }
    }
    Ok(images)
}

/// Adds to the hue. Hues are from 0 to 6 in this function: six sections, in each of which one channel is the largest and
/// one the smallest.
fn turned(pixel: [f32; 3], delta: f32) -> [f32; 3] {
    let [r, g, b] = pixel;
    let (high, middle, low, section) = match (r < g, b) {
        (true, b) if b < r => (g, r, b, 1),
        (true, b) if b > g => (b, g, r, 3),
        (true, b) => (g, b, r, 2),
        (false, b) if b < g => (r, g, b, 0),
        (false, b) if b > r => (b, r, g, 4),
        (false, b) => (r, b, g, 5),
    };
    let share = if high == low { 0.0 } else { (middle - low) / (high - low) };
    let hue = match (high == low, section % 2 == 0) {
        (true, _) => 0.0,
        (_, true) => section as f32 + share,
        (_, false) => section as f32 + (1.0 - share),
    };
    let hue = hue + delta * 6.0;
    // A hue that is not finite stays so.
    let hue = if (0.0..6.0).contains(&hue) { hue } else { hue - 6.0 * (hue / 6.0).floor() };
    let hue = if hue >= 6.0 { 0.0 } else { hue };
    let section = hue as usize;
    let share = hue - section as f32;
    let share = if section.is_multiple_of(2) { share } else { 1.0 - share };
    let middle = low + share * (high - low);
    match section {
        0 => [high, middle, low],
        1 => [middle, high, low],
        2 => [low, high, middle],
        3 => [low, middle, high],
        4 => [middle, low, high],
        _ => [high, low, middle],
    }
}

fn saturated(pixel: [f32; 3], scale: f32) -> [f32; 3] {
    let [hue, saturation, value] = to_hsv(pixel);
    let saturation = (saturation * scale).clamp(0.0, 1.0);
    let chroma = saturation * value;
    let base = value - chroma;
    let dh = hue * 6.0;
    let within = if dh <= 0.0 || dh >= 2.0 { dh - 2.0 * (dh / 2.0).floor() } else { dh };
    let x = chroma * (1.0 - (within - 1.0).abs());
    let [r, g, b] = match dh as i64 {
        0 => [chroma, x, 0.0],
        1 => [x, chroma, 0.0],
        2 => [0.0, chroma, x],
        3 => [0.0, x, chroma],
        4 => [x, 0.0, chroma],
        5 => [chroma, 0.0, x],
        _ => [0.0; 3],
    };
    [r + base, g + base, b + base]
}
