//! In which branches of conditionals the nodes of a graph are: what a Switch of a gradient is to be switched by.

use crate::graph::op::Role;
use crate::graph::{Graph, NodeId, Output};

/// One branch of a conditional, inside of those around it.
#[derive(Clone, Copy, Debug)]
struct Branch {
    /// What the conditional is decided by.
    predicate: Output,
    /// The output of its Switches that leads here: 1 if the predicate holds.
    port: u32,
    /// The branch around it, by its place in the list of all.
    outer: Option<usize>,
    depth: usize,
}

/// The branches of a graph's conditionals, and where its nodes are.
pub(super) struct Contexts {
    branches: Vec<Branch>,
    /// The innermost branch of each node.
    of_nodes: Vec<Option<usize>>,
}

/// What decides whether an input of a Merge arrives.
pub(super) struct Arrival {
    pub predicate: Output,
    /// The output of a Switch by that predicate which has a value when it does.
    pub port: u32,
}

impl Contexts {
    pub fn of(graph: &Graph) -> Contexts {
        let mut contexts = Contexts { branches: Vec::new(), of_nodes: vec![None; graph.len()] };
        let mut is_done = vec![false; graph.len()];
        let mut open = Vec::new();
        for (id, _) in graph.nodes() {
            open.push(id);
            while let Some(&id) = open.last() {
                let before = open.len();
                if !is_done[id.index()] {
                    open.extend(sources(graph, id).filter(|from| !is_done[from.index()]));
                }
                if open.len() == before {
                    open.pop();
                    if !std::mem::replace(&mut is_done[id.index()], true) {
                        contexts.of_nodes[id.index()] = contexts.find(graph, id);
                    }
                }
            }
        }
        contexts
    }

    /// When a tensor that a Merge takes arrives: `None` if no conditional decides it.
    pub fn arrival(&mut self, graph: &Graph, input: Output) -> Option<Arrival> {
        let branch = self.of_output(graph, input)?;
        let Branch { predicate, port, .. } = self.branches[branch];
        Some(Arrival { predicate, port })
    }

    /// The branches that a node is in and the tensor that it takes is not, from the innermost on.
    pub fn left(&mut self, graph: &Graph, id: NodeId, input: Output) -> Vec<Arrival> {
        let outer = self.of_output(graph, input).map_or(0, |branch| self.branches[branch].depth);
        let mut at = self.of_nodes[id.index()];
        let mut left = Vec::new();
        while let Some(branch) = at.map(|at| self.branches[at]).filter(|branch| branch.depth > outer) {
            left.push(Arrival { predicate: branch.predicate, port: branch.port });
            at = branch.outer;
        }
        left
    }

    /// The branch of a node: the innermost one that any of its inputs is in.
    fn find(&mut self, graph: &Graph, id: NodeId) -> Option<usize> {
        let node = graph.node(id);
        let is_back = |from: NodeId| graph.node(from).op.role.leads_back(node.op.role);
        let mut inner = None;
        for &input in node.inputs.iter().filter(|input| !is_back(input.node)) {
            inner = self.inner(inner, self.of_nodes[input.node.index()]);
            if graph.node(input.node).op.role == Role::Switch {
                let of_output = self.of_output(graph, input);
                inner = self.inner(inner, of_output);
            }
        }
        for from in &node.control {
            inner = self.inner(inner, self.of_nodes[from.index()]);
        }
        let is_loop = || node.inputs.iter().any(|input| graph.node(input.node).op.role == Role::Enter);
        match node.op.role {
            Role::Merge if !is_loop() => self.branches[inner?].outer,
            Role::Exit => self.branches[inner?].outer,
            _ => inner,
        }
    }

    /// The branch that an output leads to: that of its node, or for a Switch one of the two it leads to.
    fn of_output(&mut self, graph: &Graph, output: Output) -> Option<usize> {
        let outer = self.of_nodes[output.node.index()];
        let node = graph.node(output.node);
        if node.op.role != Role::Switch {
            return outer;
        }
        let depth = outer.map_or(0, |outer| self.branches[outer].depth) + 1;
        self.branches.push(Branch { predicate: node.inputs[1], port: output.port, outer, depth });
        Some(self.branches.len() - 1)
    }

    fn inner(&self, a: Option<usize>, b: Option<usize>) -> Option<usize> {
        let depth = |branch: Option<usize>| branch.map_or(0, |branch| self.branches[branch].depth);
        if depth(b) > depth(a) { b } else { a }
    }
}

/// The nodes that a node takes something of, but for what comes around a loop.
fn sources(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    let node = graph.node(id);
    let all = node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied());
    all.filter(move |&from| !graph.node(from).op.role.leads_back(node.op.role))
}
