//! Waiting for the tasks of a training that are not up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshtf_tensor::device::Task;

use super::progress::duration;
use super::{Args, Files};
use crate::cli::Trouble;
use crate::cli::paint::mention;
use crate::cli::signals::interrupted;
use crate::node::Node;

/// The interval of the checks whether the tasks are up, and the least delay before an attempt.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A wait, which several attempts to train may interrupt.
pub(super) struct Waiting {
    since: Instant,
    clock: SystemTime,
    is_announced: bool,
}

impl Waiting {
    /// A wait that begins now.
    pub fn begin() -> Waiting {
        Waiting { since: Instant::now(), clock: SystemTime::now(), is_announced: false }
    }

    /// Waits until all tasks of the training are up, for as long as --wait-for allows.
    pub async fn wait(&mut self, args: &Args) -> Result<(), Trouble> {
        let tasks = Files::read(args)?.tasks();
        tokio::select! {
            waited = self.look(args, &tasks) => waited,
            trouble = interrupted() => Err(trouble),
        }
    }

    async fn look(&mut self, args: &Args, tasks: &[Task]) -> Result<(), Trouble> {
        let node = Node::start(args.mesh.client()).await?;
        let outcome = loop {
            // Not at once: a task that was lost may still be thought to be up.
            tokio::time::sleep(LOOK_AGAIN).await;
            let missing: Vec<String> = tasks.iter().filter(|task| !node.is_up(task)).map(Task::short).collect();
            if missing.is_empty() {
                break Ok(());
            }
            let missing = missing.join(", ");
            if let Some(limit) = args.wait_for.filter(|limit| self.since.elapsed() >= *limit) {
                let limit = duration(limit.as_secs_f64());
                break Err(Trouble::mesh(format!("{missing} did not come up within {limit} (--wait-for)")));
            }
            if !std::mem::replace(&mut self.is_announced, true) {
                mention(format_args!("waiting for {missing} since {}", time_of_day(self.clock)));
            }
        };
        node.close().await;
        outcome
    }
}

/// `18:20:03Z`.
fn time_of_day(clock: SystemTime) -> String {
    let seconds = clock.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
