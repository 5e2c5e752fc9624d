//! The guard of a session: cuts, which are consistent copies of its state on all of its tasks, taken between two steps.
//!
//! Runs that fill queues wait once their steps have ended, since a step that waits for room ends only if others take from the
//! queue: those continue meanwhile. Then the steps under way are finished and no others start; every worker copies its state,
//! which is quick; the steps continue, and each copy travels to the buddy of its task beside them. A cut is complete once all
//! buddies have their parts. Until then the one before counts.

mod buddy;
mod covers;
mod end;
mod halt;
mod heir;
mod pace;

use std::collections::{BTreeMap, BTreeSet};

use meshtf_graph::plan::Signature;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::ids::RequestId;

pub(in super::super) use self::buddy::buddy;
use self::covers::Covers;
use self::heir::Heir;
pub(in super::super) use self::heir::Inheritance;
use self::pace::Pace;
use super::journal::{Journal, Mark};
use super::recovery::Recovery;
use super::run::ClientRun;
use super::{Machine, Nanos};
use crate::protocol::event::Event;
pub(super) use crate::protocol::guard::Part;
use crate::protocol::guard::{Copied, Cut, GuardNote, GuardReport, ToGuard};
use crate::protocol::{Cluster, Member, Peer, ToClient};

/// The longest time that workers have to answer while a cut is taken.
const ANSWERED_WITHIN: Nanos = 60_000_000_000;
/// The share of the time that cuts may cost: one in this many.
const SHARE: Nanos = 33;
/// How long a run of a plan that only copies on their way cover waits for them: after a loss within that time, the session goes
/// back to the cut before.
const SENT_WITHIN: Nanos = 1_000_000_000;
/// The longest distance between two cuts.
pub(super) const MAX_SPACING: Nanos = 600_000_000_000;
/// When a cut is due of a session that has made no run but one of one step.
const NEVER: Nanos = Nanos::MAX;
/// Most different notices of one session.
const MAX_NOTES: usize = 64;

/// The guard of a session.
pub(super) struct Guard {
    /// The distance between two cuts, as requested and as it is.
    distance: Nanos,
    spacing: Nanos,
    /// When the next cut is due.
    pub due: Nanos,
    pub phase: Phase,
    last: Cut,
    /// How often workers were asked to serve or to restore.
    pub asks: u64,
    pub complete: Option<Complete>,
    pub journal: Journal,
    /// The plans whose resources are in the newest complete cut, or in one on its way for which no run waits. A run of another
    /// plan waits for a cut.
    covered: BTreeSet<u32>,
    /// No cut can be taken for now: runs do not wait for one.
    pub is_exposed: bool,
    /// Why the newest cut and the journal do not lead to the state of now.
    pub broken: Option<String>,
    /// The peers whose copies each worker was last asked to take.
    pub served: BTreeMap<Peer, Vec<Peer>>,
    /// Requests for plans that came while a task was lost.
    pub held: Vec<(RequestId, Signature)>,
    /// Runs of the journal are computed again.
    pub is_replaying: bool,
    /// A run waits for a cut that is to follow the one under way, on this cluster.
    next: Option<Cluster>,
    /// Copies on their way made room for those of another cut, since the last complete one.
    has_superseded: bool,
    /// Its runs wait for each other: to end the steps under way of one takes steps of another.
    waits_for_others: bool,
    /// The failure of the next run: the state was lost for good between two runs.
    pub owed: Option<Failure>,
    /// How often the session went back to the newest cut.
    pub attempts: u32,
    /// The log says that the steps are guarded: it does so once after a loss.
    pub is_announced: bool,
    told: BTreeSet<String>,
    /// Notices that came while no run was under way whose client takes any: they go with the next one.
    untold: Vec<GuardNote>,
    pace: Pace,
    /// The node that continues the session if this master is lost.
    heir: Option<Heir>,
    /// The last step that may be in a cut which the heir has.
    received: u64,
    /// How many masters the session had before this one.
    pub term: u64,
}

