//! Random changes of images that are trained with, as Keras's layers RandomFlip, RandomRotation, RandomTranslation,
//! RandomBrightness and RandomContrast make them. The names and ranges are those of Keras.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{Data, Shape, Tensor};

use super::order::mixed;

/// The changes, each drawn anew for each image and epoch. They are made in the order of the fields, on the pixels of the size
/// of an example.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augment {
    /// Mirrors an image with a probability of one half in each of these directions.
    pub flip: Option<Flip>,
    /// Takes a window of 1 minus this share to all of the height and of the width, in the same share, anywhere in the image,
    /// and interpolates it to the size of the image.
    pub crop: f64,
    /// Turns it counter-clockwise by an angle in this range, in full turns.
    pub rotate: (f64, f64),
    /// Moves it down and to the right by up to these shares of the height and width, or up and to the left.
    pub translate: [f64; 2],
    /// Adds a number in this range, as a share of 255.
    pub brightness: (f64, f64),
    /// Multiplies the difference from the mean of the channel by a factor of 1 minus this to 1 plus this.
    pub contrast: f64,
    /// The seed of the random numbers; else that of the order of the examples.
    pub seed: Option<u64>,
}

/// The directions in which images are mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flip {
    /// Left and right are exchanged.
    Horizontal,
    Vertical,
    Both,
}

impl Flip {
    /// All, with their names in files; the last one is Keras's for both.
    pub const NAMES: [(&str, Flip); 4] = [
        ("horizontal", Flip::Horizontal),
        ("vertical", Flip::Vertical),
        ("both", Flip::Both),
        ("horizontal_and_vertical", Flip::Both),
    ];
}

impl Augment {
    /// Changes images, `[images, height, width, channels]` of uint8. The random numbers of each depend on the seed, its index
    /// and its epoch alone.
    ///
    /// # Errors
    /// InvalidArgument for another tensor; ResourceExhausted if there is no memory.
    pub fn apply(&self, images: &Tensor, seed: u64, places: &[usize], epochs: &[u64]) -> Result<Tensor> {
        let (&[count, height, width, channels], Data::U8(pixels)) = (images.dims(), images.data()) else {
            let example = Shape::from(images.dims().get(1..).unwrap_or_default().to_vec());
            return Err(Failure::invalid(format!(
                "only images are augmented, and an example is {}{example}: leave \"augment\" out",
                images.dtype()
            )));
        };
        if places.len() != count || epochs.len() != count {
            return Err(Failure::invalid("each image has an index and an epoch"));
        }
        memory::admit(pixels.len())?;
        let mut changed = pixels.to_vec();
        let size = height * width * channels;
        if size > 0 {
            let each = changed.chunks_exact_mut(size).zip(places.iter().zip(epochs));
            for (image, (&place, &epoch)) in each {
                let draws = Draws::of(self.seed.unwrap_or(seed), epoch, place as u64);
                self.change(image, [height, width, channels], draws);
            }
        }
        Tensor::new([count, height, width, channels], Data::U8(changed))
    }

    fn change(&self, pixels: &mut [u8], size: [usize; 3], mut draws: Draws) {
        // All numbers are drawn, so that an option does not change those of the others.
        let [vertical, horizontal] = [draws.unit() < 0.5, draws.unit() < 0.5];
        let window = Window {
            share: 1.0 - self.crop * draws.unit(),
            begin: [draws.unit(), draws.unit()],
            turns: within(self.rotate, draws.unit()),
            moved: self.translate.map(|share| within((-share, share), draws.unit())),
            mirrored: [
                vertical && matches!(self.flip, Some(Flip::Vertical | Flip::Both)),
                horizontal && matches!(self.flip, Some(Flip::Horizontal | Flip::Both)),
            ],
        };
        window.take(pixels, size);
        let added = within(self.brightness, draws.unit()) * 255.0;
        if added != 0.0 {
            pixels.iter_mut().for_each(|pixel| *pixel = rounded(f64::from(*pixel) + added));
        }
        let factor = within((1.0 - self.contrast, 1.0 + self.contrast), draws.unit());
        if factor != 1.0 {
            for channel in 0..size[2] {
                let own = pixels.iter().skip(channel).step_by(size[2]);
                let mean = own.map(|&pixel| f64::from(pixel)).sum::<f64>() / (size[0] * size[1]) as f64;
                let own = pixels.iter_mut().skip(channel).step_by(size[2]);
                own.for_each(|pixel| *pixel = rounded((f64::from(*pixel) - mean) * factor + mean));
            }
        }
    }
}

