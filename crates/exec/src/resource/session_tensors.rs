//! The tensors that a session keeps between its steps, by number: GetSessionHandle keeps one, and returns its handle.

use std::collections::HashMap;
use std::sync::Mutex;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;
use super::{Resource, Saved};

#[derive(Default)]
pub(crate) struct SessionTensors(Mutex<State>);

#[derive(Default)]
struct State {
    tensors: HashMap<u64, Tensor>,
    bytes: usize,
    /// The number of the next tensor.
    next: u64,
}

impl Resource for SessionTensors {
    fn wanted() -> &'static str {
        "session's tensors"
    }

    fn kind(&self) -> &'static str {
        "session's tensors"
    }

    fn bytes(&self) -> usize {
        self.0.try_lock().map_or(0, |state| state.bytes)
    }

    fn look(&self) -> Look {
        let state = self.0.try_lock().ok();
        Look {
            bytes: state.as_ref().map(|state| state.bytes),
            length: state.as_ref().map(|state| state.tensors.len()),
            ..Look::default()
        }
    }

    fn save(&self) -> Result<Saved> {
        Err(Failure::new(Code::FailedPrecondition, "only its session can refer to its tensors"))
    }

    fn load(&self, _: &Saved) -> Result<()> {
        Err(Failure::new(Code::FailedPrecondition, "only its session can refer to its tensors"))
    }
}

impl SessionTensors {
    /// Keeps a tensor, and returns its number.
    ///
    /// # Errors
    /// ResourceExhausted over the limit of a queue, or the memory budget.
    pub fn keep(&self, tensor: Tensor) -> Result<u64> {
        let mut state = lock(&self.0);
        if state.bytes + tensor.heap_bytes() > MAX_QUEUE_BYTES {
            let why = format!("the tensors of a session's handles exceed the limit of {MAX_QUEUE_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()?;
        let number = state.next;
        state.next += 1;
        state.bytes += tensor.heap_bytes();
        state.tensors.insert(number, tensor);
        Ok(number)
    }

    pub fn get(&self, number: u64) -> Option<Tensor> {
        lock(&self.0).tensors.get(&number).cloned()
    }

    pub fn remove(&self, number: u64) -> Option<Tensor> {
        let mut state = lock(&self.0);
        let tensor = state.tensors.remove(&number)?;
        state.bytes = state.bytes.saturating_sub(tensor.heap_bytes());
        Some(tensor)
    }
}
