//! The steps of a training, and the work that is due between them.

use std::ops::Range;
use std::time::{Duration, Instant};

use meshtf_tensor::Tensor;

use super::elastic::Course;
use super::evaluated::number;
use super::lost::Workers;
use super::tracing::Traces;
use super::{Error, Every, How, Observer, Trainer};
use crate::{Session, StepEvent};

/// How long steps run between checks of `stop`.
const SEGMENT: Duration = Duration::from_millis(500);
/// The same if the workers make rounds: over slow links, a return takes as long as many of their steps.
const ROUNDS_SEGMENT: Duration = Duration::from_secs(2);

impl Trainer {
    /// Runs the workers for which updates do not wait. Their runs are dropped with this future, at the latest at the end of the
    /// steps.
    pub(super) async fn beside(&self, session: &Session, start: u64, workers: &Workers) -> Result<(), Error> {
        let (feeds, steps) = (self.beside_batches(), self.steps - start);
        let of_worker = async |worker: usize, run: &str| {
            loop {
                if workers.is_living(worker) {
                    let failure = tokio::select! {
                        ran = session.run().feeds(&feeds).target(run).steps(steps).into_future() => match ran {
                            Ok(_) => return Ok(()),
                            Err(failure) => Some(failure),
                        },
                        () = workers.until(worker, false) => None,
                    };
                    if let Some(failure) = failure {
                        match self.explained(session, failure, 0, |own| start + own).await {
                            Error::Failed(failure) => self.leave_out(session, workers, worker, failure).await?,
                            error => return Err(error),
                        }
                    }
                }
                // The updates wait for room for its tokens.
                let takes = async {
                    session.run().target(&self.job.tokens[worker]).steps(steps).await?;
                    std::future::pending().await
                };
                workers.stand_in(worker, takes).await?;
            }
        };
        let all = self.job.beside.iter().enumerate().map(|(worker, run)| of_worker(worker, run));
        futures::future::try_join_all(all).await?;
        Ok(())
    }

    /// Lets the other workers of a training of bounded staleness continue without those that are lost. Does not end, unless no
    /// worker may be lost.
    pub(super) async fn absent(&self, session: &Session, start: u64, workers: &Workers) -> Result<(), Error> {
        let of_worker = async |worker: usize, nodes: &Vec<String>| {
            loop {
                workers.until(worker, false).await;
                let steps = |node: &String| session.run().target(node).steps(self.steps - start).into_future();
                let gives_and_takes = async {
                    futures::future::try_join_all(nodes.iter().map(steps)).await?;
                    std::future::pending().await
                };
                workers.stand_in(worker, gives_and_takes).await?;
            }
        };
        let all = self.job.absent.iter().enumerate().map(|(worker, nodes)| of_worker(worker, nodes));
        futures::future::try_join_all(all).await.map(|_: Vec<()>| ())
    }

    /// Runs the steps, and the work that is due between them. Once `stop` is ready, the steps that have begun are finished, so
    /// that the saved state is whole. `counted` is the number of updates before the step `start`. Returns the last step, and
    /// `None` if the workers are to be others from there on: the course then has a copy of the state.
    pub(super) async fn step(
        &self,
        session: &Session,
        start: u64,
        observer: &mut dyn Observer,
        stop: impl Future<Output = ()>,
        (workers, counted, course): (&Workers, u64, &mut Course),
    ) -> Result<(Option<How>, u64), Error> {
        tokio::pin!(stop);
        let (mut step, mut pace, mut stops, mut version) = (start, 1, false, None);
        if course.watch.is_none() {
            course.watch = self.watch(start, observer)?;
        }
        course.begins(start);
        let (mut saved, mut traces) = (Instant::now(), Traces::of(self.traced(start)));
        loop {
            let count = self.next_stop(step, pace, &traces.steps) - step;
            let came = workers.joining().await;
            for join in came.iter().filter_map(|&worker| self.job.joins.get(worker)) {
                session.run().target(join).await?;
            }
            workers.joined(&came);
            workers.report(step, observer)?;
            // Those that are ahead are so of others now, or by more than before.
            if version.is_some_and(|version| version != workers.version()) || !workers.dealer.is_in_turns() {
                let living = workers.living();
                self.level(session, |worker| living.contains(&worker)).await?;
            }
            version = Some(workers.version());
            let before = counted + (step - start);
            let began = Instant::now();
            let segment = async {
                match &self.job.rounds {
                    Some(rounds) => self.run_rounds(session, rounds, (step, count), observer, &mut traces).await,
                    None if traces.steps.contains(&step) => {
                        self.trace(session, step, count, observer, &mut traces, (workers, before)).await
                    }
                    None => self.segment(session, step, count, observer, (workers, before)).await,
                }
            };
            let count = heard(segment, stop.as_mut(), &mut stops).await?;
            workers.stepped();
            step += count;
            course.reached(step);
            workers.report(step, observer)?;
            let took = began.elapsed().as_secs_f64().max(1e-6);
            let segment = if self.job.rounds.is_some() { ROUNDS_SEGMENT } else { SEGMENT };
            pace = ((count as f64 / took * segment.as_secs_f64()) as u64).clamp(1, 1 << 20);
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
                let looked = self.look(session, step, observer, &mut course.watch, workers).await;
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
                false => {
                    let is_last = course.is_to_change();
                    if is_last || course.is_copy_due() {
                        let began = Instant::now();
                        let values = heard(self.values(session, |_| true), stop.as_mut(), &mut stops).await?;
                        course.keep(step, values, began);
                    }
                    match is_last {
                        true => return Ok((None, step)),
                        false => continue,
                    }
                }
            };
            // From here on no task is needed, if the values are here.
            let last = match course.keeps_last() {
                true => Some((Instant::now(), self.values(session, |_| true).await?)),
                false => None,
            };
            match &last {
                _ if is_kept => {}
                None => _ = self.save(session, step, true, observer).await?,
                Some((_, values)) => {
                    let values = self.finite(step, values.clone())?;
                    self.save_values(step, values, true, observer).await?;
                }
            }
            if let Some((began, values)) = last {
                course.keep(step, values, began);
                course.ended = Some(how);
            }
            if let Some(watch) = &mut course.watch {
                self.save_best(watch, true, observer).await?;
            }
            if let (How::Enough, Some(watch)) = (how, &course.watch) {
                let (best, at) = watch.best.unwrap_or((f64::NAN, step));
                observer.enough(step, &watch.name, best, at)?;
            }
            return Ok((Some(how), step));
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
        let traced = if self.job.rounds.is_some() { &(0..0) } else { traced };
        if traced.contains(&step) {
            return due.min(traced.end);
        }
        let due = if step < traced.start { due.min(traced.start) } else { due };
        let soon = match step % self.record {
            0 if pace >= self.record && self.job.steps.len() == 1 => step + pace / self.record * self.record,
            0 => step + pace.min(self.record),
            _ => (step + pace).min(after(self.record)),
        };
        self.round_end(step, soon.min(due))
    }

