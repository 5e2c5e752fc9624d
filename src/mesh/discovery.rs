//! Discovery: which targets to dial, when, and the outcome.
//!
//! Pure: time comes in as an argument. Every way of finding peers adds targets to it. A target that does not answer is tried
//! again, ever more slowly, as long as its source names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use libp2p::PeerId;

use super::address::{Multiaddr, without_peer};
use super::release::Speaks;
use crate::protocol::Peer;

/// Most targets at once.
pub const MAX_TARGETS: usize = 4096;
/// Most addresses of one target.
const MAX_ADDRESSES: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause for a peer that was up until a short time ago: steps may wait for it, as after a cable was cut.
const LONGEST_MISSED_PAUSE: Duration = Duration::from_millis(500);
/// How long a peer is missed.
const MISSED_FOR: Duration = Duration::from_secs(60);
/// How long a target that refused this participant, or is this participant, is left alone.
const DENIED_PAUSE: Duration = Duration::from_secs(30);
/// After this many failures, a peer known only from other nodes is forgotten, unless it is missed.
const HEARSAY_ATTEMPTS: u32 = 12;

/// How a target became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Source {
    /// `--peer`, `MESHTF_PEERS`.
    Configured,
    /// The cluster file.
    ClusterFile,
    /// A ticket that was accepted some time ago.
    Ticket,
    /// Another process on this machine.
    Registry,
    /// mDNS.
    Lan,
    /// A peer reported it, or it was up before.
    Hearsay,
    /// It connected to this node and was refused.
    Caller,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Configured => "configured peer",
            Source::ClusterFile => "cluster file",
            Source::Ticket => "address of a ticket",
            Source::Registry => "this machine",
            Source::Lan => "mDNS",
            Source::Hearsay => "known peer",
            Source::Caller => "it connected here",
        })
    }
}

/// A target to dial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// As it was configured; it may begin with a host name.
    Address(Multiaddr),
    Peer(PeerId),
}

/// An attempt to find a peer, and the outcome: one line for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// How the address became known, or the way of finding that was tried.
    pub source: Source,
    /// The address, folder or network.
    pub place: String,
    /// The address that was dialled; of several, the one that the verdict is about. `None`: a way of finding, not an address.
    pub address: Option<Multiaddr>,
    /// The class of the last outcome; of a way of finding, whether it found a peer.
    pub verdict: Verdict,
    /// The last outcome.
    pub outcome: String,
    /// The version of meshtf at the address, if it is of another version of the protocol.
    pub speaks: Option<Speaks>,
    /// The peer that answered, or that was expected, if known.
    pub peer: Option<Peer>,
}

impl Attempt {
    /// A way of finding that is not an address, and how many peers it found.
    pub(super) fn way(source: Source, place: String, found: usize, outcome: String) -> Self {
        let verdict = if found > 0 { Verdict::Met } else { Verdict::Pending };
        Attempt { source, place, address: None, verdict, outcome, speaks: None, peer: None }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.source, self.place, self.outcome)
    }
}

/// The class of the outcome of an attempt to reach an address, ordered by how far the attempt got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Verdict {
    /// It has not been tried, or is being tried.
    Pending,
    /// The name has no address.
    Unresolved,
    /// This machine may not send to the address.
    Forbidden,
    /// There is no route, or no machine on the network has the address.
    Unreachable,
    /// Nothing answers.
    Silent,
    /// The machine answers that nothing listens at the port.
    Refused,
    /// A connection is made, and the handshake does not end in time.
    Slow,
    /// The other side hangs up.
    HungUp,
    /// Another peer has the address than the one that was looked for.
    Moved,
    /// It is this participant.
    Itself,
    /// A program other than a node answers.
    NoNode,
    /// It has another mesh key.
    OtherKey,
    /// It wants a mesh key, and this participant runs open.
    KeyWanted,
    /// It runs open, and this participant has a key.
    Open,
    /// It is of a mesh of another name.
    OtherMesh,
    /// It speaks another version of the protocol.
    OtherVersion,
    /// It has as many peers as it may have.
    Full,
    /// It holds the task that this participant claims.
    TaskTaken,
    /// A member of the mesh answers.
    Met,
}

impl Verdict {
    /// Whether the next try will end the same way.
    pub fn is_final(self) -> bool {
        use Verdict::{Itself, KeyWanted, NoNode, Open, OtherKey, OtherMesh, OtherVersion};
        matches!(self, Itself | NoNode | OtherKey | KeyWanted | Open | OtherMesh | OtherVersion)
    }
}

