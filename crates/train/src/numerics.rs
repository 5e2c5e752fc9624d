//! Detection of the first node of a model whose value is not finite: nodes that test each value, which no step runs unless
//! they are fetched.

use std::collections::HashSet;

use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{Graph, GraphBuilder, Node, NodeId, Output};
use meshtf_tensor::failure::Result;

use super::job::{BATCH, CHECK_GRADIENT, TrainingGraph, name_of_next};

/// The nodes that find the first value that is not finite.
#[derive(Clone, Debug, Default)]
pub struct Numerics {
    /// For each kind of step, the values that its loss and then its gradients depend on, in topological order.
    pub steps: Vec<Vec<FiniteCheck>>,
    /// For each replica, the nodes that take its part of a batch; feeding those leaves the queues alone.
    pub taken: Vec<Vec<String>>,
}

/// A value, and the node that tests whether it is finite.
#[derive(Clone, Debug)]
pub struct FiniteCheck {
    /// The tensor.
    pub tensor: String,
    /// The node that computes it.
    pub node: NodeId,
    /// A bool: whether all its elements are finite.
    pub is_finite: String,
}

/// Adds nodes that find values that are not finite to a training. Values within a loop or a branch of a conditional are not
/// tested: such nodes cannot be fetched.
///
/// # Errors
/// Those of adding nodes.
pub fn add_checks(job: &mut TrainingGraph) -> Result<Numerics> {
    let graph = job.graph.clone();
    let taken: Vec<Vec<NodeId>> = match job.pipeline {
        Some(_) => vec![(0..job.queues[0].feeds.len()).filter_map(|k| graph.find(&format!("{BATCH}{k}"))).collect()],
        None => (0..job.queues.len()).map(|replica| takers(&graph, replica)).collect(),
    };
    let ends: HashSet<NodeId> = taken.iter().flatten().copied().collect();
    let inside = within_flow(&graph);
    let mut g = GraphBuilder::from(graph.clone());
    let mut steps = Vec::with_capacity(job.losses().len());
    for step in job.losses() {
        let mut checks = Vec::new();
        let mut lasts = vec![graph.output(&step.loss)?.node];
        lasts.extend(gradients_of(&graph, graph.find_or_nearest(&step.run)?));
        for node in before(&graph, &lasts, &ends) {
            for (port, output) in (0..).zip(&graph.node(node).outputs) {
                if !output.dtype.is_float() || inside[node.index()] {
                    continue;
                }
                let value = Output { node, port };
                let device = g.device_of(value);
                let flag = on(&mut g, &device, |g| {
                    let each = g.op("IsFinite").name("train/is_finite").input(value).build()?;
                    let flat = g.op("Reshape").input(each).input([-1i32]).build()?;
                    g.op("All").input(flat).input([0i32]).build()
                })?;
                checks.push(FiniteCheck { tensor: graph.tensor_name(value), node, is_finite: g.tensor_name(flag) });
            }
        }
        steps.push(checks);
    }
    job.graph = g.finish()?;
    let name = |id: &NodeId| graph.node(*id).name.clone();
    Ok(Numerics { steps, taken: taken.iter().map(|nodes| nodes.iter().map(name).collect()).collect() })
}

/// The nodes that take the elements of a replica's queue, part after part.
fn takers(graph: &Graph, replica: usize) -> Vec<NodeId> {
    let Some(next) = graph.find(&name_of_next(replica)) else { return Vec::new() };
    let port = |node: &Node| node.inputs.first().filter(|from| from.node == next).map(|from| from.port);
    let forwards = graph.nodes().filter(|(_, node)| node.op.role == Role::Forward);
    let mut takers: Vec<(u32, NodeId)> = forwards.filter_map(|(id, node)| Some((port(node)?, id))).collect();
    takers.sort_unstable();
    takers.into_iter().map(|(_, id)| id).collect()
}

/// The nodes of the gradients that a step checks, in the order in which they were added.
fn gradients_of(graph: &Graph, run: NodeId) -> Vec<NodeId> {
    let (mut seen, mut open, mut found) = (vec![false; graph.len()], vec![run], Vec::new());
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        if node.name.starts_with(CHECK_GRADIENT) {
            found.extend(node.inputs.iter().map(|input| input.node));
        }
        open.extend(node.sources());
    }
    found.sort_unstable();
    found
}

/// The nodes that `lasts` depend on by values, these included, in topological order, the dependencies of an earlier one
/// first. The traversal stops at `ends`.
fn before(graph: &Graph, lasts: &[NodeId], ends: &HashSet<NodeId>) -> Vec<NodeId> {
    let (mut seen, mut order) = (vec![false; graph.len()], Vec::new());
    for &last in lasts {
        if !std::mem::replace(&mut seen[last.index()], true) {
            add_before(graph, last, ends, &mut seen, &mut order);
        }
    }
    order
}

/// Adds a node after those of its dependencies that were not seen before.
fn add_before(graph: &Graph, last: NodeId, ends: &HashSet<NodeId>, seen: &mut [bool], order: &mut Vec<NodeId>) {
    let mut open = vec![(last, 0)];
    while let Some((id, next)) = open.pop() {
        let inputs = if ends.contains(&id) { &[][..] } else { &graph.node(id).inputs[..] };
        match inputs.get(next) {
            None => order.push(id),
            Some(input) => {
                open.push((id, next + 1));
                if !std::mem::replace(&mut seen[input.node.index()], true) {
                    open.push((input.node, 0));
                }
            }
        }
    }
}

/// By node: whether it is within a loop or a branch.
pub(crate) fn within_flow(graph: &Graph) -> Vec<bool> {
    let begins = |node: &Node| matches!(node.op.role, Role::Enter | Role::Switch);
    let ends = |node: &Node| matches!(node.op.role, Role::Exit | Role::Merge);
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for from in node.sources() {
            users[from.index()].push(id);
        }
    }
    let mut within = vec![false; graph.len()];
    let mut open: Vec<NodeId> = graph.nodes().filter(|(_, node)| begins(node)).map(|(id, _)| id).collect();
    while let Some(id) = open.pop() {
        // The value of a loop's Merge is one of its iterations', and that of an Exit is outside.
        if !ends(graph.node(id)) && !std::mem::replace(&mut within[id.index()], true) {
            open.extend(&users[id.index()]);
        }
    }
    // A Merge with a NextIteration as input belongs to a loop.
    for (id, node) in graph.nodes() {
        let is_loops = |input: &Output| graph.node(input.node).op.role == Role::NextIteration;
        if ends(node) && node.inputs.iter().any(is_loops) {
            within[id.index()] = true;
        }
    }
    within
}
