//! The worker of a node: holds the pieces that masters register, runs them on its devices, and pushes what they make
//! to whoever waits for it.
//!
//! Knows no graph and no plan beyond its own pieces. Never blocks the thread that delivers a message.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::thread;

use crate::exec::{Device, Pushed, Resources, Sink};
use crate::failure::{Code, Failure, Result};
use crate::ids::{PieceId, SessionId, StepId};
use crate::plan::{DeviceName, Piece, Task};
use crate::post::Post;
use crate::protocol::{Carried, Envelope, Message, Peer};
use crate::tensor::Tensor;

/// Most registrations that wait to be compiled; a master has one under way at a time for each plan.
const REGISTRATIONS: usize = 1024;

/// The worker of one task.
pub struct Worker {
    state: Arc<State>,
    /// To the thread that compiles pieces, so that a large graph does not hold up the connection it came on.
    registrar: SyncSender<Registration>,
}

struct Registration {
    master: Peer,
    session: SessionId,
    isolated: bool,
    pieces: Vec<(PieceId, Piece)>,
}

/// What the devices' threads share with the worker.
struct State {
    task: Task,
    post: Arc<dyn Post>,
    resources: Arc<Resources>,
    devices: RwLock<BTreeMap<DeviceName, Arc<Device>>>,
    sessions: Mutex<HashMap<SessionId, Session>>,
}

struct Session {
    master: Peer,
    pieces: HashMap<PieceId, Registered>,
    /// Registrations that are not through.
    registering: usize,
    /// It was released while a registration was not through; that releases what it made.
    is_over: bool,
}

struct Registered {
    device: Arc<Device>,
    /// How many of a `Start`'s tensors are this piece's feeds.
    feeds: usize,
}

impl Worker {
    /// A worker without devices; see [`Worker::add_device`].
    pub fn new(task: Task, post: Arc<dyn Post>, resources: Arc<Resources>) -> Self {
        let state = Arc::new(State { task, post, resources, devices: RwLock::default(), sessions: Mutex::default() });
        let (registrar, registrations) = sync_channel::<Registration>(REGISTRATIONS);
        let shared = Arc::clone(&state);
        thread::Builder::new()
            .name("meshtf-register".into())
            .spawn(move || registrations.iter().for_each(|registration| shared.register(registration)))
            .expect("a thread at start");
        Worker { state, registrar }
    }

    /// What a device of this worker hands its values to.
    pub fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.state) as Arc<dyn Sink>
    }

    /// Serves a device from now on.
    pub fn add_device(&self, name: DeviceName, device: Device) {
        self.state.devices.write().expect("no panic under this lock").insert(name, Arc::new(device));
    }

    /// Takes a message that a master or another worker sent.
    pub fn deliver(&self, from: &Peer, envelope: Envelope) {
        let Envelope { message, tensors } = envelope;
        match message {
            Message::Register { session, isolated, pieces } => {
                let ids = pieces.iter().map(|(id, _)| *id).collect();
                let registration = Registration { master: from.clone(), session, isolated, pieces };
                self.state.announce(from, session);
                if let Err(TrySendError::Full(_)) = self.registrar.try_send(registration) {
                    self.state.registered(session);
                    let failure =
                        Failure::new(Code::ResourceExhausted, format!("{REGISTRATIONS} registrations wait already"));
                    let result = Err(failure.on_task(&self.state.task.to_string()));
                    self.state.answer(from, Message::Registered { session, pieces: ids, result });
                }
            }
            Message::Start { pieces, first, count } => self.state.start(from, &pieces, first, count, tensors),
            Message::Push { step, to, values } => {
                let mut tensors = tensors.into_iter();
                let values = values
                    .into_iter()
                    .map(|Carried { transfer, iterations, is_dead }| {
                        let value = if is_dead { None } else { tensors.next() };
                        Pushed { transfer, iterations, value }
                    })
                    .collect();
                if let Some(device) = self.state.device(&to) {
                    device.arrive(step, values);
                }
            }
            Message::Abort { step, .. } => {
                for device in self.state.all_devices() {
                    device.abort(step);
                }
            }
            Message::Release { session } => self.state.release(session),
            Message::Clear { containers } => {
                containers.iter().for_each(|container| self.state.resources.clear(container))
            }
            _ => {}
        }
    }

    /// What is not over yet, for people.
    #[cfg(test)]
    pub fn holds(&self) -> Option<String> {
        let sessions = self.state.sessions().len();
        let devices: Vec<_> = self.state.all_devices().iter().map(|device| device.holds()).collect();
        let is_idle = sessions == 0 && devices.iter().all(|holds| *holds == crate::exec::Holds::default());
        (!is_idle).then(|| format!("{sessions} sessions as a worker, {devices:?}"))
    }

    /// Forgets the sessions of a master that is gone.
    pub fn down(&self, peer: &Peer) {
        let orphans: Vec<SessionId> = {
            let sessions = self.state.sessions();
            sessions.iter().filter(|(_, session)| session.master == *peer).map(|(id, _)| *id).collect()
        };
        for session in orphans {
            self.state.release(session);
        }
    }
}

impl Drop for Worker {
    /// The devices hold the state as their sink and the state holds the devices: somebody must let go.
    fn drop(&mut self) {
        self.state.devices.write().expect("no panic under this lock").clear();
        self.state.sessions().clear();
    }
}

impl State {
    fn device(&self, name: &DeviceName) -> Option<Arc<Device>> {
        self.devices.read().expect("no panic under this lock").get(name).cloned()
    }

