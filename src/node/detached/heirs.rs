//! The heirs of detached runs. A node leaves a run that is to have an heir to another node: the graph and the feeds once, the
//! record of each complete cut (between their masters), and the number of steps from time to time. If the node is lost, the heir
//! opens the session again under the same name, which comes back to the newest cut, and continues with the steps after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_graph::plan::PlaceBy;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::DetachedRuns;
use super::entry::{Entry, Succession, Whole};
use crate::protocol::Peer;
use crate::protocol::detached::{AskDetached, MAX_INHERITED};
use crate::runtime::master::Lost;
use crate::session::detached::{NewRun, leave_to, tell};

/// The interval of the looks at heirs, and at the nodes whose heir this one is.
const LOOKS_EVERY: Duration = Duration::from_millis(200);
/// How long after a node was lost another is asked, and after one that did not agree, which may be asked again, with all:
/// doubled each time, up to the second. Many refusals pass: a node may not have met this one yet.
const ASKS_AGAIN: Duration = Duration::from_secs(2);
const ASKS_SELDOM: Duration = Duration::from_secs(60);
/// The interval at which the heir is notified of the steps that are done.
const TELLS_EVERY: Duration = Duration::from_secs(1);
/// How long a run is kept whose node is up and does not speak of it: it may have another heir by now.
const KEPT_UNTOLD: Duration = Duration::from_secs(30);
/// How long a node is to be gone before its run is continued: all others have noticed by then.
const GONE_FOR: Duration = Duration::from_millis(400);

/// A run of another node.
pub(super) struct Heirloom {
    run: SessionId,
    by: Peer,
    /// The node that has it, and its task.
    from: Peer,
    task: Task,
    whole: Whole,
    began: Instant,
    /// The last step that is known to be done.
    step: u64,
    /// When the node last spoke of it.
    told: Instant,
    /// Since when the node is gone.
    gone: Option<Instant>,
}

impl Succession {
    /// How long after a node was asked another one is.
    pub(super) fn pause(&self) -> Duration {
        ASKS_AGAIN.saturating_mul(1 << self.refusals.min(16)).min(ASKS_SELDOM)
    }
}

impl DetachedRuns {
    /// Agrees to continue a run of another node, on its own word alone: nobody replaces what a third node has left here.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many; InvalidArgument if the task is not that of the node; AlreadyExists if another
    /// node has left a run of this name, or it is under way here.
    pub(super) fn inherit(
        &self,
        from: &Peer,
        (run, by, task, age): (SessionId, Peer, Task, Duration),
        whole: Whole,
    ) -> Result<()> {
        let closing = || Failure::new(Code::Unavailable, "this node is closing");
        let master = self.master.upgrade().ok_or_else(closing)?;
        if self.mesh.cluster().member(&task).is_none_or(|member| member.peer != *from) {
            let why = format!("{from} leaves run {run} as the node of {}, whose node it is not", task.short());
            return Err(Failure::invalid(why));
        }
        let exists = |whose: &str| Failure::new(Code::AlreadyExists, format!("run {run} is {whose}"));
        if lock(&self.entries)
            .iter()
            .any(|entry| entry.run == run && (entry.training.is_some() || entry.ended().is_none()))
        {
            return Err(exists("under way on this node"));
        }
        let now = Instant::now();
        let began = now.checked_sub(age).unwrap_or(now);
        {
            let mut all = lock(&self.heirlooms);
            if all.iter().any(|one| one.run == run && one.from != *from) {
                return Err(exists("left to this node by another one"));
            }
            all.retain(|one| one.run != run);
            if all.len() >= MAX_INHERITED {
                let why = format!("{MAX_INHERITED} runs of other nodes are left to this one already");
                return Err(Failure::new(Code::ResourceExhausted, why));
            }
            all.push(Heirloom { run, by, from: from.clone(), task, whole, began, step: 0, told: now, gone: None });
        }
        master.expect(run, from.clone());
        self.keep_heirs();
        Ok(())
    }

