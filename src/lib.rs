//! TensorFlow 1's distributed runtime, small: named tasks that find each other, a graph split over them by its device
//! strings, and the answer. One binary, no cluster file, no coordinator; the engine on each node is [burn].
//!
//! [burn]: https://burn.dev
//!
//! This package is the mesh: nodes, sessions over them, and the doors for other systems' clients. It re-exports the crates below
//! it, which know no mesh: [`tensor`], [`graph`] and [`plan`], [`train`], [`model`] and [`data`], [`checkpoint`], [`lowering`].
//! docs/architecture.md has the map of all of them.
//!
//! | module | content |
//! |---|---|
//! | [`node`], [`LocalCluster`] | a node of a mesh; a whole cluster in this one process |
//! | [`Session`] | one client's graph on the mesh: open, run, close |
//! | [`trainer`] | trains a model in a session: feeds, evaluates, saves, reports |
//! | [`door`] | for other systems' clients: TensorFlow's gRPC `MasterService`, burn's remote backend, a web page |
//! | [`mesh`] | connections, keys, discovery |
//! | [`protocol`] | the messages between nodes, as data |
//! | [`verify`] | replays recorded sessions and compares their answers |
//! | [`cli`] | the command line |
//!
//! Data flows one way: file → [`Graph`](graph::Graph) → [`Plan`](plan::Plan) → messages → pieces → values → client. A graph is
//! data: no node ever runs code that it was sent, only operations it knows.
//!
//! # Features
//!
//! `wgpu`: GPU devices. `ndarray`: the CPU backend burn-ndarray, as an alternative to burn-flex. Neither is a default.

#![warn(missing_docs)]

mod allocator;
pub mod cli;
mod descriptors;
pub mod door;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod local;
pub mod mesh;
pub mod node;
pub mod protocol;
mod random;
mod runtime;
mod session;
pub mod trainer;
mod unauthenticated;
pub mod verify;

pub use allocator::Allocator;
pub use events::Follower;
pub use local::LocalCluster;
pub use meshtf_checkpoint as checkpoint;
pub use meshtf_engine::adapters::BackendChoice;
pub use meshtf_graph as graph;
pub use meshtf_graph::{plan, trace};
pub use meshtf_lowering as lowering;
pub use meshtf_tensor as tensor;
pub use meshtf_tensor::failure::{Code, Failure, Reason, Result, Stage};
pub use meshtf_tensor::{device, ids, memory};
pub use meshtf_train as train;
pub use meshtf_train::{data, model};
pub use node::{Node, NodeConfig, NodeError};
pub use runtime::client::StepEvent;
pub use session::{RunOutput, Session, Steps};
