//! Philox 4x32-10 (Salmon et al. 2011): random bits as a function of a key and a counter.
//!
//! Ten rounds of a dozen operations. The rest is TensorFlow's: the derivation of a key and a counter from seeds, and the
//! advance of the counter by a draw. The traits of rand support streams only.

/// The bits of one count.
pub type Bits = [u32; 4];

/// Counts whose bits are computed in parallel, in a loop that the compiler vectorises.
pub(crate) const ABREAST: usize = 64;

/// A key and the next count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
    counter: u128,
}

impl Philox {
    #[inline]
    pub fn new(key: u64, counter: u128) -> Philox {
        Philox { key: [key as u32, (key >> 32) as u32], counter }
    }

    /// The generator seeded by a node's two seed attributes.
    #[inline]
    pub fn from_seeds(seed: u64, seed2: u64) -> Philox {
        Philox::new(seed, u128::from(seed2) << 64)
    }

    /// The key and the counter, for [`Philox::new`].
    #[inline]
    pub fn position(&self) -> (u64, u128) {
        (u64::from(self.key[0]) | u64::from(self.key[1]) << 32, self.counter)
    }

    /// Skips this many counts.
    #[inline]
    pub fn skip(&mut self, counts: u64) {
        self.counter = self.counter.wrapping_add(u128::from(counts));
    }

    /// The bits of the next count.
    #[inline]
    pub fn draw(&mut self) -> Bits {
        let bits = rounds(self.count(), self.key);
        self.skip(1);
        bits
    }

    /// The bits of the next [`ABREAST`] counts: the first words of all of them, their second words, and so on.
    #[inline(always)]
    pub(crate) fn draw_abreast(&mut self) -> [[u32; ABREAST]; 4] {
        let [first, second, third, fourth] = self.count();
        let mut all = [[0; ABREAST]; 4];
        for i in 0..ABREAST {
            let mut count = [first.wrapping_add(i as u32), second, third, fourth];
            let mut carries = count[0] < first;
            for word in &mut count[1..] {
                *word = word.wrapping_add(u32::from(carries));
                carries &= *word == 0;
            }
            let bits = rounds(count, self.key);
            for (all, bits) in all.iter_mut().zip(bits) {
                all[i] = bits;
            }
        }
        self.skip(ABREAST as u64);
        all
    }

    /// The words of the next count.
    #[inline(always)]
    fn count(&self) -> Bits {
        let c = self.counter;
        [c as u32, (c >> 32) as u32, (c >> 64) as u32, (c >> 96) as u32]
    }

    /// The bits as a sequence of words.
    #[inline]
    pub fn words(self) -> Words {
        Words { philox: self, bits: [0; 4], used: 4 }
    }
}

#[inline(always)]
fn rounds(mut bits: Bits, mut key: [u32; 2]) -> Bits {
    for _ in 0..10 {
        bits = round(bits, key);
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    bits
}

#[inline(always)]
fn round(bits: Bits, key: [u32; 2]) -> Bits {
    let first = u64::from(bits[0]) * 0xD251_1F53;
    let second = u64::from(bits[2]) * 0xCD9E_8D57;
    [(second >> 32) as u32 ^ bits[1] ^ key[0], second as u32, (first >> 32) as u32 ^ bits[3] ^ key[1], first as u32]
}

/// A Philox that returns its bits one word at a time.
#[derive(Clone, Copy)]
pub struct Words {
    philox: Philox,
    bits: Bits,
    used: usize,
}

impl Words {
    /// The key, the next count, and the number of words of the last count that were used.
    #[inline]
    pub fn position(&self) -> (u64, u128, usize) {
        let [low, high] = self.philox.key;
        (u64::from(high) << 32 | u64::from(low), self.philox.counter, self.used)
    }

    /// The words from a position on; `None` if more words of a count would be used than it has.
    #[inline]
    pub fn at((key, counter, used): (u64, u128, usize)) -> Option<Words> {
        let bits = Philox::new(key, counter.wrapping_sub(1)).draw();
        (used <= bits.len()).then(|| Words { philox: Philox::new(key, counter), bits, used })
    }

    #[inline]
    pub fn draw(&mut self) -> u32 {
        if self.used == self.bits.len() {
            self.bits = self.philox.draw();
            self.used = 0;
        }
        self.used += 1;
        self.bits[self.used - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123's own test.
    #[test]
    fn known_answers() {
        let check = |key: u64, counter: u128, want: Bits| assert_eq!(Philox::new(key, counter).draw(), want);
        check(0, 0, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check(u64::MAX, u128::MAX, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            0x299f_31d0_a409_3822,
            0x0370_7344_1319_8a2e_85a3_08d3_243f_6a88,
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn counts_abreast_have_the_bits_of_one_after_the_other() {
        // A counter in which no word overflows, and counters in which one, two, three and all four words do.
        for (counter, below) in [(5, 0), (1 << 32, 3), (7 << 96 | 1 << 64, 60), (9 << 96, 1), (0, 17)] {
            let mut together = Philox::new(0x0123_4567_89ab_cdef, u128::wrapping_sub(counter, below));
            let mut alone = together;
            for _ in 0..2 {
                let all = together.draw_abreast();
                for i in 0..ABREAST {
                    assert_eq!(all.map(|words| words[i]), alone.draw(), "{counter:#x} less {below}, {i} on");
                }
            }
            assert_eq!(together, alone);
        }
    }
}
