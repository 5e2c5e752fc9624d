//! Images: sampling at places of a grid, boxes, decoding.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("AffineGrid", 20, affine_grid),
    onnx("GridSample", 16, grid_sample),
    onnx("ImageDecoder", 20, image_decoder),
    onnx("NonMaxSuppression", 10, non_max_suppression),
    onnx("RoiAlign", 10, roi_align),
];

/// How coordinates outside of an image are read.
#[derive(Clone, Copy, PartialEq)]
enum Border {
    Zeros,
    Nearest,
    Reflected { align: bool },
}

/// An image as `[batch, pixels, channels]`, with its spatial sizes.
struct Pixels {
    flat: Output,
    sizes: Vec<Size>,
    border: Border,
}

impl Pixels {
    /// The pixels at whole coordinates, each `[batch, places]` and float; `[batch, places, channels]`.
    fn at(&self, cx: &mut Cx, coordinates: &[Output]) -> Result<Output> {
        let mut number = None;
        let mut inside = None;
        for (&at, &size) in coordinates.iter().zip(&self.sizes) {
            let size_of = cx.scalar(size)?;
            let limit = cx.cast(size_of, cx.em.dtype(at))?;
            let last = op!(cx.em, "Sub", limit, 1.0)?;
            let at = match self.border {
                Border::Reflected { align } => reflected(cx, at, limit, align)?,
                _ => at,
            };
            if self.border == Border::Zeros {
                let (low, high) = (op!(cx.em, "GreaterEqual", at, 0.0)?, op!(cx.em, "LessEqual", at, last)?);
                let own = op!(cx.em, "LogicalAnd", low, high)?;
                inside = Some(match inside {
                    None => own,
                    Some(other) => op!(cx.em, "LogicalAnd", other, own)?,
                });
            }
            let at = op!(cx.em, "Minimum", at, last)?;
            let at = op!(cx.em, "Maximum", at, 0.0)?;
            let at = cx.long(at)?;
            number = Some(match number {
                None => at,
                Some(other) => {
                    let row = op!(cx.em, "Mul", other, size_of)?;
                    op!(cx.em, "AddV2", row, at)?
                }
            });
        }
        let number = number.ok_or_else(|| Failure::invalid("its image has no axes"))?;
        let values = op!(cx.em, "GatherV2", self.flat, number, 1i64; "batch_dims" => 1i64)?;
        let Some(inside) = inside else { return Ok(values) };
        let inside = cx.unsqueeze(inside, &[2])?;
        let zero = cx.em.number(0.0, cx.em.dtype(values))?;
        op!(cx.em, "SelectV2", inside, values, zero)
    }
}

/// Coordinates reflected at the first and last pixel, or at the outer edges of them.
fn reflected(cx: &mut Cx, at: Output, size: Output, align: bool) -> Result<Output> {
    let (low, span) = if align {
        let span = op!(cx.em, "Sub", size, 1.0)?;
        (0.0, op!(cx.em, "Maximum", span, 1.0)?)
    } else {
        (-0.5, size)
    };
    let from = op!(cx.em, "Sub", at, low)?;
    let from = op!(cx.em, "Abs", from)?;
    // A way forth and back is twice the span.
    let both = op!(cx.em, "Mul", span, 2.0)?;
    let rest = op!(cx.em, "FloorMod", from, both)?;
    let back = op!(cx.em, "Sub", both, rest)?;
    let folded = op!(cx.em, "Minimum", rest, back)?;
    op!(cx.em, "AddV2", folded, low)
}

