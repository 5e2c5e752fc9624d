//! The sessions of a door, by handle, limited in number. If there are too many, sessions of clients that went away are
//! evicted first, then those of connected clients; among these the least recently used.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;

use super::connection::Connection;
use super::recent::{Full, RecentlyUsed};
use super::session::DoorSession;

/// Maximum number of sessions that are open at once.
const MAX_SESSIONS: usize = 1024;
/// How long a session stays after its client's last connection ended and its last call was made, if its slot is not needed:
/// clients close idle connections and come back.
const ORPHAN_KEPT: Duration = Duration::from_secs(2 * 60 * 60);
/// How long a connected client's session must be unused before another client may get its slot.
const IDLE: Duration = Duration::from_secs(60);

pub(super) struct Sessions(Mutex<RecentlyUsed<String, Arc<DoorSession>>>);

impl Sessions {
    pub fn new() -> Sessions {
        Sessions(Mutex::new(RecentlyUsed::new(MAX_SESSIONS)))
    }

    /// The session with this handle, which counts as used over this connection.
    ///
    /// # Errors
    /// Aborted if there is none, or it has ended.
    pub fn get(&self, handle: &str, connection: Option<&Connection>) -> Result<Arc<DoorSession>> {
        let mut sessions = lock(&self.0);
        if let Some(session) = sessions.get(handle) {
            session.seen(connection);
            return Ok(Arc::clone(session));
        }
        let why = if sessions.was_evicted(handle) {
            format!(
                "the session {handle} was ended: this server reached its limit of {MAX_SESSIONS} sessions and ended \
                 the least recently used one; open a new one"
            )
        } else {
            format!("Session handle {handle:?} is not found; it was closed or reset, or the node was restarted")
        };
        Err(Failure::new(Code::Aborted, why))
    }

    /// Evicts sessions, so that a slot is free for one more over this connection.
    ///
    /// # Errors
    /// ResourceExhausted if no session can be evicted.
    pub fn evict_for_one_more(&self, connection: Option<&Connection>) -> Result<()> {
        let ended = evict_for_one_more(&mut lock(&self.0), connection)?;
        // Ending them sends messages, which should not happen under the lock.
        drop(ended);
        Ok(())
    }

    /// Adds a session.
    ///
    /// # Errors
    /// As [`Sessions::evict_for_one_more`].
    pub fn insert(&self, handle: &str, session: DoorSession, connection: Option<&Connection>) -> Result<()> {
        let mut sessions = lock(&self.0);
        let ended = evict_for_one_more(&mut sessions, connection)?;
        sessions.insert(handle.to_owned(), Arc::new(session));
        drop(sessions);
        drop(ended);
        Ok(())
    }

    pub fn remove(&self, handle: &str) -> Option<Arc<DoorSession>> {
        lock(&self.0).remove(handle)
    }

    /// Removes and returns all sessions.
    pub fn take_all(&self) -> Vec<Arc<DoorSession>> {
        lock(&self.0).take_unless(|_| false)
    }

    /// Ends sessions whose clients went away long ago.
    pub fn sweep(&self) {
        let gone = lock(&self.0).take_unless(|session| session.has_client() || session.idle() < ORPHAN_KEPT);
        drop(gone);
    }
}

fn evict_for_one_more(
    sessions: &mut RecentlyUsed<String, Arc<DoorSession>>,
    connection: Option<&Connection>,
) -> Result<Vec<Arc<DoorSession>>> {
    let rank = |session: &Arc<DoorSession>| match session {
        // The table holds one reference, and every call under way another.
        session if Arc::strong_count(session) > 1 => None,
        session if !session.has_client() => Some(0),
        session if connection.is_some_and(|connection| session.is_of(connection)) => Some(1),
        session if session.idle() >= IDLE => Some(2),
        _ => None,
    };
    sessions.evict_for_one_more(rank).map_err(|Full| {
        let why = format!(
            "the limit of {MAX_SESSIONS} sessions is reached, and all are in use; close some with Session.close()"
        );
        Failure::new(Code::ResourceExhausted, why)
    })
}
