//! The part of a graph that the fetches and targets of a signature need, cut at its feeds, in topological order.
//!
//! Independent of devices.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use meshtf_tensor::DType;

use super::{PlanError, Signature, Use};
use crate::op::Role;
use crate::shape::Declarations;
use crate::{Graph, Node, NodeId, Output, OutputType, Shapes, split_tensor_name};

/// The pruned graph of one signature.
#[derive(Debug)]
pub(super) struct PrunedGraph<'a> {
    pub graph: &'a Graph,
    /// In topological order except for the back edges of loops; among items that are ready, in the graph's order.
    pub items: Vec<Item>,
    /// The nodes that run even if nothing uses their value.
    pub targets: HashSet<NodeId>,
    /// The dtype of each feed, in the signature's order.
    pub feed_types: Vec<DType>,
    /// The dtype of each fetch, in the signature's order.
    pub fetch_types: Vec<DType>,
}

/// A node of the pruned graph.
#[derive(Debug)]
pub(super) struct Item {
    pub op: ItemOp,
    /// Indices into [`PrunedGraph::items`], and ports.
    pub inputs: Vec<(usize, u32)>,
    /// Indices into [`PrunedGraph::items`].
    pub control: Vec<usize>,
}

/// An output of an item, or the item itself, for a control input.
pub(super) type Edge = (usize, Option<u32>);

impl Item {
    /// The items whose outputs it consumes, and its control inputs.
    pub fn before(&self) -> impl Iterator<Item = usize> {
        self.edges().map(|(from, _)| from)
    }

    /// The outputs that it consumes, and its control inputs.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        let values = self.inputs.iter().map(|&(from, port)| (from, Some(port)));
        values.chain(self.control.iter().map(|&before| (before, None)))
    }
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemOp {
    Node(NodeId),
    /// The index in the signature's feeds, and the tensor that it replaces.
    Feed(u32, Output),
    /// The index in the signature's fetches, and the tensor that it returns.
    Fetch(u32, Output),
}

impl<'a> PrunedGraph<'a> {
    /// The node of the item; `None` for feeds and fetches.
    pub fn node(&self, item: usize) -> Option<&'a Node> {
        match self.items[item].op {
            ItemOp::Node(id) => Some(self.graph.node(id)),
            ItemOp::Feed(..) | ItemOp::Fetch(..) => None,
        }
    }

    /// The op type that the item's node runs as, for messages; empty for feeds and fetches.
    pub fn op(&self, item: usize) -> &'static str {
        self.node(item).map_or("", |node| node.op.runs_as().name)
    }

    /// The role of the item's node; `Role::Compute` for feeds and fetches.
    pub fn role(&self, item: usize) -> Role {
        self.node(item).map_or(Role::Compute, |node| node.op.role)
    }

    /// `name`, `name:1`: the name that users write for an output of an item.
    pub fn tensor_name(&self, item: usize, port: u32) -> String {
        match self.items[item].op {
            ItemOp::Node(node) => self.graph.tensor_name(Output { node, port }),
            ItemOp::Feed(_, tensor) | ItemOp::Fetch(_, tensor) => self.graph.tensor_name(tensor),
        }
    }

    /// The tensor of an item's output.
    pub fn tensor(&self, item: usize, port: u32) -> Output {
        match self.items[item].op {
            ItemOp::Node(node) => Output { node, port },
            ItemOp::Feed(_, tensor) | ItemOp::Fetch(_, tensor) => tensor,
        }
    }

    /// The inferred shapes of its tensors: those of the graph, unless it feeds tensors that may have any shape.
    pub fn shapes(&self, state: Declarations) -> Cow<'a, Shapes> {
        let is_fed = |node: NodeId| self.graph.node(node).op.is_fed;
        let feed = |item: &Item| if let ItemOp::Feed(_, tensor) = item.op { Some(tensor) } else { None };
        let fed: HashSet<Output> = self.items.iter().filter_map(feed).filter(|tensor| !is_fed(tensor.node)).collect();
        if fed.is_empty() {
            return Cow::Borrowed(match state {
                Declarations::Declared => self.graph.shapes(),
                Declarations::Doubted => self.graph.certain_shapes(),
            });
        }
        let order = self.items.iter().filter_map(|item| match item.op {
            ItemOp::Node(id) => Some(id),
            ItemOp::Feed(_, tensor) => Some(tensor.node).filter(|&node| is_fed(node)),
            ItemOp::Fetch(..) => None,
        });
        Cow::Owned(Shapes::of_step(self.graph, order, &fed, state))
    }

    /// Whether an output of an item is a reference to a variable.
    pub fn is_ref(&self, item: usize, port: u32) -> bool {
        self.node(item).is_some_and(|node| node.outputs[port as usize].is_ref)
    }

    /// The types of an item's outputs.
    pub fn outputs(&self, item: usize) -> Vec<OutputType> {
        match self.items[item].op {
            ItemOp::Node(id) => self.graph.node(id).outputs.clone(),
            ItemOp::Feed(_, tensor) => {
                vec![OutputType { dtype: self.graph.output_type(tensor).dtype, is_ref: false }]
            }
            ItemOp::Fetch(..) => Vec::new(),
        }
    }
}

