//! Conditional accumulators: gradients are added up until somebody takes their mean, and those of an earlier global
//! step are dropped. A take waits until there are enough.

use std::collections::VecDeque;
use std::ops::Div;
use std::sync::Arc;

use super::super::engine::Engine;
use super::super::kernel::KernelNode;
use super::super::mailbox::Ticket;
use super::super::resource::Resource;
use super::super::token::Token;
use super::shared::{Shared, Waited};
use super::{
    Ended, Inputs, MAX_WAITERS, Named, Outcome, Site, StateOp, Waiter, nothing, one, settle, simple, too_many_waiters,
    wrong_kind,
};
use crate::failure::{Failure, Result};
use crate::memory;
use crate::tensor::{DType, Integer, Numeric, PartialShape, Tensor, with_float, with_integer, with_number};

pub(in crate::exec) struct Accumulator {
    name: String,
    dtype: DType,
    shape: PartialShape,
    /// The mean is taken, else the sum.
    is_mean: bool,
    state: Shared<State>,
}

#[derive(Default)]
pub(super) struct State {
    global_step: i64,
    count: u64,
    sum: Option<Tensor>,
    /// In the order they came, with how many gradients each needs.
    takes: VecDeque<(Waiter, u64)>,
}

pub(super) fn compile(node: &KernelNode, site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    match node.op {
        "ResourceConditionalAccumulator" => handle(node, site),
        "ResourceAccumulatorApplyGradient" => simple(|mut inputs, _| {
            let accumulator = inputs.accumulator(0)?;
            let local_step = inputs.host(1)?.to_i64()?;
            for (waiter, result) in accumulator.apply(local_step, inputs.host(2)?)? {
                waiter.wake(result);
            }
            Ok(nothing())
        }),
        "ResourceAccumulatorSetGlobalStep" => simple(|mut inputs, _| {
            let accumulator = inputs.accumulator(0)?;
            let step = inputs.host(1)?.to_i64()?;
            accumulator.hold().global_step = step;
            Ok(nothing())
        }),
        "ResourceAccumulatorNumAccumulated" => simple(|mut inputs, _| {
            let count = inputs.accumulator(0)?.hold().count;
            Ok(one(Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX))))
        }),
        "ResourceAccumulatorTakeGradient" => Ok(Some(Box::new(|tokens, call| -> Result<Outcome> {
            let mut inputs = Inputs(tokens);
            let accumulator = inputs.accumulator(0)?;
            let required = inputs.host(1)?.to_i64()?;
            let Some(required) = u64::try_from(required).ok().filter(|&required| required > 0) else {
                return Err(Failure::invalid(format!("Argument num_required must be at least 1, got {required}")));
            };
            let ended = accumulator.take(Waiter::of(call), required)?;
            settle(ended, call.ticket, || Resource::Accumulator(accumulator))
        }))),
        _ => Ok(None),
    }
}

fn handle(node: &KernelNode, site: &Site) -> Result<Option<StateOp>> {
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("shape")?.clone();
    let is_mean = node.attrs.str("reduction_type")? == "MEAN";
    let mut named = Named::new(node, site)?;
    simple(move |_, _| {
        let make = |name: &str| {
            let (name, shape) = (name.to_owned(), shape.clone());
            let accumulator = Accumulator { name, dtype, shape, is_mean, state: Shared::default() };
            Ok(Resource::Accumulator(Arc::new(accumulator)))
        };
        match named.find(make)? {
            Resource::Accumulator(accumulator) if accumulator.dtype == dtype => {
                Ok(one(Token::Resource(Resource::Accumulator(accumulator))))
            }
            Resource::Accumulator(accumulator) => Err(Failure::invalid(format!(
                "accumulator {} is shared and holds {}, but this node says {dtype}",
                accumulator.name, accumulator.dtype
            ))),
            other => Err(wrong_kind("conditional accumulator", &other)),
        }
    })
}

impl Waited for Accumulator {
    type State = State;

