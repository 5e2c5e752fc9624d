//! meshtf
pub mod exec;
mod failure;
pub mod graph;
pub mod ids;
mod nearest;
pub mod plan;
pub mod protocol;
pub mod tensor;
pub use failure::{Code, Failure, Result};
