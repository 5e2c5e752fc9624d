//! Values of a loop that its gradient uses: values stored on stacks, loop invariants, constants.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use meshtf_tensor::failure::Failure;
use meshtf_tensor::{DType, Tensor};

use super::{Backward, Loops};
use crate::gradient::context::{Arrival, Kind, Place, is_loop_merge, is_loop_switch};
use crate::gradient::rules::{self, Stop};
use crate::op::Role;
use crate::{Graph, GraphBuilder, NodeId, Output, split_tensor_name};

/// The nodes added so far to loops and their gradients.
#[derive(Default)]
pub(super) struct Saved {
    /// Nodes that were added to the differentiated graph, by their ids and names.
    notes: HashMap<NodeId, Note>,
    noted: HashMap<String, NodeId>,
    /// The values of tensors in the loop of the gradient.
    reals: HashMap<(Place, Output), Output>,
    stacks: HashMap<Output, Output>,
    /// Tensors from outside of all loops, entered into a context: of the differentiated graph, and of its gradient.
    forward: HashMap<(Output, Place), Output>,
    backward: HashMap<(Output, Place), Output>,
    /// Nodes that enter a loop invariant into the loop of a gradient.
    invariants: HashSet<String>,
}

#[derive(Clone)]
struct Note {
    place: Option<Place>,
    dtype: DType,
    device: String,
}

impl Saved {
    /// Records a node that was added to the differentiated graph.
    pub fn note(&mut self, g: &GraphBuilder, output: Output, place: Option<Place>, dtype: DType, device: &str) {
        self.noted.insert(g.tensor_name(output.port(0)), output.node);
        self.notes.insert(output.node, Note { place, dtype, device: device.to_owned() });
    }
}

impl Loops {
    /// Adds nodes that belong to the gradient of a loop, if any: they may use tensors of the loop as if they were in it.
    pub fn inside<T>(
        &mut self,
        g: &mut GraphBuilder,
        place: Option<Place>,
        add: impl FnOnce(&mut GraphBuilder, &mut Self) -> Result<T, Failure>,
    ) -> Result<T, Stop> {
        let first = g.nodes().len();
        let added = add(g, self)?;
        let last = g.nodes().len();
        self.move_inside(g, place, first..last)?;
        Ok(added)
    }

    /// Moves added nodes into the gradient of a loop.
    pub fn move_inside(&mut self, g: &mut GraphBuilder, place: Option<Place>, added: Range<usize>) -> Result<(), Stop> {
        let Some(place) = place else { return Ok(()) };
        let iteration = self.backward(place)?.iteration;
        for index in added {
            let output = g.nth_added(index);
            if self.saved.notes.contains_key(&output.node) {
                continue;
            }
            let def = &g.nodes()[index];
            let (op, device) = (def.op.clone(), def.device.clone());
            let inputs: Vec<String> = def.inputs.iter().filter(|input| !input.starts_with('^')).cloned().collect();
            let taken: Vec<Option<Output>> =
                inputs.iter().map(|input| self.differentiated(g.settled(), input)).collect();
            if self.is_measured(g, place, index, &taken) {
                continue;
            }
            for (i, from) in taken.iter().enumerate() {
                let Some(from) = *from else { continue };
                let real = match op.as_str() {
                    "ZerosLike" => self.real_zeros(g, place, from, &device)?,
                    _ => self.real(g, place, from)?,
                };
                g.replace_input(index, i, real)?;
            }
            // A node without an input of this iteration waits for the iteration.
            let is_invariant = |input: &String| self.saved.invariants.contains(split_tensor_name(input).0);
            let def = &g.nodes()[index];
            if def.inputs.iter().filter(|input| !input.starts_with('^')).all(is_invariant) {
                g.add_control(output, iteration)?;
            }
        }
        Ok(())
    }

    /// The tensor of the differentiated graph that an input denotes; `None` for a tensor of the gradient.
    fn differentiated(&self, graph: &Graph, input: &str) -> Option<Output> {
        let (name, port) = split_tensor_name(input);
        let node = graph.find(name).or_else(|| self.saved.noted.get(name).copied())?;
        Some(Output { node, port })
    }

