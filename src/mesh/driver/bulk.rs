//! The bulk streams that peers dialled: how many are read at once, in all and of each peer.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use libp2p::PeerId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::admission::Admitted;
use super::super::roster::Roster;
use super::super::transfer::{MAX_SOCKETS, accept};
use crate::descriptors;

/// Most bulk streams that are read at once, or an eighth of the file descriptors if that is less.
const MAX_BULK_IN: usize = 4096;
/// Most of them from one peer: those that it uses, and as many that broke before this side noticed.
const MAX_BULK_A_PEER: usize = 2 * MAX_SOCKETS;

/// Reads each bulk stream on a separate task. A stream over the limit is closed, and its sender tries again later.
pub async fn take(roster: Arc<Roster>, mut arrived: mpsc::Receiver<Admitted>) {
    let limit = MAX_BULK_IN.min(descriptors::limit() / 8);
    let mut readers = JoinSet::new();
    let mut of_peer: BTreeMap<PeerId, usize> = BTreeMap::new();
    loop {
        tokio::select! {
            socket = arrived.recv() => {
                let Some(socket) = socket else { return };
                let peer = socket.peer;
                let held = of_peer.get(&peer).copied().unwrap_or(0);
                if held >= MAX_BULK_A_PEER || readers.len() >= limit {
                    tracing::debug!(%peer, "too many bulk streams");
                    continue;
                }
                of_peer.insert(peer, held + 1);
                let roster = roster.clone();
                readers.spawn(async move {
                    // A panic must give the slot back, too.
                    let read = AssertUnwindSafe(accept(roster, socket));
                    let _panicked = read.catch_unwind().await;
                    peer
                });
            }
            Some(Ok(peer)) = readers.join_next() => {
                if let Some(held) = of_peer.get_mut(&peer) {
                    *held -= 1;
                    if *held == 0 {
                        of_peer.remove(&peer);
                    }
                }
            }
        }
    }
}
