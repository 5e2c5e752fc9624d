//! Evaluates examples that are not trained with, and decides whether the results still improve.

use meshtf_tensor::Tensor;
use meshtf_train::file::EvaluateSection;

use super::constants::feeds;
use super::evaluated::{Confusion, Evaluated, number};
use super::lost::Workers;
use super::state::{SAVE_AGAIN, blocking};
use super::{Error, Observer, Trainer};
use crate::Session;

/// Whether evaluations improve.
pub(super) struct Watch {
    place: usize,
    pub name: String,
    is_greatest: bool,
    patience: Option<u64>,
    /// The best value, and its step.
    pub best: Option<(f64, u64)>,
    worse: u64,
    /// The last step that was judged, and whether the training ends after it.
    seen: u64,
    is_enough: bool,
    /// The state with that value, if it could not be written yet.
    unsaved: Option<Best>,
}

/// The state after a step with the best value so far.
#[derive(Clone)]
struct Best {
    value: f64,
    step: u64,
    values: Vec<(String, Tensor)>,
}

/// The consequence of an evaluation.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Better,
    Worse,
    /// It has not improved for as long as the patience, so the training ends.
    Enough,
}

impl Watch {
    /// A watch that begins with the first step.
    fn new(section: &EvaluateSection) -> Watch {
        let of = section.best.of.as_ref();
        let place =
            of.and_then(|of| section.metrics.iter().position(|metric| metric == of)).map_or(0, |place| place + 1);
        let name = of.map_or_else(|| "loss".to_owned(), Clone::clone);
        let (is_greatest, patience) = (section.best.is_greatest, section.patience);
        Watch { place, name, is_greatest, patience, best: None, worse: 0, seen: 0, is_enough: false, unsaved: None }
    }

    /// The same from the step `start` on, with the best value before it; `every` steps between evaluations.
    fn from(self, start: u64, best: Option<(f64, u64)>, every: u64) -> Watch {
        let best = best.filter(|(_, step)| *step <= start);
        let worse = best.map_or(0, |(_, step)| start / every.max(1) - step / every.max(1));
        Watch { best, worse, ..self }
    }

    /// A description of the watched value.
    fn aim(&self) -> String {
        format!("{} {}", if self.is_greatest { "greatest" } else { "least" }, self.name)
    }

    /// Whether these means are better than the best so far.
    fn is_better(&self, means: &[f64]) -> bool {
        let value = means[self.place];
        match self.best {
            None => !value.is_nan(),
            Some((best, _)) if self.is_greatest => value > best,
            Some((best, _)) => value < best,
        }
    }

    /// Judges the means after a step.
    pub fn look(&mut self, step: u64, means: &[f64]) -> Verdict {
        self.seen = step;
        if self.is_better(means) {
            (self.best, self.worse) = (Some((means[self.place], step)), 0);
            return Verdict::Better;
        }
        self.worse += 1;
        self.is_enough = self.patience.is_some_and(|patience| self.worse >= patience);
        if self.is_enough { Verdict::Enough } else { Verdict::Worse }
    }

    /// The verdict on a step that was judged, and is computed again: whether the training ends. `None`: it was not judged.
    fn judged(&self, step: u64) -> Option<bool> {
        (step <= self.seen).then_some(self.is_enough && step == self.seen)
    }
}

impl Trainer {
    /// The watch on the evaluations after the step `start`, if there are any.
    pub(super) fn watch(&self, start: u64, observer: &mut dyn Observer) -> Result<Option<Watch>, Error> {
        let Some(section) = &self.sections.evaluate else { return Ok(None) };
        let watch = Watch::new(section);
        let best = match self.folder.as_ref().filter(|_| self.resume) {
            Some(folder) => folder.best(&watch.aim(), observer)?,
            None => None,
        };
        Ok(Some(watch.from(start, best, section.every)))
    }

