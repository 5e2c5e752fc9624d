//! The sink of a device, which receives the values and outcomes that leave it.

use meshtf_tensor::Tensor;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::{PieceId, StepId};
use smallvec::SmallVec;

/// The receiver of a device's results. Called on the device's threads, or on a thread that sends it a request; must not block.
pub trait Sink: Send + Sync {
    /// Values for another device: those that the step made for it at once.
    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>);
    /// In a step whose fetches are sent one by one: the fetch at that index among the piece's.
    fn fetched(&self, piece: PieceId, step: StepId, place: u32, value: Tensor);
    /// The piece has run for this step; its fetches, in the piece's order, and its trace if it is traced.
    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>);
    /// The step failed on this device. Called once; nothing more of that step follows, nor of the later steps of its
    /// [`Device::start`](crate::Device::start).
    fn failed(&self, step: StepId, failure: Failure);
    /// Sends the values passed so far. Before this call, they may wait for more to the same receiver.
    fn flush(&self) {}
}

/// A value on its way to another device.
#[derive(Clone, Debug, PartialEq)]
pub struct Pushed {
    /// The Recv of the receiving piece that takes it.
    pub transfer: u32,
    /// The iteration of the loops around the transfer.
    pub iterations: Iterations,
    /// `None` if it is dead (an untaken branch). For a control edge, a bool scalar without meaning.
    pub value: Option<Tensor>,
}

/// The iteration of each loop that encloses a node, outermost first; empty outside loops.
pub type Iterations = SmallVec<[u32; 2]>;
