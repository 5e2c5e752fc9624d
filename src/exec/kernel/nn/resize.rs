//! Resizes images to the nearest pixel, or to the four nearest mixed by distance, and computes the gradients of both.

use super::super::call::{input_dtype, kernel as call, no_kernel};
use super::super::real::{narrow, widen};
use super::super::{HostKernel, KernelNode};
use crate::exec::turn::{Pace, paced};
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Float, Numeric, Shape, Tensor, with_float, with_number};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    if !matches!(
        node.op,
        "ResizeBilinear" | "ResizeBilinearGrad" | "ResizeNearestNeighbor" | "ResizeNearestNeighborGrad"
    ) {
        return Ok(None);
    }
    let centers = Centers::of(node)?;
    let dtype = input_dtype(node, 0)?;
    let kernel = match node.op {
        // Whatever the images' dtype, they are mixed in f32.
        "ResizeBilinear" => with_number!(dtype, T => {
            call(move |[images, size]| centers.bilinear(&as_f32::<T>(images)?, &size))
        }),
        "ResizeNearestNeighbor" => with_number!(dtype, T => {
            call(move |[images, size]| centers.nearest::<T>(&images, &size))
        }),
        "ResizeBilinearGrad" => {
            // The gradient is f32; the result has the dtype of the images.
            let result = input_dtype(node, 1)?;
            with_float!(result, T => call(move |[gradient, images]| {
                centers.bilinear_grad::<T>(&gradient, &images).and_then(|back| narrow(back, result))
            }))
        }
        _ => {
            let computed_in = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
            with_number!(computed_in, T => call(move |[gradient, size]| {
                narrow(centers.nearest_grad::<T>(&widen(gradient), &size)?, dtype)
            }))
        }
    };
    kernel.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

/// How a pixel of the output is located in the input.
#[derive(Clone, Copy, PartialEq)]
enum Centers {
    /// The corner pixels coincide.
    Aligned,
    /// A pixel is a square around its centre.
    Half,
    /// TensorFlow's original way: positions are scaled from the upper left corner.
    Legacy,
}

/// The two input pixels next to an output pixel, and the weight of the second.
struct Between {
    lower: usize,
    upper: usize,
    share: f32,
}

impl Centers {
    fn of(node: &KernelNode) -> Result<Centers> {
        match (node.attrs.bool("align_corners")?, node.attrs.bool("half_pixel_centers")?) {
            (true, true) => Err(Failure::invalid("If half_pixel_centers is True, align_corners must be False.")),
            (true, false) => Ok(Centers::Aligned),
            (false, true) => Ok(Centers::Half),
            (false, false) => Ok(Centers::Legacy),
        }
    }

    fn scale(self, input: usize, output: usize) -> f32 {
        if self == Centers::Aligned && output > 1 {
            (input - 1) as f32 / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    fn position(self, output: usize, scale: f32) -> f32 {
        match self {
            Centers::Half => (output as f32 + 0.5) * scale - 0.5,
            _ => output as f32 * scale,
        }
    }

    fn between(self, input: usize, output: usize) -> Vec<Between> {
        let scale = self.scale(input, output);
        let one = |i| {
            let position = self.position(i, scale);
            let floor = position.floor();
            Between {
                lower: floor.max(0.0) as usize,
                upper: (position.ceil().max(0.0) as usize).min(input - 1),
                share: position - floor,
            }
        };
        (0..output).map(one).map(|b| Between { lower: b.lower.min(input - 1), ..b }).collect()
    }

    fn nearest_of(self, input: usize, output: usize) -> Vec<usize> {
        let scale = self.scale(input, output);
        let one = |i: usize| {
            let position = match self {
                Centers::Half => ((i as f32 + 0.5) * scale).floor(),
                Centers::Aligned => (i as f32 * scale).round(),
                Centers::Legacy => (i as f32 * scale).floor(),
            };
            (position.max(0.0) as usize).min(input - 1)
        };
        (0..output).map(one).collect()
    }

    fn bilinear(self, images: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, rows, columns, channels], [height, width]) = sizes(images, size)?;
        let shape = Shape::from([batch, height, width, channels]);
        let mut output = Vec::with_capacity(shape.checked_elements(DType::F32)?);
        let pixels = images.slice::<f32>()?;
        let (ys, xs) = (self.between(rows, height), self.between(columns, width));
        let mut pace = Pace::new();
        for image in 0..batch {
            for y in &ys {
                pace.go(4 * width * channels);
                for x in &xs {
                    let pixel = |row: usize, column: usize| {
                        &pixels[((image * rows + row) * columns + column) * channels..][..channels]
                    };
                    let (top_left, top_right) = (pixel(y.lower, x.lower), pixel(y.lower, x.upper));
                    let (bottom_left, bottom_right) = (pixel(y.upper, x.lower), pixel(y.upper, x.upper));
                    for c in 0..channels {
                        let [tl, tr, bl, br] = [top_left[c], top_right[c], bottom_left[c], bottom_right[c]];
                        let (top, bottom) = (tl + (tr - tl) * x.share, bl + (br - bl) * x.share);
                        output.push(top + (bottom - top) * y.share);
                    }
                }
            }
        }
        Ok(Tensor::from_vec(shape, output))
    }

