//! Sends the batches of a training ahead to the workers.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use meshtf_tensor::Tensor;
use meshtf_train::data::Examples;
use meshtf_train::file::UpdateMode;
use meshtf_train::job::Drain;

use super::constants::feeds;
use super::state::blocking;
use super::{Error, Trainer};
use crate::Session;

/// As [`Examples::take`]. Reads from files do not block this thread.
async fn take(
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

impl Trainer {
    /// Drops the batches that a killed training left behind.
    pub(super) async fn drain(&self, session: &Session) -> Result<(), Error> {
        for Drain { size, drop } in &self.job.drains {
            if session.run().fetch(size).await?[0].to_i64()? > 0 {
                session.run().target(drop).await?;
            }
        }
        Ok(())
    }

    /// Sends the batches of all steps ahead, as far as the workers have room. `fed` is the number of steps whose batches were
    /// sent, if all workers get theirs together.
    ///
    /// # Errors
    /// [`Error::Input`] for an example that cannot be read; the batches before it were sent.
    pub(super) async fn feed(&self, session: &Session, start: u64, fed: &AtomicU64) -> Result<(), Error> {
        let all = 0..self.job.queues.len();
        if self.job.beside.is_empty() {
            return self.feed_some(session, start, all, fed).await;
        }
        // A worker that is late has no room, and no other worker waits for it.
        futures::future::try_join_all(all.map(|i| self.feed_some(session, start, i..i + 1, fed))).await?;
        Ok(())
    }

    /// As [`feed`](Trainer::feed), for some of the workers.
    async fn feed_some(&self, session: &Session, start: u64, some: Range<usize>, fed: &AtomicU64) -> Result<(), Error> {
        let mut order = self.order.clone();
        // Either all queues share each batch, or each takes one in turn.
        let (replicas, is_async) = (self.job.queues.len() as u64, self.sections.train.mode == UpdateMode::Async);
        let rows = self.sections.train.rows(self.sections.data.batch)?;
        let (mut step, mut block) = (start, self.block as u64);
        'blocks: while step < self.steps {
            let count = (self.steps - step).min(block);
            let batches: Vec<Vec<usize>> = (step..step + count).map(|step| order.of_step(step)).collect();
            let (mut feeds, mut targets) = (Vec::new(), Vec::new());
            for (i, queue) in (0..).zip(&self.job.queues).skip(some.start).take(some.len()) {
                let own: Vec<usize> = match is_async {
                    true => {
                        let turns = (step..step + count).zip(&batches).filter(|(step, _)| step % replicas == i);
                        turns.flat_map(|(_, batch)| batch.iter().copied()).collect()
                    }
                    false => batches.iter().flat_map(|batch| &batch[i as usize * rows..][..rows]).copied().collect(),
                };
                if own.is_empty() {
                    continue;
                }
                let batches = own.len() / rows;
                let tensors = match take(&self.examples, own, vec![batches, rows]).await? {
                    Ok(tensors) => tensors,
                    // The batches before the example that cannot be read are whole.
                    Err(_) if count > 1 => {
                        block = 1;
                        continue 'blocks;
                    }
                    Err(failure) => return Err(Error::Input(failure.message)),
                };
                feeds.extend(queue.feeds.iter().map(String::as_str).zip(tensors));
                targets.push(queue.enqueue.as_str());
            }
            session.run().feeds(&feeds).targets(&targets).await?;
            step += count;
            fed.store(step, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Some examples, `[examples, ...]`: of those that the workers hold, the ones of the first worker.
    pub(super) async fn taken(
        &self,
        session: &Session,
        examples: &Examples,
        places: &[usize],
    ) -> Result<Vec<Tensor>, Error> {
        let mut tensors = take(examples, places.to_vec(), vec![places.len()]).await??;
        let rows = self.sections.train.rows(self.sections.data.batch)?.max(1);
        for ((held, there), tensor) in self.job.held.iter().zip(examples.there()).zip(&mut tensors) {
            let (Some(held), Some(_)) = (held, there) else { continue };
            // Indices are taken in whole batches; the last one is padded.
            let mut places = tensor.to_i64s()?;
            let count = places.len();
            places.resize(count.next_multiple_of(rows), places.last().copied().unwrap_or(0));
            let batches = [places.len() / rows, rows];
            let feeds = [(held.feed.as_str(), Tensor::from_vec(batches, places))];
            let found = session.run().feeds(&feeds).fetch(&held.taken).await?.values.remove(0);
            let example = found.dims()[2..].to_vec();
            let found = found.reshaped([&[batches[0] * rows][..], &example].concat())?;
            *tensor = Examples::new(vec![(String::new(), found)])?
                .take(&(0..count).collect::<Vec<usize>>(), &[count])?
                .remove(0);
        }
        Ok(tensors)
    }

    /// The feeds of each step in addition to its batch: constants, and the flags of a training step for the layers that have
    /// one.
    pub(super) fn beside_batches(&self) -> Vec<(&str, Tensor)> {
        let steps = &self.constants.steps;
        let flag = self.job.training.as_deref().filter(|flag| steps.iter().all(|(name, _)| name != flag));
        flag.map(|name| (name, Tensor::scalar(true))).into_iter().chain(feeds(steps)).collect()
    }
}
