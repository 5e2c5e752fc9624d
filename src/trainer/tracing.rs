//! What each device ran in a few steps of a training, and when.

use std::ops::Range;

use super::steps::number;
use super::{Error, Observer, Trainer};
use crate::Session;
use crate::trace::DeviceTrace;
use crate::train::job::StepNodes;

/// How many steps are traced: their traces are held until the last of them is done.
const TRACED: u64 = 4;
/// How many steps run before those, if there are as many: the first ones plan, compile and measure.
const BEFORE: u64 = 10;

impl Trainer {
    /// The steps that are traced, counted from 0: the 11th to the 14th of this run, or the last ones of a shorter one.
    pub(super) fn traced(&self, start: u64) -> Range<u64> {
        if !self.traces {
            return 0..0;
        }
        let count = (self.steps - start).min(TRACED);
        let first = (start + BEFORE).min(self.steps - count);
        first..first + count
    }

    /// Runs steps one after the other, and traces them. Of workers that do not wait for each other, each step is the one whose turn it is.
    pub(super) async fn trace(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let (feeds, workers) = (self.training(), self.job.steps.len() as u64);
        let mut traces: Vec<DeviceTrace> = Vec::new();
        for done in 0..count {
            let worker = ((step + done) % workers) as usize;
            let StepNodes { run, loss, metrics } = &self.job.steps[worker];
            let fetches: Vec<&str> = std::iter::once(loss).chain(metrics).map(String::as_str).collect();
            let ran = match session.trace(&feeds, &fetches, &[run]).await {
                Ok(ran) => ran,
                Err(failure) => return Err(self.explained(session, failure, worker, |_| step + done + 1).await),
            };
            for own in ran.traces {
                match traces.iter_mut().find(|known| known.device == own.device) {
                    Some(known) => known.nodes.extend(own.nodes),
                    None => traces.push(own),
                }
            }
            let last = step + done + 1;
            if last.is_multiple_of(self.record) || last >= self.steps {
                let values = ran.fetches.iter().map(number).collect::<Result<Vec<f64>, Error>>()?;
                observer.trained(last, &values)?;
            }
        }
        Ok(observer.traced(step + 1, count, traces)?)
    }
}
