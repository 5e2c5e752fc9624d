//! The units of a model that is cut into stages: nodes that stay together, and an order of them in which every value goes
//! forward.
//!
//! Nodes of the loss that depend on a trained variable make up the units. What may not lie on two tasks is one unit: a variable
//! and all that takes it or its value, the iterations of a loop, and units in a circle, as those between two uses of one
//! variable.

use std::collections::HashSet;

use meshtf_graph::variable::Variable;
use meshtf_graph::{Attr, Graph, NodeId, Output};
use meshtf_tensor::DType;

use super::replicas::{COLOCATED, dependent};
use crate::numerics::within_flow;

/// The units of a model, and the nodes that the loss needs.
pub(super) struct Units {
    /// By node: a number that nodes have in common if they may not be on different tasks.
    pub together: Vec<usize>,
    /// By node: whether the loss needs it.
    pub needed: Vec<bool>,
    /// By such a number: the place of the unit in the order, if it is one.
    pub places: Vec<Option<usize>>,
    /// The number of units.
    pub count: usize,
}

impl Units {
    /// The units of the model for this loss, by these trained variables. `is_copied`: by node, whether it depends on the
    /// examples. `constants` are the nodes that are fed something else.
    pub fn of(graph: &Graph, loss: Output, trained: &[Variable], is_copied: &[bool], constants: &[&str]) -> Units {
        let needed = before(graph, loss.node, constants);
        let handles: Vec<NodeId> = trained.iter().map(|variable| variable.handle.node).collect();
        let depends = dependent(graph, &[], handles);
        let mut groups = Groups((0..graph.len()).collect());
        tie(graph, &needed, &mut groups, |from| depends[from.index()] && !is_copied[from.index()]);
        let is_unit = |id: NodeId| needed[id.index()] && depends[id.index()];
        let mut edges: HashSet<(usize, usize)> = HashSet::new();
        let mut members = HashSet::new();
        for (id, node) in graph.nodes().filter(|(id, _)| is_unit(*id)) {
            let to = groups.of(id.index());
            members.insert(to);
            for from in node.sources().filter(|&from| is_unit(from)) {
                let from = groups.of(from.index());
                members.insert(from);
                edges.extend((from != to).then_some((from, to)));
            }
        }
        // Circles are merged until there is none.
        let mut members: Vec<usize> = members.into_iter().collect();
        members.sort_unstable();
        let components = components(&members, &edges);
        for component in &components {
            component.iter().for_each(|&one| groups.join(component[0], one));
        }
        let together: Vec<usize> = (0..graph.len()).map(|at| groups.of(at)).collect();
        let edges = edges.into_iter().map(|(from, to)| (together[from], together[to])).filter(|(from, to)| from != to);
        let members: Vec<usize> = components.iter().map(|component| together[component[0]]).collect();
        let order = depth_first(members, &edges.collect());
        let mut places = vec![None; graph.len()];
        order.iter().enumerate().for_each(|(place, &unit)| places[unit] = Some(place));
        Units { together, needed, places, count: order.len() }
    }

    /// The place of a node's unit in the order.
    pub fn place(&self, id: NodeId) -> Option<usize> {
        self.places[self.together[id.index()]]
    }
}

/// By node: a number that all nodes of a loop, or of a conditional, have in common.
pub(super) fn loops(graph: &Graph) -> Vec<usize> {
    let (inside, mut groups) = (within_flow(graph), Groups((0..graph.len()).collect()));
    for (id, node) in graph.nodes() {
        for input in node.inputs.iter().filter(|input| inside[input.node.index()]) {
            groups.join(input.node.index(), id.index());
        }
    }
    (0..graph.len()).map(|at| groups.of(at)).collect()
}

/// By node: whether another one depends on it, or is it. A node that is fed depends on nothing.
fn before(graph: &Graph, last: NodeId, fed: &[&str]) -> Vec<bool> {
    let (mut seen, mut open) = (vec![false; graph.len()], vec![last]);
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if !std::mem::replace(&mut seen[id.index()], true) && !fed.contains(&node.name.as_str()) {
            open.extend(node.sources());
        }
    }
    seen
}

