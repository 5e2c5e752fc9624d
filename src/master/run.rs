//! Steps under way: one `Run` of a client, as many steps as it asked for, the workers a window ahead.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::Part;
use super::{Outgoing, State, no_session};
use crate::failure::{Code, Failure, Result};
use crate::ids::{PieceId, RequestId, SessionId, StepId};
use crate::plan::DeviceName;
use crate::protocol::{Envelope, Message, Peer, Reply};
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

/// A client's run under way.
pub(super) struct Run {
    request: RequestId,
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
            self.open.push_back(Step { number, waits, fetched: vec![None; self.fetches] });
        }
        self.parts
            .iter()
            .map(|part| {
                let message = Message::Start { pieces: part.pieces.clone(), first, count: behind };
                let tensors = part.feeds.iter().map(|&feed| self.feeds[feed as usize].clone()).collect();
                (part.worker.clone(), Envelope { message, tensors })
            })
            .collect()
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
        for (&place, tensor) in self.piece_fetches.get(&piece).into_iter().flatten().zip(tensors) {
            step.fetched[place as usize] = Some(tensor);
        }
        let mut outgoing = Outgoing::new();
        // Steps end in order for the client, though a later one may be through before an earlier one.
        while self.open.front().is_some_and(|step| step.waits.is_empty()) {
            let Some(step) = self.open.pop_front() else { break };
            let tensors: Vec<Tensor> = step.fetched.into_iter().flatten().collect();
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
        plan.check_feeds(&ask.feeds)?;
        let first = session.next_step;
        let mut run = Run {
            request,
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

    pub(super) fn done(&self, piece: PieceId, step: u64, tensors: Vec<Tensor>) {
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
