//! One number after another from a seed, as ops draw them that have an input for it.

use super::distribution::uniform_f32;
use super::philox::{Philox, Words};

/// The numbers of TensorFlow's SimplePhilox.
pub struct Simple(Words);

impl Simple {
    pub fn new(seed: u64) -> Simple {
        Simple(Philox::new(seed, 0).words())
    }

    /// A number from 0 up to 1.
    pub fn fraction(&mut self) -> f32 {
        uniform_f32(self.0.draw())
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        let mut draw = || {
            let low = u64::from(self.0.draw());
            low | u64::from(self.0.draw()) << 32
        };
        if limit.is_power_of_two() {
            return draw() & (limit - 1);
        }
        // Of the least numbers, as many are left out as would make some remainders more likely than others.
        let left_out = u64::MAX % limit + 1;
        loop {
            let number = draw();
            if number >= left_out {
                return number % limit;
            }
        }
    }
}
