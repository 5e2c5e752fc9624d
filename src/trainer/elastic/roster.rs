//! The workers of a training that are up, and those of them that train.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Reason, counted};
use meshtf_tensor::ids::Incarnation;

use super::super::{Error, Observer, Trainer};
use super::once::Once;
use super::{Course, Elastic, LOOK_AGAIN, is_loss_of_state};
use crate::Client;

/// How long after a step failed the loss of a task may be seen here.
const SEEN: Duration = Duration::from_secs(2);
/// How long a worker is left out with which no step could be made: doubled each time, up to the second.
const LEFT_OUT: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];
/// How long a master is waited for that has met the others of a team.
const MEETS: Duration = Duration::from_secs(10);
/// Failures with all tasks up that do not count for the limit of a wait, though no team came further than those before it.
const IN_VAIN: u32 = 3;

/// Tasks with their processes: those of the workers that train, and the others of the training.
pub(super) type Team = BTreeMap<Task, Incarnation>;

/// Those that are up, and those that were lost.
pub(super) struct Roster<'t, C> {
    trainer: &'t Trainer,
    elastic: &'t Elastic,
    client: &'t C,
    workers: Vec<Task>,
    /// The last team.
    before: Option<Team>,
    /// Why it failed, if it did.
    failure: Option<Failure>,
    /// Since when no step was made.
    since: Instant,
    /// How often one after the other failed with all tasks up, and did not come further than those before it.
    in_vain: u32,
    /// The master of the team that was found last.
    master: Option<Task>,
    /// Since when a team is complete that has no master yet.
    meeting: Option<Instant>,
    /// Workers with which no step could be made: how often, and until when they are left out.
    failing: BTreeMap<Task, (u32, Instant)>,
    is_announced: bool,
    /// Workers that have come, and with which the last team failed.
    refused: Vec<String>,
    /// The last report, and how often it was due since.
    told: String,
    times: u64,
}

