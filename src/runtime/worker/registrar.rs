//! The threads of a worker: one compiles pieces, the other copies and restores the states of guarded sessions, so that neither
//! waits for the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use meshtf_tensor::failure::Failure;
use meshtf_tensor::ids::PieceId;
use meshtf_tensor::lock::lock;

use super::{GuardWork, RegisterWork, State};
use crate::protocol::ToMaster;

/// The name of a registration in the failure for its panic.
const REGISTERING: &str = "registering a piece";
/// That of work for a guarded session.
const GUARDING: &str = "copying or restoring a state";
/// How often the thread looks for copies whose master did not come back.
const SWEEPS: Duration = Duration::from_secs(60);

impl State {
    /// Does the work for guarded sessions that comes, until the worker is gone.
    pub(super) fn guard_all(&self, queue: &Receiver<GuardWork>) {
        let mut swept = Instant::now();
        loop {
            match queue.recv_timeout(SWEEPS) {
                Ok(work) => self.guard_one(work),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if swept.elapsed() >= SWEEPS {
                lock(&self.guards).sweep();
                self.drop_unguarded();
                swept = Instant::now();
            }
        }
    }

    pub(super) fn guard_one(&self, GuardWork { from, message, tensors }: GuardWork) {
        let about = message.about();
        let budget = self.resources.budget();
        let done = catch_unwind(AssertUnwindSafe(|| budget.run(|| self.guard(&from, message, tensors))));
        if let Err(panic) = done {
            self.refuse_guard(&from, &about, Failure::panicked(GUARDING, &*panic));
        }
    }

    /// Compiles pieces and answers, also after a failure or a panic.
    pub(super) fn register(&self, registration: RegisterWork) {
        let RegisterWork { master, session, isolated, guarded, pieces } = registration;
        let ids: Vec<PieceId> = pieces.iter().map(|(id, _)| *id).collect();
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            if isolated {
                self.resources.isolate(session);
            }
            if guarded {
                self.resources.guard(session);
            }
            pieces.into_iter().try_for_each(|(id, piece)| self.register_one(id, piece))
        }));
        let result = compiled.unwrap_or_else(|panic| Err(Failure::panicked(REGISTERING, &*panic)));
        let result = result.map_err(|failure| failure.on_task(&self.task.to_string()));
        let answered = catch_unwind(AssertUnwindSafe(|| {
            self.registered(session, &ids);
            self.answer(&master, ToMaster::Registered { session, pieces: ids.clone(), result });
        }));
        if let Err(panic) = answered {
            let failure = Failure::panicked(REGISTERING, &*panic).on_task(&self.task.to_string());
            tracing::error!("{failure}");
            let again = ToMaster::Registered { session, pieces: ids, result: Err(failure) };
            let _told = catch_unwind(AssertUnwindSafe(|| self.answer(&master, again)));
        }
    }
}
