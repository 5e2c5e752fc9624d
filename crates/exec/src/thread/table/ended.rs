//! The steps of a session that are over, so that values that come late for them are dropped.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most gaps between the steps that are over; beyond it, the oldest gaps count as over too.
const MAX_GAPS: usize = 1024;

/// Most ranges of steps that were cancelled before they came; beyond it, the oldest are forgotten.
const MAX_GIVEN_UP: usize = 1024;

/// A set of step numbers, as ranges.
#[derive(Debug, Default)]
pub(super) struct EndedSteps {
    /// First to last, both inclusive; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl EndedSteps {
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    pub fn insert(&mut self, first: u64, last: u64) {
        self.join(first, last);
        if self.ranges.len() > MAX_GAPS
            && let (Some((first, _)), Some((_, last))) = (self.ranges.pop_first(), self.ranges.pop_first())
        {
            self.ranges.insert(first, last);
        }
    }

    fn join(&mut self, mut first: u64, mut last: u64) {
        while let Some((&from, &to)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if to.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&from);
            first = first.min(from);
            last = last.max(to);
        }
        self.ranges.insert(first, last);
    }
}

/// The steps of a session that were cancelled before they came. It contains no other step.
#[derive(Debug, Default)]
pub(super) struct GivenUpSteps(EndedSteps);

impl GivenUpSteps {
    pub fn insert(&mut self, number: u64) {
        self.0.join(number, number);
        if self.0.ranges.len() > MAX_GIVEN_UP {
            self.0.ranges.pop_first();
        }
    }

    /// The first of these steps that is in it.
    pub fn first_of(&self, steps: Range<u64>) -> Option<u64> {
        if !steps.is_empty() && self.0.contains(steps.start) {
            return Some(steps.start);
        }
        self.0.ranges.range(steps).next().map(|(&first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together() {
        let check = |steps: &[(u64, u64)], ranges: &[(u64, u64)]| {
            let mut ended = EndedSteps::default();
            steps.iter().for_each(|&(first, last)| ended.insert(first, last));
            assert_eq!(ended.ranges.into_iter().collect::<Vec<_>>(), ranges, "{steps:?}");
        };
        check(&[(1, 1), (2, 2), (3, 3)], &[(1, 3)]);
        check(&[(3, 3), (1, 1)], &[(1, 1), (3, 3)]);
        check(&[(3, 3), (1, 1), (2, 2)], &[(1, 3)]);
        check(&[(1, 2), (5, 9), (2, 6)], &[(1, 9)]);
        check(&[(4, 4), (4, 4)], &[(4, 4)]);
    }

    #[test]
    fn what_is_over_stays_over_and_the_set_stays_small() {
        let mut ended = EndedSteps::default();
        (0..10 * MAX_GAPS as u64).for_each(|i| ended.insert(2 * i, 2 * i));
        assert!(ended.ranges.len() <= MAX_GAPS);
        assert!(ended.contains(0) && ended.contains(1), "the oldest gap is closed");
        let last = 2 * (10 * MAX_GAPS as u64 - 1);
        assert!(ended.contains(last) && !ended.contains(last - 1) && !ended.contains(last + 1));
    }
    #[test]
    fn a_step_that_was_not_given_up_is_never_taken_for_one_that_was() {
        let mut given_up = GivenUpSteps::default();
        [5, 6, 9].into_iter().for_each(|number| given_up.insert(number));
        let check =
            |steps: Range<u64>, want: Option<u64>| assert_eq!(given_up.first_of(steps.clone()), want, "{steps:?}");
        check(1..5, None);
        check(1..6, Some(5));
        check(6..9, Some(6));
        check(7..9, None);
        check(7..u64::MAX, Some(9));
        check(9..10, Some(9));
        check(10..99, None);
        check(5..5, None);
        (0..10 * MAX_GIVEN_UP as u64).for_each(|i| given_up.insert(2 * i));
        assert!(given_up.0.ranges.len() <= MAX_GIVEN_UP);
        assert_eq!(given_up.first_of(0..10), None, "they were forgotten");
        let last = 2 * (10 * MAX_GIVEN_UP as u64 - 1);
        assert_eq!(given_up.first_of(last - 1..u64::MAX), Some(last));
    }
}
