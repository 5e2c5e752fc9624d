//! The arguments of a shape rule: the node, and the facts about its inputs.

use std::cell::{Cell, RefCell};

use meshtf_tensor::{PartialShape, Shape};

use super::{Declarations, Dims, Element, Fact, Shapes, Size};
use crate::{Node, NodeId};

/// One node whose output shapes are to be inferred.
pub(super) struct Call<'a> {
    pub id: NodeId,
    pub node: &'a Node,
    pub(super) nodes: &'a [Node],
    pub(super) known: &'a Shapes,
    pub(super) numbers: &'a Cell<u32>,
    /// The reason why the shapes of the inputs contradict each other.
    pub(super) conflict: &'a RefCell<Option<String>>,
}

impl Call<'_> {
    /// The number of the node's inputs.
    pub fn len(&self) -> usize {
        self.node.inputs.len()
    }

    /// The facts about an input; `None` also for a back edge of a loop.
    pub fn fact(&self, input: usize) -> Option<&Fact> {
        self.known.fact(*self.node.inputs.get(input)?)
    }

    pub fn dims(&self, input: usize) -> Option<Dims> {
        self.fact(input)?.dims.clone()
    }

    /// The sizes of an input that must have this rank: all unknown if its rank is unknown, `None` if it has another.
    pub fn of_rank(&self, input: usize, rank: usize) -> Option<Dims> {
        match self.dims(input) {
            Some(dims) => Some(dims).filter(|dims| dims.len() == rank),
            None => Some(self.unknown(rank)),
        }
    }

    /// As [`of_rank`](Call::of_rank), for an input that the kernel refuses if it has another rank.
    pub fn only_of_rank(&self, input: usize, rank: usize) -> Option<Dims> {
        self.of_rank(input, rank).or_else(|| {
            let own = self.dims(input)?.len();
            let name = self.node.op.inputs.get(input).map(|arg| format!(" ({})", arg.name)).unwrap_or_default();
            self.refuse(|| format!("input {input}{name} has rank {own}, not {rank}"))
        })
    }

    /// The merged sizes of inputs that must all have the same shape; `None` if they differ. If state is doubted, kernels are
    /// not trusted to refuse shapes that differ: the sizes are then known only if they are known, and equal, for every input.
    pub fn merged(&self, inputs: impl IntoIterator<Item = usize>) -> Option<Dims> {
        let mut inputs = inputs.into_iter().map(|input| self.dims(input));
        let first = inputs.next()?;
        match self.known.state {
            Declarations::Doubted => inputs.all(|dims| dims == first).then_some(first)?,
            Declarations::Declared => inputs.try_fold(first, merge_known).ok().flatten(),
        }
    }

    /// The merged sizes of inputs that the kernel certainly refuses if they differ.
    pub fn equal(&self, inputs: impl IntoIterator<Item = usize>) -> Option<Dims> {
        inputs.into_iter().try_fold(None, |all, input| merge_known(all, self.dims(input))).ok().flatten()
    }

    /// As [`equal`](Call::equal), for inputs whose shapes the kernel refuses if they differ in any size.
    pub fn all_equal(&self, inputs: impl IntoIterator<Item = usize>) -> Option<Dims> {
        let merged = inputs.into_iter().try_fold(None, |all, input| merge_known(all, self.dims(input)));
        merged.unwrap_or_else(|Differ| self.refuse(|| "their shapes differ".to_owned()))
    }

    /// The size that two must have in common.
    pub fn common(&self, what: &str, a: Size, b: Size) -> Option<Size> {
        merge_sizes(a, b).or_else(|| match (a, b) {
            (Size::Known(a), Size::Known(b)) => self.refuse(|| format!("{what} {a} and {b} differ")),
            _ => None,
        })
    }

    /// An axis of a tensor of that rank, counted from the end if negative; the kernel refuses any other.
    pub fn axis(&self, at: i64, rank: usize) -> Option<usize> {
        axis(at, rank).or_else(|| self.refuse(|| format!("{at} is not an axis of a tensor of rank {rank}")))
    }

    /// Records that every kernel of the op refuses the inputs.
    pub fn refuse<T>(&self, why: impl FnOnce() -> String) -> Option<T> {
        self.conflict.borrow_mut().get_or_insert_with(why);
        None
    }

    pub fn elements(&self, input: usize) -> Option<&[Element]> {
        self.fact(input)?.elements.as_deref()
    }

    /// The elements of an input of that rank.
    pub fn elements_of_rank(&self, rank: usize, input: usize) -> Option<&[Element]> {
        self.fact(input)?.dims.as_ref().filter(|dims| dims.len() == rank)?;
        self.elements(input)
    }

    /// The number of an input's shape.
    pub fn like(&self, input: usize) -> Option<u32> {
        self.fact(input)?.like
    }

    /// The number of the shape that an input holds as a vector.
    pub fn shape_of(&self, input: usize) -> Option<u32> {
        self.fact(input)?.shape_of
    }

    /// The elements of a small integer input, if all are known.
    pub fn values(&self, input: usize) -> Option<Vec<i64>> {
        let known = |&element: &Element| match element {
            Element::Known(value) => Some(value),
            Element::Size(_) | Element::Unknown => None,
        };
        self.elements(input)?.iter().map(known).collect()
    }

    /// The one element of an integer input.
    pub fn value(&self, input: usize) -> Option<i64> {
        match self.elements(input)? {
            [Element::Known(one)] => Some(*one),
            _ => None,
        }
    }

    /// The one element of an integer input, as a size; an unknown size if the element is not known.
    pub fn size_in(&self, input: usize) -> Option<Size> {
        match self.elements(input) {
            Some(&[Element::Known(one)]) => Some(Size::Known(usize::try_from(one).ok()?)),
            Some(&[Element::Size(number)]) => Some(Size::Unknown(number)),
            _ => Some(self.size(None)),
        }
    }

    /// The shape held by an input's elements; with unknown sizes if only their number is known. -1 is an unknown size.
    pub fn sizes(&self, input: usize) -> Option<Dims> {
        let size = |&element: &Element| match element {
            Element::Known(-1) | Element::Unknown => Some(self.size(None)),
            Element::Known(size) => Some(Size::Known(usize::try_from(size).ok()?)),
            Element::Size(number) => Some(Size::Unknown(number)),
        };
        match self.elements_of_rank(1, input) {
            Some(elements) => elements.iter().map(size).collect(),
            None => Some(self.unknown(self.count(input)?)),
        }
    }

    /// The number of elements of a vector.
    pub fn count(&self, input: usize) -> Option<usize> {
        match self.fact(input)?.dims.as_deref() {
            Some(&[Size::Known(count)]) => Some(count).filter(|&count| count <= MAX_RANK),
            _ => None,
        }
    }

    /// The elements of an input if all are known and none is negative.
    pub fn counts(&self, input: usize) -> Option<Vec<usize>> {
        self.values(input)?.iter().map(|&count| usize::try_from(count).ok()).collect()
    }

    /// A fresh number for an unknown size.
    pub fn number(&self) -> u32 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// A size: a fresh unknown one if it is not known.
    pub fn size(&self, known: Option<usize>) -> Size {
        known.map_or_else(|| Size::Unknown(self.number()), Size::Known)
    }

    /// `f` applied to a size; unknown if the size is.
    pub fn map(&self, size: Size, f: impl FnOnce(usize) -> Option<usize>) -> Size {
        self.size(size.known().and_then(f))
    }

    /// Unknown sizes.
    pub fn unknown(&self, rank: usize) -> Dims {
        (0..rank).map(|_| self.size(None)).collect()
    }

    /// The sizes of a shape stated in the graph.
    pub fn stated(&self, shape: &PartialShape) -> Option<Dims> {
        Some(shape.0.as_ref()?.iter().map(|&size| self.size(size)).collect())
    }

    /// The sizes of a shape attribute.
    pub fn stated_in(&self, attr: &str) -> Option<Dims> {
        self.stated(self.node.attrs.shape(attr).ok()?)
    }

    pub fn int(&self, attr: &str) -> Option<i64> {
        self.node.attrs.int(attr).ok()
    }

    pub fn bool(&self, attr: &str) -> Option<bool> {
        self.node.attrs.bool(attr).ok()
    }

    /// The node that made the handle or reference in an input.
    pub fn maker(&self, input: usize) -> Option<&Node> {
        self.nodes.get(self.fact(input)?.made_by?.index())
    }

    /// Whether an input is the value of a loop variable's next iteration, and that is taken to have the shape of the first.
    pub fn keeps_first(&self, input: usize) -> bool {
        let from = self.node.inputs.get(input).and_then(|input| self.nodes.get(input.node.index()));
        self.known.keeps_loops && from.is_some_and(|from| from.op.role.leads_back(self.node.op.role))
    }

    /// Whether the declared shapes of state are not relied on.
    pub fn doubts_state(&self) -> bool {
        self.known.state == Declarations::Doubted
    }
}

