//! Trainings that a node makes by itself. It has the examples and the weights from the one who asked, and keeps the states on its
//! disk, from where anybody fetches them. Each training has a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use meshtf_graph::Graph;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use meshtf_tensor::memory::Budget;
use meshtf_tensor::safetensors::Contents;
use meshtf_tensor::{Tensor, memory};
use meshtf_train::file;

use super::entry::{CLOSES_WITHIN, Entry};
use super::states::Folder;
use super::tail::bytes;
use super::trained::Trained;
use super::watcher::Watcher;
use super::{DetachedRuns, STARTS_WITHIN, Start, kept};
use crate::client::Client;
use crate::node::reach::Own;
use crate::protocol::detached::DetachedStatus;
use crate::protocol::status::shorten;
use crate::protocol::training::{
    MAX_EXAMPLE_BYTES, MAX_METRIC_BYTES, MAX_METRICS, SavedEvery, SentState, StateFile, Training, TrainingInfo,
};
use crate::protocol::{Peer, SessionOptions};
use crate::trainer::sent::received;
use crate::trainer::{Ended, Error, Every, Found, Lookup, Options, Trainer, stored};

/// The states that are kept: whoever reads the last one has time until the next but one.
const KEEP: usize = 2;
/// The states that are on the disk at most: those, the best, and one that is being written.
const MOST_STATES: u64 = KEEP as u64 + 2;
/// How long the threads of trainings may take to end with their node.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The threads of a node's trainings.
#[derive(Default)]
pub(super) struct Threads {
    count: Mutex<usize>,
    ended: Condvar,
    /// The node ends.
    pub closing: AtomicBool,
}

impl Threads {
    /// Waits until they have ended, though not long.
    pub fn wait(&self) {
        let ended = self.ended.wait_timeout_while(lock(&self.count), ENDS_WITHIN, |count| *count > 0);
        drop(ended);
    }
}

/// One of them.
struct Counted(Arc<Threads>);

impl Counted {
    fn of(threads: &Arc<Threads>) -> Counted {
        *lock(&threads.count) += 1;
        Counted(Arc::clone(threads))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.ended.notify_all();
    }
}

/// A training that is ready to run.
struct Ready {
    trainer: Trainer,
    info: TrainingInfo,
    /// The least time between two copies of a guarded session.
    guard: Option<Duration>,
    /// Bytes of the facts in a state besides its tensors.
    metadata: u64,
}

impl DetachedRuns {
    /// Prepares a training and begins it, so that most errors are those of the request. One that is here already is not begun
    /// again.
    pub(super) fn train(
        &self,
        by: &Peer,
        run: SessionId,
        training: Training,
        tensors: Vec<Tensor>,
    ) -> Result<DetachedStatus> {
        if let Some(known) = self.known(by, run) {
            return known;
        }
        self.check_not_left(run)?;
        let start = Start::alone(&self.starting, run)?;
        // It may have begun meanwhile.
        if let Some(known) = self.known(by, run) {
            return known;
        }
        kept::has_room_for_training(&lock(&self.entries))?;
        self.states.hold()?;
        let folder = self.states.folder(run);
        folder.remove();
        let began = || -> Result<DetachedStatus> {
            let title = training.title.clone();
            let ready = self.prepare(&training, tensors, &folder)?;
            let (entry, ready) = self.enter(&start, (run, by), title, ready, &folder)?;
            self.begin_training(&entry, ready)
        };
        let begun = catch_unwind(AssertUnwindSafe(began));
        let begun = begun.unwrap_or_else(|panic| Err(Failure::panicked("the preparation of a training", &*panic)));
        if begun.is_err() {
            folder.remove();
        }
        begun
    }

    /// Takes a training among the runs of this node, unless somebody ended it while it was prepared.
    fn enter(
        &self,
        start: &Start<'_>,
        (run, by): (SessionId, &Peer),
        mut title: String,
        ready: Ready,
        folder: &Folder,
    ) -> Result<(Arc<Entry>, Ready)> {
        shorten(&mut title);
        // Whatever came with it may stay beside its states.
        let state = ready.trainer.state_bytes().saturating_add(ready.metadata);
        let bytes = state.saturating_mul(MOST_STATES).saturating_add(folder.bytes());
        let own = Trained::new(ready.info.clone(), folder.clone(), bytes);
        let (count, done) = (ready.trainer.steps(), folder.newest().unwrap_or(0));
        let entry = Arc::new(Entry::of_training((run, by.clone()), title, count, own, (Duration::ZERO, done)));
        entry.state().states.saved = folder.newest();
        let mut entries = lock(&self.entries);
        kept::has_room(&entries)?;
        kept::has_room_for_training(&entries)?;
        start.check()?;
        let removal = self.states.removal(kept::make_disk(&entries, bytes)?);
        entries.push(Arc::clone(&entry));
        drop(entries);
        removal.make();
        Ok((entry, ready))
    }

