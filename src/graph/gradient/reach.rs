//! Which nodes gradients pass through: those that lie between what is differentiated and what it is differentiated by.

use std::collections::HashSet;

use super::rules;
use crate::graph::op::Role;
use crate::graph::{Graph, NodeId, Output};
use crate::tensor::DType;

/// Whether a tensor of this dtype has a gradient.
pub(super) fn is_differentiable(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_handle()
}

/// The nodes between, by their places in the graph.
pub(super) struct Between {
    /// How many inputs of nodes between each node still waits for; `None` for a node that is not between.
    pub waits: Vec<Option<u32>>,
    /// Nodes beyond which nothing is differentiated.
    pub stops: HashSet<NodeId>,
    /// Whether there are conditionals between.
    pub has_branches: bool,
}

impl Between {
    pub fn new(graph: &Graph, ys: &[Output], xs: &[Output], stops: &[Output]) -> Between {
        let is_reached = reached(graph, xs);
        let mut waits: Vec<Option<u32>> = vec![None; graph.len()];
        let mut open: Vec<NodeId> = Vec::new();
        for y in ys.iter().filter(|y| is_reached[y.node.index()]) {
            if waits[y.node.index()].replace(0).is_none() {
                open.push(y.node);
            }
        }
        // Each node counts the inputs that it has of others between, once those are known.
        let mut between = Vec::new();
        while let Some(id) = open.pop() {
            between.push(id);
            for input in &graph.node(id).inputs {
                let waiting = &mut waits[input.node.index()];
                if is_reached[input.node.index()] && waiting.is_none() {
                    *waiting = Some(0);
                    open.push(input.node);
                }
            }
        }
        let has_branches = between.iter().any(|&id| matches!(graph.node(id).op.role, Role::Switch | Role::Merge));
        for id in between {
            for input in &graph.node(id).inputs {
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
        Between { waits, stops, has_branches }
    }
}

/// The nodes that depend on one of `xs` by tensors that have gradients.
fn reached(graph: &Graph, xs: &[Output]) -> Vec<bool> {
    let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for input in &node.inputs {
            if is_differentiable(graph.output_type(*input).dtype) {
                consumers[input.node.index()].push(id.0);
            }
        }
    }
    let mut is_reached = vec![false; graph.len()];
    let mut open: Vec<NodeId> = xs.iter().map(|x| x.node).collect();
    let is_start: HashSet<NodeId> = open.iter().copied().collect();
    while let Some(id) = open.pop() {
        // Nothing flows back through such a node.
        let is_end = !is_start.contains(&id) && rules::is_not_differentiable(graph.node(id).op.name);
        if !is_end && !std::mem::replace(&mut is_reached[id.index()], true) {
            open.extend(consumers[id.index()].iter().map(|&to| NodeId(to)));
        }
    }
    is_reached
}
