//! A worker's part in guarded sessions: it copies the state that a session has here, keeps the copies of other tasks, and puts a
//! state back.
//!
//! A copy shares its elements with the resources until these change, so it is made while the steps wait; it travels beside the
//! steps. The worker takes copies only for sessions whose master has asked for them, and only from the peers that the master
//! has named.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_exec::{ResourceKey, Saved};
use meshtf_kernels::Position;
use meshtf_tensor::Tensor;
use meshtf_tensor::device::DeviceName;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::{State, WorkerSession};
use crate::protocol::guard::{Copied, Cut, GuardReport, MAX_COPIED_NAMES, SentResource, SentState, ToGuard};
use crate::protocol::{Envelope, Peer, ToMaster, ToWorker};

/// Most sessions whose copies a worker makes or keeps.
const MAX_GUARDED: usize = 4096;
/// Most peers whose copies it keeps for one session.
const MAX_WARDS: usize = 4096;
/// Most resources of one chunk, and the bytes after which another chunk begins.
const CHUNK_RESOURCES: usize = 256;
const CHUNK_BYTES: usize = 32 << 20;
/// Most chunks of a part of a cut.
const MAX_CHUNKS: u32 = 1 << 16;
/// A resource of more tensors or bytes does not fit a message.
const MAX_TENSORS: usize = 1 << 15;
const MAX_BYTES: usize = 3 << 30;
/// How long the copies of a session outlive the link with its master, which may come back.
const ORPHANS_KEPT: Duration = Duration::from_secs(600);
/// How long a state waits to be put back for the ops of steps that were given up.
const QUIET_LIMIT: Duration = Duration::from_secs(30);
/// The kind of the positions of random numbers, which are no resource.
const RANDOM: &str = "random numbers";

/// The states of resources, by their keys.
type States = BTreeMap<ResourceKey, Arc<Saved>>;

/// The sessions whose copies a worker makes or keeps.
#[derive(Default)]
pub(super) struct Guards(BTreeMap<SessionId, Guarded>);

struct Guarded {
    master: Peer,
    /// The copies of the state here.
    own: BTreeMap<Cut, Arc<Own>>,
    /// The copies of other tasks, by the peers that sent them; from no others are any taken.
    wards: BTreeMap<Peer, BTreeMap<Cut, Ward>>,
    /// The state that comes back from a buddy.
    expected: Option<Expected>,
    /// The newest cut that is known to be complete.
    complete: Option<Cut>,
    /// When the link with the master ended.
    orphaned: Option<Instant>,
}

/// A copy of the state here.
#[derive(Default)]
struct Own {
    states: States,
    /// The resources that cannot be copied.
    unsaved: BTreeSet<ResourceKey>,
}

enum Ward {
    Coming(Incoming),
    Kept(States),
}

struct Expected {
    ask: u64,
    cut: Cut,
    from: Peer,
    incoming: Incoming,
}

/// A part of a cut of which chunks are missing.
#[derive(Default)]
struct Incoming {
    got: BTreeSet<u32>,
    states: States,
}

/// A chunk of a part of a cut.
struct Chunk {
    number: u32,
    of: u32,
    resources: Vec<SentResource>,
    tensors: Vec<Tensor>,
}

impl Incoming {
    /// Takes a chunk; whether it was the last.
    ///
    /// # Errors
    /// InvalidArgument if it is none, or if a state is not in the base.
    fn take(&mut self, session: SessionId, chunk: Chunk, base: Option<&States>) -> Result<bool> {
        let Chunk { number, of, resources, tensors } = chunk;
        if number >= of || of > MAX_CHUNKS || !self.got.insert(number) {
            return Err(Failure::invalid(format!("chunk {number} of {of} of a part of a cut is none, or came before")));
        }
        let mut tensors = tensors.into_iter();
        for SentResource { container, name, is_own, device, state } in resources {
            let key = ResourceKey { container, name, session: is_own.then_some(session), device };
            let state = match state {
                None => base.and_then(|base| base.get(&key)).cloned().ok_or_else(|| {
                    Failure::invalid(format!("the state of '{}' is not in the base of the cut", key.name))
                })?,
                Some(SentState { kind, version, tensors: count }) => {
                    let short = || Failure::invalid(format!("the state of '{}' lacks tensors", key.name));
                    let form = tensors.next().ok_or_else(short)?.slice::<u8>()?.to_vec();
                    let own: Vec<Tensor> = tensors.by_ref().take(count as usize).collect();
                    if own.len() != count as usize {
                        return Err(short());
                    }
                    Arc::new(Saved { kind, version, form, tensors: own })
                }
            };
            self.states.insert(key, state);
        }
        Ok(self.got.len() as u32 == of)
    }
}

