//! Gradients of ops that move elements, repeat them or pad a tensor.

use super::Rule;
use crate::gradient::call::{Call, Grads, one};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("reshape", |c| {
        let (x, dy) = (c.x(0), c.dy()?);
        let shape = c.shape(x)?;
        one(c.reshape(dy, shape)?)
    }),
    ("transpose", |c| {
        let (order, dy) = (c.x(1), c.dy()?);
        let inverse = c.un("InvertPermutation", order)?;
        one(c.bin("Transpose", dy, inverse)?)
    }),
    ("conjugate_transpose", |c| {
        let (order, dy) = (c.x(1), c.dy()?);
        let inverse = c.un("InvertPermutation", order)?;
        one(c.bin("ConjugateTranspose", dy, inverse)?)
    }),
    ("broadcast_to", |c| {
        let (x, y, dy) = (c.x(0), c.y(0), c.dy()?);
        one(c.reduced(dy, x, y)?)
    }),
    ("tile", |c| {
        // Each axis becomes two: the repetitions, which are summed over, and the axis itself.
        let (x, multiples, dy) = (c.x(0), c.x(1), c.dy()?);
        let dtype = c.dtype(multiples);
        let shape = c.shape_as(x, dtype)?;
        let pairs = c.op("Pack").name("stack").input(multiples).input(shape).attr("axis", 1).build()?;
        let split = c.reshape(pairs, [-1])?;
        let size = c.un("Size", split)?;
        let axes = c.op("Range").name("range").input(0).input(size).input(2).build()?;
        let parts = c.reshape(dy, split)?;
        one(c.sum(parts, axes, false)?)
    }),
    ("pad", |c| {
        let (x, paddings, dy) = (c.x(0), c.x(1), c.dy()?);
        let dtype = c.dtype(paddings);
        let before = c.op("StridedSlice").input(paddings).input([0, 0]).input([0, 1]).input([1, 1]);
        let before = before.attr("begin_mask", 1).attr("end_mask", 1).attr("shrink_axis_mask", 2).build()?;
        let shape = c.shape_as(x, dtype)?;
        one(c.op("Slice").input(dy).input(before).input(shape).build()?)
    }),
    ("mirror_pad", |c| opposite(c, "MirrorPadGrad", &["mode"])),
    ("mirror_pad_grad", |c| opposite(c, "MirrorPad", &["mode"])),
    ("reverse", |c| {
        let (axes, dy) = (c.x(1), c.dy()?);
        one(c.bin(c.node.op.name, dy, axes)?)
    }),
    ("reverse_sequence", |c| {
        let (lengths, dy) = (c.x(1), c.dy()?);
        one(c.with_attrs("ReverseSequence", &[dy, lengths], &["seq_dim", "batch_dim"])?)
    }),
    ("roll", |c| {
        let (shift, axis, dy) = (c.x(1), c.x(2), c.dy()?);
        let back = c.neg(shift)?;
        one(c.op("Roll").input(dy).input(back).input(axis).build()?)
    }),
    ("space_to_batch", |c| opposite(c, "BatchToSpace", &["block_size"])),
    ("batch_to_space", |c| opposite(c, "SpaceToBatch", &["block_size"])),
    ("space_to_batch_nd", |c| opposite(c, "BatchToSpaceND", &[])),
    ("batch_to_space_nd", |c| opposite(c, "SpaceToBatchND", &[])),
    ("space_to_depth", |c| opposite(c, "DepthToSpace", &["block_size", "data_format"])),
    ("depth_to_space", |c| opposite(c, "SpaceToDepth", &["block_size", "data_format"])),
];

/// The gradient by the inverse op, with the same other inputs and attributes.
fn opposite(c: &mut Call, op: &str, attrs: &[&str]) -> Grads {
    let mut inputs = vec![c.dy()?];
    inputs.extend(&c.node.inputs[1..]);
    one(c.with_attrs(op, &inputs, attrs)?)
}
