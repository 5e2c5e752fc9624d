//! The live tasks of a cluster, their devices, and what they report about themselves.

#[doc(inline)]
pub use meshtf_tensor::device::{DeviceKind, DeviceName};

pub use crate::protocol::event::{Event, Noted};
pub use crate::protocol::inquiry::VariableName;
pub use crate::protocol::status::{DeviceStatus, NodeStatus, ResourceStatus, SessionStatus};
pub use crate::protocol::{Cluster, DeviceInfo, Member, Peer};
