//! Addresses: multiaddrs everywhere, and the `host:port` form of users, which this module turns into multiaddrs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use libp2p::core::Multiaddr;
use libp2p::core::multiaddr::Protocol;

use super::error::MeshError;

/// Most addresses that one name is resolved to.
const MAX_RESOLVED: usize = 4;
/// Longest host name, as DNS has it.
const MAX_NAME_BYTES: usize = 253;
/// Most characters of an invalid address that its error repeats.
const MAX_REPEATED_CHARS: usize = 200;

/// Parses an address in the form of users: a multiaddr, or `host:port`, which is TCP.
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
    if bare.is_some_and(|host| host.contains('%')) {
        return Err(refuse(
            "an address that holds on one interface only (%eth0) cannot be dialled; give another one of that machine",
        ));
    }
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || host.len() > MAX_NAME_BYTES || !host.chars().all(of_name) {
        return Err(refuse("the host is neither an IP address nor a name"));
    }
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => ip.into(),
        Err(_) => Protocol::Dns(host.to_owned().into()),
    };
    Ok(Multiaddr::empty().with(host).with(Protocol::Tcp(port)))
}

/// Those of a peer's addresses that are valid and need no resolution.
pub fn resolved(addresses: &[String]) -> Vec<Multiaddr> {
    addresses.iter().filter_map(|text| text.parse().ok()).filter(|address| name(address).is_none()).collect()
}

/// The addresses to which this one resolves now, if it begins with a host name.
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

/// The same address on every IPv4 interface of this machine, for one that begins with an IP address.
pub fn on_every_interface(address: &Multiaddr) -> Multiaddr {
    with_ip(address, Ipv4Addr::UNSPECIFIED.into())
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

/// The IP address at its head.
pub fn ip(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// The name of the Unix socket that it denotes.
pub fn local_name(address: &Multiaddr) -> Option<String> {
    match address.iter().next()? {
        Protocol::Unix(name) => Some(name.into_owned()),
        _ => None,
    }
}

/// Whether two addresses lead to the same machine, from the point of view of this one.
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

/// The addresses of a peer in the stages in which to dial them, each once those before it have failed: the fastest ones within
/// this machine; those of other machines; and those that this machine has as well, as every machine has the address of its
/// bridge for containers. A peer that names a loopback address is on this machine, where its own addresses are as good as any.
pub fn in_stages(addresses: Vec<Multiaddr>, is_own: impl Fn(IpAddr) -> bool) -> Vec<Vec<Multiaddr>> {
    let (local, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| local_name(address).is_some());
    let is_here = others.iter().any(is_loopback);
    let (own, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|address| !is_here && ip(address).is_some_and(&is_own));
    [local, others, own].into_iter().filter(|stage| !stage.is_empty()).collect()
}

/// Whether an interface of this machine has the address: only to those can a socket be bound.
pub fn is_own(ip: IpAddr) -> bool {
    !ip.is_unspecified() && std::net::UdpSocket::bind((ip, 0)).is_ok()
}

/// Whether an address is useful to a peer, which is on this machine or is not.
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
        let zone = parse_address("[fe80::1%eth0]:4001").unwrap_err().to_string();
        assert!(zone.contains("on one interface only"), "{zone}");
        for bad in
            ["a%b:1", "", "host", "host:port", "::1:9", ":80", "a b:1", "host:70000", "/ip4/x/tcp/1", "/nonsense"]
        {
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
    fn what_is_also_this_machines_own_is_dialled_last() {
        let docker: IpAddr = Ipv4Addr::new(172, 17, 0, 1).into();
        let check = |addresses: &[&str], want: &[&[&str]]| {
            let all = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let stages = in_stages(all, |ip| ip == docker || ip.is_loopback());
            let texts = |stage: &Vec<Multiaddr>| stage.iter().map(Multiaddr::to_string).collect::<Vec<_>>();
            assert_eq!(stages.iter().map(texts).collect::<Vec<_>>(), want, "{addresses:?}");
        };
        let (lan, bridge, loopback) = ("/ip4/192.168.1.7/tcp/1", "/ip4/172.17.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1");
        check(&[bridge, lan], &[&[lan], &[bridge]]);
        check(&[bridge], &[&[bridge]]);
        check(&[lan, "/unix/@meshtf-7"], &[&["/unix/@meshtf-7"], &[lan]]);
        check(&[loopback, bridge, lan], &[&[loopback, bridge, lan]]);
        check(&["/memory/7"], &[&["/memory/7"]]);
        check(&[], &[]);
        assert!(is_own(Ipv4Addr::LOCALHOST.into()));
        // RFC 5737 keeps these addresses for documents.
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1).into()));
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
