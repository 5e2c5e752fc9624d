//! The status of a node, the answer to a status inquiry: its sessions, pieces, devices, resources, peers and limits.
//!
//! Pure data, and bounded: a list has [`MAX_LISTED`] entries at most and states the total number, a name has
//! [`MAX_NAME_BYTES`]. Rates are measured over a short time before the answer, from two snapshots of the same counters.

use std::collections::HashMap;

use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::{DType, PartialShape};
use serde::{Deserialize, Serialize};

use super::look::Fetched;
use super::{Incarnation, Peer, SessionId};

/// Most entries of one list of an answer.
pub const MAX_LISTED: usize = 64;

/// Most bytes of a name in an answer; a longer one is cut and ends with `…`.
pub const MAX_NAME_BYTES: usize = 256;

/// Most scalars of one session in an answer, and bytes of the name of one.
pub const MAX_FETCHED: usize = 2;
const MAX_FETCHED_BYTES: usize = 64;

/// Most dtypes of a queue's components, and dimensions of a shape, in an answer; a larger shape is left out.
const MAX_COMPONENTS: usize = 16;

/// A part of a list, with the list's length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<T> {
    /// The listed entries.
    pub items: Vec<T>,
    /// The number of entries, listed or not.
    pub total: u64,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed { items: Vec::new(), total: 0 }
    }
}

impl<T> Listed<T> {
    /// All of these.
    pub fn all(items: Vec<T>) -> Self {
        Listed { total: items.len() as u64, items }
    }

    /// The first of these, up to the limit of a list.
    pub fn cut(mut self) -> Self {
        self.items.truncate(MAX_LISTED);
        self.items.shrink_to_fit();
        self
    }

    /// How many entries are not listed.
    pub fn left_out(&self) -> u64 {
        self.total.saturating_sub(self.items.len() as u64)
    }
}

/// A node at one moment.
///
/// ```
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let status = cluster.status(None).await?;
/// assert_eq!(status.identity.task, Some(Task::new("local", 0)));
/// assert_eq!((status.sessions.total, status.totals.failed_runs), (0, 0));
/// let full = status.limits.iter().filter(|limit| limit.limit == Some(limit.used));
/// full.for_each(|limit| eprintln!("{} is at its limit", limit.name));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its identity.
    pub identity: Identity,
    /// How long before the answer the first snapshot of the counters was taken: the period of rates and shares.
    pub window_ms: u64,
    /// The sessions whose master this node is: those that ran most steps recently first.
    pub sessions: Listed<SessionStatus>,
    /// The pieces of graphs that masters registered on this node: those that ran most steps first.
    pub pieces: Listed<PieceStatus>,
    /// Its devices.
    pub devices: Listed<DeviceStatus>,
    /// Variables, queues, accumulators, tables, iterators and readers: the largest first.
    pub resources: Listed<ResourceStatus>,
    /// The peers that it has a link with: nodes by their tasks, and then clients.
    pub peers: Listed<PeerStatus>,
    /// The limits of the node, and how near each is.
    pub limits: Vec<LimitStatus>,
    /// The totals since the node started.
    pub totals: Totals,
}

/// The totals of a node since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Steps that are done, of all sessions whose master it was.
    pub steps: u64,
    /// Runs of those that failed; not those that were cancelled, or whose input was at its end.
    pub failed_runs: u64,
    /// Bytes that it sent on all links, those that are over included: messages and their framing, before encryption.
    pub sent_bytes: u64,
    /// Bytes that it received.
    pub received_bytes: u64,
}

/// The identity of the node that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The task that it holds; `None`: it is a client.
    pub task: Option<Task>,
    /// The random number of its start; `None` for a client.
    pub incarnation: Option<Incarnation>,
    /// Version of the program.
    pub version: String,
    /// Name of the mesh; `None` in a cluster of one process.
    pub mesh: Option<String>,
    /// Milliseconds since it started.
    pub up_ms: u64,
}

