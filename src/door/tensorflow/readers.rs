//! Decodes large messages on threads that may block, a few at once.
//!
//! This keeps clients from occupying the threads that carry the messages of all connections.

use std::sync::Arc;
use std::time::Duration;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory::{self, Budget};
use tokio::sync::Semaphore;

/// How long a message waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Turns for long work, within the memory budget of the node.
pub(super) struct Readers {
    turns: Arc<Semaphore>,
    budget: Arc<Budget>,
}

impl Readers {
    /// With `count` turns at once.
    pub fn new(count: usize, budget: Arc<Budget>) -> Readers {
        Readers { turns: Arc::new(Semaphore::new(count)), budget }
    }

    /// Does the work in its turn.
    ///
    /// # Errors
    /// The failure of the work; ResourceExhausted if no turn is free in time; Internal if it panics.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let turn = tokio::time::timeout(MAX_WAIT, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            let why = format!(
                "too many large requests are being read: this one had no turn within {} s; try again",
                MAX_WAIT.as_secs()
            );
            return Err(Failure::new(Code::ResourceExhausted, why));
        };
        // The turn lasts as long as the work, even if nothing waits for it any longer.
        let budget = Arc::clone(&self.budget);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            budget.run(work)
        });
        done.await.unwrap_or_else(|error| {
            Err(Failure::new(Code::Internal, format!("the request could not be processed: {error}")))
        })
    }
}

impl Readers {
    /// Does work that takes `bytes` of memory in its turn; they are reserved until the work has allocated them.
    ///
    /// # Errors
    /// As [`Readers::run`]; ResourceExhausted if that exceeds the budget.
    pub async fn run_taking<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let budget = Arc::clone(&self.budget);
        let taking = move || {
            let _turn = memory::Turn::begin(&budget);
            memory::admit(bytes)?;
            work()
        };
        self.run(taking).await.map_err(Failure::with_holder)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    impl Readers {
        /// Occupies a turn until the guard is dropped.
        pub fn occupy(&self) -> tokio::sync::OwnedSemaphorePermit {
            Arc::clone(&self.turns).try_acquire_owned().expect("a turn is free")
        }
    }

    #[tokio::test]
    async fn turns_are_limited_and_a_panic_is_a_failure() {
        let readers = Arc::new(Readers::new(1, Arc::default()));
        let (go_on, waits) = mpsc::channel::<()>();
        let (began, begins) = tokio::sync::oneshot::channel();
        let first = tokio::spawn({
            let readers = Arc::clone(&readers);
            async move {
                let work = move || {
                    let _gone = began.send(());
                    let _hung_up = waits.recv();
                    Ok(1)
                };
                readers.run(work).await
            }
        });
        begins.await.unwrap();
        // The first call is aborted; its turn lasts until its work ends.
        first.abort();
        let mut second = std::pin::pin!(readers.run(|| Ok(2)));
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(go_on);
        assert_eq!(second.await.unwrap(), 2);
        let panicked = readers.run(|| -> Result<()> { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(panicked.code, Code::Internal);
        assert_eq!(readers.run(|| Ok(3)).await.unwrap(), 3);
    }
}
