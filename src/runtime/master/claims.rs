//! The names that sessions claim: a session that has a name ends when another one claims it.
//!
//! A claim is answered once the workers of the sessions that it ended have confirmed that they have released them, so that the
//! claiming session's messages to them come after all those of the ended sessions.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use meshtf_tensor::failure::{Code, Failure, Reason, Result};
use meshtf_tensor::ids::{RequestId, SessionId};
use meshtf_tensor::lock::lock;

use super::machine::SessionEvent;
use super::sessions::Claimed;
use super::{Master, State};
use crate::protocol::{Peer, Reply};

/// Most names that a session claims, and most bytes of each.
const MAX_NAMES: usize = 1 << 16;
const MAX_NAME_BYTES: usize = 1024;

/// A claim whose answer waits for workers.
struct Waiting {
    session: SessionId,
    client: Peer,
    request: RequestId,
    /// The ended sessions, each with a worker that has not released it yet.
    left: BTreeSet<(SessionId, Peer)>,
}

/// The claims that wait for workers.
#[derive(Default)]
pub(super) struct Claims(Mutex<Vec<Waiting>>);

impl Claims {
    fn lock(&self) -> MutexGuard<'_, Vec<Waiting>> {
        lock(&self.0)
    }

    /// Removes the pairs that are over; returns the claims that wait for nothing more.
    fn take(&self, is_over: impl Fn(&(SessionId, Peer)) -> bool) -> Vec<Waiting> {
        let mut all = self.lock();
        all.iter_mut().for_each(|one| one.left.retain(|left| !is_over(left)));
        all.extract_if(.., |one| one.left.is_empty()).collect()
    }
}

impl Master {
    /// A worker has released a session.
    pub(super) fn confirmed(&self, worker: &Peer, session: SessionId) {
        self.state.answer_claims(|(of, by)| *of == session && by == worker);
    }
}

impl State {
    /// Keeps names for a session, and ends the other sessions that have one of them. The answer comes later.
    pub(super) fn claim(&self, client: &Peer, request: RequestId, id: SessionId, names: Vec<String>) -> Result<()> {
        if names.len() > MAX_NAMES || names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            let why = format!("a session claims at most {MAX_NAMES} names of at most {MAX_NAME_BYTES} bytes each");
            return Err(Failure::invalid(why));
        }
        let own = self.sessions.of(client, id)?;
        let options = own.lock().machine.options().clone();
        // An isolated session shares no variable with another.
        let names = if options.isolated { Vec::new() } else { names };
        let lost = self.sessions.claim(&own, options.default_task.as_ref(), names)?;
        let ended: Vec<(Claimed, Failure)> = lost
            .into_iter()
            .map(|one| {
                let why = format!("another session, {id} of {client}, has claimed {}", one.name);
                (one, Failure::new(Code::Aborted, why).because(Reason::Superseded))
            })
            .collect();
        let mut left: BTreeSet<(SessionId, Peer)> = BTreeSet::new();
        for (Claimed { handle, .. }, _) in &ended {
            left.extend(handle.lock().machine.workers().map(|worker| (handle.id, worker.clone())));
        }
        self.wait(Waiting { session: id, client: client.clone(), request, left }, &ended);
        for (Claimed { handle, .. }, failure) in &ended {
            self.on(handle, SessionEvent::Supersede { failure });
        }
        // A worker that was gone before sends no confirmation.
        let cluster = self.router.cluster();
        let is_up = |worker: &Peer| cluster.members().any(|member| member.peer == *worker);
        self.answer_claims(|(_, worker)| !is_up(worker));
        Ok(())
    }

    /// Makes a claim wait, also for the workers that the claims of ended sessions waited for; those claims fail.
    fn wait(&self, mut waiting: Waiting, ended: &[(Claimed, Failure)]) {
        let mut failed = Vec::new();
        {
            let mut all = self.claims.lock();
            for (Claimed { handle, .. }, failure) in ended {
                for one in all.extract_if(.., |one| one.session == handle.id) {
                    waiting.left.extend(one.left.iter().cloned());
                    failed.push((one, failure.clone()));
                }
            }
            all.push(waiting);
        }
        for (one, failure) in failed {
            self.reply(&one.client, one.request, Err(failure));
        }
    }

    /// Answers the claims that wait only for pairs that are over.
    pub(super) fn answer_claims(&self, is_over: impl Fn(&(SessionId, Peer)) -> bool) {
        for one in self.claims.take(is_over) {
            self.reply(&one.client, one.request, Ok(Reply::Claimed));
        }
    }
}
