//! StringSplit and StringSplitV2: the parts of each string, as a sparse matrix with a row per string.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Shape, Tensor};

use super::super::call::{check_text_bytes, take};
use super::super::{Inputs, Outputs, Registry};

type Parts<'a> = Vec<&'a [u8]>;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StringSplit", |node| {
        let skips = node.attrs.bool("skip_empty")?;
        Ok(Some(Box::new(move |inputs| sparse(inputs, "delimiter", |text, by| at_any(text, by, skips)))))
    });
    ops.insert("StringSplitV2", |node| {
        // A negative number means no limit.
        let most = usize::try_from(node.attrs.int("maxsplit")?).unwrap_or(usize::MAX);
        Ok(Some(Box::new(move |inputs| {
            sparse(inputs, "sep", |text, by| match by {
                _ if most == 0 => vec![text],
                [] => at_space(text, most),
                _ => at_whole(text, by, most),
            })
        })))
    });
}

/// Indices `[n, 2]`, values `[n]`, and the dense shape: a row per string, and as many columns as the largest number of
/// parts.
fn sparse(inputs: Inputs, what: &str, split: impl for<'a> Fn(&'a [u8], &[u8]) -> Parts<'a>) -> Result<Outputs> {
    let [input, by] = take(inputs)?;
    if input.rank() != 1 {
        return Err(Failure::invalid(format!("input must be a vector, got shape: {}", input.shape())));
    }
    if by.rank() != 0 {
        return Err(Failure::invalid(format!("{what} must be a scalar, got shape: {}", by.shape())));
    }
    let (texts, by) = (input.slice::<Vec<u8>>()?, &by.slice::<Vec<u8>>()?[0]);
    // A part takes far more memory than its bytes.
    check_text_bytes(texts.iter().map(|text| (text.len() + 1).saturating_mul(size_of::<Vec<u8>>())).sum())?;
    let (mut indices, mut values, mut columns) = (Vec::new(), Vec::new(), 0);
    let mut pace = Pace::new();
    for (row, text) in texts.iter().enumerate() {
        pace.go(32 * (text.len() + 1));
        let parts = split(text, by);
        columns = columns.max(parts.len());
        for (column, part) in parts.into_iter().enumerate() {
            indices.extend([row as i64, column as i64]);
            values.push(part.to_vec());
        }
    }
    let count = values.len();
    Ok(smallvec::smallvec![
        Tensor::from_vec(Shape::from([count, 2]), indices),
        Tensor::from_vec(Shape::from([count]), values),
        Tensor::from_vec(Shape::from([2]), vec![texts.len() as i64, columns as i64]),
    ])
}

/// Splits at each byte in `delimiters`, or between all bytes if there are none. An empty string has no parts.
fn at_any<'a>(text: &'a [u8], delimiters: &[u8], skips_empty: bool) -> Parts<'a> {
    if text.is_empty() {
        return Vec::new();
    }
    if delimiters.is_empty() {
        return text.chunks(1).collect();
    }
    text.split(|byte| delimiters.contains(byte)).filter(|part| !skips_empty || !part.is_empty()).collect()
}

/// Splits at runs of white space, at most `most` times. Then the remainder is the last part, even if it is empty.
fn at_space(text: &[u8], most: usize) -> Parts<'_> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let trimmed = |text: &'_ [u8]| text.iter().take_while(|byte| is_space(byte)).count();
    let mut parts = Vec::new();
    let mut rest = &text[trimmed(text)..];
    while !rest.is_empty() {
        let end = rest.iter().position(is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = &rest[end..];
        rest = &rest[trimmed(rest)..];
        if parts.len() == most {
            parts.push(rest);
            break;
        }
    }
    parts
}

/// Splits at each `separator`, at most `most` times.
fn at_whole<'a>(text: &'a [u8], separator: &[u8], most: usize) -> Parts<'a> {
    let mut parts = Vec::new();
    let mut rest = text;
    while parts.len() < most {
        let Some(at) = rest.windows(separator.len()).position(|window| window == separator) else { break };
        parts.push(&rest[..at]);
        rest = &rest[at + separator.len()..];
    }
    parts.push(rest);
    parts
}
