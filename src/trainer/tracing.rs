//! The traces of the devices in a few steps of a training.

use std::ops::Range;

use meshtf_graph::trace::DeviceTrace;

use super::lost::Workers;
use super::steps::numbers;
use super::{Error, Observer, Trainer};
use crate::Session;

/// The number of traced steps: their traces are held until the last of them is done.
const TRACED: u64 = 4;
/// The number of steps before those, if there are enough: the first ones plan, compile and measure.
const BEFORE: u64 = 10;

/// The traced steps, counted from 0, and their traces so far.
pub(super) struct Traces {
    pub steps: Range<u64>,
    devices: Vec<DeviceTrace>,
}

impl Traces {
    pub fn of(steps: Range<u64>) -> Traces {
        Traces { steps, devices: Vec::new() }
    }

    pub fn add(&mut self, traces: Vec<DeviceTrace>) {
        for own in traces {
            match self.devices.iter_mut().find(|known| known.device == own.device) {
                Some(known) => known.nodes.extend(own.nodes),
                None => self.devices.push(own),
            }
        }
    }

    /// Reports them, once the last step is done.
    pub fn report(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let Range { start, end } = self.steps;
        Ok(observer.traced(start + 1, end - start, std::mem::take(&mut self.devices))?)
    }
}

impl Trainer {
    /// The traced steps: the 11th to the 14th of this run, or the last ones of a shorter one.
    pub(super) fn traced(&self, start: u64) -> Range<u64> {
        if !self.traces {
            return 0..0;
        }
        let count = (self.steps - start).min(TRACED);
        let first = (start + BEFORE).min(self.steps - count);
        first..first + count
    }

    /// Runs steps one after the other, and traces them; reports the traces once the last of those is done. Of workers that do
    /// not wait for each other, each step is that of the worker whose turn it is. `before` is the number of updates so far.
    /// Returns the number of steps that were done: fewer if a worker was lost.
    pub(super) async fn trace(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
        traces: &mut Traces,
        (workers, before): (&Workers, u64),
    ) -> Result<u64, Error> {
        let feeds = self.beside_batches();
        let mut done = 0;
        while done < count {
            let is_apart = self.job.steps.len() > 1;
            let worker = match is_apart {
                true => {
                    let living = workers.living();
                    let turns = workers.dealer.plan(step + done, 1, &living, u64::MAX);
                    let turn = living.into_iter().zip(turns).find(|(_, own)| *own > 0);
                    turn.map_or(0, |(worker, _)| worker)
                }
                false => 0,
            };
            let nodes = &self.job.steps[worker];
            let ran = match session.run().feeds(&feeds).fetches(nodes.fetches()).target(&nodes.run).traced().await {
                Ok(ran) => ran,
                Err(failure) => match self.explained(session, failure, worker, |_| step + done + 1).await {
                    Error::Failed(failure) if is_apart => {
                        self.leave_out(session, workers, worker, failure).await?;
                        let run = self.deal_again(session, workers, before + done, &[(worker, 1)]).await?;
                        return Ok(done + run);
                    }
                    error => return Err(error),
                },
            };
            traces.add(ran.traces);
            if is_apart {
                workers.dealer.done(worker, 1);
            }
            done += 1;
            let last = step + done;
            if last.is_multiple_of(self.record) || last >= self.steps {
                observer.trained(last, &numbers(&ran.values)?)?;
            }
        }
        if step + count < traces.steps.end {
            return Ok(count);
        }
        traces.report(observer)?;
        Ok(count)
    }
}
