//! Datasets: the descriptions of `tf.data`, and the elements that they lead to.
//!
//! A [`Dataset`] is a description. It flows through a step as a variant, and an iterator asks for its [`Elements`]. Those are
//! pulled one at a time, on the thread of the op that wants one: none is made ahead.

pub(super) mod arrange;
mod asserted;
pub(super) mod batch;
pub(super) mod cache;
pub(super) mod choose;
pub(super) mod component;
pub(super) mod csv;
pub(super) mod draws;
pub(super) mod example;
pub(super) mod files;
pub(super) mod generator;
pub(super) mod graph;
pub(super) mod group;
pub(super) mod interleave;
pub(super) mod mapped;
pub(super) mod matching;
pub(super) mod optimized;
pub(super) mod pad;
pub(super) mod rare;
pub(super) mod rebatch;
pub(super) mod sharded;
pub(super) mod shuffle;
pub(super) mod source;
pub(super) mod statistics;
pub(super) mod window;

use std::sync::Arc;

pub(super) use draws::{Draw, Draws};
use meshtf_engine::{Engine, Value};
use meshtf_graph::{Attr, Attrs, op};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};
pub(super) use statistics::Statistics;

use super::token::{Token, Variant, depth_within};
use super::waiting::Wake;

/// Most levels of nested datasets: the calls that make an element nest as deep.
const MAX_DEPTH: usize = 200;

/// The number of elements of a dataset: a count, or one of the two constants below.
pub(super) type Cardinality = i64;
/// The dataset never ends.
pub(super) const INFINITE: Cardinality = -1;
/// Known only by iterating over the dataset.
pub(super) const UNKNOWN: Cardinality = -2;

/// One element: a value for each component.
pub(super) type Element = Vec<Token>;

/// A request for elements, with the means to make them, from the op that pulls them.
#[derive(Clone, Copy)]
pub(super) struct Pull<'a> {
    pub engine: &'a dyn Engine,
    pub device: &'a Arc<dyn Wake>,
    /// Records the seeds that are drawn, so that the same elements can be made again.
    pub draws: Option<&'a Draws>,
    /// Records statistics of the elements, if an aggregator asks for them.
    pub statistics: Option<Statistics<'a>>,
}

impl Pull<'_> {
    /// The next draw, made by `draw`. If a draw was recorded at this position before, `draw` receives it and has to repeat it.
    fn drawn(&self, draw: impl FnOnce(Option<Draw>) -> Draw) -> Draw {
        match self.draws {
            Some(draws) => draws.next(draw),
            None => draw(None),
        }
    }
}

/// The elements of a dataset, one after the other.
pub(super) trait Elements: Send {
    /// The next element; `None` after the last, on every later call. After a failure, the element after the one that failed.
    ///
    /// # Errors
    /// The failure of the element.
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>>;

    /// Bytes of the elements that it keeps.
    fn bytes(&self) -> usize {
        0
    }
}

/// A function that an op holds, which it may call.
pub(super) trait Callee: Send + Sync {
    /// The function with the values it captured, which follow the arguments of each call. Its random numbers begin anew.
    ///
    /// # Errors
    /// If the function is wrong, or has a node that cannot run on this device.
    fn instance(self: Arc<Self>, captured: Vec<Token>, pull: &Pull) -> Result<Box<dyn Instance>>;
}

/// A function that is ready to be called.
pub(super) trait Instance: Send {
    /// # Errors
    /// InvalidArgument if it takes other arguments; the failure of one of its nodes.
    fn call(&mut self, args: Element, pull: &Pull) -> Result<Element>;
}

/// A function that makes the elements of a dataset.
pub(super) type Make = Box<dyn Fn(&Pull) -> Result<Box<dyn Elements>> + Send + Sync>;

/// The number of elements of a dataset, and the function that makes them.
pub(super) struct Parts {
    pub cardinality: Cardinality,
    pub make: Make,
}

impl Parts {
    pub fn new(
        cardinality: Cardinality,
        make: impl Fn(&Pull) -> Result<Box<dyn Elements>> + Send + Sync + 'static,
    ) -> Parts {
        Parts { cardinality, make: Box::new(make) }
    }
}

/// The types and shapes of the components of an element, as a node declares them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spec {
    pub types: Vec<DType>,
    pub shapes: Vec<PartialShape>,
}

/// A dataset.
pub(super) struct Dataset {
    pub spec: Spec,
    pub cardinality: Cardinality,
    make: Make,
    /// The inputs of its op.
    held: Vec<Token>,
    depth: usize,
    /// The number of nodes that make it, those of its inputs included.
    nodes: usize,
    /// It, or one of its inputs, asserts which datasets come after it.
    asserts: bool,
    /// The description of the op that made it, if one op made it alone.
    statement: Option<Arc<Statement>>,
}

/// The dataset in a token, if it is one.
fn dataset_in(token: &Token) -> Option<&Arc<Dataset>> {
    if let Token::Variant(Variant::Dataset(dataset)) = token { Some(dataset) } else { None }
}

