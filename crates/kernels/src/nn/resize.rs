//! The resizing of images by nearest neighbour or bilinear interpolation, and the gradients of both.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::vector::{Work, widest};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Shape, Tensor, with_float, with_number};
use smallvec::SmallVec;

use super::super::call::{input_dtype, kernel as call};
use super::super::real::{narrow, widen};
use super::super::{KernelNode, Registry};

pub(super) fn register(ops: &mut Registry) {
    // Images of every dtype are interpolated in f32.
    ops.insert("ResizeBilinear", |node| {
        let centers = Centers::of(node)?;
        Ok(with_number!(input_dtype(node, 0)?, T => {
            call(move |[images, size]| centers.bilinear(&as_f32::<T>(images)?, &size))
        }))
    });
    ops.insert("ResizeNearestNeighbor", |node| {
        let centers = Centers::of(node)?;
        Ok(with_number!(input_dtype(node, 0)?, T => {
            call(move |[images, size]| centers.nearest::<T>(&images, &size))
        }))
    });
    ops.insert("ResizeBilinearGrad", |node| {
        // The gradient is f32; the result has the dtype of the images.
        let (centers, result) = (Centers::of(node)?, input_dtype(node, 1)?);
        Ok(with_float!(result, T => call(move |[gradient, images]| {
            centers.bilinear_grad::<T>(&gradient, &images).and_then(|back| narrow(back, result))
        })))
    });
    ops.insert("ResizeNearestNeighborGrad", |node| {
        let (centers, dtype) = (Centers::of(node)?, input_dtype(node, 0)?);
        let computed_in = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        Ok(with_number!(computed_in, T => call(move |[gradient, size]| {
            narrow(centers.nearest_grad::<T>(&widen(gradient), &size)?, dtype)
        })))
    });
}

/// The mapping of a pixel of the output to a position in the input.
#[derive(Clone, Copy, PartialEq)]
pub enum Centers {
    /// The corner pixels coincide.
    Aligned,
    /// A pixel is a square around its centre.
    Half,
    /// TensorFlow's original mapping: positions are scaled from the upper left corner.
    Legacy,
}

/// The two input pixels adjacent to an output pixel, and the weight of the second.
pub struct Between {
    pub lower: usize,
    pub upper: usize,
    pub share: f32,
}

impl Centers {
    /// # Errors
    /// InvalidArgument if both attributes are set.
    pub fn of(node: &KernelNode) -> Result<Centers> {
        match (node.attrs.bool("align_corners")?, node.attrs.bool("half_pixel_centers")?) {
            (true, true) => Err(Failure::invalid("If half_pixel_centers is True, align_corners must be False.")),
            (true, false) => Ok(Centers::Aligned),
            (false, true) => Ok(Centers::Half),
            (false, false) => Ok(Centers::Legacy),
        }
    }