    /// Runs steps and reports the loss when it is due; `before` is the number of updates so far. Returns the number of steps
    /// that were done: fewer if a worker was lost.
    async fn segment(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
        (workers, before): (&Workers, u64),
    ) -> Result<u64, Error> {
        if self.job.steps.len() > 1 {
            return self.each_its_own(session, step, count, observer, (workers, before)).await;
        }
        let nodes = &self.job.steps[0];
        let feeds = self.beside_batches();
        let every = if step.is_multiple_of(self.record) && count > self.record { self.record } else { 0 };
        let report = |observer: &mut dyn Observer, step: u64, values: &[Tensor]| -> Result<(), Error> {
            Ok(observer.trained(step, &numbers(values)?)?)
        };
        let mut error = None;
        let on_event = |event: StepEvent| {
            let told = match event {
                _ if error.is_some() => return,
                StepEvent::Fetched { step: at, values } => report(observer, step + at, &values),
                StepEvent::Guard(note) => observer.noted(&note.after_steps(step).to_string()).map_err(Error::from),
                _ => return,
            };
            error = told.err();
        };
        let ran = session
            .run()
            .feeds(&feeds)
            .fetches(nodes.fetches())
            .target(&nodes.run)
            .steps(count)
            .watch(every, on_event)
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
            report(observer, last, &ran.values)?;
        }
        Ok(count)
    }

    /// Runs the steps of workers that do not wait for each other. The reported value is the mean over the last step of each.
    /// Returns the number of steps that were done.
    async fn each_its_own(
        &self,
        session: &Session,
        step: u64,
        count: u64,
        observer: &mut dyn Observer,
        (workers, before): (&Workers, u64),
    ) -> Result<u64, Error> {
        // One may have been lost since the last step.
        self.deal_again(session, workers, before, &[]).await?;
        let (living, feeds) = (workers.living(), self.beside_batches());
        let turns = living.len() as u64;
        let spread = self.sections.train.staleness.map_or(u64::MAX, |_| 1);
        let plan = workers.dealer.plan(step, count, &living, spread);
        let of_worker = async |worker: usize, own: u64| -> Result<Option<Vec<f64>>, Error> {
            let nodes = &self.job.steps[worker];
            let run = session.run().feeds(&feeds).fetches(nodes.fetches()).target(&nodes.run).steps(own).into_future();
            let ran = tokio::select! {
                ran = run => ran,
                () = workers.until(worker, false) => return Ok(None),
            };
            let failure = match ran {
                Ok(ran) => {
                    workers.dealer.done(worker, own);
                    return numbers(&ran.values).map(Some);
                }
                Err(failure) => failure,
            };
            match self.explained(session, failure, worker, |own| step + own.saturating_sub(1) * turns + 1).await {
                Error::Failed(failure) => self.leave_out(session, workers, worker, failure).await.map(|()| None),
                error => Err(error),
            }
        };
        let planned: Vec<(usize, u64)> = living.into_iter().zip(plan).filter(|(_, own)| *own > 0).collect();
        let ran = futures::future::try_join_all(planned.iter().map(|&(worker, own)| of_worker(worker, own))).await?;
        let (mut done, mut lost, mut values) = (0, Vec::new(), Vec::new());
        for (one, ran) in planned.into_iter().zip(ran) {
            match ran {
                Some(own) => {
                    done += one.1;
                    values.push(own);
                }
                None => lost.push(one),
            }
        }
        done += self.deal_again(session, workers, before + done, &lost).await?;
        let last = step + done;
        if !values.is_empty() && (last.is_multiple_of(self.record) || last >= self.steps) {
            let mean = |k: usize| values.iter().map(|own| own[k]).sum::<f64>() / values.len() as f64;
            let means: Vec<f64> = (0..self.names().len()).map(mean).collect();
            observer.trained(last, &means)?;
        }
        Ok(done)
    }
}

/// The values of the loss and the metrics.
pub(super) fn numbers(values: &[Tensor]) -> Result<Vec<f64>, Error> {
    values.iter().map(number).collect()
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
