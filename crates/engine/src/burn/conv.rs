//! Two-dimensional convolutions, and the movement of a window over an image.
//!
//! TensorFlow stores images as NHWC and filters as HWIO, burn as NCHW and OIHW: each is a view of the other.

use burn_backend::ops::ConvOptions;
use meshtf_graph::Attrs;
use meshtf_kernels::{KernelNode, Padding};
use meshtf_loops::turn;
use meshtf_loops::vector::Finish;
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape};

use super::array::{Array, Home, Site, done};
use super::blocks::by_blocks;
use super::channels_last::Filter;
use super::elementwise::arrays;
use super::memory::Backing;
use super::{Body, channels_last, depthwise, is_within, pool};
use crate::{EngineOutcome, Value, Values};

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if node.op == "Conv2D" {
        let Some(window) = WindowAttrs::read(node.attrs)? else { return Ok(None) };
        let mut filter = Filter::new(node.is_constant(1));
        return Ok(Some(Box::new(move |site, inputs| conv2d(&window, &mut filter, site, inputs))));
    }
    let kernel: fn(&WindowAttrs, &Site<B>, Values) -> Result<EngineOutcome> = match node.op {
        "Conv2DBackpropInput" => conv2d_backprop_input,
        "Conv2DBackpropFilter" => conv2d_backprop_filter,
        "MaxPool" => pool::max_pool,
        "AvgPool" => pool::avg_pool,
        "AvgPoolGrad" => pool::avg_pool_grad,
        "MaxPoolGrad"
            if B::REMOTE || B::IN_PLACE && node.inputs[0] == DType::F32 || node.attrs.str("data_format")? == "NCHW" =>
        {
            pool::max_pool_grad
        }
        _ => return Ok(None),
    };
    let Some(window) = WindowAttrs::read(node.attrs)? else { return Ok(None) };
    Ok(Some(Box::new(move |site, inputs| kernel(&window, site, inputs))))
}

/// Padding before and after, for height and width.
pub(super) type Sides = [(usize, usize); 2];

/// The movement of a window over an image, as specified by a node's attributes.
pub(super) struct WindowAttrs {
    pub(super) channels_first: bool,
    /// Height and width of a pool's window; a convolution's are its filter's.
    pub(super) size: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) padding: Padding,
}

