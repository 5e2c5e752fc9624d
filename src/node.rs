//! A participant of a mesh: joins it, hosts a worker and a master if it holds a task, opens sessions, leaves.
//!
//! This is the interface of programs that run on a mesh; `meshtf node` and `meshtf submit` are thin layers over it.

mod router;
mod spec;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use self::router::MeshRouter;
use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::{BackendChoice, cpu, gpus};
use meshtf_exec::Resources;
use meshtf_graph::Graph;
use meshtf_graph::plan::{Plan, Signature, meant};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceKind, DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
pub use spec::ClusterSpec;

use crate::events::Follower;
use crate::mesh::{self, Mesh, MeshConfig, MeshError, MeshKey, Multiaddr, parse_address};
use crate::protocol::event::Noted;
use crate::protocol::inquiry::VariableName;
use crate::protocol::look::SessionLook;
use crate::protocol::status::{NodeStatus, ResourceStatus};
use crate::protocol::{Cluster, DeviceInfo, Peer, SessionId, SessionOptions, ToWorker};
use crate::runtime::host::Host;
use crate::runtime::router::Router;
use crate::session::{Session, explain, inquire};

/// The interval of the checks of [`Node::wait_until`].
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Name of the mesh if none is given.
pub const DEFAULT_MESH: &str = "meshtf";

/// The options with which a participant joins, and its services.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The task to hold; `None` for a client, which hosts nothing.
    pub task: Option<Task>,
    /// Name of the mesh.
    pub mesh: String,
    /// The backend, if a task is held.
    pub backend: BackendChoice,
    /// Addresses to listen on, multiaddrs or `host:port`; empty: every interface, a free port.
    pub listen: Vec<String>,
    /// Addresses to dial in addition to those that are discovered; multiaddrs or `host:port`.
    pub peers: Vec<String>,
    /// Without a mesh key: admit and dial every peer that has no key either.
    pub open: bool,
    /// Fixed addresses for the tasks.
    pub cluster: Option<ClusterSpec>,
    /// Folder that graphs may save to and restore from; `None`: the task's own folder below the home folder.
    pub data: Option<PathBuf>,
    /// Folder of keys and settings; `None`: the user's (see [`mesh::home`]).
    pub home: Option<PathBuf>,
    /// Whether to search the local network by mDNS.
    pub mdns: bool,
    /// Whether processes of this user on this machine are reached through Unix sockets, without encryption (Linux).
    pub local: bool,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            task: None,
            mesh: DEFAULT_MESH.to_owned(),
            backend: BackendChoice::default(),
            listen: Vec::new(),
            peers: Vec::new(),
            open: false,
            cluster: None,
            data: None,
            home: None,
            mdns: true,
            local: true,
        }
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The text of each explains its fields.
#[allow(missing_docs)]
pub enum NodeError {
    /// The mesh cannot be joined.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A device cannot be opened.
    #[error("{0}")]
    Device(#[from] Failure),
    /// The folder that graphs may save to cannot be made or used.
    #[error("the data folder {} cannot be used: {source}", folder.display())]
    Data { folder: PathBuf, source: std::io::Error },
}

/// A participant of a mesh. Dropping it leaves, without waiting until the goodbye is sent; see [`Node::close`].
pub struct Node {
    task: Option<Task>,
    mesh: Mesh,
    host: Arc<Host>,
    router: Arc<dyn Router>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh.part();
    }
}

impl Node {
    /// Joins the mesh; with a task, serves it from then on. Meanwhile it searches for GPUs, and advertises those that it finds.
    ///
    /// # Errors
    /// If the task is held by a live node, an address cannot be used, or the key cannot be read or made. A client does not make
    /// a key: a node or a ticket does.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the node leaves the mesh again if it had joined, and its devices end.
    pub async fn start(config: NodeConfig) -> Result<Node, NodeError> {
        mesh::check_mesh_name(&config.mesh).map_err(MeshError::from)?;
        let home = config.home.clone().map_or_else(mesh::home, Ok).map_err(MeshError::from)?;
        let router = Arc::new(MeshRouter {
            mesh: OnceLock::new(),
            host: OnceLock::new(),
            unconfirmed: Mutex::new((!config.open).then(|| (home.clone(), config.mesh.clone()))),
        });
        let shared: Arc<dyn Router> = router.clone();
        let resources = resources(&config, &home)?;
        let host = Arc::new(Host::new(config.task.as_ref(), &shared, resources));
        let _first = router.host.set(Arc::downgrade(&host));

        let mut devices = Vec::new();
        if let Some(task) = &config.task {
            devices.push(host.serve(task, cpu(config.backend))?);
        }
        let mesh = Mesh::join(mesh_config(&config, &home, devices.clone())?, router).await?;
        if let Some(task) = config.task.clone() {
            look_for_gpus(task, config.backend, devices, &host, &mesh);
        }
        Ok(Node { task: config.task, mesh, host, router: shared })
    }