/// A number of a range by one from 0 to below 1.
fn within((least, most): (f64, f64), unit: f64) -> f64 {
    least + (most - least) * unit
}

/// The nearest number from 0 to 255.
fn rounded(value: f64) -> u8 {
    value.round() as u8
}

/// The part of an image that is seen.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Its share of the height and of the width.
    share: f64,
    /// Its location, from 0 to 1 of the space that it leaves.
    begin: [f64; 2],
    turns: f64,
    /// The shares by which the image is moved down and to the right.
    moved: [f64; 2],
    /// Whether up and down are exchanged, and left and right.
    mirrored: [bool; 2],
}

impl Window {
    /// Replaces an image by what the window shows of it, interpolated between four pixels; beyond an edge the image is
    /// reflected, as by Keras's `fill_mode` "reflect".
    fn take(&self, pixels: &mut [u8], [height, width, channels]: [usize; 3]) {
        let is_still = self.share == 1.0 && self.turns == 0.0 && self.moved == [0.0; 2];
        if is_still && self.mirrored == [false; 2] {
            return;
        }
        let source = pixels.to_vec();
        let sizes = [height as f64, width as f64];
        let (sin, cos) = (self.turns * std::f64::consts::TAU).sin_cos();
        let center = |axis: usize| sizes[axis] * ((1.0 - self.share) * self.begin[axis] + self.share / 2.0);
        let scale = |axis: usize| if self.mirrored[axis] { -self.share } else { self.share };
        let pixel_at = |y: f64, x: f64| (reflected(y, height) * width + reflected(x, width)) * channels;
        for (y, line) in pixels.chunks_exact_mut(width * channels).enumerate() {
            for (x, pixel) in line.chunks_exact_mut(channels).enumerate() {
                // From the middle of the result, backwards: not moved, not turned, not mirrored, in the window.
                let down = y as f64 + 0.5 - sizes[0] / 2.0 - self.moved[0] * sizes[0];
                let right = x as f64 + 0.5 - sizes[1] / 2.0 - self.moved[1] * sizes[1];
                let [down, right] = [right * sin + down * cos, right * cos - down * sin];
                let from_y = center(0) + scale(0) * down - 0.5;
                let from_x = center(1) + scale(1) * right - 0.5;
                let (low_y, low_x) = (from_y.floor(), from_x.floor());
                let (by_y, by_x) = (from_y - low_y, from_x - low_x);
                let corners = [
                    (pixel_at(low_y, low_x), (1.0 - by_y) * (1.0 - by_x)),
                    (pixel_at(low_y, low_x + 1.0), (1.0 - by_y) * by_x),
                    (pixel_at(low_y + 1.0, low_x), by_y * (1.0 - by_x)),
                    (pixel_at(low_y + 1.0, low_x + 1.0), by_y * by_x),
                ];
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let sum = corners.iter().map(|(at, weight)| f64::from(source[at + channel]) * weight).sum();
                    *value = rounded(sum);
                }
            }
        }
    }
}

/// The index of a pixel of `count` that is seen at a place: `… 1 0 0 1 … n-1 n-1 … 0 0 …`.
fn reflected(place: f64, count: usize) -> usize {
    let place = (place as i64).rem_euclid(2 * count as i64) as usize;
    place.min(2 * count - 1 - place)
}

/// Random numbers that are determined by a seed, an epoch and the index of an example.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    /// Separates these numbers from those of the order of the examples.
    const STREAM: u64 = 0x6d65_7368_7466_2d61;

    fn of(seed: u64, epoch: u64, place: u64) -> Draws {
        let seed = mixed(seed ^ Draws::STREAM);
        Draws(mixed(mixed(seed.wrapping_add(epoch)).wrapping_add(place)))
    }

    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mixed(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests;
