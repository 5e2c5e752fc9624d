//! Pooling: the largest element or the mean under each window, and the gradients of both.

use meshtf_graph::Attr;
use meshtf_loops::turn::{Pace, paced};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Float, Numeric, Shape, Tensor, with_float, with_number};

use super::super::call::{input_dtype, kernel as call, no_kernel, vector};
use super::super::{HostKernel, KernelNode, Registry};
use super::conv::{from_channels_last, to_channels_last};
use super::window::{Axis, Slide, channels_first, per_dimension, spread};

/// The result of a pool, or a gradient of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Max,
    MaxGrad,
    MaxGradGrad,
    Mean,
    MeanGrad,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("MaxPool", |node| kernel(node, 2, Kind::Max));
    ops.insert("MaxPoolGrad", |node| kernel(node, 2, Kind::MaxGrad));
    ops.insert("MaxPoolGradGrad", |node| kernel(node, 2, Kind::MaxGradGrad));
    ops.insert("AvgPool", |node| kernel(node, 2, Kind::Mean));
    ops.insert("AvgPoolGrad", |node| kernel(node, 2, Kind::MeanGrad));
    ops.insert("MaxPool3D", |node| kernel(node, 3, Kind::Max));
    ops.insert("MaxPool3DGrad", |node| kernel(node, 3, Kind::MaxGrad));
    ops.insert("MaxPool3DGradGrad", |node| kernel(node, 3, Kind::MaxGradGrad));
    ops.insert("AvgPool3D", |node| kernel(node, 3, Kind::Mean));
    ops.insert("AvgPool3DGrad", |node| kernel(node, 3, Kind::MeanGrad));
    ops.insert("MaxPoolV2", |node| sized_kernel(node, Kind::Max, 1));
    ops.insert("MaxPoolGradV2", |node| sized_kernel(node, Kind::MaxGrad, 3));
    ops.insert("MaxPoolGradGradV2", |node| sized_kernel(node, Kind::MaxGradGrad, 3));
}

/// The kernel of MaxPool, for the attributes of a node.
///
/// # Errors
/// As [`PoolAttrs::of`].
pub fn max_pool_kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    kernel(node, 2, Kind::Max)
}

fn kernel(node: &KernelNode, spatial: usize, kind: Kind) -> Result<Option<HostKernel>> {
    let (pool, over_channels) = PoolAttrs::of(node, spatial)?;
    if let Some((window, stride)) = over_channels {
        if (kind, spatial) != (Kind::Max, 2) || pool.window != [1; 3] || window != stride {
            return Err(Failure::new(
                Code::Unimplemented,
                "Depthwise max pooling requires the depth window to equal the depth stride, and windows of 1 in space; \
                 other pools are not supported over the depth dimension.",
            ));
        }
        let dtype = input_dtype(node, 0)?;
        let kernel = with_number!(dtype, T => call(move |[input]| max_over_channels::<T>(&pool, input, window)));
        return Ok(kernel);
    }
    let dtype = input_dtype(node, usize::from(kind == Kind::MeanGrad))?;
    let kernel = match kind {
        Kind::Max => with_number!(dtype, T => call(move |[input]| max_pool::<T>(&pool, input))),
        Kind::MaxGrad => with_number!(dtype, T => {
            call(move |[input, output, gradient]| max_pool_grad::<T>(&pool, input, &output, gradient))
        }),
        Kind::MaxGradGrad => with_number!(dtype, T => {
            call(move |[input, output, gradient]| max_pool_grad_grad::<T>(&pool, input, &output, gradient))
        }),
        Kind::Mean => {
            with_float!(dtype, T => call(move |[input]| avg_pool::<T>(&pool, input)))
        }
        Kind::MeanGrad => with_float!(dtype, T => {
            call(move |[sizes, gradient]| avg_pool_grad::<T>(&pool, &sizes, gradient))
        }),
    };
    Ok(kernel)
}

