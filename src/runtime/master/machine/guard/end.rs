//! The end of a cut: it is complete, or given up; and the end of a run.

use std::collections::BTreeSet;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::RequestId;

use super::super::{Machine, Nanos};
use super::{Complete, Guard, Phase, Taking};
use crate::protocol::event::Event;
use crate::protocol::guard::{Cut, Grouped, ToGuard};
use crate::protocol::{Cluster, Peer};

impl Machine {
    /// A buddy reports on its part; so does a task that could not send its own.
    pub(super) fn kept(&mut self, worker: &Peer, cut: Cut, of: &Peer, result: Result<()>) {
        let Some(guard) = &mut self.guard else { return };
        // A part may be there before the last worker has copied.
        let (taking, waits) = match &mut guard.phase {
            Phase::Sending { taking, waits, .. } => (taking, Some(waits)),
            Phase::Copying { taking, .. } => (taking, None),
            _ => return,
        };
        let is_buddy = taking.parts.iter().any(|part| part.peer == *of && part.buddy.peer == *worker);
        let may_report = is_buddy || (result.is_err() && worker == of);
        if taking.cut != cut || !may_report {
            return;
        }
        if let Err(failure) = result {
            return self.abandon(&failure.to_string());
        }
        match waits {
            Some(waits) => {
                if waits.remove(of) && waits.is_empty() {
                    self.completed();
                }
            }
            None => drop(taking.kept.insert(of.clone())),
        }
    }

    /// All buddies have their parts.
    pub(super) fn completed(&mut self) {
        let (now, steps, id) = (self.now, self.steps_done, self.id);
        let changes = self.waits_to_change();
        let Some(guard) = &mut self.guard else { return };
        guard.cover_sent();
        let Phase::Sending { taking, .. } = std::mem::replace(&mut guard.phase, Phase::Steps) else { return };
        guard.journal.trim(&taking.mark);
        guard.attempts = 0;
        if !std::mem::replace(&mut guard.is_announced, true) {
            let step = Grouped(guard.journal.main().map_or(0, |one| one.from));
            let what = format!("after the loss of a task, the steps can be continued from step {step}");
            self.happened.push(Event::Guarded { session: id, what });
        }
        let cost = guard.pace.after(taking.stood, (now, steps));
        guard.spacing = guard.spaced(cost, now.saturating_sub(taking.stood.0));
        // Pieces of another plan were registered since: a run continues with it from the next cut on.
        let hurries = changes && guard.complete.is_some() && !taking.is_broken();
        guard.due = if hurries { now } else { guard.due.max(now.saturating_add(guard.spacing)) };
        let peers = taking.parts.iter().flat_map(|part| [part.peer.clone(), part.buddy.peer.clone()]);
        let peers: BTreeSet<Peer> = peers.collect();
        let cut = taking.cut;
        guard.has_superseded = false;
        guard.complete = Some(Complete { cut, parts: taking.parts, covers: taking.covers, at: taking.at });
        let next = guard.next.take();
        if !self.leave_to_heir(&peers) {
            peers.into_iter().for_each(|peer| self.send(peer, ToGuard::Complete { session: id, cut }));
        }
        self.resume();
        let waits =
            self.runs.plans().any(|plan| self.guard.as_ref().is_some_and(|guard| !guard.covered.contains(&plan)));
        let Some(guard) = &mut self.guard else { return };
        if let Some(cluster) = next.filter(|_| waits) {
            match guard.is_replaying {
                // The state is not that of the journal until all is computed again: the cut follows then.
                true => guard.due = now,
                false => self.take_cut(&cluster),
            }
        }
    }

