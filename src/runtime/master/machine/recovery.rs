//! The way back of a guarded session after the loss of a task: the session waits until the task is there again, has its pieces
//! registered, puts the state of the newest cut back on all tasks, and computes the steps since then again.

mod absent;
mod lost;
mod pause;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meshtf_graph::plan::{Plan, Signature};
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::RequestId;

use self::absent::{Absent, lacks_memory};
use self::lost::{greet, lost_for_good};
use self::pause::{MAX_ATTEMPTS, pause};
use super::guard::{MAX_SPACING, Part, Phase};
use super::plans::Standing;
use super::{Machine, Nanos, Of, ToPlan};
use crate::protocol::guard::{Cut, GuardNote, Origin, ToGuard};
use crate::protocol::{Cluster, Peer};

/// The longest wait for a lost task.
const WAIT_LIMIT: Nanos = 60_000_000_000;
/// Most requests for plans that wait for a lost task.
const MAX_HELD: usize = 64;

/// The way back from a loss.
pub(super) struct Recovery {
    task: Task,
    /// The failure of the run if the task does not come back.
    failure: Failure,
    since: Nanos,
    /// When it began to wait for tasks, or had them all.
    entered: Nanos,
    /// The last step of the client's run that was done.
    at: u64,
    /// The client knows that the run waits.
    is_told: bool,
    /// Another master had the session: the step from which it continues.
    inherited: Option<u64>,
    /// Whether tasks without a state of the session are waited for.
    absent: Absent,
    stage: Stage,
}

enum Stage {
    /// Tasks are missing.
    Waiting,
    /// Plans are made anew, one after the other.
    Planning { todo: Vec<Arc<Signature>>, waits: BTreeSet<u32> },
    /// Workers compile the pieces of these plans.
    Registering { waits: BTreeSet<u32> },
    /// Workers put the state back.
    Restoring(Restoring),
}

impl Recovery {
    fn new(task: Task, failure: Failure, now: Nanos, at: u64) -> Recovery {
        let (inherited, absent, stage) = (None, Absent::AwaitedAll, Stage::Waiting);
        Recovery { task, failure, since: now, entered: now, at, is_told: false, inherited, absent, stage }
    }

    /// The way back of a session whose master was lost so long ago, at the first of these steps, to the second.
    pub fn inherited(task: Task, failure: Failure, (now, ago): (Nanos, Nanos), (at, from): (u64, u64)) -> Recovery {
        let since = now.saturating_sub(ago);
        Recovery { since, inherited: Some(from), ..Recovery::new(task, failure, now, at) }
    }
}

struct Restoring {
    ask: u64,
    cut: Cut,
    /// The workers whose state is not back yet.
    waits: BTreeSet<Peer>,
    /// New processes that were asked to serve the session.
    greets: BTreeSet<Peer>,
    /// The workers that have not said that they can put their state back: none does so before all can.
    unready: BTreeSet<Peer>,
    /// Where the state of each is, and under the name of which peer a buddy keeps it.
    origins: BTreeMap<Peer, (Origin, Peer)>,
    parts: Vec<Part>,
}

impl Restoring {
    /// Whether a report of this peer is expected: of a worker, or of a buddy that sends a state.
    fn asks(&self, peer: &Peer) -> bool {
        self.waits.contains(peer) || self.parts.iter().any(|part| part.peer == *peer || part.buddy.peer == *peer)
    }
}

impl Machine {
    /// A task of the session is lost: whether the guard takes the session back. Else the runs fail.
    pub(super) fn guards_against(&mut self, lost: &Peer, failure: &Failure) -> bool {
        let now = self.now;
        self.heir_lost(lost);
        let Some(guard) = &mut self.guard else { return false };
        guard.forget(lost);
        let is_known = |part: &Part| part.peer == *lost && !part.copied.is_empty();
        let has_state = guard.complete.as_ref().is_some_and(|complete| complete.parts.iter().any(is_known));
        let serves = |part: &Part| part.buddy.peer == *lost;
        if guard.complete.as_ref().is_some_and(|complete| complete.parts.iter().any(serves)) {
            guard.due = guard.due.min(now);
            guard.is_announced = false;
        }
        if !has_state && !guard.is_lost() && self.runs.needing(lost).is_empty() {
            // Its pieces are registered anew when they are needed. A cut under way misses it.
            if guard.takes_from(lost) {
                self.abandon(&failure.message);
            }
            return false;
        }
        let part_of = |plans: &super::Plans| {
            let mut parts = plans.iter().flat_map(|plan| plan.parts.iter());
            parts.find(|part| part.worker == *lost).map(|part| part.task.clone())
        };
        let known = guard.complete.as_ref().and_then(|complete| complete.parts.iter().find(|part| part.peer == *lost));
        let task = known.map(|part| part.task.clone()).or_else(|| part_of(&self.plans));
        match task {
            Some(task) => self.goes_back(task, failure),
            None => guard.is_lost(),
        }
    }

