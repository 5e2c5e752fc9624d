//! The contexts of a graph's nodes: the branches of conditionals and the loops that they are in. They determine the predicate
//! of a Switch of a gradient, and the loop of the gradient that its nodes belong to.

use std::collections::HashMap;

use crate::op::Role;
use crate::{Graph, Node, NodeId, Output};

/// A context (a branch of a conditional or a loop), by its index in the list of all.
pub(crate) type Place = usize;

/// A branch of a conditional or a loop, nested in others.
#[derive(Clone, Copy, Debug)]
struct Context {
    kind: Kind,
    /// The directly enclosing context.
    outer: Option<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Branch(Arrival),
    /// A frame that iterates.
    Loop,
}

/// The condition under which a tensor arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arrival {
    pub predicate: Output,
    /// The output of a Switch by that predicate that has a value in the same case: 1 if the predicate holds.
    pub port: u32,
}

/// The contexts of a graph, and those of its nodes.
#[derive(Default)]
pub(crate) struct Contexts {
    all: Vec<Context>,
    branches: HashMap<(Arrival, Option<Place>), Place>,
    /// By the name of the frame and the enclosing context.
    loops: HashMap<(String, Option<Place>), Place>,
    /// The Enter nodes of each loop.
    enters: HashMap<Place, Vec<NodeId>>,
    /// The context that each node runs in.
    of_nodes: Vec<Option<Place>>,
    /// Deepest nesting; `None` for any.
    most: Option<usize>,
    is_too_deep: bool,
}

impl Contexts {
    pub fn of(graph: &Graph) -> Contexts {
        Contexts::default().found(graph)
    }

    /// The contexts, unless they are nested more than `most` deep.
    pub fn of_at_most(graph: &Graph, most: usize) -> Option<Contexts> {
        let contexts = Contexts { most: Some(most), ..Contexts::default() }.found(graph);
        (!contexts.is_too_deep).then_some(contexts)
    }

    fn found(self, graph: &Graph) -> Contexts {
        let mut contexts = self;
        contexts.find_all(graph);
        if !contexts.loops.is_empty() {
            // Only now are the branches known that each loop is in, from all of its Enter nodes.
            contexts.enters.clear();
            contexts.find_all(graph);
        }
        contexts
    }

