//! Convolutions in two and three dimensions, and their gradients with respect to the input and the filter.
//!
//! The patches under a run of windows are gathered into the rows of a matrix, which is multiplied by the filter; the
//! gradients apply the same steps in reverse. Filters have the layout `[space…, in, out]`; if they have fewer input
//! channels than the input, the channels are convolved in groups.

use meshtf_loops::turn::look;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_type};

use super::super::call::{input_dtype, kernel as call};
use super::super::real::widened;
use super::super::{HostKernel, KernelNode, Registry};
use super::gemm::{Matrix, Term, add_product};
use super::layout::{channels_first, channels_last};
use super::window::{Axis, Slide, spread};

/// Elements of the patch matrix gathered at once: 1 MiB of f32.
const PATCH_ELEMENTS: usize = 1 << 18;

/// The result of an op: that of a convolution, or a gradient of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Forward,
    ByInput,
    ByFilter,
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Conv2D", |node| kernel(node, 2, Part::Forward));
    ops.insert("Conv2DBackpropInput", |node| kernel(node, 2, Part::ByInput));
    ops.insert("Conv2DBackpropFilter", |node| kernel(node, 2, Part::ByFilter));
    ops.insert("Conv3D", |node| kernel(node, 3, Part::Forward));
    ops.insert("Conv3DBackpropInputV2", |node| kernel(node, 3, Part::ByInput));
    ops.insert("Conv3DBackpropFilterV2", |node| kernel(node, 3, Part::ByFilter));
}

fn kernel(node: &KernelNode, spatial: usize, part: Part) -> Result<Option<HostKernel>> {
    let slide = Slide::of(node, spatial)?;
    // The first input of a gradient with respect to the input contains sizes.
    let dtype = input_dtype(node, usize::from(part == Part::ByInput))?;
    let computed_in = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let kernel = with_type!(computed_in, T => match part {
        Part::Forward => call(move |[input, filter]| forward::<T>(&slide, input, &filter)),
        Part::ByInput => {
            call(move |[sizes, filter, gradient]| backprop_input::<T>(&slide, &sizes, &filter, gradient))
        }
        Part::ByFilter => call(move |[input, sizes, gradient]| backprop_filter::<T>(&slide, input, &sizes, gradient)),
    }; F32 f32, F64 f64, I32 i32);
    Ok(kernel.map(|kernel| widened(node, kernel)))
}

/// A convolution whose shapes have been checked.
struct Convolution {
    batch: usize,
    axes: [Axis; 3],
    in_channels: usize,
    out_channels: usize,
    groups: usize,
}

impl Convolution {
    /// # Errors
    /// InvalidArgument if a rank is wrong or the channels do not match.
    fn new(slide: &Slide, input: &Shape, filter: &Shape) -> Result<Convolution> {
        let rank = slide.spatial + 2;
        for (what, shape) in [("input", input), ("filter", filter)] {
            if shape.rank() != rank {
                return Err(Failure::invalid(format!("{what} must be {rank}-dimensional: {shape}")));
            }
        }
        let (in_channels, filter_in) = (input.dims()[rank - 1], filter.dims()[rank - 2]);
        let out_channels = filter.dims()[rank - 1];
        if filter_in == 0 || in_channels % filter_in != 0 {
            return Err(Failure::invalid(format!(
                "input depth must be evenly divisible by filter depth: {in_channels} vs {filter_in}"
            )));
        }
        let groups = (in_channels / filter_in).max(1);
        if !out_channels.is_multiple_of(groups) {
            return Err(Failure::invalid(format!(
                "output depth must be evenly divisible by number of groups: {out_channels} vs {groups}"
            )));
        }
        let space = |shape: &Shape, from: usize| spread(&shape.dims()[from..from + slide.spatial]);
        let axes = slide.over(space(input, 1), space(filter, 0))?;
        Ok(Convolution { batch: input.dims()[0], axes, in_channels, out_channels, groups })
    }

    #[inline]
    fn output_shape(&self, spatial: usize) -> Shape {
        let space = self.axes[3 - spatial..].iter().map(|axis| axis.output);
        [self.batch].into_iter().chain(space).chain([self.out_channels]).collect()
    }

    /// The number of windows in the whole batch.
    #[inline]
    fn windows(&self) -> usize {
        self.batch * self.axes.iter().map(|axis| axis.output).product::<usize>()
    }

