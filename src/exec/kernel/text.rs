//! Strings: joined, split, cut, measured, hashed, converted from and to numbers; and summaries, which are strings too.
//!
//! A string is bytes. Only ops that ask for UTF-8 by name work on characters.

mod assert;
mod cut;
mod fingerprint;
mod format;
mod histogram;
mod join;
mod number;
mod pattern;
mod print;
mod split;
mod summary;

#[cfg(feature = "node")]
pub(crate) use self::histogram::Histogram;
#[cfg(feature = "node")]
pub(crate) use self::summary::{Summary, Value};
use super::call::kernel as call;
use super::math::map_to;
use super::{HostKernel, KernelNode};
use crate::failure::Result;

/// The kernel of a node whose op works on strings.
///
/// # Errors
/// InvalidArgument if an attribute is invalid, or the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    Ok(Some(match node.op {
        "Assert" => assert::kernel(node)?,
        "AsString" => format::kernel(node)?,
        "StringJoin" | "ReduceJoin" => join::kernel(node)?,
        "StringLength" | "Substr" => cut::kernel(node)?,
        "Print" => print::kernel(node)?,
        "StringToNumber" => number::kernel(node)?,
        "RegexFullMatch" | "StaticRegexFullMatch" => pattern::kernel(node)?,
        "StringSplit" | "StringSplitV2" => split::kernel(node)?,
        "ScalarSummary" | "HistogramSummary" | "MergeSummary" => summary::kernel(node)?,
        "StringToHashBucketFast" => {
            let buckets = node.attrs.int("num_buckets")?.max(1) as u64;
            call(move |[x]| map_to(&x, |text: &Vec<u8>| (fingerprint::fingerprint64(text) % buckets) as i64))
        }
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
        _ => return Ok(None),
    }))
}