/// The number of nodes that make these.
fn nodes_of<'a>(held: impl IntoIterator<Item = &'a Token>) -> usize {
    let of_one = |token| dataset_in(token).map_or(1, |input| input.nodes);
    held.into_iter().map(of_one).fold(0, usize::saturating_add)
}

/// TensorFlow's name, after it has rewritten its graph, for the node of a dataset with these inputs: by the number of nodes
/// before it.
pub(super) fn node_name<'a>(op: &str, held: impl IntoIterator<Item = &'a Token>) -> String {
    format!("{op}/_{}", nodes_of(held))
}

/// The description of a dataset in the node that makes it.
pub(super) struct Statement {
    pub op: String,
    pub attrs: Attrs,
    /// Makes the parts of the dataset from the inputs.
    pub parts: PartsOf,
}

/// A function that makes parts from the inputs of a node.
pub(super) type PartsOf = Box<dyn Fn(&[Token]) -> Result<Parts> + Send + Sync>;

impl Dataset {
    /// A dataset with these inputs.
    ///
    /// # Errors
    /// ResourceExhausted if datasets are nested too deep.
    pub fn new(spec: Spec, held: Vec<Token>, parts: Parts) -> Result<Dataset> {
        let depth = depth_within(held.iter(), MAX_DEPTH)?;
        let asserts = held.iter().filter_map(dataset_in).any(|input| input.asserts);
        let nodes = nodes_of(&held).saturating_add(1);
        let Parts { cardinality, make } = parts;
        Ok(Dataset { spec, cardinality, make, held, depth, nodes, asserts, statement: None })
    }

    /// The dataset that a node makes from its inputs.
    ///
    /// # Errors
    /// The failure of the node; else as [`Dataset::new`].
    pub fn stated(statement: Arc<Statement>, spec: Spec, inputs: Vec<Token>) -> Result<Dataset> {
        let parts = (statement.parts)(&inputs)?;
        let dataset = Dataset::new(spec, inputs, parts)?;
        let asserts = dataset.asserts || statement.op == "AssertNextDataset";
        Ok(Dataset { statement: Some(statement), asserts, ..dataset })
    }

    /// The dataset that its node makes from other datasets, in place of its first inputs.
    ///
    /// # Errors
    /// As [`Dataset::stated`]; Internal if no node made it.
    fn with_inputs(&self, inputs: Vec<Arc<Dataset>>) -> Result<Arc<Dataset>> {
        let statement = self.statement.clone();
        let statement = statement.ok_or_else(|| Failure::new(Code::Internal, "no node made the dataset"))?;
        let others = self.held.get(inputs.len()..).unwrap_or_default().to_vec();
        let inputs = inputs.into_iter().map(Token::from).chain(others).collect();
        Dataset::stated(statement, self.spec.clone(), inputs).map(Arc::new)
    }

    pub fn statement(&self) -> Option<&Statement> {
        self.statement.as_deref()
    }

    /// Its elements, from the first on.
    ///
    /// # Errors
    /// If one of the functions that it calls cannot run.
    pub fn elements(&self, pull: &Pull) -> Result<Box<dyn Elements>> {
        (self.make)(pull)
    }

    /// The elements for an iterator, which no other dataset takes.
    ///
    /// # Errors
    /// InvalidArgument if one of its datasets asserts other successors than it has; else as [`Dataset::elements`].
    pub fn iterate(&self, pull: &Pull) -> Result<Box<dyn Elements>> {
        asserted::check(self)?;
        self.elements(pull)
    }

    pub fn held(&self) -> &[Token] {
        &self.held
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Refuses a dataset that gives other elements when it is read again, because its functions touch state that lasts longer
    /// than a call.
    ///
    /// # Errors
    /// FailedPrecondition.
    pub fn check_repeatable(&self) -> Result<()> {
        if self.is_counted() {
            let why = "SetStatsAggregatorDatasetOp::Dataset does not support checkpointing";
            return Err(Failure::new(Code::Unimplemented, why));
        }
        self.check_stateless(&[]).map_err(|op| Failure::new(Code::FailedPrecondition, format!("{op} is stateful.")))
    }

    /// Whether it, or a dataset that it reads, reports to an aggregator of statistics.
    fn is_counted(&self) -> bool {
        self.statement().is_some_and(|statement| statement.op == "SetStatsAggregatorDataset")
            || self.held.iter().filter_map(dataset_in).any(|input| input.is_counted())
    }

    /// Whether none of its functions touches state that lasts longer than a call, but for ops of these names.
    ///
    /// # Errors
    /// The name of an op that does.
    pub fn check_stateless(&self, but: &[Vec<u8>]) -> std::result::Result<(), String> {
        self.statement.iter().try_for_each(|statement| check_functions(&statement.attrs, but))?;
        self.held.iter().filter_map(dataset_in).try_for_each(|input| input.check_stateless(but))
    }
}

fn check_functions(attrs: &Attrs, but: &[Vec<u8>]) -> std::result::Result<(), String> {
    for node in attrs.0.values().flat_map(Attr::held_functions).flat_map(|function| &function.nodes) {
        let is_stateful = op::lookup(&node.op).is_some_and(|op| op.stateful && !op.repeatable);
        if is_stateful && !but.iter().any(|name| name == node.op.as_bytes()) {
            return Err(node.op.clone());
        }
        check_functions(&node.attrs, but)?;
    }
    Ok(())
}

impl Spec {
    /// Refuses elements that are declared otherwise elsewhere, with TensorFlow's message.
    ///
    /// # Errors
    /// InvalidArgument.
    pub fn check_against(&self, wanted: &Spec) -> Result<()> {
        if self.types.len() != wanted.types.len() {
            return Err(Failure::invalid(format!(
                "Number of components does not match: expected {} types but got {}.",
                wanted.types.len(),
                self.types.len()
            )));
        }
        for (i, (got, want)) in self.types.iter().zip(&wanted.types).enumerate() {
            if got != want {
                let why = format!("Data type mismatch at component {i}: expected {want} but got {got}.");
                return Err(Failure::invalid(why));
            }
        }
        for (i, (got, want)) in self.shapes.iter().zip(&wanted.shapes).enumerate() {
            if !may_be_same(got, want) {
                let why = format!("Incompatible shapes at component {i}: expected {want} but got {got}.");
                return Err(Failure::invalid(why));
            }
        }
        Ok(())
    }

