//! Maps of sparse tensors by number: an op that adds one returns its number, and an op that takes some is given theirs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use meshtf_checkpoint::DataDir;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Tensor};
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version, admit_tensors};

/// The last number that a loaded map may have given: it can give as many again.
const MAX_NUMBER: i64 = 1 << 62;

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
        Self::KIND
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

    fn version(&self) -> Option<Version> {
        unless_held(&self.state).map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        let state = lock(&self.state);
        admit_tensors(state.tensors.len().saturating_mul(3))?;
        let mut numbers: Vec<i64> = state.tensors.keys().copied().collect();
        numbers.sort_unstable();
        let tensors = numbers.iter().filter_map(|number| state.tensors.get(number)).flatten().cloned().collect();
        Saved::new(Self::KIND, state.version, &Form { next: state.next, numbers }, tensors)
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        let Form { next, numbers } = saved.form(Self::KIND)?;
        let (parts, rest) = saved.tensors.as_chunks::<3>();
        let are_numbers = numbers.is_sorted_by(|a, b| a < b) && numbers.last().is_none_or(|&last| last < next);
        if !rest.is_empty() || parts.len() != numbers.len() || !are_numbers || !(0..=MAX_NUMBER).contains(&next) {
            return Err(saved.malformed("the numbers are not those of its sparse tensors"));
        }
        if !parts.iter().all(are_sparse) {
            return Err(saved.malformed("three tensors are not the parts of a sparse one"));
        }
        let bytes = bytes_of(&saved.tensors);
        if bytes > MAX_QUEUE_BYTES {
            return Err(self.too_large());
        }
        admit_tensors(saved.tensors.len())?;
        let state = &mut *lock(&self.state);
        state.version.check(Self::KIND, over)?;
        state.tensors = numbers.into_iter().zip(parts.iter().cloned()).collect();
        (state.next, state.bytes) = (next, bytes);
        state.version.replace(saved.version);
        Ok(())
    }
}

impl Lasting for SparseMap {
    const KIND: &'static str = "map of sparse tensors";

    fn empty(key: &ResourceKey, _saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<SparseMap> {
        Ok(SparseMap::new(key.name.clone()))
    }
}

/// The saved state but for the parts, which are in the order of the numbers.
#[derive(Serialize, Deserialize)]
struct Form {
    next: i64,
    numbers: Vec<i64>,
}

/// Whether these are the parts of a sparse tensor.
fn are_sparse([indices, values, shape]: &Parts) -> bool {
    [indices, shape].iter().all(|part| part.dtype() == DType::I64)
        && (values.rank(), shape.rank()) == (1, 1)
        && indices.dims() == [values.len(), shape.len()]
}

impl SparseMap {
    fn too_large(&self) -> Failure {
        let why = format!("the map '{}' of sparse tensors exceeds the limit of {MAX_QUEUE_BYTES} bytes", self.name);
        Failure::new(Code::ResourceExhausted, why)
    }

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
            return Err(self.too_large());
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
