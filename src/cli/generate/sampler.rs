//! Draws elements by the probabilities of logits.

use super::super::predictions::softmax;

/// A source of random elements, which its seed determines.
#[derive(Debug)]
pub(super) struct Sampler {
    state: u64,
    temperature: f64,
    top_k: Option<usize>,
}

impl Sampler {
    pub fn new(seed: u64, temperature: f64, top_k: Option<usize>) -> Sampler {
        Sampler { state: seed, temperature, top_k }
    }

    /// Draws one of the elements; with a temperature of 0, the most probable one.
    pub fn draw(&mut self, logits: &[f64]) -> usize {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // Stable: of equals, the first.
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(self.top_k.unwrap_or(logits.len()).max(1));
        if self.temperature == 0.0 {
            return order[0];
        }
        let scaled: Vec<f64> = order.iter().map(|&i| logits[i] / self.temperature).collect();
        let mut left = self.uniform();
        for (&i, p) in order.iter().zip(softmax(&scaled)) {
            left -= p;
            if left < 0.0 {
                return i;
            }
        }
        // The sum of the probabilities may be less than 1 by rounding.
        order[0]
    }

    /// A number from 0 to below 1 (SplitMix64, Steele 2014), the same on every machine.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        // The first output of SplitMix64 for the seed 1234567 is 6457827717110365317.
        let expected = (6_457_827_717_110_365_317u64 >> 11) as f64 / (1u64 << 53) as f64;
        assert_eq!(Sampler::new(1_234_567, 1.0, None).uniform(), expected);
    }

    #[test]
    fn elements_come_as_often_as_their_probabilities_say() {
        let logits = [1f64.ln(), 2f64.ln(), 5f64.ln()];
        let shares = |temperature: f64, top_k: Option<usize>| {
            let (mut sampler, mut counts) = (Sampler::new(7, temperature, top_k), [0f64; 3]);
            (0..20_000).for_each(|_| counts[sampler.draw(&logits)] += 1.0 / 20_000.0);
            counts
        };
        let near = |shares: [f64; 3], wanted: [f64; 3]| {
            // Four standard deviations of a share of a half are 0.0142.
            assert!(shares.iter().zip(wanted).all(|(own, wanted)| (own - wanted).abs() < 0.0142), "{shares:?}");
        };
        near(shares(1.0, None), [0.125, 0.25, 0.625]);
        // Half the temperature squares the odds: 1, 4, 25 of 30.
        near(shares(0.5, None), [1.0 / 30.0, 4.0 / 30.0, 25.0 / 30.0]);
        near(shares(1.0, Some(2)), [0.0, 2.0 / 7.0, 5.0 / 7.0]);
        assert_eq!(shares(0.0, None)[2].round(), 1.0);
    }
}
