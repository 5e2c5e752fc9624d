//! The port: all ways in and out of a participant.
//!
//! It chooses the [transport](super::transport) of an address, and keeps one table of
//! [unauthenticated peers](crate::unauthenticated) for all incoming connections: one may be from any host, and nothing but its
//! slot is kept for it until it has proven the mesh key. Streams for bulk come in at the same address as connections. Once
//! admitted they are passed to the bulk reader and never reach libp2p's swarm, so one open port is all that a firewall must let
//! through.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt};
use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{self as swarm, Boxed, DialOpts, ListenerId, Transport as _, TransportError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address;
use super::admission::{Admitted, Gate, Purpose};
use super::denied::{Denied, HANDSHAKE_LIMIT};
use super::single::Single;
use super::transport::{Arrival, ListenEvent, Transport};
use crate::unauthenticated::{UnauthenticatedPeer, UnauthenticatedPeers};

/// The error that ends the swarm's interest in a stream that is passed to the bulk reader.
#[derive(Debug, thiserror::Error)]
#[error("handed over for bulk")]
pub struct HandedOver;

/// A participant's transports, and the admission through them.
pub struct Port {
    transports: Vec<Arc<dyn Transport>>,
    gate: Arc<Gate>,
    unauthenticated_peers: Arc<UnauthenticatedPeers>,
}

impl Port {
    /// Of several transports that handle an address, the first is used.
    pub fn new(transports: Vec<Arc<dyn Transport>>, gate: Gate) -> Self {
        Port { transports, gate: Arc::new(gate), unauthenticated_peers: UnauthenticatedPeers::new() }
    }

    /// The peers that have connected and not proven the key yet.
    pub fn unauthenticated_peers(&self) -> &Arc<UnauthenticatedPeers> {
        &self.unauthenticated_peers
    }

    /// Whether one of the transports can dial and listen at this address, or could if its name were resolved.
    pub fn handles(&self, address: &Multiaddr) -> bool {
        self.transport(address).is_ok()
    }

    /// The listen addresses if none are configured.
    pub fn everywhere(&self) -> Vec<Multiaddr> {
        self.transports.iter().flat_map(|transport| transport.everywhere()).collect()
    }

    /// The additional listen addresses.
    pub fn besides(&self) -> Vec<Multiaddr> {
        self.transports.iter().filter_map(|transport| transport.besides()).collect()
    }

    /// [`Port::everywhere`], each with the address at which to listen instead, to be found as before: this node listened at
    /// `opened`.
    pub fn again(&self, opened: &[Multiaddr]) -> Vec<(Multiaddr, Option<Multiaddr>)> {
        let again = |everywhere: Multiaddr| {
            let transport = self.transport(&everywhere).ok();
            let again = transport.and_then(|by| opened.iter().find_map(|opened| by.again(&everywhere, opened)));
            (everywhere, again)
        };
        self.everywhere().into_iter().map(again).collect()
    }

    fn transport(&self, address: &Multiaddr) -> io::Result<&Arc<dyn Transport>> {
        self.transports.iter().find(|transport| transport.handles(address)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, format!("no transport supports addresses like {address}"))
        })
    }

    /// Opens a stream, on which both sides have proven the mesh key. `peer` is the expected peer, if that is known.
    ///
    /// # Errors
    /// If no peer answers in time, or one that is not of the mesh; [`Denied`] is inside then.
    pub async fn dial(&self, address: &Multiaddr, peer: Option<PeerId>, purpose: Purpose) -> io::Result<Admitted> {
        let dial = self.transport(address)?.dial(address);
        let handshake = async {
            let secured = dial.await?;
            if peer.is_some_and(|expected| expected != secured.peer) {
                return Err(Denied::OtherPeer.into());
            }
            self.gate.prove(secured, purpose).await
        };
        timeout(HANDSHAKE_LIMIT, handshake).await.unwrap_or_else(|_| Err(Denied::Slow.into()))
    }

    /// The transport of libp2p's swarm. Streams that come in for bulk go to `bulk`.
    pub fn swarm_transport(self: Arc<Self>, bulk: mpsc::Sender<Admitted>) -> Boxed<(PeerId, StreamMuxerBox)> {
        SwarmTransport { port: self, bulk, listeners: VecDeque::new() }.boxed()
    }
}

