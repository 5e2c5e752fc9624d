//! The large constants that a participant has, by their contents: those in its memory, and with a task those of its disk.
//!
//! In memory they are known for as long as somebody keeps them, a client's session or a plan: so sessions of one model share
//! them. The disk keeps those that a task used. A constant that neither has is taken from the participant that offers it
//! (`fetch`), and compared with its content before it is used.

mod fetch;
mod supply;

use std::collections::HashMap;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{Tensor, WeakTensor, constant, memory};

pub(crate) use self::fetch::Fetch;
pub(crate) use self::supply::Supply;
use crate::protocol::Content;
use crate::protocol::cached::{CacheStatus, CachedWeight};
use crate::protocol::constants::Kept;
use crate::protocol::status::Listed;
use crate::weight_cache::{self, Entry, WeightCache};

/// Most bytes of constants that wait to be written to the disk, or one constant that is larger; others are not written.
const MAX_UNWRITTEN_BYTES: usize = 256 << 20;
/// Entries of constants that are gone are removed whenever the number of entries has doubled, from this number on.
const SWEEP_FROM: usize = 64;
/// Fewest bytes of constants that are worth another thread.
const BYTES_A_THREAD: usize = 8 << 20;

/// The constants that a participant has.
pub struct Weights {
    memory: Mutex<Memory>,
    disk: Option<Disk>,
}

#[derive(Default)]
struct Memory {
    constants: HashMap<Content, WeakTensor>,
    sweep_at: usize,
}

/// A cache on the disk, and the queue of the thread that writes to it.
struct Disk {
    cache: Arc<WeightCache>,
    writer: Sender<Unwritten>,
    /// The bytes in the queue.
    unwritten: Arc<AtomicUsize>,
}

type Unwritten = (Kept, Tensor);

/// One of a limited number of slots; dropping it frees it.
pub(crate) struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// A slot, if fewer than `most` are taken.
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Turn> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let turn = Turn(Arc::clone(taken));
        (before < most).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Weights {
    /// Those of a participant that keeps them in memory only.
    pub fn in_memory() -> Arc<Weights> {
        Arc::new(Weights { memory: Mutex::default(), disk: None })
    }

    /// Those of one that keeps them on the disk, too.
    pub fn with_cache(cache: WeightCache) -> Arc<Weights> {
        let cache = Arc::new(cache);
        let (writer, unwritten) = channel();
        let (of_writer, bytes) = (Arc::clone(&cache), Arc::new(AtomicUsize::new(0)));
        let left = Arc::clone(&bytes);
        let started = thread::Builder::new()
            .name("meshtf-cache".into())
            .spawn(move || write_all(&of_writer, &unwritten, &left))
            .inspect_err(|error| tracing::warn!("weights are not written to the disk: no thread starts: {error}"));
        let disk = started.is_ok().then_some(Disk { cache, writer, unwritten: bytes });
        Arc::new(Weights { memory: Mutex::default(), disk })
    }

    /// Notes constants. Returns the tensors to keep in their place: of equal ones, the one that is known, so that it is at hand
    /// for as long as any of them is kept.
    pub fn note(&self, constants: impl IntoIterator<Item = (Content, Tensor)>) -> Vec<(Content, Tensor)> {
        let mut memory = lock(&self.memory);
        let mut noted = Vec::new();
        for (content, value) in constants {
            if memory.constants.len() >= memory.sweep_at {
                memory.constants.retain(|_, value| !value.is_gone());
                memory.sweep_at = SWEEP_FROM.max(2 * memory.constants.len());
            }
            let known = memory.constants.get(&content).and_then(WeakTensor::upgrade);
            let value = known.unwrap_or_else(|| {
                let value = constant::kept(value);
                memory.constants.insert(content, value.downgrade());
                value
            });
            noted.push((content, value));
        }
        noted
    }

    /// The constant of a content that is in memory.
    pub fn at_hand(&self, content: &Content) -> Option<Tensor> {
        lock(&self.memory).constants.get(content).and_then(WeakTensor::upgrade)
    }

    /// The constants of these contents, if all are in memory.
    pub fn all_at_hand(&self, kept: &[Kept]) -> Option<HashMap<Content, Tensor>> {
        kept.iter().map(|one| Some((one.content, self.at_hand(&one.content)?))).collect()
    }

    /// Those of these constants that the disk has, until `is_wanted` is false. They are read on several threads: to compare them
    /// with their contents takes as long as to read them.
    ///
    /// # Errors
    /// ResourceExhausted if there is no memory for one.
    fn read_cache(&self, wanted: &[&Kept], is_wanted: &(impl Fn() -> bool + Sync)) -> Result<Vec<(Content, Tensor)>> {
        let Some(Disk { cache, .. }) = &self.disk else { return Ok(Vec::new()) };
        let budget = Budget::current();
        let read = spread(wanted, wanted.iter().map(|one| one.bytes()), |one| {
            let read = || cache.get(&one.content);
            if is_wanted() { budget.run(read) } else { Ok(None) }
        });
        let mut found = Vec::new();
        for (one, value) in wanted.iter().zip(read) {
            found.extend(value?.map(|value| (one.content, value)));
        }
        Ok(found)
    }

    /// The weights of the disk, for the members of the mesh.
    ///
    /// # Errors
    /// Unavailable if the folder cannot be read.
    pub fn on_disk(&self) -> Result<CacheStatus> {
        let Some(Disk { cache, .. }) = &self.disk else { return Ok(CacheStatus::default()) };
        let entries = weight_cache::entries(cache.folder());
        let cannot =
            |error| Failure::new(Code::Unavailable, format!("the folder of its weights cannot be read: {error}"));
        let (mut kept_bytes, mut elsewhere_bytes) = (0, 0);
        let told = |entry: Entry| {
            let is_elsewhere = entry.file.is_some();
            *if is_elsewhere { &mut elsewhere_bytes } else { &mut kept_bytes } += entry.bytes;
            let used_ms = entry.used.elapsed().unwrap_or_default().as_millis() as u64;
            let Entry { node, dtype, shape, bytes, .. } = entry;
            CachedWeight { node, dtype, shape, bytes, used_ms, is_elsewhere }
        };
        let weights = Listed::all(entries.map_err(cannot)?.into_iter().map(told).collect());
        Ok(CacheStatus { limit: Some(cache.limit()), kept_bytes, elsewhere_bytes, weights }.cut())
    }

    /// Has a constant written to the disk, soon. If there is no room in the queue, or little memory, it is not.
    fn write(&self, one: &Kept, value: &Tensor) {
        // Until it is written, it takes memory that a step may need.
        let Some(disk) = self.disk.as_ref().filter(|_| memory::admit(value.byte_len()).is_ok()) else { return };
        let before = disk.unwritten.fetch_add(value.byte_len(), Ordering::Relaxed);
        let has_room = before == 0 || before.saturating_add(value.byte_len()) <= MAX_UNWRITTEN_BYTES;
        if !has_room || disk.writer.send((one.clone(), value.clone())).is_err() {
            disk.unwritten.fetch_sub(value.byte_len(), Ordering::Relaxed);
        }
    }
}

