//! The peers that connected to this node and were refused, where either side can do something about it: for another version of
//! the protocol, for another mesh key, or because one side has none.
//!
//! Pure: time comes in as an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::address::{Multiaddr, ip};
use super::denied::Denied;
use super::discovery::{Attempt, Source, Verdict};
use super::release::Speaks;

/// Most callers that are remembered.
const MAX_CALLERS: usize = 64;
/// How long a caller is remembered: several times the pause after which a refused peer tries again.
const REMEMBERED_FOR: Duration = Duration::from_secs(120);

struct Caller {
    verdict: Verdict,
    speaks: Option<Speaks>,
    why: String,
    last: Instant,
}

/// The callers by the machine that they came from; the ports that they came from carry no information.
#[derive(Default)]
pub struct Callers(BTreeMap<Option<IpAddr>, Caller>);

impl Callers {
    /// Notes that a peer came from that address and was refused. Callers that are not nodes are not remembered.
    pub fn note(&mut self, from: &Multiaddr, denied: Denied, now: Instant) {
        let (verdict, speaks) = match denied {
            Denied::OtherVersion { theirs, .. } => (Verdict::OtherVersion, Some(theirs)),
            Denied::WrongKey => (Verdict::OtherKey, None),
            Denied::KeyWanted => (Verdict::KeyWanted, None),
            Denied::Open => (Verdict::Open, None),
            _ => return,
        };
        self.0.retain(|_, caller| now.duration_since(caller.last) < REMEMBERED_FOR);
        let machine = ip(from);
        if self.0.len() < MAX_CALLERS || self.0.contains_key(&machine) {
            self.0.insert(machine, Caller { verdict, speaks, why: denied.to_string(), last: now });
        }
    }

    /// The callers as attempts, without those of machines at which one of the `attempts` met the same refusal.
    pub fn attempts(&self, attempts: &[Attempt], now: Instant) -> Vec<Attempt> {
        let is_told = |machine: &Option<IpAddr>, caller: &Caller| {
            attempts.iter().any(|attempt| {
                (attempt.verdict, attempt.speaks) == (caller.verdict, caller.speaks)
                    && attempt.address.as_ref().and_then(ip) == *machine
            })
        };
        let known = self
            .0
            .iter()
            .filter(|(machine, caller)| now.duration_since(caller.last) < REMEMBERED_FOR && !is_told(machine, caller));
        let attempt = |(machine, caller): (&Option<IpAddr>, &Caller)| Attempt {
            source: Source::Caller,
            place: machine.map_or_else(|| "this machine".to_owned(), |machine| machine.to_string()),
            address: Some(machine.map_or_else(Multiaddr::empty, Multiaddr::from)),
            verdict: caller.verdict,
            outcome: caller.why.clone(),
            speaks: caller.speaks,
            peer: None,
        };
        known.map(attempt).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_told_once_for_each_machine_and_forgotten() {
        let (mut callers, start) = (Callers::default(), Instant::now());
        let speaks = |protocol| Speaks { protocol, release: None };
        let other = |protocol| Denied::OtherVersion { theirs: speaks(protocol), ours: Speaks::own() };
        let from = |text: &str| text.parse::<Multiaddr>().unwrap();
        let places = |callers: &Callers, met: &[Attempt], now| {
            callers.attempts(met, now).into_iter().map(|attempt| (attempt.place, attempt.speaks)).collect::<Vec<_>>()
        };
        callers.note(&from("/ip4/10.0.0.7/tcp/50001"), other(2), start);
        callers.note(&from("/ip4/10.0.0.7/tcp/50002"), other(3), start);
        callers.note(&from("/unix/@meshtf-x"), other(9), start);
        let seven = ("10.0.0.7".to_owned(), Some(speaks(3)));
        assert_eq!(places(&callers, &[], start), [("this machine".to_owned(), Some(speaks(9))), seven.clone()]);
        // A caller that was dialled as well is known with its port.
        let dialled =
            Attempt { address: Some(from("/ip4/10.0.0.7/tcp/4001")), ..callers.attempts(&[], start).remove(1) };
        assert_eq!(places(&callers, &[dialled], start), [("this machine".to_owned(), Some(speaks(9)))]);
        callers.note(&from("/ip4/10.0.0.7/tcp/50003"), other(3), start + REMEMBERED_FOR / 2);
        assert_eq!(places(&callers, &[], start + REMEMBERED_FOR), [seven]);
        for host in 0..=255 {
            callers.note(&from(&format!("/ip4/10.1.0.{host}/tcp/1")), other(3), start + REMEMBERED_FOR);
        }
        assert_eq!(callers.attempts(&[], start + REMEMBERED_FOR).len(), MAX_CALLERS);
    }

    #[test]
    fn those_with_another_key_or_none_are_told_and_unauthenticated_peers_are_not() {
        let (mut callers, now) = (Callers::default(), Instant::now());
        let from = |host: u8| format!("/ip4/10.0.0.{host}/tcp/50001").parse::<Multiaddr>().unwrap();
        for (host, denied) in [Denied::WrongKey, Denied::KeyWanted, Denied::Open].into_iter().enumerate() {
            callers.note(&from(host as u8), denied, now);
        }
        for denied in [Denied::UnauthenticatedPeer, Denied::Slow, Denied::Silent, Denied::Crowded, Denied::OtherPeer] {
            callers.note(&from(9), denied, now);
        }
        let verdicts: Vec<Verdict> = callers.attempts(&[], now).iter().map(|attempt| attempt.verdict).collect();
        assert_eq!(verdicts, [Verdict::OtherKey, Verdict::KeyWanted, Verdict::Open]);
        // If this side was refused for the key as well, one of the two attempts is enough.
        let mut dialled = callers.attempts(&[], now).remove(0);
        dialled.address = Some("/ip4/10.0.0.0/tcp/4001".parse().unwrap());
        assert_eq!(callers.attempts(&[dialled], now).len(), 2);
    }
}