/// The chunks of a part of a cut, without the states that are those of the base.
fn chunks(states: &States, base: Option<&States>) -> Vec<(Vec<SentResource>, Vec<Tensor>)> {
    let mut all = vec![(Vec::new(), Vec::new())];
    let mut bytes = 0;
    for (key, saved) in states {
        let is_same = base.and_then(|base| base.get(key)).is_some_and(|known| is_same(known, saved));
        let own = if is_same { 0 } else { saved.bytes() };
        let is_full = |resources: &Vec<SentResource>, tensors: &Vec<Tensor>| {
            resources.len() >= CHUNK_RESOURCES
                || bytes + own > CHUNK_BYTES
                || tensors.len() + saved.tensors.len() >= MAX_TENSORS
        };
        if all.last().is_some_and(|(resources, tensors)| !resources.is_empty() && is_full(resources, tensors)) {
            all.push((Vec::new(), Vec::new()));
            bytes = 0;
        }
        bytes += own;
        let Some((resources, tensors)) = all.last_mut() else { continue };
        let state = (!is_same).then(|| {
            tensors.push(Tensor::vector(saved.form.clone()));
            tensors.extend(saved.tensors.iter().cloned());
            SentState { kind: saved.kind.clone(), version: saved.version, tensors: saved.tensors.len() as u32 }
        });
        let (container, name) = (key.container.clone(), key.name.clone());
        resources.push(SentResource { container, name, is_own: key.session.is_some(), device: key.device, state });
    }
    all
}

/// Whether two states of a resource are one, without a look at elements.
fn is_same(one: &Arc<Saved>, other: &Arc<Saved>) -> bool {
    Arc::ptr_eq(one, other) || (one.kind == RANDOM && one.form == other.form)
}

/// The master, and the whole of a state that came back with its cut, if the chunk was the last.
type Loaded = (Peer, Result<Option<(Cut, States)>>);

impl Guards {
    /// Whether `peer` is the master of a guarded session.
    fn of_master(&mut self, session: SessionId, peer: &Peer) -> Result<&mut Guarded> {
        let guarded = self.0.get_mut(&session).filter(|guarded| guarded.master == *peer);
        let guarded = guarded.ok_or_else(|| {
            Failure::new(Code::FailedPrecondition, format!("session {session} is not guarded here by this master"))
        })?;
        guarded.orphaned = None;
        Ok(guarded)
    }

