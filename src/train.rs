//! Training as nodes of a graph: variables with initial values, learning rates that follow the step, and what an optimizer does
//! with gradients, as TensorFlow 1's `tf.train` adds them.
//!
//! ```
//! use meshtf::graph::GraphBuilder;
//! use meshtf::train::{self, Initializer, Optimizer, Training, VariableSpec};
//!
//! let mut g = GraphBuilder::new();
//! let w = train::add_variable(&mut g, &VariableSpec::new("w", [2], Initializer::Zeros))?;
//! let off = g.op("Sub").input(w.value).input([1.0f32, 2.0]).build()?;
//! let loss = g.op("L2Loss").name("loss").input(off).build()?;
//! let trained = train::minimize(&mut g, loss, &[w], &Training::new(Optimizer::Sgd, 0.1))?;
//! // A step runs the node `train/step`; the node `init` gives every variable its first value.
//! train::add_init(&mut g, "init", &trained.variables)?;
//! assert!(g.finish()?.find("init").is_some());
//! # Ok::<(), meshtf::Failure>(())
//! ```

mod average;
mod clip;
mod dense;
pub mod file;
pub mod job;
mod minimize;
pub mod numerics;
mod optimizer;
pub(crate) mod ring;
mod schedule;
mod sparse;

pub use crate::graph::variable::{Initializer, Variable, VariableSpec, add_init, add_variable, variable_of};
pub use average::{AVERAGE, add_averages, update_average};
pub use clip::{Clip, clipped};
pub use minimize::{Trained, Training, apply, apply_with, gradients, minimize};
pub use optimizer::Optimizer;
pub use schedule::{Schedule, WarmUp};

/// The variable that counts the steps, an int64, as TensorFlow names it.
pub const GLOBAL_STEP: &str = "global_step";
