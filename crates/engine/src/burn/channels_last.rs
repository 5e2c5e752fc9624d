//! Convolutions of float32 in this process's memory: computed in place (`meshtf_loops::vector`) in TensorFlow's layout,
//! channels last.
//!
//! Unsupported inputs (groups, other dtypes, rows that take too long) are left to burn.

use meshtf_loops::vector::{Convolution, Finish, PackedFilter};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};
use smallvec::smallvec;

use super::conv::{Fit, Sides, WindowAttrs};
use super::dense;
use super::kept::Kept;
use super::memory::Backing;
use crate::{EngineOutcome, Value};

/// With fewer multiplications than this the host is no slower; and it sums in double.
pub(super) const FEWEST_PRODUCTS: usize = 1 << 14;

/// The filter of a node, in the order in which convolutions read it.
pub(super) type Filter = Kept<PackedFilter>;

/// The output, whose parts `finish` completes.
pub(super) fn answer<B: Backing>(
    of: (&WindowAttrs, &Fit),
    filter: &mut Filter,
    inputs: &[Value],
    finish: Option<Finish>,
) -> Result<Option<EngineOutcome>> {
    let [image, weights] = inputs else { return Ok(None) };
    let function = |convolution: &Convolution, image: &[f32], weights: &[f32]| {
        let packed = filter.form(convolution.scratch_bytes(), || convolution.packed(weights));
        match packed {
            Some(packed) => convolution.answer_packed(image, packed, finish),
            None => convolution.answer(image, weights, finish),
        }
    };
    computed::<B>(of, [image, weights], function, &of.1.answer)
}

/// The gradient of the image.
pub(super) fn image<B: Backing>(of: (&WindowAttrs, &Fit), inputs: &[Value]) -> Result<Option<EngineOutcome>> {
    let [_, filter, gradient] = inputs else { return Ok(None) };
    let &[batch, channels, height, width] = of.1.image.dims() else { return Ok(None) };
    let shape = [batch, height, width, channels].into();
    computed::<B>(of, [filter, gradient], Convolution::image_gradient, &shape)
}

/// The gradient of the filter.
pub(super) fn filter<B: Backing>(of: (&WindowAttrs, &Fit), inputs: &[Value]) -> Result<Option<EngineOutcome>> {
    let [image, _, gradient] = inputs else { return Ok(None) };
    let &[made, taken, height, width] = of.1.filter.dims() else { return Ok(None) };
    let shape = [height, width, taken, made].into();
    computed::<B>(of, [image, gradient], Convolution::filter_gradient, &shape)
}

/// Computes a function of operands: the image, or its gradient; the filter; the output, or its gradient. The result has the given
/// shape. `None` if it is left to burn or the host.
fn computed<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    operands: [&Value; 2],
    function: impl FnOnce(&Convolution, &[f32], &[f32]) -> Option<Vec<f32>>,
    shape: &Shape,
) -> Result<Option<EngineOutcome>> {
    let is_float = operands.iter().all(|operand| operand.dtype() == DType::F32);
    let convolution = convolution(window, fit).filter(|_| B::IN_PLACE && is_float && !window.channels_first);
    let Some(convolution) = convolution else { return Ok(None) };
    let [x, y] = operands.map(|operand| dense::in_order(operand.clone()));
    let (x, y) = (x?, y?);
    let (Some(xs), Some(ys)) = (dense::floats(&x), dense::floats(&y)) else { return Ok(None) };
    shape.checked_elements(DType::F32)?;
    budget::admit(convolution.scratch_bytes())?;
    let Some(answer) = function(&convolution, xs, ys) else { return Ok(None) };
    Ok(Some(EngineOutcome::Done(smallvec![dense::made(shape, answer)])))
}

/// Strides, dilations, padded images and windows with their dilation are smaller than this, times the channels, so that no
/// offset overflows. No model needs larger ones; burn and the host reject or compute them.
const FARTHEST: usize = 1 << 31;

/// Whether an offset of `distance` pixels in an image of `channels` channels is in that range.
pub(super) fn is_near(distance: usize, channels: usize) -> bool {
    distance.checked_mul(channels).is_some_and(|distance| distance < FARTHEST)
}

/// The padding and the size of the output, down and across; `None` if offsets are out of range.
pub(super) fn placed(window: &WindowAttrs, fit: &Fit) -> Option<(Sides, [usize; 2])> {
    let (&[_, channels, height, width], &[made, _, rows, columns]) = (fit.image.dims(), fit.filter.dims()) else {
        return None;
    };
    let (padding, answer) = window.over([height, width], [rows, columns])?;
    let depth = channels.max(made).max(1);
    for (i, size) in [height, width].into_iter().enumerate() {
        let padded = size.checked_add(padding[i].0)?.checked_add(padding[i].1)?;
        let window_size = [rows, columns][i].checked_mul(window.dilation[i])?;
        if ![padded, window_size, window.stride[i], window.dilation[i]].into_iter().all(|place| is_near(place, depth)) {
            return None;
        }
    }
    Some((padding, answer))
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
    let (padding, answer) = placed(window, fit)?;
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
