//! The thread of a device: steps of many sessions take turns on it.
//!
//! The steps of one piece run in order, one after the other. A step that waits for a value or a resource costs nothing
//! until that comes; the thread goes on with others. Kernels run here and nowhere else.

mod ended;

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ended::Ended;

use super::engine::Engine;
use super::mailbox::{Inbox, Mailbox, Message, Ticket};
use super::program::{self, Program};
use super::resource::Resources;
use super::state::Site;
use super::step::{self, Parked, Progress, Step, Surroundings, Tags};
use super::token::Tokens;
use super::{Holds, Pushed, Sink};
use crate::failure::{Code, Failure, Result};
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::{DeviceName, Piece};
use crate::tensor::Tensor;

/// Most bytes of values that wait on one device for their step or their Recv.
pub const MAX_PARKED_BYTES: usize = 4 << 30;

/// Most pieces that one device holds.
pub const MAX_PIECES: usize = 1 << 16;

/// Most [`Device::start`](super::Device::start)s of one piece that wait for their turn.
pub const MAX_RUNS: usize = 1 << 16;

struct Thread {
    name: DeviceName,
    engine: Box<dyn Engine>,
    resources: Arc<Resources>,
    sink: Arc<dyn Sink>,
    mailbox: Mailbox,
    inbox: Inbox,
    pieces: HashMap<PieceId, PieceState>,
    sessions: HashMap<SessionId, SessionState>,
    /// The pieces whose step can go on.
    runnable: VecDeque<PieceId>,
    /// Bytes of the values that arrived and that no node has taken yet.
    parked: Arc<AtomicUsize>,
}

struct PieceState {
    program: Program,
    step: Step,
    /// The step under way.
    current: Option<u64>,
    runs: VecDeque<Run>,
    is_queued: bool,
}

/// Steps to run, one after the other.
struct Run {
    first: u64,
    next: u64,
    end: u64,
    feeds: Vec<Tensor>,
}

#[derive(Default)]
struct SessionState {
    pieces: Vec<PieceId>,
    /// The piece that each step under way belongs to.
    steps: HashMap<u64, PieceId>,
    /// Values that came before their step.
    early: HashMap<u64, Parked>,
    ended: Ended,
}

/// Runs until the device is closed.
pub(super) fn run(
    name: DeviceName,
    engine: Box<dyn Engine>,
    resources: Arc<Resources>,
    sink: Arc<dyn Sink>,
    mailbox: Mailbox,
    inbox: Inbox,
    parked: Arc<AtomicUsize>,
) {
    let mut thread = Thread {
        name,
        engine,
        resources,
        sink,
        mailbox,
        inbox,
        pieces: HashMap::new(),
        sessions: HashMap::new(),
        runnable: VecDeque::new(),
        parked,
    };
    loop {
        // The values of a turn and the word that its step is done go out together.
        thread.sink.flush();
        if thread.runnable.is_empty() {
            match thread.inbox.wait() {
                None | Some(Message::Close) => break,
                Some(message) => thread.handle(message),
            }
        }
        while let Some(message) = thread.inbox.take() {
            if matches!(message, Message::Close) {
                thread.sink.flush();
                thread.close();
                return;
            }
            thread.handle(message);
        }
        if let Some(piece) = thread.runnable.pop_front() {
            thread.turn(piece);
        }
    }
    thread.close();
}

impl Thread {
    fn handle(&mut self, message: Message) {
        match message {
            Message::Register { id, piece, reply } => {
                let result = self.register(id, &piece);
                let _ = reply.send(result.map_err(|failure| failure.on_device(&self.name.to_string())));
            }
            Message::Start { id, first, count, feeds } => self.start(id, first, count, feeds),
            Message::Arrive { step, values } => {
                for Pushed { transfer, iterations, value } in values {
                    self.arrive(step, transfer, iterations, value);
                }
            }
            Message::Overflow { step } => self.overflow(step),
            Message::Abort { step } => self.abort(step),
            Message::Release { session } => self.release(session),
            Message::Wake { ticket, result } => self.wake(ticket, result),
            Message::Count { reply } => {
                let _ = reply.send(self.holds());
            }
            Message::Close => {}
        }
    }

    fn register(&mut self, id: PieceId, piece: &Piece) -> Result<()> {
        if self.pieces.contains_key(&id) {
            let why = format!("piece {} is registered already", id.number);
            return Err(Failure::new(Code::AlreadyExists, why));
        }
        let site =
            Site { session: id.session, device: (self.name.kind, self.name.index), resources: self.resources.clone() };
        let engine = &*self.engine;
        let program = catch_unwind(AssertUnwindSafe(|| program::compile(piece, &site, engine)))
            .unwrap_or_else(|panic| Err(panicked(&*panic)))?;
        let step = Step::new(&program.code);
        let state = PieceState { program, step, current: None, runs: VecDeque::new(), is_queued: false };
        self.pieces.insert(id, state);
        self.sessions.entry(id.session).or_default().pieces.push(id);
        Ok(())
    }

