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

// Open to the command alone, a crate of its own (`main.rs`): no part of the public interface.
#[doc(hidden)]
pub mod allocator;
#[doc(hidden)]
pub mod client;
#[doc(hidden)]
pub mod descriptors;
#[doc(hidden)]
pub mod diagnosis;
#[doc(hidden)]
pub mod door;
#[doc(hidden)]
pub mod machine;
#[doc(hidden)]
pub mod mesh;
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod program_file;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod random;
#[doc(hidden)]
pub mod trainer;
#[doc(hidden)]
pub mod verify;
#[doc(hidden)]
pub mod weight_cache;
#[doc(hidden)]
pub mod weight_file;

pub mod doctor;
pub mod doors;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
pub mod graph;
mod local;
pub mod model;
pub mod plan;
mod runtime;
mod session;
pub mod status;
pub mod tensor;
pub mod train;
mod unauthenticated;

pub use allocator::Allocator;
pub use client::Client;
pub use events::Follower;
pub use local::LocalCluster;
/// The folder below which the graphs of a [`LocalCluster`] may save and restore files.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, DataDir, LocalCluster, SessionOptions, Task};
///
/// # let folder = temp_dir::TempDir::new()?;
/// # let folder = folder.path();
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let mut g = GraphBuilder::new();
/// g.op("WriteFile").name("note").input("note.txt").input("42").build()?;
/// let data = DataDir::new(folder)?;
/// let cluster = LocalCluster::start_with_data(&[Task::new("local", 0)], BackendChoice::Auto, Some(data))?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// session.run().target("note").await?;
/// assert_eq!(std::fs::read(folder.join("note.txt"))?, b"42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_checkpoint::DataDir;
/// The choice between the backends of this machine.
///
/// ```
/// use meshtf::BackendChoice;
///
/// // As a program's flag has it: auto, flex, ndarray or wgpu.
/// let backend: BackendChoice = "flex".parse()?;
/// assert_eq!(backend, BackendChoice::Flex);
/// assert_eq!(BackendChoice::default(), BackendChoice::Auto);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use meshtf_engine::adapters::BackendChoice;
/// The name of a task.
///
/// ```
/// assert_eq!(meshtf::Task::new("worker", 1).to_string(), "/job:worker/task:1");
/// ```
#[doc(inline)]
pub use meshtf_tensor::device::Task;
/// The class of a failure, by which a program decides how to continue.
///
/// ```
/// use meshtf::{Code, Failure};
///
/// /// Whether the same request may succeed later.
/// fn may_retry(failure: &Failure) -> bool {
///     matches!(failure.code, Code::Unavailable | Code::Aborted)
/// }
/// assert!(may_retry(&Failure::new(Code::Unavailable, "the task is restarted")));
/// assert!(!may_retry(&Failure::new(Code::InvalidArgument, "the graph has a cycle")));
/// ```
#[doc(inline)]
pub use meshtf_tensor::failure::Code;
/// The error of sessions, runs and inquiries: what went wrong, and where.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::{DType, PartialShape};
/// use meshtf::{BackendChoice, Client, Code, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// let x = g.placeholder("x", DType::F32, PartialShape::UNKNOWN)?;
/// g.op("AddV2").name("y").input(x).input([1f32, 2.0, 3.0]).build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// let failure = session.run().feed("x", [1f32, 2.0]).fetch("y").await.unwrap_err();
/// assert_eq!((failure.code, failure.node.as_deref()), (Code::InvalidArgument, Some("y")));
/// assert_eq!(failure.message, "Incompatible shapes: [2] vs. [3]");
/// assert_eq!(failure.device.as_deref(), Some("/job:local/task:0/device:CPU:0"));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[doc(inline)]
pub use meshtf_tensor::failure::Failure;
/// The cause of a failure, for programs that react to it.
///
/// ```
/// use meshtf::{Code, Failure, Reason};
///
/// /// Whether to wait for a task and then try again.
/// fn is_down(failure: &Failure) -> bool {
///     failure.reason == Some(Reason::TaskDown)
/// }
/// let failure = Failure::new(Code::Unavailable, "no node serves /job:ps/task:0").because(Reason::TaskDown);
/// assert!(is_down(&failure));
/// ```
#[doc(inline)]
pub use meshtf_tensor::failure::Reason;
/// The result of functions that fail with a [`Failure`].
///
/// ```
/// use meshtf::tensor::Tensor;
///
/// fn mean(tensor: &Tensor) -> meshtf::Result<f32> {
///     let values = tensor.slice::<f32>()?;
///     Ok(values.iter().sum::<f32>() / values.len() as f32)
/// }
/// assert_eq!(mean(&[1f32, 2.0, 6.0].into())?, 3.0);
/// assert_eq!(mean(&[1i32, 2].into()).unwrap_err().message, "expected float32, got int32");
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[doc(inline)]
pub use meshtf_tensor::failure::Result;
/// The step that failed, if one did.
///
/// ```
/// use meshtf::{Failure, Stage};
///
/// fn shown(failure: &Failure) -> String {
///     match failure.stage {
///         Stage::Refused => failure.message.clone(),
///         Stage::InStep(step) => format!("step {step}: {}", failure.message),
///     }
/// }
/// assert_eq!(shown(&Failure::invalid("the input is NaN").in_step(8)), "step 8: the input is NaN");
/// ```
#[doc(inline)]
pub use meshtf_tensor::failure::Stage;
pub use node::{ClusterSpec, Node, NodeConfig, NodeError};
pub use protocol::SessionOptions;
pub use protocol::guard::GuardNote;
pub use runtime::requests::StepEvent;
pub use session::{Init, Run, RunOutput, Session};
