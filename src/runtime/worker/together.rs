//! The ends of steps that nobody waits for one by one: a worker reports several of them in one message.
//!
//! They are reported when no more steps are left than are to be reported, so that a master which starts steps a window ahead is
//! notified at half of the window, as it is of steps that are reported each; and with the first step that ends a while after the
//! last report, so that counts of steps are up to date.

use std::time::Duration;

/// After this time, the next step that ends is reported, and all before it.
const REPORTS: Duration = Duration::from_millis(100);

/// The steps of a piece that are reported together.
#[derive(Default)]
pub(super) struct Together(Vec<Started>);

/// The steps of one run that were started and not reported.
struct Started {
    /// The first of them.
    first: u64,
    /// One past the last of them.
    end: u64,
    /// When a step before them was reported, or these were started.
    reported: Duration,
}

impl Together {
    /// Steps are started. `continues`: they are of the run that the step before the first is of.
    pub fn start(&mut self, first: u64, count: u64, continues: bool, now: Duration) {
        let end = first.saturating_add(count);
        match self.0.iter_mut().find(|started| continues && started.end == first) {
            Some(started) => started.end = end,
            None => self.0.push(Started { first, end, reported: now }),
        }
    }

    /// A step has run, the steps of a run one after the other. Returns how many steps are to be reported, of which it is the
    /// last; `None` if it is reported with a later one.
    pub fn ran(&mut self, step: u64, has_values: bool, now: Duration) -> Option<u64> {
        let holds = |started: &Started| (started.first..started.end).contains(&step);
        let Some(place) = self.0.iter().position(holds) else { return Some(1) };
        let started = &mut self.0[place];
        let (ran, left) = (step + 1 - started.first, started.end - step - 1);
        if !has_values && left > ran && now.saturating_sub(started.reported) < REPORTS {
            return None;
        }
        match left {
            0 => _ = self.0.swap_remove(place),
            _ => (started.first, started.reported) = (step + 1, now),
        }
        Some(ran)
    }

    /// A step is given up, or has failed, and with it those that were started with it.
    pub fn over(&mut self, step: u64) {
        self.0.retain(|started| !(started.first..started.end).contains(&step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// Which steps of a range are reported, and how many with each.
    fn reported(together: &mut Together, steps: std::ops::Range<u64>) -> Vec<(u64, u64)> {
        steps.filter_map(|step| Some((step, together.ran(step, false, NOW)?))).collect()
    }

    #[test]
    fn a_master_is_notified_at_half_of_what_it_started() {
        let mut together = Together::default();
        together.start(1, 32, false, NOW);
        assert_eq!(reported(&mut together, 1..17), [(16, 16)]);
        together.start(33, 16, true, NOW);
        assert_eq!(reported(&mut together, 17..33), [(32, 16)]);
        // Nothing more is started: the last step is always reported.
        assert_eq!(reported(&mut together, 33..49), [(40, 8), (44, 4), (46, 2), (47, 1), (48, 1)]);
        assert!(together.0.is_empty());
        together.start(49, 1, true, NOW);
        assert_eq!(reported(&mut together, 49..50), [(49, 1)], "a single step is reported at once");
    }

    #[test]
    fn values_and_time_do_not_wait() {
        let mut together = Together::default();
        together.start(1, 1000, false, NOW);
        assert_eq!(together.ran(1, false, NOW), None);
        assert_eq!(together.ran(2, true, NOW), Some(2));
        assert_eq!(together.ran(3, false, REPORTS - Duration::from_nanos(1)), None);
        assert_eq!(together.ran(4, false, REPORTS), Some(2));
        assert_eq!(together.ran(5, false, REPORTS), None);
    }

    #[test]
    fn runs_that_overlap_are_apart_and_those_that_are_over_are_forgotten() {
        let mut together = Together::default();
        together.start(1, 4, false, NOW);
        // The next run begins where the first ends, and does not continue it.
        together.start(5, 4, false, NOW);
        assert_eq!(together.ran(5, false, NOW), None);
        assert_eq!(together.ran(1, false, NOW), None);
        assert_eq!(together.ran(6, false, NOW), Some(2));
        assert_eq!(together.ran(2, false, NOW), Some(2));
        together.over(3);
        assert_eq!(together.0.len(), 1);
        assert_eq!(together.ran(3, false, NOW), Some(1), "steps that were not started together are reported each");
        assert_eq!(reported(&mut together, 7..9), [(7, 1), (8, 1)]);
        assert!(together.0.is_empty());
    }
}
