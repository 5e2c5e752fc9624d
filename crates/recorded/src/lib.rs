//! Recorded sessions of TensorFlow: what a folder of one holds, and whether an answer is the recorded one.
//!
//! - **Is**: the reader of recorded sessions, and the comparison of tensors with those that were recorded.
//! - **Knows**: graphs, tensors, and files below the folder that it is given.
//! - **Never** runs anything: `meshtf verify` replays a session over a mesh, and the tests of `meshtf-exec` on devices.

mod case;
mod compare;

pub use case::{Case, Check, Expected, Recorded, RecordedStep};
pub use compare::{Mismatch, compare};
