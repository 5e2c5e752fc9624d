//! Bulk: messages over [`MAX_SMALL_BYTES`](super::frame::MAX_SMALL_BYTES), on sockets of their own.
//!
//! A bulk socket carries frames in one direction, with the authentication of every socket and no multiplexer. The sender
//! dials it; where it cannot, it asks the receiver on the control stream to dial instead. Tensors are written from where
//! they lie and read to where they will lie. A message is kept until the receiver has it; when its socket breaks before, it
//! is sent again on another. One that cannot be brought over ends the link: the sender was told that it went out, so both
//! sides must hear that it did not arrive.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytemuck::AnyBitPattern;
use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::address;
use super::admission::{self, Gate, Purpose, Secured};
use super::bulk_queue::{BulkQueue, MAX_BULK_MESSAGES};
use super::cause::broken;
use super::error::MeshError;
use super::frame::{self, Kind, PREFIX_BYTES, Prefix, TensorHeader};
use super::incoming::Incoming;
use super::link::Link;
use super::roster::Roster;
use super::transport::{BulkSocket, CONNECT_LIMIT, dial_bulk};
use crate::failure::Failure;
use crate::lock::lock;
use crate::memory;
use crate::protocol::{Envelope, Flow, MAX_MESSAGE_BYTES, Message, Peer};
use crate::tensor::{DType, Element, Tensor, with_number};

/// Most sockets that carry bulk to one peer at once.
pub const MAX_SOCKETS: usize = 4;
/// How long an idle socket is kept by its sender, and then by its receiver.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
const RECEIVER_IDLE_LIMIT: Duration = Duration::from_secs(45);
/// How long the peer may take to dial when it is asked to, before it is asked again: what asks may be lost.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// How long a link may be without a bulk socket that it needs.
const OPEN_LIMIT: Duration = Duration::from_secs(8);
/// How long a bulk socket may be there before it has said which link it is of, and before that link is there.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Pauses before another socket is tried where one broke or could not be opened.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Bytes given to TLS at a time. More, and reading ahead of TLS, was measured to gain nothing.
const WRITE_BYTES: usize = 256 << 10;
/// By how much a buffer grows while a header comes in.
const HEADER_STEP_BYTES: usize = 1 << 20;

/// What goes to one peer in bulk.
#[derive(Default)]
pub struct Outbound {
    queue: Mutex<Queue>,
    /// Bulk messages so far: the number of the last; and how many the peer has said to have.
    sent: AtomicU64,
    acknowledged: AtomicU64,
    arrived: Notify,
    /// Sockets that the peer dialled because it was asked to.
    called: Mutex<VecDeque<Secured>>,
    answered: Notify,
}

#[derive(Default)]
struct Queue {
    bulk: BulkQueue<BulkMessage>,
    sockets: usize,
    idle: usize,
    /// The last bulk message of each flow, as far back as one can still be under way.
    flows: BTreeMap<Flow, u64>,
    closed: bool,
}

struct BulkMessage {
    head: Vec<u8>,
    tensors: Vec<Tensor>,
}

