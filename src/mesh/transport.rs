//! The transport under the swarm: TCP through the [port](super::entry), tuned to notice a dead peer, then
//! [`admission`](super::admission).
//!
//! A connection carries one stream, so it needs no multiplexer: what is written is one TLS record and one system call.
//! Bulk sockets come in on the same port. Once admitted they are handed over and never reach the swarm, so one open port is
//! all that a firewall must let through.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::core::muxing::{StreamMuxer, StreamMuxerBox, StreamMuxerEvent};
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::transport::{Boxed, Transport as _};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::admission::{Gate, HANDSHAKE_LIMIT, Purpose, Secured};
use super::entry::{Arrival, Entry};

/// How long sent bytes may stay unacknowledged: a cut cable is noticed within this.
pub const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(3);
/// How long one address may take to answer. The system would ask again only after 1 s, 3 s and 7 s; whoever dials does it
/// anew.
pub const CONNECT_LIMIT: Duration = Duration::from_millis(1500);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;

/// An admitted bulk socket that the other side dialled.
pub struct BulkSocket {
    pub peer: PeerId,
    pub purpose: Purpose,
    pub stream: Secured,
}

/// The error that ends the swarm's interest in a socket that is handed over.
#[derive(Debug, thiserror::Error)]
#[error("handed over for bulk")]
pub struct HandedOver;

/// The swarm's transport. Bulk sockets go to `bulk`.
pub fn swarm_transport(gate: Arc<Gate>, bulk: mpsc::Sender<BulkSocket>) -> Boxed<(PeerId, StreamMuxerBox)> {
    let tcp = TransportTimeout::with_outgoing_timeout(Entry::new(), CONNECT_LIMIT).map_err(io::Error::other);
    let transport = tcp.and_then(move |arrival, _| {
        let (gate, bulk) = (gate.clone(), bulk.clone());
        async move {
            let (socket, stranger) = match arrival {
                Arrival::Dialled(socket) => {
                    tune(&socket)?;
                    let (peer, stream) = gate.dialled(socket, Purpose::Control, None).await?;
                    return Ok::<_, io::Error>((peer, StreamMuxerBox::new(Single::new(stream))));
                }
                Arrival::Came(socket, stranger) => (socket, stranger),
            };
            tune(&socket)?;
            let (peer, stream, purpose) = gate.accepted(socket, stranger).await?;
            if purpose != Purpose::Control {
                // A full queue closes the socket; the sender reports it and tries again.
                let _ = bulk.try_send(BulkSocket { peer, purpose, stream });
                return Err(io::Error::other(HandedOver));
            }
            Ok((peer, StreamMuxerBox::new(Single::new(stream))))
        }
    });
    // Both halves fail with the same kind of error: behind an Either nobody would find what caused it.
    let transport = transport.map_err(|error| error.into_inner());
    TransportTimeout::new(transport, HANDSHAKE_LIMIT).boxed()
}

/// Dials a bulk socket.
///
/// # Errors
/// Where nobody answers within `limit`, or another than `peer` does.
pub async fn dial_bulk(
    gate: &Gate,
    address: SocketAddr,
    peer: PeerId,
    purpose: Purpose,
    limit: Duration,
) -> io::Result<Secured> {
    let socket = tokio::time::timeout(limit, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    tune(&socket)?;
    gate.dialled(socket, purpose, Some(peer)).await.map(|(_, stream)| stream)
}

/// No delay for small writes, and a limit on how long a dead peer goes unnoticed.
fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd"))]
    let keepalive = keepalive.with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT))?;
    Ok(())
}

/// A connection with one stream, which is the socket itself: whichever side opens it has it, and the other side has it with
/// the first byte that comes.
struct Single {
    /// Until the stream is opened.
    stream: Option<Whole>,
}

/// The one stream of a connection.
struct Whole {
    socket: Secured,
    /// The byte that told that the other side has opened it.
    first: Option<u8>,
}

impl Single {
    fn new(socket: Secured) -> Self {
        Single { stream: Some(Whole { socket, first: None }) }
    }
}

impl StreamMuxer for Single {
    type Substream = Whole;
    type Error = io::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Whole>> {
        let Some(mut stream) = self.stream.take() else { return Poll::Pending };
        let mut byte = [0];
        match futures::AsyncRead::poll_read(Pin::new(&mut stream), cx, &mut byte) {
            Poll::Ready(Ok(1)) => Poll::Ready(Ok(Whole { first: Some(byte[0]), ..stream })),
            Poll::Ready(Ok(_)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.stream = Some(stream);
                Poll::Pending
            }
        }
    }

    fn poll_outbound(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Whole>> {
        self.stream.take().map_or(Poll::Pending, |stream| Poll::Ready(Ok(stream)))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream that was opened is closed by who has it.
        self.stream.as_mut().map_or(Poll::Ready(Ok(())), |stream| Pin::new(&mut stream.socket).poll_shutdown(cx))
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        Poll::Pending
    }
}

impl futures::AsyncRead for Whole {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        if !bytes.is_empty()
            && let Some(first) = self.first.take()
        {
            bytes[0] = first;
            return Poll::Ready(Ok(1));
        }
        let mut buffer = ReadBuf::new(bytes);
        std::task::ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl futures::AsyncWrite for Whole {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