/// MaxPoolV2 and its gradients, whose windows and strides are inputs: the kernel of the older op is compiled for each
/// step's values.
fn sized_kernel(node: &KernelNode, kind: Kind, count: usize) -> Result<Option<HostKernel>> {
    let (name, op, mut attrs) = (node.name.to_owned(), node.op.to_owned(), node.attrs.clone());
    let (inputs, outputs) = (node.inputs[..count].to_vec(), node.outputs.to_vec());
    let mut made: Option<([Vec<i64>; 2], HostKernel)> = None;
    Ok(Some(Box::new(move |mut given| {
        let sizes = [(count, "ksize"), (count + 1, "strides")].map(|(at, what)| match given.get(at) {
            Some(sizes) => vector(sizes, what, false),
            None => Err(Failure::invalid(format!("{what} is missing"))),
        });
        let [window, strides] = sizes;
        let sizes = [window?, strides?];
        if made.as_ref().is_none_or(|(own, _)| *own != sizes) {
            let [window, strides] = sizes.clone();
            attrs.set("ksize", Attr::Ints(window));
            attrs.set("strides", Attr::Ints(strides));
            let node =
                KernelNode { name: &name, op: &op, attrs: &attrs, inputs: &inputs, outputs: &outputs, constants: 0 };
            made = match kernel(&node, 2, kind)? {
                Some(kernel) => Some((sizes, kernel)),
                None => return no_kernel(&node),
            };
        }
        given.truncate(count);
        match &mut made {
            Some((_, kernel)) => kernel(given),
            None => Err(Failure::new(Code::Internal, format!("{op} was not compiled"))),
        }
    })))
}

/// A pool's windows and strides, from its attributes.
pub struct PoolAttrs {
    slide: Slide,
    window: [usize; 3],
}

/// A pool's windows over an input of known size.
pub struct Windows {
    pub batch: usize,
    pub channels: usize,
    pub axes: [Axis; 3],
}

impl PoolAttrs {
    /// The pool's attributes, and the window and stride over the channels unless both are 1.
    ///
    /// # Errors
    /// InvalidArgument if the attributes have the wrong length or sign; Unimplemented for windows over the batch.
    pub fn of(node: &KernelNode, spatial: usize) -> Result<(PoolAttrs, Option<(usize, usize)>)> {
        let channels_first = channels_first(node)?;
        let sizes = |name: &str| per_dimension(name, node.attrs.ints(name)?, spatial, channels_first);
        let (window, [batch, channels]) = sizes("ksize")?;
        let (strides, [batch_stride, channel_stride]) = sizes("strides")?;
        if batch != 1 || batch_stride != 1 {
            return Err(Failure::new(Code::Unimplemented, "Pooling is not yet supported on the batch dimension."));
        }
        let mut attrs = node.attrs.clone();
        // The stride over channels is checked in this function, not in the slide.
        let ones = |space: &[usize]| {
            let mut all = vec![1; spatial + 2];
            let from = if channels_first { 2 } else { 1 };
            all[from..from + spatial].copy_from_slice(&space.iter().map(|&s| s as i64).collect::<Vec<_>>());
            Attr::Ints(all)
        };
        attrs.set("strides", ones(&strides[3 - spatial..]));
        let slide = Slide::of(&KernelNode { attrs: &attrs, ..*node }, spatial)?;
        let over_channels = (channels != 1 || channel_stride != 1).then_some((channels, channel_stride));
        Ok((PoolAttrs { slide, window }, over_channels))
    }

    /// Whether the channels are the last dimension.
    #[inline]
    pub fn has_channels_last(&self) -> bool {
        !self.slide.channels_first
    }

    /// The windows over an input of that shape, which is channels-last.
    ///
    /// # Errors
    /// InvalidArgument if the shape has another rank, or if no window fits.
    pub fn over(&self, input: &Shape) -> Result<Windows> {
        let rank = self.slide.spatial + 2;
        if input.rank() != rank {
            return Err(Failure::invalid(format!("tensor_in must be {rank}-dimensional, got shape {input}")));
        }
        let axes = self.slide.over(spread(&input.dims()[1..rank - 1]), self.window)?;
        Ok(Windows { batch: input.dims()[0], channels: input.dims()[rank - 1], axes })
    }