fn grid_sample(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, grid) = (n.input(0)?, n.input(1)?);
    let align = n.flag("align_corners", false);
    let sizes = cx.sizes(x)?;
    let spatial = sizes.len().checked_sub(2).filter(|&spatial| spatial > 0);
    let spatial = spatial.ok_or_else(|| Failure::invalid("its input has no spatial axes"))?;
    let border = match n.str("padding_mode", "zeros")? {
        "zeros" => Border::Zeros,
        "border" => Border::Nearest,
        "reflection" => Border::Reflected { align },
        other => return Err(Failure::invalid(format!("padding_mode is {other:?}"))),
    };
    let count = cx.product(&sizes[2..])?;
    let flat = cx.reshape(x, &[sizes[0], sizes[1], count])?;
    let flat = cx.transpose(flat, &[0, 2, 1])?;
    let pixels = Pixels { flat, sizes: sizes[2..].to_vec(), border };
    let places = cx.sizes(grid)?;
    let total = cx.product(&places[1..places.len() - 1])?;
    let grid = cx.reshape(grid, &[places[0], total, Size::Known(spatial as i64)])?;
    // The grid names the last axis first.
    let mut at = Vec::new();
    for axis in 0..spatial {
        let own = op!(cx.em, "GatherV2", grid, (spatial - 1 - axis) as i64, 2i64)?;
        let size = cx.scalar(sizes[2 + axis])?;
        let size = cx.cast(size, cx.em.dtype(own))?;
        let own = op!(cx.em, "AddV2", own, 1.0)?;
        let span = if align { op!(cx.em, "Sub", size, 1.0)? } else { size };
        let half = op!(cx.em, "Mul", span, 0.5)?;
        let own = op!(cx.em, "Mul", own, half)?;
        let own = if align { own } else { op!(cx.em, "Sub", own, 0.5)? };
        // The place itself is limited before its neighbours are looked up.
        at.push(match border {
            Border::Zeros => own,
            Border::Nearest => {
                let last = op!(cx.em, "Sub", size, 1.0)?;
                let own = op!(cx.em, "Minimum", own, last)?;
                op!(cx.em, "Maximum", own, 0.0)?
            }
            Border::Reflected { .. } => reflected(cx, own, size, align)?,
        });
    }
    let mode = n.str("mode", "linear")?;
    let y = match mode {
        "nearest" => {
            let at = at.iter().map(|&at| op!(cx.em, "Rint", at)).collect::<Result<Vec<_>>>()?;
            pixels.at(cx, &at)?
        }
        "linear" | "bilinear" => weighted(cx, &pixels, &at, false)?,
        "cubic" | "bicubic" => {
            // A cubic sample is not limited first: its neighbours are.
            weighted(cx, &pixels, &at, true)?
        }
        other => return Err(Failure::invalid(format!("mode is {other:?}"))),
    };
    let y = cx.transpose(y, &[0, 2, 1])?;
    let mut out = vec![sizes[0], sizes[1]];
    out.extend_from_slice(&places[1..places.len() - 1]);
    one(cx.reshape(y, &out)?)
}

/// The sum of the neighbours of places, each by its share: two along each axis, or four.
fn weighted(cx: &mut Cx, pixels: &Pixels, at: &[Output], is_cubic: bool) -> Result<Output> {
    let taps: usize = if is_cubic { 4 } else { 2 };
    // The place and share of each tap along each axis.
    let mut along: Vec<Vec<(Output, Output)>> = Vec::new();
    for &at in at {
        let floor = op!(cx.em, "Floor", at)?;
        let share = op!(cx.em, "Sub", at, floor)?;
        let mut own = Vec::new();
        for tap in 0..taps {
            let offset = tap as f64 - if is_cubic { 1.0 } else { 0.0 };
            let place = if offset == 0.0 { floor } else { op!(cx.em, "AddV2", floor, offset)? };
            let distance = op!(cx.em, "Sub", share, offset)?;
            let distance = op!(cx.em, "Abs", distance)?;
            let weight = if is_cubic { cubic(cx, distance, tap)? } else { op!(cx.em, "Sub", 1.0, distance)? };
            own.push((place, weight));
        }
        along.push(own);
    }
    let mut sum = None;
    for corner in 0..taps.pow(at.len() as u32) {
        let mut rest = corner;
        let mut places = Vec::new();
        let mut weight: Option<Output> = None;
        for own in &along {
            let (place, share) = own[rest % taps];
            rest /= taps;
            places.push(place);
            weight = Some(match weight {
                None => share,
                Some(other) => op!(cx.em, "Mul", other, share)?,
            });
        }
        let values = pixels.at(cx, &places)?;
        let weight = weight.ok_or_else(|| Failure::invalid("its image has no axes"))?;
        let weight = cx.cast(weight, cx.em.dtype(values))?;
        let weight = cx.unsqueeze(weight, &[2])?;
        let part = op!(cx.em, "Mul", values, weight)?;
        sum = Some(match sum {
            None => part,
            Some(other) => op!(cx.em, "AddV2", other, part)?,
        });
    }
    sum.ok_or_else(|| Failure::invalid("its image has no axes"))
}

