//! The output while a training runs.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use meshtf::trainer::{Error, Evaluated, Observed, Observer};
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::curves::Curves;
use super::log::Log;
use crate::cli::bar::bar;
use crate::cli::output::Lines;
use crate::cli::paint::{mention, warn};
use crate::cli::states::take_over;
use crate::cli::table::{number, per_second};
use crate::cli::trace;

/// The position of a training, and its rate.
pub(super) struct Progress {
    steps: u64,
    per_epoch: u64,
    /// The interval in steps of the printed lines.
    every: u64,
    json: bool,
    is_quiet: bool,
    /// The last lines about steps and evaluations, which are printed at the end if the others are not.
    last: [Option<String>; 2],
    bar: ProgressBar,
    /// The loss of the last evaluation.
    held_out: Option<f64>,
    /// When the first step began.
    pub began: Instant,
    pace: Pace,
    pub curves: Curves,
    log: Option<Log>,
    /// The file of a trace, and the report to print then.
    trace: Option<PathBuf>,
    pub traced: Option<String>,
    pub lines: Lines,
    /// The folder of its states, which may be those of a run on a node until it begins.
    pub folder: Option<PathBuf>,
    /// The last error of saving since a state was saved.
    pub unsaved: Option<String>,
    /// If the last state is written again and again: whether a signal had asked the training to end when that began.
    waits: Option<bool>,
    attempt: Arc<Attempt>,
    /// The time of the next reports, if they are those of another process.
    at: Option<Instant>,
}

/// The state of one attempt to train, for those that wait for its end.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// Whether the first step has begun.
    pub has_begun: AtomicBool,
    /// Whether a signal asks the training to end.
    pub is_asked: AtomicBool,
    /// Whether it follows the loss of a task.
    pub is_after_loss: bool,
}

/// The number of steps per second by the clock, evaluations and saving included. The steps of half a minute count, since several
/// are reported at once, and late.
struct Pace {
    /// The last reported step, and the time of the last report.
    last: (u64, Instant),
    steps: f64,
    seconds: f64,
}

impl Pace {
    /// Older steps count less.
    const SECONDS: f64 = 30.0;

    fn new(step: u64, now: Instant) -> Pace {
        Pace { last: (step, now), steps: 0.0, seconds: 0.0 }
    }

    /// A step is done; returns the rate.
    fn stepped(&mut self, step: u64, now: Instant) -> f64 {
        self.steps += step.saturating_sub(self.last.0) as f64;
        self.seconds += now.saturating_duration_since(self.last.1).as_secs_f64();
        self.last = (step, now);
        let rate = self.steps / self.seconds.max(1e-9);
        if self.seconds > Pace::SECONDS {
            (self.steps, self.seconds) = (self.steps / 2.0, self.seconds / 2.0);
        }
        rate
    }
}

/// The extent of a training, for a [`Progress`].
pub(super) struct Plan {
    /// The number of all steps.
    pub steps: u64,
    pub per_epoch: u64,
    pub every: u64,
    pub json: bool,
    /// Whether only the last lines are printed, and no notices.
    pub is_quiet: bool,
    /// Whether a bar is shown on stderr.
    pub is_live: bool,
}

impl Progress {
    /// A progress of the curves' names; the loss is the first.
    pub fn new(
        plan: Plan,
        curves: Curves,
        log: Option<Log>,
        trace: Option<PathBuf>,
        attempt: Arc<Attempt>,
    ) -> Progress {
        let Plan { steps, per_epoch, every, json, is_quiet, is_live } = plan;
        let bar = bar(steps, is_live, "{msg}");
        let now = Instant::now();
        let pace = Pace::new(0, now);
        Progress {
            steps,
            per_epoch,
            every,
            json,
            is_quiet,
            last: [None, None],
            bar,
            held_out: None,
            began: now,
            pace,
            curves,
            log,
            trace,
            traced: None,
            lines: Lines::default(),
            folder: None,
            unsaved: None,
            waits: None,
            attempt,
            at: None,
        }
    }

    /// The next reports are those of another process, and were made at this time.
    pub fn at(&mut self, time: Instant) {
        self.at = Some(time);
    }

