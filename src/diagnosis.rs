//! The reasons why nodes do not meet: conclusions from the attempts to reach peers, and their remedies.
//!
//! Pure functions, shared by `doctor`, `ps`, `submit` and a node that has met no peer, so that all conclude alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use crate::mesh::{Attempt, Multiaddr, Source, Speaks, Verdict};

/// Maximum number of addresses that one conclusion names.
const MAX_NAMED: usize = 4;

/// A problem and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conclusion {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub remedy: String,
    /// The peers belong to another mesh, perhaps.
    pub may_be_fine: bool,
}

/// The conclusions from the attempts: one for each reason for which peers were seen and not met. An old address, of a ticket or
/// of hearsay, at which no node listens any more is reported only as long as no peer was met.
pub fn conclude(attempts: &[Attempt]) -> Vec<Conclusion> {
    let has_met = attempts.iter().any(|attempt| attempt.address.is_some() && attempt.verdict == Verdict::Met);
    let mut by_reason: BTreeMap<(Verdict, Source, Option<Speaks>), Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts.iter().filter(|attempt| attempt.address.is_some()) {
        if !(has_met && is_old(attempt) && !attempt.verdict.is_final()) {
            by_reason.entry((attempt.verdict, attempt.source, attempt.speaks)).or_default().push(attempt);
        }
    }
    by_reason.into_iter().filter_map(|((verdict, source, _), tried)| of_reason(verdict, source, &tried)).collect()
}

/// Whether an attempt is under way whose failure would be reported although other peers were met.
pub fn is_expecting(attempts: &[Attempt]) -> bool {
    attempts.iter().any(|attempt| attempt.address.is_some() && attempt.verdict == Verdict::Pending && !is_old(attempt))
}

/// Whether its address is an earlier one or hearsay, at which possibly no node listens any more.
fn is_old(attempt: &Attempt) -> bool {
    matches!(attempt.source, Source::Ticket | Source::Hearsay | Source::Registry)
}

/// The same at the end of the time that peers have to answer: a name that is still being looked up by then is reported, too.
pub fn conclude_at_last(attempts: &[Attempt]) -> Vec<Conclusion> {
    let is_name = |attempt: &&Attempt| {
        let address = attempt.address.as_ref().map(Multiaddr::to_string).unwrap_or_default();
        attempt.verdict == Verdict::Pending && address.starts_with("/dns")
    };
    let late = attempts.iter().filter(is_name).map(|attempt| Conclusion {
        what: format!("the name of {} ({}) is still being looked up", Place::of(attempt), attempt.source),
        remedy: "The name server does not answer: `resolvectl status` or /etc/resolv.conf names it. An IP address needs none."
            .to_owned(),
        may_be_fine: false,
    });
    conclude(attempts).into_iter().chain(late).collect()
}