/// Sends a message to a peer, on the stream or in bulk by its size.
///
/// # Errors
/// Where the peer is gone, its queue full, or the message too large.
pub fn send(
    roster: &Arc<Roster>,
    runtime: &tokio::runtime::Handle,
    link: &Arc<Link>,
    envelope: Envelope,
) -> Result<(), MeshError> {
    let outbound = &link.outbound;
    let flow = envelope.message.flow();
    let (mut prefix, mut frame) = frame::encode_head(&envelope)?;
    if PREFIX_BYTES + prefix.body_bytes() <= frame::MAX_SMALL_BYTES {
        if outbound.sent.load(Ordering::Acquire) > 0
            && let Some(flow) = flow
            && let Some(&after) = lock(&outbound.queue).flows.get(&flow)
        {
            prefix.after = after;
            frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        }
        envelope.tensors.iter().filter_map(Tensor::bytes).for_each(|bytes| frame.extend_from_slice(bytes));
        return link.send_soon(frame, envelope.message.must_come());
    }

    let bytes = prefix.body_bytes();
    let mut queue = lock(&outbound.queue);
    if queue.closed {
        return Err(MeshError::NotConnected { peer: link.peer.clone() });
    }
    let number = queue.bulk.next(bytes);
    let full = |(what, limit)| MeshError::QueueFull { peer: link.peer.clone(), what, limit };
    prefix.number = number.map_err(full)?;
    if let Some(flow) = flow {
        prefix.after = queue.flows.insert(flow, prefix.number).unwrap_or(0);
        prefix.behind = link.frames();
        if queue.flows.len() > 2 * MAX_BULK_MESSAGES {
            let Queue { flows, bulk, .. } = &mut *queue;
            flows.retain(|_, last| *last == prefix.number || bulk.keeps(*last));
        }
    }
    outbound.sent.store(prefix.number, Ordering::Release);
    frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
    queue.bulk.add(BulkMessage { head: frame, tensors: envelope.tensors }, bytes);
    let another = queue.bulk.waiting() > queue.idle && queue.sockets < MAX_SOCKETS;
    if another {
        queue.sockets += 1;
    }
    drop(queue);
    if another {
        runtime.spawn(carry(roster.clone(), link.clone()));
    } else {
        outbound.arrived.notify_one();
    }
    Ok(())
}

impl Outbound {
    /// Forgets what waits and takes no more.
    pub fn clear(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.bulk.clear();
    }

    /// The peer has every bulk message up to `floor`, and those `beyond` it.
    ///
    /// # Errors
    /// The number of the last, where it was not sent that many.
    pub fn acknowledge(&self, floor: u64, beyond: &[u64]) -> Result<(), u64> {
        if floor <= self.acknowledged.load(Ordering::Acquire) && beyond.is_empty() {
            return Ok(());
        }
        lock(&self.queue).bulk.acknowledge(floor, beyond)?;
        self.acknowledged.fetch_max(floor, Ordering::AcqRel);
        Ok(())
    }

    /// The next message with its number; `None` after [`IDLE_LIMIT`] without one, and then one socket less is counted. May
    /// be dropped before it is ready.
    async fn wait(&self) -> Option<(u64, Arc<BulkMessage>)> {
        if let Some(message) = lock(&self.queue).bulk.take() {
            return Some(message);
        }
        let _idle = Idle::new(&self.queue);
        let limit = tokio::time::sleep(IDLE_LIMIT);
        tokio::pin!(limit);
        loop {
            let notified = self.arrived.notified();
            // Looked at under the lock that a sender decides under, so that none counts on a socket that is going.
            {
                let mut queue = lock(&self.queue);
                if let Some(message) = queue.bulk.take() {
                    return Some(message);
                }
                if limit.is_elapsed() {
                    queue.sockets -= 1;
                    return None;
                }
            }
            tokio::select! {
                () = notified => {}
                () = &mut limit => {}
            }
        }
    }
}

/// A socket that waits for something to write.
struct Idle<'a>(&'a Mutex<Queue>);

impl<'a> Idle<'a> {
    fn new(queue: &'a Mutex<Queue>) -> Self {
        lock(queue).idle += 1;
        Idle(queue)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        lock(self.0).idle -= 1;
    }
}