    fn now(&self) -> Instant {
        self.at.unwrap_or_else(Instant::now)
    }

    /// Prints something above the bar.
    pub fn beside(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// A step is done; `values` are the loss and the metrics.
    fn report(&mut self, step: u64, values: &[f64]) {
        self.curves.trained.add(step, values);
        let epoch = step.saturating_sub(1) / self.per_epoch + 1;
        let rate = self.pace.stepped(step, self.now());
        let names = self.curves.trained.names.iter().map(String::as_str);
        let named: Vec<(&str, f64)> = names.zip(values.iter().copied()).collect();
        let line = json!({ "step": step, "epoch": epoch, "values": object(&named), "steps_per_s": rate });
        if let Some(log) = &mut self.log {
            block_in_place(|| log.numbers(step, "", &named, &line));
        }
        let left = self.steps.saturating_sub(step) as f64 / rate.max(1e-9);
        let left = if left >= 1.0 { format!("  {} left", duration(left)) } else { String::new() };
        let told = format!("epoch {epoch}{}  {} steps/s{left}", values_of(&named), per_second(rate));
        let of_step = || match self.json {
            true => line.to_string(),
            false => format!("step {step}/{}  {told}", self.steps),
        };
        if self.is_quiet {
            self.last[0] = Some(of_step());
            return;
        }
        let held_out = self.held_out.map_or_else(String::new, |loss| format!("  held out {}", number(loss)));
        self.bar.set_position(step);
        self.bar.set_message(format!("{told}{held_out}"));
        if !step.is_multiple_of(self.every) && step < self.steps {
            return;
        }
        let line = of_step();
        self.show(&line);
    }

    /// Prints a line above the bar.
    fn show(&mut self, line: &str) {
        self.bar.suspend(|| self.lines.line(line));
    }

    /// Prints the last lines that were held back.
    fn show_last(&mut self) {
        let last = std::mem::take(&mut self.last);
        last.into_iter().flatten().for_each(|line| self.show(&line));
    }

    /// Reports the evaluation of the held-out examples after a step.
    fn found(&mut self, step: u64, evaluated: &Evaluated) {
        self.curves.held_out.add(step, &evaluated.means);
        let names = self.curves.held_out.names.iter().map(String::as_str);
        let named: Vec<(&str, f64)> = names.zip(evaluated.means.iter().copied()).collect();
        let mut line = json!({ "step": step, "evaluated": object(&named) });
        if let Some(confusion) = &evaluated.confusion {
            line["confusion"] = json!(confusion.rows());
            if !confusion.names().is_empty() {
                line["classes"] = json!(confusion.names());
            }
        }
        if let Some(log) = &mut self.log {
            block_in_place(|| log.numbers(step, "held_out/", &named, &line));
        }
        self.held_out = evaluated.means.first().copied();
        let line = match self.json {
            true => line.to_string(),
            false => format!("step {step}/{}  held out:{}", self.steps, values_of(&named)),
        };
        match self.is_quiet {
            true => self.last[1] = Some(line),
            false => self.show(&line),
        }
    }

    /// Prints the lines that were held back, and reports the records that the log lacks.
    pub fn end(&mut self) {
        self.bar.finish_and_clear();
        self.show_last();
        self.log.iter().for_each(Log::end);
    }
}

/// Output that ends, and a log that cannot be written, do not end the training.
impl Observer for Progress {
    fn begins(&mut self, start: u64) -> Observed {
        self.attempt.has_begun.store(true, Ordering::Relaxed);
        if let Some(folder) = self.folder.take()
            && let Some(run) = take_over(&folder).map_err(|trouble| trouble.to_string())?
        {
            let folder = folder.display();
            self.noted(&format!(
                "{folder} was the folder of run {run}, and is that of this training from now on: `meshtf attach {run}` brings states to \
                 another one"
            ))?;
        }
        self.began = self.now();
        self.pace = Pace::new(start, self.began);
        Ok(())
    }

