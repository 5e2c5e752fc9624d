//! CropAndResize, which resizes parts of images to one size, and its gradients with respect to the images and the boxes.

use std::mem;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Element, Numeric, Shape, Tensor, with_float, with_number};

use super::super::call::{input_dtype, kernel as call, output_dtype};
use super::super::real::narrow;
use super::super::{KernelNode, Registry};
use super::{size_of, sizes_of};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("CropAndResize", |node| {
        let (nearest, beside) = (is_nearest(node)?, node.attrs.float("extrapolation_value")?);
        Ok(with_number!(input_dtype(node, 0)?, T => call(move |[images, boxes, indices, size]| {
            crop::<T>(&images, &boxes, &indices, &size, beside, nearest)
        })))
    });
    ops.insert("CropAndResizeGradImage", |node| {
        let (nearest, dtype) = (is_nearest(node)?, output_dtype(node, 0)?);
        Ok(with_float!(dtype, T => call(move |[gradient, boxes, indices, size]| {
            let sums = by_images(&gradient, &boxes, &indices, &size, nearest)?;
            if T::DTYPE == DType::F64 { super::super::cast(sums, dtype) } else { narrow(sums, dtype) }
        })))
    });
    ops.insert("CropAndResizeGradBoxes", |node| {
        is_nearest(node)?;
        Ok(with_number!(input_dtype(node, 1)?, T => call(|[gradient, images, boxes, indices]| {
            by_boxes::<T>(&gradient, &images, &boxes, &indices)
        })))
    });
}

fn is_nearest(node: &KernelNode) -> Result<bool> {
    Ok(node.attrs.str("method")? == "nearest")
}

/// The boxes (y1, x1, y2, x2), and the index of each box's image.
fn boxes_of(boxes: &Tensor, indices: &Tensor, batch: usize) -> Result<Vec<([f32; 4], usize)>> {
    let &[count, 4] = boxes.dims() else {
        return Err(Failure::invalid(format!("boxes must be 2-D with 4 columns, got shape {}", boxes.shape())));
    };
    if indices.dims() != [count] {
        let why = format!("box_index has incompatible shape {}, for {count} boxes", indices.shape());
        return Err(Failure::invalid(why));
    }
    let outside = |index: i64| {
        Failure::new(Code::OutOfRange, format!("box_index has values outside [0, batch_size): {index} of {batch}"))
    };
    let image = |index: i64| usize::try_from(index).ok().filter(|&i| i < batch).ok_or_else(|| outside(index));
    let images = indices.to_i64s()?.into_iter().map(image);
    boxes.slice::<f32>()?.as_chunks::<4>().0.iter().zip(images).map(|(&sides, image)| Ok((sides, image?))).collect()
}

/// The positions in the image of the pixels of one axis of a crop; `None` outside the image.
fn places(from: f32, to: f32, input: usize, output: usize) -> Vec<Option<f32>> {
    let last = input as f32 - 1.0;
    let scale = if output > 1 { (to - from) * last / (output - 1) as f32 } else { 0.0 };
    let one = |i: usize| {
        let place = if output > 1 { from * last + i as f32 * scale } else { 0.5 * (from + to) * last };
        (place >= 0.0 && place <= last).then_some(place)
    };
    (0..output).map(one).collect()
}

/// Admits the memory of the positions of one crop's pixels.
fn admit_places(height: usize, width: usize) -> Result<()> {
    memory::admit((height + width) * mem::size_of::<Option<f32>>())
}

/// The two pixels adjacent to a position, and the weight of the second.
#[inline]
fn around(place: f32) -> (usize, usize, f32) {
    (place.floor() as usize, place.ceil() as usize, place - place.floor())
}

fn crop<T: Numeric>(
    images: &Tensor,
    boxes: &Tensor,
    indices: &Tensor,
    size: &Tensor,
    beside: f32,
    nearest: bool,
) -> Result<Tensor> {
    let [batch, rows, columns, channels] = sizes_of(images, "input image")?;
    let [height, width] = size_of(size, "crop_size")?;
    if rows == 0 || columns == 0 {
        return Err(Failure::invalid("image dimensions must be positive"));
    }
    let boxes = boxes_of(boxes, indices, batch)?;
    let shape = Shape::from([boxes.len(), height, width, channels]);
    let mut output: Vec<f32> = Vec::with_capacity(shape.checked_elements(DType::F32)?);
    if shape.elements() == Some(0) {
        return Ok(Tensor::from_vec(shape, output));
    }
    admit_places(height, width)?;
    let pixels = images.slice::<T>()?;
    let mut pace = Pace::new();
    for ([y1, x1, y2, x2], image) in boxes {
        let image = &pixels[image * rows * columns * channels..][..rows * columns * channels];
        let pixel = |row: usize, column: usize, channel: usize| {
            image[(row * columns + column) * channels + channel].to_f64() as f32
        };
        let xs = places(x1, x2, columns, width);
        for y in places(y1, y2, rows, height) {
            for &x in &xs {
                pace.go(4 + 8 * channels);
                let (Some(y), Some(x)) = (y, x) else {
                    output.resize(output.len() + channels, beside);
                    continue;
                };
                if nearest {
                    let (row, column) = (y.round() as usize, x.round() as usize);
                    output.extend((0..channels).map(|channel| pixel(row, column, channel)));
                    continue;
                }
                let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
                output.extend((0..channels).map(|channel| {
                    let upper = pixel(top, left, channel);
                    let upper = upper + (pixel(top, right, channel) - upper) * across;
                    let lower = pixel(bottom, left, channel);
                    let lower = lower + (pixel(bottom, right, channel) - lower) * across;
                    upper + (lower - upper) * down
                }));
            }
        }
    }
    Ok(Tensor::from_vec(shape, output))
}

