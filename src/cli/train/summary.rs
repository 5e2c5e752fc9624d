//! The cost of a training: time, rates, and the busy time of each device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshtf::Client;
use meshtf::trainer::{Size, Trainer};
use meshtf_tensor::failure::counted;
use meshtf_train::file::UpdateMode;
use serde_json::json;

use super::Command;
use crate::cli::output::Lines;
use crate::cli::reach::Reached;
use crate::cli::table::per_second;

/// The microseconds for which each device has been busy.
type Devices = BTreeMap<String, u64>;

/// The state when the training began.
pub(super) struct Usage {
    devices: Devices,
}

impl Usage {
    pub async fn begin(trainer: &Trainer, reached: &Reached) -> Usage {
        Usage { devices: devices(trainer, reached).await }
    }

    /// Prints the cost of `steps` steps, the first of which began at `began`.
    pub async fn print(self, command: &Command, reached: &Reached, steps: u64, began: Instant, lines: &mut Lines) {
        let took = began.elapsed();
        let rate = steps as f64 / took.as_secs_f64().max(1e-9);
        let sections = command.trainer.sections();
        let batch = match sections.train.mode {
            // Each worker takes one in a step.
            UpdateMode::Local => sections.data.batch * sections.train.workers,
            _ => sections.data.batch,
        };
        let examples = rate * batch as f64;
        let now = devices(&command.trainer, reached).await;
        let share = |(name, busy): (String, u64)| {
            let own = Duration::from_micros(busy.saturating_sub(self.devices.get(&name).copied().unwrap_or_default()));
            (name, own.as_secs_f64() / took.as_secs_f64().max(1e-9))
        };
        let shares: Vec<(String, f64)> = now.into_iter().map(share).filter(|(_, share)| *share > 0.0).collect();
        if command.args.json {
            let devices: Vec<_> = shares.iter().map(|(name, busy)| json!({ "device": name, "busy": busy })).collect();
            let summary = json!({ "steps": steps, "seconds": took.as_secs_f64(), "steps_per_s": rate, "examples_per_s": examples,
                "devices": devices });
            return lines.line(&json!({ "summary": summary }).to_string());
        }
        if command.args.quiet {
            return;
        }
        let (rate, examples) = (per_second(rate), per_second(examples));
        eprintln!("{steps} steps in {:.1} s: {rate} steps/s, {examples} examples/s", took.as_secs_f64());
        for (name, busy) in shares {
            eprintln!("  {name} was busy {:.0} % of the time", 100.0 * busy.min(1.0));
        }
    }
}

/// The size of a training, before its first step: `1234 parameters, 800 examples and 200 held out, 300 steps`.
pub(super) fn size(trainer: &Trainer) -> String {
    let Size { parameters, examples, held_out } = trainer.size();
    let held_out = if held_out > 0 { format!(" and {held_out} held out") } else { String::new() };
    let (steps, per_epoch) = (trainer.steps(), trainer.steps_per_epoch());
    let epochs = if steps > per_epoch { format!(", {per_epoch} an epoch") } else { String::new() };
    let counted = |count: u64, noun: &str| counted(usize::try_from(count).unwrap_or(usize::MAX), noun);
    format!(
        "{}, {}{held_out}, {}{epochs}",
        counted(parameters, "parameter"),
        counted(examples as u64, "example"),
        counted(steps, "step")
    )
}

/// The busy time of the devices so far; without those of tasks that do not answer.
async fn devices(trainer: &Trainer, reached: &Reached) -> Devices {
    let tasks = trainer.tasks();
    let asked: Vec<_> = if tasks.is_empty() { vec![None] } else { tasks.iter().map(Some).collect() };
    let statuses = futures::future::join_all(asked.into_iter().map(|task| reached.status(task))).await;
    let devices = statuses.into_iter().flatten().flat_map(|status| status.devices.items);
    devices.map(|device| (device.name.to_string(), device.busy_us)).collect()
}