    fn find_all(&mut self, graph: &Graph) {
        self.of_nodes = vec![None; graph.len()];
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
                        self.of_nodes[id.index()] = self.find(graph, id);
                    }
                }
            }
        }
    }

    /// The condition under which an input of a Merge arrives: `None` if no conditional decides it.
    pub fn arrival(&mut self, graph: &Graph, input: Output) -> Option<Arrival> {
        let place = self.of_output(graph, input)?;
        if let Kind::Branch(arrival) = self.all[place].kind { Some(arrival) } else { None }
    }

    /// The branches that contain a node but not the tensor that it consumes, from the innermost on.
    pub fn left(&mut self, graph: &Graph, id: NodeId, input: Output) -> Vec<Arrival> {
        let outer = self.of_output(graph, input);
        let outer = self.depth(outer);
        let mut at = self.of_node(id);
        let mut left = Vec::new();
        while let Some(place) = at.filter(|_| self.depth(at) > outer) {
            let Kind::Branch(arrival) = self.all[place].kind else { break };
            left.push(arrival);
            at = self.all[place].outer;
        }
        left
    }

    /// The context of a node: the innermost branch or loop of any of its inputs.
    fn find(&mut self, graph: &Graph, id: NodeId) -> Option<Place> {
        let node = graph.node(id);
        let mut inner = None;
        for &input in node.inputs.iter().filter(|input| !leads_back(graph, input.node, node)) {
            let place = self.of_output(graph, input);
            inner = self.inner(inner, place);
        }
        for &from in &node.control {
            let place = self.of_output(graph, Output { node: from, port: 0 });
            let place = if is_switch(graph, from) { self.of_nodes[from.index()] } else { place };
            inner = self.inner(inner, place);
        }
        match node.op.role {
            Role::Merge if !is_loop_merge(graph, node) => match self.all[inner?] {
                Context { kind: Kind::Branch(_), outer } => outer,
                Context { kind: Kind::Loop, .. } => inner,
            },
            Role::Enter => {
                let place = self.entered(node, inner);
                self.enters.entry(place).or_default().push(id);
                inner
            }
            _ => inner,
        }
    }

    /// The loop of an Enter node that runs in `from`.
    fn entered(&mut self, node: &Node, from: Option<Place>) -> Place {
        let around = self.loop_of(from);
        if let Some(outer) = from.filter(|_| self.is_deepest(from)) {
            return outer;
        }
        let frame = node.attrs.str("frame_name").unwrap_or("").to_owned();
        let next = self.all.len();
        let place = *self.loops.entry((frame, around)).or_insert(next);
        if place == next {
            self.all.push(Context { kind: Kind::Loop, outer: from });
        } else {
            self.all[place].outer = self.inner(self.all[place].outer, from);
        }
        place
    }

    /// The context of an output: that of its node, or the one that a Switch, an Enter or an Exit leads to.
    pub fn of_output(&mut self, graph: &Graph, output: Output) -> Option<Place> {
        let outer = self.of_node(output.node);
        let node = graph.node(output.node);
        match node.op.role {
            Role::Switch if !is_loop_switch(graph, node) => {
                if self.is_deepest(outer) {
                    return outer;
                }
                let arrival = Arrival { predicate: node.inputs[1], port: output.port };
                let next = self.all.len();
                let place = *self.branches.entry((arrival, outer)).or_insert(next);
                if place == next {
                    self.all.push(Context { kind: Kind::Branch(arrival), outer });
                }
                Some(place)
            }
            Role::Enter => Some(self.entered(node, outer)),
            Role::Exit => self.all[self.loop_of(outer)?].outer,
            _ => outer,
        }
    }

    /// The context of a node.
    pub fn of_node(&self, id: NodeId) -> Option<Place> {
        self.of_nodes.get(id.index()).copied().flatten()
    }

    /// The innermost loop that encloses a context, or is that context.
    pub fn loop_of(&self, place: Option<Place>) -> Option<Place> {
        let mut at = place;
        while let Some(place) = at.filter(|&place| self.all[place].kind != Kind::Loop) {
            at = self.all[place].outer;
        }
        at
    }

    /// The directly enclosing context.
    pub fn outer(&self, place: Place) -> Option<Place> {
        self.all[place].outer
    }

    pub fn kind(&self, place: Place) -> Kind {
        self.all[place].kind
    }

    /// The Enter nodes of a loop.
    pub fn enters(&self, place: Place) -> &[NodeId] {
        self.enters.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Whether nothing may be nested in a context; that it was tried is remembered.
    fn is_deepest(&mut self, place: Option<Place>) -> bool {
        let is_deepest = self.most.is_some_and(|most| self.depth(place) >= most);
        self.is_too_deep |= is_deepest;
        is_deepest
    }

    /// The number of contexts.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of contexts that a context is nested in, with itself.
    pub fn depth(&self, place: Option<Place>) -> usize {
        std::iter::successors(place, |&place| self.all[place].outer).count()
    }

    fn inner(&self, a: Option<Place>, b: Option<Place>) -> Option<Place> {
        if a != b && self.depth(b) > self.depth(a) { b } else { a }
    }
}

/// Whether a node is the Switch of a loop variable, which decides whether it continues to the next iteration.
pub(crate) fn is_loop_switch(graph: &Graph, node: &Node) -> bool {
    node.op.role == Role::Switch && graph.node(node.inputs[1].node).op.role == Role::LoopCond
}

/// Whether a node is the Merge of a loop variable, which takes the initial value and the value of the iteration before.
pub(crate) fn is_loop_merge(graph: &Graph, node: &Node) -> bool {
    node.op.role == Role::Merge && node.inputs.iter().any(|input| graph.node(input.node).op.role == Role::Enter)
}

fn is_switch(graph: &Graph, id: NodeId) -> bool {
    graph.node(id).op.role == Role::Switch
}

/// Whether an edge from one node to another is the back edge of a loop.
pub(crate) fn leads_back(graph: &Graph, from: NodeId, to: &Node) -> bool {
    graph.node(from).op.role.leads_back(to.op.role)
}

/// The nodes whose outputs a node consumes, except over back edges of loops.
fn sources(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    let node = graph.node(id);
    let all = node.sources();
    all.filter(move |&from| !leads_back(graph, from, node))
}