fn of_reason(verdict: Verdict, source: Source, tried: &[&Attempt]) -> Option<Conclusion> {
    let (first, places) = (tried.first()?, places(tried));
    let number = |one: &'static str, many: &'static str| if tried.len() == 1 { one } else { many };
    let peers = if tried.len() == 1 { "One peer was".to_owned() } else { format!("{} peers were", tried.len()) };
    let seen = |what: &str| format!("{peers} seen and {what}: {places}");
    let (at, there) = (Place::of(first), there(tried));
    let is_caller = source == Source::Caller;
    let (what, remedy) = match verdict {
        Verdict::Pending | Verdict::Itself | Verdict::TaskTaken | Verdict::Met => return None,
        Verdict::OtherKey if is_caller => (
            format!("{} connected here with another mesh key: {places}", number("One peer", "Several peers")),
            "Run `meshtf ticket` here and `meshtf join TICKET` there, or the other way round. If it belongs to somebody else's \
             mesh, nothing is wrong."
                .to_owned(),
        ),
        Verdict::OtherKey => {
            let other = if source == Source::Lan { " If it belongs to somebody else's mesh, nothing is wrong." } else { "" };
            (
                seen("refused our key"),
                format!(
                    "Run `meshtf ticket` on a machine of the mesh and `meshtf join TICKET` here, with --replace if this \
                     machine has a key of its own.{other}"
                ),
            )
        }
        Verdict::KeyWanted => (
            seen(number("requires a mesh key, but this side runs open", "require a mesh key, but this side runs open")),
            format!("Leave out --open here, or restart {} with --open.", number("that node", "those nodes")),
        ),
        Verdict::Open => (
            seen(number("runs open, without a key, but this side has one", "run open, without a key, but this side has one")),
            format!(
                "Restart {} without --open, after `meshtf ticket` here and `meshtf join TICKET` there.",
                number("that node", "those nodes")
            ),
        ),
        Verdict::OtherMesh => (
            seen(number("is of a mesh of another name", "are of meshes of other names")),
            "Give all the same name: --mesh NAME, or MESHTF_MESH.".to_owned(),
        ),
        Verdict::OtherVersion => (
            match first.speaks {
                Some(theirs) => seen(&format!(
                    "{} {theirs}, while this is {}; they refuse each other",
                    number("is", "are"),
                    Speaks::own()
                )),
                None => seen(&outcomes(tried)),
            },
            "Install the same release on all machines of the mesh, and restart its nodes: `meshtf --version` shows \
             the release."
                .to_owned(),
        ),
        Verdict::Full => (seen(&outcomes(tried)), "Close clients or nodes that are not needed.".to_owned()),
        Verdict::Slow => (
            format!(
                "{places} {} the handshake",
                number("accepts connections and does not finish", "accept connections and do not finish")
            ),
            format!(
                "{} {there} `meshtf status` shows more.",
                number("The machine is overloaded, or the node is suspended;", "The machines are overloaded, or the nodes are suspended;")
            ),
        ),
        Verdict::NoNode | Verdict::HungUp => (
            format!(
                "{places} {}: {}",
                number("answers, but not as a node of a mesh", "answer, but not as nodes of a mesh"),
                outcomes(tried)
            ),
            format!(
                "Another program has {}; {there} `meshtf ps` shows the addresses of nodes.",
                number("that port", "those ports")
            ),
        ),
        Verdict::Moved => (
            format!("{} at {places} now", number("a different node is", "different nodes are")),
            format!(
                "{} out of date. `meshtf ps` on a machine of the mesh shows the current {}.",
                number("The address is", "The addresses are"),
                number("one", "ones")
            ),
        ),
        Verdict::Refused => (
            format!("nothing listens at {places} ({source})"),
            format!(
                "{} another port now: {there} `meshtf node … --listen {}:{}` keeps it on one port.",
                number("The node is not running, or has", "The nodes are not running, or have"),
                if at.is_ipv6() { "[::]" } else { "0.0.0.0" },
                port(tried)
            ),
        ),
        Verdict::Silent | Verdict::Unreachable if source == Source::Lan => (
            match (tried, at.port) {
                ([_], Some(port)) => {
                    format!("mDNS hears {}, but TCP {port} does not answer: a firewall, or the address is stale", at.host)
                }
                ([_], None) => format!("mDNS hears {places}, which does not answer: a firewall, or the address is stale"),
                _ => format!("mDNS hears {places}, which do not answer: firewalls, or the addresses are stale"),
            },
            format!(
                "On {}; `meshtf ps` shows whether {} another now.",
                allow(tried),
                number("it has", "they have")
            ),
        ),
        Verdict::Silent => (
            format!(
                "{places} {} ({source}): {}",
                number("does not answer", "do not answer"),
                number(
                    "a firewall drops it, the machine is off, or the address is wrong",
                    "firewalls drop it, the machines are off, or the addresses are wrong"
                )
            ),
            format!("On {}; `meshtf ps` shows {}.", allow(tried), number("the address", "the addresses")),
        ),
        Verdict::Unreachable => (
            format!("{places} cannot be reached from here ({source}): {}", outcomes(tried)),
            format!("See `ip route get {}`, and whether both machines are on one network.", at.host),
        ),
        Verdict::Forbidden => (
            format!("this machine blocks connections to {places}: {}", outcomes(tried)),
            "Its own firewall does: `sudo nft list ruleset` shows the rule.".to_owned(),
        ),
        Verdict::Unresolved => (
            format!("{}, given as {places} ({source})", outcomes(tried)),
            format!(
                "Correct the {} `meshtf ps` shows on a machine of the mesh.",
                number("name, or give the IP address that", "names, or give the IP addresses that")
            ),
        ),
    };
    // A peer with the key belongs to the mesh, whatever protocol it speaks.
    let is_unauthenticated = (source == Source::Lan || is_caller) && verdict != Verdict::OtherVersion;
    let may_be_fine = is_unauthenticated && verdict.is_final();
    Some(Conclusion { what, remedy, may_be_fine })
}