/// A session whose master the node is.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut g = GraphBuilder::new();
/// g.constant("x", 2)?;
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(g.finish()?, None, SessionOptions::default()).await?;
/// session.run().fetch("x").steps(3).await?;
/// let status = cluster.status(None).await?;
/// let own = &status.sessions.items[0];
/// assert_eq!((own.steps, own.plans, own.runs), (3, 1, 0));
/// println!("session {} of {}: {} steps per second", own.id, own.client, own.steps_per_second);
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its id.
    pub id: SessionId,
    /// The client that opened it.
    pub client: Peer,
    /// Milliseconds since it was opened.
    pub age_ms: u64,
    /// How long ago its client last made a request.
    pub idle_ms: u64,
    /// Plans that the master keeps for it: sets of feeds, fetches and targets.
    pub plans: u64,
    /// Runs under way.
    pub runs: u64,
    /// Steps that are done, of all its runs.
    pub steps: u64,
    /// Steps done per second, over the time before the answer.
    pub steps_per_second: f64,
    /// The last values of the first `MAX_FETCHED` scalars that it fetches.
    pub fetched: Vec<Fetched>,
}

/// A piece that a master registered with the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceStatus {
    /// The session that it belongs to.
    pub session: SessionId,
    /// Its number in the session.
    pub number: u32,
    /// The master that registered it.
    pub master: Peer,
    /// The device that runs it.
    pub device: DeviceName,
    /// How many nodes it has.
    pub nodes: u64,
    /// Steps that it has run.
    pub steps: u64,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes in use.
    pub used: u64,
    /// `None` if it is unknown: no budget is set, or the GPU's driver does not report it.
    pub free: Option<u64>,
}

/// A device of the node.
///
/// ```
/// use meshtf::{BackendChoice, Client, LocalCluster, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex)?;
/// let status = cluster.status(None).await?;
/// let cpu = &status.devices.items[0];
/// assert_eq!((cpu.name.to_string().as_str(), cpu.pieces), ("/job:local/task:0/device:CPU:0", 0));
/// assert!((0.0..=1.0).contains(&cpu.busy_share));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its full name.
    pub name: DeviceName,
    /// The burn backend that serves it: `flex`, `ndarray`, `wgpu`.
    pub backend: String,
    /// A description for people.
    pub description: String,
    /// CPU: of the process, which all its CPU devices share. `None`: unknown.
    pub memory: Option<MemoryStatus>,
    /// How long it has been busy since it was opened.
    pub busy_us: u64,
    /// The share of recent time in which it was busy, 0 to 1.
    pub busy_share: f64,
    /// Sessions that it knows.
    pub sessions: u64,
    /// Pieces on it, of all sessions.
    pub pieces: u64,
    /// Steps under way, waiting to begin, or known only from values that came early.
    pub steps: u64,
    /// Values that came from other devices and that no node of a graph has taken yet.
    pub parked_values: u64,
    /// Bytes of all waiting values, including feeds.
    pub parked_bytes: u64,
}

/// A resource of the node.
///
/// ```
/// use meshtf::model::{Initializer, Model};
/// use meshtf::{BackendChoice, Client, LocalCluster, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let m = Model::new();
/// m.variable("w", [2, 3], Initializer::Zeros);
/// let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(m.finish()?, None, SessionOptions::default()).await?;
/// session.run().target("init").await?;
/// let resources = cluster.resources(None).await?;
/// let w = &resources[0];
/// assert_eq!((w.kind.as_str(), w.name.as_str()), ("variable", "w"));
/// assert_eq!((w.shape.to_string().as_str(), w.bytes, w.version), ("[2,3]", Some(24), Some(1)));
/// # Ok::<(), meshtf::Failure>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// `variable`, `queue`, `barrier`, `mutex`, `batch`, `parts of batches`, `accumulator`, `tensor array`, `stack`,
    /// `staging area`, `map of sparse tensors`, `session's tensors`, `iterator`, `lookup table`, `reader`, `summary writer`,
    /// `aggregator of statistics`, `ensemble of trees`, `streams of quantiles` or `dummy`, a handle that an op's signature
    /// demands and that no kernel uses.
    pub kind: String,
    /// The device that it is on.
    pub device: DeviceName,
    /// Its container; `localhost` for one that names none.
    pub container: String,
    /// Its name: the `shared_name` of its node, or the node's own.
    pub name: String,
    /// The session that made it.
    pub session: SessionId,
    /// No other session sees it.
    pub is_isolated: bool,
    /// Of a variable's value, or of a queue's components.
    pub dtypes: Vec<DType>,
    /// Of a variable's value, or as the graph states it if it has none.
    pub shape: PartialShape,
    /// Bytes of its contents: if they are on a GPU, those of the GPU. `None` while an op changes it.
    pub bytes: Option<u64>,
    /// Elements of a queue, or gradients of an accumulator.
    pub length: Option<u64>,
    /// How often a variable was changed.
    pub version: Option<u64>,
}