/// Prunes the graph to the nodes that the signature needs.
///
/// A feed replaces one tensor for every consumer that reads it as a value. The node that would have computed it still runs if
/// another of its outputs is read, or if it is a control input of another node; only a fed Placeholder never runs.
pub(super) fn prune<'a>(graph: &'a Graph, signature: &Signature) -> Result<PrunedGraph<'a>, PlanError> {
    pruned(graph, signature, false)
}

/// As [`prune`], for the body of a function, whose arguments and results may be handles.
pub(super) fn prune_body<'a>(graph: &'a Graph, signature: &Signature) -> Result<PrunedGraph<'a>, PlanError> {
    pruned(graph, signature, true)
}

fn pruned<'a>(graph: &'a Graph, signature: &Signature, with_handles: bool) -> Result<PrunedGraph<'a>, PlanError> {
    if signature.fetches.is_empty() && signature.targets.is_empty() {
        return Err(PlanError::NothingAsked);
    }
    let mut fed: HashMap<Output, u32> = HashMap::with_capacity(signature.feeds.len());
    let mut feeds = Vec::with_capacity(signature.feeds.len());
    for (i, name) in signature.feeds.iter().enumerate() {
        let tensor = find_tensor(graph, Use::Feed, name, with_handles)?;
        if fed.insert(tensor, i as u32).is_some() {
            return Err(PlanError::FedTwice { tensor: graph.tensor_name(tensor) });
        }
        feeds.push(tensor);
    }
    let fetches: Vec<Output> = signature
        .fetches
        .iter()
        .map(|name| find_tensor(graph, Use::Fetch, name, with_handles))
        .collect::<Result<_, _>>()?;
    let targets: Vec<NodeId> =
        signature.targets.iter().map(|name| find_target(graph, name)).collect::<Result<_, _>>()?;

    let reached = Reached::from(graph, &fed, &feeds, &fetches, &targets)?;
    let dtype = |&tensor: &Output| graph.output_type(tensor).dtype;
    Ok(PrunedGraph {
        graph,
        items: reached.in_order(graph, &feeds, &fetches),
        targets: targets.into_iter().collect(),
        feed_types: feeds.iter().map(dtype).collect(),
        fetch_types: fetches.iter().map(dtype).collect(),
    })
}

/// The source of a value: the node that computes it, or the feed that replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Source {
    Node(NodeId),
    Feed(u32),
}

/// The nodes and feeds that the fetches and targets need.
struct Reached<'a> {
    fed: &'a HashMap<Output, u32>,
    nodes: Vec<bool>,
    feeds: Vec<bool>,
}

