//! The receiving end of bulk: messages are read off a stream, into the memory that their tensors keep.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::AnyBitPattern;
use bytes::BufMut;
use meshtf_tensor::failure::Failure;
use meshtf_tensor::memory::Budget;
use meshtf_tensor::{DType, Element, Tensor, with_ring};
use tokio::io::AsyncReadExt;

use super::super::frame::{self, Kind, PREFIX_BYTES, Prefix, TensorHeader};
use super::super::incoming::Incoming;
use super::super::link::Link;
use super::super::roster::Roster;
use super::super::transport::PeerStream;
use crate::protocol::{Envelope, MAX_MESSAGE_BYTES, Message, Peer};

/// How long an idle socket is kept: longer than its sender keeps it.
const RECEIVER_IDLE_LIMIT: Duration = Duration::from_secs(45);
/// How long a bulk stream may take to name its link, and that link to exist.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// By how much a buffer grows while a header comes in.
const HEADER_STEP_BYTES: usize = 1 << 20;

/// Reads messages until the sender closes the socket.
pub(super) async fn receive(roster: &Arc<Roster>, peer: &Peer, mut socket: PeerStream) {
    socket.expect_bulk();
    let link = match tokio::time::timeout(HELLO_LIMIT, link_of(roster, peer, &mut socket)).await {
        Ok(Ok(link)) => link,
        Ok(Err(Unread::Wrong(why))) => return roster.link(peer).iter().for_each(|link| end_for(roster, link, &why)),
        Ok(Err(Unread::Broken(_))) | Err(_) => return,
    };
    let work = async {
        while let Some((prefix, envelope)) = read(&mut socket, &link, &roster.budget).await? {
            let bytes = prefix.body_bytes();
            tracing::debug!(target: "meshtf::transfers", bytes, peer = %link.peer, "a transfer arrived");
            roster.deliver_bulk(&link, prefix, envelope).map_err(|error| Unread::Wrong(error.to_string()))?;
            if link.owes_acknowledgement(bytes) {
                link.say(link.ping());
            }
        }
        Ok::<(), Unread>(())
    };
    tokio::select! {
        result = work => match result {
            Ok(()) => {}
            // The sender notices as well, and sends the missing messages again.
            Err(Unread::Broken(error)) => tracing::debug!(peer = %link.peer, %error, "a bulk stream from it broke"),
            Err(Unread::Wrong(why)) => end_for(roster, &link, &why),
        },
        () = link.over() => {}
    }
}

fn end_for(roster: &Roster, link: &Arc<Link>, why: &str) {
    roster.end(link, &format!("its bulk data cannot be accepted: {why}"));
}

/// The link of a bulk stream, which its sender names first. The link is up on this side only once the peer's Hello was read,
/// which may have been sent just before.
async fn link_of(roster: &Roster, peer: &Peer, socket: &mut PeerStream) -> Result<Arc<Link>, Unread> {
    let mut changes = roster.changes();
    let mut number = [0; 8];
    socket.read_exact(&mut number).await?;
    let number = u64::from_le_bytes(number);
    loop {
        if let Some(link) = roster.link(peer).filter(|link| link.numbers.own == number) {
            return Ok(link);
        }
        changes.changed().await.map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?;
    }
}

/// Why a bulk message was not read.
enum Unread {
    /// Its socket broke.
    Broken(io::Error),
    /// It breaks the protocol or a limit: it would fail the next time, too.
    Wrong(String),
}

impl From<io::Error> for Unread {
    /// Errors of the transport have a kind; errors found in the bytes are `Other`.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Other | io::ErrorKind::OutOfMemory => Unread::Wrong(error.to_string()),
            _ => Unread::Broken(error),
        }
    }
}