/// The outcomes of the attempts, each once.
fn outcomes(tried: &[&Attempt]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for attempt in tried {
        if all.len() < MAX_NAMED && !all.contains(&attempt.outcome.as_str()) {
            all.push(&attempt.outcome);
        }
    }
    all.join("; ")
}

/// The port of all attempts, or its placeholder.
fn port(tried: &[&Attempt]) -> String {
    let ports: BTreeSet<Option<u16>> = tried.iter().map(|attempt| Place::of(attempt).port).collect();
    match ports.first() {
        Some(Some(port)) if ports.len() == 1 => port.to_string(),
        _ => "PORT".to_owned(),
    }
}

/// `on 10.0.0.7:`, before the remedy to apply on that machine.
fn there(tried: &[&Attempt]) -> String {
    match tried {
        [one] => format!("on {}:", Place::of(one).shown_host()),
        _ => "on those machines:".to_owned(),
    }
}

/// The commands that let the port in, for the two firewalls that most machines have.
fn allow(tried: &[&Attempt]) -> String {
    let port = port(tried);
    let machines = if tried.len() == 1 { "that machine" } else { "those machines" };
    format!(
        "{machines}: `sudo ufw allow {port}/tcp` or `sudo firewall-cmd --add-port={port}/tcp` allows {} port",
        if port == "PORT" { "a" } else { "the" }
    )
}

/// `10.0.0.7:4001, 10.0.0.8:4001 and 3 more`.
fn places(tried: &[&Attempt]) -> String {
    let mut named: Vec<String> = tried.iter().take(MAX_NAMED).map(|attempt| Place::of(attempt).to_string()).collect();
    named.dedup();
    if tried.len() > MAX_NAMED {
        named.push(format!("and {} more", tried.len() - MAX_NAMED));
    }
    named.join(", ")
}

/// The address of an attempt: `10.0.0.7:4001`.
pub fn shown_place(attempt: &Attempt) -> String {
    Place::of(attempt).to_string()
}

/// A host and a port in their usual form.
struct Place {
    host: String,
    port: Option<u16>,
}

impl Place {
    fn of(attempt: &Attempt) -> Place {
        let parts = attempt.address.as_ref().map(Multiaddr::to_string).unwrap_or_default();
        match parts.split('/').collect::<Vec<_>>()[..] {
            ["", "ip4" | "ip6" | "dns" | "dns4" | "dns6", host, "tcp", port, ..] => {
                Place { host: host.to_owned(), port: port.parse().ok() }
            }
            // Its name is long, and contains nothing that its peer's does not.
            ["", "unix", ..] => {
                let whose = attempt.place.split("/unix/").next().unwrap_or_default();
                Place { host: format!("{whose}a Unix socket"), port: None }
            }
            _ => Place { host: attempt.place.clone(), port: None },
        }
    }

    fn is_ipv6(&self) -> bool {
        self.host.parse::<Ipv6Addr>().is_ok()
    }

