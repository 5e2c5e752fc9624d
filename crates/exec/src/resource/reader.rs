//! Readers: records of the files whose names a queue holds. An op that finds the queue empty waits in it; later ops wait in the
//! reader, in the order they came.

mod saved;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use meshtf_kernels::files::{Folder, Format, Record, Records};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::{self, Budget};
use meshtf_tensor::{Data, Tensor};
use prost::Message;

use super::super::waiting::{
    Answer, MAX_WAITERS, WaitId, Waited, Waiter, Wake, too_many_waiters, unless_held, wake_all,
};
use super::list::Look;
use super::{Lasting, Over, Queue, Resource, Saved, Version};

/// The number of times that readers have asked queues for names, over all readers.
static ASKED: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Reader {
    name: String,
    format: Format,
    folder: Folder,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The file that is being read.
    current: Option<Records>,
    /// Its name.
    work: Vec<u8>,
    /// The number of its records that were read; of a file that is yet to be opened, the number of those to skip.
    read: u64,
    started: i64,
    finished: i64,
    produced: i64,
    /// In the order they came. The first is served.
    reads: VecDeque<Read>,
    /// A thread serves the first read, or it waits in its queue.
    is_busy: bool,
    /// If the first read waits in its queue: the id under which it waits.
    in_queue: Option<WaitId>,
    /// Answers of the queue that no thread has taken yet.
    arrived: VecDeque<(WaitId, Result<Answer>)>,
    /// Names that came for a read which was cancelled.
    spare: VecDeque<Answer>,
    version: Version,
}

struct Read {
    waiter: Waiter,
    queue: Arc<Queue>,
    wanted: Wanted,
}

/// The outcome of asking a queue for a name.
enum Asked {
    Named(Result<Answer>),
    /// The name comes later, or the read was cancelled while it asked: another thread continues.
    Later,
    /// The read was cancelled before it asked.
    GivenUp,
}

/// The number of records that a read takes.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wanted {
    One,
    /// At most this number: fewer at the end of the file.
    UpTo(usize),
}

/// `tensorflow.ReaderBaseState`.
#[derive(Clone, PartialEq, Message)]
struct BaseState {
    #[prost(int64, tag = "1")]
    started: i64,
    #[prost(int64, tag = "2")]
    finished: i64,
    #[prost(int64, tag = "3")]
    produced: i64,
    #[prost(bytes = "vec", tag = "4")]
    work: Vec<u8>,
}

/// Receives a name from the queue for a reader, and continues the read.
struct Arrival(Arc<Reader>);

impl Wake for Arrival {
    fn wake(&self, wait: WaitId, result: Result<Answer>) {
        self.0.hold().arrived.push_back((wait, result));
        // The op that puts a name into the queue does not read its file. A reader has one such thread: its other reads wait.
        let reader = Arc::clone(&self.0);
        let budget = Budget::current();
        let thread = std::thread::Builder::new().name("reader".to_owned());
        if thread.spawn(move || budget.run(|| reader.arrived())).is_err() {
            self.0.arrived();
        }
    }
}

impl Resource for Reader {
    fn wanted() -> &'static str {
        "reader"
    }

    fn kind(&self) -> &'static str {
        Self::KIND
    }

    fn look(&self) -> Look {
        Look { bytes: Some(0), ..Look::default() }
    }

    fn version(&self) -> Option<Version> {
        unless_held(&self.state).map(|state| state.version)
    }

    fn save(&self) -> Result<Saved> {
        self.saved()
    }

    fn load(&self, saved: &Saved, over: Over<'_>) -> Result<()> {
        self.loaded(saved, over)
    }

    fn cancel(self: Arc<Self>, wait: WaitId) {
        self.give_up(wait);
    }
}

