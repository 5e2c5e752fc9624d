//! The workers that a training has lost and continues without.

use std::collections::BTreeMap;
use std::sync::Mutex;

use meshtf_tensor::failure::{Code, Failure, Reason};
use meshtf_tensor::lock::lock;
use meshtf_train::file::{TrainSection, UpdateMode};
use tokio::sync::watch;

use super::{Error, Observer};

/// The workers of a training, and those of them that were lost while it runs: their tasks are gone.
pub(super) struct Workers {
    /// All of them.
    count: usize,
    /// The least number that the updates need.
    needed: usize,
    /// Whether the first one does what no other does: evaluations, and with `backup` the nodes `updates`.
    needs_first: bool,
    lost: Mutex<BTreeMap<usize, Failure>>,
    /// The number of those that were lost.
    changed: watch::Sender<usize>,
}

impl Workers {
    /// The workers of a training. `evaluates`: whether there are evaluations; `updates`: whether there are nodes `updates`.
    pub fn of(train: &TrainSection, evaluates: bool, updates: bool) -> Workers {
        let count = train.workers.max(1);
        let needs_first = evaluates || updates && train.backup > 0;
        let needed = match train.mode {
            UpdateMode::Async => 1,
            UpdateMode::Sync if train.backup > 0 => train.needed(),
            UpdateMode::Sync | UpdateMode::Mirrored => count,
        };
        Workers { count, needed, needs_first, lost: Mutex::default(), changed: watch::Sender::new(0) }
    }

    /// Records that this worker is lost, if `failure` is the loss of a task.
    ///
    /// # Errors
    /// The failure, if it is another one, or if the updates need the worker.
    pub fn without(&self, worker: usize, failure: Failure) -> Result<(), Failure> {
        if !is_loss(&failure) || worker == 0 && self.needs_first {
            return Err(failure);
        }
        let mut lost = lock(&self.lost);
        if self.count - lost.len() <= self.needed && !lost.contains_key(&worker) {
            return Err(failure);
        }
        lost.entry(worker).or_insert(failure);
        self.changed.send_replace(lost.len());
        Ok(())
    }

    /// The workers that are not lost, in ascending order.
    pub fn living(&self) -> Vec<usize> {
        let lost = lock(&self.lost);
        (0..self.count).filter(|worker| !lost.contains_key(worker)).collect()
    }

    /// The lost workers.
    pub fn lost(&self) -> Vec<usize> {
        lock(&self.lost).keys().copied().collect()
    }

    /// Receives the number of lost workers.
    pub fn losses(&self) -> watch::Receiver<usize> {
        self.changed.subscribe()
    }

    /// Reports the workers that were lost since `told` were reported.
    ///
    /// # Errors
    /// Those of the observer.
    pub fn report(&self, told: &mut Vec<usize>, observer: &mut dyn Observer) -> Result<(), Error> {
        let new: Vec<(usize, Failure)> = {
            let lost = lock(&self.lost);
            lost.iter().filter(|(worker, _)| !told.contains(worker)).map(|(&at, why)| (at, why.clone())).collect()
        };
        for (worker, failure) in new {
            told.push(worker);
            let left = self.count - told.len();
            observer.noted(&format!(
                "worker {worker} is lost: {}; the training continues with {left} of {} workers",
                failure.message, self.count
            ))?;
        }
        Ok(())
    }
}

/// Whether a run failed because a task is gone.
fn is_loss(failure: &Failure) -> bool {
    failure.code == Code::Unavailable || failure.reason == Some(Reason::TaskDown)
}

#[cfg(test)]
mod tests {
    use meshtf_train::{Optimizer, Training};

    use super::*;
    use crate::train::Sections;

    fn of(mode: UpdateMode, workers: usize, backup: usize) -> Workers {
        let mut train = Sections::new("loss", Training::new(Optimizer::Sgd, 0.1), 1).train;
        (train.mode, train.workers, train.backup) = (mode, workers, backup);
        Workers::of(&train, false, false)
    }

    #[test]
    fn as_many_may_be_lost_as_updates_do_not_need() {
        let check = |workers: Workers, spare: usize| {
            let gone = || Failure::new(Code::Unavailable, "task is gone");
            for worker in 0..spare {
                assert_eq!(workers.without(worker, gone()), Ok(()));
                assert_eq!(workers.without(worker, gone()), Ok(()), "the loss of one worker counts once");
            }
            assert_eq!(workers.without(spare, gone()), Err(gone()));
            assert_eq!(workers.lost(), (0..spare).collect::<Vec<_>>());
            assert_eq!(workers.living().first(), Some(&spare));
        };
        check(of(UpdateMode::Async, 3, 0), 2);
        check(of(UpdateMode::Sync, 3, 1), 1);
        check(of(UpdateMode::Sync, 3, 0), 0);
        check(of(UpdateMode::Mirrored, 2, 0), 0);
        check(of(UpdateMode::Async, 0, 0), 0);
    }

    #[test]
    fn the_first_worker_is_needed_for_its_own_work() {
        let gone = || Failure::new(Code::Unavailable, "task is gone");
        let mut train = Sections::new("loss", Training::new(Optimizer::Sgd, 0.1), 1).train;
        for (backup, evaluates, updates, is_needed) in [
            (1, false, false, false),
            (1, true, false, true),
            (1, false, true, true),
            (0, true, false, true),
            (0, false, true, false),
        ] {
            train.mode = if backup > 0 { UpdateMode::Sync } else { UpdateMode::Async };
            (train.workers, train.backup) = (3, backup);
            let workers = Workers::of(&train, evaluates, updates);
            assert_eq!(workers.without(0, gone()).is_err(), is_needed, "{backup} {evaluates} {updates}");
            assert_eq!(workers.without(1, gone()).is_err(), backup > 0 && !is_needed, "{backup} {evaluates} {updates}");
        }
    }

    #[test]
    fn other_failures_lose_no_worker() {
        let workers = of(UpdateMode::Async, 3, 0);
        let failure = Failure::invalid("Inf in the loss").in_step(4);
        assert_eq!(workers.without(1, failure.clone()), Err(failure));
        assert_eq!(workers.living(), [0, 1, 2]);
    }
}
