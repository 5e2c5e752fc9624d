//! Convolutions of float32 in this process's memory: computed in place (`meshtf_loops::vector`) in TensorFlow's layout,
//! channels last.
//!
//! Unsupported inputs (groups, other dtypes, rows that take too long) are left to burn.

use meshtf_loops::vector::{Convolution, Finish, PackedFilter};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape, Tensor, constant};
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
    if let Value::Host(tensor) = constant
        && constant::is_kept(tensor)
        && let Some(done) = answer_alone::<B>(of, filter, (image, tensor), finish)?
    {
        return Ok(Some(done));
    }
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

/// As [`answer`], with a constant filter whose elements are in its packed form alone from then on.
fn answer_alone<B: Backing>(
    (window, fit): (&WindowAttrs, &Fit),
    filter: &mut Filter,
    (image, tensor): (&Value, &Tensor),
    finish: Option<Finish>,
) -> Result<Option<EngineOutcome>> {
    let is_float = [image.dtype(), tensor.dtype()] == [DType::F32; 2];
    let convolution = convolution(window, fit).filter(|_| B::IN_PLACE && is_float && !window.channels_first);
    let Some(convolution) = convolution else { return Ok(None) };
    let [rows, columns] = convolution.window;
    let layout = [rows, columns, convolution.channels, convolution.made];
    let make = |weights: &[f32]| convolution.packed(weights);
    let Some(packed) = filter.form_alone(tensor, layout, convolution.scratch_bytes(), make) else { return Ok(None) };
    let image = dense::in_order(image.clone())?;
    let Some(pixels) = dense::floats(&image) else { return Ok(None) };
    fit.answer.checked_elements(DType::F32)?;
    budget::admit(convolution.scratch_bytes())?;
    let answer = convolution.answer_packed(pixels, packed, finish);
    Ok(answer.map(|answer| EngineOutcome::Done(smallvec![dense::made(&fit.answer, answer)])))
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
        convolved_with(image, numbers(filter))
    }

    fn numbers(dims: [usize; 4]) -> Tensor {
        let count = dims.iter().product::<usize>();
        Tensor::from_vec(dims, (0..count).map(|i| (i % 5) as f32).collect::<Vec<_>>())
    }

    fn convolved_with(image: [usize; 4], filter: Tensor) -> Option<Vec<f32>> {
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
        let engine = BurnEngine::<Flex>::new("flex", Default::default());
        let mut kernel = engine.compile(&node).unwrap().unwrap();
        assert!(kernel.has_form_of(1) && !kernel.has_form_of(0));
        let inputs = [numbers(image), filter].map(Value::Host);
        let mut answers = (0..2).map(|_| match (kernel.run)(Values::from_iter(inputs.clone())).unwrap() {
            EngineOutcome::Done(mut values) => {
                Some(values.remove(0).into_host().unwrap().slice::<f32>().unwrap().to_vec())
            }
            EngineOutcome::Declined(_) => None,
        });
        let first = answers.next().unwrap();
        // The second call takes the filter that the first one packed.
        let bits = |answer: &Option<Vec<f32>>| answer.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&first), bits(&answers.next().unwrap()));
        first
    }

    #[test]
    fn convolutions_of_a_few_pixels_are_computed_here() {
        // One pixel, 50 channels to 30: the product of a row and a matrix. Whole numbers, whose sums are exact.
        let want = |made: usize| (0..50).map(|i| ((i % 5) * ((i * 30 + made) % 5)) as f32).sum::<f32>();
        assert_eq!(convolved([1, 1, 1, 50], [1, 1, 50, 30]), Some((0..30).map(want).collect()));
        assert_eq!(convolved([1, 1, 1, 4], [1, 1, 4, 4]), None, "the host computes it");
    }

    #[test]
    fn a_large_filter_is_in_its_packed_form_alone() {
        let (image, filter) = ([1, 5, 6, 32], [3, 3, 32, 60]);
        let large = constant::kept(numbers(filter));
        assert_eq!(convolved_with(image, large.clone()), convolved(image, filter));
        assert_eq!((constant::is_at_hand(&large), &large), (false, &numbers(filter)));
        // One with an infinity is not packed.
        let infinite = |tensor: Tensor| {
            let mut elements = tensor.into_vec::<f32>().unwrap();
            elements[7] = f32::INFINITY;
            Tensor::from_vec(filter, elements)
        };
        let large = constant::kept(infinite(numbers(filter)));
        let [got, want] =
            [large.clone(), infinite(numbers(filter))].map(|filter| convolved_with(image, filter).unwrap());
        assert!(got.iter().map(|x| x.to_bits()).eq(want.iter().map(|x| x.to_bits())));
        assert!(constant::is_at_hand(&large));
    }
}
