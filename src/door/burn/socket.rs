//! A connection that acknowledges the bytes it has read before it waits for more.
//!
//! burn's client sends many small frames with Nagle's algorithm on: after one of them the next waits until that is
//! acknowledged, and Linux delays acknowledgements by 40 ms if no answer is sent. Acknowledging after all bytes were read lets
//! the frames that the client has gathered meanwhile arrive as one segment: neither end waits, and neither wakes the other for
//! each frame.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub(super) struct Acknowledging(pub TcpStream);

impl AsyncRead for Acknowledging {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(cx, buf);
        #[cfg(target_os = "linux")]
        if read.is_pending() {
            // Without it the connection is slower, but still correct.
            let _slower = self.0.set_quickack(true);
        }
        read
    }
}

impl AsyncWrite for Acknowledging {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
