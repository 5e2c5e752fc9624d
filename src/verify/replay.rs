//! Runs the steps of a recorded session and compares the results with the recording.

use std::fmt;
use std::time::Duration;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::{Case, Expected, Mismatch, RecordedStep, compare};
use crate::session::Session;

/// How long one step may take before it counts as stuck.
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// The first difference of a session from the recording.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// The step, counted from 1.
    pub step: usize,
    /// The kind of the difference.
    pub why: Cause,
}

/// The kinds of difference between a step and the recording.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// A fetched value differs.
    Value { fetch: String, mismatch: Mismatch },
    /// It failed but should have run.
    Failed(Failure),
    /// It ran, or failed with another code, but should have failed with this one.
    NotThatError { expected: Code, message: String, got: Option<Failure> },
}

/// Runs every step in order; a step recorded as failing must fail with that code, and the session continues. Returns
/// the number of steps. If the session could not be opened, that is the outcome of the first step.
///
/// # Errors
/// The first step that differed from the recording.
///
/// # Cancellation
/// If the future is dropped, the step under way is cancelled, as documented for [`Session::run`].
pub async fn replay(case: &Case, session: Result<Session>) -> Result<usize, Difference> {
    let session = match (session, case.steps.first()) {
        (Ok(session), _) => session,
        (Err(failure), Some(step)) => {
            return hold(case, step, Err(failure)).map_or_else(|why| Err(Difference { step: 1, why }), |()| Ok(1));
        }
        (Err(failure), None) => return Err(Difference { step: 1, why: Cause::Failed(failure) }),
    };
    for (i, step) in case.steps.iter().enumerate() {
        let outcome = run(&session, step).await;
        hold(case, step, outcome).map_err(|why| Difference { step: i + 1, why })?;
    }
    Ok(case.steps.len())
}

async fn run(session: &Session, step: &RecordedStep) -> Result<Vec<Tensor>> {
    let run = session.run().feeds(&step.feeds).fetches(&step.fetches).targets(&step.targets);
    match tokio::time::timeout(STEP_LIMIT, run).await {
        Ok(ran) => Ok(ran?.values),
        Err(_) => {
            let why = format!("the step did not end within {} s", STEP_LIMIT.as_secs());
            Err(Failure::new(Code::DeadlineExceeded, why))
        }
    }
}

fn hold(case: &Case, step: &RecordedStep, outcome: Result<Vec<Tensor>>) -> Result<(), Cause> {
    match (&step.expected, outcome) {
        (Expected::Values(expected), Ok(got)) => {
            let pairs = step.fetches.iter().zip(expected.iter().zip(&got));
            for (fetch, (expected, got)) in pairs {
                compare(expected, got, step.check, case.rtol, case.atol)
                    .map_err(|mismatch| Cause::Value { fetch: fetch.clone(), mismatch })?;
            }
            Ok(())
        }
        (Expected::Values(_), Err(failure)) => Err(Cause::Failed(failure)),
        (Expected::Error(recorded), Err(failure)) if failure.code == recorded.code => Ok(()),
        (Expected::Error(recorded), outcome) => {
            Err(Cause::NotThatError { expected: recorded.code, message: recorded.message.clone(), got: outcome.err() })
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match &self.why {
            Cause::Value { fetch, mismatch } => write!(f, "{fetch}: {mismatch}"),
            Cause::Failed(failure) => write!(f, "{failure}"),
            Cause::NotThatError { expected, message, got } => {
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
