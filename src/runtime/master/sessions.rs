//! The open sessions, and the choice of the one to close when there are too many.
//!
//! It is independent of graphs and steps. Its lock is held for a lookup and never while a session is at work: a thread that
//! finds a session takes its handle and releases the lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::MasterLimits;
use super::machine::{Machine, Nanos};
use crate::protocol::Peer;

/// Most ended sessions that are remembered, so that a client that comes back receives the reason.
const MAX_REMEMBERED: usize = 4096;

pub(super) struct Sessions {
    limits: MasterLimits,
    table: Mutex<Table>,
}

/// A session, for the threads that work on it.
pub(super) struct Handle {
    pub id: SessionId,
    pub client: Peer,
    session: Mutex<Hosted>,
}

/// A session that lost a name to another.
pub(super) struct Claimed {
    pub handle: Arc<Handle>,
    pub name: String,
}

/// A session, and the state of its sending.
pub(super) struct Hosted {
    pub machine: Machine,
    /// A thread is sending its messages.
    pub is_sending: bool,
    /// A panic may have lost some of its messages.
    pub is_damaged: bool,
}

#[derive(Default)]
struct Table {
    open: HashMap<SessionId, Arc<Handle>>,
    /// Sessions that were closed for other sessions, the last one last, with the name that they lost if that is the reason.
    evicted: VecDeque<(SessionId, Option<String>)>,
    /// The claimed names, each with the task on which the session has the resources that name no task.
    claims: HashMap<(Option<Task>, String), SessionId>,
}

impl Handle {
    pub fn new(machine: Machine) -> Arc<Self> {
        let (id, client) = (machine.id, machine.client.clone());
        Arc::new(Handle { id, client, session: Mutex::new(Hosted { machine, is_sending: false, is_damaged: false }) })
    }

    pub fn lock(&self) -> MutexGuard<'_, Hosted> {
        lock(&self.session)
    }

    /// Whether a panic happened during work on the session, and may have left it half changed.
    pub fn is_damaged(&self) -> bool {
        self.session.is_poisoned() || self.lock().is_damaged
    }
}

impl Sessions {
    pub fn new(limits: MasterLimits) -> Self {
        Sessions { limits, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub fn find(&self, id: SessionId) -> Option<Arc<Handle>> {
        self.lock().open.get(&id).cloned()
    }

    /// A client's session.
    ///
    /// # Errors
    /// Aborted if it is not open.
    pub fn of(&self, client: &Peer, id: SessionId) -> Result<Arc<Handle>> {
        let table = self.lock();
        let found = table.open.get(&id).filter(|handle| handle.client == *client);
        found.cloned().ok_or_else(|| table.no_session(id, &self.limits))
    }

    /// All sessions, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        let mut all: Vec<_> = self.lock().open.values().cloned().collect();
        all.sort_unstable_by_key(|handle| handle.id);
        all
    }

    /// The failure of a request whose session is not open.
    pub fn no_session(&self, id: SessionId) -> Failure {
        self.lock().no_session(id, &self.limits)
    }

    /// Keeps a new session; returns the one that is closed for it, if any.
    ///
    /// # Errors
    /// AlreadyExists; ResourceExhausted if there are too many and all are in use.
    pub fn insert(&self, handle: Arc<Handle>, now: Nanos) -> Result<Option<Arc<Handle>>> {
        let mut table = self.lock();
        if table.open.contains_key(&handle.id) {
            return Err(Failure::new(Code::AlreadyExists, format!("session {} is open already", handle.id)));
        }
        let mut evicted = None;
        if table.open.len() >= self.limits.sessions {
            let victim = table.victim(&self.limits, now).ok_or_else(|| {
                let MasterLimits { sessions, idle_kept, .. } = self.limits;
                let why = format!(
                    "{sessions} sessions are open already, and each was used within the last {} s; close some",
                    idle_kept.as_secs()
                );
                Failure::new(Code::ResourceExhausted, why)
            })?;
            evicted = table.remove(victim);
            table.remember(victim, None);
        }
        table.open.insert(handle.id, handle);
        Ok(evicted)
    }

    pub fn remove(&self, id: SessionId) {
        self.lock().remove(id);
    }

    /// Keeps names for an open session in place of those that it has; returns the other sessions that had one of them, which
    /// are not open any more.
    ///
    /// # Errors
    /// Aborted if the session is not open.
    pub fn claim(&self, own: &Handle, task: Option<&Task>, names: Vec<String>) -> Result<Vec<Claimed>> {
        let mut table = self.lock();
        if !table.open.contains_key(&own.id) {
            return Err(table.no_session(own.id, &self.limits));
        }
        table.claims.retain(|_, of| *of != own.id);
        let mut lost = Vec::new();
        for name in names {
            let before = table.claims.insert((task.cloned(), name.clone()), own.id).filter(|before| *before != own.id);
            let Some(before) = before else { continue };
            table.remember(before, Some(name.clone()));
            lost.extend(table.remove(before).map(|handle| Claimed { handle, name }));
        }
        Ok(lost)
    }
}

impl Table {
    /// Records why a session was closed.
    fn remember(&mut self, id: SessionId, claimed: Option<String>) {
        if self.evicted.len() >= MAX_REMEMBERED {
            self.evicted.pop_front();
        }
        self.evicted.push_back((id, claimed));
    }

    fn remove(&mut self, id: SessionId) -> Option<Arc<Handle>> {
        self.claims.retain(|_, of| *of != id);
        self.open.remove(&id)
    }

    /// Of the client that has most sessions, so that it takes no other client's slot, the idle one that was not used for
    /// longest.
    fn victim(&self, limits: &MasterLimits, now: Nanos) -> Option<SessionId> {
        let mut of_client: HashMap<&Peer, usize> = HashMap::new();
        for handle in self.open.values() {
            *of_client.entry(&handle.client).or_default() += 1;
        }
        let kept = limits.idle_kept.as_nanos() as Nanos;
        let idle = self.open.values().filter_map(|handle| {
            // A session that is locked is in use.
            let session = handle.session.try_lock().ok()?;
            let (machine, used) = (&session.machine, session.machine.used());
            let is_idle = machine.is_idle() && now.saturating_sub(used) >= kept;
            is_idle.then(|| (of_client[&handle.client], std::cmp::Reverse(used), handle.id))
        });
        idle.max().map(|(.., id)| id)
    }

    fn no_session(&self, id: SessionId, limits: &MasterLimits) -> Failure {
        let why = match self.evicted.iter().find(|(evicted, _)| *evicted == id) {
            Some((_, Some(name))) => {
                let why = format!("session {id} was ended: another session has claimed {name}");
                return Failure::new(Code::Aborted, why).because(Reason::Superseded);
            }
            Some((_, None)) => {
                let limit = limits.sessions;
                format!(
                    "session {id} was ended: {limit} sessions were open here, which is the limit, and of its client's this one \
                     was not used for longest; open another"
                )
            }
            None => format!("session {id} is not open here; it ended, or this node was restarted"),
        };
        Failure::new(Code::Aborted, why)
    }
}
