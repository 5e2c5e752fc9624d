//! The signals that end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, Trouble};

/// Receives a signal from now on; it no longer kills the process.
pub(super) fn listen_for(kind: SignalKind) -> Result<Signal, Trouble> {
    signal(kind).map_err(|error| Trouble::input(format!("cannot receive signals: {error}")))
}

/// Ready when the user or the system asks this command to end: a signal counts from this call on, whenever the future is
/// polled.
pub(super) fn interrupted() -> impl Future<Output = Trouble> {
    let signals = listen_for(SignalKind::interrupt()).and_then(|one| Ok((one, listen_for(SignalKind::terminate())?)));
    async {
        let (mut interrupt, mut terminate) = match signals {
            Ok(signals) => signals,
            Err(trouble) => return trouble,
        };
        let (exit, signal) = tokio::select! {
            _ = interrupt.recv() => (Exit::Interrupted, "SIGINT"),
            _ = terminate.recv() => (Exit::Terminated, "SIGTERM"),
        };
        Trouble::new(exit, format!("stopped by {signal}; its running steps are cancelled"))
    }
}
