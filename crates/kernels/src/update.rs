//! In-place changes of variables: the arithmetic of every optimizer and every scatter, as functions of tensors.
//!
//! The forms that take references (`ApplyAdam`, `ScatterAdd`) and those that take resources (`ResourceApplyAdam`,
//! `ResourceScatterAdd`) share one implementation: the executor finds the variables that the node's first inputs name,
//! locks them, and calls [`Update::apply`]. This module does not know where a variable is stored or which readers it has.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Element, Tensor};

use super::{KernelNode, OPS};

type Apply = Box<dyn Fn(&mut [Tensor], &[Tensor]) -> Result<()> + Send>;

/// A change of variables, compiled for one node.
pub struct Update {
    /// The number of the node's first inputs that are variables: the variable, then its slots.
    pub variables: usize,
    apply: Apply,
}

impl Update {
    pub(super) fn new(
        variables: usize,
        apply: impl Fn(&mut [Tensor], &[Tensor]) -> Result<()> + Send + 'static,
    ) -> Update {
        Update { variables, apply: Box::new(apply) }
    }

    /// Changes `variables` in place; `rest` contains the node's other inputs in order.
    ///
    /// The elements of a variable are copied first if a reader of an earlier value still holds them. On an error nothing
    /// has changed.
    ///
    /// # Errors
    /// InvalidArgument if shapes do not match, a rate is not a scalar or an index is out of bounds.
    pub fn apply(&self, variables: &mut [Tensor], rest: &[Tensor]) -> Result<()> {
        (self.apply)(variables, rest)
    }
}

/// Compiles the update of a node; `None` if its op is not an update.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the node's dtype.
pub fn update(node: &KernelNode) -> Result<Option<Update>> {
    OPS.compile_update(node)
}

/// The names of the ops that change variables.
pub fn ops() -> impl Iterator<Item = &'static str> {
    OPS.updates()
}

/// The elements of exactly `N` variables of one shape, for writing.
///
/// # Errors
/// InvalidArgument naming two variables of different shape.
pub(super) fn slots<'a, T: Element, const N: usize>(
    variables: &'a mut [Tensor],
    names: &[&str],
) -> Result<[&'a mut [T]; N]> {
    let count = variables.len();
    let wrong = || Failure::invalid(format!("expected {N} variables, got {count}"));
    let [first, others @ ..] = &*variables else { return Err(wrong()) };
    for (other, name) in others.iter().zip(&names[1..]) {
        if other.shape() != first.shape() {
            return Err(Failure::invalid(format!(
                "{} and {name} do not have the same shape {} {}",
                names[0],
                first.shape(),
                other.shape()
            )));
        }
    }
    let slices: Vec<&mut [T]> = variables.iter_mut().map(Tensor::slice_mut).collect::<Result<_>>()?;
    slices.try_into().map_err(|_| wrong())
}
