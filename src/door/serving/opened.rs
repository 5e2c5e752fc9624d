//! The session of a server, which is opened again if it was lost with a task or its master.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::lock::lock;
use tokio::sync::Notify;

use super::Serving;
use crate::session::Session;

/// The distance between two attempts to open a session.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long a session stays if it lacks the value of a variable.
const STAYS: Duration = Duration::from_secs(10);

pub(super) struct Opened {
    session: Mutex<Current>,
    lost: Notify,
}

struct Current {
    /// The session, or why there is none.
    session: Result<Arc<Session>, String>,
    since: Instant,
}

impl Opened {
    pub fn new(session: Session) -> Opened {
        let current = Current { session: Ok(Arc::new(session)), since: Instant::now() };
        Opened { session: Mutex::new(current), lost: Notify::new() }
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
        lock(&self.session).session.as_ref().map(Arc::clone).map_err(being_opened)
    }

    /// The failure of a step, which may be the end of its session.
    pub fn failed(&self, of: &Arc<Session>, failure: Failure) -> Failure {
        let mut current = lock(&self.session);
        if !current.session.as_ref().is_ok_and(|own| Arc::ptr_eq(own, of)) {
            return failure;
        }
        match failure.code {
            Code::Unavailable | Code::Aborted => {
                current.session = Err(failure.message.clone());
                self.lost.notify_one();
            }
            // A variable without a value: its task may have been started again. If it never had one, other requests, which do
            // not need it, continue.
            Code::FailedPrecondition if current.since.elapsed() >= STAYS => self.lost.notify_one(),
            _ => {}
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
                    *lock(&opened.session) = Current { session: Ok(Arc::new(session)), since: Instant::now() };
                    tracing::warn!("{name} is served again");
                    break;
                }
                Err(failure) => lock(&opened.session).session = Err(failure.message),
            }
        }
    }
}
