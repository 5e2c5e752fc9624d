//! Recorded TensorFlow sessions: reads, replays and compares them. The recording decides what is right.

mod case;
mod compare;
#[cfg(feature = "node")]
mod replay;

pub use case::{Case, Check, Expected, Recorded, RecordedStep};
pub use compare::{Mismatch, compare};
#[cfg(feature = "node")]
pub use replay::{Difference, replay};
