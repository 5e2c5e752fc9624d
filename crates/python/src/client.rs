//! Meshes that are joined, and clusters in this process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meshtf::graph::Graph as CheckedGraph;
use meshtf::plan::{PlaceBy, Plan, Signature};
use meshtf::status::{Cluster, NodeStatus};
use meshtf::{
    Client as _, Code, DataDir, Failure, Init, LocalCluster, Node, NodeConfig, Session, SessionOptions, Task,
};
use pyo3::prelude::*;
use serde_json::json;

use crate::convert::{backend_named, seconds_of, task_named};
use crate::error::{OrRaise, invalid, raised, refused};
use crate::graph::Graph;
use crate::runtime::{released, runtime, wait};
use crate::session::Session as OpenSession;

/// How long a joined client waits for the nodes that the first one announces.
const EVERYBODY_WAIT: Duration = Duration::from_millis(500);
/// How long the tasks of a graph are waited for; the planner reports those that are still missing.
const NAMED_TASKS_WAIT: Duration = Duration::from_millis(1500);

/// The tasks that a client reaches.
pub enum Reached {
    Mesh(Box<Node>),
    Local(LocalCluster),
}

/// The same call on either.
macro_rules! on {
    ($reached:expr, $client:ident => $call:expr) => {
        match $reached {
            Reached::Mesh($client) => $call,
            Reached::Local($client) => $call,
        }
    };
}

impl Reached {
    pub fn cluster(&self) -> Arc<Cluster> {
        on!(self, client => client.cluster())
    }

    pub async fn session(
        &self,
        graph: CheckedGraph,
        target: Option<&Task>,
        options: SessionOptions,
    ) -> meshtf::Result<Session> {
        on!(self, client => client.session(graph, target, options).await)
    }

    async fn explain(
        &self,
        graph: &CheckedGraph,
        target: Option<&Task>,
        signature: Signature,
        options: SessionOptions,
    ) -> meshtf::Result<Plan> {
        on!(self, client => client.explain(graph, target, signature, options).await)
    }

    async fn status(&self, task: &Task) -> meshtf::Result<NodeStatus> {
        on!(self, client => client.status(task).await)
    }

    async fn statuses(&self, limit: Duration) -> Vec<(Task, meshtf::Result<NodeStatus>)> {
        on!(self, client => client.statuses(limit).await)
    }

    /// Waits until the tasks of a graph are up, for a short while.
    pub async fn wait_for(&self, tasks: &[Task]) {
        if let Reached::Mesh(node) = self {
            node.wait_until(NAMED_TASKS_WAIT, || tasks.iter().all(|task| node.is_up(task))).await;
        }
    }
}

/// A client of a mesh, or of a cluster in this process.
#[pyclass(frozen, module = "meshtf._native")]
pub struct Client(Mutex<Option<Arc<Reached>>>);

impl Client {
    fn of(reached: Reached) -> Client {
        Client(Mutex::new(Some(Arc::new(reached))))
    }

    pub fn reached(&self, py: Python<'_>) -> PyResult<Arc<Reached>> {
        let reached = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reached.ok_or_else(|| refused(py, Code::FailedPrecondition, "the mesh was left: it was closed"))
    }
}

/// The options of a session.
fn options(py: Python<'_>, place: &str, soft_placement: bool, isolated: bool) -> PyResult<SessionOptions> {
    let place_by = match place {
        "names" => PlaceBy::Names,
        "auto" => PlaceBy::Cost,
        "throughput" => PlaceBy::Throughput,
        other => {
            return Err(invalid(py, format!("place is {other:?}; expected \"names\", \"auto\" or \"throughput\"")));
        }
    };
    Ok(SessionOptions { place_by, soft_placement, isolated, ..SessionOptions::default() })
}

/// The initialization of variables: if none has a value, always, or never.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Initialize {
    IfDue,
    Always,
    Never,
}

#[pymethods]
impl Client {
    /// The tasks that are up, with their devices, as JSON.
    fn tasks(&self, py: Python<'_>) -> PyResult<String> {
        let cluster = self.reached(py)?.cluster();
        let device = |device: &meshtf::status::DeviceInfo| {
            let facts = device.facts();
            json!({
                "name": device.name.to_string(), "backend": device.backend, "description": device.description,
                "memory": facts.capacity.memory.map(|memory| memory.total), "cores": facts.capacity.cores,
            })
        };
        let members = cluster.members().map(|member| {
            let devices: Vec<_> = member.devices.iter().map(device).collect();
            json!({ "job": member.task.job, "index": member.task.index, "devices": devices, "addresses": member.addresses })
        });
        Ok(json!(members.collect::<Vec<_>>()).to_string())
    }

