//! Addresses: multiaddrs everywhere, and `host:port` as people write it, which is turned into one here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;

use super::error::MeshError;

/// Most addresses that one name is resolved to.
const MAX_RESOLVED: usize = 4;
/// Longest host name, as DNS has it.
const MAX_NAME_BYTES: usize = 253;
/// Most characters of a wrong address that its error repeats.
const MAX_REPEATED_CHARS: usize = 200;

/// Reads an address as people write it: a multiaddr, or `host:port`, which is TCP.
///
/// # Errors
/// [`MeshError::Address`] if it is neither.
pub fn parse_address(text: &str) -> Result<Multiaddr, MeshError> {
    let refuse =
        |why: &str| MeshError::Address { text: text.chars().take(MAX_REPEATED_CHARS).collect(), why: why.to_owned() };
    if text.starts_with('/') {
        return text.parse().map_err(|error| refuse(&format!("{error}")));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(|| refuse("it has no port"))?;
    let port = port.parse().map_err(|_| refuse("what follows the last : is not a port number"))?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    if bare.is_none() && host.contains(':') {
        return Err(refuse("put an IPv6 address in brackets: [::1]:4711"));
    }
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || host.len() > MAX_NAME_BYTES || !host.chars().all(of_name) {
        return Err(refuse("the host is neither an IP address nor a name"));
    }
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => ip.into(),
        Err(_) => Protocol::Dns(host.to_owned().into()),
    };
    Ok(Multiaddr::empty().with(host).with(Protocol::Tcp(port)))
}

/// Those of a peer's addresses that are addresses and need not be resolved.
pub fn resolved(addresses: &[String]) -> Vec<Multiaddr> {
    addresses.iter().filter_map(|text| text.parse().ok()).filter(|address| name(address).is_none()).collect()
}

/// The addresses that this is now, if it begins with a host name.
///
/// # Errors
/// If the name is unknown.
pub async fn resolve(address: &Multiaddr) -> Result<Vec<Multiaddr>, String> {
    let Some(name) = name(address) else { return Ok(vec![address.clone()]) };
    let first = address.iter().next();
    let is_wanted = |ip: &IpAddr| match first {
        Some(Protocol::Dns4(_)) => ip.is_ipv4(),
        Some(Protocol::Dns6(_)) => ip.is_ipv6(),
        _ => true,
    };
    let found = tokio::net::lookup_host((name.as_str(), 0));
    let found = found.await.map_err(|error| format!("{name} cannot be resolved: {error}"))?;
    let mut ips: Vec<IpAddr> = found.map(|socket| socket.ip()).filter(is_wanted).collect();
    ips.dedup();
    ips.truncate(MAX_RESOLVED);
    if ips.is_empty() {
        return Err(format!("{name} has no address"));
    }
    Ok(ips.into_iter().map(|ip| with_ip(address, ip)).collect())
}

/// The addresses to dial; an unspecified host (`0.0.0.0`) is this machine.
///
/// # Errors
/// As [`resolve`].
pub async fn resolve_to_dial(address: &Multiaddr) -> Result<Vec<Multiaddr>, String> {
    let dialable = |address: Multiaddr| match ip(&address) {
        Some(IpAddr::V4(ip)) if ip.is_unspecified() => with_ip(&address, Ipv4Addr::LOCALHOST.into()),
        Some(IpAddr::V6(ip)) if ip.is_unspecified() => with_ip(&address, Ipv6Addr::LOCALHOST.into()),
        _ => address,
    };
    Ok(resolve(address).await?.into_iter().map(dialable).collect())
}

/// The same address on every IPv4 interface of this machine.
pub fn on_every_interface(address: &Multiaddr) -> Multiaddr {
    with_ip(address, Ipv4Addr::UNSPECIFIED.into())
}

