//! `meshtf node`: serves a task until a signal ends it.

mod keep;
mod spare;

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meshtf::Client;
use meshtf::diagnosis::{Conclusion, conclude};
use meshtf::door::tensorflow::OfCluster;
use meshtf::door::{Door, DoorConfig, DoorError, burn, tensorflow, web};
use meshtf::mesh::read_secret;
use meshtf::node::{Node, NodeConfig, NodeError};
use meshtf::protocol::Peer;
use meshtf::weight_cache::WeightCache;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::memory::Budget;

pub(super) use self::keep::KeepArgs;
use super::cache::CacheArgs;
use super::memory::{self, MemoryArgs};
use super::reach::{MeshArgs, address, read_cluster_spec, tried};
use super::signals::Signals;
use super::{Exit, Outcome, Trouble, output};

/// The time after which a node that has met no other reports its attempts, and the interval of its checks for new reasons.
const ALONE_AFTER: Duration = Duration::from_secs(5);
/// The time from a node's start until it returns the pages that only its start needed, if it has no work.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// The time from then until it does so again, with the pages that rare events needed.
const SETTLED_EVERY: Duration = Duration::from_secs(60);
/// How long a node that shuts down may take to notify its peers; work still running ends with the process.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_millis(700);
/// The target of the log's lines on the node as a whole.
const LOG: &str = "meshtf::node";
/// Maximum number of reasons that a node reports for peers it cannot meet.
const MAX_TOLD: usize = 64;

/// The flags of which one names the task.
pub(super) const TASK: &str = "task";

/// Serve a task of the mesh until SIGINT, SIGTERM or SIGHUP
///
/// Prints a line with name, PeerId, addresses and devices when the task is up. Nodes of one user on one machine find each other
/// without flags, as do nodes on one local network after `meshtf join`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new(TASK).required(true).args(["name", "spare"])), after_help = "\
Examples:
  meshtf node --name local/0
  meshtf node --spare                                  takes a lost task's name
  meshtf node --name worker/2 --take-over              takes one besides its own
  meshtf node --name /job:worker/task:1 --backend wgpu
  meshtf node --name ps/0 --listen 0.0.0.0:4001 --peer 10.0.0.7:4001
  meshtf node --name local/0 --grpc 127.0.0.1:2222
  meshtf node --name local/0 --burn 127.0.0.1:3000
  meshtf node --name local/0 --web 127.0.0.1:8080      the mesh in a browser
  meshtf node --name ps/0 --keep-variables 1s          they outlive the process
  meshtf node --name worker/0 --cluster cluster.json
  meshtf node --name worker/0 --listen 0.0.0.0:4001 --print-config \\
      > ~/.config/meshtf/config.toml
  meshtf node                                          the flags of that file

TensorFlow clients of --grpc 127.0.0.1:2222 use this target:
  tf.Session(\"grpc://127.0.0.1:2222\")

burn programs of --burn 127.0.0.1:3000 run with this environment:
  BURN_DEVICE=remote BURN_REMOTE_ADDRESS=ws://127.0.0.1:3000

Example of cluster.json:
  {\"worker\": [\"a:4001\", \"b:4001\"], \"ps\": [\"c:4001\"]}")]
