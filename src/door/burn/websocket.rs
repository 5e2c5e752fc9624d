//! The server's end of a WebSocket (RFC 6455): messages come in, frames go out.
//!
//! Not tokio-tungstenite's, which allocates a whole message as soon as a client announces its length. The caller of this reader
//! decides first whether there is memory for a message; a message without memory is read to its end and dropped, so that the
//! client, which waits for no answer until then, receives the failure.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::{self, Reservation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The buffer of a read in bytes: frames of half a kilobyte, which a client's system gathers into segments of up to 64 kB.
const READ_AT_ONCE: usize = 64 << 10;
/// A message of at most this many bytes is received without a reservation of memory.
const SMALL: usize = 64 << 10;
/// Maximum payload of a control frame in bytes.
const MAX_CONTROL: usize = 125;

const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// An incoming item.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A binary message, and a reservation of the same number of bytes for its decoded form.
    Message(Bytes, Reservation),
    /// There is no memory for a message. It was received to its end and dropped.
    Refused(Failure),
    /// To be answered with [`pong`].
    Ping(Bytes),
    /// The client ends the connection.
    Closed,
}

/// The header of a frame.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    is_last: bool,
    opcode: u8,
    length: usize,
    mask: [u8; 4],
    /// The size of the header itself.
    size: usize,
}

/// The header that these bytes begin with; `None` if more are needed.
///
/// # Errors
/// If no client sends such a header.
fn header(bytes: &[u8]) -> Result<Option<Header>, &'static str> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let (is_last, opcode) = (first & 0x80 != 0, first & 0x0f);
    if first & 0x70 != 0 {
        return Err("a frame with an extension that was not negotiated");
    }
    if second & 0x80 == 0 {
        return Err("a frame that is not masked");
    }
    if !matches!(opcode, CONTINUED | TEXT | BINARY | CLOSE | PING | PONG) {
        return Err("a frame with an unknown opcode");
    }
    let (length, long) = match second & 0x7f {
        126 => (rest.first_chunk().map(|&bytes| u64::from(u16::from_be_bytes(bytes))), 2),
        127 => (rest.first_chunk().map(|&bytes| u64::from_be_bytes(bytes)), 8),
        short => (Some(u64::from(short)), 0),
    };
    let Some((length, &mask)) = length.zip(rest.get(long..).and_then(|rest| rest.first_chunk())) else {
        return Ok(None);
    };
    let length = usize::try_from(length).map_err(|_| "a frame larger than memory")?;
    if opcode >= CLOSE && (length > MAX_CONTROL || !is_last) {
        return Err("a control frame that is too long");
    }
    Ok(Some(Header { is_last, opcode, length, mask, size: 2 + long + 4 }))
}

/// The receiving end.
pub(super) struct Reader<S> {
    stream: S,
    buffer: BytesMut,
}

/// A message of which not all frames have arrived.
#[derive(Default)]
struct Part {
    bytes: BytesMut,
    /// For its decoded form.
    reserved: Reservation,
    is_text: bool,
    refused: Option<Failure>,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    pub fn new(stream: S) -> Self {
        Reader { stream, buffer: BytesMut::new() }
    }

    /// The next item; a message of more than `most` bytes is an error. `reserve` is called for the memory of each frame of a
    /// large message.
    ///
    /// # Errors
    /// If the connection breaks, or the client does not keep to the protocol.
    pub async fn next<R>(&mut self, most: usize, reserve: impl Fn(usize) -> R) -> io::Result<Incoming>
    where
        R: Future<Output = Result<Reservation>>,
    {
        let mut message: Option<Part> = None;
        loop {
            let Header { is_last, opcode, length, mask, size } = self.header().await?;
            let _header = self.buffer.split_to(size);
            if opcode >= CLOSE {
                let mut payload = self.payload(length, &mut Reservation::default()).await?;
                unmask(&mut payload, mask);
                match opcode {
                    CLOSE => return Ok(Incoming::Closed),
                    // In the middle of a message it could not be answered, nor does a client wait for that.
                    PING if message.is_none() => return Ok(Incoming::Ping(payload.freeze())),
                    _ => continue,
                }
            }
            let mut part = match (message.take(), opcode) {
                (Some(part), CONTINUED) => part,
                (None, TEXT | BINARY) => Part { is_text: opcode == TEXT, ..Part::default() },
                _ => return Err(wrong("a message inside another, or a continuation without a message")),
            };
            if part.bytes.len().saturating_add(length) > most {
                return Err(wrong(&format!("a message that exceeds the limit of {most} bytes")));
            }
            if part.refused.is_none() && part.bytes.len() + length > SMALL {
                // For the frame and its decoded form.
                match reserve(2 * length).await {
                    Ok(reserved) => part.reserved.join(reserved),
                    Err(failure) => part.refused = Some(of_message(failure, part.bytes.len() + length)),
                }
            }
            if part.refused.is_some() {
                (part.bytes, part.reserved) = Default::default();
                self.skip(length).await?;
            } else {
                let mut payload = self.payload(length, &mut part.reserved).await?;
                unmask(&mut payload, mask);
                if part.bytes.is_empty() { part.bytes = payload } else { part.bytes.extend_from_slice(&payload) }
            }
            match part {
                part if !is_last => message = Some(part),
                Part { refused: Some(failure), .. } => return Ok(Incoming::Refused(failure)),
                // burn's client sends none; other clients get no answer.
                Part { is_text: true, .. } => {}
                Part { bytes, reserved, .. } => {
                    return Ok(Incoming::Message(bytes.freeze(), reserved));
                }
            }
        }
    }

