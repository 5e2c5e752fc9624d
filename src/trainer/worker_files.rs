//! Files on the workers: the workers hold them in memory as long as the trainer takes examples of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Error, Trainer};
use crate::Session;

/// The number of users of the examples that the workers hold.
#[derive(Debug, Default)]
pub(super) struct Holders {
    count: AtomicUsize,
    /// Held by one user at a time, while workers read their files or drop them.
    turn: tokio::sync::Mutex<()>,
}

/// One user.
struct Holder<'h>(&'h AtomicUsize);

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Trainer {
    /// Has workers read files by running `loads`, then does some work. However that ends, all workers drop their files, unless
    /// other work of this trainer takes examples of them.
    pub(super) async fn holding<T>(
        &self,
        session: &Session,
        loads: &[&str],
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if loads.is_empty() {
            return work.await;
        }
        let Holders { count, turn } = &self.holders;
        count.fetch_add(1, Ordering::SeqCst);
        let holder = Holder(count);
        let load = async {
            let _turn = turn.lock().await;
            for load in loads {
                session.run().target(*load).await?;
            }
            Ok::<(), Error>(())
        };
        let done = match load.await {
            Ok(()) => work.await,
            Err(error) => Err(error),
        };
        let _turn = turn.lock().await;
        if count.load(Ordering::SeqCst) == 1 {
            for held in self.job.held.iter().flatten().flatten() {
                // A failed session cannot run it, and a lost worker has none.
                let _ = session.run().target(&held.unload).await;
            }
        }
        drop(holder);
        done
    }
}