    /// Leaves a node in the differentiated loop if it only measures its inputs (their shape, size or rank): its small result is
    /// stored instead of them. Returns whether it does.
    fn is_measured(&mut self, g: &GraphBuilder, place: Place, index: usize, taken: &[Option<Output>]) -> bool {
        let (def, output) = (&g.nodes()[index], g.nth_added(index));
        if !matches!(def.op.as_str(), "Shape" | "ShapeN" | "Size" | "Rank") {
            return false;
        }
        let mut at = None;
        for &from in taken {
            let Some(from) = from.filter(|&from| self.invariant(g.settled(), from).is_none()) else { return false };
            let here = self.place_of(g.settled(), from);
            if self.contexts.loop_of(here) != Some(place) || at.is_some_and(|at| at != here) {
                return false;
            }
            at = Some(here);
        }
        let dtype = def.attrs.dtype("out_type").unwrap_or(DType::I32);
        self.saved.note(g, output, at.flatten(), dtype, &def.device);
        true
    }

    /// The value of a tensor of a loop in the iteration that the loop of the gradient goes back through.
    pub(super) fn real(&mut self, g: &mut GraphBuilder, place: Place, of: Output) -> Result<Output, Stop> {
        if let Some(&real) = self.saved.reals.get(&(place, of)) {
            return Ok(real);
        }
        let here = self.place_of(g.settled(), of);
        let real = if self.contexts.loop_of(here) != Some(place) {
            // Only tensors from outside of all loops can be used directly by nodes inside.
            self.bring_back(g, of, place)?
        } else if let Some(outer) = self.invariant(g.settled(), of) {
            let around = self.contexts.loop_of(self.contexts.outer(place));
            let outer = match around {
                None => outer,
                Some(around) => self.real(g, around, outer)?,
            };
            let entered = self.enter_gradient(g, place, outer)?;
            self.guarded(g, place, here, entered)?
        } else if let Some(value) = constant(g.settled(), of) {
            let (device, iteration) = (g.device_of(of), self.backward(place)?.iteration);
            g.with_device(&device, |g| g.op("Const").attr("value", value).control(iteration).build())?
        } else {
            self.kept(g, place, here, of)?
        };
        self.saved.reals.insert((place, of), real);
        Ok(real)
    }

    /// A tensor in the loop of a gradient that is used only if a branch inside of the loop is taken.
    fn guarded(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        here: Option<Place>,
        tensor: Output,
    ) -> Result<Output, Stop> {
        let Some(inner) = here.filter(|&here| here != place) else { return Ok(tensor) };
        let Kind::Branch(Arrival { predicate, port }) = self.contexts.kind(inner) else { return Ok(tensor) };
        let outer = self.guarded(g, place, self.contexts.outer(inner), tensor)?;
        let predicate = self.real(g, place, predicate)?;
        let device = g.device_of(outer);
        Ok(g.with_device(&device, |g| g.op("Switch").input(outer).input(predicate).build())?.port(port))
    }

    /// Pushes a tensor on a stack in each iteration, and pops it in the loop of the gradient.
    fn kept(&mut self, g: &mut GraphBuilder, place: Place, here: Option<Place>, of: Output) -> Result<Output, Stop> {
        let (dtype, device) = self.dtype_and_device(g, of);
        let stack = match self.saved.stacks.get(&of) {
            Some(&stack) => stack,
            None => {
                let stack = self.push(g, place, here, of, dtype, &device)?;
                self.saved.stacks.insert(of, stack);
                stack
            }
        };
        self.pop(g, (place, here), stack, dtype, &device)
    }

