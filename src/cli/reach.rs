//! The connection of a command to a mesh: the name of the mesh, its addresses, and the time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf::LocalCluster;
use meshtf::client::{Reach, Route};
use meshtf::diagnosis::{Conclusion, conclude_at_last};
use meshtf::doctor::{SERVICE_HOME, as_service};
use meshtf::mesh::{Attempt, KeyError, MeshError, MeshKey, home, parse_address};
use meshtf::node::{ClusterSpec, DEFAULT_MESH, Node, NodeConfig, NodeError};
use meshtf::protocol::Cluster;
use meshtf_checkpoint::DataDir;
use meshtf_engine::adapters::BackendChoice;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::memory::Budget;

use super::paint::{Paint, Tone, mention};
use super::{Outcome, Trouble};

/// How long a command waits for the first node to be found, and for the nodes that are up to meet.
const SEARCH_LIMIT: Duration = Duration::from_secs(8);
/// How long it waits for a key that a node on this machine, started at the same moment, is about to make.
const KEY_WAIT: Duration = Duration::from_secs(1);
/// How long it then waits for the tasks that it needs by name; a task that is still missing is an error.
const NAMED_TASKS_WAIT: Duration = Duration::from_millis(1500);

/// How long it waits for the nodes that the first one announces, so that the first task by name is always the same.
const EVERYBODY_WAIT: Duration = Duration::from_millis(500);
/// Polling interval for conditions without a notification.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Which mesh, and how to reach it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MeshArgs {
    /// Name of the mesh; nodes of different meshes do not see each other
    #[arg(long, env = "MESHTF_MESH", default_value = DEFAULT_MESH, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub mesh: String,
    /// Address of a node to dial, for nodes that are not found automatically: 10.0.0.7:4001 or /ip4/10.0.0.7/tcp/4001;
    /// repeatable, or separated by commas
    #[arg(long, env = "MESHTF_PEERS", value_name = "ADDR", value_delimiter = ',', value_parser = address)]
    pub peer: Vec<String>,
    /// Use no mesh key: every process that reaches the port is admitted
    #[arg(long)]
    pub open: bool,
    /// Do not search the local network by mDNS
    #[arg(long)]
    pub no_mdns: bool,
    /// Use TCP and TLS between processes of this machine, too, in place of Unix sockets
    #[arg(long)]
    pub tcp_only: bool,
}

/// How a command that asks nodes reaches them, and how long that and their answers may take.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AskArgs {
    /// Time limit in seconds [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    mesh: MeshArgs,
}

impl AskArgs {
    /// Joins as a client, waits for the `tasks`, does `work` within the rest of the time limit, and leaves.
    pub async fn ask(&self, tasks: &[Task], work: impl AsyncFnOnce(&Node) -> Outcome) -> Outcome {
        let deadline = Deadline::after(self.timeout);
        let node = self.mesh.reach(tasks, deadline).await?;
        let outcome = deadline.within(work(&node)).await;
        let outcome = outcome.map_err(|trouble| trouble.with_reasons(|| concluded(&node)));
        node.close().await;
        outcome
    }
}

/// The host of sessions: the nodes that are up, or a cluster in this process.
pub(super) enum Reached {
    Mesh { node: Box<Node>, master: Option<Task> },
    Local { cluster: LocalCluster, master: Task },
}

impl Reach for Reached {
    fn live(&self) -> Arc<Cluster> {
        match self {
            Reached::Mesh { node, .. } => node.live(),
            Reached::Local { cluster, .. } => cluster.live(),
        }
    }

    fn reach(&self, target: Option<&Task>) -> Result<Route, Failure> {
        match self {
            Reached::Mesh { node, master } => node.reach(target.or(master.as_ref())),
            Reached::Local { cluster, master } => cluster.reach(target.or(Some(master))),
        }
    }

    fn own_master(&self) -> Option<Task> {
        match self {
            Reached::Mesh { node, master } => master.clone().or_else(|| node.own_master()),
            Reached::Local { master, .. } => Some(master.clone()),
        }
    }

