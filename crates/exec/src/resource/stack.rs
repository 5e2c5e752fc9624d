//! Stacks of the values that a loop keeps for its gradient. They live as long as a handle to them flows through their step.

use std::sync::{Arc, Mutex};

use meshtf_engine::Value;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;

use super::super::token::{List, Token};
use super::Resource;

/// Most values on one stack.
const MAX_STACK: usize = 1 << 24;

pub(crate) struct Stack {
    name: String,
    limit: usize,
    values: Mutex<Vec<Kept>>,
}

/// An entry of a stack.
#[derive(Clone)]
pub(crate) enum Kept {
    Value(Value),
    Handle(Arc<dyn Resource>),
    List(Arc<List>),
}

impl Resource for Stack {
    fn wanted() -> &'static str {
        "stack"
    }

    fn kind(&self) -> &'static str {
        "stack"
    }

    /// Bytes of its values; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        let of_token = |token: &Token| if let Token::Value(value) = token { value.heap_bytes() } else { 0 };
        let bytes = |kept: &Kept| match kept {
            Kept::Value(value) => value.heap_bytes(),
            Kept::List(list) => list.items.iter().flatten().map(of_token).sum(),
            Kept::Handle(_) => 0,
        };
        self.values.try_lock().map_or(0, |values| values.iter().map(bytes).sum())
    }

    fn name_in_step(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl Stack {
    /// An empty stack that takes `limit` values, or as many as a stack may hold if that is less.
    pub fn new(name: String, limit: usize) -> Stack {
        Stack { name, limit: limit.min(MAX_STACK), values: Mutex::default() }
    }

    /// Pushes a value, a list of values, or a handle to something other than a stack: stacks that held each other would never
    /// be freed.
    pub fn push(&self, kept: Kept) -> Result<()> {
        match &kept {
            Kept::Handle(handle) if handle.is::<Stack>() => {
                return Err(Failure::invalid(format!("Stack[{}] takes no handle to a stack", self.name)));
            }
            Kept::List(list) if list.dtype.is_handle() => {
                let why = format!("Stack[{}] takes lists of tensors, not of elements of {}", self.name, list.dtype);
                return Err(Failure::invalid(why));
            }
            _ => {}
        }
        let mut values = lock(&self.values);
        if values.len() >= self.limit {
            let why = format!("Stack[{}] overflowed its max_size ({})", self.name, self.limit);
            return Err(Failure::invalid(why));
        }
        memory::grow()?;
        values.push(kept);
        Ok(())
    }

    pub fn pop(&self) -> Result<Kept> {
        let value = lock(&self.values).pop();
        value.ok_or_else(|| Failure::invalid(format!("Stack[{}] is empty when calling Pop().", self.name)))
    }

    pub fn clear(&self) {
        lock(&self.values).clear();
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}
