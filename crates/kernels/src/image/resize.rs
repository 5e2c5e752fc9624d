//! ResizeArea, which averages the pixels that an output pixel covers, and ResizeBicubic, which weights the nearest
//! sixteen by distance, with its gradient.

use std::mem;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_float, with_number};

use super::super::call::{input_dtype, kernel as call};
use super::super::real::narrow;
use super::super::{KernelNode, Registry};
use super::{size_of, sizes_of};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ResizeArea", |node| {
        let (dtype, aligned) = (input_dtype(node, 0)?, node.attrs.bool("align_corners")?);
        Ok(with_number!(dtype, T => call(move |[images, size]| area::<T>(&images, &size, aligned))))
    });
    ops.insert("ResizeBicubic", |node| {
        let (dtype, (aligned, half)) = (input_dtype(node, 0)?, corners(node)?);
        Ok(with_number!(dtype, T => call(move |[images, size]| bicubic::<T>(&images, &size, aligned, half))))
    });
    ops.insert("ResizeBicubicGrad", |node| {
        let (dtype, (aligned, half)) = (input_dtype(node, 1)?, corners(node)?);
        Ok(with_float!(dtype, T => call(move |[gradient, images]| {
            let sum = bicubic_grad::<T>(&gradient, &images, aligned, half)?;
            narrow(sum, dtype)
        })))
    });
}

/// Whether the corners are aligned, and whether positions are those of the centers of pixels.
fn corners(node: &KernelNode) -> Result<(bool, bool)> {
    let (aligned, half) = (node.attrs.bool("align_corners")?, node.attrs.bool("half_pixel_centers")?);
    if aligned && half {
        return Err(Failure::invalid("If half_pixel_centers is True, align_corners must be False."));
    }
    Ok((aligned, half))
}

#[inline]
fn scale(input: usize, output: usize, aligned: bool) -> f32 {
    if aligned && output > 1 { (input - 1) as f32 / (output - 1) as f32 } else { input as f32 / output as f32 }
}

/// The sizes of the images, which must not be empty, and of the output.
fn both_sizes(images: &Tensor, size: &Tensor) -> Result<([usize; 4], [usize; 2])> {
    let (sizes, size) = (sizes_of(images, "input")?, size_of(size, "shape_t")?);
    if sizes[1] == 0 || sizes[2] == 0 || sizes[3] == 0 {
        return Err(Failure::invalid(format!("input image must be of non-zero size, got shape {}", images.shape())));
    }
    Ok((sizes, size))
}

/// The pixels of one axis that each output pixel covers, and the covered length of each.
fn covered(input: usize, output: usize, scale: f32) -> Vec<Vec<(usize, f32)>> {
    let one = |i: usize| {
        let (begin, end) = (i as f32 * scale, (i + 1) as f32 * scale);
        (begin.floor() as usize..end.ceil() as usize)
            .map(|pixel| {
                let (from, to) = (begin.max(pixel as f32), end.min((pixel + 1) as f32));
                (pixel.min(input - 1), to - from)
            })
            .collect()
    };
    (0..output).map(one).collect()
}

fn area<T: Numeric>(images: &Tensor, size: &Tensor, aligned: bool) -> Result<Tensor> {
    let ([batch, rows, columns, channels], [height, width]) = both_sizes(images, size)?;
    let shape = Shape::from([batch, height, width, channels]);
    let mut output: Vec<f32> = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    if shape.elements() == Some(0) {
        return Ok(Tensor::from_vec(shape, output));
    }
    // Each output pixel covers at most two partial pixels in addition to its whole ones.
    let entries = (rows + columns).saturating_add(3 * (height + width));
    memory::admit(
        entries.saturating_mul(mem::size_of::<(usize, f32)>()) + (height + width) * mem::size_of::<Vec<(usize, f32)>>(),
    )?;
    let (by_row, by_column) = (scale(rows, height, aligned), scale(columns, width, aligned));
    let (ys, xs) = (covered(rows, height, by_row), covered(columns, width, by_column));
    let share = 1.0 / (by_row * by_column);
    let pixels = images.slice::<T>()?;
    let mut pace = Pace::new();
    let mut sums = vec![0f32; channels];
    for image in pixels.chunks_exact(rows * columns * channels) {
        for y in &ys {
            for x in &xs {
                pace.go(channels * (2 + y.len() * x.len()));
                sums.fill(0.0);
                for &(row, from_row) in y {
                    for &(column, from_column) in x {
                        let at = (row * columns + column) * channels;
                        for (sum, &pixel) in sums.iter_mut().zip(&image[at..at + channels]) {
                            *sum += pixel.to_f64() as f32 * from_row * from_column;
                        }
                    }
                }
                output.extend(sums.iter().map(|sum| sum * share));
            }
        }
    }
    Ok(Tensor::from_vec(shape, output))
}

/// The number of steps between two pixels in the table of weights for four pixels in a row.
const STEPS: usize = 1 << 10;

