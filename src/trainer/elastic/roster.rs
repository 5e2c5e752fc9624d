//! The workers of a training that are up, and those of them that train.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Reason};
use meshtf_tensor::ids::Incarnation;

use super::super::{Error, Observer, Trainer};
use super::once::Once;
use super::{Course, Elastic, LOOK_AGAIN};
use crate::Client;

/// How long after a step failed the loss of a task may be seen here.
const SEEN: Duration = Duration::from_secs(2);
/// How long a worker is left out with which no step could be made: doubled each time, up to the second.
const LEFT_OUT: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

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
    /// Workers with which no step could be made: how often, and until when they are left out.
    failing: BTreeMap<Task, (u32, Instant)>,
    is_announced: bool,
    /// The last report.
    told: String,
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
            failing: BTreeMap::new(),
            is_announced: false,
            told: String::new(),
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

    /// Why there are no steps.
    pub fn failure(&self) -> Failure {
        let few = || {
            let why = format!("fewer workers are up than {}", self.trainer.sections.train.least());
            Failure::new(Code::Unavailable, why).because(Reason::TaskDown)
        };
        self.failure.clone().unwrap_or_else(few)
    }

    /// Finds a team, and makes its training. Waits for tasks that are missing.
    ///
    /// # Errors
    /// The failure of the last team, if they do not come; those of the observer.
    pub async fn find(&mut self, observer: &mut Once<'_>) -> Result<(Team, Trainer), Error> {
        let mut made: Option<(Team, Trainer)> = None;
        loop {
            let up = self.up();
            let missing = match self.chosen(&up) {
                Some(chosen) => {
                    let trainer = match made.take().filter(|(known, _)| *known == chosen) {
                        Some((_, trainer)) => trainer,
                        None => {
                            let workers: Vec<usize> = chosen.keys().map(|task| task.index as usize).collect();
                            self.trainer.with_workers(&self.elastic.model, &workers, !observer.is_traced)?
                        }
                    };
                    let cluster = self.client.cluster();
                    let (mut team, mut missing) = (chosen.clone(), Vec::new());
                    for task in trainer.tasks() {
                        match cluster.member(&task) {
                            Some(member) => _ = team.entry(task).or_insert(member.incarnation),
                            None => missing.push(task.short()),
                        }
                    }
                    if missing.is_empty() && (self.failure.is_none() || self.since.elapsed() < self.elastic.returns) {
                        return Ok((team, trainer));
                    }
                    made = Some((chosen, trainer));
                    missing.join(", ")
                }
                None => {
                    let absent = self.workers.iter().filter(|worker| !up.contains_key(worker)).map(Task::short);
                    format!("more of {}", absent.collect::<Vec<_>>().join(", "))
                }
            };
            if self.since.elapsed() >= self.elastic.returns {
                return Err(self.failure().into());
            }
            if !std::mem::replace(&mut self.is_announced, true) {
                let (why, limit) = (self.failure().message, self.elastic.returns.as_secs_f64());
                observer.noted(&format!("{why}; waiting up to {limit} s for {missing}"))?;
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
        let from = course.copy.as_ref().map_or("the beginning".to_owned(), |copy| format!("step {}", copy.step + 1));
        let names = |tasks: &mut dyn Iterator<Item = &Task>| tasks.map(Task::short).collect::<Vec<String>>();
        let told = match (&self.before, self.failure.take()) {
            (None, _) => match names(&mut self.workers.iter().filter(|worker| !up.contains_key(worker))) {
                absent if absent.is_empty() => None,
                absent => Some(format!("{} {} not up; {those}", absent.join(", "), is_are(&absent))),
            },
            (Some(before), Some(why)) => {
                let (gone, step, why) = (self.gone(before), course.step.max(observer.trained) + 1, why.message);
                let was = if is_one(&gone) { "was" } else { "were" };
                Some(match gone.is_empty() {
                    true => format!("step {step} failed; {those} from {from} ({why})"),
                    false => format!("{} {was} lost at step {step}; {those} from {from} ({why})", gone.join(", ")),
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
        if let Some(told) = told.filter(|told| *told != self.told) {
            observer.noted(&told)?;
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
        self.before = Some(team);
    }

    /// A team failed. Waits for a moment until the loss is seen here.
    pub async fn lost(&mut self, team: Team, failure: Failure, has_stepped: bool) {
        if has_stepped {
            self.worked(&team);
        }
        let began = Instant::now();
        while self.gone(&team).is_empty() && began.elapsed() < SEEN {
            tokio::time::sleep(LOOK_AGAIN / 5).await;
        }
        if !has_stepped && self.gone(&team).is_empty() {
            // All are up, and one that has come since the last team may be the reason.
            let is_new = |task: &&Task| self.before.as_ref().is_some_and(|before| !before.contains_key(task));
            for worker in self.workers.iter().filter(|worker| team.contains_key(worker)).filter(is_new) {
                let (times, until) = self.failing.entry(worker.clone()).or_insert((0, began));
                let [first, most] = LEFT_OUT;
                *until = Instant::now() + first.saturating_mul(1 << (*times).min(16)).min(most);
                *times += 1;
            }
        }
        // Those of a team that made no step are compared with the last one that did.
        if has_stepped || self.before.is_none() {
            self.before = Some(team);
        }
        self.failure = Some(failure);
    }

    fn worked(&mut self, team: &Team) {
        self.failing.retain(|worker, _| !team.contains_key(worker));
        (self.since, self.is_announced) = (Instant::now(), false);
    }
}
