//! Shapes of ops on images: convolutions, pools, norms, resizing, blocks.

use super::{Entry, one};
use crate::shape::call::{Call, merge_sizes};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("conv2d", conv2d, Extent::Shapes),
    ("depthwise", depthwise, Extent::Shapes),
    ("conv3d", conv3d, Extent::Unknown),
    ("pool2d", pool2d, Extent::Shapes),
    ("pool2d_twice", pool2d_twice, Extent::Shapes),
    ("pool3d", pool3d, Extent::Unknown),
    ("patches", patches, Extent::Unknown),
    ("sizes_of_4", sizes_of_4, Extent::Unknown),
    ("convolution_input", convolution_input, Extent::Unknown),
    ("merged_of_4", merged_of_4, Extent::Unknown),
    ("sizes_of_5", sizes_of_5, Extent::Unknown),
    ("sizes_of_4_second", sizes_of_4_second, Extent::Unknown),
    ("sizes_of_5_second", sizes_of_5_second, Extent::Unknown),
    ("same_of_4", same_of_4, Extent::Shapes),
    ("same_of_5", same_of_5, Extent::Unknown),
    ("same_of_5_second", same_of_5_second, Extent::Unknown),
    ("bias_gradient", bias_gradient, Extent::Shapes),
    ("global_norm", global_norm, Extent::Unknown),
    ("global_norm_gradient", global_norm_gradient, Extent::Unknown),
    ("batch_norm", batch_norm, Extent::Shapes),
    ("batch_norm_gradient", batch_norm_gradient, Extent::Shapes),
    ("resize", resize, Extent::Unknown),
    ("space_to_batch", space_to_batch, Extent::Unknown),
    ("batch_to_space", batch_to_space, Extent::Unknown),
    ("space_to_batch_nd", space_to_batch_nd, Extent::Unknown),
    ("batch_to_space_nd", batch_to_space_nd, Extent::Unknown),
    ("space_to_depth", space_to_depth, Extent::Unknown),
    ("depth_to_space", depth_to_space, Extent::Unknown),
];

/// A window that slides over an image, along one axis.
#[derive(Clone, Copy)]
struct Window {
    size: Size,
    stride: i64,
    dilation: i64,
    /// Explicit padding, before and after.
    padding: (i64, i64),
}

/// The number of elements between the first and the last one under a window, both included; `None` if its size is unknown.
fn span(window: Window) -> Option<i64> {
    let size = i64::try_from(window.size.known()?).ok()?;
    size.checked_sub(1)?.checked_mul(window.dilation)?.checked_add(1)
}

/// As [`places`], along an axis on which the image, with its explicit padding, cannot be smaller than the window. TensorFlow
/// refuses such a node when it is added to a graph; a kernel has no position for the window, and its output no elements.
fn fitted(call: &Call, at: usize, size: Size, window: Window) -> Option<Size> {
    let padding = match call.node.attrs.str("padding").ok()? {
        "SAME" => return places(call, size, window),
        "VALID" => 0,
        _ => window.padding.0.checked_add(window.padding.1)?,
    };
    let own = size.known().and_then(|size| i64::try_from(size).ok()?.checked_add(padding));
    if let (Some(own), Some(span)) = (own, span(window))
        && own < span
    {
        let padded = if padding == 0 { "" } else { " with its padding" };
        return call
            .refuse(|| format!("the window spans {span} elements along axis {at}, and the image{padded} has {own}"));
    }
    places(call, size, window)
}

/// The number of positions of a window along an axis.
fn places(call: &Call, size: Size, window: Window) -> Option<Size> {
    let Window { stride, padding: (before, after), .. } = window;
    let padding = call.node.attrs.str("padding").ok()?;
    if stride <= 0 {
        return None;
    }
    if padding == "SAME" && stride == 1 {
        return Some(size);
    }
    let count = |size: usize| {
        let size = i64::try_from(size).ok()?;
        let count = match padding {
            "SAME" => size.checked_add(stride - 1)? / stride,
            "VALID" => size.checked_sub(span(window)?)?.checked_add(stride)? / stride,
            _ => {
                size.checked_add(before)?.checked_add(after)?.checked_sub(span(window)?)?.checked_add(stride)? / stride
            }
        };
        usize::try_from(count).ok()
    };
    Some(call.map(size, count))
}

/// The axis of the channels, and the first of the spatial axes.
fn layout(call: &Call, rank: usize) -> (usize, usize) {
    let format = call.node.attrs.str("data_format").unwrap_or_default();
    if format.starts_with("NC") { (1, 2) } else { (rank - 1, 1) }
}

