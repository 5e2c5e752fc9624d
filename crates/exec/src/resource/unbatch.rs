//! The parts of batches on their way back to the calls that gave them, and gradients on their way to their batch. A call that
//! waits holds no thread.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{Shape, Tensor, memory};

use super::super::rows::{between, joined};
use super::super::waiting::{
    Answer, Finished, MAX_WAITERS, Shared, WaitId, Waited, Waiter, too_many_waiters, wake_all,
};
#[cfg(test)]
use super::Busy;
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Resource, expiry};

/// The limit of a wait that the node does not limit: nobody fetches the rest of a step that long ago.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Unbatching {
    name: String,
    time: Option<Duration>,
    state: Shared<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Calls whose part has not come, by their numbers.
    waiting: HashMap<i64, (Waiter, Instant)>,
    /// Parts whose call has not come.
    parts: HashMap<i64, (Tensor, Instant)>,
    bytes: usize,
    /// Gradients of parts whose batch has not come.
    gradients: BTreeMap<i64, Tensor>,
    /// Batches whose gradients have not all come: by the call that waits for them.
    batches: HashMap<i64, Batch>,
    is_timed: bool,
}

/// A batch that waits for the gradients of its parts.
struct Batch {
    waiter: Waiter,
    /// The numbers of the calls, in the order of the rows.
    order: Vec<i64>,
    missing: HashSet<i64>,
}

/// The rows of a batch that belong to each call.
pub(crate) struct Index(Vec<(i64, usize, usize)>);

impl Index {
    /// # Errors
    /// InvalidArgument if it is not the second last output of a Batch, or does not fit the tensor.
    pub fn of(index: &Tensor, data: &Tensor) -> Result<Index> {
        let (Some(&rows), Some(&most)) = (index.dims().first(), data.dims().first()) else {
            return Err(Failure::invalid(format!(
                "the batched tensor and the index must have rows, got shapes {} and {}",
                data.shape(),
                index.shape()
            )));
        };
        if index.dims().get(1..) != Some(&[3]) {
            return Err(Failure::invalid(format!(
                "Wrong shape for index tensor. Expected 1st dimension size to be 3 ; Got: {}",
                index.shape()
            )));
        }
        if rows > most {
            return Err(Failure::invalid(format!(
                "Wrong shape for index tensor. Expected 0th dimension size to be no greater than {most}; Got: {rows}"
            )));
        }
        let one = |row: &[i64; 3]| {
            let place = |at: i64| usize::try_from(at).ok().filter(|&at| at <= most);
            let range = place(row[1]).zip(place(row[2])).filter(|(begin, end)| begin <= end);
            let (begin, end) = range.ok_or_else(|| {
                let why = format!("Batch index [{}, {}) does not fit a batch of {most} rows", row[1], row[2]);
                Failure::invalid(why)
            })?;
            Ok((row[0], begin, end))
        };
        index.slice::<i64>()?.as_chunks::<3>().0.iter().map(one).collect::<Result<_>>().map(Index)
    }
}

impl Waited for Unbatching {
    type State = State;

    fn shared(&self) -> &Shared<State> {
        &self.state
    }

    fn forget(&self, state: &mut State, wait: WaitId) -> Finished {
        state.waiting.retain(|_, (waiter, _)| waiter.wait != wait);
        state.batches.retain(|_, batch| batch.waiter.wait != wait);
        Finished::new()
    }
}

impl Resource for Unbatching {
    fn wanted() -> &'static str {
        "parts of batches"
    }

    fn kind(&self) -> &'static str {
        "parts of batches"
    }

    fn bytes(&self) -> usize {
        self.try_hold().map_or(0, |state| state.bytes)
    }

    fn look(&self) -> Look {
        let state = self.try_hold();
        Look {
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.parts.len() + state.gradients.len()),
            ..Look::default()
        }
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

impl Unbatching {
    pub fn new(name: String, time: Option<Duration>) -> Unbatching {
        Unbatching { name, time, state: Shared::default() }
    }