    /// The number of elements of one group's channels under a window.
    #[inline]
    fn patch(&self) -> usize {
        self.axes.iter().map(|axis| axis.window).product::<usize>() * self.group_in()
    }

    #[inline]
    fn group_in(&self) -> usize {
        self.in_channels / self.groups
    }

    #[inline]
    fn group_out(&self) -> usize {
        self.out_channels / self.groups
    }

    /// Whether the patches equal the input.
    #[inline]
    fn is_pointwise(&self) -> bool {
        self.groups == 1
            && self.axes.iter().all(|axis| axis.window == 1 && axis.stride == 1 && axis.before == 0)
            && self.axes.iter().all(|axis| axis.input == axis.output)
    }

    /// Calls `f(first window, windows, first input channel, first output channel)` for runs of windows whose patches
    /// fit into `PATCH_ELEMENTS`, group by group.
    #[inline]
    fn for_each_run(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        let (windows, run) = (self.windows(), (PATCH_ELEMENTS / self.patch().max(1)).max(1));
        for group in 0..self.groups {
            for first in (0..windows).step_by(run) {
                look();
                f(first, run.min(windows - first), group * self.group_in(), group * self.group_out());
            }
        }
    }

    /// Calls `f(offset in the patch, offset in the input)` for each run of one group's channels under `window`; the
    /// offset in the input is `None` in the padding.
    fn for_each_place(&self, window: usize, channel: usize, mut f: impl FnMut(usize, Option<usize>)) {
        let [d, h, w] = &self.axes;
        let (rest, x) = (window / w.output, window % w.output);
        let (rest, y) = (rest / h.output, rest % h.output);
        let (image, z) = (rest / d.output, rest % d.output);
        let mut place = 0;
        for kz in 0..d.window {
            let plane = d.position(z, kz).map(|z| image * d.input + z);
            for ky in 0..h.window {
                let row = plane.and_then(|plane| h.position(y, ky).map(|y| plane * h.input + y));
                for kx in 0..w.window {
                    let pixel = row.and_then(|row| w.position(x, kx).map(|x| row * w.input + x));
                    f(place, pixel.map(|pixel| pixel * self.in_channels + channel));
                    place += self.group_in();
                }
            }
        }
    }

    fn gather<T: Numeric>(&self, input: &[T], first: usize, channel: usize, patches: &mut [T]) {
        let size = self.group_in();
        for (i, patch) in patches.chunks_exact_mut(self.patch()).enumerate() {
            self.for_each_place(first + i, channel, |place, from| match from {
                Some(from) => patch[place..place + size].copy_from_slice(&input[from..from + size]),
                None => patch[place..place + size].fill(T::ZERO),
            });
        }
    }

    fn spread<T: Numeric>(&self, patches: &[T], first: usize, channel: usize, input: &mut [T]) {
        let size = self.group_in();
        for (i, patch) in patches.chunks_exact(self.patch()).enumerate() {
            self.for_each_place(first + i, channel, |place, to| {
                if let Some(to) = to {
                    for (to, &from) in input[to..to + size].iter_mut().zip(&patch[place..place + size]) {
                        *to = T::add(*to, from);
                    }
                }
            });
        }
    }
}

fn forward<T: Term>(slide: &Slide, input: Tensor, filter: &Tensor) -> Result<Tensor> {
    let input = to_channels_last::<T>(slide, input)?;
    let conv = Convolution::new(slide, input.shape(), filter.shape())?;
    let shape = conv.output_shape(slide.spatial);
    let mut output = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (input, filter) = (input.slice::<T>()?, filter.slice::<T>()?);
    let (patch, out) = (conv.patch(), conv.out_channels);
    let mut patches = Vec::new();
    if !output.is_empty() {
        conv.for_each_run(|first, windows, in_channel, out_channel| {
            let patches = if conv.is_pointwise() {
                &input[first * patch..(first + windows) * patch]
            } else {
                patches.resize(windows * patch, T::ZERO);
                conv.gather(input, first, in_channel, &mut patches);
                &patches
            };
            add_product(
                [windows, conv.group_out(), patch],
                Matrix::rows(patches, patch),
                Matrix::rows(&filter[out_channel..], out),
                &mut output[first * out + out_channel..],
                out,
            );
        });
    }
    from_channels_last::<T>(slide, Tensor::from_vec(shape, output))
}