pub struct Args {
    /// Name of the task, local/0 or /job:local/task:0
    #[arg(long, value_name = "TASK")]
    name: Option<Task>,
    /// Hold no task until a process of the mesh is lost that held one and does not come back within half a second; then take its
    /// name. A task that is stopped by SIGINT, SIGTERM or SIGHUP is not lost
    #[arg(long)]
    spare: bool,
    /// Besides its own name, take that of a lost task, as a spare does: on the hosts of --listen at free ports, with the same
    /// devices, and without --grpc, --burn and --web
    #[arg(long, requires = "name", conflicts_with = "spare")]
    take_over: bool,
    /// Compute backend; auto selects the best one available
    #[arg(long, value_name = "BACKEND", default_value = "auto")]
    backend: BackendChoice,
    /// Address to listen on, HOST:PORT or a multiaddr; repeatable, or separated by commas [default: every interface, at the last
    /// port or a free one]
    #[arg(long, value_name = "ADDR", value_delimiter = ',', value_parser = address)]
    listen: Vec<String>,
    /// File with a ClusterSpec, JSON from jobs to addresses: the task listens on its own address and dials the others
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Folder of the files that graphs may save and restore; they can access no others [default: a folder of the task's own]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Address of a server for TensorFlow clients, tf.Session("grpc://HOST:PORT"); port 0 selects a free port. Not encrypted; an
    /// address other than loopback requires --grpc-token-file
    #[arg(long, value_name = "HOST:PORT", value_parser = socket_address)]
    grpc: Option<SocketAddr>,
    /// File with the token of TensorFlow clients, readable by its owner only (chmod 600). Clients present the token as
    /// `authorization: Bearer TOKEN`, or as experimental.session_metadata.name in their ConfigProto
    #[arg(long, value_name = "FILE", requires = "grpc")]
    grpc_token_file: Option<PathBuf>,
    /// Maximum size of a message from a TensorFlow client, in bytes
    #[arg(long, value_name = "BYTES", requires = "grpc", default_value_t = tensorflow::DEFAULT_MAX_MESSAGE_BYTES)]
    grpc_limit: usize,
    /// Address of a server for burn programs, whose device is ws://HOST:PORT; port 0 selects a free port. Not encrypted; an
    /// address other than loopback requires --burn-token-file
    #[arg(long, value_name = "HOST:PORT", value_parser = socket_address)]
    burn: Option<SocketAddr>,
    /// File with the token of burn programs, readable by its owner only (chmod 600). Programs present the token as their
    /// credential
    #[arg(long, value_name = "FILE", requires = "burn")]
    burn_token_file: Option<PathBuf>,
    /// Address of a server for browsers, which shows the mesh at http://HOST:PORT, and for Prometheus, at /metrics; port 0
    /// selects a free port. Not encrypted; an address other than loopback requires --web-token-file
    #[arg(long, value_name = "HOST:PORT", value_parser = socket_address)]
    web: Option<SocketAddr>,
    /// File with the token of browsers and Prometheus, readable by its owner only (chmod 600). They present the token as
    /// `authorization: Bearer TOKEN`, or as ?token=TOKEN in the address
    #[arg(long, value_name = "FILE", requires = "web")]
    web_token_file: Option<PathBuf>,
    /// TOML file with values of flags by their names, for flags that are not given [default: config.toml next to the keys, if it
    /// exists]
    #[arg(long, value_name = "FILE", env = "MESHTF_CONFIG")]
    config: Option<PathBuf>,
    /// Print the settings of command line, environment and configuration file in the form of such a file, and exit
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    mesh: MeshArgs,
}

impl Args {
    /// Whether the command only prints the configuration.
    pub fn prints_config(&self) -> bool {
        self.print_config
    }
}

pub(super) async fn node(args: Args, budget: Arc<Budget>) -> Outcome {
    // Before any call that may take long, so that no signal is lost.
    let mut signals = Signals::listen()?;
    match &args.name {
        Some(name) if args.take_over => spare::beside(&args, name, budget, &mut signals).await,
        Some(name) => Ok(named(&args, name, budget, &mut signals, async || {}).await?),
        None => spare::spare(&args, budget, &mut signals).await,
    }
}

/// Serves the task of that name. `begins` is called once it is up.
async fn named(
    args: &Args,
    name: &Task,
    budget: Arc<Budget>,
    signals: &mut Signals,
    begins: impl AsyncFnOnce(),
) -> Result<Exit, Stop> {
    let cluster = args.cluster.as_deref().map(read_cluster_spec).transpose()?;
    let tasks: BTreeSet<Task> = cluster.iter().flat_map(|cluster| cluster.addresses().into_keys()).collect();
    let config = NodeConfig {
        task: Some(name.clone()),
        backend: args.backend,
        listen: args.listen.clone(),
        cluster,
        data: args.data.clone(),
        ..args.mesh.client()
    };
    let (mesh, cache) = (&args.mesh, args.cache.cache());
    let doors = async |node: &Arc<Node>| {
        let doors = Doors::open(args, node, tasks).await?;
        begins().await;
        Ok(doors)
    };
    let keeps = args.keep.every();
    let serving = Serving { task: name, mesh, budget, cache, keeps, config, expects_others: true };
    serve_until(serving, signals, doors, std::future::pending()).await
}

/// The reason why a node does not serve, or no longer.
enum Stop {
    Node(NodeError),
    Trouble(Trouble),
}

impl From<NodeError> for Stop {
    fn from(error: NodeError) -> Stop {
        Stop::Node(error)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Stop {
        Stop::Trouble(trouble)
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Trouble {
        match stop {
            Stop::Node(error) => error.into(),
            Stop::Trouble(trouble) => trouble,
        }
    }
}

/// The services of a node, for all commands that start one.
pub(super) struct Serving<'a> {
    pub task: &'a Task,
    pub mesh: &'a MeshArgs,
    pub budget: Arc<Budget>,
    /// The weights that it keeps on the disk, if it does.
    pub cache: Option<WeightCache>,
    /// How often its variables are copied to another node, if they are.
    pub keeps: Option<Duration>,
    pub config: NodeConfig,
    /// Whether a message is due if no other node is found.
    pub expects_others: bool,
}

/// Serves a task until a signal arrives, or `ends` is ready.
pub(super) async fn serve(
    serving: Serving<'_>,
    open: impl AsyncFnOnce(&Arc<Node>) -> Result<Doors, Trouble>,
    ends: impl Future<Output = ()>,
) -> Outcome {
    // Before any call that may take long, so that no signal is lost.
    let mut signals = Signals::listen()?;
    Ok(serve_until(serving, &mut signals, open, ends).await?)
}

async fn serve_until(
    serving: Serving<'_>,
    signals: &mut Signals,
    open: impl AsyncFnOnce(&Arc<Node>) -> Result<Doors, Trouble>,
    ends: impl Future<Output = ()>,
) -> Result<Exit, Stop> {
    let Serving { task, mesh, budget, cache, keeps, config, expects_others } = serving;
    if config.open {
        tracing::warn!(
            target: LOG,
            "--open: this node admits everybody who reaches its port and runs what they send. Use it \
        only on networks you trust, or leave it out and add machines with `meshtf ticket` and `meshtf join`."
        );
    }
    // With a home folder of its own, it has a mesh of its own.
    if !config.open && config.home.is_none() {
        mesh.own_key()?;
    }
    tokio::pin!(ends);
    meshtf::allocator::begin();
    let starts = async {
        match keeps {
            Some(keeps) => Node::start_keeping(config, budget, cache, keeps).await,
            None => Node::start_with(config, budget, cache).await,
        }
    };
    let node = tokio::select! {
        node = starts => node?,
        _ = signals.next() => return Ok(Exit::Ok),
        () = &mut ends => return Ok(Exit::Ok),
    };
    let node = Arc::new(node);
    let doors = open(&node).await?;
    output::line(&serving_line(task, &node, &doors))?;

    let mut settled = tokio::time::interval_at(tokio::time::Instant::now() + SETTLED_AFTER, SETTLED_EVERY);
    let mut alone = tokio::time::interval_at(tokio::time::Instant::now() + ALONE_AFTER, ALONE_AFTER);
    let mut reasons = Reasons::default();
    let mut is_new = true;
    loop {
        tokio::select! {
            _ = signals.next() => break,
            // Its clients are gone: no notification is needed.
            () = &mut ends => {
                let _ = tokio::time::timeout(LEAVE_LIMIT, node.close()).await;
                return Ok(Exit::Ok);
            }
            error = node.mesh().lost() => return Err(NodeError::from(error).into()),
            _ = settled.tick() => meshtf::allocator::settle(),
            _ = alone.tick(), if expects_others => {
                if std::mem::take(&mut is_new) && node.cluster().len() < 2 {
                    tracing::warn!(
                        target: LOG,
                        more = %tried(&node),
                        "{} has found no other node of mesh {:?} after {} s and keeps looking. Tried:",
                        task.short(), mesh.mesh, ALONE_AFTER.as_secs()
                    );
                }
                let met = node.cluster().members().map(|member| member.peer.clone()).collect();
                reasons.news(conclude(&node.mesh().tried()), met).iter().for_each(tell);
            }
        }
    }
    tracing::info!(target: LOG, "{} is shutting down", task.short());
    let _ = tokio::time::timeout(LEAVE_LIMIT, node.close()).await;
    Ok(Exit::Ok)
}

/// Reports a reason for which peers are not met.
fn tell(Conclusion { what, remedy, may_be_fine }: &Conclusion) {
    match may_be_fine {
        true => tracing::info!(target: LOG, more = %remedy, "{what}"),
        false => tracing::warn!(target: LOG, more = %remedy, "{what}"),
    }
}

/// The reasons that were reported, and the peers that were met then.
#[derive(Default)]
struct Reasons {
    told: BTreeSet<Conclusion>,
    met: BTreeSet<Peer>,
}

impl Reasons {
    /// The reasons to report: each once, and again if it had been overcome, when a new peer was met.
    fn news(&mut self, reasons: Vec<Conclusion>, met: BTreeSet<Peer>) -> Vec<Conclusion> {
        if !met.is_subset(&self.met) {
            self.told.retain(|told| reasons.contains(told));
        }
        self.met = met;
        let is_new = |reason: &Conclusion| self.told.len() < MAX_TOLD && self.told.insert(reason.clone());
        reasons.into_iter().filter(is_new).collect()
    }
}

/// The open servers for clients of other systems.
#[derive(Default)]
pub(super) struct Doors {
    pub grpc: Option<Door>,
    pub burn: Option<Door>,
    pub web: Option<Door>,
}

impl Doors {
    /// Opens those that the flags name; `tasks` are those of the ClusterSpec.
    async fn open(args: &Args, node: &Arc<Node>, tasks: BTreeSet<Task>) -> Result<Doors, Trouble> {
        let mut doors = Doors::default();
        if let Some(address) = args.grpc {
            let token = read_token("--grpc-token-file", args.grpc_token_file.as_deref())?;
            let config = DoorConfig { address, token };
            let cluster = OfCluster { tasks, address: None };
            let door = tensorflow::open_in(Arc::clone(node), config, args.grpc_limit, cluster).await;
            doors.grpc = Some(door.map_err(refused)?);
        }
        if let Some(address) = args.burn {
            let token = read_token("--burn-token-file", args.burn_token_file.as_deref())?;
            let config = DoorConfig { address, token };
            doors.burn = Some(burn::open(Arc::clone(node), config).await.map_err(refused)?);
        }
        if let Some(address) = args.web {
            let token = read_token("--web-token-file", args.web_token_file.as_deref())?;
            let config = DoorConfig { address, token };
            doors.web = Some(web::open(Arc::clone(node), config).await.map_err(refused)?);
        }
        Ok(doors)
    }