    /// The cut that is being taken does not come to be: the one before counts. If a run waits for it, or has changed a state
    /// that the cut before does not have, the session is not guarded until the next cut, and no run waits.
    pub(in super::super) fn abandon(&mut self, why: &str) {
        let (now, has_run_beyond) = (self.now, self.has_run_beyond());
        let Some(guard) = &mut self.guard else { return };
        match std::mem::replace(&mut guard.phase, Phase::Steps) {
            lost @ Phase::Lost(_) => return guard.phase = lost,
            Phase::Steps => {}
            // Whether those have been notified is not known.
            Phase::Serving { waits, .. } => waits.iter().for_each(|peer| guard.forget(peer)),
            Phase::Closing { .. } | Phase::Draining { .. } => {}
            Phase::Copying { taking, .. } | Phase::Sending { taking, .. } => {
                guard.broken = guard.broken.take().or(taking.broken);
                guard.uncover();
                if has_run_beyond {
                    guard.broken.get_or_insert_with(|| why.to_owned());
                }
            }
        }
        let waiting = self.runs.plans().find(|plan| !guard.covered.contains(plan));
        if waiting.is_some() || guard.complete.is_none() {
            guard.is_exposed = true;
            guard.broken.get_or_insert_with(|| why.to_owned());
        }
        guard.spacing = guard.within_limits(guard.spacing.saturating_mul(2));
        guard.due = now.saturating_add(guard.spacing);
        // With the cut before, the session is still guarded.
        if guard.broken.is_some() {
            self.tell_once(why.to_owned());
        }
        self.resume();
    }

    /// A run waits for a cut that covers its plan, while the copies of one that does not are on their way: they make room for
    /// others, which are taken now, once before a cut is complete. They do not if another run waits for them, or if the state
    /// has changes by a plan that they alone cover, for which the cut before does not do in their place; nor while steps are
    /// computed again, since the state is not that of the journal. Returns whether they do.
    pub(super) fn supersede(&mut self, cluster: &Cluster) -> bool {
        let waits = |guard: &Guard| self.runs.plans().any(|plan| guard.sends(plan) && !guard.covers(plan));
        if self.guard.as_ref().is_some_and(waits) || self.has_run_beyond() {
            return false;
        }
        let may = |guard: &&mut Guard| {
            !guard.has_superseded && !guard.is_replaying && matches!(guard.phase, Phase::Sending { .. })
        };
        let Some(guard) = self.guard.as_mut().filter(may) else { return false };
        if let Phase::Sending { taking, .. } = std::mem::replace(&mut guard.phase, Phase::Steps) {
            guard.broken = guard.broken.take().or(taking.broken);
        }
        guard.uncover();
        guard.has_superseded = true;
        self.take_cut(cluster);
        true
    }

    /// No cut can be taken for now.
    pub(super) fn expose(&mut self, why: String) {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return };
        guard.is_exposed = true;
        guard.broken.get_or_insert(why);
        guard.due = now.saturating_add(guard.spacing);
        self.resume();
    }

    /// Starts the steps that were held.
    pub(in super::super) fn resume(&mut self) {
        let Some(guard) = &self.guard else { return };
        for run in self.runs.all() {
            if guard.lets(run) {
                run.resume(self.id, self.tells_steps, &mut self.outbox, &mut self.happened);
            }
        }
    }

    /// A run has ended, with its last step or before. Its client has the answer.
    pub(in super::super) fn guard_run_over(&mut self, request: RequestId, failure: Option<&Failure>, has_begun: bool) {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return };
        match failure {
            None => {
                if let Some(logged) = guard.journal.active(request) {
                    self.finished += logged.total;
                    (logged.done, logged.is_over) = (logged.total, true);
                    let number = logged.number();
                    guard.journal.is_done_again(number);
                }
            }
            Some(failure) => {
                guard.journal.forget(request);
                if has_begun {
                    guard.breaks(failure, now);
                }
            }
        }
        guard.drop_over();
    }
}

impl Guard {
    /// A run has ended early: its steps cannot be computed again.
    pub(in super::super) fn breaks(&mut self, failure: &Failure, now: Nanos) {
        self.broken = Some(format!("a run ended early: {}", failure.message));
        self.hurry(now);
    }
}

impl Taking {
    /// Whether the cut before this one cannot be used.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }
}