    /// The host, in brackets if it contains colons and a port may follow.
    fn shown_host(&self) -> String {
        if self.is_ipv6() { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.shown_host()),
            None => f.write_str(&self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::{Release, parse_address};

    fn attempt(source: Source, address: &str, verdict: Verdict, outcome: &str) -> Attempt {
        let address = Some(parse_address(address).unwrap());
        Attempt {
            source,
            place: "…".to_owned(),
            address,
            verdict,
            outcome: outcome.to_owned(),
            speaks: None,
            peer: None,
        }
    }

    #[test]
    fn each_reason_has_its_conclusion_and_remedy() {
        use Source::{Configured, Lan};
        let check = |source, address: &str, verdict, outcome: &str, what: &str, remedy: &str| {
            let concluded = conclude(&[attempt(source, address, verdict, outcome)]);
            let [one] = &concluded[..] else { panic!("{verdict:?}: {concluded:?}") };
            assert!(one.what.contains(what), "{verdict:?}: {one:?}");
            assert!(one.remedy.contains(remedy), "{verdict:?}: {one:?}");
        };
        let lan = "192.168.77.12:46679";
        let stale = "mDNS hears 192.168.77.12, but TCP 46679 does not answer: a firewall, or the address is stale";
        check(Lan, lan, Verdict::Silent, "nobody answers", stale, "ufw allow 46679/tcp");
        check(Lan, lan, Verdict::Unreachable, "no route", stale, "firewall-cmd --add-port=46679/tcp");
        check(Lan, lan, Verdict::OtherKey, "", "One peer was seen and refused our key: 192.168.77.12:46679", "join");
        check(Lan, lan, Verdict::OtherKey, "", "refused our key", "somebody else's mesh");
        let peer = "10.0.0.7:4001";
        check(Configured, peer, Verdict::Silent, "", "10.0.0.7:4001 does not answer (configured peer)", "4001/tcp");
        check(Configured, peer, Verdict::Refused, "", "nothing listens at 10.0.0.7:4001", "--listen 0.0.0.0:4001");
        check(
            Configured,
            peer,
            Verdict::Unreachable,
            "no route",
            "10.0.0.7:4001 cannot be reached from here (configured peer): no route",
            "ip route get 10.0.0.7",
        );
        check(Configured, peer, Verdict::Forbidden, "not permitted", "blocks connections to 10.0.0.7:4001", "nft list");
        check(Configured, peer, Verdict::Slow, "", "does not finish the handshake", "suspended");
        check(
            Configured,
            peer,
            Verdict::NoNode,
            "it is not a meshtf node",
            "not as a node of a mesh: it is not a meshtf node",
            "meshtf ps",
        );
        check(Configured, peer, Verdict::KeyWanted, "", "requires a mesh key", "Leave out --open here");
        check(Configured, peer, Verdict::Open, "", "runs open", "without --open");
        check(Configured, peer, Verdict::OtherMesh, "", "another name", "MESHTF_MESH");
        check(Configured, peer, Verdict::OtherVersion, "it speaks version 3", "it speaks version 3", "--version");
        check(
            Configured,
            "lab:7",
            Verdict::Unresolved,
            "lab cannot be resolved",
            "lab cannot be resolved",
            "IP address",
        );
        check(
            Configured,
            "[fe80::1]:7",
            Verdict::Refused,
            "",
            "at [fe80::1]:7",
            "on [fe80::1]: `meshtf node … --listen [::]:7`",
        );
        let caller = Source::Caller;
        check(
            caller,
            peer,
            Verdict::OtherKey,
            "",
            "One peer connected here with another mesh key",
            "`meshtf ticket` here",
        );
    }

    #[test]
    fn a_name_that_is_looked_up_for_long_is_told_at_last() {
        let pending = |address: &str| attempt(Source::Configured, address, Verdict::Pending, "being dialled");
        assert_eq!(conclude(&[pending("lab:7")]), []);
        let [late] = &conclude_at_last(&[pending("lab:7"), pending("10.0.0.7:1")])[..] else { panic!() };
        assert_eq!(late.what, "the name of lab:7 (configured peer) is still being looked up");
    }

    #[test]
    fn peers_with_one_reason_are_told_together() {
        let denied = |host: u8| attempt(Source::Configured, &format!("10.0.0.{host}:1"), Verdict::OtherKey, "");
        let concluded = conclude(&(1..=6).map(denied).collect::<Vec<_>>());
        let whats: Vec<&str> = concluded.iter().map(|one| one.what.as_str()).collect();
        let places = "10.0.0.1:1, 10.0.0.2:1, 10.0.0.3:1, 10.0.0.4:1, and 2 more";
        assert_eq!(whats, [format!("6 peers were seen and refused our key: {places}")]);
    }

    #[test]
    fn several_are_told_in_the_plural_with_what_is_true_of_all() {
        use Source::{Configured, Lan};
        let check = |source, verdict, ports: [u16; 2], what: &str, remedy: &str| {
            let one = |(host, port): (u8, u16)| attempt(source, &format!("10.0.0.{host}:{port}"), verdict, "why");
            let concluded = conclude(&[one((1, ports[0])), one((2, ports[1]))]);
            let [one] = &concluded[..] else { panic!("{verdict:?}: {concluded:?}") };
            assert!(one.what.contains(what) && one.remedy.contains(remedy), "{verdict:?}: {one:?}");
        };
        let two = [7, 7];
        let silent = "mDNS hears 10.0.0.1:7, 10.0.0.2:7, which do not answer: firewalls, or the addresses are stale";
        check(Lan, Verdict::Silent, two, silent, "On those machines: `sudo ufw allow 7/tcp` or");
        check(Lan, Verdict::Silent, [7, 8], "10.0.0.1:7, 10.0.0.2:8", "`sudo ufw allow PORT/tcp`");
        check(Configured, Verdict::Silent, two, "10.0.0.2:7 do not answer", "those machines: `sudo ufw allow 7/tcp`");
        check(Configured, Verdict::KeyWanted, two, "2 peers were seen and require a mesh key", "those nodes");
        check(Configured, Verdict::Open, two, "2 peers were seen and run open", "those nodes");
        check(Configured, Verdict::OtherMesh, two, "2 peers were seen and are of meshes", "--mesh NAME");
        check(Configured, Verdict::Slow, two, "10.0.0.2:7 accept connections and do not finish", "machines are");
        check(Configured, Verdict::NoNode, two, "10.0.0.2:7 answer, but not as nodes of a mesh: why", "those ports");
        check(Configured, Verdict::Moved, two, "different nodes are at 10.0.0.1:7, 10.0.0.2:7 now", "addresses are");
        check(Configured, Verdict::Refused, two, "nothing listens at 10.0.0.1:7, 10.0.0.2:7", "--listen 0.0.0.0:7`");
        check(
            Configured,
            Verdict::Refused,
            [7, 8],
            "nothing listens at",
            "on those machines: `meshtf node … --listen 0.0.0.0:PORT`",
        );
        check(Source::Caller, Verdict::OtherKey, two, "Several peers connected here", "`meshtf join TICKET` there");
    }

    #[test]
    fn a_unix_socket_is_shown_by_whose_it_is() {
        let socket = |place: &str| Attempt {
            place: place.to_owned(),
            ..attempt(Source::Registry, "/unix/@meshtf-12D3KooWAbCdEfGh", Verdict::OtherVersion, "")
        };
        assert_eq!(shown_place(&socket("…AbCdEfGh at /unix/@meshtf-12D3KooWAbCdEfGh")), "…AbCdEfGh at a Unix socket");
        assert_eq!(shown_place(&socket("/unix/@meshtf-12D3KooWAbCdEfGh")), "a Unix socket");
    }

    #[test]
    fn an_unauthenticated_peer_may_be_somebody_elses() {
        let is_fine = |source, verdict| conclude(&[attempt(source, "10.0.0.1:1", verdict, "")])[0].may_be_fine;
        assert!(is_fine(Source::Lan, Verdict::OtherKey) && is_fine(Source::Caller, Verdict::OtherKey));
        assert!(!is_fine(Source::Configured, Verdict::OtherKey) && !is_fine(Source::Caller, Verdict::OtherVersion));
        assert!(!is_fine(Source::Lan, Verdict::OtherVersion), "it has the key");
        assert!(!is_fine(Source::Lan, Verdict::Silent));
    }

    #[test]
    fn each_other_version_is_told_by_name() {
        let of = |host: u8, release: &str, protocol| Attempt {
            speaks: Some(Speaks { protocol, release: Release::new(release) }),
            ..attempt(Source::Configured, &format!("10.0.0.{host}:1"), Verdict::OtherVersion, "")
        };
        let own = Speaks::own();
        let concluded = conclude(&[of(1, "0.9.0", 900), of(2, "", 901), of(3, "0.9.0", 900)]);
        let whats: Vec<&str> = concluded.iter().map(|one| one.what.as_str()).collect();
        let first = format!(
            "2 peers were seen and are meshtf 0.9.0 (protocol 900), while this is {own}; they refuse each other: \
             10.0.0.1:1, 10.0.0.3:1"
        );
        let second = format!(
            "One peer was seen and is a meshtf of another release (protocol 901), while this is {own}; they refuse each \
             other: 10.0.0.2:1"
        );
        assert_eq!(whats, [first, second]);
    }

    #[test]
    fn old_addresses_matter_only_to_who_has_met_nobody() {
        let old = attempt(Source::Ticket, "10.0.0.1:1", Verdict::Silent, "nobody answers");
        let met = attempt(Source::Lan, "10.0.0.2:1", Verdict::Met, "connected");
        let given = attempt(Source::Configured, "10.0.0.3:1", Verdict::Silent, "nobody answers");
        let refused = attempt(Source::Ticket, "10.0.0.1:1", Verdict::OtherKey, "another key");
        let check = |attempts: &[&Attempt], count: usize| {
            let attempts: Vec<Attempt> = attempts.iter().map(|&attempt| attempt.clone()).collect();
            assert_eq!(conclude(&attempts).len(), count, "{attempts:?}");
        };
        check(&[&old], 1);
        check(&[&old, &met], 0);
        check(&[&given, &met], 1);
        check(&[&refused, &met], 1);
        check(&[&met], 0);
        // Ways of discovery are not peers, whatever they found.
        let way = Attempt { address: None, ..met };
        check(&[&way], 0);
        check(&[&way, &old], 1);
    }
}
