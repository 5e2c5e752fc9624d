//! ExtractImagePatches and ExtractVolumePatches: the elements under each window, row by row, as the channels of one pixel.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Numeric, Tensor, with_number};

use super::super::call::{input_dtype, kernel as call, product};
use super::super::{HostKernel, KernelNode, Registry};
use super::window::{Axis, Padding, Slide, per_dimension, spread};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ExtractImagePatches", kernel);
    ops.insert("ExtractVolumePatches", volume_kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let window = over_space(node, "ksizes")?;
    let slide = Slide {
        spatial: 2,
        channels_first: false,
        strides: over_space(node, "strides")?,
        dilations: over_space(node, "rates")?,
        padding: if node.attrs.str("padding")? == "SAME" { Padding::Same } else { Padding::Valid },
    };
    let kernel = with_number!(input_dtype(node, 0)?, T => call(move |[images]| patches::<T>(&slide, window, &images)));
    Ok(kernel)
}

fn volume_kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let over_space = |name: &str| {
        let (space, outer) = per_dimension(name, node.attrs.ints(name)?, 3, false)?;
        match outer {
            [1, 1] => Ok(space),
            _ => Err(Failure::new(Code::Unimplemented, format!("Only support {name} across space."))),
        }
    };
    let window = over_space("ksizes")?;
    let slide = Slide {
        spatial: 3,
        channels_first: false,
        strides: over_space("strides")?,
        dilations: [1; 3],
        padding: if node.attrs.str("padding")? == "SAME" { Padding::Same } else { Padding::Valid },
    };
    let kernel = with_number!(input_dtype(node, 0)?, T => call(move |[volumes]| boxes::<T>(&slide, window, &volumes)));
    Ok(kernel)
}

/// The elements under each window over volumes; those outside a volume are zeros.
fn boxes<T: Numeric>(slide: &Slide, window: [usize; 3], volumes: &Tensor) -> Result<Tensor> {
    let &[batch, planes, height, width, channels] = volumes.dims() else {
        return Err(Failure::invalid(format!("input must be 5-dimensional, got shape {}", volumes.shape())));
    };
    let [d, h, w] = slide.over([planes, height, width], window)?;
    let size = product(&[d.window, h.window, w.window, channels]);
    let shape = meshtf_tensor::Shape::from([batch, d.output, h.output, w.output, size]);
    let mut answer = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    if !answer.is_empty() {
        let (from, chunk) = (volumes.slice::<T>()?, chunk(size));
        in_chunks(answer.chunks_mut(chunk * size).enumerate(), |(i, answer)| {
            for (patch, answer) in (i * chunk..).zip(answer.chunks_exact_mut(size)) {
                let [x, y] = [patch % w.output, patch / w.output % h.output];
                let [z, volume] = [patch / w.output / h.output % d.output, patch / w.output / h.output / d.output];
                for (k, answer) in answer.chunks_exact_mut(w.window * channels).enumerate() {
                    let (plane, row) = (d.position(z, k / h.window), h.position(y, k % h.window));
                    if let Some((plane, row)) = plane.zip(row) {
                        let line = ((volume * planes + plane) * height + row) * width * channels;
                        copy_row(&w, x, &from[line..][..width * channels], answer);
                    }
                }
            }
        });
    }
    Ok(Tensor::from_vec(shape, answer))
}

/// An attribute with a number for each dimension, the first and the last of which must be 1.
fn over_space(node: &KernelNode, name: &str) -> Result<[usize; 3]> {
    let &[1, height, width, 1] = node.attrs.ints(name)? else {
        let given = node.attrs.ints(name)?.len();
        return Err(match given {
            4 => Failure::new(Code::Unimplemented, format!("Only support {name} across space.")),
            _ => Failure::invalid(format!(
                "{} requires the {name} attribute to contain 4 values, but got: {given}",
                node.op
            )),
        });
    };
    let positive = |size: i64| {
        usize::try_from(size).ok().filter(|&size| size > 0 && i32::try_from(size).is_ok()).ok_or_else(|| {
            Failure::new(Code::OutOfRange, format!("{name} is out of range: {size} must be at least 1, and int32"))
        })
    };
    Ok(spread(&[positive(height)?, positive(width)?]))
}

fn patches<T: Numeric>(slide: &Slide, window: [usize; 3], images: &Tensor) -> Result<Tensor> {
    let &[batch, height, width, channels] = images.dims() else {
        return Err(Failure::invalid(format!("input must be 4-dimensional, got shape {}", images.shape())));
    };
    let [_, h, w] = slide.over(spread(&[height, width]), window)?;
    let size = product(&[h.window, w.window, channels]);
    let shape = meshtf_tensor::Shape::from([batch, h.output, w.output, size]);
    let mut answer = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    if !answer.is_empty() {
        let (from, chunk) = (images.slice::<T>()?, chunk(size));
        in_chunks(answer.chunks_mut(chunk * size).enumerate(), |(i, answer)| {
            for (patch, answer) in (i * chunk..).zip(answer.chunks_exact_mut(size)) {
                let [image, y, x] = [patch / w.output / h.output, patch / w.output % h.output, patch % w.output];
                for (k, answer) in answer.chunks_exact_mut(w.window * channels).enumerate() {
                    if let Some(row) = h.position(y, k) {
                        copy_row(&w, x, &from[(image * height + row) * width * channels..][..width * channels], answer);
                    }
                }
            }
        });
    }
    Ok(Tensor::from_vec(shape, answer))
}

/// Copies the elements under a row of the window at `x`; those outside the image stay unchanged.
fn copy_row<T: Copy>(w: &Axis, x: usize, line: &[T], answer: &mut [T]) {
    let channels = answer.len() / w.window;
    if w.dilation > 1 {
        for (k, pixel) in answer.chunks_exact_mut(channels).enumerate() {
            if let Some(column) = w.position(x, k) {
                pixel.copy_from_slice(&line[column * channels..][..channels]);
            }
        }
        return;
    }
    let outside = w.before.saturating_sub(x * w.stride);
    let inside = w.under(x);
    let line = &line[inside.start * channels..inside.end * channels];
    answer[outside * channels..][..line.len()].copy_from_slice(line);
}
