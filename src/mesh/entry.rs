//! The port: TCP as libp2p does it, and a place among the [strangers](crate::strangers) for each socket that comes in.
//!
//! What comes in may be anybody. Nothing is read here, and nothing is kept for a socket but its place.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{self, BoxFuture, FutureExt};
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;
use libp2p::core::transport::{DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use libp2p::tcp;
use tokio::net::TcpStream;

use super::admission::Denied;
use crate::strangers::{Stranger, Strangers};

/// A socket that is connected and no more.
pub enum Arrival {
    /// This side dialled.
    Dialled(TcpStream),
    /// Somebody came.
    Came(TcpStream, Stranger),
}

/// TCP with a table of strangers.
pub struct Entry {
    tcp: tcp::tokio::Transport,
    strangers: Arc<Strangers>,
}

impl Entry {
    pub fn new() -> Self {
        Entry { tcp: tcp::tokio::Transport::new(tcp::Config::default()), strangers: Strangers::new() }
    }
}

impl Transport for Entry {
    type Output = Arrival;
    type Error = io::Error;
    type ListenerUpgrade = future::Ready<io::Result<Arrival>>;
    type Dial = BoxFuture<'static, io::Result<Arrival>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.tcp.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.tcp.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, options: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        let dial = self.tcp.dial(address, options)?;
        Ok(async move { Ok(Arrival::Dialled(dial.await?.into())) }.boxed())
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        let event = ready!(Pin::new(&mut self.tcp).poll(cx));
        let from = match &event {
            TransportEvent::Incoming { send_back_addr, .. } => host(send_back_addr),
            // After an error libp2p pauses before it accepts again.
            TransportEvent::ListenerError { error, .. } => {
                self.strangers.could_not_accept(error);
                None
            }
            _ => None,
        };
        let place = from.and_then(|ip| self.strangers.admit(ip));
        Poll::Ready(event.map_upgrade(|accepted| {
            future::ready(match (accepted.now_or_never(), place) {
                (Some(Ok(socket)), Some(place)) => Ok(Arrival::Came(socket.into(), place)),
                (Some(Err(error)), _) => Err(error),
                _ => Err(Denied::Crowded.into()),
            })
        }))
    }
}

fn host(address: &Multiaddr) -> Option<IpAddr> {
    address.iter().find_map(|part| match part {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    })
}