    fn begin_training(&self, entry: &Arc<Entry>, ready: Ready) -> Result<DetachedStatus> {
        let begun = self.in_thread(entry, ready);
        match begun.and_then(|begun| wait(&begun, entry)) {
            Ok(()) => Ok(entry.status()),
            Err(failure) => {
                // One that was ended is listed as such, though without states.
                if entry.is_stopped() {
                    entry.forget_states().iter().for_each(Folder::remove);
                } else {
                    lock(&self.entries).retain(|one| !Arc::ptr_eq(one, entry));
                }
                Err(failure)
            }
        }
    }

    /// Trains on a thread of its own; the result says once that the first step begins, or why it does not.
    fn in_thread(&self, entry: &Arc<Entry>, ready: Ready) -> Result<mpsc::Receiver<Result<()>>> {
        let (sender, receiver) = mpsc::channel();
        let (me, entry, own) = (self.me.clone(), Arc::clone(entry), self.own());
        let (handle, budget, counted) = (self.handle.clone(), Budget::current(), Counted::of(&self.threads));
        let work = move || {
            let watcher = Watcher::new(Arc::clone(&entry), sender.clone());
            let work = || budget.run(|| handle.block_on(make(&entry, &ready, &own, watcher, &counted.0.closing)));
            let outcome = catch_unwind(AssertUnwindSafe(work));
            let outcome = outcome.unwrap_or_else(|panic| Err(Failure::panicked("a training", &*panic)));
            drop(ready);
            if !counted.0.closing.load(Ordering::Relaxed) {
                ended(&entry, &outcome);
            }
            let before = || Failure::new(Code::Cancelled, "the training was ended before its first step");
            // Nobody waits if it had begun.
            let _begun = sender.send(outcome.and_then(|()| Err(before())));
            drop(counted);
            me.upgrade().into_iter().for_each(|runs| runs.sweep());
            memory::tell_all();
        };
        let spawned = thread::Builder::new().name("meshtf-training".into()).spawn(work);
        spawned.map(|_| receiver).map_err(|error| {
            Failure::new(Code::ResourceExhausted, format!("cannot start a thread for a training: {error}"))
        })
    }

    /// This node as a client.
    fn own(&self) -> Own {
        let task = self.master.upgrade().map(|master| master.task().clone());
        Own { mesh: self.mesh.clone(), requests: Arc::clone(&self.requests), task }
    }

