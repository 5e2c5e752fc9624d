//! TensorFlow's `MasterService`: what each of its methods does with the node's sessions.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::grpc::{Caller, described};
use super::message as msg;
use super::rope::{Room, Rope, malformed};
use super::session::{Callable, DoorSession, lock};
use super::tensor::{Outgoing, read, read_named};
use super::trace::full_name;
use crate::device::{DeviceKind, DeviceSpec, Task};
use crate::failure::{Code, Failure, Result};
use crate::graph::Graph;
use crate::graph::graphdef::{self, GraphDef};
use crate::node::Node;
use crate::plan::DeviceName;
use crate::protocol::{Cluster, Member, SessionOptions};
use crate::tensor::Tensor;

/// How long a new session waits for the tasks that its graph names, where the client sets no limit.
const TASKS_WAIT: Duration = Duration::from_secs(10);
/// How long it waits where none of the jobs is there: a graph that was written for another cluster.
const OTHER_CLUSTER_WAIT: Duration = Duration::from_millis(1500);
/// Most sessions that are open at once.
const MAX_SESSIONS: usize = 1024;
/// How long a session stays after its client's last connection has ended and its last call was made: clients close idle
/// connections, and come back.
const ORPHAN_KEPT: Duration = Duration::from_secs(2 * 60 * 60);
/// How many of the largest messages may be under way at once, together.
const MESSAGES_UNDER_WAY: usize = 4;

/// The field of a RunStepRequest and of a RunCallableRequest that holds feeds, and of their responses that holds tensors.
const STEP_FEED: u32 = 2;
const CALLABLE_FEED: u32 = 3;
const FETCHED: u32 = 1;

pub(super) struct MasterService {
    node: Arc<Node>,
    room: Room,
    token: Option<String>,
    /// The jobs that graphs named and that were there: one that is gone may come back.
    met: Mutex<HashSet<String>>,
    sessions: Mutex<HashMap<String, Arc<DoorSession>>>,
}

/// A request for one step.
struct RunStep {
    head: msg::RunStepRequest,
    feeds: Vec<(String, Tensor)>,
}

impl MasterService {
    pub fn new(node: Arc<Node>, max_message_bytes: usize, token: Option<String>) -> Self {
        MasterService {
            node,
            room: Room::new(max_message_bytes, MESSAGES_UNDER_WAY),
            token,
            met: Mutex::default(),
            sessions: Mutex::default(),
        }
    }

    /// The room for messages that come in.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Does what a method is asked; `message` is its request.
    pub async fn call(&self, method: &str, mut message: Rope, caller: &Caller) -> Result<Outgoing> {
        match method {
            "CreateSession" => {
                let request: msg::CreateSessionRequest = message.decode().await?;
                self.create_session(request, caller).await.map(|m| Outgoing::message(&m))
            }
            "ExtendSession" => {
                let request: msg::ExtendSessionRequest = message.decode().await?;
                self.extend_session(request, caller).await.map(|m| Outgoing::message(&m))
            }
            "RunStep" => self.run_step(read_step(message).await?, caller).await,
            "PartialRunSetup" => {
                let request: msg::PartialRunSetupRequest = message.decode().await?;
                let session = self.session(&request.session_handle, caller)?;
                let partial_run_handle = session.partial_setup(request.feed, request.fetch, request.target).await?;
                Ok(Outgoing::message(&msg::PartialRunSetupResponse { partial_run_handle }))
            }
            "MakeCallable" => {
                let request: msg::MakeCallableRequest = message.decode().await?;
                let session = self.session(&request.session_handle, caller)?;
                let handle = session.make_callable(callable(request.options.unwrap_or_default())?)?;
                Ok(Outgoing::message(&msg::MakeCallableResponse { handle }))
            }
            "RunCallable" => self.run_callable(message, caller).await,
            "ReleaseCallable" => {
                let request: msg::ReleaseCallableRequest = message.decode().await?;
                self.session(&request.session_handle, caller)?.release_callable(request.handle)?;
                Ok(Outgoing::message(&msg::Empty {}))
            }
            "CloseSession" => {
                let request: msg::CloseSessionRequest = message.decode().await?;
                self.session(&request.session_handle, caller)?;
                let session = self.lock().remove(&request.session_handle);
                if let Some(session) = session {
                    session.end().await?;
                }
                Ok(Outgoing::message(&msg::Empty {}))
            }
            "ListDevices" => {
                let request: msg::ListDevicesRequest = message.decode().await?;
                let filters = if request.session_handle.is_empty() {
                    self.admit(caller, None)?;
                    Vec::new()
                } else {
                    self.session(&request.session_handle, caller)?.filters().to_vec()
                };
                Ok(Outgoing::message(&self.list_devices(&filters)))
            }
            "Reset" => {
                let request: msg::ResetRequest = message.decode().await?;
                self.admit(caller, None)?;
                self.reset(&request).await?;
                Ok(Outgoing::message(&msg::Empty {}))
            }
            _ => Err(Failure::new(Code::Unimplemented, format!("TensorFlow's MasterService has no method {method}"))),
        }
    }

