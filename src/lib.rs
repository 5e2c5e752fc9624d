//! TensorFlow 1's distributed runtime, small: named tasks that find each other, a graph split over them by its device
//! strings, and the answer. One binary, no cluster file, no coordinator; the engine on each node is [burn].
//!
//! [burn]: https://burn.dev
//!
//! # The map
//!
//! A file may use only what stands further down in this list; a test (`tests/tidy.rs`) holds it to that.
//!
//! | module | what it is |
//! |---|---|
//! | `cli` | the command line: arguments in, text out |
//! | `verify` | replays recorded sessions and compares their answers |
//! | `fuzz` | what takes input from strangers, as functions of bytes |
//! | [`door`] | the ways in for other systems' clients: TensorFlow's gRPC `MasterService`, burn's remote backend, a page |
//! | `node`, `local` | a node of a mesh; a whole cluster in this one process |
//! | [`trainer`] | trains a model in a session: feeds, evaluates, saves, reports |
//! | `session` | one client's graph on the mesh: open, run, close |
//! | `runtime` | what a node runs: client, worker and master, and the router between them |
//! | `events` | what happened on a node, and who follows it |
//! | [`exec`], `mesh` | a device that runs pieces of graphs; connections, keys, discovery. Neither knows the other |
//! | `strangers`, `descriptors` | how many sockets may wait at a port before they have proven anything; how many there can be |
//! | [`checkpoint`] | TensorFlow's checkpoint files, and where they may lie |
//! | `allocator`, `random` | the command's memory; random numbers of the operating system |
//! | [`protocol`] | what nodes say to each other, as data |
//! | [`model`] | models as they are written down: values with operators, layers |
//! | [`train`] | optimizers, learning rates, replicas and sums over tasks as nodes of a graph |
//! | [`plan`] | a graph pruned, placed on devices and split into pieces |
//! | [`data`] | data to train with: examples, their order, the files that they come from |
//! | [`trace`] | what a device ran in a traced step, and when |
//! | [`lowering`] | burn's operations as nodes of a graph |
//! | [`graph`] | a program as data, checked against the vocabulary of ops; its gradients |
//! | [`tensor`] | dtype, shape, elements |
//! | [`device`] | names: tasks, devices, the device string of a node |
//! | `json` | JSON with positions, for errors that say where |
//! | [`memory`] | the memory budget of this process |
//! | [`ids`] | ids of sessions, requests, steps and pieces |
//! | `nearest` | the nearest name, for errors that suggest one |
//! | `failure` | the one error that crosses the mesh |
//! | `lock` | locks that a panic does not close |
//!
//! From [`protocol`] down everything is pure: no runtime, no network, no backend, no clock, no thread. That core builds and is
//! tested alone with `--no-default-features`.
//!
//! Data flows one way: file → [`Graph`](graph::Graph) → [`Plan`](plan::Plan) → messages → pieces → values → client. A graph is
//! data: no node ever runs code that it was sent, only operations it knows.
//!
//! # Features
//!
//! `node` (default): the mesh, the node, the command line. `ndarray` (default): the CPU backend burn-ndarray beside burn-flex.
//! `wgpu` (default): GPU devices. `exec`: burn-flex alone. `burn-ir` (in `node`): burn's operations as graphs.

#![warn(missing_docs)]

#[cfg(feature = "node")]
mod allocator;
pub mod checkpoint;
#[cfg(feature = "node")]
pub mod cli;
pub mod data;
#[cfg(feature = "node")]
mod descriptors;
pub mod device;
#[cfg(feature = "node")]
pub mod door;
#[cfg(feature = "node")]
mod events;
pub mod exec;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
pub mod ids;
mod json;
#[cfg(feature = "node")]
mod local;
mod lock;
// The unit tests and those of tests/it have one rule for what a machine may lack.
#[cfg(feature = "burn-ir")]
pub mod lowering;
#[cfg(test)]
#[path = "../tests/it/means.rs"]
mod means;
pub mod memory;
#[cfg(feature = "node")]
pub mod mesh;
pub mod model;
mod nearest;
#[cfg(feature = "node")]
pub mod node;
pub mod plan;
pub mod protocol;
#[cfg(feature = "node")]
mod random;
#[cfg(feature = "node")]
mod runtime;
#[cfg(feature = "node")]
mod session;
#[cfg(feature = "node")]
mod strangers;
pub mod tensor;
pub mod trace;
pub mod train;
#[cfg(feature = "node")]
pub mod trainer;
pub mod verify;

#[cfg(feature = "node")]
pub use allocator::Allocator;
#[cfg(feature = "node")]
pub use events::Follower;
pub use failure::{Code, Failure, Reason, Result, Stage};
#[cfg(feature = "node")]
pub use local::LocalCluster;
#[cfg(feature = "node")]
pub use node::{Node, NodeConfig, NodeError};
#[cfg(feature = "node")]
pub use runtime::client::StepEvent;
#[cfg(feature = "node")]
pub use session::{RunOutput, Session, Steps};
