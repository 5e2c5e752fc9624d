//! A program, and running it: on a thread of its own, with a time limit, and panics caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::Device;

use crate::numbers::Numbers;

/// For one run; a stuck program must not stop the suite.
const LIMIT: Duration = Duration::from_secs(180);
/// Of numbers that were added up in another order.
const TOLERANCE: f64 = 1e-4;

type Run = dyn Fn(&[Device]) -> Numbers + Send + Sync;

/// The same code for every device: two of them are given.
pub struct Program {
    pub name: String,
    pub tolerance: f64,
    limit: Duration,
    attempts: usize,
    run: Arc<Run>,
}

impl Program {
    pub fn new(name: impl Into<String>, run: impl Fn(&[Device]) -> Numbers + Send + Sync + 'static) -> Program {
        Program { name: name.into(), tolerance: TOLERANCE, limit: LIMIT, attempts: 1, run: Arc::new(run) }
    }

    /// For what burn itself lets hang now and then: it is run again if it has not ended within `limit`.
    pub fn attempted(self, attempts: usize, limit: Duration) -> Program {
        Program { attempts, limit, ..self }
    }

    /// For what amplifies differences, as many steps of training do.
    pub fn within(self, tolerance: f64) -> Program {
        Program { tolerance, ..self }
    }
}

/// What threads panicked with since the last program began; a program's own threads panic, too.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Panics go into the line of their program.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message =
            payload.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| payload.downcast_ref::<String>().cloned());
        panics().push(message.unwrap_or_else(|| "a panic without a message".into()));
    }));
}

/// Runs `program` on `devices`. What it panics with, or that it does not end, is the error.
pub fn run(program: &Program, devices: &[Device]) -> Result<Numbers, String> {
    for attempt in 1..=program.attempts {
        panics().clear();
        let (send, receive) = mpsc::channel();
        let (work, devices) = (program.run.clone(), devices.to_vec());
        std::thread::spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| work(&devices)));
            let _ = send.send(result.ok());
        });
        match receive.recv_timeout(program.limit) {
            Ok(Some(numbers)) => return Ok(numbers),
            // What an attempt that hangs leaves behind may end the next one.
            Ok(None) if attempt > 1 && attempt < program.attempts => {}
            Ok(None) => return Err(format!("panics: {}", said())),
            Err(_) => {}
        }
    }
    let (times, limit) = (program.attempts, program.limit.as_secs());
    Err(format!("does not end within {limit} s ({times} attempts) {}", said()))
}

fn said() -> String {
    let text = panics().join(" | ").replace('\n', " ");
    text.chars().take(600).collect()
}
