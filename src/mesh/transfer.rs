//! Bulk: messages over [`MAX_SMALL_BYTES`](super::frame::MAX_SMALL_BYTES), on sockets of their own.
//!
//! A bulk socket carries frames in one direction, with the authentication of every socket and no multiplexer. The sender
//! dials it; where it cannot, it asks the receiver on the control stream to dial instead. Tensors are written from where
//! they lie and read to where they will lie. A message that cannot be brought over ends the link: the sender was told that
//! it went out, so both sides must hear that it did not arrive.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::AnyBitPattern;
use bytes::BufMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::address;
use super::admission::{self, Gate, Purpose, Secured};
use super::error::MeshError;
use super::frame::{self, Kind, PREFIX_BYTES, Prefix, TensorHeader};
use super::incoming::Incoming;
use super::roster::{Link, Roster, lock};
use super::transport::{BulkSocket, dial_bulk};
use crate::protocol::{Envelope, MAX_MESSAGE_BYTES, Message};
use crate::tensor::{DType, Element, Tensor, with_number};

/// Most sockets that carry bulk to one peer at once.
pub const MAX_SOCKETS: usize = 4;
/// Most bulk messages, and bytes of them, that wait for a socket to one peer.
pub const MAX_PARCELS: usize = 1024;
pub const MAX_PARCEL_BYTES: usize = 8 << 30;
/// How long an idle socket is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// How long one address may take to answer, and the peer to dial when it is asked to.
const DIAL_LIMIT: Duration = Duration::from_millis(1500);
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long a bulk socket may be there before its peer has said Hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Bytes given to TLS at a time. More, and reading ahead of TLS, was measured to gain nothing.
const WRITE_BYTES: usize = 256 << 10;
/// By how much a buffer grows while a header comes in.
const HEADER_STEP_BYTES: usize = 1 << 20;

/// What goes to one peer in bulk.
#[derive(Default)]
pub struct Outbound {
    queue: Mutex<Queue>,
    /// Bulk messages so far: the sequence of the last.
    sent: AtomicU64,
    arrived: Notify,
    /// Sockets that the peer dialled because it was asked to.
    called: Mutex<VecDeque<Secured>>,
    answered: Notify,
}

#[derive(Default)]
struct Queue {
    parcels: VecDeque<Parcel>,
    bytes: usize,
    sockets: usize,
    idle: usize,
    /// The last bulk message of each flow, as far back as one can still be under way.
    flows: BTreeMap<Flow, u64>,
    closed: bool,
}

struct Parcel {
    head: Vec<u8>,
    tensors: Vec<Tensor>,
    bytes: usize,
}

/// Messages that must arrive in the order they were sent, though some go in bulk and some do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flow {
    Request(u64),
    Session(u64),
}

