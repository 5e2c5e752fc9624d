//! The clock by which links are kept, doubted and given up. Timers only wake the tasks that read it, so that a test can stop it
//! and advance it.

#[cfg(not(test))]
use std::time::Instant;

#[cfg(test)]
pub use stopped::{Stopped, now};

#[cfg(not(test))]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod stopped {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    thread_local! {
        static STANDS_AT: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The time of the thread, if it was stopped on this thread.
    pub fn now() -> Instant {
        STANDS_AT.get().unwrap_or_else(Instant::now)
    }

    /// Stops the clock of this thread until it is dropped: for meshes that run on this thread alone.
    pub struct Stopped(());

    impl Stopped {
        pub fn here() -> Stopped {
            STANDS_AT.set(Some(Instant::now()));
            Stopped(())
        }

        pub fn pass(&self, time: Duration) {
            STANDS_AT.set(Some(now() + time));
        }
    }

    impl Drop for Stopped {
        fn drop(&mut self) {
            STANDS_AT.set(None);
        }
    }
}
