//! The ops that touch what outlives a step (variables, queues, accumulators, files), or what lives as long as it flows through
//! one and is no tensor (tensor arrays, stacks, lists, optionals).
//!
//! Each is compiled for its node once, and then finds its resources through the handles that flow in.

mod accumulator;
mod checkpoint;
mod list;
mod named;
mod op;
mod optional;
mod queue;
mod stack;
mod tensor_array;
mod variable;

pub(super) use named::Site;
pub(super) use op::{Call, Outcome, StateOp, answered};

use super::engine::Engine;
use super::kernel::KernelNode;
use crate::failure::Result;

/// Compiles an op that touches state; `None` if it is none.
///
/// # Errors
/// InvalidArgument if the attributes are wrong.
pub(super) fn compile(node: &KernelNode, site: &Site, engine: &dyn Engine) -> Result<Option<StateOp>> {
    for family in [
        variable::compile,
        queue::compile,
        accumulator::compile,
        tensor_array::compile,
        stack::compile,
        list::compile,
        optional::compile,
        checkpoint::compile,
    ] {
        if let Some(op) = family(node, site, engine)? {
            return Ok(Some(op));
        }
    }
    Ok(None)
}
