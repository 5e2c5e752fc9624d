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
pub use self::summary::{Event, SummaryProto, SummaryValue};

use super::Registry;
use super::call::kernel as call;
use super::math::map_to;

/// Registers the ops on strings.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("Assert", |node| assert::kernel(node).map(Some));
    ops.insert("AsString", |node| format::kernel(node).map(Some));
    ops.insert("Print", |node| print::kernel(node).map(Some));
    ops.insert("StringNGrams", |node| ngrams::kernel(node).map(Some));
    ops.insert("StringToNumber", |node| number::kernel(node).map(Some));
    ops.insert("DecodeCSV", |node| csv::kernel(node).map(Some));
    ops.insert("UnicodeScript", |_| Ok(Some(script::kernel())));
    ops.insert("StringStrip", |_| {
        Ok(Some(call(|[x]| {
            let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
            map_to(&x, move |text: &Vec<u8>| {
                let begin = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
                let end = text.iter().rposition(|byte| !is_space(byte)).map_or(begin, |last| last + 1);
                text[begin..end].to_vec()
            })
        })))
    });
    ops.insert("StringLower", |node| {
        let characters = node.attrs.str("encoding")?.eq_ignore_ascii_case("utf-8");
        Ok(Some(call(move |[x]| {
            map_to(&x, |text: &Vec<u8>| match std::str::from_utf8(text) {
                Ok(text) if characters => text.to_lowercase().into_bytes(),
                _ => text.to_ascii_lowercase(),
            })
        })))
    });
    ops.insert("StringUpper", |node| {
        let characters = node.attrs.str("encoding")?.eq_ignore_ascii_case("utf-8");
        Ok(Some(call(move |[x]| {
            map_to(&x, |text: &Vec<u8>| match std::str::from_utf8(text) {
                Ok(text) if characters => text.to_uppercase().into_bytes(),
                _ => text.to_ascii_uppercase(),
            })
        })))
    });
    join::register(ops);
    cut::register(ops);
    show::register(ops);
    unicode::register(ops);
    pattern::register(ops);
    split::register(ops);
    summary::register(ops);
    hash::register(ops);
    raw::register(ops);
    media::register(ops);
}
