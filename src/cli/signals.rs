//! The signals that end a command.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, Trouble};

/// Signals that arrive within this time of the first are one request: `timeout` signals a command and then its group, and a
/// person may press Ctrl-C twice.
const ONE_REQUEST: Duration = Duration::from_secs(1);

/// Receives a signal from now on; it no longer kills the process.
pub(super) fn listen_for(kind: SignalKind) -> Result<Signal, Trouble> {
    signal(kind).map_err(|error| Trouble::input(format!("cannot receive signals: {error}")))
}

/// The signals by which the user or the system asks a command to end, received from the creation on: SIGINT, SIGTERM, and
/// SIGHUP unless the command was started with that ignored, as `nohup` does.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    /// When the first one came.
    first: Option<Instant>,
}

/// A request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub exit: Exit,
    /// The name of the signal.
    pub signal: &'static str,
}

impl Signals {
    pub fn listen() -> Result<Signals, Trouble> {
        // Whether it is ignored can only be seen before it is received.
        let hangup = (!is_hangup_ignored()).then(|| listen_for(SignalKind::hangup())).transpose()?;
        let (interrupt, terminate) = (listen_for(SignalKind::interrupt())?, listen_for(SignalKind::terminate())?);
        Ok(Signals { interrupt, terminate, hangup, first: None })
    }

    /// Waits for the next request to end. Signals that follow the first one within a second are the same request. Cancel safe.
    pub async fn next(&mut self) -> Request {
        loop {
            let request = self.receive().await;
            let now = Instant::now();
            match self.first {
                Some(first) if now.duration_since(first) < ONE_REQUEST => {}
                _ => {
                    self.first.get_or_insert(now);
                    return request;
                }
            }
        }
    }

    async fn receive(&mut self) -> Request {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let (exit, signal) = tokio::select! {
            _ = self.interrupt.recv() => (Exit::Interrupted, "SIGINT"),
            _ = self.terminate.recv() => (Exit::Terminated, "SIGTERM"),
            _ = hangup => (Exit::HungUp, "SIGHUP"),
        };
        Request { exit, signal }
    }
}

/// Whether this process ignores SIGHUP: bit 0 of the mask SigIgn. Systems without /proc/self/status do not tell.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Ready when the user or the system asks this command to end: a signal counts from this call on, whenever the future is
/// polled.
pub(super) fn interrupted() -> impl Future<Output = Trouble> {
    let signals = Signals::listen();
    async {
        match signals {
            Ok(mut signals) => {
                let Request { exit, signal } = signals.next().await;
                Trouble::new(exit, format!("stopped by {signal}"))
            }
            Err(trouble) => trouble,
        }
    }
}