    /// Ends the sessions whose clients went away long ago.
    pub fn sweep(&self) {
        self.lock().retain(|_, session| session.is_kept(ORPHAN_KEPT));
    }

    async fn create_session(
        &self,
        request: msg::CreateSessionRequest,
        caller: &Caller,
    ) -> Result<msg::CreateSessionResponse> {
        let config = request.config.unwrap_or_default();
        let named = config.experimental.and_then(|experimental| experimental.session_metadata).map(|meta| meta.name);
        self.admit(caller, named.as_deref())?;
        if self.lock().len() >= MAX_SESSIONS {
            let why = format!("{MAX_SESSIONS} sessions are open already; close some with Session.close()");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let timeout = milliseconds(config.operation_timeout_in_ms);
        let graph_def = request.graph_def.unwrap_or_default();
        let (graph, library) = tokio::task::spawn_blocking(move || graph_of(graph_def)).await.map_err(panicked)??;
        let filters = parsed(&config.device_filters)?;
        self.await_tasks(&graph, &filters, timeout).await?;
        let options = SessionOptions {
            soft_placement: config.allow_soft_placement,
            log_placement: config.log_device_placement,
            isolated: config.isolate_session_state,
            device_filters: filters.clone(),
            // As TensorFlow places what names no device.
            prefers_gpu: true,
            // Its clients restore what was lost, and are told by the session's end that they have to.
            ends_with_its_tasks: true,
            ..SessionOptions::default()
        };
        let session = self.node.session(graph, None, options).await?;
        let handle = format!("{:016x}{:016x}", crate::random::u64(), crate::random::u64());
        let session = DoorSession::new(session, library, timeout, filters, caller.connection.clone());
        self.lock().insert(handle.clone(), Arc::new(session));
        Ok(msg::CreateSessionResponse { session_handle: handle, graph_version: 0 })
    }

    async fn extend_session(
        &self,
        request: msg::ExtendSessionRequest,
        caller: &Caller,
    ) -> Result<msg::ExtendSessionResponse> {
        let session = self.session(&request.session_handle, caller)?;
        let graph_def = request.graph_def.unwrap_or_default();
        let new_graph_version = session.extend(request.current_graph_version, graph_def).await?;
        Ok(msg::ExtendSessionResponse { new_graph_version })
    }

    async fn run_step(&self, request: RunStep, caller: &Caller) -> Result<Outgoing> {
        let RunStep { head, feeds } = request;
        let in_body = head.store_errors_in_response_body;
        let result = match self.session(&head.session_handle, caller) {
            Ok(session) => session.run(head, feeds).await,
            Err(failure) => Err(failure),
        };
        let mut out = Outgoing::default();
        let written = result.and_then(|ran| {
            for (name, tensor) in ran.fetched {
                out.tensor(FETCHED, Some(&name), tensor);
            }
            out.append(&msg::RunStepResponse { metadata: ran.metadata, ..Default::default() });
            out.check()
        });
        match written {
            Ok(_) => Ok(out),
            Err(failure) if in_body => Ok(Outgoing::message(&msg::RunStepResponse {
                status_code: failure.code.number().into(),
                status_error_message: described(&failure),
                metadata: None,
            })),
            Err(failure) => Err(failure),
        }
    }

    async fn run_callable(&self, mut message: Rope, caller: &Caller) -> Result<Outgoing> {
        let (mut feeds, mut head) = (Vec::new(), Vec::new());
        while let Some(length) = message.field(0, CALLABLE_FEED, &mut head).await? {
            feeds.push(read(&mut message, length).await?);
        }
        let head: msg::RunCallableRequest = prost::Message::decode(&*head).map_err(|error| malformed(&error))?;
        let ran = self.session(&head.session_handle, caller)?.run_callable(head.handle, feeds).await?;
        let mut out = Outgoing::default();
        for (_, tensor) in ran.fetched {
            out.tensor(FETCHED, None, tensor);
        }
        out.append(&msg::RunCallableResponse { metadata: ran.metadata });
        Ok(out)
    }

    /// Waits until the tasks that a graph names are there, but for those that the session's filters hide.
    ///
    /// # Errors
    /// Unavailable where some are still missing, with their names; InvalidArgument where the mesh has none of the jobs.
    async fn await_tasks(&self, graph: &Graph, filters: &[DeviceSpec], timeout: Option<Duration>) -> Result<()> {
        let limit = timeout.unwrap_or(TASKS_WAIT);
        let tasks: Vec<Task> = graph.tasks().into_iter().filter(|task| passes(filters, task)).collect();
        let has_met = |job: &String| lock(&self.met).contains(job);
        let knows = |cluster: &Cluster| {
            tasks.iter().any(|task| has_met(&task.job) || cluster.tasks().any(|other| other.job == task.job))
        };
        let first = limit.min(OTHER_CLUSTER_WAIT);
        let are_there = tasks.is_empty()
            || self.node.wait_for(&tasks, first).await
            || knows(&self.node.cluster()) && self.node.wait_for(&tasks, limit.saturating_sub(first)).await;
        if are_there {
            lock(&self.met).extend(tasks.into_iter().map(|task| task.job));
            return Ok(());
        }
        let cluster = self.node.cluster();
        if !knows(&cluster) {
            return Err(other_cluster(graph, &cluster));
        }
        let missing: Vec<String> =
            tasks.iter().filter(|task| cluster.member(task).is_none()).map(Task::to_string).collect();
        let there: Vec<String> = cluster.tasks().map(Task::to_string).collect();
        let why = format!(
            "the graph names {}, which did not come up within {} s; the tasks there are: {}",
            missing.join(", "),
            limit.as_secs_f64(),
            there.join(", ")
        );
        Err(Failure::new(Code::Unavailable, why))
    }

    fn list_devices(&self, filters: &[DeviceSpec]) -> msg::ListDevicesResponse {
        let mut response = msg::ListDevicesResponse::default();
        for member in self.node.cluster().members() {
            let devices = member.devices.iter().map(|device| attributes(member, &device.name, &device.description));
            if self.node.task() == Some(&member.task) {
                response.local_device.extend(devices);
            } else if passes(filters, &member.task) {
                response.remote_device.extend(devices);
            }
        }
        response
    }

    /// Ends every session that came in here, and empties containers on the tasks that the filters leave.
    async fn reset(&self, request: &msg::ResetRequest) -> Result<()> {
        let filters = parsed(&request.device_filters)?;
        let mut containers = request.container.clone();
        if containers.is_empty() {
            containers.push(String::new());
        }
        let sessions: Vec<Arc<DoorSession>> = self.lock().drain().map(|(_, session)| session).collect();
        for session in sessions {
            session.end().await?;
        }
        let tasks: Vec<Task> = self.node.cluster().tasks().filter(|task| passes(&filters, task)).cloned().collect();
        self.node.clear_containers(&containers, &tasks)
    }

    fn session(&self, handle: &str, caller: &Caller) -> Result<Arc<DoorSession>> {
        let session = self.lock().get(handle).cloned().ok_or_else(|| {
            let why =
                format!("Session handle {handle:?} is not found; it was closed or reset, or the node was restarted");
            Failure::new(Code::Aborted, why)
        })?;
        session.seen(caller.connection.as_ref());
        Ok(session)
    }

    /// # Errors
    /// Unauthenticated where a token is asked for and neither the call nor the session's configuration has it.
    fn admit(&self, caller: &Caller, named: Option<&str>) -> Result<()> {
        let Some(token) = &self.token else { return Ok(()) };
        // Compared by their hashes, so that the time it takes says nothing of how much was right.
        let is_right = |given: &str| blake3::hash(given.as_bytes()) == blake3::hash(token.as_bytes());
        if caller.token.as_deref().into_iter().chain(named).any(is_right) {
            return Ok(());
        }
        let why = "this door asks for its token: as the header `authorization: Bearer TOKEN`, or in a session's configuration \
                   as experimental.session_metadata.name";
        Err(Failure::new(Code::Unauthenticated, why))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<DoorSession>>> {
        lock(&self.sessions)
    }
}

async fn read_step(mut message: Rope) -> Result<RunStep> {
    let (mut feeds, mut head) = (Vec::new(), Vec::new());
    while let Some(length) = message.field(0, STEP_FEED, &mut head).await? {
        feeds.push(read_named(&mut message, length).await?);
    }
    let head = prost::Message::decode(&*head).map_err(|error| malformed(&error))?;
    Ok(RunStep { head, feeds })
}

/// The graph, and the names a later extension may refer to.
fn graph_of(graph_def: GraphDef) -> Result<(Graph, graphdef::Library)> {
    let mut library = graphdef::Library::default();
    let nodes = library.expand(graph_def)?;
    Ok((Graph::new(nodes)?, library))
}

fn callable(options: msg::CallableOptions) -> Result<Callable> {
    if !options.tensor_connection.is_empty() {
        return Err(Failure::new(Code::Unimplemented, "a callable that connects tensors is not supported"));
    }
    let msg::CallableOptions { feed, fetch, target, run_options, .. } = options;
    Ok(Callable { feed, fetch, target, options: run_options.unwrap_or_default() })
}

fn parsed(filters: &[String]) -> Result<Vec<DeviceSpec>> {
    let parse = |filter: &String| filter.parse().map_err(|error| Failure::invalid(format!("device filter: {error}")));
    filters.iter().map(parse).collect()
}

/// Whether a session with these filters sees a task.
fn passes(filters: &[DeviceSpec], task: &Task) -> bool {
    let device = task.device(DeviceKind::Cpu, 0);
    filters.is_empty() || filters.iter().any(|filter| device.matches(&filter.task_only()))
}

/// What TensorFlow says of a graph whose jobs are not the cluster's.
fn other_cluster(graph: &Graph, cluster: &Cluster) -> Failure {
    let devices: Vec<String> = cluster.devices().iter().map(full_name).collect();
    let names = |device: &str| device.parse::<DeviceSpec>().is_ok_and(|spec| spec.job.is_some());
    let node = graph.nodes().map(|(_, node)| node).find(|node| names(&node.device));
    let (name, device) = node.map_or(("", ""), |node| (node.name.as_str(), node.device.as_str()));
    let why = format!(
        "Cannot assign a device for operation {name}: {name} was explicitly assigned to {device} but available devices are [ {} ]. \
         None of the jobs that the graph names is in this mesh",
        devices.join(", ")
    );
    let failure = Failure::invalid(why);
    if let Some(node) = node { failure.at_node(name, node.op.name) } else { failure }
}

/// A device as TensorFlow's clients know devices.
fn attributes(member: &Member, name: &DeviceName, description: &str) -> msg::DeviceAttributes {
    msg::DeviceAttributes {
        name: full_name(name),
        device_type: name.kind.name().to_owned(),
        incarnation: member.incarnation.0,
        physical_device_desc: description.to_owned(),
    }
}

pub(super) fn panicked(error: tokio::task::JoinError) -> Failure {
    Failure::new(Code::Internal, format!("the request could not be worked on: {error}"))
}

/// A limit as TensorFlow states it; none is 0.
pub(super) fn milliseconds(limit: i64) -> Option<Duration> {
    u64::try_from(limit).ok().filter(|&limit| limit > 0).map(Duration::from_millis)
}
