//! What leaves a device, and who takes it there.

use meshtf_tensor::Tensor;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::{PieceId, StepId};
use smallvec::SmallVec;

/// Where a device hands what it makes. Called on the device's threads, or on one that asks it for something; must not block.
pub trait Sink: Send + Sync {
    /// Values for another device: those that the step made for it in one go.
    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>);
    /// In a step whose fetches go one by one: the fetch at that place among the piece's.
    fn fetched(&self, piece: PieceId, step: StepId, place: u32, value: Tensor);
    /// The piece has run for this step; what it fetched, in the piece's order, and its trace if it is traced.
    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>);
    /// The step failed here; called once, and nothing more of that step follows, nor of the later steps of its
    /// [`Device::start`].
    fn failed(&self, step: StepId, failure: Failure);
    /// What was handed over is to leave now; before this, it may wait for more that goes the same way.
    fn flush(&self) {}
}

/// A value on its way to another device.
#[derive(Clone, Debug, PartialEq)]
pub struct Pushed {
    /// Which Recv of the receiving piece takes it.
    pub transfer: u32,
    /// In which iteration of the loops around the transfer.
    pub iterations: Iterations,
    /// `None` if it is dead (an untaken branch). If only the order crosses, a bool scalar that means nothing.
    pub value: Option<Tensor>,
}

/// The iteration of each loop that encloses a node, outermost first; empty outside loops.
pub type Iterations = SmallVec<[u32; 2]>;
