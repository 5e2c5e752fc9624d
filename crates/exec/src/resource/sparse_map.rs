//! Maps of sparse tensors by number: an op that adds one returns its number, and an op that takes some is given theirs.

use std::collections::HashMap;
use std::sync::Mutex;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{PartialShape, Tensor};

use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Resource, Version};

/// The indices, the values and the dimensions of a sparse tensor.
type Parts = [Tensor; 3];

pub(crate) struct SparseMap {
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tensors: HashMap<i64, Parts>,
    bytes: usize,
    /// The number of the next tensor.
    next: i64,
    version: Version,
}

fn bytes_of(parts: &[Tensor]) -> usize {
    parts.iter().map(Tensor::heap_bytes).sum()
}

impl Resource for SparseMap {
    fn wanted() -> &'static str {
        "map of sparse tensors"
    }

    fn kind(&self) -> &'static str {
        "map of sparse tensors"
    }

    fn bytes(&self) -> usize {
        self.state.try_lock().map_or(0, |state| state.bytes)
    }

    fn look(&self) -> Look {
        let state = self.state.try_lock().ok();
        Look {
            dtypes: Vec::new(),
            shape: PartialShape::UNKNOWN,
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.tensors.len()),
            version: None,
        }
    }

    fn version(&self) -> Option<u64> {
        self.state.try_lock().ok().map(|state| state.version.get())
    }
}

impl SparseMap {
    pub fn new(name: String) -> SparseMap {
        SparseMap { name, state: Mutex::default() }
    }

    /// Adds sparse tensors, and returns their numbers, which are consecutive.
    ///
    /// # Errors
    /// ResourceExhausted over the limit of a queue or the memory budget; then none is added.
    pub fn add(&self, tensors: Vec<Parts>) -> Result<Vec<i64>> {
        let bytes = tensors.iter().map(|parts| bytes_of(parts)).sum::<usize>();
        let mut state = lock(&self.state);
        if state.bytes + bytes > MAX_QUEUE_BYTES {
            let why = format!("the map '{}' of sparse tensors exceeds the limit of {MAX_QUEUE_BYTES} bytes", self.name);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()?;
        state.bytes += bytes;
        state.version.raise();
        let first = state.next;
        state.next += tensors.len() as i64;
        state.tensors.extend((first..).zip(tensors));
        Ok((first..state.next).collect())
    }

    /// Takes the sparse tensors of these numbers out: the parts of each, one after the other.
    ///
    /// # Errors
    /// InvalidArgument if a number has no tensor, or is named twice; tensors named before it are removed, as in TensorFlow.
    pub fn take(&self, numbers: &[i64]) -> Result<Vec<Tensor>> {
        memory::admit(numbers.len().saturating_mul(size_of::<Parts>()))?;
        let state = &mut *lock(&self.state);
        let mut taken = Vec::with_capacity(numbers.len() * 3);
        for number in numbers {
            let Some(parts) = state.tensors.remove(number) else {
                let why = format!("Unable to find SparseTensor: {number} in map: {}", self.name);
                return Err(Failure::invalid(why));
            };
            state.bytes = state.bytes.saturating_sub(bytes_of(&parts));
            state.version.raise();
            taken.extend(parts);
        }
        Ok(taken)
    }
}
