//! Tokens, the values on the edges of a piece: tensors, handles to resources, and variants, which contain tokens in turn.

use std::fmt;
use std::sync::Arc;

use meshtf_engine::Value;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};
use smallvec::SmallVec;

use super::dataset::Dataset;
use super::resource::{Lock, Resource, Variable};
use super::variant::map::TensorMap;

/// The content of a live edge; a dead one has none.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Value(Value),
    /// A reference: an op that computes with it sees the value that the variable has at that time.
    Ref(Arc<Variable>),
    Resource(Arc<dyn Resource>),
    Variant(Variant),
}

/// Inputs or outputs of a node; `None` if an output is dead.
pub(super) type Tokens = SmallVec<[Option<Token>; 2]>;

impl Token {
    /// The value: for a reference, the current value of the variable.
    pub fn value(self) -> Result<Value> {
        match self {
            Token::Value(value) => Ok(value),
            Token::Ref(variable) => variable.read(),
            Token::Resource(handle) => {
                Err(Failure::invalid(format!("expected a tensor, got a handle to a {}", handle.kind())))
            }
            Token::Variant(variant) => Err(Failure::invalid(format!("expected a tensor, got a {}", variant.kind()))),
        }
    }

    /// The output of an op that only passes its input on. A reference stays one, although the graph considers it a value there:
    /// in TensorFlow the output shares the variable's buffer, so that a later update shows in it, and programs rely on that (a
    /// moving average reads the variable before the update, and uses that value after it).
    ///
    /// # Errors
    /// FailedPrecondition if a variable has no value yet.
    pub fn handed_on(self) -> Result<Token> {
        match &self {
            Token::Ref(variable) if !variable.is_initialized() => Err(variable.uninitialized()),
            _ => Ok(self),
        }
    }

    /// The content of a variant made of it: for a reference, the current value of the variable.
    ///
    /// # Errors
    /// FailedPrecondition if the variable has no value yet.
    pub fn held(self) -> Result<Token> {
        match self {
            Token::Ref(_) => self.value().map(Token::Value),
            other => Ok(other),
        }
    }

    /// The value in the memory of this process.
    pub fn host(self) -> Result<Tensor> {
        match self {
            Token::Value(Value::Host(tensor)) => Ok(tensor),
            other => other.value()?.into_host(),
        }
    }
}

impl From<Value> for Token {
    fn from(value: Value) -> Token {
        Token::Value(value)
    }
}

impl From<Tensor> for Token {
    fn from(tensor: Tensor) -> Token {
        Token::Value(Value::Host(tensor))
    }
}

/// Most levels of nested variants.
const MAX_NESTED: usize = 64;

/// A variant. Cheap to clone.
#[derive(Clone)]
pub(super) enum Variant {
    List(Arc<List>),
    Optional(Arc<Optional>),
    Dataset(Arc<Dataset>),
    Boxed(Arc<Boxed>),
    Ragged(Arc<RaggedValue>),
    Map(Arc<TensorMap>),
    Lock(Arc<Lock>),
}

/// An array of variants, each of which contains a tensor or a ragged tensor: the form of sparse and ragged tensors as
/// components of elements.
#[derive(Clone)]
pub(super) struct Boxed {
    pub shape: Shape,
    items: Vec<Token>,
}

impl Boxed {
    /// # Errors
    /// InvalidArgument if the number of items is not that of the shape's elements.
    pub fn new(shape: Shape, items: Vec<Token>) -> Result<Boxed> {
        if shape.elements() != Some(items.len()) {
            return Err(Failure::invalid(format!("{} variants do not have the shape {shape}", items.len())));
        }
        Ok(Boxed { shape, items })
    }

    pub fn items(&self) -> &[Token] {
        &self.items
    }

    /// The number or the bool in it, if it is a single variant with nothing else.
    pub fn number(&self) -> Option<&Value> {
        let (0, [Token::Value(number)]) = (self.shape.rank(), self.items.as_slice()) else { return None };
        (number.rank() == 0 && number.dtype() != DType::String).then_some(number)
    }

    /// Whether each of its variants is a ragged tensor.
    pub fn is_ragged(&self) -> bool {
        self.items.iter().all(|item| matches!(item, Token::Variant(Variant::Ragged(_))))
    }
}

/// A ragged tensor: the splits of each ragged dimension, and the values, all in the memory of this process.
pub(super) struct RaggedValue {
    parts: Vec<Token>,
}

impl RaggedValue {
    pub fn new(splits: Vec<Tensor>, values: Tensor) -> RaggedValue {
        RaggedValue { parts: splits.into_iter().chain([values]).map(Token::from).collect() }
    }

    /// The splits, and then the values.
    pub fn parts(&self) -> &[Token] {
        &self.parts
    }

