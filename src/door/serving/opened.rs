//! The session of a server, which is opened again if it was lost with a task or its master.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use tokio::sync::Notify;

use super::Serving;
use crate::session::Session;

/// The distance between two attempts to open a session.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Opened {
    /// The session, or why there is none.
    session: Mutex<Result<Arc<Session>, String>>,
    lost: Notify,
}

impl Opened {
    pub fn new(session: Session) -> Opened {
        Opened { session: Mutex::new(Ok(Arc::new(session))), lost: Notify::new() }
    }

    /// The session.
    ///
    /// # Errors
    /// Unavailable while it is opened again.
    pub fn session(&self) -> Result<Arc<Session>> {
        let being_opened = |why: &String| {
            Failure::new(
                Code::Unavailable,
                format!("the session of the model is being opened again; it was lost: {why}"),
            )
        };
        lock(&self.session).as_ref().map(Arc::clone).map_err(being_opened)
    }

    /// The failure of a step, which may be the end of its session.
    pub fn failed(&self, of: &Arc<Session>, failure: Failure) -> Failure {
        // A variable without a value: its task was started again.
        if !matches!(failure.code, Code::Unavailable | Code::Aborted | Code::FailedPrecondition) {
            return failure;
        }
        let mut session = lock(&self.session);
        if session.as_ref().is_ok_and(|own| Arc::ptr_eq(own, of)) {
            *session = Err(failure.message.clone());
            self.lost.notify_one();
        }
        failure
    }
}

/// Opens a session each time that one was lost, until it is dropped.
pub(super) async fn keep<F: Future<Output = Result<Session>> + Send>(
    serving: Arc<Serving>,
    sessions: impl Fn() -> F + Send + Sync + 'static,
) {
    let (opened, name) = (&serving.opened, &serving.model.name);
    loop {
        opened.lost.notified().await;
        tracing::warn!("the session of {name} was lost, and is being opened again");
        loop {
            // Also before the first attempt: a model that always fails so is not opened without end.
            tokio::time::sleep(AGAIN_AFTER).await;
            match sessions().await {
                Ok(session) => {
                    *lock(&opened.session) = Ok(Arc::new(session));
                    tracing::warn!("{name} is served again");
                    break;
                }
                Err(failure) => *lock(&opened.session) = Err(failure.message),
            }
        }
    }
}
