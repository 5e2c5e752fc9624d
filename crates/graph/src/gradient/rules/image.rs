//! Gradients of ops that resize images, convert their colours, or extract patches.

use meshtf_tensor::DType;

use super::Rule;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, one, some};
use crate::{Attr, Input, Output};

const RESIZE: &[&str] = &["align_corners", "half_pixel_centers"];

pub(super) const RULES: &[(&str, Rule)] = &[
    ("resize_bilinear", |c| {
        let (x, dy) = (c.x(0), c.dy()?);
        one(c.with_attrs("ResizeBilinearGrad", &[dy, x], RESIZE)?)
    }),
    ("resize_nearest_neighbor", |c| {
        let (x, dy) = (c.x(0), c.dy()?);
        let shape = c.shape(x)?;
        let size = c.part(shape, 1, Some(3))?;
        one(c.with_attrs("ResizeNearestNeighborGrad", &[dy, size], RESIZE)?)
    }),
    ("resize_bicubic", |c| {
        let (x, dy) = (c.x(0), c.dy()?);
        one(c.with_attrs("ResizeBicubicGrad", &[dy, x], RESIZE)?)
    }),
    ("scale_and_translate", |c| {
        let (x, scale, translation, dy) = (c.x(0), c.x(2), c.x(3), c.dy()?);
        let images = c.cast(x, DType::F32)?;
        let inputs = [dy, images, scale, translation];
        let by_images = c.with_attrs("ScaleAndTranslateGrad", &inputs, &["kernel_type", "antialias"])?;
        let by_images = c.cast(by_images, c.dtype(x))?;
        some([Some(by_images), None, None, None])
    }),
    ("image_projective_transform", projected),
    ("crop_and_resize", crop),
    ("rgb_to_hsv", hue_saturation_value),
    ("extract_image_patches", |c| patches(c, 2)),
    ("extract_volume_patches", |c| patches(c, 3)),
];

/// The gradient seen through the inverse transforms, whose matrices have 1 in their last element.
fn projected(c: &mut Call) -> Grads {
    let (x, transforms, dy) = (c.x(0), c.x(1), c.dy()?);
    let flat = c.reshape(transforms, [-1, 8])?;
    let column = c.op("Slice").input(flat).input([0, 0]).input([-1, 1]).build()?;
    let ones = c.un("OnesLike", column)?;
    let whole = c.concat([flat, ones], 1)?;
    let matrices = c.reshape(whole, [-1, 3, 3])?;
    let inverse = c.un("MatrixInverse", matrices)?;
    let inverse = c.reshape(inverse, [-1, 9])?;
    let last = c.op("Slice").input(inverse).input([0, 8]).input([-1, 1]).build()?;
    let scaled = c.div(inverse, last)?;
    let scaled = c.op("Slice").input(scaled).input([0, 0]).input([-1, 8]).build()?;
    let shape = c.shape(x)?;
    let size = c.part(shape, 1, Some(3))?;
    let (op, count) = (c.node.op.name, c.node.inputs.len());
    let (interpolation, fill) = (c.attr("interpolation"), c.attr("fill_mode"));
    let mut by_images = c.op(op).input(dy).input(scaled).input(size);
    if count > 3 {
        by_images = by_images.input(0.0f32);
    }
    let by_images = by_images.attr("interpolation", interpolation).attr("fill_mode", fill).build()?;
    let by_images = Some(Gradient::Dense(by_images));
    Ok(std::iter::once(by_images).chain((1..count).map(|_| None)).collect())
}

/// With respect to the images, if they are floats, and with respect to the boxes, for which bilinear interpolation is assumed
/// whatever the method.
fn crop(c: &mut Call) -> Grads {
    let (image, boxes, indices, dy) = (c.x(0), c.x(1), c.x(2), c.dy()?);
    let dtype = c.dtype(image);
    let by_image = if matches!(dtype, DType::F16 | DType::F32 | DType::F64) {
        let shape = c.shape(image)?;
        let method = c.node.attrs.bytes("method").unwrap_or(b"bilinear").to_vec();
        let made = c.op("CropAndResizeGradImage").input(dy).input(boxes).input(indices).input(shape);
        Some(made.attr("T", dtype).attr("method", Attr::Str(method)).build()?)
    } else {
        None
    };
    let by_boxes = c.op("CropAndResizeGradBoxes").input(dy).input(image).input(boxes).input(indices).build()?;
    some([by_image, Some(by_boxes)])
}

/// The numbers of the pixels, from 1, are cut into the same patches, which gives the destination of each element: those of 0
/// are outside of the image, which has `dimensions` axes in addition to its batch and channels.
fn patches(c: &mut Call, dimensions: i32) -> Grads {
    let (x, dy) = (c.x(0), c.dy()?);
    let shape = c.shape(x)?;
    let space = c.part(shape, 1, Some(1 + dimensions))?;
    let pixels = c.op("Prod").input(space).input([0]).build()?;
    let slots = c.add(pixels, 1)?;
    let numbers = c.op("Range").name("range").input(1).input(slots).input(1).build()?;
    let one_each = c.concat([Input::from([1]), space.into(), [1].into()], 0)?;
    let numbers = c.reshape(numbers, one_each)?;
    let places = c.with_attrs(c.node.op.name, &[numbers], &["ksizes", "strides", "rates", "padding"])?;
    let places = c.reshape(places, [-1])?;
    // [batch, places, channels] to [places, batch * channels]
    let (batch, channels) = (c.element(shape, 0)?, c.element(shape, -1)?);
    let sizes = c.op("Pack").name("stack").input(batch).input(-1).input(channels).build()?;
    let values = c.reshape(dy, sizes)?;
    let values = c.bin("Transpose", values, [1, 0, 2])?;
    let sums = c.op("UnsortedSegmentSum").input(values).input(places).input(slots).build()?;
    let kept = c.op("Slice").input(sums).input([1, 0, 0]).input([-1, -1, -1]).build()?;
    let sums = c.bin("Transpose", kept, [1, 0, 2])?;
    one(c.reshape(sums, shape)?)
}

