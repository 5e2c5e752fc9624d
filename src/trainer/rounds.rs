//! The steps of workers that make an update together after a round of their own (mode local).

use std::ops::Range;

use futures::future::{try_join, try_join_all};
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use meshtf_train::file::{Exchange, TrainSection, UpdateMode};
use meshtf_train::job::Rounds;

use super::steps::numbers;
use super::tracing::Traces;
use super::{Error, Observer, Trainer};
use crate::{Session, StepEvent};

/// An interval in steps as a whole number of rounds, if the workers make some: the next greater one.
pub(super) fn in_rounds(train: &TrainSection, every: u64) -> u64 {
    match train.mode {
        UpdateMode::Local => every.checked_next_multiple_of(train.local.steps.max(1)).unwrap_or(u64::MAX),
        _ => every,
    }
}

/// Maximum number of points of a curve between two printed lines.
const POINTS: u64 = 20;

/// The number of steps between two points of a curve: a part of `report`, those between two lines, which is a multiple of
/// those of a round, and so is this.
fn point(report: u64, round: u64) -> u64 {
    let rounds = report / round;
    report / (1..=POINTS).rev().find(|&count| rounds.is_multiple_of(count)).unwrap_or(1)
}

/// The mode, if it is mode local, with all that a state depends on.
pub(super) fn described(train: &TrainSection) -> Option<String> {
    let exchange = match train.local.exchange {
        Exchange::Int8 => "int8",
        Exchange::Float32 => "float32",
    };
    let local = format!("mode local with {} workers and exchange {exchange}", train.workers);
    (train.mode == UpdateMode::Local).then_some(local)
}

impl Trainer {
    /// Whether a step waits for all workers: then the session may be guarded. Otherwise a training continues without a lost one.
    #[doc(hidden)]
    pub fn waits_for_workers(&self) -> bool {
        let train = &self.sections.train;
        // In mode local steps and updates are runs that wait for each other, also of one worker: a cut would hold both.
        let waits = !train.is_elastic() && train.mode != UpdateMode::Local;
        waits && (train.workers <= 1 || train.mode != UpdateMode::Async && train.backup == 0)
    }

    /// Whether values of steps reach this process without a wait of the workers for it.
    #[doc(hidden)]
    pub fn returns_by_itself(&self) -> bool {
        self.sections.train.mode != UpdateMode::Async
    }

    /// Enables calls of [`Observer::weights`]: after each evaluation, or each tenth of all steps, and after the last.
    pub fn report_weights(&mut self) {
        let tenth = self.in_rounds((self.steps / 10).max(1));
        self.weights_every =
            Some(self.sections.evaluate.as_ref().map_or(tenth, |section| section.every.min(self.steps)));
    }

    /// Calls [`Observer::trained`] after every `steps` steps and after the last; the default is a twentieth of all steps. In mode
    /// local, the next greater number of steps that is one of whole rounds.
    pub fn record_every(&mut self, steps: u64) {
        self.record = self.in_rounds(steps.max(1));
    }

    /// The interval in steps at which something happens that is to happen after every `steps` steps: in mode local, that of whole
    /// rounds.
    #[doc(hidden)]
    pub fn in_rounds(&self, steps: u64) -> u64 {
        in_rounds(&self.sections.train, steps)
    }

    /// The number of steps between two printed lines: as many as somebody asked for, else a twentieth of all.
    #[doc(hidden)]
    pub fn line_every(&self, asked: Option<u64>) -> u64 {
        self.in_rounds(asked.unwrap_or(self.steps / 20).max(1))
    }

    /// The number of steps between two points of a curve whose lines are printed after every `line` steps.
    #[doc(hidden)]
    pub fn point_every(&self, line: u64) -> u64 {
        point(line, self.in_rounds(1))
    }

    /// The step between two rounds up to which the workers run without a return, from `step` on, if they may run up to `stop`:
    /// at least one round. Rounds end at multiples of their steps, and at the end of the training.
    pub(super) fn round_end(&self, step: u64, stop: u64) -> u64 {
        let Some(Rounds { steps, .. }) = self.job.rounds else { return stop };
        let first = (step / steps + 1).saturating_mul(steps);
        let end = if step.is_multiple_of(steps) && stop > first { stop - stop % steps } else { first };
        end.min(self.steps)
    }