    fn all_devices(&self) -> Vec<Arc<Device>> {
        self.devices.read().expect("no panic under this lock").values().cloned().collect()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().expect("no panic under this lock")
    }

    /// Notes that a registration is on its way, so that a release in the meantime is not missed.
    fn announce(&self, master: &Peer, id: SessionId) {
        let mut sessions = self.sessions();
        let session = sessions.entry(id).or_insert_with(|| Session {
            master: master.clone(),
            pieces: HashMap::new(),
            registering: 0,
            is_over: false,
        });
        session.registering += 1;
    }

    /// Notes that it is through.
    fn registered(&self, id: SessionId) {
        let is_over = {
            let mut sessions = self.sessions();
            let Some(session) = sessions.get_mut(&id) else { return };
            session.registering -= 1;
            session.registering == 0 && (session.is_over || session.pieces.is_empty())
        };
        if is_over {
            self.release(id);
        }
    }

    fn register(&self, registration: Registration) {
        let Registration { master, session, isolated, pieces } = registration;
        if isolated {
            self.resources.isolate(session);
        }
        let ids = pieces.iter().map(|(id, _)| *id).collect();
        let result = pieces
            .into_iter()
            .try_for_each(|(id, piece)| self.register_one(id, piece))
            .map_err(|failure| failure.on_task(&self.task.to_string()));
        self.registered(session);
        self.answer(&master, Message::Registered { session, pieces: ids, result });
    }

    fn register_one(&self, id: PieceId, piece: Piece) -> Result<()> {
        let over = || Failure::new(Code::Cancelled, "the session ended while it was registered");
        if self.sessions().get(&id.session).is_none_or(|session| session.is_over) {
            return Err(over());
        }
        let device = self.device(&piece.device).ok_or_else(|| {
            Failure::new(Code::FailedPrecondition, format!("this task has no device {}", piece.device))
        })?;
        let feeds = piece.feeds.len();
        device.register(id, piece)?;
        let mut sessions = self.sessions();
        let session = sessions.get_mut(&id.session).ok_or_else(over)?;
        session.pieces.insert(id, Registered { device, feeds });
        Ok(())
    }

    fn start(&self, master: &Peer, pieces: &[PieceId], first: u64, count: u64, tensors: Vec<Tensor>) {
        let mut tensors = tensors.into_iter();
        let mut starts = Vec::with_capacity(pieces.len());
        {
            let sessions = self.sessions();
            for &id in pieces {
                let registered =
                    sessions.get(&id.session).filter(|s| s.master == *master).and_then(|s| s.pieces.get(&id));
                let Some(registered) = registered else {
                    drop(sessions);
                    let failure =
                        Failure::new(Code::Aborted, "the piece is not registered here").on_task(&self.task.to_string());
                    let step = StepId { session: id.session, number: first };
                    return self.answer(master, Message::Failed { step, failure });
                };
                let feeds: Vec<Tensor> = tensors.by_ref().take(registered.feeds).collect();
                starts.push((id, Arc::clone(&registered.device), feeds));
            }
        }
        for (id, device, feeds) in starts {
            device.start(id, first, count, feeds);
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

    /// Sends to a master that may be gone by now: then nobody waits for the answer.
    fn answer(&self, master: &Peer, message: impl Into<Envelope>) {
        let _gone = self.post.send(master, message.into());
    }

    /// So too, for the master of a session and with what else a device's turn sends.
    fn report(&self, session: SessionId, message: impl Into<Envelope>) {
        if let Some(master) = self.master(session) {
            let _gone = self.post.send_soon(&master, message.into());
        }
    }

    fn master(&self, session: SessionId) -> Option<Peer> {
        self.sessions().get(&session).map(|s| s.master.clone())
    }
}

impl Sink for State {
    fn push(&self, step: StepId, to: &DeviceName, values: Vec<Pushed>) {
        if to.task == self.task {
            if let Some(device) = self.device(to) {
                device.arrive(step, values);
            }
            return;
        }
        let mut tensors = Vec::with_capacity(values.len());
        let carry = |Pushed { transfer, iterations, value }: Pushed| {
            let is_dead = value.is_none();
            tensors.extend(value);
            Carried { transfer, iterations, is_dead }
        };
        let values = values.into_iter().map(carry).collect();
        let envelope = Envelope { message: Message::Push { step, to: to.clone(), values }, tensors };
        let sent = match self.post.cluster().member(&to.task) {
            Some(member) => self.post.send_soon(&member.peer, envelope),
            None => Err(Failure::new(Code::Unavailable, format!("task {} is not there to take a value", to.task))),
        };
        if let Err(failure) = sent {
            self.failed(step, failure.on_task(&to.task.to_string()));
        }
    }

    fn fetched(&self, piece: PieceId, step: StepId, place: u32, value: Tensor) {
        let message = Message::Got { piece, step: step.number, place };
        self.report(piece.session, Envelope { message, tensors: vec![value] });
    }

    fn done(&self, piece: PieceId, step: StepId, fetches: Vec<Tensor>) {
        let message = Message::Done { piece, step: step.number };
        self.report(piece.session, Envelope { message, tensors: fetches });
    }

    fn failed(&self, step: StepId, failure: Failure) {
        self.report(step.session, Message::Failed { step, failure: failure.on_task(&self.task.to_string()) });
    }

    fn flush(&self) {
        self.post.flush();
    }
}
