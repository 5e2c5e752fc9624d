//! The order of messages that belong together, though some travel in bulk and some on the control stream.
//!
//! Pure. A bulk message has a number; a message may name the bulk message it must follow, and a bulk message the number of
//! frames of the control stream it must follow. [`Arrivals`] keeps it until they have come. A message that comes a second time,
//! because a connection broke before the sender heard of its arrival, is recognised by its number.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::Envelope;

/// Most messages of one peer that wait for a bulk message before them.
pub const MAX_WAITING: usize = 4096;

/// The messages that have come on one link, and those of them that wait for others.
#[derive(Default)]
pub struct Arrivals {
    /// Number of the last frame of the control stream that was taken. Frames come in order, some of them twice.
    frames: u64,
    /// The bulk messages that have come.
    come: Numbers,
    /// Those of them that were delivered.
    done: Numbers,
    /// Messages by the bulk message they follow, with their own number.
    waiting: BTreeMap<u64, Vec<(u64, Envelope)>>,
    /// Bulk messages by the frames of the control stream they follow, with their own number and the bulk before them.
    early: BTreeMap<u64, Vec<(u64, u64, Envelope)>>,
    count: usize,
}

/// Numbers from 1 on, which need not come in order.
#[derive(Default)]
struct Numbers {
    /// Every number up to this has come.
    floor: u64,
    /// Those beyond it that have come.
    beyond: BTreeSet<u64>,
}

impl Numbers {
    fn has(&self, number: u64) -> bool {
        number <= self.floor || self.beyond.contains(&number)
    }

    fn add(&mut self, number: u64) {
        if number > self.floor {
            self.beyond.insert(number);
            while self.beyond.remove(&(self.floor + 1)) {
                self.floor += 1;
            }
        }
    }
}

/// Why a message cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// The limit: this many messages wait already.
    Full(usize),
    /// It is not the next and was not taken before.
    Gap { number: u64, after: u64 },
}

impl Arrivals {
    /// A frame of the control stream has come. Returns whether it is the next; otherwise it was taken before.
    ///
    /// # Errors
    /// [`Disorder::Gap`] if frames before it are missing.
    pub fn frame(&mut self, number: u64) -> Result<bool, Disorder> {
        if number > self.frames + 1 {
            return Err(Disorder::Gap { number, after: self.frames });
        }
        let is_next = number > self.frames;
        self.frames = self.frames.max(number);
        Ok(is_next)
    }

    /// Number of the last frame of the control stream that was taken.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Every bulk message up to this one has come.
    pub fn bulk(&self) -> u64 {
        self.come.floor
    }

    /// The bulk messages that have come beyond that.
    pub fn bulk_beyond(&self) -> Vec<u64> {
        self.come.beyond.iter().copied().collect()
    }

    /// Bulk message `sequence` has come, to be delivered after `behind` frames and after bulk message `after`, or 0. Returns
    /// the messages to deliver now, in order; none if it had come before.
    ///
    /// # Errors
    /// [`Disorder::Full`] if too many wait.
    pub fn message(
        &mut self,
        sequence: u64,
        behind: u64,
        after: u64,
        envelope: Envelope,
    ) -> Result<Vec<Envelope>, Disorder> {
        if self.come.has(sequence) {
            return Ok(Vec::new());
        }
        if behind > self.frames {
            self.wait()?;
            self.early.entry(behind).or_default().push((sequence, after, envelope));
            self.come.add(sequence);
            return Ok(Vec::new());
        }
        let ready = self.arrive(sequence, after, envelope)?;
        self.come.add(sequence);
        Ok(ready)
    }

    /// A message is to follow bulk message `after`, or 0; it is bulk message `sequence` itself, or 0. Returns the messages to
    /// deliver now, in order.
    ///
    /// # Errors
    /// [`Disorder::Full`] if too many wait.
    pub fn arrive(&mut self, sequence: u64, after: u64, envelope: Envelope) -> Result<Vec<Envelope>, Disorder> {
        if !self.done.has(after) {
            self.wait()?;
            self.waiting.entry(after).or_default().push((sequence, envelope));
            return Ok(Vec::new());
        }
        let mut ready = vec![envelope];
        let mut arrived = vec![sequence];
        while let Some(sequence) = arrived.pop() {
            self.done.add(sequence);
            for (next, envelope) in self.waiting.remove(&sequence).unwrap_or_default() {
                self.count -= 1;
                ready.push(envelope);
                arrived.push(next);
            }
        }
        Ok(ready)
    }

