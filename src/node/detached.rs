//! The detached runs of a node: it is their client and their master. What they leave is kept for a day, within limits. A run
//! may have an heir, a node that continues it if this one is lost (`heirs`).

mod attended;
mod entry;
mod heirs;
mod kept;
mod parts;
mod removal;
mod states;
mod tail;
mod trained;
mod training;
mod watcher;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use meshtf_graph::Graph;
use meshtf_graph::plan::Mode;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result, counted};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;
use tokio::runtime::Handle;

use self::entry::{Entry, Steps, Whole};
use self::heirs::Heirloom;
use self::states::States;
use self::training::Threads;
use crate::mesh::Mesh;
use crate::protocol::Peer;
use crate::protocol::detached::{AskDetached, DetachedStatus, Launch, MAX_STARTING, ToldDetached};
use crate::protocol::status::shorten;
use crate::runtime::detached::Detached;
use crate::runtime::master::Master;
use crate::runtime::requests::Requests;
use crate::session::Session;

/// How long the session of a run may take to open and its steps to be planned: its graph may come with gigabytes of constants.
const STARTS_WITHIN: Duration = Duration::from_secs(600);

/// The detached runs of a node.
pub(super) struct DetachedRuns {
    me: Weak<DetachedRuns>,
    mesh: Mesh,
    master: Weak<Master>,
    requests: Arc<Requests>,
    handle: Handle,
    /// The oldest first.
    entries: Mutex<Vec<Arc<Entry>>>,
    /// The runs that start now: each has a thread that waits.
    starting: Mutex<Vec<Starting>>,
    /// The runs of other nodes that this one is to continue.
    heirlooms: Mutex<Vec<Heirloom>>,
    /// The heirs are looked after.
    is_kept: Mutex<bool>,
    /// Of trainings.
    states: States,
    threads: Arc<Threads>,
}

impl Detached for DetachedRuns {
    fn answer(&self, from: &Peer, ask: AskDetached, tensors: Vec<Tensor>) -> Result<(ToldDetached, Vec<Tensor>)> {
        self.sweep();
        let of_status = |status: DetachedStatus| Ok((ToldDetached::Status(Box::new(status)), Vec::new()));
        match ask {
            AskDetached::Launch { run, launch } => of_status(self.launch(from, run, *launch, tensors)?),
            AskDetached::Train { run, training } => of_status(self.train(from, run, *training, tensors)?),
            AskDetached::State { run, file, offset } => {
                let (bytes, stamp, part) = self.entry(run)?.state_part(file, offset)?;
                Ok((ToldDetached::State { bytes, stamp }, vec![part]))
            }
            AskDetached::List => {
                let list = lock(&self.entries).iter().rev().map(|entry| entry.status()).collect();
                Ok((ToldDetached::List(list), Vec::new()))
            }
            AskDetached::Follow { run, after } => {
                let entry = self.entry(run)?;
                if let (Some(until), Some(master)) = (entry.received(from, after), self.master.upgrade()) {
                    master.received(run, until);
                }
                let (followed, tensors) = entry.follow(after);
                Ok((ToldDetached::Followed(Box::new(followed)), tensors))
            }
            AskDetached::Stop { run, .. } if self.stop_starting(run) => {
                Err(Failure::new(Code::Cancelled, format!("run {run} is ended before it begins")))
            }
            AskDetached::Stop { run, now } => of_status(self.entry(run)?.stop(from, now)),
            AskDetached::Inherit { run, by, task, age_ms, launch } => {
                let began = Duration::from_millis(age_ms);
                self.inherit(from, (run, by, task, began), Whole::of(*launch, tensors)?)?;
                Ok((ToldDetached::Noted, Vec::new()))
            }
            AskDetached::Reached { run, step } => {
                self.reached(from, run, step);
                Ok((ToldDetached::Noted, Vec::new()))
            }
            AskDetached::Disinherit { run } => {
                self.disinherit(from, run);
                Ok((ToldDetached::Noted, Vec::new()))
            }
        }
    }
}

