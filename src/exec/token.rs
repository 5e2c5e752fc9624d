//! What flows between the nodes of a piece.

use std::sync::Arc;

use smallvec::SmallVec;

use super::engine::Value;
use super::resource::{Resource, Variable};
use crate::failure::{Failure, Result};
use crate::tensor::Tensor;

/// What a live edge carries; a dead one carries nothing.
#[derive(Clone, Debug)]
pub(super) enum Token {
    Value(Value),
    /// A reference: whoever takes it as a value sees what the variable holds at that time.
    Ref(Arc<Variable>),
    Resource(Resource),
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
        }
    }

    /// A value or a handle: for a reference, what the variable holds now.
    pub fn settled(self) -> Result<Token> {
        match self {
            Token::Ref(variable) => Ok(Token::Value(variable.read()?)),
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
