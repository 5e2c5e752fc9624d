//! Staging areas: tuples that one step puts in and another takes out, in the order they came or by key; and the ops that wait
//! for room or for a tuple. Each of those continues as soon as it can, whichever came first.

mod saved;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::waiting::{Answer, Finished, Shared, WaitId, Waited, Waiter, wake_all};
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Lasting, Over, Resource, Saved, Version, on_behalf};

/// Most ops that wait for one staging area: each op that continues causes all of them to be examined.
const MAX_STAGE_WAITERS: usize = 1 << 12;

/// The naming of a staging area's tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Keys {
    /// By the order in which they came.
    Order,
    /// By keys; if an op names none, it takes any of the tuples.
    Any,
    /// By keys; the least is next.
    Least,
}

/// The limits that a node states; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StageLimits {
    /// Most tuples.
    pub capacity: usize,
    /// Most bytes of all tuples.
    pub bytes: usize,
}

/// The request of an op.
pub(crate) enum Staged {
    /// Stores values as the components of a tuple of `width`; if the key is `None`, it is the next number.
    Put { key: Option<i64>, width: usize, indices: Vec<i32>, values: Vec<Tensor> },
    /// Returns components of a tuple, which stays if `stays`.
    Get { which: Which, indices: Option<Vec<i32>>, types: Vec<DType>, stays: bool },
}

/// The choice of a tuple.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// The tuple of a key.
    Key(i64),
    /// The tuple at this index, counted from the next.
    At(usize),
    /// The next tuple, with its key.
    Next,
}

type Tuple = Vec<Option<Tensor>>;

pub(crate) struct Staging {
    name: String,
    keys: Keys,
    limits: StageLimits,
    state: Shared<StagingState>,
}

#[derive(Default)]
pub(crate) struct StagingState {
    /// Tuples that were completed; some components may have been taken since.
    complete: BTreeMap<i64, Tuple>,
    incomplete: BTreeMap<i64, Tuple>,
    /// The number of components of a tuple, once one was put in; without keys, that of the first tuple.
    width: Option<usize>,
    bytes: usize,
    /// The key of the next tuple without one.
    next: i64,
    waiting: VecDeque<(Waiter, Staged)>,
    version: Version,
}

impl Waited for Staging {
    type State = StagingState;

    fn shared(&self) -> &Shared<StagingState> {
        &self.state
    }

    fn forget(&self, state: &mut StagingState, wait: WaitId) -> Finished {
        state.waiting.retain(|(waiter, _)| waiter.wait != wait);
        Finished::new()
    }
}

fn bytes_of<'a>(values: impl IntoIterator<Item = &'a Tensor>) -> usize {
    values.into_iter().map(Tensor::byte_len).sum()
}

impl Resource for Staging {
    fn wanted() -> &'static str {
        "staging area"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of its tuples, and of those that wait to get in; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        let Some(state) = self.try_hold() else { return 0 };
        let waiting = state.waiting.iter().map(|(_, staged)| match staged {
            Staged::Put { values, .. } => bytes_of(values),
            Staged::Get { .. } => 0,
        });
        state.bytes + waiting.sum::<usize>()
    }

    fn look(&self) -> Look {
        let state = self.try_hold();
        Look {
            dtypes: Vec::new(),
            shape: PartialShape::UNKNOWN,
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.complete.len()),
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
}

impl Staging {
    pub fn new(name: String, keys: Keys, limits: StageLimits) -> Staging {
        Staging { name, keys, limits, state: Shared::default() }
    }

    pub fn keys(&self) -> Keys {
        self.keys
    }

    /// The number of complete tuples.
    pub fn len(&self) -> usize {
        self.hold().complete.len()
    }

    /// The number of tuples some of whose components never came.
    pub fn incomplete(&self) -> usize {
        self.hold().incomplete.len()
    }

    /// Drops all tuples; ops that wait for room continue.
    pub fn clear(&self) -> Finished {
        let state = &mut *self.hold();
        state.version.raise();
        state.complete.clear();
        state.incomplete.clear();
        state.bytes = 0;
        self.advance(state)
    }

