//! Serialised `tensorflow.Example` and `tensorflow.SequenceExample` messages, parsed into tensors: a batch or a single
//! one.

mod columns;
mod parse;
mod proto;
mod sequence;

use meshtf_tensor::failure::Result;

use super::{HostKernel, KernelNode};

/// The kernel of a node with an op that parses examples.
///
/// # Errors
/// InvalidArgument if the attributes contradict each other.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    Ok(Some(match node.op {
        "ParseExample" | "ParseExampleV2" | "ParseSingleExample" => parse::kernel(node)?,
        "ParseSingleSequenceExample" => sequence::single(node)?,
        "ParseSequenceExample" => sequence::batch(node)?,
        _ => return Ok(None),
    }))
}

/// The number of features of an example, and the number of values of those for which `is_wanted` holds.
///
/// # Errors
/// The errors of parsing the example.
pub fn count(example: &[u8], is_wanted: impl Fn(&[u8]) -> bool) -> Result<[usize; 2]> {
    let features = proto::decode::<proto::Example>(example)?.features.unwrap_or_default().feature;
    let wanted = features.iter().filter(|(key, _)| is_wanted(key.as_bytes()));
    let values = wanted.filter_map(|(_, feature)| feature.kind.as_ref()).map(proto::Kind::len).sum();
    Ok([features.len(), values])
}