    /// # Errors
    /// InvalidArgument if `got` is not the shape with one element for each window; `what` names the tensor in the
    /// message.
    pub fn check(&self, windows: &Windows, what: &str, got: &Shape) -> Result<()> {
        let want = windows.output_shape(self.slide.spatial);
        if want == *got {
            return Ok(());
        }
        Err(Failure::invalid(format!("Expected {what} shape to be {want}, but got {got}")))
    }
}

impl Windows {
    #[inline]
    pub fn output_shape(&self, spatial: usize) -> Shape {
        let space = self.axes[3 - spatial..].iter().map(|axis| axis.output);
        [self.batch].into_iter().chain(space).chain([self.channels]).collect()
    }

    /// The largest number of pixels under a window.
    #[inline]
    pub fn largest(&self) -> usize {
        self.axes.iter().map(|axis| axis.window.min(axis.input)).product()
    }

    /// Calls `f(window, pixels)` for every window, with the pixels of the input under it. The indices of windows and
    /// pixels count through the whole batch.
    pub fn for_each(&self, f: &mut dyn FnMut(usize, &[usize])) {
        let [d, h, w] = &self.axes;
        let mut pixels = Vec::with_capacity(self.largest());
        let (mut window, mut pace) = (0, Pace::new());
        for image in 0..self.batch {
            for z in 0..d.output {
                for y in 0..h.output {
                    for x in 0..w.output {
                        pixels.clear();
                        for plane in d.under(z) {
                            for row in h.under(y) {
                                let row = ((image * d.input + plane) * h.input + row) * w.input;
                                pixels.extend(w.under(x).map(|column| row + column));
                            }
                        }
                        pace.go(pixels.len() * self.channels);
                        f(window, &pixels);
                        window += 1;
                    }
                }
            }
        }
    }
}

fn max_pool<T: Numeric>(pool: &PoolAttrs, input: Tensor) -> Result<Tensor> {
    let input = to_channels_last::<T>(&pool.slide, input)?;
    let windows = pool.over(input.shape())?;
    let shape = windows.output_shape(pool.slide.spatial);
    let mut output = vec![T::LOWEST; shape.checked_elements(T::DTYPE)?];
    let (from, channels) = (input.slice::<T>()?, windows.channels);
    windows.for_each(&mut |window, pixels| {
        let output = &mut output[window * channels..][..channels];
        for pixel in pixels {
            for (max, &x) in output.iter_mut().zip(&from[pixel * channels..][..channels]) {
                *max = if x > *max { x } else { *max };
            }
        }
    });
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(shape, output))
}

/// The gradient goes to the first of the largest elements under each window.
fn max_pool_grad<T: Numeric>(pool: &PoolAttrs, input: Tensor, output: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let input = to_channels_last::<T>(&pool.slide, input)?;
    let output = to_channels_last::<T>(&pool.slide, output.clone())?;
    let gradient = to_channels_last::<T>(&pool.slide, gradient)?;
    let windows = pool.over(input.shape())?;
    pool.check(&windows, "orig_output", output.shape())?;
    pool.check(&windows, "grad", gradient.shape())?;
    let mut back = vec![T::ZERO; input.len()];
    let (from, gradient, channels) = (input.slice::<T>()?, gradient.slice::<T>()?, windows.channels);
    windows.for_each(&mut |window, pixels| {
        for channel in 0..channels {
            let Some(largest) = largest(from, pixels, channels, channel) else { return };
            back[largest] = T::add(back[largest], gradient[window * channels + channel]);
        }
    });
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(input.shape().clone(), back))
}

/// The index of the first of the largest elements under a window.
fn largest<T: Numeric>(from: &[T], pixels: &[usize], channels: usize, channel: usize) -> Option<usize> {
    let (&first, others) = pixels.split_first()?;
    let mut largest = first * channels + channel;
    for pixel in others {
        let at = pixel * channels + channel;
        if from[at] > from[largest] {
            largest = at;
        }
    }
    Some(largest)
}

