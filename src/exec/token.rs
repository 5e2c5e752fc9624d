//! What flows between the nodes of a piece.

use std::sync::Arc;

use smallvec::SmallVec;

use super::engine::Value;
use super::resource::{Resource, Variable};
use super::state::Variant;
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

/// What a live edge carries; a dead one carries nothing.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Value(Value),
    /// A reference: whoever computes with it sees what the variable holds at that time.
    Ref(Arc<Variable>),
    Resource(Resource),
    Variant(Variant),
}

/// Inputs or outputs of a node; `None` where an output is dead.
pub(super) type Tokens = SmallVec<[Option<Token>; 2]>;

impl Token {
    /// The value: for a reference, what the variable holds now.
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

    /// What goes on through an op that only hands on. A reference goes on as one, though the graph takes it for a
    /// value there: what TensorFlow hands on shares the variable's buffer, so that a later update shows in it, and
    /// programs rely on that (a moving average reads the variable before, and uses what it read after, the update).
    ///
    /// # Errors
    /// FailedPrecondition where a variable has no value yet.
    pub fn handed_on(self) -> Result<Token> {
        match &self {
            Token::Ref(variable) if !variable.is_initialized() => Err(variable.uninitialized()),
            _ => Ok(self),
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
