//! Which steps of a session are over, so that values that come late for them are dropped.

use std::collections::BTreeMap;

/// Most gaps between the steps that are over; beyond it the oldest are taken for over too.
const MAX_GAPS: usize = 1024;

/// A set of step numbers, as ranges.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// First to last, both within; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl Ended {
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    pub fn insert(&mut self, mut first: u64, mut last: u64) {
        while let Some((&from, &to)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if to.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&from);
            first = first.min(from);
            last = last.max(to);
        }
        self.ranges.insert(first, last);
        if self.ranges.len() > MAX_GAPS
            && let (Some((first, _)), Some((_, last))) = (self.ranges.pop_first(), self.ranges.pop_first())
        {
            self.ranges.insert(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together() {
        let check = |steps: &[(u64, u64)], ranges: &[(u64, u64)]| {
            let mut ended = Ended::default();
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
        let mut ended = Ended::default();
        (0..10 * MAX_GAPS as u64).for_each(|i| ended.insert(2 * i, 2 * i));
        assert!(ended.ranges.len() <= MAX_GAPS);
        assert!(ended.contains(0) && ended.contains(1), "the oldest gap is closed");
        let last = 2 * (10 * MAX_GAPS as u64 - 1);
        assert!(ended.contains(last) && !ended.contains(last - 1) && !ended.contains(last + 1));
    }
}
