//! Two-dimensional pooling: the greatest element or the mean under each window.

use meshtf_kernels::Padding;
use meshtf_loops::vector::{Axis, Pool};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape};

use super::array::{Array, Home, Site, done};
use super::blocks::by_blocks;
use super::conv::{Sides, WindowAttrs, answered, inner, sizes};
use super::dense;
use super::elementwise::arrays;
use super::fits;
use super::memory::Backing;
use crate::{EngineOutcome, Values};

/// A pool whose shapes match: its padding, and the shape of the result.
fn pooled<B: Backing>(window: &WindowAttrs, dtype: DType, image: &Shape) -> Option<(Sides, Shape)> {
    let (batch, space, channels) = window.image(image)?;
    let (padding, answer) = window.over(space, window.size)?;
    // A window over explicit padding alone has no greatest element: the host returns TensorFlow's result.
    let beyond = |i: usize| padding[i].0 >= window.size[i] || padding[i].1 >= window.size[i];
    if space.contains(&0) || matches!(window.padding, Padding::Explicit(_)) && (beyond(0) || beyond(1)) {
        return None;
    }
    let padded = [0, 1].map(|i| space[i].saturating_add(padding[i].0).saturating_add(padding[i].1));
    let (padded, answer) = (window.shape(batch, padded, channels), window.shape(batch, answer, channels));
    (fits::<B>(&padded, dtype) && fits::<B>(&answer, dtype)).then_some((padding, answer))
}

/// The padding, if it is the same before and after.
fn even(padding: Sides) -> Option<[usize; 2]> {
    padding.iter().all(|side| side.0 == side.1).then(|| padding.map(|side| side.0))
}

/// The pool as it is computed on contiguous float32 in this process's memory, channels last.
fn in_place<B: Backing>(window: &WindowAttrs, padding: Sides, image: &Shape, answer: &Shape) -> Option<Pool> {
    let (&[batch, height, width, channels], &[_, rows, columns, _]) = (image.dims(), answer.dims()) else {
        return None;
    };
    if !B::IN_PLACE || window.channels_first {
        return None;
    }
    let axis = |i: usize, input, output| Axis {
        input,
        output,
        window: window.size[i],
        stride: window.stride[i],
        dilation: 1,
        before: padding[i].0,
    };
    let depth = Axis::ONE;
    let pool = Pool { batch, depth, height: axis(0, height, rows), width: axis(1, width, columns), channels };
    pool.is_paced().then_some(pool)
}