    fn admit(&self, state: &State, bytes: usize) -> Result<()> {
        if state.bytes + bytes > MAX_QUEUE_BYTES {
            let why = format!("the parts of batches of '{}' exceed the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let entries = state.waiting.len() + state.parts.len() + state.gradients.len() + state.batches.len();
        if entries >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("the parts of batches of '{}'", self.name)));
        }
        memory::grow()
    }

    /// Hands out the parts of a batch; the call `own` gets its part, or waits for it.
    ///
    /// # Errors
    /// FailedPrecondition if another call of that number waits; ResourceExhausted over a limit.
    pub fn part(self: &Arc<Self>, waiter: Waiter, data: &Tensor, index: &Index, own: i64) -> Result<Finished> {
        let parts = index.0.iter().map(|&(id, begin, end)| Ok((id, between(data, begin, end)?)));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let bytes: usize = parts.iter().map(|(_, part)| part.heap_bytes()).sum();
        let (finished, starts) = {
            let state = &mut *self.hold();
            self.admit(state, bytes)?;
            let until = Instant::now() + self.time.unwrap_or(LONGEST);
            if state.waiting.contains_key(&own) {
                let why = "Multiple session runs with the same batch key.";
                return Err(Failure::new(Code::FailedPrecondition, why));
            }
            let mut finished = Finished::new();
            match state.parts.remove(&own) {
                Some((part, _)) => {
                    state.bytes = state.bytes.saturating_sub(part.heap_bytes());
                    finished.push((waiter, Ok(Answer::from_iter([part]))));
                }
                None => {
                    state.waiting.insert(own, (waiter, until));
                }
            }
            for (id, part) in parts {
                match state.waiting.remove(&id) {
                    Some((waiter, _)) => finished.push((waiter, Ok(Answer::from_iter([part])))),
                    None => {
                        state.bytes += part.heap_bytes();
                        if let Some((old, _)) = state.parts.insert(id, (part, until)) {
                            state.bytes = state.bytes.saturating_sub(old.heap_bytes());
                        }
                    }
                }
            }
            let waits = !state.waiting.is_empty() || !state.parts.is_empty();
            (finished, waits && !std::mem::replace(&mut state.is_timed, true))
        };
        if starts && !expiry::watch(self) {
            self.hold().is_timed = false;
        }
        Ok(finished)
    }

    /// Takes the gradient of the part of the call `own`; the call that had the batch gets those of all parts, joined, or waits
    /// for them.
    ///
    /// # Errors
    /// InvalidArgument if a gradient of that number has come; ResourceExhausted over a limit.
    pub fn gradient(&self, waiter: Waiter, index: &Index, gradient: Tensor, own: i64) -> Result<Finished> {
        let mut finished = Finished::new();
        let state = &mut *self.hold();
        self.admit(state, gradient.heap_bytes())?;
        if state.gradients.contains_key(&own) {
            return Err(Failure::invalid("Two runs with the same batch key."));
        }
        let nothing = between(&gradient, 0, 0)?;
        state.bytes += gradient.heap_bytes();
        state.gradients.insert(own, gradient);
        if index.0.is_empty() {
            finished.push((waiter, Ok(Answer::from_iter([nothing]))));
        } else {
            let order: Vec<i64> = index.0.iter().map(|&(id, ..)| id).collect();
            let missing = order.iter().copied().filter(|id| !state.gradients.contains_key(id)).collect();
            state.batches.insert(own, Batch { waiter, order, missing });
        }
        let whole: Vec<i64> = {
            let batches = state.batches.iter_mut();
            batches.filter_map(|(&id, batch)| {
                batch.missing.remove(&own);
                batch.missing.is_empty().then_some(id)
            })
        }
        .collect();
        for id in whole {
            let Some(batch) = state.batches.remove(&id) else { continue };
            let parts: Vec<Tensor> = batch.order.iter().filter_map(|id| state.gradients.remove(id)).collect();
            let bytes: usize = parts.iter().map(Tensor::heap_bytes).sum();
            state.bytes = state.bytes.saturating_sub(bytes);
            finished.push((batch.waiter, stacked(&parts)));
        }
        Ok(finished)
    }
}

/// Tensors joined along their first dimension.
fn stacked(parts: &[Tensor]) -> Result<Answer> {
    let Some(first) = parts.first() else { return Err(Failure::invalid("a batch has no parts")) };
    if let Some(other) = parts.iter().find(|part| part.dims().get(1..) != first.dims().get(1..)) {
        let why = format!("gradients of one batch have shapes {} and {}", first.shape(), other.shape());
        return Err(Failure::invalid(why));
    }
    let rows = parts.iter().map(|part| part.dims()[0]).sum();
    let shape: Shape = std::iter::once(rows).chain(first.dims()[1..].iter().copied()).collect();
    let parts: Vec<&Tensor> = parts.iter().collect();
    Ok(Answer::from_iter([joined(first.dtype(), shape, &parts)?]))
}

impl expiry::Expires for Unbatching {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let (finished, next) = {
            let state = &mut *self.hold();
            let late: Vec<i64> =
                state.waiting.iter().filter(|(_, (_, until))| *until <= now).map(|(&id, _)| id).collect();
            let mut finished = Finished::new();
            for (waiter, _) in late.iter().filter_map(|id| state.waiting.remove(id)) {
                let why = "Batched data did not arrive within timeout window.";
                finished.push((waiter, Err(Failure::new(Code::DeadlineExceeded, why))));
            }
            state.parts.retain(|_, (_, until)| *until > now);
            state.bytes = state
                .parts
                .values()
                .map(|(part, _)| part)
                .chain(state.gradients.values())
                .map(Tensor::heap_bytes)
                .sum();
            let waits = state.waiting.values().map(|(_, until)| *until);
            let next = waits.chain(state.parts.values().map(|(_, until)| *until)).min();
            state.is_timed = next.is_some();
            (finished, next)
        };
        wake_all(finished);
        next
    }
}
