//! The chunks of copies on their way to other tasks: few at a time, since the values of steps go over the same links.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::super::State;
use super::Guarded;
use crate::protocol::guard::{Cut, GuardReport, Parcel, ToGuard};
use crate::protocol::{Envelope, Peer, ToWorker};
use crate::runtime::parts::Body;

/// Most bytes of the chunks of one copy that its peer has not taken yet. A chunk of one larger resource goes alone.
const WINDOW: usize = 64 << 20;

/// The session of a copy on its way, the peer to which it goes, and its purpose.
type Key = (SessionId, Peer, Parcel);

/// Copies on their way to peers. Their lock is never held for long, as that of [`Guards`](super::Guards) is while the state of a
/// resource is put back: threads that deliver messages need it. Whoever needs both takes that one first.
#[derive(Default)]
pub(in super::super) struct Parcels(Mutex<BTreeMap<Key, Outgoing>>);

/// A copy on its way to a peer.
struct Outgoing {
    /// Its cut, and that without which it is not whole.
    cut: Cut,
    base: Option<Cut>,
    waiting: VecDeque<Body>,
    /// How many chunks it has.
    count: u32,
    /// The bytes of each chunk that was sent and is not taken yet.
    under_way: BTreeMap<u32, usize>,
}

impl Outgoing {
    fn new(cut: Cut, base: Option<Cut>, chunks: Vec<Body>) -> Outgoing {
        let count = chunks.len() as u32;
        Outgoing { cut, base, waiting: chunks.into(), count, under_way: BTreeMap::new() }
    }

    /// The next chunk and its number, if it may be sent now.
    fn next(&mut self) -> Option<(u32, Body)> {
        let bytes = self.waiting.front()?.1.iter().map(Tensor::heap_bytes).sum();
        let before: usize = self.under_way.values().sum();
        if !self.under_way.is_empty() && before.saturating_add(bytes) > WINDOW {
            return None;
        }
        let number = self.count - self.waiting.len() as u32;
        self.under_way.insert(number, bytes);
        self.waiting.pop_front().map(|body| (number, body))
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }
}

impl Parcels {
    /// Takes those for which the condition holds. They may be large: they are to be dropped without a lock.
    fn take(&self, holds: impl Fn(&Key) -> bool) -> BTreeMap<Key, Outgoing> {
        lock(&self.0).extract_if(.., |key, _| holds(key)).collect()
    }

    /// The copies of a session for cuts up to this one need not be sent.
    pub(super) fn drop_cuts(&self, session: SessionId, until: Cut) {
        drop(self.take(|(of, _, parcel)| *of == session && matches!(parcel, Parcel::Cut(cut) if *cut <= until)));
    }