impl<'a> Reached<'a> {
    fn from(
        graph: &Graph,
        fed: &'a HashMap<Output, u32>,
        feeds: &[Output],
        fetches: &[Output],
        targets: &[NodeId],
    ) -> Result<Self, PlanError> {
        let mut reached = Reached { fed, nodes: vec![false; graph.len()], feeds: vec![false; feeds.len()] };
        let mut todo: Vec<NodeId> = Vec::new();
        let wanted = fetches
            .iter()
            .map(|&tensor| reached.value(tensor).0)
            .chain(targets.iter().map(|&node| reached.control(graph, node)))
            .collect::<Vec<_>>();
        for source in wanted {
            reached.mark(source, &mut todo);
        }
        while let Some(id) = todo.pop() {
            if let Some(error) = graph.refusal(id) {
                return Err(PlanError::CannotRun(error));
            }
            let node = graph.node(id);
            for (index, &input) in node.inputs.iter().enumerate() {
                let (source, _) = reached.value(input);
                if matches!(source, Source::Feed(_)) && node.input_refs[index] {
                    return Err(PlanError::FedReference {
                        tensor: graph.tensor_name(input),
                        node: node.name.clone(),
                        op: node.op.name.to_owned(),
                        index,
                    });
                }
                reached.mark(source, &mut todo);
            }
            for &before in &node.control {
                let source = reached.control(graph, before);
                reached.mark(source, &mut todo);
            }
        }
        Ok(reached)
    }

    fn mark(&mut self, source: Source, todo: &mut Vec<NodeId>) {
        match source {
            Source::Feed(feed) => self.feeds[feed as usize] = true,
            Source::Node(id) => {
                if !std::mem::replace(&mut self.nodes[id.index()], true) {
                    todo.push(id);
                }
            }
        }
    }

    /// The source of a tensor's value, and its port.
    fn value(&self, tensor: Output) -> (Source, u32) {
        self.fed.get(&tensor).map_or((Source::Node(tensor.node), tensor.port), |&feed| (Source::Feed(feed), 0))
    }

    /// The source that a control input from a node waits for.
    fn control(&self, graph: &Graph, node: NodeId) -> Source {
        match self.fed.get(&Output { node, port: 0 }) {
            Some(&feed) if graph.node(node).op.role == Role::Placeholder => Source::Feed(feed),
            _ => Source::Node(node),
        }
    }

    /// The items in topological order; among those that are ready at the same time, in the graph's order, with a feed at the
    /// position of its node, and fetches last.
    fn in_order(&self, graph: &Graph, feeds: &[Output], fetches: &[Output]) -> Vec<Item> {
        // Every source with a number that sorts in that order: a node at 2n+1, the feed that replaces it just before.
        let mut sources: Vec<(u64, Source)> = Vec::new();
        sources.extend(graph.nodes().filter(|(id, _)| self.nodes[id.index()]).map(|(id, _)| {
            let rank = u64::from(id.0) * 2 + 1;
            (rank << 32, Source::Node(id))
        }));
        sources.extend(feeds.iter().enumerate().filter(|(i, _)| self.feeds[*i]).map(|(i, tensor)| {
            let rank = u64::from(tensor.node.0) * 2;
            (rank << 32 | u64::from(tensor.port), Source::Feed(i as u32))
        }));
        sources.sort_unstable_by_key(|&(rank, _)| rank);
        let place: HashMap<Source, usize> = sources.iter().enumerate().map(|(i, &(_, source))| (source, i)).collect();

        // Items numbered by rank, then sorted topologically.
        let mut items: Vec<Item> = Vec::with_capacity(sources.len() + fetches.len());
        for &(_, source) in &sources {
            items.push(match source {
                Source::Feed(feed) => {
                    let op = ItemOp::Feed(feed, feeds[feed as usize]);
                    Item { op, inputs: Vec::new(), control: Vec::new() }
                }
                Source::Node(id) => {
                    let node = graph.node(id);
                    let inputs = node.inputs.iter().map(|&input| {
                        let (source, port) = self.value(input);
                        (place[&source], port)
                    });
                    let mut control: Vec<usize> =
                        node.control.iter().map(|&before| place[&self.control(graph, before)]).collect();
                    control.sort_unstable();
                    control.dedup();
                    Item { op: ItemOp::Node(id), inputs: inputs.collect(), control }
                }
            });
        }
        let (mut items, new_place) = sort(graph, items);
        let place = |source: Source| new_place[place[&source]];
        for (i, &tensor) in fetches.iter().enumerate() {
            let (source, port) = self.value(tensor);
            let op = ItemOp::Fetch(i as u32, tensor);
            items.push(Item { op, inputs: vec![(place(source), port)], control: Vec::new() });
        }
        items
    }
}