/// An attribute with a number for each axis of an image.
fn of_axes(call: &Call, attr: &str, rank: usize) -> Option<Vec<i64>> {
    Some(call.node.attrs.ints(attr).ok()?.to_vec()).filter(|all| all.len() == rank)
}

/// The output image of a convolution; `channels` of its filter.
fn convolved(call: &Call, rank: usize, channels: Option<Size>) -> Option<Vec<Fact>> {
    let (mut dims, filter) = (call.only_of_rank(0, rank)?, call.only_of_rank(1, rank)?);
    let strides = of_axes(call, "strides", rank)?;
    let dilations = of_axes(call, "dilations", rank).unwrap_or_else(|| vec![1; rank]);
    let paddings = call.node.attrs.ints("explicit_paddings").unwrap_or_default();
    let (channel, first) = layout(call, rank);
    for (at, &size) in (first..).zip(&filter[..rank - 2]) {
        let padding = (paddings.get(2 * at).copied().unwrap_or(0), paddings.get(2 * at + 1).copied().unwrap_or(0));
        let window = Window { size, stride: strides[at], dilation: dilations[at], padding };
        dims[at] = fitted(call, at, dims[at], window)?;
    }
    // The channels may be in groups.
    if let (None, Some(own), Some(each)) = (channels, dims[channel].known(), filter[rank - 2].known())
        && !(each > 0 && own.is_multiple_of(each))
    {
        return call.refuse(|| format!("the image has {own} channels, and the filter takes {each}"));
    }
    dims[channel] = channels.unwrap_or(filter[rank - 1]);
    one(dims)
}

pub(super) fn conv2d(call: &Call) -> Option<Vec<Fact>> {
    convolved(call, 4, None)
}

fn conv3d(call: &Call) -> Option<Vec<Fact>> {
    convolved(call, 5, None)
}

/// A convolution of each channel with separate filters.
fn depthwise(call: &Call) -> Option<Vec<Fact>> {
    let (image, filter) = (call.only_of_rank(0, 4)?, call.only_of_rank(1, 4)?);
    let own = call.common("the numbers of channels", image[layout(call, 4).0], filter[2])?;
    let channels = match (own.known(), filter[3].known()) {
        (Some(own), Some(each)) => call.size(own.checked_mul(each)),
        _ => call.size(None),
    };
    convolved(call, 4, Some(channels))
}

fn pooled(call: &Call, rank: usize) -> Option<Vec<Fact>> {
    // The layout NCHW_VECT_C has one axis more.
    let has_more = call.node.attrs.str("data_format").is_ok_and(|format| format.len() > rank);
    let mut dims = if has_more { call.of_rank(0, rank)? } else { call.only_of_rank(0, rank)? };
    let (windows, strides) = (of_axes(call, "ksize", rank)?, of_axes(call, "strides", rank)?);
    let paddings = call.node.attrs.ints("explicit_paddings").unwrap_or_default();
    for at in 0..rank {
        if (windows[at], strides[at]) != (1, 1) {
            let padding = (paddings.get(2 * at).copied().unwrap_or(0), paddings.get(2 * at + 1).copied().unwrap_or(0));
            let size = Size::Known(usize::try_from(windows[at]).ok()?);
            dims[at] = fitted(call, at, dims[at], Window { size, stride: strides[at], dilation: 1, padding })?;
        }
    }
    one(dims)
}

pub(super) fn pool2d(call: &Call) -> Option<Vec<Fact>> {
    pooled(call, 4)
}

fn pool3d(call: &Call) -> Option<Vec<Fact>> {
    pooled(call, 5)
}

/// The largest elements, and their indices, in the same shape.
fn pool2d_twice(call: &Call) -> Option<Vec<Fact>> {
    let mut facts = pool2d(call)?;
    facts.extend_from_within(..);
    Some(facts)
}

/// The elements of each window, as channels. TensorFlow infers neither height nor width if one is unknown.
fn patches(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.of_rank(0, 4)?;
    let (windows, strides) = (of_axes(call, "ksizes", 4)?, of_axes(call, "strides", 4)?);
    let rates = of_axes(call, "rates", 4)?;
    let sizes = [1, 2].map(|at| usize::try_from(windows[at]).ok());
    let are_known = dims[1..3].iter().all(|size| size.known().is_some());
    for at in [1, 2] {
        let window =
            Window { size: Size::Known(sizes[at - 1]?), stride: strides[at], dilation: rates[at], padding: (0, 0) };
        dims[at] = if are_known { places(call, dims[at], window)? } else { call.size(None) };
    }
    dims[3] = call.map(dims[3], |channels| sizes[0]?.checked_mul(sizes[1]?)?.checked_mul(channels));
    one(dims)
}

