//! The transport under the swarm: TCP, tuned to notice a dead peer, then [`admission`](super::admission), then yamux.
//!
//! Bulk sockets come in on the same port. Once admitted they are handed over and never reach the multiplexer, so one open
//! port is all that a firewall must let through.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::timeout::TransportTimeout;
use libp2p::core::transport::{Boxed, Transport as _};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade};
use libp2p::{PeerId, tcp, yamux};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::admission::{Gate, HANDSHAKE_LIMIT, Purpose, Secured};

/// How long sent bytes may stay unacknowledged: a cut cable is noticed within this.
pub const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;
/// Streams of one connection. One is used; the rest is for versions to come.
const MAX_STREAMS: usize = 8;

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
    let transport = tcp::tokio::Transport::new(tcp::Config::default()).and_then(move |socket, endpoint| {
        let (gate, bulk) = (gate.clone(), bulk.clone());
        async move {
            let socket = TcpStream::from(socket);
            tune(&socket)?;
            let mut config = yamux::Config::default();
            config.set_max_num_streams(MAX_STREAMS);
            if endpoint.is_dialer() {
                let (peer, stream) = gate.dialled(socket, Purpose::Control, None).await?;
                let muxer = config.upgrade_outbound(Compat::new(stream), "/yamux/1.0.0").await?;
                return Ok::<_, io::Error>((peer, StreamMuxerBox::new(muxer)));
            }
            let (peer, stream, purpose) = gate.accepted(socket).await?;
            if purpose != Purpose::Control {
                // A full queue closes the socket; the sender reports it and tries again.
                let _ = bulk.try_send(BulkSocket { peer, purpose, stream });
                return Err(io::Error::other(HandedOver));
            }
            let muxer = config.upgrade_inbound(Compat::new(stream), "/yamux/1.0.0").await?;
            Ok((peer, StreamMuxerBox::new(muxer)))
        }
    });
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

/// Bytes that are gathered before they are encrypted and sent. The multiplexer writes a frame's header and its body one
/// after the other; each on its own would be a record, a system call and a packet.
const GATHERED_BYTES: usize = 16 << 10;

/// A tokio stream as the multiplexer takes it, which flushes it whenever it has nothing more to write.
struct Compat(BufWriter<Secured>);

impl Compat {
    fn new(stream: Secured) -> Self {
        Compat(BufWriter::with_capacity(GATHERED_BYTES, stream))
    }
}

impl futures::AsyncRead for Compat {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(bytes);
        std::task::ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl futures::AsyncWrite for Compat {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
