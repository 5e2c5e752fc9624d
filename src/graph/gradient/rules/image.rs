//! Images in other sizes, and the patches of images.

use super::Rule;
use crate::graph::gradient::call::{Call, Grads, one, some};
use crate::graph::{Attr, Input};
use crate::tensor::DType;

const RESIZE: &[&str] = &["align_corners", "half_pixel_centers"];

pub(super) fn named(op: &str) -> Option<Rule> {
    Some(match op {
        "ResizeBilinear" => |c| {
            let (x, dy) = (c.x(0), c.dy()?);
            one(c.with_attrs("ResizeBilinearGrad", &[dy, x], RESIZE)?)
        },
        "ResizeNearestNeighbor" => |c| {
            let (x, dy) = (c.x(0), c.dy()?);
            let shape = c.shape(x)?;
            let size = c.part(shape, 1, Some(3))?;
            one(c.with_attrs("ResizeNearestNeighborGrad", &[dy, size], RESIZE)?)
        },
        "ResizeBicubic" => |c| {
            let (x, dy) = (c.x(0), c.dy()?);
            one(c.with_attrs("ResizeBicubicGrad", &[dy, x], RESIZE)?)
        },
        "CropAndResize" => crop,
        "ExtractImagePatches" => patches,
        _ => return None,
    })
}

/// By the images, if they are floats, and by the boxes, for which mixed pixels stand whatever the method.
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

/// The numbers of the pixels, from 1, are cut into the same patches, which says where each element belongs: those of 0 lie
/// beside the image.
fn patches(c: &mut Call) -> Grads {
    let (x, dy) = (c.x(0), c.dy()?);
    let shape = c.shape(x)?;
    let plane = c.part(shape, 1, Some(3))?;
    let pixels = c.op("Prod").input(plane).input([0]).build()?;
    let slots = c.add(pixels, 1)?;
    let numbers = c.op("Range").name("range").input(1).input(slots).input(1).build()?;
    let one_each = c.concat([Input::from([1]), plane.into(), [1].into()], 0)?;
    let numbers = c.reshape(numbers, one_each)?;
    let places = c.with_attrs("ExtractImagePatches", &[numbers], &["ksizes", "strides", "rates", "padding"])?;
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
