//! Serialised `tensorflow.Example` and `tensorflow.SequenceExample` messages, parsed into tensors: a batch or a single
//! one.

mod columns;
mod json;
mod parse;
mod proto;
mod sequence;

use meshtf_tensor::Data;
use meshtf_tensor::failure::Result;

use super::Registry;

/// Registers the ops that parse examples.
pub(super) fn register(ops: &mut Registry) {
    parse::register(ops);
    ops.insert("ParseSingleSequenceExample", |node| sequence::single(node).map(Some));
    ops.insert("DecodeJSONExample", |node| json::kernel(node).map(Some));
    ops.insert("ParseSequenceExample", |node| sequence::batch(node).map(Some));
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

/// The values of a feature of an example, int64, float32 or strings; if it has no such feature, or no value of it, the names
/// of those that have values.
///
/// # Errors
/// The errors of parsing the example.
pub fn feature(example: &[u8], name: &str) -> Result<std::result::Result<Data, Vec<String>>> {
    let mut features = proto::decode::<proto::Example>(example)?.features.unwrap_or_default().feature;
    let found = features.remove(name).and_then(|feature| feature.kind);
    Ok(match found {
        Some(kind) => {
            let mut data = Data::zeros(kind.dtype(), 0);
            kind.append_to(&mut data);
            Ok(data)
        }
        None => Err(features.into_iter().filter(|(_, own)| own.kind.is_some()).map(|(name, _)| name).collect()),
    })
}
