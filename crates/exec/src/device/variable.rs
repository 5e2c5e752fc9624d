//! Access to the variables of a device from outside of its graphs: by name, with their version; and to the state of all of its
//! resources.

use std::sync::Arc;

use meshtf_engine::Value;
use meshtf_kernels::Position;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::super::resource::{Moment, OUTSIDE, Over, ResourceKey, Saved, Variable, on_behalf};
use super::Device;

impl Device {
    /// The current value of a variable that sessions share, with its version. Waits for an op that changes it.
    ///
    /// # Errors
    /// NotFound if there is none; FailedPrecondition while it has no value; PermissionDenied if it is an isolated session's;
    /// ResourceExhausted if there is no memory for a copy.
    pub fn read_variable(&self, container: &str, name: &str) -> Result<(Tensor, u64)> {
        let variable = self.variable(container, name)?;
        let (value, version) = variable.read_with_version()?;
        if let Value::Device(_) = value {
            self.place.resources.budget().admit(value.element_bytes())?;
        }
        Ok((value.into_host()?, version))
    }

    /// Sets a variable that sessions share; if a version is `expected`, only if the variable has that version. Returns the
    /// version of the new value. Waits for an op that changes it.
    ///
    /// # Errors
    /// As [`Device::read_variable`]; Aborted if the variable has another version; InvalidArgument if it does not take such a
    /// value.
    pub fn write_variable(&self, container: &str, name: &str, value: Tensor, expected: Option<u64>) -> Result<u64> {
        let variable = self.variable(container, name)?;
        variable.check_dtype(value.dtype())?;
        variable.check_shape(value.shape())?;
        let value = self.place.engine.keep(value)?;
        on_behalf(OUTSIDE, || variable.set_if(expected, value))
    }

    /// As [`Resources::load`](crate::Resources::load), for a resource on this device: a variable's value moves into the memory of
    /// the device.
    ///
    /// # Errors
    /// As there; InvalidArgument if the resource is on another device; the failure of the device, whose variable then has its
    /// value in the memory of the host.
    pub fn load_saved(&self, key: &ResourceKey, session: SessionId, saved: &Saved) -> Result<()> {
        self.load_over(key, session, saved, Over::All)
    }

    /// As [`Device::load_saved`], unless another session than this has changed the resource since then. No change of another
    /// session is lost, though it may come at the same time.
    ///
    /// # Errors
    /// As there; FailedPrecondition, with the name of the resource, if another session has changed it.
    pub fn put_back(&self, key: &ResourceKey, session: SessionId, since: Moment, saved: &Saved) -> Result<()> {
        self.load_over(key, session, saved, Over::Own { session, since, name: &key.name })
    }

    fn load_over(&self, key: &ResourceKey, session: SessionId, saved: &Saved, over: Over<'_>) -> Result<()> {
        if key.device != (self.place.name.kind, self.place.name.index) {
            return Err(Failure::invalid(format!("'{}' is on another device than {}", key.name, self.place.name)));
        }
        on_behalf(session, || self.place.resources.load_over(key, session, saved, over))?;
        match self.place.resources.find(key).map(|resource| resource.typed::<Variable>()) {
            Some(Ok(variable)) => variable.keep_in(&*self.place.engine),
            _ => Ok(()),
        }
    }

    /// The positions of a session's nodes in their random numbers; none if it has no piece here.
    pub fn random_positions(&self, session: SessionId) -> Vec<(String, Position)> {
        let generators = lock(&self.place.generators).get(&session).cloned();
        generators.map(|generators| generators.positions()).unwrap_or_default()
    }

    /// Sets positions of a session's nodes in their random numbers.
    pub fn set_random_positions(&self, session: SessionId, positions: Vec<(String, Position)>) {
        let generators = lock(&self.place.generators).entry(session).or_default().clone();
        generators.set_positions(positions);
    }

    fn variable(&self, container: &str, name: &str) -> Result<Arc<Variable>> {
        let device = (self.place.name.kind, self.place.name.index);
        let found = self.place.resources.shared(device, container, name)?;
        let kind = found.kind();
        found.typed().map_err(|_| Failure::invalid(format!("'{name}' must be a variable, but is a {kind}")))
    }
}
