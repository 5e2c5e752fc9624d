//! Batches: the inputs of several calls, of any steps, are joined and computed at once. A call that waits for a batch to fill
//! holds no thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_engine::host::HostEngine;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Data, Shape, Tensor};

use super::super::dataset::{Callee, Pull};
use super::super::rows::{between, joined};
use super::super::token::Token;
use super::super::waiting::{
    Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters, wake_all,
};
#[cfg(test)]
use super::Busy;
use super::list::Look;
use super::{Resource, expiry};

/// The limits of a batch, as its node states them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BatchLimits {
    pub rows: usize,
    /// How long the first call of a batch waits for others.
    pub time: Duration,
    /// The numbers of rows to which a batch is padded, in order; empty if it is not.
    pub allowed: Vec<usize>,
}

/// The use of a full batch.
pub(crate) enum Use {
    /// One call gets it whole, the others nothing; Unbatch hands them their parts.
    Whole,
    /// A function is called with it, and each call gets its part of the results.
    Function(Arc<dyn Callee>),
}

pub(crate) struct Batching {
    name: String,
    limits: BatchLimits,
    then: Use,
    state: Shared<State>,
}

#[derive(Default)]
pub(crate) struct State {
    open: Vec<Call>,
    rows: usize,
    /// When the open batch is closed, whatever is in it.
    until: Option<Instant>,
    /// A thread closes batches whose time is over.
    is_timed: bool,
}

/// A call that waits for its batch.
pub(crate) struct Call {
    pub waiter: Waiter,
    pub inputs: Vec<Tensor>,
    pub captured: Vec<Token>,
    pub rows: usize,
    pub id: i64,
}

impl State {
    /// The calls of the open batch, which is closed.
    fn close(&mut self) -> Vec<Call> {
        self.rows = 0;
        self.until = None;
        std::mem::take(&mut self.open)
    }
}

impl Waited for Batching {
    type State = State;

    fn shared(&self) -> &Shared<State> {
        &self.state
    }

    fn forget(&self, state: &mut State, wait: WaitId) -> Finished {
        state.open.retain(|call| call.waiter.wait != wait);
        state.rows = state.open.iter().map(|call| call.rows).sum();
        if state.open.is_empty() {
            state.until = None;
        }
        Finished::new()
    }
}

impl Resource for Batching {
    fn wanted() -> &'static str {
        "batch"
    }

    fn kind(&self) -> &'static str {
        "batch"
    }

    fn bytes(&self) -> usize {
        let bytes = |call: &Call| call.inputs.iter().map(Tensor::heap_bytes).sum::<usize>();
        self.try_hold().map_or(0, |state| state.open.iter().map(bytes).sum())
    }

    fn look(&self) -> Look {
        let length = self.try_hold().map(|state| state.open.len());
        Look { bytes: Some(self.bytes()), length, ..Look::default() }
    }

    fn unsaved(&self) -> &'static str {
        "its calls are parts of their steps"
    }

    fn cancel(self: Arc<Self>, wait: WaitId) {
        self.give_up(wait);
    }

    #[cfg(test)]
    fn occupy(&self) -> Box<dyn Busy + '_> {
        Box::new(self.hold())
    }
}

impl Batching {
    pub fn new(name: String, limits: BatchLimits, then: Use) -> Batching {
        Batching { name, limits, then, state: Shared::default() }
    }

    /// # Errors
    /// InvalidArgument if a node names this batch and describes another one.
    pub fn check_as(&self, limits: &BatchLimits) -> Result<()> {
        if self.limits == *limits {
            return Ok(());
        }
        let why = format!("batch '{}' is {:?}, and this node requests {limits:?}", self.name, self.limits);
        Err(Failure::invalid(why))
    }

    /// Adds a call to the open batch; a batch that is full is computed at once.
    ///
    /// # Errors
    /// InvalidArgument if the call alone is larger than a batch; ResourceExhausted if too many calls wait.
    pub fn add(self: &Arc<Self>, call: Call) -> Result<Finished> {
        if call.rows > self.limits.rows {
            return Err(Failure::invalid(format!(
                "Task size {} is larger than maximum input batch size {}",
                call.rows, self.limits.rows
            )));
        }
        let (mut closed, starts) = {
            let state = &mut *self.hold();
            if state.open.len() >= MAX_WAITERS {
                return Err(too_many_waiters(&format!("batch '{}'", self.name)));
            }
            let mut closed = Vec::new();
            if state.rows + call.rows > self.limits.rows {
                closed.push(state.close());
            }
            state.rows += call.rows;
            state.until.get_or_insert_with(|| Instant::now() + self.limits.time);
            state.open.push(call);
            if state.rows == self.limits.rows || self.limits.time.is_zero() {
                closed.push(state.close());
            }
            let starts = !state.open.is_empty() && !std::mem::replace(&mut state.is_timed, true);
            (closed, starts)
        };
        if starts && !expiry::watch(self) {
            // Without a thread that would close it later, the batch is closed now.
            let state = &mut *self.hold();
            state.is_timed = false;
            closed.push(state.close());
        }
        Ok(closed.into_iter().flat_map(|calls| self.computed(calls)).collect())
    }