pub(super) enum Phase {
    Steps,
    /// Workers were asked whose copies they will take; steps run.
    Serving {
        taking: Taking,
        waits: BTreeSet<Peer>,
    },
    /// No step starts that may wait for room; those that have end, while all others run.
    Closing {
        taking: Taking,
        began: Nanos,
        /// When a step was last seen to end, and the count of steps then.
        since: Nanos,
        progress: u64,
    },
    /// No step starts, unless one under way waits for it; those under way end.
    Draining {
        taking: Taking,
        began: Nanos,
        /// When a step was last seen to end.
        since: Nanos,
        progress: u64,
        /// The steps that are to end, as [`Runs::begun`](super::run::Runs::begun) has them: others begin for their sake alone.
        awaited: Vec<(u64, u64)>,
    },
    /// The workers copy; no step is under way.
    Copying {
        taking: Taking,
        waits: BTreeSet<Peer>,
        since: Nanos,
    },
    /// The copies travel beside the steps.
    Sending {
        taking: Taking,
        waits: BTreeSet<Peer>,
        /// Until then, runs of plans that the cut before does not cover wait for the copies.
        held_until: Option<Nanos>,
    },
    /// A task is lost.
    Lost(Recovery),
}

/// A cut that is being taken.
pub(super) struct Taking {
    cut: Cut,
    parts: Vec<Part>,
    began: Nanos,
    /// When no step began any more, and the count of steps then.
    stood: (Nanos, u64),
    covers: Covers,
    mark: Mark,
    /// The steps of all runs that are in it.
    at: u64,
    /// The tasks whose parts their buddies have.
    kept: BTreeSet<Peer>,
    /// Why the cut before cannot be used.
    broken: Option<String>,
}

/// A cut that all buddies have.
pub(super) struct Complete {
    pub cut: Cut,
    pub parts: Vec<Part>,
    covers: Covers,
    /// The steps of all runs that are in it.
    at: u64,
}

impl Guard {
    /// The guard of a session of which no copy is taken before it has worked for some time: a short run costs nothing.
    pub fn new(distance: Nanos) -> Guard {
        Guard {
            distance,
            spacing: distance,
            due: NEVER,
            phase: Phase::Steps,
            last: 0,
            asks: 0,
            complete: None,
            journal: Journal::default(),
            covered: BTreeSet::new(),
            is_exposed: true,
            broken: Some("no copy of the state has been taken yet".to_owned()),
            served: BTreeMap::new(),
            held: Vec::new(),
            is_replaying: false,
            next: None,
            has_superseded: false,
            waits_for_others: false,
            owed: None,
            attempts: 0,
            is_announced: false,
            told: BTreeSet::new(),
            untold: Vec::new(),
            pace: Pace::default(),
            heir: None,
            received: u64::MAX,
            term: 0,
        }
    }

    /// Whether steps of a run may start.
    pub fn lets(&self, run: &ClientRun) -> bool {
        match &self.phase {
            Phase::Closing { .. } if run.fills() => false,
            Phase::Draining { .. } | Phase::Copying { .. } | Phase::Lost(_) => false,
            _ if self.is_replaying => run.is_replayed(),
            Phase::Steps | Phase::Serving { .. } | Phase::Closing { .. } | Phase::Sending { .. } => {
                self.covers(run.plan())
            }
        }
    }

    /// Steps may wait: for a cut, or for a lost task.
    fn holds(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. } | Phase::Draining { .. } | Phase::Copying { .. } | Phase::Lost(_))
    }

    /// A step of a run has ended, whose step before ended `since` then, or which began then.
    pub fn step_done(&mut self, since: Nanos, now: Nanos) {
        if !self.holds() {
            self.pace.step_done(since, now);
        }
    }

    /// The next request waits until the lost task is back.
    pub fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    /// A run begins. `is_one_of_many`: it has several steps, or the session had some before; `is_guarded`: it can be computed
    /// again; `has_room`: so can all since the newest cut.
    pub fn begins(&mut self, is_one_of_many: bool, (is_guarded, has_room): (bool, bool), now: Nanos) {
        if self.due == NEVER && is_one_of_many {
            self.due = now.saturating_add(self.distance);
        }
        if !is_guarded {
            self.broken = Some("a run of the session has no steps that can be computed again".to_owned());
            self.hurry(now);
        } else if !has_room {
            self.broken = Some("too many feeds came since the newest copy of the state".to_owned());
            self.hurry(now);
        }
        self.drop_over();
    }

    /// The next cut is due, if there are any.
    pub fn hurry(&mut self, now: Nanos) {
        if self.due != NEVER {
            self.due = self.due.min(now);
        }
    }

    /// A distance between two cuts: not less than requested, and otherwise within the longest.
    fn within_limits(&self, spacing: Nanos) -> Nanos {
        spacing.min(MAX_SPACING).max(self.distance)
    }

    /// Without a cut from which they can be computed again, runs that are over are not kept.
    fn drop_over(&mut self) {
        if self.broken.is_some() && !self.is_replaying && !self.is_lost() {
            self.journal.drop_over();
        }
    }

    /// Whether a cut is being taken of that peer's state.
    pub fn takes_from(&self, peer: &Peer) -> bool {
        match &self.phase {
            Phase::Steps | Phase::Lost(_) => false,
            Phase::Serving { waits, .. } if waits.contains(peer) => true,
            Phase::Serving { taking, .. }
            | Phase::Closing { taking, .. }
            | Phase::Draining { taking, .. }
            | Phase::Copying { taking, .. }
            | Phase::Sending { taking, .. } => {
                taking.parts.iter().any(|part| part.peer == *peer || part.buddy.peer == *peer)
            }
        }
    }

    /// A peer keeps nothing any more.
    pub fn forget(&mut self, peer: &Peer) {
        self.served.remove(peer);
    }
}

