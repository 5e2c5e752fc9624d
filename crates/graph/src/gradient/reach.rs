//! The nodes that gradients pass through: those between the differentiated tensors and the tensors they are differentiated by.

use std::collections::{HashMap, HashSet};

use meshtf_tensor::DType;

use super::GradientRule;
use super::context::leads_back;
use crate::op::Role;
use crate::{Graph, NodeId, Output};

/// Whether a tensor of this dtype has a gradient.
pub(super) fn is_differentiable(dtype: DType) -> bool {
    dtype.is_differentiable() || dtype.is_handle()
}

/// The nodes between, by their indices in the graph.
pub(super) struct Between {
    /// The number of consuming inputs, of nodes between, that each node still waits for; `None` for a node that is not between.
    pub waits: Vec<Option<u32>>,
    /// Nodes beyond which nothing is differentiated.
    pub stops: HashSet<NodeId>,
    /// Whether there are conditionals between.
    pub has_branches: bool,
    /// The pushed value of each node that pops from a stack.
    pub pushed: HashMap<NodeId, Output>,
}

impl Between {
    pub fn new(graph: &Graph, ys: &[Output], xs: &[Output], stops: &[Output]) -> Between {
        let pushed = through_stacks(graph);
        let is_reached = reached(graph, xs, &pushed);
        let mut waits: Vec<Option<u32>> = vec![None; graph.len()];
        let mut open: Vec<NodeId> = Vec::new();
        for y in ys.iter().filter(|y| is_reached[y.node.index()]) {
            if waits[y.node.index()].replace(0).is_none() {
                open.push(y.node);
            }
        }
        // Each node counts the inputs that consume it, of nodes between, once these are known.
        let mut between = Vec::new();
        while let Some(id) = open.pop() {
            between.push(id);
            for input in graph.node(id).inputs.iter().chain(pushed.get(&id)) {
                let waiting = &mut waits[input.node.index()];
                if is_reached[input.node.index()] && waiting.is_none() {
                    *waiting = Some(0);
                    open.push(input.node);
                }
            }
        }
        let has_branches = between.iter().any(|&id| matches!(graph.node(id).op.role, Role::Switch | Role::Merge));
        for id in between {
            // The back edge of a loop does not count: its gradient begins with that of the loop's output.
            let node = graph.node(id);
            let inputs = node.inputs.iter().filter(|input| !leads_back(graph, input.node, node));
            for input in inputs.chain(pushed.get(&id)) {
                if let Some(count) = &mut waits[input.node.index()] {
                    *count += 1;
                }
            }
        }
        let is_first = |x: &&Output| {
            let inputs = &graph.node(x.node).inputs;
            inputs.iter().all(|input| waits[input.node.index()].is_none())
        };
        let stops = xs.iter().filter(is_first).chain(stops).map(|output| output.node).collect();
        Between { waits, stops, has_branches, pushed }
    }
}

/// The nodes that depend on one of `xs` by tensors that have gradients.
fn reached(graph: &Graph, xs: &[Output], pushed: &HashMap<NodeId, Output>) -> Vec<bool> {
    let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for input in &node.inputs {
            if is_differentiable(graph.output_type(*input).dtype) {
                consumers[input.node.index()].push(id.0);
            }
        }
    }
    for (popped, pushed) in pushed {
        if is_differentiable(graph.output_type(*pushed).dtype) {
            consumers[pushed.node.index()].push(popped.0);
        }
    }
    let mut is_reached = vec![false; graph.len()];
    let mut open: Vec<NodeId> = xs.iter().map(|x| x.node).collect();
    let is_start: HashSet<NodeId> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        // Gradients do not pass through such a node.
        let is_end = !is_start.contains(&id) && matches!(graph.node(id).op.gradient, GradientRule::None);
        if !is_end && !std::mem::replace(&mut is_reached[id.index()], true) {
            open.extend(consumers[id.index()].iter().map(|&to| NodeId(to)));
        }
    }
    is_reached
}

/// The node at which gradients end on the way from `y` to `x`, if there is such a path: the first node before `y` that consumes
/// a tensor through which gradients reach `x`, but lets none pass itself.
pub fn cut_off_at(graph: &Graph, y: Output, x: Output) -> Option<NodeId> {
    let mut is_before_y = vec![false; graph.len()];
    let mut open = vec![y.node];
    while let Some(id) = open.pop() {
        if !std::mem::replace(&mut is_before_y[id.index()], true) {
            open.extend(graph.node(id).inputs.iter().map(|input| input.node));
        }
    }
    let is_reached = reached(graph, &[x], &through_stacks(graph));
    let is_end = |id: NodeId| {
        let takes = |input: &Output| is_reached[input.node.index()];
        !is_reached[id.index()] && is_before_y[id.index()] && graph.node(id).inputs.iter().any(takes)
    };
    graph.nodes().map(|(id, _)| id).find(|&id| is_end(id))
}

/// The nodes that pop from stacks, with the pushed values. A stack that several nodes use is omitted, as TensorFlow's own
/// gradients omit all.
fn through_stacks(graph: &Graph) -> HashMap<NodeId, Output> {
    let mut stacks: HashMap<NodeId, (Vec<NodeId>, Vec<Output>)> = HashMap::new();
    for (id, node) in graph.nodes() {
        let is_pop = match node.op.runs_as().name {
            "StackPopV2" => true,
            "StackPushV2" => false,
            _ => continue,
        };
        // A handle is passed on by one input at each node.
        let (mut stack, mut left) = (node.inputs[0].node, graph.len());
        while let (false, Some(from), true) =
            (graph.node(stack).op.runs_as().name == "StackV2", graph.node(stack).inputs.first(), left > 0)
        {
            (stack, left) = (from.node, left - 1);
        }
        let (pops, pushes) = stacks.entry(stack).or_default();
        if is_pop { pops.push(id) } else { pushes.push(node.inputs[1]) }
    }
    let single = |(pops, pushes): (Vec<NodeId>, Vec<Output>)| match (&pops[..], &pushes[..]) {
        (&[pop], &[pushed]) => Some((pop, pushed)),
        _ => None,
    };
    stacks.into_values().filter_map(single).collect()
}
