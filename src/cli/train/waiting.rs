//! Waiting for the tasks of a training that are not up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshtf::node::Node;
use meshtf_tensor::device::Task;

use super::progress::duration;
use super::{Args, Files};
use crate::cli::paint::mention;
use crate::cli::signals::{Request, Signals};
use crate::cli::{Outcome, Trouble};

/// The interval of the checks whether the tasks are up, and the least delay before an attempt.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A wait, which several attempts to train may interrupt.
pub(super) struct Waiting {
    since: Instant,
    clock: SystemTime,
    is_announced: bool,
    /// How often the tasks were up, and the attempt failed nevertheless.
    in_vain: u32,
    signals: Signals,
}

impl Waiting {
    /// A wait that begins now.
    pub fn begin() -> Result<Waiting, Trouble> {
        let (since, clock, signals) = (Instant::now(), SystemTime::now(), Signals::listen()?);
        Ok(Waiting { since, clock, is_announced: false, in_vain: 0, signals })
    }

    /// Whether the tasks have been up more than once since it began: at first, a lost task may still be thought to be up.
    pub fn is_over(&self) -> bool {
        self.in_vain > 1
    }

    /// Ends an attempt by a signal that arrives while `is_mine`.
    pub async fn within(&mut self, attempt: impl Future<Output = Outcome>, is_mine: impl Fn() -> bool) -> Outcome {
        tokio::pin!(attempt);
        loop {
            tokio::select! {
                outcome = &mut attempt => return outcome,
                request = self.signals.next() => if is_mine() {
                    return Err(stopped(request));
                },
            }
        }
    }

    /// Waits until all tasks of the training are up, for as long as --wait-for allows.
    pub async fn wait(&mut self, args: &Args) -> Result<(), Trouble> {
        let tasks = Files::read(args)?.tasks();
        self.in_vain += 1;
        let Waiting { since, clock, is_announced, signals, .. } = self;
        tokio::select! {
            waited = look(args, &tasks, *since, *clock, is_announced) => waited,
            request = signals.next() => Err(stopped(request)),
        }
    }
}

fn stopped(Request { exit, signal }: Request) -> Trouble {
    Trouble::new(exit, format!("stopped by {signal} while the tasks were not up"))
}

/// Returns when all tasks are up.
async fn look(
    args: &Args,
    tasks: &[Task],
    since: Instant,
    clock: SystemTime,
    is_announced: &mut bool,
) -> Result<(), Trouble> {
    let node = Node::start(args.host.mesh.client()).await?;
    let outcome = loop {
        // Not at once: a task that was lost may still be thought to be up.
        tokio::time::sleep(LOOK_AGAIN).await;
        let missing: Vec<String> = tasks.iter().filter(|task| !node.is_up(task)).map(Task::short).collect();
        let missing = missing.join(", ");
        if let Some(limit) = args.wait_for.filter(|limit| since.elapsed() >= *limit) {
            let limit = duration(limit.as_secs_f64());
            break Err(Trouble::mesh(match missing.is_empty() {
                true => format!("no attempt succeeded within {limit} (--wait-for)"),
                false => format!("{missing} did not come up within {limit} (--wait-for)"),
            }));
        }
        if missing.is_empty() {
            break Ok(());
        }
        if !std::mem::replace(is_announced, true) {
            mention(format_args!("waiting for {missing} since {}", time_of_day(clock)));
        }
    };
    node.close().await;
    outcome
}

/// `18:20:03Z`.
fn time_of_day(clock: SystemTime) -> String {
    let seconds = clock.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
