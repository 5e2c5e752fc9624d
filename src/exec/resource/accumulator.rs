//! Conditional accumulators: gradients are added up until somebody takes their mean, and those of an earlier global
//! step are dropped. A take waits until there are enough.

use std::collections::VecDeque;

use super::super::sums::{add, divide};
use super::super::waiting::{Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters};
use super::list::Look;
use crate::failure::{Failure, Result};
use crate::memory;
use crate::tensor::{DType, PartialShape, Tensor};

pub(in crate::exec) struct Accumulator {
    name: String,
    dtype: DType,
    shape: PartialShape,
    /// The mean is taken, else the sum.
    is_mean: bool,
    state: Shared<AccumulatorState>,
}

#[derive(Default)]
pub(in crate::exec) struct AccumulatorState {
    global_step: i64,
    count: u64,
    sum: Option<Tensor>,
    /// In the order they came, with how many gradients each needs.
    takes: VecDeque<(Waiter, u64)>,
}

impl Waited for Accumulator {
    type State = AccumulatorState;

    fn shared(&self) -> &Shared<AccumulatorState> {
        &self.state
    }

    fn forget(&self, state: &mut AccumulatorState, wait: WaitId) -> Finished {
        state.takes.retain(|(waiter, _)| waiter.wait != wait);
        self.advance(state)
    }
}

impl Accumulator {
    pub fn new(name: String, dtype: DType, shape: PartialShape, is_mean: bool) -> Accumulator {
        Accumulator { name, dtype, shape, is_mean, state: Shared::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What it is, for those who ask from outside.
    pub fn look(&self) -> Look {
        let state = self.try_hold();
        Look {
            dtypes: vec![self.dtype],
            shape: self.shape.clone(),
            bytes: state.as_ref().map(|state| state.sum.as_ref().map_or(0, Tensor::byte_len)),
            length: state.as_ref().map(|state| state.count as usize),
            version: None,
        }
    }

    /// How many gradients were added since the last take.
    pub fn count(&self) -> u64 {
        self.hold().count
    }

    pub fn set_global_step(&self, step: i64) {
        self.hold().global_step = step;
    }

    /// Adds a gradient, unless it is of an earlier step than the global one.
    pub fn apply(&self, local_step: i64, gradient: Tensor) -> Result<Finished> {
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

    pub fn take(&self, waiter: Waiter, required: u64) -> Result<Finished> {
        let state = &mut *self.hold();
        if state.takes.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("accumulator {}", self.name)));
        }
        state.takes.push_back((waiter, required));
        Ok(self.advance(state))
    }

    /// Bytes of the sum; 0 if somebody is just changing it.
    pub fn bytes(&self) -> usize {
        self.try_hold().and_then(|state| state.sum.as_ref().map(Tensor::byte_len)).unwrap_or(0)
    }

    fn advance(&self, state: &mut AccumulatorState) -> Finished {
        let mut finished = Vec::new();
        while state.takes.front().is_some_and(|&(_, required)| required <= state.count) {
            let (Some((waiter, _)), Some(mut sum)) = (state.takes.pop_front(), state.sum.take()) else { break };
            let result = if self.is_mean { divide(&mut sum, state.count) } else { Ok(()) };
            if let Err(failure) = result {
                state.sum = Some(sum);
                finished.push((waiter, Err(failure)));
                continue;
            }
            state.count = 0;
            state.global_step += 1;
            finished.push((waiter, Ok(Answer::from_iter([sum]))));
        }
        finished
    }
}
