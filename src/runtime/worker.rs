//! The worker of a node: holds the pieces that masters register, runs them on its devices, and pushes their values to the
//! receivers that wait for them.
//!
//! It knows no graph and no plan beyond its own pieces. It never blocks the thread that delivers a message; the host makes it
//! run a quick step after the delivery.

#[cfg(test)]
pub(super) mod by_hand;
mod constants;
mod guard;
mod marks;
mod registrar;
mod reports;
mod status;
mod together;
mod variables;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use self::guard::{Guards, Parcels};
pub(crate) use marks::Marks;
use meshtf_exec::{Device, Pushed, Resources, Sink};
use meshtf_graph::plan::Piece;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::{DeviceName, Task};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::{PieceId, SessionId, StepId};
use meshtf_tensor::lock::lock;
pub use status::WorkerStatus;
use together::Together;
use tokio::sync::Notify;

use crate::protocol::constants::HeldConstants;
use crate::protocol::guard::ToGuard;
use crate::protocol::{DeviceInfo, Envelope, Peer, PushedValue, ToMaster, ToWorker};
use crate::runtime::router::Router;
use crate::runtime::weights::{Fetch, Weights};

/// Most registrations that wait to be compiled, of which a master has one under way at a time for each plan, and most messages
/// about guarded sessions.
const MAX_QUEUED: usize = 1024;
/// Most sessions, of all masters, that a worker holds pieces of.
const MAX_SESSIONS: usize = 1 << 16;

/// The worker of one task.
pub struct Worker {
    state: Arc<State>,
    /// The queue of the thread that compiles pieces, so that a large graph does not hold up the connection it came on.
    registrar: SyncSender<RegisterWork>,
    /// That of the thread that copies and restores the states of guarded sessions.
    guardian: SyncSender<GuardWork>,
}

/// The work of the two threads, in the order in which it came.
struct Queues {
    registrations: Receiver<RegisterWork>,
    guard: Receiver<GuardWork>,
}

/// A message about a guarded session.
struct GuardWork {
    from: Peer,
    message: ToGuard,
    tensors: Vec<Tensor>,
}

struct RegisterWork {
    master: Peer,
    session: SessionId,
    isolated: bool,
    guarded: bool,
    pieces: Vec<(PieceId, Piece)>,
}

/// The state that the devices' threads share with the worker.
struct State {
    task: Task,
    /// When it began; `None` if its time stands still.
    began: Option<Instant>,
    router: Arc<dyn Router>,
    resources: Arc<Resources>,
    devices: RwLock<BTreeMap<DeviceName, (Arc<Device>, DeviceInfo)>>,
    sessions: Mutex<HashMap<SessionId, WorkerSession>>,
    /// For each peer that went down and may be up for other nodes: the sessions that may have lost values with it.
    lost_peers: Mutex<HashMap<Peer, Vec<Affected>>>,
    /// The way to the large constants of pieces.
    fetch: Fetch,
    /// The copies of the state of guarded sessions.
    guards: Mutex<Guards>,
    /// Those on their way to other tasks.
    parcels: Parcels,
    /// Notified when containers are cleared.
    cleared: Arc<Notify>,
    marks: Marks,
}

/// A session with steps under way while the link to a peer ended.
struct Affected {
    session: SessionId,
    master: Peer,
    /// The last step that was requested by then.
    until: u64,
}

struct WorkerSession {
    master: Peer,
    /// `None` for a piece that is not compiled yet.
    pieces: HashMap<PieceId, Option<Registered>>,
    /// Their large constants, so that these need not come again with the next pieces.
    constants: HeldConstants,
    /// The last step that was requested.
    last: u64,
    /// Registrations that have not ended.
    registering: usize,
    /// It was released while a registration was under way, which then releases its own results.
    is_over: bool,
    /// A piece of it was compiled on this worker, and its resources may exist though the piece was forgotten.
    is_used: bool,
}

