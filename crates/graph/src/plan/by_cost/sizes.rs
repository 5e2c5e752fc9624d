//! The sizes of a graph's values, and the work of its nodes by them: open sizes count as 1, loop variables keep the shape with
//! which they enter, and a node that calls a function does the work of its body.

use std::borrow::Cow;
use std::collections::HashMap;

use meshtf_tensor::{DType, PartialShape};

use super::measured::Measured;
use super::order::in_order;
use super::repeat::Repeats;
use crate::function::MAX_WITHIN;
use crate::op::Role;
use crate::operations::operations_by;
use crate::{Attr, Function, Graph, Node, NodeId, Output, Shapes};

/// Most nodes of functions that are looked at for one graph.
const MAX_NODES: usize = 100_000;

/// A graph with the shapes of its values.
pub(super) struct Sizes<'g> {
    pub graph: &'g Graph,
    pub shapes: Cow<'g, Shapes>,
}

/// The work of one run of a node, but for the stored values that it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Once {
    /// The kernels that are called.
    pub calls: u64,
    pub multiply_adds: u64,
    /// The bytes that are read and written.
    pub bytes: u64,
    /// The most bytes of the values inside of a call.
    pub peak: u64,
}

/// The functions that a node calls may be looked at so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    within: usize,
    pub nodes: usize,
}

impl Default for Depth {
    fn default() -> Self {
        Depth { within: MAX_WITHIN, nodes: MAX_NODES }
    }
}

