//! A training that a node makes by itself, as its followers see it: the lines are those that it would print here.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf::protocol::detached::{DetachedStatus, LineKind};
use meshtf::protocol::training::TrainingInfo;
use meshtf::trainer::{Confusion, Evaluated, Observer};
use meshtf_tensor::Tensor;
use serde_json::json;

use super::curves::{Curve, Curves};
use super::progress::{Plan, Progress};
use crate::cli::Trouble;
use crate::cli::output::Lines;
use crate::cli::table::per_second;

/// Prints the reports of a training.
pub(in crate::cli) struct Attached {
    progress: Progress,
    json: bool,
    is_quiet: bool,
    batch: u64,
    /// When it began, by the clock of this process.
    base: Instant,
    /// The steps that were done before the first, and the time of that.
    start: Option<(u64, u64)>,
    /// The last step whose values were printed, and its time; and the last that was evaluated.
    trained: (u64, u64),
    evaluated: u64,
    /// The last evaluation.
    last: Option<Evaluated>,
}

impl Attached {
    pub fn new(status: &DetachedStatus, info: &TrainingInfo, json: bool, is_quiet: bool) -> Attached {
        let TrainingInfo { per_epoch, report, batch, names, held_out } = info.clone();
        let is_live = !json && !is_quiet && std::io::stderr().is_terminal() && !status.state.is_over();
        let plan =
            Plan { steps: status.of, per_epoch: per_epoch.max(1), every: report.max(1), json, is_quiet, is_live };
        let curves = Curves { trained: Curve::new(names), held_out: Curve::new(held_out) };
        let mut progress = Progress::new(plan, curves, None, None, Arc::default());
        let now = Instant::now();
        let base = now.checked_sub(Duration::from_millis(status.age_ms)).unwrap_or(now);
        // Until the line that says when it began, which may not be kept any more: since its launch.
        progress.at(base);
        let _begun = progress.begins(0);
        let (start, trained, evaluated, last) = (None, (0, 0), 0, None);
        Attached { progress, json, is_quiet, batch, base, start, trained, evaluated, last }
    }

    /// The output, which may have ended.
    pub fn lines(&mut self) -> &mut Lines {
        &mut self.progress.lines
    }

    /// Prints a message above the bar.
    pub fn beside(&self, print: impl FnOnce()) {
        self.progress.beside(print);
    }

    /// Prints a line, unless one of its step or of a later one was printed.
    ///
    /// # Errors
    /// That of a node whose tensors are not those of its line.
    pub fn show(&mut self, what: &LineKind, tensors: Vec<Tensor>) -> Result<(), Trouble> {
        let numbers = |tensors: &[Tensor]| -> Result<Vec<f64>, Trouble> {
            let values = tensors.first().ok_or_else(|| Trouble::mesh("values of a line are missing"))?;
            Ok(values.slice::<f64>()?.to_vec())
        };
        let told = match what {
            LineKind::Began { start, ms } => {
                self.start.get_or_insert((*start, *ms));
                self.at(*ms);
                self.progress.begins(*start)
            }
            LineKind::Trained { step, ms } => {
                let values = numbers(&tensors)?;
                if *step <= self.trained.0 || values.len() != self.progress.curves.trained.names.len() {
                    return Ok(());
                }
                self.trained = (*step, *ms);
                self.at(*ms);
                self.progress.trained(*step, &values)
            }
            LineKind::Evaluated { step, has_confusion } => {
                let means = numbers(&tensors)?;
                if *step <= self.evaluated || means.len() != self.progress.curves.held_out.names.len() {
                    return Ok(());
                }
                self.evaluated = *step;
                let confusion = if *has_confusion { tensors.get(1).zip(tensors.get(2)) } else { None };
                let confusion = confusion.map(|(counts, names)| confusion_of(counts, names)).transpose()?;
                let evaluated = Evaluated { means, confusion };
                let told = self.progress.evaluated(*step, &evaluated);
                self.last = Some(evaluated);
                told
            }
            LineKind::EvaluatedLast => match &self.last {
                Some(last) => self.progress.evaluated_last(last),
                None => Ok(()),
            },
            LineKind::Enough { step, of, best, at } => self.progress.enough(*step, of, *best, *at),
            LineKind::Notice(text) => self.progress.noted(text),
            _ => Ok(()),
        };
        told.map_err(|error| Trouble::input(error.to_string()))
    }

    /// The next reports were made so long after the begin.
    fn at(&mut self, ms: u64) {
        self.progress.at(self.base.checked_add(Duration::from_millis(ms)).unwrap_or(self.base));
    }

    /// Ends the output, with the cost of a training whose steps are all done.
    pub fn end(mut self, is_done: bool) -> Lines {
        self.progress.end();
        let mut lines = std::mem::take(&mut self.progress.lines);
        let (Some((start, began)), (step, ended)) = (self.start, self.trained) else { return lines };
        if !is_done || step <= start {
            return lines;
        }
        let (steps, seconds) = (step - start, ended.saturating_sub(began) as f64 / 1000.0);
        let rate = steps as f64 / seconds.max(1e-9);
        let examples = rate * self.batch as f64;
        if self.json {
            let summary =
                json!({ "steps": steps, "seconds": seconds, "steps_per_s": rate, "examples_per_s": examples });
            lines.line(&json!({ "summary": summary }).to_string());
        } else if !self.is_quiet {
            let (rate, examples) = (per_second(rate), per_second(examples));
            eprintln!("{steps} steps in {seconds:.1} s: {rate} steps/s, {examples} examples/s");
        }
        lines
    }
}

/// The confusion of an evaluation.
fn confusion_of(counts: &Tensor, names: &Tensor) -> Result<Confusion, Trouble> {
    let rows = counts.slice::<i64>()?.chunks_exact(3).map(|row| (row[0], row[1], u64::try_from(row[2]).unwrap_or(0)));
    let names = names.slice::<Vec<u8>>()?.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    Ok(Confusion::from_counts(names, rows))
}
