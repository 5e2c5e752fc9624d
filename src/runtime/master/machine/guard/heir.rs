//! The heir of a session: the node that continues it if the master is lost. It has the record of the newest complete cut before
//! any task forgets the one before.

use std::collections::BTreeSet;

use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure};

use super::super::recovery::Recovery;
use super::super::{Machine, Nanos};
use super::{Complete, Covers, Guard, Phase};
use crate::protocol::guard::{Cut, Estate, ToGuard};
use crate::protocol::{Peer, ToMaster};

/// The numbers of an heir begin so far after those in the estate: the master gave more numbers until it was lost.
const BEYOND: u64 = 1 << 40;
const PIECES_BEYOND: u32 = 1 << 12;

/// The node that continues a session.
pub(super) struct Heir {
    peer: Peer,
    /// The newest complete cut whose record it does not have yet, and the tasks that then forget earlier ones.
    pending: Option<(Cut, BTreeSet<Peer>)>,
    /// That record is not sent yet: it has steps whose values nobody has received.
    is_held: bool,
    /// It has the record of a cut.
    is_ready: bool,
}

/// A session whose master is lost.
pub(in super::super::super) struct Inheritance {
    pub estate: Estate,
    /// The task of that master.
    pub task: Task,
    /// The last step that was known to be done.
    pub at: u64,
    /// How long ago the master was lost.
    pub ago: Nanos,
    /// The failure of the session if it does not come back to its state.
    pub failure: Failure,
}

impl Guard {
    /// Whether the record of the newest cut waits for the client: no other is taken meanwhile, which would wait for longer.
    pub(super) fn is_held(&self) -> bool {
        self.heir.as_ref().is_some_and(|heir| heir.is_held)
    }
}

impl Machine {
    /// The node that continues the session, if one is named, and whether it could do so now.
    pub fn heir(&self) -> Option<(&Peer, bool)> {
        self.guard.as_ref().and_then(|guard| guard.heir.as_ref()).map(|heir| (&heir.peer, heir.is_ready))
    }

    /// That node continues the session if this master is lost.
    pub(in super::super) fn set_heir(&mut self, peer: Peer) {
        let Some(guard) = &mut self.guard else { return };
        let served: Vec<Peer> = guard.served.keys().cloned().collect();
        let pending = guard.heir.take().and_then(|heir| heir.pending);
        guard.heir = Some(Heir { peer, pending, is_held: false, is_ready: false });
        self.name_heir(served);
        self.leave_to_heir(&BTreeSet::new());
    }

    /// Tells workers who may take this master's place.
    pub(in super::super) fn name_heir(&mut self, workers: Vec<Peer>) {
        let (session, Some(heir)) = (self.id, self.heir().map(|(heir, _)| heir.clone())) else { return };
        for worker in workers {
            self.send(worker, ToGuard::Heir { session, heir: Some(heir.clone()) });
        }
    }

    /// The values of the steps up to this one are received, or are not to be: a cut with later ones is kept from the heir, which
    /// would not compute them again.
    pub(in super::super) fn set_received(&mut self, until: u64) {
        let Some(guard) = &mut self.guard else { return };
        guard.received = until;
        if guard.is_held() {
            self.leave_to_heir(&BTreeSet::new());
        }
    }

    /// Sends the record of the newest cut to the heir, if there is one: these tasks forget earlier cuts once it has it.
    pub(super) fn leave_to_heir(&mut self, peers: &BTreeSet<Peer>) -> bool {
        let (session, steps, pieces) = (self.id, self.runs.steps(), self.next_piece);
        let Some(Guard { heir: Some(heir), complete: Some(complete), asks, received, term, .. }) = &mut self.guard
        else {
            return false;
        };
        let Complete { cut, at, parts, .. } = complete;
        let mut waits = heir.pending.take().map(|(_, peers)| peers).unwrap_or_default();
        waits.extend(peers.iter().cloned());
        heir.pending = Some((*cut, waits));
        heir.is_held = *at > *received;
        if heir.is_held {
            return true;
        }
        let estate = Estate { cut: *cut, at: *at, parts: parts.clone(), steps, pieces, asks: *asks, term: *term };
        let to = heir.peer.clone();
        self.send(to, ToMaster::Inherit { session, estate: Box::new(estate) });
        true
    }

    /// The heir has the record of a cut.
    pub(super) fn inherited(&mut self, peer: &Peer, cut: Cut) {
        let session = self.id;
        let heir = self.guard.as_mut().and_then(|guard| guard.heir.as_mut());
        let Some(heir) = heir.filter(|heir| heir.peer == *peer) else { return };
        heir.is_ready = true;
        let Some((_, peers)) = heir.pending.take_if(|(pending, _)| *pending == cut) else { return };
        peers.into_iter().for_each(|peer| self.send(peer, ToGuard::Complete { session, cut }));
    }

    /// A peer is lost: if it was the heir, no task waits for it.
    pub(in super::super) fn heir_lost(&mut self, peer: &Peer) {
        let session = self.id;
        let Some(guard) = &mut self.guard else { return };
        let Some(heir) = guard.heir.take_if(|heir| heir.peer == *peer) else { return };
        let served: Vec<Peer> = guard.served.keys().cloned().collect();
        for worker in served {
            self.send(worker, ToGuard::Heir { session, heir: None });
        }
        if let Some((cut, peers)) = heir.pending {
            peers.into_iter().for_each(|peer| self.send(peer, ToGuard::Complete { session, cut }));
        }
    }

    /// A worker of the session has another master, which took this one to be lost: this one ends the session, and keeps nothing
    /// from that.
    pub(super) fn superseded(&mut self, worker: &Peer, term: u64) {
        let session = self.id;
        if self.guard.as_ref().is_none_or(|guard| guard.term >= term) || !self.workers.contains(worker) {
            return;
        }
        self.is_superseded = true;
        for worker in std::mem::take(&mut self.workers) {
            self.send(worker, ToGuard::Cede { session });
        }
        let why = "another node continues the session: this one was cut off, or stopped, for a while";
        self.end(&Failure::new(Code::Aborted, why));
    }

    /// Whether another master has the session.
    pub fn is_superseded(&self) -> bool {
        self.is_superseded
    }

    /// Takes the place of the master that is lost: the session is to come back to the newest cut of its estate.
    pub(in super::super::super) fn inherit(&mut self, inheritance: Inheritance) {
        let now = self.now;
        let Inheritance { estate, task, at, ago, failure } = inheritance;
        let Estate { cut, at: done, parts, steps, pieces, asks, term } = estate;
        self.finished = done;
        self.next_piece = pieces.saturating_add(PIECES_BEYOND);
        self.runs.begin_after(steps.saturating_add(BEYOND));
        let Some(guard) = &mut self.guard else { return };
        guard.term = term.saturating_add(1);
        (guard.asks, guard.last) = (asks.saturating_add(BEYOND), cut.saturating_add(BEYOND));
        guard.complete = Some(Complete { cut, parts, covers: Covers::default(), at: done });
        (guard.broken, guard.is_exposed, guard.attempts) = (None, false, 1);
        guard.phase = Phase::Lost(Recovery::inherited(task, failure, (now, ago), (at.max(done), done)));
    }
}
