//! Training as nodes of a graph: variables with initial values, learning rates that follow the step, and the optimizers, as
//! TensorFlow 1's `tf.train` adds them.
//!
//! - **Is**: optimizers, replicas, sums over tasks and divided updates as nodes; [`model`], models in Rust, with operators and
//!   layers; [`data`], examples to train with, decoded from the bytes of files; [`mod@file`] and [`job`], a training as a
//!   JSON file.
//! - **Knows**: graphs and tensors.
//! - **Never** runs a step, opens a file or has a clock: `meshtf::trainer` feeds, evaluates and saves.
//!
//! ```
//! use meshtf_graph::GraphBuilder;
//! use meshtf_train::{self as train, Initializer, Optimizer, Training, VariableSpec};
//!
//! let mut g = GraphBuilder::new();
//! let w = train::add_variable(&mut g, &VariableSpec::new("w", [2], Initializer::Zeros))?;
//! let off = g.op("Sub").input(w.value).input([1.0f32, 2.0]).build()?;
//! let loss = g.op("L2Loss").name("loss").input(off).build()?;
//! let trained = train::minimize(&mut g, loss, &[w], &Training::new(Optimizer::Sgd, 0.1))?;
//! // A step runs the node `train/step`; the node `init` gives every variable its first value.
//! train::add_init(&mut g, "init", &trained.variables)?;
//! assert!(g.finish()?.find("init").is_some());
//! # Ok::<(), meshtf_tensor::failure::Failure>(())
//! ```

mod average;
mod clip;
pub mod data;
mod dense;
pub mod file;
pub mod job;
mod minimize;
pub mod model;
pub mod numerics;
mod optimizer;
pub mod ring;
mod schedule;
mod sparse;

pub use average::{AVERAGE, add_averages, update_average};
pub use clip::{Clip, clipped};
pub use meshtf_graph::variable::{Initializer, Variable, VariableSpec, add_init, add_variable, variable_of};
pub use minimize::{Trained, Training, apply, apply_with, gradients, minimize};
pub use optimizer::{Optimizer, state_of};
pub use schedule::{Schedule, WarmUp};

/// The variable that counts the steps, an int64, with TensorFlow's name.
pub const GLOBAL_STEP: &str = "global_step";