    /// Whether a whole message that needs no reservation has arrived, so that [`Reader::next`] does not have to wait.
    pub fn has_message(&self) -> bool {
        let Ok(Some(header)) = header(&self.buffer) else { return false };
        let Header { is_last, opcode, length, mask: _, size } = header;
        is_last && opcode == BINARY && length <= SMALL && self.buffer.len() - size >= length
    }

    async fn header(&mut self) -> io::Result<Header> {
        loop {
            if let Some(header) = header(&self.buffer).map_err(wrong)? {
                return Ok(header);
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.buffer.reserve(READ_AT_ONCE);
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The next `length` bytes; reserves memory if they are many.
    async fn payload(&mut self, length: usize, reserved: &mut Reservation) -> io::Result<BytesMut> {
        if length <= SMALL {
            while self.buffer.len() < length {
                self.fill().await?;
            }
            reserved.taken(length);
            return Ok(self.buffer.split_to(length));
        }
        let mut payload = BytesMut::with_capacity(length);
        reserved.taken(length);
        payload.extend_from_slice(&self.buffer.split_to(self.buffer.len().min(length)));
        while payload.len() < length {
            let rest = length - payload.len();
            if self.stream.read_buf(&mut (&mut payload).limit(rest)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(payload)
    }

    /// Skips the next `length` bytes.
    async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        loop {
            let here = self.buffer.len().min(length);
            let _dropped = self.buffer.split_to(here);
            length -= here;
            if length == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let twice = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut();
    words.iter_mut().for_each(|word| *word = (u64::from_ne_bytes(*word) ^ twice).to_ne_bytes());
    rest.iter_mut().zip(mask.into_iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn of_message(failure: Failure, bytes: usize) -> Failure {
    let why = format!("a message of {} is refused: {}", memory::Bytes(bytes), failure.message);
    Failure::new(Code::ResourceExhausted, why)
}

/// Sends a binary message.
///
/// # Errors
/// If the connection breaks.
pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    write(stream, BINARY, message).await
}

/// Answers a ping.
///
/// # Errors
/// If the connection breaks.
pub(super) async fn pong(stream: &mut (impl AsyncWrite + Unpin), payload: &[u8]) -> io::Result<()> {
    write(stream, PONG, payload).await
}

/// Closes the sending direction of the connection.
///
/// # Errors
/// If the connection breaks.
pub(super) async fn close(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write(stream, CLOSE, &[]).await
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), opcode: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(10 + if payload.len() <= SMALL { payload.len() } else { 0 });
    frame.push(0x80 | opcode);
    match payload.len() {
        short @ ..126 => frame.push(short as u8),
        long => match u16::try_from(long) {
            Ok(long) => {
                frame.push(126);
                frame.extend(long.to_be_bytes());
            }
            Err(_) => {
                frame.push(127);
                frame.extend((long as u64).to_be_bytes());
            }
        },
    }
    // A small one as one segment.
    if payload.len() <= SMALL {
        frame.extend_from_slice(payload);
        stream.write_all(&frame).await?;
    } else {
        stream.write_all(&frame).await?;
        stream.write_all(payload).await?;
    }
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use meshtf_tensor::memory::Budget;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};
    use tokio_tungstenite::tungstenite::protocol::frame::{Frame, FrameHeader};

    use super::*;

    /// A client's frame, as tungstenite writes it.
    fn frame(is_final: bool, opcode: OpCode, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader { is_final, opcode, mask: Some([7, 90, 200, 1]), ..FrameHeader::default() };
        let mut bytes = Vec::new();
        Frame::from_payload(header, payload.to_vec().into()).format(&mut bytes).expect("a vector takes it");
        bytes
    }

    /// Bytes each of which differs from the one four before it.
    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|i| i as u8).collect()
    }

    /// The items in a client's bytes, up to their end: messages with their reservations, pings, refusals.
    async fn read(bytes: impl AsyncRead + Unpin, most: usize, limit: usize) -> Result<Vec<String>, String> {
        let mut reader = Reader::new(bytes);
        let mut all = Vec::new();
        let budget = Budget::of(limit);
        loop {
            let reserve = |bytes| std::future::ready(budget.try_reserve(bytes));
            let is_there = reader.has_message();
            let next = reader.next(most, reserve);
            tokio::pin!(next);
            let next = match futures::poll!(next.as_mut()) {
                std::task::Poll::Ready(next) => next,
                std::task::Poll::Pending => {
                    assert!(!is_there, "a message that is there is waited for");
                    next.await
                }
            };
            all.push(match next {
                Ok(Incoming::Message(bytes, reserved)) => {
                    assert_eq!(bytes, numbered(bytes.len()));
                    format!("{}, {reserved:?}", bytes.len())
                }
                Ok(Incoming::Refused(failure)) => failure.message,
                Ok(Incoming::Ping(bytes)) => format!("ping {bytes:?}"),
                Ok(Incoming::Closed) => "closed".to_owned(),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(all),
                Err(error) => return Err(error.to_string()),
            });
        }
    }

    const BINARY: OpCode = OpCode::Data(Data::Binary);
    const MORE: OpCode = OpCode::Data(Data::Continue);
    const PING: OpCode = OpCode::Control(Control::Ping);

    #[tokio::test]
    async fn messages_come_whole_however_they_arrive() {
        let lengths = [0, 1, 125, 126, 0xffff, 0x10000, SMALL + 1, 1_000_000];
        let ends: Vec<Vec<u8>> = lengths.iter().map(|&length| numbered(length)).collect();
        let mut bytes: Vec<u8> = ends.iter().flat_map(|payload| frame(true, BINARY, payload)).collect();
        let whole = numbered(150_009);
        for part in [
            frame(false, BINARY, &whole[..70_000]),
            frame(true, PING, b"x"),
            frame(false, MORE, &whole[70_000..150_000]),
            frame(true, MORE, &whole[150_000..]),
            frame(true, OpCode::Data(Data::Text), b"text"),
            frame(true, PING, b"here"),
            frame(true, OpCode::Control(Control::Close), &[]),
        ] {
            bytes.extend(part);
        }
        let mut wanted: Vec<String> = lengths
            .iter()
            .map(|&length| {
                let reserved = if length > SMALL { length } else { 0 };
                format!("{length}, Reservation {{ bytes: {reserved} }}")
            })
            .collect();
        // Of the one in parts, each frame is reserved once the message is large.
        wanted.push("150009, Reservation { bytes: 150009 }".to_owned());
        wanted.extend(["ping b\"here\"".to_owned(), "closed".to_owned()]);
        assert_eq!(read(&bytes[..], 1 << 20, 1 << 40).await.as_ref(), Ok(&wanted));
        // In pieces of any size.
        for size in [1usize, 7, 1000] {
            let (client, server) = tokio::io::duplex(size);
            let (bytes, wanted) = (bytes.clone(), wanted.clone());
            let mut client = client;
            let sent = tokio::spawn(async move { client.write_all(&bytes).await });
            assert_eq!(read(server, 1 << 20, 1 << 40).await, Ok(wanted), "in pieces of {size}");
            sent.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_message_without_memory_is_passed_over() {
        let large = |length: usize| frame(true, BINARY, &numbered(length));
        let parts = [frame(false, BINARY, &[1; 70_000]), frame(true, MORE, &vec![2; 900_000])].concat();
        let bytes = [large(60_000), large(1_000_000), large(60_000), parts, large(70_000)].concat();
        let limit = memory::in_use() + 400_000;
        let got = read(&bytes[..], 1 << 20, limit).await.unwrap();
        assert!(
            got[1].starts_with("a message of 1.00 MB is refused: this takes 2.00 MB, but the process has"),
            "{got:?}"
        );
        assert!(got[3].starts_with("a message of 970 kB is refused"), "{got:?}");
        assert_eq!(
            got.iter().map(|one| one.starts_with("60000") || one.starts_with("70000")).collect::<Vec<_>>(),
            [true, false, true, false, true]
        );
    }

    #[tokio::test]
    async fn what_no_client_sends_is_refused() {
        let unmasked = vec![0x82, 1, 0];
        let long = frame(true, BINARY, &[0; 1001]);
        let together = [frame(false, BINARY, &[0; 600]), frame(true, MORE, &[0; 600])].concat();
        let nested = [frame(false, BINARY, &[0]), frame(true, BINARY, &[0])].concat();
        for (bytes, why) in [
            (unmasked, "not masked"),
            (long, "the limit of 1000 bytes"),
            (together, "the limit of 1000 bytes"),
            (nested, "inside another"),
            (frame(true, MORE, &[0]), "a continuation without a message"),
            (vec![0xc2, 0x81, 0, 0, 0, 0, 0], "extension"),
            (vec![0x83, 0x81, 0, 0, 0, 0, 0], "unknown opcode"),
            (frame(false, PING, b""), "control"),
            (frame(true, PING, &[0; 126]), "control"),
            (vec![0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0], "the limit of 1000 bytes"),
        ] {
            let error = read(&bytes[..], 1000, usize::MAX).await.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_sent_a_client_reads() {
        let (mut server, client) = tokio::io::duplex(100);
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let sent = tokio::spawn(async move {
            for length in [0usize, 125, 126, 0xffff, 0x10000, 200_000] {
                send(&mut server, &vec![length as u8; length]).await.unwrap();
            }
            pong(&mut server, b"here").await.unwrap();
            close(&mut server).await.unwrap();
        });
        for length in [0usize, 125, 126, 0xffff, 0x10000, 200_000] {
            assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(vec![length as u8; length]));
        }
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong(b"here".to_vec().into()));
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Close(None));
        sent.await.unwrap();
    }
}
