//! The tasks that a training needs to begin, and those that it has no use for.

use std::collections::BTreeSet;
use std::time::Duration;

use meshtf_tensor::device::Task;
use meshtf_train::file::TrainSection;

/// The job of the workers.
const WORKER: &str = "worker";
/// The interval of the looks for additional workers.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The tasks of a training: all of the `others`, and at least some of the workers.
#[derive(Debug)]
pub(super) struct Needed {
    others: Vec<Task>,
    workers: Vec<Task>,
    least: usize,
}

impl Needed {
    /// Those of a training whose graph names `tasks`. After the loss of a task, it continues with fewer workers than it began
    /// with, if no update needs all of them.
    pub fn of(train: &TrainSection, tasks: Vec<Task>, is_after_loss: bool) -> Needed {
        let of = |job: &str, count: usize| (0..count).map(|i| Task::new(job, i as u32)).collect::<Vec<_>>();
        let workers = of(WORKER, train.workers);
        let mut others = [tasks, of("ps", train.ps)].concat();
        others.retain(|task| !workers.contains(task));
        others.sort_unstable();
        others.dedup();
        let least = match train.fewest {
            Some(fewest) => fewest,
            None if is_after_loss => train.least(),
            None => train.workers,
        };
        Needed { others, workers, least: least.min(train.workers) }
    }

    /// All tasks that may take part.
    pub fn tasks(&self) -> Vec<Task> {
        [&self.others[..], &self.workers].concat()
    }

    /// Whether fewer workers are up than it needs.
    pub fn lacks_workers(&self, is_up: impl Fn(&Task) -> bool) -> bool {
        self.workers.iter().filter(|task| is_up(task)).count() < self.least
    }

    /// The names of the tasks without which it cannot begin.
    pub fn missing(&self, is_up: impl Fn(&Task) -> bool) -> BTreeSet<String> {
        let workers = self.workers.iter().filter(|_| self.lacks_workers(&is_up));
        self.others.iter().chain(workers).filter(|task| !is_up(task)).map(Task::short).collect()
    }

    /// A phrase for those: `ps/0, worker/1`, or `1 of worker/0, worker/1` if not all of the workers are needed.
    pub fn phrase(&self, is_up: impl Fn(&Task) -> bool) -> String {
        let missing = self.missing(&is_up);
        let up = self.workers.iter().filter(|task| is_up(task)).count();
        let short = self.least.saturating_sub(up);
        let names = |of: &[Task]| {
            let names = of.iter().map(Task::short).filter(|name| missing.contains(name));
            names.collect::<Vec<_>>().join(", ")
        };
        let (others, workers) = (names(&self.others), names(&self.workers));
        let workers = match short {
            0 => String::new(),
            short if short == self.workers.len() - up => workers,
            short => format!("{short} of {workers}"),
        };
        [others, workers].into_iter().filter(|names| !names.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

/// Waits for a node that is a worker, and of which the training has no use. Returns a sentence about it.
pub(super) async fn additional(train: &TrainSection, tasks: impl Fn() -> Vec<Task>) -> String {
    loop {
        let extra = |task: &Task| train.workers > 0 && task.job == WORKER && task.index as usize >= train.workers;
        let extra: Vec<String> = tasks().iter().filter(|task| extra(task)).map(Task::short).collect();
        if !extra.is_empty() {
            let names = extra.join(", ");
            let (are, take) = if extra.len() == 1 { ("is", "takes") } else { ("are", "take") };
            let workers = match train.fewest {
                None => format!("{}; {{\"min\": …, \"max\": …}} takes in whoever comes", train.workers),
                Some(_) => format!("at most {}", train.workers),
            };
            return format!("{names} {are} up and {take} no part: \"workers\" is {workers}");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use meshtf_train::file::UpdateMode;
    use meshtf_train::{Optimizer, Training};

    use super::*;

    fn section(mode: UpdateMode, backup: usize, fewest: Option<usize>) -> TrainSection {
        let section = TrainSection::new("loss", Training::new(Optimizer::Sgd, 0.1));
        TrainSection { workers: 3, ps: 1, mode, backup, fewest, ..section }
    }

    #[test]
    fn a_training_needs_all_tasks_at_first_and_then_as_many_as_its_updates() {
        for (mode, backup, fewest, is_after_loss, up, wanted) in [
            (UpdateMode::Sync, 0, None, false, "ps/0 worker/0 worker/1 worker/2", ""),
            (UpdateMode::Sync, 0, None, true, "ps/0 worker/0 worker/2", "worker/1"),
            (UpdateMode::Async, 0, None, false, "worker/0 worker/2", "ps/0, worker/1"),
            (UpdateMode::Async, 0, None, true, "ps/0 worker/2", ""),
            (UpdateMode::Async, 0, None, true, "", "ps/0, 1 of worker/0, worker/1, worker/2"),
            (UpdateMode::Sync, 1, None, true, "ps/0 worker/2", "1 of worker/0, worker/1"),
            (UpdateMode::Sync, 1, None, false, "ps/0 worker/2", "worker/0, worker/1"),
            (UpdateMode::Async, 0, Some(2), false, "ps/0 worker/2", "1 of worker/0, worker/1"),
            (UpdateMode::Async, 0, Some(2), true, "ps/0 worker/2 worker/1", ""),
            (UpdateMode::Mirrored, 0, Some(1), false, "ps/0 worker/2", ""),
        ] {
            let needed = Needed::of(&section(mode, backup, fewest), Vec::new(), is_after_loss);
            let is_up = |task: &Task| up.split(' ').any(|name| name == task.short());
            assert_eq!(needed.phrase(is_up), wanted, "{mode:?} {backup} {fewest:?} {is_after_loss} {up}");
            assert_eq!(needed.missing(is_up).is_empty(), wanted.is_empty());
        }
    }

    #[tokio::test]
    async fn a_worker_beyond_the_number_is_named() {
        let tasks = || [("ps", 7), ("worker", 2), ("worker", 3), ("local", 9)].map(|(job, i)| Task::new(job, i)).into();
        let told = additional(&section(UpdateMode::Sync, 0, None), tasks).await;
        let wanted =
            "worker/3 is up and takes no part: \"workers\" is 3; {\"min\": …, \"max\": …} takes in whoever comes";
        assert_eq!(told, wanted);
        let told = additional(&section(UpdateMode::Async, 0, Some(1)), tasks).await;
        assert_eq!(told, "worker/3 is up and takes no part: \"workers\" is at most 3");
    }
}
