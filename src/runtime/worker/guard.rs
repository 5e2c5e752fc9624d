//! A worker's part in guarded sessions: it copies the state that a session has here and puts it back (`state`), sends the copies
//! (`outgoing`), and keeps those of other tasks.
//!
//! A copy shares its elements with the resources until these change, so it is made while the steps wait; it travels beside the
//! steps. The worker takes copies only for sessions whose master has asked for them, and only from the peers that the master
//! has named.

mod outgoing;
mod state;
mod term;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshtf_exec::{Moment, ResourceKey, Saved};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

pub(super) use self::outgoing::Parcels;
use super::{State, WorkerSession};
use crate::protocol::guard::{Cut, GuardReport, Origin, Parcel, ToGuard};
use crate::protocol::{Peer, ToMaster};
use crate::runtime::parts::{Body, Chunk, Chunks, Incoming, States, leaves_room};

/// Most sessions whose copies a worker makes or keeps.
const MAX_GUARDED: usize = 4096;
/// Most peers whose copies it keeps for one session.
const MAX_WARDS: usize = 4096;
/// How long the copies of a session outlive the link with its master, which may come back.
const ORPHANS_KEPT: Duration = Duration::from_secs(600);
/// The kind of the positions of random numbers, which are no resource.
const RANDOM: &str = "random numbers";

/// The sessions whose copies a worker makes or keeps.
#[derive(Default)]
pub(super) struct Guards(BTreeMap<SessionId, Guarded>);

struct Guarded {
    master: Peer,
    /// How many masters the session had before.
    term: u64,
    /// The node that may take its place if it is lost.
    heir: Option<Peer>,
    /// The newest of what the master asks for: work for an older ask stops.
    asked: u64,
    /// The copies of the state here.
    own: BTreeMap<Cut, Arc<Own>>,
    /// The copies of other tasks, by the peers that sent them; from no others are any taken.
    wards: BTreeMap<Peer, BTreeMap<Cut, Ward>>,
    /// The state that is to be put back.
    expected: Option<Expected>,
    /// The newest cut that is known to be complete.
    complete: Option<Cut>,
    /// When the link with the master ended.
    orphaned: Option<Instant>,
    /// The pieces and resources of that master are released: its heir may come.
    is_released: bool,
}

/// A copy of the state here.
#[derive(Default)]
struct Own {
    states: States,
    /// The resources that cannot be copied.
    unsaved: BTreeSet<ResourceKey>,
    /// When it was taken, or loaded: what other sessions change later is not in it.
    taken: Moment,
}

enum Ward {
    Coming(Incoming),
    Kept(States),
}

struct Expected {
    ask: u64,
    cut: Cut,
    from: Origin,
    incoming: Incoming,
}