/// The state of finding peers.
#[derive(Default)]
pub struct Search {
    pub attempts: Vec<Attempt>,
    /// Waiting is useless: all known peers refuse this participant, and at least one was configured.
    pub turned_away: bool,
}

/// A failure to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    pub verdict: Verdict,
    pub why: String,
    /// With [`Verdict::OtherVersion`]: the meshtf of the peer.
    pub speaks: Option<Speaks>,
    /// The address that got as far as the verdict.
    pub address: Option<Multiaddr>,
}

impl Miss {
    pub fn new(verdict: Verdict, why: impl Into<String>) -> Self {
        Miss { verdict, why: why.into(), speaks: None, address: None }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    source: Source,
    addresses: Vec<Multiaddr>,
    failures: u32,
    due: Instant,
    /// When the peer was last up.
    up: Option<Instant>,
    dialling: bool,
    /// The peer at the address refused this participant the last time.
    denied: bool,
    verdict: Verdict,
    /// The address that the verdict is about, if it is not the first.
    at: Option<Multiaddr>,
    /// The peer that was met at the address.
    peer: Option<PeerId>,
    outcome: Option<String>,
    speaks: Option<Speaks>,
}

impl Entry {
    /// The address that the verdict is about.
    fn place(&self) -> Option<&Multiaddr> {
        self.at.as_ref().or(self.addresses.first())
    }

    /// Whether the peer was up until a short time ago.
    fn is_missed(&self, now: Instant) -> bool {
        self.up.is_some_and(|up| now.duration_since(up) < MISSED_FOR)
    }
}

/// The targets.
#[derive(Default)]
pub struct Discovery {
    targets: BTreeMap<Target, Entry>,
}

impl Discovery {
    /// Adds a target, or addresses of one. New addresses are tried at once, before those that were known.
    pub fn learn(&mut self, target: Target, mut addresses: Vec<Multiaddr>, source: Source, now: Instant) {
        if let Some(entry) = self.targets.get_mut(&target) {
            entry.source = entry.source.min(source);
            addresses.retain(|address| !entry.addresses.contains(address));
            if !addresses.is_empty() {
                addresses.append(&mut entry.addresses);
                addresses.truncate(MAX_ADDRESSES);
                entry.addresses = addresses;
                entry.failures = 0;
                entry.due = now;
            }
            return;
        }
        if self.targets.len() >= MAX_TARGETS {
            return;
        }
        addresses.truncate(MAX_ADDRESSES);
        let entry = Entry {
            source,
            addresses,
            failures: 0,
            due: now,
            up: None,
            dialling: false,
            denied: false,
            verdict: Verdict::Pending,
            at: None,
            peer: None,
            outcome: None,
            speaks: None,
        };
        self.targets.insert(target, entry);
    }

    /// A peer was met at this address, which is tried first from now on.
    pub fn met_at(&mut self, peer: &PeerId, address: Multiaddr) {
        if let Some(entry) = self.targets.get_mut(&Target::Peer(*peer)) {
            entry.addresses.retain(|other| *other != address);
            entry.addresses.insert(0, address);
            entry.addresses.truncate(MAX_ADDRESSES);
        }
    }

    /// Forgets the targets of `source`, except those to keep and those being dialled.
    pub fn forget(&mut self, source: Source, keep: impl Fn(&PeerId) -> bool) {
        self.targets.retain(|target, entry| {
            entry.source != source || matches!(target, Target::Peer(peer) if keep(peer)) || entry.dialling
        });
    }

    /// A peer has left for good.
    pub fn farewell(&mut self, peer: &PeerId) {
        self.targets.retain(|target, entry| {
            *target != Target::Peer(*peer)
                || matches!(entry.source, Source::Configured | Source::Ticket | Source::Registry)
        });
    }

    /// The targets to dial now, with their addresses. Each counts as being dialled until its outcome is reported.
    pub fn due(&mut self, now: Instant, is_up: impl Fn(&PeerId) -> bool) -> Vec<(Target, Vec<Multiaddr>)> {
        let mut due = Vec::new();
        for (target, entry) in &mut self.targets {
            let peer = if let Target::Peer(peer) = target { Some(*peer) } else { entry.peer };
            if peer.is_some_and(|peer| is_up(&peer)) {
                entry.up = Some(now);
                continue;
            }
            if entry.dialling || entry.due > now {
                continue;
            }
            entry.dialling = true;
            due.push((target.clone(), entry.addresses.clone()));
        }
        due
    }

