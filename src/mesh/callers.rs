//! Who came to this node and was turned away for another version of the protocol: it has the key, and belongs here.
//!
//! Pure: time comes in as an argument.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::address::{Multiaddr, ip};
use super::discovery::{Attempt, Source, Verdict};
use super::release::Speaks;

/// Most that are remembered.
const MAX_CALLERS: usize = 64;
/// How long one is remembered: several times as long as one that was turned away waits before it comes again.
const REMEMBERED_FOR: Duration = Duration::from_secs(120);

struct Caller {
    speaks: Speaks,
    why: String,
    last: Instant,
}

/// Those who came, by the machine that they came from; the ports that they came from tell nothing.
#[derive(Default)]
pub struct Callers(BTreeMap<Option<IpAddr>, Caller>);

impl Callers {
    /// Somebody came from that address, and was turned away for what it speaks.
    pub fn note(&mut self, from: &Multiaddr, speaks: Speaks, why: String, now: Instant) {
        self.0.retain(|_, caller| now.duration_since(caller.last) < REMEMBERED_FOR);
        let machine = ip(from);
        if self.0.len() < MAX_CALLERS || self.0.contains_key(&machine) {
            self.0.insert(machine, Caller { speaks, why, last: now });
        }
    }

    /// What is known of them, without those of machines at which one of the `attempts` met the same.
    pub fn attempts(&self, attempts: &[Attempt], now: Instant) -> Vec<Attempt> {
        let is_told = |machine: &Option<IpAddr>, caller: &Caller| {
            attempts.iter().any(|attempt| {
                attempt.speaks == Some(caller.speaks) && attempt.address.as_ref().and_then(ip) == *machine
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
            verdict: Verdict::OtherVersion,
            outcome: caller.why.clone(),
            speaks: Some(caller.speaks),
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
        let from = |text: &str| text.parse::<Multiaddr>().unwrap();
        let places = |callers: &Callers, met: &[Attempt], now| {
            callers.attempts(met, now).into_iter().map(|attempt| (attempt.place, attempt.speaks)).collect::<Vec<_>>()
        };
        callers.note(&from("/ip4/10.0.0.7/tcp/50001"), speaks(2), "old".into(), start);
        callers.note(&from("/ip4/10.0.0.7/tcp/50002"), speaks(3), "old".into(), start);
        callers.note(&from("/unix/@meshtf-x"), speaks(9), "new".into(), start);
        let seven = ("10.0.0.7".to_owned(), Some(speaks(3)));
        assert_eq!(places(&callers, &[], start), [("this machine".to_owned(), Some(speaks(9))), seven.clone()]);
        // One that was dialled, too, is known with its port.
        let dialled =
            Attempt { address: Some(from("/ip4/10.0.0.7/tcp/4001")), ..callers.attempts(&[], start).remove(1) };
        assert_eq!(places(&callers, &[dialled], start), [("this machine".to_owned(), Some(speaks(9)))]);
        callers.note(&from("/ip4/10.0.0.7/tcp/50003"), speaks(3), "old".into(), start + REMEMBERED_FOR / 2);
        assert_eq!(places(&callers, &[], start + REMEMBERED_FOR), [seven]);
        for host in 0..=255 {
            callers.note(&from(&format!("/ip4/10.1.0.{host}/tcp/1")), speaks(3), "old".into(), start + REMEMBERED_FOR);
        }
        assert_eq!(callers.attempts(&[], start + REMEMBERED_FOR).len(), MAX_CALLERS);
    }
}