    fn noted(&mut self, text: &str) -> Observed {
        if !self.is_quiet {
            self.bar.suspend(|| eprintln!("{text}"));
        }
        Ok(())
    }

    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        self.report(step, values);
        Ok(())
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        self.found(step, evaluated);
        Ok(())
    }

    /// The last confusion, for a person.
    fn evaluated_last(&mut self, evaluated: &Evaluated) -> Observed {
        if let (Some(confusion), false) = (&evaluated.confusion, self.json) {
            self.show_last();
            self.show(&confusion.to_string());
        }
        Ok(())
    }

    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        match &mut self.log {
            Some(log) => Ok(block_in_place(|| log.weights(step, weights))?),
            None => Ok(()),
        }
    }

    fn saved(&mut self, step: u64, _: &Path) -> Observed {
        if self.unsaved.take().is_some() {
            self.bar.suspend(|| mention(format_args!("the state after step {step} is saved")));
        }
        Ok(())
    }

    /// Continues, and waits for room at the end, if a person sees it.
    fn save_failed(&mut self, step: u64, error: &Error, is_last: bool) -> bool {
        let is_asked = self.attempt.is_asked.load(Ordering::Relaxed);
        // One warning until a state is saved, whichever file is meant.
        let is_new = self.unsaved.replace(error.to_string()).is_none();
        if !is_last {
            if is_new {
                let told =
                    format!("{error}, after step {step}; the training continues, and saves again when it is due");
                self.bar.suspend(|| warn(told));
            }
            return true;
        }
        if !std::io::stderr().is_terminal() {
            return false;
        }
        match self.waits {
            // A signal ends the wait that began before it.
            Some(was_asked) => was_asked || !is_asked,
            None => {
                self.waits = Some(is_asked);
                self.bar.finish_and_clear();
                warn(format_args!(
                    "{error}: the training is over, and waits until its state after step {step} can be written; Ctrl-C gives up"
                ));
                true
            }
        }
    }

    fn traced(&mut self, first: u64, steps: u64, traces: Vec<DeviceTrace>) -> Observed {
        if let Some(path) = &self.trace {
            match block_in_place(|| trace::write(path, steps, &traces)) {
                Ok(report) => self.traced = Some(format!("steps {first} to {}: {report}", first + steps - 1)),
                Err(trouble) => warn(trouble),
            }
        }
        Ok(())
    }

    /// The training ends before its last step: the watched value does not improve any more.
    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        let line = match self.json {
            true => json!({ "step": step, "stopped": { "best": best, "step": at } }).to_string(),
            false => {
                let steps = self.steps;
                let best = number(best);
                format!("step {step}/{steps}  ended: {of} has not improved on {best}, the value after step {at}")
            }
        };
        self.show_last();
        self.show(&line);
        Ok(())
    }
}

fn object(named: &[(&str, f64)]) -> Value {
    Value::Object(named.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect())
}

/// `  loss 0.12345  accuracy 0.9`.
fn values_of(named: &[(&str, f64)]) -> String {
    named.iter().map(|(name, value)| format!("  {name} {}", number(*value))).collect()
}

/// Seconds as a person reads them.
pub(super) fn duration(seconds: f64) -> String {
    let Ok(time) = Duration::try_from_secs_f64(seconds) else { return "long".to_owned() };
    match time.as_secs() {
        0..100 => format!("{} s", time.as_secs()),
        100..6000 => format!("{} min", time.as_secs() / 60),
        more => format!("{} h", more / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_half_minute_by_the_clock() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let mut pace = Pace::new(100, begin);
        // Two lines at once are of steps that took a second together.
        assert_eq!(pace.stepped(110, at(1.0)), 10.0);
        assert_eq!(pace.stepped(120, at(1.0)), 20.0);
        // An evaluation takes time, too.
        assert_eq!(pace.stepped(140, at(10.0)), 4.0);
        // Slower steps are seen in the rate.
        let rates = [100.0, 200.0, 300.0].map(|later| pace.stepped(140 + later as u64, at(10.0 + later)));
        assert!(rates.is_sorted_by(|a, b| a > b) && rates[2] < 1.2, "{rates:?}");
    }
}