    /// Whether the session goes back to its newest cut because this task cannot be reached.
    pub(super) fn goes_back(&mut self, task: Task, failure: &Failure) -> bool {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return false };
        if matches!(guard.phase, Phase::Lost(_)) {
            self.wait_again();
            return true;
        }
        let can_replay = self.runs.all_can_be_replayed();
        let Some(guard) = &mut self.guard else { return false };
        if guard.complete.is_none() || guard.broken.is_some() || !can_replay || guard.attempts >= MAX_ATTEMPTS {
            return false;
        }
        if let Phase::Copying { taking, .. } | Phase::Sending { taking, .. } = &guard.phase
            && taking.is_broken()
        {
            return false;
        }
        if self.has_run_beyond() {
            return false;
        }
        let Some(guard) = &mut self.guard else { return false };
        // A cut under way does not come to be; its journal was not cut short.
        if let Phase::Serving { waits, .. } = std::mem::replace(&mut guard.phase, Phase::Steps) {
            waits.iter().for_each(|peer| guard.forget(peer));
        }
        guard.uncover();
        guard.attempts += 1;
        guard.is_announced = false;
        guard.is_replaying = false;
        let mut ended = Vec::new();
        for run in self.runs.take_all() {
            run.abort(self.id, failure, &mut self.outbox);
            ended.push(run.plan());
            if let Some(logged) = guard.journal.active(run.request()).filter(|_| !run.is_silent()) {
                (logged.done, logged.delivered) = (run.done_so_far(), run.delivered());
            }
        }
        guard.journal.rewind();
        let at = guard.journal.main().map_or(0, |one| one.reached());
        let failure = failure.clone();
        let mut recovery = Recovery::new(task, failure, now, at);
        recovery.absent = Absent::of(&self.options);
        guard.phase = Phase::Lost(recovery);
        for plan in ended {
            let unneeded = self.plans.run_over(plan);
            self.forget(unneeded);
        }
        true
    }

    /// A failure that names a loss: whether the session goes back instead of failing.
    pub(super) fn guards_against_failure(&mut self, failure: &Failure) -> bool {
        if self.guard.is_none() || failure.code != Code::Unavailable {
            return false;
        }
        let task = failure.task.as_deref().and_then(|task| task.parse().ok());
        task.is_some_and(|task| self.goes_back(task, failure))
    }

    /// Keeps a request for a plan until the lost task is back; whether it does.
    pub(super) fn hold(&mut self, request: RequestId, signature: &Signature) -> bool {
        let Some(guard) = self.guard.as_mut().filter(|guard| guard.is_lost() && guard.held.len() < MAX_HELD) else {
            return false;
        };
        guard.held.push((request, signature.clone()));
        true
    }

    /// As [`Machine::hold`], for a plan that could not be made; also if the state of a task would come back that is not up,
    /// though its loss has not been noticed yet.
    pub(super) fn hold_without(&mut self, request: RequestId, signature: &Signature, cluster: &Cluster) -> bool {
        let Some(guard) = &mut self.guard else { return false };
        let is_gone = |part: &Part| !part.copied.is_empty() && cluster.member(&part.task).is_none();
        let comes_back = guard.broken.is_none()
            && guard.complete.as_ref().is_some_and(|complete| complete.parts.iter().any(is_gone));
        if !(guard.is_lost() || comes_back) || guard.held.len() >= MAX_HELD {
            return false;
        }
        guard.held.push((request, signature.clone()));
        true
    }

    /// Time passes: continues on the way back, or makes a plan that waited. Returns the planning to do.
    pub(super) fn tick_recovery(&mut self, cluster: &Cluster) -> Option<ToPlan> {
        let now = self.now;
        let guard = self.guard.as_mut()?;
        let Phase::Lost(recovery) = &mut guard.phase else {
            while let Some((request, signature)) = self.guard.as_mut().and_then(|guard| guard.held.pop()) {
                if let Some(mut of) = self.prepare(request, signature, cluster) {
                    of.request = Some(request);
                    return Some(of);
                }
            }
            return None;
        };
        let (limit, lacks) = match recovery.stage {
            Stage::Waiting => (WAIT_LIMIT, "it did not come back"),
            _ => (MAX_SPACING, "its state was not put back"),
        };
        if now.saturating_sub(recovery.entered) >= limit {
            let waited = format!("; {lacks} within {} s", limit / 1_000_000_000);
            let failure = Failure { message: recovery.failure.message.clone() + &waited, ..recovery.failure.clone() };
            self.give_up_recovery(&failure);
            return None;
        }
        if !matches!(recovery.stage, Stage::Waiting) {
            return None;
        }
        let complete = guard.complete.as_ref()?;
        let tasks: Vec<&Task> = recovery.awaited(&complete.parts, cluster).collect();
        let missing = tasks.iter().find(|task| cluster.member(task).is_none());
        let is_apart = || tasks.iter().any(|one| tasks.iter().any(|other| cluster.are_apart(one, other).is_some()));
        if missing.is_some() || is_apart() {
            if !std::mem::replace(&mut recovery.is_told, true) {
                let (task, why) = (recovery.task.clone(), recovery.failure.message.clone());
                let note = GuardNote::Waiting { task, why, at: recovery.at, limit_ms: WAIT_LIMIT / 1_000_000 };
                self.tell(&note);
            }
            return None;
        }
        if let Some(failure) = lost_for_good(&complete.parts, cluster) {
            self.give_up_recovery(&failure);
            return None;
        }
        if now.saturating_sub(recovery.entered) < pause(guard.attempts) {
            return None;
        }
        let is_gone = |task: &Task| cluster.member(task).is_none();
        let leaves_some = is_gone(&recovery.task) || complete.parts.iter().any(|part| is_gone(&part.task));
        recovery.absent.is_left(leaves_some);
        let mut todo: Vec<Arc<Signature>> = Vec::new();
        for logged in guard.journal.iter() {
            let is_ready = matches!(self.plans.standing(&logged.signature, cluster), Standing::Ready(_));
            if !is_ready && !todo.contains(&logged.signature) {
                todo.push(Arc::clone(&logged.signature));
            }
        }
        (recovery.stage, recovery.entered) = (Stage::Planning { todo, waits: BTreeSet::new() }, now);
        self.plan_next(cluster)
    }

    /// The next plan that is to be made anew.
    fn plan_next(&mut self, cluster: &Cluster) -> Option<ToPlan> {
        let guard = self.guard.as_mut()?;
        let Phase::Lost(recovery) = &mut guard.phase else { return None };
        let Stage::Planning { todo, waits } = &mut recovery.stage else { return None };
        if let Some(signature) = todo.pop() {
            return Some(self.to_plan(Of::Session(Arc::clone(&self.graph)), (*signature).clone()));
        }
        let waits = std::mem::take(waits);
        recovery.stage = Stage::Registering { waits };
        self.restore_if_registered(cluster);
        None
    }

    /// A plan of the way back is made.
    pub(super) fn replanned(&mut self, of: ToPlan, plan: Result<Plan>, cluster: &Cluster) -> Option<ToPlan> {
        let is_asked = |machine: &Machine| {
            let phase = machine.guard.as_ref().map(|guard| &guard.phase);
            matches!(phase, Some(Phase::Lost(Recovery { stage: Stage::Planning { .. }, .. })))
        };
        if !is_asked(self) {
            return None;
        }
        let fits = |plan: Plan, machine: &Machine| match machine.leaves_tasks() && lacks_memory(&plan, &of, cluster) {
            true => Err(Failure::new(Code::ResourceExhausted, "the tasks that are up lack the memory")),
            false => Ok(plan),
        };
        let plan = plan.and_then(|plan| fits(plan, self));
        let number = match plan.and_then(|plan| self.register(None, of, plan, cluster)) {
            Ok(number) => number,
            Err(_) if self.await_all() => return None,
            Err(failure) => {
                // A device is missing if its task was lost again.
                let complete = self.guard.as_ref().and_then(|guard| guard.complete.as_ref());
                let is_whole =
                    complete.is_some_and(|one| one.parts.iter().all(|part| cluster.member(&part.task).is_some()));
                match is_whole {
                    true => self.back_to_waiting(&failure),
                    false => self.wait_again(),
                }
                return None;
            }
        };
        let is_ready = self.plans.is_ready(number);
        let guard = self.guard.as_mut()?;
        if let Phase::Lost(Recovery { stage: Stage::Planning { waits, .. }, .. }) = &mut guard.phase
            && !is_ready
        {
            waits.insert(number);
        }
        self.plan_next(cluster)
    }

    /// A device may be missing because its task was lost again, or a task may not be reached from another: the next look at the
    /// cluster decides, after a pause and so often at most. Other failures stay.
    fn back_to_waiting(&mut self, failure: &Failure) {
        let attempts = self.guard.as_mut().map_or(MAX_ATTEMPTS, |guard| {
            guard.attempts += 1;
            guard.attempts
        });
        if failure.code != Code::Unavailable || attempts >= MAX_ATTEMPTS {
            return self.give_up_recovery(failure);
        }
        self.wait_again();
    }

    fn wait_again(&mut self) {
        if let Some(Phase::Lost(recovery)) = self.guard.as_mut().map(|guard| &mut guard.phase)
            && !matches!(std::mem::replace(&mut recovery.stage, Stage::Waiting), Stage::Waiting)
        {
            recovery.entered = self.now;
            if recovery.inherited.is_some()
                && let Some(guard) = &mut self.guard
            {
                // Which of them have taken this master is not known.
                guard.served.clear();
            }
        }
    }

    /// The pieces of a plan are registered, or it was given up.
    pub(super) fn plan_settled(&mut self, number: u32, result: Result<(), &Failure>) {
        let Some(guard) = &mut self.guard else { return };
        let Phase::Lost(recovery) = &mut guard.phase else { return };
        let (Stage::Planning { waits, .. } | Stage::Registering { waits }) = &mut recovery.stage else { return };
        if !waits.remove(&number) {
            return;
        }
        if let Err(failure) = result
            && !self.await_all()
        {
            let failure = failure.clone();
            self.back_to_waiting(&failure);
        }
    }

    /// Has the workers put the state back, if all pieces are registered.
    pub(super) fn restore_if_registered(&mut self, cluster: &Cluster) {
        let id = self.id;
        let Some(guard) = &mut self.guard else { return };
        let Phase::Lost(recovery) = &mut guard.phase else { return };
        let Some(complete) = &guard.complete else { return };
        let is_registered = matches!(&recovery.stage, Stage::Registering { waits } if waits.is_empty());
        if !is_registered {
            return;
        }
        guard.asks += 1;
        let ask = guard.asks;
        let inherited = recovery.inherited.map(|_| (guard.term, complete.cut));
        let mut parts = complete.parts.clone();
        // Nothing is put back on a task that is left out: it has nothing of the session.
        parts.retain(|part| !recovery.leaves(part, cluster));
        let mut asks = Vec::new();
        let mut restoring = Restoring {
            ask,
            cut: complete.cut,
            waits: BTreeSet::new(),
            greets: BTreeSet::new(),
            unready: BTreeSet::new(),
            origins: BTreeMap::new(),
            parts: Vec::new(),
        };
        for part in &mut parts {
            let Some(member) = cluster.member(&part.task) else {
                recovery.stage = Stage::Waiting;
                return;
            };
            let is_same = member.incarnation == part.incarnation && member.peer == part.peer;
            (part.peer, part.incarnation) = (member.peer.clone(), member.incarnation);
            // The steps since may have made something where there was nothing.
            part.is_bare |= !is_same && part.copied.resources == 0;
            let from = match (part.is_bare, is_same) {
                (true, _) => Origin::Nothing,
                (false, true) => Origin::Here,
                (false, false) => Origin::Buddy(part.buddy.peer.clone()),
            };
            restoring.waits.insert(part.peer.clone());
            restoring.unready.insert(part.peer.clone());
            restoring.origins.insert(part.peer.clone(), (from.clone(), part.ward.clone()));
            if !guard.served.contains_key(&part.peer) {
                // One whose answer was awaited as the task was lost may have copies of others, which it is to keep.
                let kept = complete.parts.iter().filter(|one| one.buddy.peer == part.peer);
                let of: Vec<Peer> = kept.map(|one| one.ward.clone()).collect();
                guard.served.insert(part.peer.clone(), of.clone());
                restoring.greets.insert(part.peer.clone());
                asks.push((part.peer.clone(), greet(inherited, (id, ask), of)));
            } else {
                asks.push((part.peer.clone(), ToGuard::Restore { session: id, ask, cut: complete.cut, from }));
            }
        }
        if recovery.inherited.is_some() {
            // Those that only keep copies are to take this master, too.
            for buddy in parts.iter().map(|part| &part.buddy.peer) {
                if cluster.member_of(buddy).is_some() && !guard.served.contains_key(buddy) {
                    let kept = complete.parts.iter().filter(|one| one.buddy.peer == *buddy);
                    let of: Vec<Peer> = kept.map(|one| one.ward.clone()).collect();
                    guard.served.insert(buddy.clone(), of.clone());
                    restoring.greets.insert(buddy.clone());
                    asks.push((buddy.clone(), greet(inherited, (id, ask), of)));
                }
            }
        }
        restoring.parts = parts;
        let greeted: Vec<Peer> = restoring.greets.iter().cloned().collect();
        let is_done = restoring.waits.is_empty();
        recovery.stage = Stage::Restoring(restoring);
        self.workers.extend(asks.iter().map(|(peer, _)| peer.clone()));
        asks.into_iter().for_each(|(peer, ask)| self.send(peer, ask));
        self.name_heir(greeted);
        if is_done {
            self.restored_all();
        }
    }

    /// A worker serves the session, or can put its state back.
    pub(super) fn ready_to_restore(&mut self, worker: &Peer, ask: u64, result: Result<()>) {
        let id = self.id;
        let Some(Phase::Lost(Recovery { stage: Stage::Restoring(restoring), .. })) =
            self.guard.as_mut().map(|guard| &mut guard.phase)
        else {
            return;
        };
        if !restoring.asks(worker) {
            return;
        }
        if let Err(failure) = result {
            return self.not_restored(&failure);
        }
        let cut = restoring.cut;
        if restoring.greets.remove(worker) {
            let Some((from, _)) = restoring.origins.get(worker).cloned() else { return };
            return self.send(worker.clone(), ToGuard::Restore { session: id, ask, cut, from });
        }
        if !restoring.unready.remove(worker) || !restoring.unready.is_empty() {
            return;
        }
        for (worker, (from, of)) in std::mem::take(&mut restoring.origins) {
            match from {
                Origin::Here | Origin::Nothing => self.send(worker, ToGuard::Return { session: id, ask }),
                Origin::Buddy(buddy) => {
                    self.send(buddy, ToGuard::GiveBack { session: id, ask, cut, of, to: worker });
                }
            }
        }
    }

    /// A worker cannot put its state back, or did not. One that refuses does so for good.
    fn not_restored(&mut self, failure: &Failure) {
        let Some(Phase::Lost(recovery)) = self.guard.as_ref().map(|guard| &guard.phase) else { return };
        let lost = &recovery.failure;
        if failure.code != Code::FailedPrecondition {
            return self.back_to_waiting(failure);
        }
        let message = format!("{}; its state is not put back: {}", lost.message, failure.message);
        let failure = Failure { message, ..lost.clone() };
        self.give_up_recovery(&failure);
    }

    /// A worker has put its state back, or not.
    pub(super) fn restored(&mut self, worker: &Peer, ask: u64, result: Result<()>) {
        let Some(guard) = &mut self.guard else { return };
        let Phase::Lost(recovery) = &mut guard.phase else { return };
        let Stage::Restoring(restoring) = &mut recovery.stage else { return };
        if restoring.ask != ask || !restoring.asks(worker) {
            return;
        }
        match result {
            Ok(()) => {
                if restoring.waits.remove(worker) && restoring.waits.is_empty() {
                    self.restored_all();
                }
            }
            Err(failure) => self.not_restored(&failure),
        }
    }

    /// All tasks have the state of the cut: the steps since then are computed again.
    fn restored_all(&mut self) {
        let now = self.now;
        let Some(guard) = &mut self.guard else { return };
        let Phase::Lost(recovery) = std::mem::replace(&mut guard.phase, Phase::Steps) else { return };
        let Stage::Restoring(restoring) = recovery.stage else { return };
        if let Some(complete) = &mut guard.complete {
            complete.parts = restoring.parts;
        }
        guard.due = now;
        let repeated = guard.journal.repeated();
        guard.is_replaying = true;
        let (task, at) = (recovery.task, recovery.at);
        let after_ms = now.saturating_sub(recovery.since) / 1_000_000;
        self.tell(&match recovery.inherited {
            None => GuardNote::Continued { task, at, repeated, after_ms },
            Some(from) => GuardNote::Inherited { task, at, repeated: at.saturating_sub(from), after_ms },
        });
        self.replay();
    }

    /// Begins the runs of the journal again that are next: those that were over for their effects alone, those under way where
    /// they are in the newest cut.
    pub(super) fn replay(&mut self) {
        loop {
            let Some(guard) = self.guard.as_mut().filter(|guard| guard.is_replaying) else { return };
            if guard.journal.is_replayed() {
                guard.is_replaying = false;
                return self.resume();
            }
            let Some(logged) = guard.journal.next_again() else { return self.resume() };
            let (number, request) = (logged.number(), logged.request);
            if let Some(plan) = self.runs.plan_of(request) {
                // It was asked for while a task was lost, or the others were computed again. The plan may have lost a task since.
                if self.plans.ready(&logged.signature) == Some(plan) || logged.signature.mode.is_partial() {
                    // One that waits for a cut gets it afterwards.
                    if guard.covers(plan) {
                        self.runs.let_go(request);
                    }
                    continue;
                }
                self.runs.take(request);
                let unneeded = self.plans.run_over(plan);
                self.forget(unneeded);
            }
            let Some(logged) = self.guard.as_ref().and_then(|guard| guard.journal.numbered(number)) else { continue };
            if logged.is_over && logged.from >= logged.total {
                if let Some(guard) = &mut self.guard {
                    guard.journal.is_done_again(number);
                }
                continue;
            }
            if let Err(failure) = self.begin_again(number) {
                return self.give_up_recovery(&failure);
            }
        }
    }

    /// The session does not come back to its state: what waits for it fails.
    pub(super) fn give_up_recovery(&mut self, failure: &Failure) {
        let now = self.now;
        let id = self.id;
        let Some(guard) = &mut self.guard else { return };
        // Workers that still put a state back stop.
        if let Phase::Lost(Recovery { stage: Stage::Restoring(restoring), .. }) = &guard.phase {
            guard.asks += 1;
            let ask = guard.asks;
            let served = |peer: &Peer| Some((peer.clone(), guard.served.get(peer)?.clone()));
            let stop: Vec<(Peer, Vec<Peer>)> = restoring.waits.iter().filter_map(served).collect();
            stop.into_iter().for_each(|(peer, of)| self.send(peer, ToGuard::Serve { session: id, ask, of }));
        }
        let Some(guard) = &mut self.guard else { return };
        guard.phase = Phase::Steps;
        guard.is_replaying = false;
        guard.complete = None;
        guard.broken = Some(failure.message.clone());
        guard.due = now;
        let open: Vec<(RequestId, u64)> = guard.journal.open().map(|one| (one.request, one.done)).collect();
        guard.owed = open.is_empty().then(|| failure.clone());
        guard.journal = super::journal::Journal::default();
        for run in self.runs.take_all() {
            run.abort(self.id, failure, &mut self.outbox);
            let unneeded = self.plans.run_over(run.plan());
            self.forget(unneeded);
        }
        for (request, _) in open {
            let (session, code, why) = (self.id, failure.code, failure.to_string());
            self.happened.push(super::Event::RunFailed { session, run: request, code, why });
            self.answer(request, Err(failure.clone()));
        }
        self.resume();
    }
}