impl DetachedRuns {
    /// Those of a node, whose work is done on this runtime, with a folder for the states of trainings.
    pub fn new(
        mesh: Mesh,
        master: &Arc<Master>,
        requests: Arc<Requests>,
        (handle, folder): (Handle, PathBuf),
    ) -> Arc<DetachedRuns> {
        let states = States::below(folder);
        let (left, old) = states.left();
        old.spawn(&handle);
        let left = left.into_iter().map(|(run, folder, about)| Arc::new(Entry::left(run, folder, &about)));
        let mut entries: Vec<Arc<Entry>> = left.collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.age()));
        Arc::new_cyclic(|me| DetachedRuns {
            me: me.clone(),
            mesh,
            master: Arc::downgrade(master),
            requests,
            handle,
            entries: Mutex::new(entries),
            starting: Mutex::default(),
            heirlooms: Mutex::default(),
            is_kept: Mutex::default(),
            states,
            threads: Arc::default(),
        })
    }

    fn entry(&self, run: SessionId) -> Result<Arc<Entry>> {
        // A run may have ended here and come back: that is the newest.
        let found = lock(&self.entries).iter().rfind(|entry| entry.run == run).cloned();
        found.ok_or_else(|| Failure::new(Code::NotFound, format!("run {run} is not on this node, or not any more")))
    }

    /// The answer to a request to begin a run that is here already.
    fn known(&self, by: &Peer, run: SessionId) -> Option<Result<DetachedStatus>> {
        lock(&self.entries).iter().find(|entry| entry.run == run).map(|known| known.status_for(by))
    }

    /// Ends a run that is being prepared and not among the entries yet; whether there is one.
    fn stop_starting(&self, run: SessionId) -> bool {
        let entries = lock(&self.entries);
        if entries.iter().any(|entry| entry.run == run) {
            return false;
        }
        let mut all = lock(&self.starting);
        all.iter_mut().find(|(one, _)| *one == run).map(|(_, is_ended)| *is_ended = true).is_some()
    }

    /// Opens the session of a run and has it planned, so that most errors are those of the launch. Then its steps begin. A run
    /// that is here already is not begun again.
    fn launch(&self, by: &Peer, run: SessionId, launch: Launch, tensors: Vec<Tensor>) -> Result<DetachedStatus> {
        if let Some(known) = self.known(by, run) {
            return known;
        }
        self.check_not_left(run)?;
        let mut whole = Whole::of(launch, tensors)?;
        // Another master would place nodes that name no task elsewhere.
        let own = self.master.upgrade().map(|master| master.task().clone());
        whole.options.default_task = whole.options.default_task.take().or(own);
        let start = Start::of(&self.starting, run)?;
        let entry = Arc::new(Entry::new(run, by.clone(), whole, (Duration::ZERO, 0)));
        {
            let mut entries = lock(&self.entries);
            if let Some(known) = entries.iter().find(|entry| entry.run == run) {
                return known.status_for(by);
            }
            kept::has_room(&entries)?;
            start.check()?;
            entries.push(Arc::clone(&entry));
        }
        match self.start(&entry) {
            Ok(session) => {
                let status = entry.status();
                self.keep_heirs();
                self.handle.spawn(self.made(entry, session));
                Ok(status)
            }
            Err(failure) => {
                // One that was ended is listed as such.
                if !entry.ends_unstarted(&failure) {
                    lock(&self.entries).retain(|one| !Arc::ptr_eq(one, &entry));
                }
                Err(failure)
            }
        }
    }

    /// The session of a run, whose steps are planned. Waits on this thread, though not longer than the node lives.
    fn start(&self, entry: &Arc<Entry>) -> Result<Session> {
        let closing = || Failure::new(Code::Unavailable, "this node is closing");
        let whole = entry.whole().ok_or_else(closing)?;
        let (opened, entry) = (self.open(entry.run, Arc::clone(&whole)), Arc::clone(entry));
        let (sender, receiver) = mpsc::channel();
        let work = self.handle.spawn(async move {
            let ready = async {
                let session = opened.await?;
                session.make_ready(&whole.steps.signature).await?;
                Ok(session)
            };
            // Nobody waits any more if it took too long: the session is closed.
            let _late = sender.send(entry.start(ready).await);
        });
        match receiver.recv_timeout(STARTS_WITHIN) {
            Ok(started) => started,
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(closing()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                work.abort();
                let within = STARTS_WITHIN.as_secs();
                Err(Failure::new(Code::DeadlineExceeded, format!("the steps were not planned within {within} s")))
            }
        }
    }

    /// Makes the steps of a run. Its heir learns at once that it is over, or it might continue it.
    fn made(&self, entry: Arc<Entry>, session: Session) -> impl Future<Output = ()> + Send + use<> {
        let me = self.me.clone();
        async move {
            let (run, master) = (entry.run, me.upgrade().map(|runs| runs.master.clone()).unwrap_or_default());
            entry.work(session, || master.upgrade().is_some_and(|master| master.is_superseded(run))).await;
            if let Some(runs) = me.upgrade() {
                runs.look_at_own();
                runs.sweep();
            }
            // Then its values make room for those of others.
            tokio::time::sleep(kept::GRACE).await;
            me.upgrade().into_iter().for_each(|runs| runs.sweep());
        }
    }

    /// A run that comes from another node. If it was here before, that is forgotten.
    fn begin(&self, entry: Arc<Entry>) {
        {
            let mut entries = lock(&self.entries);
            entries.retain(|one| one.run != entry.run || one.ended().is_none());
            entries.push(entry);
        }
        self.keep_heirs();
    }

    fn open(&self, run: SessionId, of: Arc<Whole>) -> impl Future<Output = Result<Session>> + Send + use<> {
        let (own, requests) = (self.mesh.peer().clone(), Arc::clone(&self.requests));
        async move { Session::open_as(run, requests, own, &of.graph, of.options.clone()).await }
    }

    fn sweep(&self) {
        let removal = {
            let mut entries = lock(&self.entries);
            self.states.removal(kept::sweep(&mut entries, Instant::now()))
        };
        removal.spawn(&self.handle);
    }

    /// Makes room on the disk for so many bytes, and returns the bytes that the states of all runs take or may take then.
    ///
    /// # Errors
    /// As [`kept::make_disk`]; Unavailable if the removal of earlier states takes too long.
    fn make_disk(&self, bytes: u64) -> Result<u64> {
        let removal = {
            let entries = lock(&self.entries);
            self.states.removal(kept::make_disk(&entries, bytes)?)
        };
        removal.make();
        // Others may have dropped states, too.
        self.states.wait_for_removals()?;
        // Some may have begun meanwhile.
        Ok(kept::used(&lock(&self.entries)))
    }
}

