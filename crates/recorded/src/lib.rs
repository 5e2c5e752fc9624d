//! Recorded sessions of TensorFlow: their format, and the comparison of an answer with the recorded one.
//!
//! - **Is**: the reader of recorded sessions, and the comparison of tensors with the recorded ones.
//! - **Knows**: graphs, tensors, and files below the folder that it receives.
//! - **Never** runs anything: `meshtf verify` replays a session over a mesh, and the tests of `meshtf-exec` on devices.

mod case;
mod compare;

pub use case::{Case, Check, Expected, Recorded, RecordedStep};
pub use compare::{Mismatch, compare};
