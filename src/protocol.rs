//! What nodes and clients say to each other: ids, messages, limits.
//!
//! Pure data. How the messages travel is `mesh`'s business; what they lead to is `worker`'s and `master`'s.

pub mod cluster;
mod flow;

use std::fmt;
use std::sync::Arc;

pub use cluster::{Cluster, DeviceInfo, Hello, KnownPeer, Member};
pub use flow::Flow;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::device::{DeviceName, DeviceSpec, Task};
use crate::failure::Failure;
use crate::graph::NodeDef;
pub use crate::ids::{Incarnation, PieceId, RequestId, SessionId, StepId};
use crate::plan::{Piece, Signature, Summary};
use crate::tensor::Tensor;

/// Version of this protocol. Nodes of different versions refuse each other and say so.
pub const VERSION: u16 = 2;

/// Most bytes one message with all its tensors may have. A tensor ends at 2 GiB; a few may travel together.
pub const MAX_MESSAGE_BYTES: usize = 4 << 30;

/// A participant of a mesh, node or client: the text form of its libp2p PeerId.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Peer(Arc<str>);

impl From<String> for Peer {
    fn from(id: String) -> Self {
        Peer(id.into())
    }
}

impl From<Peer> for String {
    fn from(peer: Peer) -> Self {
        peer.0.as_ref().to_owned()
    }
}

impl Peer {
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Peer(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a session behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOptions {
    /// Run a node on a device of its task that exists, where the requested one does not.
    pub soft_placement: bool,
    /// The task of the nodes that name none, where that is not the master's own.
    pub default_task: Option<Task>,
    /// Nodes that request no kind of device go to a GPU of their task, where it has one, and not to its CPU.
    pub prefers_gpu: bool,
    /// See no variable or queue of another session, and leave none behind.
    pub isolated: bool,
    /// Once a task that the session used was restarted, every step that needs it fails with Aborted: what the session kept
    /// there is gone, and its client is to open another and restore. Otherwise the session goes on with the new one.
    pub ends_with_its_tasks: bool,
    /// Devices that the session may use; all, where it is empty. The master's own it may always use.
    pub device_filters: Vec<DeviceSpec>,
    /// Log where each node of a plan is placed.
    pub log_placement: bool,
}

/// A message with the tensors that go with it. A message names its tensors by their place in `tensors`.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    pub message: Message,
    pub tensors: Vec<Tensor>,
}

impl From<Message> for Envelope {
    fn from(message: Message) -> Self {
        Envelope { message, tensors: Vec::new() }
    }
}

/// Everything that is said on a mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Message {
    /// First on every connection, and again when something in it changes.
    Hello(Box<Hello>),
    /// Last on a connection that ends on purpose.
    Goodbye { reason: String },

    /// Client to master.
    Request { id: RequestId, request: Request },
    /// Master to client, once per request; `Run` is answered after its last step. A run that is refused because its plan is
    /// gone ([`Reason::PlanGone`](crate::Reason::PlanGone)) gives its feeds back: they are the tensors.
    Reply { id: RequestId, result: Result<Reply, Failure> },
    /// Master to client: what a step of a `Run` fetched; the tensors are the fetches, in order.
    Fetched { id: RequestId, step: u64 },
    /// Master to client: a fetch of a partial run; the tensor is its value.
    Part { id: RequestId, fetch: u32 },
    /// Master to client, now and then: so many steps of a watched `Run` are through.
    Through { id: RequestId, steps: u64 },

    /// Master to worker: hold these pieces until they are forgotten or the session ends.
    Register { session: SessionId, isolated: bool, pieces: Vec<(PieceId, Piece)> },
    /// Worker to master: registered, or why not.
    Registered { session: SessionId, pieces: Vec<PieceId>, result: Result<(), Failure> },
    /// Master to worker: run these pieces for these steps, one step after the other; the tensors are the pieces' feeds,
    /// piece by piece, the same for every step.
    Start { pieces: Vec<PieceId>, first: u64, count: u64 },
    /// Worker to master: in a partial run, the fetch at that place among the piece's; the tensor is its value.
    Got { piece: PieceId, step: u64, place: u32 },
    /// Worker to master: the piece has run for this step; the tensors are what it fetched, in the piece's order,
    /// and its trace where the plan is traced.
    Done { piece: PieceId, step: u64 },
    /// Worker to master: the step failed there.
    Failed { step: StepId, failure: Failure },
    /// Worker to master: its link with `peer` ended a while ago, and what was under way on it is lost, of the session's steps
    /// up to `until`. A step later than that was not begun then.
    Parted { session: SessionId, until: u64, peer: Peer, why: String },
    /// Master to worker: give the step up and forget it.
    Abort { step: StepId, failure: Failure },
    /// Master to worker: no step will run these pieces any more, registered or on their way to be; forget them.
    Forget { pieces: Vec<PieceId> },
    /// Master to worker: the session is over; forget its pieces and its own resources.
    Release { session: SessionId },
    /// Anybody to worker: forget every resource of these containers.
    Clear { containers: Vec<String> },

    /// Worker to worker: values of a step for one device; the tensors are those that are not dead, in order.
    Push { step: StepId, to: DeviceName, values: Vec<Carried> },

    /// In place of a message for whose tensors the receiver has no memory; never sent.
    #[serde(skip)]
    Refused { message: Box<Message>, failure: Failure },
}

/// One value of a [`Message::Push`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    pub transfer: u32,
    pub iterations: SmallVec<[u32; 2]>,
    /// It is of an untaken branch and has no tensor.
    pub is_dead: bool,
}

/// What a client asks of its master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    Open {
        session: SessionId,
        graph: Vec<NodeDef>,
        options: SessionOptions,
    },
    /// Adds nodes to the session's graph.
    Extend {
        session: SessionId,
        nodes: Vec<NodeDef>,
    },
    /// Plans and registers; the reply's plan is what `Run` names.
    Prepare {
        session: SessionId,
        signature: Signature,
    },
    /// Runs `steps` steps of a plan; the tensors are the feeds in the signature's order, the same for every step.
    /// Fetches are sent for the last step, and for every `every`-th (0: only the last). A `watched` run tells how far it is.
    Run {
        session: SessionId,
        plan: u32,
        steps: u64,
        every: u64,
        watched: bool,
    },
    /// Feeds a partial `Run` under way; the tensors are these of the signature's feeds. Refused where a fetch among `wanted`
    /// needs a feed that has not come by then.
    Feed {
        session: SessionId,
        run: RequestId,
        feeds: Vec<u32>,
        wanted: Vec<u32>,
    },
    /// Cancels a `Run` under way.
    Cancel {
        session: SessionId,
        run: RequestId,
    },
    Close {
        session: SessionId,
    },
    /// Plans without running: for `meshtf plan`.
    Explain {
        graph: Vec<NodeDef>,
        signature: Signature,
        options: SessionOptions,
    },
}

/// What a master answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    Opened,
    Extended,
    /// What `Run` names, and where it runs, for those who show it.
    Prepared {
        plan: u32,
        summary: Summary,
    },
    /// All steps ran; the tensors are the fetches and, where the plan is traced, the devices' traces.
    Ran {
        steps: u64,
    },
    Fed,
    Cancelled,
    Closed,
    Explained(Box<crate::plan::Plan>),
}