    /// Refuses a name by which another node has left a run here: its launch would take the place of that run.
    ///
    /// # Errors
    /// AlreadyExists.
    pub(super) fn check_not_left(&self, run: SessionId) -> Result<()> {
        match lock(&self.heirlooms).iter().find(|one| one.run == run) {
            Some(one) => {
                let why = format!("run {run} is under way on {}, which has left it to this node", one.task.short());
                Err(Failure::new(Code::AlreadyExists, why))
            }
            None => Ok(()),
        }
    }

    /// So many steps of a run of another node are done.
    pub(super) fn reached(&self, from: &Peer, run: SessionId, step: u64) {
        let mut all = lock(&self.heirlooms);
        let known = all.iter_mut().filter(|one| one.run == run && one.from == *from);
        known.for_each(|one| (one.step, one.told) = (one.step.max(step), Instant::now()));
    }

    /// A run of another node is over.
    pub(super) fn disinherit(&self, from: &Peer, run: SessionId) {
        let mut all = lock(&self.heirlooms);
        let before = all.len();
        all.retain(|one| !(one.run == run && one.from == *from));
        if let Some(master) = self.master.upgrade().filter(|_| all.len() < before) {
            master.disclaim(run);
        }
    }

    /// Looks after heirs from now on, as long as there is one.
    pub(super) fn keep_heirs(&self) {
        if std::mem::replace(&mut *lock(&self.is_kept), true) {
            return;
        }
        let me = self.me.clone();
        self.handle.spawn(async move {
            loop {
                tokio::time::sleep(LOOKS_EVERY).await;
                let Some(runs) = me.upgrade() else { return };
                runs.look_at_own();
                runs.look_at_others();
                let mut is_kept = lock(&runs.is_kept);
                if !runs.has_some() {
                    *is_kept = false;
                    return;
                }
            }
        });
    }

    fn has_some(&self) -> bool {
        let is_open = |entry: &Arc<Entry>| entry.ended().is_none() || lock(&entry.succession).heir.is_some();
        !lock(&self.heirlooms).is_empty() || lock(&self.entries).iter().any(is_open)
    }

    /// Finds heirs for the runs here, and notifies them.
    pub(super) fn look_at_own(&self) {
        let Some(master) = self.master.upgrade() else { return };
        let entries = lock(&self.entries).clone();
        for entry in entries {
            let run = entry.run;
            let mut succession = lock(&entry.succession);
            if entry.ended().is_some() {
                if let Some(heir) = succession.heir.take() {
                    tell(&self.requests, &heir, AskDetached::Disinherit { run });
                }
                continue;
            }
            // Its master does not know one that starts.
            let Some(whole) = entry.whole().filter(|_| !entry.is_starting()) else { continue };
            let options = &whole.options;
            // Where variables are that were placed by cost, this master alone knows.
            if !whole.has_heir || options.guard.is_none() || options.place_by != PlaceBy::Names {
                continue;
            }
            let now = Instant::now();
            let is_due = |then: Option<Instant>, every| then.is_none_or(|then| now.duration_since(then) >= every);
            match master.heir(run) {
                Some((heir, is_ready)) => {
                    succession.is_ready = is_ready;
                    if is_due(succession.told, TELLS_EVERY) {
                        succession.told = Some(now);
                        tell(&self.requests, &heir, AskDetached::Reached { run, step: entry.step() });
                    }
                }
                None if !succession.is_asking && is_due(succession.asked, succession.pause()) => {
                    let Some(member) = master.choose_heir() else { continue };
                    let refusals = succession.refusals;
                    *succession = Succession { is_asking: true, asked: Some(now), refusals, ..Succession::default() };
                    drop(succession);
                    self.ask_heir(entry, member.peer);
                }
                None => {}
            }
        }
    }

