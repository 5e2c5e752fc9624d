//! Parked values, which came before a node asked for them, and how many of them a device keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_tensor::Tensor;

use super::sink::Iterations;

/// Most bytes of values that wait on one device for their step or their Recv.
pub const MAX_PARKED_BYTES: usize = 4 << 30;

/// Pushed values that no node has asked for yet, by transfer and iterations. A step takes the values that came before it began
/// in this order.
pub(super) type Parked = BTreeMap<(u32, Iterations), Option<Tensor>>;

/// Bytes that a parked value counts for.
pub(super) fn cost(value: &Option<Tensor>) -> usize {
    const OVERHEAD: usize = 128;
    OVERHEAD + value.as_ref().map_or(0, Tensor::byte_len)
}

/// Bytes that wait on a device, counted until this is dropped.
pub(super) struct Claim {
    parked: Arc<AtomicUsize>,
    bytes: usize,
}

impl Claim {
    /// Counts bytes as parked on a device; `None` if that would exceed the limit.
    pub fn of(parked: &Arc<AtomicUsize>, bytes: usize) -> Option<Claim> {
        let claim = Claim { parked: Arc::clone(parked), bytes };
        (parked.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_PARKED_BYTES).then_some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.parked.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