/// Sorts items topologically, the earliest of those that are ready first; also returns the new index of each. Ignores the back
/// edges of loops.
fn sort(graph: &Graph, items: Vec<Item>) -> (Vec<Item>, Vec<usize>) {
    let role = |item: &Item| match item.op {
        ItemOp::Node(id) => graph.node(id).op.role,
        ItemOp::Feed(..) | ItemOp::Fetch(..) => Role::Compute,
    };
    let is_back = |from: usize, to: usize| role(&items[from]).leads_back(role(&items[to]));
    let sources = |to: usize| items[to].before().filter(move |&from| !is_back(from, to));
    let mut waits = vec![0usize; items.len()];
    let mut consumers: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    for (to, waits) in waits.iter_mut().enumerate() {
        for from in sources(to) {
            *waits += 1;
            consumers[from].push(to);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..items.len()).filter(|&i| waits[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(items.len());
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &to in &consumers[at] {
            waits[to] -= 1;
            if waits[to] == 0 {
                ready.push(Reverse(to));
            }
        }
    }
    let mut new_place = vec![0usize; items.len()];
    for (new, &old) in order.iter().enumerate() {
        new_place[old] = new;
    }
    let mut items: Vec<Option<Item>> = items.into_iter().map(Some).collect();
    let moved = order.iter().filter_map(|&old| items[old].take()).map(|mut item| {
        item.inputs.iter_mut().for_each(|(from, _)| *from = new_place[*from]);
        item.control.iter_mut().for_each(|from| *from = new_place[*from]);
        item
    });
    (moved.collect(), new_place)
}

fn find_tensor(graph: &Graph, usage: Use, tensor: &str, with_handles: bool) -> Result<Output, PlanError> {
    let (name, port) = split_tensor_name(tensor);
    let id = find(graph, usage, name)?;
    let node = graph.node(id);
    let Some(ty) = node.outputs.get(port as usize) else {
        if let Some(error) = graph.refusal(id) {
            return Err(PlanError::CannotRun(error));
        }
        return Err(PlanError::NoSuchPort {
            usage,
            tensor: tensor.to_owned(),
            node: node.name.clone(),
            op: node.op.name.to_owned(),
            ports: node.outputs.len(),
        });
    };
    if ty.dtype.is_handle() && !with_handles {
        if let Some(error) = graph.refusal(id) {
            return Err(PlanError::CannotRun(error));
        }
        let (node, op) = (node.name.clone(), node.op.name.to_owned());
        return Err(PlanError::Handle { usage, tensor: tensor.to_owned(), node, op });
    }
    Ok(Output { node: id, port })
}

/// A target is a node; `name:0` and `^name` are accepted for it too.
fn find_target(graph: &Graph, name: &str) -> Result<NodeId, PlanError> {
    let name = name.strip_prefix('^').unwrap_or(name);
    find(graph, Use::Target, split_tensor_name(name).0)
}

fn find(graph: &Graph, usage: Use, name: &str) -> Result<NodeId, PlanError> {
    graph.find(name).ok_or_else(|| PlanError::NoSuchNode {
        usage,
        name: name.to_owned(),
        nearest: meshtf_tensor::nearest::nearest(name, graph.nodes().map(|(_, node)| node.name.as_str()))
            .into_iter()
            .map(str::to_owned)
            .collect(),
    })
}