    fn has_met(&self, master: &Task, other: &Task) -> bool {
        match self {
            Reached::Mesh { node, .. } => node.has_met(master, other),
            Reached::Local { .. } => true,
        }
    }
}

impl Reached {
    /// A cluster in this process of the `tasks`, or of /job:localhost/task:0 if there are none. The master is
    /// `target`, or the first.
    pub fn local(
        mut tasks: Vec<Task>,
        target: Option<&Task>,
        backend: BackendChoice,
        data: Option<DataDir>,
        budget: &Arc<Budget>,
    ) -> Result<Self, Trouble> {
        tasks.extend(target.cloned());
        if tasks.is_empty() {
            // TensorFlow's name for the task of a program that names none.
            tasks.push(Task::new("localhost", 0));
        }
        let master = target.unwrap_or(&tasks[0]).clone();
        tasks.sort_unstable();
        tasks.dedup();
        Ok(Reached::Local { cluster: LocalCluster::start_within(&tasks, backend, data, budget)?, master })
    }

    /// Has this process master the sessions that are opened without a target, once it has met those of the `tasks` that are up.
    pub async fn become_master(mut self, tasks: &[Task]) -> Result<Self, Trouble> {
        if let Reached::Mesh { node, master } = &mut self {
            let has_met = |task: &Task| node.live().member(task).is_some() || !node.is_up(task);
            node.wait_until(SEARCH_LIMIT, || tasks.iter().all(has_met)).await;
            node.become_master(master.take().as_ref())?;
        }
        Ok(self)
    }

    /// The failure with its reasons: if a task is down, the peers that were seen and not met, and why.
    pub fn explain_trouble(&self, trouble: Trouble) -> Trouble {
        match self {
            Reached::Mesh { node, .. } => trouble.with_reasons(|| concluded(node)),
            Reached::Local { .. } => trouble,
        }
    }

    /// The names of those of the `tasks` that are not up.
    pub fn missing(&self, tasks: &[Task]) -> BTreeSet<String> {
        match self {
            Reached::Mesh { node, .. } => tasks.iter().filter(|task| !node.is_up(task)).map(Task::short).collect(),
            Reached::Local { .. } => BTreeSet::new(),
        }
    }

    /// Leaves the mesh, if it joined one.
    pub async fn close(self) {
        if let Reached::Mesh { node, .. } = self {
            node.close().await;
        }
    }
}

impl MeshArgs {
    /// The configuration of a client: only the options for reaching the mesh.
    pub fn client(&self) -> NodeConfig {
        NodeConfig {
            task: None,
            mesh: self.mesh.clone(),
            peers: self.peer.iter().filter(|peer| !peer.is_empty()).cloned().collect(),
            open: self.open,
            mdns: !self.no_mdns,
            local: !self.tcp_only,
            ..NodeConfig::default()
        }
    }

