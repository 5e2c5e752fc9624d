//! The observers of a training, and the reasons that end one.

use std::fmt;
use std::path::Path;

use meshtf_graph::GraphError;
use meshtf_graph::trace::DeviceTrace;
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure};

use super::Evaluated;

/// The end of a training: why, and after which step.
///
/// ```
/// use meshtf::train::{Ended, How};
///
/// /// The exit code of a program that trains: 3 if there are steps left.
/// fn exit_code(ended: &Ended) -> u8 {
///     if ended.how == How::Stopped { 3 } else { 0 }
/// }
/// let ended = Ended { start: 100, step: 250, how: How::Stopped };
/// assert_eq!((exit_code(&ended), ended.step - ended.start), (3, 150));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Number of steps done when it began.
    pub start: u64,
    /// Number of steps done now.
    pub step: u64,
    /// The reason.
    pub how: How,
}

/// The reason for the end of a training.
///
/// ```
/// use meshtf::train::How;
///
/// fn reason(how: How) -> &'static str {
///     match how {
///         How::Done => "all steps are done",
///         How::Enough => "the accuracy does not grow any more",
///         How::Stopped => "it was stopped",
///         _ => "it ended",
///     }
/// }
/// assert_eq!(reason(How::Done), "all steps are done");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// All steps are done.
    Done,
    /// The value that the section `evaluate` watches has not improved for as long as the section allows.
    Enough,
    /// `stop` was ready.
    Stopped,
}

/// The result of an observer: its error ends the training.
///
/// ```
/// use meshtf::train::Observed;
///
/// /// Ends a training that diverges.
/// fn check(step: u64, loss: f64) -> Observed {
///     if loss > 1000.0 {
///         return Err(format!("the loss is {loss} after step {step}").into());
///     }
///     Ok(())
/// }
/// assert!(check(1, 2.3).is_ok() && check(2, 1e9).is_err());
/// ```
pub type Observed = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Follows a training as it runs. The methods do nothing by default. They are called between steps, one at a time, and the
/// workers continue meanwhile as long as there are batches; an error ends the training as an [`Error::Observer`].
///
/// ```
/// use meshtf::Session;
/// use meshtf::train::{Error, Observed, Observer, Trainer};
///
/// /// The loss after each recorded step.
/// #[derive(Default)]
/// struct Curve(Vec<(u64, f64)>);
///
/// impl Observer for Curve {
///     fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
///         self.0.push((step, values[0]));
///         Ok(())
///     }
/// }
///
/// async fn curve(trainer: &Trainer, session: &Session) -> Result<Vec<(u64, f64)>, Error> {
///     let mut curve = Curve::default();
///     trainer.run(session, &mut curve).await?;
///     Ok(curve.0)
/// }
/// ```
pub trait Observer: Send {
    /// The first step is about to run; `start` steps are done already.
    fn begins(&mut self, start: u64) -> Observed {
        let _ = start;
        Ok(())
    }

    /// A single notice, such as the state from which the training continues. A sentence.
    fn noted(&mut self, text: &str) -> Observed {
        let _ = text;
        Ok(())
    }

    /// A recorded step is done. `values` are the loss and the metrics of its batch, in the order of
    /// [`Trainer::names`](super::Trainer::names).
    fn trained(&mut self, step: u64, values: &[f64]) -> Observed {
        let _ = (step, values);
        Ok(())
    }

    /// Examples that are not trained with were evaluated after a step.
    fn evaluated(&mut self, step: u64, evaluated: &Evaluated) -> Observed {
        let _ = (step, evaluated);
        Ok(())
    }

    /// The evaluation was the last of this training: there are no more steps, or the result has not improved for too long.
    fn evaluated_last(&mut self, evaluated: &Evaluated) -> Observed {
        let _ = evaluated;
        Ok(())
    }

    /// The weights after a step, by name, if [`Trainer::report_weights`](super::Trainer::report_weights) requested them.
    fn weights(&mut self, step: u64, weights: &[(String, Tensor)]) -> Observed {
        let _ = (step, weights);
        Ok(())
    }

    /// The trace of each device in `steps` consecutive steps from `first` on, if [`Options::trace`](super::Options::trace)
    /// requests it.
    fn traced(&mut self, first: u64, steps: u64, traces: Vec<DeviceTrace>) -> Observed {
        let _ = (first, steps, traces);
        Ok(())
    }

    /// The state after a step was saved in this file.
    fn saved(&mut self, step: u64, file: &Path) -> Observed {
        let _ = (step, file);
        Ok(())
    }

    /// The state after a step, or the best weights, could not be written, for the reason in `error`. The state that was saved
    /// last is kept. Returns whether the training continues nevertheless, and saves again when that is due next; after its last
    /// step (`is_last`) it then tries again every second. The default is `false`: the training ends with this error.
    fn save_failed(&mut self, step: u64, error: &Error, is_last: bool) -> bool {
        let _ = (step, error, is_last);
        false
    }

    /// The training ends after this step, before the last one: the value `of` that the section `evaluate` watches has not
    /// improved on `best`, its value after the step `at`.
    fn enough(&mut self, step: u64, of: &str, best: f64, at: u64) -> Observed {
        let _ = (step, of, best, at);
        Ok(())
    }
}

/// The empty observer.
impl Observer for () {}

/// The reason why a training could not begin, or ended.
///
/// ```
/// use meshtf::graph::GraphBuilder;
/// use meshtf::tensor::DType;
/// use meshtf::train::{Error, Examples, Optimizer, Options, Sections, Trainer, Training};
///
/// let mut g = GraphBuilder::new();
/// g.placeholder("x", DType::F32, [None])?;
/// let examples = Examples::new(vec![("x".into(), [1f32, 2.0].into())])?;
/// let sections = Sections::new("los", Training::new(Optimizer::Sgd, 0.1), 1);
/// match Trainer::new(g.finish()?, sections, examples, &Options::default()) {
///     Err(Error::Sections(message)) => assert!(message.contains("los"), "{message}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), meshtf::Failure>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The sections do not fit the graph or the examples. The message names the key, if there is one.
    Sections(String),
    /// Another argument does not fit: a file, a folder, an example. The message names it.
    Input(String),
    /// The loss became NaN or infinite. The message contains the step and a remedy.
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
    /// For programs with a single error type: InvalidArgument for the arguments, Aborted if the observer ended it.
    fn from(error: Error) -> Failure {
        match error {
            Error::Failed(failure) => failure,
            Error::Observer(error) => Failure::new(Code::Aborted, error.to_string()),
            Error::Sections(message) | Error::Input(message) | Error::NotFinite(message) => Failure::invalid(message),
        }
    }
}