    /// Pops from a stack in each iteration of the loop of the gradient.
    pub(super) fn pop(
        &mut self,
        g: &mut GraphBuilder,
        (place, here): (Place, Option<Place>),
        stack: Output,
        dtype: DType,
        device: &str,
    ) -> Result<Output, Stop> {
        let stack = self.bring_back(g, stack, here.unwrap_or(place))?;
        let Backward { iteration, all_popped, .. } = *self.backward(place)?;
        let popped = g.with_device(device, |g| {
            g.op("StackPopV2").input(stack).attr("elem_type", dtype).control(iteration).build()
        })?;
        g.add_control(all_popped, popped)?;
        Ok(popped)
    }

    fn push(
        &mut self,
        g: &mut GraphBuilder,
        place: Place,
        here: Option<Place>,
        of: Output,
        dtype: DType,
        device: &str,
    ) -> Result<Output, Stop> {
        let limit = Tensor::scalar(-1);
        let stack =
            g.with_device(device, |g| g.op("StackV2").name("f_acc").input(limit).attr("elem_type", dtype).build())?;
        let inside = self.bring(g, stack, here.unwrap_or(place))?;
        let Backward { counted, all_pushed, .. } = *self.backward(place)?;
        let push = g.with_device(device, |g| g.op("StackPushV2").input(inside).input(of).control(counted).build())?;
        g.add_control(all_pushed, push)?;
        Ok(stack)
    }

    /// Zeros of the shape of a tensor of a loop, in the loop of the gradient.
    fn real_zeros(&mut self, g: &mut GraphBuilder, place: Place, of: Output, device: &str) -> Result<Output, Stop> {
        if self.invariant(g.settled(), of).is_some() {
            return self.real(g, place, of);
        }
        let here = self.place_of(g.settled(), of);
        let (dtype, _) = self.dtype_and_device(g, of);
        let Some(zero) = rules::number(dtype, 0.0) else { return self.real(g, place, of) };
        let is_old = of.node.index() < g.settled().len();
        let known = if is_old && here == Some(place) { g.settled().shapes().known(of) } else { None };
        let first = g.nodes().len();
        let fill = g.with_device(device, |g| {
            let sizes = match known {
                Some(shape) => g.constant("Shape", shape.dims().iter().map(|&n| n as i32).collect::<Vec<_>>())?,
                None => g.op("Shape").input(of).build()?,
            };
            g.op("Fill").input(sizes).input(zero).build()
        })?;
        let last = g.nodes().len();
        self.move_inside(g, Some(place), first..last)?;
        Ok(fill)
    }

    /// Enters a tensor from outside of all loops into a context of the differentiated graph.
    fn bring(&mut self, g: &mut GraphBuilder, from: Output, to: Place) -> Result<Output, Stop> {
        if let Some(&known) = self.saved.forward.get(&(from, to)) {
            return Ok(known);
        }
        let outer = match self.contexts.outer(to) {
            None => from,
            Some(outer) => self.bring(g, from, outer)?,
        };
        let device = g.device_of(from);
        let inside = match self.contexts.kind(to) {
            Kind::Branch(Arrival { predicate, port }) => {
                g.with_device(&device, |g| g.op("Switch").input(outer).input(predicate).build())?.port(port)
            }
            Kind::Loop => {
                let Some(&enter) = self.contexts.enters(to).first() else { return Err(Stop::Loop) };
                let attrs = g.settled().node(enter).attrs.clone();
                let (frame, parallel) = (attrs.get("frame_name").cloned(), attrs.get("parallel_iterations").cloned());
                g.with_device(&device, |g| {
                    let mut enter = g.op("Enter").input(outer).attr("is_constant", true);
                    for (name, value) in [("frame_name", frame), ("parallel_iterations", parallel)] {
                        if let Some(value) = value {
                            enter = enter.attr(name, value);
                        }
                    }
                    enter.build()
                })?
            }
        };
        self.saved.forward.insert((from, to), inside);
        Ok(inside)
    }

