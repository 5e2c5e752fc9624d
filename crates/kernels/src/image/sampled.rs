//! Parts of images at random: SampleDistortedBoundingBox in its forms, and RandomCrop.

use meshtf_loops::turn;
use meshtf_random::Philox;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, Moved, Tensor, with_moved};

use super::super::call::{input_dtype, output_dtype, take};
use super::super::random::{Simple, key_and_counter};
use super::super::{Generators, HostKernel, Inputs, KernelNode, Outputs, Registry, cast};

/// Most attempts of one call.
const MAX_ATTEMPTS: usize = 1 << 20;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_drawing("SampleDistortedBoundingBox", |node, generators| {
        let (form, least) = (Form::of(node)?, node.attrs.float("min_object_covered")?);
        let generator = generators.reserves(node)?;
        check_least(least)?;
        form.kernel(node, move |inputs, form| {
            let [size, boxes] = take(inputs)?;
            form.sampled(&size, &boxes, least, || Ok(generator(form.draws())))
        })
    });
    ops.insert_drawing("SampleDistortedBoundingBoxV2", |node, generators| {
        let (form, generator) = (Form::of(node)?, generators.reserves(node)?);
        form.kernel(node, move |inputs, form| {
            let [size, boxes, least] = take(inputs)?;
            form.sampled(&size, &boxes, least_of(&least)?, || Ok(generator(form.draws())))
        })
    });
    ops.insert("StatelessSampleDistortedBoundingBox", |node| {
        let form = Form::of(node)?;
        form.kernel(node, move |inputs, form| {
            let [size, boxes, least, seed] = take(inputs)?;
            form.sampled(&size, &boxes, least_of(&least)?, || {
                let (key, counter) = key_and_counter(&seed)?;
                Ok(Philox::new(key, counter))
            })
        })
    });
    ops.insert_drawing("RandomCrop", random_crop);
}

fn least_of(tensor: &Tensor) -> Result<f32> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("min_object_covered must be 0-D, got shape {}", tensor.shape())));
    }
    let least = tensor.item::<f32>()?;
    check_least(least)?;
    Ok(least)
}

fn check_least(least: f32) -> Result<()> {
    if least < 0.0 {
        return Err(Failure::invalid(format!("Min object covered must be non-negative, got {least}")));
    }
    Ok(())
}

/// The attributes of a node that samples boxes.
#[derive(Clone, Copy)]
struct Form {
    ratios: [f32; 2],
    areas: [f32; 2],
    attempts: usize,
    takes_all: bool,
}

/// A box: left, top, right, bottom.
#[derive(Clone, Copy)]
struct Part([i64; 4]);

impl Part {
    fn area(self) -> f32 {
        let [left, top, right, bottom] = self.0;
        ((right - left).max(0) * (bottom - top).max(0)) as f32
    }

    fn shared(self, other: Part) -> Part {
        let (a, b) = (self.0, other.0);
        let [left, top, right, bottom] = [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])];
        Part([left, top, right.max(left), bottom.max(top)])
    }
}

/// A number below `limit`, which is above 0.
fn below(draws: &mut Simple, limit: i64) -> i64 {
    i64::from(draws.below_u32(u32::try_from(limit).unwrap_or(u32::MAX)))
}

impl Form {
    fn of(node: &KernelNode) -> Result<Form> {
        let range = |name: &str, most: f32| {
            let stated = node.attrs.floats(name)?;
            match *stated {
                [least, greatest] if least > 0.0 && greatest > 0.0 && least.max(greatest) <= most => {
                    Ok([least, greatest])
                }
                _ => Err(Failure::invalid(format!(
                    "{name} must be two positive numbers{}, got {stated:?}",
                    if most.is_finite() { ", of at most 1" } else { "" }
                ))),
            }
        };
        let attempts = node.attrs.int("max_attempts")?;
        let attempts = usize::try_from(attempts).ok().filter(|attempts| (1..=MAX_ATTEMPTS).contains(attempts));
        Ok(Form {
            ratios: range("aspect_ratio_range", f32::INFINITY)?,
            areas: range("area_range", 1.0)?,
            attempts: attempts
                .ok_or_else(|| Failure::invalid(format!("max_attempts must be in [1, {MAX_ATTEMPTS}]")))?,
            takes_all: node.attrs.bool("use_image_if_no_bounding_boxes")?,
        })
    }