    /// The status of a task, as JSON.
    fn status(&self, py: Python<'_>, task: &str) -> PyResult<String> {
        let (reached, task) = (self.reached(py)?, task_named(py, task)?);
        let status = wait(py, async move { reached.status(&task).await })?.or_raise(py)?;
        Ok(json!(status).to_string())
    }

    /// The short name of each task that is up and its status, as JSON; null for one that does not answer within the limit.
    fn statuses(&self, py: Python<'_>, seconds: f64) -> PyResult<String> {
        let (reached, limit) = (self.reached(py)?, seconds_of(py, seconds)?);
        let all = wait(py, async move { reached.statuses(limit).await })?;
        let all: Vec<_> = all.into_iter().map(|(task, status)| (task.short(), status.ok())).collect();
        Ok(json!(all).to_string())
    }

    /// Opens a session; gives variables their first values if they have none.
    #[pyo3(signature = (graph, *, target, place, soft_placement, isolated, guard, init))]
    #[allow(clippy::too_many_arguments)]
    fn session(
        &self,
        py: Python<'_>,
        graph: &Graph,
        target: Option<&str>,
        place: &str,
        soft_placement: bool,
        isolated: bool,
        guard: Option<f64>,
        init: Option<bool>,
    ) -> PyResult<OpenSession> {
        let reached = self.reached(py)?;
        let target = target.map(|name| task_named(py, name)).transpose()?;
        let guard = guard.map(|seconds| seconds_of(py, seconds)).transpose()?;
        let options = SessionOptions { guard, ..options(py, place, soft_placement, isolated)? };
        let init = match init {
            None => Initialize::IfDue,
            Some(true) => Initialize::Always,
            Some(false) => Initialize::Never,
        };
        if init == Initialize::Always && graph.file.init.is_empty() {
            return Err(invalid(py, "init=True: the graph has no nodes that initialize its variables"));
        }
        let file = Arc::clone(&graph.file);
        let opened = wait(py, async move {
            reached.wait_for(&file.graph.tasks()).await;
            let nodes = if init == Initialize::IfDue { &file.init[..] } else { &[] };
            let (graph, due) = Init::of(file.graph.clone(), nodes);
            let session = reached.session(graph, target.as_ref(), options).await?;
            let runs = match init {
                Initialize::Never => false,
                Initialize::Always => true,
                Initialize::IfDue => !file.init.is_empty() && due.is_due(&session).await?,
            };
            if runs {
                session.run().feeds(&file.feed).targets(&file.init).await?;
            }
            Ok::<_, Failure>(OpenSession::of(session, file, reached))
        });
        opened?.or_raise(py)
    }