/// The gradient of [`max_pool_grad`]: the gradient of the first of the largest elements goes to its window.
fn max_pool_grad_grad<T: Numeric>(
    pool: &PoolAttrs,
    input: Tensor,
    output: &Tensor,
    gradient: Tensor,
) -> Result<Tensor> {
    let input = to_channels_last::<T>(&pool.slide, input)?;
    let output = to_channels_last::<T>(&pool.slide, output.clone())?;
    let gradient = to_channels_last::<T>(&pool.slide, gradient)?;
    let windows = pool.over(input.shape())?;
    pool.check(&windows, "orig_output", output.shape())?;
    if gradient.shape() != input.shape() {
        let (wanted, got) = (input.shape(), gradient.shape());
        return Err(Failure::invalid(format!("Expected grad shape to be {wanted}, but got {got}")));
    }
    let mut there = vec![T::ZERO; output.len()];
    let (from, gradient, channels) = (input.slice::<T>()?, gradient.slice::<T>()?, windows.channels);
    windows.for_each(&mut |window, pixels| {
        for channel in 0..channels {
            let Some(largest) = largest(from, pixels, channels, channel) else { return };
            there[window * channels + channel] = gradient[largest];
        }
    });
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(output.shape().clone(), there))
}

fn max_over_channels<T: Numeric>(pool: &PoolAttrs, input: Tensor, window: usize) -> Result<Tensor> {
    let input = to_channels_last::<T>(&pool.slide, input)?;
    let channels = pool.over(input.shape())?.channels;
    if !channels.is_multiple_of(window) {
        let message = "Depthwise max pooling requires the depth window to evenly divide the input depth";
        return Err(Failure::new(Code::Unimplemented, format!("{message}: {window} and {channels}")));
    }
    let mut dims = input.dims().to_vec();
    dims[pool.slide.spatial + 1] = channels / window;
    let max = |group: &[T]| group.iter().fold(T::LOWEST, |max, &x| if x > max { x } else { max });
    let output = paced(input.slice::<T>()?.chunks_exact(window), window).map(max).collect();
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(dims, output))
}

fn avg_pool<T: Float>(pool: &PoolAttrs, input: Tensor) -> Result<Tensor> {
    let input = to_channels_last::<T>(&pool.slide, input)?;
    let windows = pool.over(input.shape())?;
    let shape = windows.output_shape(pool.slide.spatial);
    let mut output = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (from, channels) = (input.slice::<T>()?, windows.channels);
    windows.for_each(&mut |window, pixels| {
        let output = &mut output[window * channels..][..channels];
        for pixel in pixels {
            for (sum, &x) in output.iter_mut().zip(&from[pixel * channels..][..channels]) {
                *sum = *sum + x;
            }
        }
        let count = T::from_i64(pixels.len() as i64);
        output.iter_mut().for_each(|sum| *sum = *sum / count);
    });
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(shape, output))
}

fn avg_pool_grad<T: Float>(pool: &PoolAttrs, sizes: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let rank = pool.slide.spatial + 2;
    if sizes.rank() != 1 || sizes.len() != rank {
        return Err(Failure::invalid(format!(
            "orig_input_shape must be 1-dimensional and {rank} elements, got shape {}",
            sizes.shape()
        )));
    }
    let mut dims = Shape::from_i64s(&sizes.to_i64s()?)?.dims().to_vec();
    if pool.slide.channels_first {
        dims[1..].rotate_left(1);
    }
    let shape = Shape::from(dims);
    let gradient = to_channels_last::<T>(&pool.slide, gradient)?;
    let windows = pool.over(&shape)?;
    pool.check(&windows, "grad", gradient.shape())?;
    let mut back = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (from, channels) = (gradient.slice::<T>()?, windows.channels);
    windows.for_each(&mut |window, pixels| {
        let from = &from[window * channels..][..channels];
        let share = T::ONE / T::from_i64(pixels.len() as i64);
        for pixel in pixels {
            for (x, &g) in back[pixel * channels..][..channels].iter_mut().zip(from) {
                *x = *x + g * share;
            }
        }
    });
    from_channels_last::<T>(&pool.slide, Tensor::from_vec(shape, back))
}
