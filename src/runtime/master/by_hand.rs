//! A master without threads, for tests, and the counts of its work.

use super::*;

impl Master {
    /// A master without threads, which plans on request, by the clock of its maker.
    pub fn by_hand(
        task: Task,
        router: Arc<dyn Router>,
        limits: MasterLimits,
        events: Arc<Events>,
        clock: Clock,
    ) -> Self {
        Master::with(Seat::of_node(task), router, limits, events, clock, Planner::without_threads)
    }

    /// The planner, for tests that run it by hand.
    pub(in crate::runtime) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// How many sessions are open.
    pub fn sessions(&self) -> usize {
        self.state.sessions.all().len()
    }

    /// How many runs are under way.
    pub fn runs(&self) -> usize {
        self.state.sessions.all().iter().map(|handle| handle.lock().machine.runs()).sum()
    }
}