/// Longest vector of unknown elements that is read as a shape.
pub(super) const MAX_RANK: usize = 64;

/// Two shapes contradict each other.
struct Differ;

/// The combined sizes of a tensor that has both shapes, either of which may be unknown.
fn merge_known(a: Option<Dims>, b: Option<Dims>) -> Result<Option<Dims>, Differ> {
    match (a, b) {
        (Some(a), Some(b)) => merge(&a, &b).map(Some).ok_or(Differ),
        (a, b) => Ok(a.or(b)),
    }
}

/// The combined sizes of a tensor that has both shapes; `None` if they differ.
pub(super) fn merge(a: &Dims, b: &Dims) -> Option<Dims> {
    if a.len() != b.len() {
        return None;
    }
    a.iter().zip(b).map(|(&a, &b)| merge_sizes(a, b)).collect()
}

/// The combined size of two that must be equal; `None` if they differ.
pub(super) fn merge_sizes(a: Size, b: Size) -> Option<Size> {
    match (a, b) {
        (Size::Known(a), Size::Known(b)) if a != b => None,
        (Size::Unknown(_), Size::Known(_)) => Some(b),
        _ => Some(a),
    }
}

/// The sizes of a shape that is known.
pub(super) fn known(sizes: &[usize]) -> Dims {
    sizes.iter().copied().map(Size::Known).collect()
}

/// A shape if all its sizes are known.
pub(super) fn whole(dims: &Dims) -> Option<Shape> {
    dims.iter().map(|size| size.known()).collect()
}

/// An axis of a tensor of that rank, counted from the end if negative.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}