/// Writes constants until the participant is gone. A disk that takes none is reported once, until it takes one again.
fn write_all(cache: &WeightCache, unwritten: &Receiver<Unwritten>, bytes: &AtomicUsize) {
    let mut is_failing = false;
    let mut note = |result: io::Result<()>| match result {
        Ok(()) => is_failing = false,
        Err(error) if !is_failing => {
            tracing::warn!("weights are not kept in {}: {error}", cache.folder().display());
            is_failing = true;
        }
        Err(_) => {}
    };
    note(cache.tidy());
    for (Kept { content, node, .. }, value) in unwritten {
        note(cache.put(&content, &node, &constant::at_hand(&value)));
        bytes.fetch_sub(value.byte_len(), Ordering::Relaxed);
    }
}

/// The contents of constants, in their order; many are computed on several threads.
pub(crate) fn contents(constants: &[Tensor]) -> Vec<Content> {
    spread(constants, constants.iter().map(Tensor::byte_len), Content::of)
}

/// The results of work on each item, in their order; on several threads if the items have many bytes.
fn spread<I: Sync, R: Send>(items: &[I], bytes: impl Iterator<Item = usize>, work: impl Fn(&I) -> R + Sync) -> Vec<R> {
    let bytes = bytes.fold(0, usize::saturating_add);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(bytes / BYTES_A_THREAD).min(items.len());
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let of_thread = || {
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return own };
            own.push((index, work(item)));
        }
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(of_thread)).collect();
        let own = of_thread();
        let of_others =
            others.into_iter().flat_map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        own.into_iter().chain(of_others).collect()
    });
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(value: u8) -> (Content, Tensor) {
        let value = Tensor::vector(vec![value; 1000]);
        (Content::of(&value), value)
    }

    #[test]
    fn a_constant_is_at_hand_for_as_long_as_somebody_keeps_it() {
        let weights = Weights::in_memory();
        let (content, value) = vector(1);
        weights.note([(content, value.clone())]);
        let other = weights.at_hand(&content).unwrap();
        assert_eq!(other.slice::<u8>().unwrap().as_ptr(), value.slice::<u8>().unwrap().as_ptr());
        drop(value);
        assert!(weights.at_hand(&content).is_some());
        drop(other);
        assert!(weights.at_hand(&content).is_none());
        // A constant that is gone takes no entry for long.
        for round in 0..1000u32 {
            let value = Tensor::scalar(round);
            weights.note([(Content::of(&value), value)]);
        }
        assert!(lock(&weights.memory).constants.len() <= SWEEP_FROM);
    }

    #[test]
    fn of_equal_constants_the_known_one_is_kept() {
        let weights = Weights::in_memory();
        let (content, first) = vector(1);
        let (_, second) = vector(1);
        let kept = weights.note([(content, first), (content, second)]);
        assert!(weights.at_hand(&content).is_some());
        let [(_, one), (_, other)] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!(one.slice::<u8>().unwrap().as_ptr(), other.slice::<u8>().unwrap().as_ptr());
    }

    #[test]
    fn contents_are_the_same_on_any_number_of_threads() {
        let constants: Vec<Tensor> = (0..5u8).map(|seed| Tensor::vector(vec![seed; BYTES_A_THREAD])).collect();
        assert_eq!(contents(&constants), constants.iter().map(Content::of).collect::<Vec<_>>());
        assert_eq!(contents(&constants[..1]), [Content::of(&constants[0])]);
        assert_eq!(contents(&[]), []);
    }
}
