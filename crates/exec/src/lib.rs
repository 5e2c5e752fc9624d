//! Runs pieces of graphs: a device has a few threads that run compiled pieces, step after step, on one backend.
//!
//! - **Is**: `program`, which compiles a piece; `step`, one run of it; `thread`, which interleaves the steps of many sessions;
//!   `resource`, the resources of a task, and `state`, the ops on them; `dataset`, the elements of datasets; `function`, the
//!   functions that ops call.
//! - **Knows**: plans, kernels, an engine.
//! - **Never** is async, and never knows the network: values leave a device through its [`Sink`], and arrive by
//!   [`Device::arrive`].

mod busy;
mod dataset;
mod device;
mod function;
#[doc(hidden)]
pub mod fuzz;
mod inner;
mod mailbox;
mod outbox;
mod parked;
mod program;
mod python;
mod resource;
mod rows;
mod sink;
mod state;
mod step;
mod step_memory;
mod sums;
mod thread;
mod token;
mod variant;
mod waiting;

#[cfg(test)]
extern crate self as meshtf_exec;
#[cfg(test)]
mod tests;

pub use device::Device;
pub use mailbox::{Holds, Load, MAX_MESSAGES};
pub use parked::MAX_PARKED_BYTES;
pub use python::Program;
pub use resource::{
    DEFAULT_CONTAINER, Edition, MAX_RESOURCES, Moment, ResourceInfo, ResourceKey, Resources, Saved, SharedVariables,
    UNINITIALIZED, Unsaved, changed_by_another, container_named, on_behalf,
};
pub use sink::{Iterations, Pushed, Sink};
pub use step::Beside;
pub use thread::inline::{delivering, has_inline_work, without_inline};
pub use thread::{MAX_OVERLAP, MAX_PIECES, MAX_RUNS, MAX_THREADS};