    /// ` grpc=127.0.0.1:2222 burn=127.0.0.1:3000 web=127.0.0.1:8080`, of the open doors.
    fn shown(&self) -> String {
        let grpc = self.grpc.as_ref().map(|door| format!(" grpc={}", door.address()));
        let burn = self.burn.as_ref().map(|door| format!(" burn={}", door.address()));
        let web = self.web.as_ref().map(|door| format!(" web={}", door.address()));
        [grpc, burn, web].into_iter().flatten().collect()
    }
}

/// A door that could not be opened.
pub(super) fn refused(error: DoorError) -> Trouble {
    Trouble::input(error.to_string())
}

/// The token in the file that a flag names, if it names one.
pub(super) fn read_token(flag: &str, path: Option<&Path>) -> Result<Option<String>, Trouble> {
    let Some(path) = path else { return Ok(None) };
    let wrong = |why: String| Trouble::input(format!("{flag} {}: {why}", path.display()));
    let text = read_secret(path).map_err(|error| Trouble::input(format!("{flag}: {error}")))?;
    let token = text.trim();
    if token.len() < 16 {
        return Err(wrong("a token must have at least 16 characters; `openssl rand -hex 16` makes one".to_owned()));
    }
    Ok(Some(token.to_owned()))
}

/// `127.0.0.1:2222`, `[::1]:2222` or `localhost:2222`.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{text:?} is not an address such as 127.0.0.1:2222: {why}");
    let mut found: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| wrong(&error))?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| wrong(&"the name has no address"))
}

