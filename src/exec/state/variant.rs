//! Variants: lists of values, and optionals, which hold some values or nothing. They are values, not state: an op
//! answers a new one, and takes the old one over where nobody else holds it.

use std::fmt;
use std::sync::Arc;

use super::super::engine::{Engine, Value};
use super::super::kernel::KernelNode;
use super::super::token::{Token, Tokens};
use super::accumulator::add;
use super::list::List;
use super::{Inputs, Site, StateOp, one, simple};
use crate::failure::{Code, Failure, Result};
use crate::tensor::{DType, Tensor};

/// Most variants within each other.
const MAX_NESTED: usize = 64;

/// A variant. Cheap to clone.
#[derive(Clone)]
pub(in crate::exec) enum Variant {
    List(Arc<List>),
    Optional(Arc<Optional>),
}

/// Some values, or nothing.
pub(in crate::exec) struct Optional {
    values: Option<Vec<Token>>,
    depth: usize,
}

impl Variant {
    /// The values within, one level deep.
    pub fn values(&self) -> Vec<&Token> {
        match self {
            Variant::List(list) => list.items().collect(),
            Variant::Optional(optional) => optional.values.iter().flatten().collect(),
        }
    }

    /// Where it lies: the same for all that share it.
    pub fn address(&self) -> usize {
        match self {
            Variant::List(list) => Arc::as_ptr(list) as usize,
            Variant::Optional(optional) => Arc::as_ptr(optional) as usize,
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Variant::List(_) => "list",
            Variant::Optional(_) => "optional",
        }
    }

    fn depth(&self) -> usize {
        match self {
            Variant::List(list) => list.depth(),
            Variant::Optional(optional) => optional.depth,
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

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    let takes_variants = node.inputs.first() == Some(&DType::Variant);
    match node.op {
        "OptionalFromValue" => simple(|inputs, _| {
            let values = inputs.0.into_iter().flatten().map(held).collect::<Result<Vec<_>>>()?;
            Ok(one(optional(Some(values))?))
        }),
        "OptionalNone" => simple(|_, _| Ok(one(optional(None)?))),
        "OptionalHasValue" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.optional(0)?.values.is_some())))),
        "OptionalGetValue" => {
            let count = node.outputs.len();
            simple(move |mut inputs, _| {
                let optional = inputs.optional(0)?;
                let Some(values) = &optional.values else {
                    return Err(Failure::invalid("The given optional does not have a value."));
                };
                if values.len() != count {
                    let why = format!("the optional holds {} values, not {count}", values.len());
                    return Err(Failure::invalid(why));
                }
                Ok(values.iter().cloned().map(Some).collect())
            })
        }
        "ZerosLike" if takes_variants => simple(|mut inputs, _| Ok(one(zeros(inputs.token(0)?)?))),
        "AddN" if takes_variants => simple(|inputs, _| {
            let mut all = inputs.0.into_iter().flatten();
            let first = all.next().ok_or_else(|| Failure::invalid("AddN takes at least one input"))?;
            Ok(one(all.try_fold(first, sum)?))
        }),
        _ => Ok(None),
    }
}

impl Inputs {
    fn variant(&mut self, index: usize) -> Result<Variant> {
        match self.token(index)? {
            Token::Variant(variant) => Ok(variant),
            _ => Err(Failure::invalid(format!("input {index} is no variant"))),
        }
    }

    pub(super) fn list(&mut self, index: usize) -> Result<Arc<List>> {
        match self.variant(index)? {
            Variant::List(list) => Ok(list),
            other => Err(Failure::invalid(format!("Input handle is not a list. Saw: '{}'", other.kind()))),
        }
    }

    fn optional(&mut self, index: usize) -> Result<Arc<Optional>> {
        match self.variant(index)? {
            Variant::Optional(optional) => Ok(optional),
            other => Err(Failure::invalid(format!("input {index} is no optional, but a {}", other.kind()))),
        }
    }
}

/// What a variant holds of an input: of a reference, the value that the variable has now.
pub(super) fn held(token: Token) -> Result<Token> {
    match token {
        Token::Ref(_) => token.value().map(Token::Value),
        other => Ok(other),
    }
}

/// How deep the variants are that some values hold, themselves included.
///
/// # Errors
/// ResourceExhausted where that passes the limit, so that letting go of one never goes too deep.
pub(super) fn depth_over<'a>(tokens: impl Iterator<Item = &'a Token>) -> Result<usize> {
    let depth = |token: &Token| match token {
        Token::Variant(variant) => variant.depth(),
        _ => 0,
    };
    let depth = 1 + tokens.map(depth).max().unwrap_or(0);
    if depth > MAX_NESTED {
        let why = format!("variants are within each other more than {MAX_NESTED} deep, which is the limit");
        return Err(Failure::new(Code::ResourceExhausted, why));
    }
    Ok(depth)
}

fn optional(values: Option<Vec<Token>>) -> Result<Token> {
    let depth = depth_over(values.iter().flatten())?;
    Ok(Token::Variant(Variant::Optional(Arc::new(Optional { values, depth }))))
}

/// Zeros of the same shape, all the way down.
fn zeros(token: Token) -> Result<Token> {
    match token {
        Token::Variant(Variant::List(list)) => Arc::unwrap_or_clone(list).map(zeros).map(Token::from),
        Token::Variant(Variant::Optional(it)) => {
            let values = it.values.as_ref();
            optional(values.map(|values| values.iter().cloned().map(zeros).collect::<Result<_>>()).transpose()?)
        }
        other => {
            let value = other.value()?;
            Ok(Tensor::zeros(value.dtype(), value.shape().clone())?.into())
        }
    }
}

/// The sum of two values of one form, all the way down.
pub(super) fn sum(a: Token, b: Token) -> Result<Token> {
    match (a, b) {
        (Token::Variant(Variant::List(a)), Token::Variant(Variant::List(b))) => {
            Arc::unwrap_or_clone(a).plus(Arc::unwrap_or_clone(b)).map(Token::from)
        }
        (Token::Variant(Variant::Optional(a)), Token::Variant(Variant::Optional(b))) => match (&a.values, &b.values) {
            (Some(x), Some(y)) if x.len() == y.len() => {
                let sums: Tokens =
                    x.iter().zip(y).map(|(x, y)| sum(x.clone(), y.clone()).map(Some)).collect::<Result<_>>()?;
                optional(Some(sums.into_iter().flatten().collect()))
            }
            (None, None) => optional(None),
            _ => Err(Failure::invalid("Cannot add optionals that hold different numbers of values.")),
        },
        (a, b) => {
            let (a, b): (Value, Value) = (a.value()?, b.value()?);
            if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
                let why =
                    format!("Cannot add {} of shape {} to {} of shape {}", b.dtype(), b.shape(), a.dtype(), a.shape());
                return Err(Failure::invalid(why));
            }
            let mut sum = a.into_host()?;
            add(&mut sum, &b.into_host()?)?;
            Ok(sum.into())
        }
    }
}