    /// The task it holds.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// Its PeerId.
    pub fn peer(&self) -> &Peer {
        self.mesh.peer()
    }

    /// The multiaddrs it listens on.
    pub fn addresses(&self) -> Vec<String> {
        self.mesh.addresses()
    }

    /// The devices it serves so far.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let cluster = self.mesh.cluster();
        self.task.as_ref().and_then(|task| cluster.member(task)).map(|own| own.devices.clone()).unwrap_or_default()
    }

    /// The nodes that are up now.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.mesh.cluster()
    }

    /// The mesh, for functions that need no session.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Waits until all of `tasks` are up, or at least one if `tasks` is empty. Returns whether they came up within `limit`.
    ///
    /// # Cancellation
    /// Dropping the future only ends the wait.
    pub async fn wait_for(&self, tasks: &[Task], limit: Duration) -> bool {
        let mut watch = self.mesh.watch();
        let complete =
            watch.wait_for(|cluster| !cluster.is_empty() && tasks.iter().all(|task| cluster.member(task).is_some()));
        matches!(tokio::time::timeout(limit, complete).await, Ok(Ok(_)))
    }

    /// Whether a node holds `task`: one that is connected, or one that a connected peer names.
    pub fn is_up(&self, task: &Task) -> bool {
        self.mesh.cluster().member(task).is_some() || self.mesh.is_told_of(task)
    }

    /// Waits until `holds` returns true. Returns whether it did within `limit`.
    ///
    /// # Cancellation
    /// Dropping the future only ends the wait.
    pub async fn wait_until(&self, limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
        let looked = async {
            while !holds() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(limit, looked).await.is_ok()
    }

    /// Waits until every node that a connected one names is connected too, `limit` at most. Then the first task by name does
    /// not depend on which node answered first.
    ///
    /// # Cancellation
    /// Dropping the future only ends the wait.
    pub async fn wait_for_all(&self, limit: Duration) {
        let mut watch = self.mesh.watch();
        let everybody = watch.wait_for(|_| self.mesh.has_met_all());
        // Some may be unreachable from this machine; the mesh works without them.
        let _unreached = tokio::time::timeout(limit, everybody).await.is_err();
    }

    /// Opens a session on the master `target`; without one on this node, or for a client on the first task by name.
    ///
    /// # Errors
    /// Unavailable if `target` is not up, with the tasks that are; NotFound if its name looks like a typo;
    /// InvalidArgument if the graph is wrong.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master closes the session that it may have opened.
    pub async fn session(&self, graph: Graph, target: Option<&Task>, options: SessionOptions) -> Result<Session> {
        let master = self.master(target)?;
        Session::open(Arc::clone(&self.host.client), master, &graph, options).await
    }

    /// Plans a graph on a master without running it.
    ///
    /// # Errors
    /// As [`Node::session`] and [`plan`](meshtf_graph::plan::plan).
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the master plans to the end nonetheless, and its answer is dropped.
    pub async fn explain(
        &self,
        graph: &Graph,
        target: Option<&Task>,
        signature: Signature,
        options: SessionOptions,
    ) -> Result<Plan> {
        explain(&self.host.client, &self.master(target)?, graph, signature, options).await
    }

    /// Follows the events of this node from now on.
    pub fn events(&self) -> Follower {
        self.host.events.follow()
    }

    /// The events of a node after the event of that number, or for 0 from the first that it keeps: the oldest ones, a limited
    /// number at a time. The number of the last is the argument of the next call; an empty answer states that there are no
    /// newer ones.
    ///
    /// They include the events of steps if `with_steps` is set: from the first call that requests them, and as long as no more
    /// than 5 s pass between two such calls. A node keeps the last 1024 of them, and as many of the others.
    ///
    /// # Errors
    /// As [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    pub async fn events_of(&self, target: Option<&Task>, after: u64, with_steps: bool) -> Result<Vec<Noted>> {
        inquire::events(&self.host.client, &self.master(target)?, after, with_steps).await
    }

    /// The status of a node: `target`, or this node, or the first task by name.
    ///
    /// # Errors
    /// As [`Node::session`].
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the answer of the node is dropped. Nothing changes on the node.
    pub async fn status(&self, target: Option<&Task>) -> Result<NodeStatus> {
        inquire::status(&self.host.client, &self.master(target)?).await
    }

    /// The status of every node that is up, by task. All are queried at once; DeadlineExceeded for those that do not answer
    /// within `limit`.
    ///
    /// # Cancellation
    /// As [`Node::status`].
    pub async fn statuses(&self, limit: Duration) -> Vec<(Task, Result<NodeStatus>)> {
        let cluster = self.cluster();
        let asked = cluster.tasks().map(async |task| {
            let answer = tokio::time::timeout(limit, self.status(Some(task))).await;
            let late = || format!("it did not answer within {} s", limit.as_secs_f64());
            (task.clone(), answer.unwrap_or_else(|_| Err(Failure::new(Code::DeadlineExceeded, late()))))
        });
        futures::future::join_all(asked).await
    }

    /// The state of a session whose master is the node of `target`: the scalars that it fetches, its last plan, its last traced
    /// step. The plan and the traced step of the given numbers are omitted.
    ///
    /// # Errors
    /// Aborted if the session is not open on that node. And as [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    pub async fn look(
        &self,
        target: Option<&Task>,
        session: SessionId,
        plan: Option<u32>,
        traced: Option<u64>,
    ) -> Result<SessionLook> {
        inquire::look(&self.host.client, &self.master(target)?, session, plan, traced).await
    }

    /// The variables, queues, accumulators, tables, iterators and readers of a node, in the order of their names.
    ///
    /// # Errors
    /// As [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    pub async fn resources(&self, target: Option<&Task>) -> Result<Vec<ResourceStatus>> {
        inquire::resources(&self.host.client, &self.master(target)?).await
    }

    /// The value of a node's variable that sessions share, and its version: the number of its changes.
    ///
    /// # Errors
    /// NotFound if there is no such variable; PermissionDenied if it is an isolated session's; FailedPrecondition while
    /// it has no value; InvalidArgument if several devices have one of that name and `device` is `None`. And as [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    pub async fn read_variable(&self, target: Option<&Task>, variable: VariableName) -> Result<(Tensor, u64)> {
        inquire::read_variable(&self.host.client, &self.master(target)?, variable).await
    }

    /// Sets a node's variable that sessions share; if a version is `expected`, only if the variable has that version. Returns
    /// the new version.
    ///
    /// # Errors
    /// Aborted if the variable has another version than that; InvalidArgument if it takes no such value; and as
    /// [`Node::read_variable`].
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the node sets the variable nonetheless, now or when an op that changes it
    /// is done. [`Node::read_variable`] shows by the version whether it has.
    pub async fn write_variable(
        &self,
        target: Option<&Task>,
        variable: VariableName,
        value: Tensor,
        expected: Option<u64>,
    ) -> Result<u64> {
        inquire::write_variable(&self.host.client, &self.master(target)?, variable, value, expected).await
    }

    /// Makes `tasks` forget every resource of `containers`; an empty name is the default container's.
    ///
    /// # Errors
    /// Unavailable if a task is not up; the other tasks have forgotten theirs.
    pub fn clear_containers(&self, containers: &[String], tasks: &[Task]) -> Result<()> {
        let cluster = self.mesh.cluster();
        let clear = |task: &Task| {
            let member = cluster.member(task).ok_or_else(|| no_task(task, &cluster))?;
            self.router.send(&member.peer, ToWorker::Clear { containers: containers.to_vec() }.into())
        };
        tasks.iter().map(clear).fold(Ok(()), Result::and)
    }

    /// Notes that a door of this node refused a request because of a limit.
    pub(crate) fn limit_reached(&self, what: &str) {
        self.host.events.note_limit(what);
    }

    /// Says goodbye to all peers and leaves.
    ///
    /// # Cancellation
    /// If the future is dropped after its first poll, the node leaves nonetheless.
    pub async fn close(&self) {
        self.mesh.clone().leave().await;
    }

    /// The master of sessions that are opened on `target`, or without a target.
    ///
    /// # Errors
    /// Unavailable if it is not up, with the tasks that are.
    pub fn master(&self, target: Option<&Task>) -> Result<Peer> {
        let cluster = self.mesh.cluster();
        let wanted = target.or(self.task.as_ref());
        let member = match wanted {
            Some(task) => cluster.member(task),
            None => cluster.members().next(),
        };
        member.map(|member| member.peer.clone()).ok_or_else(|| match wanted {
            None => Failure::new(Code::Unavailable, "no node of the mesh is up"),
            Some(task) => no_task(task, &cluster),
        })
    }
}

