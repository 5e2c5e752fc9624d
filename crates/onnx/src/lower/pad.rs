//! Padding, and cutting to a size.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Data, Tensor};

use super::shape::like;
use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[onnx("CenterCropPad", 18, center_crop_pad), onnx("Pad", 1, pad)];

/// The padding of each axis, `[rank, 2]`, from a vector of all beginnings and then all ends.
fn sides(cx: &mut Cx, n: &Node, rank: usize) -> Result<Output> {
    let stated = match n.ints("pads").or_else(|| n.ints("paddings")).filter(|_| n.version < 11) {
        Some(pads) => cx.ints(pads)?,
        None => n.input(1)?,
    };
    let stated = cx.long(stated)?;
    let axes = match n.maybe(3)? {
        None => (0..rank).collect(),
        Some(axes) => match cx.em.ints(axes) {
            Some(axes) => cx.axes(&axes, rank)?,
            None => {
                let places = cx.open_axes(axes, rank)?;
                let pairs = op!(cx.em, "Reshape", stated, [2i64, -1])?;
                let pairs = cx.transpose(pairs, &[1, 0])?;
                return op!(cx.em, "ScatterNd", places, pairs, [rank as i64, 2]);
            }
        },
    };
    let count = axes.len() as i64;
    let pairs = cx.reshape(stated, &[Size::Known(2), Size::Known(count)])?;
    let pairs = cx.transpose(pairs, &[1, 0])?;
    if axes.iter().copied().eq(0..rank) {
        return Ok(pairs);
    }
    let places: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
    let places = Tensor::from_vec([axes.len(), 1], places);
    op!(cx.em, "ScatterNd", places, pairs, [rank as i64, 2])
}

fn pad(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (rank, dtype) = (cx.em.rank(x)?, cx.em.dtype(x));
    let known = match n.ints("pads").or_else(|| n.ints("paddings")).filter(|_| n.version < 11) {
        Some(pads) => Some(pads.to_vec()),
        None => cx.em.ints(n.input(1)?),
    };
    let mode = n.str("mode", "constant")?;
    // The paddings of each axis as far as they are known; negative ones cut.
    let known = match (known, n.maybe(3)?) {
        (None, _) => None,
        (Some(pads), None) => Some((pads, (0..rank).collect::<Vec<_>>())),
        (Some(pads), Some(axes)) => match cx.em.ints(axes) {
            Some(axes) => Some((pads, cx.axes(&axes, rank)?)),
            None => None,
        },
    };
    let value = if n.version < 11 {
        Some(Value::Tensor(cx.em.number(n.float("value", 0.0).into(), dtype)?))
    } else {
        n.value(2).cloned()
    };
    let value = match value {
        Some(value) => {
            let value = value.tensor()?;
            Some(if cx.em.rank(value)? > 0 { cx.reshape(value, &[])? } else { value })
        }
        None => None,
    };
    let Some((pads, axes)) = known else {
        let sides = sides(cx, n, rank)?;
        if mode == "edge" || mode == "wrap" {
            let mut sizes = Vec::new();
            for axis in 0..rank {
                let own = op!(cx.em, "GatherV2", sides, axis as i64, 0i64)?;
                let (before, after) =
                    (op!(cx.em, "GatherV2", own, 0i64, 0i64)?, op!(cx.em, "GatherV2", own, 1i64, 0i64)?);
                sizes.push((Size::Of(before), Size::Of(after)));
            }
            return one(by_index(cx, x, &sizes, mode)?);
        }
        return one(padded(cx, x, sides, mode, value)?);
    };
    if pads.len() != 2 * axes.len() {
        return Err(Failure::invalid(format!("pads has {} numbers for {} axes", pads.len(), axes.len())));
    }
    let mut sides = vec![(0i64, 0i64); rank];
    for (i, &axis) in axes.iter().enumerate() {
        sides[axis] = (pads[i], pads[axes.len() + i]);
    }
    let mut y = x;
    for (axis, side) in sides.iter_mut().enumerate() {
        let (before, after) = ((-side.0).max(0), (-side.1).max(0));
        if before > 0 || after > 0 {
            let size = cx.size(y, axis)?;
            let end = cx.compute("Sub", size, Size::Known(after))?;
            y = cx.slice(y, axis, Size::Known(before), Some(end))?;
        }
        *side = (side.0.max(0), side.1.max(0));
    }
    if mode == "edge" || mode == "wrap" {
        let sides: Vec<(Size, Size)> = sides.iter().map(|side| (Size::Known(side.0), Size::Known(side.1))).collect();
        return one(by_index(cx, y, &sides, mode)?);
    }
    let flat: Vec<i64> = sides.iter().flat_map(|side| [side.0, side.1]).collect();
    let sides = cx.em.constant(Tensor::new([rank, 2], Data::I64(flat))?)?;
    let y = padded(cx, y, sides, mode, value)?;
    like(cx, x, y)
}

