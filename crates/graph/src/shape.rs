//! Shape inference: the shapes of a graph's tensors, as far as they are known without running it.
//!
//! Each op names a rule (`shape RULE` in `op/table.txt`), which infers facts about its outputs from those about its inputs, as
//! TensorFlow's shape functions do. A rank may be known though a size is not, and two sizes, or two whole shapes, may be known
//! to be equal though neither is. The elements of small integer tensors are followed too, since other ops use them as shapes,
//! axes and sizes.
//!
//! A graph infers its shapes once, on first use; a graph that is extended infers those of the new nodes only.

mod call;
mod extent;
mod rules;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use call::Call;
pub use extent::Extent;
use meshtf_tensor::{PartialShape, Shape};

use super::{Graph, Node, NodeId, Output};

/// The rule that infers an op's output shapes from its input shapes.
#[derive(Clone, Copy)]
pub struct ShapeRule {
    name: &'static str,
    infer: rules::Rule,
    extent: Extent,
}

impl ShapeRule {
    /// Infers nothing about the outputs.
    pub(super) const UNKNOWN: ShapeRule =
        ShapeRule { name: "unknown", infer: rules::nothing_known, extent: Extent::Unknown };
    /// A placeholder, while the table is read, for the rule of the newer op that an op runs as.
    pub(super) const OF_NEWER: ShapeRule = ShapeRule { name: "", ..ShapeRule::UNKNOWN };

    /// The rule of a name in the table of ops.
    pub(super) fn named(name: &str) -> Option<ShapeRule> {
        rules::named(name)
    }

    /// Its name in the table of ops.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The data on which the shapes of the outputs depend.
    pub fn extent(&self) -> Extent {
        self.extent
    }
}

impl PartialEq for ShapeRule {
    fn eq(&self, other: &ShapeRule) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for ShapeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A size along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Known(usize),
    /// An unknown size, by its number: two sizes of one number are equal.
    Unknown(u32),
}

/// The sizes of a tensor whose rank is known.
type Dims = Vec<Size>;

/// An element of a small integer tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Known(i64),
    /// The unknown size of this number.
    Size(u32),
    Unknown,
}

/// The inferred facts about an output.
#[derive(Clone, Debug, Default)]
struct Fact {
    dims: Option<Dims>,
    /// The elements in row-major order, if the output is a small integer tensor.
    elements: Option<Vec<Element>>,
    /// The number of its shape: two outputs with the same number have the same shape.
    like: Option<u32>,
    /// If the output is itself a shape, written as a vector: the number of that shape.
    shape_of: Option<u32>,
    /// If the output is a handle or reference: the node that made the variable, the queue and so on.
    made_by: Option<NodeId>,
}

/// Whether the shapes that variables, queues and other state declare are relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declarations {
    /// They are, as TensorFlow's shape functions do.
    Declared,
    /// They are not: a program may assign a variable a shape other than the declared one.
    Doubted,
}

/// The inferred shapes of a graph's tensors.
#[derive(Clone, Debug)]
pub struct Shapes {
    state: Declarations,
    /// Whether each loop variable is taken to keep the shape with which it enters.
    keeps_loops: bool,
    /// By node and port; empty for nodes without facts.
    facts: Vec<Vec<Fact>>,
    /// If state is doubted: the nodes whose outputs may be references to it.
    doubted: Vec<bool>,
    /// The number of unknown sizes and shapes that have been numbered.
    numbers: u32,
    /// The first node whose inputs have shapes that contradict each other, and the reason.
    conflict: Option<(NodeId, String)>,
}

impl Shapes {
    /// The shape of an output, with unknown sizes left open. Every tensor that a step computes for it has this shape, unless
    /// the step feeds a tensor that is not a placeholder.
    pub fn of(&self, output: Output) -> PartialShape {
        let known = |dims: &Dims| dims.iter().map(|size| size.known()).collect();
        PartialShape(self.fact(output).and_then(|fact| fact.dims.as_ref()).map(known))
    }

    /// The shape of an output if every size is known.
    pub fn known(&self, output: Output) -> Option<Shape> {
        self.dims(output)?.iter().map(|size| size.known()).collect()
    }

    /// Whether two outputs have the same shape, even an unknown one.
    pub fn are_same(&self, a: Output, b: Output) -> bool {
        let like = |output: Output| self.fact(output)?.like;
        self.dims(a).is_some_and(|dims| Some(dims) == self.dims(b))
            || like(a).is_some_and(|number| Some(number) == like(b))
    }

    /// The elements of a small integer tensor, in row-major order, as far as they are known; `None` if nothing is known of them.
    pub fn integers(&self, output: Output) -> Option<Vec<Option<i64>>> {
        let known = |element: &Element| if let Element::Known(value) = element { Some(*value) } else { None };
        Some(self.fact(output)?.elements.as_ref()?.iter().map(known).collect())
    }

    /// Whether an output is known to be an integer tensor without elements.
    pub fn is_empty_list(&self, output: Output) -> bool {
        self.fact(output).and_then(|fact| fact.elements.as_ref()).is_some_and(Vec::is_empty)
    }

    /// The first node whose inputs have shapes that every kernel of its op refuses, and the reason. It is found if state has its
    /// declared shape.
    pub fn conflict(&self) -> Option<(NodeId, &str)> {
        self.conflict.as_ref().map(|(node, why)| (*node, why.as_str()))
    }