/// One place among the sockets to a peer: a socket is opened, fed from the queue and closed when idle; one that breaks is
/// followed by another.
async fn carry(roster: Arc<Roster>, link: Arc<Link>) {
    let work = async {
        let mut pause = RETRY_PAUSE;
        let mut start = Instant::now();
        loop {
            match open(roster.gate(), &link).await {
                Ok(socket) => {
                    let opened = Instant::now();
                    let mut written = Vec::new();
                    let Err(error) = feed(socket, &link, &mut written).await else { return Ok(()) };
                    tracing::debug!(peer = %link.peer, %error, "a bulk socket broke");
                    if lock(&link.outbound.queue).bulk.broke(&written).is_err() {
                        return Err(format!("every bulk socket to it breaks; {}", broken("the last", &error)));
                    }
                    if opened.elapsed() > LONGEST_RETRY_PAUSE {
                        pause = RETRY_PAUSE;
                    }
                    start = Instant::now();
                }
                // While the link has no connection, whether it ends is not decided here.
                Err(_) if !link.is_attached() => start = Instant::now(),
                Err(why) => {
                    if start.elapsed() >= OPEN_LIMIT {
                        return Err(format!("no bulk socket to it could be opened: {why}"));
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_RETRY_PAUSE.min(pause * 2);
        }
    };
    tokio::select! {
        result = work => if let Err(why) = result {
            roster.end(&link, &why);
        },
        () = link.over() => {}
    }
}

/// Writes what waits to a socket until that is idle. The numbers of what the peer may not have are in `written` then.
///
/// # Errors
/// Where the socket broke.
async fn feed(mut socket: Secured, link: &Link, written: &mut Vec<u64>) -> io::Result<()> {
    admission::write_in_steps_of(&mut socket, WRITE_BYTES);
    socket.write_all(&link.numbers.theirs.to_le_bytes()).await?;
    let mut nothing = [0];
    loop {
        let next = tokio::select! {
            biased;
            next = link.outbound.wait() => next,
            // Nothing ever comes back on it: this is how it is noticed that it broke with something on its way.
            end = socket.read(&mut nothing) => return Err(end.err().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())),
        };
        let Some((number, message)) = next else { break };
        {
            let queue = lock(&link.outbound.queue);
            written.retain(|number| queue.bulk.keeps(*number));
        }
        written.push(number);
        write(&mut socket, link, number, &message).await?;
    }
    let _closing = socket.shutdown().await;
    let mut queue = lock(&link.outbound.queue);
    written.retain(|number| queue.bulk.keeps(*number));
    if written.is_empty() {
        return Ok(());
    }
    // It goes on, in the place that an idle socket gives up.
    queue.sockets += 1;
    Err(io::ErrorKind::TimedOut.into())
}

async fn write(socket: &mut Secured, link: &Link, number: u64, message: &BulkMessage) -> io::Result<()> {
    let mut head = message.head.clone();
    frame::stamp(&mut head, number, link.tell_taken());
    let parts = std::iter::once(&head[..]).chain(message.tensors.iter().filter_map(Tensor::bytes));
    for part in parts {
        for chunk in part.chunks(WRITE_BYTES) {
            socket.write_all(chunk).await?;
        }
    }
    socket.flush().await
}

/// A socket that takes bulk to the peer, dialled by this side or, asked to, by the other.
async fn open(gate: &Gate, link: &Link) -> Result<Secured, String> {
    let mut tried = Vec::new();
    for address in dial_order(link) {
        match dial_bulk(gate, address, link.id, Purpose::Send, CONNECT_LIMIT).await {
            Ok(socket) => return Ok(socket),
            Err(error) => tried.push(format!("{address}: {error}")),
        }
    }
    link.say(frame::empty_frame(Kind::Call).to_vec());
    let answer = async {
        loop {
            let answered = link.outbound.answered.notified();
            if let Some(socket) = lock(&link.outbound.called).pop_front() {
                return socket;
            }
            answered.await;
        }
    };
    tokio::time::timeout(CALL_LIMIT, answer).await.map_err(|_| {
        let tried = if tried.is_empty() { "it tells no address".to_owned() } else { tried.join("; ") };
        format!("{tried}; it was asked to dial and did not")
    })
}

/// Where to dial: what is known to work first, then the host the peer is connected from, then the rest.
fn dial_order(link: &Link) -> Vec<std::net::SocketAddr> {
    let connection = link.connection();
    let remote = address::socket(&connection.remote).map(|socket| socket.ip());
    let mut addresses: Vec<_> = link.hello().bulk_addresses.iter().filter_map(|a| address::socket(a)).collect();
    addresses.sort_by_key(|socket| Some(socket.ip()) != remote);
    if let Some(dialled) = connection.dialled.as_deref().and_then(address::socket) {
        addresses.retain(|address| *address != dialled);
        addresses.insert(0, dialled);
    }
    addresses
}

/// The peer cannot dial this side and asks to be dialled: a socket on which it then sends.
pub fn answer_call(roster: &Arc<Roster>, link: &Arc<Link>) {
    let (roster, link) = (roster.clone(), link.clone());
    tokio::spawn(async move {
        for address in dial_order(&link) {
            match dial_bulk(roster.gate(), address, link.id, Purpose::Receive, CONNECT_LIMIT).await {
                Ok(socket) => return receive(&roster, &link.peer, socket).await,
                Err(error) => tracing::debug!(peer = %link.peer, %address, %error, "a call was not answered"),
            }
        }
    });
}

/// Takes over a bulk socket that the other side dialled.
pub async fn accept(roster: Arc<Roster>, socket: BulkSocket) {
    let peer = Peer::new(socket.peer.to_string());
    match socket.purpose {
        Purpose::Receive => {
            let Some(link) = roster.link(&peer) else { return };
            let mut called = lock(&link.outbound.called);
            if called.len() < MAX_SOCKETS {
                called.push_back(socket.stream);
                link.outbound.answered.notify_one();
            }
        }
        Purpose::Send | Purpose::Control => receive(&roster, &peer, socket.stream).await,
    }
}

/// Reads messages until the sender closes the socket.
async fn receive(roster: &Arc<Roster>, peer: &Peer, mut socket: Secured) {
    let Ok(Some(link)) = tokio::time::timeout(HELLO_LIMIT, link_of(roster, peer, &mut socket)).await else { return };
    let work = async {
        while let Some((prefix, envelope)) = read(&mut socket, &link).await? {
            let bytes = prefix.body_bytes();
            roster.deliver_bulk(&link, prefix, envelope).map_err(|error| Unread::Wrong(error.to_string()))?;
            if link.owes_word(bytes) {
                link.say(link.ping());
            }
        }
        Ok::<(), Unread>(())
    };
    tokio::select! {
        result = work => match result {
            Ok(()) => {}
            // The sender notices, too, and sends again what did not come.
            Err(Unread::Broken(error)) => tracing::debug!(peer = %link.peer, %error, "a bulk socket from it broke"),
            Err(Unread::Wrong(why)) => roster.end(&link, &format!("what it sends in bulk cannot be taken: {why}")),
        },
        () = link.over() => {}
    }
}

/// The link that a bulk socket is of, which its sender says first. It is up here only once the peer's Hello is read, which
/// may have been sent just before.
async fn link_of(roster: &Roster, peer: &Peer, socket: &mut Secured) -> Option<Arc<Link>> {
    let mut changes = roster.changes();
    let mut number = [0; 8];
    socket.read_exact(&mut number).await.ok()?;
    let number = u64::from_le_bytes(number);
    loop {
        if let Some(link) = roster.link(peer).filter(|link| link.numbers.own == number) {
            return Some(link);
        }
        changes.changed().await.ok()?;
    }
}

/// Why a bulk message was not read.
enum Unread {
    /// Its socket broke.
    Broken(io::Error),
    /// It is none, or there is no room for it: it would be no better the next time.
    Wrong(String),
}

impl From<io::Error> for Unread {
    /// What the sockets and TLS say has a kind; what is found in the bytes is `Other`.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Other | io::ErrorKind::OutOfMemory => Unread::Wrong(error.to_string()),
            _ => Unread::Broken(error),
        }
    }
}