impl<'t, C: Client> Roster<'t, C> {
    pub fn new(trainer: &'t Trainer, elastic: &'t Elastic, client: &'t C) -> Roster<'t, C> {
        Roster {
            trainer,
            elastic,
            client,
            workers: (0..trainer.sections.train.workers).map(|i| Task::new("worker", i as u32)).collect(),
            before: None,
            failure: None,
            since: Instant::now(),
            in_vain: 0,
            master: None,
            meeting: None,
            failing: BTreeMap::new(),
            is_announced: false,
            refused: Vec::new(),
            told: String::new(),
            times: 0,
        }
    }

    /// The workers that are up, and are not left out.
    fn up(&self) -> Team {
        let (cluster, now) = (self.client.cluster(), Instant::now());
        let is_out = |worker: &&Task| self.failing.get(worker).is_some_and(|(_, until)| *until > now);
        let of = |worker: &Task| Some((worker.clone(), cluster.member(worker)?.incarnation));
        self.workers.iter().filter(|worker| !is_out(worker)).filter_map(of).collect()
    }

    /// Those of the workers that share each batch; `None`: they are too few.
    fn chosen(&self, up: &Team) -> Option<Team> {
        let sections = &self.trainer.sections;
        let count = sections.train.sharing(up.len(), sections.data.batch)?;
        Some(up.iter().take(count).map(|(worker, &process)| (worker.clone(), process)).collect())
    }

    /// The number of workers in a team.
    fn count(&self, team: &Team) -> usize {
        self.workers.iter().filter(|worker| team.contains_key(worker)).count()
    }

    /// Those of a team that are gone, or are other processes.
    fn gone(&self, team: &Team) -> Vec<String> {
        let cluster = self.client.cluster();
        let is_gone = |(task, process): &(&Task, &Incarnation)| {
            cluster.member(task).map(|one| one.incarnation) != Some(**process)
        };
        team.iter().filter(is_gone).map(|(task, _)| task.short()).collect()
    }

    /// Whether a team is to be another: one of it is gone, or more of the others can take part.
    pub fn is_to_change(&self, team: &Team) -> bool {
        !self.gone(team).is_empty() || self.chosen(&self.up()).is_some_and(|chosen| chosen.len() > self.count(team))
    }

    /// The task that is to master the session of the team that was found.
    pub fn master(&self) -> Option<&Task> {
        self.master.as_ref()
    }

    /// The default master, if it is a certain one, or else a task of a team, rather of those of the last one: it has met the
    /// others, or they were waited for in vain. One that has just come may have met this process before them.
    fn master_of(&mut self, team: &Team) -> Option<Task> {
        let is_known = |task: &&Task| self.before.as_ref().is_some_and(|before| before.get(task) == team.get(task));
        let (known, new): (Vec<&Task>, Vec<&Task>) = team.keys().partition(is_known);
        let candidates = match self.client.own_master() {
            Some(own) => vec![own],
            None => known.into_iter().chain(new).cloned().collect(),
        };
        let has_met_all = |one: &&Task| team.keys().all(|other| self.client.has_met(one, other));
        let found = candidates.iter().find(has_met_all).cloned();
        let began = *self.meeting.get_or_insert_with(Instant::now);
        let found = found.or_else(|| candidates.first().filter(|_| began.elapsed() >= MEETS).cloned());
        self.meeting = self.meeting.filter(|_| found.is_none());
        found
    }

    /// Why there is no team, and the tasks that are waited for; `up` are the workers that are up, `missing` other tasks.
    fn lack(&self, up: &Team, missing: &[String]) -> (String, String) {
        let train = &self.trainer.sections.train;
        if !missing.is_empty() {
            let names = missing.join(", ");
            return (format!("{names} {} not up", if missing.len() == 1 { "is" } else { "are" }), names);
        }
        let absent = self.workers.iter().filter(|worker| !up.contains_key(worker)).map(Task::short);
        let awaited = format!("more of {}", absent.collect::<Vec<_>>().join(", "));
        if up.len() < train.least() {
            return (format!("fewer workers are up than {}", train.least()), awaited);
        }
        let batch = self.trainer.sections.data.batch;
        let share = (up.len()..=self.workers.len()).find(|&count| batch.is_multiple_of(count));
        let (batch, share) = (counted(batch, "example"), share.unwrap_or(self.workers.len()));
        (format!("a batch of {batch} needs {share} workers, and {} are up", up.len()), awaited)
    }

    /// Finds a team, and makes its training. Waits for tasks that are missing.
    ///
    /// # Errors
    /// The failure of the last team, if they do not come; those of the observer.
    pub async fn find(&mut self, observer: &mut Once<'_>) -> Result<(Team, Trainer), Error> {
        let mut made: Option<(Team, Trainer)> = None;
        loop {
            let up = self.up();
            let mut missing = Vec::new();
            if let Some(chosen) = self.chosen(&up) {
                let trainer = match made.take().filter(|(known, _)| *known == chosen) {
                    Some((_, trainer)) => trainer,
                    None => {
                        let workers: Vec<usize> = chosen.keys().map(|task| task.index as usize).collect();
                        self.trainer.with_workers(&self.elastic.model, &workers, !observer.is_traced)?
                    }
                };
                let cluster = self.client.cluster();
                let mut team = chosen.clone();
                for task in trainer.tasks() {
                    match cluster.member(&task) {
                        Some(member) => _ = team.entry(task).or_insert(member.incarnation),
                        None => missing.push(task.short()),
                    }
                }
                if missing.is_empty() && (self.failure.is_none() || self.since.elapsed() < self.elastic.returns) {
                    self.master = self.master_of(&team);
                    if self.master.is_some() {
                        return Ok((team, trainer));
                    }
                    made = Some((chosen, trainer));
                    tokio::time::sleep(LOOK_AGAIN).await;
                    continue;
                }
                made = Some((chosen, trainer));
            }
            let (why, awaited) = self.lack(&up, &missing);
            let failure = match &self.failure {
                Some(failure) => failure.clone(),
                None => Failure::new(Code::Unavailable, why).because(Reason::TaskDown),
            };
            if self.since.elapsed() >= self.elastic.returns {
                return Err(failure.into());
            }
            if !std::mem::replace(&mut self.is_announced, true) {
                let (why, limit) = (failure.message, self.elastic.returns.as_secs_f64());
                observer.noted(&format!("{why}; waiting up to {limit} s for {awaited}"))?;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Says who was lost or came since the last team.
    ///
    /// # Errors
    /// Those of the observer.
    pub fn report(&mut self, team: &Team, course: &Course, observer: &mut Once<'_>) -> Result<(), Error> {
        let (all, count, up) = (self.workers.len(), self.count(team), self.up());
        let those = format!("{count} of {all} workers {}", if count == 1 { "continues" } else { "continue" });
        let is_one = |names: &[String]| names.len() == 1;
        let is_are = |names: &[String]| if is_one(names) { "is" } else { "are" };
        let takes = |names: &[String]| if is_one(names) { "takes" } else { "take" };
        let from = match course.copy.as_ref().map(|copy| copy.step).or(course.start) {
            _ if course.ended.is_some() => "the last step".to_owned(),
            None if self.trainer.resume => "the saved state".to_owned(),
            None | Some(0) => "the beginning".to_owned(),
            Some(step) => format!("step {}", step + 1),
        };
        let refused = std::mem::take(&mut self.refused);
        let names = |tasks: &mut dyn Iterator<Item = &Task>| tasks.map(Task::short).collect::<Vec<String>>();
        let told = match (&self.before, self.failure.take()) {
            (None, _) => match names(&mut self.workers.iter().filter(|worker| !up.contains_key(worker))) {
                absent if absent.is_empty() => None,
                absent => Some(format!("{} {} not up; {those}", absent.join(", "), is_are(&absent))),
            },
            (Some(before), Some(why)) => {
                let (gone, step, why) = (self.gone(before), course.step.max(observer.trained) + 1, why.message);
                let was = if is_one(&gone) { "was" } else { "were" };
                let at = match course.ended {
                    None => format!("at step {step}"),
                    Some(_) => "after the last step".to_owned(),
                };
                Some(match (&gone[..], &refused[..]) {
                    ([], []) if course.ended.is_some() => {
                        format!("the variables did not get the last values; {those} ({why})")
                    }
                    ([], []) => format!("step {step} failed; {those} from {from} ({why})"),
                    ([], refused) => {
                        let are = is_are(refused);
                        format!("{} {are} up and cannot take part; {those} from {from} ({why})", refused.join(", "))
                    }
                    (gone, _) => format!("{} {was} lost {at}; {those} from {from} ({why})", gone.join(", ")),
                })
            }
            (Some(before), None) => {
                let (gone, came) =
                    (self.gone(before), names(&mut team.keys().filter(|task| !before.contains_key(task))));
                let has = if is_one(&gone) { "has" } else { "have" };
                match (&gone[..], &came[..]) {
                    ([], []) => None,
                    ([], came) => Some(format!("{} {} part from {from}; {those}", came.join(", "), takes(came))),
                    (gone, _) => Some(format!("{} {has} left after step {}; {those}", gone.join(", "), course.step)),
                }
            }
        };
        // Several teams may fail one after the other for one reason.
        if let Some(told) = told {
            self.times = if told == self.told { self.times + 1 } else { 1 };
            match self.times {
                1 => observer.noted(&told)?,
                times if times.is_power_of_two() => observer.noted(&format!("{told}, {times} times"))?,
                _ => {}
            }
            self.told = told;
        }
        let idle = names(&mut up.keys().filter(|worker| !team.contains_key(worker)));
        if !idle.is_empty() {
            let (batch, those) = (self.trainer.sections.data.batch, idle.join(", "));
            let (are, take) = (is_are(&idle), takes(&idle));
            let why = format!("a batch of {batch} examples can be divided equally among {count} workers");
            observer.noted(&format!("{those} {are} up and {take} no part: {why}"))?;
        }
        Ok(())
    }

    /// A team made steps, and is to be another.
    pub fn changed(&mut self, team: Team) {
        self.worked(&team);
        self.goes_on();
        self.before = Some(team);
    }

    /// The workers of a team that have come since the last one that made steps.
    fn newcomers(&self, team: &Team) -> Vec<Task> {
        let is_new = |task: &&Task| self.before.as_ref().is_some_and(|before| !before.contains_key(task));
        let workers = self.workers.iter().filter(|worker| team.contains_key(worker));
        workers.filter(is_new).cloned().collect()
    }

    /// Whether the training continues after a team failed so: with another process of a lost task, without a worker that has
    /// come and cannot take part, or once the memory of the last team is free.
    pub fn survives(&self, team: &Team, failure: &Failure, course: &Course) -> bool {
        if failure.reason == Some(Reason::Superseded) {
            return false;
        }
        let is_full = || failure.code == Code::ResourceExhausted && self.before.is_some();
        let is_passing = is_loss_of_state(failure) || !course.has_stepped && is_full();
        let is_refusal = !course.has_stepped && course.ended.is_none() && !self.newcomers(team).is_empty();
        is_passing && self.elastic.copies.is_some() || is_refusal
    }

    /// A team failed. Waits for a moment until the loss is seen here.
    pub async fn lost(&mut self, team: Team, failure: Failure, course: &Course) {
        let began = Instant::now();
        while is_loss_of_state(&failure) && self.gone(&team).is_empty() && began.elapsed() < SEEN {
            tokio::time::sleep(LOOK_AGAIN / 5).await;
        }
        let are_up = self.gone(&team).is_empty();
        self.in_vain = if are_up && !course.has_advanced { self.in_vain + 1 } else { 0 };
        if course.has_stepped {
            self.worked(&team);
            if self.in_vain <= IN_VAIN {
                self.goes_on();
            }
        } else if are_up {
            // One that has come since the last team may be the reason.
            let newcomers = self.newcomers(&team);
            for worker in &newcomers {
                // The first step of the team may have taken long.
                if self.failing.get(worker).is_none_or(|(times, _)| *times < IN_VAIN) {
                    self.goes_on();
                }
                let (times, until) = self.failing.entry(worker.clone()).or_insert((0, began));
                let [first, most] = LEFT_OUT;
                *until = Instant::now() + first.saturating_mul(1 << (*times).min(16)).min(most);
                *times += 1;
            }
            self.refused = newcomers.iter().map(Task::short).collect();
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        // Those of a team that made no step are compared with the last one that did.
        if course.has_stepped || self.before.is_none() {
            self.before = Some(team);
        }
        self.failure = Some(failure);
    }

    fn worked(&mut self, team: &Team) {
        self.failing.retain(|worker, _| !team.contains_key(worker));
    }

    /// The limit of a wait begins anew.
    fn goes_on(&mut self) {
        (self.since, self.is_announced) = (Instant::now(), false);
    }
}
