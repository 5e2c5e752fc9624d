//! Runs that are given up while their state is lost, and states that do not come back.

use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::{RequestId, SessionId};

use super::super::Machine;
use super::super::guard::{Part, Phase};
use crate::protocol::event::Event;
use crate::protocol::guard::{Cut, ToGuard};
use crate::protocol::{Cluster, Peer};

impl Machine {
    /// The client gives up a run whose steps are to be computed again after a loss; whether there is such a run. The state is to
    /// be that at which it was lost all the same: the steps that were done by then are computed again.
    pub(in super::super) fn cancel_lost(&mut self, request: RequestId, failure: &Failure) -> bool {
        let Some(guard) = &mut self.guard else { return false };
        let Some(reached) = guard.journal.active(request).map(|one| one.reached()) else { return false };
        // It has just been asked for, or has steps that are new.
        if self.runs.is_new(request, reached) {
            return false;
        }
        let is_alone = !guard.is_lost() && !guard.is_replaying;
        guard.journal.cut_short(request, is_alone);
        guard.is_replaying |= !guard.is_lost();
        if is_alone {
            // It may wait for those beside it, as they for it: only runs that are asked for later wait until it is done.
            self.runs.let_all_go(|plan| guard.covers(plan));
        }
        // The journal is to have its steps at the next cut.
        let is_taken = matches!(guard.phase, Phase::Serving { .. } | Phase::Closing { .. } | Phase::Draining { .. });
        if self.runs.silence(request, reached, (self.id, failure), &mut self.outbox) {
            guard.breaks(failure, self.now);
        }
        let (session, code, why) = (self.id, failure.code, failure.to_string());
        self.happened.push(Event::RunFailed { session, run: request, code, why });
        self.answer(request, Err(failure.clone()));
        if is_taken {
            self.abandon("a run is computed again though its client has given it up");
        }
        self.replay();
        true
    }
}

/// The message by which a worker serves the session under this master, which has its term and cut from another.
pub(super) fn greet(inherited: Option<(u64, Cut)>, (session, ask): (SessionId, u64), of: Vec<Peer>) -> ToGuard {
    match inherited {
        Some((term, cut)) => ToGuard::Adopt { session, ask, term, cut, of },
        None => ToGuard::Serve { session, ask, of },
    }
}

/// The failure if a part of the cut exists nowhere any more.
pub(super) fn lost_for_good(parts: &[Part], cluster: &Cluster) -> Option<Failure> {
    let gone = parts.iter().filter(|part| !part.copied.is_empty()).find_map(|part| {
        let holder = cluster.member(&part.task)?;
        if holder.incarnation == part.incarnation && holder.peer == part.peer {
            return None;
        }
        let task = part.task.short();
        if let Some(why) = part.copied.unsaved.first() {
            return Some((part, format!("{task} was lost, and of its state one thing has no copy: {why}")));
        }
        let keeps = cluster.member_of(&part.buddy.peer);
        let is_kept = keeps.is_some_and(|keeps| keeps.incarnation == part.buddy.incarnation);
        let buddy = part.buddy.task.short();
        (!is_kept).then(|| (part, format!("{task} was lost, and {buddy}, which kept the copy of its state, too")))
    });
    gone.map(|(part, why)| {
        let (names, more) =
            (part.copied.names.join(", "), part.copied.resources.saturating_sub(part.copied.names.len() as u64));
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = if names.is_empty() { String::new() } else { format!(": {names}{more}") };
        let message = format!("{why}{named}; continue from the last checkpoint, or from the initial values");
        Failure::new(Code::Unavailable, message).on_task(&part.task.to_string())
    })
}
