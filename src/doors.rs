//! Doors of a node for clients of other systems: TensorFlow's, burn's, a browser; and one of a model, for HTTP clients.

pub use crate::door::burn::open as open_burn;
pub use crate::door::serving::{ServedModel, ServedPort, open as open_serving};
pub use crate::door::tensorflow::open as open_tensorflow;
pub use crate::door::web::open as open_web;
pub use crate::door::{Door, DoorConfig, DoorError};
