//! The bulk messages of a link: those that wait for a socket, and those that were written and are not acknowledged.
//!
//! Pure. Messages are numbered from 1. Those that were written to a socket that breaks are queued again, before all newer ones;
//! the receiver recognises duplicates by their number and drops them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most bulk messages, and bytes of them, that one peer has not acknowledged.
pub const MAX_BULK_MESSAGES: usize = 8192;
pub const MAX_BULK_BYTES: usize = 16 << 30;
/// How often one bulk message is sent before the link counts as broken for good.
pub const MAX_SENDS: u32 = 16;

/// The bulk messages of one direction of a link.
pub struct BulkQueue<T> {
    /// Number of the last message.
    last: u64,
    kept: BTreeMap<u64, Kept<T>>,
    /// The numbers of the messages that wait for a socket, in the order to write them. An acknowledged one is skipped.
    waiting: VecDeque<u64>,
    bytes: usize,
}

struct Kept<T> {
    message: Arc<T>,
    bytes: usize,
    sends: u32,
}

impl<T> Default for BulkQueue<T> {
    fn default() -> Self {
        BulkQueue { last: 0, kept: BTreeMap::new(), waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<T> BulkQueue<T> {
    /// The number of the next message, which has `bytes` bytes.
    ///
    /// # Errors
    /// The name of the limit that would be exceeded, and the limit.
    pub fn next(&self, bytes: usize) -> Result<u64, (&'static str, usize)> {
        if self.kept.len() >= MAX_BULK_MESSAGES {
            return Err(("bulk messages that wait", MAX_BULK_MESSAGES));
        }
        if self.bytes.saturating_add(bytes) > MAX_BULK_BYTES {
            return Err(("bulk bytes that wait", MAX_BULK_BYTES));
        }
        Ok(self.last + 1)
    }

    /// Adds the next.
    pub fn add(&mut self, message: T, bytes: usize) {
        self.last += 1;
        self.bytes += bytes;
        self.kept.insert(self.last, Kept { message: Arc::new(message), bytes, sends: 0 });
        self.waiting.push_back(self.last);
    }

    /// The number of messages that wait for a socket.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the next to write.
    pub fn take(&mut self) -> Option<(u64, Arc<T>)> {
        while let Some(number) = self.waiting.pop_front() {
            if let Some(kept) = self.kept.get_mut(&number) {
                kept.sends += 1;
                return Some((number, Arc::clone(&kept.message)));
            }
        }
        None
    }

    /// The socket that these were written to broke: those that are not acknowledged are queued again.
    ///
    /// # Errors
    /// The limit, if one was sent that often.
    pub fn broke(&mut self, written: &[u64]) -> Result<(), u32> {
        for &number in written.iter().rev() {
            if let Some(kept) = self.kept.get(&number) {
                if kept.sends >= MAX_SENDS {
                    return Err(MAX_SENDS);
                }
                self.waiting.push_front(number);
            }
        }
        Ok(())
    }

    /// Whether the message was written and is not acknowledged.
    pub fn keeps(&self, number: u64) -> bool {
        self.kept.contains_key(&number)
    }

    /// The peer has all of them up to `floor`, and those `beyond` it.
    ///
    /// # Errors
    /// The number of the last, if it cannot have that many.
    pub fn acknowledge(&mut self, floor: u64, beyond: &[u64]) -> Result<(), u64> {
        if floor > self.last {
            return Err(self.last);
        }
        while let Some(entry) = self.kept.first_entry().filter(|entry| *entry.key() <= floor) {
            self.bytes -= entry.remove().bytes;
        }
        for number in beyond {
            self.bytes -= self.kept.remove(number).map_or(0, |kept| kept.bytes);
        }
        Ok(())
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        *self = BulkQueue { last: u64::MAX, ..BulkQueue::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(bulk: &mut BulkQueue<&'static str>) -> Vec<(u64, &'static str)> {
        std::iter::from_fn(|| bulk.take()).map(|(number, message)| (number, *message)).collect()
    }

    fn four() -> BulkQueue<&'static str> {
        let mut bulk = BulkQueue::default();
        for message in ["a", "b", "c", "d"] {
            bulk.next(10).unwrap();
            bulk.add(message, 10);
        }
        bulk
    }

    #[test]
    fn what_a_broken_socket_took_goes_first_the_next_time() {
        let mut bulk = four();
        assert_eq!(bulk.take().map(|(number, _)| number), Some(1));
        assert_eq!(bulk.take().map(|(number, _)| number), Some(2));
        assert_eq!(bulk.take().map(|(number, _)| number), Some(3));
        bulk.acknowledge(1, &[]).unwrap();
        // One socket had the first and the third, and has broken; another still has the second.
        bulk.broke(&[1, 3]).unwrap();
        assert_eq!(take_all(&mut bulk), [(3, "c"), (4, "d")]);
        bulk.broke(&[3, 4]).unwrap();
        bulk.acknowledge(2, &[4]).unwrap();
        assert_eq!(take_all(&mut bulk), [(3, "c")], "4 has come while it waited");
        bulk.acknowledge(4, &[]).unwrap();
        assert_eq!((bulk.bytes, bulk.kept.len()), (0, 0));
        assert_eq!(bulk.acknowledge(5, &[]), Err(4));
    }

    #[test]
    fn none_is_sent_for_ever() {
        let mut bulk = four();
        for _ in 1..MAX_SENDS {
            assert_eq!(bulk.take().map(|(number, _)| number), Some(1));
            assert_eq!(bulk.broke(&[1]), Ok(()));
        }
        bulk.take();
        assert_eq!(bulk.broke(&[1]), Err(MAX_SENDS));
    }

    #[test]
    fn those_that_are_not_acknowledged_are_limited() {
        let mut bulk = BulkQueue::default();
        for _ in 0..MAX_BULK_MESSAGES {
            assert!(bulk.next(1).is_ok());
            bulk.add((), 1);
            bulk.take();
        }
        assert_eq!(bulk.next(1), Err(("bulk messages that wait", MAX_BULK_MESSAGES)));
        bulk.acknowledge(1, &[]).unwrap();
        assert!(bulk.next(1).is_ok());
        assert_eq!(bulk.next(MAX_BULK_BYTES), Err(("bulk bytes that wait", MAX_BULK_BYTES)));
    }
}
