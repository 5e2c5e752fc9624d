//! The master of a node: owns the sessions that clients opened on the node, plans their graphs, registers the pieces with the
//! workers and drives their steps.
//!
//! Of all values only feeds and fetches pass through it. It never blocks the thread that delivers a message: planning happens
//! on separate threads, and no lock is held while anything is sent.

#[cfg(test)]
mod by_hand;
mod claims;
mod clockwork;
mod heirs;
mod homes;
mod machine;
mod placing;
mod planner;
mod seat;
mod sessions;
mod traces;
mod work;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::claims::Claims;
use self::clockwork::Clockwork;
use self::heirs::Heirs;
pub(crate) use self::heirs::Lost;
use self::homes::Homes;
use self::machine::{AloneGraph, Ask, Fed, Machine, Nanos, Sends, SessionEvent, Stock, Subject, ToPlan, task_gone};
use self::placing::{Times, log_node, log_placement};
use self::planner::{PlanRequest, Planner, Work};
pub(crate) use self::seat::Seat;
use self::sessions::{Handle, Sessions};
use self::traces::Traces;
use meshtf_exec::{delivering, has_inline_work};
use meshtf_graph::plan::{Plan, Signature};
use meshtf_graph::{Graph, NodeDef};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;

use crate::events::Events;
use crate::protocol::event::Event;
use crate::protocol::look::SessionLook;
use crate::protocol::runs::StepTimes;
use crate::protocol::status::{LimitStatus, SessionStatus};
use crate::protocol::{Constants, Peer, Reply, Request, SessionOptions, ToClient, ToMaster};
use crate::runtime::router::Router;

/// The limits of a master. To stay within them, it drops the items that were not used for longest.
#[derive(Clone, Copy, Debug)]
pub struct MasterLimits {
    /// Most sessions that are open at once.
    pub sessions: usize,
    /// How long an unused session is kept even if its slot is needed.
    pub idle_kept: Duration,
    /// Most plans of one session: sets of feeds, fetches and targets.
    pub plans: usize,
    /// Most nodes of one session's plans together: the memory that its workers use for it grows with them.
    pub plan_nodes: usize,
}

impl Default for MasterLimits {
    fn default() -> Self {
        MasterLimits { sessions: 4096, idle_kept: Duration::from_secs(60), plans: 4096, plan_nodes: 4 << 20 }
    }
}

/// The master of one node.
pub struct Master {
    state: Arc<State>,
    planner: Planner,
}

/// The state that the planning threads share with the threads that deliver.
struct State {
    seat: Seat,
    router: Arc<dyn Router>,
    limits: MasterLimits,
    events: Arc<Events>,
    sessions: Sessions,
    claims: Claims,
    traces: Traces,
    clock: Clock,
    /// Steps that are done, of all sessions since the start.
    steps: AtomicU64,
    /// How long they took.
    step_times: Mutex<StepTimes>,
    /// Notifies guarded sessions of time that passes.
    clockwork: Clockwork,
    /// The sessions of other masters that this node is to continue.
    heirs: Heirs,
    /// The devices of the resources that were placed by cost.
    homes: Homes,
    /// The times of nodes in traced steps.
    measured: Times,
}

/// The master's own clock.
type Clock = Box<dyn Fn() -> Nanos + Send + Sync>;

/// A client's nodes, and the tensors of that message.
struct SentNodes {
    nodes: Vec<NodeDef>,
    constants: Constants,
    tensors: Vec<Tensor>,
}

impl AloneGraph {
    /// The graph that a client sent.
    ///
    /// # Errors
    /// InvalidArgument if a node or a constant is wrong.
    fn new(sent: SentNodes) -> Result<AloneGraph> {
        let SentNodes { mut nodes, constants, tensors } = sent;
        let mut stock = Stock::default();
        let arrived = stock.put_back(&mut nodes, &constants, tensors)?;
        stock.add(arrived);
        Ok(AloneGraph { graph: Graph::new(nodes)?, constants: stock })
    }
}

impl Master {
    /// The master of a node or a client; the CPU of the task of `seat` takes the nodes that request no device.
    /// It plans within this memory budget.
    pub fn new(
        seat: Seat,
        router: Arc<dyn Router>,
        limits: MasterLimits,
        events: Arc<Events>,
        budget: &Arc<Budget>,
    ) -> Self {
        let started = Instant::now();
        let clock = Box::new(move || started.elapsed().as_nanos() as Nanos);
        let master = Master::with(seat, router, limits, events, clock, |work| Planner::start(work, budget));
        master.state.clockwork.runs(&master.state, budget);
        master
    }

