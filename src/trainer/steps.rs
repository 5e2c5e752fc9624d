//! The steps of a training, and the work that is due between them.

use std::ops::Range;
use std::time::{Duration, Instant};

use meshtf_tensor::Tensor;
use meshtf_train::job::StepNodes;

use super::evaluated::number;
use super::tracing::Traces;
use super::{Error, Every, How, Observer, Trainer};
use crate::Session;

/// How long steps run between checks of `stop`.
const SEGMENT: Duration = Duration::from_millis(500);

impl Trainer {
    /// Runs the workers for which updates do not wait. Their runs are dropped with this future, at the latest at the end of the
    /// steps.
    pub(super) async fn beside(&self, session: &Session, start: u64) -> Result<(), Error> {
        let feeds = self.beside_batches();
        let workers = self.job.beside.iter().map(async |run| {
            let ran = session.run().feeds(&feeds).target(run).steps(self.steps - start).await;
            match ran {
                Ok(_) => Ok(()),
                Err(failure) => Err(self.explained(session, failure, 0, |own| start + own).await),
            }
        });
        futures::future::try_join_all(workers).await?;
        Ok(())
    }

    /// Runs the steps, and the work that is due between them. Once `stop` is ready, the steps that have begun are finished, so
    /// that the saved state is whole.
    pub(super) async fn step(
        &self,
        session: &Session,
        start: u64,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
    ) -> Result<(How, u64), Error> {
        tokio::pin!(stop);
        let (mut step, mut pace, mut stops) = (start, 1, false);
        let mut watch = self.watch(start, observer)?;
        let (mut saved, mut traces) = (Instant::now(), Traces::of(self.traced(start)));
        loop {
            let count = self.next_stop(step, pace, &traces.steps) - step;
            let began = Instant::now();
            let segment = async {
                match traces.steps.contains(&step) {
                    true => self.trace(session, step, count, observer, &mut traces).await,
                    false => self.segment(session, step, count, observer).await,
                }
            };
            heard(segment, stop.as_mut(), &mut stops).await?;
            step += count;
            let took = began.elapsed().as_secs_f64().max(1e-6);
            pace = ((count as f64 / took * SEGMENT.as_secs_f64()) as u64).clamp(1, 1 << 20);
            let is_over = step >= self.steps;
            let is_due = match self.every {
                None => false,
                Some(Every::Steps(every)) => step.is_multiple_of(every.max(1)),
                Some(Every::Time(every)) => saved.elapsed() >= every,
            };
            let is_last = is_over || stops;
            let saves = is_last || is_due;
            let between = async {
                // A training continued from a saved state does not evaluate that step again, so it is evaluated first, even if
                // the training is to end.
                let looked = self.look(session, step, observer, &mut watch).await;
                let kept = if saves { self.save(session, step, is_last, observer).await } else { Ok(false) };
                // Of two errors, the first is reported.
                let is_enough = looked?;
                let is_kept = kept?;
                if saves {
                    saved = Instant::now();
                }
                let is_due = self.weights_every.is_some_and(|every| step.is_multiple_of(every) || is_over || is_enough);
                if is_due {
                    let weights = self.values(session, |one| one.trainable && one.dtype.is_float()).await?;
                    observer.weights(step, &weights)?;
                }
                Ok((is_enough, is_kept))
            };
            let (is_enough, is_kept) = heard(between, stop.as_mut(), &mut stops).await?;
            let how = match stops {
                _ if is_over => How::Done,
                _ if is_enough => How::Enough,
                true => How::Stopped,
                false => continue,
            };
            if !is_kept {
                self.save(session, step, true, observer).await?;
            }
            if let (How::Enough, Some(watch)) = (how, &watch) {
                let (best, at) = watch.best.unwrap_or((f64::NAN, step));
                observer.enough(step, &watch.name, best, at)?;
            }
            return Ok((how, step));
        }
    }

