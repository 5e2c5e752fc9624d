//! The frames to be written to one peer, and the stream that carries them.
//!
//! Frames go out on the thread that sends them, if the stream is free and takes them: so the values of a device's thread leave
//! without waking another thread. The rest waits in the queue, and the connection's own task is woken to write it. Frames leave
//! in the order they were pushed, whichever thread writes them.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use futures::task::AtomicWaker;
use futures::{AsyncRead, AsyncWrite};
use libp2p::Stream;
use meshtf_tensor::lock::lock;
use tokio::time::Instant;

use super::frame::MAX_CONTROL_FRAME_BYTES;
use super::sent::{MAX_UNACKNOWLEDGED_BYTES, RESERVED_BYTES};

/// Most bytes that wait to be written on one connection: all that a link keeps, and the frames that are sent once only.
pub const MAX_QUEUED_BYTES: usize = MAX_UNACKNOWLEDGED_BYTES + RESERVED_BYTES + (8 << 20);

/// The outgoing side of one connection with a peer. A thread that holds `line` may lock `queue` for a moment, never the other
/// way round.
pub struct Wire<S = Stream> {
    queue: Mutex<Queue>,
    line: Mutex<Option<Line<S>>>,
    /// Wakes the connection's task.
    waker: AtomicWaker,
}

/// Why a connection takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    #[error("the connection is closing")]
    Closed,
    #[error("{MAX_QUEUED_BYTES} bytes wait to be written on it already")]
    Full,
}

/// Frames whose writing has not begun.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// A thread is about to write them.
    promised: bool,
    closed: bool,
}

/// The stream, and the frames that are being written to it.
struct Line<S> {
    stream: S,
    output: Vec<u8>,
    written: usize,
    unflushed: bool,
    /// This side of the stream is closed.
    finished: bool,
    /// It takes nothing more for now, or is broken. The connection's task, which is woken when that changes, has to continue.
    stuck: bool,
    /// Why it broke, until the connection's task has received the error.
    error: Option<io::Error>,
    /// When something was last written.
    sent: Instant,
}

impl<S> Default for Wire<S> {
    fn default() -> Self {
        Wire { queue: Mutex::default(), line: Mutex::new(None), waker: AtomicWaker::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Sends a frame. Frames are written in the order they were pushed.
    ///
    /// # Errors
    /// [`NotTaken`] if more than [`MAX_QUEUED_BYTES`] wait, and after a close.
    pub fn push(&self, frame: &[u8]) -> Result<(), NotTaken> {
        self.push_soon(frame)?;
        pause();
        self.flush();
        Ok(())
    }

    /// As [`Wire::push`], but it waits for the next [`Wire::flush`].
    ///
    /// # Errors
    /// As [`Wire::push`].
    pub fn push_soon(&self, frame: &[u8]) -> Result<(), NotTaken> {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return Err(NotTaken::Closed);
        }
        if queue.bytes.len() + frame.len() > MAX_QUEUED_BYTES {
            return Err(NotTaken::Full);
        }
        queue.bytes.extend_from_slice(frame);
        Ok(())
    }

    /// Sends the queued frames.
    pub fn flush(&self) {
        let mut queue = lock(&self.queue);
        if queue.bytes.is_empty() || std::mem::replace(&mut queue.promised, true) {
            return;
        }
        drop(queue);
        pause();
        if !self.write_now() {
            pause();
            self.waker.wake();
        }
    }

    /// Takes no more; the queued frames are still written, then the connection closes.
    pub fn close(&self) {
        lock(&self.queue).closed = true;
        pause();
        self.waker.wake();
    }

    pub fn is_closed(&self) -> bool {
        lock(&self.queue).closed
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// The waker with which the connection's task is woken from now on.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Directs frames to this stream.
    pub fn connect(&self, stream: S) {
        *lock(&self.line) = Some(Line {
            stream,
            output: Vec::new(),
            written: 0,
            unflushed: false,
            finished: false,
            stuck: false,
            error: None,
            sent: Instant::now(),
        });
    }

    /// Drops the stream, which ends it.
    pub fn hang_up(&self) {
        *lock(&self.line) = None;
    }

    /// When something was last written.
    pub fn sent(&self) -> Option<Instant> {
        lock(&self.line).as_ref().map(|line| line.sent)
    }

    /// Reads the peer's bytes.
    ///
    /// # Errors
    /// If the stream broke.
    pub fn poll_read(&self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut *lock(&self.line) {
            Some(line) => Pin::new(&mut line.stream).poll_read(cx, bytes),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Writes the queued frames, and closes this side of the stream after the last of them. Ready if it broke.
    pub fn poll_write(&self, cx: &mut Context<'_>) -> Poll<io::Result<Infallible>> {
        let mut line = self.line_of_task();
        let Some(line) = &mut *line else { return Poll::Pending };
        if let Some(error) = line.error.take() {
            return Poll::Ready(Err(error));
        }
        let written = line.write_all(&self.queue, cx);
        line.stuck = written.is_pending();
        let closed = ready!(written)?;
        if closed && !line.finished {
            ready!(Pin::new(&mut line.stream).poll_close(cx))?;
            line.finished = true;
        }
        Poll::Pending
    }

    fn line_of_task(&self) -> MutexGuard<'_, Option<Line<S>>> {
        #[cfg(test)]
        tests::until(|| !matches!(self.line.try_lock(), Err(TryLockError::WouldBlock)));
        lock(&self.line)
    }

    /// Writes the queued frames on this thread. Returns whether all of them went, or the connection's task knows that it has to
    /// continue.
    fn write_now(&self) -> bool {
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            // The thread that holds it may have read the queue already.
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let Some(line) = &mut *line else { return false };
        if line.stuck {
            return true;
        }
        // The noop waker is enough: when this cannot write all, the connection's task is woken and polls itself. A frame that
        // is pushed meanwhile is not waited for: its thread finds the line taken, and wakes that task.
        line.take(&self.queue);
        pause();
        match line.write(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => return true,
            Poll::Ready(Err(error)) => line.error = Some(error),
            Poll::Pending => {}
        }
        pause();
        line.stuck = true;
        false
    }
}

impl<S: AsyncWrite + Unpin> Line<S> {
    /// Takes the contents of the queue, once everything taken before is written. Returns whether the queue was empty, and
    /// whether it is closed.
    fn take(&mut self, queue: &Mutex<Queue>) -> Option<Empty> {
        if self.written < self.output.len() {
            return None;
        }
        self.output.clear();
        self.written = 0;
        let mut queue = lock(queue);
        if queue.bytes.is_empty() {
            return Some(Empty { closed: queue.closed });
        }
        queue.promised = false;
        std::mem::swap(&mut queue.bytes, &mut self.output);
        // A buffer that a burst made large is not kept.
        if queue.bytes.capacity() > MAX_CONTROL_FRAME_BYTES {
            queue.bytes = Vec::new();
        }
        None
    }

    /// Writes and flushes the taken frames; pending if the stream takes no more for now.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.output.len() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.output[self.written..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            self.unflushed = true;
            self.sent = Instant::now();
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes all that waits. Returns whether the queue is closed.
    fn write_all(&mut self, queue: &Mutex<Queue>, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let empty = self.take(queue);
            pause();
            ready!(self.write(cx))?;
            if let Some(Empty { closed }) = empty {
                return Poll::Ready(Ok(closed));
            }
        }
    }
}

/// A switch point: in the model test, another thread may run at it.
fn pause() {
    #[cfg(test)]
    tests::pause();
}

/// An empty queue, which may be closed.
struct Empty {
    closed: bool,
}

#[cfg(test)]
mod tests;
