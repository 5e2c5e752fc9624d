//! The steps of a session come to a stand for a cut: first those that may wait for room end, beside all others, then the others.

use std::sync::Arc;

use super::super::plans::{Prepared, Readiness};
use super::super::{Machine, Nanos};
use super::{ANSWERED_WITHIN, Part, Phase};
use crate::protocol::Peer;
use crate::protocol::guard::ToGuard;

/// How long steps that wait for room may take to end beside others, and how long none may end at all: then no other step starts.
const CLOSES_WITHIN: Nanos = 10_000_000_000;
const MOVES_WITHIN: Nanos = 250_000_000;
/// How long no step may end before steps of other runs begin for the sake of those under way.
const STILL_FOR: Nanos = 100_000_000;
/// How long runs that may wait for each other are held for a cut at least.
const HELD_AT_MOST: Nanos = 3_000_000_000;

impl Machine {
    /// The buddies are ready: no step starts that may wait for room, so that those under way end.
    pub(super) fn close(&mut self) {
        let (now, steps) = (self.now, self.steps_done);
        let Some(guard) = &mut self.guard else { return };
        match std::mem::replace(&mut guard.phase, Phase::Steps) {
            Phase::Serving { taking, .. } => {
                guard.phase = Phase::Closing { taking, began: now, since: now, progress: steps };
            }
            other => guard.phase = other,
        }
        self.drained();
    }

    /// A tick passed while steps that wait for room were to end beside others. If they do not, or a run waits for the cut, no
    /// other step starts any more.
    pub(super) fn close_on(&mut self) {
        let (steps, now) = (self.steps_done, self.now);
        let Some(guard) = &mut self.guard else { return };
        let Phase::Closing { began, since, progress, .. } = &mut guard.phase else { return };
        if std::mem::replace(progress, steps) != steps {
            *since = now;
        }
        let is_stuck = now.saturating_sub(*since) >= MOVES_WITHIN || now.saturating_sub(*began) >= CLOSES_WITHIN;
        if is_stuck || self.runs.plans().any(|plan| !guard.covers(plan)) {
            self.drain();
        }
    }

    /// No step starts until the workers have copied.
    fn drain(&mut self) {
        let (now, steps, awaited) = (self.now, self.steps_done, self.runs.begun());
        let Some(guard) = &mut self.guard else { return };
        match std::mem::replace(&mut guard.phase, Phase::Steps) {
            Phase::Closing { mut taking, .. } => {
                taking.stood = (now, steps);
                guard.phase = Phase::Draining { taking, began: now, since: now, progress: steps, awaited };
            }
            other => guard.phase = other,
        }
        self.drained();
    }

    /// Has the workers copy, if no step is under way any more.
    pub(in super::super) fn drained(&mut self) {
        let (id, now) = (self.id, self.now);
        let Some(guard) = &mut self.guard else { return };
        if matches!(guard.phase, Phase::Closing { .. })
            && (!self.runs.fill() || self.runs.plans().any(|plan| !guard.covers(plan)))
        {
            return self.drain();
        }
        let Phase::Draining { awaited, .. } = &guard.phase else { return };
        if !self.runs.are_between_steps() {
            // As soon as a step of the others ends, or a run comes. Once all that are awaited have ended, nothing begins.
            if guard.waits_for_others && self.runs.are_open(awaited) {
                let may_begin = |plan| guard.covers(plan);
                self.runs.push_on(may_begin, &mut self.outbox);
            }
            return;
        }
        let Phase::Draining { mut taking, .. } = std::mem::replace(&mut guard.phase, Phase::Steps) else { return };
        taking.mark = guard.journal.mark();
        taking.at = self.finished + guard.journal.open().map(|one| one.done).sum::<u64>();
        taking.broken = guard.broken.take();
        // A plan that was registered since may have pieces elsewhere.
        let is_copied = |part: &super::super::plans::Part| {
            taking.parts.iter().any(|own| own.peer == part.worker && own.incarnation == part.incarnation)
        };
        let is_covered = |plan: &Prepared| {
            (plan.is_shared || plan.runs > 0)
                && matches!(plan.readiness, Readiness::Ready)
                && plan.parts.iter().all(is_copied)
        };
        taking.covers.plans = self.plans.numbers(is_covered).collect();
        let covered = taking.covers.plans.iter().filter_map(|plan| self.plans.get(*plan));
        let covered = covered.filter(|plan| plan.is_shared).map(|plan| Arc::clone(&plan.signature));
        taking.covers.signatures = covered.collect();
        let before = guard.complete.as_ref();
        let asks: Vec<(Peer, ToGuard)> = taking
            .parts
            .iter()
            .map(|part| {
                let known = before.and_then(|before| {
                    let is_same =
                        |one: &&Part| one.peer == part.peer && one.ward == part.peer && one.buddy == part.buddy;
                    before.parts.iter().find(is_same).map(|_| before.cut)
                });
                let buddy = part.buddy.peer.clone();
                (part.peer.clone(), ToGuard::Copy { session: id, cut: taking.cut, base: known, buddy })
            })
            .collect();
        let waits = taking.parts.iter().map(|part| part.peer.clone()).collect();
        guard.phase = Phase::Copying { taking, waits, since: now };
        asks.into_iter().for_each(|(peer, ask)| self.send(peer, ask));
    }

    /// A tick passed while steps under way were to end. If none has for a while, they may wait for others: a step that takes a
    /// batch for the run that brings it, or a run that brings batches for room. So each other run gets a step at a time until
    /// they end.
    pub(super) fn push_on(&mut self) {
        let (steps, now) = (self.steps_done, self.now);
        let Some(guard) = &mut self.guard else { return };
        let Phase::Draining { progress, began, since, awaited, .. } = &mut guard.phase else { return };
        // A step alone ends after its own time; beside others, it may wait for more of them without end.
        if now.saturating_sub(*began) >= ANSWERED_WITHIN && self.runs.len() > 1 {
            return self.abandon("the steps under way do not end beside those of other runs");
        }
        if std::mem::replace(progress, steps) != steps {
            *since = now;
            return;
        }
        if now.saturating_sub(*since) >= guard.pace.patience(HELD_AT_MOST) && self.runs.len() > 1 {
            return self.abandon("the runs of the session that are under way wait for each other");
        }
        if now.saturating_sub(*since) < STILL_FOR {
            return;
        }
        *awaited = self.runs.begun();
        let began = self.runs.push_on(|_| false, &mut self.outbox) || self.runs.push_on(|_| true, &mut self.outbox);
        guard.waits_for_others |= began;
        if self.runs.plans().any(|plan| !guard.covered.contains(&plan)) && began {
            guard.broken.get_or_insert_with(|| "a run had to begin before its state was copied".to_owned());
        }
    }
}
