//! What is printed while a training runs.

use std::time::{Duration, Instant};

use serde_json::{Map, json};

use crate::cli::{Trouble, output};
use crate::failure::Failure;
use crate::tensor::{Data, Tensor};

/// Where a training is, and how fast.
pub(super) struct Progress {
    steps: u64,
    per_epoch: u64,
    names: Vec<String>,
    json: bool,
    /// The last report: the step, and when.
    last: (u64, Instant),
}

impl Progress {
    /// Of so many steps in all, from `start` on.
    pub fn new(steps: u64, start: u64, per_epoch: u64, names: Vec<String>, json: bool) -> Progress {
        Progress { steps, per_epoch, names, json, last: (start, Instant::now()) }
    }

    /// A step is done; `values` are the loss and the metrics.
    pub fn report(&mut self, step: u64, values: &[Tensor]) -> Result<(), Trouble> {
        let (before, since) = std::mem::replace(&mut self.last, (step, Instant::now()));
        let rate = step.saturating_sub(before) as f64 / since.elapsed().as_secs_f64().max(1e-9);
        let left = self.steps.saturating_sub(step) as f64 / rate.max(1e-9);
        let epoch = step.saturating_sub(1) / self.per_epoch + 1;
        let values = values.iter().map(number).collect::<Result<Vec<f64>, Trouble>>()?;
        if self.json {
            let named: Map<_, _> =
                self.names.iter().cloned().zip(values.into_iter().map(|value| json!(value))).collect();
            return output::line(
                &json!({ "step": step, "epoch": epoch, "values": named, "steps_per_s": rate }).to_string(),
            );
        }
        let named: String = self.names.iter().zip(values).map(|(name, value)| format!("  {name} {value:.5}")).collect();
        output::line(&format!(
            "step {step}/{}  epoch {epoch}{named}  {rate:.0} steps/s  {} left",
            self.steps,
            time(left)
        ))
    }

    /// The means over the examples that are held out, after a step.
    pub fn evaluated(&mut self, step: u64, means: &[(&str, f64)]) -> Result<(), Trouble> {
        // What evaluating takes is no step's.
        self.last = (self.last.0.max(step), Instant::now());
        if self.json {
            let named: Map<_, _> = means.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            return output::line(&json!({ "step": step, "evaluated": named }).to_string());
        }
        let named: String = means.iter().map(|(name, value)| format!("  {name} {value:.5}")).collect();
        output::line(&format!("step {step}/{}  held out:{named}", self.steps))
    }
}

/// Seconds as a person reads them.
fn time(seconds: f64) -> String {
    let Ok(time) = Duration::try_from_secs_f64(seconds) else { return "long".to_owned() };
    match time.as_secs() {
        0..100 => format!("{} s", time.as_secs()),
        100..6000 => format!("{} min", time.as_secs() / 60),
        more => format!("{} h", more / 3600),
    }
}

/// A scalar as a number.
pub(super) fn number(tensor: &Tensor) -> Result<f64, Trouble> {
    match tensor.data() {
        Data::F32(values) if values.len() == 1 => Ok(values[0].into()),
        Data::F64(values) if values.len() == 1 => Ok(values[0]),
        _ if tensor.len() == 1 && tensor.dtype().is_integer() => Ok(tensor.to_i64()? as f64),
        _ => Err(Failure::invalid(format!("a metric is {}{}, and no number", tensor.dtype(), tensor.shape())).into()),
    }
}
