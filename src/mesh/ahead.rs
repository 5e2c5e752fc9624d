//! A TCP socket that reads ahead, under TLS.
//!
//! rustls asks for 4 KiB at a time. For bulk that is sixteen thousand system calls in 64 MiB; read ahead, it is some
//! hundreds, for the price of a copy within the cache.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A socket; reads straight through until [`Ahead::read_ahead`] gives it a buffer.
pub struct Ahead {
    socket: TcpStream,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Ahead {
    pub fn new(socket: TcpStream) -> Self {
        Ahead { socket, buffer: Box::default(), start: 0, end: 0 }
    }

    /// From now on reads up to `bytes` at once.
    pub fn read_ahead(&mut self, bytes: usize) {
        if self.start == self.end {
            self.buffer = vec![0; bytes].into();
            (self.start, self.end) = (0, 0);
        }
    }
}

impl AsyncRead for Ahead {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.start == this.end {
            if out.remaining() >= this.buffer.len() {
                return Pin::new(&mut this.socket).poll_read(cx, out);
            }
            let mut ahead = ReadBuf::new(&mut this.buffer);
            ready!(Pin::new(&mut this.socket).poll_read(cx, &mut ahead))?;
            (this.start, this.end) = (0, ahead.filled().len());
        }
        let n = out.remaining().min(this.end - this.start);
        out.put_slice(&this.buffer[this.start..this.start + n]);
        this.start += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Ahead {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