/// Four pixels of one axis, with their weights.
type Four = [(usize, f32); 4];

/// The weights of a pixel by its distance: below one, and from one to two.
fn weights(a: f64) -> Vec<[f32; 2]> {
    (0..=STEPS)
        .map(|i| {
            let near = i as f64 / STEPS as f64;
            let far = near + 1.0;
            let near = ((a + 2.0) * near - (a + 3.0)) * near * near + 1.0;
            let far = ((a * far - 5.0 * a) * far + 8.0 * a) * far - 4.0 * a;
            [near as f32, far as f32]
        })
        .collect()
}

fn fours(input: usize, output: usize, aligned: bool, half: bool) -> Vec<Four> {
    let table = weights(if half { -0.5 } else { -0.75 });
    let scale = scale(input, output, aligned);
    let one = |i: usize| {
        let position = if half { (i as f32 + 0.5) * scale - 0.5 } else { i as f32 * scale };
        let first = position.floor();
        let step = ((position - first) * STEPS as f32).round_ties_even() as usize;
        let first = first as i64;
        let weight = [table[step][1], table[step][0], table[STEPS - step][0], table[STEPS - step][1]];
        let mut four: Four = std::array::from_fn(|k| {
            let at = first - 1 + k as i64;
            let inside = at.clamp(0, input as i64 - 1);
            // With half-pixel centres, pixels outside the image have no weight.
            let counts = !half || inside == at;
            (inside as usize, if counts { weight[k] } else { 0.0 })
        });
        if half {
            let sum: f32 = four.iter().map(|(_, weight)| weight).sum();
            if sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                four.iter_mut().for_each(|(_, weight)| *weight *= 1.0 / sum);
            }
        }
        four
    };
    (0..output).map(one).collect()
}

fn bicubic<T: Numeric>(images: &Tensor, size: &Tensor, aligned: bool, half: bool) -> Result<Tensor> {
    let ([batch, rows, columns, channels], [height, width]) = both_sizes(images, size)?;
    let shape = Shape::from([batch, height, width, channels]);
    let mut output: Vec<f32> = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    if shape.elements() == Some(0) {
        return Ok(Tensor::from_vec(shape, output));
    }
    memory::admit((height + width) * mem::size_of::<Four>())?;
    let (ys, xs) = (fours(rows, height, aligned, half), fours(columns, width, aligned, half));
    let mut pace = Pace::new();
    for image in images.slice::<T>()?.chunks_exact(rows * columns * channels) {
        for y in &ys {
            for x in &xs {
                pace.go(40 * channels);
                for channel in 0..channels {
                    let pixel = |row: usize, column: usize| {
                        image[(row * columns + column) * channels + channel].to_f64() as f32
                    };
                    let at = |&(column, by): &(usize, f32)| {
                        by * y.iter().map(|&(row, weight)| pixel(row, column) * weight).sum::<f32>()
                    };
                    output.push(x.iter().map(at).sum());
                }
            }
        }
    }
    Ok(Tensor::from_vec(shape, output))
}

fn bicubic_grad<T: Numeric>(gradient: &Tensor, images: &Tensor, aligned: bool, half: bool) -> Result<Tensor> {
    let [batch, height, width, channels] = sizes_of(gradient, "input_grad")?;
    let [_, rows, columns, _] = sizes_of(images, "original_image")?;
    if batch != images.dims()[0] || channels != images.dims()[3] || gradient.is_empty() || images.is_empty() {
        let why = format!("a gradient of shape {} is not one of images of shape {}", gradient.shape(), images.shape());
        return Err(Failure::invalid(why));
    }
    memory::admit((height + width) * mem::size_of::<Four>())?;
    let (ys, xs) = (fours(rows, height, aligned, half), fours(columns, width, aligned, half));
    let wide = if T::DTYPE == DType::F64 { DType::F64 } else { DType::F32 };
    images.shape().checked_elements(wide)?;
    let mut sums = vec![0f64; images.len()];
    memory::admit(8 * sums.len())?;
    let mut pace = Pace::new();
    let pixels = gradient.slice::<f32>()?;
    let (from, into) = (height * width * channels, rows * columns * channels);
    for (image, sums) in pixels.chunks_exact(from).zip(sums.chunks_exact_mut(into)) {
        for (i, pixel) in image.chunks_exact(channels).enumerate() {
            pace.go(40 * channels);
            for &(row, by_row) in &ys[i / width] {
                for &(column, by_column) in &xs[i % width] {
                    let at = (row * columns + column) * channels;
                    for (sum, &x) in sums[at..at + channels].iter_mut().zip(pixel) {
                        *sum += f64::from(x) * f64::from(by_row) * f64::from(by_column);
                    }
                }
            }
        }
    }
    Ok(if wide == DType::F64 {
        Tensor::from_vec(images.shape().clone(), sums)
    } else {
        Tensor::from_vec(images.shape().clone(), sums.into_iter().map(|sum| sum as f32).collect::<Vec<_>>())
    })
}
