//! Why nodes do not meet: what the attempts to reach peers come down to, and what to do about it.
//!
//! Pure. `doctor`, `ps`, `submit` and a node that has met nobody conclude alike, from here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::paint::{Paint, Tone};
use crate::mesh::{Attempt, Multiaddr, Source, Speaks, Verdict};

/// Most places that one conclusion names.
const MAX_NAMED: usize = 4;

/// What is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Conclusion {
    pub what: String,
    pub remedy: String,
    /// It is of somebody else's mesh, perhaps.
    pub may_be_fine: bool,
}

impl Conclusion {
    /// As lines for people.
    pub fn shown(&self, paint: Paint) -> String {
        format!("{}\n    {}", self.what, paint.tone(Tone::Accent, &self.remedy))
    }
}

/// What the attempts come down to: one conclusion for each reason for which peers were seen and not met. An old address, of a
/// ticket or of hearsay, at which nobody is any more is worth one only as long as nobody was met.
pub(super) fn conclude(attempts: &[Attempt]) -> Vec<Conclusion> {
    let has_met = attempts.iter().any(|attempt| attempt.address.is_some() && attempt.verdict == Verdict::Met);
    let mut by_reason: BTreeMap<(Verdict, Source, Option<Speaks>), Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts.iter().filter(|attempt| attempt.address.is_some()) {
        let is_old = matches!(attempt.source, Source::Ticket | Source::Hearsay | Source::Registry);
        if !(has_met && is_old && !attempt.verdict.is_final()) {
            by_reason.entry((attempt.verdict, attempt.source, attempt.speaks)).or_default().push(attempt);
        }
    }
    by_reason.into_iter().filter_map(|((verdict, source, _), tried)| of_reason(verdict, source, &tried)).collect()
}

/// The same at the end of the time that peers have to answer: a name that is still being looked up by then is told, too.
pub(super) fn conclude_at_last(attempts: &[Attempt]) -> Vec<Conclusion> {
    let is_name = |attempt: &&Attempt| {
        let address = attempt.address.as_ref().map(Multiaddr::to_string).unwrap_or_default();
        attempt.verdict == Verdict::Pending && address.starts_with("/dns")
    };
    let late = attempts.iter().filter(is_name).map(|attempt| Conclusion {
        what: format!("the name of {} ({}) is still being looked up", Place::of(attempt), attempt.source),
        remedy: "The name server does not answer: `resolvectl status` or /etc/resolv.conf tells which it is. An IP address needs none."
            .to_owned(),
        may_be_fine: false,
    });
    conclude(attempts).into_iter().chain(late).collect()
}

/// The conclusions as text, one after the other; empty if there are none.
pub(super) fn concluded(attempts: &[Attempt], paint: Paint) -> String {
    conclude_at_last(attempts).iter().map(|conclusion| format!("\n  {}", conclusion.shown(paint))).collect()
}

