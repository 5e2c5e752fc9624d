//! Waiting for the tasks of a training that are not up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use meshtf::node::Node;
use meshtf_tensor::device::Task;

use super::needed::Needed;
use super::progress::duration;
use super::{Args, Files};
use crate::cli::paint::mention;
use crate::cli::signals::{Request, Signals};
use crate::cli::{Outcome, Trouble};

/// The interval of the checks whether the tasks are up, and the least delay before an attempt.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An attempt that was shorter than this ended too soon to count on the tasks.
const SHORT: Duration = Duration::from_secs(10);
/// The greatest delay before an attempt.
const LONGEST: Duration = Duration::from_secs(60);

/// The delay before an attempt after so many short ones: it doubles with each.
pub(super) fn delay_after(short: u32) -> Duration {
    LOOK_AGAIN.saturating_mul(1 << short.min(10)).min(LONGEST)
}

/// The number of short attempts in a row, after one that took this long.
pub(super) fn short_ones(before: u32, took: Duration) -> u32 {
    if took < SHORT { before.saturating_add(1) } else { 0 }
}

/// A wait, which several attempts to train may interrupt.
pub(super) struct Waiting {
    since: Instant,
    clock: SystemTime,
    is_announced: bool,
    /// How often the tasks were up, and the attempt failed nevertheless.
    in_vain: u32,
    /// Whether it follows the loss of a task.
    is_after_loss: bool,
    /// The delay before the first attempt.
    delay: Duration,
    signals: Signals,
}

impl Waiting {
    /// A wait that begins now, at the start.
    pub fn begin() -> Result<Waiting, Trouble> {
        let (since, clock, signals) = (Instant::now(), SystemTime::now(), Signals::listen()?);
        let (is_after_loss, delay) = (false, LOOK_AGAIN);
        Ok(Waiting { since, clock, is_announced: false, in_vain: 0, is_after_loss, delay, signals })
    }

    /// A wait after the loss of a task, that begins now, and takes at least as long as `delay`.
    pub fn after_loss(delay: Duration) -> Result<Waiting, Trouble> {
        Ok(Waiting { is_after_loss: true, delay, ..Waiting::begin()? })
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
        let needed = Files::read(args)?.needed(self.is_after_loss);
        self.in_vain += 1;
        let delay = std::mem::replace(&mut self.delay, LOOK_AGAIN);
        let Waiting { since, clock, is_announced, signals, .. } = self;
        tokio::select! {
            waited = look(args, &needed, *since, *clock, (delay, is_announced)) => waited,
            request = signals.next() => Err(stopped(request)),
        }
    }
}

fn stopped(Request { exit, signal }: Request) -> Trouble {
    Trouble::new(exit, format!("stopped by {signal} while the tasks were not up"))
}

/// Returns when the tasks are up, after a delay.
async fn look(
    args: &Args,
    needed: &Needed,
    since: Instant,
    clock: SystemTime,
    (mut delay, is_announced): (Duration, &mut bool),
) -> Result<(), Trouble> {
    let node = Node::start(args.host.mesh.client()).await?;
    let outcome = loop {
        // Not at once: a task that was lost may still be thought to be up.
        let left = args.wait_for.map_or(delay, |limit| limit.saturating_sub(since.elapsed()));
        tokio::time::sleep(delay.min(left)).await;
        delay = LOOK_AGAIN;
        let missing = needed.phrase(|task: &Task| node.is_up(task));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_end_soon_are_further_apart() {
        let (mut short, mut delays) = (0, Vec::new());
        for took in [30, 1, 2, 3, 4, 5, 6, 7, 30, 1] {
            delays.push(delay_after(short).as_secs());
            short = short_ones(short, Duration::from_secs(took));
        }
        assert_eq!(delays, [1, 1, 2, 4, 8, 16, 32, 60, 60, 1]);
    }
}
