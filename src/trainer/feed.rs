//! Sends the batches of a training ahead to the workers.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meshtf_tensor::Tensor;
use meshtf_train::data::{Examples, Order};

use super::constants::feeds;
use super::lost::Workers;
use super::state::blocking;
use super::{Error, MAX_BLOCK, Trainer};
use crate::Session;

/// The time that a queue's room for a block of batches takes to come: for longer, the steps of a training could not stand still
/// between two of them, for a copy of the state.
const BLOCK_TIME: Duration = Duration::from_millis(250);

/// As [`Examples::take`]. Reads from files do not block this thread.
pub(super) async fn take(
    examples: &Examples,
    places: Vec<usize>,
    outer: Vec<usize>,
) -> Result<meshtf_tensor::failure::Result<Vec<Tensor>>, Error> {
    if !examples.are_read() {
        return Ok(examples.take(&places, &outer));
    }
    let examples = examples.clone();
    blocking(move || examples.take(&places, &outer)).await
}

/// As [`take`], for a training that takes each example in one of these epochs.
async fn take_in(
    examples: &Examples,
    places: Vec<usize>,
    epochs: Vec<u64>,
    outer: Vec<usize>,
) -> Result<meshtf_tensor::failure::Result<Vec<Tensor>>, Error> {
    if !examples.are_read() {
        return Ok(examples.take_in(&places, &epochs, &outer));
    }
    let examples = examples.clone();
    blocking(move || examples.take_in(&places, &epochs, &outer)).await
}

/// The examples of some steps, with the epoch in which each is taken.
fn drawn(order: &mut Order, steps: &[u64]) -> (Vec<usize>, Vec<u64>) {
    let of_step = |&step: &u64| {
        let epoch = order.epoch(step);
        order.of_step(step).into_iter().map(move |place| (place, epoch))
    };
    steps.iter().flat_map(of_step).unzip()
}

impl Trainer {
    /// Drops the batches that a killed training left behind. A worker without which the training can begin may be missing.
    pub(super) async fn drain(&self, session: &Session, workers: &Workers) -> Result<(), Error> {
        for (worker, queue) in self.job.queues.iter().enumerate() {
            if let Err(failure) = self.empty(session, &queue.drain).await {
                workers.without(worker, failure)?;
            }
        }
        for drain in &self.job.drains {
            self.empty(session, drain).await?;
        }
        Ok(())
    }

    /// Sends the batches of all steps ahead, as far as the workers have room. `fed` is the number of steps whose batches were
    /// sent, if all workers get theirs together.
    ///
    /// # Errors
    /// [`Error::Input`] for an example that cannot be read; the batches before it were sent.
    pub(super) async fn feed(
        &self,
        session: &Session,
        start: u64,
        fed: &AtomicU64,
        workers: &Workers,
    ) -> Result<(), Error> {
        let all = 0..self.job.queues.len();
        // A worker that is late has no room, and no other worker waits for it.
        if self.job.steps.len() > 1 {
            futures::future::try_join_all(all.map(|worker| self.feed_dealt(session, worker, workers))).await?;
        } else if self.job.beside.is_empty() {
            self.feed_some(session, start..self.steps, all, fed).await?;
        } else {
            futures::future::try_join_all(all.map(|worker| self.feed_beside(session, start, worker, workers))).await?;
        }
        Ok(())
    }

    /// Sends a worker for which updates do not wait its part of each batch, as long as it lives. One that was lost may drop
    /// batches for which it comes too late, so it gets more than there are steps. Does not end, and is to be dropped.
    async fn feed_beside(&self, session: &Session, start: u64, worker: usize, workers: &Workers) -> Result<(), Error> {
        let fed = AtomicU64::new(start);
        let mut end = self.steps;
        loop {
            if workers.is_living(worker) {
                let steps = fed.load(Ordering::Relaxed)..end;
                let failure = tokio::select! {
                    sent = self.feed_some(session, steps, worker..worker + 1, &fed) => match sent {
                        Err(Error::Failed(failure)) => Some(failure),
                        Err(error) => return Err(error),
                        // The batches in its queue are gone if it is lost.
                        Ok(()) => {
                            workers.until(worker, false).await;
                            None
                        }
                    },
                    () = workers.until(worker, false) => None,
                };
                if let Some(failure) = failure {
                    self.leave_out(session, workers, worker, failure).await?;
                }
            }
            end = u64::MAX;
            workers.until(worker, true).await;
        }
    }