/// The next message; `None` where the socket ends between two.
async fn read(socket: &mut Secured, link: &Link) -> Result<Option<(Prefix, Envelope)>, Unread> {
    let mut prefix = [0; PREFIX_BYTES];
    let Ok(first) = tokio::time::timeout(RECEIVER_IDLE_LIMIT, socket.read(&mut prefix[..1])).await else {
        return Ok(None);
    };
    match first {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        // A process that is killed between two messages says no TLS goodbye; its control stream tells what became of it.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(Unread::Broken(error)),
    }
    socket.read_exact(&mut prefix[1..]).await?;
    let prefix = Prefix::decode(&prefix, MAX_MESSAGE_BYTES).map_err(|failure| Unread::Wrong(failure.message))?;
    if prefix.kind != Kind::Message {
        return Err(Unread::Wrong("a bulk socket carries messages only".to_owned()));
    }
    link.acknowledged(prefix.taken, &[]).map_err(Unread::Wrong)?;
    // The header and what it is decoded to. A small one is nothing to ask for.
    let room = match prefix.header_bytes {
        0..HEADER_STEP_BYTES => None,
        bytes => match memory::try_reserve(2 * bytes) {
            Ok(room) => Some(room),
            Err(failure) => return Ok(Some(refuse(socket, prefix, failure).await?)),
        },
    };
    // Grown as it comes in: what a length claims costs the peer as much as this side.
    let mut header = Vec::new();
    while header.len() < prefix.header_bytes {
        let start = header.len();
        header.resize(prefix.header_bytes.min(start + HEADER_STEP_BYTES), 0);
        socket.read_exact(&mut header[start..]).await?;
    }
    let header = frame::decode_header(&header, prefix.payload_bytes).map_err(|f| Unread::Wrong(f.message))?;
    drop(room);
    let mut room = match memory::try_reserve(prefix.payload_bytes) {
        Ok(room) => room,
        Err(failure) => {
            pass_over(socket, prefix.payload_bytes).await?;
            let message = Message::Refused { message: Box::new(header.message), failure };
            return Ok(Some((prefix, message.into())));
        }
    };
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for tensor in header.tensors {
        // It is taken as a whole before its first byte is read.
        room.taken(tensor.payload_bytes().map_err(io::Error::other)?);
        tensors.push(read_tensor(socket, tensor).await?);
    }
    Ok(Some((prefix, Envelope { message: header.message, tensors })))
}

