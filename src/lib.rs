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
//! assert_eq!(ran["sum"].to_vec::<f32>()?, [4.0, 8.0]);
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

mod allocator;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod client;
mod descriptors;
mod diagnosis;
pub mod doctor;
mod door;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzz;
mod local;
mod machine;
mod mesh;
mod node;
mod protocol;
mod random;
mod runtime;
mod session;
mod trainer;
mod unauthenticated;
mod verify;

pub use allocator::Allocator;
pub use client::Client;
pub use events::Follower;
pub use local::LocalCluster;
#[doc(inline)]
pub use meshtf_engine::adapters::BackendChoice;
#[doc(inline)]
pub use meshtf_tensor::device::Task;
#[doc(inline)]
pub use meshtf_tensor::failure::{Code, Failure, Reason, Result, Stage};
pub use node::{ClusterSpec, Node, NodeConfig, NodeError};
pub use protocol::SessionOptions;
pub use runtime::requests::StepEvent;
pub use session::{Init, Run, RunOutput, Session};

/// Values: dtypes, shapes, elements, and the file format of NumPy.
pub mod tensor {
    #[doc(inline)]
    pub use meshtf_tensor::npy::{read as read_npy, write as write_npy};
    #[doc(inline)]
    pub use meshtf_tensor::{Complex, DType, Element, PartialShape, Shape, Tensor};
}

/// Programs as data: building them in Rust, reading and writing their files, gradients.
pub mod graph {
    #[doc(inline)]
    pub use meshtf_graph::graphdef::{from_binary as read_graphdef, to_binary as write_graphdef};
    #[doc(inline)]
    pub use meshtf_graph::json::to_json;
    #[doc(inline)]
    pub use meshtf_graph::{
        Attr, Attrs, FormatError, Graph, GraphBuilder, GraphError, Input, Node, NodeDef, NodeId, OpBuilder, Output,
        OutputType, Program, read,
    };
}

/// Plans: a graph, pruned for a run, placed on devices and split into pieces. [`Client::explain`](crate::Client::explain) returns
/// one.
pub mod plan {
    #[doc(inline)]
    pub use meshtf_graph::plan::{Mode, Piece, Placement, Plan, Signature, Summary, Total, Transfer, Why, totals};
    #[doc(inline)]
    pub use meshtf_graph::trace::{DeviceTrace, NodeTrace};
}

/// Models as formulas.
pub mod model {
    #[doc(inline)]
    pub use meshtf_train::Initializer;
    #[doc(inline)]
    pub use meshtf_train::model::{Model, Operand, Padding, Value};
}

/// Training: a loss, an optimizer, examples, workers; evaluation, saved states, reports.
pub mod train {
    #[doc(inline)]
    pub use meshtf_train::data::Examples;
    #[doc(inline)]
    pub use meshtf_train::file::{
        Best, DataSection, DataSource, EvaluateSection, Sections, Take, TrainSection, UpdateMode,
    };
    #[doc(inline)]
    pub use meshtf_train::{Clip, Optimizer, Schedule, Training, WarmUp};

    pub use crate::trainer::{
        Confusion, Ended, Error, Evaluated, Every, Found, How, Loaded, Lookup, Observed, Observer, Options, Trainer,
        load,
    };
}

/// The live tasks of a cluster, their devices, and what they report about themselves.
pub mod status {
    #[doc(inline)]
    pub use meshtf_tensor::device::{DeviceKind, DeviceName};

    pub use crate::protocol::event::{Event, Noted};
    pub use crate::protocol::inquiry::VariableName;
    pub use crate::protocol::status::{DeviceStatus, NodeStatus, ResourceStatus, SessionStatus};
    pub use crate::protocol::{Cluster, DeviceInfo, Member, Peer};
}

/// Doors of a node for clients of other systems: TensorFlow's, burn's, a browser.
pub mod doors {
    pub use crate::door::burn::open as open_burn;
    pub use crate::door::tensorflow::open as open_tensorflow;
    pub use crate::door::web::open as open_web;
    pub use crate::door::{Door, DoorConfig, DoorError};
}
