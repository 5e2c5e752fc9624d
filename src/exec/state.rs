//! The ops that touch state: variables, queues, accumulators, tensor arrays, stacks, checkpoints;
//! what is no tensor either: lists and optionals; and Assert, which only speaks.
//!
//! Each is compiled for its node once, and then finds its resources through the handles that flow in.

mod accumulator;
mod assert;
mod checkpoint;
mod list;
mod queue;
mod shared;
mod stack;
mod tensor_array;
mod variable;
mod variant;

use std::sync::Arc;

pub(super) use accumulator::Accumulator;
pub(super) use queue::Queue;
use shared::Waited;
pub(super) use stack::Stack;
pub(super) use tensor_array::TensorArray;
pub(super) use variant::Variant;

use super::engine::{Engine, Value};
use super::kernel::{Generators, KernelNode};
use super::mailbox::{Mailbox, Message, Ticket};
use super::resource::{DEFAULT_CONTAINER, Key, Resource, Resources, Variable};
use super::token::{Token, Tokens};
use crate::device::DeviceKind;
use crate::failure::{Code, Failure, Result};
use crate::ids::SessionId;
use crate::tensor::Tensor;

/// An op that touches state, compiled for one node.
pub(super) type StateOp = Box<dyn FnMut(Tokens, &mut Call) -> Result<Outcome> + Send>;

/// What an op is called with, beside its inputs.
pub(super) struct Call<'a> {
    pub engine: &'a dyn Engine,
    /// Where the op's result goes if it waits.
    pub mailbox: &'a Mailbox,
    pub ticket: Ticket,
}

/// What became of a call.
pub(super) enum Outcome {
    Done(Tokens),
    /// The result comes to the mailbox, under the ticket; the resource can cancel it.
    Waits(Resource),
}

impl Outcome {
    pub fn done(self) -> Option<Tokens> {
        match self {
            Outcome::Done(tokens) => Some(tokens),
            Outcome::Waits(_) => None,
        }
    }
}

/// For whom a piece is compiled.
pub(super) struct Site {
    pub session: SessionId,
    pub device: (DeviceKind, u32),
    pub resources: Arc<Resources>,
    /// Where the random numbers of the session's nodes go on, on this device.
    pub generators: Arc<Generators>,
}

/// Compiles an op that touches state; `None` where it is none.
///
/// # Errors
/// InvalidArgument where the attributes are wrong.
pub(super) fn compile(node: &KernelNode, site: &Site, engine: &dyn Engine) -> Result<Option<StateOp>> {
    if node.op == "Assert" {
        return assert::compile(node).map(Some);
    }
    for family in [
        variable::compile,
        queue::compile,
        accumulator::compile,
        tensor_array::compile,
        stack::compile,
        list::compile,
        variant::compile,
        checkpoint::compile,
    ] {
        if let Some(op) = family(node, site, engine)? {
            return Ok(Some(op));
        }
    }
    Ok(None)
}

/// An op that takes all its inputs and never waits.
fn simple(mut f: impl FnMut(Inputs, &mut Call) -> Result<Tokens> + Send + 'static) -> Result<Option<StateOp>> {
    Ok(Some(Box::new(move |tokens, call| f(Inputs(tokens), call).map(Outcome::Done))))
}

/// No outputs.
fn nothing() -> Tokens {
    Tokens::new()
}

fn one(token: impl Into<Token>) -> Tokens {
    Tokens::from_iter([Some(token.into())])
}

/// The inputs of an op.
struct Inputs(Tokens);

impl Inputs {
    fn token(&mut self, index: usize) -> Result<Token> {
        let token = self.0.get_mut(index).and_then(Option::take);
        token.ok_or_else(|| Failure::invalid(format!("input {index} is missing")))
    }

    fn host(&mut self, index: usize) -> Result<Tensor> {
        self.token(index)?.host()
    }

    fn value(&mut self, index: usize) -> Result<Value> {
        self.token(index)?.value()
    }

    /// The inputs from `first` on, as host tensors.
    fn rest(&mut self, first: usize) -> Result<Vec<Tensor>> {
        (first..self.0.len()).map(|index| self.host(index)).collect()
    }

    fn resource(&mut self, index: usize) -> Result<Resource> {
        match self.token(index)? {
            Token::Resource(resource) => Ok(resource),
            Token::Ref(variable) => Ok(Resource::Variable(variable)),
            Token::Value(_) | Token::Variant(_) => {
                Err(Failure::invalid(format!("input {index} is no handle to a resource")))
            }
        }
    }
}

/// A resource of the wrong kind under a handle.
fn wrong_kind(wanted: &str, got: &Resource) -> Failure {
    Failure::invalid(format!(
        "Trying to access a resource of the wrong kind: expected a {wanted}, got a {}",
        got.kind()
    ))
}

