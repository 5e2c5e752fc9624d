//! The errors of differentiation.

use std::fmt;

use meshtf_tensor::failure::{Code, Failure};

/// Most nodes of a path that a message names.
const PATH_SHOWN: usize = 12;

/// The obstacle that the gradients reached.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum GradientError {
    #[error("node {node}: {op} has no gradient; the path to it is {path}")]
    NoRule { node: String, op: String, path: Path },
    #[error(
        "node {node}: {op} is part of a loop that is not made as TensorFlow's are, of Enter, Merge, LoopCond, Switch, \
         NextIteration and Exit; the path to it is {path}"
    )]
    Loop { node: String, op: String, path: Path },
    #[error("node {node}: its gradient is disabled ({why}); the path to it is {path}")]
    Prevented { node: String, why: String, path: Path },
    #[error("node {node}: the gradient of {op} {why}; the path to it is {path}")]
    Unsupported { node: String, op: String, why: String, path: Path },
    #[error(
        "{given} tensors to start from are given for the {wanted} that are differentiated; give one for each, or none"
    )]
    Starts { given: usize, wanted: usize },
    #[error("{start} is {given}, but {y}, which it is to start the gradient of, is {wanted}")]
    StartType { start: String, given: &'static str, y: String, wanted: &'static str },
    #[error("{0} is a tensor of another graph")]
    Foreign(String),
    #[error(
        "{0} is inside of a loop, where it has a value for each iteration; differentiate what leaves the loop, by what enters it"
    )]
    InLoop(String),
    #[error("{0}")]
    Failed(Failure),
}

/// The nodes from a differentiated tensor to the obstacle.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Path(pub Vec<String>);

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = &self.0;
        if names.len() <= PATH_SHOWN {
            return f.write_str(&names.join(" <- "));
        }
        let (first, last) = (&names[..PATH_SHOWN / 2], &names[names.len() - PATH_SHOWN / 2..]);
        write!(f, "{} <- ({} more) <- {}", first.join(" <- "), names.len() - PATH_SHOWN, last.join(" <- "))
    }
}

impl From<GradientError> for Failure {
    fn from(error: GradientError) -> Failure {
        let code = match error {
            GradientError::Failed(failure) => return failure,
            GradientError::NoRule { .. }
            | GradientError::Loop { .. }
            | GradientError::Prevented { .. }
            | GradientError::Unsupported { .. } => Code::Unimplemented,
            GradientError::Starts { .. }
            | GradientError::StartType { .. }
            | GradientError::Foreign(_)
            | GradientError::InLoop(_) => Code::InvalidArgument,
        };
        Failure::new(code, error.to_string())
    }
}
