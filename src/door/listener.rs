//! The sockets at which a door listens: at its address, and at the other loopback address of this machine.
//!
//! A program names this machine as `localhost`, which leads to 127.0.0.1 on one machine and to ::1 on another. A door of the
//! loopback interface therefore listens at both, at one port. A machine without IPv6, or without IPv4, has one of them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream};

/// How many free ports are tried until one is free at both addresses.
const MAX_PORTS_TRIED: usize = 16;

/// The sockets of a door.
#[derive(Debug)]
pub(super) struct Listener {
    own: TcpListener,
    /// At the other loopback address.
    other: Option<TcpListener>,
    /// Whether the other socket is asked first, so that neither keeps the clients of the other waiting.
    other_first: bool,
}

impl Listener {
    /// Listens at an address, and at the other loopback address if the machine has it. Port 0 selects one that is free at both.
    ///
    /// # Errors
    /// If it cannot listen at `address`. If the other address alone is taken by another process, a warning says so.
    pub async fn bind(address: SocketAddr) -> io::Result<Listener> {
        let Some(other) = other_loopback(address.ip()) else {
            return Ok(Listener::of(TcpListener::bind(address).await?, None));
        };
        let mut tried = Vec::new();
        loop {
            let own = TcpListener::bind(address).await?;
            let beside = SocketAddr::from((other, own.local_addr()?.port()));
            match TcpListener::bind(beside).await {
                Ok(second) => return Ok(Listener::of(own, Some(second))),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    tracing::debug!("this machine has no {other}: {error}");
                    return Ok(Listener::of(own, None));
                }
                // The ports that were tried stay taken meanwhile, so that the next one is another.
                Err(_) if address.port() == 0 && tried.len() < MAX_PORTS_TRIED => tried.push(own),
                Err(_) => {
                    tracing::warn!(
                        "{beside} is taken by another process: clients for which localhost is {other} reach that one, and not {}",
                        own.local_addr()?
                    );
                    return Ok(Listener::of(own, None));
                }
            }
        }
    }

    fn of(own: TcpListener, other: Option<TcpListener>) -> Listener {
        Listener { own, other, other_first: false }
    }

    /// The address at which it was asked to listen, with its port.
    ///
    /// # Errors
    /// That of the operating system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.own.local_addr()
    }

    /// Every address at which it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        [Some(&self.own), self.other.as_ref()].into_iter().flatten().filter_map(|one| one.local_addr().ok()).collect()
    }

    /// The next client.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let Listener { own, other, other_first } = self;
        let Some(other) = other else { return own.poll_accept(context) };
        let (first, second) = if *other_first { (&*other, &*own) } else { (&*own, &*other) };
        *other_first = !*other_first;
        match first.poll_accept(context) {
            Poll::Pending => second.poll_accept(context),
            ready => ready,
        }
    }

    /// The next client.
    ///
    /// # Errors
    /// Those of the operating system, such as a lack of descriptors.
    ///
    /// # Cancellation
    /// No client is lost if the future is dropped.
    pub async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }
}

/// The address at which clients of this machine look for a server, too, if the server listens at `ip`.
fn other_loopback(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(Ipv4Addr::LOCALHOST | Ipv4Addr::UNSPECIFIED) => Some(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(Ipv4Addr::LOCALHOST.into()),
        // At ::, Linux accepts IPv4, too; at 127.0.0.2, nobody means ::1.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_means_two_addresses() {
        let check = |ip: &str, other: Option<&str>| {
            assert_eq!(other_loopback(ip.parse().unwrap()), other.map(|ip| ip.parse().unwrap()), "{ip}");
        };
        check("127.0.0.1", Some("::1"));
        check("::1", Some("127.0.0.1"));
        check("0.0.0.0", Some("::1"));
        check("127.0.0.2", None);
        check("::", None);
        check("10.0.0.7", None);
    }

    #[tokio::test]
    async fn clients_come_at_either_loopback_address() {
        for own in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may lack one of them, and has one.
            let Ok(mut listener) = Listener::bind(own.parse().unwrap()).await else { continue };
            let addresses = listener.addresses();
            assert!(addresses.iter().all(|one| one.port() == addresses[0].port()), "{addresses:?}");
            let has_both = std::net::TcpListener::bind("[::1]:0").is_ok();
            assert_eq!(addresses.len(), 1 + usize::from(has_both), "{addresses:?}");
            for address in addresses {
                let near = TcpStream::connect(address).await.unwrap();
                let (_, from) = listener.accept().await.unwrap();
                assert_eq!(near.local_addr().unwrap(), from);
            }
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_at_the_other_address_is_no_error() {
        let Ok(taken) = std::net::TcpListener::bind("[::1]:0") else { return };
        let port = taken.local_addr().unwrap().port();
        let Ok(listener) = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await else { return };
        assert_eq!(listener.addresses(), [SocketAddr::from((Ipv4Addr::LOCALHOST, port))]);
        // Its own address is.
        let again = Listener::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await.unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