macro_rules! handles {
    ($($name:ident: $variant:ident, $type:ty, $what:literal;)*) => {
        impl Inputs {
            $(fn $name(&mut self, index: usize) -> Result<Arc<$type>> {
                match self.resource(index)? {
                    Resource::$variant(it) => Ok(it),
                    other => Err(wrong_kind($what, &other)),
                }
            })*
        }
    };
}

handles! {
    variable: Variable, Variable, "variable";
    queue: Queue, Queue, "queue";
    accumulator: Accumulator, Accumulator, "conditional accumulator";
    tensor_array: TensorArray, TensorArray, "tensor array";
    stack: Stack, Stack, "stack";
}

/// Refuses names that TensorFlow refuses, though not for the handle of a variable.
fn check_names(container: &str, shared: &str) -> Result<()> {
    let is_first = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let is_name = container.starts_with(is_first) && container.chars().all(|c| is_first(c) || c == '-' || c == '/');
    if !(container.is_empty() || is_name) {
        return Err(Failure::invalid(format!("container contains invalid characters: {container}")));
    }
    if shared.starts_with('_') {
        return Err(Failure::invalid(format!("shared_name cannot start with '_':{shared}")));
    }
    Ok(())
}

/// A resource that a node names: looked up when it is first used, and again when something was taken out of the table.
struct Named {
    key: Key,
    session: SessionId,
    resources: Arc<Resources>,
    found: Option<(u64, Resource)>,
}

impl Named {
    fn new(node: &KernelNode, site: &Site) -> Result<Named> {
        let text = |name: &str| node.attrs.get(name).map_or(Ok(""), |_| node.attrs.str(name));
        if node.op != "VarHandleOp" {
            check_names(text("container")?, text("shared_name")?)?;
        }
        let container = Some(text("container")?).filter(|text| !text.is_empty()).unwrap_or(DEFAULT_CONTAINER);
        let name = Some(text("shared_name")?).filter(|text| !text.is_empty()).unwrap_or(node.name);
        let key = Key {
            session: site.resources.is_isolated(site.session).then_some(site.session),
            device: site.device,
            container: container.to_owned(),
            name: name.to_owned(),
        };
        Ok(Named { key, session: site.session, resources: site.resources.clone(), found: None })
    }

    fn find(&mut self, make: impl FnOnce(&str) -> Result<Resource>) -> Result<Resource> {
        let generation = self.resources.generation();
        match &self.found {
            Some((at, resource)) if *at == generation => Ok(resource.clone()),
            _ => {
                let resource = self.resources.find_or_make(&self.key, self.session, || make(&self.key.name))?;
                self.found = Some((generation, resource.clone()));
                Ok(resource)
            }
        }
    }
}

/// One op that waits for a resource.
struct Waiter {
    mailbox: Mailbox,
    ticket: Ticket,
}

impl Waiter {
    fn of(call: &Call) -> Waiter {
        Waiter { mailbox: call.mailbox.clone(), ticket: call.ticket }
    }

    fn wake(self, result: Result<Tokens>) {
        self.mailbox.send(Message::Wake { ticket: self.ticket, result });
    }
}

/// What became of ops that waited.
type Ended = Vec<(Waiter, Result<Tokens>)>;

/// Hands out what became of those that waited; the caller's own answer is returned, or that it waits.
fn settle(ended: Ended, own: Ticket, resource: impl FnOnce() -> Resource) -> Result<Outcome> {
    let mut answer = None;
    for (waiter, result) in ended {
        if waiter.ticket == own {
            answer = Some(result);
        } else {
            waiter.wake(result);
        }
    }
    match answer {
        Some(result) => result.map(Outcome::Done),
        None => Ok(Outcome::Waits(resource())),
    }
}

impl Resource {
    /// Forgets an op that waits for this: at once, or, where another works on it, as soon as that is done.
    pub(super) fn cancel(&self, ticket: Ticket) {
        match self {
            Resource::Queue(queue) => queue.give_up(ticket),
            Resource::Accumulator(accumulator) => accumulator.give_up(ticket),
            Resource::Variable(_) | Resource::TensorArray(_) | Resource::Stack(_) => {}
        }
    }
}

#[cfg(test)]
impl Resource {
    /// As an op that works on this for as long as the answer is kept.
    pub(super) fn occupy(&self) -> Box<dyn Busy + '_> {
        match self {
            Resource::Queue(queue) => Box::new(queue.hold()),
            Resource::Accumulator(accumulator) => Box::new(accumulator.hold()),
            other => panic!("nobody waits in a {}", other.kind()),
        }
    }
}

/// See [`Resource::occupy`].
#[cfg(test)]
pub(super) trait Busy {}

#[cfg(test)]
impl<T> Busy for T {}

/// Most ops that wait for one resource.
const MAX_WAITERS: usize = 1 << 16;

fn too_many_waiters(what: &str) -> Failure {
    Failure::new(Code::ResourceExhausted, format!("{MAX_WAITERS} ops wait for {what} already, which is the limit"))
}
