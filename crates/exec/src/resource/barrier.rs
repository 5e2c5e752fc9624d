//! Barriers: elements by key, whose components come one by one. Complete elements are taken in the order in which their keys
//! came.

mod saved;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::super::rows::row;
use super::super::waiting::{Finished, Waiter, unless_held, wake_all};
use super::list::Look;
use super::queue::{How, Kind, Queue};
use super::{Lasting, Over, Resource, Saved, Version};

pub(crate) struct Barrier {
    name: String,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    /// The elements that are complete: the number of the insertion that brought the key, the key, and the components.
    ready: Arc<Queue>,
    state: Mutex<State>,
}

struct State {
    incomplete: HashMap<Vec<u8>, Incomplete>,
    bytes: usize,
    /// The number of the next insertion that brings new keys.
    next: i64,
    is_closed: bool,
    cancels: bool,
    version: Version,
}

struct Incomplete {
    number: i64,
    components: Vec<Option<Tensor>>,
}

impl Resource for Barrier {
    fn wanted() -> &'static str {
        "barrier"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes) + self.ready.bytes()
    }

    fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        Look {
            dtypes: self.types.clone(),
            shape: if let [shape] = &self.shapes[..] { shape.clone() } else { PartialShape::UNKNOWN },
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.incomplete.len()),
            version: None,
        }
    }

    // Ops that wait for elements wait in the queue.
    fn version(&self) -> Option<Version> {
        let state = unless_held(&self.state)?;
        Some(state.version.plus(self.ready.version()?))
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        wake_all(self.loaded(saved, over)?);
        Ok(())
    }
}

