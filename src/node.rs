//! A participant of a mesh: joins it, hosts a worker and a master if it holds a task, opens sessions, leaves.
//!
//! This is the interface of programs that run on a mesh; `meshtf node` and `meshtf submit` are thin layers over it.

mod copies;
mod detached;
mod devices;
mod program;
mod reach;
mod router;
mod runs;
mod spare;
mod spec;
mod telling;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

pub(crate) use self::copies::Holder;
use self::copies::{Back, Copying};
use self::detached::DetachedRuns;
use self::devices::Examination;
use self::program::PythonProgram;
use self::router::MeshRouter;
use self::telling::Telling;
use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::{BackendChoice, cpu};
use meshtf_exec::Resources;
use meshtf_graph::plan::meant;
use meshtf_tensor::device::{DeviceKind, DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::memory::Budget;
pub use spec::ClusterSpec;

use crate::events::Follower;
use crate::mesh::{self, Mesh, MeshConfig, MeshError, MeshKey, Multiaddr, parse_address};
use crate::protocol::cached::CacheStatus;
use crate::protocol::look::SessionLook;
use crate::protocol::runs::RunsStatus;
use crate::protocol::{Cluster, DeviceInfo, Peer, SessionId, ToWorker};
use crate::runtime::host::{Host, requested_gpus};
use crate::runtime::requests::Requests;
use crate::runtime::router::Router;
use crate::runtime::weights::Weights;
#[doc(hidden)]
pub use crate::session::detached::{NewRun, NewTraining};
use crate::session::inquire;
use crate::weight_cache::WeightCache;

/// The interval of the checks of [`Node::wait_until`].
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Name of the mesh if none is given.
pub const DEFAULT_MESH: &str = crate::mesh::DEFAULT_MESH;

/// The options with which a participant joins, and its services. The default is a client of the mesh `meshtf` of this user's key,
/// found on the local network.
///
/// ```
/// use meshtf::{BackendChoice, NodeConfig, Task};
///
/// // A worker that listens on a fixed port, and dials a node of another network.
/// let config = NodeConfig {
///     task: Some(Task::new("worker", 0)),
///     backend: BackendChoice::Flex,
///     listen: vec!["0.0.0.0:4001".into()],
///     peers: vec!["ps.example.org:4001".into()],
///     ..NodeConfig::default()
/// };
/// assert_eq!((config.mesh.as_str(), config.open, config.mdns), ("meshtf", false, true));
/// ```
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

/// The reason why a node does not start.
///
/// ```
/// use meshtf::{Node, NodeConfig, NodeError};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let config = NodeConfig { mesh: "my mesh".into(), ..NodeConfig::default() };
/// match Node::start(config).await {
///     Ok(node) => println!("{} is up", node.peer()),
///     Err(NodeError::Data { folder, .. }) => eprintln!("choose another folder than {}", folder.display()),
///     Err(error) => assert!(error.to_string().contains("my mesh"), "{error}"),
/// }
/// # });
/// ```
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

/// A participant of a mesh. Dropping it leaves, without waiting until the goodbye is sent; see [`Node::close`]. Sessions and
/// inquiries are methods of [`Client`](crate::Client).
///
/// ```no_run
/// use std::time::Duration;
///
/// use meshtf::graph::GraphBuilder;
/// use meshtf::{Client, Node, NodeConfig, SessionOptions, Task};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let node = Node::start(NodeConfig { task: Some(Task::new("worker", 0)), ..NodeConfig::default() }).await?;
/// let ps = Task::new("ps", 0);
/// if !node.wait_for(std::slice::from_ref(&ps), Duration::from_secs(30)).await {
///     return Err(format!("{ps} is not up").into());
/// }
/// let mut g = GraphBuilder::new();
/// g.op("AddV2").name("y").input(40).input(2).device("/job:ps/task:0").build()?;
/// let session = node.session(g.finish()?, None, SessionOptions::default()).await?;
/// println!("{}", session.run().fetch("y").await?["y"]);
/// node.close().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Node {
    task: Option<Task>,
    mesh: Mesh,
    host: Arc<Host>,
    router: Arc<dyn Router>,
    /// `None` for a client, which has no devices.
    _telling: Option<Telling>,
    _examination: Option<Examination>,
    /// If its variables are copied.
    copying: Option<Copying>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mesh.part();
    }
}

impl Node {
    /// Joins the mesh; with a task, serves it from then on. Meanwhile it searches for GPUs, and advertises those that it finds.
    /// The node uses the tokio runtime on which this is called, which must have I/O and its timer enabled.
    ///
    /// # Errors
    /// If the task is held by a live node, an address cannot be used, or the key cannot be read or made. A client does not make
    /// a key: a node or a ticket does.
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, the node leaves the mesh again if it had joined, and its devices end.
    pub async fn start(config: NodeConfig) -> Result<Node, NodeError> {
        Node::start_within(config, Arc::default()).await
    }

