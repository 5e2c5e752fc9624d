//! Running pieces: a device has a thread or a few that run compiled pieces, step after step, on one backend.
//!
//! Never async, and knows nothing of the network: what leaves a device goes through its [`Sink`].
//!
//! `program` compiles a piece, `step` runs it once, `thread` interleaves the steps of many sessions, `turn` is how a kernel
//! hears that its step was given up, `engine` is what a backend must do, `resource` holds what outlives a step, `state` has the
//! ops that work on that, `dataset` makes the elements of datasets, `function` runs the functions that they call, `files` opens
//! and reads what graphs name, `vector` has the loops that are to be fast, `lots` spreads them over the cores.

pub mod adapters;
#[cfg(feature = "exec")]
#[cfg_attr(
    not(any(feature = "ndarray", feature = "wgpu")),
    allow(irrefutable_let_patterns, unreachable_patterns, reason = "flex is the only engine then")
)]
mod burn;
mod busy;
mod dataset;
mod denormals;
mod device;
pub mod engine;
mod files;
mod function;
#[cfg(all(feature = "exec", any(test, feature = "fuzzing")))]
pub(crate) mod fuzz;
mod held;
mod host;
mod inner;
pub mod kernel;
mod lots;
mod mailbox;
mod outbox;
mod parked;
mod program;
mod resource;
mod rows;
mod sink;
mod state;
mod step;
mod sums;
mod thread;
mod token;
mod turn;
mod variant;
#[cfg_attr(not(feature = "exec"), allow(dead_code, unused_imports, reason = "some of it only burn's engine uses"))]
mod vector;
mod waiting;

#[cfg(test)]
mod tests;

pub use adapters::{BackendChoice, Offer, cpu, gpus};
pub use device::Device;
pub use host::HostEngine;
pub use mailbox::{Holds, Load, MAX_MESSAGES};
pub use parked::MAX_PARKED_BYTES;
pub use resource::{DEFAULT_CONTAINER, MAX_RESOURCES, ResourceInfo, ResourceKey, Resources, container_named};
pub use sink::{Iterations, Pushed, Sink};
pub use thread::inline::{delivering, has_inline_work, without_inline};
pub use thread::{MAX_PIECES, MAX_RUNS, MAX_THREADS};
