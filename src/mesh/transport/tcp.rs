//! TCP, secured by [TLS](super::tls) and tuned to notice a dead peer.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;
use libp2p::core::transport::{ListenerId, Transport as _, TransportError, TransportEvent};
use libp2p::tcp::{self, tokio::Transport as TcpListeners};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use super::tls::{Met, Tls};
use super::{Arrival, CONNECT_LIMIT, ListenEvent, Secured, Transport};

/// How long sent bytes may stay unacknowledged: a cut cable is noticed within this.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(3);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;

/// The transport.
pub struct Tcp {
    tls: Arc<Tls>,
}

impl Tcp {
    pub fn new(tls: Arc<Tls>) -> Self {
        Tcp { tls }
    }
}

impl Transport for Tcp {
    fn handles(&self, address: &Multiaddr) -> bool {
        use Protocol::{Dns, Dns4, Dns6, Ip4, Ip6, P2p};
        let mut parts = address.iter();
        matches!(parts.next(), Some(Ip4(_) | Ip6(_) | Dns(_) | Dns4(_) | Dns6(_)))
            && matches!(parts.next(), Some(Protocol::Tcp(_)))
            && matches!(parts.next(), None | Some(P2p(_)))
            && parts.next().is_none()
    }

    fn everywhere(&self) -> Vec<Multiaddr> {
        vec![multiaddr(([0, 0, 0, 0], 0).into()), multiaddr(([0u16; 8], 0).into())]
    }

    fn again(&self, everywhere: &Multiaddr, opened: &Multiaddr) -> Option<Multiaddr> {
        let (everywhere, opened) = (socket_address(everywhere).ok()?, socket_address(opened).ok()?);
        let is_there = everywhere.is_ipv4() == opened.is_ipv4() && opened.port() != 0;
        is_there.then(|| multiaddr((everywhere.ip(), opened.port()).into()))
    }

    fn dial(&self, address: &Multiaddr) -> BoxFuture<'static, io::Result<Secured>> {
        let (address, tls) = (socket_address(address), Arc::clone(&self.tls));
        async move {
            let connected = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address?)).await;
            let socket = connected.unwrap_or_else(|_| {
                let limit = CONNECT_LIMIT.as_secs_f64();
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit} s")))
            })?;
            tune(&socket)?;
            tls.connect(socket).await.map(Met::encrypted)
        }
        .boxed()
    }

    fn listen(&self, address: &Multiaddr) -> io::Result<BoxStream<'static, ListenEvent>> {
        let socket = socket_address(address)?;
        if socket.port() != 0 {
            // libp2p shares a port with any other process that shares it, and then each gets some of the connections.
            drop(std::net::TcpListener::bind(socket)?);
        }
        let mut tcp = TcpListeners::new(tcp::Config::default());
        tcp.listen_on(ListenerId::next(), multiaddr(socket)).map_err(|error| match error {
            TransportError::Other(error) => error,
            TransportError::MultiaddrNotSupported(_) => io::ErrorKind::InvalidInput.into(),
        })?;
        let tls = Arc::clone(&self.tls);
        let events = stream::poll_fn(move |cx| Pin::new(&mut tcp).poll(cx).map(|event| listen_event(event, &tls)));
        Ok(events.boxed())
    }
}

type Accepted = <TcpListeners as libp2p::core::Transport>::ListenerUpgrade;

/// The mesh's form of an event of libp2p's listener; `None` after its end.
fn listen_event(event: TransportEvent<Accepted, io::Error>, tls: &Arc<Tls>) -> Option<ListenEvent> {
    Some(match event {
        TransportEvent::NewAddress { listen_addr, .. } => ListenEvent::Opened(listen_addr),
        TransportEvent::AddressExpired { listen_addr, .. } => ListenEvent::Closed(listen_addr),
        TransportEvent::ListenerError { error, .. } => ListenEvent::Failed(error),
        TransportEvent::ListenerClosed { .. } => return None,
        TransportEvent::Incoming { upgrade, local_addr, send_back_addr, .. } => match upgrade.now_or_never() {
            Some(Ok(accepted)) => {
                let arrival = Box::new(Socket { socket: accepted.into(), tls: Arc::clone(tls) });
                ListenEvent::Arrived { local: local_addr, remote: send_back_addr, arrival }
            }
            Some(Err(error)) => ListenEvent::Failed(error),
            None => ListenEvent::Failed(io::ErrorKind::WouldBlock.into()),
        },
    })
}

