//! Records and reports a training as it runs, next to another observer.

use std::path::Path;

use meshtf::trainer::{Error, Evaluated, Observed, Observer};
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;

use super::keeper::Keeper;
use super::record::{End, How};
use super::reporter::Reporter;

/// Passes everything on to the other observer.
pub(in crate::cli) struct Recorded<'a> {
    pub keeper: &'a Keeper,
    pub reporter: &'a Reporter,
    /// The names of the values of a step, and of those of an evaluation.
    pub names: Vec<String>,
    pub held_out: Vec<String>,
    pub next: &'a mut dyn Observer,
}

impl Recorded<'_> {
    fn values(&self, step: u64, values: &[f64], is_held_out: bool) {
        let names = if is_held_out { &self.held_out } else { &self.names };
        self.reporter.stepped(step);
        names.iter().zip(values).for_each(|(name, value)| self.reporter.value(name, is_held_out, step, *value));
        self.keeper.change(|record| {
            record.steps.done = step;
            names.iter().zip(values).for_each(|(name, value)| record.value(name, is_held_out, step, *value));
        });
    }
}

impl Observer for Recorded<'_> {
    fn begins(&mut self, start: u64) -> Observed {
        self.keeper.change(|record| {
            if record.steps.done > 0 {
                record.retries += 1;
            } else {
                record.steps.start = start;
            }
            record.steps.done = start;
        });
        self.reporter.stepped(start);
        self.next.begins(start)
    }

    fn noted(&mut self, text: &str) -> Observed {
        self.keeper.change(|record| record.noted(text));
        self.next.noted(text)
    }

    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        self.values(step, values, false);
        self.next.trained(step, values)
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        self.values(step, &evaluated.means, true);
        self.next.evaluated(step, evaluated)
    }

    fn evaluated_last(&mut self, evaluated: &Evaluated) -> Observed {
        self.next.evaluated_last(evaluated)
    }

    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        self.next.weights(step, weights)
    }

    fn traced(&mut self, first: u64, steps: u64, traces: Vec<DeviceTrace>) -> Observed {
        self.next.traced(first, steps, traces)
    }

    fn saved(&mut self, step: u64, file: &Path) -> Observed {
        self.keeper.change(|record| record.saved(step, file));
        self.next.saved(step, file)
    }

    fn save_failed(&mut self, step: u64, error: &Error, is_last: bool) -> bool {
        self.next.save_failed(step, error, is_last)
    }

    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        let message = format!("{of} has not improved on {best}, the value after step {at}");
        self.keeper.change(|record| record.end = Some(End { how: How::Enough, message: Some(message) }));
        self.next.enough(step, of, best, at)
    }
}
