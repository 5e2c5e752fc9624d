//! Conditional accumulators, which add gradients up until an op takes their mean, and drop those of an earlier global step. A
//! take waits until there are enough.

mod saved;
mod sparse;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use self::sparse::Slices;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::sums::{add, divide};
use super::super::waiting::{
    Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters, wake_all,
};
#[cfg(test)]
use super::Busy;
use super::list::Look;
use super::{Lasting, Over, Resource, Saved, Version};

pub(crate) struct Accumulator {
    name: String,
    form: Form,
    dtype: DType,
    shape: PartialShape,
    /// A take returns the mean; else the sum.
    is_mean: bool,
    state: Shared<AccumulatorState>,
}

/// The form of an accumulator's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Form {
    /// Gradients of a whole tensor.
    Dense,
    /// Gradients of some of its rows.
    Sparse,
}

/// One gradient, in one of these forms.
pub(crate) enum Gradient {
    Dense(Tensor),
    Sparse(Slices),
}

enum Sum {
    Dense(Tensor),
    Sparse(sparse::Sum),
}

impl Sum {
    fn bytes(&self) -> usize {
        match self {
            Sum::Dense(sum) => sum.byte_len(),
            Sum::Sparse(sum) => sum.bytes(),
        }
    }

    /// Makes it a mean: over all gradients, or, by row, over the gradients of that row. If that fails, nothing has changed.
    fn divide(&mut self, count: u64) -> Result<()> {
        match self {
            Sum::Dense(sum) => divide(sum, count),
            Sum::Sparse(sum) => sum.divide(),
        }
    }
}

#[derive(Default)]
pub(crate) struct AccumulatorState {
    global_step: i64,
    count: u64,
    sum: Option<Sum>,
    /// In the order they came, with the number of gradients that each needs.
    takes: VecDeque<(Waiter, u64)>,
    version: Version,
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

impl Resource for Accumulator {
    fn wanted() -> &'static str {
        "conditional accumulator"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of the sum; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        self.try_hold().and_then(|state| state.sum.as_ref().map(Sum::bytes)).unwrap_or(0)
    }

    fn look(&self) -> Look {
        let state = self.try_hold();
        Look {
            dtypes: vec![self.dtype],
            shape: self.shape.clone(),
            bytes: state.as_ref().map(|state| state.sum.as_ref().map_or(0, Sum::bytes)),
            length: state.as_ref().map(|state| state.count as usize),
            version: None,
        }
    }

    fn version(&self) -> Option<Version> {
        self.try_hold().map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        wake_all(self.loaded(saved, over)?);
        Ok(())
    }

    fn cancel(self: Arc<Self>, wait: WaitId) {
        self.give_up(wait);
    }

    #[cfg(test)]
    fn occupy(&self) -> Box<dyn Busy + '_> {
        Box::new(self.hold())
    }
}

impl Accumulator {
    pub fn new(name: String, form: Form, dtype: DType, shape: PartialShape, is_mean: bool) -> Accumulator {
        Accumulator { name, form, dtype, shape, is_mean, state: Shared::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn form(&self) -> Form {
        self.form
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The number of gradients added since the last take.
    pub fn count(&self) -> u64 {
        self.hold().count
    }

    pub fn set_global_step(&self, step: i64) {
        let state = &mut *self.hold();
        state.global_step = step;
        state.version.raise();
    }

    /// Adds a gradient, unless it is of an earlier step than the global one.
    ///
    /// # Errors
    /// InvalidArgument if it does not fit the accumulator, or the gradients added before.
    pub fn apply(&self, local_step: i64, gradient: Gradient) -> Result<Finished> {
        let state = &mut *self.hold();
        if local_step < state.global_step {
            return Ok(Vec::new());
        }
        match (gradient, self.form) {
            (Gradient::Dense(gradient), Form::Dense) => self.add(&mut state.sum, gradient)?,
            (Gradient::Sparse(slices), Form::Sparse) => self.add_slices(&mut state.sum, slices)?,
            _ => return Err(self.of_other_form()),
        }
        state.count += 1;
        state.version.raise();
        Ok(self.advance(state))
    }

    /// Refuses an op on gradients of the other form.
    pub fn of_other_form(&self) -> Failure {
        let (has, wanted) = match self.form {
            Form::Dense => ("dense", "AccumulatorApplyGradient and AccumulatorTakeGradient"),
            Form::Sparse => ("sparse", "SparseAccumulatorApplyGradient and SparseAccumulatorTakeGradient"),
        };
        Failure::invalid(format!("accumulator {} is of {has} gradients, as {wanted} are", self.name))
    }

    fn add(&self, sum: &mut Option<Sum>, gradient: Tensor) -> Result<()> {
        if gradient.dtype() != self.dtype {
            let why = format!("Expected a gradient of {}, got {}", self.dtype, gradient.dtype());
            return Err(Failure::invalid(why));
        }
        let sum_so_far = match sum {
            Some(Sum::Dense(sum)) => Some(sum),
            _ => None,
        };
        let wanted = sum_so_far.as_ref().map_or_else(|| self.shape.clone(), |sum| PartialShape::from(sum.shape()));
        if !wanted.admits(gradient.shape()) {
            let why = format!("Shape mismatch: expected {wanted}, got {}", gradient.shape());
            return Err(Failure::invalid(why));
        }
        match sum_so_far {
            Some(sum) => add(sum, &gradient)?,
            None => {
                memory::grow()?;
                *sum = Some(Sum::Dense(gradient));
            }
        }
        Ok(())
    }

    fn add_slices(&self, sum: &mut Option<Sum>, slices: Slices) -> Result<()> {
        let sum_so_far = match sum {
            Some(Sum::Sparse(sum)) => Some(sum),
            _ => None,
        };
        sparse::check(&slices, self.dtype, &self.shape, sum_so_far.as_deref())?;
        match sum_so_far {
            Some(sum) => sum.add(&slices)?,
            None => {
                memory::grow()?;
                *sum = Some(Sum::Sparse(sparse::Sum::new(slices)?));
            }
        }
        Ok(())
    }

    pub fn take(&self, waiter: Waiter, required: u64) -> Result<Finished> {
        let state = &mut *self.hold();
        if state.takes.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("accumulator {}", self.name)));
        }
        state.takes.push_back((waiter, required));
        Ok(self.advance(state))
    }

    fn advance(&self, state: &mut AccumulatorState) -> Finished {
        let mut finished = Vec::new();
        while state.takes.front().is_some_and(|&(_, required)| required <= state.count) {
            let (Some((waiter, _)), Some(mut sum)) = (state.takes.pop_front(), state.sum.take()) else { break };
            let result = if self.is_mean { sum.divide(state.count) } else { Ok(()) };
            if let Err(failure) = result {
                state.sum = Some(sum);
                finished.push((waiter, Err(failure)));
                continue;
            }
            state.count = 0;
            state.version.raise();
            // A client may have set any step.
            state.global_step = state.global_step.wrapping_add(1);
            let answer = match sum {
                Sum::Dense(sum) => Answer::from_iter([sum]),
                Sum::Sparse(sum) => Answer::from_iter(sum.into_parts(&self.shape)),
            };
            finished.push((waiter, Ok(answer)));
        }
        finished
    }
}