    /// Carries out an op's request, at once or when it becomes possible.
    ///
    /// # Errors
    /// ResourceExhausted if too many wait already.
    pub fn ask(&self, waiter: Waiter, staged: Staged) -> Result<Finished> {
        let state = &mut *self.hold();
        if state.waiting.len() >= MAX_STAGE_WAITERS {
            let why =
                format!("{MAX_STAGE_WAITERS} ops wait for staging area '{}' already, which is the limit", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        state.waiting.push_back((waiter, staged));
        Ok(self.advance(state))
    }

    /// Lets waiting ops continue, as far as they can.
    fn advance(&self, state: &mut StagingState) -> Finished {
        let mut finished = Finished::new();
        loop {
            let before = finished.len();
            for (waiter, mut staged) in std::mem::take(&mut state.waiting) {
                // For its own session, whichever made way for it.
                match on_behalf(waiter.session(), || self.attempt(state, &mut staged)).transpose() {
                    Some(result) => finished.push((waiter, result)),
                    None => state.waiting.push_back((waiter, staged)),
                }
            }
            if finished.len() == before || state.waiting.is_empty() {
                return finished;
            }
        }
    }

    /// Attempts a request; `None` if it has to wait.
    fn attempt(&self, state: &mut StagingState, staged: &mut Staged) -> Result<Option<Answer>> {
        match staged {
            Staged::Put { key, width, indices, values } => self.put(state, *key, *width, indices, values),
            Staged::Get { which, indices, types, stays } => {
                let key = match *which {
                    Which::Key(key) => Some(key).filter(|key| state.complete.contains_key(key)),
                    Which::At(index) => state.complete.keys().nth(index).copied(),
                    Which::Next => state.complete.keys().next().copied(),
                };
                let Some(key) = key else { return Ok(None) };
                let values = state.get(key, indices.as_deref(), types, *stays)?;
                // An op that takes the next tuple also outputs its key.
                let named = (matches!(which, Which::Next) && self.keys != Keys::Order).then(|| Tensor::scalar(key));
                Ok(Some(named.into_iter().chain(values).collect()))
            }
        }
    }

    fn put(
        &self,
        state: &mut StagingState,
        key: Option<i64>,
        width: usize,
        indices: &[i32],
        values: &mut Vec<Tensor>,
    ) -> Result<Option<Answer>> {
        let declared = *state.width.get_or_insert(width);
        if declared != width && self.keys != Keys::Order {
            return Err(Failure::invalid(format!(
                "staging area '{}' has tuples of {declared} components, but this node says {width}",
                self.name
            )));
        }
        let (bytes, limit) = (bytes_of(&*values), self.limits.bytes);
        if limit > 0 && bytes > limit {
            let why = format!(
                "Attempted to insert tensors with combined size of '{bytes}' bytes into Staging Area with a memory limit of \
                 '{limit}'."
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let is_whole = indices.len() == width;
        let is_full = is_whole && self.limits.capacity > 0 && state.complete.len() >= self.limits.capacity;
        if is_full || limit > 0 && state.bytes + bytes > limit {
            return Ok(None);
        }
        if state.bytes + bytes > MAX_QUEUE_BYTES {
            let why = format!("staging area '{}' exceeds the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()?;
        state.version.raise();
        let key = key.unwrap_or_else(|| {
            state.next = state.next.wrapping_add(1);
            state.next
        });
        state.insert(key, width, indices, std::mem::take(values))?;
        Ok(Some(Answer::new()))
    }
}

impl StagingState {
    fn insert(&mut self, key: i64, width: usize, indices: &[i32], values: Vec<Tensor>) -> Result<()> {
        let mut tuple = match indices.len() == width {
            true => vec![None; width],
            false => self.incomplete.get(&key).cloned().unwrap_or_else(|| vec![None; width]),
        };
        let bytes = bytes_of(&values);
        for (&index, value) in indices.iter().zip(values) {
            let place = component(&mut tuple, key, index)?;
            if place.is_some() {
                let why = format!("The tensor for index '{index}' for key '{key}' was already initialized '{width}'.");
                return Err(Failure::invalid(why));
            }
            *place = Some(value);
        }
        if tuple.iter().any(Option::is_none) {
            self.bytes += bytes;
            self.incomplete.insert(key, tuple);
            return Ok(());
        }
        if indices.len() < width
            && let Some(before) = self.incomplete.remove(&key)
        {
            self.bytes -= bytes_of(before.iter().flatten());
        }
        // A tuple that exists under that key stays, and this one is dropped.
        if let std::collections::btree_map::Entry::Vacant(entry) = self.complete.entry(key) {
            self.bytes += bytes_of(tuple.iter().flatten());
            entry.insert(tuple);
        }
        Ok(())
    }

    /// Some components of a tuple, all if there are no indices. If that fails, nothing has changed.
    fn get(&mut self, key: i64, indices: Option<&[i32]>, types: &[DType], stays: bool) -> Result<Vec<Tensor>> {
        let Some(tuple) = self.complete.get_mut(&key) else { return Ok(Vec::new()) };
        let all: Vec<i32> = (0..).take(tuple.len()).collect();
        let indices = indices.unwrap_or(&all);
        if indices.len() != types.len() {
            let why = format!("Mismatch stage/unstage: {} vs. {}", indices.len(), types.len());
            return Err(Failure::invalid(why));
        }
        let mut values = Vec::with_capacity(indices.len());
        for (&index, &dtype) in indices.iter().zip(types) {
            let Some(value) = component(tuple, key, index)? else {
                let why = format!("Tensor at index '{index}' for key '{key}' has already been removed.");
                return Err(Failure::invalid(why));
            };
            if value.dtype() != dtype {
                let why = format!("component {index} for key {key} is {}, but the node says {dtype}", value.dtype());
                return Err(Failure::invalid(why));
            }
            values.push(value.clone());
        }
        if !stays {
            self.version.raise();
            indices.iter().for_each(|&index| tuple[index as usize] = None);
            if tuple.iter().all(Option::is_none) {
                self.complete.remove(&key);
            }
            self.bytes -= bytes_of(&values);
        }
        Ok(values)
    }
}

/// One component of a tuple.
fn component(tuple: &mut Tuple, key: i64, index: i32) -> Result<&mut Option<Tensor>> {
    let width = tuple.len();
    let place = usize::try_from(index).ok().and_then(|index| tuple.get_mut(index));
    place.ok_or_else(|| Failure::invalid(format!("Index '{index}' for key '{key}' was out of bounds '{width}'.")))
}
