//! Steps under way: one `Run` of a client, as many steps as it asked for, the workers a window ahead.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::session::{FeedWay, Part, Prepared};
use super::{Outgoing, State, no_session};
use crate::failure::{Code, Failure, Result};
use crate::ids::{PieceId, RequestId, SessionId, StepId};
use crate::plan::{DeviceName, Mode};
use crate::protocol::{Carried, Envelope, Message, Peer, Reply};
use crate::tensor::Tensor;

/// Steps of one run that the workers may be ahead of the slowest piece.
const WINDOW: u64 = 32;
/// How often a client that watches a run is told how far it is.
const TELLS: Duration = Duration::from_millis(100);
/// Most runs of one session under way at once.
const MAX_RUNS: usize = 1024;

/// What a client asks to run.
pub(super) struct Ask {
    pub session: SessionId,
    pub plan: u32,
    pub steps: u64,
    pub every: u64,
    pub watched: bool,
    pub feeds: Vec<Tensor>,
}

/// What a client gives a partial run: these of the signature's feeds.
pub(super) struct Fed {
    pub session: SessionId,
    pub run: RequestId,
    pub feeds: Vec<u32>,
    /// The fetches that are then waited for.
    pub wanted: Vec<u32>,
    pub tensors: Vec<Tensor>,
}

/// A client's run under way.
pub(super) struct Run {
    request: RequestId,
    plan: u32,
    mode: Mode,
    /// The feeds that a partial run has not been given yet.
    unfed: HashSet<u32>,
    parts: Vec<Part>,
    devices: Vec<DeviceName>,
    /// Each piece's fetches' places in the signature, and how many fetches there are.
    piece_fetches: Arc<HashMap<PieceId, Vec<u32>>>,
    fetches: usize,
    feeds: Vec<Tensor>,
    every: u64,
    /// When the client, if it watches, was last told how far the run is.
    told: Option<Instant>,
    /// Number of the run's first step, of the next to start, and one past its last.
    first: u64,
    next: u64,
    end: u64,
    /// The steps that started and are not finished, oldest first.
    open: VecDeque<Step>,
}

struct Step {
    number: u64,
    waits: HashSet<PieceId>,
    fetched: Vec<Option<Tensor>>,
    /// What the devices say of what they ran, where the plan is traced.
    traces: Vec<Tensor>,
}

impl Run {
    /// Whether a worker of this run is `peer`.
    pub fn needs(&self, peer: &Peer) -> bool {
        self.parts.iter().any(|part| part.worker == *peer)
    }

    fn holds(&self, step: u64) -> bool {
        (self.first..self.next).contains(&step)
    }

    /// Opens the window as far as it goes.
    fn advance(&mut self) -> Outgoing {
        let target = self.end.min(self.first_open() + WINDOW);
        let behind = target.saturating_sub(self.next);
        // One message opens many steps: while the window is more than half open there is no hurry.
        if behind == 0 || (behind < WINDOW / 2 && target != self.end) {
            return Outgoing::new();
        }
        let first = std::mem::replace(&mut self.next, target);
        for number in first..target {
            let waits = self.parts.iter().flat_map(|part| part.pieces.iter().copied()).collect();
            self.open.push_back(Step { number, waits, fetched: vec![None; self.fetches], traces: Vec::new() });
        }
        let start = |part: &Part| {
            let message = Message::Start { pieces: part.pieces.clone(), first, count: behind };
            // In a partial run they come later.
            let tensors = part.feeds.iter().filter_map(|&feed| self.feeds.get(feed as usize).cloned()).collect();
            (part.worker.clone(), Envelope { message, tensors })
        };
        let outgoing = self.parts.iter().map(start).collect();
        if target == self.end {
            // Whoever takes a feed last has it alone, and need not copy it.
            self.feeds.clear();
        }
        outgoing
    }