    /// Enters a tensor from outside of all loops into the gradient of a context.
    pub(super) fn bring_back(&mut self, g: &mut GraphBuilder, from: Output, to: Place) -> Result<Output, Stop> {
        if let Some(&known) = self.saved.backward.get(&(from, to)) {
            return Ok(known);
        }
        let around = self.contexts.outer(to);
        let outer = match around {
            None => from,
            Some(around) => self.bring_back(g, from, around)?,
        };
        let device = g.device_of(from);
        let inside = match self.contexts.kind(to) {
            Kind::Branch(Arrival { predicate, port }) => {
                let predicate = match self.contexts.loop_of(around) {
                    None => predicate,
                    Some(place) => self.real(g, place, predicate)?,
                };
                g.with_device(&device, |g| g.op("Switch").input(outer).input(predicate).build())?.port(port)
            }
            Kind::Loop => self.enter_gradient(g, to, outer)?,
        };
        self.saved.backward.insert((from, to), inside);
        Ok(inside)
    }

    /// Enters a tensor from directly outside of the loop of a gradient into it.
    fn enter_gradient(&mut self, g: &mut GraphBuilder, place: Place, outer: Output) -> Result<Output, Stop> {
        let back = self.backward(place)?;
        let (frame, parallel) = (back.frame.clone(), back.parallel);
        let device = g.device_of(outer);
        let enter = g.with_device(&device, |g| {
            let enter = g.op("Enter").input(outer).attr("frame_name", frame.as_str());
            enter.attr("is_constant", true).attr("parallel_iterations", parallel).build()
        })?;
        self.saved.invariants.insert(g.tensor_name(enter));
        Ok(enter)
    }

    /// The context of a tensor of the differentiated graph.
    fn place_of(&mut self, graph: &Graph, output: Output) -> Option<Place> {
        match self.saved.notes.get(&output.node) {
            Some(note) => note.place,
            None if output.node.index() < graph.len() => self.contexts.of_output(graph, output),
            None => None,
        }
    }

    pub(super) fn dtype_and_device(&self, g: &GraphBuilder, output: Output) -> (DType, String) {
        match self.saved.notes.get(&output.node) {
            Some(note) => (note.dtype, note.device.clone()),
            None => (g.settled().output_type(output).dtype, g.device_of(output)),
        }
    }

    /// The tensor outside of a loop whose value a tensor has in each iteration; `None` if the value may differ from one
    /// iteration to the next.
    fn invariant(&self, graph: &Graph, of: Output) -> Option<Output> {
        let mut at = of;
        for _ in 0..graph.len() {
            if at.node.index() >= graph.len() {
                return None;
            }
            let node = graph.node(at.node);
            at = match node.op.role {
                Role::Enter if node.attrs.bool("is_constant").unwrap_or(false) => return node.inputs.first().copied(),
                Role::Switch if is_loop_switch(graph, node) => return unchanged(graph, at),
                Role::Switch => node.inputs[0],
                Role::Forward if node.inputs.len() == node.outputs.len() => node.inputs[at.port as usize],
                _ => return None,
            };
        }
        None
    }
}

/// The initial value of a loop variable that every iteration passes on unchanged.
fn unchanged(graph: &Graph, switched: Output) -> Option<Output> {
    let merge = graph.node(graph.node(switched.node).inputs[0].node);
    if switched.port != 1 || !is_loop_merge(graph, merge) {
        return None;
    }
    let input = |role: Role| merge.inputs.iter().find(|input| graph.node(input.node).op.role == role);
    let (enter, next) = (input(Role::Enter)?, input(Role::NextIteration)?);
    let mut at = *graph.node(next.node).inputs.first()?;
    for _ in 0..graph.len() {
        if at == switched {
            return graph.node(enter.node).inputs.first().copied();
        }
        let node = graph.node(at.node);
        if node.op.role != Role::Forward || node.inputs.len() != node.outputs.len() {
            return None;
        }
        at = node.inputs[at.port as usize];
    }
    None
}

fn constant(graph: &Graph, of: Output) -> Option<Tensor> {
    if of.node.index() >= graph.len() {
        return None;
    }
    let node = graph.node(of.node);
    (node.op.role == Role::Const).then(|| node.attrs.tensor("value").ok().cloned())?
}