pub(super) fn max_pool<B: Backing>(window: &WindowAttrs, site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let Some((padding, answer)) = pooled::<B>(window, inputs[0].dtype(), inputs[0].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if let Some(pool) = in_place::<B>(window, padding, inputs[0].shape(), &answer)
        && let Some(pixels) = dense::floats(&inputs[0])
    {
        answer.checked_elements(DType::F32)?;
        return dense::done(&answer, pool.max(pixels));
    }
    let [image] = arrays(site, inputs)?;
    let dtype = image.dtype;
    let (image, padding) = evened(site, window.enter(image), padding)?;
    let raw = by_images(window, site, dtype, inner(window, &answer), |planes| {
        let image = planes.of(&image);
        Ok(B::max_pool2d(image.raw, window.size, window.stride, padding, [1, 1], false))
    })?;
    done(answered::<B>(window, raw, dtype, &answer))
}

/// Most elements under all windows between two checks for cancellation.
const MOST_POOLED: usize = 1 << 22;

/// Some channels of some images: first and count of each.
struct Planes {
    images: (usize, usize),
    channels: (usize, usize),
}

impl Planes {
    fn of<B: Backing>(&self, images: &Array<B>) -> Array<B> {
        images.clone().narrow(0, self.images.0, self.images.1).narrow(1, self.channels.0, self.channels.1)
    }
}

/// Applies a function to some channels of some images at a time; all are NCHW.
fn by_images<B: Backing>(
    window: &WindowAttrs,
    site: &Site<B>,
    dtype: DType,
    answer: Shape,
    mut make: impl FnMut(Planes) -> Result<B::Raw>,
) -> Result<B::Raw> {
    let &[batch, channels, height, width] = answer.dims() else { unreachable!("images have four dimensions") };
    let plane = [height, width].iter().chain(&window.size).product::<usize>().max(1);
    let most = (MOST_POOLED / plane).max(1);
    if B::REMOTE || most >= batch * channels {
        return make(Planes { images: (0, batch), channels: (0, channels) });
    }
    let block = [(most / channels).max(1), most.min(channels), height, width];
    let made = by_blocks::<B>(&site.device, dtype, answer, &block, &mut |ranges| {
        make(Planes { images: ranges[0], channels: ranges[1] })
    });
    Ok(made?.raw)
}

/// Uneven padding is added to the image, as minus infinity, which is never the maximum.
fn evened<B: Backing>(site: &Site<B>, image: Array<B>, padding: Sides) -> Result<(Array<B>, [usize; 2])> {
    match even(padding) {
        Some(padding) => Ok((image, padding)),
        None => Ok((image.padded(site, &[(0, 0), (0, 0), padding[0], padding[1]], f64::NEG_INFINITY)?, [0, 0])),
    }
}

pub(super) fn max_pool_grad<B: Backing>(window: &WindowAttrs, site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let Some((padding, answer)) = pooled::<B>(window, inputs[0].dtype(), inputs[0].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if *inputs[1].shape() != answer || *inputs[2].shape() != answer {
        return Ok(EngineOutcome::Declined(inputs));
    }
    if let Some(pool) = in_place::<B>(window, padding, inputs[0].shape(), &answer)
        && let (Some(pixels), Some(gradient)) = (dense::floats(&inputs[0]), dense::floats(&inputs[2]))
    {
        let shape = inputs[0].shape();
        shape.checked_elements(DType::F32)?;
        return dense::done(shape, pool.max_gradient(pixels, gradient));
    }
    if !B::REMOTE && !window.channels_first {
        // burn would reorder each tensor, the host does not.
        return Ok(EngineOutcome::Declined(inputs));
    }
    let [image, _, gradient] = arrays(site, inputs)?;
    let (image, gradient) = (window.enter(image), window.enter(gradient));
    let (shape, dtype) = (image.shape.clone(), image.dtype);
    let (size, stride) = (window.size, window.stride);
    let raw = by_images(window, site, dtype, shape.clone(), |planes| {
        let (image, sides) = evened(site, planes.of(&image), padding)?;
        let (padded, gradient) = (image.shape.clone(), planes.of(&gradient));
        let index = burn_backend::IntDType::I32;
        let found = B::max_pool2d_with_indices(image.raw.clone(), size, stride, sides, [1, 1], false, index);
        let (image, indices) = (image.raw, found.indices);
        let back =
            B::max_pool2d_with_indices_backward(image, size, stride, sides, [1, 1], false, gradient.raw, indices);
        let whole = Array::<B> { raw: back.x_grad, dtype, shape: padded.clone(), home: Home::default() };
        if padded.dims()[2..] == shape.dims()[2..] {
            return Ok(whole.raw);
        }
        let inner = whole.narrow(2, padding[0].0, shape.dims()[2]).narrow(3, padding[1].0, shape.dims()[3]);
        Ok(inner.raw)
    })?;
    done(window.leave(Array::<B> { raw, dtype, shape, home: Home::default() }))
}

pub(super) fn avg_pool<B: Backing>(window: &WindowAttrs, site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let Some((padding, answer)) = pooled::<B>(window, inputs[0].dtype(), inputs[0].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if let Some(pool) = in_place::<B>(window, padding, inputs[0].shape(), &answer)
        && let Some(pixels) = dense::floats(&inputs[0])
    {
        answer.checked_elements(DType::F32)?;
        return dense::done(&answer, pool.mean(pixels));
    }
    let Some(padding) = even(padding) else { return Ok(EngineOutcome::Declined(inputs)) };
    let [image] = arrays(site, inputs)?;
    let dtype = image.dtype;
    let image = window.enter(image);
    let raw = by_images(window, site, dtype, inner(window, &answer), |planes| {
        let image = planes.of(&image);
        Ok(B::avg_pool2d(image.raw, window.size, window.stride, padding, false, false))
    })?;
    done(answered::<B>(window, raw, dtype, &answer))
}

pub(super) fn avg_pool_grad<B: Backing>(
    window: &WindowAttrs,
    site: &Site<B>,
    mut inputs: Values,
) -> Result<EngineOutcome> {
    let image = sizes(&inputs[0], inputs[1].shape());
    let fit = image.and_then(|image| {
        let (padding, answer) = pooled::<B>(window, inputs[1].dtype(), &image)?;
        (answer == *inputs[1].shape()).then_some((padding, image))
    });
    let Some((padding, image)) = fit else { return Ok(EngineOutcome::Declined(inputs)) };
    if let Some(pool) = in_place::<B>(window, padding, &image, inputs[1].shape())
        && let Some(gradient) = dense::floats(&inputs[1])
    {
        image.checked_elements(DType::F32)?;
        return dense::done(&image, pool.mean_gradient(gradient));
    }
    let (Some(padding), Some((batch, space, channels))) = (even(padding), window.image(&image)) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let image = Shape::from([batch, channels, space[0], space[1]]);
    inputs.remove(0);
    let [gradient] = arrays(site, inputs)?;
    let dtype = gradient.dtype;
    let gradient = window.enter(gradient);
    let raw = by_images(window, site, dtype, image.clone(), |planes| {
        // burn reads only the images' shape.
        let shape = [planes.images.1, planes.channels.1].iter().chain(&image.dims()[2..]).copied().collect();
        let zeros = site.full(0.0, dtype, shape).raw;
        let gradient = planes.of(&gradient).raw;
        Ok(B::avg_pool2d_backward(zeros, gradient, window.size, window.stride, padding, false, false))
    })?;
    done(window.leave(Array::<B> { raw, dtype, shape: image, home: Home::default() }))
}