impl<'g> Sizes<'g> {
    pub fn of(graph: &'g Graph) -> Sizes<'g> {
        let has_loops = graph.nodes().any(|(_, node)| node.op.role == Role::Enter);
        let shapes =
            if has_loops { Cow::Owned(Shapes::estimated(&graph.nodes)) } else { Cow::Borrowed(graph.shapes()) };
        Sizes { graph, shapes }
    }

    /// Bytes of a value.
    pub fn bytes(&self, output: Output) -> u64 {
        let ty = self.graph.output_type(output);
        let (Some(size), false) = (ty.dtype.size(), ty.dtype.is_handle()) else { return 0 };
        bytes_at_least(size, &self.shapes.of(output))
    }

    /// Bytes of all values that a node makes.
    pub fn made(&self, id: NodeId) -> u64 {
        let outputs = self.graph.node(id).outputs.iter().enumerate().filter(|(_, output)| !output.is_ref);
        let bytes = outputs.map(|(port, _)| self.bytes(Output { node: id, port: port as u32 }));
        bytes.fold(0, u64::saturating_add)
    }

    /// Bytes of a variable.
    pub fn variable(&self, id: NodeId) -> u64 {
        let attrs = &self.graph.node(id).attrs;
        let size = attrs.dtype("dtype").ok().and_then(DType::size).unwrap_or(0);
        attrs.shape("shape").map_or(0, |shape| bytes_at_least(size, shape))
    }

    /// Bytes that a node puts into a stack, list or array of tensors, where each of its runs adds to them.
    pub fn piled(&self, id: NodeId) -> u64 {
        let node = self.graph.node(id);
        let value = match node.op.name {
            "StackPush" | "StackPushV2" | "TensorListPushBack" => 1,
            "TensorArrayWrite" | "TensorArrayWriteV2" | "TensorArrayWriteV3" | "TensorListSetItem" => 2,
            _ => return 0,
        };
        node.inputs.get(value).map_or(0, |&input| self.bytes(input))
    }

    /// Whether a node computes: others pass on what is there.
    pub fn computes(node: &Node) -> bool {
        node.op.role == Role::Compute && !node.op.makes_variable && !node.op.reads_variable
    }

    /// The work of a node that computes; of its bytes, only those that it makes.
    pub fn once(&self, id: NodeId, depth: &mut Depth) -> Once {
        let own = Once {
            calls: 1,
            multiply_adds: operations_by(self.graph, &self.shapes, id).unwrap_or(0) / 2,
            bytes: self.made(id),
            peak: 0,
        };
        let Some((function, shapes, times)) = self.called(id) else { return own };
        let Some(body) = body(function, &shapes, depth) else { return own };
        let all = |each: u64| each.saturating_mul(times);
        Once {
            calls: all(body.calls).saturating_add(1),
            multiply_adds: all(body.multiply_adds),
            bytes: all(body.bytes).saturating_add(own.bytes),
            peak: body.peak,
        }
    }

    /// The function that a node calls in each of its runs, the shapes of its arguments, and how often.
    fn called(&self, id: NodeId) -> Option<(&'g Function, Vec<PartialShape>, u64)> {
        let node = self.graph.node(id);
        let Some(Attr::Func(function)) = node.attrs.get("f") else { return None };
        let shapes = node.inputs.iter().map(|&input| self.shapes.of(input));
        match node.op.name {
            "BatchFunction" => Some((function, shapes.collect(), 1)),
            "MapDefun" => {
                let rows = node.attrs.dtypes("Targuments").ok()?.len();
                let mut shapes: Vec<PartialShape> = shapes.collect();
                let mut times = None;
                for shape in shapes.iter_mut().take(rows) {
                    let first = shape.0.as_mut().filter(|sizes| !sizes.is_empty()).map(|sizes| sizes.remove(0));
                    times = times.or(first.flatten());
                }
                Some((function, shapes, times.unwrap_or(1) as u64))
            }
            _ => None,
        }
    }
}

/// The work of a call of a function with arguments of these shapes; `None` if it is nested too deeply or too large.
fn body(function: &Function, shapes: &[PartialShape], depth: &mut Depth) -> Option<Once> {
    depth.nodes = depth.nodes.checked_sub(function.nodes.len())?;
    depth.within = depth.within.checked_sub(1)?;
    let shapes: HashMap<&str, &PartialShape> =
        function.args.iter().map(|(name, _)| name.as_str()).zip(shapes).collect();
    let mut nodes = function.nodes.clone();
    for node in &mut nodes {
        if let Some(&shape) = shapes.get(node.name.as_str()) {
            node.attrs.set("shape", Attr::Shape(shape.clone()));
        }
    }
    let whole = Graph::new(nodes).ok().map(|graph| whole(&graph, depth));
    depth.within += 1;
    whole
}

/// The work of all nodes of a graph, and the most bytes of their values if they run one after the other.
fn whole(graph: &Graph, depth: &mut Depth) -> Once {
    let sizes = Sizes::of(graph);
    let mut works: Vec<Once> = vec![Once::default(); graph.len()];
    for (id, node) in graph.nodes().filter(|(_, node)| Sizes::computes(node)) {
        let read = node.inputs.iter().map(|&input| sizes.bytes(input)).fold(0, u64::saturating_add);
        let once = sizes.once(id, depth);
        works[id.index()] = Once { bytes: once.bytes.saturating_add(read), ..once };
    }
    // The rates are not known here: of two branches, that with more bytes and products is dearer.
    let weight = |id: NodeId| works[id.index()].bytes.saturating_add(works[id.index()].multiply_adds);
    let runs = Repeats::find(graph, &sizes.shapes).map(|mut repeats| repeats.runs(&Measured::default(), weight));
    let mut last = vec![0; graph.len()];
    let order = in_order(graph);
    for (at, &id) in order.iter().enumerate() {
        graph.node(id).inputs.iter().for_each(|input| last[input.node.index()] = at);
    }
    let mut freed: Vec<u64> = vec![0; order.len()];
    let (mut all, mut now) = (Once::default(), 0u64);
    for (at, &id) in order.iter().enumerate() {
        let (once, runs) = (works[id.index()], runs.as_ref().map_or(1, |runs| runs[id.index()]));
        all.calls = all.calls.saturating_add(once.calls.saturating_mul(runs));
        all.multiply_adds = all.multiply_adds.saturating_add(once.multiply_adds.saturating_mul(runs));
        all.bytes = all.bytes.saturating_add(once.bytes.saturating_mul(runs));
        let made = if once.calls > 0 { sizes.made(id) } else { 0 };
        now = now.saturating_add(made);
        all.peak = all.peak.max(now.saturating_add(once.peak));
        let until = &mut freed[last[id.index()].max(at)];
        *until = until.saturating_add(made);
        now = now.saturating_sub(freed[at]);
    }
    all
}

/// Bytes of elements of this size, with 1 for each size of the shape that is not known.
fn bytes_at_least(size: usize, shape: &PartialShape) -> u64 {
    let sizes = shape.0.iter().flatten();
    sizes.fold(size as u64, |bytes, size| bytes.saturating_mul(size.unwrap_or(1) as u64))
}
