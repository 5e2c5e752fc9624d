//! The protocol of nodes and clients: ids, messages, limits.
//!
//! Pure data. `mesh` transports the messages; `worker` and `master` process them.

pub mod cached;
pub mod cluster;
pub mod constants;
pub mod copies;
pub mod detached;
pub mod event;
mod flow;
pub mod guard;
pub mod inquiry;
pub mod look;
mod packed;
pub mod runs;
#[cfg(test)]
mod samples;
pub mod status;
pub mod training;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::guard::{Estate, GuardNote, GuardReport, ToGuard};
use self::inquiry::{Answer, Inquiry};
use self::look::Fetched;
pub use cluster::{Cluster, DeviceInfo, Hello, KnownPeer, Member, TaskDoors};
pub use constants::{Constants, Content};
pub use flow::Flow;
use meshtf_graph::NodeDef;
use meshtf_graph::plan::{Piece, PlaceBy, Signature, Summary};
use meshtf_tensor::device::{DeviceName, DeviceSpec, Task};
use meshtf_tensor::failure::Failure;
pub use meshtf_tensor::ids::{Incarnation, PieceId, RequestId, SessionId, StepId};
use meshtf_tensor::{MAX_TENSOR_BYTES, Tensor};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Version of this protocol. Nodes of different versions refuse each other and state the reason.
pub const VERSION: u16 = 16;

/// Most bytes one message with all its tensors may have: the largest tensor, and half a gigabyte around it.
pub const MAX_MESSAGE_BYTES: usize = MAX_TENSOR_BYTES + (1 << 29);

/// Most tensors of a run that has feeds for each of its steps, of all steps together: as many as one message may have.
pub const MAX_STEP_FEEDS: usize = 1 << 16;

/// A participant of a mesh, node or client: the text form of its libp2p PeerId.
///
/// ```
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// let task = Task::new("local", 0);
/// let cluster = LocalCluster::start(std::slice::from_ref(&task), BackendChoice::Auto)?.cluster();
/// let peer = &cluster.member(&task).unwrap().peer;
/// // Within one process there are no PeerIds: a task has its short name.
/// assert_eq!(peer.as_str(), "local/0");
/// assert_eq!(cluster.member_of(peer).unwrap().task, task);
/// # Ok::<(), meshtf::Failure>(())
/// ```
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
    /// The participant of that PeerId, in its text form, which is not checked.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Peer(id.into())
    }

    /// The PeerId in its text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The options of a session.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.op("Neg").name("y").input(2).device("/device:GPU:0").build()?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex)?;
/// // There is no GPU: the node runs on the CPU instead.
/// let options = SessionOptions { soft_placement: true, ..SessionOptions::default() };
/// let session = cluster.session(g.finish()?, None, options).await?;
/// assert_eq!(session.run().fetch("y").await?["y"].item::<i32>()?, -2);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionOptions {
    /// If the device that a node requests does not exist, run the node on a device of the same task that does.
    pub soft_placement: bool,
    /// The task of the nodes that name none, if that is not the master's own.
    pub default_task: Option<Task>,
    /// Nodes that request no kind of device go to a GPU of their task if it has one, and not to its CPU.
    pub prefers_gpu: bool,
    /// See no variable or queue of another session, and leave none after the session's end.
    pub isolated: bool,
    /// Once a task that the session used was restarted, every step that needs it fails with Aborted: the session's resources on
    /// it are gone, and its client must open another session and restore. Otherwise the session continues with the new process.
    pub ends_with_its_tasks: bool,
    /// Devices that the session may use; all, if it is empty. It may always use the master's own.
    pub device_filters: Vec<DeviceSpec>,
    /// The devices of nodes whose requests several satisfy.
    pub place_by: PlaceBy,
    /// Log where each node of a plan is placed.
    pub log_placement: bool,
    /// Guard the session against the loss of a task: at least at this distance, between two steps, a copy of the session's
    /// state is taken to the memory of other tasks, from which its steps continue once the task is there again. `None`: a loss
    /// ends the run. Copies are taken less often where they would cost more than 3 % of the time.
    pub guard: Option<Duration>,
}

/// A message with its tensors. A message names its tensors by their index in `tensors`.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// The message.
    pub message: Message,
    /// The tensors that it names.
    pub tensors: Vec<Tensor>,
}

impl Envelope {
    /// A message with its tensors.
    pub fn new(message: impl Into<Message>, tensors: Vec<Tensor>) -> Self {
        Envelope { message: message.into(), tensors }
    }
}

