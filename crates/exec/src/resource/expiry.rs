//! Threads that end waits whose time is over: one for each resource in which something waits with a limit, for as long as
//! something does.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use meshtf_tensor::memory::Budget;

/// Longest sleep between two looks at a resource, which may be gone meanwhile.
const SLEEP: Duration = Duration::from_secs(1);

/// A resource in which something waits with a limit.
pub(super) trait Expires: Send + Sync + 'static {
    /// Ends the waits that are over; returns when the next one is, or `None` if nothing waits, and the thread ends.
    fn expire(&self, now: Instant) -> Option<Instant>;
}

/// Begins a thread for a resource; returns whether there is one.
pub(super) fn watch<R: Expires>(resource: &Arc<R>) -> bool {
    let (weak, budget) = (Arc::downgrade(resource), Budget::current());
    let thread = std::thread::Builder::new().name("expiry".to_owned());
    thread.spawn(move || budget.run(|| run(&weak))).is_ok()
}

fn run<R: Expires>(resource: &Weak<R>) {
    while let Some(resource) = resource.upgrade() {
        let Some(until) = resource.expire(Instant::now()) else { return };
        drop(resource);
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(SLEEP));
    }
}
