//! Parked values, which came before a node asked for them, and how many of them a device keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meshtf_tensor::{MAX_TENSOR_BYTES, Tensor};

use super::sink::Iterations;

/// Most bytes of values that wait on one device for their step or their Recv: as many as one link has under way, so that two
/// of the largest tensors may wait. They are in the memory budget, too.
pub const MAX_PARKED_BYTES: usize = 16 << 30;
const _: () = assert!(MAX_PARKED_BYTES > 2 * MAX_TENSOR_BYTES);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_the_largest_tensors_may_wait() {
        let parked = Arc::new(AtomicUsize::new(0));
        let claim = || Claim::of(&parked, MAX_TENSOR_BYTES);
        let both = [claim(), claim()];
        assert!(both.iter().all(Option::is_some));
        assert!(claim().is_none(), "a third is refused, and not counted");
        assert_eq!(parked.load(Ordering::Relaxed), 2 * MAX_TENSOR_BYTES);
        drop(both);
        assert_eq!(parked.load(Ordering::Relaxed), 0);
    }
}