/// A run that starts, and whether somebody has ended it.
type Starting = (SessionId, bool);

/// One of the runs that start now.
struct Start<'a>(&'a Mutex<Vec<Starting>>, SessionId);

impl Start<'_> {
    /// # Errors
    /// ResourceExhausted if too many start.
    fn of(starting: &Mutex<Vec<Starting>>, run: SessionId) -> Result<Start<'_>> {
        let mut all = lock(starting);
        if all.len() >= MAX_STARTING {
            let why = format!("{MAX_STARTING} detached runs are starting on this node, which is the limit; try again");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        all.push((run, false));
        Ok(Start(starting, run))
    }

    /// As [`Start::of`], while no other run of this name starts.
    ///
    /// # Errors
    /// As there; AlreadyExists if one does.
    fn alone(starting: &Mutex<Vec<Starting>>, run: SessionId) -> Result<Start<'_>> {
        let start = Start::of(starting, run)?;
        let is_alone = lock(starting).iter().filter(|(one, _)| *one == run).count() == 1;
        let exists = || Failure::new(Code::AlreadyExists, format!("run {run} is starting already"));
        is_alone.then_some(start).ok_or_else(exists)
    }

    /// Refuses a run that somebody has ended.
    ///
    /// # Errors
    /// Cancelled.
    fn check(&self) -> Result<()> {
        match lock(self.0).contains(&(self.1, true)) {
            true => Err(Failure::new(Code::Cancelled, "the run was ended before its first step")),
            false => Ok(()),
        }
    }
}

impl Drop for Start<'_> {
    fn drop(&mut self) {
        let mut all = lock(self.0);
        if let Some(at) = all.iter().position(|(one, _)| *one == self.1) {
            all.swap_remove(at);
        }
    }
}

impl Drop for DetachedRuns {
    fn drop(&mut self) {
        self.threads.closing.store(true, Ordering::Relaxed);
        lock(&self.entries).iter().for_each(|entry| entry.give_up());
        self.threads.wait();
    }
}

impl Whole {
    /// The run that a launch describes.
    ///
    /// # Errors
    /// InvalidArgument if it has no step, feeds are missing, or the graph is wrong.
    fn of(launch: Launch, mut tensors: Vec<Tensor>) -> Result<Whole> {
        let Launch {
            mut title,
            graph: mut nodes,
            constants,
            options,
            signature,
            steps: count,
            every,
            has_heir,
            is_attended,
        } = launch;
        if count == 0 {
            return Err(Failure::invalid("a run has one step at least"));
        }
        if signature.mode != Mode::Whole {
            return Err(Failure::invalid("the steps of a detached run receive all feeds at their start, untraced"));
        }
        if tensors.len() < signature.feeds.len() {
            let feeds = counted(signature.feeds.len(), "feed");
            return Err(Failure::invalid(format!("{feeds}, but {} values", tensors.len())));
        }
        shorten(&mut title);
        let rest = tensors.split_off(signature.feeds.len());
        constants.put_back(&mut [&mut nodes[..]], rest, |_| None)?;
        let steps = Steps { signature, feeds: tensors, count, every };
        Ok(Whole { title, graph: Graph::new(nodes)?, options, steps, has_heir, is_attended })
    }
}

#[cfg(test)]
mod tests;