    fn bilinear_grad<T: Float>(self, gradient: &Tensor, images: &Tensor) -> Result<Tensor> {
        let (&[batch, rows, columns, channels], &[grad_batch, height, width, grad_channels]) =
            (images.dims(), gradient.dims())
        else {
            return Err(Failure::invalid(format!(
                "input_grad and original_image must be 4-dimensional, got {} and {}",
                gradient.shape(),
                images.shape()
            )));
        };
        if batch != grad_batch || channels != grad_channels || (images.is_empty() != gradient.is_empty()) {
            return Err(Failure::invalid(format!(
                "gradient {} does not match the images {}",
                gradient.shape(),
                images.shape()
            )));
        }
        let mut back = vec![0f64; images.len()];
        let from = gradient.slice::<f32>()?;
        if !from.is_empty() {
            let (ys, xs) = (self.between(rows, height), self.between(columns, width));
            for (i, pixel) in paced(from.chunks_exact(channels), 8 * channels).enumerate() {
                let (y, x) = (&ys[i / width % height], &xs[i % width]);
                let image = i / (width * height);
                for (row, row_share) in [(y.lower, 1.0 - y.share), (y.upper, y.share)] {
                    for (column, share) in [(x.lower, 1.0 - x.share), (x.upper, x.share)] {
                        let to = ((image * rows + row) * columns + column) * channels;
                        for (to, &g) in back[to..to + channels].iter_mut().zip(pixel) {
                            *to += f64::from(g * row_share * share);
                        }
                    }
                }
            }
        }
        Ok(Tensor::from_vec::<T>(images.shape().clone(), back.into_iter().map(T::from_f64).collect()))
    }

    fn nearest<T: Numeric>(self, images: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, rows, columns, channels], [height, width]) = sizes(images, size)?;
        let shape = Shape::from([batch, height, width, channels]);
        let mut output: Vec<T> = Vec::with_capacity(shape.checked_elements(T::DTYPE)?);
        let pixels = images.slice::<T>()?;
        let (ys, xs) = (self.nearest_of(rows, height), self.nearest_of(columns, width));
        let mut pace = Pace::new();
        for image in 0..batch {
            for row in &ys {
                pace.go(width * channels);
                for column in &xs {
                    output.extend(&pixels[((image * rows + row) * columns + column) * channels..][..channels]);
                }
            }
        }
        Ok(Tensor::from_vec(shape, output))
    }

    fn nearest_grad<T: Numeric>(self, gradient: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, height, width, channels], [rows, columns]) = sizes(gradient, size)?;
        let shape = Shape::from([batch, rows, columns, channels]);
        let mut back = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
        let from = gradient.slice::<T>()?;
        if !from.is_empty() {
            let (ys, xs) = (self.nearest_of(rows, height), self.nearest_of(columns, width));
            for (i, pixel) in paced(from.chunks_exact(channels), 4 + channels).enumerate() {
                let (row, column, image) = (ys[i / width % height], xs[i % width], i / (width * height));
                let to = ((image * rows + row) * columns + column) * channels;
                back[to..to + channels].iter_mut().zip(pixel).for_each(|(to, &g)| *to = T::add(*to, g));
            }
        }
        Ok(Tensor::from_vec(shape, back))
    }
}

fn as_f32<T: Numeric>(images: Tensor) -> Result<Tensor> {
    if images.dtype() == DType::F32 {
        return Ok(images);
    }
    let pixels = images.slice::<T>()?.iter().map(|pixel| pixel.to_f64() as f32).collect();
    Ok(Tensor::from_vec::<f32>(images.shape().clone(), pixels))
}

/// The sizes of the images, and the requested height and width.
fn sizes(images: &Tensor, size: &Tensor) -> Result<([usize; 4], [usize; 2])> {
    let Ok(dims) = <[usize; 4]>::try_from(images.dims()) else {
        return Err(Failure::invalid(format!("input must be 4-dimensional, got {}", images.shape())));
    };
    if size.rank() != 1 || size.len() != 2 {
        return Err(Failure::invalid(format!("size must be 1-dimensional with two elements, got {}", size.shape())));
    }
    let &[height, width] = size.to_i64s()?.as_slice() else {
        return Err(Failure::invalid("size must have two elements"));
    };
    let (Ok(height), Ok(width)) = (usize::try_from(height), usize::try_from(width)) else {
        return Err(Failure::invalid(format!("output dimensions must be positive, got [{height},{width}]")));
    };
    if height == 0 || width == 0 {
        return Err(Failure::invalid(format!("output dimensions must be positive, got [{height},{width}]")));
    }
    if dims[1] == 0 || dims[2] == 0 {
        return Err(Failure::invalid(format!("input image must be of non-zero size, got {}", images.shape())));
    }
    Ok((dims, [height, width]))
}