    /// Refuses an element that differs from this declaration.
    ///
    /// # Errors
    /// InvalidArgument.
    pub fn check(&self, element: &[Token]) -> Result<()> {
        if element.len() != self.types.len() {
            let why = format!("the element has {} components, not {}", element.len(), self.types.len());
            return Err(Failure::invalid(why));
        }
        for (i, (token, &dtype)) in element.iter().zip(&self.types).enumerate() {
            let got = dtype_of(token);
            if got != dtype {
                return Err(Failure::invalid(format!("component {i} of the element is {got}, not {dtype}")));
            }
            if let (Token::Value(value), Some(shape)) = (token, self.shapes.get(i))
                && !shape.admits(value.shape())
            {
                let why = format!("component {i} of the element has shape {}, not {shape}", value.shape());
                return Err(Failure::invalid(why));
            }
        }
        Ok(())
    }
}

/// The dtype of a token.
pub(super) fn dtype_of(token: &Token) -> DType {
    match token {
        Token::Value(value) => value.dtype(),
        Token::Ref(variable) => variable.dtype,
        Token::Resource(_) => DType::Resource,
        Token::Variant(_) => DType::Variant,
    }
}

/// Whether a tensor could have both shapes.
fn may_be_same(a: &PartialShape, b: &PartialShape) -> bool {
    let (Some(a), Some(b)) = (&a.0, &b.0) else { return true };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_none() || b.is_none() || a == b)
}

/// Elements that a function makes from those of an input.
struct Pulled<F> {
    input: Box<dyn Elements>,
    next: F,
}

impl<F: FnMut(&mut dyn Elements, &Pull) -> Result<Option<Element>> + Send> Elements for Pulled<F> {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        (self.next)(&mut *self.input, pull)
    }

    fn bytes(&self) -> usize {
        self.input.bytes()
    }
}

/// Elements that a function makes from those of an input; it keeps none between two calls.
pub(super) fn pulled(
    input: Box<dyn Elements>,
    next: impl FnMut(&mut dyn Elements, &Pull) -> Result<Option<Element>> + Send + 'static,
) -> Result<Box<dyn Elements>> {
    Ok(Box::new(Pulled { input, next }))
}

/// Elements that a function makes without an input.
struct Given<F>(F);

impl<F: FnMut(&Pull) -> Result<Option<Element>> + Send> Elements for Given<F> {
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        (self.0)(pull)
    }
}

/// Elements that a function makes without an input, from its own state alone.
pub(super) fn given(next: impl FnMut(&Pull) -> Result<Option<Element>> + Send + 'static) -> Result<Box<dyn Elements>> {
    Ok(Box::new(Given(next)))
}

/// The tensors of an element.
///
/// # Errors
/// InvalidArgument if a component is not a tensor.
pub(super) fn tensors(element: Element) -> Result<Vec<Tensor>> {
    element.into_iter().map(Token::host).collect()
}

/// Bytes of some elements.
pub(super) fn bytes_of<'a>(elements: impl IntoIterator<Item = &'a Element>) -> usize {
    elements.into_iter().map(|element| size_of::<Element>() + element.iter().map(bytes_of_token).sum::<usize>()).sum()
}

fn bytes_of_token(token: &Token) -> usize {
    match token {
        Token::Value(value) => Value::heap_bytes(value),
        Token::Variant(Variant::Boxed(boxed)) => boxed.items().iter().map(bytes_of_token).sum(),
        Token::Variant(Variant::Ragged(ragged)) => ragged.parts().iter().map(bytes_of_token).sum(),
        _ => 0,
    }
}
