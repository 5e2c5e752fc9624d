//! The connections of clients: how many there may be, whether the one that a session came on is still there, and the end of
//! those that say nothing, or nothing but noise.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::Stream;
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::session::lock;
use crate::failure::{Code, Failure, Result};

/// Most connections of a door.
const MAX_CONNECTIONS: usize = 1024;
/// Most of them whose clients have not shown the door's token yet: the others are kept for those who have.
const MAX_UNPROVEN: usize = 512;
/// Most of these from one address.
const MAX_UNPROVEN_OF_ADDRESS: usize = 64;
/// How long a client may take to begin to speak HTTP/2.
const MAX_GREETING: Duration = Duration::from_secs(10);
/// What it begins with: the preface and an empty frame of settings.
const GREETING: usize = 24 + 9;
/// How long a client that has not shown the token may stay without sending a request.
const MAX_IDLE_UNPROVEN: Duration = Duration::from_secs(60);
/// Most calls, from one look for idle connections to the next, that a client takes back before it has sent anything.
const MAX_TAKEN_BACK: u32 = 1000;
/// Most calls of one connection whose message is still to come.
const MAX_WAITING: u32 = 256;
/// The same for a client that has not shown the token.
const MAX_WAITING_UNPROVEN: u32 = 16;
/// So many of each connection are let in even where the door has as many as it takes.
const RESERVED_WAITING: u32 = 16;
/// Most such calls of the whole door.
const MAX_WAITING_TOGETHER: u32 = 16 << 10;
/// How long bytes that were sent may stay without an answer, before the connection is given up.
const MAX_UNANSWERED: Duration = Duration::from_secs(30);
/// How long nothing is accepted after that has failed: descriptors are short, say.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The connections that a door has.
#[derive(Clone)]
pub(super) struct Connections(Arc<Door>);

struct Door {
    /// Whether no client has to show a token.
    asks_nothing: bool,
    all: Mutex<HashMap<u64, Weak<State>>>,
    next: AtomicU64,
    /// Calls whose message is still to come.
    waiting: AtomicU32,
}

/// What is known of a connection.
struct State {
    door: Arc<Door>,
    address: IpAddr,
    is_proven: AtomicBool,
    /// Calls whose message is still to come.
    waiting: AtomicU32,
    /// Calls that were taken back before anything of them came, since the last look.
    taken_back: AtomicU32,
    /// When its last request was there, or it began.
    idle_since: Mutex<Instant>,
    is_ended: AtomicBool,
    reader: AtomicWaker,
}

impl State {
    /// Ends the connection, and with it its calls.
    fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }
}

impl Connections {
    pub fn new(asks_nothing: bool) -> Connections {
        Connections(Arc::new(Door {
            asks_nothing,
            all: Mutex::default(),
            next: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
        }))
    }

    /// Lets a client in, where there is a place.
    fn admit(&self, stream: TcpStream, address: IpAddr) -> Option<Wire> {
        let door = &self.0;
        let mut all = lock(&door.all);
        if all.len() >= MAX_CONNECTIONS {
            return None;
        }
        if !door.asks_nothing {
            let (mut together, mut here) = (0, 0);
            for other in all.values().filter_map(Weak::upgrade).filter(|other| !other.is_proven()) {
                together += 1;
                here += usize::from(other.address == address);
            }
            if together >= MAX_UNPROVEN || here >= MAX_UNPROVEN_OF_ADDRESS {
                return None;
            }
        }
        let id = door.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(State {
            door: Arc::clone(door),
            address,
            is_proven: AtomicBool::new(door.asks_nothing),
            waiting: AtomicU32::new(0),
            taken_back: AtomicU32::new(0),
            idle_since: Mutex::new(Instant::now()),
            is_ended: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        all.insert(id, Arc::downgrade(&state));
        let greeting = Some(Greeting { left: GREETING, limit: Box::pin(tokio::time::sleep(MAX_GREETING)) });
        Some(Wire { stream, greeting, id, state })
    }

    /// Ends the connections of clients that have not shown the token and do nothing.
    pub fn sweep(&self) {
        let all: Vec<Arc<State>> = lock(&self.0.all).values().filter_map(Weak::upgrade).collect();
        for state in all {
            state.taken_back.store(0, Ordering::Relaxed);
            let is_idle = state.waiting.load(Ordering::Relaxed) == 0;
            if is_idle && !state.is_proven() && lock(&state.idle_since).elapsed() > MAX_IDLE_UNPROVEN {
                state.end();
            }
        }
    }
}

/// A connection, to those who ask whether it is open.
#[derive(Clone)]
pub(super) struct Connection(Weak<State>);

impl Connection {
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub fn is_same(&self, other: &Connection) -> bool {
        self.0.ptr_eq(&other.0)
    }

    /// Its client has shown that it may pass.
    pub fn prove(&self) {
        if let Some(state) = self.0.upgrade() {
            state.is_proven.store(true, Ordering::Relaxed);
        }
    }

    /// A call begins.
    ///
    /// # Errors
    /// ResourceExhausted where too many calls have begun of which nothing came yet.
    pub fn call(&self) -> Result<Option<Call>> {
        let Some(state) = self.0.upgrade() else { return Ok(None) };
        let most = if state.is_proven() { MAX_WAITING } else { MAX_WAITING_UNPROVEN };
        let waiting = state.waiting.fetch_add(1, Ordering::Relaxed);
        let together = state.door.waiting.fetch_add(1, Ordering::Relaxed);
        let mut call = Call { state, waits: true, has_begun: true };
        if waiting >= most || (waiting >= RESERVED_WAITING && together >= MAX_WAITING_TOGETHER) {
            let why = format!("{waiting} calls of this connection have begun, and their requests did not come yet");
            return Err(Failure::new(Code::ResourceExhausted, why));
        }
        call.has_begun = false;
        Ok(Some(call))
    }
}

/// A call, until its request has been read.
pub(super) struct Call {
    state: Arc<State>,
    waits: bool,
    has_begun: bool,
}

impl Call {
    /// Something of its message came.
    pub fn has_begun(&mut self) {
        self.has_begun = true;
    }

    /// Its message is there, or nobody waits for it.
    pub fn waits_no_more(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            self.state.waiting.fetch_sub(1, Ordering::Relaxed);
            self.state.door.waiting.fetch_sub(1, Ordering::Relaxed);
            *lock(&self.state.idle_since) = Instant::now();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.waits_no_more();
        if !self.has_begun && self.state.taken_back.fetch_add(1, Ordering::Relaxed) >= MAX_TAKEN_BACK {
            self.state.end();
        }
    }
}

/// The stream of a connection; the connection is open as long as this lives.
pub(super) struct Wire {
    stream: TcpStream,
    greeting: Option<Greeting>,
    id: u64,
    state: Arc<State>,
}

/// The first bytes of a client, which must come in time.
struct Greeting {
    left: usize,
    limit: Pin<Box<Sleep>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        lock(&self.state.door.all).remove(&self.id);
    }
}

impl Connected for Wire {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        Connection(Arc::downgrade(&self.state))
    }
}

