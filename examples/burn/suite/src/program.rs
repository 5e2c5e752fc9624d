//! A program and its run: on a thread of its own, with a time limit, and panics caught; or in a process of its own, which is
//! killed if it hangs.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::Device;

use crate::numbers::Numbers;

/// The time limit of one run; a program that hangs must not stop the suite.
const LIMIT: Duration = Duration::from_secs(180);
/// The relative tolerance for sums in another order.
const TOLERANCE: f64 = 1e-4;

type Run = dyn Fn(&[Device]) -> Numbers + Send + Sync;

/// The code, the same for every device; it receives two devices.
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

    /// For a program that burn itself lets hang now and then: each attempt is a process of its own, and the next one follows if
    /// it has not ended within `limit`.
    pub fn attempted(self, attempts: usize, limit: Duration) -> Program {
        Program { attempts, limit, ..self }
    }

    /// Whether [`attempt`] runs it.
    pub fn may_hang(&self) -> bool {
        self.attempts > 1
    }

    /// For a program that amplifies differences, such as many steps of training.
    pub fn within(self, tolerance: f64) -> Program {
        Program { tolerance, ..self }
    }
}

/// The panics of all threads since the last program began, among them a program's own threads.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Puts panics into the line of their program.
pub fn keep_panics_quiet() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let message =
            payload.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| payload.downcast_ref::<String>().cloned());
        panics().push(message.unwrap_or_else(|| "a panic without a message".into()));
    }));
}

/// Runs `program` on `devices`. A panic, or the time limit, is the error.
pub fn run(program: &Program, devices: &[Device]) -> Result<Numbers, String> {
    panics().clear();
    let (send, receive) = mpsc::channel();
    let (work, devices) = (program.run.clone(), devices.to_vec());
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(&devices)));
        let _ = send.send(result.ok());
    });
    match receive.recv_timeout(program.limit) {
        Ok(Some(numbers)) => Ok(numbers),
        Ok(None) => Err(format!("panics: {}", said())),
        Err(_) => Err(format!("does not end within {} s {}", program.limit.as_secs(), said())),
    }
}

/// Runs `program` in a process of its own, which `command` starts and which writes its numbers, and kills the process if it
/// hangs. Nothing that it leaves behind can affect another program or the next attempt.
pub fn attempt(program: &Program, command: impl Fn() -> Command) -> Result<Numbers, String> {
    for _ in 0..program.attempts {
        let mut child = command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        let (send, receive) = mpsc::channel();
        let (mut out, mut err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = send.send(out.read_to_string(&mut text).map(|_| text));
        });
        let answer = receive.recv_timeout(program.limit);
        // It may also hang at its end.
        let _gone = child.kill();
        child.wait().map_err(|e| e.to_string())?;
        let Ok(answer) = answer else { continue };
        return Numbers::read(&answer.map_err(|e| e.to_string())?).ok_or_else(|| {
            let mut said = String::new();
            let _ = err.read_to_string(&mut said);
            format!("ends without an answer: {}", said.trim().replace('\n', " "))
        });
    }
    Err(format!("none of {} processes ends within {} s", program.attempts, program.limit.as_secs()))
}

fn said() -> String {
    let text = panics().join(" | ").replace('\n', " ");
    text.chars().take(600).collect()
}
