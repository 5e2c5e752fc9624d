//! The mesh: how nodes and clients find, admit and reach each other.
//!
//! [`Mesh::join`] makes this process a participant; from then on [`Mesh::send`] carries messages to peers and an [`Inbox`]
//! takes the messages of peers. Small messages travel over one stream per peer (`control`), large ones over separate sockets
//! (`transfer`), and both only after the proof of the mesh key (`admission`). Connections may break; the `link` between
//! two participants continues over the next. The mesh does not interpret messages.

mod address;
mod admission;
mod beyond;
mod bulk_queue;
mod callers;
mod cause;
mod clock;
mod control;
mod denied;
mod discovery;
mod driver;
mod error;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod handshakes;
mod health;
mod incoming;
mod key;
mod link;
mod links;
mod order;
mod pace;
mod port;
mod registry;
mod release;
mod remembered;
mod roster;
mod sent;
mod single;
mod ticket;
mod traffic;
mod transfer;
mod transport;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use self::admission::Gate;
use self::driver::{Command, Driver};
use self::link::Link;
use self::port::Port;
use self::roster::{MAX_PEERS, Roster};
use self::transport::Transport;
#[cfg(target_os = "linux")]
use self::transport::local::Local;
use self::transport::tcp::Tcp;
use self::transport::tls::Tls;
pub use address::is_loopback;
pub use address::{Multiaddr, parse_address};
pub use beyond::{Beyond, may_be_reached, unexplained};
use discovery::Search;
pub use discovery::{Attempt, Source, Verdict};
pub(crate) use error::{DEFAULT_MESH, flag_of, keys_of};
pub use error::{KeyError, MeshError};

