//! The master of a guarded session may be another one than before: the heir of one that seemed lost. Its term is a greater
//! number. From then on this worker takes nothing of the session from the earlier master, which may have been stopped or cut
//! off for a while, and tells it so.

use std::time::Instant;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::{Guards, State, is_not_anothers};
use crate::protocol::Peer;
use crate::protocol::guard::{Cut, GuardReport, ToGuard};

impl Guards {
    /// The term of the session's master, if that has taken the place of `peer`, or of another one.
    fn superseded(&self, peer: &Peer, session: SessionId) -> Option<u64> {
        self.0.get(&session).filter(|guarded| guarded.term > 0 && guarded.master != *peer).map(|guarded| guarded.term)
    }

    /// A node takes the place of the session's master. Returns that master, if it is still connected here.
    ///
    /// # Errors
    /// PermissionDenied if the master had named another node, or none; FailedPrecondition if it has gone on since; Unavailable
    /// while its pieces are on their way out.
    fn succeed(&mut self, heir: &Peer, session: SessionId, (term, cut): (u64, Cut)) -> Result<Option<Peer>> {
        let Some(guarded) = self.0.get_mut(&session).filter(|guarded| guarded.master != *heir) else { return Ok(None) };
        if guarded.heir.as_ref() != Some(heir) {
            let why = format!("the master of session {session} has not named this node to take its place");
            return Err(Failure::new(Code::PermissionDenied, why));
        }
        if term <= guarded.term || guarded.complete.is_some_and(|complete| complete > cut) {
            let why = format!("session {session} has gone on with another master since cut {cut}");
            return Err(Failure::new(Code::FailedPrecondition, why));
        }
        if guarded.orphaned.is_some() && !guarded.is_released {
            let why = format!("what the master of session {session} had here is on its way out");
            return Err(Failure::new(Code::Unavailable, why));
        }
        let is_connected = guarded.orphaned.is_none();
        let before = std::mem::replace(&mut guarded.master, heir.clone());
        (guarded.term, guarded.heir, guarded.expected) = (term, None, None);
        (guarded.orphaned, guarded.is_released) = (None, false);
        Ok(is_connected.then_some(before))
    }

    /// As [`Guards::serve`], for a master of this term, also if nothing of the session was here before.
    fn serve_later(&mut self, heir: &Peer, about: (SessionId, u64), term: u64, of: Vec<Peer>) -> Result<()> {
        self.serve(heir, about, of)?;
        self.0.entry(about.0).and_modify(|guarded| guarded.term = guarded.term.max(term));
        Ok(())
    }

    /// The master gives a session up to its heir: the copies stay for that.
    fn cede(&mut self, master: &Peer, session: SessionId) {
        if let Some(guarded) = self.0.get_mut(&session).filter(|guarded| guarded.master == *master) {
            (guarded.orphaned, guarded.is_released) = (Some(Instant::now()), true);
        }
    }
}

impl State {
    /// Whether a message comes from an earlier master of the session, which is notified of that.
    pub(in super::super) fn is_from_earlier(&self, from: &Peer, session: SessionId) -> bool {
        let term = lock(&self.guards).superseded(from, session);
        if let Some(term) = term {
            self.guard_says(from, session, GuardReport::Superseded { term });
        }
        term.is_some()
    }

    /// A node takes the place of a session's master.
    ///
    /// # Errors
    /// Those of [`Guards::succeed`] and [`Guards::serve`].
    pub(super) fn adopt(
        &self,
        heir: &Peer,
        (session, ask): (SessionId, u64),
        about: (u64, Cut),
        of: Vec<Peer>,
    ) -> Result<()> {
        let before = lock(&self.guards).succeed(heir, session, about)?;
        if let Some(master) = before {
            self.release_of(&master, session);
            self.is_from_earlier(&master, session);
        }
        let sessions = self.sessions();
        // Pieces of the earlier master may still be on their way out.
        is_not_anothers(&sessions, heir, session)
            .map_err(|failure| Failure::new(Code::Unavailable, failure.message))
            .and_then(|()| lock(&self.guards).serve_later(heir, (session, ask), about.0, of))
    }

    /// A master gives a session up to its heir.
    pub(super) fn cede(&self, master: &Peer, session: SessionId) {
        self.release_of(master, session);
        lock(&self.guards).cede(master, session);
    }

    /// Releases what the session has here under that master, but for the copies.
    fn release_of(&self, master: &Peer, session: SessionId) {
        match self.is_master(master, session) {
            true => self.release(session),
            false => self.release_unless_anothers(session),
        }
    }
}

/// Whether only the master of a session sends such a message.
pub(super) fn is_of_master(message: &ToGuard) -> bool {
    use ToGuard::{Adopt, Keep, Load, Taken};
    !matches!(message, Adopt { .. } | Keep { .. } | Load { .. } | Taken { .. })
}
