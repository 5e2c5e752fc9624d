//! Transports: the ways to open streams to other participants, and to accept theirs.
//!
//! A transport connects, secures the connection, and reports which PeerId is at the other end. Everything else is the same for
//! all transports and is done elsewhere: the [port](super::port) chooses a transport by the form of an address and counts
//! unauthenticated peers, [`admission`](super::admission) proves the mesh key on the stream, and the rest of the mesh reads and
//! writes it. A transport that brings its own encryption (QUIC) or goes through a third node (a relay) implements this trait,
//! joins the list in [`Mesh::join`](super::Mesh::join), and changes nothing else above it.

#[cfg(target_os = "linux")]
pub mod local;
#[cfg(test)]
pub mod memory;
pub mod tcp;
pub mod tls;

use std::io;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use libp2p::PeerId;
use libp2p::core::Multiaddr;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long one address may take to answer. TCP would retry only after 1 s, 3 s and 7 s; discovery repeats the whole dial.
pub const CONNECT_LIMIT: Duration = Duration::from_millis(1500);
/// The label with which a transport derives [`Secured::binding`] from its session's keys (RFC 5705).
pub const BINDING_LABEL: &[u8] = b"meshtf mesh proof 2";

/// A way to reach participants and to be reached.
pub trait Transport: Send + Sync + 'static {
    /// Whether it can dial and listen at addresses of this form. Host names count: they are resolved before
    /// [`dial`](Transport::dial) and [`listen`](Transport::listen).
    fn handles(&self, address: &Multiaddr) -> bool;

    /// The listen addresses if none are configured.
    fn everywhere(&self) -> Vec<Multiaddr>;

    /// An additional listen address, whatever is configured. Only peers on this machine receive it:
    /// [`listen`](Transport::listen) does not report it as opened, since libp2p would announce it on the LAN.
    fn besides(&self) -> Option<Multiaddr> {
        None
    }

    /// The address to listen at after a restart instead of `everywhere`, which is one of [`Transport::everywhere`], so that
    /// peers find this node at its old address: `opened` is an address that it listened at. `None` if `everywhere` does not
    /// lead to `opened`.
    fn again(&self, _everywhere: &Multiaddr, _opened: &Multiaddr) -> Option<Multiaddr> {
        None
    }

    /// Connects within [`CONNECT_LIMIT`] and secures the connection. Each call opens a separate stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] only if the machine at the address answers that nothing listens at the port: the
    /// process that did is taken for gone then.
    fn dial(&self, address: &Multiaddr) -> BoxFuture<'static, io::Result<Secured>>;

    /// Accepts connections at an address until the stream is dropped.
    ///
    /// # Errors
    /// If the address cannot be listened on, or another process listens there.
    fn listen(&self, address: &Multiaddr) -> io::Result<BoxStream<'static, ListenEvent>>;
}

/// An event at a listen address.
pub enum ListenEvent {
    /// Peers can dial this address from now on.
    Opened(Multiaddr),
    /// Peers cannot dial this address any more.
    Closed(Multiaddr),
    /// A peer connected, from `remote` to `local`.
    Arrived { local: Multiaddr, remote: Multiaddr, arrival: Box<dyn Arrival> },
    /// A connection could not be accepted. The transport pauses by itself before it tries again.
    Failed(io::Error),
}

/// A connection that the other side opened. It costs next to nothing until [`Arrival::secure`].
pub trait Arrival: Send {
    /// Returns once the other side has sent something. Nothing is read.
    fn first_byte(&mut self) -> BoxFuture<'_, io::Result<()>>;

    /// Secures the connection. That runs on a thread for handshakes, which has no timers: the caller limits how long it takes.
    fn secure(self: Box<Self>) -> BoxFuture<'static, io::Result<Secured>>;
}

/// A stream whose other end has proven its PeerId.
pub struct Secured {
    pub peer: PeerId,
    /// A secret of this one connection that only its two ends can derive: a proof over it is worth nothing on another
    /// connection.
    pub binding: [u8; 32],
    pub stream: PeerStream,
}

/// A stream of bytes to a peer and from it. Called once for hundreds of kilobytes in bulk and once for a whole turn's messages
/// otherwise, so the cost of the dynamic call is negligible next to the system call under it.
pub type PeerStream = Box<dyn ByteStream>;

/// The operations of a [`PeerStream`].
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Switches it to writing only bulk, in chunks of this many bytes. Nothing is read then, so a buffer of that size is
    /// enough. The other end calls [`ByteStream::expect_bulk`].
    fn expect_writes_of(&mut self, bytes: usize);

    /// Switches it to reading bulk.
    fn expect_bulk(&mut self);
}
