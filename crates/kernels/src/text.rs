//! String ops: joining, splitting, cutting, measuring, hashing, conversion from and to numbers and bytes; and summaries,
//! which are strings too.
//!
//! A string is a sequence of bytes. Only ops that specify UTF-8 by name work on characters.

mod assert;
mod csv;
mod cut;
mod fingerprint;
mod format;
mod hash;
mod histogram;
mod join;
mod media;
mod ngrams;
mod number;
mod pattern;
mod print;
mod raw;
mod script;
mod show;
mod split;
mod summary;
mod unicode;

pub use self::csv::{check_defaults, push_default, push_field};
pub(super) use self::fingerprint::fingerprint64;
pub use self::histogram::Histogram;
pub use self::histogram::OpenHistogram;
pub use self::summary::{SummaryProto, SummaryValue};
use meshtf_tensor::failure::Result;

use super::call::kernel as call;
use super::math::map_to;
use super::{HostKernel, KernelNode};

/// The kernel of a node with a string op.
///
/// # Errors
/// InvalidArgument if an attribute is invalid, or the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    Ok(Some(match node.op {
        "Assert" => assert::kernel(node)?,
        "AsString" => format::kernel(node)?,
        "StringJoin" | "ReduceJoin" | "UnsortedSegmentJoin" => join::kernel(node)?,
        "StringLength" | "Substr" => cut::kernel(node)?,
        "Print" => print::kernel(node)?,
        "StringFormat" | "PrintV2" => show::kernel(node)?,
        "StringNGrams" => ngrams::kernel(node)?,
        "UnicodeTranscode" | "UnicodeDecode" | "UnicodeDecodeWithOffsets" | "UnicodeEncode" => unicode::kernel(node)?,
        "UnicodeScript" => script::kernel(),
        "StringToNumber" => number::kernel(node)?,
        "RegexFullMatch" | "StaticRegexFullMatch" | "RegexReplace" | "StaticRegexReplace" => pattern::kernel(node)?,
        "StringSplit" | "StringSplitV2" => split::kernel(node)?,
        "ScalarSummary" | "HistogramSummary" | "MergeSummary" => summary::kernel(node)?,
        "DecodeCSV" => csv::kernel(node)?,
        "Fingerprint" | "StringToHashBucket" | "StringToHashBucketFast" | "StringToHashBucketStrong" => {
            hash::kernel(node)?
        }
        "StringStrip" => call(|[x]| {
            let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
            map_to(&x, move |text: &Vec<u8>| {
                let begin = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
                let end = text.iter().rposition(|byte| !is_space(byte)).map_or(begin, |last| last + 1);
                text[begin..end].to_vec()
            })
        }),
        "StringLower" => {
            let characters = node.attrs.str("encoding")?.eq_ignore_ascii_case("utf-8");
            call(move |[x]| {
                map_to(&x, |text: &Vec<u8>| match std::str::from_utf8(text) {
                    Ok(text) if characters => text.to_lowercase().into_bytes(),
                    _ => text.to_ascii_lowercase(),
                })
            })
        }
        "StringUpper" => {
            let characters = node.attrs.str("encoding")?.eq_ignore_ascii_case("utf-8");
            call(move |[x]| {
                map_to(&x, |text: &Vec<u8>| match std::str::from_utf8(text) {
                    Ok(text) if characters => text.to_uppercase().into_bytes(),
                    _ => text.to_ascii_uppercase(),
                })
            })
        }
        _ => match raw::kernel(node)? {
            Some(kernel) => kernel,
            None => return media::kernel(node),
        },
    }))
}