    /// The same as flags, for another process.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--mesh".to_owned(), self.mesh.clone()];
        for peer in self.peer.iter().filter(|peer| !peer.is_empty()) {
            flags.extend(["--peer".to_owned(), peer.clone()]);
        }
        let set = [("--open", self.open), ("--no-mdns", self.no_mdns), ("--tcp-only", self.tcp_only)];
        flags.extend(set.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.to_owned()));
        flags
    }

    /// The key of the mesh. If none exists, it is made, with a message for users who meant to join another machine's mesh.
    pub fn own_key(&self) -> Result<MeshKey, Trouble> {
        let home = home().map_err(key_trouble)?;
        let (key, made) = MeshKey::load_or_create(&home, &self.mesh).map_err(NodeError::from)?;
        if made {
            mention(format_args!(
                "mesh {:?} is new on this machine; its key was made in {}. To add another machine, use `meshtf ticket` here \
                 and `meshtf join` there.",
                self.mesh,
                home.join("keys").display()
            ));
        }
        Ok(key)
    }

    /// Returns once a key exists. Only nodes and tickets make one.
    async fn wait_for_key(&self, deadline: Deadline) -> Result<(), Trouble> {
        let home = home().map_err(key_trouble)?;
        let looking = Instant::now();
        let wait = deadline.cut(KEY_WAIT);
        loop {
            match MeshKey::load(&home, &self.mesh) {
                Ok(_) => return Ok(()),
                Err(KeyError::Missing { .. }) if looking.elapsed() < wait => tokio::time::sleep(LOOK_AGAIN).await,
                Err(error) => return Err(key_trouble(error)),
            }
        }
    }

    /// Joins as a client and waits until a node is found, and a while longer for the `tasks`.
    pub async fn reach(&self, tasks: &[Task], deadline: Deadline) -> Result<Node, Trouble> {
        self.reach_within(tasks, deadline, Arc::default()).await
    }

    /// As [`MeshArgs::reach`], with a memory budget.
    async fn reach_within(&self, tasks: &[Task], deadline: Deadline, budget: Arc<Budget>) -> Result<Node, Trouble> {
        if !self.open {
            self.wait_for_key(deadline).await?;
        }
        let node = Node::start_within(self.client(), budget).await.map_err(Trouble::from)?;
        let wait = deadline.cut(SEARCH_LIMIT);
        let found = tokio::select! {
            found = node.wait_for(&[], wait) => found,
            () = turned_away(&node) => false,
        };
        if !found {
            let message = if node.mesh().is_turned_away() {
                format!(
                    "this machine is not admitted to mesh {:?}. Tried:\n{}{}",
                    self.mesh,
                    tried(&node),
                    concluded(&node)
                )
            } else {
                format!(
                    "no node of mesh {:?} was found within {} s. Start one with `meshtf node --name local/0`, give \
                     an address with --peer, or add this machine with `meshtf join`. Tried:\n{}{}",
                    self.mesh,
                    (wait.as_secs_f64() * 10.0).round() / 10.0,
                    tried(&node),
                    concluded(&node)
                )
            };
            node.close().await;
            return Err(Trouble::mesh(message));
        }
        // The planner reports tasks that are still missing, with those that exist.
        let named = node.wait_until(deadline.cut(NAMED_TASKS_WAIT), || tasks.iter().all(|task| node.is_up(task)));
        named.await;
        node.wait_for_all(deadline.cut(EVERYBODY_WAIT)).await;
        Ok(node)
    }

    /// Like [`MeshArgs::reach`], for sessions whose master is `target`. A master or task that has just started may not
    /// have met the others yet: this waits until the master has met every task that is up.
    pub async fn reach_for(
        &self,
        mut tasks: Vec<Task>,
        target: Option<&Task>,
        deadline: Deadline,
        budget: Arc<Budget>,
    ) -> Result<Reached, Trouble> {
        tasks.extend(target.cloned());
        let node = self.reach_within(&tasks, deadline, budget).await?;
        let are_met = || {
            let Ok(master) = node.master(target) else { return true };
            tasks.iter().all(|task| !node.is_up(task) || node.mesh().is_met_by(task, &master))
        };
        node.wait_until(deadline.cut(SEARCH_LIMIT), are_met).await;
        Ok(Reached::Mesh { node: Box::new(node), master: target.cloned() })
    }
}