/// The state of the node's link with a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// The peer.
    pub peer: Peer,
    /// The task it holds; `None`: a client.
    pub task: Option<Task>,
    /// Whether it is no client, but waits to take the name of a task that is lost.
    pub is_spare: bool,
    /// The address at which it is connected.
    pub address: String,
    /// Whether the link has a connection.
    pub state: LinkState,
    /// How long there has been a link with it.
    pub up_ms: u64,
    /// How long ago it was last heard.
    pub heard_ms: u64,
    /// `None` if it did not answer in time.
    pub round_trip_us: Option<u64>,
    /// Bytes a second of the large messages that were sent to it, until it acknowledged them; `None` if there was none.
    pub bulk_bytes_per_second: Option<u64>,
    /// Bytes sent to it over this link.
    pub sent_bytes: u64,
    /// Bytes received from it over this link.
    pub received_bytes: u64,
    /// Bytes sent per second, over the time before the answer.
    pub sent_per_second: f64,
    /// Bytes received per second, over the time before the answer.
    pub received_per_second: f64,
}

/// Whether a link has a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkState {
    /// It has one.
    Up,
    /// Its connection broke, and it waits for another.
    Mending {
        /// For how many milliseconds.
        for_ms: u64,
        /// Why the connection broke.
        why: String,
    },
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// The limited quantity.
    pub name: String,
    /// How much of it is in use; if each of several has the limit for itself, the most of one.
    pub used: u64,
    /// `None`: none is set.
    pub limit: Option<u64>,
}

impl LimitStatus {
    /// A limit of that name; `None`: none is set.
    pub fn new(name: &str, used: usize, limit: impl Into<Option<usize>>) -> Self {
        LimitStatus { name: name.to_owned(), used: used as u64, limit: limit.into().map(|limit| limit as u64) }
    }
}

/// The status of a node's network: empty if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkStatus {
    /// Name of the mesh.
    pub mesh: Option<String>,
    /// The links.
    pub peers: Vec<PeerStatus>,
    /// The limits of the network.
    pub limits: Vec<LimitStatus>,
    /// Bytes sent and received since the start.
    pub traffic: (u64, u64),
}

/// The counters of a node at one moment, from which rates are made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    steps: HashMap<SessionId, u64>,
    busy_us: HashMap<DeviceName, u64>,
    bytes: HashMap<Peer, (u64, u64)>,
}

impl NodeStatus {
    /// The counters from which rates are made.
    pub fn counters(&self) -> Counters {
        Counters {
            steps: self.sessions.items.iter().map(|session| (session.id, session.steps)).collect(),
            busy_us: self.devices.items.iter().map(|device| (device.name.clone(), device.busy_us)).collect(),
            bytes: self
                .peers
                .items
                .iter()
                .map(|peer| (peer.peer.clone(), (peer.sent_bytes, peer.received_bytes)))
                .collect(),
        }
    }