    fn with(
        seat: Seat,
        router: Arc<dyn Router>,
        limits: MasterLimits,
        events: Arc<Events>,
        clock: Clock,
        planner: impl FnOnce(Arc<dyn Work>) -> Planner,
    ) -> Self {
        let (sessions, claims, traces) = (Sessions::new(limits), Claims::default(), Traces::default());
        let steps = AtomicU64::new(0);
        let step_times = Mutex::default();
        let clockwork = Clockwork::default();
        let state = Arc::new(State {
            seat,
            router,
            limits,
            events,
            sessions,
            claims,
            traces,
            clock,
            steps,
            step_times,
            clockwork,
            heirs: Heirs::default(),
            homes: Homes::default(),
            measured: Times::default(),
        });
        let planner = planner(state.clone());
        Master { state, planner }
    }

    /// Receives a message from a client or a worker.
    pub fn deliver(&self, from: &Peer, message: ToMaster, tensors: Vec<Tensor>) {
        let State { router, seat, .. } = &*self.state;
        if let Some(failure) = seat.refusal(from, &message) {
            return if let ToMaster::Request { id, .. } = message {
                self.state.reply(from, id, Err(failure))
            };
        }
        match message {
            ToMaster::Request { id, request } => match request {
                Request::Run { session, plan, steps, every, watched } => {
                    let ask = Ask { plan, steps, every, watched, feeds: tensors };
                    let cluster = &router.cluster();
                    let is_comparing = self.state.is_comparing();
                    let run = SessionEvent::Run { request: id, ask, cluster, is_comparing };
                    let to_compare = self.state.asked(from, id, session, run);
                    to_compare.into_iter().for_each(|of| self.state.compare(session, of));
                }
                Request::Feed { session, run, feeds, wanted } => {
                    let fed = Fed { run, feeds, wanted, tensors };
                    self.state.asked(from, id, session, SessionEvent::Feed { request: id, fed });
                }
                Request::Cancel { session, run } => {
                    if let Ok(handle) = self.state.sessions.of(from, session) {
                        self.state.on(&handle, SessionEvent::Cancel { run });
                    }
                    self.state.reply(from, id, Ok(Reply::Cancelled));
                }
                Request::Close { session } => self.close(from, id, session),
                request @ (Request::Open { .. }
                | Request::Extend { .. }
                | Request::Prepare { .. }
                | Request::PrepareAlone { .. }
                | Request::Explain { .. }
                | Request::Claim { .. }) => {
                    if let Err(failure) = self.planner.push(PlanRequest { client: from.clone(), id, request, tensors })
                    {
                        let failure = self.state.seat.here(failure);
                        self.state.reply(from, id, Err(failure));
                    }
                }
            },
            ToMaster::Registered { session, pieces, result } => {
                self.state.told(session, SessionEvent::Registered { worker: from, pieces, result });
            }
            ToMaster::PartialFetch { piece, step, place } => {
                self.state.told(piece.session, SessionEvent::PartialFetch { piece, step, place, tensors });
            }
            ToMaster::Done { piece, step, count } => {
                self.state.told(piece.session, SessionEvent::Done { piece, step, count, tensors })
            }
            ToMaster::Failed { step, failure } => {
                self.state.told(step.session, SessionEvent::Failed { step: step.number, failure });
            }
            ToMaster::Confirmed { session } => self.confirmed(from, session),
            ToMaster::Guard { session, report } => {
                self.state.told(session, SessionEvent::Guarded { worker: from, report });
            }
            ToMaster::Inherit { session, estate } => self.state.inherit(from, session, *estate),
            ToMaster::PeerLost { session, until, peer, why } => {
                self.state.told(session, SessionEvent::PeerLost { worker: from, until, peer, why });
            }
        }
    }

    /// Ends a session at once, including its requests that are being planned.
    fn close(&self, client: &Peer, id: RequestId, session: SessionId) {
        let closed = closed();
        let job = PlanRequest { client: client.clone(), id, request: Request::Close { session }, tensors: Vec::new() };
        // The planner first: the session's opening, if it was under way, is then either done and visible below, or followed by
        // this job.
        let (given_up, nothing_under_way) = self.planner.end(job);
        self.state.close(client, session, &closed);
        for job in given_up {
            self.state.reply(client, job.id, Err(closed.clone()));
        }
        if nothing_under_way.is_some() {
            self.state.reply(client, id, Ok(Reply::Closed));
        }
    }

