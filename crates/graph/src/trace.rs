//! The record of a traced step on a device: its nodes, with times.

mod chrome;
mod picture;
mod timeline;

use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor};
pub use picture::{Bar, DrawnWay, StepPicture};
use serde::{Deserialize, Serialize};
pub use timeline::{Costs, DeviceTime, LinkBytes, OpTime, PathPart, Timeline, Way};

/// The nodes that one device ran in one step, in the order of completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTrace {
    /// The device that ran them.
    pub device: DeviceName,
    /// The nodes, in the order of completion.
    pub nodes: Vec<NodeTrace>,
}

/// One run of a node; in a loop, there is one for each iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTrace {
    /// Its name; nodes added by planning have a name that begins with `_`.
    pub name: String,
    /// Its op.
    pub op: String,
    /// The names of the producers of its inputs on this device; then, as `^name`, those of its control inputs.
    pub inputs: Vec<String>,
    /// Its start, in nanoseconds since 1970 by the clock of its device's machine.
    pub start_ns: u64,
    /// Its duration in nanoseconds, including the time that it waited for a queue.
    pub took_ns: u64,
    /// Bytes of the value that it sent to another device; 0 for every other node.
    pub sent_bytes: u64,
    /// The tensors that it made, as far as they are tensors; an op that waited has none.
    pub outputs: Vec<OutputTrace>,
}

/// A tensor that a node made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTrace {
    /// The number of the output.
    pub port: u32,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    /// Its size in memory.
    pub bytes: u64,
}

impl DeviceTrace {
    /// The trace as a scalar of dtype string, sent next to the device's fetches.
    pub fn to_tensor(&self) -> Tensor {
        Tensor::scalar(postcard::to_allocvec(self).unwrap_or_default())
    }

    /// The trace that [`to_tensor`](DeviceTrace::to_tensor) put into a tensor.
    ///
    /// # Errors
    /// Internal if the tensor is not a trace.
    pub fn from_tensor(tensor: &Tensor) -> Result<DeviceTrace> {
        let no_trace = |why: String| Failure::new(Code::Internal, format!("a device returned no trace: {why}"));
        let bytes = tensor.item::<Vec<u8>>().map_err(|failure| no_trace(failure.message))?;
        postcard::from_bytes(&bytes).map_err(|error| no_trace(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_tensor::device::{DeviceKind, Task};

    #[test]
    fn a_trace_travels_as_a_tensor() {
        let (name, op, inputs) = ("y".into(), "Add".into(), vec!["x".into()]);
        let outputs = vec![OutputTrace { port: 1, dtype: DType::F32, shape: Shape::from(vec![2, 3]), bytes: 24 }];
        let node = NodeTrace { name, op, inputs, start_ns: 7, took_ns: 9, sent_bytes: 4, outputs };
        let trace = DeviceTrace { device: Task::new("local", 0).device(DeviceKind::Cpu, 0), nodes: vec![node] };
        assert_eq!(DeviceTrace::from_tensor(&trace.to_tensor()).unwrap(), trace);
        assert!(DeviceTrace::from_tensor(&Tensor::scalar(1i32)).is_err());
    }
}