/// The address of IP and TCP that it is, on every interface of its version of IP.
pub fn as_every_interface(address: &Multiaddr) -> Option<Multiaddr> {
    let port = address.iter().nth(1).filter(|part| matches!(part, Protocol::Tcp(1..)))?;
    let everywhere: IpAddr = match ip(address)? {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Some(Multiaddr::empty().with(everywhere.into()).with(port))
}

fn with_ip(address: &Multiaddr, ip: IpAddr) -> Multiaddr {
    std::iter::once(Protocol::from(ip)).chain(address.iter().skip(1)).collect()
}

fn name(address: &Multiaddr) -> Option<String> {
    match address.iter().next()? {
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => Some(name.into_owned()),
        _ => None,
    }
}

/// The IP address that it begins with.
pub fn ip(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// The name of the Unix socket that it is.
pub fn local_name(address: &Multiaddr) -> Option<String> {
    match address.iter().next()? {
        Protocol::Unix(name) => Some(name.into_owned()),
        _ => None,
    }
}

/// Whether two addresses lead to the same machine, as seen from here.
pub fn is_same_host(a: &Multiaddr, b: &Multiaddr) -> bool {
    match (a.iter().next(), b.iter().next()) {
        (Some(Protocol::Unix(_)), Some(Protocol::Unix(_))) => true,
        (a, b) => a == b,
    }
}

/// An address without the PeerId at its end.
pub fn without_peer(mut address: Multiaddr) -> Multiaddr {
    if let Some(Protocol::P2p(_)) = address.iter().last() {
        address.pop();
    }
    address
}

/// Whether an address leads to the machine that it is used on.
pub fn is_loopback(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Memory(_) | Protocol::Unix(_)) => true,
        _ => ip(address).is_some_and(|ip| ip.to_canonical().is_loopback()),
    }
}

/// Whether it makes sense to tell an address to a peer, which is on this machine or is not.
pub fn is_reachable_from(address: &str, same_machine: bool) -> bool {
    let Ok(address) = address.parse::<Multiaddr>() else { return false };
    let is_useless = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local(),
    };
    let has_port = !address.iter().any(|part| matches!(part, Protocol::Tcp(0) | Protocol::Udp(0)));
    has_port && !ip(&address).is_some_and(is_useless) && (same_machine || !is_loopback(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        let check = |text: &str, want: &str| assert_eq!(parse_address(text).unwrap().to_string(), want, "{text}");
        check("192.168.1.7:4711", "/ip4/192.168.1.7/tcp/4711");
        check("node-1.lab:80", "/dns/node-1.lab/tcp/80");
        check("[::1]:9", "/ip6/::1/tcp/9");
        check("/ip4/10.0.0.1/tcp/7", "/ip4/10.0.0.1/tcp/7");
        check("/dns4/lab/udp/7/quic-v1", "/dns4/lab/udp/7/quic-v1");
        for bad in ["", "host", "host:port", "::1:9", ":80", "a b:1", "host:70000", "/ip4/x/tcp/1", "/nonsense"] {
            let why = parse_address(bad).unwrap_err().to_string();
            assert!(why.contains("192.168.1.7:4711"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_name_becomes_the_addresses_that_it_has() {
        let check = async |text: &str, want: &[&str]| {
            let found = resolve_to_dial(&text.parse().unwrap()).await.unwrap();
            assert_eq!(found.iter().map(Multiaddr::to_string).collect::<Vec<_>>(), want, "{text}");
        };
        check("/ip4/0.0.0.0/tcp/7", &["/ip4/127.0.0.1/tcp/7"]).await;
        check("/ip6/::/udp/7/quic-v1", &["/ip6/::1/udp/7/quic-v1"]).await;
        check("/memory/7", &["/memory/7"]).await;
        check("/dns4/localhost/udp/7/quic-v1", &["/ip4/127.0.0.1/udp/7/quic-v1"]).await;
        assert!(resolved(&["/dns/lab/tcp/7".to_owned(), "lab:7".to_owned()]).is_empty());
    }

    #[test]
    fn only_what_can_be_dialled_is_told() {
        let check = |address: &str, here: bool, elsewhere: bool| {
            let reachable = (is_reachable_from(address, true), is_reachable_from(address, false));
            assert_eq!(reachable, (here, elsewhere), "{address}");
        };
        check("/ip4/127.0.0.1/tcp/7", true, false);
        check("/ip6/::1/tcp/7", true, false);
        check("/ip4/10.0.0.1/tcp/7", true, true);
        check("/ip4/10.0.0.1/udp/7/quic-v1", true, true);
        check("/ip4/0.0.0.0/tcp/7", false, false);
        check("/ip6/fe80::1/tcp/7", false, false);
        check("/ip4/10.0.0.1/tcp/0", false, false);
        check("/memory/7", true, false);
        check("/unix/@meshtf-7", true, false);
        check("nonsense", false, false);
    }
}