/// Passes over a message for whose header there is no memory; what is delivered in its place names who waits for an answer.
async fn refuse(socket: &mut Secured, prefix: Prefix, failure: Failure) -> io::Result<(Prefix, Envelope)> {
    let mut start = [0; frame::TELLING_BYTES];
    socket.read_exact(&mut start).await?;
    pass_over(socket, prefix.body_bytes() - start.len()).await?;
    let message = frame::stand_in(&start).ok_or_else(|| io::Error::other(failure.to_string()))?;
    Ok((prefix, Message::Refused { message: Box::new(message), failure }.into()))
}

/// Reads so many bytes and keeps none, so that the messages behind them are not lost with these.
async fn pass_over(socket: &mut Secured, bytes: usize) -> io::Result<()> {
    let passed = tokio::io::copy(&mut socket.take(bytes as u64), &mut tokio::io::sink()).await?;
    if passed < bytes as u64 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Reads a tensor into the memory it then keeps.
async fn read_tensor(socket: &mut Secured, header: TensorHeader) -> io::Result<Tensor> {
    let bytes = header.payload_bytes().map_err(io::Error::other)?;
    if let Some(strings) = header.strings {
        return Tensor::new(header.shape, frame::string_data(strings)).map_err(io::Error::other);
    }
    if header.dtype == DType::Bool {
        let flags = read_elements::<u8>(socket, bytes).await?;
        return Tensor::from_bytes(DType::Bool, header.shape, &flags).map_err(io::Error::other);
    }
    let count = bytes / header.dtype.size().unwrap_or(1);
    let data = with_number!(header.dtype, T => T::into_data(read_elements::<T>(socket, count).await?));
    let data = data.ok_or_else(|| io::Error::other(format!("a {} does not travel as bytes", header.dtype)))?;
    Tensor::new(header.shape, data).map_err(io::Error::other)
}

async fn read_elements<T: AnyBitPattern>(socket: &mut Secured, count: usize) -> io::Result<Vec<T>> {
    let mut incoming = Incoming::new(count).map_err(io::Error::other)?;
    while incoming.has_remaining_mut() {
        if socket.read_buf(&mut incoming).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    incoming.finish().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
