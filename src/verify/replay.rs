//! Runs a recorded session's steps in a session and holds what comes back against the record.

use std::fmt;
use std::time::Duration;

use super::{Case, Expected, Mismatch, RecordedStep, compare};
use crate::failure::{Code, Failure, Result};
use crate::session::Session;
use crate::tensor::Tensor;

/// How long one step may take before it counts as stuck.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// Where a session first went otherwise than recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step, counted from 1.
    pub step: usize,
    pub why: Why,
}

/// How a step went otherwise than recorded.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A fetched value is another.
    Value { fetch: String, mismatch: Mismatch },
    /// It failed, and was recorded to run.
    Failed(Failure),
    /// It ran, or failed with another code, and was recorded to fail.
    NotThatError { expected: Code, message: String, got: Option<Failure> },
}

/// Runs every step in order; one recorded to fail must, with the recorded code, and the session goes on. Answers how many
/// steps there were. A session that could not be opened is the outcome of its first step.
///
/// # Errors
/// The first step that went otherwise than recorded.
pub async fn replay(case: &Case, session: Result<Session>) -> Result<usize, Difference> {
    let session = match (session, case.steps.first()) {
        (Ok(session), _) => session,
        (Err(failure), Some(step)) => {
            return hold(case, step, Err(failure)).map_or_else(|why| Err(Difference { step: 1, why }), |()| Ok(1));
        }
        (Err(failure), None) => return Err(Difference { step: 1, why: Why::Failed(failure) }),
    };
    for (i, step) in case.steps.iter().enumerate() {
        let outcome = run(&session, step).await;
        hold(case, step, outcome).map_err(|why| Difference { step: i + 1, why })?;
    }
    Ok(case.steps.len())
}

async fn run(session: &Session, step: &RecordedStep) -> Result<Vec<Tensor>> {
    let feeds: Vec<(&str, Tensor)> = step.feeds.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let fetches: Vec<&str> = step.fetches.iter().map(String::as_str).collect();
    let targets: Vec<&str> = step.targets.iter().map(String::as_str).collect();
    tokio::time::timeout(STEP_LIMIT, session.run(&feeds, &fetches, &targets)).await.unwrap_or_else(|_| {
        Err(Failure::new(Code::DeadlineExceeded, format!("the step did not end within {} s", STEP_LIMIT.as_secs())))
    })
}

fn hold(case: &Case, step: &RecordedStep, outcome: Result<Vec<Tensor>>) -> Result<(), Why> {
    match (&step.expected, outcome) {
        (Expected::Values(expected), Ok(got)) => {
            let pairs = step.fetches.iter().zip(expected.iter().zip(&got));
            for (fetch, (expected, got)) in pairs {
                compare(expected, got, step.check, case.rtol, case.atol)
                    .map_err(|mismatch| Why::Value { fetch: fetch.clone(), mismatch })?;
            }
            Ok(())
        }
        (Expected::Values(_), Err(failure)) => Err(Why::Failed(failure)),
        (Expected::Error(recorded), Err(failure)) if failure.code == recorded.code => Ok(()),
        (Expected::Error(recorded), outcome) => {
            Err(Why::NotThatError { expected: recorded.code, message: recorded.message.clone(), got: outcome.err() })
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match &self.why {
            Why::Value { fetch, mismatch } => write!(f, "{fetch}: {mismatch}"),
            Why::Failed(failure) => write!(f, "{failure}"),
            Why::NotThatError { expected, message, got } => {
                write!(f, "expected {}: {message}; ", expected.class())?;
                match got {
                    Some(failure) => write!(f, "got {failure}"),
                    None => write!(f, "but it ran"),
                }
            }
        }
    }
}

impl std::error::Error for Difference {}
