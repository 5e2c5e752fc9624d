//! The master of a node: owns the sessions that clients opened here, plans their graphs, registers the pieces with the
//! workers and drives their steps.
//!
//! Values never pass through it but feeds and fetches. It never blocks the thread that delivers a message: planning
//! happens on a thread of its own, and what must be sent is sent after the lock is let go.

mod run;
mod session;

use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use self::session::Session;
use crate::failure::{Code, Failure, Result};
use crate::graph::{Graph, NodeDef};
use crate::ids::{PieceId, RequestId, SessionId};
use crate::plan::{DeviceKind, PieceOp, Plan, PlanOptions, Signature, Task};
use crate::post::Post;
use crate::protocol::{Cluster, Envelope, Message, Peer, Reply, Request, SessionOptions};

/// Most sessions that are open at once on one master.
const MAX_SESSIONS: usize = 4096;
/// Most requests that wait to be planned.
const PLANNING: usize = 1024;

/// The master of one node.
pub struct Master {
    state: Arc<State>,
    /// To the thread that plans.
    planner: SyncSender<(Peer, RequestId, Request)>,
}

/// What the planning thread shares with the threads that deliver.
struct State {
    task: Task,
    post: Arc<dyn Post>,
    sessions: Mutex<HashMap<SessionId, Session>>,
    /// Held from deciding on steps to having sent them: two runs of one plan start in the same order everywhere, or each
    /// could wait for the other.
    starting: Mutex<()>,
}

/// What is to be sent once the lock is let go.
type Outgoing = Vec<(Peer, Envelope)>;

impl Master {
    /// The master of the node that holds `task`, whose CPU takes the nodes that request no device.
    pub fn new(task: Task, post: Arc<dyn Post>) -> Self {
        let state = Arc::new(State { task, post, sessions: Mutex::default(), starting: Mutex::default() });
        let (planner, requests) = sync_channel::<(Peer, RequestId, Request)>(PLANNING);
        let shared = Arc::clone(&state);
        thread::Builder::new()
            .name("meshtf-plan".into())
            .spawn(move || requests.iter().for_each(|(client, id, request)| shared.plan(&client, id, request)))
            .expect("a thread at start");
        Master { state, planner }
    }

    /// Takes a message that a client or a worker sent.
    pub fn deliver(&self, from: &Peer, envelope: Envelope) {
        let Envelope { message, tensors } = envelope;
        match message {
            Message::Request { id, request } => match request {
                Request::Run { session, plan, steps, every, watched } => {
                    self.state.run(from, id, run::Ask { session, plan, steps, every, watched, feeds: tensors });
                }
                Request::Feed { session, run, feeds, wanted } => {
                    self.state.feed(from, id, run::Fed { session, run, feeds, wanted, tensors });
                }
                Request::Cancel { session, run } => self.state.cancel(from, id, session, run),
                other => {
                    if let Err(TrySendError::Full(_)) = self.planner.try_send((from.clone(), id, other)) {
                        let why = format!("{PLANNING} requests wait to be planned already");
                        self.state.reply(from, id, Err(Failure::new(Code::ResourceExhausted, why)));
                    }
                }
            },
            Message::Registered { session, pieces, result } => self.state.registered(from, session, &pieces, result),
            Message::Got { piece, step, place } => self.state.got(piece, step, place, tensors),
            Message::Done { piece, step } => self.state.done(piece, step, tensors),
            Message::Failed { step, failure } => self.state.failed(step, failure),
            _ => {}
        }
    }

    /// How many sessions are open.
    #[cfg(test)]
    pub fn sessions(&self) -> usize {
        self.state.lock().len()
    }