    /// As [`Node::start`], with a memory budget for the node: its devices, its connections and its doors.
    ///
    /// # Errors
    /// As [`Node::start`].
    ///
    /// # Cancellation
    /// As [`Node::start`].
    #[doc(hidden)]
    pub async fn start_within(config: NodeConfig, budget: Arc<Budget>) -> Result<Node, NodeError> {
        Node::start_with(config, budget, None).await
    }

    /// As [`Node::start_within`]; with a cache, the node keeps the weights that its task used on the disk.
    ///
    /// # Errors
    /// As [`Node::start`].
    ///
    /// # Cancellation
    /// As [`Node::start`].
    #[doc(hidden)]
    pub async fn start_with(
        config: NodeConfig,
        budget: Arc<Budget>,
        cache: Option<WeightCache>,
    ) -> Result<Node, NodeError> {
        Node::join_mesh(config, budget, cache, false, None).await
    }

    /// As [`Node::start_with`]; the variables of the node's task outlive its process. `keeps` so often, what has changed of them
    /// is copied to another node, and a process that takes the task again begins with the newest copy.
    ///
    /// # Errors
    /// As [`Node::start`].
    ///
    /// # Cancellation
    /// As [`Node::start`].
    #[doc(hidden)]
    pub async fn start_keeping(
        config: NodeConfig,
        budget: Arc<Budget>,
        cache: Option<WeightCache>,
        keeps: Duration,
    ) -> Result<Node, NodeError> {
        let back = Node::look_back(&config, &budget).await;
        Node::join_mesh(config, budget, cache, false, Some((keeps, back))).await
    }

    /// The copy that other nodes have of the variables of the task that this process is to hold. A mesh that cannot be joined as
    /// a client has none: as a node, it may be.
    async fn look_back(config: &NodeConfig, budget: &Arc<Budget>) -> Back {
        let Some(task) = &config.task else { return Back::nothing() };
        let client = NodeConfig { task: None, listen: Vec::new(), ..config.clone() };
        // Boxed, since it is the same future.
        let scout = Box::pin(Node::join_mesh(client, Arc::clone(budget), None, false, None)).await;
        let Ok(scout) = scout else { return Back::nothing() };
        let back = Back::look(&scout, task).await;
        scout.close().await;
        back
    }

