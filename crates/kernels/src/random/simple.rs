//! Sequential random numbers from a seed, for ops with a seed input.

use meshtf_random::{Philox, Words, uniform_f32};

/// The sequence of TensorFlow's SimplePhilox.
pub struct Simple(Words);

impl Simple {
    #[inline]
    pub fn new(seed: u64) -> Simple {
        Simple(Philox::new(seed, 0).words())
    }

    /// A number in [0, 1).
    #[inline]
    pub fn fraction(&mut self) -> f32 {
        uniform_f32(self.0.draw())
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        let mut draw = || {
            let low = u64::from(self.0.draw());
            low | u64::from(self.0.draw()) << 32
        };
        if limit.is_power_of_two() {
            return draw() & (limit - 1);
        }
        // The least numbers are rejected, as many as would make some remainders likelier than the rest.
        let left_out = u64::MAX % limit + 1;
        loop {
            let number = draw();
            if number >= left_out {
                return number % limit;
            }
        }
    }
}
