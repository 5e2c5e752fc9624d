//! The traffic counters of a link, for status reports: separate atomics that no message waits for.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of one link.
#[derive(Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    /// Microseconds of the last round trip that was measured, plus one; 0: none was.
    round_trip: AtomicU64,
}

impl Traffic {
    pub fn sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes sent and received, of messages and their framing, before encryption.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.received.load(Ordering::Relaxed))
    }

    /// Adds what another has counted.
    pub fn add(&self, other: &Traffic) {
        let (sent, received) = other.bytes();
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.received.fetch_add(received, Ordering::Relaxed);
    }

    pub fn round_trip_took(&self, us: u64) {
        self.round_trip.store(us.saturating_add(1), Ordering::Relaxed);
    }

    pub fn round_trip_us(&self) -> Option<u64> {
        self.round_trip.load(Ordering::Relaxed).checked_sub(1)
    }
}