impl Reader {
    pub fn new(name: String, format: Format, folder: Folder) -> Reader {
        Reader { name, format, folder, state: Mutex::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    fn hold(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes the waiter with the next records of the file under way, or of one whose name comes from the queue.
    ///
    /// # Errors
    /// ResourceExhausted if too many wait already.
    pub fn read(self: &Arc<Reader>, waiter: Waiter, queue: Arc<Queue>, wanted: Wanted) -> Result<()> {
        let mut state = self.hold();
        if state.reads.len() >= MAX_WAITERS {
            return Err(too_many_waiters(&format!("reader '{}'", self.name)));
        }
        state.reads.push_back(Read { waiter, queue, wanted });
        let is_next = !std::mem::replace(&mut state.is_busy, true);
        drop(state);
        if is_next {
            self.go_on(None);
        }
        Ok(())
    }

    /// Continues with an answer of the queue.
    fn arrived(self: &Arc<Reader>) {
        let mut state = self.hold();
        let Some((wait, result)) = state.arrived.pop_front() else { return };
        match state.in_queue {
            Some(asked) if asked == wait => {
                state.in_queue = None;
                drop(state);
                self.go_on(Some(result));
            }
            // A name that came for a cancelled read goes to the read that waits now.
            Some(asked) if result.is_ok() => {
                state.in_queue = None;
                let queue = state.reads.front().map(|read| Arc::clone(&read.queue));
                drop(state);
                if let Some(queue) = queue {
                    queue.give_up(asked);
                }
                self.go_on(Some(result));
            }
            _ => {
                state.version.raise();
                state.spare.extend(result);
            }
        }
    }

    /// Serves the reads in their order, until there is none or one has to wait. `name` is the queue's answer to the first.
    fn go_on(self: &Arc<Reader>, mut name: Option<Result<Answer>>) {
        loop {
            let mut state = self.hold();
            let Some((wait, queue, wanted)) =
                state.reads.front().map(|read| (read.waiter.wait, Arc::clone(&read.queue), read.wanted))
            else {
                state.is_busy = false;
                return;
            };
            let result = match name.take() {
                Some(result) => result.and_then(|answer| self.start(&mut state, &answer)),
                None => Ok(()),
            };
            let result = result.and_then(|()| self.records(&mut state, wanted));
            drop(state);
            match result {
                Ok(Some(answer)) => self.answer(wait, Ok(answer)),
                Err(failure) => self.answer(wait, Err(failure)),
                Ok(None) => match self.ask(wait, &queue) {
                    Asked::Named(got) => name = Some(got),
                    Asked::Later => return,
                    Asked::GivenUp => {}
                },
            }
        }
    }

    /// Asks the queue for a name for the first read.
    fn ask(self: &Arc<Reader>, wait: WaitId, queue: &Queue) -> Asked {
        let mut state = self.hold();
        if state.reads.front().is_none_or(|read| read.waiter.wait != wait) {
            return Asked::GivenUp;
        }
        if let Some(name) = state.spare.pop_front() {
            state.version.raise();
            return Asked::Named(Ok(name));
        }
        // Each request has a new id, so that cancelling it cancels no later request of the read.
        let asked = WaitId { step: wait.step, number: u64::MAX - ASKED.fetch_add(1, Ordering::Relaxed) };
        state.in_queue = Some(asked);
        drop(state);
        let own = Waiter { device: Arc::new(Arrival(Arc::clone(self))), wait: asked };
        let (mut got, mut others) = (None, Vec::new());
        match queue.dequeue(own) {
            Ok(finished) => {
                for (waiter, result) in finished {
                    if waiter.wait == asked { got = Some(result) } else { others.push((waiter, result)) }
                }
            }
            Err(failure) => got = Some(Err(failure)),
        }
        let mut state = self.hold();
        let is_wanted = state.in_queue == Some(asked);
        let answer = match got {
            Some(result) if is_wanted => {
                state.in_queue = None;
                Asked::Named(result)
            }
            late => {
                state.arrived.extend(late.map(|result| (asked, result)));
                Asked::Later
            }
        };
        drop(state);
        if !is_wanted {
            queue.give_up(asked);
        }
        wake_all(others);
        if !is_wanted {
            self.arrived();
        }
        answer
    }

    /// Opens the file that the queue's answer names.
    fn start(&self, state: &mut State, answer: &Answer) -> Result<()> {
        let [name] = &answer[..] else {
            return Err(Failure::invalid("Expected to read filename from queue with one string component"));
        };
        let (Data::String(names), 0) = (name.data(), name.rank()) else {
            return Err(Failure::invalid("Expected to read filename from queue with one string component"));
        };
        state.current = Some(Records::open(&self.format, &self.folder, names[0].clone())?);
        state.read = 0;
        state.work.clone_from(&names[0]);
        state.started += 1;
        state.version.raise();
        Ok(())
    }

    /// The wanted records; `None` if the queue has to name a file first.
    fn records(&self, state: &mut State, wanted: Wanted) -> Result<Option<Answer>> {
        let most = if let Wanted::UpTo(most) = wanted { most } else { 1 };
        let (mut records, mut bytes): (Vec<Record>, usize) = (Vec::new(), 0);
        if state.current.is_none() && state.started > state.finished {
            // The file of a restored state.
            let mut current = Records::open(&self.format, &self.folder, state.work.clone())?;
            let mut skipped = 0;
            while skipped < state.read && current.next()?.is_some() {
                skipped += 1;
            }
            state.current = Some(current);
        }
        while records.len() < most {
            let Some(current) = &mut state.current else { break };
            match current.next()? {
                Some(record) => {
                    bytes += record.0.len() + record.1.len() + 2 * size_of::<Vec<u8>>();
                    meshtf_kernels::call::check_text_bytes(bytes)?;
                    memory::grow()?;
                    state.version.raise();
                    state.read += 1;
                    records.push(record);
                }
                None => {
                    state.version.raise();
                    state.current = None;
                    state.finished = state.started;
                }
            }
        }
        if records.is_empty() && most > 0 {
            return Ok(None);
        }
        if matches!(self.format, Format::Name | Format::Whole) {
            // Such a file ends with its one record.
            state.current = None;
            state.finished = state.started;
        }
        state.produced += records.len() as i64;
        Ok(Some(match wanted {
            Wanted::One => records.into_iter().flat_map(|(key, value)| [key, value]).map(Tensor::scalar).collect(),
            Wanted::UpTo(_) => {
                let (keys, values): (Vec<_>, Vec<_>) = records.into_iter().unzip();
                Answer::from_iter([Tensor::vector(keys), Tensor::vector(values)])
            }
        }))
    }

    /// Answers the first read, if it has not been cancelled.
    fn answer(&self, wait: WaitId, result: Result<Answer>) {
        let mut state = self.hold();
        let read = state.reads.pop_front_if(|read| read.waiter.wait == wait);
        drop(state);
        if let Some(read) = read {
            read.waiter.wake(result);
        }
    }

    /// Cancels a read that waits.
    pub fn give_up(self: &Arc<Reader>, wait: WaitId) {
        let mut state = self.hold();
        let Some(at) = state.reads.iter().position(|read| read.waiter.wait == wait) else { return };
        let Some(read) = state.reads.remove(at) else { return };
        let asked = if at == 0 { state.in_queue.take() } else { None };
        drop(state);
        if let Some(asked) = asked {
            read.queue.give_up(asked);
            self.go_on(None);
        }
    }

    /// The number of records read, and of files finished.
    pub fn counts(&self) -> (i64, i64) {
        let state = self.hold();
        (state.produced, state.finished)
    }

    /// Forgets the file under way and the counts.
    pub fn reset(&self) {
        let state = &mut *self.hold();
        state.version.raise();
        (state.current, state.work, state.read) = (None, Vec::new(), 0);
        (state.started, state.finished, state.produced) = (0, 0, 0);
    }

    /// # Errors
    /// Unimplemented for a reader of files with several records.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.check_saves("SerializeState")?;
        let state = self.hold();
        let (started, finished, produced) = (state.started, state.finished, state.produced);
        Ok(BaseState { started, finished, produced, work: state.work.clone() }.encode_to_vec())
    }

    /// # Errors
    /// As [`Reader::serialize`]; InvalidArgument if the bytes are not such a state.
    pub fn restore(&self, bytes: &[u8]) -> Result<()> {
        self.check_saves("RestoreState")?;
        let shown = || format!("Could not parse state for {}: {}", self.name, bytes.escape_ascii());
        let BaseState { started, finished, produced, work } =
            BaseState::decode(bytes).map_err(|_| Failure::invalid(shown()))?;
        if started < 0 || finished < 0 || produced < 0 {
            return Err(Failure::invalid(format!("Unexpected negative value when restoring in {}", self.name)));
        }
        if started > finished.saturating_add(1) || started < finished {
            let why = format!(
                "Inconsistent work started vs. finished when restoring in {}: {started} vs. {finished}",
                self.name
            );
            return Err(Failure::invalid(why));
        }
        let state = &mut *self.hold();
        (state.started, state.finished, state.produced) = (started, finished, produced);
        state.version.raise();
        (state.current, state.work, state.read) = (None, work, 0);
        Ok(())
    }

    fn check_saves(&self, what: &str) -> Result<()> {
        if matches!(self.format, Format::Name | Format::Whole) {
            return Ok(());
        }
        Err(Failure::new(meshtf_tensor::failure::Code::Unimplemented, format!("Reader {what}")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::Kind;
    use super::*;
    use meshtf_tensor::DType;
    use meshtf_tensor::ids::{SessionId, StepId};

    /// Sends on the answers that it is woken with.
    struct Teller(mpsc::Sender<(u64, Result<Answer>)>);

    impl Wake for Teller {
        fn wake(&self, wait: WaitId, result: Result<Answer>) {
            let _ = self.0.send((wait.number, result));
        }
    }

    #[test]
    fn a_name_for_a_read_that_was_given_up_goes_to_the_next() {
        let (sender, answers) = mpsc::channel();
        let device: Arc<dyn Wake> = Arc::new(Teller(sender));
        let wait = |number: u64| WaitId { step: StepId { session: SessionId(1), number: 1 }, number };
        let waiter = |number: u64| Waiter { device: Arc::clone(&device), wait: wait(number) };
        let queue = Queue::new(String::new(), Kind::Fifo, vec![DType::String], Vec::new(), 10, None);
        let queue = Arc::new(queue);
        let folder = Folder::of("IdentityReaderV2", &Default::default(), None);
        let reader = Arc::new(Reader::new(String::new(), Format::Name, folder));
        reader.read(waiter(1), Arc::clone(&queue), Wanted::One).unwrap();
        let served = queue.enqueue(waiter(2), vec![Tensor::scalar(b"a".to_vec())]).unwrap();
        // The name is on its way when the first read is cancelled, and the next read waits in the queue.
        reader.give_up(wait(1));
        reader.read(waiter(3), Arc::clone(&queue), Wanted::One).unwrap();
        wake_all(served.into_iter().filter(|(waiter, _)| waiter.wait != wait(2)));
        let (number, answer) = answers.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!((number, &answer.unwrap()[0]), (3, &Tensor::scalar(b"a".to_vec())));
    }
}
