//! One client's session as a state machine: its graph, the plans made of it, the runs under way.
//!
//! Pure: events come in as a [`SessionEvent`] with their time, and the messages to send come out, in the order in which they
//! were decided. The master keeps the lock, the clock and the threads, does the planning that the machine requests, and sends.

mod constants;
mod feeds;
mod history;
mod plans;
mod run;
mod subject;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub(super) use self::constants::Stock;
use self::history::History;
pub(super) use self::history::Traced;
use self::plans::{FeedWay, MAX_NUMBERS, Part, Plans, Prepared, Readiness, Standing, Unneeded, no_number};
pub(super) use self::run::{Ask, Fed};
use self::run::{MAX_RUNS, Runs};
pub(super) use self::subject::Subject;
use meshtf_graph::plan::{Mode, Picture, Piece, PieceOp, Plan, Signature, late_feed, needed_feeds};
use meshtf_graph::{Addition, Graph};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{Incarnation, PieceId, RequestId, SessionId};
use meshtf_tensor::{PartialShape, Tensor};

use super::MasterLimits;
use crate::protocol::constants::TakenOut;
use crate::protocol::event::Event;
use crate::protocol::look::MAX_DRAWN;
use crate::protocol::runs::StepTimes;
use crate::protocol::{Cluster, Envelope, Peer, Reply, SessionOptions, ToClient, ToWorker};

/// The messages to send.
pub(super) type Sends = Vec<(Peer, Envelope)>;

/// A time on the master's own clock, in nanoseconds.
pub(super) type Nanos = u64;