/// The cubic filter, near for the two middle taps.
fn cubic(cx: &mut Cx, d: Output, tap: usize) -> Result<Output> {
    const A: f64 = -0.75;
    let y = if tap == 1 || tap == 2 {
        let y = op!(cx.em, "Mul", d, A + 2.0)?;
        let y = op!(cx.em, "Sub", y, A + 3.0)?;
        let y = op!(cx.em, "Mul", y, d)?;
        let y = op!(cx.em, "Mul", y, d)?;
        return op!(cx.em, "AddV2", y, 1.0);
    } else {
        let y = op!(cx.em, "Sub", d, 5.0)?;
        let y = op!(cx.em, "Mul", y, d)?;
        let y = op!(cx.em, "AddV2", y, 8.0)?;
        op!(cx.em, "Mul", y, d)?
    };
    let y = op!(cx.em, "Sub", y, 4.0)?;
    op!(cx.em, "Mul", y, A)
}

fn affine_grid(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (theta, size) = (n.input(0)?, n.input(1)?);
    let align = n.flag("align_corners", false);
    let dtype = cx.em.dtype(theta);
    let spatial = match cx.em.size(theta, 1) {
        Some(rows @ 2..=3) => rows,
        _ => return Err(unsupported("unsupported: an affine grid of other than two or three axes")),
    };
    let size = cx.long(size)?;
    let mut sizes = Vec::new();
    for i in 0..spatial + 2 {
        sizes.push(match cx.em.some_ints(size).and_then(|all| all.get(i).copied().flatten()) {
            Some(size) => Size::Known(size),
            None => Size::Of(op!(cx.em, "GatherV2", size, i as i64, 0i64)?),
        });
    }
    let shape = cx.packed(&sizes[2..])?;
    let mut coordinates = Vec::new();
    // The last axis comes first.
    for axis in (0..spatial).rev() {
        let count = sizes[2 + axis];
        let range = cx.range(count)?;
        let range = cx.cast(range, dtype)?;
        let count = cx.scalar(count)?;
        let count = cx.cast(count, dtype)?;
        let at = if align {
            let steps = op!(cx.em, "Sub", count, 1.0)?;
            let steps = op!(cx.em, "Maximum", steps, 1.0)?;
            let at = op!(cx.em, "RealDiv", range, steps)?;
            let at = op!(cx.em, "Mul", at, 2.0)?;
            let at = op!(cx.em, "Sub", at, 1.0)?;
            let single = op!(cx.em, "LessEqual", count, 1.0)?;
            let zero = cx.em.number(0.0, dtype)?;
            op!(cx.em, "SelectV2", single, zero, at)?
        } else {
            let at = op!(cx.em, "Mul", range, 2.0)?;
            let at = op!(cx.em, "AddV2", at, 1.0)?;
            let at = op!(cx.em, "RealDiv", at, count)?;
            op!(cx.em, "Sub", at, 1.0)?
        };
        let at = cx.unsqueeze(at, &(1..spatial - axis).collect::<Vec<_>>())?;
        coordinates.push(op!(cx.em, "BroadcastTo", at, shape)?.into());
    }
    let ones = cx.fill(shape, 1.0, dtype)?;
    coordinates.push(ones.into());
    let points = cx.em.add("Pack", coordinates, &[("axis", Attr::Int(spatial as i64))])?;
    let count = cx.product(&sizes[2..])?;
    let points = cx.reshape(points, &[count, Size::Known(spatial as i64 + 1)])?;
    // [batch, points, spatial]
    let y = op!(cx.em, "BatchMatMulV2", points, theta; "adj_y" => true)?;
    let batch = cx.size(theta, 0)?;
    let out: Vec<Size> =
        [batch].into_iter().chain(sizes[2..].iter().copied()).chain([Size::Known(spatial as i64)]).collect();
    one(cx.reshape(y, &out)?)
}

fn image_decoder(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    // The bytes of a file, as one string.
    let bytes = cx.cast(x, DType::U8)?;
    let places = cx.long(bytes)?;
    let characters = op!(cx.em, "GatherV2", byte_strings(), places, 0i64)?;
    let text = op!(cx.em, "ReduceJoin", characters, Tensor::vector(vec![0i32]))?;
    let channels = match n.str("pixel_format", "RGB")? {
        "Grayscale" => 1i64,
        _ => 3,
    };
    let image = op!(cx.em, "DecodeImage", text; "channels" => channels, "expand_animations" => false)?;
    let image = op!(cx.em, "EnsureShape", image; "shape" => meshtf_tensor::PartialShape::from([None, None, Some(channels as usize)]))?;
    match n.str("pixel_format", "RGB")? {
        "BGR" => one(op!(cx.em, "ReverseV2", image, [2i64])?),
        _ => one(image),
    }
}

/// Each byte as a string.
fn byte_strings() -> Tensor {
    Tensor::vector((0..=u8::MAX).map(|byte| vec![byte]).collect::<Vec<Vec<u8>>>())
}