fn flow(message: &Message) -> Option<Flow> {
    Some(match message {
        Message::Request { id, .. }
        | Message::Reply { id, .. }
        | Message::Fetched { id, .. }
        | Message::Through { id, .. } => Flow::Request(id.0),
        Message::Register { session, .. } | Message::Release { session } => Flow::Session(session.0),
        Message::Start { pieces, .. } => Flow::Session(pieces.first()?.session.0),
        _ => return None,
    })
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
    let flow = flow(&envelope.message);
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
        return link.wire.push_soon(&link.peer, &frame);
    }

    let full = |what, limit| MeshError::QueueFull { peer: link.peer.clone(), what, limit };
    let bytes = prefix.body_bytes();
    let mut queue = lock(&outbound.queue);
    if queue.closed {
        return Err(MeshError::NotConnected { peer: link.peer.clone() });
    }
    if queue.parcels.len() >= MAX_PARCELS {
        return Err(full("bulk messages that wait", MAX_PARCELS));
    }
    if queue.bytes + bytes > MAX_PARCEL_BYTES {
        return Err(full("bulk bytes that wait", MAX_PARCEL_BYTES));
    }
    prefix.sequence = outbound.sent.load(Ordering::Acquire) + 1;
    if let Some(flow) = flow {
        prefix.after = queue.flows.insert(flow, prefix.sequence).unwrap_or(0);
        prefix.behind = link.wire.frames();
        if queue.flows.len() > 2 * MAX_PARCELS {
            let floor = prefix.sequence.saturating_sub((MAX_PARCELS + MAX_SOCKETS) as u64);
            queue.flows.retain(|_, last| *last >= floor);
        }
    }
    outbound.sent.store(prefix.sequence, Ordering::Release);
    frame[..PREFIX_BYTES].copy_from_slice(&prefix.encode());
    queue.bytes += bytes;
    queue.parcels.push_back(Parcel { head: frame, tensors: envelope.tensors, bytes });
    let another = queue.parcels.len() > queue.idle && queue.sockets < MAX_SOCKETS;
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
        queue.parcels.clear();
        queue.bytes = 0;
    }

    fn next(&self) -> Option<Parcel> {
        let mut queue = lock(&self.queue);
        let parcel = queue.parcels.pop_front()?;
        queue.bytes = queue.bytes.saturating_sub(parcel.bytes);
        Some(parcel)
    }

    /// The next parcel; `None` after [`IDLE_LIMIT`] without one, and then one socket less is counted.
    async fn wait(&self) -> Option<Parcel> {
        if let Some(parcel) = self.next() {
            return Some(parcel);
        }
        lock(&self.queue).idle += 1;
        let limit = tokio::time::sleep(IDLE_LIMIT);
        tokio::pin!(limit);
        loop {
            let notified = self.arrived.notified();
            // Looked at under the lock that a sender decides under, so that none counts on a socket that is going.
            {
                let mut queue = lock(&self.queue);
                if let Some(parcel) = queue.parcels.pop_front() {
                    queue.bytes = queue.bytes.saturating_sub(parcel.bytes);
                    queue.idle -= 1;
                    return Some(parcel);
                }
                if limit.is_elapsed() {
                    queue.idle -= 1;
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

/// One socket's life: opened, fed from the queue, closed when idle.
async fn carry(roster: Arc<Roster>, link: Arc<Link>) {
    let work = async {
        let mut socket =
            open(roster.gate(), &link).await.map_err(|why| format!("no bulk socket to it could be opened: {why}"))?;
        admission::write_in_steps_of(&mut socket, WRITE_BYTES);
        while let Some(parcel) = link.outbound.wait().await {
            write(&mut socket, &parcel).await.map_err(|error| format!("a bulk socket to it broke: {error}"))?;
        }
        let _ = socket.shutdown().await;
        Ok::<(), String>(())
    };
    tokio::select! {
        result = work => if let Err(why) = result {
            roster.end(&link, &why);
        },
        () = link.over() => {}
    }
}

async fn write(socket: &mut Secured, parcel: &Parcel) -> io::Result<()> {
    let parts = std::iter::once(&parcel.head[..]).chain(parcel.tensors.iter().filter_map(Tensor::bytes));
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
        match dial_bulk(gate, address, link.id, Purpose::Send, DIAL_LIMIT).await {
            Ok(socket) => return Ok(socket),
            Err(error) => tried.push(format!("{address}: {error}")),
        }
    }
    link.wire.push(&link.peer, &frame::empty_frame(Kind::Call)).map_err(|error| error.to_string())?;
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
    let remote = address::socket(&link.remote).map(|socket| socket.ip());
    let mut addresses: Vec<_> = link.hello().bulk_addresses.iter().filter_map(|a| address::socket(a)).collect();
    addresses.sort_by_key(|socket| Some(socket.ip()) != remote);
    if let Some(dialled) = link.dialled.as_deref().and_then(address::socket) {
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
            match dial_bulk(roster.gate(), address, link.id, Purpose::Receive, DIAL_LIMIT).await {
                Ok(socket) => return receive(&roster, &link, socket).await,
                Err(error) => tracing::debug!(peer = %link.peer, %address, %error, "a call was not answered"),
            }
        }
    });
}

/// Takes over a bulk socket that the other side dialled.
pub async fn accept(roster: Arc<Roster>, socket: BulkSocket) {
    // The peer is up here only once its Hello is read, which it may have sent just before.
    let peer = crate::protocol::Peer::new(socket.peer.to_string());
    let mut cluster = roster.changes();
    let up = async {
        loop {
            if let Some(link) = roster.link(&peer) {
                return link;
            }
            if cluster.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let Ok(link) = tokio::time::timeout(HELLO_LIMIT, up).await else { return };
    match socket.purpose {
        Purpose::Receive => {
            let mut called = lock(&link.outbound.called);
            if called.len() < MAX_SOCKETS {
                called.push_back(socket.stream);
                link.outbound.answered.notify_one();
            }
        }
        Purpose::Send | Purpose::Control => receive(&roster, &link, socket.stream).await,
    }
}

/// Reads messages until the sender closes the socket.
async fn receive(roster: &Arc<Roster>, link: &Arc<Link>, mut socket: Secured) {
    let work = async {
        while let Some((prefix, envelope)) = read(&mut socket).await? {
            roster.deliver_bulk(link, prefix, envelope).map_err(io::Error::other)?;
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        result = work => if let Err(error) = result {
            roster.end(link, &format!("a bulk socket from it broke: {error}"));
        },
        () = link.over() => {}
    }
}

/// The next message; `None` where the socket ends between two.
async fn read(socket: &mut Secured) -> io::Result<Option<(Prefix, Envelope)>> {
    let mut prefix = [0; PREFIX_BYTES];
    match socket.read(&mut prefix[..1]).await {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        // A process that is killed between two messages says no TLS goodbye; its control stream tells what became of it.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    socket.read_exact(&mut prefix[1..]).await?;
    let prefix = Prefix::decode(&prefix, MAX_MESSAGE_BYTES).map_err(io::Error::other)?;
    if prefix.kind != Kind::Message {
        return Err(io::Error::other("a bulk socket carries messages only"));
    }
    // Grown as it comes in: what a length claims costs the peer as much as this side.
    let mut header = Vec::new();
    while header.len() < prefix.header_bytes {
        let start = header.len();
        header.resize(prefix.header_bytes.min(start + HEADER_STEP_BYTES), 0);
        socket.read_exact(&mut header[start..]).await?;
    }
    let header = frame::decode_header(&header, prefix.payload_bytes).map_err(io::Error::other)?;
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for tensor in header.tensors {
        tensors.push(read_tensor(socket, tensor).await?);
    }
    Ok(Some((prefix, Envelope { message: header.message, tensors })))
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
