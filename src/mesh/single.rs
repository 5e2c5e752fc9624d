//! A connection with one stream, as libp2p's multiplexer.
//!
//! A connection carries the control stream alone, so it needs no multiplexer: each write is one record of its transport and one
//! system call.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::transport::PeerStream;

/// The one stream is the connection itself: the side that opens it has it at once, and the other side has it with the first
/// byte that comes.
pub struct Single {
    /// Until the stream is opened.
    stream: Option<Whole>,
}

/// The one stream of a connection.
pub struct Whole {
    stream: PeerStream,
    /// The byte that showed that the other side has opened it.
    first: Option<u8>,
}

impl Single {
    pub fn new(stream: PeerStream) -> Self {
        Single { stream: Some(Whole { stream, first: None }) }
    }
}

impl StreamMuxer for Single {
    type Substream = Whole;
    type Error = io::Error;

    fn poll_inbound(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<Whole>> {
        let Some(mut stream) = self.stream.take() else { return Poll::Pending };
        let mut byte = [0];
        match futures::AsyncRead::poll_read(Pin::new(&mut stream), cx, &mut byte) {
            Poll::Ready(Ok(1)) => Poll::Ready(Ok(Whole { first: Some(byte[0]), ..stream })),
            Poll::Ready(Ok(_)) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.stream = Some(stream);
                Poll::Pending
            }
        }
    }

    fn poll_outbound(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<Whole>> {
        self.stream.take().map_or(Poll::Pending, |stream| Poll::Ready(Ok(stream)))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A stream that was opened is closed by its owner.
        self.stream.as_mut().map_or(Poll::Ready(Ok(())), |whole| Pin::new(&mut whole.stream).poll_shutdown(cx))
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<StreamMuxerEvent>> {
        Poll::Pending
    }
}

impl futures::AsyncRead for Whole {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        if !bytes.is_empty()
            && let Some(first) = self.first.take()
        {
            bytes[0] = first;
            return Poll::Ready(Ok(1));
        }
        let mut buffer = ReadBuf::new(bytes);
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl futures::AsyncWrite for Whole {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