    /// Sends a worker that makes its own updates the batches that it is dealt, as long as it lives. Does not end, since batches
    /// of a lost worker are dealt again, and is to be dropped.
    async fn feed_dealt(&self, session: &Session, worker: usize, workers: &Workers) -> Result<(), Error> {
        let mut order = self.order.clone();
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let queue = &self.job.queues[worker];
        let mut block = (self.block / self.job.queues.len()).max(1);
        loop {
            workers.until(worker, true).await;
            let steps = tokio::select! {
                steps = workers.dealer.take(worker, block as u64) => steps,
                () = workers.until(worker, false) => continue,
            };
            let mut sent = 0;
            while sent < steps.len() {
                let some = &steps[sent..][..block.min(steps.len() - sent)];
                let (own, epochs) = drawn(&mut order, some);
                let tensors = match take_in(&self.examples, own, epochs, vec![some.len(), rows]).await? {
                    Ok(tensors) => tensors,
                    // The batches before the example that cannot be read are whole.
                    Err(_) if some.len() > 1 => {
                        block = 1;
                        continue;
                    }
                    Err(failure) => return Err(Error::Input(failure.message)),
                };
                let feeds = queue.fed(tensors);
                let enqueued = tokio::select! {
                    enqueued = session.run().feeds(&feeds).target(&queue.enqueue).into_future() => enqueued.map(|_| ()),
                    () = workers.until(worker, false) => break,
                };
                if let Err(failure) = enqueued {
                    self.leave_out(session, workers, worker, failure).await?;
                    break;
                }
                sent += some.len();
            }
        }
    }

    /// As [`feed`](Trainer::feed), for some of the workers, which share each batch.
    async fn feed_some(
        &self,
        session: &Session,
        steps: Range<u64>,
        some: Range<usize>,
        fed: &AtomicU64,
    ) -> Result<(), Error> {
        let mut order = self.order.clone();
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let Range { start: mut step, end } = steps;
        let mut most = self.block as u64;
        // The first step does not wait for more.
        let mut block = most.min(MAX_BLOCK as u64);
        'blocks: while step < end {
            let count = (end - step).min(block);
            let steps: Vec<u64> = (step..step + count).collect();
            let batches: Vec<(Vec<usize>, Vec<u64>)> = steps.iter().map(|&step| drawn(&mut order, &[step])).collect();
            let (mut feeds, mut targets) = (Vec::new(), Vec::new());
            for (i, queue) in (0..).zip(&self.job.queues).skip(some.start).take(some.len()) {
                let part = i * rows..(i + 1) * rows;
                let own = batches.iter().flat_map(|(places, _)| &places[part.clone()]).copied().collect();
                let epochs = batches.iter().flat_map(|(_, epochs)| &epochs[part.clone()]).copied().collect();
                let tensors = match take_in(&self.examples, own, epochs, vec![batches.len(), rows]).await? {
                    Ok(tensors) => tensors,
                    // The batches before the example that cannot be read are whole.
                    Err(_) if count > 1 => {
                        (block, most) = (1, 1);
                        continue 'blocks;
                    }
                    Err(failure) => return Err(Error::Input(failure.message)),
                };
                feeds.extend(queue.fed(tensors));
                targets.push(queue.enqueue.as_str());
            }
            let began = Instant::now();
            session.run().feeds(&feeds).targets(&targets).await?;
            let pace = count as f64 / began.elapsed().as_secs_f64().max(1e-6);
            block = ((pace * BLOCK_TIME.as_secs_f64()) as u64).clamp(1, most);
            step += count;
            fed.store(step, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Some examples of an epoch of a training, `[examples, ...]`: of those that the workers hold, the ones of this worker.
    pub(super) async fn taken(
        &self,
        session: &Session,
        worker: usize,
        examples: &Examples,
        places: &[usize],
        epoch: u64,
    ) -> Result<Vec<Tensor>, Error> {
        let (epochs, outer) = (vec![epoch; places.len()], vec![places.len()]);
        let mut tensors = take_in(examples, places.to_vec(), epochs, outer).await??;
        for ((held, there), tensor) in self.job.held[worker].iter().zip(examples.there()).zip(&mut tensors) {
            let (Some(held), Some(_)) = (held, there) else { continue };
            let indices = tensor.clone().reshaped([1, places.len()])?;
            *tensor = session.run().feed(&held.feed, indices).fetch(&held.all).await?.values.remove(0);
        }
        Ok(tensors)
    }

    /// The feeds of an evaluation of some examples on a worker: indices of those that the worker holds, and the others by the
    /// placeholders of the model.
    pub(super) async fn evaluated(
        &self,
        worker: usize,
        examples: &Examples,
        places: Vec<usize>,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let count = places.len();
        let tensors = take(examples, places, vec![count]).await??;
        let mut fed = Vec::with_capacity(tensors.len());
        let held = self.job.held[worker].iter().zip(examples.there());
        for ((name, (held, there)), tensor) in examples.names().zip(held).zip(tensors) {
            match (held, there) {
                // The files have the indices in common.
                (Some(held), Some(_)) if fed.iter().any(|(name, _)| *name == held.feed) => {}
                (Some(held), Some(_)) => fed.push((held.feed.clone(), tensor.reshaped([1, count])?)),
                _ => fed.push((self.job.elsewhere.named(name, worker), tensor)),
            }
        }
        Ok(fed)
    }

    /// The feeds of each step in addition to its batch: constants, and the flags of a training step for the layers that have
    /// one.
    pub(super) fn beside_batches(&self) -> Vec<(&str, Tensor)> {
        let steps = &self.constants.steps;
        let flag = self.job.training.as_deref().filter(|flag| steps.iter().all(|(name, _)| name != flag));
        flag.map(|name| (name, Tensor::scalar(true))).into_iter().chain(feeds(steps)).collect()
    }
}
