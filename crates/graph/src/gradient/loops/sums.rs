//! Sums of the gradients of a loop invariant over the iterations.

use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Tensor};

use super::Loops;
use crate::gradient::call::{value_dtype, zeros_like};
use crate::gradient::context::Place;
use crate::gradient::rules::{self, Stop};
use crate::gradient::{Gradient, Rows};
use crate::{GraphBuilder, Input, NodeId, Output};

impl Loops {
    /// Adds up the gradient of a loop invariant over all iterations. Returns the gradient of the Enter's input.
    pub fn sum(&mut self, g: &mut GraphBuilder, enter: NodeId, gradient: Gradient) -> Result<Gradient, Stop> {
        let node = g.settled().node(enter).clone();
        let place = self.around_output(g.settled(), Output { node: enter, port: 0 }).ok_or(Stop::Loop)?;
        let around = self.contexts.loop_of(self.contexts.outer(place));
        let outer = node.inputs[0];
        match gradient {
            Gradient::Dense(gradient) => {
                let start = self.inside(g, around, |g, _| g.with_device(&node.device, |g| zeros_like(g, outer)))?;
                // Of the ops that add, only AddN accepts lists.
                let is_list = g.settled().output_type(outer).dtype == DType::Variant;
                let add = |g: &mut GraphBuilder, sum: Output| match is_list {
                    true => g.op("AddN").inputs([sum, gradient]).build(),
                    false => g.op("AddV2").input(sum).input(gradient).build(),
                };
                Ok(Gradient::Dense(self.around_again(g, place, &node.device, start, add)?))
            }
            Gradient::Sparse(rows) => self.sum_rows(g, place, (outer, &node.device), rows),
        }
    }

    /// Adds up sparse gradients over the iterations by concatenating their rows.
    fn sum_rows(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        (outer, device): (Output, &str),
        rows: Rows,
    ) -> Result<Gradient, Stop> {
        let around = self.contexts.loop_of(self.contexts.outer(place));
        let is_handle = g.settled().output_type(outer).dtype == DType::Resource;
        let zero = rules::number(value_dtype(g.settled(), outer), 0.0).unwrap_or_else(|| Tensor::scalar(0f32));
        let (dense_shape, no_values, no_indices) = self.inside(g, around, |g, _| {
            g.with_device(device, |g| {
                let shape = g.op(if is_handle { "VariableShape" } else { "Shape" }).input(outer).build()?;
                let tail = g.op("StridedSlice").input(shape).input([1]).input([0]).input([1]);
                let tail = tail.attr("end_mask", 1).build()?;
                let shape_of_none = g.op("ConcatV2").inputs([Input::from([0]), tail.into()]).input(0).build()?;
                let no_values = g.op("Fill").input(shape_of_none).input(zero).build()?;
                // A slice rather than a constant: it is available where the loop starts, as the values are.
                let none = g.op("StridedSlice").input(shape).input([0]).input([0]).input([1]).build()?;
                Ok((shape, no_values, g.op("Cast").input(none).attr("DstT", DType::I64).build()?))
            })
        })?;
        let mut sums = Vec::with_capacity(2);
        for (start, part) in [(no_values, rows.values), (no_indices, rows.indices)] {
            let axis = self.inside(g, Some(place), |g, _| g.with_device(device, |g| g.constant("axis", 0)))?;
            let is_index = part == rows.indices;
            sums.push(self.around_again(g, place, device, start, |g, sum| {
                let part = if is_index { g.op("Cast").input(part).attr("DstT", DType::I64).build()? } else { part };
                g.op("ConcatV2").name("concat").inputs([sum, part]).input(axis).build()
            })?);
        }
        Ok(Gradient::Sparse(Rows { values: sums[0], indices: sums[1], dense_shape }))
    }

    /// Adds a loop variable to the loop of a gradient; each iteration adds something to it.
    fn around_again(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        device: &str,
        start: Output,
        add: impl FnOnce(&mut GraphBuilder, Output) -> Result<Output, Failure>,
    ) -> Result<Output, Stop> {
        let back = self.backward(place)?;
        let (frame, parallel, goes_on) = (back.frame.clone(), back.parallel, back.goes_on);
        Ok(g.with_device(device, |g| {
            let enter = g.op("Enter").name("b_acc").input(start).attr("frame_name", frame.as_str());
            let enter = enter.attr("parallel_iterations", parallel).build()?;
            let merge = g.op("Merge").name("b_acc").input(enter).build()?;
            let switch = g.op("Switch").name("b_acc").input(merge).input(goes_on).build()?;
            let sum = add(g, switch.port(1))?;
            let next = g.op("NextIteration").input(sum).build()?;
            g.add_input(merge, next)?;
            g.op("Exit").name("b_acc").input(switch).build()
        })?)
    }
}
