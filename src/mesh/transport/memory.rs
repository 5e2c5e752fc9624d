//! A transport within one process, without sockets, for tests: streams are pipes in memory, and an address is `/memory/N`.
//!
//! Its participants share a [`Network`], which a test can disturb.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};

use futures::future::{self, BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;
use meshtf_tensor::lock::lock;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::sync::{Barrier, mpsc, watch};

use super::{Arrival, ByteStream, ListenEvent, Secured, Transport};

/// Bytes of a pipe that are written and not read.
const PIPE_BYTES: usize = 64 << 10;
/// Connections that wait to be taken.
const BACKLOG: usize = 64;

/// The listeners by address, and all streams.
#[derive(Default)]
pub struct Network {
    listeners: Mutex<BTreeMap<u64, (PeerId, mpsc::Sender<ListenEvent>)>>,
    lines: Mutex<Vec<Weak<Line>>>,
    /// The PeerId of the dialler of each stream so far; a stream's number is the address of the side that dialled it.
    dialled: Mutex<Vec<PeerId>>,
    /// All dials fail.
    is_parted: AtomicBool,
    /// Participants that can neither dial nor be dialled.
    alone: Mutex<BTreeSet<PeerId>>,
    /// The number of dials that still wait for one another.
    together: Mutex<Option<(usize, Arc<Barrier>)>>,
    /// The first stream that has carried this many bytes breaks at that byte.
    breaks_after: Mutex<Option<usize>>,
}

impl Network {
    /// Breaks all streams. New ones can be opened.
    pub fn cut(&self) {
        self.lines().iter().for_each(|line| line.cut());
    }

    /// From now on nothing arrives on the present streams, but they do not break. New ones can be opened.
    pub fn mute(&self) {
        self.lines().iter().for_each(|line| line.is_mute.store(true, Ordering::Relaxed));
    }

    /// Whether dials fail, as after a time without an answer.
    pub fn part(&self, is_parted: bool) {
        self.is_parted.store(is_parted, Ordering::Relaxed);
    }

    /// Breaks every stream that exists; dials to and from `peer` fail from now on, as after a time without an answer.
    pub fn cut_off(&self, peer: PeerId) {
        lock(&self.alone).insert(peer);
        self.cut();
    }

    /// Participants that were cut off can dial and be dialled again.
    pub fn join_all(&self) {
        lock(&self.alone).clear();
    }

    /// None of the next `count` dials is answered before all of them are under way.
    pub fn dial_together(&self, count: usize) {
        *lock(&self.together) = Some((count, Arc::new(Barrier::new(count))));
    }

    /// Breaks the first stream that has carried this many bytes since it was dialled, at that byte.
    pub fn break_after(&self, bytes: usize) {
        *lock(&self.breaks_after) = Some(bytes);
    }

    /// Whether [`Network::break_after`] has broken a stream.
    pub fn has_broken_one(&self) -> bool {
        lock(&self.breaks_after).is_none()
    }

    /// The diallers of the streams so far.
    pub fn dialled(&self) -> Vec<PeerId> {
        lock(&self.dialled).clone()
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        let mut lines = lock(&self.lines);
        lines.retain(|line| line.strong_count() > 0);
        lines.iter().filter_map(Weak::upgrade).collect()
    }

    /// The barrier for a dial, if it is to wait for other dials.
    fn others(&self) -> Option<Arc<Barrier>> {
        let mut together = lock(&self.together);
        let (left, barrier) = together.as_mut()?;
        *left -= 1;
        let barrier = Arc::clone(barrier);
        if *left == 0 {
            *together = None;
        }
        Some(barrier)
    }
}

/// The shared state of both ends of a stream.
#[derive(Default)]
struct Line {
    is_cut: watch::Sender<bool>,
    is_mute: AtomicBool,
    /// Bytes that were written to it, at either end.
    carried: AtomicUsize,
}

impl Line {
    fn cut(&self) {
        self.is_cut.send_replace(true);
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
            dialled.push(self.me);
            dialled.len() as u64
        };
        let alone = lock(&self.network.alone);
        if self.network.is_parted.load(Ordering::Relaxed) || alone.contains(&peer) || alone.contains(&self.me) {
            return future::ready(Err(io::ErrorKind::TimedOut.into())).boxed();
        }
        drop(alone);
        let mut binding = [0; 32];
        binding[..8].copy_from_slice(&number.to_le_bytes());
        let (here, there) = duplex(PIPE_BYTES);
        let line = Arc::new(Line::default());
        lock(&self.network.lines).push(Arc::downgrade(&line));
        let end = |pipe| Box::new(Pipe::new(pipe, &line, &self.network));
        let others = self.network.others();
        let arrival = Box::new(Waiting(Secured { peer: self.me, binding, stream: end(there) }));
        let arrived = ListenEvent::Arrived { local: address.clone(), remote: memory(u64::MAX - number), arrival };
        let secured = Secured { peer, binding, stream: end(here) };
        async move {
            if let Some(others) = others {
                others.wait().await;
            }
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

/// A listener's entry in the network.
struct Listening {
    network: Arc<Network>,
    port: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        lock(&self.network.listeners).remove(&self.port);
    }
}

/// Secured from the start: within a process all participants are trusted.
struct Waiting(Secured);

impl Arrival for Waiting {
    fn first_byte(&mut self) -> BoxFuture<'_, io::Result<()>> {
        future::ready(Ok(())).boxed()
    }

    fn secure(self: Box<Self>) -> BoxFuture<'static, io::Result<Secured>> {
        future::ready(Ok(self.0)).boxed()
    }
}

/// One end of a stream.
struct Pipe {
    pipe: DuplexStream,
    line: Arc<Line>,
    network: Arc<Network>,
    /// Wakes the reader once the line is cut.
    cut: BoxFuture<'static, ()>,
}

impl Pipe {
    fn new(pipe: DuplexStream, line: &Arc<Line>, network: &Arc<Network>) -> Self {
        let mut is_cut = line.is_cut.subscribe();
        let cut = async move {
            let _until = is_cut.wait_for(|is_cut| *is_cut).await;
        };
        Pipe { pipe, line: Arc::clone(line), network: Arc::clone(network), cut: cut.boxed() }
    }

    fn check(&self) -> io::Result<()> {
        if *self.line.is_cut.borrow() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn is_mute(&self) -> bool {
        self.line.is_mute.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        if self.cut.poll_unpin(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.is_mute() { Poll::Pending } else { Pin::new(&mut self.pipe).poll_read(cx, bytes) }
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        if self.is_mute() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let carried = self.line.carried.load(Ordering::Relaxed);
        let limit = *lock(&self.network.breaks_after);
        let left = limit.map_or(bytes.len(), |limit| limit.saturating_sub(carried).min(bytes.len()));
        if left == 0 && !bytes.is_empty() {
            *lock(&self.network.breaks_after) = None;
            self.line.cut();
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let written = ready!(Pin::new(&mut self.pipe).poll_write(cx, &bytes[..left]))?;
        self.line.carried.fetch_add(written, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A mute stream does not even send its end.
        if self.is_mute() { Poll::Ready(Ok(())) } else { Pin::new(&mut self.pipe).poll_shutdown(cx) }
    }
}

impl ByteStream for Pipe {
    fn expect_writes_of(&mut self, _: usize) {}

    fn expect_bulk(&mut self) {}
}

impl std::fmt::Debug for Secured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secured({})", self.peer)
    }
}
