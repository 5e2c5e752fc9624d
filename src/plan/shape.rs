//! Shapes as far as they are known without running: constants, variables, placeholders, and what the commoner ops make of
//! them. A rank may be known though a size is not, and two sizes, or two whole shapes, may be known to be the same though
//! neither is. For the bytes of transfers and for what a step need not compute; what is not known here is `None`.

mod rules;

use std::cell::Cell;

use super::prune::{ItemOp, PrunedGraph};
use crate::graph::Node;
use crate::graph::op::Role;
use crate::tensor::{PartialShape, Shape};

/// A size along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Known(usize),
    /// One of the step's unknown sizes, by its number: where that stands twice, both are the same.
    Unknown(u32),
}

/// The sizes of a tensor whose rank is known.
type Dims = Vec<Size>;

/// An element of a small integer tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Known(i64),
    /// The size of this number.
    Size(u32),
}

/// What is known of an output.
#[derive(Clone, Debug, Default)]
struct Fact {
    dims: Option<Dims>,
    /// The elements in their order, whatever the rank, where that is a small integer tensor.
    elements: Option<Vec<Element>>,
    /// The number of its shape, which others that certainly have the same share.
    like: Option<u32>,
    /// It is itself a shape, written as a list: the one of this number.
    shape_of: Option<u32>,
}

/// The shapes of a step's values, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// By item and port; none of an item of which nothing is known.
    facts: Vec<Vec<Fact>>,
    unknown: Cell<u32>,
}

impl Shapes {
    /// Infers what can be inferred. Every item is looked at once, in order. Nothing is said of those that are `doubted`, by
    /// item: variables, for those who must be sure, since a program may assign them another shape than they state.
    pub fn infer(step: &PrunedGraph, doubted: &[bool]) -> Shapes {
        let mut known = Shapes::default();
        for item in 0..step.items.len() {
            let facts = match step.items[item].op {
                _ if doubted.get(item).is_some_and(|&doubted| doubted) => Vec::new(),
                ItemOp::Feed(_, tensor) => {
                    let node = step.graph.node(tensor.node);
                    let stated = if node.op.role == Role::Placeholder { known.stated(node) } else { None };
                    vec![Fact { dims: stated, ..known.unlike_others() }]
                }
                ItemOp::Node(id) => {
                    let node = step.graph.node(id);
                    let view = Inputs { known: &known, from: &step.items[item].inputs };
                    let mut dims = rules::outputs(node, &view).unwrap_or_default().into_iter();
                    let fact = |_| Fact { dims: dims.next().flatten(), ..known.unlike_others() };
                    let mut facts: Vec<Fact> = node.outputs.iter().map(fact).collect();
                    for (fact, elements) in facts.iter_mut().zip(rules::elements(node, &view)) {
                        fact.elements = Some(elements);
                    }
                    if let Some(first) = facts.first_mut() {
                        first.like = rules::like(node, &view).or(first.like);
                        first.shape_of = rules::shape_of(node, &view);
                    }
                    facts
                }
                ItemOp::Fetch(..) => Vec::new(),
            };
            known.facts.push(facts);
        }
        known
    }

    /// The shape of an item's output, where every size is known.
    pub fn of(&self, item: usize, port: u32) -> Option<Shape> {
        self.dims(item, port)?.iter().copied().map(Size::known).collect()
    }

    /// Whether two outputs have the same shape, whatever it turns out to be.
    pub fn are_same(&self, a: (usize, u32), b: (usize, u32)) -> bool {
        let like = |at: (usize, u32)| self.fact(at.0, at.1)?.like;
        self.dims(a.0, a.1).is_some_and(|dims| Some(dims) == self.dims(b.0, b.1))
            || like(a).is_some_and(|number| Some(number) == like(b))
    }

    /// Whether an output is known to have no elements.
    pub fn is_empty_list(&self, item: usize, port: u32) -> bool {
        self.fact(item, port).and_then(|fact| fact.elements.as_ref()).is_some_and(Vec::is_empty)
    }