    fn serve(&mut self, master: &Peer, session: SessionId, of: Vec<Peer>) -> Result<()> {
        if self.0.len() >= MAX_GUARDED && !self.0.contains_key(&session) {
            let why = format!("copies of {MAX_GUARDED} sessions are here already");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        if of.len() > MAX_WARDS {
            return Err(Failure::new(
                Code::ResourceExhausted,
                format!("a buddy keeps copies of {MAX_WARDS} tasks at most"),
            ));
        }
        self.0.entry(session).or_insert_with(|| Guarded {
            master: master.clone(),
            own: BTreeMap::new(),
            wards: BTreeMap::new(),
            expected: None,
            complete: None,
            orphaned: None,
        });
        let guarded = self.of_master(session, master)?;
        guarded.wards.retain(|peer, _| of.contains(peer));
        for peer in of {
            guarded.wards.entry(peer).or_default();
        }
        Ok(())
    }

    /// Takes a chunk from a task whose copies are kept here; `Some` if it was the last. `None` in the outer option: nobody
    /// asked for it.
    fn keep(
        &mut self,
        from: &Peer,
        session: SessionId,
        (cut, base): (Cut, Option<Cut>),
        chunk: Chunk,
    ) -> Option<(Peer, Result<bool>)> {
        let guarded = self.0.get_mut(&session)?;
        let cuts = guarded.wards.get_mut(from)?;
        // A chunk of a cut that was given up may come late.
        if cuts.keys().any(|known| *known > cut) {
            return None;
        }
        let complete = guarded.complete;
        cuts.retain(|known, _| *known == cut || Some(*known) == base || Some(*known) == complete);
        let mut incoming = match cuts.remove(&cut) {
            Some(Ward::Coming(incoming)) => incoming,
            _ => Incoming::default(),
        };
        let base = base.and_then(|base| match cuts.get(&base) {
            Some(Ward::Kept(states)) => Some(states),
            _ => None,
        });
        let taken = incoming.take(session, chunk, base);
        match taken {
            Ok(true) => drop(cuts.insert(cut, Ward::Kept(incoming.states))),
            Ok(false) => drop(cuts.insert(cut, Ward::Coming(incoming))),
            Err(_) => {}
        }
        Some((guarded.master.clone(), taken))
    }

    /// Takes a chunk of a state that comes back; the whole of it if it was the last.
    fn load(&mut self, from: &Peer, session: SessionId, ask: u64, chunk: Chunk) -> Option<Loaded> {
        let guarded = self.0.get_mut(&session)?;
        let expected = guarded.expected.as_mut().filter(|expected| expected.from == *from && expected.ask == ask)?;
        let taken = expected.incoming.take(session, chunk, None);
        let result = match taken {
            Ok(false) => Ok(None),
            Ok(true) => Ok(guarded.expected.take().map(|expected| (expected.cut, expected.incoming.states))),
            Err(failure) => {
                guarded.expected = None;
                Err(failure)
            }
        };
        Some((guarded.master.clone(), result))
    }

    /// A peer is gone. If it was a master, the copies of its sessions stay for a while.
    pub fn down(&mut self, peer: &Peer) {
        let own = self.0.values_mut().filter(|guarded| guarded.master == *peer);
        own.for_each(|guarded| guarded.orphaned = Some(Instant::now()));
        self.sweep();
    }

    /// Forgets the copies whose master did not come back.
    pub fn sweep(&mut self) {
        self.0.retain(|_, guarded| guarded.orphaned.is_none_or(|since| since.elapsed() < ORPHANS_KEPT));
    }

    /// A session is over.
    pub fn release(&mut self, master: &Peer, session: SessionId) {
        if self.0.get(&session).is_some_and(|guarded| guarded.master == *master) {
            self.0.remove(&session);
        }
    }

    /// A session has pieces here by now: only their master guards it.
    pub fn belongs(&mut self, master: &Peer, session: SessionId) {
        if self.0.get(&session).is_some_and(|guarded| guarded.master != *master) {
            self.0.remove(&session);
        }
    }

    /// The sessions whose master is there.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.values().filter(|guarded| guarded.orphaned.is_none()).count()
    }
}

impl State {
    fn guard_says(&self, master: &Peer, session: SessionId, report: GuardReport) {
        self.answer(master, ToMaster::Guard { session, report });
    }

    /// Takes the messages that say whose copies are kept, at once and in the order of the master's messages. Returns the others,
    /// which may take long.
    pub(super) fn guard_at_once(&self, from: &Peer, message: ToGuard) -> Option<ToGuard> {
        match message {
            ToGuard::Serve { session, ask, of } => {
                let served = {
                    // Under one lock, so that its first pieces do not come in between.
                    let sessions = self.sessions();
                    is_not_anothers(&sessions, from, session).and_then(|()| lock(&self.guards).serve(from, session, of))
                };
                let result = served.map_err(|failure| self.here(failure));
                self.guard_says(from, session, GuardReport::Ready { ask, result });
                None
            }
            ToGuard::Complete { session, cut } => {
                if let Ok(guarded) = lock(&self.guards).of_master(session, from) {
                    guarded.complete = Some(cut);
                    guarded.own.retain(|known, _| *known >= cut);
                    guarded.wards.values_mut().for_each(|cuts| cuts.retain(|known, _| *known >= cut));
                }
                None
            }
            other => Some(other),
        }
    }

