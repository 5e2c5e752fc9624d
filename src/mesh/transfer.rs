//! Bulk transfer: messages over [`MAX_SMALL_BYTES`](super::frame::MAX_SMALL_BYTES), on separate streams.
//!
//! A bulk stream carries frames in one direction, authenticated like every stream, without a multiplexer. The sender dials it;
//! if it cannot, it asks the receiver on the control stream to dial instead. Tensors are written from their own memory and read
//! into their final memory. A message is kept until the receiver has acknowledged it; if its stream breaks before, it is sent
//! again on another. If a message cannot be sent at all, the link ends: the sender was notified that the message went out, so
//! both sides must learn that it did not arrive.

#[cfg(test)]
mod flow_order;
mod receive;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use self::receive::receive;
use meshtf_tensor::Tensor;
use meshtf_tensor::lock::lock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::address::{Multiaddr, is_same_host, local_name, resolved, without_peer};
use super::admission::{Admitted, Purpose};
use super::bulk_queue::{BulkQueue, MAX_BULK_MESSAGES};
use super::cause::broken;
use super::clock;
use super::error::MeshError;
use super::frame::{self, Kind, PREFIX_BYTES, Prefix};
use super::link::Link;
use super::pace::Pace;
use super::port::Port;
use super::roster::Roster;
use super::transport::PeerStream;
use crate::protocol::{Envelope, Flow, Peer};

/// Most sockets that carry bulk to one peer at once.
pub const MAX_SOCKETS: usize = 4;
/// Flows whose last bulk message is remembered, before those whose last is acknowledged are forgotten.
const MAX_FLOWS: usize = 2 * MAX_BULK_MESSAGES;
/// Most sockets that are dialled, or read, for one peer at its request: those that it uses, and as many that broke before this
/// side noticed.
const MAX_CALLS: usize = 2 * MAX_SOCKETS;
/// How long an idle socket is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// How long the peer may take to dial when it is asked to, before it is asked again: the request may be lost.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// How long a link may be without a bulk stream that it needs.
const OPEN_LIMIT: Duration = Duration::from_secs(8);
/// Pauses before another socket is tried after one broke or could not be opened.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Bytes written at a time. Measured over TLS: more gains nothing, nor does reading ahead.
const WRITE_BYTES: usize = 256 << 10;

/// The bulk messages to one peer.
#[derive(Default)]
pub struct Outbound {
    queue: Mutex<Queue>,
    /// The number of the last bulk message, and the number up to which the peer has acknowledged all of them.
    sent: AtomicU64,
    acknowledged: AtomicU64,
    pace: Mutex<Pace>,
    arrived: Notify,
    /// Sockets that the peer dialled on request.
    called: Mutex<VecDeque<PeerStream>>,
    answered: Notify,
    /// Held once for each call of the peer that is being answered.
    calls: Arc<()>,
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

/// Sends a message to a peer, on the control stream or in bulk by its size.
///
/// # Errors
/// If the peer is gone, its queue full, or the message too large.
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
        prefix.after = flow.map_or(0, |flow| outbound.last_of(flow));
        if prefix.after > 0 {
            frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        }
        envelope.tensors.iter().filter_map(Tensor::bytes).for_each(|bytes| frame.extend_from_slice(bytes));
        return link.send_soon(frame, envelope.message.must_come());
    }

    let added = outbound.add(flow, prefix, frame, envelope.tensors, || link.frames());
    let another_socket = added.map_err(|refused| match refused {
        NotAdded::Closed => MeshError::NotConnected { peer: link.peer.clone() },
        NotAdded::Full(what, limit) => MeshError::QueueFull { peer: link.peer.clone(), what, limit },
    })?;
    if another_socket {
        runtime.spawn(carry(roster.clone(), link.clone()));
    } else {
        outbound.arrived.notify_one();
    }
    Ok(())
}