    fn fact(&self, item: usize, port: u32) -> Option<&Fact> {
        self.facts.get(item)?.get(port as usize)
    }

    fn dims(&self, item: usize, port: u32) -> Option<&Dims> {
        self.fact(item, port)?.dims.as_ref()
    }

    /// An output of which nothing is known but that it has a shape.
    fn unlike_others(&self) -> Fact {
        Fact { like: Some(self.number()), ..Fact::default() }
    }

    /// A number that stands for nothing else in the step.
    fn number(&self) -> u32 {
        self.unknown.set(self.unknown.get() + 1);
        self.unknown.get()
    }

    /// A size: an unknown one of its own where it is not known.
    fn size(&self, known: Option<usize>) -> Size {
        known.map_or_else(|| Size::Unknown(self.number()), Size::Known)
    }

    /// What a node's attribute `shape` says.
    fn stated(&self, node: &Node) -> Option<Dims> {
        let PartialShape(dims) = node.attrs.shape("shape").ok()?;
        Some(dims.as_ref()?.iter().map(|&size| self.size(size)).collect())
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

/// What is known of a node's inputs.
struct Inputs<'a> {
    known: &'a Shapes,
    from: &'a [(usize, u32)],
}

impl Inputs<'_> {
    fn fact(&self, input: usize) -> Option<&Fact> {
        let &(item, port) = self.from.get(input)?;
        self.known.fact(item, port)
    }

    fn dims(&self, input: usize) -> Option<Dims> {
        self.fact(input)?.dims.clone()
    }

    /// The shape of inputs that all have the same, because the op refuses others: of the one that is known best.
    fn any(&self, inputs: impl IntoIterator<Item = usize>) -> Option<Dims> {
        let known = inputs.into_iter().filter_map(|input| self.dims(input));
        known.min_by_key(|dims| dims.iter().filter(|size| size.known().is_none()).count())
    }

    fn elements(&self, input: usize) -> Option<&[Element]> {
        self.fact(input)?.elements.as_deref()
    }

    /// The number of an input's shape.
    fn like(&self, input: usize) -> Option<u32> {
        self.fact(input)?.like
    }

    /// The number of the shape that an input is, written as a list.
    fn shape_of(&self, input: usize) -> Option<u32> {
        self.fact(input)?.shape_of
    }

    fn elements_of_rank(&self, rank: usize, input: usize) -> Option<&[Element]> {
        let fact = self.fact(input)?;
        fact.dims.as_ref().filter(|dims| dims.len() == rank)?;
        fact.elements.as_deref()
    }

    /// The elements of a small integer input, where all are known.
    fn values(&self, input: usize) -> Option<Vec<i64>> {
        let known = |&element: &Element| match element {
            Element::Known(value) => Some(value),
            Element::Size(_) => None,
        };
        self.elements(input)?.iter().map(known).collect()
    }

    /// The one element of an integer input.
    fn value(&self, input: usize) -> Option<i64> {
        match self.elements(input)? {
            [Element::Known(one)] => Some(*one),
            _ => None,
        }
    }

    /// The shape that an input's elements are.
    fn sizes(&self, input: usize) -> Option<Dims> {
        let size = |&element: &Element| match element {
            Element::Known(size) => Some(Size::Known(usize::try_from(size).ok()?)),
            Element::Size(number) => Some(Size::Unknown(number)),
        };
        self.elements(input)?.iter().map(size).collect()
    }

    /// The elements of an input that are all known, none negative.
    fn counts(&self, input: usize) -> Option<Vec<usize>> {
        self.values(input)?.iter().map(|&count| usize::try_from(count).ok()).collect()
    }

    fn size(&self, known: Option<usize>) -> Size {
        self.known.size(known)
    }

    /// The last input, for ops that take their axis there.
    fn last(&self) -> usize {
        self.from.len().saturating_sub(1)
    }
}