fn by_images(gradient: &Tensor, boxes: &Tensor, indices: &Tensor, size: &Tensor, nearest: bool) -> Result<Tensor> {
    let [count, height, width, channels] = sizes_of(gradient, "grads image")?;
    let sizes = size.to_i64s()?;
    let (1, &[_, _, _, _]) = (size.rank(), &sizes[..]) else {
        return Err(Failure::invalid(format!("image_size must be 1-D with 4 elements, got shape {}", size.shape())));
    };
    let shape = Shape::from_i64s(&sizes)?;
    let [batch, rows, columns, own] = [shape.dims()[0], shape.dims()[1], shape.dims()[2], shape.dims()[3]];
    let boxes = boxes_of(boxes, indices, batch)?;
    if count != boxes.len() || own != channels || rows == 0 || columns == 0 || height == 0 || width == 0 {
        let why = format!(
            "grads of shape {} are not those of {} boxes of images of shape {shape}",
            gradient.shape(),
            boxes.len()
        );
        return Err(Failure::invalid(why));
    }
    let mut sums = vec![0f32; shape.checked_elements(DType::F32)?];
    if gradient.is_empty() {
        return Ok(Tensor::from_vec(shape, sums));
    }
    admit_places(height, width)?;
    let mut pixels = gradient.slice::<f32>()?.chunks_exact(channels.max(1));
    let mut pace = Pace::new();
    for ([y1, x1, y2, x2], image) in boxes {
        let image = &mut sums[image * rows * columns * channels..][..rows * columns * channels];
        let xs = places(x1, x2, columns, width);
        for y in places(y1, y2, rows, height) {
            for &x in &xs {
                pace.go(4 + 8 * channels);
                let Some(pixel) = pixels.next() else { break };
                let (Some(y), Some(x)) = (y, x) else { continue };
                let mut add = |row: usize, column: usize, share: f32| {
                    let at = (row * columns + column) * channels;
                    image[at..at + channels].iter_mut().zip(pixel).for_each(|(sum, x)| *sum += share * x);
                };
                if nearest {
                    add(y.round() as usize, x.round() as usize, 1.0);
                    continue;
                }
                let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
                add(top, left, (1.0 - down) * (1.0 - across));
                add(top, right, (1.0 - down) * across);
                add(bottom, left, down * (1.0 - across));
                add(bottom, right, down * across);
            }
        }
    }
    Ok(Tensor::from_vec(shape, sums))
}

fn by_boxes<T: Numeric>(gradient: &Tensor, images: &Tensor, boxes: &Tensor, indices: &Tensor) -> Result<Tensor> {
    let [count, height, width, channels] = sizes_of(gradient, "grads image")?;
    let [batch, rows, columns, own] = sizes_of(images, "input image")?;
    let boxes = boxes_of(boxes, indices, batch)?;
    if count != boxes.len() || own != channels || rows == 0 || columns == 0 || height == 0 || width == 0 {
        let why = format!(
            "grads of shape {} are not those of {} boxes of images of shape {}",
            gradient.shape(),
            boxes.len(),
            images.shape()
        );
        return Err(Failure::invalid(why));
    }
    if gradient.is_empty() {
        return Ok(Tensor::from_vec([count, 4], vec![0f32; Shape::from([count, 4]).checked_elements(DType::F32)?]));
    }
    admit_places(height, width)?;
    let all = images.slice::<T>()?;
    let mut pixels = gradient.slice::<f32>()?.chunks_exact(channels.max(1));
    let mut sums = Vec::with_capacity(4 * count);
    let mut pace = Pace::new();
    // The derivatives of a position with respect to the first and the second side on one axis.
    let moved = |i: usize, input: usize, output: usize| {
        let last = input as f32 - 1.0;
        if output > 1 {
            let second = i as f32 * last / (output - 1) as f32;
            (last - second, second)
        } else {
            (0.5 * last, 0.5 * last)
        }
    };
    for ([y1, x1, y2, x2], image) in boxes {
        let image = &all[image * rows * columns * channels..][..rows * columns * channels];
        let mut sides = [0f32; 4];
        let xs = places(x1, x2, columns, width);
        for (i, y) in places(y1, y2, rows, height).into_iter().enumerate() {
            for (j, &x) in xs.iter().enumerate() {
                pace.go(4 + 12 * channels);
                let Some(gradients) = pixels.next() else { break };
                let (Some(y), Some(x)) = (y, x) else { continue };
                let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
                let ((first_y, second_y), (first_x, second_x)) = (moved(i, rows, height), moved(j, columns, width));
                for (channel, &by) in gradients.iter().enumerate() {
                    let pixel = |row: usize, column: usize| {
                        image[(row * columns + column) * channels + channel].to_f64() as f32
                    };
                    let (a, b, c, d) = (pixel(top, left), pixel(top, right), pixel(bottom, left), pixel(bottom, right));
                    let along_y = by * ((1.0 - across) * (c - a) + across * (d - b));
                    let along_x = by * ((1.0 - down) * (b - a) + down * (d - c));
                    sides[0] += along_y * first_y;
                    sides[1] += along_x * first_x;
                    sides[2] += along_y * second_y;
                    sides[3] += along_x * second_x;
                }
            }
        }
        sums.extend(sides);
    }
    Ok(Tensor::from_vec([count, 4], sums))
}