    /// When the next target is due, of those that are not up.
    pub fn next_due(&self, is_up: impl Fn(&PeerId) -> bool) -> Option<Instant> {
        let waiting = self.targets.iter().filter(|(target, entry)| {
            let peer = if let Target::Peer(peer) = target { Some(*peer) } else { entry.peer };
            !entry.dialling && !peer.is_some_and(|peer| is_up(&peer))
        });
        waiting.map(|(_, entry)| entry.due).min()
    }

    /// The outcome of dialling a target.
    pub fn outcome(&mut self, target: &Target, result: Result<PeerId, Miss>, now: Instant) {
        let Some(entry) = self.targets.get_mut(target) else { return };
        entry.dialling = false;
        entry.verdict = result.as_ref().map_or_else(|miss| miss.verdict, |_| Verdict::Met);
        entry.denied = entry.verdict.is_final();
        entry.speaks = result.as_ref().err().and_then(|miss| miss.speaks);
        entry.at = result.as_ref().err().and_then(|miss| miss.address.clone());
        let (pause, outcome) = match result {
            Ok(peer) => {
                entry.peer = Some(peer);
                entry.failures = 0;
                (FIRST_PAUSE, format!("connected with {peer}"))
            }
            Err(miss) => {
                entry.failures += 1;
                let longest = if entry.is_missed(now) { LONGEST_MISSED_PAUSE } else { LONGEST_PAUSE };
                let pause = longest.min(FIRST_PAUSE * 2u32.saturating_pow(entry.failures.min(10)));
                (if entry.denied { DENIED_PAUSE } else { pause }, miss.why)
            }
        };
        entry.due = now + pause;
        entry.outcome = Some(outcome);
        if entry.source == Source::Hearsay && entry.failures >= HEARSAY_ATTEMPTS && !entry.is_missed(now) {
            self.targets.remove(target);
        }
    }

    /// A connected peer refused this participant.
    pub fn turned_away(&mut self, peer: &PeerId, verdict: Verdict, why: &str, now: Instant) {
        for (target, entry) in &mut self.targets {
            if *target == Target::Peer(*peer) || entry.peer == Some(*peer) {
                entry.due = now + DENIED_PAUSE;
                entry.denied = true;
                entry.verdict = verdict;
                entry.outcome = Some(format!("turned away: {why}"));
            }
        }
    }

    /// Whether every target has been tried once.
    pub fn is_settled(&self) -> bool {
        self.targets.values().all(|entry| !entry.dialling && entry.outcome.is_some())
    }

    /// Whether every target refused this participant the last time it was tried, and at least one of them came from `source` or
    /// a better one. A peer that only mDNS found may well be of another mesh.
    pub fn is_turned_away(&self, source: Source) -> bool {
        self.targets.values().all(|entry| entry.denied) && self.targets.values().any(|entry| entry.source <= source)
    }

    /// Whether every target of `source` has been tried once.
    pub fn has_tried(&self, source: Source) -> bool {
        self.targets.values().all(|entry| entry.source != source || entry.outcome.is_some())
    }

