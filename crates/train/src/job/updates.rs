//! The nodes that a step runs in addition to the update: they keep running averages of a batch's statistics, for example.
//!
//! They wait for the update, so that a step whose loss is not finite changes nothing; and the step counter waits for them, so
//! that a step that is counted is done.

use std::collections::HashSet;

use meshtf_graph::op::Role;
use meshtf_graph::variable::ops::on;
use meshtf_graph::{Graph, GraphBuilder, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::replicas::Replicas;
use super::{CHECK, Team, UPDATES, name_of_variable};
use crate::file::{TrainSection, UpdateMode};

/// A node that is to wait, and the node that it waits for, by their names.
type Wait = (String, String);

/// Makes the steps of teams run them, too; returns which nodes must wait for which. If several replicas make one update of
/// variables that they share, only those of the first run.
pub(super) fn add(
    g: &mut GraphBuilder,
    replicas: &Replicas,
    train: &TrainSection,
    teams: &mut [Team],
) -> Result<Vec<Wait>> {
    let (names, mut waits) = (names(replicas.graph, train)?, Vec::new());
    if names.is_empty() || train.backup > 0 {
        return Ok(waits);
    }
    let is_alone = teams.len() == 1;
    for (i, team) in teams.iter_mut().enumerate() {
        g.settle()?;
        let own = if train.mode == UpdateMode::Mirrored { 0..replicas.count() } else { i..i + 1 };
        let home = g.device_of(team.run);
        let counts = counts(g.settled(), team.run.node);
        let made: Vec<NodeId> = counts.iter().flat_map(|&count| g.settled().node(count).control.clone()).collect();
        let made = all_of(g, "train/updated", &home, made.into_iter().map(|node| Output { node, port: 0 }))?;
        let made = g.tensor_name(made);
        let (mut all, mut last) = (vec![team.run], Vec::new());
        for replica in own {
            for name in &names {
                let node = replicas.named(name, replica);
                let update = found(g, &node)?;
                all.push(update);
                // A node that all replicas share belongs to no team.
                if is_alone || node != *name || replica == 0 && replicas.is_copied(name) {
                    last.push(update);
                    waits.push((node, made.clone()));
                }
            }
        }
        let last = all_of(g, "train/updates_made", &home, last)?;
        let last = g.tensor_name(last);
        for count in counts {
            waits.push((g.tensor_name(Output { node: count, port: 0 }), last.clone()));
        }
        team.run = all_of(g, "train/step_and_updates", &home, all)?;
    }
    Ok(waits)
}

/// The nodes that count a step, for which the step's last node waits.
fn counts(graph: &Graph, run: NodeId) -> Vec<NodeId> {
    let (mut open, mut counts) = (vec![run], Vec::new());
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        match node.op.role == Role::Nothing {
            true => open.extend(&node.control),
            false => counts.push(id),
        }
    }
    counts
}

/// Adds a node that runs others.
pub(super) fn all_of(
    g: &mut GraphBuilder,
    name: &str,
    home: &str,
    all: impl IntoIterator<Item = Output>,
) -> Result<Output> {
    on(g, home, |g| all.into_iter().fold(g.op("NoOp").name(name), |node, one| node.control(one)).build())
}

/// The nodes that a worker runs without an update waiting for them: those of its replica, and which of them wait for its
/// loss.
pub(super) fn of_worker(
    g: &mut GraphBuilder,
    replicas: &Replicas,
    train: &TrainSection,
    replica: usize,
    loss: Output,
) -> Result<(Vec<Output>, Vec<Wait>)> {
    let (mut all, mut waits) = (Vec::new(), Vec::new());
    let names = names(replicas.graph, train)?;
    if names.is_empty() {
        return Ok((all, waits));
    }
    let (home, message) = (g.device_of(loss), "the loss is not finite");
    let check = on(g, &home, |g| g.op("CheckNumerics").name(CHECK).input(loss).attr("message", message).build())?;
    g.settle()?;
    for name in names {
        let node = replicas.named(&name, replica);
        all.push(found(g, &node)?);
        waits.push((node, g.tensor_name(check)));
    }
    Ok((all, waits))
}

fn found(g: &GraphBuilder, node: &str) -> Result<Output> {
    Ok(Output { node: g.settled().find_or_nearest(node)?, port: 0 })
}

/// The nodes of a model that steps run in addition to the update: the named ones; a node that only waits for other nodes is
/// replaced by those.
fn names(graph: &Graph, train: &TrainSection) -> Result<Vec<String>> {
    let mut open: Vec<NodeId> = Vec::new();
    for name in &train.updates {
        let found = graph.find_or_nearest(name);
        open.push(found.map_err(|error| Failure::invalid(format!("update {name}: {error}")))?);
    }
    if train.updates.is_empty() {
        open.extend(graph.find(UPDATES));
    }
    let (mut seen, mut names) = (vec![false; graph.len()], Vec::new());
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        match node.op.role == Role::Nothing {
            true => open.extend(&node.control),
            false => names.push(node.name.clone()),
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The names of the variables of a model that nodes of its steps may change, by which they are found
/// ([`names_of_variables`](super::names_of_variables)): nodes that take a variable and do not merely read it.
pub(super) fn changed_in_steps(graph: &Graph, train: &TrainSection) -> Result<HashSet<String>> {
    let names = names(graph, train)?;
    let tensors = std::iter::once(&train.loss).chain(&train.metrics).chain(&names);
    let mut open: Vec<NodeId> = tensors.filter_map(|name| Some(graph.output(name).ok()?.node)).collect();
    open.extend(names.iter().filter_map(|name| graph.find(name)));
    let changed = changed_by(graph, open);
    let handles = graph.nodes().filter(|(id, node)| node.op.makes_variable && changed.contains(id));
    Ok(handles.map(|(id, _)| name_of_variable(graph, id)).collect())
}

/// Whether a step that computes these tensors and nodes may change a variable.
pub fn changes_variables<'a>(graph: &Graph, names: impl IntoIterator<Item = &'a str>) -> bool {
    let node = |name: &str| graph.find(name).or_else(|| Some(graph.output(name).ok()?.node));
    let changed = changed_by(graph, names.into_iter().filter_map(node).collect());
    graph.nodes().any(|(id, node)| node.op.makes_variable && changed.contains(&id))
}

/// The nodes whose outputs these nodes, or those before them, may change.
fn changed_by(graph: &Graph, mut open: Vec<NodeId>) -> HashSet<NodeId> {
    let (mut seen, mut changed) = (vec![false; graph.len()], HashSet::new());
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut seen[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        let passes_on = node.outputs.iter().any(|output| output.is_ref || output.dtype == DType::Resource);
        if node.op.assigns || passes_on || node.op.stateful && !node.op.reads_variable {
            changed.extend(node.inputs.iter().map(|input| input.node));
        }
        open.extend(node.sources());
    }
    changed
}

/// A graph in which some nodes wait for other nodes.
pub(super) fn after(graph: Graph, waits: &[Wait]) -> Result<Graph> {
    if waits.is_empty() {
        return Ok(graph);
    }
    let mut defs = graph.to_defs();
    for (node, before) in waits {
        if let Some(id) = graph.find(node) {
            defs[id.index()].inputs.push(format!("^{before}"));
        }
    }
    Ok(Graph::new(defs)?)
}