    /// Evaluates if it is due after a step, and acts on the result; returns whether the training ends.
    pub(super) async fn look(
        &self,
        session: &Session,
        step: u64,
        observer: &mut dyn Observer,
        watch: &mut Option<Watch>,
        workers: &Workers,
    ) -> Result<bool, Error> {
        let is_over = step >= self.steps;
        if let Some(is_enough) = watch.as_ref().and_then(|watch| watch.judged(step)) {
            return Ok(is_enough);
        }
        let due = |one: &&EvaluateSection| step.is_multiple_of(one.every) || is_over;
        if self.sections.evaluate.as_ref().filter(due).is_none() {
            return Ok(false);
        }
        let evaluated = loop {
            // Any worker can do it.
            let worker = workers.living().first().copied().unwrap_or(0);
            match self.evaluate_held(session, worker).await {
                Err(Error::Failed(failure)) => self.leave_out(session, workers, worker, failure).await?,
                evaluated => break evaluated?,
            }
        };
        observer.evaluated(step, &evaluated)?;
        let is_enough = match watch {
            Some(watch) => self.judge(session, step, watch, &evaluated.means, observer).await?,
            None => false,
        };
        if is_over || is_enough {
            observer.evaluated_last(&evaluated)?;
        }
        Ok(is_enough)
    }

    /// Acts on an evaluation: saves the weights if they are better. Returns whether the training ends.
    async fn judge(
        &self,
        session: &Session,
        step: u64,
        watch: &mut Watch,
        means: &[f64],
        observer: &mut dyn Observer,
    ) -> Result<bool, Error> {
        // A step whose values cannot be fetched, since a task is lost, is not judged: it is computed again.
        let values = match self.folder.is_some() && watch.is_better(means) {
            true => Some(self.whole(session, step).await?),
            false => None,
        };
        let verdict = watch.look(step, means);
        if let Some(values) = values {
            watch.unsaved = Some(Best { value: means[watch.place], step, values });
        }
        self.save_best(watch, false, observer).await?;
        Ok(verdict == Verdict::Enough)
    }

    /// Saves the best state so far, if it is not saved yet. If it cannot be written, the observer decides: it is kept in memory
    /// and written after the next evaluation; or, after the last step, it is written again until that succeeds.
    pub(super) async fn save_best(
        &self,
        watch: &mut Watch,
        is_last: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        while let (Some(folder), Some(best)) = (&self.folder, &watch.unsaved) {
            let (folder, aim, Best { value, step, values }) = (folder.clone(), watch.aim(), best.clone());
            let Err(error) = blocking(move || folder.save_best(step, value, &aim, values)).await? else {
                watch.unsaved = None;
                break;
            };
            if !observer.save_failed(step, &error, is_last) {
                return Err(error);
            }
            if !is_last {
                break;
            }
            tokio::time::sleep(SAVE_AGAIN).await;
        }
        Ok(())
    }

    /// The means of the loss and the metrics over the examples that are evaluated, and their confusion, with the current
    /// variables; empty if there are none. It may run in parallel with a training of this trainer.
    ///
    /// # Errors
    /// [`Error::Input`] if a metric is not a number, or a class of the confusion not a class; [`Error::Failed`] as
    /// [`Session::run`].
    ///
    /// # Cancellation
    /// If the future is dropped before it is ready, nothing has changed, except that files which the workers hold may stay in
    /// their memory until the next evaluation or training of this graph ends, or the node does.
    pub async fn evaluate(&self, session: &Session) -> Result<Evaluated, Error> {
        let are_there = self.held_out.iter().any(|examples| examples.there().any(|there| there.is_some()));
        let loads = self.job.held.first().into_iter().flatten().flatten().filter(|_| are_there);
        let loads: Vec<&str> = loads.map(|held| held.load.as_str()).collect();
        self.holding(session, &loads, self.evaluate_held(session, 0)).await
    }

