//! The sessions of a door: so many, found by their handles. Where another needs a place, the one that was used the longest
//! ago goes first, of clients that went before those that are there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::connection::Connection;
use super::recent::{Full, Recent};
use super::session::DoorSession;
use crate::failure::{Code, Failure, Result};
use crate::lock::lock;

/// Most sessions that are open at once.
const MAX_SESSIONS: usize = 1024;
/// How long a session stays after its client's last connection has ended and its last call was made, where there is a place
/// for it: clients close idle connections, and come back.
const ORPHAN_KEPT: Duration = Duration::from_secs(2 * 60 * 60);
/// How long a session of a client that is there is unused before another client may have its place.
const IDLE: Duration = Duration::from_secs(60);

pub(super) struct Sessions(Mutex<Recent<String, Arc<DoorSession>>>);

impl Sessions {
    pub fn new() -> Sessions {
        Sessions(Mutex::new(Recent::new(MAX_SESSIONS)))
    }

    /// The session of that handle, which is used by that, over this connection.
    ///
    /// # Errors
    /// Aborted if there is none, or none any more.
    pub fn get(&self, handle: &str, connection: Option<&Connection>) -> Result<Arc<DoorSession>> {
        let mut sessions = lock(&self.0);
        if let Some(session) = sessions.get(handle) {
            session.seen(connection);
            return Ok(Arc::clone(session));
        }
        let why = if sessions.had_to_go(handle) {
            format!(
                "the session {handle} was ended: {MAX_SESSIONS} sessions were open at this door, another needed a place, and \
                 this one had not been used for the longest; open a new one"
            )
        } else {
            format!("Session handle {handle:?} is not found; it was closed or reset, or the node was restarted")
        };
        Err(Failure::new(Code::Aborted, why))
    }

    /// Evicts what may be evicted, so that there can be one more, that comes over this connection.
    ///
    /// # Errors
    /// ResourceExhausted if no session may go.
    pub fn evict_for_one_more(&self, connection: Option<&Connection>) -> Result<()> {
        let ended = evict_for_one_more(&mut lock(&self.0), connection)?;
        // Ending them sends messages, and nobody is to wait for these.
        drop(ended);
        Ok(())
    }

    /// Takes a session in.
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

    /// Takes all of them out.
    pub fn take_all(&self) -> Vec<Arc<DoorSession>> {
        lock(&self.0).take_unless(|_| false)
    }

    /// Ends the sessions whose clients went away long ago.
    pub fn sweep(&self) {
        let gone = lock(&self.0).take_unless(|session| session.has_client() || session.idle() < ORPHAN_KEPT);
        drop(gone);
    }
}

fn evict_for_one_more(
    sessions: &mut Recent<String, Arc<DoorSession>>,
    connection: Option<&Connection>,
) -> Result<Vec<Arc<DoorSession>>> {
    let rank = |session: &Arc<DoorSession>| match session {
        // The table holds one, every call under way another.
        session if Arc::strong_count(session) > 1 => None,
        session if !session.has_client() => Some(0),
        session if connection.is_some_and(|connection| session.is_of(connection)) => Some(1),
        session if session.idle() >= IDLE => Some(2),
        _ => None,
    };
    sessions.evict_for_one_more(rank).map_err(|Full| {
        let why =
            format!("{MAX_SESSIONS} sessions are open already, and all are in use; close some with Session.close()");
        Failure::new(Code::ResourceExhausted, why)
    })
}