    /// The attempts, without peers whose address now belongs to another peer that was met: they were restarted.
    pub fn attempts(&self) -> Vec<Attempt> {
        let met = self.targets.values().filter(|entry| entry.verdict == Verdict::Met);
        let met: BTreeSet<Multiaddr> =
            met.flat_map(|entry| entry.addresses.iter().cloned().map(without_peer)).collect();
        let is_replaced = |entry: &Entry| {
            entry.verdict == Verdict::Moved
                && entry.place().is_some_and(|place| met.contains(&without_peer(place.clone())))
        };
        let told = self.targets.iter().filter(|(_, entry)| !is_replaced(entry));
        let attempts = told.map(|(target, entry)| Attempt {
            source: entry.source,
            address: match target {
                Target::Address(address) => Some(address.clone()),
                Target::Peer(_) => entry.place().cloned(),
            },
            verdict: entry.verdict,
            place: match target {
                Target::Address(address) => address.to_string(),
                Target::Peer(peer) => match entry.place() {
                    Some(first) => format!("{} at {}", short(peer), without_peer(first.clone())),
                    None => short(peer),
                },
            },
            outcome: match (&entry.outcome, entry.dialling) {
                (Some(outcome), _) => outcome.clone(),
                (None, true) => "being dialled".to_owned(),
                (None, false) => "not dialled yet".to_owned(),
            },
            speaks: entry.speaks,
            peer: match target {
                Target::Peer(peer) => Some(Peer::new(peer.to_string())),
                Target::Address(_) => entry.peer.map(|peer| Peer::new(peer.to_string())),
            },
        });
        attempts.collect()
    }
}

/// The end of a PeerId, which distinguishes it; all PeerIds begin alike.
fn short(peer: &PeerId) -> String {
    let text = peer.to_string();
    format!("…{}", &text[text.len().saturating_sub(8)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(seed: u8) -> PeerId {
        libp2p::identity::Keypair::ed25519_from_bytes([seed; 32]).unwrap().public().to_peer_id()
    }

    fn address(text: &str) -> Multiaddr {
        crate::mesh::parse_address(text).unwrap()
    }

    fn silent() -> Result<PeerId, Miss> {
        Err(Miss::new(Verdict::Refused, "connection refused"))
    }

    #[test]
    fn a_target_is_tried_ever_more_slowly_and_at_once_when_it_moved() {
        let (mut discovery, start) = (Discovery::default(), Instant::now());
        let target = Target::Peer(peer(1));
        discovery.learn(target.clone(), vec![address("a:1")], Source::Registry, start);
        assert!(!discovery.is_settled());
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(discovery.due(now, |_| false).len(), 1);
            assert!(discovery.due(now, |_| false).is_empty(), "it is being dialled");
            discovery.outcome(&target, silent(), now);
            let next = discovery.next_due(|_| false).unwrap();
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]);
        assert!(discovery.is_settled());
        discovery.learn(target.clone(), vec![address("a:1")], Source::Hearsay, now);
        assert!(discovery.due(now - FIRST_PAUSE, |_| false).is_empty(), "nothing new was learned");
        discovery.learn(target, vec![address("b:2"), address("a:1")], Source::Hearsay, now - FIRST_PAUSE);
        assert_eq!(discovery.due(now - FIRST_PAUSE, |_| false)[0].1, [address("b:2"), address("a:1")]);
    }

    #[test]
    fn the_address_at_which_a_peer_was_met_comes_first() {
        let (mut discovery, now) = (Discovery::default(), Instant::now());
        discovery.learn(Target::Peer(peer(1)), vec![address("a:1"), address("b:2")], Source::Registry, now);
        discovery.met_at(&peer(1), address("b:2"));
        discovery.met_at(&peer(2), address("c:3"));
        let attempts = discovery.attempts();
        assert_eq!((attempts.len(), &attempts[0].address), (1, &Some(address("b:2"))));
        assert_eq!(attempts[0].peer, Some(Peer::new(peer(1).to_string())));
        assert_eq!(discovery.due(now, |_| false)[0].1, [address("b:2"), address("a:1")]);
    }

    #[test]
    fn of_several_addresses_the_one_that_got_furthest_is_told() {
        let (mut discovery, now) = (Discovery::default(), Instant::now());
        let target = Target::Peer(peer(1));
        discovery.learn(target.clone(), vec![address("10.0.0.7:1"), address("10.1.0.7:1")], Source::Lan, now);
        let miss = Miss { address: Some(address("10.1.0.7:1")), ..Miss::new(Verdict::Refused, "connection refused") };
        discovery.outcome(&target, Err(miss), now);
        let [attempt] = &discovery.attempts()[..] else { panic!() };
        assert_eq!(attempt.address, Some(address("10.1.0.7:1")));
        assert!(attempt.place.ends_with(" at /ip4/10.1.0.7/tcp/1"), "{attempt:?}");
        discovery.outcome(&target, Err(Miss::new(Verdict::Silent, "nothing answers")), now);
        assert_eq!(discovery.attempts()[0].address, Some(address("10.0.0.7:1")));
    }

    #[test]
    fn one_whose_place_another_has_by_now_is_not_told() {
        let (mut discovery, now) = (Discovery::default(), Instant::now());
        let addresses = vec![address("10.0.0.7:1"), address("10.1.0.7:1")];
        let [killed, started] = [peer(1), peer(2)].map(Target::Peer);
        discovery.learn(killed.clone(), addresses.clone(), Source::Lan, now);
        let moved = Miss { address: Some(addresses[1].clone()), ..Miss::new(Verdict::Moved, "a different peer") };
        discovery.outcome(&killed, Err(moved), now);
        discovery.learn(started.clone(), addresses, Source::Lan, now);
        assert_eq!(discovery.attempts().len(), 2, "nobody was met there yet");
        discovery.outcome(&started, Ok(peer(2)), now);
        let verdicts: Vec<Verdict> = discovery.attempts().iter().map(|attempt| attempt.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met]);
    }