    /// Runs rounds of `count` steps in all, or a shorter one, and reports the means of a round when they are due.
    pub(super) async fn run_rounds(
        &self,
        session: &Session,
        rounds: &Rounds,
        (step, count): (u64, u64),
        observer: &mut dyn Observer,
        traces: &mut Traces,
    ) -> Result<u64, Error> {
        let end = step + count;
        let traced = traces.steps.start.clamp(step, end)..traces.steps.end.clamp(step, end);
        let local = rounds.local.iter().enumerate();
        let local = local.map(|(worker, nodes)| self.local_steps(session, (worker, &nodes.run), step..end, &traced));
        let outer = self.outer_updates(session, rounds, (step, count), observer);
        let (found, values) = try_join(try_join_all(local), outer).await?;
        if end.is_multiple_of(self.record) || end >= self.steps {
            observer.trained(end, &numbers(&values)?)?;
        }
        found.into_iter().for_each(|own| traces.add(own));
        if !traced.is_empty() && traced.end == traces.steps.end {
            traces.report(observer)?;
        }
        Ok(count)
    }

    /// The steps of a worker, of which some are traced.
    async fn local_steps(
        &self,
        session: &Session,
        (worker, run): (usize, &str),
        steps: Range<u64>,
        traced: &Range<u64>,
    ) -> Result<Vec<DeviceTrace>, Error> {
        let (feeds, mut traces) = (self.beside_batches(), Vec::new());
        let one_by_one = traced.clone().map(|at| at..at + 1);
        let parts = std::iter::once(steps.start..traced.start).chain(one_by_one);
        for part in parts.chain(std::iter::once(traced.end..steps.end)).filter(|part| !part.is_empty()) {
            let own = session.run().feeds(&feeds).target(run);
            let ran = match traced.contains(&part.start) {
                true => own.traced().await,
                false => own.steps(part.end - part.start).await,
            };
            match ran {
                Ok(ran) => traces.extend(ran.traces),
                Err(failure) => return Err(self.explained(session, failure, worker, |own| part.start + own).await),
            }
        }
        Ok(traces)
    }

    /// The updates after these steps; returns the means of the last round.
    async fn outer_updates(
        &self,
        session: &Session,
        rounds: &Rounds,
        (step, count): (u64, u64),
        observer: &mut dyn Observer,
    ) -> Result<Vec<Tensor>, Error> {
        let own = count.min(rounds.steps);
        let feeds: Vec<(&str, Tensor)> =
            rounds.counts.iter().map(|name| (name.as_str(), Tensor::scalar(own as i32))).collect();
        let every = if step.is_multiple_of(self.record) && count > self.record { self.record / own } else { 0 };
        let mut error = None;
        let on_event = |event: StepEvent| {
            let StepEvent::Fetched { step: at, values } = event else { return };
            if error.is_none() {
                let told = numbers(&values).and_then(|values| Ok(observer.trained(step + at * own, &values)?));
                error = told.err();
            }
        };
        let nodes = &self.job.steps[0];
        let run = session.run().feeds(&feeds).fetches(nodes.fetches()).target(&nodes.run).steps(count / own);
        let ran = run.watch(every, on_event).await;
        // The observer ended it before a later step failed.
        if let Some(error) = error {
            return Err(error);
        }
        match ran {
            Ok(ran) => Ok(ran.values),
            Err(failure) => Err(self.explained(session, failure, 0, |round| step + round * own).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_between_rounds_and_divide_the_steps_between_lines() {
        for (report, round, expected) in
            [(500, 1, 25), (7, 1, 1), (23, 1, 23), (500, 10, 50), (2500, 50, 250), (690, 30, 690)]
        {
            assert_eq!(point(report, round), expected, "{report} in rounds of {round}");
            assert!(report.is_multiple_of(expected) && expected.is_multiple_of(round));
        }
    }
}