    /// The requests of this participant.
    fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.host.client)
    }

    async fn join_mesh(
        config: NodeConfig,
        budget: Arc<Budget>,
        cache: Option<WeightCache>,
        is_spare: bool,
        keeps: Option<(Duration, Back)>,
    ) -> Result<Node, NodeError> {
        mesh::check_mesh_name(&config.mesh).map_err(MeshError::from)?;
        let home = config.home.clone().map_or_else(mesh::home, Ok).map_err(MeshError::from)?;
        let router = Arc::new(MeshRouter {
            mesh: OnceLock::new(),
            host: OnceLock::new(),
            unconfirmed: Mutex::new((!config.open).then(|| (home.clone(), config.mesh.clone()))),
        });
        let shared: Arc<dyn Router> = router.clone();
        let resources = resources(&config, &home)?.within(Arc::clone(&budget));
        let weights = cache.map_or_else(Weights::in_memory, Weights::with_cache);
        let host = Arc::new(Host::new(config.task.as_ref(), &shared, resources, weights));
        let _first = router.host.set(Arc::downgrade(&host));

        let mut devices = Vec::new();
        if let Some(task) = &config.task {
            devices.push(host.serve(task, cpu(config.backend))?);
            if config.backend == BackendChoice::Wgpu {
                // Requested by name: the node does not start without one.
                let (task, host) = (task.clone(), Arc::clone(&host));
                devices.extend(in_background(move || required_gpus(&task, &host)).await?);
            }
        }
        let keeps = config.task.as_ref().zip(keeps).map(|(task, (every, mut back))| {
            // Before anybody can reach the task.
            host.budget().run(|| back.put(&host, task));
            (every, back)
        });
        let joins = mesh_config(&config, &home, devices.clone(), is_spare)?;
        let joins = MeshConfig { budget: Arc::clone(&budget), is_spare, ..joins };
        let mesh = Mesh::join(joins, router).await?;
        if let Some(marks) = host.marks() {
            marks.begin(mesh.incarnation());
        }
        if let Some(master) = host.master() {
            let handle = tokio::runtime::Handle::current();
            let folder = own_folder(&home, "detached", &config.mesh, master.task());
            let requests = Arc::clone(&host.client);
            host.set_detached(DetachedRuns::new(mesh.clone(), master, requests, (handle, folder)));
        }
        let examine = |task| Examination::start(task, config.backend, devices, &host, &mesh);
        let examination = config.task.clone().map(examine);
        let telling = config.task.is_some().then(|| Telling::start(mesh.clone(), budget, &host));
        let copying = config
            .task
            .clone()
            .zip(keeps)
            .map(|(task, (every, back))| Copying::start(mesh.clone(), &host, task, every, back));
        Ok(Node {
            task: config.task,
            mesh,
            host,
            router: shared,
            _telling: telling,
            _examination: examination,
            copying,
        })
    }

    /// Has graphs call the functions of the Python program that listens at that path.
    #[doc(hidden)]
    pub fn serve_program(&self, path: PathBuf) {
        self.host.set_program(Arc::new(PythonProgram::at(path)));
    }

    /// Its memory budget.
    #[doc(hidden)]
    pub fn budget(&self) -> &Arc<Budget> {
        self.host.budget()
    }

    /// The task it holds.
    pub fn task(&self) -> Option<&Task> {
        self.task.as_ref()
    }

    /// Whether its variables outlive its process.
    pub(crate) fn keeps_variables(&self) -> bool {
        self.copying.is_some()
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

    /// Follows the events of this node from now on.
    pub fn events(&self) -> Follower {
        self.host.events.follow()
    }

    /// The state of a session whose master is the node of `target`: the scalars that it fetches, its last plan, its last traced
    /// step. The plan and the traced step of the given numbers are omitted.
    ///
    /// # Errors
    /// Aborted if the session is not open on that node. And as [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn look(
        &self,
        target: Option<&Task>,
        session: SessionId,
        plan: Option<u32>,
        traced: Option<u64>,
    ) -> Result<SessionLook> {
        inquire::look(&self.host.client, &self.master(target)?, session, plan, traced).await
    }

    /// The runs of the sessions whose master is the node of `target`, as their clients report them, and the time of steps.
    ///
    /// # Errors
    /// As [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn runs(&self, target: Option<&Task>) -> Result<RunsStatus> {
        inquire::runs(&self.host.client, &self.master(target)?).await
    }

    /// The weights that the node of `target` keeps on its disk.
    ///
    /// # Errors
    /// As [`Node::status`].
    ///
    /// # Cancellation
    /// As [`Node::status`].
    #[doc(hidden)]
    pub async fn cache(&self, target: Option<&Task>) -> Result<CacheStatus> {
        inquire::cache(&self.host.client, &self.master(target)?).await
    }

    /// Makes `tasks` forget every resource of `containers`; an empty name is the default container's.
    ///
    /// # Errors
    /// Unavailable if a task is not up; the other tasks have forgotten theirs.
    pub fn clear_containers(&self, containers: &[String], tasks: &[Task]) -> Result<()> {
        let cluster = self.mesh.cluster();
        let clear = |task: &Task| {
            let member = cluster.member(task).ok_or_else(|| no_task(&self.mesh, task, &cluster))?;
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
        if let Some(copying) = &self.copying {
            copying.end().await;
        }
        self.mesh.clone().leave().await;
    }

    /// The master of sessions that are opened on `target`, or without a target.
    ///
    /// # Errors
    /// Unavailable if it is not up, with the tasks that are.
    pub fn master(&self, target: Option<&Task>) -> Result<Peer> {
        match target.or(self.task.as_ref()) {
            None if self.host.master().is_some() => Ok(self.mesh.peer().clone()),
            wanted => reach::holder(&self.mesh, wanted),
        }
    }
}

/// `No node is up as /job:local/task:7; those that are: local/0.` NotFound if the name looks like a typo.
fn no_task(mesh: &Mesh, task: &Task, cluster: &Cluster) -> Failure {
    if let Some(one) = mesh.beyond().into_iter().find(|one| one.task == *task) {
        let why =
            format!("This machine has no connection with {one}; a firewall may drop it. Ask there, or let it in.");
        return Failure::new(Code::Unavailable, why).because(Reason::TaskDown);
    }
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
pub fn own_data(home: &Path, mesh: &str, task: &Task) -> PathBuf {
    own_folder(home, "data", mesh, task)
}

/// A folder of a task's own.
fn own_folder(home: &Path, what: &str, mesh: &str, task: &Task) -> PathBuf {
    home.join(what).join(mesh).join(format!("{}-{}", task.job, task.index))
}

/// Only a node, or a spare, makes the key of a mesh: no other participant would have a key that a client made.
fn mesh_config(
    config: &NodeConfig,
    home: &Path,
    devices: Vec<DeviceInfo>,
    is_spare: bool,
) -> Result<MeshConfig, MeshError> {
    if (config.task.is_some() || is_spare) && !config.open {
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

/// The GPUs of a node that requires one.
///
/// # Errors
/// InvalidArgument if there is none; and if one cannot be opened.
fn required_gpus(task: &Task, host: &Host) -> Result<Vec<DeviceInfo>> {
    requested_gpus(BackendChoice::Wgpu)?.into_iter().map(|gpu| host.serve(task, gpu)).collect()
}

/// Does work that may take long, on a thread for such work.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let ended = |error| Failure::new(Code::Internal, format!("a search for devices ended: {error}"));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}
