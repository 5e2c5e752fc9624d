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
    /// The bytes of each message that is on its way.
    under_way: BTreeMap<u64, usize>,
    /// When the first of them was written, with none before it on its way; and the bytes that have come since.
    busy: Option<(Instant, usize)>,
    rate: Option<u64>,
}

impl Pace {
    /// The first byte of a message of so many bytes is written now; of one that is sent again, once more.
    pub fn begin(&mut self, number: u64, bytes: usize, now: Instant) {
        if bytes >= LEAST_BYTES {
            self.under_way.insert(number, bytes);
            self.busy.get_or_insert((now, 0));
        }
    }

    /// The peer has every message up to `floor`, and those `beyond` it.
    pub fn end(&mut self, floor: u64, beyond: &[u64], now: Instant) {
        let Some((since, come)) = &mut self.busy else { return };
        while let Some(entry) = self.under_way.first_entry().filter(|entry| *entry.key() <= floor) {
            *come += entry.remove();
        }
        *come += beyond.iter().filter_map(|number| self.under_way.remove(number)).sum::<usize>();
        if !self.under_way.is_empty() {
            return;
        }
        // Messages travel beside each other: only all together, from the first byte to the last acknowledgement, show a rate.
        let took = now.saturating_duration_since(*since).as_nanos().max(1);
        let rate = (*come as u128 * 1_000_000_000 / took).min(u128::from(u64::MAX)) as u64;
        self.busy = None;
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
        self.busy = None;
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
        // Two beside each other, whose acknowledgements come 1 ms apart: 8 MB in 41 ms, which is less than before.
        pace.begin(3, 4_000_000, at(100));
        pace.begin(4, 4_000_000, at(100));
        pace.end(2, &[4], at(140));
        assert_eq!(pace.rate(), Some(200_000_000), "one is on its way");
        pace.end(4, &[], at(141));
        assert_eq!(pace.rate(), Some(195_121_951));
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
        assert_eq!(pace.rate(), Some(36_363_636), "4 MB in 110 ms");
        pace.end(1, &[], at(120));
        assert_eq!(pace.rate(), Some(36_363_636));
    }
}
