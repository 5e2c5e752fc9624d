//! Gradients of reductions over axes.

use meshtf_tensor::DType;

use super::Rule;
use crate::Output;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("sum", |c| {
        let dy = c.dy()?;
        one(spread(c, dy)?)
    }),
    ("mean", |c| {
        let (x, y, dy, dtype) = (c.x(0), c.y(0), c.dy()?, c.t());
        let sums = spread(c, dy)?;
        let shapes = c.g.settled().shapes();
        let count = |of: Output| shapes.known(of)?.elements();
        let factor = match (count(x), count(y)) {
            (Some(all), Some(kept)) => {
                let factor = super::number(dtype, (all / kept.max(1)) as f64).unwrap_or_else(|| 1.0f32.into());
                c.g.constant("Const", factor)?
            }
            _ => {
                let (all, kept) = (c.un("Size", x)?, c.un("Size", y)?);
                let kept = c.bin("Maximum", kept, 1)?;
                let factor = c.op("FloorDiv").name("floordiv").input(all).input(kept).build()?;
                c.cast(factor, dtype)?
            }
        };
        one(c.div(sums, factor)?)
    }),
    ("extreme", |c| {
        // The gradient is shared equally by all greatest elements.
        let (x, axes, y, dy, dtype) = (c.x(0), c.x(1), c.y(0), c.dy()?, c.t());
        let kept = kept_shape(c)?;
        let (y, dy) = (c.reshape(y, kept)?, c.reshape(dy, kept)?);
        let is_it = c.bin("Equal", y, x)?;
        let indicators = c.cast(is_it, dtype)?;
        let count = c.sum(indicators, axes, false)?;
        let count = c.reshape(count, kept)?;
        let share = c.div(indicators, count)?;
        one(c.mul(share, dy)?)
    }),
    ("prod", product),
    ("euclidean_norm", |c| {
        let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
        let kept = kept_shape(c)?;
        let (y, dy) = (c.reshape(y, kept)?, c.reshape(dy, kept)?);
        let share = c.div(y, dy)?;
        one(c.div(x, share)?)
    }),
];

/// The gradient of a sum: the same for all summands.
fn spread(c: &mut Call, dy: Output) -> Added {
    let kept = kept_shape(c)?;
    let dy = c.reshape(dy, kept)?;
    let shape = c.shape(c.x(0))?;
    c.bin("BroadcastTo", dy, shape)
}

/// The shape of the input with 1 for the axes that were reduced, as an int32 vector.
fn kept_shape(c: &mut Call) -> Added {
    let (x, axes) = (c.x(0), c.x(1));
    if let (Some(mut sizes), Some(axes)) = (c.sizes(x), c.constant(1)) {
        for &axis in &axes {
            let axis = if axis < 0 { axis + sizes.len() as i64 } else { axis };
            if let Some(size) = usize::try_from(axis).ok().and_then(|axis| sizes.get_mut(axis)) {
                *size = Some(1);
            }
        }
        if let Some(sizes) = sizes.iter().map(|size| size.map(|size| size as i32)).collect::<Option<Vec<i32>>>() {
            return Ok(c.g.constant("shape", sizes)?);
        }
    }
    let shape = c.shape(x)?;
    let axes = places(c, axes, shape)?;
    let ones = c.un("OnesLike", axes)?;
    let rank = c.un("Size", shape)?;
    let all = c.op("Range").name("range").input(0).input(rank).input(1).build()?;
    Ok(c.op("DynamicStitch").input(all).input(axes).input(shape).input(ones).build()?)
}

/// Axes as an int32 vector, counted from the start.
fn places(c: &mut Call, axes: Output, shape: Output) -> Added {
    let axes = c.cast(axes, DType::I32)?;
    let axes = c.reshape(axes, [-1])?;
    let rank = c.un("Size", shape)?;
    let sum = c.add(axes, rank)?;
    Ok(c.op("FloorMod").name("mod").input(sum).input(rank).build()?)
}

/// Each element's gradient has the product of all other elements: of those before it times those after it.
fn product(c: &mut Call) -> Grads {
    let (x, dy) = (c.x(0), c.dy()?);
    let spread = spread(c, dy)?;
    let shape = c.shape(x)?;
    let reduced = places(c, c.x(1), shape)?;
    let rank = c.un("Size", shape)?;
    let all = c.op("Range").name("range").input(0).input(rank).input(1).build()?;
    let others = c.bin("ListDiff", all, reduced)?;
    let order = c.concat([reduced, others], 0)?;
    let mut count = |axes: Output| {
        let sizes = c.op("GatherV2").input(shape).input(axes).input(0).build()?;
        Ok::<Output, super::Stop>(c.op("Prod").input(sizes).input([0]).build()?)
    };
    let (rows, columns) = (count(reduced)?, count(others)?);
    // The reduced axes come first, as one.
    let turned = c.bin("Transpose", x, order)?;
    let turned_shape = c.shape_of_added(turned)?;
    let matrix_shape = c.op("Pack").input(rows).input(columns).build()?;
    let matrix = c.reshape(turned, matrix_shape)?;
    let mut running = |reverse: bool| {
        let running = c.op("Cumprod").input(matrix).input(0).attr("exclusive", true).attr("reverse", reverse);
        Ok::<Output, super::Stop>(running.build()?)
    };
    let (before, behind) = (running(false)?, running(true)?);
    let rest = c.mul(before, behind)?;
    let rest = c.reshape(rest, turned_shape)?;
    let back = c.un("InvertPermutation", order)?;
    let rest = c.bin("Transpose", rest, back)?;
    let rest = c.conj_like(rest, x)?;
    let by_x = c.mul(spread, rest)?;
    one(c.reshape(by_x, shape)?)
}