impl Machine {
    /// Notes something about the guard, once, in the log and for the clients of the runs under way.
    pub(super) fn tell_once(&mut self, why: String) {
        let Some(guard) = &mut self.guard else { return };
        if guard.told.len() < MAX_NOTES && guard.told.insert(why.clone()) {
            self.tell(&GuardNote::Unguarded { why });
        }
    }

    /// The client takes notices with this run: those that came since the last such one.
    pub(super) fn tell_untold(&mut self, id: RequestId) {
        let untold = self.guard.as_mut().map(|guard| std::mem::take(&mut guard.untold)).unwrap_or_default();
        untold.into_iter().for_each(|note| self.send(self.client.clone(), ToClient::Guard { id, note }));
    }

    /// Notes something about the guard, in the log and for the clients of the runs under way.
    pub(super) fn tell(&mut self, note: &GuardNote) {
        let Some(guard) = &mut self.guard else { return };
        self.happened.push(Event::Guarded { session: self.id, what: note.to_string() });
        let watching: Vec<RequestId> =
            guard.journal.open().filter(|one| one.is_watched || one.every > 0).map(|one| one.request).collect();
        if watching.is_empty() && guard.untold.len() < MAX_NOTES {
            guard.untold.push(note.clone());
        }
        for id in watching {
            self.send(self.client.clone(), ToClient::Guard { id, note: note.clone() });
        }
    }

