//! The sockets of clients: how they are accepted, and how long they may take to send their greeting.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::super::listener::Listener;
use super::connection::{Connection, ConnectionPlace, Connections};

/// How long a client may take to begin HTTP/2.
const MAX_GREETING: Duration = Duration::from_secs(10);
/// The beginning: the preface and an empty SETTINGS frame.
const GREETING: usize = 24 + 9;
/// How long sent bytes may stay unacknowledged before the connection is closed.
const MAX_UNANSWERED: Duration = Duration::from_secs(30);
/// How long accepting pauses after an error, such as a lack of descriptors.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The incoming connections.
pub(super) struct Incoming {
    listener: Listener,
    connections: Connections,
    /// The end of a pause in accepting.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub fn new(listener: Listener, connections: Connections) -> Incoming {
        Incoming { listener, connections, pause: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Wire>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Wire>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                // A client without a free slot is disconnected.
                Ok((stream, from)) => {
                    if prepare(&stream).is_ok()
                        && let Some(place) = self.connections.admit(from.ip())
                    {
                        return Poll::Ready(Some(Ok(Wire::new(stream, place))));
                    }
                }
                Err(error) => {
                    tracing::debug!("cannot accept a client: {error}");
                    self.connections.could_not_accept(&error);
                    self.pause = Some(Box::pin(tokio::time::sleep(AFTER_FAILURE)));
                }
            }
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // A step is one small message in each direction.
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(MAX_UNANSWERED))?;
    Ok(())
}

/// A connection's stream.
pub(super) struct Wire {
    stream: TcpStream,
    greeting: Option<Greeting>,
    place: ConnectionPlace,
}

/// The first bytes of a client, which must arrive in time.
struct Greeting {
    left: usize,
    limit: Pin<Box<Sleep>>,
}

impl Wire {
    fn new(stream: TcpStream, place: ConnectionPlace) -> Wire {
        let greeting = Some(Greeting { left: GREETING, limit: Box::pin(tokio::time::sleep(MAX_GREETING)) });
        Wire { stream, greeting, place }
    }
}

impl Connected for Wire {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.place.connection()
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.place.tell(context.waker());
        this.place.check(context)?;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buf);
        if let Some(first) = &mut this.greeting {
            first.left = first.left.saturating_sub(buf.filled().len() - before);
            if first.left == 0 {
                this.greeting = None;
                this.place.greeted();
            } else if first.limit.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.place.check(context)?;
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
        self.place.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Both ends of a connection to a door.
    async fn ends(connections: &Connections) -> (TcpStream, Wire) {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut incoming = Incoming::new(listener, connections.clone());
        let far = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_next(context)).await;
        (near, far.unwrap().unwrap())
    }

    #[tokio::test]
    async fn the_first_bytes_of_a_client_are_its_greeting() {
        let (mut near, mut wire) = ends(&Connections::new(false)).await;
        near.write_all(&[0; GREETING]).await.unwrap();
        wire.read_exact(&mut [0; GREETING - 1]).await.unwrap();
        assert!(wire.greeting.is_some());
        wire.read_u8().await.unwrap();
        assert!(wire.greeting.is_none());
    }

    #[tokio::test]
    async fn an_evicted_connection_neither_reads_nor_writes() {
        let connections = Connections::new(false);
        let (_near, mut wire) = ends(&connections).await;
        // More than an address has slots.
        let crowd = async {
            (0..300)
                .filter_map(|_| connections.admit(std::net::Ipv4Addr::LOCALHOST.into()))
                .collect::<Vec<ConnectionPlace>>()
        };
        let (ended, _crowd) = tokio::join!(wire.read_u8(), crowd);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(wire.write_u8(0).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