fn of_reason(verdict: Verdict, source: Source, tried: &[&Attempt]) -> Option<Conclusion> {
    let (first, places) = (tried.first()?, places(tried));
    let peers = if tried.len() == 1 { "One peer was".to_owned() } else { format!("{} peers were", tried.len()) };
    let seen = |what: &str| format!("{peers} seen and {what}: {places}");
    let at = Place::of(first);
    let (what, remedy) = match verdict {
        Verdict::Pending | Verdict::Itself | Verdict::TaskTaken | Verdict::Met => return None,
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
            seen("requires a mesh key, but this side runs open"),
            "Leave out --open here, or restart that node with --open.".to_owned(),
        ),
        Verdict::Open => (
            seen("runs open, without a key, but this side has one"),
            "Restart that node without --open, after `meshtf ticket` here and `meshtf join TICKET` there.".to_owned(),
        ),
        Verdict::OtherMesh => {
            (seen("is of a mesh of another name"), "Give both the same name: --mesh NAME, or MESHTF_MESH.".to_owned())
        }
        Verdict::OtherVersion => (
            match first.speaks {
                Some(theirs) => seen(&format!(
                    "{} {theirs}, while this is {}; they refuse each other",
                    if tried.len() == 1 { "is" } else { "are" },
                    Speaks::own()
                )),
                None => seen(&first.outcome),
            },
            "Install the same release on all machines of the mesh, and restart its nodes: `meshtf --version` tells which \
             there is."
                .to_owned(),
        ),
        Verdict::Full => (seen(&first.outcome), "Close clients or nodes that are not needed.".to_owned()),
        Verdict::Slow => (
            format!("{places} accepts connections and does not finish the handshake"),
            format!("The machine is overloaded, or the node is suspended; {} `meshtf status` shows more.", at.there()),
        ),
        Verdict::NoNode | Verdict::HungUp => (
            format!("{places} answers, but not as a node of a mesh: {}", first.outcome),
            format!("Another program has that port; {} `meshtf ps` shows the addresses of nodes.", at.there()),
        ),
        Verdict::Moved => (
            format!("a different node is at {places} now"),
            "The address is out of date. `meshtf ps` on a machine of the mesh shows the current one."
                .to_owned(),
        ),
        Verdict::Refused => (
            format!("nothing listens at {places} ({source})"),
            format!(
                "The node is not running, or has another port now: {} `meshtf node … --listen 0.0.0.0:{}` keeps it on one \
                 port.",
                at.there(),
                at.port()
            ),
        ),
        Verdict::Silent | Verdict::Unreachable if source == Source::Lan => (
            format!(
                "mDNS hears {}, but TCP {} does not answer: a firewall, or the address is stale",
                at.host,
                at.port()
            ),
            format!("On that machine: {} allows the port; `meshtf ps` tells whether it has another by now.", at.allow()),
        ),
        Verdict::Silent => (
            format!(
                "{places} does not answer ({source}): a firewall drops it, the machine is off, or the address is wrong"
            ),
            format!("On that machine: `meshtf ps` shows the address, {} allows the port.", at.allow()),
        ),
        Verdict::Unreachable => (
            format!("there is no route to {places} ({source}): {}", first.outcome),
            format!("See `ip route get {}`, and whether both machines are on one network.", at.host),
        ),
        Verdict::Forbidden => (
            format!("this machine blocks connections to {places}: {}", first.outcome),
            "Its own firewall does: `sudo nft list ruleset` shows the rule.".to_owned(),
        ),
        Verdict::Unresolved => (
            format!("{}, given as {places} ({source})", first.outcome),
            "Correct the name, or give the IP address that `meshtf ps` shows on a machine of the mesh.".to_owned(),
        ),
    };
    let may_be_fine = source == Source::Lan && verdict.is_final();
    Some(Conclusion { what, remedy, may_be_fine })
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

/// Where an attempt went: `10.0.0.7:4001`.
pub(super) fn shown_place(attempt: &Attempt) -> String {
    Place::of(attempt).to_string()
}

/// A host and a port, as people write them.
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
            _ => Place { host: attempt.place.clone(), port: None },
        }
    }

    fn port(&self) -> String {
        self.port.map_or_else(|| "PORT".to_owned(), |port| port.to_string())
    }

    fn there(&self) -> String {
        format!("on {}:", self.host)
    }

    /// How the two firewalls that most machines have are told to let the port in.
    fn allow(&self) -> String {
        let port = self.port();
        format!("`sudo ufw allow {port}/tcp` or `sudo firewall-cmd --add-port={port}/tcp`")
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.port, self.host.parse::<IpAddr>()) {
            (Some(port), Ok(IpAddr::V6(host))) => write!(f, "[{host}]:{port}"),
            (Some(port), _) => write!(f, "{}:{port}", self.host),
            (None, _) => f.write_str(&self.host),
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
            "there is no route to 10.0.0.7:4001",
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
        check(Configured, "[fe80::1]:7", Verdict::Refused, "", "at [fe80::1]:7", "0.0.0.0:7");
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
        // Ways of finding are not peers, whatever they found.
        let way = Attempt { address: None, ..met };
        check(&[&way], 0);
        check(&[&way, &old], 1);
    }
}
