//! The pieces, sessions and steps of a device, and the effect of each message on them.
//!
//! Only the thread that has the table works on it. The steps of one run go through a piece in order, one after the other; a step
//! that waits for a value or a resource costs nothing until that comes, and another run of the piece may begin meanwhile
//! ([`piece`]). While a step has its turn, its body is out of the table: values that come for it then are held until it is back.

mod account;
mod ended;
mod lost;
mod piece;
mod quick;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ended::{EndedSteps, GivenUpSteps};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Held, Result};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
pub use piece::MAX_OVERLAP;
use piece::{Awaited, PieceState, Slot, SlotId, StepRange};
use quick::QuickTurns;

use super::super::inner::Inner;
use super::super::mailbox::DeviceMessage;
use super::super::parked::{self, Parked};
use super::super::program::Source;
use super::super::sink::Pushed;
use super::super::step::{Body, Turn, TurnEnd};
use super::super::waiting::{Answer, WaitId};

/// Most pieces that one device holds.
pub const MAX_PIECES: usize = 1 << 16;

/// Most [`Device::start`](crate::Device::start)s of one piece that wait for their turn.
pub const MAX_RUNS: usize = 1 << 16;

pub(crate) struct Table {
    place: Arc<Inner>,
    pieces: HashMap<PieceId, PieceState>,
    sessions: HashMap<SessionId, SessionState>,
    /// The slots whose step can continue.
    runnable: VecDeque<SlotId>,
    /// The number of turns that run without the table.
    out: usize,
    /// The number of turns of cancelled steps that have not ended.
    ending: usize,
    /// The reason why the device is lost; it is the answer to every message from then on.
    lost: Option<Failure>,
}

#[derive(Default)]
struct SessionState {
    pieces: Vec<PieceId>,
    /// The slot of each step under way.
    steps: HashMap<u64, SlotId>,
    /// Values that came before their step.
    early: HashMap<u64, Parked>,
    ended: EndedSteps,
    /// Steps that were cancelled before their start came: a start may travel longer than its cancellation.
    given_up: GivenUpSteps,
}

/// Records a value that came by a transfer; transfers are numbered after the feeds.
fn note(quick: &mut QuickTurns, transfer: u32, value: &Option<Tensor>) {
    if let Some(value) = value {
        quick.came(1 << 32 | u64::from(transfer), value);
    }
}

impl Table {
    pub fn new(place: Arc<Inner>) -> Table {
        let (pieces, sessions, runnable) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Table { place, pieces, sessions, runnable, out: 0, ending: 0, lost: None }
    }

    /// Takes a message. If that panics, the step that the message is about fails and the rest continues.
    pub fn take(&mut self, message: DeviceMessage) {
        if self.lost.is_some() {
            return self.refuse(message);
        }
        let about = match &message {
            DeviceMessage::Start { id, first, .. } => Some(StepId { session: id.session, number: *first }),
            DeviceMessage::Arrive { step, .. }
            | DeviceMessage::Overflow { step, .. }
            | DeviceMessage::Unwanted { step, .. }
            | DeviceMessage::Abort { step } => Some(*step),
            DeviceMessage::Wake { wait, .. } => Some(wait.step),
            DeviceMessage::Back { turn, .. } => Some(turn.step()),
            DeviceMessage::Register { .. }
            | DeviceMessage::Forget { .. }
            | DeviceMessage::Release { .. }
            | DeviceMessage::Count { .. }
            | DeviceMessage::Largest { .. }
            | DeviceMessage::Close => None,
        };
        self.survive(about, |table| table.handle(message));
    }

    /// Takes back a turn that has ended, on the thread that ran it. If that panics, its step fails and the rest continues.
    /// `took` is the duration of the turn.
    pub fn end(&mut self, turn: Turn, result: Result<TurnEnd>, took: Duration) {
        if let Some(slot) = self.slot(turn.slot()) {
            slot.quick.end_turn(took, &result);
        }
        self.survive(Some(turn.step()), |table| table.back(turn, result));
    }

