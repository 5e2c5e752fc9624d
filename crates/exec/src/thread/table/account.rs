//! The account of a device's table: its counts, and the largest holder of memory. Never made while a step runs.

use std::sync::atomic::Ordering;

use meshtf_tensor::failure::Held;
use meshtf_tensor::ids::PieceId;

use super::super::super::mailbox::{Holds, Load};
use super::super::super::step_memory::Tally;
use super::{Awaited, PieceState, Table};

impl Table {
    /// The largest holder of memory among all steps of this device, except those that have their turn.
    pub(super) fn most_held(&self) -> Option<Held> {
        let waiting = self.sessions.iter().map(|(id, session)| {
            let mut tally = Tally::default();
            session.early.values().for_each(|parked| tally.tensors(parked.values()));
            let pieces = session.pieces.iter().filter_map(|piece| self.pieces.get(piece));
            let runs = pieces.flat_map(PieceState::all_runs);
            runs.for_each(|run| run.feeds.iter().for_each(|feed| tally.tensor(feed)));
            tally.most(&format!("feeds and values that wait for the next steps of session {id}"))
        });
        let slots = || self.pieces.iter().flat_map(|(id, piece)| piece.slots.iter().map(move |slot| (id, slot)));
        let bodies = || slots().filter_map(|(id, slot)| Some((id, slot.current, slot.body.as_ref()?)));
        let running = bodies().filter_map(|(id, current, body)| {
            let mut tally = Tally::default();
            body.step.tally(&mut tally);
            let mut held = tally.most("the values of its nodes");
            held.what = format!("step {} of session {}: {}", current?, id.session, held.what);
            Some(held)
        });
        let constants = bodies().map(|(id, _, body)| {
            let mut tally = Tally::default();
            body.program.constants().for_each(|value| tally.value(value));
            tally.most(&format!("the constants of session {}", id.session))
        });
        waiting.chain(running).chain(constants).max_by_key(|held| held.bytes)
    }

    /// The counts of the device, and the pieces, `most` of them, that ran most steps.
    pub(super) fn load(&self, most: usize) -> Load {
        let mut ran: Vec<(PieceId, u64)> = self.pieces.iter().map(|(&id, piece)| (id, piece.ran)).collect();
        if ran.len() > most && most > 0 {
            ran.select_nth_unstable_by_key(most - 1, |&(_, steps)| std::cmp::Reverse(steps));
        }
        ran.truncate(most);
        Load { holds: self.holds(), ran, ending: self.ending }
    }

    /// Values that came from other devices and that no node has taken yet, except those of a step that has its turn.
    fn parked_values(&self) -> usize {
        let early = self.sessions.values().flat_map(|session| session.early.values()).map(|parked| parked.len());
        let is_value = |awaited: &&Awaited| matches!(awaited, Awaited::Pushed(_));
        let held = self.pieces.values().flat_map(|piece| &piece.slots).map(|slot| {
            slot.held.iter().filter(is_value).count() + slot.body.as_ref().map_or(0, |body| body.step.parked_values())
        });
        early.chain(held).sum()
    }

    fn holds(&self) -> Holds {
        let waiting = |piece: &PieceState| piece.all_runs().map(|run| run.left() as usize).sum::<usize>();
        Holds {
            sessions: self.sessions.len(),
            pieces: self.pieces.len(),
            steps: self.ending
                + self.pieces.values().map(waiting).sum::<usize>()
                + self.sessions.values().map(|session| session.steps.len() + session.early.len()).sum::<usize>(),
            parked_values: self.parked_values(),
            parked_bytes: self.place.parked.load(Ordering::Relaxed),
        }
    }
}
