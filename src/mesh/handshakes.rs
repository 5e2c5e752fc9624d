//! The thread for the handshakes of unauthenticated peers.
//!
//! A handshake costs an unauthenticated peer little and a node a millisecond of signatures. On one thread of their own, these
//! handshakes take one processor at most, in the order in which the peers connected, and do not slow the threads that carry the
//! messages of members. The table of [unauthenticated peers](crate::unauthenticated) limits how many wait.

use std::io;
use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// The thread, from the first handshake on.
#[derive(Default)]
pub struct Handshakes(OnceLock<Option<Worker>>);

struct Worker {
    runtime: Handle,
    /// The thread ends when this is dropped, and its work under way with it.
    _stays: oneshot::Sender<()>,
}

impl Handshakes {
    /// Does the work on the thread. Dropping the future ends the work.
    ///
    /// # Errors
    /// The error of the work; `Other` if it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let Some(worker) = self.0.get_or_init(Worker::start) else { return work.await };
        let (mut done, outcome) = oneshot::channel();
        worker.runtime.spawn(async move {
            tokio::select! {
                biased;
                () = done.closed() => {}
                outcome = work => {
                    let _nobody_waits = done.send(outcome);
                }
            }
        });
        outcome.await.unwrap_or_else(|_| Err(io::Error::other("the handshake was abandoned")))
    }
}

impl Worker {
    /// `None` if the system has no thread to give; the handshakes are then done by the tasks that request them.
    fn start() -> Option<Worker> {
        let cannot = |error: &io::Error| tracing::warn!("cannot start a thread for handshakes: {error}");
        let runtime = Builder::new_current_thread().build().inspect_err(cannot).ok()?;
        let handle = runtime.handle().clone();
        let (stays, over) = oneshot::channel::<()>();
        let run = move || {
            let _dropped = runtime.block_on(over);
            drop(runtime);
            meshtf_tensor::memory::tell_all();
        };
        thread::Builder::new().name("meshtf-entry".to_owned()).spawn(run).inspect_err(cannot).ok()?;
        Some(Worker { runtime: handle, _stays: stays })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_is_done_on_a_thread_of_its_own() {
        let handshakes = Handshakes::default();
        let names = async || handshakes.run(async { Ok(thread::current().name().map(str::to_owned)) }).await.unwrap();
        assert_eq!(names().await.as_deref(), Some("meshtf-entry"));
        let refused = handshakes.run(async { Err::<(), _>(io::ErrorKind::InvalidData.into()) }).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        let panicked = handshakes.run::<()>(async { panic!("on purpose") }).await.unwrap_err();
        assert_eq!(panicked.kind(), io::ErrorKind::Other);
        assert!(names().await.is_some());
    }

    #[tokio::test]
    async fn it_ends_when_nobody_waits_for_it() {
        let held = Arc::new(());
        let kept = Arc::clone(&held);
        let never = async move {
            std::future::pending::<()>().await;
            drop(kept);
            Ok(())
        };
        let handshakes = Handshakes::default();
        let waited = tokio::time::timeout(Duration::from_millis(1), handshakes.run(never)).await;
        assert!(waited.is_err());
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