    /// Computes rates from the counts since `earlier`, `window_us` ago. An entry that did not exist then counts from zero.
    pub fn measure(&mut self, earlier: &Counters, window_us: u64) {
        self.window_ms = window_us / 1000;
        let seconds = window_us.max(1) as f64 / 1e6;
        let rate = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0)) as f64 / seconds;
        for session in &mut self.sessions.items {
            session.steps_per_second = rate(session.steps, earlier.steps.get(&session.id).copied());
        }
        for device in &mut self.devices.items {
            let busy = rate(device.busy_us, earlier.busy_us.get(&device.name).copied()) / 1e6;
            device.busy_share = busy.min(1.0);
        }
        for peer in &mut self.peers.items {
            let before = earlier.bytes.get(&peer.peer);
            peer.sent_per_second = rate(peer.sent_bytes, before.map(|before| before.0));
            peer.received_per_second = rate(peer.received_bytes, before.map(|before| before.1));
        }
    }

    /// How many clients it has a link with; `None` if the nodes alone fill a list that is cut.
    pub fn clients(&self) -> Option<u64> {
        let nodes = self.peers.items.iter().filter(|peer| peer.task.is_some()).count();
        // The list has nodes before clients.
        let has_all = nodes < self.peers.items.len() || self.peers.left_out() == 0;
        has_all.then(|| self.peers.total.saturating_sub(nodes as u64))
    }

    /// Sorts each list and cuts it, and every text, to the limits of an answer.
    pub fn cut(mut self) -> Self {
        let NodeStatus { sessions, pieces, devices, resources, peers, limits, .. } = &mut self;
        sessions.items.sort_by(|a, b| {
            let order = b.steps_per_second.total_cmp(&a.steps_per_second).then(b.steps.cmp(&a.steps));
            order.then(a.id.cmp(&b.id))
        });
        pieces.items.sort_by_key(|piece| (std::cmp::Reverse(piece.steps), piece.session, piece.number));
        // Nodes before clients, and those by name.
        peers.items.sort_by(|a, b| (a.task.is_none(), &a.task, &a.peer).cmp(&(b.task.is_none(), &b.task, &b.peer)));
        *sessions = std::mem::take(sessions).cut();
        *pieces = std::mem::take(pieces).cut();
        *devices = std::mem::take(devices).cut();
        *resources = std::mem::take(resources).cut();
        *peers = std::mem::take(peers).cut();
        limits.truncate(MAX_LISTED);
        for session in &mut sessions.items {
            session.fetched.truncate(MAX_FETCHED);
            session.fetched.iter_mut().for_each(|fetched| shorten_to(&mut fetched.name, MAX_FETCHED_BYTES));
        }
        for device in &mut devices.items {
            shorten(&mut device.backend);
            shorten(&mut device.description);
        }
        for resource in &mut resources.items {
            shorten(&mut resource.container);
            shorten(&mut resource.name);
            resource.dtypes.truncate(MAX_COMPONENTS);
            if resource.shape.0.as_ref().is_some_and(|sizes| sizes.len() > MAX_COMPONENTS) {
                resource.shape = PartialShape::UNKNOWN;
            }
        }
        for peer in &mut peers.items {
            shorten(&mut peer.address);
            if let Some(task) = &mut peer.task {
                shorten(&mut task.job);
            }
            if let LinkState::Mending { why, .. } = &mut peer.state {
                shorten(why);
            }
        }
        self
    }
}

/// Cuts a text to [`MAX_NAME_BYTES`].
pub(crate) fn shorten(text: &mut String) {
    shorten_to(text, MAX_NAME_BYTES);
}