/// Joins nodes that may not be on different tasks. `is_weight`: whether a node's outputs are computed from trained variables
/// alone: weights stay where they are, unless they are one number, such as a sum of squares.
fn tie(graph: &Graph, needed: &[bool], groups: &mut Groups, is_weight: impl Fn(NodeId) -> bool) {
    let inside = within_flow(graph);
    let is_handle = |input: &Output| {
        let ty = graph.output_type(*input);
        ty.is_ref || ty.dtype == DType::Resource
    };
    for (id, node) in graph.nodes() {
        let handles = node.inputs.iter().filter(|input| is_handle(input)).count();
        for input in &node.inputs {
            let is_needed = needed[id.index()];
            // A node that saves takes all variables, and may be anywhere.
            let by_handle = is_handle(input) && (is_needed || handles == 1);
            let is_one = || graph.shapes().known(*input).is_some_and(|shape| shape.elements() == Some(1));
            let by_value = is_needed && is_weight(input.node) && !is_one();
            if by_handle || by_value || inside[input.node.index()] {
                groups.join(input.node.index(), id.index());
            }
        }
        let Some(Attr::Strs(classes)) = node.attrs.get("_class") else { continue };
        let with = classes.iter().filter_map(|class| std::str::from_utf8(class.strip_prefix(COLOCATED)?).ok());
        for other in with.filter_map(|name| graph.find(name)) {
            groups.join(other.index(), id.index());
        }
    }
}

/// Sets that are joined; each has one of its members as its number.
struct Groups(Vec<usize>);

impl Groups {
    fn of(&mut self, one: usize) -> usize {
        let mut at = one;
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}

/// The strongly connected components, by Kosaraju's algorithm.
fn components(members: &[usize], edges: &HashSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let place = |unit: usize| members.binary_search(&unit).unwrap_or_default();
    let (mut to, mut from) = (vec![Vec::new(); members.len()], vec![Vec::new(); members.len()]);
    for &(a, b) in edges {
        to[place(a)].push(place(b));
        from[place(b)].push(place(a));
    }
    to.iter_mut().chain(&mut from).for_each(|own| own.sort_unstable());
    let (mut seen, mut ended) = (vec![false; members.len()], Vec::with_capacity(members.len()));
    for start in 0..members.len() {
        walk(start, &to, &mut seen, &mut ended);
    }
    seen.fill(false);
    let mut all = Vec::new();
    for &start in ended.iter().rev() {
        let mut own = Vec::new();
        walk(start, &from, &mut seen, &mut own);
        all.extend((!own.is_empty()).then(|| own.into_iter().map(|at| members[at]).collect::<Vec<_>>()));
    }
    all
}

/// Adds what can be reached and was not seen, each after what follows it.
fn walk(start: usize, next: &[Vec<usize>], seen: &mut [bool], ended: &mut Vec<usize>) {
    if std::mem::replace(&mut seen[start], true) {
        return;
    }
    let mut open = vec![(start, 0)];
    while let Some((at, tried)) = open.pop() {
        match next[at].get(tried) {
            None => ended.push(at),
            Some(&one) => {
                open.push((at, tried + 1));
                if !std::mem::replace(&mut seen[one], true) {
                    open.push((one, 0));
                }
            }
        }
    }
}

/// A topological order in which a branch follows another one as a whole: so few values lie across a cut.
fn depth_first(mut members: Vec<usize>, edges: &HashSet<(usize, usize)>) -> Vec<usize> {
    members.sort_unstable();
    let place = |unit: usize| members.binary_search(&unit).unwrap_or_default();
    let (mut to, mut waits) = (vec![Vec::new(); members.len()], vec![0usize; members.len()]);
    for &(a, b) in edges {
        to[place(a)].push(place(b));
        waits[place(b)] += 1;
    }
    let mut open: Vec<usize> = (0..members.len()).rev().filter(|&at| waits[at] == 0).collect();
    let mut order = Vec::with_capacity(members.len());
    while let Some(at) = open.pop() {
        order.push(members[at]);
        to[at].sort_unstable_by(|a, b| b.cmp(a));
        for &next in &to[at] {
            waits[next] -= 1;
            if waits[next] == 0 {
                open.push(next);
            }
        }
    }
    order
}