    /// Nor those for what its master asked for before this.
    pub(super) fn drop_asks(&self, session: SessionId, before: u64) {
        drop(self.take(|(of, _, parcel)| *of == session && matches!(parcel, Parcel::Ask(ask) if *ask < before)));
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

impl State {
    /// Sends the chunks of a copy to a peer, if that is still wanted: the first ones now, others as soon as it has taken those.
    pub(super) fn send_chunks(
        &self,
        session: SessionId,
        (to, parcel): (&Peer, Parcel),
        (cut, base): (Cut, Option<Cut>),
        chunks: Vec<Body>,
    ) {
        let key = (session, to.clone(), parcel);
        let is_wanted = |guarded: &Guarded| !matches!(parcel, Parcel::Ask(ask) if ask < guarded.asked);
        let outgoing = Outgoing::new(cut, base, chunks);
        let _replaced = {
            // Under both locks, so that the end of the session does not come in between.
            let guards = lock(&self.guards);
            if !guards.0.get(&session).is_some_and(is_wanted) {
                return;
            }
            lock(&self.parcels.0).insert(key.clone(), outgoing)
        };
        self.send_next(&key);
    }

    /// A peer has taken a chunk.
    pub(super) fn taken(&self, from: &Peer, session: SessionId, parcel: Parcel, chunk: u32) {
        let key = (session, from.clone(), parcel);
        {
            let mut all = lock(&self.parcels.0);
            let Some(outgoing) = all.get_mut(&key) else { return };
            outgoing.under_way.remove(&chunk);
            if outgoing.is_over() {
                all.remove(&key);
                return;
            }
        }
        self.send_next(&key);
    }

    /// Sends the chunks that may be sent now.
    fn send_next(&self, key: &Key) {
        let (session, to, parcel) = key;
        let session = *session;
        loop {
            let (message, tensors) = {
                let mut all = lock(&self.parcels.0);
                let Some(outgoing) = all.get_mut(key) else { return };
                let Some((chunk, (resources, tensors))) = outgoing.next() else { return };
                let (cut, base, chunks) = (outgoing.cut, outgoing.base, outgoing.count);
                let message = match *parcel {
                    Parcel::Cut(cut) => ToGuard::Keep { session, cut, base, chunk, chunks, resources },
                    Parcel::Ask(ask) => ToGuard::Load { session, ask, cut, chunk, chunks, resources },
                };
                (message, tensors)
            };
            if let Err(failure) = self.router.send(to, Envelope::new(ToWorker::from(message), tensors)) {
                // Neither are the others sent.
                let unsent = lock(&self.parcels.0).remove(key);
                if unsent.is_some() {
                    self.unsent(key, failure);
                }
                return;
            }
        }
    }

    /// The peer to which copies were on their way is gone: their masters learn of it, and may ask anew.
    pub(in super::super) fn none_goes_to(&self, peer: &Peer) {
        let unsent = self.parcels.take(|(_, to, _)| to == peer);
        for key in unsent.keys() {
            let why = format!("the link with {peer} ended, to which a copy of the state was on its way");
            self.unsent(key, Failure::new(Code::Unavailable, why));
        }
    }

    /// The copies of sessions that are not guarded here any more need not be sent.
    pub(in super::super) fn drop_unguarded(&self) {
        let _unguarded = {
            let guards = lock(&self.guards);
            self.parcels.take(|(session, ..)| !guards.0.contains_key(session))
        };
    }

    /// The master of a session learns that a copy did not reach its peer.
    fn unsent(&self, (session, _, parcel): &Key, failure: Failure) {
        let master = lock(&self.guards).0.get(session).map(|guarded| guarded.master.clone());
        let Some(master) = master else { return };
        match *parcel {
            Parcel::Ask(ask) => self.restored(&master, *session, ask, Err(failure)),
            Parcel::Cut(cut) => {
                let own = self.router.cluster().member(&self.task).map(|member| member.peer.clone());
                let Some(of) = own else { return };
                let result = Err(self.here(failure));
                self.guard_says(&master, *session, GuardReport::Kept { cut, of, result });
            }
        }
    }

    /// Lets the sender of a chunk know that it is taken, so that others follow. One that is gone sends none.
    pub(super) fn took(&self, from: &Peer, session: SessionId, parcel: Parcel, chunk: u32) {
        let message = ToWorker::from(ToGuard::Taken { session, parcel, chunk });
        let _gone = self.router.send(from, message.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of so many MiB each.
    fn of(sizes: &[usize]) -> Outgoing {
        let body = |size: &usize| (Vec::new(), vec![Tensor::vector(vec![0u8; size << 20])]);
        Outgoing::new(1, None, sizes.iter().map(body).collect())
    }

    fn sent(outgoing: &mut Outgoing) -> Vec<u32> {
        std::iter::from_fn(|| outgoing.next()).map(|(number, _)| number).collect()
    }

    #[test]
    fn a_window_of_chunks_is_under_way() {
        let mut some = of(&[30, 30, 30, 10]);
        assert_eq!(sent(&mut some), [0, 1]);
        assert_eq!(sent(&mut some), [0u32; 0]);
        some.under_way.remove(&1);
        assert_eq!(sent(&mut some), [2]);
        some.under_way.remove(&0);
        assert_eq!(sent(&mut some), [3]);
        assert!(!some.is_over());
        some.under_way.clear();
        assert!(some.is_over());
    }

    #[test]
    fn a_chunk_beyond_the_window_goes_alone() {
        let mut large = of(&[1, 65, 1]);
        assert_eq!(sent(&mut large), [0]);
        large.under_way.remove(&0);
        assert_eq!(sent(&mut large), [1]);
        large.under_way.remove(&1);
        assert_eq!(sent(&mut large), [2]);
    }
}