impl<M: Into<Message>> From<M> for Envelope {
    fn from(message: M) -> Self {
        Envelope::new(message, Vec::new())
    }
}

/// All messages of a mesh, by their receivers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Message {
    /// First on every connection, and again when something in it changes. The link itself reads it.
    Hello(Box<Hello>),
    /// Last on a connection that ends on purpose. The link itself reads it.
    Goodbye { reason: String },
    /// Read by the client's end of a participant.
    ToClient(ToClient),
    /// Read by a node's master.
    ToMaster(ToMaster),
    /// Read by a node's worker.
    ToWorker(ToWorker),
    /// Read by the participant itself.
    ToHost(ToHost),
    /// A substitute for a message for whose tensors the receiver has no memory; never sent.
    #[serde(skip)]
    Refused { message: Box<Message>, failure: Failure },
}

impl From<ToClient> for Message {
    fn from(message: ToClient) -> Self {
        Message::ToClient(message)
    }
}

impl From<ToMaster> for Message {
    fn from(message: ToMaster) -> Self {
        Message::ToMaster(message)
    }
}

impl From<ToWorker> for Message {
    fn from(message: ToWorker) -> Self {
        Message::ToWorker(message)
    }
}

impl From<ToHost> for Message {
    fn from(message: ToHost) -> Self {
        Message::ToHost(message)
    }
}

/// The messages of a master to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ToClient {
    /// Once per request; `Run` is answered after its last step. A run that is refused because its plan is gone
    /// ([`Reason::PlanGone`](meshtf_tensor::failure::Reason::PlanGone)) gives its feeds back: they are the tensors.
    Reply { id: RequestId, result: Result<Reply, Failure> },
    /// The fetches of a step of a `Run`; the tensors are their values, in order.
    Fetched { id: RequestId, step: u64 },
    /// A fetch of a partial run, by its index in the signature; the tensor is its value.
    PartialFetch { id: RequestId, fetch: u32 },
    /// From time to time: how many steps of a watched `Run` are done, and the last values of the scalars that it fetches.
    Progress { id: RequestId, steps: u64, fetched: Vec<Fetched> },
    /// A notice about a `Run` of a guarded session.
    Guard { id: RequestId, note: GuardNote },
}

/// The messages of clients and workers to a master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ToMaster {
    /// A client's request.
    Request { id: RequestId, request: Request },
    /// A worker has registered these pieces, or reports why not.
    Registered { session: SessionId, pieces: Vec<PieceId>, result: Result<(), Failure> },
    /// A fetch of a partial run, by its index among the piece's fetches; the tensor is its value.
    PartialFetch { piece: PieceId, step: u64, place: u32 },
    /// The piece has run for `count` steps, of which `step` is the last: one, unless they were started together. The tensors are
    /// the last step's fetches, in the piece's order, and its trace if the plan is traced.
    Done { piece: PieceId, step: u64, count: u64 },
    /// The step failed on that worker.
    Failed { step: StepId, failure: Failure },
    /// The worker's link with `peer` ended a while ago, and the messages under way on it are lost. That concerns the session's
    /// steps up to `until`, the last that the worker had been asked to start by then.
    PeerLost { session: SessionId, until: u64, peer: Peer, why: String },
    /// The answer to [`ToWorker::Confirm`].
    Confirmed { session: SessionId },
    /// About a guarded session.
    Guard { session: SessionId, report: GuardReport },
    /// From the master of a guarded session to the node that is to continue it if that master is lost. Answered by
    /// [`GuardReport::Inherited`].
    Inherit { session: SessionId, estate: Box<Estate> },
}

/// The messages of masters, and of other workers, to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ToWorker {
    /// Hold these pieces until they are forgotten or the session ends; the tensors are those of their constants that the
    /// worker does not hold for another piece of the session.
    Register {
        session: SessionId,
        isolated: bool,
        #[serde(with = "packed::pieces")]
        pieces: Vec<(PieceId, Piece)>,
        constants: Constants,
        /// Remember which resources the pieces name, so that copies of the session's state can be taken.
        guarded: bool,
    },
    /// Run these pieces for these steps, one step after the other; the tensors are the pieces' feeds, piece by piece, the
    /// same for every step. If `continues`, they are of the run that the step before the first is of, and come after it;
    /// otherwise they may overlap with those of earlier runs that wait. If `together`, nobody waits for the end of each step,
    /// so the worker may report several at once.
    Start { pieces: Vec<PieceId>, first: u64, count: u64, continues: bool, together: bool },
    /// Values of a step for one device, from another worker or, in a partial run, the master's feeds. The tensors are those of
    /// the values that are not dead, in order.
    Push { step: StepId, to: DeviceName, values: Vec<PushedValue> },
    /// Give the step up and forget it.
    Abort { step: StepId, failure: Failure },
    /// No step will run these pieces any more, registered or on their way to be; forget them.
    Forget { pieces: Vec<PieceId> },
    /// The session is over; forget its pieces and its own resources.
    Release { session: SessionId },
    /// From any member: forget every resource of these containers.
    Clear { containers: Vec<String> },
    /// Answered by [`ToMaster::Confirmed`] once all earlier messages of the session are processed or on their way to a device.
    Confirm { session: SessionId },
    /// About a guarded session, which its master guards; from other workers only the two kinds of tensors that the master has
    /// asked for, and word that such are taken.
    Guard(ToGuard),
}

