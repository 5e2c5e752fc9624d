//! The health of a link: when to look for another connection, and when to give it up.
//!
//! Pure: time comes in as an argument. A link is in doubt after some time of silence: when a wire was cut and is whole again,
//! the old connection may stay stuck for seconds, while a new one works at once.

use std::time::{Duration, Instant};

/// Silence up to this long is normal: a peer sends a sign of life every half second.
pub const DOUBT_AFTER: Duration = Duration::from_millis(1200);
/// How long the peer of a link may be silent. That is 3 s for a cut wire, the silence before the cut, and the time that a new
/// connection takes on a busy machine.
pub const LINK_LIMIT: Duration = Duration::from_secs(6);
/// How long a link is kept if its peer closed the connection and listens nowhere (a client): if it lives, it dials at once.
pub const RETURN_LIMIT: Duration = Duration::from_secs(1);
/// Pauses between dials: none before the first, then ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The action to take for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing before this time.
    Wait(Instant),
    /// Dial the peer, and look again after this time.
    Dial(Instant),
    /// Give it up.
    GiveUp,
}

/// The state of one link's repair.
#[derive(Debug, Default)]
pub struct Health {
    /// When to dial next, and the pause after that; `None` while all is well.
    dial: Option<(Instant, Duration)>,
}

impl Health {
    /// `heard`: when the peer was last heard; `broken`: the link has no connection; `limit`: when it is given up.
    pub fn look(&mut self, now: Instant, heard: Instant, broken: bool, limit: Instant) -> Remedy {
        if now >= limit {
            return Remedy::GiveUp;
        }
        if !broken && now < heard + DOUBT_AFTER {
            self.dial = None;
            return Remedy::Wait(heard + DOUBT_AFTER);
        }
        let (due, pause) = self.dial.unwrap_or((now, FIRST_PAUSE));
        if now < due {
            return Remedy::Wait(due.min(limit));
        }
        self.dial = Some((now + pause, LONGEST_PAUSE.min(pause * 2)));
        Remedy::Dial(limit.min(now + pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `look` as requested, from `from` ms after the peer was heard, until the link is given up; returns when it dialled.
    fn dials(health: &mut Health, start: Instant, from: u64, broken: bool) -> (Vec<u64>, u64) {
        let mut now = start + Duration::from_millis(from);
        let mut dials = Vec::new();
        loop {
            let at = (now - start).as_millis() as u64;
            match health.look(now, start, broken, start + LINK_LIMIT) {
                Remedy::Wait(next) => now = next,
                Remedy::Dial(next) => {
                    dials.push(at);
                    now = next;
                }
                Remedy::GiveUp => return (dials, at),
            }
            assert!((now - start).as_millis() as u64 > at || dials.last() == Some(&at), "it looks again at {at}");
        }
    }

    #[test]
    fn a_broken_connection_is_dialled_at_once_and_again_until_the_limit() {
        let start = Instant::now();
        let (dials, given_up) = dials(&mut Health::default(), start, 0, true);
        assert_eq!(dials[..5], [0, 50, 150, 350, 600]);
        assert!(dials.windows(2).all(|pair| pair[1] - pair[0] <= 250), "{dials:?}");
        assert_eq!(given_up, LINK_LIMIT.as_millis() as u64);
    }

    #[test]
    fn a_silent_peer_is_dialled_beside_its_connection() {
        let start = Instant::now();
        let (dials, given_up) = dials(&mut Health::default(), start, 0, false);
        assert_eq!(dials[..3], [1200, 1250, 1350]);
        assert_eq!(given_up, LINK_LIMIT.as_millis() as u64);
    }

    #[test]
    fn a_word_from_the_peer_ends_the_doubt() {
        let (mut health, start) = (Health::default(), Instant::now());
        let later = start + Duration::from_secs(2);
        let limit = later + LINK_LIMIT;
        assert!(matches!(health.look(later, start, false, limit), Remedy::Dial(_)));
        assert_eq!(health.look(later, later, false, limit), Remedy::Wait(later + DOUBT_AFTER));
        let broken = later + Duration::from_secs(1);
        assert_eq!(health.look(broken, later, true, limit), Remedy::Dial(broken + FIRST_PAUSE));
        assert_eq!(health.look(broken, later, true, broken), Remedy::GiveUp, "a limit that is over already");
    }
}
