//! Gradients of tensor arrays: each array has an array of gradients, and the gradient of a written value is read from there.
//!
//! Each call of `gradients` has separate arrays, named by its scope. The gradient of a flow is a flow, which orders the reads
//! of the gradient of a write after the writes to that array.

use super::Rule;
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("tensor_array_read_v3", |c| {
        let (index, flow, value) = (c.x(1), c.x(2), c.dy()?);
        let (handle, flow) = array_of_gradients(c, flow)?;
        let write = with_version(c, "TensorArrayWrite");
        let flow = c.op(&write).input(handle).input(index).input(value).input(flow).build()?;
        Ok(vec![None, None, Some(Gradient::Dense(flow))])
    }),
    ("tensor_array_write_v3", |c| {
        let (index, dtype) = (c.x(1), c.dtype(c.x(2)));
        let barrier = barrier(c)?;
        let (handle, flow) = array_of_gradients(c, barrier)?;
        let read = with_version(c, "TensorArrayRead");
        let value = c.op(&read).input(handle).input(index).input(flow).attr("dtype", dtype).build()?;
        Ok(vec![None, None, Some(Gradient::Dense(value)), Some(Gradient::Dense(barrier))])
    }),
    ("tensor_array_gather_v3", |c| {
        let (indices, flow, values) = (c.x(1), c.x(2), c.dy()?);
        let (handle, flow) = array_of_gradients(c, flow)?;
        let scatter = with_version(c, "TensorArrayScatter");
        let flow = c.op(&scatter).input(handle).input(indices).input(values).input(flow).build()?;
        Ok(vec![None, None, Some(Gradient::Dense(flow))])
    }),
    ("tensor_array_scatter_v3", |c| {
        let (indices, dtype) = (c.x(1), c.dtype(c.x(2)));
        let barrier = barrier(c)?;
        let (handle, flow) = array_of_gradients(c, barrier)?;
        let gather = with_version(c, "TensorArrayGather");
        let values = c.op(&gather).input(handle).input(indices).input(flow).attr("dtype", dtype).build()?;
        Ok(vec![None, None, Some(Gradient::Dense(values)), Some(Gradient::Dense(barrier))])
    }),
    ("tensor_array_concat_v3", |c| {
        let (flow, lengths, values) = (c.x(1), c.y(1), c.dy()?);
        let (handle, flow) = array_of_gradients(c, flow)?;
        let split = with_version(c, "TensorArraySplit");
        let flow = c.op(&split).input(handle).input(values).input(lengths).input(flow).build()?;
        Ok(vec![None, Some(Gradient::Dense(flow))])
    }),
    ("tensor_array_split_v3", |c| {
        let dtype = c.dtype(c.x(1));
        let barrier = barrier(c)?;
        let (handle, flow) = array_of_gradients(c, barrier)?;
        let concat = with_version(c, "TensorArrayConcat");
        let values = c.op(&concat).input(handle).input(flow).attr("dtype", dtype).build()?;
        Ok(vec![None, Some(Gradient::Dense(values)), None, Some(Gradient::Dense(barrier))])
    }),
];

/// The version of that op for the node's kind of handle.
fn with_version(c: &Call, op: &str) -> String {
    let name = c.node.op.name;
    let version = ["V2", "V3"].into_iter().find(|version| name.ends_with(version)).unwrap_or("");
    format!("{op}{version}")
}

/// The array of the gradients of the node's array, with as many elements as that has once `flow` is available, and its flow.
fn array_of_gradients(c: &mut Call, flow: Output) -> Result<(Output, Output), super::Stop> {
    let (handle, op, source) = (c.x(0), with_version(c, "TensorArrayGrad"), c.source.to_owned());
    let array = c.op(&op).input(handle).input(flow).attr("source", source).build()?;
    let flow = c.op("Identity").name("gradient_flow").input(flow).control(array).build()?;
    Ok((array, flow))
}

/// The gradient of the node's flow, available once the node has run.
fn barrier(c: &mut Call) -> Added {
    let (flow, written) = (c.dy()?, c.y(0));
    let written = c.op("Identity").name("flow_out").input(written).build()?;
    Ok(c.op("Identity").name("write_barrier").input(flow).control(written).build()?)
}