    /// The plan of a run, as SVG and as JSON.
    #[pyo3(signature = (graph, fetches, targets, feeds, *, target, place, soft_placement))]
    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        py: Python<'_>,
        graph: &Graph,
        fetches: Vec<String>,
        targets: Vec<String>,
        feeds: Vec<String>,
        target: Option<&str>,
        place: &str,
        soft_placement: bool,
    ) -> PyResult<(String, String)> {
        let reached = self.reached(py)?;
        let target = target.map(|name| task_named(py, name)).transpose()?;
        let options = options(py, place, soft_placement, false)?;
        let file = Arc::clone(&graph.file);
        let signature = Signature { feeds, fetches, targets, ..Signature::default() };
        let plan = wait(py, async move {
            reached.wait_for(&file.graph.tasks()).await;
            // Without values, placeholders count as fed.
            let signature = signature.with_placeholders(&file.graph);
            reached.explain(&file.graph, target.as_ref(), signature, options).await
        });
        let plan = plan?.or_raise(py)?;
        let placements = plan
            .placements
            .iter()
            .map(|one| json!({ "node": one.node, "op": one.op, "device": one.device.to_string() }));
        let transfers = plan.transfers.iter().map(|one| {
            json!({ "tensor": one.tensor, "from": one.from.to_string(), "to": one.to.to_string(), "bytes": one.bytes })
        });
        let estimate = plan.estimate.as_ref().map(|estimate| estimate.step.as_secs_f64());
        let described = json!({
            "placements": placements.collect::<Vec<_>>(), "transfers": transfers.collect::<Vec<_>>(), "estimate": estimate,
        });
        Ok((plan.picture().svg(), described.to_string()))
    }

    /// Waits until these tasks are up; whether they are within the limit.
    fn wait_for(&self, py: Python<'_>, tasks: Vec<String>, seconds: f64) -> PyResult<bool> {
        let reached = self.reached(py)?;
        let tasks = tasks.iter().map(|name| task_named(py, name)).collect::<PyResult<Vec<Task>>>()?;
        let limit = seconds_of(py, seconds)?;
        wait(py, async move {
            match &*reached {
                Reached::Mesh(node) => node.wait_for(&tasks, limit).await,
                Reached::Local(cluster) => tasks.iter().all(|task| cluster.cluster().member(task).is_some()),
            }
        })
    }

    /// Leaves the mesh, or ends the cluster. Sessions that are open keep it until they are closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A process that was forked has no mesh to leave.
        if runtime().is_err() {
            return Ok(());
        }
        let reached = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(reached) = reached else { return Ok(()) };
        wait(py, async move {
            if let Reached::Mesh(node) = &*reached {
                node.close().await;
            }
            // A cluster ends its devices' threads and waits for them.
            let _ended = tokio::task::spawn_blocking(move || drop(reached)).await;
        })
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        released(self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Joins a mesh as a client.
#[pyfunction]
#[pyo3(signature = (*, name, peers, open, mdns, local, home, tasks, seconds, own_master))]
#[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
pub fn join(
    py: Python<'_>,
    name: String,
    peers: Vec<String>,
    open: bool,
    mdns: bool,
    local: bool,
    home: Option<PathBuf>,
    tasks: Vec<String>,
    seconds: f64,
    own_master: bool,
) -> PyResult<Client> {
    let limit = seconds_of(py, seconds)?;
    let tasks = tasks.iter().map(|name| task_named(py, name)).collect::<PyResult<Vec<Task>>>()?;
    let config = NodeConfig { mesh: name.clone(), peers, open, mdns, local, home, ..NodeConfig::default() };
    let node = wait(py, async move {
        let node = Node::start(config).await.map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
        if node.wait_for(&tasks, limit).await {
            node.wait_for_all(EVERYBODY_WAIT.min(limit)).await;
            if own_master {
                node.become_master(None)?;
            }
            return Ok(node);
        }
        let up: Vec<String> = node.cluster().tasks().map(Task::short).collect();
        node.close().await;
        let wanted: Vec<String> = tasks.iter().map(Task::short).collect();
        let missing = match (wanted.is_empty(), up.is_empty()) {
            (true, _) => format!(
                "no node of mesh {name:?} was found within {seconds} s. Start one with `meshtf node --name local/0`, give an \
                 address with peers=[…], or start nodes in this process with meshtf.local()"
            ),
            (false, true) => {
                format!("no node of mesh {name:?} was found within {seconds} s; expected {}", wanted.join(", "))
            }
            (false, false) => {
                format!("of {}, only {} were found within {seconds} s", wanted.join(", "), up.join(", "))
            }
        };
        Err(Failure::new(Code::Unavailable, missing))
    });
    node?.map(|node| Client::of(Reached::Mesh(Box::new(node)))).map_err(|failure| raised(py, failure))
}

/// Starts tasks in this process.
#[pyfunction]
#[pyo3(signature = (tasks, *, backend, data))]
pub fn local(py: Python<'_>, tasks: Vec<String>, backend: &str, data: Option<PathBuf>) -> PyResult<Client> {
    let tasks = tasks.iter().map(|name| task_named(py, name)).collect::<PyResult<Vec<Task>>>()?;
    let backend = backend_named(py, backend)?;
    let data = match data {
        None => None,
        Some(folder) => {
            Some(DataDir::new(&folder).map_err(|error| invalid(py, format!("{}: {error}", folder.display())))?)
        }
    };
    let cluster = wait(py, async move { LocalCluster::start_with_data(&tasks, backend, data) })?.or_raise(py)?;
    Ok(Client::of(Reached::Local(cluster)))
}