    /// The answers of the calls of a closed batch.
    fn computed(&self, mut calls: Vec<Call>) -> Finished {
        let answers = match &self.then {
            Use::Whole => self.whole(&calls),
            Use::Function(callee) => self.called(callee, &mut calls),
        };
        match answers {
            Ok(answers) => calls.into_iter().map(|call| call.waiter).zip(answers.into_iter().map(Ok)).collect(),
            Err(failure) => calls.into_iter().map(|call| (call.waiter, Err(failure.clone()))).collect(),
        }
    }

    /// The inputs of all calls, joined and padded.
    fn joined(&self, calls: &[Call]) -> Result<Vec<Tensor>> {
        let rows: usize = calls.iter().map(|call| call.rows).sum();
        let padded = self.limits.allowed.iter().copied().find(|&allowed| allowed >= rows).unwrap_or(rows);
        let width = calls.first().map_or(0, |call| call.inputs.len());
        (0..width)
            .map(|i| {
                let mut parts: Vec<&Tensor> = calls.iter().filter_map(|call| call.inputs.get(i)).collect();
                let Some(&first) = parts.first() else { return Err(Failure::invalid("a batch has no calls")) };
                if let Some(other) = parts.iter().find(|part| part.dims().get(1..) != first.dims().get(1..)) {
                    return Err(Failure::invalid(format!(
                        "Batching input tensors must have one shape but for their first dimension: {} and {}",
                        first.shape(),
                        other.shape()
                    )));
                }
                // TensorFlow pads with the first row.
                let pad = if padded > rows { Some(between(first, 0, 1)?) } else { None };
                parts.extend(pad.iter().flat_map(|row| std::iter::repeat_n(row, padded - rows)));
                let shape: Shape = std::iter::once(padded).chain(first.dims()[1..].iter().copied()).collect();
                joined(first.dtype(), shape, &parts)
            })
            .collect()
    }

    /// The last call gets the batch and the numbers of the rows of each; the others get tensors without rows.
    fn whole(&self, calls: &[Call]) -> Result<Vec<Answer>> {
        let mut batch = Some(self.joined(calls)?);
        let mut begins = 0;
        let index = calls.iter().flat_map(|call| {
            let from = begins;
            begins += call.rows as i64;
            [call.id, from, begins]
        });
        let index = Tensor::new([calls.len(), 3], Data::I64(index.collect()))?;
        let none = Tensor::new([0, 3], Data::I64(Vec::new()))?;
        let last = calls.len().saturating_sub(1);
        let answer = |(i, call): (usize, &Call)| {
            let tensors = match batch.take_if(|_| i == last) {
                Some(tensors) => tensors,
                None => call.inputs.iter().map(|input| between(input, 0, 0)).collect::<Result<_>>()?,
            };
            let index = if i == last { index.clone() } else { none.clone() };
            Ok(tensors.into_iter().chain([index, Tensor::scalar(call.id)]).collect())
        };
        calls.iter().enumerate().map(answer).collect()
    }

    /// Each call gets its rows of the function's results.
    fn called(&self, callee: &Arc<dyn Callee>, calls: &mut [Call]) -> Result<Vec<Answer>> {
        let batch = self.joined(calls)?;
        let rows = batch.first().and_then(|tensor| tensor.dims().first()).copied().unwrap_or(0);
        let Some(first) = calls.first_mut() else { return Ok(Vec::new()) };
        let captured = std::mem::take(&mut first.captured);
        let pull = Pull { engine: &HostEngine, device: &first.waiter.device, draws: None, statistics: None };
        let mut function = Arc::clone(callee).instance(captured, &pull)?;
        let results = function.call(batch.into_iter().map(Token::from).collect(), &pull)?;
        let results = results.into_iter().map(Token::host).collect::<Result<Vec<Tensor>>>()?;
        for result in &results {
            match result.dims().first() {
                None => return Err(Failure::new(Code::FailedPrecondition, "Batched output tensor has 0 dimensions")),
                Some(&own) if own != rows => {
                    let why = format!(
                        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the \
                         input tensors: {own}, not {rows}"
                    );
                    return Err(Failure::new(Code::FailedPrecondition, why));
                }
                Some(_) => {}
            }
        }
        let mut from = 0;
        let part = |call: &Call| {
            let (begin, end) = (from, from + call.rows);
            from = end;
            results.iter().map(|result| between(result, begin, end)).collect::<Result<Answer>>()
        };
        calls.iter().map(part).collect()
    }
}

impl expiry::Expires for Batching {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let closed = {
            let state = &mut *self.hold();
            match state.until {
                Some(until) if until > now => return Some(until),
                Some(_) => {
                    state.is_timed = false;
                    state.close()
                }
                None => {
                    state.is_timed = false;
                    return None;
                }
            }
        };
        wake_all(self.computed(closed));
        None
    }
}

/// Checks the inputs of a call; returns their number of rows.
///
/// # Errors
/// InvalidArgument if one has no rows, or they differ in number.
pub(crate) fn rows_of(inputs: &[Tensor]) -> Result<usize> {
    let rows = |tensor: &Tensor| {
        let rows = tensor.dims().first().copied();
        rows.ok_or_else(|| Failure::invalid("Batching input tensors must have at least one dimension"))
    };
    let all = inputs.iter().map(rows).collect::<Result<Vec<_>>>()?;
    match all.first() {
        Some(&first) if all.iter().all(|&rows| rows == first) => Ok(first),
        _ => Err(Failure::invalid(
            "Batching input tensors supplied in a given op invocation must have equal 0th-dimension size",
        )),
    }
}