    /// Does the work of a message, and answers.
    pub(super) fn guard(&self, from: &Peer, message: ToGuard, tensors: Vec<Tensor>) {
        if let ToGuard::Copy { session, .. } | ToGuard::Restore { session, .. } | ToGuard::GiveBack { session, .. } =
            &message
        {
            let allowed = is_not_anothers(&self.sessions(), from, *session);
            if let Err(failure) = allowed {
                return self.refuse_guard(from, &message, failure);
            }
        }
        match message {
            ToGuard::Copy { session, cut, base, buddy } => self.copy_out(from, session, (cut, base), &buddy),
            ToGuard::Restore { session, ask, cut, from: None } => {
                let own = lock(&self.guards).of_master(session, from).map(|guarded| guarded.own.get(&cut).cloned());
                let lost =
                    || Failure::new(Code::NotFound, format!("there is no copy of cut {cut} of session {session} here"));
                let result = own.and_then(|own| own.ok_or_else(lost)).and_then(|own| self.put_state(session, &own));
                self.restored(from, session, ask, result);
            }
            ToGuard::Restore { session, ask, cut, from: Some(buddy) } => {
                let expected = Expected { ask, cut, from: buddy, incoming: Incoming::default() };
                let asked =
                    lock(&self.guards).of_master(session, from).map(|guarded| guarded.expected = Some(expected));
                match asked {
                    Ok(()) => self.guard_says(from, session, GuardReport::Ready { ask, result: Ok(()) }),
                    Err(failure) => self.restored(from, session, ask, Err(failure)),
                }
            }
            ToGuard::GiveBack { session, ask, cut, of, to } => {
                if let Err(failure) = self.give_back(from, session, (ask, cut), &of, &to) {
                    self.restored(from, session, ask, Err(failure));
                }
            }
            ToGuard::Keep { session, cut, base, chunk, chunks, resources } => {
                let chunk = Chunk { number: chunk, of: chunks, resources, tensors };
                let kept = lock(&self.guards).keep(from, session, (cut, base), chunk);
                let Some((master, kept)) = kept else { return };
                let result = match kept {
                    Ok(false) => return,
                    Ok(true) => Ok(()),
                    Err(failure) => Err(self.here(failure)),
                };
                self.guard_says(&master, session, GuardReport::Kept { cut, of: from.clone(), result });
            }
            ToGuard::Load { session, ask, chunk, chunks, resources, .. } => {
                let chunk = Chunk { number: chunk, of: chunks, resources, tensors };
                let loaded = lock(&self.guards).load(from, session, ask, chunk);
                let Some((master, loaded)) = loaded else { return };
                let result = match loaded {
                    Ok(None) => return,
                    Ok(Some((cut, states))) => {
                        let own = Arc::new(Own { states, unsaved: BTreeSet::new() });
                        self.put_state(session, &own).map(|()| {
                            if let Ok(guarded) = lock(&self.guards).of_master(session, &master) {
                                guarded.own.insert(cut, own);
                                guarded.complete = Some(cut);
                            }
                        })
                    }
                    Err(failure) => Err(failure),
                };
                self.restored(&master, session, ask, result);
            }
            ToGuard::Serve { .. } | ToGuard::Complete { .. } => {}
        }
    }

