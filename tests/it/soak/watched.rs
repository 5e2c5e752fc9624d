//! A run as its client sees it: the values in their order, the longest silence, and the notices.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::field::{Field, memory};
use crate::sandbox::Running;

/// The longest silence of a run that does not hang: a lost task is waited for up to 60 s.
pub const SPEAKS_WITHIN: Duration = Duration::from_secs(90);
/// The interval of a check for the end of the client.
const LOOKS: Duration = Duration::from_millis(100);

/// The end of a run.
pub struct Outcome {
    pub took: Duration,
    /// The longest time without a line, and the step after it.
    pub stall: (Duration, u64),
    /// The steps and their values.
    pub values: Vec<String>,
    /// The saved state of a training.
    pub state: Option<Vec<u8>>,
    /// How often a task was lost, and how many steps were computed again for it.
    pub losses: usize,
    pub repeated: u64,
    pub stderr: String,
    /// The memory of the master after a third of the run and at its end.
    pub resident_kb: Option<(u64, u64)>,
}

/// The step of a line.
pub fn step(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line).ok()?["step"].as_u64()
}

/// The part of a line about a step that is the same for each run of the same steps: no rates.
fn kept(line: &str) -> Option<String> {
    let mut shown: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let object = shown.as_object_mut().filter(|object| object.contains_key("step"))?;
    object.remove("steps_per_s");
    Some(shown.to_string())
}

/// Reads a run to its end that nothing disturbs.
pub fn watch(field: &Field, client: Running, folder: &str, (steps, time): (u64, Duration)) -> Outcome {
    let (is_over, pids) = (AtomicBool::new(false), field.pids());
    std::thread::scope(|scope| {
        let memory = scope.spawn(|| memory(&pids, time, &is_over));
        let outcome = watch_until(client, folder, steps, &is_over);
        Outcome { resident_kb: memory.join().ok().flatten(), ..outcome }
    })
}

/// Reads a run to its end, which it notes.
pub fn watch_until(mut client: Running, folder: &str, steps: u64, is_over: &AtomicBool) -> Outcome {
    // Whatever happens, those beside it end.
    let _over = Ends(is_over);
    let (began, mut spoke, mut stall, mut values) = (Instant::now(), Instant::now(), (Duration::ZERO, 0), Vec::new());
    let mut first = None;
    loop {
        let line = client.next_line(LOOKS);
        if line.is_none() && client.has_ended() {
            break;
        }
        if let Some(line) = &line {
            // The start of the client is no stall.
            if !values.is_empty() && spoke.elapsed() > stall.0 {
                stall = (spoke.elapsed(), step(line).unwrap_or(steps));
            }
            spoke = Instant::now();
            first = first.or(Some(spoke));
        }
        values.extend(line.as_deref().and_then(kept));
        assert!(spoke.elapsed() < SPEAKS_WITHIN, "it hangs after {:?}: {}", values.last(), client.stderr());
    }
    while let Some(line) = client.waiting_line() {
        values.extend(kept(&line));
    }
    let took = first.unwrap_or(began).elapsed();
    is_over.store(true, Ordering::Release);
    let ended = client.end().expect(0);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    let (losses, repeated) = losses(&ended.stderr);
    let state = Path::new(folder).join(format!("step-{steps:012}.safetensors"));
    let state = std::fs::read(state).ok();
    let stderr = ended.stderr;
    Outcome { took, stall, values, state, losses, repeated, stderr, resident_kb: None }
}

/// Sets a flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How often a run continued after a loss, and how many of its steps were computed again.
fn losses(stderr: &str) -> (usize, u64) {
    let number = |text: &str| text.replace(',', "").parse::<u64>().ok();
    let repeated = stderr.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" was lost at step ")?;
        let (at, rest) = rest.split_once("; continued from ")?;
        let (from, _) = rest.split_once(" after ")?;
        Some(number(at)?.saturating_sub(number(from)?))
    });
    let all: Vec<u64> = repeated.collect();
    (all.len(), all.iter().sum())
}
