//! Gradients of ops that join tensors, or split them.

use super::Rule;
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("concat_v2", |c| {
        let count = c.node.inputs.len() - 1;
        parts(c, 0, count, count)
    }),
    ("concat", |c| {
        let count = c.node.inputs.len() - 1;
        let parts = parts(c, 1, count, 0)?;
        Ok([None].into_iter().chain(parts).collect())
    }),
    ("split", |c| {
        let axis = c.x(0);
        let whole = whole(c, axis)?;
        Ok(vec![None, Some(Gradient::Dense(whole))])
    }),
    ("split_v", |c| {
        let axis = c.x(2);
        one(whole(c, axis)?)
    }),
    ("pack", |c| {
        let (count, axis, dy) = (c.node.inputs.len(), c.attr("axis"), c.dy()?);
        let unpacked = c.op("Unpack").name("unstack").input(dy).attr("num", count as i64).attr("axis", axis).build()?;
        Ok((0..count as u32).map(|port| Some(Gradient::Dense(unpacked.port(port)))).collect())
    }),
    ("unpack", |c| {
        let axis = c.attr("axis");
        let all = (0..c.node.outputs.len()).map(|port| c.d(port)).collect::<Result<Vec<_>, _>>()?;
        one(c.op("Pack").name("stack").inputs(all).attr("axis", axis).build()?)
    }),
    ("dynamic_stitch", |c| {
        let (count, dy) = (c.node.inputs.len() / 2, c.dy()?);
        let mut grads = vec![None; count];
        for i in 0..count {
            let indices = c.x(i);
            let rows = c.op("GatherV2").input(dy).input(indices).input(0).build()?;
            grads.push(Some(Gradient::Dense(rows)));
        }
        Ok(grads)
    }),
    ("dynamic_partition", |c| {
        // The numbers of the rows are partitioned in the same way, which gives the destination of each.
        let (data, partitions) = (c.x(0), c.x(1));
        let count = c.node.outputs.len();
        let shape = c.shape(partitions)?;
        let size = c.op("Prod").input(shape).input([0]).build()?;
        let numbers = c.op("Range").name("range").input(0).input(size).input(1).build()?;
        let numbers = c.reshape(numbers, shape)?;
        let places = c.op("DynamicPartition").input(numbers).input(partitions);
        let places = places.attr("num_partitions", count as i64).build()?;
        let grads = (0..count).map(|port| c.d(port)).collect::<Result<Vec<_>, _>>()?;
        let places = (0..count as u32).map(|port| places.port(port));
        let stitched = c.op("ParallelDynamicStitch").inputs(places.chain(grads)).attr("N", count as i64).build()?;
        let shape = c.shape(data)?;
        one(c.reshape(stitched, shape)?)
    }),
];

/// The gradients of the outputs, concatenated along an axis.
fn whole(c: &mut Call, axis: Output) -> Added {
    let parts = (0..c.node.outputs.len()).map(|port| c.d(port)).collect::<Result<Vec<_>, _>>()?;
    if let [part] = parts[..] {
        return Ok(part);
    }
    Ok(c.op("ConcatV2").name("concat").inputs(parts).input(axis).build()?)
}

/// The parts of the gradient that belong to each of `count` inputs, the first of which is `first`.
fn parts(c: &mut Call, first: usize, count: usize, axis: usize) -> Grads {
    let dy = c.dy()?;
    let inputs: Vec<Output> = (first..first + count).map(|i| c.x(i)).collect();
    if let Some((axis, sizes)) = known_sizes(c, &inputs, axis) {
        let split = c.op("SplitV").name("split").input(dy).input(sizes).input(axis).attr("num_split", count as i64);
        let split = split.build()?;
        return Ok((0..count as u32).map(|port| Some(Gradient::Dense(split.port(port)))).collect());
    }
    let (axis, of) = (c.x(axis), inputs[0]);
    let axis = c.cast(axis, meshtf_tensor::DType::I32)?;
    let rank = c.un("Rank", of)?;
    let axis = c.op("FloorMod").name("mod").input(axis).input(rank).build()?;
    let shapes = c.op("ShapeN").inputs(inputs).build()?;
    let ports = 0..count as u32;
    let offsets = c.op("ConcatOffset").input(axis).inputs(ports.clone().map(|port| shapes.port(port))).build()?;
    let slice = |port| {
        let slice = c.op("Slice").input(dy).input(offsets.port(port)).input(shapes.port(port)).build()?;
        Ok(Some(Gradient::Dense(slice)))
    };
    ports.map(slice).collect()
}

/// The axis and the inputs' sizes along it, if they are known.
fn known_sizes(c: &Call, inputs: &[Output], axis: usize) -> Option<(i32, Vec<i64>)> {
    let &[axis] = c.constant(axis)?.as_slice() else { return None };
    let size = |&input: &Output| {
        let sizes = c.sizes(input)?;
        let at = if axis < 0 { axis + sizes.len() as i64 } else { axis };
        Some((*sizes.get(usize::try_from(at).ok()?)?)? as i64)
    };
    Some((axis as i32, inputs.iter().map(size).collect::<Option<_>>()?))
}