    /// The step up to which the workers run without a return: the next that is due, or that of a while later. Reports are whole
    /// steps apart.
    fn next_stop(&self, step: u64, pace: u64, traced: &Range<u64>) -> u64 {
        let after = |every: u64| (step / every + 1).saturating_mul(every);
        let every = match self.every {
            Some(Every::Steps(every)) => Some(every.max(1)),
            _ => None,
        };
        let due = [every, self.sections.evaluate.as_ref().map(|one| one.every), self.weights_every];
        let due = due.into_iter().flatten().map(after).fold(self.steps, u64::min);
        if traced.contains(&step) {
            return due.min(traced.end);
        }
        let due = if step < traced.start { due.min(traced.start) } else { due };
        let soon = match step % self.record {
            0 if pace >= self.record && self.job.steps.len() == 1 => step + pace / self.record * self.record,
            0 => step + pace.min(self.record),
            _ => (step + pace).min(after(self.record)),
        };
        soon.min(due)
    }

    /// Runs steps and reports the loss when it is due.
    async fn segment(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        if self.job.steps.len() > 1 {
            return self.each_its_own(session, step, count, observer).await;
        }
        let nodes = &self.job.steps[0];
        let feeds = self.beside_batches();
        let every = if step.is_multiple_of(self.record) && count > self.record { self.record } else { 0 };
        let mut report = |step: u64, values: &[Tensor]| -> Result<(), Error> {
            let values = values.iter().map(number).collect::<Result<Vec<f64>, Error>>()?;
            Ok(observer.trained(step, &values)?)
        };
        let mut error = None;
        let on_fetch = |at: u64, values: Vec<Tensor>| {
            if error.is_none() {
                error = report(step + at, &values).err();
            }
        };
        let ran = session
            .run()
            .feeds(&feeds)
            .fetches(nodes.fetches())
            .target(&nodes.run)
            .steps(count)
            .each(every, on_fetch)
            .await;
        // The observer ended it before a later step failed.
        if let Some(error) = error {
            return Err(error);
        }
        let ran = match ran {
            Ok(ran) => ran,
            Err(failure) => return Err(self.explained(session, failure, 0, |own| step + own).await),
        };
        let last = step + count;
        if last.is_multiple_of(self.record) || last >= self.steps {
            report(last, &ran.values)?;
        }
        Ok(())
    }

    /// Runs the steps of workers that do not wait for each other: step `i` is the turn of worker `i`, modulo their number. The
    /// reported value is the mean over the last step of each.
    async fn each_its_own(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let (workers, feeds) = (self.job.steps.len() as u64, self.beside_batches());
        let turns = |i: u64| (step..step + count.min(workers)).find(|step| step % workers == i);
        let of_worker = async |i: u64, nodes: &StepNodes| -> Result<Option<Vec<f64>>, Error> {
            let Some(first) = turns(i) else { return Ok(None) };
            let ran = session
                .run()
                .feeds(&feeds)
                .fetches(nodes.fetches())
                .target(&nodes.run)
                .steps((step + count - first).div_ceil(workers))
                .await;
            let ran = match ran {
                Ok(ran) => ran,
                Err(failure) => {
                    let number = |own: u64| first + own.saturating_sub(1) * workers + 1;
                    return Err(self.explained(session, failure, i as usize, number).await);
                }
            };
            ran.values.iter().map(number).collect::<Result<_, _>>().map(Some)
        };
        let runs = (0..).zip(&self.job.steps).map(|(i, nodes)| of_worker(i, nodes));
        let ran = futures::future::try_join_all(runs).await?;
        let ran: Vec<Vec<f64>> = ran.into_iter().flatten().collect();
        let last = step + count;
        if last.is_multiple_of(self.record) || last >= self.steps {
            let mean = |k: usize| ran.iter().map(|values| values[k]).sum::<f64>() / ran.len() as f64;
            let means: Vec<f64> = (0..self.names().len()).map(mean).collect();
            observer.trained(last, &means)?;
        }
        Ok(())
    }
}

/// Runs some work to its end; remembers whether `stop` became ready meanwhile.
async fn heard<T>(
    work: impl Future<Output = Result<T, Error>>,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    stops: &mut bool,
) -> Result<T, Error> {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = stop.as_mut(), if !*stops => *stops = true,
        }
    }
}
