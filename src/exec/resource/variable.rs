//! Variables: a place for one value, under a name. A reader of an earlier value keeps what it read.

use std::sync::{Mutex, MutexGuard};

use super::super::engine::Value;
use crate::failure::{Code, Failure, Result};
use crate::lock::lock;
use crate::tensor::{DType, PartialShape};

/// A variable: a name, a type and the value it has now, if any.
#[derive(Debug)]
pub(in crate::exec) struct Variable {
    pub name: String,
    pub dtype: DType,
    /// What the graph says of its shape.
    pub shape: PartialShape,
    value: Mutex<Option<Value>>,
}

impl Variable {
    pub fn new(name: String, dtype: DType, shape: PartialShape) -> Variable {
        Variable { name, dtype, shape, value: Mutex::new(None) }
    }

    /// The value it has now.
    ///
    /// # Errors
    /// FailedPrecondition if it has none yet.
    pub fn read(&self) -> Result<Value> {
        self.hold().clone().ok_or_else(|| self.uninitialized())
    }

    pub fn is_initialized(&self) -> bool {
        self.hold().is_some()
    }

    /// Bytes of its value; 0 if somebody is just changing it.
    pub fn bytes(&self) -> usize {
        self.value.try_lock().ok().and_then(|value| value.as_ref().map(Value::heap_bytes)).unwrap_or(0)
    }

    /// Its place, for reading and writing while nobody else can.
    pub fn hold(&self) -> MutexGuard<'_, Option<Value>> {
        lock(&self.value)
    }

    pub fn uninitialized(&self) -> Failure {
        Failure::new(Code::FailedPrecondition, format!("Attempting to use uninitialized value {}", self.name))
    }
}