    /// The splits and the values.
    ///
    /// # Errors
    /// Those of [`Token::host`].
    pub fn split_off(&self) -> Result<(Vec<Tensor>, Tensor)> {
        let mut splits = self.parts.iter().cloned().map(Token::host).collect::<Result<Vec<_>>>()?;
        let values = splits.pop().ok_or_else(|| Failure::invalid("a ragged tensor holds no values"))?;
        Ok((splits, values))
    }
}

impl From<RaggedValue> for Token {
    fn from(ragged: RaggedValue) -> Token {
        Token::Variant(Variant::Ragged(Arc::new(ragged)))
    }
}

/// A list of values.
#[derive(Clone)]
pub(super) struct List {
    pub dtype: DType,
    /// The known part of the shape of every element.
    pub shape: PartialShape,
    /// Most elements of the list after a push.
    pub limit: usize,
    /// `None` for an element that was never set.
    pub items: Vec<Option<Token>>,
    /// The number of levels of nested variants, this one included.
    pub depth: usize,
}

/// Some values, or none.
pub(super) struct Optional {
    pub values: Option<Vec<Token>>,
    depth: usize,
}

impl Optional {
    /// # Errors
    /// ResourceExhausted if variants are nested too deep.
    pub fn new(values: Option<Vec<Token>>) -> Result<Optional> {
        let depth = depth_over(values.iter().flatten())?;
        Ok(Optional { values, depth })
    }
}

impl Variant {
    /// The values that it contains directly.
    pub fn values(&self) -> Vec<&Token> {
        match self {
            Variant::List(list) => list.items.iter().flatten().collect(),
            Variant::Optional(optional) => optional.values.iter().flatten().collect(),
            Variant::Dataset(dataset) => dataset.held().iter().collect(),
            Variant::Boxed(boxed) => boxed.items().iter().collect(),
            Variant::Ragged(ragged) => ragged.parts().iter().collect(),
            Variant::Map(map) => map.values().collect(),
            Variant::Lock(_) => Vec::new(),
        }
    }

    /// Its address: the same for all that share it.
    pub fn address(&self) -> usize {
        match self {
            Variant::List(list) => Arc::as_ptr(list) as usize,
            Variant::Optional(optional) => Arc::as_ptr(optional) as usize,
            Variant::Dataset(dataset) => Arc::as_ptr(dataset) as usize,
            Variant::Boxed(boxed) => Arc::as_ptr(boxed) as usize,
            Variant::Ragged(ragged) => Arc::as_ptr(ragged) as usize,
            Variant::Map(map) => Arc::as_ptr(map) as usize,
            Variant::Lock(lock) => Arc::as_ptr(lock) as usize,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Variant::List(_) => "list",
            Variant::Optional(_) => "optional",
            Variant::Dataset(_) => "dataset",
            Variant::Boxed(_) => "array of variants",
            Variant::Ragged(_) => "ragged tensor",
            Variant::Map(_) => "map",
            Variant::Lock(_) => "lock of a mutex",
        }
    }

    fn depth(&self) -> usize {
        match self {
            Variant::List(list) => list.depth,
            Variant::Optional(optional) => optional.depth,
            Variant::Dataset(dataset) => dataset.depth(),
            // It contains tensors, or ragged tensors.
            Variant::Boxed(_) => 2,
            Variant::Ragged(_) | Variant::Lock(_) => 1,
            Variant::Map(map) => map.depth(),
        }
    }
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variant({})", self.kind())
    }
}

impl From<List> for Token {
    fn from(list: List) -> Token {
        Token::Variant(Variant::List(Arc::new(list)))
    }
}

impl From<Boxed> for Token {
    fn from(boxed: Boxed) -> Token {
        Token::Variant(Variant::Boxed(Arc::new(boxed)))
    }
}

impl From<Dataset> for Token {
    fn from(dataset: Dataset) -> Token {
        Token::Variant(Variant::Dataset(Arc::new(dataset)))
    }
}

impl From<Optional> for Token {
    fn from(optional: Optional) -> Token {
        Token::Variant(Variant::Optional(Arc::new(optional)))
    }
}

/// The number of levels of nested variants in some values, themselves included.
///
/// # Errors
/// ResourceExhausted if that exceeds the limit, so that dropping one never recurses too deep.
pub(super) fn depth_over<'a>(tokens: impl Iterator<Item = &'a Token>) -> Result<usize> {
    depth_within(tokens, MAX_NESTED)
}

/// As [`depth_over`], with another limit.
///
/// # Errors
/// ResourceExhausted if it is exceeded.
pub(super) fn depth_within<'a>(tokens: impl Iterator<Item = &'a Token>, limit: usize) -> Result<usize> {
    let depth = |token: &Token| match token {
        Token::Variant(variant) => variant.depth(),
        _ => 0,
    };
    let depth = 1 + tokens.map(depth).max().unwrap_or(0);
    if depth > limit {
        let why = format!("variants are nested deeper than {limit}, which is the limit");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    Ok(depth)
}
