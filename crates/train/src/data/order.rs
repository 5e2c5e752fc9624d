//! The order of the examples in training: the same one for the same seed, on every node and from any step on.

use meshtf_tensor::failure::{Failure, Result};

/// The examples of each step, epoch after epoch. An epoch covers all of them once, except a remainder that does not fill a
/// batch.
#[derive(Clone, Debug)]
pub struct Order {
    count: usize,
    batch: usize,
    /// The seed of the order of each epoch; `None`: the order of the file.
    seed: Option<u64>,
    /// The epoch of the last call, and its order.
    epoch: Option<(u64, Vec<usize>)>,
}

impl Order {
    /// # Errors
    /// InvalidArgument if the examples do not fill a batch.
    pub fn new(count: usize, batch: usize, seed: Option<u64>) -> Result<Order> {
        if batch == 0 || count < batch {
            return Err(Failure::invalid(format!("a batch is {batch}, and there are {count} examples to train with")));
        }
        Ok(Order { count, batch, seed, epoch: None })
    }

    /// The number of steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.count / self.batch) as u64
    }

    /// The epoch of a step, both counted from 0.
    pub fn epoch(&self, step: u64) -> u64 {
        step / self.steps_per_epoch()
    }

    /// The indices of the examples of a step, counted from 0.
    pub fn of_step(&mut self, step: u64) -> Vec<usize> {
        let steps = self.steps_per_epoch();
        let (epoch, batch) = (self.epoch(step), (step % steps) as usize);
        let within = batch * self.batch..(batch + 1) * self.batch;
        let Some(seed) = self.seed else { return within.collect() };
        if self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.epoch = Some((epoch, shuffled(self.count, seed, epoch)));
        }
        self.epoch.as_ref().map(|(_, places)| places[within].to_vec()).unwrap_or_default()
    }
}

/// The numbers below `count` in an order that is determined by the seed and the epoch.
pub(super) fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut state = mixed(seed ^ mixed(epoch.wrapping_add(1)));
    let mut places: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high half of a product is uniform below its factor, except for a share of count / 2^64.
        let place = (u128::from(mixed(state)) * (last as u128 + 1)) >> 64;
        places.swap(last, place as usize);
    }
    places
}

/// The numbers below `count` as examples to hold out are drawn.
pub(super) fn drawn(count: usize, seed: u64) -> impl Iterator<Item = usize> {
    shuffled(count, seed, u64::MAX).into_iter()
}

/// SplitMix64's mixing of a number.
pub(super) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
