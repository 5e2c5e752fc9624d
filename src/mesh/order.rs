//! The order of messages that belong together, though some come in bulk and some on the control stream.
//!
//! Pure. A bulk message has a number; a message may name the bulk message it must follow, and a bulk message how many
//! frames of the control stream it must follow. It waits here for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::Envelope;

/// Most messages of one peer that wait for a bulk message before them.
pub const MAX_WAITING: usize = 4096;

/// What has arrived of one link's bulk, and what waits for more of it.
#[derive(Default)]
pub struct Order {
    /// Every bulk message up to this one has arrived.
    floor: u64,
    /// Those that have arrived beyond it.
    beyond: BTreeSet<u64>,
    /// Messages by the bulk message they follow, with their own number.
    waiting: BTreeMap<u64, Vec<(u64, Envelope)>>,
    /// Bulk messages by the frames of the control stream they follow, with their own number and the bulk before them.
    early: BTreeMap<u64, Vec<(u64, u64, Envelope)>>,
    count: usize,
}

impl Order {
    /// A message has come: bulk message `sequence`, or 0, to follow bulk message `after`, or 0. Answers what can be
    /// handed on now, in order.
    ///
    /// # Errors
    /// The limit, where too many wait.
    pub fn arrive(&mut self, sequence: u64, after: u64, envelope: Envelope) -> Result<Vec<Envelope>, usize> {
        if !self.has(after) {
            if self.count == MAX_WAITING {
                return Err(MAX_WAITING);
            }
            self.count += 1;
            self.waiting.entry(after).or_default().push((sequence, envelope));
            return Ok(Vec::new());
        }
        let mut ready = vec![envelope];
        let mut arrived = vec![sequence];
        while let Some(sequence) = arrived.pop() {
            self.note(sequence);
            for (next, envelope) in self.waiting.remove(&sequence).unwrap_or_default() {
                self.count -= 1;
                ready.push(envelope);
                arrived.push(next);
            }
        }
        Ok(ready)
    }

    /// Bulk message `sequence` has come before `behind` frames of the control stream have.
    ///
    /// # Errors
    /// The limit, where too many wait.
    pub fn arrive_early(&mut self, behind: u64, sequence: u64, after: u64, envelope: Envelope) -> Result<(), usize> {
        if self.count == MAX_WAITING {
            return Err(MAX_WAITING);
        }
        self.count += 1;
        self.early.entry(behind).or_default().push((sequence, after, envelope));
        Ok(())
    }

    /// So many frames of the control stream have been taken. Answers what can be handed on now, in order, and whether
    /// bulk still waits for more of them.
    ///
    /// # Errors
    /// As [`Order::arrive`].
    pub fn caught_up(&mut self, taken: u64) -> Result<(Vec<Envelope>, bool), usize> {
        let later = self.early.split_off(&(taken + 1));
        let mut ready = Vec::new();
        for (sequence, after, envelope) in std::mem::replace(&mut self.early, later).into_values().flatten() {
            self.count -= 1;
            ready.extend(self.arrive(sequence, after, envelope)?);
        }
        Ok((ready, !self.early.is_empty()))
    }

    fn has(&self, sequence: u64) -> bool {
        sequence <= self.floor || self.beyond.contains(&sequence)
    }

    fn note(&mut self, sequence: u64) {
        if sequence == 0 {
            return;
        }
        self.beyond.insert(sequence);
        while self.beyond.remove(&(self.floor + 1)) {
            self.floor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::RequestId;
    use crate::protocol::Message;

    fn message(number: u64) -> Envelope {
        Message::Fetched { id: RequestId(0), step: number }.into()
    }

    fn numbers(envelopes: Vec<Envelope>) -> Vec<u64> {
        let number = |envelope: Envelope| match envelope.message {
            Message::Fetched { step, .. } => step,
            other => panic!("{other:?}"),
        };
        envelopes.into_iter().map(number).collect()
    }

    #[test]
    fn a_small_message_waits_for_the_bulk_before_it() {
        let mut order = Order::default();
        assert!(numbers(order.arrive(0, 2, message(3)).unwrap()).is_empty());
        assert!(numbers(order.arrive(2, 1, message(2)).unwrap()).is_empty());
        assert_eq!(numbers(order.arrive(3, 0, message(9)).unwrap()), [9]);
        assert_eq!(numbers(order.arrive(1, 0, message(1)).unwrap()), [1, 2, 3]);
        assert_eq!(numbers(order.arrive(0, 2, message(4)).unwrap()), [4]);
        assert_eq!(order.floor, 3);
        assert!(order.beyond.is_empty() && order.waiting.is_empty() && order.count == 0);
    }

    #[test]
    fn bulk_waits_for_the_small_messages_before_it() {
        let mut order = Order::default();
        order.arrive_early(3, 1, 0, message(4)).unwrap();
        order.arrive_early(5, 2, 1, message(6)).unwrap();
        assert_eq!(order.caught_up(2), Ok((vec![], true)));
        assert_eq!(order.caught_up(4), Ok((vec![message(4)], true)));
        assert_eq!(order.caught_up(5), Ok((vec![message(6)], false)));
        assert_eq!((order.floor, order.count), (2, 0));
    }

    #[test]
    fn those_that_wait_are_limited() {
        let mut order = Order::default();
        for number in 0..MAX_WAITING as u64 {
            order.arrive(0, 1, message(number)).unwrap();
        }
        assert_eq!(order.arrive(0, 1, message(0)), Err(MAX_WAITING));
        assert_eq!(order.arrive(1, 0, message(0)).unwrap().len(), MAX_WAITING + 1);
    }

    proptest! {
        /// One flow, all in bulk, arriving in any order: handed on in the order sent.
        #[test]
        fn any_arrival_gives_the_order_sent(arrival in Just((1u64..40).collect::<Vec<_>>()).prop_shuffle()) {
            let mut order = Order::default();
            let mut seen = Vec::new();
            for number in arrival {
                seen.extend(numbers(order.arrive(number, number - 1, message(number)).unwrap()));
            }
            prop_assert_eq!(seen, (1..40).collect::<Vec<_>>());
        }
    }
}
