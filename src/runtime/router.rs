//! The way of messages out of a node: over the mesh, or straight to another node of the same process.

use std::sync::Arc;

use meshtf_tensor::failure::Result;

use crate::protocol::status::NetworkStatus;
use crate::protocol::{Cluster, Envelope, Peer};

/// A way to every other participant. Called from any thread; never blocks.
pub trait Router: Send + Sync {
    /// Sends `envelope`; messages to one peer arrive in order, except that large ones may be overtaken by those of another
    /// [`Flow`](crate::protocol::Flow).
    ///
    /// # Errors
    /// Unavailable if the peer is not connected, ResourceExhausted if its queue is full.
    fn send(&self, to: &Peer, envelope: Envelope) -> Result<()>;

    /// As [`Router::send`], but the message may wait for the next [`Router::flush`], so that several leave together.
    ///
    /// # Errors
    /// As [`Router::send`].
    fn send_soon(&self, to: &Peer, envelope: Envelope) -> Result<()> {
        self.send(to, envelope)
    }

    /// Sends the messages that wait for it.
    fn flush(&self) {}

    /// The tasks that are up now.
    fn cluster(&self) -> Arc<Cluster>;

    /// The condition of the network; empty if there is none.
    fn network(&self) -> NetworkStatus {
        NetworkStatus::default()
    }

    /// Measures the round-trip time to each peer, for a later [`Router::network`].
    fn probe(&self) {}
}
