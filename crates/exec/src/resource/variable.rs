//! Variables: one value each, under a name. A reader of an earlier value keeps the value it read.

use std::sync::{Arc, Mutex, MutexGuard};

use meshtf_checkpoint::DataDir;
use meshtf_engine::{Engine, Value};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Shape};
use serde::{Deserialize, Serialize};

use super::super::waiting::unless_held;
use super::list::Look;
use super::{Lasting, Over, Resource, ResourceKey, Saved, Version, check_spec};

/// The beginning of the error of reading a variable that has no value.
pub const UNINITIALIZED: &str = "Attempting to use uninitialized value";

/// A variable: a name, a type and the current value, if any.
#[derive(Debug)]
pub(crate) struct Variable {
    pub name: String,
    pub dtype: DType,
    /// Its shape as the graph states it.
    pub shape: PartialShape,
    content: Mutex<Content>,
}

/// The contents of a variable.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub value: Option<Value>,
    /// The number of changes.
    version: Version,
}

impl Content {
    /// Stores another value, or puts the changed one back.
    pub fn set(&mut self, value: Value) {
        self.value = Some(value);
        self.version.raise();
    }

    /// The value was taken out, and could not be put back.
    pub fn lose(&mut self) {
        self.value = None;
        self.version.raise();
    }
}

impl Resource for Variable {
    fn wanted() -> &'static str {
        "variable"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    /// Bytes of its value; 0 while another thread changes it.
    fn bytes(&self) -> usize {
        self.content.try_lock().ok().and_then(|content| content.value.as_ref().map(Value::heap_bytes)).unwrap_or(0)
    }

    fn look(&self) -> Look {
        let content = self.content.try_lock().ok();
        let value = content.as_ref().and_then(|content| content.value.as_ref());
        Look {
            dtypes: vec![self.dtype],
            shape: value.map_or_else(|| self.shape.clone(), |value| PartialShape::from(value.shape())),
            bytes: content.as_ref().map(|_| value.map_or(0, Value::element_bytes)),
            length: None,
            version: content.as_ref().map(|content| content.version.get()),
        }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.content).map(|content| content.version)
    }

    /// The value, if it has one.
    fn save(&self) -> Result<Saved> {
        let content = self.hold();
        let (value, version) = (content.value.clone(), content.version);
        drop(content);
        if let Some(value @ Value::Device(_)) = &value {
            memory::admit(value.element_bytes())?;
        }
        let value = value.map(Value::into_host).transpose()?;
        Saved::new(Self::KIND, version, &self.spec(), value.into_iter().collect())
    }

    /// The value is in the memory of the host until an op of the device changes it.
    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        check_spec(Self::KIND, &self.name, &self.spec(), &saved.form(Self::KIND)?)?;
        let value = match &saved.tensors[..] {
            [] => None,
            // An assignment may give a variable another shape than the graph states.
            [value] if value.dtype() == self.dtype => Some(Value::Host(value.clone())),
            _ => return Err(saved.malformed("a variable has at most one value, of its own dtype")),
        };
        let mut content = self.hold();
        content.version.check(Self::KIND, over)?;
        content.value = value;
        content.version.replace(saved.version);
        Ok(())
    }
}

impl Lasting for Variable {
    const KIND: &'static str = "variable";

    fn empty(key: &ResourceKey, saved: &Saved, _data: Option<Arc<DataDir>>) -> Result<Variable> {
        let VariableSpec { dtype, shape } = saved.form(Self::KIND)?;
        Ok(Variable::new(key.name.clone(), dtype, shape))
    }
}

/// The description of a variable in its node.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct VariableSpec {
    dtype: DType,
    shape: PartialShape,
}

impl Variable {
    fn spec(&self) -> VariableSpec {
        VariableSpec { dtype: self.dtype, shape: self.shape.clone() }
    }

    pub fn new(name: String, dtype: DType, shape: PartialShape) -> Variable {
        Variable { name, dtype, shape, content: Mutex::default() }
    }

    /// The current value.
    ///
    /// # Errors
    /// FailedPrecondition if it has none yet.
    pub fn read(&self) -> Result<Value> {
        self.hold().value.clone().ok_or_else(|| self.uninitialized())
    }

    pub fn is_initialized(&self) -> bool {
        self.hold().value.is_some()
    }

    /// Its contents, for exclusive reading and writing.
    pub fn hold(&self) -> MutexGuard<'_, Content> {
        lock(&self.content)
    }

    /// Moves the value into the memory of an engine, if it is in that of the host.
    ///
    /// # Errors
    /// The failure of the engine; the value then stays where it is.
    pub fn keep_in(&self, engine: &dyn Engine) -> Result<()> {
        let mut content = self.hold();
        if let Some(Value::Host(tensor)) = &content.value {
            let kept = engine.keep(tensor.clone())?;
            content.value = Some(kept);
        }
        Ok(())
    }

    /// The current value, and its version.
    ///
    /// # Errors
    /// As [`Variable::read`].
    pub fn read_with_version(&self) -> Result<(Value, u64)> {
        let content = self.hold();
        let value = content.value.clone().ok_or_else(|| self.uninitialized())?;
        Ok((value, content.version.get()))
    }

    /// Sets it, if it has the `expected` version; returns the new version.
    ///
    /// # Errors
    /// Aborted if it has another version.
    pub fn set_if(&self, expected: Option<u64>, value: Value) -> Result<u64> {
        let mut content = self.hold();
        let now = content.version.get();
        if let Some(expected) = expected.filter(|&expected| expected != now) {
            let why = format!("variable {} has version {now}, and not {expected}", self.name);
            return Err(Failure::new(Code::Aborted, why));
        }
        content.set(value);
        Ok(content.version.get())
    }

    /// Whether a value of this type can be assigned to it.
    ///
    /// # Errors
    /// InvalidArgument if it holds another type.
    pub fn check_dtype(&self, dtype: DType) -> Result<()> {
        if self.dtype == dtype {
            return Ok(());
        }
        let why = format!("variable {} holds {}, which {dtype} cannot be assigned to", self.name, self.dtype);
        Err(Failure::invalid(why))
    }

    /// Whether the graph allows it a value of this shape.
    ///
    /// # Errors
    /// InvalidArgument if it is not.
    pub fn check_shape(&self, shape: &Shape) -> Result<()> {
        if self.shape.admits(shape) {
            return Ok(());
        }
        let wanted = &self.shape;
        let why = format!("Trying to assign to variable with tensor with wrong shape. Expected {wanted} got {shape}");
        Err(Failure::invalid(why))
    }

    pub fn uninitialized(&self) -> Failure {
        Failure::new(Code::FailedPrecondition, format!("{UNINITIALIZED} {}", self.name))
    }
}