    pub fn has_turn(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// The next turn, if it may run inline: it is expected to be quick, and no turn is out that could hold something it needs.
    pub fn next_quick_turn(&mut self) -> Option<Turn> {
        let (_, slot) = self.next_in_queue()?;
        let may_run_inline = slot.body.as_ref().is_some_and(|body| body.program.code.may_run_inline);
        let is_expected = may_run_inline && slot.quick.has_next();
        if is_expected && self.out == 0 { self.next_turn() } else { None }
    }

    /// The turn under way continues without the table, and comes back as a message.
    pub fn leave_turn(&mut self) {
        self.out += 1;
    }

    /// The next turn of a step that can continue.
    pub fn next_turn(&mut self) -> Option<Turn> {
        let (id, slot) = self.next_in_queue()?;
        let (number, body) = (slot.current?, slot.body.take()?);
        slot.signal.clear();
        slot.quick.begin_turn();
        slot.is_queued = false;
        let signal = Arc::clone(&slot.signal);
        self.runnable.pop_front();
        Some(Turn { id: id.piece, place: id.place, number, body, signal })
    }

    /// The next slot whose step can continue, which stays in the queue.
    fn next_in_queue(&mut self) -> Option<(SlotId, &mut Slot)> {
        // The step of a queued slot may have been cancelled since; then the body stays for the next step.
        while let Some(&id) = self.runnable.front()
            && !self.slot(id).is_some_and(|slot| slot.can_go_on())
        {
            if let Some(slot) = self.slot(id) {
                slot.is_queued = false;
            }
            self.runnable.pop_front();
        }
        let id = *self.runnable.front()?;
        self.slot(id).map(|slot| (id, slot))
    }

    fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.pieces.get_mut(&id.piece)?.slot(id)
    }

