//! The turns of a piece that are expected to be quick: those with inputs of the same shapes as a turn of a quick step.

use std::time::Duration;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
use smallvec::SmallVec;

use crate::step::TurnEnd;

/// A turn is quick if it takes less than this.
const QUICK: Duration = Duration::from_micros(100);

/// Most different inputs of the turns of a piece that are remembered.
const MOST: usize = 8;

/// The shapes of the inputs that came for a step, each with its number; independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Came(u64);

impl Came {
    fn add(&mut self, place: u64, tensor: &Tensor) {
        /// An odd number without a pattern.
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, part: u64| (hash ^ part).wrapping_mul(MIX).rotate_left(29);
        let mut hash = mix(MIX, place);
        for &size in tensor.shape().dims() {
            hash = mix(hash, size as u64);
        }
        if tensor.dtype() == DType::String {
            // Strings of one shape may be of any length.
            hash = mix(hash, tensor.byte_len().max(1).ilog2().into());
        }
        self.0 = self.0.wrapping_add(mix(hash, 0));
    }
}

/// The recorded turns of one piece.
#[derive(Debug, Default)]
pub(super) struct QuickTurns {
    /// The inputs that came for the step under way.
    came: Came,
    /// The inputs that had come when each of its turns began.
    turns: SmallVec<[Came; MOST]>,
    /// One of its turns was slow, or there are too many.
    is_slow: bool,
    /// The inputs of turns of steps that were quick throughout.
    known: SmallVec<[Came; MOST]>,
}

impl QuickTurns {
    /// To be called when a step begins.
    pub fn begin(&mut self) {
        (self.came, self.is_slow) = (Came::default(), false);
        self.turns.clear();
    }

    /// Records a tensor that came for the step: the feed, or the transfer, of this number.
    pub fn came(&mut self, place: u64, tensor: &Tensor) {
        self.came.add(place, tensor);
    }

    /// Whether a turn that begins now is expected to be quick.
    pub fn has_next(&self) -> bool {
        self.known.contains(&self.came)
    }

    pub fn begin_turn(&mut self) {
        if self.turns.len() == MOST {
            self.is_slow = true;
        } else if !self.turns.contains(&self.came) {
            self.turns.push(self.came);
        }
    }

    pub fn end_turn(&mut self, took: Duration, result: &Result<TurnEnd>) {
        if took >= QUICK {
            self.is_slow = true;
            self.known.clear();
        }
        if matches!(result, Ok(TurnEnd::Done(_))) && !self.is_slow {
            for came in self.turns.drain(..) {
                if !self.known.contains(&came) {
                    self.known.truncate(MOST - 1);
                    self.known.insert(0, came);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(1);

    fn tensor(shape: &[usize]) -> Tensor {
        Tensor::zeros(DType::F32, shape.to_vec()).unwrap()
    }

    /// A step of two turns: the inputs of the first, and those that come for the second. Returns the expectation for each.
    fn step(turns: &mut QuickTurns, first: &[usize], second: &[usize], took: [Duration; 2]) -> [bool; 2] {
        turns.begin();
        turns.came(0, &tensor(first));
        let expected_first = turns.has_next();
        turns.begin_turn();
        turns.end_turn(took[0], &Ok(TurnEnd::Waits));
        turns.came(1, &tensor(second));
        let expected_second = turns.has_next();
        turns.begin_turn();
        turns.end_turn(took[1], &Ok(TurnEnd::Done(Vec::new())));
        [expected_first, expected_second]
    }

    #[test]
    fn a_turn_is_expected_to_be_quick_if_the_same_came_for_a_step_that_was() {
        let (mut turns, quick) = (QuickTurns::default(), [SHORT; 2]);
        assert_eq!(step(&mut turns, &[2], &[3], quick), [false; 2], "nothing is known of the first");
        assert_eq!(step(&mut turns, &[2], &[3], quick), [true; 2]);
        // The same number of elements in other shapes may be much more work.
        assert_eq!(step(&mut turns, &[2, 1], &[3], quick), [false; 2]);
        assert_eq!(step(&mut turns, &[2], &[1, 3], quick), [true, false]);
        assert_eq!(step(&mut turns, &[2], &[3], quick), [true; 2], "what was known before stays so");
        assert_eq!(step(&mut turns, &[3], &[2], quick), [false; 2], "by their places");
    }

    #[test]
    fn a_step_with_a_slow_turn_is_not_quick_in_the_others() {
        let mut turns = QuickTurns::default();
        for _ in 0..3 {
            assert_eq!(step(&mut turns, &[2], &[3], [SHORT, QUICK]), [false; 2]);
        }
        step(&mut turns, &[2], &[3], [SHORT; 2]);
        assert_eq!(step(&mut turns, &[2], &[3], [QUICK, SHORT]), [true, false], "a slow turn counts at once");
        assert_eq!(step(&mut turns, &[2], &[3], [SHORT; 2]), [false; 2]);
    }

    #[test]
    fn no_more_is_remembered_than_may_be() {
        let mut turns = QuickTurns::default();
        for size in 0..3 * MOST {
            step(&mut turns, &[size], &[size], [SHORT; 2]);
        }
        assert_eq!(turns.known.len(), MOST);
        turns.begin();
        for size in 0..2 * MOST {
            turns.came(size as u64, &tensor(&[size]));
            turns.begin_turn();
            turns.end_turn(SHORT, &Ok(TurnEnd::Waits));
        }
        turns.end_turn(SHORT, &Ok(TurnEnd::Done(Vec::new())));
        assert!(!turns.has_next(), "a step of many turns is not quick");
    }

    #[test]
    fn strings_of_other_lengths_are_other_values() {
        let of = |length: usize| {
            meshtf_tensor::literal::parse_as(&format!("\"{}\"", "x".repeat(length)), DType::String).unwrap()
        };
        let mut turns = QuickTurns::default();
        let mut expected = |length: usize| {
            turns.begin();
            turns.came(0, &of(length));
            let expected = turns.has_next();
            turns.begin_turn();
            turns.end_turn(SHORT, &Ok(TurnEnd::Done(Vec::new())));
            expected
        };
        assert_eq!([expected(100), expected(100), expected(10_000)], [false, true, false]);
    }
}