    /// Answers a message that could not be taken.
    pub(super) fn refuse_guard(&self, from: &Peer, message: &ToGuard, failure: Failure) {
        let session = message.session();
        let master = || lock(&self.guards).0.get(&session).map(|guarded| guarded.master.clone());
        match message {
            ToGuard::Copy { cut, .. } => {
                self.guard_says(from, session, GuardReport::Copied { cut: *cut, result: Err(self.here(failure)) });
            }
            ToGuard::Restore { ask, .. } | ToGuard::GiveBack { ask, .. } => {
                self.restored(from, session, *ask, Err(failure))
            }
            ToGuard::Keep { cut, .. } => {
                let is_ward = |guarded: &Guarded| guarded.wards.contains_key(from);
                let is_asked = lock(&self.guards).0.get(&session).is_some_and(is_ward);
                if let Some(master) = master().filter(|_| is_asked) {
                    let result = Err(self.here(failure));
                    self.guard_says(&master, session, GuardReport::Kept { cut: *cut, of: from.clone(), result });
                }
            }
            ToGuard::Load { ask, .. } => {
                let is_expected = |guarded: &Guarded| guarded.expected.as_ref().is_some_and(|one| one.from == *from);
                let is_asked = lock(&self.guards).0.get(&session).is_some_and(is_expected);
                if let Some(master) = master().filter(|_| is_asked) {
                    self.restored(&master, session, *ask, Err(failure));
                }
            }
            ToGuard::Serve { .. } | ToGuard::Complete { .. } => {}
        }
    }

    fn here(&self, failure: Failure) -> Failure {
        failure.on_task(&self.task.to_string())
    }

    fn restored(&self, master: &Peer, session: SessionId, ask: u64, result: Result<()>) {
        let result = result.map_err(|failure| self.here(failure));
        self.guard_says(master, session, GuardReport::Restored { ask, result });
    }

    /// Takes a copy of the state here, answers, and sends the copy to the buddy.
    fn copy_out(&self, master: &Peer, session: SessionId, (cut, base): (Cut, Option<Cut>), buddy: &Peer) {
        let known = lock(&self.guards).of_master(session, master).map(|guarded| {
            // Those of cuts that were given up.
            let complete = guarded.complete;
            guarded.own.retain(|known, _| Some(*known) == complete || Some(*known) == base);
            base.and_then(|base| guarded.own.get(&base).map(|own| (base, Arc::clone(own))))
        });
        let taken = known.and_then(|known| {
            let own = self.copy(session, known.as_ref().map(|(_, own)| &own.states))?;
            lock(&self.guards).of_master(session, master)?.own.insert(cut, Arc::clone(&own.0));
            Ok((known, own.0, own.1))
        });
        let (known, own, copied) = match taken {
            Ok(taken) => taken,
            Err(failure) => {
                let result = Err(self.here(failure));
                return self.guard_says(master, session, GuardReport::Copied { cut, result });
            }
        };
        self.guard_says(master, session, GuardReport::Copied { cut, result: Ok(copied) });
        if own.states.is_empty() {
            return;
        }
        let (base, before) = known.map_or((None, None), |(base, before)| (Some(base), Some(before)));
        let chunks = chunks(&own.states, before.as_ref().map(|before| &before.states));
        let count = chunks.len() as u32;
        for (chunk, (resources, tensors)) in (0..).zip(chunks) {
            let message = ToGuard::Keep { session, cut, base, chunk, chunks: count, resources };
            if let Err(failure) = self.router.send(buddy, Envelope::new(ToWorker::from(message), tensors)) {
                let Some(of) = self.router.cluster().member(&self.task).map(|member| member.peer.clone()) else {
                    return;
                };
                let result = Err(self.here(failure));
                return self.guard_says(master, session, GuardReport::Kept { cut, of, result });
            }
        }
    }