impl Barrier {
    /// An empty barrier. `shapes` may be empty, if they are not known.
    pub fn new(name: String, types: Vec<DType>, shapes: Vec<PartialShape>) -> Barrier {
        let scalar = || PartialShape(Some(Vec::new()));
        let ready_types = [DType::I64, DType::String].into_iter().chain(types.iter().copied()).collect();
        let ready_shapes = match shapes.is_empty() {
            true => Vec::new(),
            false => [scalar(), scalar()].into_iter().chain(shapes.iter().cloned()).collect(),
        };
        let ready = Queue::new(name.clone(), Kind::Priority, ready_types, ready_shapes, usize::MAX, None);
        let state = State {
            incomplete: HashMap::new(),
            bytes: 0,
            next: i64::MIN,
            is_closed: false,
            cancels: false,
            version: Version::default(),
        };
        Barrier { name, types, shapes, ready: Arc::new(ready), state: Mutex::new(state) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the barrier is as a node that names it describes it.
    pub fn is_as(&self, types: &[DType], shapes: &[PartialShape]) -> bool {
        (&self.types[..], &self.shapes[..]) == (types, shapes)
    }

    /// The queue in which ops wait that take elements.
    pub fn ready(&self) -> Arc<Queue> {
        Arc::clone(&self.ready)
    }

    /// The number of keys with missing components.
    pub fn incomplete(&self) -> usize {
        lock(&self.state).incomplete.len()
    }

    /// Gives each key the row of `values` at its index, as its component `index`. Ops that wait for elements may continue.
    ///
    /// # Errors
    /// InvalidArgument if the shapes do not fit, or a key has this component; Cancelled for a new key if the barrier is closed,
    /// and for any key if closing it cancelled the pending ones. Keys before the one that fails have their components.
    pub fn insert(&self, index: usize, keys: &Tensor, values: &Tensor) -> Result<Finished> {
        self.check(index, keys, values)?;
        let mut state = lock(&self.state);
        state.version.raise();
        let mut complete = Vec::new();
        let mut outcome = Ok(());
        let keys = keys.slice::<Vec<u8>>()?;
        let has_new = keys.iter().any(|key| !state.incomplete.contains_key(key));
        for (i, key) in keys.iter().enumerate() {
            outcome = self.insert_one(&mut state, index, key, row(values, i)?, &mut complete);
            if outcome.is_err() {
                break;
            }
        }
        state.next = state.next.wrapping_add(i64::from(has_new));
        let mut finished = self.ready.put(complete)?;
        if state.is_closed && state.incomplete.is_empty() {
            finished.extend(self.ready.end());
        }
        match outcome {
            Ok(()) => Ok(finished),
            Err(failure) => {
                wake_all(finished);
                Err(failure)
            }
        }
    }

    fn check(&self, index: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        let Some(&dtype) = self.types.get(index) else {
            let why = format!("The component ID is out of range {index} > num_components ({})", self.types.len());
            return Err(Failure::invalid(why));
        };
        if values.dtype() != dtype {
            let why = format!("Component {index} of barrier '{}' is {dtype}, got {}", self.name, values.dtype());
            return Err(Failure::invalid(why));
        }
        if keys.rank() != 1 || values.dims().first() != Some(&keys.len()) {
            return Err(Failure::invalid(format!(
                "keys must be a vector, and values must have a row for each: got {} and {}",
                keys.shape(),
                values.shape()
            )));
        }
        let Some(wanted) = self.shapes.get(index) else { return Ok(()) };
        if wanted.admits(&values.dims()[1..].into()) {
            return Ok(());
        }
        let why =
            format!("Shape mismatch in tuple component {index}. Expected {wanted} per key, got {}", values.shape());
        Err(Failure::invalid(why))
    }

    fn insert_one(
        &self,
        state: &mut State,
        index: usize,
        key: &[u8],
        value: Tensor,
        complete: &mut Vec<Vec<Tensor>>,
    ) -> Result<()> {
        let name = &self.name;
        if state.cancels {
            let why = format!("Barrier '{name}' is closed. Pending enqueues cancelled: 1.");
            return Err(Failure::new(Code::Cancelled, why));
        }
        if !state.incomplete.contains_key(key) {
            if state.is_closed {
                let key = String::from_utf8_lossy(key);
                let why = format!("Barrier '{name}' is closed, but attempted to insert a brand new key: {key}.");
                return Err(Failure::new(Code::Cancelled, why));
            }
            let new = Incomplete { number: state.next, components: vec![None; self.types.len()] };
            state.incomplete.insert(key.to_vec(), new);
        }
        let Some(element) = state.incomplete.get_mut(key) else { return Ok(()) };
        if element.components[index].is_some() {
            let key = String::from_utf8_lossy(key);
            let why = format!("Key {key} already has a value for component {index} in barrier {name}");
            return Err(Failure::invalid(why));
        }
        memory::grow()?;
        state.bytes += value.heap_bytes();
        element.components[index] = Some(value);
        if element.components.iter().all(Option::is_some)
            && let Some(Incomplete { number, components }) = state.incomplete.remove(key)
        {
            let values: Vec<Tensor> = components.into_iter().flatten().collect();
            state.bytes = state.bytes.saturating_sub(values.iter().map(Tensor::heap_bytes).sum());
            complete.push([Tensor::scalar(number), Tensor::scalar(key.to_vec())].into_iter().chain(values).collect());
        }
        Ok(())
    }

    /// Takes `wanted` elements, stacked, or waits for them; if the barrier is closed and `may_be_fewer`, takes the remaining
    /// ones.
    ///
    /// # Errors
    /// OutOfRange if the barrier is closed and has too few.
    pub fn take(&self, waiter: Waiter, wanted: usize, may_be_fewer: bool) -> Result<Finished> {
        let mut wanted = wanted;
        let state = lock(&self.state);
        if state.is_closed {
            let mut available = self.ready.len();
            if may_be_fewer {
                wanted = wanted.min(available);
            } else {
                available += state.incomplete.len();
            }
            if available < wanted.max(1) {
                let why = format!(
                    "Barrier '{}' is closed and has insufficient elements (requested {wanted}, total size {available})",
                    self.name
                );
                return Err(Failure::new(Code::OutOfRange, why));
            }
        }
        self.ready.dequeue_many(waiter, wanted, if may_be_fewer { How::UpTo } else { How::Many })
    }

    /// Closes the barrier: no new key is accepted, and, if it `cancels`, no component of an incomplete key.
    ///
    /// # Errors
    /// Cancelled if it was closed before, unless this call cancels and that one did not.
    pub fn close(&self, cancels: bool) -> Result<Finished> {
        let mut state = lock(&self.state);
        if state.is_closed && (state.cancels || !cancels) {
            return Err(Failure::new(Code::Cancelled, format!("Barrier '{}' is already closed.", self.name)));
        }
        state.is_closed = true;
        state.version.raise();
        if cancels {
            state.cancels = true;
            state.incomplete.clear();
            state.bytes = 0;
        }
        Ok(if state.incomplete.is_empty() { self.ready.end() } else { Finished::new() })
    }
}