pub use key::{MeshKey, check_mesh_name, home, read_secret, remembered_addresses};
pub use libp2p::identity::Keypair;
use meshtf_tensor::device::Task;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;
pub use registry::{count_running, running_at};
pub use release::{Release, Speaks};
pub use remembered::{ports_file, remembered_ports};
pub use ticket::{Accepted, Ticket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::descriptors;
use crate::protocol::status::{LimitStatus, NetworkStatus};
use crate::protocol::{Cluster, DeviceInfo, Envelope, Hello, Incarnation, Peer, TaskDoors};
use crate::unauthenticated::Ports;

/// Most requests to the driver that are queued.
const MAX_COMMANDS: usize = 16;
/// Most messages from this participant to itself that are queued.
const MAX_LOCAL: usize = 16 << 10;

/// The receiver of messages and of membership events. It is called on the connection's own task, so it must not block: slow
/// work belongs in a queue. It may call [`Mesh::send`], but not [`Mesh::leave`].
pub trait Inbox: Send + Sync {
    /// The handle to answer with; called once, before the first message is delivered.
    fn joined(&self, _mesh: &Mesh) {}

    /// Any message but Hello and Goodbye. Small messages of one peer arrive in the order they were sent. Small messages may
    /// overtake a message over `MAX_SMALL_BYTES`, except those of its [`Flow`](crate::protocol::Flow). Messages that arrive
    /// before [`Mesh::join`] has returned are held back until then.
    fn deliver(&self, from: &Peer, envelope: Envelope);

    /// Calls `deliveries`, which calls [`Inbox::deliver`] for each deliverable message and holds the link's order lock
    /// meanwhile. Work that does not need that lock, such as a short computation, can follow in an override.
    fn around(&self, deliveries: &mut dyn FnMut()) {
        deliveries();
    }

    /// A peer is up and has said Hello. Later changes of its Hello show in [`Mesh::watch`]. For the peers found during `join`,
    /// it is called before `join` returns.
    fn up(&self, peer: &Peer, hello: &Hello);

    /// The peer is gone; called once for every `up`. `task` is the task that it held. Messages to it that have not arrived are
    /// lost. A broken connection is not reported by this: its messages arrive over the next one.
    fn down(&self, peer: &Peer, task: Option<&Task>, why: &str);

    /// The connection that carried the link with a peer broke; the link waits for another.
    fn broke(&self, _peer: &Peer, _why: &str) {}

    /// After `broke`: the link continues over another connection.
    fn mended(&self, _peer: &Peer) {}

    /// A request was refused because of a limit; it may be called for each of many.
    fn limit_reached(&self, _what: &str) {}

    /// Called a while after `down` of a peer that held a task. Other nodes that lost the peer have noticed by now; a node that
    /// has not can still reach it, though this participant could not. The peer may be up again on this participant, too.
    fn parted(&self, _peer: &Peer, _task: &Task, _why: &str) {}
}

/// The admission policy of a mesh.
#[derive(Clone, Debug)]
pub enum Admission {
    /// Participants that can prove that they have the key.
    Key(MeshKey),
    /// Any participant that can reach the port and is open too.
    Open,
}

/// The configuration with which a participant joins.
#[derive(Clone)]
pub struct MeshConfig {
    /// Name of the mesh; participants of other meshes are refused.
    pub mesh: String,
    /// How peers prove that they belong to the mesh.
    pub admission: Admission,
    /// A new one for every start, unless configured.
    pub identity: Keypair,
    /// The task to hold; `None` for a client, which hosts nothing and need not be reachable.
    pub task: Option<Task>,
    /// Whether it has no task until one of the mesh is lost, whose name it takes. Then [`Mesh::lost_tasks`] has those.
    pub is_spare: bool,
    /// The devices of the task. GPUs that are found later are announced with [`Mesh::set_devices`].
    pub devices: Vec<DeviceInfo>,
    /// Where to listen. Empty: a node on a free port of every interface, a client nowhere.
    pub listen: Vec<Multiaddr>,
    /// Peers to dial in addition to those that discovery finds; names are resolved again at every attempt.
    pub peers: Vec<Multiaddr>,
    /// As `peers`, but from a ticket accepted some time ago: another node may have the address now.
    pub remembered: Vec<Multiaddr>,
    /// Fixed addresses, of a cluster file: a node listens on its own and dials the others.
    pub fixed: BTreeMap<Task, Multiaddr>,
    /// File in which a node without configured listen addresses records its ports, so that it takes them again the next time.
    pub ports: Option<PathBuf>,
    /// Folder through which the processes of one machine find each other.
    pub registry: Option<PathBuf>,
    /// Look for peers on the LAN.
    pub mdns: bool,
    /// Reach processes of this user on this machine through Unix sockets, without encryption. Linux only; it has no effect on
    /// other systems, nor for other peers.
    pub local: bool,
    /// The memory budget of the participant, for messages.
    pub budget: Arc<Budget>,
}

impl MeshConfig {
    /// A client of `mesh` that does not search for peers.
    pub fn new(mesh: impl Into<String>, admission: Admission) -> Self {
        // 32 random bytes are a key; only a machine without randomness takes the other branch, and `join` reports it.
        let identity = match crate::random::bytes::<32>().map(Keypair::ed25519_from_bytes) {
            Ok(Ok(identity)) => identity,
            _ => Keypair::generate_ed25519(),
        };
        MeshConfig {
            mesh: mesh.into(),
            admission,
            identity,
            task: None,
            is_spare: false,
            devices: Vec::new(),
            listen: Vec::new(),
            peers: Vec::new(),
            remembered: Vec::new(),
            fixed: BTreeMap::new(),
            ports: None,
            registry: None,
            mdns: false,
            local: false,
            budget: Arc::default(),
        }
    }

    /// A client of this user's `mesh` that finds it by every means: the key, the addresses that tickets brought, the
    /// registry folder and mDNS. `open` runs without the key.
    ///
    /// # Errors
    /// [`MeshError::Key`] if the name is not valid, there is no key, or the user's folder cannot be used.
    pub fn of_user(mesh: &str, open: bool) -> Result<Self, MeshError> {
        MeshConfig::at_home(&home()?, mesh, open)
    }

    /// As [`MeshConfig::of_user`], with another folder for keys, addresses and the registry than the user's own.
    ///
    /// # Errors
    /// As [`MeshConfig::of_user`].
    pub fn at_home(home: &Path, mesh: &str, open: bool) -> Result<Self, MeshError> {
        check_mesh_name(mesh)?;
        let admission = if open { Admission::Open } else { Admission::Key(MeshKey::load(home, mesh)?) };
        Ok(MeshConfig {
            remembered: remembered_addresses(home, mesh)?,
            registry: Some(home.join("run")),
            mdns: true,
            local: true,
            ..MeshConfig::new(mesh, admission)
        })
    }
}

/// A participant's handle on its mesh. Clones are the same participant.
#[derive(Clone)]
pub struct Mesh {
    roster: Arc<Roster>,
    runtime: tokio::runtime::Handle,
    commands: mpsc::Sender<Command>,
    local: mpsc::Sender<Envelope>,
    search: Arc<Mutex<Search>>,
    /// The links with frames that wait for a flush.
    unflushed: Arc<Mutex<Vec<Arc<Link>>>>,
    ports: Arc<Ports>,
}

impl Mesh {
    /// Joins. A node returns within half a second: as soon as every known peer has answered, or after 0.4 s without an answer.
    /// A client that knows no peer returns at once, with an empty cluster to [`watch`](Mesh::watch).
    ///
    /// # Errors
    /// [`MeshError::TaskTaken`] if a live node holds the task; otherwise an error of the configuration, or of the operating
    /// system.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the participant leaves again if it had joined.
    pub async fn join(config: MeshConfig, inbox: Arc<dyn Inbox>) -> Result<Mesh, MeshError> {
        let tls = Arc::new(Tls::new(&config.identity)?);
        let mut transports: Vec<Arc<dyn Transport>> = vec![Arc::new(Tcp::new(Arc::clone(&tls)))];
        #[cfg(target_os = "linux")]
        if config.local {
            match Local::new(config.identity.public().to_peer_id(), tls, Arc::clone(&config.budget)) {
                Ok(local) => transports.push(Arc::new(local)),
                Err(error) => tracing::warn!("processes on this machine are reached over TCP alone: {error}"),
            }
        }
        Mesh::join_over(transports, config, inbox, Speaks::own()).await
    }

    /// As [`Mesh::join`], over these transports, as the given version of meshtf. Of several transports that handle an address,
    /// the first is used.
    async fn join_over(
        transports: Vec<Arc<dyn Transport>>,
        config: MeshConfig,
        inbox: Arc<dyn Inbox>,
        speaks: Speaks,
    ) -> Result<Mesh, MeshError> {
        check_mesh_name(&config.mesh)?;
        let hello = Hello {
            version: speaks.protocol,
            mesh: config.mesh.clone(),
            task: config.task.clone(),
            incarnation: Incarnation(crate::random::u64()),
            devices: config.devices.clone(),
            addresses: Vec::new(),
            since_unix_ms: unix_ms(),
            claims_since_unix_ms: unix_ms(),
            settled: false,
            peers: Vec::new(),
            out_of_reach: Vec::new(),
            doors: Vec::new(),
            is_spare: config.is_spare,
        };
        let id = config.identity.public().to_peer_id();
        let gate = Gate::new(id, &config.mesh, config.admission.clone(), speaks);
        let port = Arc::new(Port::new(transports, gate));
        let told = Arc::downgrade(&inbox);
        let tell = move |what: &str| told.upgrade().into_iter().for_each(|inbox| inbox.limit_reached(what));
        let ports = Arc::new(Ports::new(Arc::new(tell)));
        ports.add("unauthenticated peers at the mesh's port", port.unauthenticated_peers());
        let roster = Arc::new(Roster::new(hello, Peer::new(id.to_string()), inbox, port, Arc::clone(&config.budget)));
        let search = Arc::new(Mutex::new(Search::default()));
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let ports_file = config.ports.clone();
        let driver = Driver::start(config, roster.clone(), received, search.clone()).await?;
        let (met, everybody) = oneshot::channel();
        tokio::spawn(driver.run(met));

        let (local, mut to_self) = mpsc::channel(MAX_LOCAL);
        let own = roster.clone();
        tokio::spawn(async move {
            while let Some(envelope) = to_self.recv().await {
                own.deliver_local(envelope);
            }
        });
        let mesh = Mesh {
            roster,
            runtime: tokio::runtime::Handle::current(),
            commands,
            local,
            search,
            unflushed: Arc::default(),
            ports,
        };
        let _ = everybody.await;
        let lost = mesh.roster.lost().borrow().clone();
        if let Some((task, holder)) = lost {
            mesh.leave().await;
            return Err(MeshError::TaskTaken { task, holder });
        }
        if let Some(path) = ports_file {
            let opened: Vec<Multiaddr> = mesh.addresses().iter().filter_map(|text| text.parse().ok()).collect();
            let again: Vec<_> = mesh.roster.port().again(&opened).into_iter().filter_map(|(_, again)| again).collect();
            if let Err(error) = remembered::save(&path, &again) {
                tracing::warn!("another port will be used after a restart: {error}");
            }
        }
        mesh.roster.open(&mesh);
        Ok(mesh)
    }

    /// This participant.
    pub fn peer(&self) -> &Peer {
        &self.roster.me
    }

    /// The random number of this run.
    pub fn incarnation(&self) -> Incarnation {
        self.roster.incarnation
    }

    /// The nodes that are up, this one among them if it holds a task.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.roster.cluster().borrow().clone()
    }

    /// The cluster as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<Cluster>> {
        self.roster.cluster()
    }

    /// The tasks whose process was lost, for a spare: they did not leave, and nobody holds their names.
    pub fn lost_tasks(&self) -> watch::Receiver<BTreeSet<Task>> {
        self.roster.lost_tasks()
    }

    /// Whether every node that a connected peer names, with an address, is connected too.
    pub fn has_met_all(&self) -> bool {
        self.roster.has_met_all()
    }

    /// Whether the node `peer`, which is connected, can reach the node of `task`, as far as it has reported.
    pub fn is_met_by(&self, task: &Task, peer: &Peer) -> bool {
        self.roster.is_met_by(task, peer)
    }

    /// Whether a connected peer names a node that holds `task`, reachable from this participant or not.
    pub fn is_told_of(&self, task: &Task) -> bool {
        self.roster.is_told_of(task)
    }

    /// The nodes that connected ones name, and that this participant has no connection with.
    pub fn beyond(&self) -> Vec<Beyond> {
        self.roster.beyond()
    }

    /// Whether waiting is useless: every known peer refuses this participant, and the address of at least one of them was
    /// configured.
    pub fn is_turned_away(&self) -> bool {
        lock(&self.search).turned_away
    }

    /// Sends a message. It is on its way or queued when this returns, and arrives exactly once. It is lost only if the link to
    /// the peer ends, which [`Inbox::down`] reports: connections that break on the way are replaced. Never blocks, and may be
    /// called from any thread. A message to this participant itself reaches the inbox on a separate task.
    ///
    /// # Errors
    /// [`MeshError::NotConnected`], [`MeshError::QueueFull`], [`MeshError::TooLarge`]: nothing was sent.
    pub fn send(&self, to: &Peer, envelope: Envelope) -> Result<(), MeshError> {
        if let Some(link) = self.queue(to, envelope)? {
            link.flush();
        }
        Ok(())
    }

    /// As [`Mesh::send`], but the message may wait for the next [`Mesh::flush`], so that several leave together.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    pub fn send_soon(&self, to: &Peer, envelope: Envelope) -> Result<(), MeshError> {
        if let Some(link) = self.queue(to, envelope)? {
            let mut unflushed = lock(&self.unflushed);
            if !unflushed.iter().any(|other| Arc::ptr_eq(other, &link)) {
                unflushed.push(link);
            }
        }
        Ok(())
    }

    /// Queues a message. Returns the link to flush; `None` for a message to this participant itself.
    fn queue(&self, to: &Peer, envelope: Envelope) -> Result<Option<Arc<Link>>, MeshError> {
        if *to == self.roster.me {
            return self.local.try_send(envelope).map(|()| None).map_err(|_| MeshError::QueueFull {
                peer: to.clone(),
                what: "messages to itself that wait",
                limit: MAX_LOCAL,
            });
        }
        let link = self.roster.link(to).ok_or_else(|| MeshError::NotConnected { peer: to.clone() })?;
        transfer::send(&self.roster, &self.runtime, &link, envelope)?;
        Ok(Some(link))
    }

    /// Sends the messages that [`Mesh::send_soon`] queued.
    pub fn flush(&self) {
        let links = std::mem::take(&mut *lock(&self.unflushed));
        links.iter().for_each(|link| link.flush());
    }

    /// Makes every peer send an echo, so that a later [`Mesh::status`] reports the round-trip time.
    pub fn probe(&self) {
        self.roster.links().iter().for_each(|link| link.probe());
    }

    /// The condition of the links, and the use of this participant's limits.
    pub fn status(&self) -> NetworkStatus {
        let links = self.roster.links();
        let mut limits = vec![LimitStatus::new("peers", links.len(), MAX_PEERS)];
        if let Some(open) = descriptors::open() {
            limits.push(LimitStatus::new("descriptors", open, descriptors::limit()));
        }
        limits.extend(self.ports.held().into_iter().map(|(name, held, places)| LimitStatus::new(name, held, places)));
        NetworkStatus {
            mesh: Some(self.roster.own_hello().mesh),
            peers: links.iter().map(|link| link.status()).collect(),
            limits,
            traffic: self.roster.traffic(),
        }
    }

    /// This participant's ports, to which doors add theirs.
    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Changes this node's devices and tells every peer.
    pub fn set_devices(&self, devices: Vec<DeviceInfo>) {
        self.roster.change(|hello| hello.devices = devices);
    }

    /// Changes each of this node's devices; if any is then different, tells every peer.
    pub fn change_devices(&self, change: impl FnMut(&mut DeviceInfo)) {
        self.roster.change(|hello| hello.devices.iter_mut().for_each(change));
    }

    /// Changes the addresses at which TensorFlow's clients reach this node, and tells every peer.
    pub(crate) fn change_doors(&self, change: impl FnOnce(&mut Vec<String>)) {
        self.roster.change(|hello| {
            let mut doors = std::mem::take(&mut hello.doors);
            change(&mut doors);
            hello.set_doors(doors);
        });
    }

    /// The doors of every task that has one, this node's own included.
    pub(crate) fn doors(&self) -> Vec<TaskDoors> {
        self.roster.doors()
    }

    /// Multiaddrs that this participant listens on.
    pub fn addresses(&self) -> Vec<String> {
        self.roster.own_hello().addresses
    }

    /// The attempts to find peers so far.
    pub fn tried(&self) -> Vec<Attempt> {
        lock(&self.search).attempts.clone()
    }

    /// Returns when another node turns out to hold this one's task, which can be after `join`: two partitions of a network that
    /// find each other late, or a node that was suspended while another took its place. This node must stop then.
    ///
    /// # Cancellation
    /// Dropping the future only ends the wait.
    pub async fn lost(&self) -> MeshError {
        let mut lost = self.roster.lost();
        let lost = lost.wait_for(Option::is_some).await.ok().and_then(|lost| lost.clone());
        match lost {
            Some((task, holder)) => MeshError::TaskTaken { task, holder },
            None => MeshError::Left,
        }
    }

    /// As [`leave`](Mesh::leave), without waiting for it.
    pub fn part(&self) {
        let (done, _) = oneshot::channel();
        // A full queue contains such a request already.
        let _ = self.commands.try_send(Command::Leave(done));
    }

    /// Says goodbye to every peer and closes every connection; takes 0.3 s at most.
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the participant leaves nonetheless.
    pub async fn leave(self) {
        let (done, left) = oneshot::channel();
        if self.commands.send(Command::Leave(done)).await.is_ok() {
            let _ = left.await;
        }
    }
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