/// The failure of work that its thread does not take.
fn not_taken<T>(error: TrySendError<T>) -> Failure {
    match error {
        TrySendError::Full(_) => {
            let why = format!("{MAX_QUEUED} registrations, or messages about guarded sessions, wait already");
            Failure::new(Code::ResourceExhausted, why)
        }
        TrySendError::Disconnected(_) => Failure::new(Code::Unavailable, "the thread that does such work is gone"),
    }
}

fn is_anothers(session: SessionId) -> Failure {
    Failure::new(Code::PermissionDenied, format!("session {session} belongs to another master"))
}

struct Registered {
    device: Arc<Device>,
    /// How many of a `Start`'s tensors are this piece's feeds.
    feeds: usize,
    nodes: usize,
    /// Its steps whose ends are reported together.
    together: Together,
}

impl Worker {
    /// A worker without devices; see [`Worker::add_device`].
    pub fn new(task: Task, router: Arc<dyn Router>, resources: Arc<Resources>, fetch: Fetch) -> Self {
        let began = Some(Instant::now());
        let (worker, Queues { registrations, guard }) = Worker::without_threads(task, router, resources, fetch, began);
        let (registers, guards) = (Arc::clone(&worker.state), Arc::clone(&worker.state));
        let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(work).expect("a thread at start");
        };
        begin("meshtf-register", Box::new(move || registrations.iter().for_each(|work| registers.register(work))));
        begin("meshtf-copy", Box::new(move || guards.guard_all(&guard)));
        worker
    }

    /// The large constants that it has.
    pub fn weights(&self) -> &Arc<Weights> {
        self.state.fetch.weights()
    }

    fn without_threads(
        task: Task,
        router: Arc<dyn Router>,
        resources: Arc<Resources>,
        fetch: Fetch,
        began: Option<Instant>,
    ) -> (Self, Queues) {
        let state = Arc::new(State {
            task,
            began,
            router,
            resources,
            devices: RwLock::default(),
            sessions: Mutex::default(),
            lost_peers: Mutex::default(),
            fetch,
            guards: Mutex::default(),
            parcels: Parcels::default(),
            cleared: Arc::default(),
            marks: Marks::default(),
        });
        let (registrar, registrations) = sync_channel(MAX_QUEUED);
        let (guardian, guard) = sync_channel(MAX_QUEUED);
        (Worker { state, registrar, guardian }, Queues { registrations, guard })
    }

    /// Is notified when containers are cleared: once for several, if nobody waits meanwhile.
    pub fn cleared(&self) -> &Arc<Notify> {
        &self.state.cleared
    }

    /// The marks on its variables.
    pub fn marks(&self) -> &Marks {
        &self.state.marks
    }

    /// The sink for the values of this worker's devices.
    pub fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.state) as Arc<dyn Sink>
    }

    /// Serves a device from now on.
    pub fn add_device(&self, info: DeviceInfo, device: Device) {
        let mut devices = self.state.devices.write().unwrap_or_else(PoisonError::into_inner);
        devices.insert(info.name.clone(), (Arc::new(device), info));
    }

    /// Its devices by name.
    pub fn named_devices(&self) -> Vec<(DeviceName, Arc<Device>)> {
        let devices = self.state.devices.read().unwrap_or_else(PoisonError::into_inner);
        devices.iter().map(|(name, (device, _))| (name.clone(), Arc::clone(device))).collect()
    }

    /// The devices' work and memory, and the use of the worker's limits. Waits for the devices' threads, though not long.
    pub fn status(&self) -> WorkerStatus {
        self.state.status()
    }

    /// Receives a message from a master or another worker.
    pub fn deliver(&self, from: &Peer, message: ToWorker, tensors: Vec<Tensor>) {
        match message {
            ToWorker::Register { session, isolated, mut pieces, constants, guarded } => {
                let ids: Vec<PieceId> = pieces.iter().map(|(id, _)| *id).collect();
                let announced = self.state.announce(from, session, &ids).and_then(|()| {
                    let complete = self.state.put_back(session, &mut pieces, &constants, tensors);
                    let work = RegisterWork { master: from.clone(), session, isolated, guarded, pieces };
                    let sent = complete.and_then(|()| self.register_with(work, constants));
                    sent.inspect_err(|_| self.state.registered(session, &ids))
                });
                if let Err(failure) = announced {
                    let result = Err(failure.on_task(&self.state.task.to_string()));
                    self.state.answer(from, ToMaster::Registered { session, pieces: ids, result });
                }
            }
            ToWorker::Start { pieces, first, count, continues, together } => {
                self.state.start(from, &pieces, (first, count, continues), together, tensors);
            }
            ToWorker::Push { step, to, values } => {
                let mut tensors = tensors.into_iter();
                let values = values
                    .into_iter()
                    .map(|PushedValue { transfer, iterations, is_dead }| {
                        let value = if is_dead { None } else { tensors.next() };
                        Pushed { transfer, iterations, value }
                    })
                    .collect();
                if let Some(device) = self.state.device(&to) {
                    device.arrive(step, values);
                }
            }
            ToWorker::Abort { step, .. } => {
                // Only the master that runs a step cancels it.
                if self.state.is_master(from, step.session) {
                    self.state.none_is_together(step);
                    self.state.all_devices().iter().for_each(|device| device.abort(step));
                }
            }
            ToWorker::Forget { pieces } => self.state.forget(from, &pieces),
            ToWorker::Guard(message) => {
                let Some(message) = self.state.guard_at_once(from, message) else { return };
                let about = message.about();
                let work = GuardWork { from: from.clone(), message, tensors };
                if let Err(failure) = self.guardian.try_send(work).map_err(not_taken) {
                    self.state.refuse_guard(from, &about, failure);
                }
            }
            ToWorker::Release { session } => {
                let was_guarded = lock(&self.state.guards).release(from, session);
                if was_guarded {
                    self.state.drop_unguarded();
                }
                if self.state.is_master(from, session) {
                    self.state.release(session);
                } else if was_guarded {
                    self.state.release_unless_anothers(session);
                }
            }
            // Earlier messages have been processed by this thread, and precede later ones in the mailbox of each device.
            ToWorker::Confirm { session } => self.state.answer(from, ToMaster::Confirmed { session }),
            ToWorker::Clear { containers } => {
                self.state.marks.clear();
                containers.iter().for_each(|container| self.state.resources.clear(container));
                self.state.cleared.notify_one();
            }
        }
    }

    /// There was no memory for a part of a cut.
    pub fn refuse_guard(&self, from: &Peer, message: &ToGuard, failure: Failure) {
        self.state.refuse_guard(from, message, failure);
    }

    /// There was no memory for values of a step: it fails.
    pub fn refuse(&self, step: StepId, to: &DeviceName, failure: Failure) {
        if let Some(device) = self.state.device(to) {
            device.refuse(step, failure);
        }
    }

    /// Forgets the sessions of a master that is gone. If it held a task, notes which of the other sessions may have lost values
    /// with it; a client sends a worker none.
    pub fn down(&self, peer: &Peer, task: Option<&Task>) {
        let mut orphans: Vec<SessionId> = {
            let sessions = self.state.sessions();
            sessions.iter().filter(|(_, session)| session.master == *peer).map(|(id, _)| *id).collect()
        };
        orphans.sort_unstable();
        let guarded = {
            let mut guards = lock(&self.state.guards);
            guards.down(peer);
            guards.of(peer)
        };
        self.state.none_goes_to(peer);
        self.state.drop_unguarded();
        for session in orphans {
            self.state.release(session);
        }
        guarded.into_iter().for_each(|session| self.state.release_unless_anothers(session));
        lock(&self.state.guards).released(peer);
        if task.is_none() {
            return;
        }
        let mut affected: Vec<Affected> = {
            let sessions = self.state.sessions();
            let affected = sessions.iter().filter(|(_, session)| session.last > 0);
            let affected = affected.map(|(&id, WorkerSession { master, last, .. })| Affected {
                session: id,
                master: master.clone(),
                until: *last,
            });
            affected.collect()
        };
        affected.sort_unstable_by_key(|affected| affected.session);
        if !affected.is_empty() {
            self.state.lost_peers().insert(peer.clone(), affected);
        }
    }

    /// A peer went down a while ago. A master that has not noticed can still reach it: it is notified that this worker could
    /// not, since steps of it may wait for values that were lost.
    pub fn report_lost(&self, peer: &Peer, why: &str) {
        for Affected { session, master, until } in self.state.lost_peers().remove(peer).unwrap_or_default() {
            let message = ToMaster::PeerLost { session, until, peer: peer.clone(), why: why.to_owned() };
            self.state.answer(&master, message);
        }
    }
}

