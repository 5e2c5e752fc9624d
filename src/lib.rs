//! TensorFlow 1's distributed runtime, small: named tasks that find each other, a graph split over them by its device
//! strings, and the answer. One binary, no cluster file, no coordinator; the engine on each node is [burn].
//!
//! [burn]: https://burn.dev
//!
//! | to | use |
//! |---|---|
//! | join a mesh, with or without a task | [`Node`], [`NodeConfig`] |
//! | run all tasks in this process | [`LocalCluster`] |
//! | write programs that do either | [`Client`] |
//! | build a graph | [`graph::GraphBuilder`], [`model::Model`]; [`graph::read`] reads a file |
//! | run it | [`Session`], [`Run`] |
//! | train a model | [`train::Trainer`] |
//! | hold values | [`tensor::Tensor`] |
//! | see the reason of a failure | [`Failure`] |
//!
//! ```
//! use meshtf::model::Model;
//! use meshtf::tensor::DType;
//! use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! // x · 3 is computed on one task, and the sum of both products on the other.
//! let model = Model::new();
//! let x = model.placeholder("x", DType::F32, [None]);
//! let tripled = model.on("/job:local/task:1", || &x * 3.0);
//! let sum = model.on("/job:local/task:0", || (&x + tripled).named("sum"));
//!
//! let tasks = [Task::new("local", 0), Task::new("local", 1)];
//! let cluster = LocalCluster::start(&tasks, BackendChoice::Auto)?;
//! let session = cluster.session(model.finish()?, &tasks[0], SessionOptions::default()).await?;
//! let ran = session.run().feed("x", vec![1f32, 2.0]).fetch(sum.name()).await?;
//! assert_eq!(ran["sum"].slice::<f32>()?, [4.0, 8.0]);
//! # Ok::<(), meshtf::Failure>(())
//! # }).unwrap();
//! ```
//!
//! A graph is data: no node ever runs code that it was sent, only operations it knows.
//!
//! # Features
//!
//! `cli`, the only default: the command line, of which a program that embeds a node needs nothing. `wgpu`: GPU devices.
//! `ndarray`: the CPU backend burn-ndarray, as an alternative to burn-flex.

#![warn(missing_docs)]
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports, reason = "the command alone uses it"))]

mod allocator;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod client;
mod descriptors;
mod diagnosis;
pub mod doctor;
mod door;
pub mod doors;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
mod local;
mod machine;
mod mesh;
pub mod model;
mod node;
pub mod plan;
mod protocol;
mod random;
mod runtime;
mod session;
pub mod status;
pub mod tensor;
pub mod train;
mod trainer;
mod unauthenticated;
mod verify;

pub use allocator::Allocator;
pub use client::Client;
pub use events::Follower;
pub use local::LocalCluster;
#[doc(inline)]
pub use meshtf_engine::adapters::BackendChoice;
/// The name of a task.
///
/// ```
/// assert_eq!(meshtf::Task::new("worker", 1).to_string(), "/job:worker/task:1");
/// ```
#[doc(inline)]
pub use meshtf_tensor::device::Task;
#[doc(inline)]
pub use meshtf_tensor::failure::{Code, Failure, Reason, Result, Stage};
pub use node::{ClusterSpec, Node, NodeConfig, NodeError};
pub use protocol::SessionOptions;
pub use runtime::requests::StepEvent;
pub use session::{Init, Run, RunOutput, Session};