/// The shape that an input holds, of a tensor of that rank.
fn sizes(call: &Call, input: usize, rank: usize) -> Option<Vec<Fact>> {
    match call.sizes(input) {
        Some(dims) => one(dims).filter(|facts| facts[0].dims.as_ref().is_some_and(|dims| dims.len() == rank)),
        None => one(call.unknown(rank)),
    }
}

fn sizes_of_4(call: &Call) -> Option<Vec<Fact>> {
    sizes(call, 0, 4)
}

/// As [`sizes`], for the images of a convolution: the batch size is that of the third input.
fn convolution_input(call: &Call) -> Option<Vec<Fact>> {
    let mut facts = sizes(call, 0, 4)?;
    if let (Some(dims), Some(answers), false) = (&mut facts[0].dims, call.dims(2), call.doubts_state()) {
        dims[0] = merge_sizes(dims[0], *answers.first()?)?;
    }
    Some(facts)
}

/// The shape of all inputs, which are images.
fn merged_of_4(call: &Call) -> Option<Vec<Fact>> {
    match call.merged(0..call.len()) {
        Some(dims) => one(dims).filter(|facts| facts[0].dims.as_ref().is_some_and(|dims| dims.len() == 4)),
        None => same_of_4(call),
    }
}

fn sizes_of_5(call: &Call) -> Option<Vec<Fact>> {
    sizes(call, 0, 5)
}

fn sizes_of_4_second(call: &Call) -> Option<Vec<Fact>> {
    sizes(call, 1, 4)
}

fn sizes_of_5_second(call: &Call) -> Option<Vec<Fact>> {
    sizes(call, 1, 5)
}

fn same_of_4(call: &Call) -> Option<Vec<Fact>> {
    one(call.of_rank(0, 4)?)
}

fn same_of_5(call: &Call) -> Option<Vec<Fact>> {
    one(call.of_rank(0, 5)?)
}

fn same_of_5_second(call: &Call) -> Option<Vec<Fact>> {
    one(call.of_rank(1, 5)?)
}

/// The sums over all but the channels.
fn bias_gradient(call: &Call) -> Option<Vec<Fact>> {
    let Some(dims) = call.dims(0) else { return one(call.unknown(1)) };
    let channel = if call.node.attrs.str("data_format").ok()? == "NCHW" { dims.get(1) } else { dims.last() };
    one(vec![*channel?])
}

/// The rank of images, according to the data format.
fn image_rank(call: &Call) -> usize {
    if call.node.attrs.str("data_format").is_ok_and(|format| format.len() == 5) { 5 } else { 4 }
}

/// The normalised image, and the means and variances of its channels.
fn batch_norm(call: &Call) -> Option<Vec<Fact>> {
    let rank = image_rank(call);
    let mut dims = call.of_rank(0, rank)?;
    let (channel, _) = layout(call, rank);
    for input in 1..call.len().min(3) {
        dims[channel] = merge_sizes(dims[channel], call.of_rank(input, 1)?[0])?;
    }
    let of_channels: Dims = vec![dims[channel]];
    let mut facts: Vec<Fact> = vec![dims.into()];
    facts.extend((0..4).map(|_| Fact::from(of_channels.clone())));
    Some(facts)
}

/// The gradients with respect to the image, the scale and the offset; the other outputs have no elements.
fn batch_norm_gradient(call: &Call) -> Option<Vec<Fact>> {
    let rank = image_rank(call);
    let (by_output, image) = (call.of_rank(0, rank)?, call.of_rank(1, rank)?);
    let (channel, _) = layout(call, rank);
    let mut dims: Dims = by_output.clone();
    for input in 2..call.len().min(5) {
        dims[channel] = merge_sizes(dims[channel], call.of_rank(input, 1)?[0])?;
    }
    dims[channel] = merge_sizes(dims[channel], image[channel])?;
    let of_channels: Dims = vec![dims[channel]];
    let nothing: Dims = vec![Size::Known(0)];
    Some(vec![dims.into(), of_channels.clone().into(), of_channels.into(), nothing.clone().into(), nothing.into()])
}

/// Images of the height and width in the second input.
pub(super) fn resize(call: &Call) -> Option<Vec<Fact>> {
    let image = call.of_rank(0, 4)?;
    let size = super::picture::stated_size(call, 1)?;
    one(vec![image[0], size[0], size[1], image[3]])
}