/// Why a bulk message was not taken.
#[derive(Debug)]
enum NotAdded {
    Closed,
    /// The name of the limit that would be exceeded, and the limit.
    Full(&'static str, usize),
}

impl Outbound {
    /// The bulk message that a small message of `flow`, which is about to be sent, must follow; 0: none.
    ///
    /// If the peer has acknowledged all bulk, the answer is 0, without the lock. A bulk message that has come is delivered as
    /// soon as the bulk before it and the small messages sent before it have come. All of that bulk has come too, and those
    /// small messages have smaller numbers than the one that is sent now. The control stream is delivered in the order of its
    /// numbers, so the message that is sent now is delivered after all of these.
    fn last_of(&self, flow: Flow) -> u64 {
        if self.acknowledged.load(Ordering::Acquire) >= self.sent.load(Ordering::Acquire) {
            return 0;
        }
        lock(&self.queue).flows.get(&flow).copied().unwrap_or(0)
    }

    /// Queues a bulk message, with its prefix and its frame up to the tensors. Returns whether another socket is needed for it,
    /// which is counted already. `frames` is the number of messages that were sent on the control stream so far.
    ///
    /// # Errors
    /// [`NotAdded`]: nothing was queued.
    fn add(
        &self,
        flow: Option<Flow>,
        mut prefix: Prefix,
        mut frame: Vec<u8>,
        tensors: Vec<Tensor>,
        frames: impl FnOnce() -> u64,
    ) -> Result<bool, NotAdded> {
        let bytes = prefix.body_bytes();
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Err(NotAdded::Closed);
        }
        prefix.number = queue.bulk.next(bytes).map_err(|(what, limit)| NotAdded::Full(what, limit))?;
        if let Some(flow) = flow {
            prefix.after = queue.flows.insert(flow, prefix.number).unwrap_or(0);
            prefix.behind = frames();
            if queue.flows.len() > MAX_FLOWS {
                let Queue { flows, bulk, .. } = &mut *queue;
                flows.retain(|_, last| *last == prefix.number || bulk.keeps(*last));
            }
        }
        self.sent.store(prefix.number, Ordering::Release);
        frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
        queue.bulk.add(BulkMessage { head: frame, tensors }, bytes);
        let another_socket = queue.bulk.waiting() > queue.idle && queue.sockets < MAX_SOCKETS;
        if another_socket {
            queue.sockets += 1;
        }
        Ok(another_socket)
    }

    /// Forgets the queued messages and takes no more.
    pub fn clear(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.bulk.clear();
        lock(&self.pace).clear();
    }

    /// The peer has every bulk message up to `floor`, and those `beyond` it.
    ///
    /// # Errors
    /// The number of the last message, if fewer were sent.
    pub fn acknowledge(&self, floor: u64, beyond: &[u64]) -> Result<(), u64> {
        if floor <= self.acknowledged.load(Ordering::Acquire) && beyond.is_empty() {
            return Ok(());
        }
        lock(&self.queue).bulk.acknowledge(floor, beyond)?;
        lock(&self.pace).end(floor, beyond, clock::now());
        self.acknowledged.fetch_max(floor, Ordering::AcqRel);
        Ok(())
    }

    /// Bytes a second that the link carries; `None` if no large message has come yet.
    pub fn rate(&self) -> Option<u64> {
        lock(&self.pace).rate()
    }

