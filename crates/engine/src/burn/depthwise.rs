//! Depthwise convolutions of float32 in this process's memory, and their gradients (`meshtf_loops::vector`). Other inputs are
//! left to the host.
//!
//! A filter with several outputs per channel is equivalent to several convolutions of the same channel: the image is repeated
//! for it.

use meshtf_kernels::{KernelNode, Slide};
use meshtf_loops::turn;
use meshtf_loops::vector::{Axis, Depthwise, Finish};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};

use super::Body;
use super::channels_last::placed;
use super::conv::{Fit, WindowAttrs};
use super::dense::{self, floats};
use super::memory::Backing;
use crate::{EngineOutcome, Value, Values};

/// The requested result: the output, or one of the gradients.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Answer,
    ImageGradient,
    FilterGradient,
}

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let wanted = match node.op {
        "DepthwiseConv2dNative" => Wanted::Answer,
        "DepthwiseConv2dNativeBackpropInput" => Wanted::ImageGradient,
        "DepthwiseConv2dNativeBackpropFilter" => Wanted::FilterGradient,
        _ => return Ok(None),
    };
    // Errors in the attributes are reported by the host.
    let Some(slide) = Slide::of(node, 2).ok().filter(|slide| !slide.channels_first) else { return Ok(None) };
    if !B::IN_PLACE || node.outputs[0].dtype != DType::F32 {
        return Ok(None);
    }
    Ok(Some(Box::new(move |_, inputs| computed(&slide, wanted, inputs, None))))
}

/// The output, whose parts `finish` completes; `None` if it has to be computed without.
pub(super) fn finished(slide: &Slide, inputs: Values, finish: Finish) -> Result<Option<EngineOutcome>> {
    match computed(slide, Wanted::Answer, inputs, Some(finish))? {
        EngineOutcome::Declined(_) => Ok(None),
        done => Ok(Some(done)),
    }
}

/// The shape of the output; `None` if the shapes do not fit.
pub(super) fn answer_shape(slide: &Slide, image: &Shape, filter: &Shape) -> Option<Shape> {
    let (convolution, _) = fit(slide, image, filter)?;
    Some([convolution.batch, convolution.height.output, convolution.width.output, convolution.channels].into())
}

/// A Conv2D, channels last, each of whose groups takes one channel of the image: a depthwise convolution, whose own op has the
/// same stride down and across; `finish` completes its parts. `None` if it is another one, or a row takes too long.
pub(super) fn grouped<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    inputs: &Values,
    finish: Option<Finish>,
) -> Result<Option<EngineOutcome>> {
    let (&[batch, channels, high, wide], &[made, 1, rows, columns]) = (fit.image.dims(), fit.filter.dims()) else {
        return Ok(None);
    };
    let is_float = inputs.iter().all(|input| input.dtype() == DType::F32);
    if !B::IN_PLACE || !is_float || window.channels_first || channels == 1 {
        return Ok(None);
    }
    let Some((padding, answer)) = placed(window, fit) else { return Ok(None) };
    let axis = |i: usize, input: usize, size: usize| {
        let (stride, dilation) = (window.stride[i], window.dilation[i]);
        Axis { input, window: size, output: answer[i], stride, dilation, before: padding[i].0 }
    };
    let convolution = Depthwise { batch, height: axis(0, high, rows), width: axis(1, wide, columns), channels: made };
    if !convolution.is_paced() {
        return Ok(None);
    }
    let [image, filter] = [0, 1].map(|i| dense::in_order(inputs[i].clone()));
    let (image, filter) = (image?, filter?);
    let (Some(xs), Some(ys)) = (floats(&image), floats(&filter)) else { return Ok(None) };
    let (each, shape) = (made / channels, [batch, answer[0], answer[1], made].into());
    let many = Shape::checked_elements(&shape, DType::F32)?.saturating_add(xs.len().saturating_mul(each));
    budget::admit(convolution.scratch_bytes().saturating_add(many.saturating_mul(size_of::<f32>())))?;
    let answer = match each {
        1 => convolution.answer(xs, ys, finish),
        _ => convolution.answer(&repeat(xs, each), ys, finish),
    };
    dense::done(&shape, answer).map(Some)
}

