//! Boosted trees: the statistics of a layer, the best splits by them, quantiles of features, and ensembles that grow and
//! predict. The ops that change an ensemble or a stream of quantiles are in `meshtf-exec`, which keeps both.

mod ensemble;
mod grow;
mod predict;
mod proto;
mod prune;
mod quantiles;
mod sketch;
mod sparse_splits;
mod sparse_stats;
mod splits;
mod stats;
#[cfg(test)]
mod tests;
mod weights;

pub use ensemble::{Ensemble, States};
pub use grow::{Candidates, Pruning};
pub use predict::{Cached, Features};
pub use quantiles::{entries_of, summary_of};
pub use sketch::{Entry, Sketch, check_epsilon};

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};

use super::Registry;

/// Registers the ops of boosted trees that keep no state.
pub(super) fn register(ops: &mut Registry) {
    stats::register(ops);
    sparse_stats::register(ops);
    splits::register(ops);
    sparse_splits::register(ops);
    quantiles::register(ops);
}

/// The name of a split whose missing values go left.
pub const DEFAULT_LEFT: &str = "INEQUALITY_DEFAULT_LEFT";
/// The name of a split whose missing values go right.
pub const DEFAULT_RIGHT: &str = "INEQUALITY_DEFAULT_RIGHT";
/// The name of a split by equality.
pub const EQUALITY: &str = "EQUALITY_DEFAULT_RIGHT";

/// The one element of a scalar input.
///
/// # Errors
/// InvalidArgument if the input is not a scalar.
pub fn scalar<T: meshtf_tensor::Element>(tensor: &Tensor, name: &str) -> Result<T> {
    if tensor.rank() != 0 {
        return Err(Failure::invalid(format!("{name} must be a scalar, got a tensor of shape {}", tensor.shape())));
    }
    tensor.item()
}

/// The elements of a vector.
///
/// # Errors
/// InvalidArgument if the input is not a vector.
pub fn vector<'a, T: meshtf_tensor::Element>(tensor: &'a Tensor, name: &str) -> Result<&'a [T]> {
    if tensor.rank() != 1 {
        return Err(Failure::invalid(format!("{name} must be a vector, received shape {}", tensor.shape())));
    }
    tensor.slice()
}

/// The elements of a matrix, and its number of columns.
///
/// # Errors
/// InvalidArgument if the input is not a matrix.
pub fn matrix<'a, T: meshtf_tensor::Element>(tensor: &'a Tensor, name: &str) -> Result<(&'a [T], usize)> {
    match *tensor.dims() {
        [_, columns] => Ok((tensor.slice()?, columns)),
        _ => Err(Failure::invalid(format!("{name} must be a matrix, got a tensor of shape {}", tensor.shape()))),
    }
}

/// An index from outside, below a limit.
fn index(value: i32, limit: usize, name: &str) -> Result<usize> {
    let index = usize::try_from(value).ok().filter(|&index| index < limit);
    index.ok_or_else(|| Failure::invalid(format!("{name} {value} is not in [0, {limit})")))
}