/// An event of a session.
pub(super) enum SessionEvent<'a> {
    /// Its client requests a run.
    Run { request: RequestId, ask: Ask, cluster: &'a Cluster },
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
    /// A piece has run for this step.
    Done { piece: PieceId, step: u64, tensors: Vec<Tensor> },
    /// A step failed on a worker.
    Failed { step: u64, failure: Failure },
    /// A worker lost its link with `peer` after it received the start of steps up to `until`.
    PeerLost { worker: &'a Peer, until: u64, peer: Peer, why: String },
    /// A peer is gone, and everything that waits for it fails.
    Down { peer: &'a Peer, failure: &'a Failure },
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
    picture: Option<Arc<Picture>>,
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
    plans: Plans,
    runs: Runs,
    /// When its client last made a request.
    used: Nanos,
    /// When it was opened.
    opened: Nanos,
    /// Steps that are done, of all its runs.
    steps_done: u64,
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
    next_piece: u32,
    /// The tasks that pieces were sent to, and which process held each then.
    tasks: HashMap<Task, Incarnation>,
    /// Every worker that pieces were sent to, whether or not it kept them.
    workers: BTreeSet<Peer>,
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

impl Machine {
    pub fn new(
        id: SessionId,
        client: Peer,
        graph: Graph,
        options: SessionOptions,
        limits: MasterLimits,
        now: Nanos,
    ) -> Self {
        Machine {
            id,
            client,
            graph: Arc::new(graph),
            constants: Stock::default(),
            options,
            plans: Plans::new(limits),
            runs: Runs::default(),
            used: now,
            opened: now,
            steps_done: 0,
            step_times: StepTimes::default(),
            seen: History::default(),
            happened: Vec::new(),
            tells_steps: false,
            outbox: Sends::new(),
            is_over: false,
            next_piece: 0,
            tasks: HashMap::new(),
            workers: BTreeSet::new(),
        }
    }

    /// Processes an event. The messages to send are left for [`Machine::take_outgoing`]; the planning that must come first is
    /// returned.
    pub fn handle(&mut self, event: SessionEvent<'_>, now: Nanos) -> Option<ToPlan> {
        match event {
            SessionEvent::Run { request, ask, cluster } => {
                self.used = now;
                self.begin(request, ask, cluster, now);
            }
            SessionEvent::Feed { request, fed } => {
                self.used = now;
                self.feed(request, fed);
            }
            SessionEvent::Cancel { run } => {
                self.cancel(run, &Failure::new(Code::Cancelled, "the client cancelled the step"))
            }
            SessionEvent::Prepare { request, signature, alone, cluster } => {
                self.used = now;
                return match alone {
                    None => self.prepare(request, signature, cluster),
                    Some(alone) => Some(self.to_plan(Of::Alone(Box::new(alone)), signature)),
                };
            }
            SessionEvent::Planned { request, of, plan, cluster } => self.planned(request, of, plan, cluster),
            SessionEvent::Registered { worker, pieces, result } => self.registered(worker, &pieces, result),
            SessionEvent::PartialFetch { piece, step, place, tensors } => {
                self.partial_fetch(piece, step, place, tensors)
            }
            SessionEvent::Done { piece, step, tensors } => self.done(piece, step, tensors, now),
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
        self.runs.is_empty() && !self.plans.iter().any(is_asked)
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
        ToPlan { of, options: self.options.clone(), signature, picture: None }
    }

    /// The plan is made; the request is answered when its pieces are registered, or now if there is none.
    fn planned(&mut self, request: RequestId, of: ToPlan, plan: Result<Plan>, cluster: &Cluster) {
        let registered = match plan {
            Ok(plan) => self.register(request, of, plan, cluster),
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

    /// Numbers a fresh plan's pieces and sends them out.
    ///
    /// # Errors
    /// Unavailable if a task is gone; ResourceExhausted if too many plans are in use. Nothing is sent then.
    fn register(&mut self, request: RequestId, of: ToPlan, plan: Plan, cluster: &Cluster) -> Result<()> {
        let graph = of.graph();
        let signature = &of.signature;
        let summary = plan.summary();
        let mut parts: BTreeMap<Task, (Part, Pieces)> = BTreeMap::new();
        let mut piece_fetches = HashMap::new();
        let needed_feeds = match signature.mode {
            Mode::Partial { .. } => needed_feeds(graph, signature)?,
            Mode::Whole | Mode::Traced => Vec::new(),
        };
        let mut feed_ways = vec![Vec::new(); signature.feeds.len()];
        if plan.pieces.len() > (MAX_NUMBERS - self.next_piece) as usize {
            return Err(no_number("pieces"));
        }
        let first_piece = self.next_piece;
        let nodes = plan.pieces.iter().map(|piece| piece.nodes.len()).sum();
        let meets = Arc::new(meets(&plan));
        for piece in plan.pieces {
            let task = piece.device.task.clone();
            let member = cluster.member(&task).ok_or_else(|| {
                Failure::new(Code::Unavailable, format!("task {task} is gone")).on_task(&task.to_string())
            })?;
            let known = *self.tasks.entry(task.clone()).or_insert(member.incarnation);
            if known != member.incarnation && self.options.ends_with_its_tasks {
                return Err(lost(&task));
            }
            let piece_id = PieceId { session: self.id, number: self.next_piece };
            self.next_piece += 1;
            piece_fetches.insert(piece_id, piece.fetches.clone());
            for (place, &feed) in piece.feeds.iter().enumerate() {
                feed_ways[feed as usize].push(FeedWay {
                    worker: member.peer.clone(),
                    device: piece.device.clone(),
                    transfer: late_feed(place as u32),
                });
            }
            let (part, pieces) = parts.entry(task.clone()).or_insert_with(|| {
                let (worker, incarnation) = (member.peer.clone(), member.incarnation);
                (Part { task, worker, incarnation, pieces: vec![], feeds: vec![], constants: vec![] }, Pieces::new())
            });
            part.pieces.push(piece_id);
            part.feeds.extend(&piece.feeds);
            pieces.push((piece_id, piece));
        }
        let workers: BTreeSet<Peer> = parts.values().map(|(part, _)| part.worker.clone()).collect();
        let is_shared = matches!(of.of, Of::Session(_));
        let mut requests = if is_shared { self.plans.take_requests(signature) } else { Vec::new() };
        requests.push(request);
        let readiness = match workers.is_empty() {
            true => Readiness::Ready,
            false => Readiness::Waiting { requests: requests.clone(), workers: workers.clone() },
        };
        let (mut parts, mut pieces): (Vec<Part>, Vec<Pieces>) = parts.into_values().unzip();
        let constants = match &of.of {
            Of::Session(_) => &self.constants,
            Of::Alone(alone) => &alone.constants,
        };
        let taken: Vec<TakenOut> = pieces.iter_mut().map(|pieces| constants.take_out(pieces)).collect();
        for ((part, pieces), taken) in parts.iter_mut().zip(&pieces).zip(&taken) {
            let used = taken.references.iter().map(|reference| (pieces[reference.piece as usize].0, reference.content));
            part.constants = used.collect();
        }
        let parts = Arc::new(parts);
        let prepared = Prepared {
            parts: Arc::clone(&parts),
            feed_types: plan.feed_types,
            feed_shapes: signature.feeds.iter().map(|feed| stated_shape(graph, feed)).collect(),
            signature: Arc::new(of.signature),
            is_shared,
            meets,
            piece_fetches: Arc::new(piece_fetches),
            feed_ways,
            needed_feeds,
            summary,
            picture: of.picture,
            pieces: first_piece..self.next_piece,
            nodes,
            readiness,
            runs: 0,
            steps: 0,
            used: 0,
            is_replaced: false,
        };
        let (number, unneeded) = match self.plans.keep(prepared) {
            Ok(kept) => kept,
            Err(failure) => {
                requests.pop();
                requests.iter().for_each(|&request| self.answer(request, Err(failure.clone())));
                return Err(failure);
            }
        };
        // A worker that is not up holds nothing of it any more.
        self.workers.retain(|worker| cluster.members().any(|member| member.peer == *worker));
        self.workers.extend(workers);
        self.forget(unneeded);
        if pieces.is_empty() {
            self.prepared(&requests, number);
        }
        for ((part, pieces), taken) in parts.iter().zip(pieces).zip(taken) {
            let (constants, tensors) = self.constants.beside(taken, &part.worker);
            let (session, isolated) = (self.id, self.options.isolated);
            let message = ToWorker::Register { session, isolated, pieces, constants };
            self.send(part.worker.clone(), Envelope::new(message, tensors));
        }
        Ok(())
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
            self.prepared(&requests, number);
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
            Subject::Pieces(_) | Subject::Step(_) if is_gone => self.lose(to, failure),
            Subject::Pieces(pieces) => self.registered(to, &pieces, Err(failure.clone())),
            Subject::Step(number) => self.unsent_step(number, failure),
            // The peer is gone; its sessions end, and it has released everything.
            _ if is_gone => {}
            Subject::Answer(id) => self.answer(id, Err(failure.clone())),
            Subject::Fetch(id) => self.cancel(id, failure),
            Subject::Nothing => {}
        }
    }

    /// `peer` is gone, and everything that waits for it fails.
    fn lose(&mut self, peer: &Peer, failure: &Failure) {
        self.constants.lost(peer);
        for run in self.runs.needing(peer) {
            self.fail_run(run, failure);
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
        for plan in self.plans.iter() {
            if let Readiness::Waiting { requests, .. } = &plan.readiness {
                open.extend(requests);
            }
        }
        self.happened.push(Event::SessionEnded { session: self.id, why: failure.message.clone() });
        self.plans.clear();
        open.sort_unstable();
        for request in open {
            self.answer(request, Err(failure.clone()));
        }
    }
}

/// The tasks of which the first sends values to the second.
fn meets(plan: &Plan) -> BTreeSet<(Task, Task)> {
    let sends = plan.pieces.iter().flat_map(|piece| piece.nodes.iter().map(move |node| (&piece.device.task, &node.op)));
    let between = sends.filter_map(|(from, op)| match op {
        PieceOp::Send { to, .. } if to.task != *from => Some((from.clone(), to.task.clone())),
        _ => None,
    });
    between.collect()
}

/// The shape that a placeholder states for its feed; unknown for every other tensor.
fn stated_shape(graph: &Graph, feed: &str) -> PartialShape {
    let Ok(output) = graph.output(feed) else { return PartialShape::UNKNOWN };
    let node = graph.node(output.node);
    node.attrs.shape("shape").ok().filter(|_| node.op.is_fed).cloned().unwrap_or_default()
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
