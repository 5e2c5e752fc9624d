//! The frames that were sent on a link and that the peer has not acknowledged.
//!
//! Pure. Frames are numbered from 1, in the order they leave. When a connection breaks, the unacknowledged ones are sent again
//! over the next one; the receiver recognises duplicates by their number and drops them.

use std::collections::VecDeque;

/// Most bytes of frames that one peer has not acknowledged.
pub const MAX_UNACKNOWLEDGED_BYTES: usize = 64 << 20;
/// Bytes beyond that for frames that must come: answers, failures, and messages that release something. They are so small that
/// tens of thousands fit.
pub const RESERVED_BYTES: usize = 8 << 20;

/// The frames of one direction of a link.
#[derive(Default)]
pub struct Sent {
    /// Number of the last frame.
    last: u64,
    /// The latest of them, up to the last.
    kept: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Sent {
    /// The number of the next frame, which has `bytes` bytes. A frame that `must_come` may use [`RESERVED_BYTES`].
    ///
    /// # Errors
    /// The limit, if more than that would wait to be acknowledged.
    pub fn next(&self, bytes: usize, must_come: bool) -> Result<u64, usize> {
        let limit = MAX_UNACKNOWLEDGED_BYTES + if must_come { RESERVED_BYTES } else { 0 };
        if self.bytes + bytes > limit {
            return Err(limit);
        }
        Ok(self.last + 1)
    }

    /// Keeps the next frame until it is acknowledged.
    pub fn keep(&mut self, frame: Vec<u8>) {
        self.last += 1;
        self.bytes += frame.len();
        self.kept.push_back(frame);
    }

    /// Number of the last frame.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The peer has taken every frame up to this one. A lower number than before changes nothing.
    ///
    /// # Errors
    /// The number of the last frame, if it cannot have taken that many.
    pub fn acknowledge(&mut self, up_to: u64) -> Result<(), u64> {
        if up_to > self.last {
            return Err(self.last);
        }
        while self.last - (self.kept.len() as u64) < up_to {
            self.bytes -= self.kept.pop_front().map_or(0, |frame| frame.len());
        }
        Ok(())
    }

    /// The frames to send again, in order.
    pub fn unacknowledged(&self) -> impl Iterator<Item = &[u8]> {
        self.kept.iter().map(Vec::as_slice)
    }

    /// Forgets the kept frames.
    pub fn clear(&mut self) {
        self.kept = VecDeque::new();
        self.bytes = 0;
        // With this number a late acknowledgement is no error, and changes nothing.
        self.last = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::order::Arrivals;
    use super::*;

    fn kept(sent: &Sent) -> Vec<u8> {
        sent.unacknowledged().map(|frame| frame[0]).collect()
    }

    #[test]
    fn what_is_acknowledged_is_forgotten() {
        let mut sent = Sent::default();
        for frame in 1..=5u8 {
            assert_eq!(sent.next(1, false), Ok(frame.into()));
            sent.keep(vec![frame]);
        }
        for (up_to, left) in [(0, &[1, 2, 3, 4, 5][..]), (2, &[3, 4, 5]), (1, &[3, 4, 5]), (4, &[5]), (5, &[])] {
            assert_eq!(sent.acknowledge(up_to), Ok(()));
            assert_eq!(kept(&sent), left);
        }
        assert_eq!(sent.acknowledge(6), Err(5), "there was no sixth");
        assert_eq!((sent.bytes, sent.last()), (0, 5));
    }

    #[test]
    fn what_waits_for_its_acknowledgement_is_limited() {
        let mut sent = Sent::default();
        let half = MAX_UNACKNOWLEDGED_BYTES / 2;
        for _ in 0..2 {
            assert!(sent.next(half, false).is_ok());
            sent.keep(vec![0; half]);
        }
        assert_eq!(sent.next(1, false), Err(MAX_UNACKNOWLEDGED_BYTES));
        // A frame that must come is still accepted, up to a limit.
        assert_eq!(sent.next(RESERVED_BYTES, true), Ok(3));
        assert_eq!(sent.next(RESERVED_BYTES + 1, true), Err(MAX_UNACKNOWLEDGED_BYTES + RESERVED_BYTES));
        sent.acknowledge(1).unwrap();
        assert_eq!(sent.next(half, false), Ok(3));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Send,
        Arrive,
        Acknowledge,
        /// Frames on the wire are lost, and unacknowledged frames are sent again on the next connection.
        Break,
        /// The same, but the receiver sent its acknowledgement long before.
        BreakLate,
    }

    proptest! {
        #[test]
        fn breaks_lose_nothing_and_double_nothing(
            events in proptest::collection::vec(
                prop_oneof![
                    6 => Just(Event::Send),
                    6 => Just(Event::Arrive),
                    1 => Just(Event::Acknowledge),
                    1 => Just(Event::Break),
                    1 => Just(Event::BreakLate),
                ],
                0..300,
            ),
        ) {
            let (mut sent, mut order) = (Sent::default(), Arrivals::default());
            let (mut wire, mut taken, mut said) = (VecDeque::new(), Vec::new(), 0);
            let end = std::iter::once(Event::Break).chain(std::iter::repeat_n(Event::Arrive, events.len()));
            for event in events.iter().copied().chain(end) {
                match event {
                    Event::Send => {
                        let frame = sent.next(8, false).unwrap().to_le_bytes().to_vec();
                        wire.push_back(frame.clone());
                        sent.keep(frame);
                    }
                    Event::Arrive => {
                        if let Some(frame) = wire.pop_front() {
                            let number = u64::from_le_bytes(frame.try_into().unwrap());
                            if order.frame(number).expect("none before it is missing") {
                                taken.push(number);
                            }
                        }
                    }
                    Event::Acknowledge => sent.acknowledge(order.frames()).unwrap(),
                    Event::Break | Event::BreakLate => {
                        if matches!(event, Event::Break) {
                            said = order.frames();
                        }
                        sent.acknowledge(said).unwrap();
                        wire = sent.unacknowledged().map(<[u8]>::to_vec).collect();
                    }
                }
            }
            prop_assert!(taken.iter().copied().eq(1..=sent.last()), "{:?} of {}", taken, sent.last());
        }
    }
}