    /// Whether bulk waits for frames of the control stream.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The bulk that waited for the frames that are taken by now, in order.
    ///
    /// # Errors
    /// As [`Arrivals::arrive`].
    pub fn caught_up(&mut self) -> Result<Vec<Envelope>, Disorder> {
        let later = self.early.split_off(&(self.frames + 1));
        let mut ready = Vec::new();
        for (sequence, after, envelope) in std::mem::replace(&mut self.early, later).into_values().flatten() {
            self.count -= 1;
            ready.extend(self.arrive(sequence, after, envelope)?);
        }
        Ok(ready)
    }

    /// Counts one more waiting message.
    fn wait(&mut self) -> Result<(), Disorder> {
        if self.count == MAX_WAITING {
            return Err(Disorder::Full(MAX_WAITING));
        }
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{Message, ToClient};
    use meshtf_tensor::ids::RequestId;

    fn message(number: u64) -> Envelope {
        ToClient::Fetched { id: RequestId(0), step: number }.into()
    }

    fn numbers(envelopes: Vec<Envelope>) -> Vec<u64> {
        let number = |envelope: Envelope| match envelope.message {
            Message::ToClient(ToClient::Fetched { step, .. }) => step,
            other => panic!("{other:?}"),
        };
        envelopes.into_iter().map(number).collect()
    }

    #[test]
    fn a_small_message_waits_for_the_bulk_before_it() {
        let mut order = Arrivals::default();
        assert!(numbers(order.arrive(0, 2, message(3)).unwrap()).is_empty());
        assert!(numbers(order.arrive(2, 1, message(2)).unwrap()).is_empty());
        assert_eq!(numbers(order.arrive(3, 0, message(9)).unwrap()), [9]);
        assert_eq!(numbers(order.arrive(1, 0, message(1)).unwrap()), [1, 2, 3]);
        assert_eq!(numbers(order.arrive(0, 2, message(4)).unwrap()), [4]);
        assert_eq!(order.done.floor, 3);
        assert!(order.done.beyond.is_empty() && order.waiting.is_empty() && order.count == 0);
    }

    #[test]
    fn bulk_waits_for_the_small_messages_before_it() {
        let mut order = Arrivals::default();
        order.frame(1).unwrap();
        assert_eq!(order.message(1, 3, 0, message(4)), Ok(vec![]));
        assert_eq!(order.message(2, 5, 1, message(6)), Ok(vec![]));
        for (frame, ready) in [(2, vec![]), (3, vec![message(4)]), (4, vec![]), (5, vec![message(6)])] {
            assert_eq!(order.frame(frame), Ok(true));
            assert_eq!(order.caught_up(), Ok(ready), "behind frame {frame}");
        }
        assert!(!order.has_early());
        assert_eq!((order.bulk(), order.done.floor, order.count), (2, 2, 0));
    }

    #[test]
    fn what_comes_twice_is_taken_once() {
        let mut order = Arrivals::default();
        let frames = [(1, Ok(true)), (2, Ok(true)), (1, Ok(false)), (2, Ok(false)), (3, Ok(true))];
        for (number, taken) in frames {
            assert_eq!(order.frame(number), taken, "frame {number}");
        }
        assert_eq!(order.frame(5), Err(Disorder::Gap { number: 5, after: 3 }));
        // 2 waits for 1, and 4 for a frame: their arrival is known all the same.
        let bulk = [(2, 0, 1, vec![]), (4, 9, 0, vec![]), (2, 0, 1, vec![]), (4, 9, 0, vec![])];
        for (sequence, behind, after, ready) in bulk {
            assert_eq!(order.message(sequence, behind, after, message(sequence)), Ok(ready));
        }
        assert_eq!((order.bulk(), order.bulk_beyond()), (0, vec![2, 4]));
        assert_eq!(order.message(1, 0, 0, message(1)), Ok(vec![message(1), message(2)]));
        assert_eq!(order.message(1, 0, 0, message(1)), Ok(vec![]));
        assert_eq!((order.bulk(), order.bulk_beyond()), (2, vec![4]));
    }

    #[test]
    fn those_that_wait_are_limited() {
        let mut order = Arrivals::default();
        for number in 0..MAX_WAITING as u64 {
            order.arrive(0, 1, message(number)).unwrap();
        }
        assert_eq!(order.arrive(0, 1, message(0)), Err(Disorder::Full(MAX_WAITING)));
        assert_eq!(order.arrive(1, 0, message(0)).unwrap().len(), MAX_WAITING + 1);
    }

    proptest! {
        /// One flow, all in bulk, arriving in any order: delivered in the order sent.
        #[test]
        fn any_arrival_gives_the_order_sent(arrival in Just((1u64..40).collect::<Vec<_>>()).prop_shuffle()) {
            let mut order = Arrivals::default();
            let mut seen = Vec::new();
            for number in arrival {
                seen.extend(numbers(order.arrive(number, number - 1, message(number)).unwrap()));
            }
            prop_assert_eq!(seen, (1..40).collect::<Vec<_>>());
        }
    }
}