    #[inline]
    fn scale(self, input: usize, output: usize) -> f32 {
        if self == Centers::Aligned && output > 1 {
            (input - 1) as f32 / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    #[inline]
    fn position(self, output: usize, scale: f32) -> f32 {
        match self {
            Centers::Half => (output as f32 + 0.5) * scale - 0.5,
            _ => output as f32 * scale,
        }
    }

    /// The neighbours of each pixel along an axis.
    pub fn between(self, input: usize, output: usize) -> Vec<Between> {
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

    /// Float32 images in another size.
    ///
    /// # Errors
    /// As [`sizes`].
    pub fn bilinear(self, images: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, rows, columns, channels], [height, width]) = sizes(images, size)?;
        let shape = Shape::from([batch, height, width, channels]);
        let mut output = vec![0f32; shape.checked_elements(DType::F32)?];
        let pixels = images.slice::<f32>()?;
        let (ys, xs) = (self.between(rows, height), self.between(columns, width));
        let row = width * channels;
        let many = chunk(4 * row);
        in_chunks(output.chunks_mut((many * row).max(1)).enumerate(), |(i, to)| {
            widest(Mixed { to, first: i * many, pixels, rows, columns, channels, ys: &ys, xs: &xs });
        });
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
        let mut back = vec![T::ZERO; images.shape().checked_elements(T::DTYPE)?];
        let from = gradient.slice::<f32>()?;
        if !from.is_empty() {
            let (ys, xs) = (self.between(rows, height), self.between(columns, width));
            let (row, grad_row) = (columns * channels, width * channels);
            let many = chunk(8 * grad_row * height.div_ceil(rows));
            in_chunks(back.chunks_mut(many * row).enumerate(), |(i, back)| {
                let mut sums = vec![0f64; row];
                for (back, place) in back.chunks_exact_mut(row).zip(i * many..) {
                    let (image, own) = (place / rows, place % rows);
                    sums.fill(0.0);
                    // Both neighbours increase monotonically with the output pixel.
                    let over = ys.partition_point(|y| y.upper < own)..ys.partition_point(|y| y.lower <= own);
                    for y in over {
                        let from = &from[(image * height + y) * grad_row..][..grad_row];
                        let shares = [ys[y].lower == own, ys[y].upper == own];
                        let shares = [1.0 - ys[y].share, ys[y].share].into_iter().zip(shares);
                        let shares: SmallVec<[f32; 2]> = shares.filter(|share| share.1).map(|share| share.0).collect();
                        widest(Returned { sums: &mut sums, from, channels, xs: &xs, shares: &shares });
                    }
                    back.iter_mut().zip(&sums).for_each(|(back, &sum)| *back = T::from_f64(sum));
                }
            });
        }
        Ok(Tensor::from_vec::<T>(images.shape().clone(), back))
    }

    fn nearest<T: Numeric>(self, images: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, rows, columns, channels], [height, width]) = sizes(images, size)?;
        let shape = Shape::from([batch, height, width, channels]);
        let mut output = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
        let pixels = images.slice::<T>()?;
        let (ys, xs) = (self.nearest_of(rows, height), self.nearest_of(columns, width));
        let row = width * channels;
        let many = chunk(2 * row);
        in_chunks(output.chunks_mut((many * row).max(1)).enumerate(), |(i, to)| {
            let source = |place: usize| place / height * rows + ys[place % height];
            for place in 0..to.len() / row {
                let from = source(i * many + place);
                if place > 0 && source(i * many + place - 1) == from {
                    to.copy_within((place - 1) * row..place * row, place * row);
                    continue;
                }
                let from = &pixels[from * columns * channels..][..columns * channels];
                for (to, column) in to[place * row..][..row].chunks_exact_mut(channels).zip(&xs) {
                    to.copy_from_slice(&from[column * channels..][..channels]);
                }
            }
        });
        Ok(Tensor::from_vec(shape, output))
    }

    fn nearest_grad<T: Numeric>(self, gradient: &Tensor, size: &Tensor) -> Result<Tensor> {
        let ([batch, height, width, channels], [rows, columns]) = sizes(gradient, size)?;
        let shape = Shape::from([batch, rows, columns, channels]);
        let mut back = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
        let from = gradient.slice::<T>()?;
        if !from.is_empty() {
            let (ys, xs) = (self.nearest_of(rows, height), self.nearest_of(columns, width));
            let (row, grad_row) = (columns * channels, width * channels);
            let many = chunk(4 * grad_row * height.div_ceil(rows));
            in_chunks(back.chunks_mut(many * row).enumerate(), |(i, back)| {
                for (back, place) in back.chunks_exact_mut(row).zip(i * many..) {
                    let (image, own) = (place / rows, place % rows);
                    for y in ys.partition_point(|&y| y < own)..ys.partition_point(|&y| y <= own) {
                        let from = &from[(image * height + y) * grad_row..][..grad_row];
                        widest(Gathered { back: &mut *back, from, channels, xs: &xs });
                    }
                }
            });
        }
        Ok(Tensor::from_vec(shape, back))
    }
}

/// A row of a gradient; each pixel is added to the nearest pixel in a row of the input.
struct Gathered<'a, T> {
    back: &'a mut [T],
    from: &'a [T],
    channels: usize,
    xs: &'a [usize],
}

