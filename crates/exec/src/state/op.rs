//! The form of an op that touches state: its call, its inputs, and its outputs.

use std::sync::Arc;

use meshtf_engine::{Engine, Value};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::super::dataset::{Dataset, Pull};
use super::super::resource::{
    Accumulator, Aggregator, Barrier, Iterator, LookupTable, Mutex, QuantileStreams, Queue, Reader, Resource, Stack,
    SummaryWriter, TensorArray, TreeEnsemble, Variable,
};
use super::super::token::{List, Optional, Token, Tokens, Variant};
use super::super::waiting::{Finished, WaitId, Waiter, Wake, answered};

/// An op that touches state, compiled for one node.
pub(crate) type StateOp = Box<dyn FnMut(Tokens, &mut OpContext) -> Result<Outcome> + Send>;

/// The context of an op's call, in addition to its inputs.
pub(crate) struct OpContext<'a> {
    pub engine: &'a dyn Engine,
    /// The receiver of the op's answer if it waits, under the id `wait`.
    pub device: &'a Arc<dyn Wake>,
    pub wait: WaitId,
}

impl OpContext<'_> {
    /// A request for elements of a dataset.
    pub fn pull(&self) -> Pull<'_> {
        Pull { engine: self.engine, device: self.device, draws: None, statistics: None }
    }

    /// The op that was called, for a resource that it may have to wait for.
    pub fn waiter(&self) -> Waiter {
        Waiter { device: Arc::clone(self.device), wait: self.wait }
    }
}

/// The outcome of a call.
pub(crate) enum Outcome {
    Done(Tokens),
    /// The answer comes to the device, under the id of the wait; the resource can cancel it.
    Waits(Arc<dyn Resource>),
}

impl Outcome {
    pub fn done(self) -> Option<Tokens> {
        match self {
            Outcome::Done(tokens) => Some(tokens),
            Outcome::Waits(_) => None,
        }
    }
}

/// An op that takes all its inputs and never waits.
pub(super) fn simple(
    mut f: impl FnMut(StateInputs, &mut OpContext) -> Result<Tokens> + Send + 'static,
) -> Result<StateOp> {
    Ok(Box::new(move |tokens, context| f(StateInputs(tokens), context).map(Outcome::Done)))
}

/// No outputs.
pub(super) fn nothing() -> Tokens {
    Tokens::new()
}

pub(super) fn one(token: impl Into<Token>) -> Tokens {
    Tokens::from_iter([Some(token.into())])
}

/// The inputs of an op.
pub(super) struct StateInputs(pub Tokens);

impl StateInputs {
    pub fn token(&mut self, index: usize) -> Result<Token> {
        let token = self.0.get_mut(index).and_then(Option::take);
        token.ok_or_else(|| Failure::invalid(format!("input {index} is missing")))
    }

    pub fn host(&mut self, index: usize) -> Result<Tensor> {
        self.token(index)?.host()
    }

    pub fn value(&mut self, index: usize) -> Result<Value> {
        self.token(index)?.value()
    }

    /// The inputs from `first` on, as host tensors.
    pub fn rest(&mut self, first: usize) -> Result<Vec<Tensor>> {
        (first..self.0.len()).map(|index| self.host(index)).collect()
    }

    pub fn resource(&mut self, index: usize) -> Result<Arc<dyn Resource>> {
        match self.token(index)? {
            Token::Resource(resource) => Ok(resource),
            Token::Ref(variable) => Ok(variable),
            Token::Value(_) | Token::Variant(_) => {
                Err(Failure::invalid(format!("input {index} must be a handle to a resource")))
            }
        }
    }
}

macro_rules! handles {
    ($($name:ident: $type:ty;)*) => {
        impl StateInputs {
            $(pub fn $name(&mut self, index: usize) -> Result<Arc<$type>> {
                self.resource(index)?.typed()
            })*
        }
    };
}

handles! {
    variable: Variable;
    queue: Queue;
    barrier: Barrier;
    mutex: Mutex;
    summary_writer: SummaryWriter;
    accumulator: Accumulator;
    tensor_array: TensorArray;
    stack: Stack;
    iterator: Iterator;
    table: LookupTable;
    reader: Reader;
    aggregator: Aggregator;
    ensemble: TreeEnsemble;
    quantile_streams: QuantileStreams;
}

impl StateInputs {
    fn variant(&mut self, index: usize) -> Result<Variant> {
        match self.token(index)? {
            Token::Variant(variant) => Ok(variant),
            _ => Err(Failure::invalid(format!("input {index} must be a variant"))),
        }
    }

    pub fn list(&mut self, index: usize) -> Result<Arc<List>> {
        match self.variant(index)? {
            Variant::List(list) => Ok(list),
            other => Err(Failure::invalid(format!("Input handle is not a list. Saw: '{}'", other.kind()))),
        }
    }

    pub fn dataset(&mut self, index: usize) -> Result<Arc<Dataset>> {
        match self.variant(index)? {
            Variant::Dataset(dataset) => Ok(dataset),
            other => Err(Failure::invalid(format!("input {index} must be a dataset, but is a {}", other.kind()))),
        }
    }

    pub fn optional(&mut self, index: usize) -> Result<Arc<Optional>> {
        match self.variant(index)? {
            Variant::Optional(optional) => Ok(optional),
            other => Err(Failure::invalid(format!("input {index} must be an optional, but is a {}", other.kind()))),
        }
    }
}

/// Wakes the ops that finished waiting, with their outcomes; returns the caller's own answer, or that it waits.
pub(super) fn settle(finished: Finished, own: WaitId, resource: impl FnOnce() -> Arc<dyn Resource>) -> Result<Outcome> {
    let mut answer = None;
    for (waiter, result) in finished {
        if waiter.wait == own {
            answer = Some(result);
        } else {
            waiter.wake(result);
        }
    }
    match answer {
        Some(result) => result.map(|answer| Outcome::Done(answered(answer))),
        None => Ok(Outcome::Waits(resource())),
    }
}