    /// The counts of the generator that a step reserves.
    fn draws(&self) -> u64 {
        self.attempts as u64
    }

    fn kernel(
        self,
        node: &KernelNode,
        f: impl Fn(Inputs, &Form) -> Result<([i64; 4], [f32; 4])> + Send + 'static,
    ) -> Result<Option<HostKernel>> {
        let dtype = output_dtype(node, 0)?;
        if !matches!(dtype, DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64) {
            return Ok(None);
        }
        Ok(Some(Box::new(move |inputs| {
            let ([left, top, right, bottom], sides) = f(inputs, &self)?;
            let begin = cast(Tensor::vector(vec![top, left, 0]), dtype)?;
            let size = cast(Tensor::vector(vec![bottom - top, right - left, -1]), dtype)?;
            Ok(Outputs::from_iter([begin, size, Tensor::new([1, 1, 4], Data::F32(sides.to_vec()))?]))
        })))
    }

    /// A part of the image that covers enough of a box, and its sides as parts of the image's.
    fn sampled(
        &self,
        size: &Tensor,
        boxes: &Tensor,
        least: f32,
        generator: impl FnOnce() -> Result<Philox>,
    ) -> Result<([i64; 4], [f32; 4])> {
        if size.rank() != 1 {
            return Err(Failure::invalid(format!("image_size must be 1-dimensional, got shape {}", size.shape())));
        }
        let &[height, width, _] = &cast(size.clone(), DType::I64)?.to_i64s()?[..] else {
            return Err(Failure::invalid(format!("image_size must contain 3 elements {}", size.shape())));
        };
        // Sides beyond 32 bits are none of images.
        if height.max(width) > i64::from(i32::MAX) || height.min(width) < 0 {
            return Err(Failure::invalid(format!(
                "image height and width must be in [0, 2^31), got {height}, {width}"
            )));
        }
        let is_list = boxes.rank() == 3 && boxes.dims()[2] == 4;
        if !is_list {
            return Err(Failure::invalid(format!(
                "input boxes must be 3-dimensional [batch, num_boxes, coords], got shape {}",
                boxes.shape()
            )));
        }
        let mut parts = Vec::with_capacity(boxes.len() / 4 + 1);
        for sides in boxes.slice::<f32>()?.as_chunks::<4>().0 {
            if let Some(side) = sides.iter().find(|side| !(0.0..=1.0).contains(*side)) {
                return Err(Failure::invalid(format!("All bounding box coordinates must be in [0.0, 1.0]: {side}")));
            }
            let [top, left, bottom, right] = *sides;
            let (across, down) = (|side: f32| (side * width as f32) as i64, |side: f32| (side * height as f32) as i64);
            parts.push(Part([across(left), down(top), across(right), down(bottom)]));
        }
        let whole = Part([0, 0, width, height]);
        if parts.is_empty() {
            if !self.takes_all {
                return Err(Failure::invalid(
                    "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish \
                     to not provide any bounding boxes.",
                ));
            }
            parts.push(whole);
        }
        let mut draws = Simple::of(generator()?);
        let [from, to] = self.ratios;
        let mut chosen = whole;
        for _ in 0..self.attempts {
            turn::look();
            let ratio = draws.fraction() * (to - from) + from;
            if let Some(part) = self.part(width, height, ratio, &mut draws)
                && covers(part, least, &parts)
            {
                chosen = part;
                break;
            }
        }
        let [left, top, right, bottom] = chosen.0;
        let share = |side: i64, of: i64| side as f32 / of as f32;
        let sides = [share(top, height), share(left, width), share(bottom, height), share(right, width)];
        Ok((chosen.0, sides))
    }