    /// Leaves a run to that node, if it agrees.
    fn ask_heir(&self, entry: Arc<Entry>, heir: Peer) {
        let (requests, master) = (Arc::clone(&self.requests), self.master.clone());
        let Some(task) = master.upgrade().map(|master| master.task().clone()) else { return };
        self.handle.spawn(async move {
            let Some(whole) = entry.whole() else { return };
            let Whole { title, graph, options, steps, has_heir, is_attended } = &*whole;
            let of = NewRun {
                title: title.clone(),
                graph,
                options: options.clone(),
                signature: steps.signature.clone(),
                feeds: steps.feeds.clone(),
                steps: steps.count,
                every: steps.every,
                has_heir: *has_heir,
                is_attended: *is_attended,
            };
            let about = (entry.run, entry.by.clone(), task, entry.age().as_millis() as u64);
            let agreed = leave_to(&requests, &heir, about, of).await;
            let mut succession = lock(&entry.succession);
            succession.is_asking = false;
            match agreed {
                Ok(()) => {
                    (succession.heir, succession.refusals) = (Some(heir.clone()), 0);
                    let Some(master) = master.upgrade() else { return };
                    if let Some(until) = entry.received_until() {
                        master.received(entry.run, until);
                    }
                    master.set_heir(entry.run, heir.clone());
                }
                Err(failure) => {
                    // One that is gone has not refused.
                    succession.refusals = if failure.code == Code::Unavailable { 0 } else { succession.refusals + 1 };
                    tracing::debug!("{heir} is no heir of run {}: {failure}", entry.run);
                }
            }
        });
    }

    /// Continues the runs of nodes that are gone.
    fn look_at_others(&self) {
        let (now, cluster) = (Instant::now(), self.mesh.cluster());
        let mut all = lock(&self.heirlooms);
        for one in all.iter_mut() {
            // A node that others still reach is not gone; one that has its name by now is another.
            let is_named = cluster.member(&one.task).is_none() && self.mesh.is_told_of(&one.task);
            match cluster.member_of(&one.from).is_some() || is_named {
                true => one.gone = None,
                false => drop(one.gone.get_or_insert(now)),
            }
        }
        let is_forgotten = |one: &mut Heirloom| one.gone.is_none() && now.duration_since(one.told) >= KEPT_UNTOLD;
        let forgotten: Vec<SessionId> = all.extract_if(.., is_forgotten).map(|one| one.run).collect();
        if let Some(master) = self.master.upgrade() {
            forgotten.into_iter().for_each(|run| master.disclaim(run));
        }
        let is_due = |one: &mut Heirloom| one.gone.is_some_and(|gone| now.duration_since(gone) >= GONE_FOR);
        let due: Vec<Heirloom> = all.extract_if(.., is_due).collect();
        drop(all);
        due.into_iter().for_each(|one| self.succeed(one));
    }

    /// Takes the place of the node of a run.
    fn succeed(&self, heirloom: Heirloom) {
        let Heirloom { run, by, task, whole, began, step, gone, .. } = heirloom;
        let Some(master) = self.master.upgrade() else { return };
        let ago = gone.map_or(0, |gone| gone.elapsed().as_nanos() as u64);
        let failure = Failure::new(Code::Unavailable, format!("the master {} is gone", task.short()));
        let failure = failure.on_task(&task.to_string());
        let lost = Lost { task: task.clone(), at: step, ago, failure: failure.clone() };
        let done = master.succeed(run, lost);
        let mut entry = Entry::new(run, by, whole, (began.elapsed(), done.unwrap_or(step)));
        entry.heir_on = Some(master.task().clone());
        let entry = Arc::new(entry);
        self.begin(Arc::clone(&entry));
        let Some(_) = done else {
            master.disclaim(run);
            let why = format!("{}, and no copy of the state was complete", failure.message);
            return entry.end(Err(Failure { message: why, ..failure }));
        };
        let Some(whole) = entry.whole() else { return };
        // The work does not hold the node.
        let (me, opened) = (self.me.clone(), self.open(run, whole));
        self.handle.spawn(async move {
            let started = entry.start(opened).await;
            let Some(runs) = me.upgrade() else { return };
            match started {
                Ok(session) => {
                    let made = runs.made(entry, session);
                    drop(runs);
                    made.await;
                }
                Err(failure) => drop(entry.ends_unstarted(&failure)),
            }
        });
    }
}
