//! The connections of clients: whether the one that a session came on is still there.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::Connected;

/// A connection, to those who ask whether it is open. It knows neither address nor bytes.
#[derive(Clone)]
pub(super) struct Connection(Weak<()>);

impl Connection {
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The stream of a connection; the connection is open as long as this lives.
pub(super) struct Wire {
    stream: TcpStream,
    alive: Arc<()>,
}

impl Connected for Wire {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        Connection(Arc::downgrade(&self.alive))
    }
}

/// The connections that come in.
pub(super) struct Incoming(pub TcpListener);

impl Stream for Incoming {
    type Item = io::Result<Wire>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Wire>>> {
        self.0.poll_accept(context).map(|accepted| {
            Some(accepted.and_then(|(stream, _)| {
                // A step is one small message each way.
                stream.set_nodelay(true)?;
                Ok(Wire { stream, alive: Arc::new(()) })
            }))
        })
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
