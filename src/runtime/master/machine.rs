//! One client's session as a state machine: its graph, the plans made of it, the runs under way.
//!
//! Pure: events come in as a [`SessionEvent`] with their time, and the messages to send come out, in the order in which they
//! were decided. The master keeps the lock, the clock and the threads, does the planning that the machine requests, and sends.

mod adapting;
mod constants;
mod feeds;
mod guard;
mod history;
mod journal;
mod plans;
mod recovery;
mod register;
mod run;
mod subject;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use self::adapting::{LEAST_REST, Placed, Present};
pub(super) use self::constants::Stock;
use self::guard::Guard;
pub(super) use self::guard::{Inheritance, buddy};
use self::history::History;
pub(super) use self::history::Traced;
use self::plans::{MAX_NUMBERS, Plans, Prepared, Readiness, Standing, Unneeded};
pub(super) use self::run::{Ask, Fed};
use self::run::{MAX_RUNS, Runs};
pub(super) use self::subject::Subject;
use meshtf_graph::plan::{Picture, Piece, Plan, Signature};
use meshtf_graph::{Addition, Graph};
use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{Incarnation, PieceId, RequestId, SessionId};

use super::MasterLimits;
use super::homes::SessionHomes;
use crate::protocol::event::Event;
use crate::protocol::guard::GuardReport;
use crate::protocol::look::MAX_DRAWN;
use crate::protocol::runs::StepTimes;
use crate::protocol::{Cluster, Envelope, Peer, Reply, SessionOptions, ToClient, ToWorker};

/// The messages to send.
pub(super) type Sends = Vec<(Peer, Envelope)>;

/// A time on the master's own clock, in nanoseconds.
pub(super) type Nanos = u64;