    /// The sessions that are open, and the use of the master's limits.
    pub fn status(&self) -> (Vec<SessionStatus>, Vec<LimitStatus>) {
        let now = self.state.now();
        let of_one = machine::limits(&self.state.limits);
        let mut most = [0; 5];
        let mut sessions = Vec::new();
        for handle in self.state.sessions.all() {
            let session = handle.lock();
            sessions.push(session.machine.status(now));
            most.iter_mut().zip(session.machine.near()).for_each(|(most, used)| *most = used.max(*most));
        }
        let mut limits = vec![LimitStatus::new("sessions", sessions.len(), self.state.limits.sessions)];
        limits.extend(of_one.iter().zip(most).map(|(&(name, limit), used)| LimitStatus::new(name, used, limit)));
        (sessions, limits)
    }

    /// Steps that are done, of all sessions since the start.
    pub fn steps(&self) -> u64 {
        self.state.steps.load(Ordering::Relaxed)
    }

    /// How long the steps of all sessions took.
    pub fn step_times(&self) -> StepTimes {
        lock(&self.state.step_times).clone()
    }

    /// The client of a session that is open.
    pub fn client_of(&self, session: SessionId) -> Option<Peer> {
        self.state.sessions.find(session).map(|handle| handle.client.clone())
    }

    /// Whether a session is open.
    pub fn has(&self, session: SessionId) -> bool {
        self.state.sessions.find(session).is_some()
    }

    /// The activity of a session, except for the plan and the traced step of these numbers.
    ///
    /// # Errors
    /// Aborted if it is not open, and no traced step of it is kept.
    pub fn look(&self, session: SessionId, plan: Option<u32>, traced: Option<u64>) -> Result<SessionLook> {
        let state = &self.state;
        let (mut look, to_draw) = match state.sessions.find(session) {
            Some(handle) => handle.lock().machine.look(plan, state.now()),
            None if state.traces.of(session).is_some() => {
                (SessionLook { is_over: true, ..SessionLook::default() }, None)
            }
            None => return Err(state.sessions.no_session(session)),
        };
        if let Some(of) = to_draw {
            let plan = state.plan_of(&of, &state.router.cluster());
            look.picture = plan.ok().map(|plan| plan.picture());
        }
        if let Some((number, traces)) = state.traces.of(session) {
            look.traced = Some(number);
            if traced != Some(number) {
                look.step = Some(traces::drawn(&traces)?);
            }
        }
        Ok(look)
    }

    /// A peer is gone: its own sessions end, and steps that need its task fail.
    pub fn down(&self, peer: &Peer, task: Option<&Task>, why: &str) {
        self.planner.forget(peer);
        let closed = Failure::new(Code::Cancelled, "the session's client is gone");
        for handle in self.state.sessions.all() {
            if handle.client == *peer {
                self.state.close(peer, handle.id, &closed);
            }
        }
        let name = task.map_or_else(|| peer.to_string(), Task::to_string);
        self.state.lose(peer, &task_gone(&name, why));
        self.state.answer_claims(|(_, worker)| worker == peer);
    }
}

impl State {
    fn reply(&self, client: &Peer, id: RequestId, result: Result<Reply>) {
        if let Err(failure) = &result {
            note_limit(&self.events, failure);
        }
        if let Err(failure) = self.router.send(client, ToClient::Reply { id, result }.into())
            && failure.code != Code::Unavailable
        {
            // The answer is too large, or the queue to the client is full. A client that is gone by now does not wait.
            let _gone = self.router.send(client, ToClient::Reply { id, result: Err(failure) }.into());
        }
    }

    /// The time on this master's own clock.
    fn now(&self) -> Nanos {
        (self.clock)()
    }

    /// Passes an event to a session and sends the messages that follow. Returns the planning that is to be done.
    fn on(&self, handle: &Arc<Handle>, event: SessionEvent<'_>) -> Option<ToPlan> {
        self.on_session(handle, event, |_| true)?
    }

