//! Running pieces: a device is a thread that runs compiled pieces, step after step, on one backend.
//!
//! Never async, and a stranger to the network: what leaves a device goes through its [`Sink`].
//!
//! `program` compiles a piece, `step` runs it once, `thread` interleaves the steps of many sessions, `engine` is what
//! a backend must do, `resource` and `state` hold what outlives a step.

pub mod adapters;
#[cfg(feature = "exec")]
mod burn;
pub mod engine;
mod host;
pub mod kernel;
mod mailbox;
mod outbox;
mod program;
mod resource;
mod state;
mod step;
mod thread;
mod token;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

pub use adapters::{BackendChoice, Offer, cpu, gpus};
use engine::Engine;
pub use host::HostEngine;
use mailbox::{Mailbox, Message};
pub use resource::{DEFAULT_CONTAINER, MAX_RESOURCES, Resources};
pub use thread::{MAX_PARKED_BYTES, MAX_PIECES, MAX_RUNS};

use smallvec::SmallVec;

use crate::failure::{Code, Failure};
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::{DeviceName, Piece};
use crate::tensor::Tensor;

/// Where a device hands what it makes. Called on the device's thread; must not block.
pub trait Sink: Send + Sync {
    /// Values for another device: those that the step made for it in one go.
    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>);
    /// In a step whose fetches go one by one: the fetch at that place among the piece's.
    fn fetched(&self, piece: PieceId, step: StepId, place: u32, value: Tensor);
    /// The piece has run for this step; what it fetched, in the piece's order, and its trace where it is traced.
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
    /// The iteration of each loop that encloses the transfer, outermost first; empty outside loops.
    pub iterations: SmallVec<[u32; 2]>,
    /// `None` where it is dead (an untaken branch). Where only the order crosses, a bool scalar that means nothing.
    pub value: Option<Tensor>,
}

/// A device: the handle of its thread. Dropping it ends the thread once the op under way has run.
pub struct Device {
    mailbox: Mailbox,
    /// Bytes of the values that arrived and that no node has taken yet.
    parked: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    /// Starts the thread of a device. `resources` are its task's, shared by the task's devices.
    ///
    /// # Errors
    /// ResourceExhausted where the machine gives no thread.
    pub fn open(
        name: DeviceName,
        engine: Box<dyn Engine>,
        resources: Arc<Resources>,
        sink: Arc<dyn Sink>,
    ) -> Result<Device, Failure> {
        let (mailbox, inbox) = mailbox::open();
        let own = mailbox.clone();
        let parked = Arc::new(AtomicUsize::new(0));
        let counted = parked.clone();
        let title = format!("{}:{}", name.kind.name(), name.index);
        let thread = std::thread::Builder::new()
            .name(title)
            .spawn(move || thread::run(name, engine, resources, sink, own, inbox, counted))
            .map_err(|error| Failure::new(Code::ResourceExhausted, format!("no thread for a device: {error}")))?;
        Ok(Device { mailbox, parked, thread: Some(thread) })
    }

    /// Compiles a piece and holds it until its session is released. Waits for the device's thread.
    ///
    /// # Errors
    /// What the first node that cannot be compiled is wrong about; AlreadyExists where the id is taken.
    pub fn register(&self, id: PieceId, piece: Piece) -> Result<(), Failure> {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        self.mailbox.send(Message::Register { id, piece: Box::new(piece), reply });
        answer.recv().unwrap_or_else(|_| Err(Failure::new(Code::Unavailable, "the device is closed")))
    }

    /// Runs the piece for the steps `first..first + count`, each when the one before it has run here. `feeds` come in
    /// the piece's order and are the same for each.
    pub fn start(&self, id: PieceId, first: u64, count: u64, feeds: Vec<Tensor>) {
        self.mailbox.send(Message::Start { id, first, count, feeds });
    }

    /// Values that another device pushed. May come before their step has started. Where more than [`MAX_PARKED_BYTES`]
    /// would wait for the nodes that take them, the step fails with ResourceExhausted.
    pub fn arrive(&self, step: StepId, values: Vec<Pushed>) {
        let cost = values.iter().map(|pushed| step::cost(&pushed.value)).sum();
        if self.parked.fetch_add(cost, Ordering::Relaxed) + cost > MAX_PARKED_BYTES {
            self.parked.fetch_sub(cost, Ordering::Relaxed);
            return self.mailbox.send(Message::Overflow { step });
        }
        self.mailbox.send(Message::Arrive { step, values });
    }

    /// Forgets a step, and the later ones of its [`Device::start`], without a word to the sink.
    pub fn abort(&self, step: StepId) {
        self.mailbox.send(Message::Abort { step });
    }

    /// Forgets the session's pieces, steps, parked values and private resources.
    pub fn release(&self, session: SessionId) {
        self.mailbox.send(Message::Release { session });
    }

    /// What the device holds, after everything it was told before. Waits for its thread; zero when that has ended.
    pub fn holds(&self) -> Holds {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        self.mailbox.send(Message::Count { reply });
        answer.recv().unwrap_or_default()
    }
}

/// What a device holds at one moment; all zero when it serves nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    pub sessions: usize,
    pub pieces: usize,
    /// Steps under way, waiting to begin, or known only from values that came early.
    pub steps: usize,
    /// Bytes of values that wait for their step or their Recv, with what keeping each costs.
    pub parked_bytes: usize,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.mailbox.send(Message::Close);
        // A sink may hold the device that it serves; then the last handle dies on the device's own thread.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}