    /// A part of the image whose sides have that ratio; `None` if its area would be out of its range.
    fn part(&self, width: i64, height: i64, ratio: f32, draws: &mut Simple) -> Option<Part> {
        let [least, most] = self.areas;
        if ratio <= 0.0 || width <= 0 || height <= 0 {
            return None;
        }
        let rounded = |number: f32| number.round_ties_even() as i64;
        let (least, most) = (least * width as f32 * height as f32, most * width as f32 * height as f32);
        let mut tall = rounded((least / ratio).sqrt());
        let mut tallest = rounded((most / ratio).sqrt());
        if rounded(tallest as f32 * ratio) > width {
            tallest = ((width as f32 + 0.5 - 0.000_000_1) / ratio) as i64;
            if rounded(tallest as f32 * ratio) > width {
                tallest -= 1;
            }
        }
        tallest = tallest.min(height);
        tall = tall.min(tallest);
        if tall < tallest {
            tall += below(draws, tallest - tall + 1);
        }
        let mut wide = rounded(tall as f32 * ratio);
        let area = |wide: i64, tall: i64| (wide * tall) as f32;
        if area(wide, tall) < least {
            tall += 1;
            wide = rounded(tall as f32 * ratio);
        }
        if area(wide, tall) > most {
            tall -= 1;
            wide = rounded(tall as f32 * ratio);
        }
        let own = area(wide, tall);
        if own < least || own > most || wide > width || tall > height || wide <= 0 || tall <= 0 {
            return None;
        }
        let top = if tall < height { below(draws, height - tall) } else { 0 };
        let left = if wide < width { below(draws, width - wide) } else { 0 };
        Some(Part([left, top, left + wide, top + tall]))
    }
}

/// Whether a part covers enough of one of the boxes.
fn covers(part: Part, least: f32, boxes: &[Part]) -> bool {
    part.area() >= 1.0
        && boxes.iter().any(|object| object.area() >= 1.0 && object.shared(part).area() / object.area() >= least)
}

fn random_crop(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    let (dtype, generator) = (input_dtype(node, 0)?, generators.reserves(node)?);
    Ok(with_moved!(dtype, T => Box::new(move |inputs: Inputs| {
        let [image, size] = take(inputs)?;
        cropped::<T>(image, &size, &generator).map(super::super::call::one)
    }) as HostKernel))
}

fn cropped<T: Moved>(image: Tensor, size: &Tensor, generator: &impl Fn(u64) -> Philox) -> Result<Tensor> {
    let &[height, width, channels] = image.dims() else {
        return Err(Failure::invalid(format!("input must be 3-dimensional, got shape {}", image.shape())));
    };
    let sizes = size.to_i64s()?;
    let (1, &[tall, wide]) = (size.rank(), &sizes[..]) else {
        return Err(Failure::invalid(format!("crop_shape must be a vector of two elements, got {}", size.shape())));
    };
    if (tall, wide) == (height as i64, width as i64) {
        return Ok(image);
    }
    let side = |wanted: i64, most: usize, what: &str| {
        let wanted = usize::try_from(wanted)
            .map_err(|_| Failure::invalid(format!("target {what} must not be negative, got {wanted}")))?;
        if wanted > most {
            let why = format!("{what} must be >= target_{what}: {what} = {most}, target_{what} = {wanted}");
            return Err(Failure::new(Code::FailedPrecondition, why));
        }
        Ok(wanted)
    };
    let (wide, tall) = (side(wide, width, "width")?, side(tall, height, "height")?);
    let mut words = generator(1).words();
    let mut at =
        |wanted: usize, most: usize| if wanted < most { words.draw() as usize % (most - wanted + 1) } else { 0 };
    // The column is drawn first.
    let left = at(wide, width);
    let top = at(tall, height);
    let pixels = image.moved::<T>()?;
    let shape = meshtf_tensor::Shape::from([tall, wide, channels]);
    let mut output = Vec::with_capacity(shape.checked_elements(image.dtype())?);
    for row in top..top + tall {
        turn::look();
        output.extend_from_slice(&pixels[(row * width + left) * channels..][..wide * channels]);
    }
    Ok(Tensor::from_moved(image.dtype(), shape, output))
}