/// The division of an axis into blocks, or its reassembly from blocks.
enum Blocks {
    Into,
    OutOf,
}

/// Blocks of the axes after the first, whose elements are moved into the first axis or out of it.
fn batched(call: &Call, block: Option<&[usize]>, edges_in: usize, blocks: &Blocks) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let Some(block) = block else {
        let Some(count) = call.count(1) else { return one(call.unknown(dims.len())) };
        dims.get_mut(..=count)?.fill_with(|| call.size(None));
        return one(dims);
    };
    let edges = call.counts(edges_in);
    let all = block.iter().try_fold(1usize, |all, &each| all.checked_mul(each))?;
    dims[0] = call.map(*dims.first()?, |batch| match blocks {
        Blocks::Into => batch.checked_mul(all),
        Blocks::OutOf => batch.checked_div(all),
    });
    for (i, &each) in block.iter().enumerate() {
        let edge = || edges.as_ref()?.get(2 * i)?.checked_add(*edges.as_ref()?.get(2 * i + 1)?);
        let size = *dims.get(i + 1)?;
        dims[i + 1] = call.map(size, |size| match blocks {
            Blocks::Into => size.checked_add(edge()?)?.checked_div(each),
            Blocks::OutOf => size.checked_mul(each)?.checked_sub(edge()?),
        });
    }
    one(dims)
}

fn block_size(call: &Call) -> Option<usize> {
    usize::try_from(call.int("block_size")?).ok()
}

fn space_to_batch(call: &Call) -> Option<Vec<Fact>> {
    of_images(call, &Blocks::Into)
}

fn batch_to_space(call: &Call) -> Option<Vec<Fact>> {
    of_images(call, &Blocks::OutOf)
}

fn of_images(call: &Call, blocks: &Blocks) -> Option<Vec<Fact>> {
    let size = block_size(call)?;
    match call.dims(0) {
        Some(dims) if dims.len() == 4 => batched(call, Some(&[size, size]), 1, blocks),
        Some(_) => None,
        None => one(call.unknown(4)),
    }
}

fn space_to_batch_nd(call: &Call) -> Option<Vec<Fact>> {
    batched(call, call.counts(1).as_deref(), 2, &Blocks::Into)
}

fn batch_to_space_nd(call: &Call) -> Option<Vec<Fact>> {
    batched(call, call.counts(1).as_deref(), 2, &Blocks::OutOf)
}

fn space_to_depth(call: &Call) -> Option<Vec<Fact>> {
    deepened(call, &Blocks::Into)
}

fn depth_to_space(call: &Call) -> Option<Vec<Fact>> {
    deepened(call, &Blocks::OutOf)
}

/// Blocks of pixels, whose elements are moved into the channels or out of them.
fn deepened(call: &Call, blocks: &Blocks) -> Option<Vec<Fact>> {
    let mut dims = call.of_rank(0, 4)?;
    let size = block_size(call)?;
    let (channel, first) = layout(call, 4);
    let (into_channels, out_of_axes) = (size.checked_mul(size)?, size);
    for size in &mut dims[first..first + 2] {
        *size = call.map(*size, |own| match blocks {
            Blocks::Into => own.checked_div(out_of_axes),
            Blocks::OutOf => own.checked_mul(out_of_axes),
        });
    }
    dims[channel] = call.map(dims[channel], |own| match blocks {
        Blocks::Into => own.checked_mul(into_channels),
        Blocks::OutOf => own.checked_div(into_channels),
    });
    one(dims)
}

/// Images and vectors with one element per channel: the shape of the images, combined with the lengths of the vectors.
fn normalized(call: &Call, images: &[usize], vectors: std::ops::Range<usize>) -> Option<Dims> {
    let mut dims = call.merged(images.iter().copied()).unwrap_or_else(|| call.unknown(4));
    let channels = dims.get(3).copied().filter(|_| dims.len() == 4)?;
    let mut own = vectors.map(|input| call.of_rank(input, 1));
    dims[3] = own.try_fold(channels, |channels, own| merge_sizes(channels, own?[0]))?;
    Some(dims)
}

fn global_norm(call: &Call) -> Option<Vec<Fact>> {
    one(normalized(call, &[0], 1..5)?)
}

fn global_norm_gradient(call: &Call) -> Option<Vec<Fact>> {
    let dims = normalized(call, &[0, 4], 1..4)?;
    let channels = dims[3];
    Some(std::iter::once(dims).chain((0..4).map(|_| vec![channels])).map(Fact::from).collect())
}
