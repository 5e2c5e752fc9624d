//! The copies of other tasks' variables that a node keeps, so that these outlive the processes of their tasks.
//!
//! A copy is whole or does not exist. It gives way to newer ones only, by their stamps, and is forgotten once nothing was heard
//! of it for [`KEPT_SECONDS`]: its task is gone then, or its variables are others by now.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshtf_tensor::Tensor;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;

use super::parts::{Body, Chunk, Chunks, Incoming, NOBODY, States, leaves_room};
use crate::protocol::copies::{AskCopies, FoundCopy, KEPT_SECONDS, MAX_MARKS, MAX_TASKS, Mark, Stamp, ToldCopies};

/// See [`KEPT_SECONDS`].
const KEPT_FOR: Duration = Duration::from_secs(KEPT_SECONDS);
/// How long the chunks of a copy that is not whole wait for the next one.
const COMES_WITHIN: Duration = Duration::from_secs(120);

/// The copies that a node keeps, by their tasks.
#[derive(Default)]
pub(crate) struct Copies(Mutex<BTreeMap<Task, OfTask>>);

#[derive(Default)]
struct OfTask {
    whole: Option<Whole>,
    coming: Option<Coming>,
    /// The last copy that was dropped, and when.
    dropped: Option<(Stamp, Instant)>,
}

struct Whole {
    stamp: Stamp,
    states: Arc<States>,
    marks: Vec<Mark>,
    /// When the variables were as they are in it.
    as_of: Instant,
    /// When its holder was heard last.
    heard: Instant,
}

struct Coming {
    stamp: Stamp,
    base: Option<Stamp>,
    incoming: Incoming,
    next: u32,
    heard: Instant,
}

impl OfTask {
    /// The stamp that a copy must have at least.
    fn newest(&self) -> Stamp {
        let whole = self.whole.as_ref().map(|whole| whole.stamp);
        let coming = self.coming.as_ref().map(|coming| coming.stamp);
        whole.into_iter().chain(coming).chain(self.dropped.map(|(stamp, _)| stamp)).max().unwrap_or_default()
    }

    /// Forgets what has become too old.
    fn sweep(&mut self, now: Instant) {
        let is_over = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        self.whole.take_if(|whole| is_over(whole.heard, KEPT_FOR));
        self.coming.take_if(|coming| is_over(coming.heard, COMES_WITHIN));
        self.dropped.take_if(|(_, since)| is_over(*since, KEPT_FOR));
    }

    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.coming.is_none() && self.dropped.is_none()
    }

    /// Takes a chunk of a copy.
    ///
    /// # Errors
    /// InvalidArgument if it is none that can come now.
    fn keep(
        &mut self,
        (stamp, base): (Stamp, Option<Stamp>),
        (now, age): (Instant, Duration),
        marks: Vec<Mark>,
        chunk: Chunk,
    ) -> Result<ToldCopies> {
        if marks.len() > MAX_MARKS {
            return Err(Failure::invalid(format!("{} marks on variables: there are at most {MAX_MARKS}", marks.len())));
        }
        let newest = self.newest();
        let continues = chunk.number > 0;
        if stamp < newest || (stamp == newest && !continues) {
            return Ok(ToldCopies::Later { stamp: newest });
        }
        let whole = self.whole.as_ref();
        if base.is_some_and(|base| whole.is_none_or(|whole| whole.stamp != base)) {
            self.coming = None;
            return Ok(ToldCopies::Unknown);
        }
        let coming = self.coming.take();
        let mut coming = match coming.filter(|coming| coming.stamp == stamp && coming.base == base) {
            Some(coming) if continues => coming,
            None if continues => return Ok(ToldCopies::Unknown),
            _ => Coming { stamp, base, incoming: Incoming::default(), next: 0, heard: now },
        };
        if chunk.number != coming.next || chunk.resources.iter().any(|one| one.is_own) {
            return Err(Failure::invalid(format!("chunk {} is none of a copy that is on its way", chunk.number)));
        }
        (coming.next, coming.heard) = (coming.next + 1, now);
        let known = base.and(whole).map(|whole| &*whole.states);
        if coming.incoming.take(NOBODY, chunk, known)? {
            let as_of = now.checked_sub(age).unwrap_or(now);
            self.whole = Some(Whole { stamp, states: Arc::new(coming.incoming.states), marks, as_of, heard: now });
        } else {
            self.coming = Some(coming);
        }
        Ok(ToldCopies::Kept)
    }

    fn is_same(&mut self, stamp: Stamp, now: Instant) -> ToldCopies {
        match &mut self.whole {
            Some(whole) if whole.stamp == stamp => {
                (whole.as_of, whole.heard) = (now, now);
                ToldCopies::Kept
            }
            Some(whole) if whole.stamp > stamp => ToldCopies::Later { stamp: whole.stamp },
            _ => ToldCopies::Unknown,
        }
    }

    fn drop_until(&mut self, until: Stamp, now: Instant) {
        self.whole.take_if(|whole| whole.stamp <= until);
        self.coming.take_if(|coming| coming.stamp <= until);
        let until = self.dropped.map_or(until, |(before, _)| before.max(until));
        self.dropped = Some((until, now));
    }
}