/// `local/0 serves peer=12D3… addresses=/ip4/…,… devices=/job:local/task:0/device:CPU:0(flex) memory=6.40GB
/// grpc=127.0.0.1:2222 burn=127.0.0.1:3000 web=127.0.0.1:8080`
fn serving_line(task: &Task, node: &Node, doors: &Doors) -> String {
    let devices: Vec<String> =
        node.devices().iter().map(|device| format!("{}({})", device.name, device.backend)).collect();
    format!(
        "{} serves peer={} addresses={} devices={}{}{}",
        task.short(),
        node.peer(),
        node.addresses().join(","),
        devices.join(","),
        memory::shown(node.budget()),
        doors.shown()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_and_again_after_it_was_overcome() {
        let reason = |what: &str| Conclusion { what: what.to_owned(), remedy: String::new(), may_be_fine: false };
        let (silent, key) = (reason("nobody answers"), reason("refused our key"));
        let met = |peers: &[&str]| peers.iter().map(|&peer| Peer::new(peer)).collect::<BTreeSet<Peer>>();
        let mut reasons = Reasons::default();
        assert_eq!(reasons.news(vec![silent.clone(), key.clone()], met(&["me"])).len(), 2);
        assert_eq!(reasons.news(vec![silent.clone(), key.clone()], met(&["me"])), []);
        assert_eq!(reasons.news(vec![], met(&["me"])), []);
        assert_eq!(reasons.news(vec![silent.clone()], met(&["me"])), [], "it comes and goes, and nobody was met");
        // A peer is met: a reason that still holds is not reported again; one that no longer holds is reported when it returns.
        assert_eq!(reasons.news(vec![key.clone()], met(&["me", "other"])), []);
        assert_eq!(reasons.news(vec![key.clone(), silent.clone()], met(&["me"])), [silent]);
        let many = (0..2 * MAX_TOLD).map(|n| reason(&n.to_string())).collect();
        assert_eq!(reasons.news(many, met(&["me"])).len(), MAX_TOLD - 2);
    }
}
