//! The chunks of copies on their way to other tasks: few at a time, since the values of steps go over the same links.

use std::collections::{BTreeMap, VecDeque};

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::SessionId;
use meshtf_tensor::lock::lock;

use super::super::State;
use super::Guarded;
use crate::protocol::guard::{Cut, GuardReport, Parcel, SentResource, ToGuard};
use crate::protocol::{Envelope, Peer, ToWorker};

/// Most bytes of chunks that a peer has not taken yet. A larger chunk goes alone.
const WINDOW: usize = 64 << 20;

/// The resources of a chunk, and their tensors.
pub(super) type Body = (Vec<SentResource>, Vec<Tensor>);

/// Copies on their way to peers.
pub(super) type AllOutgoing = BTreeMap<(Peer, Parcel), Outgoing>;

/// A copy on its way to a peer.
pub(super) struct Outgoing {
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

impl Guarded {
    /// The copies for cuts up to this one need not be sent.
    pub(super) fn drop_cuts(&mut self, until: Cut) {
        self.outgoing.retain(|(_, parcel), _| !matches!(parcel, Parcel::Cut(cut) if *cut <= until));
    }

    /// Nor those for what the master asked for before this.
    pub(super) fn drop_asks(&mut self, before: u64) {
        self.outgoing.retain(|(_, parcel), _| !matches!(parcel, Parcel::Ask(ask) if *ask < before));
    }
}

impl State {
    /// Sends the chunks of a copy to a peer: the first ones now, others as soon as it has taken those.
    pub(super) fn send_chunks(
        &self,
        session: SessionId,
        (to, parcel): (&Peer, Parcel),
        (cut, base): (Cut, Option<Cut>),
        chunks: Vec<Body>,
    ) {
        if let Some(guarded) = lock(&self.guards).0.get_mut(&session) {
            guarded.outgoing.insert((to.clone(), parcel), Outgoing::new(cut, base, chunks));
        }
        self.send_next(session, to, parcel);
    }

    /// A peer has taken a chunk.
    pub(super) fn taken(&self, from: &Peer, session: SessionId, parcel: Parcel, chunk: u32) {
        {
            let mut guards = lock(&self.guards);
            let Some(guarded) = guards.0.get_mut(&session) else { return };
            let key = (from.clone(), parcel);
            let Some(outgoing) = guarded.outgoing.get_mut(&key) else { return };
            outgoing.under_way.remove(&chunk);
            if outgoing.is_over() {
                guarded.outgoing.remove(&key);
                return;
            }
        }
        self.send_next(session, from, parcel);
    }

    /// Sends the chunks that may be sent now.
    fn send_next(&self, session: SessionId, to: &Peer, parcel: Parcel) {
        let key = (to.clone(), parcel);
        loop {
            let (message, tensors) = {
                let mut guards = lock(&self.guards);
                let outgoing = guards.0.get_mut(&session).and_then(|guarded| guarded.outgoing.get_mut(&key));
                let Some(outgoing) = outgoing else { return };
                let Some((chunk, (resources, tensors))) = outgoing.next() else { return };
                let (cut, base, chunks) = (outgoing.cut, outgoing.base, outgoing.count);
                let message = match parcel {
                    Parcel::Cut(cut) => ToGuard::Keep { session, cut, base, chunk, chunks, resources },
                    Parcel::Ask(ask) => ToGuard::Load { session, ask, cut, chunk, chunks, resources },
                };
                (message, tensors)
            };
            if let Err(failure) = self.router.send(to, Envelope::new(ToWorker::from(message), tensors)) {
                return self.unsent(session, &key, failure);
            }
        }
    }

    /// A chunk could not be sent: neither are the others.
    fn unsent(&self, session: SessionId, key: &(Peer, Parcel), failure: Failure) {
        let master = {
            let mut guards = lock(&self.guards);
            let Some(guarded) = guards.0.get_mut(&session) else { return };
            guarded.outgoing.remove(key);
            guarded.master.clone()
        };
        match key.1 {
            Parcel::Ask(ask) => self.restored(&master, session, ask, Err(failure)),
            Parcel::Cut(cut) => {
                let own = self.router.cluster().member(&self.task).map(|member| member.peer.clone());
                let Some(of) = own else { return };
                let result = Err(self.here(failure));
                self.guard_says(&master, session, GuardReport::Kept { cut, of, result });
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