/// The port in the form that libp2p's swarm requires.
struct SwarmTransport {
    port: Arc<Port>,
    bulk: mpsc::Sender<Admitted>,
    /// The listeners, polled in turns: the one polled first comes last the next time.
    listeners: VecDeque<(ListenerId, BoxStream<'static, ListenEvent>)>,
}

type SwarmConnection = (PeerId, StreamMuxerBox);
type Upgrade = BoxFuture<'static, io::Result<SwarmConnection>>;

impl swarm::Transport for SwarmTransport {
    type Output = SwarmConnection;
    type Error = io::Error;
    type ListenerUpgrade = Upgrade;
    type Dial = Upgrade;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        let listener = self.port.transport(&address).and_then(|transport| transport.listen(&address));
        self.listeners.push_back((id, listener.map_err(TransportError::Other)?));
        Ok(())
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        let before = self.listeners.len();
        self.listeners.retain(|(listener, _)| *listener != id);
        self.listeners.len() < before
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Upgrade, TransportError<io::Error>> {
        let port = Arc::clone(&self.port);
        // The swarm compares the peer with the one that it expects.
        Ok(async move { port.dial(&address, None, Purpose::Control).await.map(connection) }.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<swarm::TransportEvent<Upgrade, io::Error>> {
        for _ in 0..self.listeners.len() {
            self.listeners.rotate_left(1);
            let Some((id, listener)) = self.listeners.back_mut() else { break };
            let id = *id;
            match listener.poll_next_unpin(cx) {
                Poll::Ready(Some(event)) => return Poll::Ready(self.on_event(id, event)),
                Poll::Ready(None) => {
                    self.remove_listener(id);
                    return Poll::Ready(swarm::TransportEvent::ListenerClosed { listener_id: id, reason: Ok(()) });
                }
                Poll::Pending => {}
            }
        }
        Poll::Pending
    }
}

impl SwarmTransport {
    fn on_event(&self, listener_id: ListenerId, event: ListenEvent) -> swarm::TransportEvent<Upgrade, io::Error> {
        use swarm::TransportEvent;
        match event {
            ListenEvent::Opened(listen_addr) => TransportEvent::NewAddress { listener_id, listen_addr },
            ListenEvent::Closed(listen_addr) => TransportEvent::AddressExpired { listener_id, listen_addr },
            ListenEvent::Failed(error) => {
                self.port.unauthenticated_peers.could_not_accept(&error);
                TransportEvent::ListenerError { listener_id, error }
            }
            ListenEvent::Arrived { local, remote, arrival } => {
                // A connection without an IP address comes from this machine.
                let from = address::ip(&remote).unwrap_or(Ipv4Addr::LOCALHOST.into());
                let place = self.port.unauthenticated_peers.admit(from);
                let upgrade = admit(Arc::clone(&self.port.gate), arrival, place, self.bulk.clone()).boxed();
                TransportEvent::Incoming { listener_id, upgrade, local_addr: local, send_back_addr: remote }
            }
        }
    }
}

async fn admit(
    gate: Arc<Gate>,
    arrival: Box<dyn Arrival>,
    place: Option<UnauthenticatedPeer>,
    bulk: mpsc::Sender<Admitted>,
) -> io::Result<SwarmConnection> {
    let admitted = gate.admit(arrival, place.ok_or(Denied::Crowded)?).await?;
    if admitted.purpose == Purpose::Control {
        return Ok(connection(admitted));
    }
    // A full queue closes the stream; the sender reports it and tries again.
    let _ = bulk.try_send(admitted);
    Err(io::Error::other(HandedOver))
}

fn connection(admitted: Admitted) -> SwarmConnection {
    (admitted.peer, StreamMuxerBox::new(Single::new(admitted.stream)))
}
