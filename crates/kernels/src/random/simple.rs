//! Sequential random numbers from a seed, for ops with a seed input.

use meshtf_random::{Philox, Words, uniform_f32};

/// The sequence of TensorFlow's SimplePhilox.
pub struct Simple(Words);

impl Simple {
    #[inline]
    pub fn new(seed: u64) -> Simple {
        Simple::of(Philox::new(seed, 0))
    }

    /// The sequence of a generator.
    #[inline]
    pub fn of(generator: Philox) -> Simple {
        Simple(generator.words())
    }

    /// A number in [0, 1).
    #[inline]
    pub fn fraction(&mut self) -> f32 {
        uniform_f32(self.0.draw())
    }

    /// A number below `limit`, or below 1 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        below(&mut self.0, limit)
    }

    /// As [`below`](Simple::below), of 32 bits: from half as many words.
    pub fn below_u32(&mut self, limit: u32) -> u32 {
        below_u32(&mut self.0, limit)
    }
}

macro_rules! below {
    ($($name:ident, $number:ty, $draw:expr;)*) => {
        $(/// A number below `limit`, or below 1 if that is 0, each with the same probability.
        pub fn $name(words: &mut Words, limit: $number) -> $number {
            let (limit, draw): (_, fn(&mut Words) -> $number) = (limit.max(1), $draw);
            if limit.is_power_of_two() {
                return draw(words) & (limit - 1);
            }
            // The least numbers are rejected, as many as would make some remainders likelier than the rest.
            let left_out = <$number>::MAX % limit + 1;
            loop {
                let number = draw(words);
                if number >= left_out {
                    return number % limit;
                }
            }
        })*
    };
}

below! {
    below, u64, |words| u64::from(words.draw()) | u64::from(words.draw()) << 32;
    below_u32, u32, Words::draw;
}