    /// A peer is gone: its own sessions end, and steps that need its task fail.
    pub fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        let orphans: Vec<SessionId> = {
            let sessions = self.state.lock();
            sessions.iter().filter(|(_, session)| session.client == *peer).map(|(&id, _)| id).collect()
        };
        for session in orphans {
            self.state.close(session);
        }
        let name = task.map_or_else(|| peer.to_string(), Task::to_string);
        let failure = Failure::new(Code::Unavailable, format!("task {name} is gone: {why}")).on_task(&name);
        self.state.lose(peer, &failure);
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().expect("no panic under this lock")
    }

    fn reply(&self, client: &Peer, id: RequestId, result: Result<Reply>) {
        self.send(vec![(client.clone(), Message::Reply { id, result }.into())]);
    }

    /// Sends; a client that is gone by now is no concern, a worker that is gone fails its steps.
    fn send(&self, outgoing: Outgoing) {
        for (to, envelope) in outgoing {
            let is_work = matches!(envelope.message, Message::Start { .. } | Message::Register { .. });
            if let Err(failure) = self.post.send(&to, envelope)
                && is_work
            {
                self.lose(&to, &failure);
            }
        }
    }

    /// Does what takes long: everything but running.
    fn plan(&self, client: &Peer, id: RequestId, request: Request) {
        let result = match request {
            Request::Open { session, graph, options } => {
                self.open(client, session, graph, options).map(|()| Reply::Opened)
            }
            Request::Extend { session, nodes } => self.extend(client, session, nodes).map(|()| Reply::Extended),
            Request::Prepare { session, signature } => match self.prepare(client, id, session, signature) {
                Ok(Some(plan)) => Ok(Reply::Prepared { plan }),
                Ok(None) => return,
                Err(failure) => Err(failure),
            },
            Request::Close { session } => {
                if self.lock().get(&session).is_some_and(|s| s.client == *client) {
                    self.close(session);
                }
                Ok(Reply::Closed)
            }
            Request::Explain { graph, signature, options } => {
                self.explain(graph, &signature, &options).map(|plan| Reply::Explained(Box::new(plan)))
            }
            Request::Run { .. } | Request::Feed { .. } | Request::Cancel { .. } => return,
        };
        self.reply(client, id, result);
    }

    fn open(&self, client: &Peer, id: SessionId, graph: Vec<NodeDef>, options: SessionOptions) -> Result<()> {
        let graph = Graph::new(graph)?;
        let mut sessions = self.lock();
        if sessions.len() >= MAX_SESSIONS {
            let why = format!("{MAX_SESSIONS} sessions are open on {} already", self.task);
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if sessions.contains_key(&id) {
            return Err(Failure::new(Code::AlreadyExists, format!("session {id} is open already")));
        }
        sessions.insert(id, Session::new(client.clone(), graph, options));
        Ok(())
    }

    fn extend(&self, client: &Peer, id: SessionId, nodes: Vec<NodeDef>) -> Result<()> {
        let old = self.lock().get_mut(&id).filter(|s| s.client == *client).ok_or_else(|| no_session(id))?.graph.clone();
        let mut defs = old.to_defs();
        defs.extend(nodes);
        let graph = Arc::new(Graph::new(defs)?);
        if let Some(session) = self.lock().get_mut(&id) {
            session.graph = graph;
        }
        Ok(())
    }

    fn explain(&self, graph: Vec<NodeDef>, signature: &Signature, options: &SessionOptions) -> Result<Plan> {
        self.make_plan(&Graph::new(graph)?, &self.post.cluster(), signature, options)
    }

    fn make_plan(
        &self,
        graph: &Graph,
        cluster: &Cluster,
        signature: &Signature,
        session: &SessionOptions,
    ) -> Result<Plan> {
        let task = session.default_task.as_ref().unwrap_or(&self.task);
        let kind = if session.prefers_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu };
        let options = PlanOptions { default_device: task.device(kind, 0), soft_placement: session.soft_placement };
        let filters = &session.device_filters;
        let mut devices = cluster.devices();
        devices.retain(|device| {
            filters.is_empty() || device.task == self.task || filters.iter().any(|filter| device.matches(filter))
        });
        Ok(crate::plan::plan(graph, &devices, signature, &options)?)
    }

    /// Plans a signature and sends the pieces out; answers at once where that stands already.
    fn prepare(&self, client: &Peer, request: RequestId, id: SessionId, signature: Signature) -> Result<Option<u32>> {
        let cluster = self.post.cluster();
        let (graph, options) = {
            let mut sessions = self.lock();
            let session = sessions.get_mut(&id).filter(|s| s.client == *client).ok_or_else(|| no_session(id))?;
            if let Some(number) = session.ready(&signature, &cluster) {
                return Ok(Some(number));
            }
            (Arc::clone(&session.graph), session.options.clone())
        };
        let plan = self.make_plan(&graph, &cluster, &signature, &options).map_err(|failure| {
            // A device that is not there because its task was lost is no mistake of the graph.
            self.lock().get(&id).and_then(|session| session.lost_to(&cluster)).unwrap_or(failure)
        })?;
        if options.log_placement {
            log_placement(&plan);
        }
        let registering = {
            let mut sessions = self.lock();
            let session = sessions.get_mut(&id).ok_or_else(|| no_session(id))?;
            session.register(id, request, signature, plan, &cluster)?
        };
        match registering {
            Registering::Nothing(number) => Ok(Some(number)),
            Registering::Sent(outgoing) => {
                self.send(outgoing);
                Ok(None)
            }
        }
    }

    /// A worker has compiled its pieces of a plan, or refused them.
    fn registered(&self, worker: &Peer, id: SessionId, pieces: &[PieceId], result: Result<()>) {
        let answer = {
            let mut sessions = self.lock();
            let Some(session) = sessions.get_mut(&id) else { return };
            session
                .registered(worker, pieces, result)
                .map(|(request, result)| (session.client.clone(), request, result))
        };
        if let Some((client, request, result)) = answer {
            self.reply(&client, request, result.map(|plan| Reply::Prepared { plan }));
        }
    }

    fn close(&self, id: SessionId) {
        let Some(session) = self.lock().remove(&id) else { return };
        let mut outgoing: Outgoing =
            session.workers().into_iter().map(|worker| (worker, Message::Release { session: id }.into())).collect();
        let failure = Failure::new(Code::Cancelled, "the session was closed");
        for request in session.open_requests() {
            let result = Err(failure.clone());
            outgoing.push((session.client.clone(), Message::Reply { id: request, result }.into()));
        }
        self.send(outgoing);
    }

    /// Steps and registrations that wait for `peer` wait in vain.
    fn lose(&self, peer: &Peer, failure: &Failure) {
        let outgoing: Outgoing = {
            let mut sessions = self.lock();
            sessions.iter_mut().flat_map(|(&id, session)| session.lose(id, peer, failure)).collect()
        };
        self.send(outgoing);
    }
}

/// Says where each node of a plan is placed, as TensorFlow's servers do for `log_device_placement`.
fn log_placement(plan: &Plan) {
    for piece in &plan.pieces {
        for node in &piece.nodes {
            if let PieceOp::Op(op) = &node.op {
                tracing::info!(target: "meshtf::placement", "{}: ({op}): {}", node.name, piece.device);
            }
        }
    }
}

/// What became of a request to register a plan.
enum Registering {
    /// It has no pieces: nothing was asked for. It is ready.
    Nothing(u32),
    Sent(Outgoing),
}

fn no_session(id: SessionId) -> Failure {
    Failure::new(Code::Aborted, format!("session {id} is not open here; it ended, or this node was restarted"))
}