    /// As [`Master::on`], if `is_wanted` holds under the lock; else `None`.
    ///
    /// The decisions of a session leave in their order, whichever threads they were made on: so two runs of one plan start in
    /// the same order everywhere (or each could wait for the other), and no Abort overtakes its Start. One thread at a time
    /// sends for a session, and holds no lock meanwhile: a slow way to one worker or client holds up no other session.
    fn on_session(
        &self,
        handle: &Arc<Handle>,
        event: SessionEvent<'_>,
        is_wanted: impl FnOnce(&Machine) -> bool,
    ) -> Option<Option<ToPlan>> {
        let now = self.now();
        let (to_plan, sends, to_learn, placed_anew) = {
            let mut session = handle.lock();
            if !is_wanted(&session.machine) {
                return None;
            }
            session.machine.tell_steps(self.events.are_followed());
            let before = session.machine.steps_done();
            let to_plan = session.machine.handle(event, now);
            let done = session.machine.steps_done() - before;
            if done > 0 {
                self.steps.fetch_add(done, Ordering::Relaxed);
                lock(&self.step_times).merge(&session.machine.take_step_times());
            }
            // Under the lock, so that the events of a session are noted in their order.
            self.note(&mut session.machine);
            let placed_anew = session.machine.take_placed_anew();
            let traced = session.machine.take_traced();
            let to_learn = traced.as_ref().filter(|_| self.measured.counts(now));
            let to_learn = to_learn.map(|(_, traces)| (Arc::clone(session.machine.graph()), traces.clone()));
            traced.into_iter().for_each(|traced| self.traces.keep(handle.id, traced));
            let sends = session.machine.has_outgoing() && !std::mem::replace(&mut session.is_sending, true);
            (to_plan, sends, to_learn, placed_anew)
        };
        placed_anew.iter().for_each(|(node, op, device)| log_node(node, op, device));
        if let Some((graph, traces)) = to_learn {
            self.measured.learn(&graph, &self.router.cluster(), &traces);
        }
        if sends {
            // A step that follows runs once other threads may send for the session again.
            delivering(|| self.empty(handle));
        }
        Some(to_plan)
    }

    fn note(&self, machine: &mut Machine) {
        machine.take_happened().into_iter().for_each(|event| self.events.note(event));
    }

