//! Texts as rows of tokens: the tokenizer of onnxruntime, which text pipelines of scikit-learn become.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::{Operator, microsoft, one};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[microsoft("Tokenizer", tokenize)];

/// Characters that stand between tokens, before a token and after it; of a text itself they count as spaces.
const BETWEEN: &str = "\0";
const BEFORE: &str = "\u{1}";
const AFTER: &str = "\u{2}";
/// The tokens of `mark` around each text.
const MARKS: [&str; 2] = ["\u{2}", "\u{3}"];

fn replaced(cx: &mut Cx, x: Output, pattern: &str, with: &str) -> Result<Output> {
    op!(cx.em, "StaticRegexReplace", x; "pattern" => pattern, "rewrite" => with)
}

fn tokenize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let sizes = cx.sizes(x)?;
    let flat = op!(cx.em, "Reshape", x, [-1i64])?;
    let text = replaced(cx, flat, "[\\x00-\\x02]", " ")?;
    let separators = n.strs("separators")?;
    let text = match (n.str("tokenexp", "")?, &separators[..]) {
        ("", []) => return Err(Failure::invalid("it states neither separators nor tokenexp")),
        ("", [""]) => matches(cx, text, ".")?,
        ("", separators) => {
            let mut text = text;
            for separator in separators {
                checked(separator)?;
                text = replaced(cx, text, separator, BETWEEN)?;
            }
            text
        }
        (pattern, []) => {
            checked(pattern)?;
            matches(cx, text, pattern)?
        }
        _ => return Err(Failure::invalid("it states both separators and tokenexp")),
    };
    let parts = cx.em.many("StringSplitV2", vec![text.into(), BETWEEN.into()], &[], 3)?;
    let least = i32::try_from(n.int("mincharnum", 1)).unwrap_or(i32::MAX).max(1);
    let (mut rows, mut values) = long_enough(cx, (parts[0], parts[1]), least)?;
    let total = op!(cx.em, "Size", flat; "out_type" => DType::I64)?;
    let ones = op!(cx.em, "OnesLike", rows)?;
    let counts = op!(cx.em, "UnsortedSegmentSum", ones, rows, total)?;
    let before = op!(cx.em, "Cumsum", counts, 0i32; "exclusive" => true)?;
    let before = op!(cx.em, "GatherV2", before, rows, 0i64)?;
    let count = cx.size(rows, 0)?;
    let place = cx.range(count)?;
    let mut columns = op!(cx.em, "Sub", place, before)?;
    let none = cx.em.constant(Tensor::vector(vec![0i64]))?;
    let widths = cx.concat(&[counts, none], 0)?;
    let mut width = cx.reduce("Max", widths, &[0], false)?;
    if n.flag("mark", false) {
        // If no text has a token, there are no marks, either.
        let some = op!(cx.em, "Minimum", width, 1i64)?;
        let texts = op!(cx.em, "Mul", total, some)?;
        let own = cx.range(Size::Of(texts))?;
        let begins = op!(cx.em, "ZerosLike", own)?;
        let ends = op!(cx.em, "GatherV2", counts, own, 0i64)?;
        let ends = op!(cx.em, "AddV2", ends, 1i64)?;
        let later = op!(cx.em, "AddV2", columns, 1i64)?;
        let shape = cx.packed(&[Size::Of(texts)])?;
        let [begin, end] = MARKS.map(|mark| op!(cx.em, "Fill", shape, mark));
        columns = cx.concat(&[begins, later, ends], 0)?;
        rows = cx.concat(&[own, rows, own], 0)?;
        values = cx.concat(&[begin?, values, end?], 0)?;
        let marks = op!(cx.em, "Mul", some, 2i64)?;
        width = op!(cx.em, "AddV2", width, marks)?;
    }
    let places = cx.em.add("Pack", vec![rows.into(), columns.into()], &[("axis", 1i64.into())])?;
    let shape = cx.packed(&[Size::Of(total), Size::Of(width)])?;
    let pad = n.str("pad_value", "")?;
    let y = op!(cx.em, "SparseToDense", places, shape, values, pad; "validate_indices" => false)?;
    let mut out = sizes;
    out.push(Size::Of(width));
    let whole = cx.packed(&out)?;
    one(op!(cx.em, "Reshape", y, whole)?)
}

/// Refuses patterns of which a shorter match may count: onnxruntime takes the longest.
fn checked(pattern: &str) -> Result<()> {
    let is_short = ["|", "??", "*?", "+?", "}?"].iter().any(|part| pattern.contains(part));
    match is_short {
        true => Err(unsupported(format!("unsupported: the longest of several matches of the pattern {pattern:?}"))),
        false => Ok(()),
    }
}

/// The matches of a pattern in each text, one after another.
fn matches(cx: &mut Cx, x: Output, pattern: &str) -> Result<Output> {
    // The point of a token matches the end of a line, too, in onnxruntime; that of a separator does not.
    let marked = replaced(cx, x, &format!("(?s){pattern}"), &format!("{BEFORE}\\0{AFTER}"))?;
    let joined = replaced(cx, marked, "\\x02[^\\x01]*\\x01", BETWEEN)?;
    let begun = replaced(cx, joined, "^[^\\x01]*(\\x01|$)", "")?;
    replaced(cx, begun, "\\x02[^\\x01]*$", "")
}

/// The rows and the tokens of at least so many characters.
fn long_enough(cx: &mut Cx, (places, values): (Output, Output), least: i32) -> Result<(Output, Output)> {
    let lengths = op!(cx.em, "StringLength", values; "unit" => "UTF8_CHAR")?;
    let is_long = op!(cx.em, "GreaterEqual", lengths, least)?;
    let kept = op!(cx.em, "Where", is_long)?;
    let kept = op!(cx.em, "Reshape", kept, [-1i64])?;
    let rows = op!(cx.em, "GatherV2", places, 0i64, 1i64)?;
    Ok((op!(cx.em, "GatherV2", rows, kept, 0i64)?, op!(cx.em, "GatherV2", values, kept, 0i64)?))
}
