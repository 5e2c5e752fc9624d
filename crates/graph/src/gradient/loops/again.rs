//! Gradients of gradients of loops: a value that the gradient of a loop popped from a stack has a gradient with respect to the
//! value that was pushed.
//!
//! The loop of the gradient is differentiated like any other. In the loop of its gradient, the gradients of popped values are
//! pushed on another stack, from which the loop that goes back through the first one pops them: in the order in which the
//! values were pushed on theirs, reversed.

use super::Loops;
use crate::gradient::context::Place;
use crate::gradient::rules::Stop;
use crate::{GraphBuilder, NodeId, Output};

/// Gradients that are passed from one loop to another.
#[derive(Default)]
pub(super) struct Again {
    /// The stacks with the gradients of values, for loops that are not open yet.
    waiting: Vec<(Output, Output)>,
    /// The nodes that a loop which is not open yet waits for before it begins.
    ends: Vec<(Place, Output)>,
}

impl Loops {
    /// Passes the gradient of a value that a node popped from a stack to the value that was pushed. Returns the resulting
    /// gradients.
    pub fn hand_on(
        &mut self,
        g: &mut GraphBuilder,
        pop: NodeId,
        pushed: Output,
        gradient: Output,
    ) -> Result<Vec<(Output, Output)>, Stop> {
        let popped = Output { node: pop, port: 0 };
        let (from, to) = (self.around(pop), self.around_output(g.settled(), pushed));
        let (Some(from), Some(to)) = (from, to) else {
            return Err(Stop::Unsupported("is supported only inside loops".to_owned()));
        };
        let (first, last) = (self.outermost(to), self.outermost(from));
        if first == last {
            return Err(Stop::Unsupported("is not supported if the same loop pushed the value".to_owned()));
        }
        let (dtype, device) = self.dtype_and_device(g, popped);
        let limit = meshtf_tensor::Tensor::scalar(-1);
        let stack =
            g.with_device(&device, |g| g.op("StackV2").name("b_acc").input(limit).attr("elem_type", dtype).build())?;
        let here = self.contexts.of_node(pop).unwrap_or(from);
        let inside = self.bring_back(g, stack, here)?;
        let (iteration, all_popped) = (self.backward(from)?.iteration, self.backward(from)?.all_popped);
        let push =
            g.with_device(&device, |g| g.op("StackPushV2").input(inside).input(gradient).control(iteration).build())?;
        g.add_control(all_popped, push)?;

        let end = self.backward(last)?.end;
        let start = self.backward(first).ok().map(|first| first.start);
        match start {
            Some(start) => g.add_control(start, end)?,
            None => self.again.ends.push((first, end)),
        }
        self.again.waiting.push((pushed, stack));
        if self.backward(to).is_ok() { self.handed(g, to) } else { Ok(Vec::new()) }
    }

    /// The gradients that were passed to a loop that is open now.
    pub(super) fn handed(&mut self, g: &mut GraphBuilder, place: Place) -> Result<Vec<(Output, Output)>, Stop> {
        let mut found = Vec::new();
        for (pushed, stack) in std::mem::take(&mut self.again.waiting) {
            if self.around_output(g.settled(), pushed) != Some(place) {
                self.again.waiting.push((pushed, stack));
                continue;
            }
            let here = self.contexts.of_output(g.settled(), pushed);
            let (dtype, device) = self.dtype_and_device(g, pushed);
            found.push((pushed, self.pop(g, (place, here), stack, dtype, &device)?));
        }
        Ok(found)
    }

    /// The nodes that a loop which opens now waits for.
    pub(super) fn ends_before(&mut self, place: Place) -> Vec<Output> {
        let (ends, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.again.ends).into_iter().partition(|(first, _)| *first == place);
        self.again.ends = rest;
        ends.into_iter().map(|(_, end)| end).collect()
    }

    fn outermost(&self, place: Place) -> Place {
        let around = |place: &Place| self.contexts.loop_of(self.contexts.outer(*place));
        std::iter::successors(Some(place), around).last().unwrap_or(place)
    }
}