    /// As [`evaluate`](Trainer::evaluate), on one of the workers, after it has read its files.
    pub(super) async fn evaluate_held(&self, session: &Session, worker: usize) -> Result<Evaluated, Error> {
        let section = self.sections.evaluate.as_ref();
        let mut confusion =
            section.and_then(|section| section.confusion.as_ref()).map(|_| Confusion::of(&self.classes));
        let Some(held_out) = &self.held_out else { return Ok(Evaluated { means: Vec::new(), confusion: None }) };
        let classes = section.and_then(|section| section.confusion.as_ref());
        let classes = classes.map(|classes| [&classes.labels, &classes.predictions]);
        let there = |name: &str| self.job.elsewhere.named(name, worker);
        let fetches: Vec<String> =
            self.job.evaluated.iter().chain(classes.into_iter().flatten()).map(|name| there(name)).collect();
        let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let mut sums = vec![0.0; self.job.evaluated.len()];
        let mut at = 0;
        while at < held_out.len() {
            let count = self.chunk.examples.min(held_out.len() - at);
            if self.chunk.is_fixed && count < self.chunk.examples {
                break;
            }
            // A constant for evaluations replaces examples.
            let constants = feeds(&self.constants.evaluations).map(|(name, tensor)| (there(name), tensor));
            let constants: Vec<(String, Tensor)> = constants.collect();
            let examples = self.evaluated(worker, held_out, (at..at + count).collect()).await?.into_iter();
            let is_own = |(name, _): &(String, Tensor)| constants.iter().all(|(constant, _)| constant != name);
            let fed: Vec<(String, Tensor)> = examples.filter(is_own).chain(constants.iter().cloned()).collect();
            let fed: Vec<(&str, Tensor)> = fed.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
            let values = session.run().feeds(&fed).fetches(&fetches).await?.values;
            for (sum, value) in sums.iter_mut().zip(&values) {
                *sum += number(value)? * count as f64;
            }
            if let (Some(confusion), [labels, predictions]) = (&mut confusion, &values[sums.len()..]) {
                confusion.add(labels, predictions)?;
            }
            at += count;
        }
        let means = sums.into_iter().map(|sum| sum / at as f64).collect();
        Ok(Evaluated { means, confusion })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_train::file::Best as Aim;

    #[test]
    fn patience_ends() {
        let section = |best: Aim| EvaluateSection {
            every: 10,
            metrics: vec!["a".to_owned()],
            best,
            patience: Some(2),
            ..EvaluateSection::default()
        };
        let verdicts = |watch: &mut Watch, start: u64, values: &[f64]| -> Vec<Verdict> {
            (1..).zip(values).map(|(i, &value)| watch.look(start + i * 10, &[value, -value])).collect()
        };
        use Verdict::{Better, Enough, Worse};
        let mut least = Watch::new(&section(Aim::default()));
        assert_eq!(
            verdicts(&mut least, 0, &[3.0, 2.0, 2.0, 1.0, f64::NAN, 1.5]),
            [Better, Better, Worse, Better, Worse, Enough]
        );
        assert_eq!((least.best, &*least.name), (Some((1.0, 40)), "loss"));
        // Steps after a copy of the state that was older.
        assert_eq!([50, 60, 70].map(|step| least.judged(step)), [Some(false), Some(true), None]);
        let of = Aim { of: Some("a".to_owned()), is_greatest: true };
        let mut greatest = Watch::new(&section(of));
        assert_eq!(verdicts(&mut greatest, 0, &[3.0, 2.0]), [Better, Better]);
        // A continued training counts on from that step.
        let mut later = Watch::new(&section(Aim::default())).from(50, Some((1.0, 40)), 10);
        assert_eq!(verdicts(&mut later, 50, &[1.5]), [Enough]);
        let mut anew = Watch::new(&section(Aim::default())).from(30, Some((1.0, 40)), 10);
        assert_eq!(verdicts(&mut anew, 30, &[1.5]), [Better]);
    }
}
