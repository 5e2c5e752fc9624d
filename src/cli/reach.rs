//! How a command reaches a mesh: which one, by which addresses, and how long it waits for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Trouble;
use crate::checkpoint::DataDir;
use crate::exec::BackendChoice;
use crate::failure::Failure;
use crate::graph::Graph;
use crate::mesh::Attempt;
use crate::nearest::nearest;
use crate::node::{DEFAULT_MESH, Node, NodeConfig};
use crate::plan::{Plan, Signature, Task};
use crate::protocol::SessionOptions;
use crate::{LocalCluster, Session};

/// How long a command waits for the first node to be found.
const FIRST_NODE_WAIT: Duration = Duration::from_secs(8);
/// How long it then waits for the tasks that it needs by name. One that is still missing is an error that names it.
const NAMED_TASKS_WAIT: Duration = Duration::from_millis(1500);

/// How long it waits for the other nodes that the first tells of, so that the first task by name is the same each time.
const EVERYBODY_WAIT: Duration = Duration::from_millis(500);

/// Which mesh, and how to reach it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MeshArgs {
    /// Name of the mesh; nodes of different meshes do not see each other
    #[arg(long, env = "MESHTF_MESH", default_value = DEFAULT_MESH, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub mesh: String,
    /// Address of a node to dial, e.g. /ip4/10.0.0.7/tcp/4001 or 10.0.0.7:4001, where it is not found by itself; again,
    /// or with commas, for more
    #[arg(long, env = "MESHTF_PEERS", value_name = "ADDR", value_delimiter = ',')]
    pub peer: Vec<String>,
    /// Run without the mesh key: anybody who reaches the port is let in
    #[arg(long)]
    pub open: bool,
    /// Do not look on the local network by mDNS
    #[arg(long)]
    pub no_mdns: bool,
}

/// Where sessions are opened: on the nodes that are up, or on a cluster in this process.
pub(super) enum Reached {
    Mesh { node: Box<Node>, master: Option<Task> },
    Local { cluster: LocalCluster, master: Task },
}

impl Reached {
    /// A cluster in this process of the `tasks`, or of /job:localhost/task:0 where there are none. The first is the
    /// master, unless `target` is.
    pub fn local(
        mut tasks: Vec<Task>,
        target: Option<&Task>,
        backend: BackendChoice,
        data: Option<DataDir>,
    ) -> Result<Self, Trouble> {
        tasks.extend(target.cloned());
        if tasks.is_empty() {
            // As TensorFlow calls the one task of a program that names none.
            tasks.push(Task::new("localhost", 0));
        }
        let master = target.unwrap_or(&tasks[0]).clone();
        tasks.sort_unstable();
        tasks.dedup();
        Ok(Reached::Local { cluster: LocalCluster::start_with_data(&tasks, backend, data)?, master })
    }

    pub async fn session(&self, graph: Graph, options: SessionOptions) -> Result<Session, Failure> {
        match self {
            Reached::Mesh { node, master } => node.session(graph, master.as_ref(), options).await,
            Reached::Local { cluster, master } => cluster.session(graph, master, options).await,
        }
    }

    pub async fn explain(&self, graph: &Graph, signature: Signature, options: SessionOptions) -> Result<Plan, Failure> {
        match self {
            Reached::Mesh { node, master } => node.explain(graph, master.as_ref(), signature, options).await,
            Reached::Local { cluster, master } => cluster.explain(graph, master, signature, options).await,
        }
    }

    /// The trouble that a run of a graph ended with: where a task that the graph names is not up, the mesh is to blame
    /// and not the graph, unless its job looks like a slip of the pen for one that is.
    pub fn blame(&self, trouble: Trouble, tasks: &[Task]) -> Trouble {
        let Reached::Mesh { node, .. } = self else { return trouble };
        let (cluster, said) = (node.cluster(), trouble.to_string());
        let is_slip = |task: &Task| {
            let is_job = cluster.tasks().any(|other| other.job == task.job);
            !is_job && !nearest(&task.job, cluster.tasks().map(|other| other.job.as_str())).is_empty()
        };
        let is_down = |task: &Task| {
            cluster.member(task).is_none() && !is_slip(task) && said.contains(&format!("No node is up as {task}"))
        };
        if tasks.iter().any(is_down) { Trouble::mesh(said) } else { trouble }
    }

