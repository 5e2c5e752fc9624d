//! A piece in the table: its runs, and the slots in which their steps are under way.
//!
//! Each run is one after the other, step by step. While a step computes, no other of its piece does. Only when all steps of the
//! piece that are under way wait does the next run begin, in a slot with kernels of its own: the run may bring what they wait
//! for. Such a slot is made when it is first needed, and its kernels are compiled by its first turn.

use std::collections::VecDeque;
use std::sync::Arc;

use meshtf_loops::turn::Signal;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;
use meshtf_tensor::ids::PieceId;
use smallvec::SmallVec;

use super::super::super::parked::Claim;
use super::super::super::program::Source;
use super::super::super::sink::Pushed;
use super::super::super::step::{Body, Turn};
use super::super::super::waiting::{Answer, WaitId};
use super::quick::QuickTurns;

/// Most steps of one piece that are under way at once.
pub const MAX_OVERLAP: usize = 64;

pub(super) struct PieceState {
    /// The first is made with the piece.
    pub slots: SmallVec<[Slot; 1]>,
    /// Compiles the kernels of further slots. None if no step of the piece ever waits.
    source: Option<Arc<Source>>,
    /// The runs that have not begun, in the order in which they came.
    pub runs: VecDeque<StepRange>,
    /// The number of steps that it has run.
    pub ran: u64,
}

/// A slot of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    pub piece: PieceId,
    pub place: u32,
}

impl Turn {
    pub(super) fn slot(&self) -> SlotId {
        SlotId { piece: self.id, place: self.place }
    }
}

/// The state of one step of a piece and the kernels that run it.
pub(super) struct Slot {
    /// None while the slot has its turn.
    pub body: Option<Box<Body>>,
    pub signal: Arc<Signal>,
    /// The step under way.
    pub current: Option<u64>,
    /// The run of which a step is under way, or comes next.
    pub run: Option<StepRange>,
    pub quick: QuickTurns,
    pub is_queued: bool,
    /// Values and answers that came for the step while the body was out.
    pub held: Vec<Awaited>,
}

/// A value or an answer that a step waits for.
pub(super) enum Awaited {
    Pushed(Pushed),
    Answer { wait: WaitId, result: Result<Answer> },
}

/// Steps to run, one after the other.
pub(super) struct StepRange {
    pub first: u64,
    pub next: u64,
    pub end: u64,
    /// They belong to the run of the step before the first, and begin after that.
    pub continues: bool,
    pub feeds: Vec<Tensor>,
    /// Accounts for the feeds, until the first of the steps begins.
    pub claim: Option<Claim>,
}

impl StepRange {
    pub fn contains(&self, number: u64) -> bool {
        (self.first..self.end).contains(&number)
    }

    /// The number of steps that have not begun.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }
}

impl Slot {
    fn new(body: Box<Body>) -> Slot {
        Slot {
            body: Some(body),
            signal: Arc::default(),
            current: None,
            run: None,
            quick: QuickTurns::default(),
            is_queued: false,
            held: Vec::new(),
        }
    }

    /// Whether its step can have a turn. Otherwise it has none, or it waits, or it has its turn.
    pub fn can_go_on(&self) -> bool {
        self.current.is_some() && self.body.is_some()
    }

    /// Whether its step has its turn, or will have it without anything that has to come.
    fn is_at_work(&self) -> bool {
        self.body.is_none() || (self.current.is_some() && self.is_queued)
    }
}

impl PieceState {
    pub fn new(body: Box<Body>, source: Option<Arc<Source>>) -> PieceState {
        PieceState { slots: SmallVec::from_iter([Slot::new(body)]), source, runs: VecDeque::new(), ran: 0 }
    }

    pub fn slot(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id.place as usize)
    }

    /// The runs that have begun or will.
    pub fn all_runs(&self) -> impl Iterator<Item = &StepRange> {
        self.slots.iter().filter_map(|slot| slot.run.as_ref()).chain(&self.runs)
    }

    /// The number of runs that are not over.
    pub fn open_runs(&self) -> usize {
        self.runs.len() + self.slots.iter().filter(|slot| slot.run.is_some()).count()
    }

    /// The place of the slot whose run has a step to begin now, if there is one.
    pub fn next_slot(&mut self) -> Option<usize> {
        if self.slots.iter().any(Slot::is_at_work) {
            return None;
        }
        let idle = || self.slots.iter().enumerate().filter(|(_, slot)| slot.current.is_none());
        let next = |slot: &Slot| slot.run.as_ref().map(|run| run.next);
        let goes_on = idle().filter_map(|(place, slot)| Some((next(slot)?, place))).min();
        if goes_on.is_some() {
            return goes_on.map(|(_, place)| place);
        }
        let free = idle().map(|(place, _)| place).next();
        if free.is_none() && (self.slots.len() >= MAX_OVERLAP || self.source.is_none()) {
            return None;
        }
        let run = self.take_run()?;
        let place = match (free, &self.source) {
            (Some(place), _) => place,
            (None, Some(source)) => {
                self.slots.push(Slot::new(Box::new(Body::beside(source))));
                self.slots.len() - 1
            }
            (None, None) => return None,
        };
        self.slots[place].run = Some(run);
        Some(place)
    }

    /// The first run in the queue that continues none that is under way or before it in the queue.
    fn take_run(&mut self) -> Option<StepRange> {
        let mut ends: SmallVec<[u64; 8]> =
            self.slots.iter().filter_map(|slot| slot.run.as_ref()).map(|run| run.end).collect();
        let place =
            self.runs.iter().position(|run| match ends.iter_mut().find(|end| run.continues && **end == run.first) {
                Some(end) => {
                    *end = run.end;
                    false
                }
                None => true,
            })?;
        self.runs.remove(place)
    }
}
