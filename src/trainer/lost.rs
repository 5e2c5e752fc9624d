//! The workers that a training has lost and continues without, and those of them that come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use meshtf_tensor::device::{DeviceSpec, Task};
use meshtf_tensor::failure::{Code, Failure, Reason};
use meshtf_tensor::lock::lock;
use meshtf_train::file::TrainSection;
use meshtf_train::job::{Drain, QueueNodes};
use tokio::sync::watch;

use super::dealer::Dealer;
use super::{Error, Observer, Trainer};
use crate::Session;

/// The interval of the attempts to reach a lost worker.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The same for a worker that was lost again and again.
const LOOK_SELDOM: Duration = Duration::from_secs(30);

/// The workers of a training, and those of them that are lost: their tasks are gone.
pub(super) struct Workers {
    names: Vec<String>,
    /// The least number that the updates need.
    needed: usize,
    /// Whether the first one does what no other does: with `backup` the nodes `updates`.
    needs_first: bool,
    /// The batches of workers that make their own updates.
    pub dealer: Dealer,
    away: Mutex<Away>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Away {
    lost: BTreeMap<usize, Lost>,
    /// The workers whose place in the exchange of tokens another run takes.
    stood_in_for: BTreeSet<usize>,
    /// For each worker that was lost, how often that was without a step in between.
    in_vain: BTreeMap<usize, u32>,
    news: Vec<News>,
}

#[derive(Default)]
struct Lost {
    /// Whether it is there again, and is to be taken in before the next step.
    is_ready: bool,
    /// Whether it is being taken in: no other run acts in its place any more.
    is_joining: bool,
    /// Why it cannot take part, though its task is there.
    refused: Option<String>,
}

/// A change to be reported.
struct News {
    worker: usize,
    what: What,
    living: usize,
}

enum What {
    Lost(Failure),
    /// It takes part again.
    Came,
    /// Its task is there, and it cannot take part.
    Refused(String),
}

impl Workers {
    /// The workers of a training from the step `start` to `end`, by their names. `updates`: whether there are nodes `updates`.
    pub fn of(train: &TrainSection, names: Vec<String>, updates: bool, (start, end): (u64, u64)) -> Workers {
        let count = names.len();
        Workers {
            needed: train.least(),
            needs_first: updates && train.backup > 0,
            dealer: Dealer::new(start, end, count),
            names,
            away: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }

    /// The same, from another step on.
    pub fn beginning_with(self, dealer: Dealer) -> Workers {
        let lost = lock(&self.away).lost.keys().copied().collect::<Vec<_>>();
        lost.into_iter().for_each(|worker| dealer.lost(worker, 0));
        Workers { dealer, ..self }
    }

    /// Whether the training continues if one of them is lost.
    pub fn may_be_lost(&self) -> bool {
        self.needed < self.names.len()
    }

    /// Records that this worker is lost, if `failure` is the loss of a task.
    ///
    /// # Errors
    /// The failure, if it is another one, or if the updates need the worker.
    pub fn without(&self, worker: usize, failure: Failure) -> Result<(), Failure> {
        if !is_loss(&failure) || worker == 0 && self.needs_first {
            return Err(failure);
        }
        let mut away = lock(&self.away);
        if let Some(lost) = away.lost.get_mut(&worker) {
            lost.is_ready = false;
            drop(away);
            self.change();
            return Ok(());
        }
        let living = self.names.len() - away.lost.len();
        if living <= self.needed {
            return Err(failure);
        }
        away.lost.insert(worker, Lost::default());
        away.news.push(News { worker, what: What::Lost(failure), living: living - 1 });
        *away.in_vain.entry(worker).or_default() += 1;
        drop(away);
        self.change();
        Ok(())
    }

    fn change(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// The workers that are not lost, in ascending order.
    pub fn living(&self) -> Vec<usize> {
        let away = lock(&self.away);
        (0..self.names.len()).filter(|worker| !away.lost.contains_key(worker)).collect()
    }

    /// The lost workers.
    pub fn lost(&self) -> Vec<usize> {
        lock(&self.away).lost.keys().copied().collect()
    }

    pub fn is_living(&self, worker: usize) -> bool {
        !lock(&self.away).lost.contains_key(&worker)
    }

    /// The number of changes so far.
    pub fn version(&self) -> u64 {
        *self.changed.borrow()
    }

    /// Returns once this worker lives, or is lost.
    pub async fn until(&self, worker: usize, is_living: bool) {
        self.when(|| self.is_living(worker) == is_living).await;
    }

    async fn when(&self, holds: impl Fn() -> bool) {
        let mut changes = self.changed.subscribe();
        while !holds() {
            // Its sender lives as long as this.
            let _ = changes.changed().await;
        }
    }

    /// Does work in the place of a lost worker until it is back.
    pub async fn stand_in(&self, worker: usize, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        lock(&self.away).stood_in_for.insert(worker);
        let done = tokio::select! {
            done = work => done,
            () = self.when(|| lock(&self.away).lost.get(&worker).is_none_or(|lost| lost.is_joining)) => Ok(()),
        };
        lock(&self.away).stood_in_for.remove(&worker);
        self.change();
        done?;
        self.until(worker, true).await;
        Ok(())
    }

    /// A lost worker is there again.
    fn ready(&self, worker: usize) {
        if let Some(lost) = lock(&self.away).lost.get_mut(&worker) {
            lost.is_ready = true;
        }
    }

    /// Returns once a worker that was ready lives, or is to be prepared again.
    async fn taken_in(&self, worker: usize) {
        self.when(|| lock(&self.away).lost.get(&worker).is_none_or(|lost| !lost.is_ready)).await;
    }

    /// A lost worker could not be prepared.
    fn refused(&self, worker: usize, failure: &Failure) {
        let mut away = lock(&self.away);
        let Away { lost, news, .. } = &mut *away;
        let living = self.names.len() - lost.len();
        let Some(lost) = lost.get_mut(&worker).filter(|_| !is_loss(failure)) else { return };
        if lost.refused.as_ref() != Some(&failure.message) {
            lost.refused = Some(failure.message.clone());
            news.push(News { worker, what: What::Refused(failure.message.clone()), living });
        }
    }

    /// The workers that are there again and are taken in now, between two steps: when it returns, no other run acts in their
    /// place. They live once they have [`joined`](Workers::joined).
    pub async fn joining(&self) -> Vec<usize> {
        let mut came = Vec::new();
        for (&worker, lost) in lock(&self.away).lost.iter_mut().filter(|(_, lost)| lost.is_ready) {
            lost.is_joining = true;
            came.push(worker);
        }
        if !came.is_empty() {
            self.change();
            self.when(|| came.iter().all(|worker| !lock(&self.away).stood_in_for.contains(worker))).await;
        }
        came
    }

    /// These workers live again.
    pub fn joined(&self, came: &[usize]) {
        if came.is_empty() {
            return;
        }
        let mut away = lock(&self.away);
        let Away { lost, news, .. } = &mut *away;
        for &worker in came {
            lost.remove(&worker);
            news.push(News { worker, what: What::Came, living: self.names.len() - lost.len() });
            self.dealer.came(worker);
        }
        drop(away);
        self.change();
    }

    /// The living workers have made steps since they came.
    pub fn stepped(&self) {
        let mut away = lock(&self.away);
        let Away { lost, in_vain, .. } = &mut *away;
        in_vain.retain(|worker, _| lost.contains_key(worker));
    }

    /// How long it takes until a lost worker is looked for again.
    fn pause(&self, worker: usize) -> Duration {
        let in_vain = lock(&self.away).in_vain.get(&worker).copied().unwrap_or(0);
        LOOK_SELDOM.min(LOOK_AGAIN.saturating_mul(1 << in_vain.saturating_sub(1).min(16)))
    }

    /// Reports the workers that were lost, or came back, since the last report.
    ///
    /// # Errors
    /// Those of the observer.
    pub fn report(&self, step: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        let news = std::mem::take(&mut lock(&self.away).news);
        for News { worker, what, living } in news {
            let (name, all, number) = (&self.names[worker], self.names.len(), step + 1);
            let those = format!("{living} of {all} workers {}", if living == 1 { "continues" } else { "continue" });
            observer.noted(&match what {
                What::Came => format!("{name} takes part from step {number}; {those}"),
                What::Lost(why) if why.reason == Some(Reason::TaskDown) => format!("{name} is not up; {those}"),
                What::Lost(why) => format!("{name} was lost at step {number}; {those} ({})", why.message),
                What::Refused(why) => format!("{name} is up and cannot take part: {why}"),
            })?;
        }
        Ok(())
    }
}

/// Whether a run failed because a task is gone.
pub(super) fn is_loss(failure: &Failure) -> bool {
    failure.code == Code::Unavailable || failure.reason == Some(Reason::TaskDown)
}

impl Trainer {
    /// The names of the workers: of their tasks, where the batches are.
    pub(super) fn names_of_workers(&self) -> Vec<String> {
        let home = |queue: &QueueNodes| {
            let id = self.job.graph.find(&queue.enqueue)?;
            let device: DeviceSpec = self.job.graph.node(id).device.parse().ok()?;
            Some(Task::new(&device.job?, device.task?).short())
        };
        let named = (0..).zip(&self.job.queues);
        named.map(|(i, queue)| home(queue).unwrap_or_else(|| format!("worker/{i}"))).collect()
    }

    /// Continues without a worker whose run failed, if its task is lost and no variable is.
    ///
    /// # Errors
    /// The failure, if the training cannot continue.
    pub(super) async fn leave_out(
        &self,
        session: &Session,
        workers: &Workers,
        worker: usize,
        failure: Failure,
    ) -> Result<(), Error> {
        if is_loss(&failure) && !self.has_variables(session).await {
            return Err(failure.into());
        }
        Ok(workers.without(worker, failure)?)
    }

    /// Whether each task that has variables is there: a variable of each is read, the smallest one.
    async fn has_variables(&self, session: &Session) -> bool {
        let mut least: BTreeMap<&str, (usize, String)> = BTreeMap::new();
        for variable in &self.job.variables {
            let size = variable.shape.elements().unwrap_or(usize::MAX);
            let name = || self.job.graph.tensor_name(variable.value);
            match least.get_mut(variable.device.as_str()) {
                Some(known) if known.0 <= size => {}
                Some(known) => *known = (size, name()),
                None => _ = least.insert(&variable.device, (size, name())),
            }
        }
        let names: Vec<&str> = least.values().map(|(_, name)| name.as_str()).collect();
        names.is_empty() || session.run().fetches(&names).await.is_ok()
    }

    /// Looks for lost workers, and prepares those that are there again: they are taken in before the next step. Does not end.
    pub(super) async fn look_for_lost(&self, session: &Session, workers: &Workers) -> Result<(), Error> {
        let of_worker = async |worker: usize| -> Result<(), Error> {
            loop {
                workers.until(worker, false).await;
                tokio::time::sleep(workers.pause(worker)).await;
                match self.prepare_worker(session, worker).await {
                    Ok(()) => {
                        workers.ready(worker);
                        workers.taken_in(worker).await;
                    }
                    Err(failure) => workers.refused(worker, &failure),
                }
            }
        };
        if !workers.may_be_lost() {
            return std::future::pending().await;
        }
        let all = (0..self.job.queues.len()).map(of_worker);
        futures::future::try_join_all(all).await.map(|_| ())
    }

    /// Makes a worker ready to take batches: it drops those of before, and reads its files.
    pub(super) async fn prepare_worker(&self, session: &Session, worker: usize) -> Result<(), Failure> {
        self.empty(session, &self.job.queues[worker].drain).await?;
        for held in self.job.held[worker].iter().flatten() {
            session.run().target(&held.load).await?;
        }
        Ok(())
    }

    /// Drops the contents of a queue or an accumulator.
    pub(super) async fn empty(&self, session: &Session, Drain { size, drop }: &Drain) -> Result<(), Failure> {
        if session.run().fetch(size).await?[0].to_i64()? > 0 {
            session.run().target(drop).await?;
        }
        Ok(())
    }

    /// Has the batches of lost workers dealt again. `known` is the number of updates that the others are known to have made by
    /// now, since the training began; `planned` the number of steps that each of the lost ones was to run since. Returns the
    /// number of those that were run.
    pub(super) async fn deal_again(
        &self,
        session: &Session,
        workers: &Workers,
        known: u64,
        planned: &[(usize, u64)],
    ) -> Result<u64, Error> {
        let mut run = 0;
        if !planned.is_empty() {
            let mut rest = self.counted(session).await?.saturating_sub(known);
            for &(worker, planned) in planned {
                let own = planned.min(rest);
                workers.dealer.lost(worker, own);
                (run, rest) = (run + own, rest - own);
            }
        }
        workers.lost().into_iter().for_each(|worker| workers.dealer.lost(worker, 0));
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use meshtf_train::file::UpdateMode;
    use meshtf_train::{Optimizer, Training};

    use super::*;
    use crate::train::Sections;

    fn of(mode: UpdateMode, workers: usize, backup: usize) -> Workers {
        of_updates(mode, workers, backup, false)
    }

    fn of_updates(mode: UpdateMode, workers: usize, backup: usize, updates: bool) -> Workers {
        let mut train = Sections::new("loss", Training::new(Optimizer::Sgd, 0.1), 1).train;
        (train.mode, train.workers, train.backup) = (mode, workers, backup);
        let names = (0..workers.max(1)).map(|worker| format!("worker/{worker}")).collect();
        Workers::of(&train, names, updates, (0, 100))
    }

    fn gone() -> Failure {
        Failure::new(Code::Unavailable, "task is gone")
    }

    #[test]
    fn a_worker_that_is_lost_again_before_it_is_taken_in_is_prepared_again() {
        let workers = of(UpdateMode::Async, 3, 0);
        workers.without(1, gone()).unwrap();
        workers.ready(1);
        let mut taken_in = std::pin::pin!(workers.taken_in(1));
        assert!(taken_in.as_mut().now_or_never().is_none());
        workers.without(1, gone()).unwrap();
        assert!(taken_in.now_or_never().is_some());
    }

    #[test]
    fn as_many_may_be_lost_as_updates_do_not_need() {
        let check = |workers: Workers, spare: usize| {
            for worker in 0..spare {
                assert_eq!(workers.without(worker, gone()), Ok(()));
                assert_eq!(workers.without(worker, gone()), Ok(()), "the loss of one worker counts once");
            }
            assert_eq!(workers.without(spare, gone()), Err(gone()));
            assert_eq!(workers.lost(), (0..spare).collect::<Vec<_>>());
            assert_eq!(workers.living().first(), Some(&spare));
            assert_eq!(workers.may_be_lost(), spare > 0);
        };
        check(of(UpdateMode::Async, 3, 0), 2);
        check(of(UpdateMode::Sync, 3, 1), 1);
        check(of(UpdateMode::Sync, 3, 0), 0);
        check(of(UpdateMode::Mirrored, 2, 0), 0);
        check(of(UpdateMode::Async, 0, 0), 0);
    }

    #[test]
    fn the_first_worker_is_needed_for_its_own_work() {
        for (backup, updates, is_needed) in [(1, false, false), (1, true, true), (0, true, false)] {
            let mode = if backup > 0 { UpdateMode::Sync } else { UpdateMode::Async };
            let workers = of_updates(mode, 3, backup, updates);
            assert_eq!(workers.without(0, gone()).is_err(), is_needed, "{backup} {updates}");
        }
    }

    #[test]
    fn other_failures_lose_no_worker() {
        let workers = of(UpdateMode::Async, 3, 0);
        let failure = Failure::invalid("Inf in the loss").in_step(4);
        assert_eq!(workers.without(1, failure.clone()), Err(failure));
        assert_eq!(workers.living(), [0, 1, 2]);
    }

    /// Keeps the notices.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Observer for Notes {
        fn noted(&mut self, text: &str) -> super::super::Observed {
            self.0.push(text.to_owned());
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_back_is_taken_in_once_nobody_stands_in_for_it() {
        let (workers, mut notes) = (of(UpdateMode::Async, 3, 0), Notes::default());
        workers.without(2, gone()).unwrap();
        let stands = workers.stand_in(2, std::future::pending());
        let takes_in = async {
            tokio::task::yield_now().await;
            assert!(workers.joining().await.is_empty(), "it is not there yet");
            assert_eq!(workers.living(), [0, 1]);
            workers.report(40, &mut notes).unwrap();
            workers.ready(2);
            let before = workers.version();
            let came = workers.joining().await;
            assert!(came == [2] && workers.living() == [0, 1] && lock(&workers.away).stood_in_for.is_empty());
            workers.joined(&came);
            assert!(workers.version() > before && workers.living() == [0, 1, 2]);
            workers.report(90, &mut notes).unwrap();
        };
        let (stood, ()) = futures::future::join(stands, takes_in).await;
        assert!(stood.is_ok());
        let told = [
            "worker/2 was lost at step 41; 2 of 3 workers continue (task is gone)",
            "worker/2 takes part from step 91; 3 of 3 workers continue",
        ];
        assert_eq!(notes.0, told);
    }

    #[test]
    fn a_worker_that_is_lost_again_and_again_is_looked_for_less_often() {
        let workers = of(UpdateMode::Async, 3, 0);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            workers.without(1, gone()).unwrap();
            pauses.push(workers.pause(1).as_secs_f64());
            workers.ready(1);
            lock(&workers.away).lost.clear();
        }
        assert_eq!(pauses, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        workers.stepped();
        workers.without(1, gone()).unwrap();
        assert_eq!(workers.pause(1), LOOK_AGAIN);
    }
}