/// `No node is up as /job:local/task:7; those that are: local/0.` NotFound if the name looks like a typo.
fn no_task(task: &Task, cluster: &Cluster) -> Failure {
    let meant = meant(&DeviceSpec::from(&task.device(DeviceKind::Cpu, 0)).task_only(), cluster.tasks());
    if !meant.is_empty() {
        let why = format!("No node serves {task}; did you mean {}?", meant.join(" or "));
        return Failure::new(Code::NotFound, why);
    }
    let known: Vec<String> = cluster.tasks().map(Task::short).collect();
    let there = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let why = format!("No node serves {task}; the tasks that are up: {there}.");
    Failure::new(Code::Unavailable, why).because(Reason::TaskDown)
}

/// The resources of the task's graphs, and the folder that they may use, which is made if it does not exist.
fn resources(config: &NodeConfig, home: &Path) -> Result<Resources, NodeError> {
    let Some(task) = &config.task else { return Ok(Resources::new()) };
    let folder = config.data.clone().unwrap_or_else(|| own_data(home, &config.mesh, task));
    DataDir::new(&folder).map(Resources::with_data).map_err(|source| NodeError::Data { folder, source })
}

/// The folder that a task's graphs may use unless another is named.
pub(crate) fn own_data(home: &Path, mesh: &str, task: &Task) -> PathBuf {
    home.join("data").join(mesh).join(format!("{}-{}", task.job, task.index))
}

