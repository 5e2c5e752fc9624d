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
use super::kept::{Kept, Source};
use super::memory::Backing;
use crate::{EngineOutcome, Value};

/// With fewer multiplications than this the host is no slower; and it sums in double. The host packs the whole filter for each
/// call: a convolution of one pixel, as those that weigh channels by their averages, takes far longer there.
const FEWEST_PRODUCTS: usize = 1 << 10;

/// The filter of a node, in the order in which convolutions read it.
pub(super) type Filter = Kept<PackedFilter>;

/// The output, whose parts `finish` completes.
pub(super) fn answer<B: Backing>(
    of: (&WindowAttrs, &Fit),
    filter: &mut Filter,
    inputs: &[Value],
    finish: Option<Finish>,
) -> Result<Option<EngineOutcome>> {
    let [image, constant] = inputs else { return Ok(None) };
    let function = |convolution: &Convolution, image: &[f32], weights: &[f32]| {
        let [rows, columns] = convolution.window;
        let layout = [rows, columns, convolution.channels, convolution.made];
        // If they were put in order, `weights` are a copy.
        let source = dense::floats(constant).map(|elements| Source::of(elements, layout));
        let packed = filter.form(constant, source, convolution.scratch_bytes(), || convolution.packed(weights));
        match packed {
            Some(packed) => convolution.answer_packed(image, packed, finish),
            None => convolution.answer(image, weights, finish),
        }
    };
    computed::<B>(of, [image, constant], function, &of.1.answer)
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

#[cfg(test)]
mod tests {
    use burn_flex::Flex;
    use meshtf_graph::{Attr, Attrs, OutputType};
    use meshtf_kernels::KernelNode;
    use meshtf_tensor::Tensor;

    use super::super::BurnEngine;
    use super::*;
    use crate::{Engine, Values};

    /// The output for whole numbers from 0, if it is computed here.
    fn convolved(image: [usize; 4], filter: [usize; 4]) -> Option<Vec<f32>> {
        let mut attrs = Attrs::default();
        for attr in &meshtf_graph::op::lookup("Conv2D").unwrap().attrs {
            attr.default.iter().for_each(|default| attrs.set(attr.name, default.clone()));
        }
        attrs.set("T", Attr::Type(DType::F32));
        attrs.set("padding", Attr::Str(b"VALID".to_vec()));
        attrs.set("strides", Attr::Ints(vec![1; 4]));
        let node = KernelNode {
            name: "c",
            op: "Conv2D",
            attrs: &attrs,
            inputs: &[DType::F32; 2],
            outputs: &[OutputType { dtype: DType::F32, is_ref: false }],
            constants: 0b10,
        };
        let numbers = |dims: [usize; 4]| {
            Value::Host(Tensor::from_vec(
                dims,
                (0..dims.iter().product::<usize>()).map(|i| (i % 5) as f32).collect::<Vec<_>>(),
            ))
        };
        let engine = BurnEngine::<Flex>::new("flex", Default::default());
        let mut kernel = engine.compile(&node).unwrap().unwrap();
        let mut answers =
            (0..2).map(|_| match (kernel.run)(Values::from_iter([numbers(image), numbers(filter)])).unwrap() {
                EngineOutcome::Done(mut values) => {
                    Some(values.remove(0).into_host().unwrap().slice::<f32>().unwrap().to_vec())
                }
                EngineOutcome::Declined(_) => None,
            });
        let first = answers.next().unwrap();
        // The second call takes the filter that the first one packed.
        assert_eq!(first, answers.next().unwrap());
        first
    }

    #[test]
    fn convolutions_of_a_few_pixels_are_computed_here() {
        // One pixel, 50 channels to 30: the product of a row and a matrix. Whole numbers, whose sums are exact.
        let want = |made: usize| (0..50).map(|i| ((i % 5) * ((i * 30 + made) % 5)) as f32).sum::<f32>();
        assert_eq!(convolved([1, 1, 1, 50], [1, 1, 50, 30]), Some((0..30).map(want).collect()));
        assert_eq!(convolved([1, 1, 1, 4], [1, 1, 4, 4]), None, "the host computes it");
    }
}