/// The chunks of a part of a cut, without the states that are those of the base.
fn chunks(states: &States, base: Option<&States>) -> Vec<Body> {
    let mut chunks = Chunks::default();
    for (key, saved) in states {
        let is_same = base.and_then(|base| base.get(key)).is_some_and(|known| is_same(known, saved));
        chunks.add(key, (!is_same).then_some(&**saved));
    }
    chunks.all()
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
        (guarded.orphaned, guarded.is_released) = (None, false);
        Ok(guarded)
    }

    /// Whether the master that asked for it still wants a state to be put back, and is there.
    fn wants(&self, session: SessionId, master: &Peer, ask: u64) -> Result<()> {
        let is_wanted =
            |guarded: &&Guarded| guarded.master == *master && guarded.asked == ask && guarded.orphaned.is_none();
        match self.0.get(&session).filter(is_wanted) {
            Some(_) => Ok(()),
            None => Err(not_wanted()),
        }
    }

    /// Notes what a master asks for, as soon as it comes: work for what it asked before stops. Returns whether it guards the
    /// session here.
    fn ask(&mut self, master: &Peer, session: SessionId, ask: u64) -> bool {
        let guarded = self.0.get_mut(&session).filter(|guarded| guarded.master == *master);
        guarded.map(|guarded| guarded.asked = guarded.asked.max(ask)).is_some()
    }

    fn serve(&mut self, master: &Peer, (session, ask): (SessionId, u64), of: Vec<Peer>) -> Result<()> {
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
            term: 0,
            heir: None,
            asked: 0,
            own: BTreeMap::new(),
            wards: BTreeMap::new(),
            expected: None,
            complete: None,
            orphaned: None,
            is_released: false,
        });
        let guarded = self.of_master(session, master)?;
        guarded.asked = guarded.asked.max(ask);
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
        chunk: Result<Chunk>,
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
        let taken = chunk.and_then(|chunk| incoming.take(session, chunk, base));
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
        let is_expected =
            |one: &&mut Expected| matches!(&one.from, Origin::Buddy(buddy) if buddy == from) && one.ask == ask;
        let expected = guarded.expected.as_mut().filter(is_expected)?;
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

    /// The pieces and resources of a master that is gone are released.
    pub fn released(&mut self, master: &Peer) {
        self.0.values_mut().filter(|guarded| guarded.master == *master).for_each(|guarded| guarded.is_released = true);
    }

    /// Forgets the copies whose master did not come back.
    pub fn sweep(&mut self) {
        self.0.retain(|_, guarded| guarded.orphaned.is_none_or(|since| since.elapsed() < ORPHANS_KEPT));
    }

    /// The sessions that a master guards here.
    pub fn of(&self, master: &Peer) -> Vec<SessionId> {
        self.0.iter().filter(|(_, guarded)| guarded.master == *master).map(|(session, _)| *session).collect()
    }

    /// A session is over; whether its master guarded it here.
    pub fn release(&mut self, master: &Peer, session: SessionId) -> bool {
        let is_here = self.0.get(&session).is_some_and(|guarded| guarded.master == *master);
        if is_here {
            self.0.remove(&session);
        }
        is_here
    }

    /// A session has pieces here by now: only their master guards it. Returns whether another did.
    pub fn belongs(&mut self, master: &Peer, session: SessionId) -> bool {
        let was_anothers = self.0.get(&session).is_some_and(|guarded| guarded.master != *master);
        if was_anothers {
            self.0.remove(&session);
        }
        was_anothers
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
        if term::is_of_master(&message) && self.is_from_earlier(from, message.session()) {
            return None;
        }
        match message {
            ToGuard::Serve { session, ask, of } => {
                let served = {
                    // Under one lock, so that its first pieces do not come in between.
                    let sessions = self.sessions();
                    is_not_anothers(&sessions, from, session)
                        .and_then(|()| lock(&self.guards).serve(from, (session, ask), of))
                };
                if served.is_ok() {
                    self.parcels.drop_asks(session, ask);
                }
                let result = served.map_err(|failure| self.here(failure));
                self.guard_says(from, session, GuardReport::Ready { ask, result });
                None
            }
            ToGuard::Adopt { session, ask, term, cut, of } => {
                let adopted = self.adopt(from, (session, ask), (term, cut), of);
                if adopted.is_ok() {
                    // Copies on their way were for the master that is lost.
                    self.parcels.drop_asks(session, ask);
                    self.parcels.drop_cuts(session, Cut::MAX);
                }
                let result = adopted.map_err(|failure| self.here(failure));
                self.guard_says(from, session, GuardReport::Ready { ask, result });
                None
            }
            ToGuard::Heir { session, heir } => {
                let mut guards = lock(&self.guards);
                // A node that was named stays so until there is another: this master may be the one that is cut off.
                if let (Ok(guarded), Some(heir)) = (guards.of_master(session, from), heir) {
                    guarded.heir = Some(heir);
                }
                None
            }
            ToGuard::Cede { session } => {
                self.cede(from, session);
                None
            }
            ToGuard::Complete { session, cut } => {
                let known = lock(&self.guards).of_master(session, from).map(|guarded| {
                    guarded.complete = Some(cut);
                    guarded.own.retain(|known, _| *known >= cut);
                    guarded.wards.values_mut().for_each(|cuts| cuts.retain(|known, _| *known >= cut));
                });
                if known.is_ok() {
                    self.parcels.drop_cuts(session, cut);
                }
                None
            }
            ToGuard::Taken { session, parcel, chunk } => {
                self.taken(from, session, parcel, chunk);
                None
            }
            other => {
                if let ToGuard::Restore { session, ask, .. } = other {
                    let is_known = lock(&self.guards).ask(from, session, ask);
                    if is_known {
                        self.parcels.drop_asks(session, ask);
                        // No cut is under way while a state is put back.
                        self.parcels.drop_cuts(session, Cut::MAX);
                    }
                }
                Some(other)
            }
        }
    }

    /// Does the work of a message, and answers.
    pub(super) fn guard(&self, from: &Peer, message: ToGuard, tensors: Vec<Tensor>) {
        if let ToGuard::Copy { session, .. }
        | ToGuard::Restore { session, .. }
        | ToGuard::Return { session, .. }
        | ToGuard::GiveBack { session, .. } = &message
        {
            let allowed = is_not_anothers(&self.sessions(), from, *session);
            if let Err(failure) = allowed {
                return self.refuse_guard(from, &message, failure);
            }
        }
        match message {
            ToGuard::Copy { session, cut, base, buddy } => self.copy_out(from, session, (cut, base), &buddy),
            ToGuard::Restore { session, ask, cut, from: origin } => {
                let result = self.expect(from, session, ask, (cut, origin)).map_err(|failure| self.here(failure));
                self.guard_says(from, session, GuardReport::Ready { ask, result });
            }
            ToGuard::Return { session, ask } => {
                let result = self.return_to(from, session, ask);
                self.restored(from, session, ask, result);
            }
            ToGuard::GiveBack { session, ask, cut, of, to } => {
                if let Err(failure) = self.give_back(from, session, (ask, cut), &of, &to) {
                    self.restored(from, session, ask, Err(failure));
                }
            }
            ToGuard::Keep { session, cut, base, chunk: number, chunks, resources } => {
                // The chunk is in use already: another one may be on its way.
                let room = leaves_room(self.resources.budget(), tensors.iter().map(Tensor::byte_len).sum());
                let chunk = Chunk { number, of: chunks, resources, tensors };
                let kept = lock(&self.guards).keep(from, session, (cut, base), room.map(|()| chunk));
                let Some((master, kept)) = kept else { return };
                if kept.is_ok() {
                    self.took(from, session, Parcel::Cut(cut), number);
                }
                let result = match kept {
                    Ok(false) => return,
                    Ok(true) => Ok(()),
                    Err(failure) => Err(self.here(failure)),
                };
                self.guard_says(&master, session, GuardReport::Kept { cut, of: from.clone(), result });
            }
            ToGuard::Load { session, ask, chunk: number, chunks, resources, .. } => {
                let chunk = Chunk { number, of: chunks, resources, tensors };
                let loaded = lock(&self.guards).load(from, session, ask, chunk);
                let Some((master, loaded)) = loaded else { return };
                if loaded.is_ok() {
                    self.took(from, session, Parcel::Ask(ask), number);
                }
                let result = match loaded {
                    Ok(None) => return,
                    Ok(Some((cut, states))) => self.put_loaded(&master, (session, ask), cut, states),
                    Err(failure) => Err(failure),
                };
                self.restored(&master, session, ask, result);
            }
            ToGuard::Serve { .. }
            | ToGuard::Adopt { .. }
            | ToGuard::Cede { .. }
            | ToGuard::Heir { .. }
            | ToGuard::Complete { .. }
            | ToGuard::Taken { .. } => {}
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
            ToGuard::Restore { ask, .. } => {
                self.guard_says(from, session, GuardReport::Ready { ask: *ask, result: Err(self.here(failure)) });
            }
            ToGuard::Return { ask, .. } | ToGuard::GiveBack { ask, .. } => {
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
                let of_buddy = |one: &Expected| matches!(&one.from, Origin::Buddy(buddy) if buddy == from);
                let is_expected = |guarded: &Guarded| guarded.expected.as_ref().is_some_and(of_buddy);
                let is_asked = lock(&self.guards).0.get(&session).is_some_and(is_expected);
                if let Some(master) = master().filter(|_| is_asked) {
                    self.restored(&master, session, *ask, Err(failure));
                }
            }
            ToGuard::Serve { .. }
            | ToGuard::Adopt { .. }
            | ToGuard::Cede { .. }
            | ToGuard::Heir { .. }
            | ToGuard::Complete { .. }
            | ToGuard::Taken { .. } => {}
        }
    }

    fn here(&self, failure: Failure) -> Failure {
        failure.on_task(&self.task.to_string())
    }

    fn restored(&self, master: &Peer, session: SessionId, ask: u64, result: Result<()>) {
        let result = result.map_err(|failure| self.here(failure));
        self.guard_says(master, session, GuardReport::Restored { ask, result });
    }

    /// Sends the kept part of a task to the process that holds the task now.
    fn give_back(&self, master: &Peer, session: SessionId, (ask, cut): (u64, Cut), of: &Peer, to: &Peer) -> Result<()> {
        let chunks = {
            let mut guards = lock(&self.guards);
            let guarded = guards.of_master(session, master)?;
            if ask < guarded.asked {
                return Err(not_wanted());
            }
            guarded.asked = ask;
            let Some(Ward::Kept(states)) = guarded.wards.get(of).and_then(|cuts| cuts.get(&cut)) else {
                let why = format!("cut {cut} of session {session} is not kept here for {of}");
                return Err(Failure::new(Code::NotFound, why));
            };
            chunks(states, None)
        };
        self.parcels.drop_asks(session, ask);
        self.send_chunks(session, (to, Parcel::Ask(ask)), (cut, None), chunks);
        Ok(())
    }
}

fn not_wanted() -> Failure {
    Failure::new(Code::Cancelled, "the state of the session is not to be put back any more")
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
