//! Replays recorded TensorFlow sessions over a mesh, and compares the answers. The recording defines the right answers.

mod replay;

pub use meshtf_recorded::{Case, Check, Expected, Mismatch, Recorded, RecordedStep, compare};
pub use replay::{Difference, replay};