impl WindowAttrs {
    /// `None` if only the host kernel supports the attributes.
    pub(super) fn read(attrs: &Attrs) -> Result<Option<WindowAttrs>> {
        let channels_first = match attrs.str("data_format")? {
            "NHWC" => false,
            "NCHW" => true,
            _ => return Ok(None),
        };
        let spatial = |name: &str| -> Result<Option<[usize; 2]>> {
            match attrs.get(name) {
                None => Ok(Some([1, 1])),
                Some(_) => Ok(spatial(attrs.ints(name)?, channels_first)),
            }
        };
        let (Some(size), Some(stride), Some(dilation)) =
            (spatial("ksize")?, spatial("strides")?, spatial("dilations")?)
        else {
            return Ok(None);
        };
        let padding = match attrs.str("padding")? {
            "VALID" => Padding::Valid,
            "SAME" => Padding::Same,
            "EXPLICIT" => {
                let sides: Option<Vec<usize>> =
                    attrs.ints("explicit_paddings")?.iter().map(|&n| usize::try_from(n).ok()).collect();
                match (sides.as_deref(), channels_first) {
                    (Some(&[0, 0, top, bottom, left, right, 0, 0]), false)
                    | (Some(&[0, 0, 0, 0, top, bottom, left, right]), true) => {
                        Padding::Explicit([[top, bottom], [left, right], [0, 0]])
                    }
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(WindowAttrs { channels_first, size, stride, dilation, padding }))
    }

    /// Padding before and after, and the size of the result, for height and width; `None` if the result is empty.
    pub(super) fn over(&self, image: [usize; 2], window: [usize; 2]) -> Option<(Sides, [usize; 2])> {
        let along = |i: usize| {
            let extent = window[i].checked_sub(1)?.checked_mul(self.dilation[i])?.checked_add(1)?;
            let (before, behind) = match &self.padding {
                Padding::Valid => (0, 0),
                Padding::Same => {
                    let answer = image[i].div_ceil(self.stride[i]);
                    let all = ((answer - 1) * self.stride[i]).saturating_add(extent).saturating_sub(image[i]);
                    (all / 2, all - all / 2)
                }
                Padding::Explicit(sides) => (sides[i][0], sides[i][1]),
            };
            let padded = image[i].checked_add(before)?.checked_add(behind)?;
            let answer = padded.checked_sub(extent)? / self.stride[i] + 1;
            Some(((before, behind), answer))
        };
        let (height, width) = (along(0)?, along(1)?);
        Some(([height.0, width.0], [height.1, width.1]))
    }

    /// Batch, height and width, channels of an image's shape.
    pub(super) fn image(&self, shape: &Shape) -> Option<(usize, [usize; 2], usize)> {
        match (shape.dims(), self.channels_first) {
            (&[n, h, w, c], false) | (&[n, c, h, w], true) => Some((n, [h, w], c)),
            _ => None,
        }
    }

    /// The shape of an image with these sizes.
    pub(super) fn shape(&self, batch: usize, [height, width]: [usize; 2], channels: usize) -> Shape {
        if self.channels_first {
            [batch, channels, height, width].into()
        } else {
            [batch, height, width, channels].into()
        }
    }

    /// The image in burn's layout: NCHW.
    pub(super) fn enter<B: Backing>(&self, image: Array<B>) -> Array<B> {
        if self.channels_first { image } else { image.permute(&[0, 3, 1, 2]) }
    }

    /// The image in the layout of the graph.
    pub(super) fn leave<B: Backing>(&self, image: Array<B>) -> Array<B> {
        if self.channels_first { image } else { image.permute(&[0, 2, 3, 1]) }
    }
}

/// The height and width in a list of four; `None` if batch or channels are not 1.
fn spatial(list: &[i64], channels_first: bool) -> Option<[usize; 2]> {
    match (list, channels_first) {
        (&[1, h, w, 1], false) | (&[1, 1, h, w], true) if h > 0 && w > 0 => Some([h as usize, w as usize]),
        _ => None,
    }
}

/// A convolution whose shapes match.
pub(super) struct Fit {
    options: ConvOptions<2>,
    /// NCHW.
    pub(super) image: Shape,
    /// OIHW.
    pub(super) filter: Shape,
    pub(super) answer: Shape,
}

pub(super) fn fit<B: Backing>(window: &WindowAttrs, dtype: DType, image: &Shape, filter: &Shape) -> Option<Fit> {
    let (batch, space, channels) = window.image(image)?;
    let &[height, width, taken, made] = filter.dims() else { return None };
    if [batch, channels, taken, made, height, width].contains(&0) || channels % taken != 0 {
        return None;
    }
    let groups = channels / taken;
    let (padding, answer) = window.over(space, [height, width])?;
    if made % groups != 0 || answer.contains(&0) || space.contains(&0) {
        return None;
    }
    let fit = Fit {
        options: ConvOptions::new_with_padding(window.stride, padding, window.dilation, groups),
        image: [batch, channels, space[0], space[1]].into(),
        filter: [made, taken, height, width].into(),
        answer: window.shape(batch, answer, made),
    };
    let shapes = [&fit.image, &fit.filter, &fit.answer];
    shapes.iter().all(|shape| is_within::<B>(shape, dtype)).then_some(fit)
}

const HWIO_TO_OIHW: [usize; 4] = [3, 2, 0, 1];
const OIHW_TO_HWIO: [usize; 4] = [2, 3, 1, 0];

/// With fewer products than this the host is no slower than burn, which reorders the tensors; and it sums in double.
const FEWEST_PRODUCTS: usize = 1 << 19;

/// Most products between two checks for cancellation; burn takes longer over them than over those of matrices.
const MOST_PRODUCTS: usize = 1 << 29;

impl Fit {
    /// Whether burn should compute it.
    fn pays<B: Backing>(&self) -> bool {
        B::REMOTE || self.products() >= FEWEST_PRODUCTS
    }

    /// The number of multiplications, those with the padding included.
    pub(super) fn products(&self) -> usize {
        let patch: usize = self.filter.dims()[1..].iter().product();
        self.answer.elements().unwrap_or(usize::MAX).saturating_mul(patch)
    }

    fn batch(&self) -> usize {
        self.image.dims()[0]
    }

    fn groups(&self) -> usize {
        self.options.groups
    }

    /// The number of images, and of `channels`, that burn receives at once, so that the step can be cancelled in between:
    /// whole groups of channels, or a part of one. A GPU receives all.
    fn parts<B: Backing>(&self, channels: usize) -> (usize, usize) {
        if B::REMOTE || self.products() <= 2 * MOST_PRODUCTS {
            return (self.batch(), channels);
        }
        let image = (self.products() / self.batch()).max(1);
        let images = (MOST_PRODUCTS / image).clamp(1, self.batch());
        if image <= MOST_PRODUCTS {
            return (images, channels);
        }
        let most = (MOST_PRODUCTS / (image / channels).max(1)).clamp(1, channels);
        let group = channels / self.groups();
        let fits =
            |count: &usize| if *count > group { count.is_multiple_of(group) } else { group.is_multiple_of(*count) };
        (images, if self.groups() == 1 { most } else { (1..=most).rev().find(fits).unwrap_or(1) })
    }

    /// The groups (first, count) that a part of the result's or the image's channels belongs to.
    fn groups_of(&self, channels: usize, (from, count): (usize, usize)) -> (usize, usize) {
        let group = channels / self.groups();
        (from / group, count.div_ceil(group))
    }

    /// The options for a number of groups.
    fn options(&self, groups: usize) -> ConvOptions<2> {
        ConvOptions { groups, ..self.options.clone() }
    }

    /// Admits the copies that burn makes on a CPU: the operands reordered, and the result before it is reordered.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for them.
    fn admit<B: Backing>(&self, dtype: DType) -> Result<()> {
        if B::REMOTE {
            return Ok(());
        }
        let bytes = |shape: &Shape| shape.elements().unwrap_or(0) * dtype.size().unwrap_or(0);
        budget::admit(bytes(&self.image) + bytes(&self.filter) + 2 * bytes(&self.answer))
    }
}

/// A convolution in this process's memory, channels last, whose parts `finish` completes; `None` if it is left to others.
fn in_place<B: Backing>(
    of: (&WindowAttrs, &Fit),
    filter: &mut Filter,
    inputs: &Values,
    finish: Option<Finish>,
) -> Result<Option<EngineOutcome>> {
    match channels_last::answer::<B>(of, filter, inputs, finish)? {
        None => depthwise::grouped::<B>(of, inputs, finish),
        done => Ok(done),
    }
}

/// A convolution whose parts `finish` completes; `None` if it has to be computed without.
pub(super) fn finished_conv2d<B: Backing>(
    window: &WindowAttrs,
    filter: &mut Filter,
    inputs: &Values,
    finish: Finish,
) -> Result<Option<EngineOutcome>> {
    match fit::<B>(window, inputs[0].dtype(), inputs[0].shape(), inputs[1].shape()) {
        Some(fit) => in_place::<B>((window, &fit), filter, inputs, Some(finish)),
        None => Ok(None),
    }
}

fn conv2d<B: Backing>(
    window: &WindowAttrs,
    filter: &mut Filter,
    site: &Site<B>,
    inputs: Values,
) -> Result<EngineOutcome> {
    let Some(fit) = fit::<B>(window, inputs[0].dtype(), inputs[0].shape(), inputs[1].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if let Some(done) = in_place::<B>((window, &fit), filter, &inputs, None)? {
        return Ok(done);
    }
    if !fit.pays::<B>() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    let [image, filter] = arrays(site, inputs)?;
    fit.admit::<B>(image.dtype)?;
    let (dtype, filter) = (image.dtype, filter.permute(&HWIO_TO_OIHW));
    let image = window.enter(image);
    let (images, channels) = fit.parts::<B>(fit.filter.dims()[0]);
    let raw = if (images, channels) == (fit.batch(), fit.filter.dims()[0]) {
        B::conv2d(image.raw, filter.raw, None, fit.options)
    } else {
        let answer = inner(window, &fit.answer);
        let block = [images, channels, answer.dims()[2], answer.dims()[3]];
        let [made, taken] = [fit.filter.dims()[0], fit.filter.dims()[1]];
        let made = by_blocks::<B>(&site.device, dtype, answer, &block, &mut |ranges| {
            let (first, count) = ranges[0];
            let (group, groups) = fit.groups_of(made, ranges[1]);
            let image = image.clone().narrow(0, first, count).narrow(1, group * taken, groups * taken);
            let filter = filter.clone().narrow(0, ranges[1].0, ranges[1].1);
            Ok(B::conv2d(image.raw, filter.raw, None, fit.options(groups)))
        });
        made?.raw
    };
    done(answered::<B>(window, raw, dtype, &fit.answer))
}

fn conv2d_backprop_input<B: Backing>(
    window: &WindowAttrs,
    site: &Site<B>,
    mut inputs: Values,
) -> Result<EngineOutcome> {
    let fit = sizes(&inputs[0], inputs[2].shape())
        .and_then(|image| fit::<B>(window, inputs[2].dtype(), &image, inputs[1].shape()));
    let Some(fit) = fit.filter(|fit| fit.answer == *inputs[2].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if let Some(done) = channels_last::image::<B>((window, &fit), &inputs)? {
        return Ok(done);
    }
    if !fit.pays::<B>() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    inputs.remove(0);
    let [filter, gradient] = arrays(site, inputs)?;
    let dtype = gradient.dtype;
    fit.admit::<B>(dtype)?;
    let (filter, gradient) = (filter.permute(&HWIO_TO_OIHW), window.enter(gradient));
    let &[_, all, height, width] = fit.image.dims() else { unreachable!("images have four dimensions") };
    let (images, channels) = fit.parts::<B>(all);
    let raw = if (images, channels) == (fit.batch(), all) {
        // burn reads only the image's shape.
        let image = site.empty(dtype, fit.image.clone());
        B::conv2d_x_backward(image.raw, filter.raw, gradient.raw, fit.options)
    } else {
        let (taken, made) = (fit.filter.dims()[1], fit.filter.dims()[0] / fit.groups());
        let image =
            by_blocks::<B>(&site.device, dtype, fit.image.clone(), &[images, channels, height, width], &mut |ranges| {
                let image = site.full(0.0, dtype, ranges.iter().map(|range| range.1).collect());
                let (from, count) = ranges[1];
                let (group, groups) = fit.groups_of(all, ranges[1]);
                let filter = filter.clone().narrow(0, group * made, groups * made);
                let filter = if count < taken { filter.narrow(1, from % taken, count) } else { filter };
                let gradient =
                    gradient.clone().narrow(0, ranges[0].0, ranges[0].1).narrow(1, group * made, groups * made);
                Ok(B::conv2d_x_backward(image.raw, filter.raw, gradient.raw, fit.options(groups)))
            });
        image?.raw
    };
    done(window.leave(Array::<B> { raw, dtype, shape: fit.image, home: Home::default() }))
}

fn conv2d_backprop_filter<B: Backing>(
    window: &WindowAttrs,
    site: &Site<B>,
    mut inputs: Values,
) -> Result<EngineOutcome> {
    let fit = sizes(&inputs[1], inputs[2].shape())
        .and_then(|filter| fit::<B>(window, inputs[2].dtype(), inputs[0].shape(), &filter));
    let Some(fit) = fit.filter(|fit| fit.answer == *inputs[2].shape()) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    if let Some(done) = channels_last::filter::<B>((window, &fit), &inputs)? {
        return Ok(done);
    }
    if !fit.pays::<B>() {
        return Ok(EngineOutcome::Declined(inputs));
    }
    inputs.remove(1);
    let [image, gradient] = arrays(site, inputs)?;
    let dtype = gradient.dtype;
    fit.admit::<B>(dtype)?;
    let (image, gradient) = (window.enter(image), window.enter(gradient));
    let made = fit.filter.dims()[0];
    let (images, channels) = fit.parts::<B>(made);
    let raw = if (images, channels) == (fit.batch(), made) {
        // burn reads only the filter's shape.
        let filter = site.empty(dtype, fit.filter.clone());
        B::conv2d_weight_backward(image.raw, filter.raw, gradient.raw, fit.options)
    } else {
        let &[_, taken, height, width] = fit.filter.dims() else { unreachable!("filters have four dimensions") };
        let filter =
            by_blocks::<B>(&site.device, dtype, fit.filter.clone(), &[channels, taken, height, width], &mut |ranges| {
                let filter = site.full(0.0, dtype, ranges.iter().map(|range| range.1).collect());
                let (group, groups) = fit.groups_of(made, ranges[0]);
                let of_images = |from: usize| {
                    turn::look();
                    let count = images.min(fit.batch() - from);
                    let image = image.clone().narrow(0, from, count).narrow(1, group * taken, groups * taken);
                    let gradient = gradient.clone().narrow(0, from, count).narrow(1, ranges[0].0, ranges[0].1);
                    B::conv2d_weight_backward(image.raw, filter.raw.clone(), gradient.raw, fit.options(groups))
                };
                // A filter's gradient is the sum over the images.
                let others = (images..fit.batch()).step_by(images);
                Ok(others.fold(of_images(0), |sum, from| B::float_add(sum, of_images(from))))
            });
        filter?.raw
    };
    done(Array::<B> { raw, dtype, shape: fit.filter, home: Home::default() }.permute(&OIHW_TO_HWIO))
}

/// A fully specified shape in an input.
pub(super) fn sizes(value: &Value, gradient: &Shape) -> Option<Shape> {
    let Value::Host(sizes) = value else { return None };
    let shape = Shape::from_i64s(&sizes.to_i64s().ok()?).ok()?;
    (shape.rank() == gradient.rank()).then_some(shape)
}

/// The result of a window function, from NCHW.
pub(super) fn answered<B: Backing>(window: &WindowAttrs, raw: B::Raw, dtype: DType, answer: &Shape) -> Array<B> {
    window.leave(Array { raw, dtype, shape: inner(window, answer), home: Home::default() })
}

/// The shape of an image as NCHW.
pub(super) fn inner(window: &WindowAttrs, image: &Shape) -> Shape {
    let &[n, a, b, c] = image.dims() else { unreachable!("images have four dimensions") };
    if window.channels_first { [n, a, b, c].into() } else { [n, c, a, b].into() }
}
