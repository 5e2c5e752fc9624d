//! The tensors that a session keeps between its steps, by handle: GetSessionHandle keeps one, and returns its handle.

use std::collections::HashMap;
use std::sync::Mutex;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use super::Resource;
use super::list::Look;
use super::queue::MAX_QUEUE_BYTES;

#[derive(Default)]
pub(crate) struct SessionTensors(Mutex<State>);

#[derive(Default)]
struct State {
    tensors: HashMap<String, Tensor>,
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

    fn unsaved(&self) -> &'static str {
        "only its session can refer to its tensors"
    }
}

impl SessionTensors {
    /// Keeps a tensor, and returns the handle that `named` makes of its number.
    ///
    /// # Errors
    /// ResourceExhausted over the limit of a queue, or the memory budget.
    pub fn keep(&self, tensor: Tensor, named: impl FnOnce(u64) -> String) -> Result<String> {
        let mut state = lock(&self.0);
        if state.bytes + tensor.heap_bytes() > MAX_QUEUE_BYTES {
            let why = format!("the tensors of a session's handles exceed the limit of {MAX_QUEUE_BYTES} bytes");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        memory::grow()?;
        let number = state.next;
        state.next += 1;
        state.bytes += tensor.heap_bytes();
        let handle = named(number);
        state.tensors.insert(handle.clone(), tensor);
        Ok(handle)
    }

    pub fn get(&self, handle: &str) -> Option<Tensor> {
        lock(&self.0).tensors.get(handle).cloned()
    }

    pub fn remove(&self, handle: &str) -> Option<Tensor> {
        let mut state = lock(&self.0);
        let tensor = state.tensors.remove(handle)?;
        state.bytes = state.bytes.saturating_sub(tensor.heap_bytes());
        Some(tensor)
    }
}
