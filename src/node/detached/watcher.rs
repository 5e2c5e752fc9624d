//! The observer of a training that a node makes by itself: its reports are the lines of the run.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Result;

use super::entry::Entry;
use super::tail::bytes;
use crate::protocol::detached::{LineKind, MAX_FETCHED, MAX_LINE_BYTES};
use crate::protocol::look::{Fetched, Point};
use crate::protocol::status::shorten;
use crate::trainer::{Error, Evaluated, Observed, Observer};

/// Most bytes of a confusion: lines before it make room for it.
const MAX_CONFUSION_BYTES: usize = MAX_LINE_BYTES / 16;

/// Passes on a training's reports to its run.
pub(super) struct Watcher {
    entry: Arc<Entry>,
    /// Who waits for the first step.
    begun: Option<Sender<Result<()>>>,
    /// A state could not be written since one was.
    is_unsaved: bool,
    /// A confusion was too large to be kept.
    is_left_out: bool,
}

impl Watcher {
    pub fn new(entry: Arc<Entry>, begun: Sender<Result<()>>) -> Watcher {
        Watcher { entry, begun: Some(begun), is_unsaved: false, is_left_out: false }
    }

    fn push(&self, what: LineKind, tensors: Vec<Tensor>) {
        self.entry.state().tail.push(what, tensors);
    }

    fn ms(&self) -> u64 {
        self.entry.age().as_millis() as u64
    }
}

impl Observer for Watcher {
    fn begins(&mut self, start: u64) -> Observed {
        let mut state = self.entry.state();
        state.is_starting = false;
        state.stepped(start, Instant::now());
        drop(state);
        self.push(LineKind::Began { start, ms: self.ms() }, Vec::new());
        // Nobody waits any more if it took too long.
        self.begun.take().into_iter().for_each(|begun| _ = begun.send(Ok(())));
        Ok(())
    }

    fn noted(&mut self, text: &str) -> Observed {
        self.entry.note(text.to_owned());
        Ok(())
    }

    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        let Some(training) = &self.entry.training else { return Ok(()) };
        let named = training.info.names.iter().zip(values).take(MAX_FETCHED);
        let fetched = named.map(|(name, &value)| Fetched { name: name.clone(), last: Point { step, value } }).collect();
        let mut state = self.entry.state();
        state.stepped(step, Instant::now());
        state.fetched = fetched;
        drop(state);
        if step.is_multiple_of(training.info.report.max(1)) || step >= self.entry.count() {
            self.push(LineKind::Trained { step, ms: self.ms() }, vec![Tensor::vector(values.to_vec())]);
        }
        Ok(())
    }

    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        let mut tensors = vec![Tensor::vector(evaluated.means.clone())];
        if let Some(confusion) = &evaluated.confusion {
            let counts: Vec<i64> =
                confusion.counts().flat_map(|(of, taken, count)| [of, taken, count as i64]).collect();
            let names = confusion.names().iter().map(|name| name.clone().into_bytes()).collect::<Vec<_>>();
            let all = [Tensor::from_vec([counts.len() / 3, 3], counts), Tensor::vector(names)];
            if bytes(&all) <= MAX_CONFUSION_BYTES {
                tensors.extend(all);
            } else if !std::mem::replace(&mut self.is_left_out, true) {
                self.entry.note("the confusion of so many classes is too large to be kept".to_owned());
            }
        }
        self.push(LineKind::Evaluated { step, has_confusion: tensors.len() > 1 }, tensors);
        Ok(())
    }

    fn evaluated_last(&mut self, _: &Evaluated) -> Observed {
        self.push(LineKind::EvaluatedLast, Vec::new());
        Ok(())
    }

    fn saved(&mut self, step: u64, _: &Path) -> Observed {
        if std::mem::take(&mut self.is_unsaved) {
            self.entry.note(format!("the state after step {step} is saved"));
        }
        let mut state = self.entry.state();
        state.stepped(step, Instant::now());
        state.states.saved = Some(step);
        drop(state);
        if let Some(training) = &self.entry.training {
            training.folder.note(&self.entry.about());
        }
        Ok(())
    }

    /// Nobody is there to make room at the end.
    fn save_failed(&mut self, step: u64, error: &Error, is_last: bool) -> bool {
        if !is_last && !std::mem::replace(&mut self.is_unsaved, true) {
            self.entry
                .note(format!("{error}, after step {step}; the training continues, and saves again when it is due"));
        }
        !is_last
    }

    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        let mut of = of.to_owned();
        shorten(&mut of);
        let mut state = self.entry.state();
        state.is_enough = true;
        state.tail.push(LineKind::Enough { step, of, best, at }, Vec::new());
        Ok(())
    }
}
