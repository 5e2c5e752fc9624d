//! The time for which a device has had work.
//!
//! The clock is read when a thread of the device falls asleep or wakes up, which takes far longer than the reading, and when
//! another thread begins or ends work for it; not from turn to turn.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use meshtf_tensor::lock::lock;

/// The number of threads at work for a device, and how long at least one was.
#[derive(Default)]
pub(super) struct Busy(Mutex<Work>);

#[derive(Default)]
struct Work {
    threads: usize,
    /// Since when at least one is at work; `None` while none is.
    since: Option<Instant>,
    /// The time before `since`.
    total: Duration,
}

/// A thread at work, until this is dropped.
pub(super) struct AtWork<'a>(&'a Busy);

impl Busy {
    pub fn begin(&self) -> AtWork<'_> {
        self.enter();
        AtWork(self)
    }

    /// How long at least one thread was at work.
    pub fn total(&self) -> Duration {
        let work = self.work();
        work.total + work.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn enter(&self) {
        let mut work = self.work();
        work.threads += 1;
        work.since.get_or_insert_with(Instant::now);
    }

    fn leave(&self) {
        let mut work = self.work();
        work.threads -= 1;
        if work.threads == 0
            && let Some(since) = work.since.take()
        {
            work.total += since.elapsed();
        }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.0)
    }
}

impl AtWork<'_> {
    /// Waits for something, and is not at work meanwhile.
    pub fn pause<T>(&self, wait: impl FnOnce() -> T) -> T {
        struct Resume<'a>(&'a Busy);
        impl Drop for Resume<'_> {
            fn drop(&mut self) {
                self.0.enter();
            }
        }
        self.0.leave();
        let _resume = Resume(self.0);
        wait()
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the clock has advanced, and returns by how much at least.
    fn pass() -> Duration {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        Duration::from_millis(2)
    }

    #[test]
    fn only_the_time_at_work_counts_and_counts_once() {
        let start = Instant::now();
        let busy = Busy::default();
        assert_eq!(busy.total(), Duration::ZERO);
        let first = busy.begin();
        let mut least = pass();
        assert!(busy.total() >= least, "a thread that is still at work counts");
        let paused = first.pause(|| {
            let before = busy.total();
            pass();
            busy.total() - before
        });
        assert_eq!(paused, Duration::ZERO);
        // Two threads at work at once count as one device at work.
        let second = busy.begin();
        least += pass();
        drop(first);
        least += pass();
        drop(second);
        let total = busy.total();
        assert!(total >= least && total < start.elapsed(), "{total:?} of {:?}", start.elapsed());
        pass();
        assert_eq!(busy.total(), total);
    }
}