fn padded(cx: &mut Cx, x: Output, sides: Output, mode: &str, value: Option<Output>) -> Result<Output> {
    match (mode, value) {
        ("constant", None) => op!(cx.em, "Pad", x, sides),
        ("constant", Some(value)) => op!(cx.em, "PadV2", x, sides, value),
        ("reflect", _) => op!(cx.em, "MirrorPad", x, sides; "mode" => "REFLECT"),
        (mode, _) => Err(unsupported(format!("unsupported: mode {mode:?} with paddings that only a step computes"))),
    }
}

/// Padding by taking the elements at certain places again.
fn by_index(cx: &mut Cx, x: Output, sides: &[(Size, Size)], mode: &str) -> Result<Output> {
    let mut y = x;
    for (axis, &(before, after)) in sides.iter().enumerate() {
        if matches!((before, after), (Size::Known(0), Size::Known(0))) {
            continue;
        }
        let size = cx.size(y, axis)?;
        let more = cx.compute("AddV2", before, after)?;
        let total = cx.compute("AddV2", size, more)?;
        let before = cx.scalar(before)?;
        let places = cx.range(total)?;
        let places = op!(cx.em, "Sub", places, before)?;
        let size = cx.scalar(size)?;
        let places = if mode == "wrap" {
            op!(cx.em, "FloorMod", places, size)?
        } else {
            let last = op!(cx.em, "Sub", size, 1i64)?;
            let places = op!(cx.em, "Maximum", places, 0i64)?;
            op!(cx.em, "Minimum", places, last)?
        };
        y = op!(cx.em, "GatherV2", y, places, axis as i64)?;
    }
    Ok(y)
}

fn center_crop_pad(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, target) = (n.input(0)?, n.input(1)?);
    let rank = cx.em.rank(x)?;
    let axes = match n.ints("axes") {
        Some(axes) => cx.axes(axes, rank)?,
        None => (0..rank).collect(),
    };
    let target = cx.long(target)?;
    let mut y = x;
    for (i, &axis) in axes.iter().enumerate() {
        let wanted = match cx.em.some_ints(target).and_then(|all| all.get(i).copied().flatten()) {
            Some(size) => Size::Known(size),
            None => Size::Of(op!(cx.em, "GatherV2", target, i as i64, 0i64)?),
        };
        let size = cx.size(y, axis)?;
        // Cut, and then padded: the smaller half lies before.
        let cut = cx.compute("Sub", size, wanted)?;
        let cut = cx.compute("Maximum", cut, Size::Known(0))?;
        let before = cx.compute("FloorDiv", cut, Size::Known(2))?;
        let kept = cx.compute("Minimum", size, wanted)?;
        let end = cx.compute("AddV2", before, kept)?;
        y = cx.slice(y, axis, before, Some(end))?;
        let more = cx.compute("Sub", wanted, kept)?;
        let before = cx.compute("FloorDiv", more, Size::Known(2))?;
        let after = cx.compute("Sub", more, before)?;
        let pairs: Vec<Size> =
            (0..rank).flat_map(|own| if own == axis { [before, after] } else { [Size::Known(0); 2] }).collect();
        let pairs = cx.packed(&pairs)?;
        let pairs = cx.reshape(pairs, &[rank.into(), Size::Known(2)])?;
        y = op!(cx.em, "Pad", y, pairs)?;
    }
    one(y)
}
