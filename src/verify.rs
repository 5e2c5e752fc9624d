//! Recorded TensorFlow sessions: read, replayed and compared. Whatever runs the steps, the record says what is right.

mod case;
mod compare;
#[cfg(feature = "node")]
mod replay;

pub use case::{Case, Check, Expected, Recorded, RecordedStep};
pub use compare::{Mismatch, compare};
#[cfg(feature = "node")]
pub use replay::{Difference, replay};