    /// Says goodbye, where there is anybody to say it to.
    pub async fn close(self) {
        if let Reached::Mesh { node, .. } = self {
            node.close().await;
        }
    }
}

impl MeshArgs {
    /// A node's configuration that says how to reach the mesh and nothing else: a client.
    pub fn client(&self) -> NodeConfig {
        NodeConfig {
            task: None,
            mesh: self.mesh.clone(),
            peers: self.peer.iter().filter(|peer| !peer.is_empty()).cloned().collect(),
            open: self.open,
            mdns: !self.no_mdns,
            ..NodeConfig::default()
        }
    }

    /// Joins as a client and waits until a node is found, and the `tasks` a while longer.
    pub async fn reach(&self, tasks: &[Task], deadline: Deadline) -> Result<Node, Trouble> {
        let node = Node::start(self.client()).await.map_err(Trouble::from)?;
        let wait = deadline.cut(FIRST_NODE_WAIT);
        if !node.wait_for(&[], wait).await {
            let message = format!(
                "no node of mesh {:?} was found within {} s. Start one with `meshtf node --name local/0`, name an \
                 address with --peer, or bring this machine in with `meshtf join`. Tried:\n{}",
                self.mesh,
                (wait.as_secs_f64() * 10.0).round() / 10.0,
                tried(&node),
            );
            node.close().await;
            return Err(Trouble::mesh(message));
        }
        // Those that are missing after that are the planner's to name, with what there is instead.
        node.wait_for(tasks, deadline.cut(NAMED_TASKS_WAIT)).await;
        node.wait_for_all(deadline.cut(EVERYBODY_WAIT)).await;
        Ok(node)
    }

    /// As [`MeshArgs::reach`], for sessions whose master is `target`.
    pub async fn reach_for(
        &self,
        mut tasks: Vec<Task>,
        target: Option<&Task>,
        deadline: Deadline,
    ) -> Result<Reached, Trouble> {
        tasks.extend(target.cloned());
        let node = self.reach(&tasks, deadline).await?;
        Ok(Reached::Mesh { node: Box::new(node), master: target.cloned() })
    }
}

/// What was tried to find somebody, and what came of it: a line for each, and one for all of which the same came.
pub(super) fn tried(node: &Node) -> String {
    let mut outcomes: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for Attempt { how, place, outcome } in node.mesh().tried() {
        outcomes.entry((how, outcome)).or_default().push(place);
    }
    let line = |((how, outcome), places): ((String, String), Vec<String>)| match &places[..] {
        [place] => format!("  {how} {place}: {outcome}"),
        _ => format!("  {how}, {} peers: {outcome}", places.len()),
    };
    let lines: Vec<String> = outcomes.into_iter().map(line).collect();
    if lines.is_empty() { "  nothing was there to try".to_owned() } else { lines.join("\n") }
}

/// A number of seconds, fractions too.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.trim_end_matches('s').parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        Err(_) if seconds > 0.0 => Err("a time limit is a shorter time than that".to_owned()),
        _ => Err("a time limit is a number of seconds above 0".to_owned()),
    }
}

/// What a command may take, from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    start: Instant,
    limit: Option<Duration>,
}

impl Deadline {
    pub fn after(limit: Option<Duration>) -> Self {
        Deadline { start: Instant::now(), limit }
    }

    /// How long something that takes `most` by itself may still take.
    fn cut(self, most: Duration) -> Duration {
        self.limit.map_or(most, |limit| most.min(limit.saturating_sub(self.start.elapsed())))
    }

    /// `work`, or the trouble that it took too long.
    pub async fn within<T>(self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        let Some(limit) = self.limit else { return work.await };
        tokio::time::timeout(limit.saturating_sub(self.start.elapsed()), work).await.unwrap_or_else(|_| {
            Err(Trouble::new(super::Exit::Timeout, format!("not done after {} s (--timeout)", limit.as_secs_f64())))
        })
    }
}
