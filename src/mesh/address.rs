//! Addresses as people and peers write them: `host:port` and multiaddrs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libp2p::PeerId;
use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;

use super::error::MeshError;

/// Most addresses that one name is resolved to.
const MAX_RESOLVED: usize = 4;

/// A place to dial or to listen on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// An IP address or a DNS name.
    pub host: String,
    pub port: u16,
    /// Who is expected there.
    pub peer: Option<PeerId>,
}

impl std::str::FromStr for Address {
    type Err = MeshError;

    fn from_str(text: &str) -> Result<Self, MeshError> {
        let refuse = |why: &str| MeshError::Address { text: text.chars().take(200).collect(), why: why.to_owned() };
        if text.starts_with('/') {
            return from_multiaddr(text).map_err(|why| refuse(&why));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("it has no port"))?;
        let port = port.parse().map_err(|_| refuse("what follows the last : is not a port number"))?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        if bare.is_none() && host.contains(':') {
            return Err(refuse("an IPv6 address stands in brackets, [::1]:4711"));
        }
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
        if host.is_empty() || host.len() > 253 || !host.chars().all(name) {
            return Err(refuse("the host is neither an IP address nor a name"));
        }
        Ok(Address { host: host.to_owned(), port, peer: None })
    }
}

impl Address {
    /// The socket addresses to dial; an unspecified host (`0.0.0.0`) is this machine.
    ///
    /// # Errors
    /// Where the name is unknown.
    pub async fn to_dial(&self) -> Result<Vec<SocketAddr>, String> {
        Ok(self.resolve().await?.into_iter().map(dialable).collect())
    }

    /// The socket addresses that this is now.
    ///
    /// # Errors
    /// Where the name is unknown.
    pub async fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port))
            .await
            .map_err(|error| format!("{} cannot be resolved: {error}", self.host))?;
        let mut addresses: Vec<SocketAddr> = found.collect();
        addresses.dedup();
        addresses.truncate(MAX_RESOLVED);
        if addresses.is_empty() { Err(format!("{} has no address", self.host)) } else { Ok(addresses) }
    }
}

fn from_multiaddr(text: &str) -> Result<Address, String> {
    let address: Multiaddr = text.parse().map_err(|error| format!("{error}"))?;
    let (mut host, mut port, mut peer) = (None, None, None);
    for part in &address {
        match part {
            Protocol::Ip4(ip) => host = Some(ip.to_string()),
            Protocol::Ip6(ip) => host = Some(ip.to_string()),
            Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => host = Some(name.into_owned()),
            Protocol::Tcp(number) => port = Some(number),
            Protocol::P2p(id) => peer = Some(id),
            other => return Err(format!("{other} has no meaning here")),
        }
    }
    match (host, port) {
        (Some(host), Some(port)) => Ok(Address { host, port, peer }),
        _ => Err("it names no host or no tcp port".to_owned()),
    }
}

/// The multiaddr of a socket.
pub fn multiaddr(socket: SocketAddr) -> Multiaddr {
    Multiaddr::from(socket.ip()).with(Protocol::Tcp(socket.port()))
}

/// The socket of a multiaddr that is an IP address and a port.
pub fn socket(address: &str) -> Option<SocketAddr> {
    let address: Address = address.parse().ok()?;
    Some(SocketAddr::new(address.host.parse().ok()?, address.port))
}

/// Whether an address leads to the machine it is used on.
pub fn is_loopback(address: &str) -> bool {
    socket(address).is_some_and(|socket| canonical(socket.ip()).is_loopback())
}

/// Whether it makes sense to tell an address to a peer, which is on this machine or is not.
pub fn reachable_from(address: &str, same_machine: bool) -> bool {
    let Some(socket) = socket(address) else { return false };
    let ip = canonical(socket.ip());
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    socket.port() != 0 && !ip.is_unspecified() && !link_local && (same_machine || !ip.is_loopback())
}

fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

fn dialable(socket: SocketAddr) -> SocketAddr {
    let ip = match socket.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, socket.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let check = |text: &str, host: &str, port: u16| {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
        };
        check("192.168.1.7:4711", "192.168.1.7", 4711);
        check("node-1.lab:80", "node-1.lab", 80);
        check("[::1]:9", "::1", 9);
        check("/ip4/10.0.0.1/tcp/7", "10.0.0.1", 7);
        check("/dns4/lab/tcp/7", "lab", 7);
        for bad in
            ["", "host", "host:port", "::1:9", ":80", "a b:1", "host:70000", "/ip4/1.2.3.4", "/tcp/1", "/ip4/x/tcp/1"]
        {
            let why = bad.parse::<Address>().unwrap_err().to_string();
            assert!(why.contains("192.168.1.7:4711"), "{why}");
        }
    }

    #[test]
    fn only_what_can_be_dialled_is_told() {
        let check = |address: &str, here: bool, elsewhere: bool| {
            assert_eq!((reachable_from(address, true), reachable_from(address, false)), (here, elsewhere), "{address}");
        };
        check("/ip4/127.0.0.1/tcp/7", true, false);
        check("/ip6/::1/tcp/7", true, false);
        check("/ip4/10.0.0.1/tcp/7", true, true);
        check("/ip4/0.0.0.0/tcp/7", false, false);
        check("/ip6/fe80::1/tcp/7", false, false);
        check("/ip4/10.0.0.1/tcp/0", false, false);
        check("nonsense", false, false);
    }
}