impl Copies {
    /// Answers an inquiry. `holds` says whether the asker holds a task.
    ///
    /// # Errors
    /// PermissionDenied if only the process that holds the task may ask for that; ResourceExhausted if there is no room;
    /// InvalidArgument if a chunk is none.
    pub fn answer(
        &self,
        ask: AskCopies,
        tensors: Vec<Tensor>,
        holds: impl Fn(&Task) -> bool,
        budget: &Budget,
    ) -> Result<(ToldCopies, Vec<Tensor>)> {
        self.answer_at(Instant::now(), ask, tensors, holds, budget)
    }

    fn answer_at(
        &self,
        now: Instant,
        ask: AskCopies,
        tensors: Vec<Tensor>,
        holds: impl Fn(&Task) -> bool,
        budget: &Budget,
    ) -> Result<(ToldCopies, Vec<Tensor>)> {
        self.sweep_at(now);
        let (task, is_of_holder) = ask.about();
        if is_of_holder && !holds(task) {
            let why = format!("only the process that holds {} keeps copies of its variables", task.short());
            return Err(Failure::new(Code::PermissionDenied, why));
        }
        let told = match ask {
            AskCopies::Keep { task, stamp, base, age_ms, chunk: number, chunks: of, marks, resources } => {
                // The chunk is in use already: another one may be on its way.
                let room = leaves_room(budget, tensors.iter().map(Tensor::byte_len).sum());
                let chunk = Chunk { number, of, resources, tensors };
                self.of(task, |of_task| match room {
                    Ok(()) => of_task.keep((stamp, base), (now, Duration::from_millis(age_ms)), marks, chunk),
                    Err(failure) => {
                        of_task.coming = None;
                        Err(failure)
                    }
                })??
            }
            AskCopies::Same { task, stamp } => self.of(task, |of_task| of_task.is_same(stamp, now))?,
            AskCopies::Drop { task, until } => {
                self.of(task, |of_task| of_task.drop_until(until, now))?;
                ToldCopies::Kept
            }
            AskCopies::Find { task } => ToldCopies::Found(self.find(&task, now)),
            AskCopies::Load { task, stamp, chunk } => {
                let found = self.whole(&task, |whole| (whole.stamp == stamp).then(|| Arc::clone(&whole.states)));
                let part = found.flatten().and_then(|states| chunks(&states).into_iter().nth(chunk as usize));
                return Ok(part.map_or((ToldCopies::Unknown, Vec::new()), |(resources, tensors)| {
                    (ToldCopies::Part { resources }, tensors)
                }));
            }
        };
        Ok((told, Vec::new()))
    }

    /// # Errors
    /// ResourceExhausted if there are copies of too many tasks.
    fn of<R>(&self, task: Task, work: impl FnOnce(&mut OfTask) -> R) -> Result<R> {
        let mut all = lock(&self.0);
        if all.len() >= MAX_TASKS && !all.contains_key(&task) {
            let why = format!("copies of the variables of {MAX_TASKS} tasks are here already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let of_task = all.entry(task.clone()).or_default();
        let worked = work(of_task);
        if of_task.is_empty() {
            all.remove(&task);
        }
        Ok(worked)
    }

    fn whole<R>(&self, task: &Task, read: impl FnOnce(&Whole) -> R) -> Option<R> {
        lock(&self.0).get(task)?.whole.as_ref().map(read)
    }

    fn find(&self, task: &Task, now: Instant) -> Option<FoundCopy> {
        let copy = |whole: &Whole| (whole.stamp, Arc::clone(&whole.states), whole.marks.clone(), whole.as_of);
        let (stamp, states, marks, as_of) = self.whole(task, copy)?;
        Some(FoundCopy {
            stamp,
            variables: states.len() as u64,
            bytes: states.values().map(|saved| saved.bytes() as u64).sum(),
            age_ms: now.saturating_duration_since(as_of).as_millis() as u64,
            chunks: chunks(&states).len() as u32,
            marks,
        })
    }

    /// Forgets what has become too old. To be called from time to time.
    pub fn sweep(&self) {
        self.sweep_at(Instant::now());
    }

    fn sweep_at(&self, now: Instant) {
        lock(&self.0).retain(|_, of_task| {
            of_task.sweep(now);
            !of_task.is_empty()
        });
    }
}

/// A whole copy as chunks.
fn chunks(states: &States) -> Vec<Body> {
    let mut chunks = Chunks::default();
    states.iter().for_each(|(key, saved)| chunks.add(key, Some(saved)));
    chunks.all()
}

#[cfg(test)]
mod tests;