/// A convolution with as many channels as the output, and the number of them per channel of the image.
fn fit(slide: &Slide, image: &Shape, filter: &Shape) -> Option<(Depthwise, usize)> {
    let (&[batch, high, wide, channels], &[rows, columns, own, each]) = (image.dims(), filter.dims()) else {
        return None;
    };
    let [_, height, width] = slide.over([1, high, wide], [1, rows, columns]).ok()?;
    let made = channels.checked_mul(each)?;
    let sizes = [batch, high, wide, height.output, width.output, made];
    let convolution = Depthwise { batch, height, width, channels: made };
    (own == channels && !sizes.contains(&0) && convolution.is_paced()).then_some((convolution, each))
}

fn computed(slide: &Slide, wanted: Wanted, inputs: Values, finish: Option<Finish>) -> Result<EngineOutcome> {
    let Some((convolution, each, shapes)) = fitting(slide, wanted, &inputs) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let operands = match wanted {
        Wanted::Answer => [0, 1],
        Wanted::ImageGradient => [1, 2],
        Wanted::FilterGradient => [0, 2],
    };
    let operands = operands.map(|i| dense::in_order(inputs[i].clone()));
    let [first, second] = operands;
    let (first, second) = (first?, second?);
    let (Some(xs), Some(ys)) = (floats(&first), floats(&second)) else { return Ok(EngineOutcome::Declined(inputs)) };
    let [image, filter, answer] = shapes;
    let many =
        answer.checked_elements(DType::F32)?.saturating_add(image.checked_elements(DType::F32)?.saturating_mul(each));
    budget::admit(convolution.scratch_bytes().saturating_add(many.saturating_mul(size_of::<f32>())))?;
    let repeated;
    let xs = if each == 1 || wanted == Wanted::ImageGradient {
        xs
    } else {
        repeated = repeat(xs, each);
        &repeated
    };
    let (shape, made) = match wanted {
        Wanted::Answer => (answer, convolution.answer(xs, ys, finish)),
        Wanted::FilterGradient => (filter, convolution.filter_gradient(xs, ys)),
        Wanted::ImageGradient if each == 1 => (image, convolution.image_gradient(xs, ys)),
        Wanted::ImageGradient => {
            let all = convolution.image_gradient(xs, ys);
            (image, all.chunks_exact(each).map(|own| own.iter().sum()).collect())
        }
    };
    dense::done(&shape, made)
}

/// The convolution that fits the inputs, the number of output channels per channel, and the shapes of image, filter and
/// output.
fn fitting(slide: &Slide, wanted: Wanted, inputs: &Values) -> Option<(Depthwise, usize, [Shape; 3])> {
    let stated = |i: usize| inputs.get(i).and_then(sizes);
    let shape = |i: usize| inputs.get(i).map(|value| value.shape().clone());
    let (image, filter) = match wanted {
        Wanted::Answer => (shape(0)?, shape(1)?),
        Wanted::ImageGradient => (stated(0)?, shape(1)?),
        Wanted::FilterGradient => (shape(0)?, stated(1)?),
    };
    let (convolution, each) = fit(slide, &image, &filter)?;
    let answer = [convolution.batch, convolution.height.output, convolution.width.output, convolution.channels].into();
    (wanted == Wanted::Answer || inputs[2].shape() == &answer).then_some((convolution, each, [image, filter, answer]))
}

/// The shape that a tensor of sizes specifies.
pub(super) fn sizes(value: &Value) -> Option<Shape> {
    let Value::Host(tensor) = value else { return None };
    Shape::from_i64s(&tensor.to_i64s().ok().filter(|_| tensor.rank() == 1)?).ok()
}

/// Each element `each` times in a row.
fn repeat(xs: &[f32], each: usize) -> Vec<f32> {
    let mut all = Vec::with_capacity(xs.len() * each);
    turn::blocks(xs).for_each(|block| all.extend(block.iter().flat_map(|&x| std::iter::repeat_n(x, each))));
    all
}
