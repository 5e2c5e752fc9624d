//! The budget for messages of clients that have not shown the door's token: which of them is evicted when it is
//! exhausted.
//!
//! The largest message of the address that holds the most is evicted; if that is the message that requests more, it is refused.
//! So a client that exhausts the budget excludes no client at another address, and none at its own address with a small
//! message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use tokio::sync::Notify;

use crate::unauthenticated::Origin;

/// The budget.
pub(super) struct Unproven {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Bytes of all messages.
    used: usize,
    /// How many messages there have been.
    count: u64,
    here: BTreeMap<u64, Held>,
}

struct Held {
    from: Option<Origin>,
    bytes: usize,
    /// It has been received completely: it is being processed and ends soon by itself.
    is_whole: bool,
    go: Arc<Notify>,
}

/// One message's share of the budget, until it is dropped.
pub(super) struct MessagePlace {
    budget: Arc<Unproven>,
    number: u64,
    go: Arc<Notify>,
}

impl Unproven {
    pub fn new(most: usize) -> Arc<Unproven> {
        Arc::new(Unproven { most, table: Mutex::default() })
    }

    /// Maximum size in bytes of one message, and of all.
    pub fn most(&self) -> usize {
        self.most
    }

    /// An empty share for a message from this address.
    pub fn place(self: &Arc<Self>, from: Option<Origin>) -> MessagePlace {
        let go = Arc::new(Notify::new());
        let mut table = lock(&self.table);
        table.count += 1;
        let number = table.count;
        table.here.insert(number, Held { from, bytes: 0, is_whole: false, go: Arc::clone(&go) });
        MessagePlace { budget: Arc::clone(self), number, go }
    }
}

impl Table {
    /// The message to evict for `more` bytes of message `number`; `None` if it is that message.
    fn first_to_evict(&self, number: u64, more: usize) -> Option<u64> {
        let asks = |other: u64| if other == number { more } else { 0 };
        let mut together: BTreeMap<Option<Origin>, usize> = BTreeMap::new();
        for (&other, held) in &self.here {
            *together.entry(held.from).or_default() += held.bytes + asks(other);
        }
        let can_go = self.here.iter().filter(|(other, held)| **other == number || !held.is_whole);
        // Among equals the message that requests more.
        let most = can_go.max_by_key(|&(&other, held)| (together[&held.from], held.bytes + asks(other), asks(other)));
        most.map(|(&other, _)| other).filter(|&other| other != number)
    }

    fn remove(&mut self, number: u64) -> Option<Held> {
        let held = self.here.remove(&number)?;
        self.used -= held.bytes;
        Some(held)
    }
}

impl MessagePlace {
    /// Makes it hold at least `bytes`; other messages may be evicted for that.
    ///
    /// # Errors
    /// ResourceExhausted if this one is evicted.
    pub fn cover(&self, bytes: usize) -> Result<()> {
        let mut table = lock(&self.budget.table);
        let Some(more) = table.here.get(&self.number).map(|held| bytes.saturating_sub(held.bytes)) else {
            return Err(eviction());
        };
        while table.used.saturating_add(more) > self.budget.most {
            let Some(held) = table.first_to_evict(self.number, more).and_then(|other| table.remove(other)) else {
                return Err(eviction());
            };
            held.go.notify_one();
        }
        table.used += more;
        if let Some(held) = table.here.get_mut(&self.number) {
            held.bytes += more;
        }
        Ok(())
    }

    /// The whole message has been received.
    pub fn is_whole(&self) {
        if let Some(held) = lock(&self.budget.table).here.get_mut(&self.number) {
            held.is_whole = true;
        }
    }

    /// Waits until it is evicted; returns the failure to answer with.
    pub async fn evicted(&self) -> Failure {
        self.go.notified().await;
        eviction()
    }
}

impl Drop for MessagePlace {
    fn drop(&mut self) {
        lock(&self.budget.table).remove(self.number);
    }
}

fn eviction() -> Failure {
    let why = "too many large requests of clients that have not shown the token are under way, and this one exceeds \
               their budget; try again, or show the token in the header `authorization: Bearer TOKEN`";
    Failure::new(Code::ResourceExhausted, why)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    impl MessagePlace {
        fn bytes(&self) -> usize {
            lock(&self.budget.table).here.get(&self.number).map_or(0, |held| held.bytes)
        }
    }

    fn from(last: u8) -> Option<Origin> {
        Some(Origin::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))))
    }

    fn was_told_to_go(place: &MessagePlace) -> bool {
        futures::FutureExt::now_or_never(place.evicted()).is_some()
    }

    #[test]
    fn the_largest_holder_is_evicted() {
        let budget = Unproven::new(100);
        let large = budget.place(from(1));
        large.cover(100).unwrap();
        let other = budget.place(from(2));
        other.cover(30).unwrap();
        assert!(was_told_to_go(&large) && large.cover(1).is_err());
        // Its share is free at once.
        other.cover(60).unwrap();
        let third = budget.place(from(3));
        third.cover(40).unwrap();
        // The address that holds the most is the one that requests more.
        assert!(other.cover(61).is_err() && !was_told_to_go(&other) && !was_told_to_go(&third));
        drop(other);
        third.cover(100).unwrap();
        assert_eq!(third.bytes(), 100);
    }

    #[test]
    fn messages_of_one_address_count_together() {
        let budget = Unproven::new(100);
        let crowd: Vec<MessagePlace> = (0..10).map(|_| budget.place(from(1))).collect();
        crowd.iter().for_each(|place| place.cover(10).unwrap());
        let client = budget.place(from(2));
        client.cover(45).unwrap();
        assert_eq!(crowd.iter().filter(|place| was_told_to_go(place)).count(), 5);
        // Half each.
        assert!(client.cover(51).is_err());
        // One of the crowd that requests more is evicted itself if none is larger.
        let last = crowd.iter().find(|place| place.bytes() > 0).unwrap();
        assert!(last.cover(16).is_err());
    }

    #[test]
    fn a_small_message_is_admitted_beside_a_large_one_of_its_address() {
        let budget = Unproven::new(100);
        let [large, small] = [(); 2].map(|()| budget.place(from(1)));
        large.cover(100).unwrap();
        small.cover(1).unwrap();
        assert!(was_told_to_go(&large));
    }

    #[test]
    fn complete_messages_stay() {
        let budget = Unproven::new(100);
        let large = budget.place(from(1));
        large.cover(100).unwrap();
        large.is_whole();
        let other = budget.place(from(2));
        assert!(other.cover(1).is_err() && !was_told_to_go(&large));
        drop(large);
        other.cover(1).unwrap();
    }
}