impl Drop for Worker {
    /// The devices hold the state as their sink and the state holds the devices: one must drop the other.
    fn drop(&mut self) {
        // Dropped outside of the locks: the last one to drop a device waits for its thread, which may need them.
        let devices = std::mem::take(&mut *self.state.devices.write().unwrap_or_else(PoisonError::into_inner));
        let sessions = std::mem::take(&mut *self.state.sessions());
        drop((devices, sessions));
    }
}

impl State {
    fn device(&self, name: &DeviceName) -> Option<Arc<Device>> {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).get(name).map(|(device, _)| Arc::clone(device))
    }

    fn all_devices(&self) -> Vec<Arc<Device>> {
        self.devices
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(device, _)| Arc::clone(device))
            .collect()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, WorkerSession>> {
        // A panic under this lock leaves every entry whole.
        lock(&self.sessions)
    }

    fn is_master(&self, peer: &Peer, session: SessionId) -> bool {
        self.sessions().get(&session).is_some_and(|session| session.master == *peer)
    }

    fn lost_peers(&self) -> MutexGuard<'_, HashMap<Peer, Vec<Affected>>> {
        lock(&self.lost_peers)
    }

    /// Notes that a registration waits to be compiled, so that a release in the meantime is not missed.
    ///
    /// # Errors
    /// PermissionDenied if the session is another master's, AlreadyExists if one of its pieces exists already,
    /// ResourceExhausted if there are too many sessions.
    fn announce(&self, master: &Peer, id: SessionId, pieces: &[PieceId]) -> Result<()> {
        if pieces.iter().any(|piece| piece.session != id) {
            return Err(is_anothers(id));
        }
        let mut sessions = self.sessions();
        // Under the lock, or the heir of that master might take its place in between.
        if self.is_from_earlier(master, id) {
            return Err(is_anothers(id));
        }
        if sessions.len() >= MAX_SESSIONS && !sessions.contains_key(&id) {
            let why = format!("pieces of {MAX_SESSIONS} sessions are here already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        let session = sessions.entry(id).or_insert_with(|| WorkerSession {
            master: master.clone(),
            pieces: HashMap::new(),
            constants: HeldConstants::default(),
            last: 0,
            registering: 0,
            is_over: false,
            is_used: false,
        });
        if session.master != *master {
            return Err(is_anothers(id));
        }
        let was_anothers = lock(&self.guards).belongs(master, id);
        if was_anothers {
            self.drop_unguarded();
        }
        if pieces.iter().any(|piece| session.pieces.contains_key(piece)) {
            return Err(Failure::new(Code::AlreadyExists, format!("a piece of session {id} is registered already")));
        }
        session.registering += 1;
        session.pieces.extend(pieces.iter().map(|&piece| (piece, None)));
        Ok(())
    }

    /// Notes that a registration has ended, and forgets those of its pieces that were not compiled.
    fn registered(&self, id: SessionId, pieces: &[PieceId]) {
        let is_over = {
            let mut sessions = self.sessions();
            let Entry::Occupied(mut entry) = sessions.entry(id) else { return };
            let session = entry.get_mut();
            for piece in pieces {
                if session.pieces.get(piece).is_some_and(Option::is_none) {
                    session.pieces.remove(piece);
                    session.constants.release(&[*piece]);
                }
            }
            session.registering -= 1;
            let is_over = session.registering == 0 && (session.is_over || !session.is_used);
            // Under the same lock, or another registration could come in between.
            if is_over {
                entry.remove();
            }
            is_over
        };
        if is_over {
            self.all_devices().iter().for_each(|device| device.release(id));
        }
    }

    fn register_one(&self, id: PieceId, piece: Piece) -> Result<()> {
        let over =
            || Failure::new(Code::Cancelled, "its session ended, or it was dropped, while it was being registered");
        let is_wanted =
            |session: &WorkerSession| !session.is_over && session.pieces.get(&id).is_some_and(|piece| piece.is_none());
        if !self.sessions().get(&id.session).is_some_and(is_wanted) {
            return Err(over());
        }
        let device = self.device(&piece.device).ok_or_else(|| {
            Failure::new(Code::FailedPrecondition, format!("this task has no device {}", piece.device))
        })?;
        let (feeds, nodes) = (piece.feeds.len(), piece.nodes.len());
        device.register(id, piece)?;
        let mut sessions = self.sessions();
        match sessions.get_mut(&id.session).filter(|session| is_wanted(session)) {
            Some(session) => {
                session.pieces.insert(id, Some(Registered { device, feeds, nodes, together: Together::default() }));
                session.is_used = true;
                Ok(())
            }
            None => {
                drop(sessions);
                device.forget(vec![id]);
                Err(over())
            }
        }
    }

    /// Forgets a master's pieces. One that is being compiled is dropped as soon as it is done.
    fn forget(&self, master: &Peer, pieces: &[PieceId]) {
        let mut of_device: Vec<(Arc<Device>, PieceId)> = Vec::new();
        {
            let mut sessions = self.sessions();
            for &id in pieces {
                let session = sessions.get_mut(&id.session).filter(|session| session.master == *master);
                let Some(session) = session else { continue };
                session.constants.release(&[id]);
                if let Some(Registered { device, .. }) = session.pieces.remove(&id).flatten() {
                    of_device.push((device, id));
                }
            }
        }
        for (device, id) in of_device {
            device.forget(vec![id]);
        }
    }

    /// Starts `count` steps, which continue a run or begin one. `together`: whether their ends may be reported together.
    fn start(
        &self,
        master: &Peer,
        pieces: &[PieceId],
        (first, count, continues): (u64, u64, bool),
        together: bool,
        tensors: Vec<Tensor>,
    ) {
        let now = self.now();
        let mut tensors = tensors.into_iter();
        let mut starts = Vec::with_capacity(pieces.len());
        {
            let mut sessions = self.sessions();
            for &id in pieces {
                let registered = sessions.get_mut(&id.session).filter(|s| s.master == *master).and_then(|session| {
                    session.last = session.last.max(first.saturating_add(count).saturating_sub(1));
                    session.pieces.get_mut(&id)
                });
                let Some(Some(registered)) = registered else {
                    drop(sessions);
                    let failure =
                        Failure::new(Code::Aborted, "the piece is not registered here").on_task(&self.task.to_string());
                    let step = StepId { session: id.session, number: first };
                    return self.answer(master, ToMaster::Failed { step, failure });
                };
                if together {
                    registered.together.start(first, count, continues, now);
                }
                let feeds: Vec<Tensor> = tensors.by_ref().take(registered.feeds).collect();
                starts.push((id, Arc::clone(&registered.device), feeds));
            }
        }
        for (id, device, feeds) in starts {
            device.start(id, first, count, continues, feeds);
        }
    }

    fn release(&self, id: SessionId) {
        if let Entry::Occupied(mut entry) = self.sessions().entry(id) {
            if entry.get().registering > 0 {
                entry.get_mut().is_over = true;
            } else {
                entry.remove();
            }
        }
        for device in self.all_devices() {
            device.release(id);
        }
    }

    /// Releases the state of a session that had no pieces here any more, but was guarded.
    fn release_unless_anothers(&self, id: SessionId) {
        let sessions = self.sessions();
        if !sessions.contains_key(&id) {
            self.resources.release(id);
        }
    }

    /// Sends to a master. If it is gone by now, nothing waits for the answer.
    fn answer(&self, master: &Peer, message: impl Into<Envelope>) {
        let _gone = self.router.send(master, message.into());
    }

    fn master(&self, session: SessionId) -> Option<Peer> {
        self.sessions().get(&session).map(|s| s.master.clone())
    }
}

#[cfg(test)]
mod tests;