impl<T: Numeric> Work for Gathered<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (pixel, column) in self.from.chunks_exact(self.channels).zip(self.xs) {
            let to = &mut self.back[column * self.channels..][..self.channels];
            to.iter_mut().zip(pixel).for_each(|(to, &g)| *to = T::add(*to, g));
        }
    }
}

/// Rows of interpolated images, the first of which has index `first` among the rows of all images.
struct Mixed<'a> {
    to: &'a mut [f32],
    first: usize,
    pixels: &'a [f32],
    rows: usize,
    columns: usize,
    channels: usize,
    ys: &'a [Between],
    xs: &'a [Between],
}

impl Work for Mixed<'_> {
    #[inline(always)]
    fn run(self) {
        let Mixed { to, first, pixels, rows, columns, channels, ys, xs } = self;
        let (row, from_row) = (xs.len() * channels, columns * channels);
        // Rows of the input at the width of the output: neighbours of one row are often those of the next.
        let [mut top, mut bottom] = [vec![0f32; row], vec![0f32; row]];
        let [mut top_of, mut bottom_of] = [usize::MAX; 2];
        for (to, place) in to.chunks_exact_mut(row).zip(first..) {
            let (image, y) = (place / ys.len(), &ys[place % ys.len()]);
            let (lower, upper) = (image * rows + y.lower, image * rows + y.upper);
            if top_of != lower {
                if bottom_of == lower {
                    std::mem::swap(&mut top, &mut bottom);
                    std::mem::swap(&mut top_of, &mut bottom_of);
                } else {
                    mix_row(&mut top, &pixels[lower * from_row..][..from_row], xs, channels);
                    top_of = lower;
                }
            }
            if bottom_of != upper && upper != lower {
                mix_row(&mut bottom, &pixels[upper * from_row..][..from_row], xs, channels);
                bottom_of = upper;
            }
            let below = if upper == lower { &top } else { &bottom };
            for ((to, &top), &below) in to.iter_mut().zip(&top).zip(below) {
                *to = top + (below - top) * y.share;
            }
        }
    }
}

/// Interpolates the pixels of one row.
#[inline(always)]
fn mix_row(to: &mut [f32], from: &[f32], xs: &[Between], channels: usize) {
    for (to, x) in to.chunks_exact_mut(channels).zip(xs) {
        let (left, right) = (&from[x.lower * channels..][..channels], &from[x.upper * channels..][..channels]);
        for ((to, &left), &right) in to.iter_mut().zip(left).zip(right) {
            *to = left + (right - left) * x.share;
        }
    }
}

/// A row of a gradient; each pixel is added to both of its neighbours in a row of the input, once for each row share.
struct Returned<'a> {
    sums: &'a mut [f64],
    from: &'a [f32],
    channels: usize,
    xs: &'a [Between],
    shares: &'a [f32],
}