fn backprop_input<T: Term>(slide: &Slide, sizes: &Tensor, filter: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let gradient = to_channels_last::<T>(slide, gradient)?;
    let stated = stated_shape(slide, sizes, "input_sizes")?;
    let shape = match *stated.dims() {
        // TensorFlow accepts the spatial sizes alone; the other sizes follow from the other inputs.
        [height, width] if slide.spatial == 2 && filter.rank() == 4 && gradient.rank() == 4 => {
            Shape::from([gradient.dims()[0], height, width, filter.dims()[2]])
        }
        _ if slide.channels_first => rotate_left(&stated),
        _ => stated,
    };
    let conv = Convolution::new(slide, &shape, filter.shape())?;
    check_gradient(&conv.output_shape(slide.spatial), gradient.shape())?;
    let mut input = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (filter, gradient) = (filter.slice::<T>()?, gradient.slice::<T>()?);
    let (patch, out) = (conv.patch(), conv.out_channels);
    let mut patches = Vec::new();
    if !input.is_empty() && !gradient.is_empty() {
        conv.for_each_run(|first, windows, in_channel, out_channel| {
            patches.clear();
            patches.resize(windows * patch, T::ZERO);
            add_product(
                [windows, patch, conv.group_out()],
                Matrix::rows(&gradient[first * out + out_channel..], out),
                Matrix::rows(&filter[out_channel..], out).transposed(),
                &mut patches,
                patch,
            );
            conv.spread(&patches, first, in_channel, &mut input);
        });
    }
    from_channels_last::<T>(slide, Tensor::from_vec(shape, input))
}

fn backprop_filter<T: Term>(slide: &Slide, input: Tensor, sizes: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let (input, gradient) = (to_channels_last::<T>(slide, input)?, to_channels_last::<T>(slide, gradient)?);
    let shape = stated_shape(slide, sizes, "filter_sizes")?;
    let conv = Convolution::new(slide, input.shape(), &shape)?;
    check_gradient(&conv.output_shape(slide.spatial), gradient.shape())?;
    let mut filter = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (input, gradient) = (input.slice::<T>()?, gradient.slice::<T>()?);
    let (patch, out) = (conv.patch(), conv.out_channels);
    let mut patches = Vec::new();
    if !filter.is_empty() && !gradient.is_empty() {
        conv.for_each_run(|first, windows, in_channel, out_channel| {
            patches.resize(windows * patch, T::ZERO);
            conv.gather(input, first, in_channel, &mut patches);
            add_product(
                [patch, conv.group_out(), windows],
                Matrix::rows(&patches, patch).transposed(),
                Matrix::rows(&gradient[first * out + out_channel..], out),
                &mut filter[out_channel..],
                out,
            );
        });
    }
    Ok(Tensor::from_vec(shape, filter))
}

fn stated_shape(slide: &Slide, sizes: &Tensor, what: &str) -> Result<Shape> {
    if sizes.rank() != 1 || !(sizes.len() == slide.spatial + 2 || (what == "input_sizes" && sizes.len() == 2)) {
        return Err(Failure::invalid(format!(
            "{what} must be a 1-dimensional tensor of {} sizes, got shape {}",
            slide.spatial + 2,
            sizes.shape()
        )));
    }
    Shape::from_i64s(&sizes.to_i64s()?)
}

fn check_gradient(want: &Shape, got: &Shape) -> Result<()> {
    if want == got {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "out_backprop does not fit the other inputs: a convolution of those sizes has the shape {want}, got {got}"
    )))
}

/// The shape `[batch, channels, space…]` as `[batch, space…, channels]`.
#[inline]
fn rotate_left(shape: &Shape) -> Shape {
    let mut dims = shape.dims().to_vec();
    dims[1..].rotate_left(1);
    Shape::from(dims)
}

pub(super) fn to_channels_last<T: Numeric>(slide: &Slide, tensor: Tensor) -> Result<Tensor> {
    if slide.channels_first && tensor.rank() == slide.spatial + 2 { channels_last::<T>(&tensor) } else { Ok(tensor) }
}

pub(super) fn from_channels_last<T: Numeric>(slide: &Slide, tensor: Tensor) -> Result<Tensor> {
    if slide.channels_first { channels_first::<T>(&tensor) } else { Ok(tensor) }
}
