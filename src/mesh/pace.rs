//! The rate at which a link carries bulk: the bytes of large messages by the time until the peer has acknowledged them.
//!
//! Pure: time comes in as an argument.

use std::collections::BTreeMap;
use std::time::Instant;

/// Least bytes of a message that counts. The peer acknowledges so many at once; of fewer, the round trip is most of the time.
pub const LEAST_BYTES: usize = 1 << 20;

/// The rate of one direction of a link.
#[derive(Debug, Default)]
pub struct Pace {
    /// The bytes of each message that is on its way, and when its first byte was written.
    under_way: BTreeMap<u64, (usize, Instant)>,
    /// When the last of them came.
    came: Option<Instant>,
    rate: Option<u64>,
}

impl Pace {
    /// The first byte of a message of so many bytes is written now; of one that is sent again, for the last time.
    pub fn begin(&mut self, number: u64, bytes: usize, now: Instant) {
        if bytes >= LEAST_BYTES {
            self.under_way.insert(number, (bytes, now));
        }
    }

    /// The peer has every message up to `floor`, and those `beyond` it.
    pub fn end(&mut self, floor: u64, beyond: &[u64], now: Instant) {
        let mut bytes = 0;
        let mut since = now;
        let mut take = |(of, begun): (usize, Instant)| {
            bytes += of;
            since = since.min(begun);
        };
        while let Some(entry) = self.under_way.first_entry().filter(|entry| *entry.key() <= floor) {
            take(entry.remove());
        }
        beyond.iter().filter_map(|number| self.under_way.remove(number)).for_each(take);
        if bytes == 0 {
            return;
        }
        // While an earlier message was on its way, the link carried that one, too.
        let since = self.came.map_or(since, |came| since.max(came));
        self.came = Some(now);
        let took = now.saturating_duration_since(since).as_nanos().max(1);
        let rate = (bytes as u128 * 1_000_000_000 / took).min(u128::from(u64::MAX)) as u64;
        // A link can carry what it has carried; a slower message may have waited for its reader. If all are slower, the link is.
        self.rate = Some(self.rate.map_or(rate, |before| rate.max(before - before / 4)));
    }

    /// Bytes a second; `None` if no large message has come yet.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Forgets the messages that are under way.
    pub fn clear(&mut self) {
        self.under_way.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rate_is_that_of_large_messages_until_they_are_acknowledged() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        pace.begin(1, LEAST_BYTES - 1, at(0));
        pace.end(1, &[], at(1));
        assert_eq!(pace.rate(), None, "a small one");
        // 4 MB in 20 ms.
        pace.begin(2, 4_000_000, at(10));
        pace.end(2, &[], at(30));
        assert_eq!(pace.rate(), Some(200_000_000));
        // Two beside each other: 4 MB each, both within 40 ms; the second is acknowledged first.
        pace.begin(3, 4_000_000, at(100));
        pace.begin(4, 4_000_000, at(100));
        pace.end(2, &[4], at(120));
        pace.end(4, &[], at(140));
        assert_eq!(pace.rate(), Some(200_000_000));
        // Twice as fast counts at once.
        pace.begin(5, 4_000_000, at(200));
        pace.end(5, &[], at(210));
        assert_eq!(pace.rate(), Some(400_000_000));
        // A slow one counts by steps of a quarter, until the rate is its own.
        for (number, rate) in
            [(6, 300_000_000), (7, 225_000_000), (8, 168_750_000), (9, 126_562_500), (10, 100_000_000)]
        {
            let begun = 1000 * number;
            pace.begin(number, 4_000_000, at(begun));
            pace.end(number, &[], at(begun + 40));
            assert_eq!(pace.rate(), Some(rate), "{number}");
        }
    }

    #[test]
    fn a_message_that_was_sent_again_counts_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::default();
        pace.begin(1, 4_000_000, at(0));
        pace.begin(1, 4_000_000, at(100));
        pace.end(1, &[1], at(110));
        assert_eq!(pace.rate(), Some(400_000_000));
        pace.end(1, &[], at(120));
        assert_eq!(pace.rate(), Some(400_000_000));
    }
}
