//! The network interfaces of this machine, and whether multicast works on them. By getifaddrs, since the library if-addrs does
//! not report which interfaces have multicast.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use socket2::{Domain, Protocol, Socket, Type};

use super::finding::Finding;

/// mDNS's group and port.
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(224, 0, 0, 251), 5353);
/// How long a packet to the group may take to come back to this machine.
const ECHO_LIMIT: Duration = Duration::from_millis(500);
/// Maximum number of interfaces that are checked.
const MAX_INTERFACES: usize = 64;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub address: IpAddr,
    pub is_up: bool,
    pub has_multicast: bool,
}

impl Interface {
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback()
    }
}

/// The addresses of this machine's interfaces, without the link-local ones of IPv6.
pub fn list() -> io::Result<Vec<Interface>> {
    let all = getifaddrs()?.filter_map(|entry| {
        let address = address_of(&entry.address?)?;
        let is_link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
        (!is_link_local).then(|| Interface {
            name: entry.interface_name,
            address,
            is_up: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            has_multicast: entry.flags.contains(InterfaceFlags::IFF_MULTICAST),
        })
    });
    Ok(all.take(MAX_INTERFACES).collect())
}

fn address_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

/// Whether mDNS's group returns this machine's packets to it, on each interface that has multicast.
pub fn multicast(interfaces: &[Interface]) -> Vec<Finding> {
    let outward = interfaces.iter().filter(|one| one.is_up && one.has_multicast && !one.is_loopback());
    let tried: Vec<(&Interface, io::Result<bool>)> = outward
        .filter_map(|one| match one.address {
            IpAddr::V4(address) => Some((one, hears_itself(address))),
            IpAddr::V6(_) => None,
        })
        .collect();
    let has_ipv6 =
        interfaces.iter().any(|one| one.is_up && one.has_multicast && one.address.is_ipv6() && !one.is_loopback());
    of_multicast(&tried, has_ipv6)
}

/// Sends a query to the group that no host answers, and waits for it.
fn hears_itself(interface: Ipv4Addr) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // In addition to the nodes and the mDNS service that run on this machine.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, GROUP.port())).into())?;
    socket.join_multicast_v4(GROUP.ip(), &interface)?;
    socket.set_multicast_if_v4(&interface)?;
    socket.set_multicast_loop_v4(true)?;
    let socket = UdpSocket::from(socket);
    let question = question(crate::random::u64());
    socket.send_to(&question, GROUP)?;
    let deadline = Instant::now() + ECHO_LIMIT;
    let mut packet = [0; 2048];
    while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        match socket.recv(&mut packet) {
            Ok(count) if packet[..count] == question => return Ok(true),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// A DNS question for `meshtf-doctor-NUMBER.local`.
fn question(number: u64) -> Vec<u8> {
    let mut packet = vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [format!("meshtf-doctor-{number:016x}").as_str(), "local"] {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    // The end of the name, its type PTR, the class of the internet.
    packet.extend([0, 0, 12, 0, 1]);
    packet
}

/// `has_ipv6`: whether an interface has multicast with an address of IPv6.
fn of_multicast(tried: &[(&Interface, io::Result<bool>)], has_ipv6: bool) -> Vec<Finding> {
    if tried.is_empty() {
        let what = if has_ipv6 {
            "mDNS takes IPv4 here, and no interface with multicast has an address of it, so that nodes on the local network are \
             not found automatically"
        } else {
            "no interface carries multicast, so that nodes on the local network are not found automatically"
        };
        return vec![Finding::note("multicast", what, "Give addresses: `meshtf node --peer HOST:PORT`, or a ticket.")];
    }
    let one = |(interface, heard): &(&Interface, io::Result<bool>)| {
        let (name, address) = (&interface.name, interface.address);
        let route = format!("sudo ip route add 224.0.0.0/4 dev {name}; without it, give addresses with --peer.");
        match heard {
            Ok(true) => Finding::ok("multicast", format!("{name} sends to 224.0.0.251:5353 and hears itself")),
            Ok(false) => Finding::warning(
                "multicast",
                format!(
                    "{name} ({address}) does not hear what it sends to 224.0.0.251:5353: a firewall drops UDP 5353"
                ),
                "`sudo ufw allow mdns` or `sudo firewall-cmd --add-service=mdns`; without it, give addresses with --peer.",
            ),
            Err(error) => Finding::warning(
                "multicast",
                format!("{name} ({address}) cannot send to 224.0.0.251:5353: {error}"),
                match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "Another program has UDP 5353 for itself: `sudo ss -lunp 'sport = :5353'` names it; without mDNS, give \
                         addresses with --peer."
                    }
                    io::ErrorKind::PermissionDenied => {
                        "This machine's own firewall drops UDP 5353 on its way out: `sudo nft list ruleset` shows the rule; without \
                         mDNS, give addresses with --peer."
                    }
                    _ => &route,
                },
            ),
        }
    };
    tried.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn the_machine_itself_is_among_its_interfaces() {
        let all = list().unwrap();
        assert!(all.iter().any(|one| one.name == "lo" || one.is_loopback()), "{all:?}");
    }

    #[test]
    fn a_question_is_a_packet_of_dns() {
        let packet = question(0xab);
        assert_eq!(packet.len(), 12 + 1 + 30 + 1 + 5 + 5);
        assert_eq!(&packet[12..27], b"\x1emeshtf-doctor-");
        assert!(packet.ends_with(b"ab\x05local\0\0\x0c\0\x01"), "{packet:?}");
    }

    #[test]
    fn what_multicast_does_is_judged() {
        let one = Interface { name: "eth0".into(), address: [10, 0, 0, 7].into(), is_up: true, has_multicast: true };
        let check = |heard: io::Result<bool>, level: Level, part: &str| {
            let found = of_multicast(&[(&one, heard)], true).remove(0);
            assert!(
                found.level == level
                    && format!("{} {}", found.what, found.remedy.as_deref().unwrap_or_default()).contains(part),
                "{found:?}"
            );
        };
        check(Ok(true), Level::Ok, "hears itself");
        check(Ok(false), Level::Warning, "ufw allow mdns");
        check(Err(io::ErrorKind::NetworkUnreachable.into()), Level::Warning, "224.0.0.0/4");
        check(Err(io::ErrorKind::AddrInUse.into()), Level::Warning, "ss -lunp");
        check(Err(rustix::io::Errno::PERM.into()), Level::Warning, "nft list ruleset");
        for (has_ipv6, part) in [(false, "no interface carries multicast"), (true, "mDNS takes IPv4 here")] {
            let found = of_multicast(&[], has_ipv6).remove(0);
            assert!(found.level == Level::Note && found.what.contains(part), "{found:?}");
        }
    }
}
