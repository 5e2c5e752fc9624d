//! TensorFlow's `MasterService`: maps its methods to the node's sessions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Client;
use bytes::Buf;
use meshtf_graph::{Graph, NodeDef, graphdef};
use meshtf_tensor::Shape;
use meshtf_tensor::device::{DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use prost::Message as _;

use super::super::token::Token;
use super::budget::MessageBudget;
use super::connection::Caller;
use super::feed::Reading;
use super::lineage::{Line, Lineages, Place};
use super::message::{self as msg, Method, described, milliseconds};
use super::names::Names;
use super::pieces::{find, malformed, within_names};
use super::readers::Readers;
use super::rope::Rope;
use super::session::{Callable, DoorSession, Known, stated};
use super::sessions::Sessions;
use super::tasks::{TASKS_WAIT, Tasks, passes};
use super::tensor::Outgoing;
use crate::node::Node;
use crate::protocol::SessionOptions;

/// How many messages of the largest size may be under way at once.
const MESSAGES_UNDER_WAY: usize = 4;
/// How long a client may pause in the middle of a message.
const MAX_SILENCE: Duration = Duration::from_secs(20);
/// Maximum size in bytes of a request without its graph or feeds: names.
const MAX_NAMES_BYTES: usize = 8 << 20;
/// Memory per such byte when decoded, at most: a name of two bytes becomes a string in a list that grows by doubling.
const NAMES_GROW: usize = 24;
/// Requests with more of them are decoded on threads that may block.
const NAMES_AT_ONCE: usize = 64 << 10;
/// Longest token that is checked.
const MAX_TOKEN: usize = 4096;

/// The field with the feeds in a RunStepRequest and in a RunCallableRequest, and with the tensors in their responses.
const STEP_FEED: u32 = 2;
const CALLABLE_FEED: u32 = 3;
const FETCHED: u32 = 1;

pub(super) struct MasterService {
    node: Arc<Node>,
    budget: MessageBudget,
    token: Token,
    tasks: Tasks,
    sessions: Sessions,
    lineages: Lineages,
    /// Decode large feeds, graphs, and messages of clients that have not shown the token; independent of each other.
    feeds: Readers,
    graphs: Readers,
    unproven: Readers,
}

/// The callable of a RunCallableRequest, if known before its feeds.
#[derive(Clone, PartialEq, prost::Message)]
struct WhichCallable {
    #[prost(int64, optional, tag = "2")]
    handle: Option<i64>,
}

/// The graph of a new session.
enum Named {
    /// In the mesh's names.
    Mesh(Box<Graph>),
    /// Its nodes, in the session's own names.
    Own(Vec<NodeDef>),
}

/// The session that a request names.
struct Asked {
    handle: String,
    session: Arc<DoorSession>,
}

impl Asked {
    /// Checks that the request is for the session that authorized it.
    fn check(&self, handle: &str) -> Result<&DoorSession> {
        if handle == self.handle {
            return Ok(&self.session);
        }
        Err(Failure::invalid("the request names two different sessions"))
    }
}

impl MasterService {
    /// The service of a node; `stated` are the tasks of its ClusterSpec.
    pub fn new(node: Arc<Node>, max_message_bytes: usize, token: Option<&str>, stated: BTreeSet<Task>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = Arc::clone(node.budget());
        let readers = |count: usize| Readers::new(count, Arc::clone(&memory));
        MasterService {
            budget: MessageBudget::new(max_message_bytes, MESSAGES_UNDER_WAY, MAX_SILENCE, Arc::clone(&memory)),
            token: Token::new(token),
            tasks: Tasks::new(Arc::clone(&node), stated),
            sessions: Sessions::new(),
            lineages: Lineages::default(),
            feeds: readers(processors.div_ceil(2)),
            graphs: readers(processors.div_ceil(2)),
            unproven: readers(1),
            node,
        }
    }

    /// The memory budget of incoming messages.
    pub fn budget(&self) -> &MessageBudget {
        &self.budget
    }

    /// Whether a client that shows this token may pass.
    pub fn knows(&self, token: Option<&str>) -> bool {
        !self.token.is_set() || token.is_some_and(|token| self.token.accepts(token.as_bytes()))
    }

    /// Executes a method; `message` is its request. Nothing is decoded until the client is known to be allowed, by its
    /// token or by the handle of a session.
    pub async fn call(&self, method: Method, mut message: Rope, caller: &Caller) -> Result<Outgoing> {
        match method {
            Method::CreateSession => self.create_session(message, caller).await.map(|m| Outgoing::message(&m)),
            Method::ExtendSession => self.extend_session(message, caller).await.map(|m| Outgoing::message(&m)),
            Method::RunStep => self.run_step(message, caller).await,
            Method::RunCallable => self.run_callable(message, caller).await,
            Method::PartialRunSetup => {
                let named = self.named(&mut message, caller).await?;
                let request: msg::PartialRunSetupRequest = self.decode(message).await?;
                let session = named.check(&request.session_handle)?;
                let partial_run_handle = session.partial_setup(request.feed, request.fetch, request.target).await?;
                Ok(Outgoing::message(&msg::PartialRunSetupResponse { partial_run_handle }))
            }
            Method::MakeCallable => {
                let named = self.named(&mut message, caller).await?;
                let request: msg::MakeCallableRequest = self.decode(message).await?;
                let session = named.check(&request.session_handle)?;
                let handle = session.make_callable(callable(request.options.unwrap_or_default()));
                Ok(Outgoing::message(&msg::MakeCallableResponse { handle }))
            }
            Method::ReleaseCallable => {
                let named = self.named(&mut message, caller).await?;
                let request: msg::ReleaseCallableRequest = self.decode(message).await?;
                named.check(&request.session_handle)?.release_callable(request.handle)?;
                Ok(Outgoing::message(&msg::Empty {}))
            }
            Method::CloseSession => {
                let named = self.named(&mut message, caller).await?;
                let request: msg::CloseSessionRequest = self.decode(message).await?;
                named.check(&request.session_handle)?;
                if let Some(session) = self.sessions.remove(&named.handle) {
                    session.close().await?;
                }
                Ok(Outgoing::message(&msg::Empty {}))
            }
            Method::ListDevices => {
                let named = match message.handle(&self.unproven).await? {
                    Some(handle) if !handle.is_empty() => Some(self.named(&mut message, caller).await?),
                    _ if caller.is_known => None,
                    _ => return Err(unauthenticated()),
                };
                let _request: msg::ListDevicesRequest = self.decode(message).await?;
                let session = named.as_ref().map(|named| &named.session);
                let filters = session.map_or(&[][..], |session| session.filters());
                let names = session.and_then(|session| session.names());
                Ok(Outgoing::message(&self.tasks.list(filters, names).await))
            }
            Method::Reset => {
                if !caller.is_known {
                    return Err(unauthenticated());
                }
                let request: msg::ResetRequest = self.decode(message).await?;
                self.reset(&request).await?;
                Ok(Outgoing::message(&msg::Empty {}))
            }
        }
    }

    /// Ends sessions whose clients went away long ago.
    pub fn sweep(&self) {
        self.sessions.sweep();
    }

    /// The session that a request names; knowing its handle authorizes the client.
    ///
    /// # Errors
    /// Aborted if there is no such session.
    async fn named(&self, message: &mut Rope, caller: &Caller) -> Result<Asked> {
        let handle = message.handle(&self.unproven).await?.unwrap_or_default();
        let handle = String::from_utf8_lossy(&handle).into_owned();
        let session = self.sessions.get(&handle, caller.connection.as_ref())?;
        *lock(&caller.limit) = session.timeout();
        passed(message, caller)?;
        Ok(Asked { handle, session })
    }

    /// Decodes a request without graph or feeds.
    async fn decode<M: prost::Message + Default + 'static>(&self, message: Rope) -> Result<M> {
        let (pieces, mut share) = message.into_whole().await?;
        let length = pieces.remaining();
        let decode = move || M::decode(pieces).map_err(|error| malformed(&error));
        if length <= NAMES_AT_ONCE {
            return decode();
        }
        within_names(length, MAX_NAMES_BYTES)?;
        share.expand(length, length * NAMES_GROW)?;
        self.graphs.run_taking(length * NAMES_GROW, decode).await
    }

    /// Like [`MasterService::decode`], for the other fields of a request with feeds.
    async fn head<M: prost::Message + Default + 'static>(&self, head: Vec<u8>, message: &mut Rope) -> Result<M> {
        let length = head.len();
        let decode = move || M::decode(&*head).map_err(|error| malformed(&error));
        if length <= NAMES_AT_ONCE {
            return decode();
        }
        message.expand(length * NAMES_GROW)?;
        self.graphs.run_taking(length * NAMES_GROW, decode).await
    }

    async fn create_session(&self, mut message: Rope, caller: &Caller) -> Result<msg::CreateSessionResponse> {
        let asked = Instant::now();
        if !caller.is_known {
            // The token comes after the graph. Only the token is searched, in the undecoded bytes.
            let whole = message.whole().await?;
            let look = move || find(whole, &msg::TOKEN_PATH, MAX_TOKEN);
            let shown = self.unproven.run(look).await?;
            if !self.knows(shown.as_deref().and_then(|shown| std::str::from_utf8(shown).ok())) {
                return Err(unauthenticated());
            }
        }
        passed(&mut message, caller)?;
        let connection = caller.connection.as_ref();
        self.sessions.evict_for_one_more(connection)?;

        let (pieces, share) = message.into_whole().await?;
        let (budget, keeps) = (self.budget.clone(), self.node.keeps_variables());
        let read = move || {
            let _share = share;
            let (request, _counted): (msg::CreateSessionRequest, _) = budget.decode(pieces, &msg::CREATE_SESSION)?;
            let mut library = graphdef::Library::default();
            let (nodes, growth) = stated(&library, request.graph_def.unwrap_or_default())?;
            library.grow(growth);
            let known = Known::of(&nodes);
            let config = request.config.unwrap_or_default();
            let is_own = config.cluster_def.is_some() || config.isolate_session_state;
            let line = (keeps && !is_own).then(|| Line::of(&nodes)).flatten();
            // A session with names of its own has them translated first.
            let graph = match config.cluster_def.is_some() {
                true => Named::Own(nodes),
                false => Named::Mesh(Box::new(Graph::new(nodes)?)),
            };
            Ok((graph, library, known, config, line))
        };
        let (graph, library, known, config, line) = self.graphs.run(read).await?;
        let mut place = line.map(|line| self.lineages.place(line, asked));
        let made = self.made((graph, library, known, config), &mut place, caller).await;
        // If the call is cancelled, its client is gone.
        if let (Err(_), Some(place)) = (&made, place) {
            place.failed();
        }
        Ok(msg::CreateSessionResponse { session_handle: made?, graph_version: 0 })
    }

    /// The session of a graph; its handle.
    async fn made(
        &self,
        (graph, library, known, config): (Named, graphdef::Library, Known, msg::ConfigProto),
        place: &mut Option<Place>,
        caller: &Caller,
    ) -> Result<String> {
        let connection = caller.connection.as_ref();
        let timeout = milliseconds(config.operation_timeout_in_ms);
        *lock(&caller.limit) = timeout;
        let filters = parsed(&config.device_filters)?;
        let (graph, names) = match graph {
            Named::Mesh(graph) => {
                self.tasks.wait_for(&graph, &filters, timeout).await?;
                (*graph, None)
            }
            Named::Own(nodes) => {
                let cluster = config.cluster_def.unwrap_or_default();
                let (graph, names) = self.translated(nodes, &cluster, &filters, timeout).await?;
                (graph, Some(names))
            }
        };
        let options = SessionOptions {
            soft_placement: config.allow_soft_placement,
            log_placement: config.log_device_placement,
            isolated: config.isolate_session_state,
            // A session with names of its own has no other tasks than those.
            device_filters: if names.is_some() { Vec::new() } else { filters.clone() },
            // TensorFlow's placement of nodes without a device.
            prefers_gpu: true,
            // TensorFlow's clients restore lost state, and recognize by the session's end that they must.
            ends_with_its_tasks: true,
            ..SessionOptions::default()
        };
        let session = self.node.session(graph, None, options).await;
        let session = session.map_err(|failure| match &names {
            Some(names) => names.failure(failure),
            None => failure,
        })?;
        let handle = format!("{:016x}{:016x}", crate::random::u64(), crate::random::u64());
        let session = DoorSession::new(session, library, known, timeout, filters, names, caller.connection.clone());
        let session = session.with_descent(place.take().map(|place| place.begin(&self.node)));
        self.sessions.insert(&handle, session, connection)?;
        Ok(handle)
    }

    /// A graph in the mesh's names, and the names of its session, which brings its own cluster.
    async fn translated(
        &self,
        mut nodes: Vec<NodeDef>,
        cluster: &msg::ClusterDef,
        filters: &[DeviceSpec],
        timeout: Option<Duration>,
    ) -> Result<(Graph, Names)> {
        let own = self.node.task().ok_or_else(|| Failure::invalid("a server without a task has no cluster_def"))?;
        let names = Names::new(cluster, own, &self.node).await?;
        let wanted = names.named_by(&nodes, filters)?;
        names.find(&wanted, &self.node, timeout.unwrap_or(TASKS_WAIT)).await?;
        let filters = filters.to_vec();
        let translate = move || {
            names.rename(&mut nodes, &filters)?;
            match Graph::new(nodes) {
                Ok(graph) => Ok((graph, names)),
                Err(error) => Err(names.failure(error.into())),
            }
        };
        self.graphs.run(translate).await
    }

    async fn extend_session(&self, mut message: Rope, caller: &Caller) -> Result<msg::ExtendSessionResponse> {
        let named = self.named(&mut message, caller).await?;
        let (pieces, share) = message.into_whole().await?;
        let budget = self.budget.clone();
        let read = move || {
            let _share = share;
            budget.decode::<msg::ExtendSessionRequest>(pieces, &msg::EXTEND_SESSION)
        };
        let (request, _counted) = self.graphs.run(read).await?;
        let session = named.check(&request.session_handle)?;
        let graph_def = request.graph_def.unwrap_or_default();
        let new_graph_version =
            session.extend(request.current_graph_version, graph_def, &self.graphs, &self.node).await?;
        Ok(msg::ExtendSessionResponse { new_graph_version })
    }

    async fn run_step(&self, mut message: Rope, caller: &Caller) -> Result<Outgoing> {
        let named = self.named(&mut message, caller).await?;
        let admits = |name: &str, dtype, _: &Shape| named.session.admits(name, dtype);
        let reading = Reading { readers: &self.feeds, admits: &admits };
        let (mut feeds, mut head) = (Vec::new(), Vec::new());
        while let Some(length) = message.field(0, STEP_FEED, &mut head, MAX_NAMES_BYTES).await? {
            feeds.push(reading.named(&mut message, length).await?);
        }
        let head: msg::RunStepRequest = self.head(head, &mut message).await?;
        // Frees the bytes and their share of the budget.
        drop(message);
        let session = named.check(&head.session_handle)?;
        let in_body = head.store_errors_in_response_body;
        if let Some(limit) = head.options.as_ref().and_then(|options| milliseconds(options.timeout_in_ms)) {
            *lock(&caller.limit) = Some(limit);
        }
        let result = session.run(head, feeds).await;
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
        let named = self.named(&mut message, caller).await?;
        let (mut feeds, mut head) = (Vec::new(), Vec::new());
        // The callable's handle comes before its feeds; if a client writes it after them, the session checks it later.
        let mut callable = None;
        while let Some(length) = message.field(0, CALLABLE_FEED, &mut head, NAMES_AT_ONCE).await? {
            let place = feeds.len();
            if place == 0 {
                callable = WhichCallable::decode(&*head).map_err(|error| malformed(&error))?.handle;
            }
            let admits = |_: &str, dtype, _: &Shape| match callable {
                Some(handle) => named.session.callable_admits(handle, place, dtype),
                None => Ok(()),
            };
            let reading = Reading { readers: &self.feeds, admits: &admits };
            feeds.push(reading.tensor(&mut message, length, "").await?);
        }
        let head: msg::RunCallableRequest = self.head(head, &mut message).await?;
        drop(message);
        let ran = named.check(&head.session_handle)?.run_callable(head.handle, feeds).await?;
        let mut out = Outgoing::default();
        for (_, tensor) in ran.fetched {
            out.tensor(FETCHED, None, tensor);
        }
        out.append(&msg::RunCallableResponse { metadata: ran.metadata });
        Ok(out)
    }

    /// Ends every session opened through this door, and clears containers on the tasks that the filters select.
    async fn reset(&self, request: &msg::ResetRequest) -> Result<()> {
        let filters = parsed(&request.device_filters)?;
        let mut containers = request.container.clone();
        if containers.is_empty() {
            containers.push(String::new());
        }
        for session in self.sessions.take_all() {
            session.end().await?;
        }
        let tasks: Vec<Task> = self.node.cluster().tasks().filter(|task| passes(&filters, task)).cloned().collect();
        self.node.clear_containers(&containers, &tasks)
    }
}

/// Marks the client of a message as allowed.
fn passed(message: &mut Rope, caller: &Caller) -> Result<()> {
    message.share().prove()?;
    if let Some(connection) = &caller.connection {
        connection.prove();
    }
    Ok(())
}

fn unauthenticated() -> Failure {
    let why = "this server requires a token: in the header `authorization: Bearer TOKEN`, or in a session's \
               configuration as experimental.session_metadata.name";
    Failure::new(Code::Unauthenticated, why)
}

fn callable(options: msg::CallableOptions) -> Callable {
    let msg::CallableOptions { feed, fetch, target, run_options, tensor_connection } = options;
    let connected = tensor_connection.into_iter().map(|one| (one.from_tensor, one.to_tensor)).collect();
    Callable { feed, fetch, target, connected, options: run_options.unwrap_or_default() }
}

fn parsed(filters: &[String]) -> Result<Vec<DeviceSpec>> {
    let parse = |filter: &String| filter.parse().map_err(|error| Failure::invalid(format!("device filter: {error}")));
    filters.iter().map(parse).collect()
}
