//! Running pieces: a device is a thread that runs compiled pieces, step after step, on one backend.
//!
//! Never async, and a stranger to the network: what leaves a device goes through its [`Sink`].

#[cfg(feature = "exec")]
mod burn;
pub mod engine;
pub mod kernel;

use crate::failure::Failure;
use crate::ids::{PieceId, StepId};
use crate::plan::DeviceName;
use crate::tensor::Tensor;

/// Where a device hands what it makes. Called on the device's thread; must not block.
pub trait Sink: Send + Sync {
    /// A value for another device; `None` where it is dead (an untaken branch). `iterations` has the iteration of each
    /// loop that encloses the transfer, outermost first; empty outside loops.
    fn push(&self, step: StepId, to: &DeviceName, transfer: u32, iterations: &[u32], value: Option<Tensor>);
    /// The piece has run for this step; what it fetched, in the piece's order.
    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>);
    /// The step failed here; called once, and nothing more of that step follows.
    fn failed(&self, step: StepId, failure: Failure);
}