    fn start(&mut self, id: PieceId, first: u64, count: u64, feeds: Vec<Tensor>) {
        let Some(piece) = self.pieces.get_mut(&id) else {
            let step = StepId { session: id.session, number: first };
            let why = format!("piece {} is not registered here; its session may be over", id.number);
            return self.report(step, Failure::new(Code::NotFound, why));
        };
        if piece.runs.len() >= MAX_RUNS {
            let why = format!("{MAX_RUNS} runs of piece {} wait for their turn already (MAX_RUNS)", id.number);
            return self
                .report(StepId { session: id.session, number: first }, Failure::new(Code::ResourceExhausted, why));
        }
        if count > 0 {
            piece.runs.push_back(Run { first, next: first, end: first.saturating_add(count), feeds });
            self.begin(id);
        }
    }

    /// Begins the next step of a piece, if it is idle and has one.
    fn begin(&mut self, id: PieceId) {
        let (Some(piece), Some(session)) = (self.pieces.get_mut(&id), self.sessions.get_mut(&id.session)) else {
            return;
        };
        if piece.current.is_some() {
            return;
        }
        while piece.runs.front().is_some_and(|run| run.next >= run.end) {
            piece.runs.pop_front();
        }
        let Some(run) = piece.runs.front_mut() else { return };
        let number = run.next;
        run.next += 1;
        let feeds = if run.next == run.end { std::mem::take(&mut run.feeds) } else { run.feeds.clone() };
        let early = session.early.remove(&number).unwrap_or_default();
        session.steps.insert(number, id);
        piece.current = Some(number);
        piece.step.begin(&piece.program.code, StepId { session: id.session, number }, feeds, early);
        self.queue(id);
    }

    fn queue(&mut self, id: PieceId) {
        if let Some(piece) = self.pieces.get_mut(&id)
            && !std::mem::replace(&mut piece.is_queued, true)
        {
            self.runnable.push_back(id);
        }
    }

    /// Lets a step run until it waits, is done, fails or has had its turn.
    fn turn(&mut self, id: PieceId) {
        let Some(piece) = self.pieces.get_mut(&id) else { return };
        piece.is_queued = false;
        if piece.current.is_none() {
            return;
        }
        let near = Surroundings {
            device: &self.name,
            piece: id,
            engine: &*self.engine,
            sink: &*self.sink,
            mailbox: &self.mailbox,
            inbox: &self.inbox,
            parked: &self.parked,
        };
        let (step, program) = (&mut piece.step, &mut piece.program);
        let result = catch_unwind(AssertUnwindSafe(|| step.run(program, &near)))
            .unwrap_or_else(|panic| Err(step.place(program, panicked(&*panic))));
        self.settle(id, result);
    }

    /// Goes on after a step ran or took something in.
    fn settle(&mut self, id: PieceId, result: Result<Progress>) {
        match result {
            Ok(Progress::Waits) => {}
            Ok(Progress::Yields) => self.queue(id),
            Ok(Progress::Done(fetches)) => {
                if let Some(step) = self.end_step(id) {
                    self.sink.done(id, step, fetches);
                }
                self.begin(id);
            }
            Err(failure) => {
                if let Some(step) = self.end_run(id) {
                    self.report(step, failure);
                }
                self.begin(id);
            }
        }
    }

    fn report(&self, step: StepId, failure: Failure) {
        self.sink.failed(step, failure.on_device(&self.name.to_string()).in_step(step.number));
        self.sink.flush();
    }

    /// Forgets the step under way of a piece.
    fn end_step(&mut self, id: PieceId) -> Option<StepId> {
        let piece = self.pieces.get_mut(&id)?;
        let number = piece.current.take()?;
        piece.step.cancel(&piece.program.code, &self.parked);
        if let Some(session) = self.sessions.get_mut(&id.session) {
            session.steps.remove(&number);
            session.ended.insert(number, number);
        }
        Some(StepId { session: id.session, number })
    }

    /// Forgets the step under way of a piece and those that would have followed it.
    fn end_run(&mut self, id: PieceId) -> Option<StepId> {
        let step = self.end_step(id)?;
        let run = self.pieces.get_mut(&id).and_then(|piece| piece.runs.pop_front());
        if let Some(run) = run.filter(|run| run.next < run.end) {
            self.forget(id.session, run.next, run.end - 1);
        }
        Some(step)
    }