    #[test]
    fn one_that_is_up_is_left_alone_and_dialled_again_when_it_is_gone() {
        let (mut discovery, now) = (Discovery::default(), Instant::now());
        let target = Target::Address(address("lab:7"));
        discovery.learn(target.clone(), vec![], Source::Configured, now);
        discovery.due(now, |_| false);
        discovery.outcome(&target, Ok(peer(2)), now);
        let later = now + Duration::from_secs(60);
        assert!(discovery.due(later, |up| *up == peer(2)).is_empty());
        assert_eq!(discovery.due(later, |_| false).len(), 1);
    }

    #[test]
    fn one_that_was_up_until_a_short_time_ago_is_tried_after_short_pauses() {
        let (mut discovery, start) = (Discovery::default(), Instant::now());
        let target = Target::Peer(peer(1));
        discovery.learn(target.clone(), vec![address("a:1")], Source::Hearsay, start);
        discovery.due(start, |_| false);
        discovery.outcome(&target, Ok(peer(1)), start);
        let lost = start + Duration::from_secs(3600);
        assert!(discovery.due(lost, |_| true).is_empty());
        let (mut now, mut pauses) = (lost, Vec::new());
        while now - lost < MISSED_FOR {
            assert_eq!(discovery.due(now, |_| false).len(), 1);
            discovery.outcome(&target, silent(), now);
            let next = discovery.next_due(|_| false).unwrap();
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses[..4], [200, 400, 500, 500]);
        assert!(pauses.len() > HEARSAY_ATTEMPTS as usize && pauses.iter().all(|pause| *pause <= 500), "{pauses:?}");
        // Nobody but others knew it, and it stayed away.
        assert_eq!(discovery.due(now, |_| false).len(), 1);
        discovery.outcome(&target, silent(), now);
        assert_eq!(discovery.next_due(|_| false), None);
    }

    #[test]
    fn a_denial_by_all_who_were_named_is_the_last_word() {
        let now = Instant::now();
        let denied = || Err(Miss::new(Verdict::OtherKey, "another key"));
        let check = |outcomes: Vec<(Source, Result<PeerId, Miss>)>, source, turned_away: bool| {
            let mut discovery = Discovery::default();
            for (i, (source, outcome)) in outcomes.iter().enumerate() {
                let target = Target::Address(address(&format!("host:{i}")));
                discovery.learn(target.clone(), vec![], *source, now);
                discovery.outcome(&target, outcome.clone(), now);
            }
            assert_eq!(discovery.is_turned_away(source), turned_away, "{outcomes:?}");
        };
        use Source::{Configured, Lan, Registry, Ticket};
        check(vec![], Ticket, false);
        check(vec![(Configured, denied())], Ticket, true);
        check(vec![(Configured, denied()), (Lan, denied())], Ticket, true);
        check(vec![(Configured, denied()), (Configured, silent())], Ticket, false);
        check(vec![(Configured, denied()), (Registry, silent())], Ticket, false);
        check(vec![(Configured, denied()), (Registry, Ok(peer(1)))], Ticket, false);
        check(vec![(Lan, denied()), (Registry, denied())], Ticket, false);
        check(vec![(Ticket, denied())], Ticket, true);
        check(vec![(Ticket, denied())], Configured, false);
    }

    #[test]
    fn hearsay_is_forgotten_and_the_configured_is_not() {
        let (mut discovery, mut now) = (Discovery::default(), Instant::now());
        let (told, configured) = (Target::Peer(peer(1)), Target::Address(address("x:1")));
        discovery.learn(told.clone(), vec![], Source::Hearsay, now);
        discovery.learn(configured.clone(), vec![], Source::Configured, now);
        for _ in 0..HEARSAY_ATTEMPTS {
            now += LONGEST_PAUSE;
            for (target, _) in discovery.due(now, |_| false) {
                discovery.outcome(&target, silent(), now);
            }
        }
        assert_eq!(discovery.attempts().len(), 1);
        discovery.farewell(&peer(1));
        assert_eq!(discovery.due(now + LONGEST_PAUSE, |_| false)[0].0, configured);
    }
}
