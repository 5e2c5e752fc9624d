//! Serialised `tensorflow.Example` and `tensorflow.SequenceExample` messages, parsed into tensors: a batch of them or one.

mod columns;
mod parse;
mod proto;
mod sequence;

use super::{HostKernel, KernelNode};
use crate::failure::Result;

/// The kernel of a node whose op parses examples.
///
/// # Errors
/// InvalidArgument if the attributes do not fit each other.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    Ok(Some(match node.op {
        "ParseExample" | "ParseExampleV2" | "ParseSingleExample" => parse::kernel(node)?,
        "ParseSingleSequenceExample" => sequence::single(node)?,
        "ParseSequenceExample" => sequence::batch(node)?,
        _ => return Ok(None),
    }))
}