/// Of the channels red, green and blue in turn, the greatest one, which the other two follow in cyclic order. Ties for the
/// greatest and the least of a pixel are resolved as in TensorFlow; where it divides by zero, the gradient is zero.
fn hue_saturation_value(c: &mut Call) -> Grads {
    let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
    let (x, hsv, dy) = (channels(c, x)?, channels(c, y)?, channels(c, dy)?);
    // Whether a channel is the greatest: the first of equal ones for the greatest, and the last for the least.
    let above = [["GreaterEqual", "GreaterEqual"], ["Greater", "GreaterEqual"], ["Greater", "Greater"]];
    let below = [["Less", "Less"], ["LessEqual", "Less"], ["LessEqual", "LessEqual"]];
    let (mut greatest, mut least, mut is_positive) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..3 {
        greatest.push(compared(c, x, i, above[i])?);
        least.push(compared(c, x, i, below[i])?);
        let positive = c.bin("Greater", x[i], c.num(0.0))?;
        is_positive.push(as_number(c, positive)?);
    }
    let mut by_channel = Vec::new();
    for i in 0..3 {
        let (next, last) = ((i + 1) % 3, (i + 2) % 3);
        // Saturation is 1 - least / greatest.
        let smaller = product_sum(c, [[least[next], x[next]], [least[last], x[last]]])?;
        let square = c.un("Square", x[i])?;
        let if_greatest = c.bin("DivNoNan", smaller, square)?;
        let if_greatest = c.mul(greatest[i], if_greatest)?;
        let larger = product_sum(c, [[greatest[next], x[next]], [greatest[last], x[last]]])?;
        let if_least = c.bin("DivNoNan", least[i], larger)?;
        let saturation = c.sub(if_greatest, if_least)?;
        let saturation = c.mul(is_positive[i], saturation)?;
        // Hue is (next - last) / (greatest - least) of the greatest channel, in sixths, from where that begins.
        let across = c.sub(x[last], x[next])?;
        let range = c.mul(hsv[1], hsv[2])?;
        let if_greatest = over_square(c, across, range)?;
        let if_greatest = chosen(c, &[is_positive[i], greatest[i]], if_greatest)?;
        let mut hue = vec![if_greatest];
        for (other, rest, whole) in [(next, last, [last, next]), (last, next, [last, next])] {
            // Either it is the least, or the third one is.
            let to_other = c.sub(x[other], x[i])?;
            let if_least = over_square(c, across, to_other)?;
            hue.push(chosen(c, &[is_positive[other], greatest[other], least[i]], if_least)?);
            let whole = c.sub(x[whole[0]], x[whole[1]])?;
            let if_between = c.bin("DivNoNan", c.num(1.0), whole)?;
            hue.push(chosen(c, &[is_positive[other], greatest[other], least[rest]], if_between)?);
        }
        let hue = c.op("AddN").inputs(hue).build()?;
        let hue = c.div(hue, c.num(6.0))?;
        let parts = [[dy[0], hue], [dy[1], saturation], [dy[2], greatest[i]]];
        let products = parts.into_iter().map(|[dy, slope]| c.mul(dy, slope)).collect::<Result<Vec<_>, _>>()?;
        by_channel.push(c.op("AddN").inputs(products).build()?);
    }
    one(c.op("Pack").name("stack").inputs(by_channel).attr("axis", -1).build()?)
}

fn channels(c: &mut Call, x: Output) -> Result<[Output; 3], super::Stop> {
    let channels = c.op("Unpack").name("unstack").input(x).attr("num", 3).attr("axis", -1).build()?;
    Ok([0, 1, 2].map(|port| channels.port(port)))
}

/// 1 where a channel compares so with both other channels, in their order, and 0 elsewhere.
fn compared(c: &mut Call, x: [Output; 3], i: usize, with: [&str; 2]) -> Added {
    let others = (0..3).filter(|&other| other != i).zip(with);
    let both = others.map(|(other, op)| c.bin(op, x[i], x[other])).collect::<Result<Vec<_>, _>>()?;
    let both = c.bin("LogicalAnd", both[0], both[1])?;
    as_number(c, both)
}

fn as_number(c: &mut Call, condition: Output) -> Added {
    let dtype = c.t();
    c.cast(condition, dtype)
}

fn product_sum(c: &mut Call, pairs: [[Output; 2]; 2]) -> Added {
    let [[a, b], [x, y]] = pairs;
    let (left, right) = (c.mul(a, b)?, c.mul(x, y)?);
    c.add(left, right)
}

fn over_square(c: &mut Call, x: Output, y: Output) -> Added {
    let square = c.un("Square", y)?;
    c.bin("DivNoNan", x, square)
}

fn chosen(c: &mut Call, conditions: &[Output], x: Output) -> Added {
    conditions.iter().try_fold(x, |x, &condition| c.mul(condition, x))
}
