//! A stream of this machine: a Unix socket, through which bytes go as they are until one end expects bulk.
//!
//! Then the sender offers a [ring](super::ring) of shared memory with the first byte: the bytes go through the ring, and the
//! socket carries their counts. Both ends count by themselves, and the other end's counts are checked: only bytes are shared.
//! Without a ring the bytes go through the socket.
//!
//! The socket carries numbers of four bytes, little-endian: from the writer, the number of bytes appended to the ring; from the
//! reader, the number of bytes whose space is free again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use meshtf_tensor::memory::Budget;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::coop::poll_proceed;

use super::ring::{self, RING_BYTES, wrong};
use crate::mesh::transport::ByteStream;

/// The first byte of bulk: it goes through the socket, or through the ring that comes with the byte.
const PLAIN: u8 = 0;
const RING: u8 = 1;
/// The reader reports a part of the ring as free again once it has this many bytes.
const FREED_STEP: usize = RING_BYTES / 8;

/// The stream.
pub struct LocalStream {
    socket: UnixStream,
    way: Way,
    /// The memory budget for a ring.
    budget: Arc<Budget>,
}

/// The path of the bytes.
enum Way {
    Socket,
    /// Bulk will be written: the first write offers a ring, if there is one.
    Offers(Option<(ring::Written, OwnedFd)>),
    /// Bulk will be read, the first byte of which states its path.
    Awaits,
    Writes(Writer),
    Reads(Reader),
}

impl LocalStream {
    pub fn new(socket: UnixStream, budget: Arc<Budget>) -> Self {
        LocalStream { socket, way: Way::Socket, budget }
    }