    /// The next message with its number; `None` after [`IDLE_LIMIT`] without one, and then the socket count is reduced by one.
    /// May be dropped before it is ready.
    async fn wait(&self) -> Option<(u64, Arc<BulkMessage>)> {
        if let Some(message) = lock(&self.queue).bulk.take() {
            return Some(message);
        }
        let _idle = Idle::new(&self.queue);
        let limit = tokio::time::sleep(IDLE_LIMIT);
        tokio::pin!(limit);
        loop {
            let notified = self.arrived.notified();
            // Under the lock under which a sender decides whether to open a socket, so that it does not rely on one that ends.
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

/// One slot among the sockets to a peer: a socket is opened, fed from the queue and closed when idle; one that breaks is
/// followed by another.
async fn carry(roster: Arc<Roster>, link: Arc<Link>) {
    let work = async {
        let mut pause = RETRY_PAUSE;
        let mut start = Instant::now();
        loop {
            match open(roster.port(), &link).await {
                Ok(socket) => {
                    let opened = Instant::now();
                    let mut written = Vec::new();
                    let Err(error) = feed(socket, &link, &mut written).await else { return Ok(()) };
                    tracing::debug!(peer = %link.peer, %error, "a bulk stream broke");
                    if error.kind() == io::ErrorKind::Other {
                        return Err(format!("it breaks the rules of a bulk stream: {error}"));
                    }
                    if lock(&link.outbound.queue).bulk.broke(&written).is_err() {
                        return Err(format!("every bulk stream to it breaks; {}", broken("the last", &error)));
                    }
                    if opened.elapsed() > LONGEST_RETRY_PAUSE {
                        pause = RETRY_PAUSE;
                    }
                    start = Instant::now();
                }
                // While the link has no connection, the driver decides whether it ends.
                Err(_) if !link.is_attached() => start = Instant::now(),
                Err(why) => {
                    if start.elapsed() >= OPEN_LIMIT {
                        return Err(format!("no bulk stream to it could be opened: {why}"));
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

/// Writes queued messages to a socket until the socket is idle. `written` then has the numbers that the peer may not have.
///
/// # Errors
/// If the socket broke.
async fn feed(mut socket: PeerStream, link: &Link, written: &mut Vec<u64>) -> io::Result<()> {
    socket.expect_writes_of(WRITE_BYTES);
    socket.write_all(&link.numbers.theirs.to_le_bytes()).await?;
    let mut nothing = [0];
    loop {
        let next = tokio::select! {
            biased;
            next = link.outbound.wait() => next,
            // The peer never writes on it, so a read returns only if the socket broke with something on its way.
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
    // The socket continues: its slot was given up when it was idle.
    queue.sockets += 1;
    Err(io::ErrorKind::TimedOut.into())
}

async fn write(socket: &mut PeerStream, link: &Link, number: u64, message: &BulkMessage) -> io::Result<()> {
    let mut head = message.head.clone();
    frame::stamp(&mut head, number, link.tell_taken());
    let bytes = head.len() + message.tensors.iter().map(Tensor::byte_len).sum::<usize>();
    lock(&link.outbound.pace).begin(number, bytes, clock::now());
    let parts = std::iter::once(&head[..]).chain(message.tensors.iter().filter_map(Tensor::bytes));
    for part in parts {
        for chunk in part.chunks(WRITE_BYTES) {
            socket.write_all(chunk).await?;
            link.traffic.sent(chunk.len());
        }
    }
    socket.flush().await
}

/// A socket for bulk to the peer, dialled by this side or, on request, by the other.
async fn open(port: &Port, link: &Link) -> Result<PeerStream, String> {
    let mut tried = Vec::new();
    for address in dial_order(port, link) {
        match port.dial(&address, Some(link.id), Purpose::Send).await {
            Ok(admitted) => return Ok(admitted.stream),
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
        let tried = if tried.is_empty() { "it announces no address".to_owned() } else { tried.join("; ") };
        format!("{tried}; it was asked to dial instead and did not")
    })
}

/// The addresses to dial: within this machine first, then the one known to work, then those of the host that the peer is
/// connected from, then the rest.
fn dial_order(port: &Port, link: &Link) -> Vec<Multiaddr> {
    let connection = link.connection();
    let mut addresses: Vec<_> = resolved(&link.hello().addresses).into_iter().map(without_peer).collect();
    addresses.retain(|address| port.handles(address));
    addresses.sort_by_key(|address| !is_same_host(address, &connection.remote));
    if let Some(dialled) = &connection.dialled {
        addresses.retain(|address| address != dialled);
        addresses.insert(0, dialled.clone());
    }
    addresses.sort_by_key(|address| local_name(address).is_none());
    addresses
}

/// The peer cannot dial this side and asks it to dial a socket, on which the peer then sends.
pub fn answer_call(roster: &Arc<Roster>, link: &Arc<Link>) {
    if Arc::strong_count(&link.outbound.calls) > MAX_CALLS {
        return tracing::debug!(peer = %link.peer, "too many calls");
    }
    let (roster, link, call) = (roster.clone(), link.clone(), link.outbound.calls.clone());
    tokio::spawn(async move {
        let _until_the_socket_ends = call;
        for address in dial_order(roster.port(), &link) {
            match roster.port().dial(&address, Some(link.id), Purpose::Receive).await {
                Ok(admitted) => return receive(&roster, &link.peer, admitted.stream).await,
                Err(error) => tracing::debug!(peer = %link.peer, %address, %error, "a call was not answered"),
            }
        }
    });
}

/// Takes over a bulk stream that the other side dialled.
pub async fn accept(roster: Arc<Roster>, socket: Admitted) {
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