/// Only a node makes the key of a mesh: no other participant would have a key that a client made.
fn mesh_config(config: &NodeConfig, home: &Path, devices: Vec<DeviceInfo>) -> Result<MeshConfig, MeshError> {
    if config.task.is_some() && !config.open {
        MeshKey::load_or_create(home, &config.mesh)?;
    }
    let mut mesh = MeshConfig::at_home(home, &config.mesh, config.open)?;
    mesh.task = config.task.clone();
    mesh.devices = devices;
    mesh.listen = parse_all(&config.listen)?;
    mesh.peers = parse_all(&config.peers)?;
    let fixed = config.cluster.as_ref().map(ClusterSpec::addresses).unwrap_or_default();
    mesh.fixed =
        fixed.into_iter().map(|(task, text)| Ok((task, parse_address(&text)?))).collect::<Result<_, MeshError>>()?;
    if let (Some(task), true, None) = (&config.task, config.listen.is_empty(), &config.cluster) {
        mesh.ports = Some(mesh::ports_file(home, &config.mesh, task)?);
    }
    mesh.mdns = config.mdns;
    mesh.local = config.local;
    Ok(mesh)
}

fn parse_all(addresses: &[String]) -> Result<Vec<Multiaddr>, MeshError> {
    addresses.iter().map(|text| parse_address(text)).collect()
}

/// The search for adapters takes half a second the first time: a node serves before it is done.
fn look_for_gpus(task: Task, backend: BackendChoice, mut devices: Vec<DeviceInfo>, host: &Arc<Host>, mesh: &Mesh) {
    let (host, mesh) = (Arc::downgrade(host), mesh.clone());
    tokio::task::spawn_blocking(move || {
        let found = gpus(backend);
        if found.is_empty() && backend == BackendChoice::Wgpu {
            tracing::warn!("--backend wgpu, but neither Vulkan nor Metal nor DirectX 12 finds a GPU");
        }
        let Some(host) = host.upgrade() else { return };
        for gpu in found {
            match host.serve(&task, gpu) {
                Ok(info) => devices.push(info),
                Err(failure) => tracing::warn!("a GPU is not used: {failure}"),
            }
        }
        if devices.iter().any(|device| device.name.kind == DeviceKind::Gpu) {
            mesh.set_devices(devices);
        }
    });
}