    /// Announces the path of the bytes.
    fn poll_offer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Way::Offers(offered) = &mut self.way {
            let said = self.socket.try_io(Interest::WRITABLE, || match offered {
                Some((_, descriptor)) => ring::send_with(self.socket.as_fd(), RING, descriptor.as_fd()),
                None => socket2::SockRef::from(&self.socket).send(&[PLAIN]).map(|_| ()),
            });
            match said {
                Ok(()) => {
                    self.way = offered.take().map_or(Way::Socket, |(ring, _)| Way::Writes(Writer::new(ring)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(self.socket.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives the path of the bytes. Returns whether any will come.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let heard = self.socket.try_io(Interest::READABLE, || ring::take_with(self.socket.as_fd()));
            match heard {
                Ok(None) => return Poll::Ready(Ok(false)),
                Ok(Some((PLAIN, None))) => self.way = Way::Socket,
                Ok(Some((RING, Some(descriptor)))) => self.way = Way::Reads(Reader::new(ring::Read::new(descriptor)?)),
                Ok(Some(_)) => return Poll::Ready(Err(wrong("it does not state how it sends bulk data"))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
                    continue;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
            return Poll::Ready(Ok(true));
        }
    }
}

impl ByteStream for LocalStream {
    fn expect_writes_of(&mut self, _: usize) {
        self.way = Way::Offers(ring::Written::new(&self.budget));
    }

    fn expect_bulk(&mut self) {
        self.way = Way::Awaits;
    }
}

impl AsyncRead for LocalStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if matches!(self.way, Way::Awaits) && !ready!(self.poll_answer(cx))? {
            return Poll::Ready(Ok(()));
        }
        let LocalStream { socket, way, .. } = &mut *self;
        match way {
            Way::Reads(reader) => {
                // Bytes of a ring cost no system call: without this, a long tensor would leave other tasks no turn.
                let turn = ready!(poll_proceed(cx));
                ready!(reader.poll(socket, cx, into))?;
                turn.made_progress();
                Poll::Ready(Ok(()))
            }
            // A writer receives nothing but counts; it only has to notice the end.
            Way::Writes(writer) => loop {
                if ready!(writer.poll_freed(socket, cx))?.is_none() {
                    return Poll::Ready(Ok(()));
                }
            },
            Way::Socket | Way::Offers(_) | Way::Awaits => Pin::new(socket).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for LocalStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_offer(cx))?;
        let LocalStream { socket, way, .. } = &mut *self;
        match way {
            Way::Writes(writer) => {
                let turn = ready!(poll_proceed(cx));
                let count = ready!(writer.poll(socket, cx, bytes))?;
                turn.made_progress();
                Poll::Ready(Ok(count))
            }
            _ => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let LocalStream { socket, way, .. } = &mut *self;
        match way {
            Way::Writes(writer) => writer.told.poll(socket, cx),
            _ => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// The end that writes into a ring.
struct Writer {
    ring: ring::Written,
    at: usize,
    /// Bytes of the ring that contain nothing that is still to be read.
    free: usize,
    told: Told,
    heard: Heard,
}

impl Writer {
    fn new(ring: ring::Written) -> Self {
        Writer { ring, at: 0, free: RING_BYTES, told: Told::default(), heard: Heard::default() }
    }

    fn poll(&mut self, socket: &UnixStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.told.poll(socket, cx))?;
        while self.free == 0 && !bytes.is_empty() {
            if ready!(self.poll_freed(socket, cx))?.is_none() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        let count = bytes.len().min(self.free).min(RING_BYTES - self.at);
        self.ring.put(self.at, &bytes[..count]);
        self.at = (self.at + count) % RING_BYTES;
        self.free -= count;
        self.told.owed += count;
        // Bytes that the socket does not take now go before the next bytes, or with a flush.
        if let Poll::Ready(told) = self.told.poll(socket, cx) {
            told?;
        }
        Poll::Ready(Ok(count))
    }

    /// Receives counts of space that is free again; `None` at the end of the stream.
    fn poll_freed(&mut self, socket: &UnixStream, cx: &mut Context<'_>) -> Poll<io::Result<Option<()>>> {
        let Some(freed) = ready!(self.heard.poll(socket, cx))? else { return Poll::Ready(Ok(None)) };
        if freed > RING_BYTES - self.free {
            return Poll::Ready(Err(wrong("it claims to have read more than was written")));
        }
        self.free += freed;
        Poll::Ready(Ok(Some(())))
    }
}

/// The end that reads from a ring.
struct Reader {
    ring: ring::Read,
    at: usize,
    /// Bytes from that position on that were written and not read.
    available: usize,
    /// Bytes before it that were read, and of which the writer was not notified.
    read: usize,
    told: Told,
    heard: Heard,
}

impl Reader {
    fn new(ring: ring::Read) -> Self {
        Reader { ring, at: 0, available: 0, read: 0, told: Told::default(), heard: Heard::default() }
    }

    fn poll(&mut self, socket: &UnixStream, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.available == 0 {
            // The writer may wait for it. A read shows whether the writer still exists.
            let _told = self.told.poll(socket, cx);
            let Some(written) = ready!(self.heard.poll(socket, cx))? else { return Poll::Ready(Ok(())) };
            if written > RING_BYTES.saturating_sub(self.read + self.told.untold()) {
                return Poll::Ready(Err(wrong("it claims to have written more than fits")));
            }
            self.available += written;
        }
        let count = self.ring.take(self.at, self.available.min(RING_BYTES - self.at), into);
        self.at = (self.at + count) % RING_BYTES;
        self.available -= count;
        self.read += count;
        if self.read >= FREED_STEP {
            self.told.owed += std::mem::take(&mut self.read);
            let _told = self.told.poll(socket, cx);
        }
        Poll::Ready(Ok(()))
    }
}

/// Counts to send.
#[derive(Default)]
struct Told {
    /// The sum of the counts that are not being sent.
    owed: usize,
    /// The count that is being sent, of which this many bytes are still to be written.
    number: [u8; 4],
    left: usize,
}

impl Told {
    /// The sum that the other end has not been sent in full.
    fn untold(&self) -> usize {
        let under_way = if self.left > 0 { u32::from_le_bytes(self.number) as usize } else { 0 };
        self.owed + under_way
    }

    /// Writes the counts that are owed.
    fn poll(&mut self, socket: &UnixStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.left == 0 {
                if self.owed == 0 {
                    return Poll::Ready(Ok(()));
                }
                // At most the size of a ring.
                self.number = (std::mem::take(&mut self.owed) as u32).to_le_bytes();
                self.left = self.number.len();
            }
            match socket.try_write(&self.number[self.number.len() - self.left..]) {
                Ok(written) => self.left -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Counts that arrive.
#[derive(Default)]
struct Heard {
    /// The first bytes of one.
    number: [u8; 4],
    filled: usize,
}

impl Heard {
    /// The sum of the counts that have arrived, once one has; `None` at the end of the stream.
    fn poll(&mut self, socket: &UnixStream, cx: &mut Context<'_>) -> Poll<io::Result<Option<usize>>> {
        let mut bytes = [0; 64];
        loop {
            match socket.try_read(&mut bytes) {
                Ok(0) => return Poll::Ready(Ok(None)),
                Ok(count) => {
                    let mut sum = 0usize;
                    for byte in &bytes[..count] {
                        match self.take(*byte) {
                            Some(0) => return Poll::Ready(Err(wrong("it claims to have moved 0 bytes"))),
                            Some(number) => sum = sum.saturating_add(number),
                            None => {}
                        }
                    }
                    if sum > 0 {
                        return Poll::Ready(Ok(Some(sum)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_read_ready(cx))?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Takes one byte. Returns the number that it completes.
    fn take(&mut self, byte: u8) -> Option<usize> {
        self.number[self.filled] = byte;
        self.filled = (self.filled + 1) % self.number.len();
        (self.filled == 0).then(|| u32::from_le_bytes(self.number) as usize)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Two ends, the first of which will write bulk to the second; with shared memory or without.
    fn pair(shared: bool) -> (LocalStream, LocalStream) {
        let (one, other) = UnixStream::pair().unwrap();
        let budget = if shared { Arc::default() } else { Budget::of(RING_BYTES / 2) };
        let (mut writer, mut reader) = (LocalStream::new(one, budget), LocalStream::new(other, Arc::default()));
        writer.expect_writes_of(1);
        reader.expect_bulk();
        (writer, reader)
    }

    /// Bytes whose values identify their positions.
    fn numbered(count: usize) -> Vec<u8> {
        (0..count).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
    }

    #[tokio::test]
    async fn bytes_come_as_they_were_written_through_a_ring_and_without() {
        for shared in [true, false] {
            // Several times around the ring, in writes and reads whose sizes do not divide it.
            let bytes = numbered(5 * RING_BYTES + 12345);
            let (mut writer, mut reader) = pair(shared);
            let write = async {
                for chunk in bytes.chunks(300_007) {
                    writer.write_all(chunk).await.unwrap();
                }
                assert_eq!(matches!(writer.way, Way::Writes(_)), shared);
                writer.shutdown().await.unwrap();
            };
            let read = async {
                let mut came = Vec::new();
                loop {
                    let start = came.len();
                    came.resize(start + 70_001, 0);
                    let count = reader.read(&mut came[start..]).await.unwrap();
                    came.truncate(start + count);
                    if count == 0 {
                        return came;
                    }
                }
            };
            let ((), came) = tokio::join!(write, read);
            assert!(came == bytes, "shared: {shared}");
        }
    }

    #[tokio::test]
    async fn a_writer_waits_for_a_reader_and_each_notices_that_the_other_is_gone() {
        let (mut writer, mut reader) = pair(true);
        let bytes = numbered(RING_BYTES);
        writer.write_all(&bytes).await.unwrap();
        // The ring is full, and the reader does not read.
        let mut more = Box::pin(writer.write_all(b"more"));
        assert!(futures::poll!(&mut more).is_pending());
        let mut came = vec![0; RING_BYTES];
        reader.read_exact(&mut came).await.unwrap();
        more.await.unwrap();
        assert!(came == bytes);
        // Bytes that were written before the end are still read.
        drop(writer);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"more");

        let (mut writer, reader) = pair(true);
        writer.write_all(b"first").await.unwrap();
        let mut nothing = [0];
        {
            let mut end = Box::pin(writer.read(&mut nothing));
            assert!(futures::poll!(&mut end).is_pending());
            drop(reader);
            // The stream ends, or is reset, since some bytes were not read.
            assert!(end.await.map_or(true, |count| count == 0));
        }
        assert!(writer.write_all(&bytes).await.is_err());
    }

    #[tokio::test]
    async fn what_a_peer_says_of_the_ring_is_checked() {
        let (rest, more) = (RING_BYTES as u32 - 1, RING_BYTES as u32);
        for (says, numbers) in [
            ("nothing", &[][..]),
            ("what fits", &[rest]),
            ("too much", &[more]),
            ("too much", &[rest, 1]),
            ("wrong", &[0]),
        ] {
            let (mut writer, mut reader) = pair(true);
            writer.write_all(b"x").await.unwrap();
            assert_eq!(reader.read_u8().await.unwrap(), b'x');
            for number in numbers {
                writer.socket.write_all(&number.to_le_bytes()).await.unwrap();
            }
            drop(writer);
            let mut rest = Vec::new();
            let read = reader.read_to_end(&mut rest).await;
            let kind = read.err().map(|error| error.kind());
            assert_eq!(kind, ["too much", "wrong"].contains(&says).then_some(io::ErrorKind::Other), "{numbers:?}");
        }
        // A reader that frees bytes that were never written.
        for numbers in [&[3u32][..], &[2, 1], &[0]] {
            let (mut writer, mut reader) = pair(true);
            writer.write_all(b"xy").await.unwrap();
            for number in numbers {
                reader.socket.write_all(&number.to_le_bytes()).await.unwrap();
            }
            assert_eq!(writer.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::Other, "{numbers:?}");
        }
    }

    /// How often a task yields to other tasks until it is done.
    async fn turns(work: impl Future<Output = ()>) -> usize {
        let (mut work, mut turns) = (std::pin::pin!(work), 0);
        while futures::poll!(&mut work).is_pending() {
            turns += 1;
            tokio::task::yield_now().await;
        }
        turns
    }

    #[tokio::test]
    async fn other_tasks_get_their_turn_while_there_is_always_more_to_move() {
        // More parts than a task may take at once, and few enough that the socket holds all of their counts.
        const PARTS: usize = 150;
        let (mut writer, mut reader) = pair(true);
        let bytes = numbered(PARTS * 100);
        let write = async {
            for part in bytes.chunks(100) {
                writer.write_all(part).await.unwrap();
            }
        };
        assert_eq!(turns(write).await, 1);
        let mut came = vec![0; bytes.len()];
        let read = async {
            for part in came.chunks_mut(10) {
                reader.read_exact(part).await.unwrap();
            }
        };
        assert!(turns(read).await >= 10);
        assert!(came == bytes);
    }

    #[tokio::test]
    async fn a_peer_that_passes_no_ring_or_a_wrong_one_is_refused() {
        let passed: [(u8, Option<OwnedFd>); 4] = [
            (RING, None),
            (7, None),
            (RING, Some(UnixStream::pair().unwrap().0.into_std().unwrap().into())),
            (PLAIN, Some(ring::Written::new(&Arc::default()).unwrap().1)),
        ];
        for (byte, descriptor) in passed {
            let (one, other) = UnixStream::pair().unwrap();
            let mut reader = LocalStream::new(other, Arc::default());
            reader.expect_bulk();
            match descriptor {
                Some(descriptor) => ring::send_with(one.as_fd(), byte, descriptor.as_fd()).unwrap(),
                None => assert_eq!(one.try_write(&[byte]).unwrap(), 1),
            }
            assert_eq!(reader.read_u8().await.unwrap_err().kind(), io::ErrorKind::Other);
        }
    }
}