/// Boxes and scores `[batches, boxes, 4]` and `[batches, classes, boxes]`: the numbers of batch, class and box of those selected.
fn non_max_suppression(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    /// Batches and classes are unrolled.
    const MAX: usize = 1 << 12;
    let (boxes, scores) = (n.input(0)?, n.input(1)?);
    let (batches, classes) = (cx.em.size(scores, 0).or(cx.em.size(boxes, 0)), cx.em.size(scores, 1));
    let (Some(batches), Some(classes)) = (batches, classes) else {
        return Err(unsupported("unsupported: a number of batches or classes that is not known"));
    };
    if batches.saturating_mul(classes) > MAX {
        return Err(unsupported(format!(
            "unsupported: {batches} batches of {classes} classes, more than {MAX} in all"
        )));
    }
    let scalar = |cx: &mut Cx, i: usize, default: f64, dtype: DType| -> Result<Output> {
        match n.maybe(i)? {
            Some(x) => {
                let x = cx.reshape(x, &[])?;
                cx.cast(x, dtype)
            }
            None => cx.em.number(default, dtype),
        }
    };
    let most = scalar(cx, 2, 0.0, DType::I64)?;
    let most = op!(cx.em, "Minimum", most, i64::from(i32::MAX))?;
    let most = cx.cast(most, DType::I32)?;
    let overlap = scalar(cx, 3, 0.0, DType::F32)?;
    let least = scalar(cx, 4, f64::NEG_INFINITY, DType::F32)?;
    let boxes = if n.int("center_point_box", 0) == 1 {
        let part = |cx: &mut Cx, i: i64| op!(cx.em, "GatherV2", boxes, i, 2i64);
        let (x, y, w, h) = (part(cx, 0)?, part(cx, 1)?, part(cx, 2)?, part(cx, 3)?);
        let (w, h) = (op!(cx.em, "Mul", w, 0.5)?, op!(cx.em, "Mul", h, 0.5)?);
        let (top, bottom) = (op!(cx.em, "Sub", y, h)?, op!(cx.em, "AddV2", y, h)?);
        let (left, right) = (op!(cx.em, "Sub", x, w)?, op!(cx.em, "AddV2", x, w)?);
        op!(cx.em, "Pack", top, left, bottom, right; "axis" => 2i64)?
    } else {
        boxes
    };
    let mut found = Vec::new();
    for batch in 0..batches {
        let own = op!(cx.em, "GatherV2", boxes, batch as i64, 0i64)?;
        let of = op!(cx.em, "GatherV2", scores, batch as i64, 0i64)?;
        for class in 0..classes {
            let scores = op!(cx.em, "GatherV2", of, class as i64, 0i64)?;
            let kept = op!(cx.em, "NonMaxSuppressionV3", own, scores, most, overlap, least)?;
            let kept = cx.long(kept)?;
            let kept = op!(cx.em, "ExpandDims", kept, 1i64)?;
            let sides = Tensor::from_vec([2, 2], vec![0i64, 0, 2, 0]);
            let rows = op!(cx.em, "Pad", kept, sides)?;
            let offset = Tensor::vector(vec![batch as i64, class as i64, 0]);
            found.push(op!(cx.em, "AddV2", rows, offset)?);
        }
    }
    if found.is_empty() {
        return one(cx.em.constant(Tensor::zeros(DType::I64, [0, 3])?)?);
    }
    one(cx.concat(&found, 0)?)
}