    fn empty(&self, handle: &Arc<Handle>) {
        /// Lets the next thread send if this one panicked.
        struct Turn<'a>(&'a Handle);
        impl Drop for Turn<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let mut session = self.0.lock();
                    (session.is_sending, session.is_damaged) = (false, true);
                }
            }
        }
        let _turn = Turn(handle);
        let mut outgoing = Sends::new();
        loop {
            {
                let mut session = handle.lock();
                session.machine.take_outgoing(&mut outgoing);
                if outgoing.is_empty() {
                    session.is_sending = false;
                    return;
                }
            }
            for (to, envelope) in outgoing.drain(..) {
                let about = Subject::of(&envelope.message);
                if let Err(failure) = self.router.send_soon(&to, envelope) {
                    self.unsent(handle, about, &to, &failure);
                }
            }
            // A quick step on this thread sends its values to other nodes together with their Start.
            if !has_inline_work() {
                self.router.flush();
            }
        }
    }

    /// Notifies a session that a message could not be sent; the messages that follow from that are sent after those under way.
    fn unsent(&self, handle: &Handle, about: Subject, to: &Peer, failure: &Failure) {
        if matches!(about, Subject::Nothing) && failure.code != Code::Unavailable {
            tracing::warn!("{to} was not notified of a release: {failure}");
        }
        let mut session = handle.lock();
        session.machine.handle(SessionEvent::Unsent { to, about, failure }, self.now());
        self.note(&mut session.machine);
    }

    /// Performs a client's request to its session.
    fn asked(&self, client: &Peer, id: RequestId, session: SessionId, event: SessionEvent<'_>) -> Option<ToPlan> {
        let found = self.sessions.of(client, session).and_then(|handle| {
            let is_open = |machine: &Machine| !machine.is_over();
            self.on_session(&handle, event, is_open).ok_or_else(|| self.sessions.no_session(session))
        });
        match found {
            Ok(to_plan) => to_plan,
            Err(failure) => {
                self.reply(client, id, Err(failure));
                None
            }
        }
    }

    /// Receives a worker's report on a session.
    fn told(&self, session: SessionId, event: SessionEvent<'_>) {
        if let Some(handle) = self.sessions.find(session) {
            self.on(&handle, event);
        }
    }

    /// Performs the slow requests; `None` if the answer comes later.
    fn plan(&self, client: &Peer, id: RequestId, request: Request, tensors: Vec<Tensor>) -> Result<Option<Reply>> {
        match request {
            Request::Open { session, graph, options, constants } => {
                let sent = SentNodes { nodes: graph, constants, tensors };
                self.open(client, session, sent, options).map(|()| Some(Reply::Opened))
            }
            Request::Extend { session, nodes, constants } => {
                let sent = SentNodes { nodes, constants, tensors };
                self.extend(client, session, sent).map(|()| Some(Reply::Extended))
            }
            Request::Prepare { session, signature } => {
                self.prepare(client, id, session, signature, None);
                Ok(None)
            }
            Request::PrepareAlone { session, nodes, signature, constants } => {
                let alone = AloneGraph::new(SentNodes { nodes, constants, tensors })?;
                self.prepare(client, id, session, signature, Some(alone));
                Ok(None)
            }
            // The request under way when the client closed it may have been its opening.
            Request::Close { session } => {
                self.close(client, session, &closed());
                Ok(Some(Reply::Closed))
            }
            Request::Claim { session, names } => self.claim(client, id, session, names).map(|()| None),
            Request::Explain { graph, signature, options } => {
                self.explain(graph, &signature, &options).map(|plan| Some(Reply::Explained(Box::new(plan))))
            }
            Request::Run { .. } | Request::Feed { .. } | Request::Cancel { .. } => Ok(None),
        }
    }

    fn open(&self, client: &Peer, id: SessionId, sent: SentNodes, options: SessionOptions) -> Result<()> {
        let SentNodes { mut nodes, constants, tensors } = sent;
        let arrived = Stock::default().put_back(&mut nodes, &constants, tensors)?;
        let graph = Graph::new(nodes)?;
        let is_guarded = options.guard.is_some();
        let mut session = Machine::new(id, client.clone(), graph, options, self.limits, self.now());
        session.constants().add(arrived);
        self.heirs.inheritance(id).into_iter().for_each(|inheritance| session.inherit(inheritance));
        let evicted = self.sessions.insert(Handle::new(session), self.now());
        if let Some(handle) = evicted.map_err(|failure| self.seat.here(failure))? {
            let failure = self.sessions.no_session(handle.id);
            self.on(&handle, SessionEvent::End { failure: &failure });
        }
        self.events.note(Event::SessionOpened { session: id, client: client.clone() });
        if is_guarded {
            self.clockwork.start();
        }
        Ok(())
    }

    fn extend(&self, client: &Peer, id: SessionId, sent: SentNodes) -> Result<()> {
        let handle = self.sessions.of(client, id)?;
        let SentNodes { mut nodes, constants, tensors } = sent;
        let arrived = handle.lock().machine.constants().put_back(&mut nodes, &constants, tensors)?;
        loop {
            let graph = Arc::clone(handle.lock().machine.graph());
            let addition = graph.check_addition(nodes.clone())?;
            drop(graph);
            // Another request may have extended the graph in the meantime.
            let mut session = handle.lock();
            if session.machine.extend(addition) {
                session.machine.constants().add(arrived);
                return Ok(());
            }
        }
    }

    fn explain(&self, graph: Vec<NodeDef>, signature: &Signature, options: &SessionOptions) -> Result<Plan> {
        self.make_plan(&Graph::new(graph)?, &self.router.cluster(), signature, options, None, None)
    }

    /// Plans a signature, of the session's graph or of a separate one, and sends the pieces out; the session answers when they
    /// are registered, or at once if it can.
    fn prepare(
        &self,
        client: &Peer,
        request: RequestId,
        id: SessionId,
        signature: Signature,
        alone: Option<AloneGraph>,
    ) {
        let cluster = &*self.router.cluster();
        let asked = self.asked(client, request, id, SessionEvent::Prepare { request, signature, alone, cluster });
        let Some(mut of) = asked else { return };
        let plan = self.plan_of(&of, cluster);
        if let (true, Ok(plan)) = (of.options.log_placement, &plan) {
            log_placement(plan);
        }
        plan.iter().for_each(|plan| of.draw(plan));
        self.asked(client, request, id, SessionEvent::Planned { request, of, plan, cluster });
    }

    /// Ends a client's session, if it exists.
    fn close(&self, client: &Peer, id: SessionId, failure: &Failure) {
        if let Ok(handle) = self.sessions.of(client, id) {
            self.sessions.remove(id);
            self.on(&handle, SessionEvent::End { failure });
        }
    }

    /// Fails the steps and registrations that wait for `peer`.
    fn lose(&self, peer: &Peer, failure: &Failure) {
        for handle in self.sessions.all() {
            self.on(&handle, SessionEvent::Down { peer, failure });
        }
    }
}

/// The failure of the steps and requests of a session that its client closed; clients of TensorFlow look for "was cancelled".
fn closed() -> Failure {
    Failure::new(Code::Cancelled, "the session was closed by its client, and its work was cancelled")
}

/// Notes that something failed because of a limit, if that is the reason.
fn note_limit(events: &Events, failure: &Failure) {
    if failure.code == Code::ResourceExhausted {
        events.note(Event::LimitReached { what: failure.to_string() });
    }
}

#[cfg(test)]
mod tests;