    /// Reads the training from its message, and prepares it.
    fn prepare(&self, training: &Training, tensors: Vec<Tensor>, folder: &Folder) -> Result<Ready> {
        let Training { graph, constants, train, evaluate, weights, state, options, .. } = training;
        let of_state: Vec<StateFile> = state.iter().flat_map(SentState::files).collect();
        let missing = || Failure::invalid("tensors of the training are missing");
        let mut of_data = tensors;
        let data = 2 + train.tensors() + evaluate.as_ref().map_or(0, |own| own.tensors());
        if of_data.len() < data + weights.len() + of_state.len() {
            return Err(missing());
        }
        let mut of_weights = of_data.split_off(data);
        let mut files = of_weights.split_off(weights.len());
        let rest = files.split_off(of_state.len());
        let bytes = bytes(&of_data);
        if bytes > MAX_EXAMPLE_BYTES {
            let (own, most) = (memory::Bytes(bytes), memory::Bytes(MAX_EXAMPLE_BYTES));
            let why = format!("the examples take {own}, and a node takes up to {most}");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let mut nodes = graph.clone();
        constants.put_back(&mut [&mut nodes[..]], rest, |_| None)?;
        let model = Graph::new(nodes)?;

        let mut of_data = of_data.into_iter();
        let text = of_data.next().ok_or_else(missing)?.item::<Vec<u8>>()?;
        let text = String::from_utf8(text).map_err(|_| Failure::invalid("the sections are not text"))?;
        let mut sections = file::read(&text).map_err(|error| Failure::invalid(error.to_string()))?;
        (sections.init, sections.train.variables) = (training.init.clone(), training.variables.clone());
        let found = match Lookup::of(&sections, &model).map_err(failure)? {
            Some(lookup) => self.look_up(lookup)?,
            None => Found::default(),
        };
        let data = received((train, evaluate.as_ref()), &mut of_data, &sections, &model, &found).map_err(failure)?;

        let metadata = serde_json::json!(data.fits).to_string().len() as u64;

        let sent = super::tail::bytes(&of_weights).saturating_add(super::tail::bytes(&files)) as u64;
        let used = self.make_disk(sent)?;
        let _reserved = self.states.reserve(sent, used)?;
        let path = folder.path().join("weights.safetensors");
        let has_weights = !weights.is_empty();
        if has_weights {
            let tensors = weights.iter().cloned().zip(of_weights).collect();
            stored::write(&path, &Contents { tensors, ..Contents::default() }).map_err(failure)?;
        }
        of_state.iter().zip(&files).try_for_each(|(file, bytes)| folder.write(*file, bytes))?;
        let every = options.every.map(|every| match every {
            SavedEvery::Steps(steps) => Every::Steps(steps),
            SavedEvery::Time(time) => Every::Time(time),
        });
        let given = Options {
            steps: options.steps,
            checkpoint: Some(folder.path().to_owned()),
            every,
            keep: KEEP,
            weights: has_weights.then(|| path.clone()),
            check_numerics: options.check_numerics,
            resume: state.is_some(),
            ..Options::default()
        };
        let mut trainer = Trainer::new(model, sections, data, &given).map_err(failure)?;
        if has_weights {
            // It has them in memory; a file that stays is removed with its folder.
            let _stays = std::fs::remove_file(&path);
        }
        trainer.copy_every(options.guard);
        options.wait_for.into_iter().for_each(|limit| trainer.wait_for(limit));
        let info = info(&mut trainer, options.report)?;
        let guard = options.guard.filter(|_| trainer.waits_for_workers());
        Ok(Ready { trainer, info, guard, metadata })
    }

    /// Asks the workers for files that they have.
    fn look_up(&self, lookup: Lookup) -> Result<Found> {
        let (own, (sender, receiver)) = (self.own(), mpsc::channel());
        let asked = self.handle.spawn(async move {
            let ask = async {
                let session = own.session(lookup.graph().clone(), None, SessionOptions::default()).await?;
                let found = lookup.ask(&session).await;
                // A failed session is closed nevertheless.
                let _ = session.close().await;
                found
            };
            let _late = sender.send(ask.await.map_err(failure));
        });
        receiver.recv_timeout(STARTS_WITHIN).unwrap_or_else(|_| {
            asked.abort();
            let why = "the workers did not answer about their files";
            Err(Failure::new(Code::DeadlineExceeded, why))
        })
    }
}

/// The training for those who follow it. Its values return to this process for each line, and between lines for those who list
/// the runs.
fn info(trainer: &mut Trainer, report: Option<u64>) -> Result<TrainingInfo> {
    let report = trainer.line_every(report);
    trainer.record_every(if trainer.returns_by_itself() { trainer.point_every(report) } else { report });
    let names = trainer.names();
    let metrics = trainer.sections().evaluate.iter().flat_map(|section| section.metrics.iter().cloned());
    let held_out: Vec<String> = std::iter::once("loss".to_owned()).chain(metrics).collect();
    let all = || names.iter().chain(&held_out);
    if all().count() > MAX_METRICS || all().map(String::len).sum::<usize>() > MAX_METRIC_BYTES {
        let why =
            format!("a training on a node has at most {MAX_METRICS} metrics, with {MAX_METRIC_BYTES} bytes of names");
        return Err(Failure::invalid(why));
    }
    let (per_epoch, batch) = (trainer.steps_per_epoch(), trainer.sections().data.batch as u64);
    Ok(TrainingInfo { per_epoch, report, batch, names, held_out })
}

/// Waits until the first step begins.
fn wait(begun: &mpsc::Receiver<Result<()>>, entry: &Entry) -> Result<()> {
    match begun.recv_timeout(STARTS_WITHIN) {
        Ok(begun) => begun,
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Failure::new(Code::Unavailable, "this node is closing")),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            entry.give_up();
            let within = STARTS_WITHIN.as_secs();
            Err(Failure::new(Code::DeadlineExceeded, format!("the training did not begin within {within} s")))
        }
    }
}

/// Trains to the end, or until somebody ends it.
async fn make(entry: &Entry, ready: &Ready, own: &Own, mut watcher: Watcher, closing: &AtomicBool) -> Result<()> {
    let (Some(training), trainer) = (&entry.training, &ready.trainer) else { return Ok(()) };
    let stopped = training.stops.notified();
    if trainer.is_elastic() {
        let among = trainer.run_among(own, &mut watcher, stopped);
        return tokio::select! {
            biased;
            () = entry.gives_up.notified() => Ok(()),
            ended = among => ended.map(|_: Ended| ()).map_err(failure),
        };
    }
    let options = SessionOptions { guard: ready.guard, default_task: own.task.clone(), ..SessionOptions::default() };
    let session = entry.start(own.session(trainer.graph().clone(), None, options)).await?;
    let outcome = tokio::select! {
        biased;
        () = entry.gives_up.notified() => Ok(()),
        ended = trainer.run_until(&session, &mut watcher, stopped) => ended.map(|_: Ended| ()).map_err(failure),
    };
    if !closing.load(Ordering::Relaxed) {
        // Steps that were given up end with it. A master that is gone has no session.
        let _closed = tokio::time::timeout(CLOSES_WITHIN, session.close()).await;
    }
    outcome
}

/// No step follows.
fn ended(entry: &Entry, outcome: &Result<()>) {
    let Some(training) = &entry.training else { return };
    entry.state().states.has_best = training.folder.file(StateFile::Best).exists();
    let is_ended = entry.is_stopped() && outcome.as_ref().is_err_and(|failure| failure.code == Code::Cancelled);
    entry.end(if is_ended { Ok(()) } else { outcome.clone() });
    training.folder.note(&entry.about());
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NotFinite(why) => Failure::new(Code::FailedPrecondition, why),
        error => error.into(),
    }
}
