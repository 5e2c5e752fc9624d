//! The outputs of a node once its inputs exist: from its kernel, on the engine or on the host, or from an input.

use meshtf_engine::{EngineOutcome, Value, Values};
use meshtf_kernels::Inputs;
use meshtf_loops::turn;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::super::program::{Act, CompiledNode};
use super::super::state::{OpContext, Outcome};
use super::super::token::{Token, Tokens};

/// The outputs of a node with live inputs.
pub(super) fn answer(
    act: &mut Act,
    node: &CompiledNode,
    inputs: &mut [Option<Token>],
    feeds: &mut [Option<Token>],
    fetches: &mut [Option<Token>],
    context: &mut OpContext,
) -> Result<Outcome> {
    let one = |token: Token| Ok(Outcome::Done(Tokens::from_iter([Some(token)])));
    match act {
        Act::Kernel { .. } => compute(act, node, inputs),
        Act::Const(value) => one(value.clone().into()),
        Act::Forward => one(forward(node, inputs, 0)?),
        Act::ForwardAll => {
            let all = (0..inputs.len()).map(|index| forward(node, inputs, index).map(Some));
            Ok(Outcome::Done(all.collect::<Result<_>>()?))
        }
        Act::Nothing | Act::ControlTrigger => {
            inputs.fill(None);
            Ok(Outcome::Done(Tokens::new()))
        }
        // An op changes its state as a whole, or not at all.
        Act::State(op) => match turn::whole(|| op(inputs.iter_mut().map(Option::take).collect(), context))? {
            Outcome::Done(tokens) if tokens.len() == node.outputs as usize => Ok(Outcome::Done(tokens)),
            Outcome::Done(tokens) => Err(miscounted(node, tokens.len())),
            waits => Ok(waits),
        },
        Act::Feed { place, is_kept } => {
            let feed = feeds.get_mut(*place as usize);
            // In a loop the feed is needed again.
            let feed = if node.frame == 0 { feed.and_then(Option::take) } else { feed.and_then(|feed| feed.clone()) };
            let missing = || Failure::invalid("the step came without a value for this feed");
            one(match feed.ok_or_else(missing)? {
                Token::Value(Value::Host(tensor)) if *is_kept => context.engine.keep(tensor)?.into(),
                token => token,
            })
        }
        Act::Fetch(place) => {
            fetches[*place as usize] = Some(forward(node, inputs, 0)?);
            Ok(Outcome::Done(Tokens::new()))
        }
        Act::Unfed(failure) => Err(failure.clone()),
        Act::Send { .. }
        | Act::Recv { .. }
        | Act::Switch
        | Act::Merge
        | Act::Enter
        | Act::Exit
        | Act::NextIteration => Err(Failure::new(Code::Internal, "control flow in a piece that has none")),
    }
}

/// The outputs of a kernel.
pub(super) fn compute(act: &mut Act, node: &CompiledNode, inputs: &mut [Option<Token>]) -> Result<Outcome> {
    let Act::Kernel { engine, host } = act else { return Err(Failure::new(Code::Internal, "it is not a kernel")) };
    memory::go_on()?;
    let declined = match engine {
        Some(kernel) if host.is_none() || !kernel.leaves(inputs.iter().map(value)) => {
            let values = values(inputs)?;
            // The value of a reference is known only now.
            if host.is_some() && kernel.leaves(values.iter().map(Some)) {
                Some(values)
            } else {
                match (kernel.run)(values)? {
                    EngineOutcome::Done(values) => return complete(node, values),
                    EngineOutcome::Declined(values) => Some(values),
                }
            }
        }
        _ => None,
    };
    let Some(kernel) = host else {
        let why = format!("{} has no kernel for these inputs", node.op);
        return Err(Failure::new(Code::Unimplemented, why));
    };
    let inputs = match declined {
        Some(values) => values.into_iter().map(Value::into_host).collect::<Result<Inputs>>()?,
        None => tensors(inputs)?,
    };
    complete(node, kernel(inputs)?)
}

/// The value in a slot; `None` for other tokens, references among them.
fn value(slot: &Option<Token>) -> Option<&Value> {
    match slot {
        Some(Token::Value(value)) => Some(value),
        _ => None,
    }
}

/// The inputs of an engine's kernel. A loop, because adapters would move each value a few times more.
fn values(inputs: &mut [Option<Token>]) -> Result<Values> {
    let mut values = Values::new();
    for slot in inputs {
        match slot.take() {
            Some(Token::Value(value)) => values.push(value),
            other => values.push(missing(other)?.value()?),
        }
    }
    Ok(values)
}

/// The inputs of a host kernel.
fn tensors(inputs: &mut [Option<Token>]) -> Result<Inputs> {
    let mut tensors = Inputs::new();
    for slot in inputs {
        match slot.take() {
            Some(Token::Value(Value::Host(tensor))) => tensors.push(tensor),
            other => tensors.push(missing(other)?.host()?),
        }
    }
    Ok(tensors)
}

/// The outputs of a kernel, checked against their number.
fn complete<T: Into<Token>>(node: &CompiledNode, answers: impl IntoIterator<Item = T>) -> Result<Outcome> {
    let mut tokens = Tokens::new();
    for answer in answers {
        tokens.push(Some(answer.into()));
    }
    if tokens.len() == node.outputs as usize { Ok(Outcome::Done(tokens)) } else { Err(miscounted(node, tokens.len())) }
}

fn miscounted(node: &CompiledNode, answers: usize) -> Failure {
    Failure::new(Code::Internal, format!("the kernel answered {answers} of {} outputs", node.outputs))
}

pub(super) fn take(inputs: &mut [Option<Token>], index: usize) -> Result<Token> {
    missing(inputs.get_mut(index).and_then(Option::take))
}

fn missing(token: Option<Token>) -> Result<Token> {
    token.ok_or_else(|| Failure::new(Code::Internal, "an input is missing"))
}

/// The input as an output. A node that takes a reference takes a variable without a value, too.
pub(super) fn forward(node: &CompiledNode, inputs: &mut [Option<Token>], index: usize) -> Result<Token> {
    let token = take(inputs, index)?;
    if node.input_refs >> index & 1 == 1 { Ok(token) } else { token.handed_on() }
}

/// The value that a Send pushes; for a control edge, one without meaning.
pub(super) fn to_send(inputs: &mut [Option<Token>]) -> Result<Tensor> {
    if inputs.is_empty() { Ok(Tensor::scalar(true)) } else { take(inputs, 0)?.host() }
}
