//! Words to let go of something that a full queue did not take: they are kept, and said when there is room again.
//!
//! A lost Start fails its run and a lost answer is told; a lost Release would leave pieces on a worker for as long as it is up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Code;
use crate::post::Post;
use crate::protocol::{Message, Peer};

/// Most messages that are kept for one peer; the oldest go first.
const MAX_OWED: usize = 4096;

#[derive(Default)]
pub(super) struct Owed {
    /// Whether there is any; looked at for each message.
    is_any: AtomicBool,
    to: Mutex<HashMap<Peer, VecDeque<Message>>>,
}

impl Owed {
    fn lock(&self) -> MutexGuard<'_, HashMap<Peer, VecDeque<Message>>> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn keep(&self, peer: &Peer, message: Message) {
        let mut to = self.lock();
        let owed = to.entry(peer.clone()).or_default();
        if owed.len() >= MAX_OWED {
            tracing::warn!("{peer} takes nothing: more than {MAX_OWED} messages (MAX_OWED) wait to be sent to it");
            owed.pop_front();
        }
        owed.push_back(message);
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Says to a peer what it is owed, as far as its queue takes it.
    pub fn pay(&self, peer: &Peer, post: &dyn Post) {
        if !self.is_any.load(Ordering::Relaxed) {
            return;
        }
        // Taken out first: nothing is sent under the lock.
        while let Some(message) = self.next(peer) {
            if let Err(failure) = post.send(peer, message.clone().into())
                && failure.code == Code::ResourceExhausted
            {
                self.lock().entry(peer.clone()).or_default().push_front(message);
                self.is_any.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    fn next(&self, peer: &Peer) -> Option<Message> {
        let mut to = self.lock();
        let message = to.get_mut(peer).and_then(VecDeque::pop_front);
        if message.is_none() {
            to.remove(peer);
            self.is_any.store(!to.is_empty(), Ordering::Relaxed);
        }
        message
    }

    /// A peer that is gone has let go of everything.
    pub fn forget(&self, peer: &Peer) {
        self.lock().remove(peer);
    }
}
