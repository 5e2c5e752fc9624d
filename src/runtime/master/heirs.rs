//! Heirs: the node that continues a session of this master if this one is lost, and the sessions of other masters that this node
//! is to continue.

use std::collections::HashMap;
use std::sync::Mutex;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::machine::{Inheritance, Nanos, SessionEvent, buddy};
use super::{Master, State};
use crate::protocol::guard::{Estate, GuardReport};
use crate::protocol::{Member, Peer, ToMaster};

/// The sessions of other masters that this node is to continue. Only those are kept that it has agreed to.
#[derive(Default)]
pub(super) struct Heirs(Mutex<HashMap<SessionId, Expected>>);

struct Expected {
    master: Peer,
    estate: Option<Estate>,
    /// The master is lost.
    lost: Option<Lost>,
}

/// The loss of a session's master.
pub(crate) struct Lost {
    /// Its task.
    pub task: Task,
    /// The last step of the session that was known to be done.
    pub at: u64,
    /// How long ago it was lost, in nanoseconds.
    pub ago: Nanos,
    /// The failure of the session if it does not come back to its state.
    pub failure: Failure,
}

impl Heirs {
    /// Keeps the record of a session, if it is newer; whether it is expected from that master, which is not taken to be lost.
    fn keep(&self, master: &Peer, session: SessionId, estate: Estate) -> bool {
        let mut all = lock(&self.0);
        let is_expected = |expected: &&mut Expected| expected.master == *master && expected.lost.is_none();
        let Some(expected) = all.get_mut(&session).filter(is_expected) else { return false };
        // A large one may have been overtaken.
        if expected.estate.as_ref().is_none_or(|known| known.cut <= estate.cut) {
            expected.estate = Some(estate);
        }
        true
    }

    /// The session that is opened is one whose master is lost.
    pub fn inheritance(&self, session: SessionId) -> Option<Inheritance> {
        let mut all = lock(&self.0);
        all.get(&session).filter(|expected| expected.lost.is_some() && expected.estate.is_some())?;
        let Expected { estate, lost, .. } = all.remove(&session)?;
        let Lost { task, at, ago, failure } = lost?;
        Some(Inheritance { estate: estate?, task, at, ago, failure })
    }
}

impl State {
    /// Another master leaves the record of a session to this node.
    pub(super) fn inherit(&self, master: &Peer, session: SessionId, estate: Estate) {
        let cut = estate.cut;
        if self.heirs.keep(master, session, estate) {
            let _gone =
                self.router.send(master, ToMaster::Guard { session, report: GuardReport::Inherited { cut } }.into());
        }
    }
}

impl Master {
    /// The node that may continue sessions of this master: that which keeps the copies of this task's state.
    pub fn choose_heir(&self) -> Option<Member> {
        let cluster = self.state.router.cluster();
        let own = cluster.member(&self.state.seat.task)?;
        buddy(&own.task, &own.peer, &cluster, None)
    }

    /// The node that continues a session of this master, and whether it could do so now.
    pub fn heir(&self, session: SessionId) -> Option<(Peer, bool)> {
        let handle = self.state.sessions.find(session)?;
        let session = handle.lock();
        session.machine.heir().map(|(heir, is_ready)| (heir.clone(), is_ready))
    }

    /// That node has agreed to continue a session of this master.
    pub fn set_heir(&self, session: SessionId, peer: Peer) {
        self.state.told(session, SessionEvent::Heir { peer });
    }

    /// Whether another master has continued a session, which was this one's.
    pub fn is_superseded(&self, session: SessionId) -> bool {
        self.state.sessions.find(session).is_some_and(|handle| handle.lock().machine.is_superseded())
    }

    /// The values of a session's steps up to this one are received: the heir does not compute them again.
    pub fn received(&self, session: SessionId, until: u64) {
        self.state.told(session, SessionEvent::Received { until });
    }

    /// This node agrees to continue a session of another master.
    pub fn expect(&self, session: SessionId, master: Peer) {
        lock(&self.state.heirs.0).insert(session, Expected { master, estate: None, lost: None });
    }

    /// That session is over, or not to be continued here.
    pub fn disclaim(&self, session: SessionId) {
        lock(&self.state.heirs.0).remove(&session);
    }

    /// The master of that session is lost: once it is opened here, it continues from the newest cut. Returns the steps that are
    /// in the cut; `None` if there is none.
    pub fn succeed(&self, session: SessionId, lost: Lost) -> Option<u64> {
        let mut all = lock(&self.state.heirs.0);
        let expected = all.get_mut(&session)?;
        let at = expected.estate.as_ref()?.at;
        expected.lost = Some(lost);
        Some(at)
    }

    /// The task of this master.
    pub fn task(&self) -> &Task {
        &self.state.seat.task
    }
}