/// A socket that was accepted.
struct Socket {
    socket: TcpStream,
    tls: Arc<Tls>,
}

impl Arrival for Socket {
    fn first_byte(&mut self) -> BoxFuture<'_, io::Result<()>> {
        // Peeked at, since a socket may be reported as readable though nothing has come.
        async { self.socket.peek(&mut [0]).await.map(|_| ()) }.boxed()
    }

    fn secure(self: Box<Self>) -> BoxFuture<'static, io::Result<Secured>> {
        async move {
            tune(&self.socket)?;
            self.tls.accept(self.socket).await.map(Met::encrypted)
        }
        .boxed()
    }
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

/// The multiaddr of a TCP socket.
fn multiaddr(socket: SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port()))
}

/// The socket of a multiaddr that begins with an IP address and a TCP port.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if it does not.
pub fn socket_address(address: &Multiaddr) -> io::Result<SocketAddr> {
    let mut parts = address.iter();
    match (parts.next(), parts.next()) {
        (Some(Protocol::Ip4(ip)), Some(Protocol::Tcp(port))) => Ok((ip, port).into()),
        (Some(Protocol::Ip6(ip)), Some(Protocol::Tcp(port))) => Ok((ip, port).into()),
        _ => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{address} is not an IP address with a TCP port")))
        }
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    #[test]
    fn addresses_are_of_tcp_or_not() {
        let tcp = Tcp::new(Arc::new(Tls::new(&Keypair::generate_ed25519()).unwrap()));
        let check = |address: &str, handles: bool, socket: Option<&str>| {
            let address: Multiaddr = address.parse().unwrap();
            assert_eq!(tcp.handles(&address), handles, "{address}");
            assert_eq!(socket_address(&address).ok(), socket.map(|socket| socket.parse().unwrap()), "{address}");
        };
        let peer = Keypair::generate_ed25519().public().to_peer_id();
        check("/ip4/10.0.0.1/tcp/7", true, Some("10.0.0.1:7"));
        check(&format!("/ip6/::1/tcp/7/p2p/{peer}"), true, Some("[::1]:7"));
        check("/dns/lab/tcp/7", true, None);
        check("/ip4/10.0.0.1/udp/7/quic-v1", false, None);
        check("/ip4/10.0.0.1/tcp/7/ws", false, Some("10.0.0.1:7"));
        check(&format!("/ip4/10.0.0.1/tcp/7/p2p/{peer}/p2p-circuit"), false, Some("10.0.0.1:7"));
        check("/ip4/10.0.0.1", false, None);
        check("/memory/7", false, None);
    }

    #[test]
    fn a_node_listens_again_at_its_port_on_every_interface() {
        let tcp = Tcp::new(Arc::new(Tls::new(&Keypair::generate_ed25519()).unwrap()));
        let check = |everywhere: &str, opened: &str, want: Option<&str>| {
            let again = tcp.again(&everywhere.parse().unwrap(), &opened.parse().unwrap());
            assert_eq!(again, want.map(|want| want.parse().unwrap()), "{everywhere} after {opened}");
        };
        check("/ip4/0.0.0.0/tcp/0", "/ip4/10.0.0.7/tcp/41", Some("/ip4/0.0.0.0/tcp/41"));
        check("/ip6/::/tcp/0", "/ip6/::1/tcp/42", Some("/ip6/::/tcp/42"));
        check("/ip6/::/tcp/0", "/ip4/127.0.0.1/tcp/41", None);
        check("/ip4/0.0.0.0/tcp/0", "/ip4/10.0.0.7/tcp/0", None);
        check("/ip4/0.0.0.0/tcp/0", "/ip4/10.0.0.7/udp/41/quic-v1", None);
        check("/ip4/0.0.0.0/tcp/0", "/unix/meshtf%2Fx", None);
        check("/ip4/0.0.0.0/tcp/0", "/memory/7", None);
    }
}
