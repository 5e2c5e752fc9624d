//! Streams between processes of one user on one machine: Linux's Unix sockets, with abstract names.
//!
//! The two ends perform the [TLS](super::tls) handshake as they do over TCP, so that each has proven its PeerId, and continue
//! without encryption: the bytes pass through the kernel of this machine alone, and the kernel reports that the other end is of
//! the same user, who can read this process's memory anyway. Either end refuses a socket that belongs to another user.
//!
//! After the handshake the end that dialled speaks first. The other confirms with one byte that it has all of the handshake: it
//! may have read further, and those bytes must not be any that follow the handshake. Bulk goes through [shared memory](ring).

mod ring;
mod stream;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{BoxStream, StreamExt, unfold};
use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;
use meshtf_tensor::memory::Budget;
use socket2::{Domain, SockAddr, SockRef, Socket as Socket2, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use self::stream::LocalStream;
use super::tls::{Met, Tls};
use super::{Arrival, CONNECT_LIMIT, ListenEvent, Secured, Transport};
use crate::mesh::address::local_name;

/// The prefix of the names of sockets.
const NAME: &str = "@meshtf-";
/// The listening end's confirmation, encrypted, that it has all of the handshake; its value states the format of bulk.
const READY: u8 = 2;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long a listener pauses when the system has no socket to give it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The transport.
pub struct Local {
    tls: Arc<Tls>,
    me: PeerId,
    user: u32,
    /// The memory budget for rings.
    budget: Arc<Budget>,
}

impl Local {
    /// # Errors
    /// If the system does not report the user of this process.
    pub fn new(me: PeerId, tls: Arc<Tls>, budget: Arc<Budget>) -> io::Result<Self> {
        let (here, _there) = UnixStream::pair()?;
        Ok(Local { tls, me, user: here.peer_cred()?.uid(), budget })
    }
}

impl Transport for Local {
    fn handles(&self, address: &Multiaddr) -> bool {
        local_name(address).is_some_and(|name| name.starts_with(NAME))
    }

    fn everywhere(&self) -> Vec<Multiaddr> {
        Vec::new()
    }

    fn besides(&self) -> Option<Multiaddr> {
        Some(named(&format!("{NAME}{}", self.me)))
    }

    fn dial(&self, address: &Multiaddr) -> BoxFuture<'static, io::Result<Secured>> {
        let (name, tls, user) = (socket_name(address), Arc::clone(&self.tls), self.user);
        let budget = Arc::clone(&self.budget);
        async move {
            // If too many connections wait to be accepted, it fails at once.
            let socket = Socket2::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
            socket.connect(&name?)?;
            let socket = UnixStream::from_std(socket.into())?;
            check_user(&socket, user)?;
            let handshake = async {
                let mut met = tls.connect(LocalStream::new(socket, budget)).await?;
                if met.stream.read_u8().await? != READY {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok(met)
            };
            let met = tokio::time::timeout(CONNECT_LIMIT, handshake).await;
            met.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(Met::bare)
        }
        .boxed()
    }

    fn listen(&self, address: &Multiaddr) -> io::Result<BoxStream<'static, ListenEvent>> {
        let listener = Socket2::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        listener.bind(&socket_name(address)?)?;
        listener.listen(BACKLOG)?;
        let listener = UnixListener::from_std(listener.into())?;
        let (local, tls, user) = (address.clone(), Arc::clone(&self.tls), self.user);
        let budget = Arc::clone(&self.budget);
        let events = unfold((listener, false), move |(listener, failed)| {
            let (local, tls, budget) = (local.clone(), Arc::clone(&tls), Arc::clone(&budget));
            async move {
                if failed {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                let event = match listener.accept().await {
                    Ok((socket, _)) => {
                        let arrival = Box::new(Socket { socket, tls, user, budget });
                        ListenEvent::Arrived { local, remote: named("@"), arrival }
                    }
                    Err(error) => ListenEvent::Failed(error),
                };
                let failed = matches!(event, ListenEvent::Failed(_));
                Some((event, (listener, failed)))
            }
        });
        Ok(events.boxed())
    }
}

/// A socket that was accepted.
struct Socket {
    socket: UnixStream,
    tls: Arc<Tls>,
    user: u32,
    budget: Arc<Budget>,
}

impl Arrival for Socket {
    fn first_byte(&mut self) -> BoxFuture<'_, io::Result<()>> {
        async {
            check_user(&self.socket, self.user)?;
            loop {
                self.socket.readable().await?;
                // Peeked at, since a socket may be reported as readable though nothing has come.
                let peeked = self.socket.try_io(tokio::io::Interest::READABLE, || {
                    SockRef::from(&self.socket).peek(&mut [std::mem::MaybeUninit::uninit()])
                });
                match peeked {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    other => return other.map(|_| ()),
                }
            }
        }
        .boxed()
    }

    fn secure(self: Box<Self>) -> BoxFuture<'static, io::Result<Secured>> {
        async move {
            let mut met = self.tls.accept(LocalStream::new(self.socket, self.budget)).await?;
            met.stream.write_u8(READY).await?;
            met.stream.flush().await?;
            Ok(met.bare())
        }
        .boxed()
    }
}

