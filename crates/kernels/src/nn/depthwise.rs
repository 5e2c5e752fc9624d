//! Depthwise convolutions: every channel has separate filters, `[height, width, channels, multiplier]`.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Float, Shape, Tensor};

use super::super::call::{input_dtype, kernel as call};
use super::super::real::{widened, with_real};
use super::super::{HostKernel, KernelNode, Registry};
use super::conv::Part;
use super::conv::{from_channels_last, to_channels_last};
use super::window::{Axis, Slide, spread};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DepthwiseConv2dNative", |node| kernel(node, Part::Forward));
    ops.insert("DepthwiseConv2dNativeBackpropInput", |node| kernel(node, Part::ByInput));
    ops.insert("DepthwiseConv2dNativeBackpropFilter", |node| kernel(node, Part::ByFilter));
}

fn kernel(node: &KernelNode, part: Part) -> Result<Option<HostKernel>> {
    let slide = Slide::of(node, 2)?;
    let dtype = input_dtype(node, usize::from(part == Part::ByInput))?;
    let kernel = with_real!(dtype, T => match part {
        Part::Forward => call(move |[input, filter]| forward::<T>(&slide, input, &filter)),
        Part::ByInput => {
            call(move |[sizes, filter, gradient]| backprop_input::<T>(&slide, &sizes, &filter, gradient))
        }
        Part::ByFilter => call(move |[input, sizes, gradient]| backprop_filter::<T>(&slide, input, &sizes, gradient)),
    });
    Ok(kernel.map(|kernel| widened(node, kernel)))
}

struct Depthwise {
    batch: usize,
    axes: [Axis; 3],
    channels: usize,
    multiplier: usize,
}

impl Depthwise {
    fn new(slide: &Slide, input: &Shape, filter: &Shape) -> Result<Depthwise> {
        let (&[batch, height, width, channels], &[rows, columns, filter_channels, multiplier]) =
            (input.dims(), filter.dims())
        else {
            return Err(Failure::invalid(format!("input and filter must be 4-dimensional: {input} and {filter}")));
        };
        if channels != filter_channels {
            return Err(Failure::invalid(format!(
                "input and filter must have the same depth: {channels} vs {filter_channels}"
            )));
        }
        let axes = slide.over(spread(&[height, width]), spread(&[rows, columns]))?;
        Ok(Depthwise { batch, axes, channels, multiplier })
    }

    #[inline]
    fn output_shape(&self) -> Shape {
        Shape::from([self.batch, self.axes[1].output, self.axes[2].output, self.channels * self.multiplier])
    }

    /// Calls `f(offset in the input, offset in the filter, offset in the output)` for every pixel under every window;
    /// each offset is that of the first channel.
    fn for_each_pixel(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [_, h, w] = &self.axes;
        let out_channels = self.channels * self.multiplier;
        let mut pace = Pace::new();
        for image in 0..self.batch {
            for (y, x) in (0..h.output).flat_map(|y| (0..w.output).map(move |x| (y, x))) {
                let to = ((image * h.output + y) * w.output + x) * out_channels;
                for ky in 0..h.window {
                    let Some(row) = h.position(y, ky) else { continue };
                    for kx in 0..w.window {
                        let Some(column) = w.position(x, kx) else { continue };
                        let from = ((image * h.input + row) * w.input + column) * self.channels;
                        pace.go(out_channels);
                        f(from, (ky * w.window + kx) * out_channels, to);
                    }
                }
            }
        }
    }
}

fn forward<T: Float>(slide: &Slide, input: Tensor, filter: &Tensor) -> Result<Tensor> {
    let input = to_channels_last::<T>(slide, input)?;
    let conv = Depthwise::new(slide, input.shape(), filter.shape())?;
    let shape = conv.output_shape();
    let mut output = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (input, filter) = (input.slice::<T>()?, filter.slice::<T>()?);
    let (channels, many) = (conv.channels, conv.multiplier);
    conv.for_each_pixel(|from, weight, to| {
        let input = &input[from..from + channels];
        let filter = &filter[weight..weight + channels * many];
        let output = &mut output[to..to + channels * many];
        if many == 1 {
            for ((out, &x), &k) in output.iter_mut().zip(input).zip(filter) {
                *out = *out + x * k;
            }
        } else if many > 1 {
            for ((out, &x), k) in output.chunks_exact_mut(many).zip(input).zip(filter.chunks_exact(many)) {
                out.iter_mut().zip(k).for_each(|(out, &k)| *out = *out + x * k);
            }
        }
    });
    from_channels_last::<T>(slide, Tensor::from_vec(shape, output))
}

fn backprop_input<T: Float>(slide: &Slide, sizes: &Tensor, filter: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let gradient = to_channels_last::<T>(slide, gradient)?;
    let mut dims = Shape::from_i64s(&sizes.to_i64s()?)?.dims().to_vec();
    if slide.channels_first && dims.len() == 4 {
        dims[1..].rotate_left(1);
    }
    let shape = Shape::from(dims);
    let conv = Depthwise::new(slide, &shape, filter.shape())?;
    check_gradient(&conv, gradient.shape())?;
    let mut input = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (filter, gradient) = (filter.slice::<T>()?, gradient.slice::<T>()?);
    let many = conv.multiplier;
    conv.for_each_pixel(|to, weight, from| {
        for (c, x) in input[to..to + conv.channels].iter_mut().enumerate() {
            let pairs = filter[weight + c * many..][..many].iter().zip(&gradient[from + c * many..][..many]);
            *x = pairs.fold(*x, |x, (&k, &g)| x + k * g);
        }
    });
    from_channels_last::<T>(slide, Tensor::from_vec(shape, input))
}

fn backprop_filter<T: Float>(slide: &Slide, input: Tensor, sizes: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let (input, gradient) = (to_channels_last::<T>(slide, input)?, to_channels_last::<T>(slide, gradient)?);
    let shape = Shape::from_i64s(&sizes.to_i64s()?)?;
    let conv = Depthwise::new(slide, input.shape(), &shape)?;
    check_gradient(&conv, gradient.shape())?;
    let mut filter = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (input, gradient) = (input.slice::<T>()?, gradient.slice::<T>()?);
    let many = conv.multiplier;
    conv.for_each_pixel(|at, weight, from| {
        for (c, &x) in input[at..at + conv.channels].iter().enumerate() {
            let pairs = filter[weight + c * many..][..many].iter_mut().zip(&gradient[from + c * many..][..many]);
            pairs.for_each(|(k, &g)| *k = *k + x * g);
        }
    });
    Ok(Tensor::from_vec(shape, filter))
}

fn check_gradient(conv: &Depthwise, got: &Shape) -> Result<()> {
    let want = conv.output_shape();
    if want == *got {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "out_backprop does not fit the other inputs: a convolution of those sizes has the shape {want}, got {got}"
    )))
}