    /// Notes that steps are over which have not begun.
    fn forget(&mut self, session: SessionId, first: u64, last: u64) {
        let Some(session) = self.sessions.get_mut(&session) else { return };
        session.ended.insert(first, last);
        session.early.retain(|number, early| {
            let is_over = (first..=last).contains(number);
            if is_over {
                let bytes: usize = early.values().map(step::cost).sum();
                self.parked.fetch_sub(bytes, Ordering::Relaxed);
            }
            !is_over
        });
    }

    fn arrive(&mut self, id: StepId, transfer: u32, tags: Tags, value: Option<Tensor>) {
        let Some(session) = self.sessions.get_mut(&id.session) else {
            self.parked.fetch_sub(step::cost(&value), Ordering::Relaxed);
            return;
        };
        let cost = step::cost(&value);
        let Some(&piece) = session.steps.get(&id.number) else {
            let twice = if session.ended.contains(id.number) {
                Some(cost)
            } else {
                let parked = session.early.entry(id.number).or_default();
                parked.insert((transfer, tags), value).map(|first| step::cost(&first))
            };
            self.parked.fetch_sub(twice.unwrap_or(0), Ordering::Relaxed);
            return;
        };
        self.feed(piece, |step, program, near| step.arrive(program, near, transfer, tags, value));
    }

    fn wake(&mut self, ticket: Ticket, result: Result<Tokens>) {
        let session = self.sessions.get(&ticket.step.session);
        let Some(&piece) = session.and_then(|session| session.steps.get(&ticket.step.number)) else { return };
        self.feed(piece, |step, program, near| step.wake(program, near, ticket, result));
    }

    /// Gives a step something that it waits for, and a turn.
    fn feed(&mut self, id: PieceId, give: impl FnOnce(&mut Step, &mut Program, &Surroundings) -> Result<()>) {
        let Some(piece) = self.pieces.get_mut(&id) else { return };
        let near = Surroundings {
            device: &self.name,
            piece: id,
            engine: &*self.engine,
            sink: &*self.sink,
            mailbox: &self.mailbox,
            inbox: &self.inbox,
            parked: &self.parked,
        };
        match give(&mut piece.step, &mut piece.program, &near) {
            Ok(()) => self.queue(id),
            Err(failure) => {
                let failure = piece.step.place(&piece.program, failure);
                self.settle(id, Err(failure));
            }
        }
    }

    /// Fails a step, begun or not, that more values came for than may wait.
    fn overflow(&mut self, id: StepId) {
        self.abort(id);
        let why = format!(
            "more than {MAX_PARKED_BYTES} bytes of values (MAX_PARKED_BYTES) wait on {} for the nodes that take them",
            self.name
        );
        self.report(id, Failure::new(Code::ResourceExhausted, why));
    }

    fn abort(&mut self, id: StepId) {
        let Some(session) = self.sessions.get_mut(&id.session) else { return };
        for piece_id in session.pieces.clone() {
            let Some(piece) = self.pieces.get_mut(&piece_id) else { continue };
            let Some(place) = piece.runs.iter().position(|run| (run.first..run.end).contains(&id.number)) else {
                continue;
            };
            // A piece may be ahead of the step that failed elsewhere: what follows that is given up all the same.
            if place == 0 && piece.current.is_some_and(|current| current >= id.number) {
                self.end_run(piece_id);
                self.begin(piece_id);
            } else {
                let end = std::mem::replace(&mut piece.runs[place].end, id.number);
                self.forget(id.session, id.number, end - 1);
            }
        }
        self.forget(id.session, id.number, id.number);
    }

    fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for piece in session.pieces {
            if let Some(mut piece) = self.pieces.remove(&piece) {
                piece.step.cancel(&piece.program.code, &self.parked);
            }
        }
        let bytes: usize = session.early.values().flat_map(Parked::values).map(step::cost).sum();
        self.parked.fetch_sub(bytes, Ordering::Relaxed);
        self.resources.release(id);
    }

    fn holds(&self) -> Holds {
        let waiting = |piece: &PieceState| piece.runs.iter().map(|run| (run.end - run.next) as usize).sum::<usize>();
        Holds {
            sessions: self.sessions.len(),
            pieces: self.pieces.len(),
            steps: self.pieces.values().map(waiting).sum::<usize>()
                + self.sessions.values().map(|session| session.steps.len() + session.early.len()).sum::<usize>(),
            parked_bytes: self.parked.load(Ordering::Relaxed),
        }
    }

    fn close(mut self) {
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.release(id);
        }
    }
}

/// What a panic of a kernel says, as a failure of its step.
fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::new(Code::Internal, format!("the kernel panicked: {}", text.unwrap_or("no message")))
}