/// The messages of any participant to another one itself, whatever that hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ToHost {
    /// Answered by a [`ToClient::Reply`] of this id, with [`Reply::Told`] or a failure. The tensors: for
    /// [`Inquiry::WriteVariable`] the value, else none.
    Ask { id: RequestId, inquiry: Inquiry },
}

/// One value of a [`ToWorker::Push`], whose tensor travels with the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedValue {
    /// The plan's transfer to which it belongs.
    pub transfer: u32,
    /// The iteration of each loop that it is in, the outermost first; empty outside of loops.
    pub iterations: SmallVec<[u32; 2]>,
    /// It is of an untaken branch and has no tensor.
    pub is_dead: bool,
}

/// The requests of a client to its master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Request {
    /// The tensors are the graph's large constants, up to those that are kept by their contents.
    Open {
        session: SessionId,
        #[serde(with = "packed::value")]
        graph: Vec<NodeDef>,
        options: SessionOptions,
        constants: Constants,
    },
    /// Adds nodes to the session's graph; the tensors are their large constants that it does not have yet.
    Extend {
        session: SessionId,
        #[serde(with = "packed::value")]
        nodes: Vec<NodeDef>,
        constants: Constants,
    },
    /// Plans and registers; `Run` names the plan of the reply.
    Prepare { session: SessionId, signature: Signature },
    /// The same for a separate graph, which is sent with the request: the session's graph does not have its nodes. It shares
    /// variables and queues with the session's other plans, by name. The tensors are its large constants.
    PrepareAlone {
        session: SessionId,
        #[serde(with = "packed::value")]
        nodes: Vec<NodeDef>,
        signature: Signature,
        constants: Constants,
    },
    /// Runs `steps` steps of a plan; the tensors are the feeds in the signature's order, the same for every step, or those of
    /// the first step, of the second, and so on, [`MAX_STEP_FEEDS`] at most. Their number says which. Fetches are sent for the
    /// last step, and for every `every`-th (0: only the last). A `watched` run reports its progress.
    Run { session: SessionId, plan: u32, steps: u64, every: u64, watched: bool },
    /// Feeds a partial `Run` under way: `feeds` are indices into the signature's feeds, and the tensors their values, in that
    /// order. Refused if a fetch among `wanted` needs a feed that the run has not received by then.
    Feed { session: SessionId, run: RequestId, feeds: Vec<u32>, wanted: Vec<u32> },
    /// Cancels a `Run` under way.
    Cancel { session: SessionId, run: RequestId },
    /// Ends the session and all its runs.
    Close { session: SessionId },
    /// Plans without running: for `meshtf plan`. Large constants have their dtype and shape, and other elements.
    Explain {
        #[serde(with = "packed::value")]
        graph: Vec<NodeDef>,
        signature: Signature,
        options: SessionOptions,
    },
    /// Ends the other sessions that have one of these names, and keeps these, and no others, for this one.
    Claim { session: SessionId, names: Vec<String> },
}

/// The answers of a master, and with `Told` of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// The doc of a message leaves out fields that their names and types explain.
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Reply {
    /// The session is open.
    Opened,
    /// The nodes are in the session's graph.
    Extended,
    /// The plan's number for `Run`, and a summary of where it runs, for display.
    Prepared { plan: u32, summary: Summary },
    /// All steps ran; the tensors are the fetches and, if the plan is traced, the devices' traces.
    Ran { steps: u64 },
    /// The run has the feeds.
    Fed,
    /// The run is not under way (any more).
    Cancelled,
    /// The session is closed.
    Closed,
    /// The plan.
    Explained(Box<meshtf_graph::plan::Plan>),
    /// The answer to an inquiry; the tensor, for [`Answer::Variable`], is the value.
    Told(Answer),
    /// The session has the names, and no worker runs anything of the sessions that had them.
    Claimed,
}
