//! Mirrored training: each worker has a copy of all variables and updates it, by gradients that are summed over all workers.

use std::ops::Range;

use meshtf_graph::variable::ops::{binary, cast, on};
use meshtf_graph::variable::{Variable, add_init, read, variable_of};
use meshtf_graph::{Graph, GraphBuilder, Node, NodeDef, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::replicas::Replicas;
use super::updates::all_of;
use super::{Beside, Made, Team, held, mean, metrics, names_of_variables, trained_of, without};
use crate::file::TrainSection;
use crate::minimize::{apply_each, gradients_of_share};
use crate::ring::{BucketLimits, all_reduce};

/// Adds the updates of all replicas of a graph.
pub(super) fn add(
    g: &mut GraphBuilder,
    graph: &Graph,
    replicas: &Replicas,
    train: &TrainSection,
    checks: bool,
) -> Result<Made> {
    let count = replicas.count();
    let all: Vec<usize> = (0..count).collect();
    let names = names_of_variables(graph);
    let (mut own, mut trained, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..count {
        let variables = names.iter().map(|name| variable_of(g, &replicas.named(name, i)));
        own.push(variables.collect::<Result<Vec<Variable>>>()?);
    }
    // Random first values are to be the same for all; the optimizer's slots may start from them.
    let mut begun = Vec::new();
    let (first, others) = own.split_at_mut(1);
    for copies in others {
        for (variable, copy) in first[0].iter().zip(copies) {
            copy.assign = Some(take_over(g, variable, copy)?);
            begun.push(copy.clone());
        }
    }
    let chosen = trained_of(train, &own[0])?;
    let places: Vec<usize> =
        (0..names.len()).filter(|&k| chosen.iter().any(|variable| variable.name == own[0][k].name)).collect();
    for (i, variables) in own.iter().enumerate() {
        let of_replica: Vec<Variable> = places.iter().map(|&k| variables[k].clone()).collect();
        let loss = replicas.outputs(g, &train.loss, &[i])?[0];
        found.push(gradients_of_share(g, &[loss], count, &of_replica)?);
        trained.push(of_replica);
    }
    let losses = replicas.outputs(g, &train.loss, &all)?;
    g.settle()?;
    let first = g.settled().len();
    let mut sets = Vec::with_capacity(count);
    for (set, &loss) in found.iter().zip(&losses) {
        // If one worker's loss is not finite, no worker gets complete gradients.
        let home = g.device_of(loss);
        let number = on(g, &home, |g| cast(g, loss, DType::F32))?;
        sets.push(held(g, number, set, checks)?);
    }
    let sums = all_reduce(g, &trained, &sets, BucketLimits::default())?;
    g.settle()?;
    let early = first..g.settled().len();
    let loss = mean(g, "train/loss", &losses)?;
    let mut runs = Vec::with_capacity(count);
    for (i, set) in sums.into_iter().enumerate() {
        let (added, run) = apply_each(g, &trained[i], &[set], &train.training, &[], &replicas.prefix(i))?;
        runs.extend(run);
        let added = without(added.variables, &own[i]);
        begun.extend(added.iter().cloned());
        own[i].extend(added);
    }
    let init = add_init(g, "train/init", &begun)?;
    let home = g.device_of(runs[0]);
    let run = all_of(g, "train/all", &home, runs)?;
    let mut own = own.into_iter();
    let variables = own.next().unwrap_or_default();
    let team = Team { loss, metrics: metrics(g, replicas, train, &all)?, run };
    Ok(Made { init, teams: vec![team], variables, copies: own.collect(), early, beside: Beside::default() })
}

/// Adds the assignment of a variable's value to a copy of it.
fn take_over(g: &mut GraphBuilder, variable: &Variable, copy: &Variable) -> Result<Output> {
    let value = on(g, &variable.device, |g| read(g, variable.handle, variable.is_ref, variable.dtype).build())?;
    let assign = if copy.is_ref { "Assign" } else { "AssignVariableOp" };
    on(g, &copy.device, |g| binary(g, assign, copy.handle, value))
}

/// A graph in which the nodes of a range, and the nodes that are computed for them alone, directly follow their inputs: a
/// device runs ready nodes in the order of the graph, and gradients are to be sent before the next ones are computed. So the
/// gradient of a layer's weights is computed before that of its input. Also returns the new id of each node.
pub(super) fn sooner(graph: Graph, range: &Range<usize>) -> Result<(Graph, Vec<NodeId>)> {
    if range.is_empty() {
        let places = graph.nodes().map(|(id, _)| id).collect();
        return Ok((graph, places));
    }
    let is_early = early(&graph, range);
    let mut keys: Vec<usize> = (0..graph.len()).collect();
    for (id, node) in graph.nodes().filter(|(id, _)| is_early[id.index()]) {
        let before = node.sources();
        keys[id.index()] = before.map(|from| keys[from.index()]).max().unwrap_or(0);
    }
    let mut order: Vec<usize> = (0..graph.len()).collect();
    order.sort_by_key(|&at| (keys[at], at));
    let mut places = vec![NodeId(0); order.len()];
    let mut defs: Vec<Option<NodeDef>> = graph.to_defs().into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(order.len());
    for (place, &at) in (0..).zip(&order) {
        places[at] = NodeId(place);
        sorted.extend(defs[at].take());
    }
    Ok((Graph::new(sorted)?, places))
}

/// By node: whether it is in the range, or stateless and consumed by nodes of the range alone.
fn early(graph: &Graph, range: &Range<usize>) -> Vec<bool> {
    let (mut is_taken, mut is_taken_late) = (vec![false; graph.len()], vec![false; graph.len()]);
    for (id, node) in graph.nodes() {
        let taken = if range.contains(&id.index()) { &mut is_taken } else { &mut is_taken_late };
        let before = node.sources();
        before.for_each(|from| taken[from.index()] = true);
    }
    let is_early = |id: usize, node: &Node| {
        range.contains(&id) || is_taken[id] && !is_taken_late[id] && !node.op.stateful && !node.inputs.is_empty()
    };
    graph.nodes().map(|(id, node)| is_early(id.index(), node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::PartialShape;

    #[test]
    fn gradients_of_weights_are_computed_before_those_of_the_layers_below() {
        let mut g = GraphBuilder::new();
        let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN).expect("a placeholder");
        let mut add = |name: &str, op: &str, inputs: &[Output]| {
            g.op(op).name(name).inputs(inputs.iter().copied()).build().expect("a node")
        };
        let by_y = add("by_y", "Neg", &[x]);
        let by_x = add("by_x", "MatMul", &[by_y, x]);
        let by_w = add("by_w", "MatMul", &[x, by_y]);
        let by_lower = add("by_lower", "MatMul", &[x, by_x]);
        let first = 5;
        let sent = add("sent", "Identity", &[by_w]);
        let later = add("later", "Identity", &[by_lower]);
        add("update", "Add", &[sent, later]);
        let (graph, places) = sooner(g.finish().expect("a graph"), &(first..first + 2)).expect("an order");
        let names: Vec<&str> = graph.nodes().map(|(_, node)| node.name.as_str()).collect();
        assert_eq!(names, ["x", "by_y", "by_w", "sent", "by_x", "by_lower", "later", "update"]);
        assert!(names.iter().enumerate().all(|(at, name)| graph.find(name) == Some(NodeId(at as u32))));
        assert_eq!(places[by_w.node.index()], NodeId(2));
    }
}