/// An event of a session.
pub(super) enum SessionEvent<'a> {
    /// Its client requests a run. `is_comparing`: the plan of some session is being compared.
    Run { request: RequestId, ask: Ask, cluster: &'a Cluster, is_comparing: bool },
    /// Its client gives a partial run some of its feeds.
    Feed { request: RequestId, fed: Fed },
    /// Its client gives up a run.
    Cancel { run: RequestId },
    /// Its client requests the plan of a signature, of the session's graph or of another.
    Prepare { request: RequestId, signature: Signature, alone: Option<AloneGraph>, cluster: &'a Cluster },
    /// The planning that the session requested has been done, on this cluster.
    Planned { request: RequestId, of: ToPlan, plan: Result<Plan>, cluster: &'a Cluster },
    /// A worker has compiled its pieces of a plan, or refused them.
    Registered { worker: &'a Peer, pieces: Vec<PieceId>, result: Result<()> },
    /// A worker has a fetch of a partial run, by its index among the piece's fetches.
    PartialFetch { piece: PieceId, step: u64, place: u32, tensors: Vec<Tensor> },
    /// A piece has run for `count` steps, of which this is the last.
    Done { piece: PieceId, step: u64, count: u64, tensors: Vec<Tensor> },
    /// A step failed on a worker.
    Failed { step: u64, failure: Failure },
    /// A worker lost its link with `peer` after it received the start of steps up to `until`.
    PeerLost { worker: &'a Peer, until: u64, peer: Peer, why: String },
    /// A peer is gone, and everything that waits for it fails.
    Down { peer: &'a Peer, failure: &'a Failure },
    /// A worker reports on the guard of the session.
    Guarded { worker: &'a Peer, report: GuardReport },
    /// A node continues the session if this master is lost.
    Heir { peer: Peer },
    /// The client has the values of the steps up to this one.
    Received { until: u64 },
    /// Time has passed: for a session that is guarded.
    Tick { cluster: &'a Cluster },
    /// Time has passed, and no plan is being compared: for a session that is guarded.
    Look { cluster: &'a Cluster },
    /// The plan that would take the place of one that runs has been made.
    Compared { of: ToPlan, plan: Result<Plan>, cluster: &'a Cluster },
    /// The planning that followed a tick has been done.
    Replanned { of: ToPlan, plan: Result<Plan>, cluster: &'a Cluster },
    /// A message of the session could not be sent.
    Unsent { to: &'a Peer, about: Subject, failure: &'a Failure },
    /// It ends: its client closed it or is gone, or another took its slot.
    End { failure: &'a Failure },
    /// It ends for another, which waits until its workers have confirmed that.
    Supersede { failure: &'a Failure },
}

/// A session's request for planning: a [`SessionEvent::Planned`] follows.
pub(super) struct ToPlan {
    of: Of,
    pub options: SessionOptions,
    pub signature: Signature,
    /// The devices of the session's variables that were placed by cost.
    pub homes: Arc<SessionHomes>,
    /// The request that it answers, if it comes from a tick.
    pub request: Option<RequestId>,
    picture: Option<Arc<Picture>>,
    /// The plan that runs and that it would replace.
    pub present: Option<Present>,
}

/// The graph to plan.
enum Of {
    /// The session's, as it was when the plan was requested.
    Session(Arc<Graph>),
    Alone(Box<AloneGraph>),
}

/// A graph of one plan, which is sent with the request.
pub(super) struct AloneGraph {
    pub graph: Graph,
    /// Its large constants.
    pub constants: Stock,
}

impl ToPlan {
    pub fn graph(&self) -> &Graph {
        match &self.of {
            Of::Session(graph) => graph,
            Of::Alone(alone) => &alone.graph,
        }
    }

    /// Draws its plan, if the plan cannot be made again for that: a separate graph is dropped once it is planned.
    pub fn draw(&mut self, plan: &Plan) {
        let nodes: usize = plan.pieces.iter().map(|piece| piece.nodes.len()).sum();
        let is_drawn = matches!(self.of, Of::Alone(_)) && nodes <= MAX_DRAWN;
        self.picture = is_drawn.then(|| Arc::new(plan.picture()));
    }
}

pub(super) struct Machine {
    pub id: SessionId,
    pub client: Peer,
    graph: Arc<Graph>,
    constants: Stock,
    options: SessionOptions,
    homes: Arc<SessionHomes>,
    /// The least time between two comparisons of a plan.
    rest: Nanos,
    /// The devices of the last plan that took the place of another, if they are to be logged.
    placed_anew: Option<Arc<Placed>>,
    plans: Plans,
    runs: Runs,
    /// When its client last made a request.
    used: Nanos,
    /// When it was opened.
    opened: Nanos,
    /// Steps that are done, of all its runs.
    steps_done: u64,
    /// The steps of its runs that have ended, each once, however often it was computed.
    finished: u64,
    step_times: StepTimes,
    /// The values that its steps fetched, for inspection.
    seen: History,
    /// Its events, for followers; those of steps only if they are requested.
    happened: Vec<Event>,
    tells_steps: bool,
    /// The messages to send, the first decided first.
    outbox: Sends,
    /// It has ended; threads that still hold it must not use it.
    is_over: bool,
    /// It has ended because another master has the session.
    is_superseded: bool,
    next_piece: u32,
    /// The tasks that pieces were sent to, and which process held each then.
    tasks: HashMap<Task, Incarnation>,
    /// Every worker that pieces were sent to, whether or not it kept them.
    workers: BTreeSet<Peer>,
    /// The time of the event that is processed.
    now: Nanos,
    guard: Option<Guard>,
}

/// The limits that each session has for itself, by their names.
pub(super) fn limits(of: &MasterLimits) -> [(&'static str, usize); 5] {
    [
        ("plans of one session", of.plans),
        ("nodes of one session's plans", of.plan_nodes),
        ("runs of one session", MAX_RUNS),
        ("plan numbers of one session", MAX_NUMBERS as usize),
        ("piece numbers of one session", MAX_NUMBERS as usize),
    ]
}

/// The pieces of one worker, to be sent to it.
type Pieces = Vec<(PieceId, Piece)>;

/// The failure for steps and plans that need a task which is gone.
pub(super) fn task_gone(task: &str, why: &str) -> Failure {
    Failure::new(Code::Unavailable, format!("task {task} is gone: {why}")).on_task(task)
}

impl Machine {
    pub fn new(
        id: SessionId,
        client: Peer,
        graph: Graph,
        options: SessionOptions,
        limits: MasterLimits,
        now: Nanos,
    ) -> Self {
        let guard = options.guard.map(|every| Guard::new(every.as_nanos().min(u128::from(Nanos::MAX)) as Nanos));
        Machine {
            guard,
            now,
            id,
            client,
            graph: Arc::new(graph),
            constants: Stock::default(),
            options,
            homes: Arc::default(),
            rest: LEAST_REST,
            placed_anew: None,
            plans: Plans::new(limits),
            runs: Runs::default(),
            used: now,
            opened: now,
            steps_done: 0,
            finished: 0,
            step_times: StepTimes::default(),
            seen: History::default(),
            happened: Vec::new(),
            tells_steps: false,
            outbox: Sends::new(),
            is_over: false,
            is_superseded: false,
            next_piece: 0,
            tasks: HashMap::new(),
            workers: BTreeSet::new(),
        }
    }

    /// Processes an event. The messages to send are left for [`Machine::take_outgoing`]; the planning that must come first is
    /// returned.
    pub fn handle(&mut self, event: SessionEvent<'_>, now: Nanos) -> Option<ToPlan> {
        self.now = now;
        match event {
            SessionEvent::Run { request, ask, cluster, is_comparing } => {
                self.used = now;
                let plan = ask.plan;
                self.begin(request, ask, cluster, now);
                if self.runs.has(request) && !is_comparing {
                    return self.compare(plan, cluster);
                }
            }
            SessionEvent::Feed { request, fed } => {
                self.used = now;
                self.feed(request, fed);
            }
            SessionEvent::Cancel { run } => {
                let failure = Failure::new(Code::Cancelled, "the client cancelled the step");
                self.cancel(run, &failure);
            }
            SessionEvent::Prepare { request, signature, alone, cluster } => {
                self.used = now;
                return match alone {
                    None if self.hold(request, &signature) => None,
                    None => self.prepare(request, signature, cluster),
                    Some(alone) => Some(self.to_plan(Of::Alone(Box::new(alone)), signature)),
                };
            }
            SessionEvent::Planned { request, of, plan, cluster } => self.planned(request, of, plan, cluster),
            SessionEvent::Registered { worker, pieces, result } => self.registered(worker, &pieces, result),
            SessionEvent::Guarded { worker, report } => self.guard_report(worker, report),
            SessionEvent::Heir { peer } => self.set_heir(peer),
            SessionEvent::Received { until } => self.set_received(until),
            SessionEvent::Tick { cluster } => {
                self.tick_guard(cluster);
                self.restore_if_registered(cluster);
                return self.tick_recovery(cluster);
            }
            SessionEvent::Look { cluster } => return self.compare_runs(cluster),
            SessionEvent::Compared { of, plan, cluster } => self.compared(of, plan, cluster),
            SessionEvent::Replanned { of, plan, cluster } => return self.replanned(of, plan, cluster),
            SessionEvent::PartialFetch { piece, step, place, tensors } => {
                self.partial_fetch(piece, step, place, tensors)
            }
            SessionEvent::Done { piece, step, count, tensors } => self.done(piece, (step, count), tensors, now),
            SessionEvent::Failed { step, failure } => self.failed(step, failure),
            SessionEvent::PeerLost { worker, until, peer, why } => self.peer_lost(worker, until, &peer, &why),
            SessionEvent::Down { peer, failure } => self.lose(peer, failure),
            SessionEvent::Unsent { to, about, failure } => self.unsent(to, about, failure),
            SessionEvent::End { failure } => self.end(failure),
            SessionEvent::Supersede { failure } => {
                let workers = self.workers.clone();
                self.end(failure);
                workers.into_iter().for_each(|worker| self.send(worker, ToWorker::Confirm { session: self.id }));
            }
        }
        None
    }

    /// Swaps the messages to send for `empty`, whose allocation is reused.
    pub fn take_outgoing(&mut self, empty: &mut Sends) {
        std::mem::swap(empty, &mut self.outbox);
    }

    /// The workers that have, or may have, pieces of it.
    pub fn workers(&self) -> impl Iterator<Item = &Peer> {
        self.workers.iter()
    }

    /// The options with which it was opened.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Whether messages are to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether it is to be notified of time that passes.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some() && !self.is_over
    }

    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// When its client last made a request.
    pub fn used(&self) -> Nanos {
        self.used
    }

    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The large constants of its graph.
    pub fn constants(&mut self) -> &mut Stock {
        &mut self.constants
    }

    /// Adds nodes that were checked against its graph, unless that has changed since; returns whether it added them. The graph
    /// is copied only if a plan is being made of it.
    #[must_use]
    pub fn extend(&mut self, addition: Addition) -> bool {
        Arc::make_mut(&mut self.graph).append(addition)
    }

    /// Whether no request of it is under way.
    pub fn is_idle(&self) -> bool {
        let is_asked = |plan: &Prepared| matches!(plan.readiness, Readiness::Waiting { .. });
        self.guard.as_ref().is_none_or(|guard| !guard.is_lost())
            && self.runs.is_empty()
            && !self.plans.iter().any(is_asked)
    }

    /// How much of each of the [`limits`] the session has used.
    pub fn near(&self) -> [usize; 5] {
        let numbered = self.plans.numbered() as usize;
        [self.plans.len(), self.plans.nodes(), self.runs.len(), numbered, self.next_piece as usize]
    }

    /// Steps that are done, of all its runs.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Turns events about its steps on or off.
    pub fn tell_steps(&mut self, tells_steps: bool) {
        self.tells_steps = tells_steps;
    }

    /// The events since the last call.
    pub fn take_happened(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.happened)
    }

    /// Notes a refusal because of a limit, if that is the reason.
    fn tell_limit(&mut self, failure: &Failure) {
        if failure.code == Code::ResourceExhausted {
            self.happened.push(Event::LimitReached { what: failure.to_string() });
        }
    }

    fn send(&mut self, to: Peer, envelope: impl Into<Envelope>) {
        self.outbox.push((to, envelope.into()));
    }

    fn answer(&mut self, id: RequestId, result: Result<Reply>) {
        self.answer_with(id, result, Vec::new());
    }

    fn answer_with(&mut self, id: RequestId, result: Result<Reply>, tensors: Vec<Tensor>) {
        self.send(self.client.clone(), Envelope::new(ToClient::Reply { id, result }, tensors));
    }

    fn forget(&mut self, unneeded: Unneeded) {
        for (worker, pieces) in unneeded {
            self.constants.forgotten(&worker, &pieces);
            self.send(worker, ToWorker::Forget { pieces });
        }
    }

    /// A request for a signature's plan: answers it if a plan can run as it is, and otherwise returns the planning to do.
    fn prepare(&mut self, request: RequestId, signature: Signature, cluster: &Cluster) -> Option<ToPlan> {
        match self.plans.stand(&signature, cluster, request) {
            Ok(Standing::Nothing) => return Some(self.to_plan(Of::Session(Arc::clone(&self.graph)), signature)),
            Ok(Standing::Asked) => {}
            Ok(Standing::Ready(number)) => self.prepared(&[request], number),
            Err(failure) => self.answer(request, Err(failure)),
        }
        None
    }

    fn to_plan(&self, of: Of, signature: Signature) -> ToPlan {
        ToPlan {
            of,
            options: self.options.clone(),
            signature,
            homes: Arc::clone(&self.homes),
            request: None,
            picture: None,
            present: None,
        }
    }

    /// The plan is made; the request is answered when its pieces are registered, or now if there is none.
    fn planned(&mut self, request: RequestId, of: ToPlan, plan: Result<Plan>, cluster: &Cluster) {
        // One of the tasks may have been lost since it was asked for.
        if plan.is_err() && matches!(of.of, Of::Session(_)) && self.hold_without(request, &of.signature, cluster) {
            return;
        }
        let registered = match plan {
            Ok(plan) => self.register(Some(request), of, plan, cluster).map(|_| ()),
            // If a device is missing because its task was lost, the graph is not at fault.
            Err(failure) => Err(self.lost_to(cluster).unwrap_or(failure)),
        };
        if let Err(failure) = registered {
            self.answer(request, Err(failure));
        }
    }

    fn prepared(&mut self, requests: &[RequestId], number: u32) {
        let Some(plan) = self.plans.get(number) else { return };
        let summary = plan.summary.clone();
        for &request in requests {
            self.answer(request, Ok(Reply::Prepared { plan: number, summary: summary.clone() }));
        }
    }

    /// A worker has compiled its pieces of a plan, or refused them.
    fn registered(&mut self, worker: &Peer, pieces: &[PieceId], result: Result<()>) {
        let Some(number) = pieces.first().and_then(|&piece| self.plans.of_piece(piece)) else { return };
        let Some(plan) = self.plans.get_mut(number) else { return };
        let Readiness::Waiting { requests, workers } = &mut plan.readiness else { return };
        if !workers.remove(worker) {
            return;
        }
        if let Err(failure) = result {
            self.constants.lost(worker);
            return self.give_up(number, &failure);
        }
        plan.parts.iter().filter(|part| part.worker == *worker).for_each(|part| self.constants.registered(part));
        if workers.is_empty() {
            let requests = std::mem::take(requests);
            plan.readiness = Readiness::Ready;
            if plan.instead.is_some() {
                return self.take_over(number);
            }
            self.prepared(&requests, number);
            self.plan_settled(number, Ok(()));
        }
    }

    /// Answers the requests that wait for a plan that does not come, and drops it. The next request for it starts anew.
    fn give_up(&mut self, number: u32, failure: &Failure) {
        let plan = self.plans.get_mut(number).map(|plan| &mut plan.readiness);
        if let Some(Readiness::Waiting { requests, .. }) = plan {
            for request in std::mem::take(requests) {
                self.answer(request, Err(failure.clone()));
            }
        }
        let unneeded = self.plans.replace(number);
        self.forget(unneeded);
        self.plan_settled(number, Err(failure));
    }

    /// The failure of a session that ends with its tasks, if one of them is not up.
    fn lost_to(&self, cluster: &Cluster) -> Option<Failure> {
        let is_gone = |task: &&Task| cluster.member(task).is_none();
        self.tasks.keys().filter(|_| self.options.ends_with_its_tasks).filter(is_gone).min().map(lost)
    }

    /// Fails the requests that depended on a message that could not be sent.
    fn unsent(&mut self, to: &Peer, about: Subject, failure: &Failure) {
        let is_gone = failure.code == Code::Unavailable;
        match about {
            // The link ended, which is noticed after this.
            Subject::Pieces(_) | Subject::Step(_) | Subject::Guard if is_gone => {
                let gone = self.plans.task_of(to).map(|task| task_gone(&task.to_string(), "its connection ended"));
                self.lose(to, gone.as_ref().unwrap_or(failure));
            }
            Subject::Pieces(pieces) => self.registered(to, &pieces, Err(failure.clone())),
            Subject::Step(number) => self.unsent_step(number, failure),
            // The peer is gone; its sessions end, and it has released everything.
            _ if is_gone => {}
            Subject::Answer(id) => self.answer(id, Err(failure.clone())),
            Subject::Fetch(id) => self.cancel(id, failure),
            Subject::Guard => self.abandon(&failure.message),
            Subject::Nothing => {}
        }
    }

    /// `peer` is gone, and everything that waits for it fails.
    fn lose(&mut self, peer: &Peer, failure: &Failure) {
        self.constants.lost(peer);
        if !self.guards_against(peer, failure) {
            for run in self.runs.needing(peer) {
                self.fail_run(run, failure);
            }
            // After the runs that need it are gone, or they would be resumed.
            if self.guard.as_ref().is_some_and(|guard| guard.takes_from(peer)) {
                self.abandon(&failure.message);
            }
        }
        for number in self.plans.with(peer) {
            let Some(plan) = self.plans.get(number) else { continue };
            let is_asked = matches!(plan.readiness, Readiness::Waiting { .. });
            // Whether its pieces still exist if it comes back is unknown. A session that ends with its tasks must learn
            // of it by the plan.
            if is_asked || !self.options.ends_with_its_tasks {
                self.give_up(number, failure);
            }
        }
    }

    /// Ends it: every worker that ever held a piece of it releases its pieces, and all waiting requests are answered.
    fn end(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        for worker in std::mem::take(&mut self.workers) {
            self.send(worker, ToWorker::Release { session: self.id });
        }
        let mut open = self.runs.clear();
        if let Some(guard) = self.guard.take() {
            open.extend(guard.journal.open().map(|one| one.request));
            open.extend(guard.held.iter().map(|(request, _)| *request));
        }
        for plan in self.plans.iter() {
            if let Readiness::Waiting { requests, .. } = &plan.readiness {
                open.extend(requests);
            }
        }
        self.happened.push(Event::SessionEnded { session: self.id, why: failure.message.clone() });
        self.plans.clear();
        open.sort_unstable();
        open.dedup();
        for request in open {
            self.answer(request, Err(failure.clone()));
        }
    }
}

/// The failure of a session that ends with its tasks once one of them is held by another process.
fn lost(task: &Task) -> Failure {
    let why = format!(
        "task {task} was lost or restarted since this session used it, and what it kept there is gone; open a new session \
         and restore"
    );
    Failure::new(Code::Aborted, why).on_task(&task.to_string())
}

#[cfg(test)]
mod tests;
