//! Replays recorded TensorFlow sessions over a mesh, and compares the answers. The recording defines the right answers.

mod replay;

pub use meshtf_recorded::{Case, Expected, Mismatch, RecordedStep, compare};
pub use replay::replay;
