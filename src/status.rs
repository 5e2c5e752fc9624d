//! The live tasks of a cluster, their devices, and what they report about themselves.

/// CPU or GPU.
///
/// ```
/// use meshtf::status::{DeviceKind, DeviceName};
///
/// let device: DeviceName = "/job:worker/task:1/device:GPU:0".parse()?;
/// match device.kind {
///     DeviceKind::Cpu => println!("the processors of {}", device.task),
///     DeviceKind::Gpu => println!("GPU {} of {}", device.index, device.task),
/// }
/// assert_eq!(device.kind.name(), "GPU");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::device::DeviceKind;
/// The name of a device.
///
/// ```
/// use meshtf::Task;
/// use meshtf::status::{DeviceKind, DeviceName};
///
/// let gpu = Task::new("worker", 1).device(DeviceKind::Gpu, 0);
/// assert_eq!(gpu.to_string(), "/job:worker/task:1/device:GPU:0");
/// // The old spelling of the same name, and a request that it satisfies.
/// assert_eq!("/job:worker/task:1/gpu:0".parse::<DeviceName>()?, gpu);
/// assert!(gpu.matches(&"/job:worker".parse()?) && !gpu.matches(&"/cpu:0".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::device::DeviceName;

pub use crate::protocol::event::{Event, Noted};
pub use crate::protocol::inquiry::VariableName;
pub use crate::protocol::status::{DeviceStatus, NodeStatus, ResourceStatus, SessionStatus};
pub use crate::protocol::{Cluster, DeviceInfo, Member, Peer};