fn roi_align(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, rois, batches) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let (rows, columns) = (n.int("output_height", 1), n.int("output_width", 1));
    let ratio = n.int("sampling_ratio", 0);
    let scale = f64::from(n.float("spatial_scale", 1.0));
    let is_half = n.version >= 16 && n.str("coordinate_transformation_mode", "half_pixel")? == "half_pixel";
    let is_max = n.str("mode", "avg")? == "max";
    if ratio < 1 {
        return Err(unsupported("unsupported: a sampling_ratio of 0, which depends on the regions"));
    }
    if !(1..=4096).contains(&rows) || !(1..=4096).contains(&columns) || ratio > 64 {
        return Err(Failure::invalid(format!("its output is {rows} by {columns}, its sampling_ratio {ratio}")));
    }
    let (sizes, dtype) = (cx.sizes(x)?, cx.em.dtype(x));
    let [_, channels, height, width] = sizes[..] else { return Err(Failure::invalid("its input is not of rank 4")) };
    let count = cx.size(rois, 0)?;
    let mut axes = Vec::new();
    // Rows, and then columns: the coordinates of the samples, [regions, samples].
    for (i, cells, size) in [(1i64, rows, height), (0, columns, width)] {
        let (low, high) = (op!(cx.em, "GatherV2", rois, i, 1i64)?, op!(cx.em, "GatherV2", rois, i + 2, 1i64)?);
        let offset = if is_half { -0.5 } else { 0.0 };
        let (low, high) = (op!(cx.em, "Mul", low, scale)?, op!(cx.em, "Mul", high, scale)?);
        let (low, high) = (op!(cx.em, "AddV2", low, offset)?, op!(cx.em, "AddV2", high, offset)?);
        let span = op!(cx.em, "Sub", high, low)?;
        let span = if is_half { span } else { op!(cx.em, "Maximum", span, 1.0)? };
        let samples: Vec<f64> =
            (0..cells * ratio).map(|sample| ((sample as f64) + 0.5) / (cells * ratio) as f64).collect();
        let samples = cx.em.constant(Tensor::vector(samples))?;
        let samples = cx.cast(samples, dtype)?;
        let (low, span) = (cx.unsqueeze(low, &[1])?, cx.unsqueeze(span, &[1])?);
        let at = op!(cx.em, "Mul", span, samples)?;
        let at = op!(cx.em, "AddV2", at, low)?;
        // A sample more than a pixel outside counts as zero; others lie on the edge.
        let size = cx.scalar(size)?;
        let limit = cx.cast(size, dtype)?;
        let (above, below) = (op!(cx.em, "LessEqual", at, limit)?, op!(cx.em, "GreaterEqual", at, -1.0)?);
        let inside = op!(cx.em, "LogicalAnd", above, below)?;
        let last = op!(cx.em, "Sub", limit, 1.0)?;
        let at = op!(cx.em, "Minimum", at, last)?;
        let at = op!(cx.em, "Maximum", at, 0.0)?;
        axes.push((at, inside, last));
    }
    // [regions, rows of samples, columns of samples, channels] of each corner.
    let moved = cx.transpose(x, &[0, 2, 3, 1])?;
    let batches = cx.long(batches)?;
    let batches = cx.unsqueeze(batches, &[1, 2])?;
    let (tall, wide) = (rows * ratio, columns * ratio);
    let shape = cx.packed(&[count, Size::Known(tall), Size::Known(wide)])?;
    let mut corners = Vec::new();
    for corner in 0..4 {
        let mut places = vec![op!(cx.em, "BroadcastTo", batches, shape)?.into()];
        let mut weight = None;
        for (axis, (at, inside, last)) in axes.iter().enumerate() {
            let floor = op!(cx.em, "Floor", *at)?;
            let share = op!(cx.em, "Sub", *at, floor)?;
            let (place, share) = if corner >> axis & 1 == 0 {
                (floor, op!(cx.em, "Sub", 1.0, share)?)
            } else {
                let next = op!(cx.em, "AddV2", floor, 1.0)?;
                (op!(cx.em, "Minimum", next, *last)?, share)
            };
            let zero = cx.em.number(0.0, dtype)?;
            let share = op!(cx.em, "SelectV2", *inside, share, zero)?;
            let place = cx.long(place)?;
            let (place, share) = (cx.unsqueeze(place, &[2 - axis])?, cx.unsqueeze(share, &[2 - axis])?);
            places.push(op!(cx.em, "BroadcastTo", place, shape)?.into());
            weight = Some(match weight {
                None => share,
                Some(other) => op!(cx.em, "Mul", other, share)?,
            });
        }
        let places = cx.em.add("Pack", places, &[("axis", Attr::Int(3))])?;
        let values = op!(cx.em, "GatherNd", moved, places)?;
        let weight = weight.ok_or_else(|| Failure::invalid("its image has no axes"))?;
        let weight = cx.unsqueeze(weight, &[3])?;
        corners.push(op!(cx.em, "Mul", values, weight)?);
    }
    let Some((&first, rest)) = corners.split_first() else { return Err(Failure::invalid("its image has no corners")) };
    // The greatest of the weighted corners, or the mean of their sums.
    let name = if is_max { "Maximum" } else { "AddV2" };
    let sample = rest.iter().try_fold(first, |sum, &corner| op!(cx.em, name, sum, corner))?;
    let k = Size::Known(ratio);
    let cells = cx.reshape(sample, &[count, Size::Known(rows), k, Size::Known(columns), k, channels])?;
    let y = cx.reduce(if is_max { "Max" } else { "Mean" }, cells, &[2, 4], false)?;
    one(cx.transpose(y, &[0, 3, 1, 2])?)
}
