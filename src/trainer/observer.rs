//! Who follows a training, and what ends one.

use std::fmt;

use meshtf_graph::GraphError;
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};

use super::Evaluated;

/// What an observer returns: an error of its own ends the training.
pub type Observed = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Follows a training as it runs. Each of these does nothing unless it is written. They are called between steps, one at a time,
/// and the workers run on meanwhile for as long as there are batches; an error ends the training as an [`Error::Observer`].
pub trait Observer: Send {
    /// The first step is about to run: this many steps are done already.
    fn begins(&mut self, start: u64) -> Observed {
        let _ = start;
        Ok(())
    }

    /// What there is to know once: from which state the training goes on, say. A sentence.
    fn noted(&mut self, text: &str) -> Observed {
        let _ = text;
        Ok(())
    }

    /// A step is done of those that are recorded. `values` are the loss and the metrics of its batch, as
    /// [`Trainer::names`](super::Trainer::names) has them.
    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        let _ = (step, values);
        Ok(())
    }

    /// Examples that are not trained with were evaluated after a step.
    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        let _ = (step, evaluated);
        Ok(())
    }

    /// What was evaluated is the last of this training: there are no more steps, or it has not become better for too long.
    fn evaluated_last(&mut self, evaluated: &Evaluated) -> Observed {
        let _ = evaluated;
        Ok(())
    }

    /// The weights after a step, by name, if [`Trainer::report_weights`](super::Trainer::report_weights) asked for them.
    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        let _ = (step, weights);
        Ok(())
    }

    /// What each device ran in `steps` consecutive steps from `first` on, if
    /// [`Options::trace`](super::Options::trace) asks for it.
    fn traced(&mut self, first: u64, steps: u64, traces: Vec<DeviceTrace>) -> Observed {
        let _ = (first, steps, traces);
        Ok(())
    }

    /// The training ends after this step, before the last one: what the section `evaluate` watches, `of`, has not become better
    /// than `best` was after the step `at`.
    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        let _ = (step, of, best, at);
        Ok(())
    }
}

/// Nobody follows.
impl Observer for () {}

/// Why a training could not begin, or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// What the sections say does not fit the graph or the examples. The message names the key, if there is one.
    Sections(String),
    /// Something else that was given does not fit: a file, a folder, an example. The message names it.
    Input(String),
    /// The loss became NaN or infinite. The message says in which step, and what helps.
    NotFinite(String),
    /// A step failed, or could not run.
    Failed(Failure),
    /// The observer ended it.
    Observer(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    pub(super) fn input(message: impl Into<String>) -> Error {
        Error::Input(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Sections(message) | Error::Input(message) | Error::NotFinite(message) => f.write_str(message),
            Error::Failed(failure) => failure.fmt(f),
            Error::Observer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Failed(failure) => Some(failure),
            Error::Observer(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Failed(failure)
    }
}

impl From<GraphError> for Error {
    fn from(error: GraphError) -> Error {
        Error::Input(error.to_string())
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for Error {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
        Error::Observer(error)
    }
}

impl From<Error> for Failure {
    /// For programs that have one error for all: InvalidArgument for what was given, Aborted if the observer ended it.
    fn from(error: Error) -> Failure {
        match error {
            Error::Failed(failure) => failure,
            Error::Observer(error) => Failure::new(Code::Aborted, error.to_string()),
            Error::Sections(message) | Error::Input(message) | Error::NotFinite(message) => Failure::invalid(message),
        }
    }
}
