//! Serialised `tensorflow.Example` and `tensorflow.SequenceExample` messages, parsed into tensors: a batch of them or one.

mod columns;
mod parse;
mod proto;
mod sequence;

use meshtf_tensor::failure::Result;

use super::{HostKernel, KernelNode};

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

/// How many features an example has, and how many values those of them that `is_wanted`.
///
/// # Errors
/// As for parsing it.
pub fn count(example: &[u8], is_wanted: impl Fn(&[u8]) -> bool) -> Result<[usize; 2]> {
    let features = proto::decode::<proto::Example>(example)?.features.unwrap_or_default().feature;
    let wanted = features.iter().filter(|(key, _)| is_wanted(key.as_bytes()));
    let values = wanted.filter_map(|(_, feature)| feature.kind.as_ref()).map(proto::Kind::len).sum();
    Ok([features.len(), values])
}