/// The next message; `None` if the socket ends between two.
async fn read(
    socket: &mut PeerStream,
    link: &Link,
    budget: &Arc<Budget>,
) -> Result<Option<(Prefix, Envelope)>, Unread> {
    let mut prefix = [0; PREFIX_BYTES];
    let Ok(first) = tokio::time::timeout(RECEIVER_IDLE_LIMIT, socket.read(&mut prefix[..1])).await else {
        return Ok(None);
    };
    match first {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        // A process that is killed between two messages does not close TLS in order. Its control stream shows what happened.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    socket.read_exact(&mut prefix[1..]).await?;
    link.traffic.received(PREFIX_BYTES);
    let prefix = Prefix::decode(&prefix, MAX_MESSAGE_BYTES).map_err(|failure| Unread::Wrong(failure.message))?;
    if prefix.kind != Kind::Message {
        return Err(Unread::Wrong("a bulk stream carries messages only".to_owned()));
    }
    link.acknowledged(prefix.taken, &[]).map_err(Unread::Wrong)?;
    // For the header and its decoded form. A small one needs no reservation.
    let reserved = match prefix.header_bytes {
        0..HEADER_STEP_BYTES => None,
        bytes => match budget.try_reserve(2 * bytes) {
            Ok(reserved) => Some(reserved),
            Err(failure) => return Ok(Some(refuse(socket, prefix, failure).await?)),
        },
    };
    // Grown as it arrives: a claimed length costs this side no more than it costs the peer.
    let mut header = Vec::new();
    while header.len() < prefix.header_bytes {
        let start = header.len();
        header.resize(prefix.header_bytes.min(start + HEADER_STEP_BYTES), 0);
        socket.read_exact(&mut header[start..]).await?;
        link.traffic.received(header.len() - start);
    }
    let header = frame::decode_header(&header, prefix.payload_bytes).map_err(|f| Unread::Wrong(f.message))?;
    drop(reserved);
    let mut reserved = match budget.try_reserve(prefix.payload_bytes) {
        Ok(reserved) => reserved,
        Err(failure) => {
            pass_over(socket, prefix.payload_bytes).await?;
            let message = Message::Refused { message: Box::new(header.message), failure };
            return Ok(Some((prefix, message.into())));
        }
    };
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for tensor in header.tensors {
        // Its memory is allocated as a whole before its first byte is read.
        reserved.taken(tensor.payload_bytes().map_err(io::Error::other)?);
        tensors.push(read_tensor(socket, link, tensor).await?);
    }
    Ok(Some((prefix, Envelope { message: header.message, tensors })))
}

/// Skips a message for whose header there is no memory. The message that is delivered in its place names the requests that wait
/// for an answer.
async fn refuse(socket: &mut PeerStream, prefix: Prefix, failure: Failure) -> io::Result<(Prefix, Envelope)> {
    let mut start = [0; frame::TELLING_BYTES];
    socket.read_exact(&mut start).await?;
    pass_over(socket, prefix.body_bytes() - start.len()).await?;
    let message = frame::stand_in(&start).ok_or_else(|| io::Error::other(failure.to_string()))?;
    Ok((prefix, Message::Refused { message: Box::new(message), failure }.into()))
}

/// Reads bytes and drops them, so that the messages after them are not lost.
async fn pass_over(socket: &mut PeerStream, bytes: usize) -> io::Result<()> {
    let passed = tokio::io::copy(&mut socket.take(bytes as u64), &mut tokio::io::sink()).await?;
    if passed < bytes as u64 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Reads a tensor into its final memory.
async fn read_tensor(socket: &mut PeerStream, link: &Link, header: TensorHeader) -> io::Result<Tensor> {
    let bytes = header.payload_bytes().map_err(io::Error::other)?;
    if let Some(strings) = header.strings {
        return Tensor::new(header.shape, frame::string_data(strings)).map_err(io::Error::other);
    }
    if header.dtype == DType::Bool {
        let flags = read_elements::<u8>(socket, link, bytes).await?;
        return Tensor::from_bytes(DType::Bool, header.shape, &flags).map_err(io::Error::other);
    }
    let count = bytes / header.dtype.size().unwrap_or(1);
    // Quantised numbers are received as the integers that they are stored as.
    let stored = header.dtype.stored_as();
    let data = with_ring!(stored, T => T::into_data(read_elements::<T>(socket, link, count).await?));
    let data = data.and_then(|data| data.retyped(header.dtype));
    let data = data.ok_or_else(|| io::Error::other(format!("a {} cannot be sent as bytes", header.dtype)))?;
    Tensor::new(header.shape, data).map_err(io::Error::other)
}

async fn read_elements<T: AnyBitPattern>(socket: &mut PeerStream, link: &Link, count: usize) -> io::Result<Vec<T>> {
    let mut incoming = Incoming::new(count).map_err(io::Error::other)?;
    while incoming.has_remaining_mut() {
        let read = socket.read_buf(&mut incoming).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        link.traffic.received(read);
    }
    incoming.finish().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