    /// Hands feeds to the pieces that wait for them.
    fn feed(&mut self, fed: Fed, plan: &Prepared) -> Result<Outgoing> {
        if fed.feeds.len() != fed.tensors.len() {
            return Err(Failure::invalid(format!("{} feeds with {} values", fed.feeds.len(), fed.tensors.len())));
        }
        for (&feed, tensor) in fed.feeds.iter().zip(&fed.tensors) {
            plan.check_feed(feed as usize, tensor)?;
            if !self.unfed.contains(&feed) {
                let name = &plan.feed_names[feed as usize];
                return Err(Failure::invalid(format!("the feed {name} was fed to this partial run already")));
            }
        }
        for &fetch in &fed.wanted {
            let needed = plan.needed_feeds.get(fetch as usize).into_iter().flatten();
            let mut missing = needed.filter(|feed| self.unfed.contains(feed) && !fed.feeds.contains(feed));
            if let Some(&feed) = missing.next() {
                let (feed, fetch) = (&plan.feed_names[feed as usize], &plan.fetch_names[fetch as usize]);
                return Err(Failure::invalid(format!("{fetch} needs {feed}, which this partial run was not fed yet")));
            }
        }
        let step = StepId { session: fed.session, number: self.first };
        let mut outgoing = Outgoing::new();
        for (feed, tensor) in fed.feeds.into_iter().zip(fed.tensors) {
            self.unfed.remove(&feed);
            for FeedWay { worker, device, transfer } in &plan.feed_ways[feed as usize] {
                let carried = Carried { transfer: *transfer, iterations: SmallVec::new(), is_dead: false };
                let message = Message::Push { step, to: device.clone(), values: vec![carried] };
                outgoing.push((worker.clone(), Envelope { message, tensors: vec![tensor.clone()] }));
            }
        }
        Ok(outgoing)
    }

    fn first_open(&self) -> u64 {
        self.open.front().map_or(self.next, |step| step.number)
    }

    /// Gives up every open step and answers the client.
    pub fn fail(self, session: SessionId, client: &Peer, failure: &Failure) -> Outgoing {
        let mut outgoing = Outgoing::new();
        for step in &self.open {
            let id = StepId { session, number: step.number };
            for part in &self.parts {
                outgoing.push((part.worker.clone(), Message::Abort { step: id, failure: failure.clone() }.into()));
            }
        }
        outgoing.push((client.clone(), Message::Reply { id: self.request, result: Err(failure.clone()) }.into()));
        outgoing
    }

    /// A piece has done its part of a step. Returns what to send, and whether the run is over.
    fn done(&mut self, client: &Peer, piece: PieceId, number: u64, tensors: Vec<Tensor>) -> (Outgoing, bool) {
        let Some(step) = self.open.iter_mut().find(|step| step.number == number) else {
            return (Outgoing::new(), false);
        };
        if !step.waits.remove(&piece) {
            return (Outgoing::new(), false);
        }
        let mut tensors = tensors.into_iter();
        if !self.mode.is_partial() {
            for (&place, tensor) in self.piece_fetches.get(&piece).into_iter().flatten().zip(&mut tensors) {
                step.fetched[place as usize] = Some(tensor);
            }
        }
        step.traces.extend(tensors);
        let mut outgoing = Outgoing::new();
        // Steps end in order for the client, though a later one may be through before an earlier one.
        while self.open.front().is_some_and(|step| step.waits.is_empty()) {
            let Some(step) = self.open.pop_front() else { break };
            let tensors: Vec<Tensor> = step.fetched.into_iter().flatten().chain(step.traces).collect();
            let so_far = step.number - self.first + 1;
            if step.number + 1 == self.end {
                let reply = Reply::Ran { steps: so_far, devices: self.devices.clone() };
                let message = Message::Reply { id: self.request, result: Ok(reply) };
                outgoing.push((client.clone(), Envelope { message, tensors }));
                return (outgoing, true);
            }
            if self.every > 0 && so_far.is_multiple_of(self.every) {
                let message = Message::Fetched { id: self.request, step: so_far };
                outgoing.push((client.clone(), Envelope { message, tensors }));
            }
        }
        if self.told.is_some_and(|told| told.elapsed() >= TELLS) {
            let through = self.first_open() - self.first;
            outgoing.push((client.clone(), Message::Through { id: self.request, steps: through }.into()));
            self.told = Some(Instant::now());
        }
        outgoing.extend(self.advance());
        (outgoing, false)
    }
}

impl State {
    pub(super) fn run(&self, client: &Peer, request: RequestId, ask: Ask) {
        let _order = self.starting.lock().expect("no panic under this lock");
        match self.begin(client, request, ask) {
            Ok(outgoing) => self.send(outgoing),
            Err(failure) => self.reply(client, request, Err(failure)),
        }
    }