impl Work for Returned<'_> {
    #[inline(always)]
    fn run(self) {
        let Returned { sums, from, channels, xs, shares } = self;
        for (pixel, x) in from.chunks_exact(channels).zip(xs) {
            for &row_share in shares {
                for (column, share) in [(x.lower, 1.0 - x.share), (x.upper, x.share)] {
                    for (sum, &g) in sums[column * channels..][..channels].iter_mut().zip(pixel) {
                        *sum += f64::from(g * row_share * share);
                    }
                }
            }
        }
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
///
/// # Errors
/// InvalidArgument if the images do not have four dimensions, or a size is not positive.
pub fn sizes(images: &Tensor, size: &Tensor) -> Result<([usize; 4], [usize; 2])> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Centers; 3] = [Centers::Aligned, Centers::Half, Centers::Legacy];

    /// Sizes of images, and the sizes to which they are resized.
    const SIZES: [([usize; 4], [usize; 2]); 7] = [
        ([1, 1, 1, 1], [3, 2]),
        ([2, 4, 5, 3], [8, 10]),
        ([2, 9, 7, 1], [4, 3]),
        ([3, 60, 50, 17], [120, 100]),
        ([4, 101, 90, 8], [40, 31]),
        ([0, 3, 3, 2], [6, 6]),
        ([2, 3, 3, 0], [6, 6]),
    ];

    fn numbers(dims: [usize; 4]) -> Tensor {
        let count = dims.iter().product::<usize>();
        Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 1009) as f32 / 250.0 - 2.0).collect())
    }

    fn size_of(size: [usize; 2]) -> Tensor {
        Tensor::vector(size.map(|size| size as i32).to_vec())
    }

    /// Calls `act` with each position in the resized images, channel by channel: image, row, column, channel.
    fn each_place([batch, _, _, channels]: [usize; 4], [height, width]: [usize; 2], mut act: impl FnMut([usize; 4])) {
        for place in 0..batch * height * width * channels {
            let (c, pixel) = (place % channels, place / channels);
            act([pixel / width / height, pixel / width % height, pixel % width, c]);
        }
    }

    #[test]
    fn pixels_are_mixed_of_four_and_go_back_to_them() {
        for (dims, size) in SIZES {
            for centers in ALL {
                let (images, gradient) = (numbers(dims), numbers([dims[0], size[0], size[1], dims[3]]));
                let (ys, xs) = (centers.between(dims[1], size[0]), centers.between(dims[2], size[1]));
                let (pixels, from) = (images.slice::<f32>().unwrap(), gradient.slice::<f32>().unwrap());
                let (mut mixed, mut back) = (Vec::new(), vec![0f64; pixels.len()]);
                each_place(dims, size, |[n, i, j, c]| {
                    let at = |row: usize, column: usize| ((n * dims[1] + row) * dims[2] + column) * dims[3] + c;
                    let (y, x, g) = (&ys[i], &xs[j], from[mixed.len()]);
                    let [top, bottom] = [y.lower, y.upper].map(|row| {
                        let (left, right) = (pixels[at(row, x.lower)], pixels[at(row, x.upper)]);
                        left + (right - left) * x.share
                    });
                    mixed.push(top + (bottom - top) * y.share);
                    for (row, row_share) in [(y.lower, 1.0 - y.share), (y.upper, y.share)] {
                        for (column, share) in [(x.lower, 1.0 - x.share), (x.upper, x.share)] {
                            back[at(row, column)] += f64::from(g * row_share * share);
                        }
                    }
                });
                let got = centers.bilinear(&images, &size_of(size)).unwrap();
                assert!(got == Tensor::from_vec(gradient.shape().clone(), mixed), "{dims:?} to {size:?}");
                let got = centers.bilinear_grad::<f32>(&gradient, &images).unwrap();
                let back: Vec<f32> = back.into_iter().map(|x| x as f32).collect();
                assert!(got == Tensor::from_vec(dims, back), "{dims:?} from {size:?}");
            }
        }
    }

    #[test]
    fn nearest_pixels_are_copied_and_gradients_added_up() {
        for (dims, size) in SIZES {
            for centers in ALL {
                let (images, gradient) = (numbers(dims), numbers([dims[0], size[0], size[1], dims[3]]));
                let (ys, xs) = (centers.nearest_of(dims[1], size[0]), centers.nearest_of(dims[2], size[1]));
                let (pixels, from) = (images.slice::<f32>().unwrap(), gradient.slice::<f32>().unwrap());
                let (mut near, mut back) = (Vec::new(), vec![0f32; pixels.len()]);
                each_place(dims, size, |[n, i, j, c]| {
                    let at = ((n * dims[1] + ys[i]) * dims[2] + xs[j]) * dims[3] + c;
                    back[at] += from[near.len()];
                    near.push(pixels[at]);
                });
                let got = centers.nearest::<f32>(&images, &size_of(size)).unwrap();
                assert!(got == Tensor::from_vec(gradient.shape().clone(), near), "{dims:?} to {size:?}");
                let got = centers.nearest_grad::<f32>(&gradient, &size_of([dims[1], dims[2]])).unwrap();
                assert!(got == Tensor::from_vec(dims, back), "{dims:?} from {size:?}");
            }
        }
    }
}