    /// A run of this plan was asked for: it waits for a cut if the plan's resources are in none.
    pub(super) fn guard_run(&mut self, plan: u32, cluster: &Cluster) {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return };
        if guard.covers(plan) || guard.is_lost() || guard.sends(plan) {
            return;
        }
        guard.due = guard.due.min(now);
        match guard.phase {
            // The state of a session that is computed again is not that of its journal until it is done.
            Phase::Steps if !guard.is_replaying => self.take_cut(cluster),
            // The next cut follows the one that is on its way, unless that makes room: it may go over a slow link.
            _ => {
                guard.next = Some(cluster.clone());
                if self.supersede(cluster)
                    && let Some(guard) = &mut self.guard
                {
                    guard.next = None;
                }
            }
        }
    }

    /// Time passes: takes a cut if one is due.
    pub(super) fn tick_guard(&mut self, cluster: &Cluster) {
        let now = self.now;
        let steps = self.steps_done;
        let Some(guard) = &mut self.guard else { return };
        if guard.holds() {
            guard.pace.held(now);
        }
        match &guard.phase {
            Phase::Steps if !guard.is_replaying && now >= guard.due && !guard.is_held() => {
                // Without a step since, the newest cut is the state of now.
                let has_worked = guard.broken.is_some()
                    || guard.complete.is_none()
                    || guard.pace.has_worked(steps)
                    || self.runs.plans().any(|plan| !guard.covered.contains(&plan));
                if has_worked && self.plans.iter().any(|plan| plan.is_shared && !plan.parts.is_empty()) {
                    self.take_cut(cluster);
                }
            }
            Phase::Closing { .. } => self.close_on(),
            Phase::Draining { .. } => self.push_on(),
            Phase::Serving { taking, .. } if now.saturating_sub(taking.began) >= ANSWERED_WITHIN => {
                self.abandon("a task does not answer the request to keep copies");
            }
            Phase::Copying { since, .. } if now.saturating_sub(*since) >= ANSWERED_WITHIN => {
                self.abandon("a task does not answer the request to copy its state");
            }
            Phase::Sending { taking, .. } if now.saturating_sub(taking.began) >= MAX_SPACING => {
                self.abandon("a copy of the state did not reach its buddy");
            }
            Phase::Sending { held_until: Some(until), .. } if now >= *until => {
                guard.cover_sent();
                self.resume();
            }
            _ => {}
        }
    }

    /// Two tasks lost their link: a part of a cut on its way between them does not come.
    pub(super) fn part_lost(&mut self, one: &Peer, other: &Peer) {
        let Some(Phase::Copying { taking, .. } | Phase::Sending { taking, .. }) =
            self.guard.as_ref().map(|guard| &guard.phase)
        else {
            return;
        };
        let is_between = |part: &Part| {
            let ends = (&part.peer, &part.buddy.peer);
            ends == (one, other) || ends == (other, one)
        };
        if taking.parts.iter().any(is_between) {
            self.abandon("two tasks, of which one was to keep a copy of the other's state, lost their link");
        }
    }

    /// Begins to take a cut.
    fn take_cut(&mut self, cluster: &Cluster) {
        let parts = match self.parts_of_cut(cluster) {
            // A plan without pieces, all of whose fetches are fed, has no state.
            Ok(parts) if parts.is_empty() => return self.expose("no task has a state of the session yet".to_owned()),
            Ok(parts) => parts,
            Err(why) => return self.expose(why),
        };
        let (now, steps, id) = (self.now, self.steps_done, self.id);
        let Some(guard) = &mut self.guard else { return };
        guard.last += 1;
        guard.asks += 1;
        let ask = guard.asks;
        let taking = Taking {
            cut: guard.last,
            began: now,
            stood: (now, steps),
            covers: Covers::default(),
            mark: Mark::default(),
            at: 0,
            kept: BTreeSet::new(),
            broken: None,
            parts,
        };
        let mut serve: BTreeMap<Peer, Vec<Peer>> = BTreeMap::new();
        for part in &taking.parts {
            serve.entry(part.peer.clone()).or_default();
            serve.entry(part.buddy.peer.clone()).or_default().push(part.peer.clone());
        }
        // Until this cut is complete, the one before may be needed, under the names of that time.
        for part in guard.complete.iter().flat_map(|complete| &complete.parts) {
            let of = serve.entry(part.buddy.peer.clone()).or_default();
            if !of.contains(&part.ward) {
                of.push(part.ward.clone());
            }
        }
        for peer in guard.served.keys() {
            serve.entry(peer.clone()).or_default();
        }
        let mut waits = BTreeSet::new();
        let mut asks = Vec::new();
        for (peer, of) in serve {
            // One that is gone keeps nothing.
            if cluster.member_of(&peer).is_some() && guard.served.get(&peer) != Some(&of) {
                guard.served.insert(peer.clone(), of.clone());
                waits.insert(peer.clone());
                asks.push((peer, ToGuard::Serve { session: id, ask, of }));
            }
        }
        let is_served = waits.is_empty();
        guard.phase = Phase::Serving { taking, waits };
        // Those that serve are to be notified of the end of the session.
        self.workers.extend(asks.iter().map(|(peer, _)| peer.clone()));
        let asked: Vec<Peer> = asks.iter().map(|(peer, _)| peer.clone()).collect();
        asks.into_iter().for_each(|(peer, ask)| self.send(peer, ask));
        self.name_heir(asked);
        if is_served {
            self.close();
        }
    }

    /// The tasks of which the session has, or had, pieces, each with a buddy.
    ///
    /// # Errors
    /// If there is no buddy for one of them.
    fn parts_of_cut(&self, cluster: &Cluster) -> Result<Vec<Part>, String> {
        let mut parts: BTreeMap<Task, Part> = BTreeMap::new();
        let before = self.guard.as_ref().and_then(|guard| guard.complete.as_ref());
        let plans = self.plans.iter().filter(|plan| plan.is_shared || plan.runs > 0);
        let of_plans =
            plans.flat_map(|plan| plan.parts.iter()).map(|part| (&part.task, &part.worker, part.incarnation));
        // State stays where no plan has pieces any more.
        let left = self.tasks.iter().filter_map(|(task, incarnation)| {
            let holder = cluster.member(task).filter(|holder| holder.incarnation == *incarnation)?;
            Some((task, &holder.peer, *incarnation))
        });
        let restored = before.iter().flat_map(|before| &before.parts).filter(|part| !part.copied.is_empty());
        let restored = restored.filter_map(|Part { task, peer, incarnation, .. }| {
            let holds = |holder: &&Member| holder.peer == *peer && holder.incarnation == *incarnation;
            cluster.member(task).filter(holds).map(|_| (task, peer, *incarnation))
        });
        for (task, peer, incarnation) in of_plans.chain(left).chain(restored) {
            if parts.contains_key(task) {
                continue;
            }
            let known = before.and_then(|before| before.parts.iter().find(|one| one.task == *task));
            let buddy = buddy(task, peer, cluster, known.map(|known| &known.buddy));
            let buddy = buddy.ok_or_else(|| "there is no other task that could keep a copy of the state".to_owned())?;
            let (peer, ward) = (peer.clone(), peer.clone());
            let (copied, is_bare) = (Copied::default(), false);
            parts.insert(task.clone(), Part { task: task.clone(), peer, incarnation, ward, buddy, copied, is_bare });
        }
        Ok(parts.into_values().collect())
    }

    /// A worker reports on the guard.
    pub(super) fn guard_report(&mut self, worker: &Peer, report: GuardReport) {
        match report {
            GuardReport::Ready { ask, result } => self.ready(worker, ask, result),
            GuardReport::Copied { cut, result } => self.copied(worker, cut, result),
            GuardReport::Kept { cut, of, result } => self.kept(worker, cut, &of, result),
            GuardReport::Restored { ask, result } => self.restored(worker, ask, result),
            GuardReport::Inherited { cut } => self.inherited(worker, cut),
            GuardReport::Superseded { term } => self.superseded(worker, term),
        }
    }

    fn ready(&mut self, worker: &Peer, ask: u64, result: Result<()>) {
        let Some(guard) = self.guard.as_mut().filter(|guard| guard.asks == ask) else { return };
        match &mut guard.phase {
            Phase::Serving { waits, .. } if waits.contains(worker) => {
                if let Err(failure) = result {
                    return self.abandon(&failure.to_string());
                }
                waits.remove(worker);
                if waits.is_empty() {
                    self.close();
                }
            }
            Phase::Lost(_) => self.ready_to_restore(worker, ask, result),
            _ => {}
        }
    }

    fn copied(&mut self, worker: &Peer, cut: Cut, result: Result<Copied>) {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return };
        let Phase::Copying { taking, waits, .. } = &mut guard.phase else { return };
        if taking.cut != cut || !waits.remove(worker) {
            return;
        }
        let copied = match result {
            Ok(copied) => copied,
            Err(failure) => return self.abandon(&failure.to_string()),
        };
        let is_last = waits.is_empty();
        let (unsaved, shared) = (copied.unsaved.clone(), copied.shared.clone());
        taking.parts.iter_mut().filter(|part| part.peer == *worker).for_each(|part| part.copied = copied.clone());
        if is_last && let Phase::Copying { taking, .. } = std::mem::replace(&mut guard.phase, Phase::Steps) {
            let has_before = guard.complete.is_some() && !taking.is_broken();
            match has_before {
                true => guard.covered.retain(|plan| taking.covers.plans.contains(plan)),
                false => guard.covered.clone_from(&taking.covers.plans),
            }
            guard.is_exposed = false;
            let is_awaited = |part: &&Part| part.copied.resources > 0 && !taking.kept.contains(&part.peer);
            let waits: BTreeSet<Peer> = taking.parts.iter().filter(is_awaited).map(|part| part.peer.clone()).collect();
            let is_kept = waits.is_empty();
            let held_until = has_before.then(|| now.saturating_add(SENT_WITHIN));
            guard.phase = Phase::Sending { taking, waits, held_until };
            // A loss must not end a run that would have gone on without the change.
            if has_before {
                self.change_runs();
            }
            if is_kept {
                self.completed();
            }
            self.resume();
        }
        unsaved.into_iter().for_each(|why| self.tell_once(why));
        if let Some(shared) = shared {
            self.tell_once(format!("another session changes {shared}, too, which is never put back over its changes"));
        }
    }
}