    /// Infers the shapes of a whole graph.
    pub(super) fn of_graph(nodes: &[Node], state: Declarations) -> Shapes {
        let mut shapes = Shapes::new(state);
        shapes.extend(nodes);
        shapes
    }

    /// Estimates the shapes of a whole graph: as TensorFlow infers them, and as if each loop variable kept the shape with which
    /// it enters. Most do, but nothing says so.
    pub(super) fn estimated(nodes: &[Node]) -> Shapes {
        let mut shapes = Shapes { keeps_loops: true, ..Shapes::new(Declarations::Declared) };
        shapes.extend(nodes);
        shapes
    }

    /// Infers the shapes of the nodes that were added to a graph since its shapes were inferred.
    pub(super) fn extend(&mut self, nodes: &[Node]) {
        let first = self.facts.len();
        self.grow(nodes.len());
        let mut is_done = vec![false; nodes.len() - first];
        let mut open = Vec::new();
        for id in first..nodes.len() {
            open.push(id);
            // A node may come before its inputs.
            while let Some(&id) = open.last() {
                let before = open.len();
                if !is_done[id - first] {
                    let role = nodes[id].op.role;
                    let inputs = nodes[id].inputs.iter().map(|input| input.node.index());
                    let is_back = |from: usize| nodes[from].op.role.leads_back(role);
                    open.extend(inputs.filter(|&from| from >= first && !is_done[from - first] && !is_back(from)));
                }
                if open.len() == before {
                    open.pop();
                    if !std::mem::replace(&mut is_done[id - first], true) {
                        self.infer(nodes, NodeId(id as u32), &|_| false);
                    }
                }
            }
        }
    }

    /// Infers the shapes of the nodes of one step, which feeds tensors that nodes would compute. `order` has the nodes that
    /// run, and the fed placeholders, in topological order; the `fed` tensors have no known shape.
    pub fn of_step(
        graph: &Graph,
        order: impl IntoIterator<Item = NodeId>,
        fed: &HashSet<Output>,
        state: Declarations,
    ) -> Shapes {
        let mut shapes = Shapes::new(state);
        shapes.grow(graph.len());
        for &output in fed {
            let facts = graph.node(output.node).outputs.iter().map(|_| shapes.unlike_others()).collect();
            shapes.facts[output.node.index()] = facts;
        }
        for id in order {
            shapes.infer(&graph.nodes, id, &|output| fed.contains(&output));
        }
        shapes
    }

    fn new(state: Declarations) -> Shapes {
        Shapes { state, keeps_loops: false, facts: Vec::new(), doubted: Vec::new(), numbers: 0, conflict: None }
    }

    fn grow(&mut self, nodes: usize) {
        self.facts.resize_with(nodes, Vec::new);
        if self.state == Declarations::Doubted {
            self.doubted.resize(nodes, true);
        }
    }

    /// Infers the shapes of one node's outputs, except for those that are fed.
    fn infer(&mut self, nodes: &[Node], id: NodeId, is_fed: &dyn Fn(Output) -> bool) {
        let node = &nodes[id.index()];
        if self.state == Declarations::Doubted {
            // A node that forwards a reference outputs the same reference. A value on a back edge is doubted, since it is not
            // known yet.
            let forwards = || {
                let is_doubted = |input: &Output| self.doubted[input.node.index()] && !is_fed(*input);
                node.op.role.forwards() && node.inputs.iter().any(is_doubted)
            };
            let doubted = node.outputs.iter().any(|output| output.is_ref || output.dtype.is_handle()) || forwards();
            self.doubted[id.index()] = doubted;
            if doubted {
                self.facts[id.index()].retain(|_| false);
                return;
            }
        }
        let (numbers, conflict) = (Cell::new(self.numbers), RefCell::default());
        let call = Call { id, node, nodes, known: self, numbers: &numbers, conflict: &conflict };
        let mut facts = (node.op.shape.infer)(&call).unwrap_or_default();
        facts.resize_with(node.outputs.len(), Fact::default);
        for fact in &mut facts {
            fact.like.get_or_insert_with(|| call.number());
        }
        for (port, fact) in (0..).zip(&mut facts) {
            if is_fed(Output { node: id, port }) {
                *fact = Fact { like: Some(call.number()), ..Fact::default() };
            }
        }
        self.numbers = numbers.get();
        self.facts[id.index()] = facts;
        if let (None, Some(why), Declarations::Declared) = (&self.conflict, conflict.into_inner(), self.state) {
            self.conflict = Some((id, why));
        }
    }

    /// The fact of an output with a distinct shape, about which nothing else is known.
    fn unlike_others(&mut self) -> Fact {
        self.numbers += 1;
        Fact { like: Some(self.numbers), ..Fact::default() }
    }

    fn fact(&self, output: Output) -> Option<&Fact> {
        self.facts.get(output.node.index())?.get(output.port as usize)
    }

    fn dims(&self, output: Output) -> Option<&Dims> {
        self.fact(output)?.dims.as_ref()
    }
}

impl Size {
    fn known(self) -> Option<usize> {
        match self {
            Size::Known(size) => Some(size),
            Size::Unknown(_) => None,
        }
    }
}

impl From<Dims> for Fact {
    fn from(dims: Dims) -> Fact {
        Fact { dims: Some(dims), ..Fact::default() }
    }
}

impl From<Option<Dims>> for Fact {
    fn from(dims: Option<Dims>) -> Fact {
        Fact { dims, ..Fact::default() }
    }
}