/// The connections that come in.
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Connections,
    /// Until when nothing is accepted.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub fn new(listener: TcpListener, connections: Connections) -> Incoming {
        Incoming { listener, connections, pause: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Wire>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Wire>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                // One who finds no place is hung up on.
                Ok((stream, from)) => {
                    if prepare(&stream).is_ok()
                        && let Some(wire) = self.connections.admit(stream, from.ip())
                    {
                        return Poll::Ready(Some(Ok(wire)));
                    }
                }
                Err(error) => {
                    tracing::warn!("a client of the door cannot be accepted: {error}");
                    self.pause = Some(Box::pin(tokio::time::sleep(AFTER_FAILURE)));
                }
            }
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // A step is one small message each way.
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(MAX_UNANSWERED))?;
    Ok(())
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Wire { stream, greeting, state, .. } = self.get_mut();
        state.reader.register(context.waker());
        if state.is_ended.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(stream).poll_read(context, buf);
        if let Some(first) = greeting {
            first.left = first.left.saturating_sub(buf.filled().len() - before);
            if first.left == 0 {
                *greeting = None;
            } else if first.limit.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A door's connections, and clients that come to it.
    struct House {
        listener: TcpListener,
        connections: Connections,
    }

    impl House {
        async fn new(asks_nothing: bool) -> House {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            House { listener, connections: Connections::new(asks_nothing) }
        }

        /// The two ends of a connection, where there is a place for it.
        async fn client(&self) -> Option<(TcpStream, Wire)> {
            let near = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
            let (far, from) = self.listener.accept().await.unwrap();
            Some((near, self.connections.admit(far, from.ip())?))
        }
    }

    #[tokio::test]
    async fn strangers_of_an_address_have_so_many_places() {
        let house = House::new(false).await;
        let mut clients = Vec::new();
        for _ in 0..MAX_UNPROVEN_OF_ADDRESS {
            clients.push(house.client().await.unwrap());
        }
        assert!(house.client().await.is_none());
        // One that shows the token, or goes, makes room for another.
        clients[0].1.connect_info().prove();
        clients.push(house.client().await.unwrap());
        assert!(house.client().await.is_none());
        let gone = clients.pop().unwrap().1.connect_info();
        assert!(!gone.is_open() && gone.call().unwrap().is_none());
        clients.push(house.client().await.unwrap());
        // Where no token is asked for, nobody is a stranger.
        let open = House::new(true).await;
        for _ in 0..=MAX_UNPROVEN_OF_ADDRESS {
            clients.push(open.client().await.unwrap());
        }
    }

    #[tokio::test]
    async fn so_many_calls_wait_for_their_message() {
        let house = House::new(false).await;
        let (_near, wire) = house.client().await.unwrap();
        let connection = wire.connect_info();
        let check = |most: u32| {
            let mut calls: Vec<Call> = (0..most).map(|_| connection.call().unwrap().unwrap()).collect();
            calls.iter_mut().for_each(Call::has_begun);
            assert_eq!(connection.call().err().unwrap().code, Code::ResourceExhausted);
            calls[0].waits_no_more();
            assert!(connection.call().is_ok());
        };
        check(MAX_WAITING_UNPROVEN);
        connection.prove();
        check(MAX_WAITING);
    }

    #[tokio::test]
    async fn one_that_takes_back_too_much_is_ended() {
        let house = House::new(true).await;
        let (_near, mut wire) = house.client().await.unwrap();
        let connection = wire.connect_info();
        for turn in 0..=MAX_TAKEN_BACK {
            assert!(!wire.state.is_ended.load(Ordering::Relaxed), "after {turn}");
            drop(connection.call());
        }
        assert_eq!(wire.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