    /// Forgets everything.
    pub fn close(&mut self) {
        for id in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.survive(None, |table| table.release(id));
        }
    }

    fn handle(&mut self, message: DeviceMessage) {
        match message {
            DeviceMessage::Register { id, body, source, reply } => {
                let result = self.register(id, body, source);
                let _gone = reply.send(result);
            }
            DeviceMessage::Start { id, first, count, continues, feeds, claim } => {
                let (end, claim) = (first.saturating_add(count), Some(claim));
                self.start(id, StepRange { first, next: first, end, continues, feeds, claim });
            }
            DeviceMessage::Arrive { step, values } => {
                for pushed in values {
                    self.arrive(step, pushed);
                }
            }
            DeviceMessage::Overflow { step, count, failure } => self.overflow(step, count, failure),
            DeviceMessage::Unwanted { step, count } => self.forget_start(step, count),
            DeviceMessage::Abort { step } => self.abort(step),
            DeviceMessage::Forget { pieces } => pieces.into_iter().for_each(|piece| self.forget_piece(piece)),
            DeviceMessage::Release { session } => self.release(session),
            DeviceMessage::Wake { wait, result } => self.wake(wait, result),
            DeviceMessage::Back { turn, result } => {
                self.out -= 1;
                if let Some(slot) = self.slot(turn.slot()) {
                    slot.quick.end_turn(Duration::MAX, &result);
                }
                self.back(turn, result);
            }
            DeviceMessage::Count { most, reply } => {
                let _gone = reply.send(self.load(most));
            }
            DeviceMessage::Largest { reply } => {
                let _gone = reply.send(self.most_held());
            }
            DeviceMessage::Close => {}
        }
    }

    fn register(&mut self, id: PieceId, body: Box<Body>, source: Option<Arc<Source>>) -> Result<()> {
        if self.pieces.contains_key(&id) {
            let why = format!("piece {} is registered already", id.number);
            return Err(Failure::new(Code::AlreadyExists, why));
        }
        if self.pieces.len() >= MAX_PIECES {
            let why =
                format!("the device holds {MAX_PIECES} pieces already (MAX_PIECES); close sessions that are not used");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        self.pieces.insert(id, PieceState::new(body, source));
        self.sessions.entry(id.session).or_default().pieces.push(id);
        Ok(())
    }

    fn start(&mut self, id: PieceId, mut run: StepRange) {
        let step = StepId { session: id.session, number: run.first };
        let refused = match self.pieces.get(&id) {
            None => {
                let why = format!("piece {} is not registered here; its session may be over", id.number);
                Some(Failure::new(Code::NotFound, why))
            }
            Some(piece) if piece.open_runs() >= MAX_RUNS => {
                let why = format!("{MAX_RUNS} runs of piece {} wait for their turn already (MAX_RUNS)", id.number);
                Some(Failure::new(Code::ResourceExhausted, why))
            }
            Some(_) => None,
        };
        if let Some(failure) = refused {
            self.forget(id.session, run.first..run.end);
            return self.report(step, failure);
        }
        let session = self.sessions.get(&id.session);
        let end = run.end;
        run.end = session.and_then(|session| session.given_up.first_of(run.first..end)).unwrap_or(end);
        self.forget(id.session, run.end..end);
        if let Some(piece) = self.pieces.get_mut(&id).filter(|_| run.next < run.end) {
            piece.runs.push_back(run);
            self.begin(id);
        }
    }

    /// Begins the next step of a piece, if there is one and no other step of the piece computes.
    fn begin(&mut self, id: PieceId) {
        let Some(piece) = self.pieces.get_mut(&id) else { return };
        let Some(place) = piece.next_slot() else { return };
        let (slot, at) = (&mut piece.slots[place], SlotId { piece: id, place: place as u32 });
        let (Some(session), Some(run), Some(body)) =
            (self.sessions.get_mut(&id.session), &mut slot.run, &mut slot.body)
        else {
            return;
        };
        let number = run.next;
        run.next += 1;
        run.claim = None;
        let feeds = if run.next == run.end { std::mem::take(&mut run.feeds) } else { run.feeds.clone() };
        let early = session.early.remove(&number).unwrap_or_default();
        slot.quick.begin();
        feeds.iter().enumerate().for_each(|(i, feed)| slot.quick.came(i as u64, feed));
        early.iter().for_each(|(transfer, value)| note(&mut slot.quick, transfer.0, value));
        session.steps.insert(number, at);
        slot.current = Some(number);
        body.step.begin(&body.program.code, StepId { session: id.session, number }, feeds, early);
        self.queue(at);
    }

    fn queue(&mut self, id: SlotId) {
        if let Some(slot) = self.slot(id)
            && !std::mem::replace(&mut slot.is_queued, true)
        {
            self.runnable.push_back(id);
        }
    }

    /// Puts back the body of a slot whose turn has ended, and continues after it.
    fn back(&mut self, turn: Turn, result: Result<TurnEnd>) {
        let id = turn.slot();
        let Turn { number, mut body, signal, .. } = turn;
        let slot = self.pieces.get_mut(&id.piece).and_then(|piece| piece.slot(id));
        let Some(slot) = slot.filter(|slot| Arc::ptr_eq(&slot.signal, &signal)) else {
            // The session was released in the meantime.
            self.ending -= 1;
            return body.step.cancel(&body.program.code, &self.place.parked);
        };
        let body = slot.body.insert(body);
        if slot.current != Some(number) {
            // The step was cancelled in the meantime.
            self.ending -= 1;
            body.step.cancel(&body.program.code, &self.place.parked);
            return self.begin(id.piece);
        }
        let held = std::mem::take(&mut slot.held);
        self.settle(id, result);
        for awaited in held {
            let is_current = self.slot(id).is_some_and(|slot| slot.current == Some(number));
            if is_current {
                self.feed(id, awaited);
            } else {
                self.drop_awaited(awaited);
            }
        }
    }

    /// Continues after a step ran or took a value or an answer.
    fn settle(&mut self, id: SlotId, result: Result<TurnEnd>) {
        match result {
            Ok(TurnEnd::Waits) => self.begin(id.piece),
            Ok(TurnEnd::Yields) => self.queue(id),
            Ok(TurnEnd::Done(fetches)) => {
                if let Some(step) = self.end_step(id, true) {
                    self.place.sink.done(id.piece, step, fetches);
                }
                self.begin(id.piece);
            }
            Err(failure) => {
                let session = id.piece.session;
                let failure = failure.with_holder_among(|worked_on| {
                    let held =
                        worked_on.map(|held| Held { what: format!("{} of session {session}", held.what), ..held });
                    held.into_iter().chain(self.most_held()).max_by_key(|held| held.bytes)
                });
                if let Some(step) = self.end_run(id) {
                    self.report(step, failure);
                }
                self.begin(id.piece);
            }
        }
    }

    fn report(&self, step: StepId, failure: Failure) {
        let Inner { name, sink, .. } = &*self.place;
        sink.failed(step, failure.on_device(&name.to_string()).in_step(step.number));
        sink.flush();
    }

    /// Forgets the step under way of a slot, which has run or is cancelled.
    fn end_step(&mut self, id: SlotId, has_run: bool) -> Option<StepId> {
        let piece = self.pieces.get_mut(&id.piece)?;
        piece.ran += u64::from(has_run);
        let slot = piece.slot(id)?;
        let number = slot.current.take()?;
        match &mut slot.body {
            Some(body) => body.step.cancel(&body.program.code, &self.place.parked),
            None => {
                slot.signal.stop();
                self.ending += 1;
            }
        }
        if slot.run.as_ref().is_some_and(|run| run.next >= run.end) {
            slot.run = None;
        }
        let held = std::mem::take(&mut slot.held);
        held.into_iter().for_each(|awaited| self.drop_awaited(awaited));
        if let Some(session) = self.sessions.get_mut(&id.piece.session) {
            session.steps.remove(&number);
            session.ended.insert(number, number);
        }
        Some(StepId { session: id.piece.session, number })
    }

    /// Forgets the step under way of a slot and those that would have followed it.
    fn end_run(&mut self, id: SlotId) -> Option<StepId> {
        let step = self.end_step(id, false)?;
        if let Some(run) = self.slot(id).and_then(|slot| slot.run.take()) {
            self.forget(id.piece.session, run.next..run.end);
        }
        Some(step)
    }

    /// Records that steps which have not begun are over.
    fn forget(&mut self, session: SessionId, steps: Range<u64>) {
        let Some(session) = self.sessions.get_mut(&session).filter(|_| !steps.is_empty()) else { return };
        session.ended.insert(steps.start, steps.end - 1);
        session.early.retain(|number, early| {
            let is_over = steps.contains(number);
            if is_over {
                let bytes: usize = early.values().map(parked::cost).sum();
                self.place.parked.fetch_sub(bytes, Ordering::Relaxed);
            }
            !is_over
        });
    }

    fn arrive(&mut self, id: StepId, pushed: Pushed) {
        let cost = parked::cost(&pushed.value);
        let Some(session) = self.sessions.get_mut(&id.session) else {
            self.place.parked.fetch_sub(cost, Ordering::Relaxed);
            return;
        };
        let Some(&slot) = session.steps.get(&id.number) else {
            let twice = if session.ended.contains(id.number) {
                Some(cost)
            } else {
                let parked = session.early.entry(id.number).or_default();
                let Pushed { transfer, iterations, value } = pushed;
                parked.insert((transfer, iterations), value).map(|first| parked::cost(&first))
            };
            self.place.parked.fetch_sub(twice.unwrap_or(0), Ordering::Relaxed);
            return;
        };
        self.feed(slot, Awaited::Pushed(pushed));
    }

    fn wake(&mut self, wait: WaitId, result: Result<Answer>) {
        let session = self.sessions.get(&wait.step.session);
        let Some(&slot) = session.and_then(|session| session.steps.get(&wait.step.number)) else { return };
        self.feed(slot, Awaited::Answer { wait, result });
    }

    /// Gives a step a value or an answer that it waits for, and a turn.
    fn feed(&mut self, id: SlotId, awaited: Awaited) {
        let slot = self.pieces.get_mut(&id.piece).and_then(|piece| piece.slot(id));
        let Some(slot) = slot else { return self.drop_awaited(awaited) };
        let Some(body) = slot.body.as_mut().filter(|body| body.is_compiled()) else { return slot.held.push(awaited) };
        if let Awaited::Pushed(Pushed { transfer, value, .. }) = &awaited {
            note(&mut slot.quick, *transfer, value);
        }
        let near = self.place.surroundings(id.piece, &slot.signal);
        let Body { program, step, .. } = &mut **body;
        let fed = match awaited {
            Awaited::Pushed(pushed) => step.arrive(program, &near, pushed),
            Awaited::Answer { wait, result } => step.wake(program, &near, wait, result),
        };
        match fed {
            Ok(()) => self.queue(id),
            Err(failure) => {
                let failure = step.place(program, failure);
                self.settle(id, Err(failure));
            }
        }
    }

    /// Drops a value or an answer that no step waits for any more.
    fn drop_awaited(&self, awaited: Awaited) {
        if let Awaited::Pushed(pushed) = awaited {
            self.place.parked.fetch_sub(parked::cost(&pushed.value), Ordering::Relaxed);
        }
    }

    /// Records that a step, and the later steps of its start, are over; none has begun.
    fn forget_start(&mut self, id: StepId, count: u64) {
        self.forget(id.session, id.number..id.number.saturating_add(count));
    }

    /// Fails a step, begun or not, for which more values came than may wait, and the later steps of its start.
    fn overflow(&mut self, id: StepId, count: u64, failure: Failure) {
        let failure = failure.with_holder_among(|_| self.most_held());
        self.abort(id);
        self.forget_start(id, count);
        self.report(id, failure);
    }

    fn abort(&mut self, id: StepId) {
        let Some(session) = self.sessions.get_mut(&id.session) else { return };
        let mut has_come = false;
        for piece_id in session.pieces.clone() {
            let Some(piece) = self.pieces.get_mut(&piece_id) else { continue };
            let is_of = |run: &StepRange| run.contains(id.number);
            if let Some(place) = piece.slots.iter().position(|slot| slot.run.as_ref().is_some_and(is_of)) {
                has_come = true;
                let (slot, at) = (&mut piece.slots[place], SlotId { piece: piece_id, place: place as u32 });
                // A piece may be ahead of the step that failed elsewhere: its later steps are cancelled all the same.
                if slot.current.is_some_and(|current| current >= id.number) {
                    self.end_run(at);
                    self.begin(piece_id);
                } else if let Some(run) = &mut slot.run {
                    let end = std::mem::replace(&mut run.end, id.number);
                    if slot.current.is_none() && run.next >= run.end {
                        slot.run = None;
                    }
                    self.forget(id.session, id.number..end);
                }
            } else if let Some(place) = piece.runs.iter().position(is_of) {
                has_come = true;
                let run = &mut piece.runs[place];
                let end = std::mem::replace(&mut run.end, id.number);
                if run.next >= run.end {
                    piece.runs.remove(place);
                }
                self.forget(id.session, id.number..end);
            }
        }
        self.forget_start(id, 1);
        if let Some(session) = self.sessions.get_mut(&id.session).filter(|_| !has_come) {
            session.given_up.insert(id.number);
        }
    }

    fn forget_piece(&mut self, id: PieceId) {
        let slots = self.pieces.get(&id).map_or(0, |piece| piece.slots.len() as u32);
        for place in 0..slots {
            let at = SlotId { piece: id, place };
            self.end_run(at);
            // Its next step had not begun.
            if let Some(run) = self.slot(at).and_then(|slot| slot.run.take()) {
                self.forget(id.session, run.next..run.end);
            }
        }
        for run in self.pieces.remove(&id).map(|piece| piece.runs).into_iter().flatten() {
            self.forget(id.session, run.next..run.end);
        }
        if let Some(session) = self.sessions.get_mut(&id.session) {
            session.pieces.retain(|&piece| piece != id);
        }
    }

    fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let pieces: Vec<PieceState> = session.pieces.iter().filter_map(|id| self.pieces.remove(id)).collect();
        for mut slot in pieces.into_iter().flat_map(|piece| piece.slots) {
            match &mut slot.body {
                Some(body) => body.step.cancel(&body.program.code, &self.place.parked),
                None => {
                    slot.signal.stop();
                    // Otherwise the step was cancelled before.
                    self.ending += usize::from(slot.current.is_some());
                }
            }
            slot.held.into_iter().for_each(|awaited| self.drop_awaited(awaited));
        }
        let bytes: usize = session.early.values().flat_map(Parked::values).map(parked::cost).sum();
        self.place.parked.fetch_sub(bytes, Ordering::Relaxed);
        self.place.resources.release(id);
    }
}