    fn shared(&self) -> &Shared<State> {
        &self.state
    }

    fn forget(&self, state: &mut State, ticket: Ticket) -> Ended {
        state.takes.retain(|(waiter, _)| waiter.ticket != ticket);
        self.advance(state)
    }
}

impl Accumulator {
    /// Adds a gradient, unless it is of an earlier step than the global one.
    fn apply(&self, local_step: i64, gradient: Tensor) -> Result<Ended> {
        let state = &mut *self.hold();
        if local_step < state.global_step {
            return Ok(Vec::new());
        }
        if gradient.dtype() != self.dtype {
            let why = format!("Expected a gradient of {}, got {}", self.dtype, gradient.dtype());
            return Err(Failure::invalid(why));
        }
        let wanted = match &state.sum {
            Some(sum) => PartialShape::from(sum.shape()),
            None => self.shape.clone(),
        };
        if !wanted.admits(gradient.shape()) {
            let why = format!("Shape mismatch: expected {wanted}, got {}", gradient.shape());
            return Err(Failure::invalid(why));
        }
        match &mut state.sum {
            None => {
                memory::grow()?;
                state.sum = Some(gradient);
            }
            Some(sum) => add(sum, &gradient)?,
        }
        state.count += 1;
        Ok(self.advance(state))
    }

    fn take(&self, waiter: Waiter, required: u64) -> Result<Ended> {
        let state = &mut *self.hold();
        if state.takes.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("accumulator {}", self.name)));
        }
        state.takes.push_back((waiter, required));
        Ok(self.advance(state))
    }

    /// Bytes of the sum; 0 where somebody is just changing it.
    pub(in crate::exec) fn bytes(&self) -> usize {
        self.try_hold().and_then(|state| state.sum.as_ref().map(Tensor::byte_len)).unwrap_or(0)
    }

    fn advance(&self, state: &mut State) -> Ended {
        let mut ended = Vec::new();
        while state.takes.front().is_some_and(|&(_, required)| required <= state.count) {
            let (Some((waiter, _)), Some(mut sum)) = (state.takes.pop_front(), state.sum.take()) else { break };
            let result = if self.is_mean { divide(&mut sum, state.count) } else { Ok(()) };
            if let Err(failure) = result {
                state.sum = Some(sum);
                ended.push((waiter, Err(failure)));
                continue;
            }
            state.count = 0;
            state.global_step += 1;
            ended.push((waiter, Ok(one(sum))));
        }
        ended
    }
}

/// Adds a tensor of the same shape and dtype.
pub(super) fn add(sum: &mut Tensor, gradient: &Tensor) -> Result<()> {
    let dtype = sum.dtype();
    let done: Option<Result<()>> = with_number!(dtype, T => {
        gradient.slice::<T>().and_then(|gradient| {
            sum.slice_mut::<T>()?.iter_mut().zip(gradient).for_each(|(x, &y)| *x = Numeric::add(*x, y));
            Ok(())
        })
    });
    done.unwrap_or_else(|| Err(Failure::invalid(format!("{dtype} is no number"))))
}

/// Divides by a number. Where that fails, nothing has changed.
fn divide(sum: &mut Tensor, count: u64) -> Result<()> {
    let dtype = sum.dtype();
    let count_f64 = count as f64;
    let floats: Option<Result<()>> = with_float!(dtype, T => {
        let count = <T as Numeric>::from_f64(count_f64);
        sum.slice_mut::<T>().map(|sum| sum.iter_mut().for_each(|x| *x = Div::div(*x, count)))
    });
    let done = floats.or_else(|| {
        with_integer!(dtype, T => {
            let count = <T as Numeric>::from_i64(count as i64);
            sum.slice_mut::<T>().map(|sum| {
                sum.iter_mut().for_each(|x| *x = Integer::checked_div(*x, count).unwrap_or_default());
            })
        })
    });
    done.unwrap_or_else(|| Err(Failure::invalid(format!("{dtype} is no number"))))
}