fn check_user(socket: &UnixStream, user: u32) -> io::Result<()> {
    if socket.peer_cred()?.uid() == user {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the socket belongs to another user"))
}

fn named(name: &str) -> Multiaddr {
    Multiaddr::empty().with(Protocol::Unix(name.to_owned().into()))
}

/// The name of the socket of an address that [`Local`] handles.
fn socket_name(address: &Multiaddr) -> io::Result<SockAddr> {
    let name = local_name(address).ok_or(io::ErrorKind::InvalidInput)?;
    // A name that begins with a zero is abstract: it is not in the file system.
    SockAddr::unix(name.replacen('@', "\0", 1))
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    fn local() -> Local {
        let identity = Keypair::generate_ed25519();
        Local::new(identity.public().to_peer_id(), Arc::new(Tls::new(&identity).unwrap()), Arc::default()).unwrap()
    }

    /// The next connection.
    async fn arrival(events: &mut BoxStream<'static, ListenEvent>) -> Box<dyn Arrival> {
        match events.next().await.unwrap() {
            ListenEvent::Arrived { remote, mut arrival, .. } => {
                assert!(local_name(&remote).is_some());
                arrival.first_byte().await.unwrap();
                arrival
            }
            _ => panic!("nobody connected"),
        }
    }

    #[tokio::test]
    async fn two_ends_prove_who_they_are_and_go_on_in_the_open() {
        let (a, b) = (local(), local());
        let address = b.besides().unwrap();
        assert!(a.handles(&address) && !a.handles(&"/unix/other".parse().unwrap()));
        let mut events = b.listen(&address).unwrap();
        let words = vec![7; 1 << 20];
        let dial = async {
            let mut dialled = a.dial(&address).await.unwrap();
            // At once, so that it is in the socket right behind the handshake.
            dialled.stream.write_all(&words).await.unwrap();
            dialled.stream.write_all(b"!").await.unwrap();
            dialled.stream.shutdown().await.unwrap();
            dialled
        };
        let accept = async {
            let mut accepted = arrival(&mut events).await.secure().await.unwrap();
            let mut heard = Vec::new();
            accepted.stream.read_to_end(&mut heard).await.unwrap();
            (accepted, heard)
        };
        let (dialled, (accepted, heard)) = tokio::join!(dial, accept);
        assert_eq!((dialled.peer, accepted.peer), (b.me, a.me));
        assert_eq!(dialled.binding, accepted.binding);
        assert!(heard.len() == words.len() + 1 && heard.ends_with(b"\x07!"));
    }

    #[tokio::test]
    async fn a_socket_of_another_user_is_refused_by_either_end() {
        let (a, b) = (local(), Local { user: u32::MAX - 1, ..local() });
        let address = b.besides().unwrap();
        let mut events = b.listen(&address).unwrap();
        // The listener takes every peer for another user.
        let accept = async {
            let ListenEvent::Arrived { mut arrival, .. } = events.next().await.unwrap() else {
                panic!("nobody connected")
            };
            arrival.first_byte().await.unwrap_err().kind()
        };
        let (dialled, accepted) = tokio::join!(a.dial(&address), accept);
        assert!(dialled.is_err());
        assert_eq!(accepted, io::ErrorKind::PermissionDenied);
        // The dialler does.
        let refused = b.dial(&address).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn a_name_that_nobody_listens_at_is_refused_and_one_in_use_is_not_taken() {
        let a = local();
        let address = a.besides().unwrap();
        assert_eq!(a.dial(&address).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let _events = a.listen(&address).unwrap();
        assert_eq!(a.listen(&address).err().map(|error| error.kind()), Some(io::ErrorKind::AddrInUse));
    }
}