    fn begin(&self, client: &Peer, request: RequestId, ask: Ask) -> Result<Outgoing> {
        let cluster = self.post.cluster();
        let mut sessions = self.lock();
        let session =
            sessions.get_mut(&ask.session).filter(|s| s.client == *client).ok_or_else(|| no_session(ask.session))?;
        if session.runs.len() >= MAX_RUNS {
            let why = format!("{MAX_RUNS} runs of this session are under way already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let plan = session.plan(ask.plan, &cluster)?;
        if !plan.mode.is_partial() {
            plan.check_feeds(&ask.feeds)?;
        } else if ask.steps != 1 || !ask.feeds.is_empty() {
            return Err(Failure::invalid("a partial run has one step, and its feeds come later"));
        }
        let first = session.next_step;
        let mut run = Run {
            request,
            plan: ask.plan,
            mode: plan.mode,
            unfed: (0..plan.feed_ways.len() as u32).collect(),
            parts: plan.parts.clone(),
            devices: plan.devices.clone(),
            piece_fetches: Arc::clone(&plan.piece_fetches),
            fetches: plan.fetches,
            feeds: ask.feeds,
            every: ask.every,
            told: ask.watched.then(Instant::now),
            first,
            next: first,
            end: first.saturating_add(ask.steps),
            open: VecDeque::new(),
        };
        if ask.steps == 0 || run.parts.is_empty() {
            let reply = Reply::Ran { steps: ask.steps, devices: run.devices };
            return Ok(vec![(client.clone(), Message::Reply { id: request, result: Ok(reply) }.into())]);
        }
        session.next_step = run.end;
        let outgoing = run.advance();
        session.runs.insert(request, run);
        Ok(outgoing)
    }

    pub(super) fn cancel(&self, client: &Peer, request: RequestId, id: SessionId, run: RequestId) {
        let mut outgoing = Outgoing::new();
        {
            let mut sessions = self.lock();
            if let Some(session) = sessions.get_mut(&id).filter(|s| s.client == *client)
                && let Some(run) = session.runs.remove(&run)
            {
                let failure = Failure::new(Code::Cancelled, "the client cancelled the step");
                outgoing.extend(run.fail(id, client, &failure));
            }
        }
        outgoing.push((client.clone(), Message::Reply { id: request, result: Ok(Reply::Cancelled) }.into()));
        self.send(outgoing);
    }

    /// Gives a partial run some of its feeds.
    pub(super) fn feed(&self, client: &Peer, request: RequestId, fed: Fed) {
        let result = self.hand_out(client, fed);
        match result {
            Ok(mut outgoing) => {
                outgoing.push((client.clone(), Message::Reply { id: request, result: Ok(Reply::Fed) }.into()));
                self.send(outgoing);
            }
            Err(failure) => self.reply(client, request, Err(failure)),
        }
    }

    fn hand_out(&self, client: &Peer, fed: Fed) -> Result<Outgoing> {
        let mut sessions = self.lock();
        let session =
            sessions.get_mut(&fed.session).filter(|s| s.client == *client).ok_or_else(|| no_session(fed.session))?;
        let Some(run) = session.runs.get_mut(&fed.run).filter(|run| run.mode.is_partial()) else {
            return Err(Failure::invalid("there is no such partial run under way; it has ended"));
        };
        let plan = session.plans.get(run.plan as usize).ok_or_else(|| no_session(fed.session))?;
        run.feed(fed, plan)
    }

    /// A fetch of a partial run.
    pub(super) fn got(&self, piece: PieceId, step: u64, place: u32, tensors: Vec<Tensor>) {
        let envelope = {
            let sessions = self.lock();
            let Some(session) = sessions.get(&piece.session) else { return };
            let Some((&id, run)) = session.runs.iter().find(|(_, run)| run.holds(step)) else { return };
            let fetch = run.piece_fetches.get(&piece).and_then(|fetches| fetches.get(place as usize));
            let Some(&fetch) = fetch else { return };
            (session.client.clone(), Envelope { message: Message::Part { id, fetch }, tensors })
        };
        self.send(vec![envelope]);
    }

    pub(super) fn done(&self, piece: PieceId, step: u64, tensors: Vec<Tensor>) {
        let _order = self.starting.lock().expect("no panic under this lock");
        let outgoing = {
            let mut sessions = self.lock();
            let Some(session) = sessions.get_mut(&piece.session) else { return };
            let Some((&request, run)) = session.runs.iter_mut().find(|(_, run)| run.holds(step)) else { return };
            let (outgoing, over) = run.done(&session.client, piece, step, tensors);
            if over {
                session.runs.remove(&request);
            }
            outgoing
        };
        self.send(outgoing);
    }

    pub(super) fn failed(&self, step: StepId, failure: Failure) {
        let outgoing = {
            let mut sessions = self.lock();
            let Some(session) = sessions.get_mut(&step.session) else { return };
            let Some(&request) = session.runs.iter().find(|(_, run)| run.holds(step.number)).map(|(id, _)| id) else {
                return;
            };
            let Some(run) = session.runs.remove(&request) else { return };
            let so_far = step.number - run.first + 1;
            // The device counts the session's steps, the client those of its run.
            run.fail(step.session, &session.client, &Failure { step: Some(so_far), ..failure })
        };
        self.send(outgoing);
    }
}