/// Cuts a text to that many bytes.
pub fn shorten_to(text: &mut String, most: usize) {
    const CUT: &str = "…";
    if text.len() > most {
        let end = (0..=most - CUT.len()).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(CUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::look::Point;

    fn session(id: u64, steps: u64) -> SessionStatus {
        SessionStatus {
            id: SessionId(id),
            client: Peer::new("client"),
            age_ms: 0,
            idle_ms: 0,
            plans: 1,
            runs: 1,
            steps,
            steps_per_second: 0.0,
            fetched: Vec::new(),
        }
    }

    fn resource(name: &str) -> ResourceStatus {
        ResourceStatus {
            kind: "variable".to_owned(),
            device: "/job:ps/task:0/device:CPU:0".parse().unwrap(),
            container: String::new(),
            name: name.to_owned(),
            session: SessionId(1),
            is_isolated: false,
            dtypes: vec![DType::F32],
            shape: PartialShape::UNKNOWN,
            bytes: Some(4),
            length: None,
            version: Some(1),
        }
    }

    #[test]
    fn rates_are_what_was_counted_in_the_time_between() {
        let mut earlier = NodeStatus { sessions: Listed::all(vec![session(1, 100)]), ..NodeStatus::default() };
        earlier.sessions.items.push(session(2, 7));
        // The third did not exist then.
        let sessions = Listed::all(vec![session(1, 350), session(2, 7), session(3, 50)]);
        let mut now = NodeStatus { sessions, ..NodeStatus::default() };
        now.measure(&earlier.counters(), 500_000);
        assert_eq!(now.window_ms, 500);
        let rates: Vec<f64> = now.sessions.items.iter().map(|session| session.steps_per_second).collect();
        assert_eq!(rates, [500.0, 0.0, 100.0]);
    }

    #[test]
    fn clients_are_counted_beyond_the_end_of_the_list() {
        for (nodes, clients, want) in
            [(0, 0, Some(0)), (2, 3, Some(3)), (2, 500, Some(500)), (MAX_LISTED, 0, Some(0)), (MAX_LISTED, 1, None)]
        {
            let tasks = (0..nodes).map(|n| Some(Task::new("ps", n as u32)));
            let peers = tasks.chain((0..clients).map(|_| None)).map(PeerStatus::quiet);
            let status = NodeStatus { peers: Listed::all(peers.collect()), ..NodeStatus::default() }.cut();
            assert_eq!(status.clients(), want, "{nodes} {clients}");
        }
    }

    #[test]
    fn an_answer_is_cut_to_its_limits_and_says_what_there_is() {
        let many = MAX_LISTED as u64 + 10;
        let mut status = NodeStatus {
            sessions: Listed::all((0..many).map(|id| session(id, id)).collect()),
            ..NodeStatus::default()
        };
        status.resources = Listed::all(vec![resource(&"ä".repeat(1000)), resource("w")]);
        status.measure(&Counters::default(), 1_000_000);
        let status = status.cut();
        let Listed { items, total } = &status.sessions;
        assert_eq!((items.len(), *total, status.sessions.left_out()), (MAX_LISTED, many, 10));
        // Those that ran most steps come first.
        assert_eq!(items[0].steps, many - 1);
        let name = &status.resources.items[0].name;
        assert!(name.len() <= MAX_NAME_BYTES && name.ends_with("ä…"), "{name}");
        assert_eq!(status.resources.items[1].name, "w");
    }

    #[test]
    fn the_largest_answer_is_little_more_than_a_small_message() {
        let long = || "x".repeat(10_000);
        let peer = || PeerStatus {
            peer: Peer::new("12D3KooW".repeat(6)),
            task: Some(Task::new(long(), 1)),
            is_spare: true,
            address: long(),
            state: LinkState::Mending { for_ms: u64::MAX, why: long() },
            up_ms: u64::MAX,
            heard_ms: u64::MAX,
            round_trip_us: Some(u64::MAX),
            bulk_bytes_per_second: Some(u64::MAX),
            sent_bytes: u64::MAX,
            received_bytes: u64::MAX,
            sent_per_second: 0.1,
            received_per_second: 0.1,
        };
        let shape = PartialShape(Some(vec![Some(usize::MAX); 1000]));
        let dtypes = vec![DType::F32; 1000];
        let variable =
            || ResourceStatus { container: long(), dtypes: dtypes.clone(), shape: shape.clone(), ..resource(&long()) };
        let fetched = || Fetched { name: long(), last: Point { step: u64::MAX, value: 0.1 } };
        let busy = |id| SessionStatus { fetched: vec![fetched(), fetched(), fetched()], ..session(id, u64::MAX) };
        let status = NodeStatus {
            sessions: Listed::all((0..1000).map(busy).collect()),
            resources: Listed::all((0..1000).map(|_| variable()).collect()),
            peers: Listed::all((0..1000).map(|_| peer()).collect()),
            ..NodeStatus::default()
        };
        let bytes = postcard::to_allocvec(&status.cut()).unwrap().len();
        // The size of two small messages, and only if every name has its greatest length.
        assert!(bytes <= 128 << 10, "{bytes}");
    }
}
