//! The cost of cuts.

use super::super::Nanos;
use super::{Guard, SHARE};

/// The cost of cuts, from the steps that are done beside one and otherwise.
#[derive(Default)]
pub(super) struct Pace {
    /// When the last cut was complete, and the count of steps then.
    free: Option<(Nanos, u64)>,
    /// Nanoseconds that each of the last cuts cost, the newest first.
    costs: Vec<Nanos>,
    /// The longest time that a step took which was not held.
    longest: Nanos,
    /// When steps were last held.
    held: Nanos,
}

/// The number of cuts by which the cost of the next is estimated, and the place of the cost that counts among them, the least
/// first: beside other work, some cost more than they do by themselves.
const SEEN: usize = 5;
const PLACE: usize = 1;

/// The distance of cuts grows at most to twice so many times the time that one takes, or to twice the last distance.
const TIMES_ITS_OWN: Nanos = 8;
/// Steps that take several times as long as any before wait for each other.
const TIMES_THE_LONGEST: Nanos = 3;

impl Pace {
    /// Steps are held.
    pub fn held(&mut self, now: Nanos) {
        self.held = now;
    }

    /// A step has ended that began, or had ended the one before it, at `since`. It counts unless it was held meanwhile.
    pub fn step_done(&mut self, since: Nanos, now: Nanos) {
        if since >= self.held {
            self.longest = self.longest.max(now.saturating_sub(since));
        }
    }

    /// The time within which a step under way ends if it does not wait for others; at least this.
    pub fn patience(&self, least: Nanos) -> Nanos {
        least.max(self.longest.saturating_mul(TIMES_THE_LONGEST))
    }

    /// Whether steps were done since the last cut.
    pub fn has_worked(&self, steps: u64) -> bool {
        self.free.is_none_or(|(_, before)| steps != before)
    }

    /// The cost of a cut after one has just become complete, which began at this time and count of steps: the second of the last
    /// five, the least first, or the least of fewer than three. So a machine that is busy during a few cuts does not count.
    pub fn after(&mut self, (began, steps_then): (Nanos, u64), (now, steps): (Nanos, u64)) -> Nanos {
        if let Some((since, before)) = self.free {
            let (free_time, free_steps) = (began.saturating_sub(since), steps_then.saturating_sub(before));
            let (own_time, own_steps) = (now.saturating_sub(began), steps.saturating_sub(steps_then));
            if free_steps > 0 {
                let worth = u128::from(free_time) * u128::from(own_steps) / u128::from(free_steps);
                let cost = own_time.saturating_sub(Nanos::try_from(worth).unwrap_or(Nanos::MAX));
                self.costs.insert(0, cost);
                self.costs.truncate(SEEN);
            }
        }
        self.free = Some((now, steps));
        let mut sorted = self.costs.clone();
        sorted.sort_unstable();
        let place = if sorted.len() > PLACE + 1 { PLACE } else { 0 };
        sorted.get(place).copied().unwrap_or(0)
    }
}

impl Guard {
    /// The distance to the next cut if one costs this much, and the last took this time from its stand to its end. It is at most
    /// twice the last one, since a machine that is busy for a moment is no reason for rare cuts; but cuts that take long by
    /// themselves, over a slow link, are soon rare.
    pub fn spaced(&self, cost: Nanos, took: Nanos) -> Nanos {
        let longest = self.spacing.max(took.saturating_mul(TIMES_ITS_OWN)).saturating_mul(2);
        self.within_limits(cost.saturating_mul(SHARE).min(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_cuts_at_most_doubles_and_falls_at_once() {
        const SECOND: Nanos = 1_000_000_000;
        let mut guard = Guard::new(SECOND);
        let distances = [9, 9, 9, 1, 0, 1].map(|cost| {
            guard.spacing = guard.spaced(cost * SECOND / 10, 0);
            guard.spacing
        });
        assert_eq!(distances, [2 * SECOND, 4 * SECOND, 8 * SECOND, 33 * SECOND / 10, SECOND, 2 * SECOND]);
        // Those of a large state on a slow link take 10 s each, which they cost in full: two make them rare.
        guard.spacing = SECOND;
        let distances = [10, 10, 10].map(|cost| {
            guard.spacing = guard.spaced(cost * SECOND, 10 * SECOND);
            guard.spacing
        });
        assert_eq!(distances, [160 * SECOND, 320 * SECOND, 330 * SECOND]);
        // One that costs nothing may take long.
        assert_eq!(guard.spaced(0, 10 * SECOND), SECOND);
    }

    #[test]
    fn a_step_has_three_times_the_longest_that_was_not_held() {
        let mut pace = Pace::default();
        pace.step_done(0, 2);
        assert_eq!((pace.patience(3), pace.patience(10)), (6, 10));
        // Held from 10 to 40, this one took longer than it does by itself.
        pace.held(40);
        pace.step_done(2, 45);
        assert_eq!(pace.patience(3), 6);
        pace.step_done(45, 50);
        assert_eq!(pace.patience(3), 15);
    }

    #[test]
    fn a_cut_costs_the_steps_that_were_not_done_beside_it() {
        let mut pace = Pace::default();
        // Nothing is known of the pace before the first cut.
        assert_eq!(pace.after((0, 0), (10, 1)), 0);
        assert!(!pace.has_worked(1) && pace.has_worked(2));
        // 100 steps in 1000 ns, and 3 in the 50 ns of the cut, which are worth 30.
        assert_eq!(pace.after((1010, 101), (1060, 104)), 20);
        // A cut beside which the steps were as fast costs nothing.
        assert_eq!(pace.after((2060, 204), (2160, 214)), 0);
        // Three cuts during which nothing moved do not count, a fourth does.
        assert_eq!(pace.after((3160, 314), (8160, 314)), 20);
        assert_eq!(pace.after((9160, 414), (14_160, 414)), 20);
        assert_eq!(pace.after((15_160, 514), (20_160, 514)), 20);
        assert_eq!(pace.after((21_160, 614), (26_160, 614)), 5000);
    }
}