    /// The state of a session here, where the unchanged parts are those of `before`.
    fn copy(&self, session: SessionId, before: Option<&States>) -> Result<(Arc<Own>, Copied)> {
        let nothing = States::new();
        let before = before.unwrap_or(&nothing);
        let (mut states, unsaved) = self.resources.save_guarded(session, before)?;
        let mut why: Vec<String> = unsaved.iter().map(|one| one.why.clone()).collect();
        let mut keys: BTreeSet<ResourceKey> = unsaved.into_iter().map(|one| one.key).collect();
        states.retain(|key, saved| {
            let fits = saved.tensors.len() < MAX_TENSORS && saved.bytes() < MAX_BYTES;
            if !fits {
                why.push(format!("{} '{}' is too large to be copied", saved.kind, key.name));
                keys.insert(key.clone());
            }
            fits
        });
        for device in self.all_devices() {
            let positions = device.random_positions(session);
            if positions.is_empty() {
                continue;
            }
            let form = postcard::to_stdvec(&positions)
                .map_err(|error| Failure::new(Code::Internal, format!("positions cannot be written: {error}")))?;
            let saved = Saved { kind: RANDOM.to_owned(), version: 0, form, tensors: Vec::new() };
            states.insert(of_random_numbers(session, device.name()), Arc::new(saved));
        }
        why.truncate(MAX_COPIED_NAMES);
        let named = states.iter().filter(|(_, saved)| saved.kind != RANDOM);
        let copied = Copied {
            resources: states.len() as u64,
            bytes: states.values().map(|saved| saved.bytes() as u64).sum(),
            names: named.take(MAX_COPIED_NAMES).map(|(key, _)| key.name.clone()).collect(),
            unsaved: why,
        };
        Ok((Arc::new(Own { states, unsaved: keys }), copied))
    }

    /// Sends the kept part of a task to the process that holds the task now.
    fn give_back(&self, master: &Peer, session: SessionId, (ask, cut): (u64, Cut), of: &Peer, to: &Peer) -> Result<()> {
        let chunks = {
            let mut guards = lock(&self.guards);
            let guarded = guards.of_master(session, master)?;
            let Some(Ward::Kept(states)) = guarded.wards.get(of).and_then(|cuts| cuts.get(&cut)) else {
                let why = format!("cut {cut} of session {session} is not kept here for {of}");
                return Err(Failure::new(Code::NotFound, why));
            };
            chunks(states, None)
        };
        let count = chunks.len() as u32;
        for (chunk, (resources, tensors)) in (0..).zip(chunks) {
            let message = ToGuard::Load { session, ask, cut, chunk, chunks: count, resources };
            self.router.send(to, Envelope::new(ToWorker::from(message), tensors))?;
        }
        Ok(())
    }

    /// Puts the session's state here back, once no op of a step that was given up works on it any more.
    fn put_state(&self, session: SessionId, own: &Own) -> Result<()> {
        self.come_to_rest()?;
        self.resources.drop_guarded(session, |key| own.states.contains_key(key) || own.unsaved.contains(key));
        for (key, saved) in &own.states {
            let device = DeviceName { task: self.task.clone(), kind: key.device.0, index: key.device.1 };
            let device = self.device(&device).ok_or_else(|| {
                Failure::new(
                    Code::FailedPrecondition,
                    format!("this task has no device {device}, which held '{}'", key.name),
                )
            })?;
            if saved.kind == RANDOM {
                let positions: Vec<(String, Position)> = postcard::from_bytes(&saved.form)
                    .map_err(|error| Failure::invalid(format!("positions of random numbers do not decode: {error}")))?;
                device.set_random_positions(session, positions);
            } else if self.resources.version(key) != Some(saved.version) {
                device.load_saved(key, session, saved)?;
            }
        }
        Ok(())
    }

    /// Waits until no turn of a step that was given up is under way.
    fn come_to_rest(&self) -> Result<()> {
        let until = Instant::now() + QUIET_LIMIT;
        for device in self.all_devices() {
            while device.load(1, Duration::from_secs(1)).is_none_or(|load| load.ending > 0) {
                if Instant::now() >= until {
                    let why = format!("an op of {} did not end within {} s", device.name(), QUIET_LIMIT.as_secs());
                    return Err(Failure::new(Code::DeadlineExceeded, why));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

/// Whether no other master has pieces of the session here.
///
/// # Errors
/// PermissionDenied if one has.
fn is_not_anothers(sessions: &HashMap<SessionId, WorkerSession>, from: &Peer, session: SessionId) -> Result<()> {
    match sessions.get(&session) {
        Some(known) if known.master != *from => Err(super::is_anothers(session)),
        _ => Ok(()),
    }
}

/// The key under which a copy has the positions of random numbers: no resource has it.
fn of_random_numbers(session: SessionId, device: &DeviceName) -> ResourceKey {
    let device = (device.kind, device.index);
    ResourceKey { container: String::new(), name: String::new(), session: Some(session), device }
}
