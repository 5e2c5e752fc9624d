//! Convolutions of float32 in this process's memory: computed in place (`meshtf_loops::vector`) in TensorFlow's layout,
//! channels last. Images that arrive channels first are reordered, and so are the outputs.
//!
//! Unsupported inputs (groups, other dtypes, rows that take too long) are left to burn.

use meshtf_loops::vector::Convolution;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};
use smallvec::smallvec;

use super::array::Site;
use super::conv::{Fit, WindowAttrs};
use super::dense;
use super::memory::Backing;
use crate::{EngineOutcome, Value};

/// With fewer multiplications than this the host is no slower; and it sums in double.
pub(super) const FEWEST_PRODUCTS: usize = 1 << 14;

/// A function of two tensors: the image, or its gradient; the filter; the output, or its gradient.
type Function = fn(&Convolution, &[f32], &[f32]) -> Option<Vec<f32>>;

pub(super) fn answer<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    site: &Site<B>,
    inputs: &[Value],
) -> Result<Option<EngineOutcome>> {
    let [image, filter] = inputs else { return Ok(None) };
    let operands = [(image, window.channels_first), (filter, false)];
    computed((window, fit), site, operands, Convolution::answer, (&fit.answer, true))
}

/// The gradient of the image.
pub(super) fn image<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    site: &Site<B>,
    inputs: &[Value],
) -> Result<Option<EngineOutcome>> {
    let [_, filter, gradient] = inputs else { return Ok(None) };
    let operands = [(filter, false), (gradient, window.channels_first)];
    let &[batch, channels, height, width] = fit.image.dims() else { return Ok(None) };
    let shape = window.shape(batch, [height, width], channels);
    computed((window, fit), site, operands, Convolution::image_gradient, (&shape, true))
}

/// The gradient of the filter.
pub(super) fn filter<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    site: &Site<B>,
    inputs: &[Value],
) -> Result<Option<EngineOutcome>> {
    let [image, _, gradient] = inputs else { return Ok(None) };
    let operands = [(image, window.channels_first), (gradient, window.channels_first)];
    let &[made, taken, height, width] = fit.filter.dims() else { return Ok(None) };
    let shape = [height, width, taken, made].into();
    computed((window, fit), site, operands, Convolution::filter_gradient, (&shape, false))
}

/// Computes a function of operands, each with whether it is an image in channels-first layout; the output has the given
/// shape, and is an image or not. `None` if it is left to burn or the host.
fn computed<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    site: &Site<B>,
    operands: [(&Value, bool); 2],
    function: Function,
    (shape, is_image): (&Shape, bool),
) -> Result<Option<EngineOutcome>> {
    let is_float = operands.iter().all(|operand| operand.0.dtype() == DType::F32);
    let Some(convolution) = convolution(window, fit).filter(|_| B::IN_PLACE && is_float) else { return Ok(None) };
    let [x, y] = operands;
    let (x, y) = (last(site, x)?, last(site, y)?);
    let (Some(xs), Some(ys)) = (dense::floats(&x), dense::floats(&y)) else { return Ok(None) };
    shape.checked_elements(DType::F32)?;
    budget::admit(convolution.scratch_bytes())?;
    let Some(answer) = function(&convolution, xs, ys) else { return Ok(None) };
    let value = match (shape.dims(), is_image && window.channels_first) {
        (&[batch, channels, height, width], true) => {
            let answer = dense::made(&[batch, height, width, channels].into(), answer);
            site.array(answer)?.permute(&[0, 3, 1, 2]).value()
        }
        _ => dense::made(shape, answer),
    };
    Ok(Some(EngineOutcome::Done(smallvec![value])))
}

/// The elements in order; those of an image channels last.
fn last<B: Backing>(site: &Site<B>, (value, is_first): (&Value, bool)) -> Result<Value> {
    let value = value.clone();
    if is_first { Ok(site.array(value)?.permute(&[0, 2, 3, 1]).in_order()?.value()) } else { dense::in_order(value) }
}

/// Strides, dilations, padded images and windows with their dilation are smaller than this, times the channels, so that no
/// offset overflows. No model needs larger ones; burn and the host reject or compute them.
const FARTHEST: usize = 1 << 31;

/// Whether an offset of `distance` pixels in an image of `channels` channels is in that range.
pub(super) fn is_near(distance: usize, channels: usize) -> bool {
    distance.checked_mul(channels).is_some_and(|distance| distance < FARTHEST)
}

/// The convolution; `None` if it is grouped, or small, or if its offsets are out of range.
fn convolution(window: &WindowAttrs, fit: &Fit) -> Option<Convolution> {
    let (&[batch, channels, height, width], &[made, taken, rows, columns]) = (fit.image.dims(), fit.filter.dims())
    else {
        return None;
    };
    if taken != channels || fit.products() < FEWEST_PRODUCTS {
        return None;
    }
    let (padding, answer) = window.over([height, width], [rows, columns])?;
    let depth = channels.max(made).max(1);
    for (i, size) in [height, width].into_iter().enumerate() {
        let padded = size.checked_add(padding[i].0)?.checked_add(padding[i].1)?;
        let window_size = [rows, columns][i].checked_mul(window.dilation[i])?;
        if ![padded, window_size, window.stride[i], window.dilation[i]].into_iter().all(|place| is_near(place, depth)) {
            return None;
        }
    }
    Some(Convolution {
        batch,
        image: [height, width],
        window: [rows, columns],
        answer,
        channels,
        made,
        stride: window.stride,
        dilation: window.dilation,
        before: padding.map(|side| side.0),
    })
}