/// The cluster of --cluster.
pub(super) fn read_cluster_spec(path: &Path) -> Result<ClusterSpec, Trouble> {
    let wrong = |why: String| {
        Trouble::input(format!(
            "--cluster {}: {why}; expected JSON such as {{\"worker\": [\"10.0.0.1:4001\", \"10.0.0.2:4001\"]}}",
            path.display()
        ))
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    ClusterSpec::from_json(&text).map_err(|failure| wrong(failure.message))
}

fn key_trouble(error: KeyError) -> Trouble {
    let hint = match &error {
        KeyError::Missing { path, .. } => as_service(path, Path::new(SERVICE_HOME)),
        _ => None,
    };
    let trouble = Trouble::from(NodeError::from(MeshError::from(error)));
    match hint {
        Some(hint) => Trouble::new(trouble.exit, format!("{trouble}. {hint}")),
        None => trouble,
    }
}

/// A conclusion as lines for people.
pub(super) fn shown(conclusion: &Conclusion, paint: Paint) -> String {
    format!("{}\n    {}", conclusion.what, paint.tone(Tone::Accent, &conclusion.remedy))
}

/// Returns once every known peer has rejected this participant.
async fn turned_away(node: &Node) {
    while !node.mesh().is_turned_away() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// The attempts to find a node and their outcomes: one line for each, or one for all with the same outcome.
pub(super) fn tried(node: &Node) -> String {
    let mut outcomes: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for Attempt { source, place, outcome, .. } in node.mesh().tried() {
        outcomes.entry((source.to_string(), outcome)).or_default().push(place);
    }
    let line = |((how, outcome), places): ((String, String), Vec<String>)| match &places[..] {
        [place] => format!("  {how} {place}: {outcome}"),
        _ => format!("  {how}, {} peers: {outcome}", places.len()),
    };
    let lines: Vec<String> = outcomes.into_iter().map(line).collect();
    if lines.is_empty() { "  no address was known".to_owned() } else { lines.join("\n") }
}

/// The reasons why peers that were seen are not met, as text to append to a message; empty if there are none.
pub(super) fn concluded(node: &Node) -> String {
    let shown = |one: &Conclusion| format!("\n  {}", shown(one, Paint::stderr()));
    match conclude_at_last(&node.mesh().tried()).iter().map(shown).collect::<String>() {
        text if text.is_empty() => text,
        text => format!("\nSo:{text}"),
    }
}

/// The text of an address, `HOST:PORT` or a multiaddr, if it is one. An empty one is left out later: `--peer a:1,` has one.
pub(super) fn address(text: &str) -> Result<String, String> {
    match parse_address(text) {
        _ if text.is_empty() => Ok(String::new()),
        Ok(_) => Ok(text.to_owned()),
        Err(MeshError::Address { why, .. }) => {
            let host = text.trim_end_matches(':');
            let example = if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) { host } else { "192.168.1.7" };
            Err(format!("{why}; expected host:port ({example}:4001) or a multiaddr (/ip4/{example}/tcp/4001)"))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// A number of seconds, fractions too.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.trim_end_matches('s').parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Err(_) if seconds > 0.0 => Err("the time limit is too long".to_owned()),
        _ => Err("expected a number of seconds above 0".to_owned()),
    }
}

/// A time limit for a command, from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    start: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    pub fn after(limit: Option<Duration>) -> Self {
        Deadline { start: Instant::now(), limit }
    }

    /// `most`, cut to the time that is left.
    fn cut(self, most: Duration) -> Duration {
        self.limit.map_or(most, |limit| most.min(limit.saturating_sub(self.start.elapsed())))
    }

    /// The outcome of `work`, or an error if it takes too long.
    pub async fn within<T>(self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        let Some(limit) = self.limit else { return work.await };
        tokio::time::timeout(limit.saturating_sub(self.start.elapsed()), work).await.unwrap_or_else(|_| {
            Err(Trouble::new(super::Exit::Timeout, format!("timed out after {} s (--timeout)", limit.as_secs_f64())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_not_the_services_user_is_told_of_it() {
        let service = temp_dir::TempDir::new().unwrap();
        let hint = as_service(Path::new("/root/.config/meshtf/keys/lab.key"), service.path()).unwrap();
        assert!(hint.contains("sudo -H -u meshtf meshtf"), "{hint}");
        assert_eq!(as_service(&service.path().join("keys/lab.key"), service.path()), None);
        assert_eq!(as_service(Path::new("/root/lab.key"), &service.path().join("none")), None);
    }
}
