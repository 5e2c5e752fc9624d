//! A transport within one process, without sockets, for tests: streams are pipes in memory, and an address is `/memory/N`.
//!
//! Its participants share a [`Network`], which can be cut and lets nothing through then.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::{mpsc, watch};

use super::{Arrival, ByteStream, ListenEvent, Secured, Transport};
use crate::lock::lock;

/// Bytes of a pipe that are written and not read.
const PIPE_BYTES: usize = 64 << 10;
/// Connections that wait to be taken.
const BACKLOG: usize = 64;

/// Who listens where, and every connection that there is.
#[derive(Default)]
pub struct Network {
    listeners: Mutex<BTreeMap<u64, (PeerId, mpsc::Sender<ListenEvent>)>>,
    /// Changes when every connection is to break.
    cuts: watch::Sender<u64>,
    /// Streams that were dialled so far; their number is the address of the side that dialled.
    dialled: Mutex<u64>,
}

impl Network {
    /// Breaks every connection that there is. New ones can be made.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How many streams were dialled so far.
    pub fn dialled(&self) -> u64 {
        *lock(&self.dialled)
    }
}

/// One participant's end of a network.
pub struct Memory {
    pub network: Arc<Network>,
    pub me: PeerId,
}

impl Transport for Memory {
    fn handles(&self, address: &Multiaddr) -> bool {
        port(address).is_some()
    }

    fn everywhere(&self) -> Vec<Multiaddr> {
        vec![memory(0)]
    }

    fn dial(&self, address: &Multiaddr) -> BoxFuture<'static, io::Result<Secured>> {
        let listener = port(address).and_then(|port| lock(&self.network.listeners).get(&port).cloned());
        let Some((peer, listener)) = listener else {
            return future::ready(Err(io::ErrorKind::ConnectionRefused.into())).boxed();
        };
        let number = {
            let mut dialled = lock(&self.network.dialled);
            *dialled += 1;
            *dialled
        };
        let mut binding = [0; 32];
        binding[..8].copy_from_slice(&number.to_le_bytes());
        let (here, there) = duplex(PIPE_BYTES);
        let end = |pipe| Box::new(Pipe::new(pipe, &self.network));
        let arrival = Box::new(Waiting(Secured { peer: self.me, binding, stream: end(there) }));
        let arrived = ListenEvent::Arrived { local: address.clone(), remote: memory(u64::MAX - number), arrival };
        let secured = Secured { peer, binding, stream: end(here) };
        async move {
            let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
            listener.send(arrived).await.map(|()| secured).map_err(refused)
        }
        .boxed()
    }

    fn listen(&self, address: &Multiaddr) -> io::Result<BoxStream<'static, ListenEvent>> {
        let wanted = port(address).ok_or(io::ErrorKind::InvalidInput)?;
        let mut listeners = lock(&self.network.listeners);
        let free = (1..).find(|port| !listeners.contains_key(port)).unwrap_or(1);
        let port = if wanted == 0 { free } else { wanted };
        if listeners.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, mut arrived) = mpsc::channel(BACKLOG);
        listeners.insert(port, (self.me, sender));
        let listener = Listening { network: Arc::clone(&self.network), port };
        let arrivals = stream::poll_fn(move |cx| {
            let _until_dropped = &listener;
            arrived.poll_recv(cx)
        });
        Ok(stream::iter([ListenEvent::Opened(memory(port))]).chain(arrivals).boxed())
    }
}

fn memory(port: u64) -> Multiaddr {
    Multiaddr::empty().with(Protocol::Memory(port))
}

fn port(address: &Multiaddr) -> Option<u64> {
    match address.iter().next()? {
        Protocol::Memory(port) => Some(port),
        _ => None,
    }
}

/// A place among the listeners.
struct Listening {
    network: Arc<Network>,
    port: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&self.network.listeners).remove(&self.port);
    }
}

/// Secured from the start: within a process nobody lies about who it is.
struct Waiting(Secured);

impl Arrival for Waiting {
    fn first_byte(&mut self) -> BoxFuture<'_, io::Result<()>> {
        future::ready(Ok(())).boxed()
    }

    fn secure(self: Box<Self>) -> BoxFuture<'static, io::Result<Secured>> {
        future::ready(Ok(self.0)).boxed()
    }
}

/// One end of a stream, which breaks when its network is cut.
struct Pipe {
    pipe: DuplexStream,
    cut: BoxFuture<'static, ()>,
    is_cut: bool,
}

impl Pipe {
    fn new(pipe: DuplexStream, network: &Network) -> Self {
        let mut cuts = network.cuts.subscribe();
        let cut = async move {
            // A network that is gone cuts nothing.
            if cuts.changed().await.is_err() {
                future::pending().await
            }
        };
        Pipe { pipe, cut: cut.boxed(), is_cut: false }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_cut = self.is_cut || self.cut.poll_unpin(cx).is_ready();
        if self.is_cut { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.pipe).poll_read(cx, bytes)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_cut {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl ByteStream for Pipe {
    fn expect_writes_of(&mut self, _: usize) {}
}
