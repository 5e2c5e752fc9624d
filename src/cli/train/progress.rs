//! What is printed while a training runs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::curves::Curves;
use super::evaluation::{Evaluated, Watch};
use super::log::Log;
use crate::cli::{Trouble, output};
use crate::failure::Failure;
use crate::tensor::{Data, Tensor};

/// Where a training is, and how fast.
pub(super) struct Progress {
    steps: u64,
    per_epoch: u64,
    /// After how many steps a line is printed.
    every: u64,
    json: bool,
    /// The last line: the step, and when.
    last: (u64, Instant),
    pub curves: Curves,
    pub log: Option<Log>,
}

/// What a [`Progress`] is of.
pub(super) struct Plan {
    /// The steps in all, and those that are done.
    pub steps: u64,
    pub start: u64,
    pub per_epoch: u64,
    pub every: u64,
    pub json: bool,
}

impl Progress {
    /// Of the curves' names; the loss is the first.
    pub fn new(plan: Plan, curves: Curves, log: Option<Log>) -> Progress {
        let Plan { steps, start, per_epoch, every, json } = plan;
        Progress { steps, per_epoch, every, json, last: (start, Instant::now()), curves, log }
    }

    /// A step is done; `values` are the loss and the metrics.
    pub fn report(&mut self, step: u64, values: &[Tensor]) -> Result<(), Trouble> {
        let values = values.iter().map(number).collect::<Result<Vec<f64>, Trouble>>()?;
        self.curves.trained.add(step, &values);
        let epoch = step.saturating_sub(1) / self.per_epoch + 1;
        let (before, since) = self.last;
        let rate = step.saturating_sub(before) as f64 / since.elapsed().as_secs_f64().max(1e-9);
        let names = self.curves.trained.names.iter().map(String::as_str);
        let named: Vec<(&str, f64)> = names.zip(values).collect();
        let line = json!({ "step": step, "epoch": epoch, "values": object(&named), "steps_per_s": rate });
        if let Some(log) = &mut self.log {
            log.numbers(step, "", &named, &line)?;
        }
        if !step.is_multiple_of(self.every) && step < self.steps {
            return Ok(());
        }
        self.last = (step, Instant::now());
        if self.json {
            return output::line(&line.to_string());
        }
        let left = self.steps.saturating_sub(step) as f64 / rate.max(1e-9);
        let named: String = named.iter().map(|(name, value)| format!("  {name} {value:.5}")).collect();
        output::line(&format!(
            "step {step}/{}  epoch {epoch}{named}  {rate:.0} steps/s  {} left",
            self.steps,
            time(left)
        ))
    }

    /// What was found on the examples that are held out, after a step.
    pub fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Result<(), Trouble> {
        // What evaluating takes is no step's.
        self.last = (self.last.0.max(step), Instant::now());
        self.curves.held_out.add(step, &evaluated.means);
        let names = self.curves.held_out.names.iter().map(String::as_str);
        let named: Vec<(&str, f64)> = names.zip(evaluated.means.iter().copied()).collect();
        let mut line = json!({ "step": step, "evaluated": object(&named) });
        if let Some(confusion) = &evaluated.confusion {
            line["confusion"] = confusion.to_json();
        }
        if let Some(log) = &mut self.log {
            log.numbers(step, "held_out/", &named, &line)?;
        }
        if self.json {
            return output::line(&line.to_string());
        }
        let named: String = named.iter().map(|(name, value)| format!("  {name} {value:.5}")).collect();
        output::line(&format!("step {step}/{}  held out:{named}", self.steps))
    }

    /// The last confusion, for a person.
    pub fn confused(&self, evaluated: &Evaluated) -> Result<(), Trouble> {
        match &evaluated.confusion {
            Some(confusion) if !self.json => output::line(&confusion.to_text()),
            _ => Ok(()),
        }
    }

    /// The training ends before its last step: nothing becomes better any more.
    pub fn stopped(&self, step: u64, watch: &Watch) -> Result<(), Trouble> {
        let (best, at) = watch.best.unwrap_or((f64::NAN, step));
        match self.json {
            true => output::line(&json!({ "step": step, "stopped": { "best": best, "step": at } }).to_string()),
            false => output::line(&format!(
                "step {step}/{}  ended: {} has not become better than {best:.5}, after step {at}",
                self.steps, watch.name
            )),
        }
    }
}

fn object(named: &[(&str, f64)]) -> Value {
    Value::Object(named.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect())
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
