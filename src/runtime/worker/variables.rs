//! Variables of a worker's devices, read and set by name.

use std::sync::Arc;

use meshtf_exec::{Device, container_named};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::{State, Worker};
use crate::protocol::inquiry::VariableName;

impl Worker {
    /// The value of a variable, and its version.
    ///
    /// # Errors
    /// As [`Device::read_variable`]; InvalidArgument if several devices have a variable of that name.
    pub fn read_variable(&self, variable: &VariableName) -> Result<(Tensor, u64)> {
        let container = container_named(&variable.container);
        self.state.device_of(variable)?.read_variable(container, &variable.name)
    }

    /// Sets a variable, if it has the `expected` version; its version then.
    ///
    /// # Errors
    /// As [`Device::write_variable`] and [`Worker::read_variable`].
    pub fn write_variable(&self, variable: &VariableName, value: Tensor, expected: Option<u64>) -> Result<u64> {
        let container = container_named(&variable.container);
        self.state.device_of(variable)?.write_variable(container, &variable.name, value, expected)
    }
}

impl State {
    /// The device that has the variable.
    fn device_of(&self, variable: &VariableName) -> Result<Arc<Device>> {
        let VariableName { name, device, .. } = variable;
        let having = self.resources.devices_with(container_named(&variable.container), name)?;
        let (kind, index) = match (device, &having[..]) {
            (Some(device), _) => *device,
            (None, &[only]) => only,
            (None, several) => {
                let names: Vec<String> =
                    several.iter().map(|(kind, index)| format!("{}:{index}", kind.name())).collect();
                let why = format!("several devices have a variable '{name}': {}; say which", names.join(", "));
                return Err(Failure::invalid(why));
            }
        };
        let wanted = self.task.device(kind, index);
        self.device(&wanted).ok_or_else(|| Failure::invalid(format!("this task has no device {wanted}")))
    }
}
