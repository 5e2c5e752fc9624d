//! Strings, n-grams, labels.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Tensor};

use super::{Operator, ml, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    ml("ArrayFeatureExtractor", 1, extract),
    ml("Binarizer", 1, binarize),
    ml("CategoryMapper", 1, map_categories),
    ml("LabelEncoder", 1, encode),
    onnx("RegexFullMatch", 20, matches),
    onnx("StringConcat", 20, concat),
    onnx("StringNormalizer", 10, normalize),
    onnx("StringSplit", 20, split),
    onnx("TfIdfVectorizer", 9, tf_idf),
];

fn concat(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (a, b) = (n.input(0)?, n.input(1)?);
    // The op joins tensors of one shape, or scalars.
    let (own, other) = (cx.shape_of(a)?, cx.shape_of(b)?);
    let shape = op!(cx.em, "BroadcastArgs", own, other)?;
    let (a, b) = (op!(cx.em, "BroadcastTo", a, shape)?, op!(cx.em, "BroadcastTo", b, shape)?);
    one(op!(cx.em, "StringJoin", a, b)?)
}

fn matches(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    one(op!(cx.em, "StaticRegexFullMatch", x; "pattern" => n.str("pattern", "")?)?)
}

fn strings(all: &[&str]) -> Tensor {
    Tensor::vector(all.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>())
}

fn normalize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let mut y = op!(cx.em, "Reshape", x, [-1i64])?;
    let words = n.strs("stopwords")?;
    if !words.is_empty() {
        let words = cx.em.constant(strings(&words))?;
        let lower = |cx: &mut Cx, x: Output| op!(cx.em, "StringLower", x; "encoding" => "utf-8");
        let (left, right) = match n.flag("is_case_sensitive", false) {
            true => (y, words),
            false => (lower(cx, y)?, lower(cx, words)?),
        };
        let left = cx.unsqueeze(left, &[1])?;
        let same = op!(cx.em, "Equal", left, right)?;
        let stops = cx.reduce("Any", same, &[1], false)?;
        let kept = op!(cx.em, "LogicalNot", stops)?;
        let places = op!(cx.em, "Where", kept)?;
        let places = op!(cx.em, "Reshape", places, [-1i64])?;
        y = op!(cx.em, "GatherV2", y, places, 0i64)?;
    }
    y = match n.str("case_change_action", "NONE")? {
        "LOWER" => op!(cx.em, "StringLower", y; "encoding" => "utf-8")?,
        "UPPER" => op!(cx.em, "StringUpper", y; "encoding" => "utf-8")?,
        _ => y,
    };
    // Of no words an empty one is left.
    let count = op!(cx.em, "Size", y; "out_type" => DType::I64)?;
    let count = op!(cx.em, "Maximum", count, 1i64)?;
    let more = cx.em.constant(strings(&[""]))?;
    let y = cx.concat(&[y, more], 0)?;
    let y = cx.slice(y, 0, Size::Known(0), Some(Size::Of(count)))?;
    one(if rank == 2 { cx.unsqueeze(y, &[0])? } else { y })
}

fn split(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let sizes = cx.sizes(x)?;
    let flat = op!(cx.em, "Reshape", x, [-1i64])?;
    let (separator, most) = (n.str("delimiter", "")?, n.int("maxsplit", -1));
    // Of words, white space before the first and after the last does not count.
    let text = if separator.is_empty() { op!(cx.em, "StringStrip", flat)? } else { flat };
    let args = vec![text.into(), separator.into()];
    let parts = cx.em.many("StringSplitV2", args, &[("maxsplit", most.into())], 3)?;
    let (mut places, mut values, mut shape) = (parts[0], parts[1], parts[2]);
    if separator.is_empty() && most > 0 {
        // The op has an empty rest after the last word that may be split off.
        let some = op!(cx.em, "NotEqual", values, "")?;
        let kept = op!(cx.em, "Where", some)?;
        let kept = op!(cx.em, "Reshape", kept, [-1i64])?;
        (places, values) = (op!(cx.em, "GatherV2", places, kept, 0i64)?, op!(cx.em, "GatherV2", values, kept, 0i64)?);
        let columns = op!(cx.em, "GatherV2", places, 1i64, 1i64)?;
        let last = cx.em.constant(Tensor::vector(vec![-1i64]))?;
        let columns = cx.concat(&[columns, last], 0)?;
        let width = cx.reduce("Max", columns, &[0], true)?;
        let width = op!(cx.em, "AddV2", width, 1i64)?;
        let rows = cx.slice(shape, 0, Size::Known(0), Some(Size::Known(1)))?;
        shape = cx.concat(&[rows, width], 0)?;
    }
    let empty = cx.em.constant(Tensor::scalar(Vec::<u8>::new()))?;
    let dense = op!(cx.em, "SparseToDense", places, shape, values, empty)?;
    let width = op!(cx.em, "GatherV2", shape, 1i64, 0i64)?;
    let mut out = sizes.clone();
    out.push(Size::Of(width));
    let whole = cx.packed(&out)?;
    let y = op!(cx.em, "Reshape", dense, whole)?;
    let rows = op!(cx.em, "GatherV2", places, 0i64, 1i64)?;
    let ones = op!(cx.em, "OnesLike", rows)?;
    let total = op!(cx.em, "Size", flat; "out_type" => DType::I64)?;
    let counts = op!(cx.em, "UnsortedSegmentSum", ones, rows, total)?;
    let counts = cx.reshape(counts, &sizes)?;
    Ok(vec![y.into(), counts.into()])
}

fn tf_idf(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let rows = if rank == 1 { cx.unsqueeze(x, &[0])? } else { x };
    let (least, most) = (n.int("min_gram_length", 1), n.int("max_gram_length", 1));
    let skips = n.int("max_skip_count", 0);
    let starts = n.ints("ngram_counts").unwrap_or(&[]);
    let columns = n.ints("ngram_indexes").unwrap_or(&[]);
    let texts = n.strs("pool_strings")?;
    let numbers = n.ints("pool_int64s").unwrap_or(&[]);
    let total = if texts.is_empty() { numbers.len() } else { texts.len() };
    let width = columns.iter().max().map_or(0, |last| last + 1);
    if !(0..=1 << 24).contains(&width) || columns.iter().any(|&column| column < 0) || most - least > 64 || skips > 64 {
        return Err(Failure::invalid("its numbers of n-grams are beyond what is sensible"));
    }
    let mut sum = None;
    let mut first_gram = 0usize;
    for length in 1..=starts.len() as i64 {
        let index = length as usize - 1;
        let from = usize::try_from(starts[index]).unwrap_or(usize::MAX);
        let to = starts.get(index + 1).map_or(total, |&to| usize::try_from(to).unwrap_or(usize::MAX));
        if from > to || to > total || !(to - from).is_multiple_of(length as usize) {
            return Err(Failure::invalid(format!("ngram_counts {starts:?} do not divide a pool of {total}")));
        }
        let grams = (to - from) / length as usize;
        let own = columns.get(first_gram..first_gram + grams);
        let own = own.ok_or_else(|| Failure::invalid("ngram_indexes has too few numbers"))?;
        first_gram += grams;
        if grams == 0 || !(least..=most).contains(&length) {
            continue;
        }
        let pool = if texts.is_empty() {
            let pool = cx.em.constant(Tensor::from_vec([grams, length as usize], numbers[from..to].to_vec()))?;
            cx.cast(pool, cx.em.dtype(rows))?
        } else {
            cx.em.constant(strings(&texts[from..to]).reshaped([grams, length as usize])?)?
        };
        // The column of each gram.
        let mut places = vec![0f32; grams * width as usize];
        own.iter().enumerate().for_each(|(gram, &column)| places[gram * width as usize + column as usize] = 1.0);
        let places = Tensor::from_vec([grams, width as usize], places);
        for skip in 0..=(if length == 1 { 0 } else { skips }) {
            let size = cx.size(rows, 1)?;
            let count = cx.compute("Sub", size, Size::Known((length - 1) * (skip + 1)))?;
            let count = cx.compute("Maximum", count, Size::Known(0))?;
            let begins = cx.range(count)?;
            let begins = cx.unsqueeze(begins, &[1])?;
            let offsets: Vec<i64> = (0..length).map(|i| i * (skip + 1)).collect();
            let windows = op!(cx.em, "AddV2", begins, Tensor::vector(offsets))?;
            // [rows, windows, 1, length] beside [grams, length].
            let taken = op!(cx.em, "GatherV2", rows, windows, 1i64)?;
            let taken = cx.unsqueeze(taken, &[2])?;
            let same = op!(cx.em, "Equal", taken, pool)?;
            let whole = cx.reduce("All", same, &[3], false)?;
            let found = cx.cast(whole, DType::F32)?;
            let found = cx.reduce("Sum", found, &[1], false)?;
            let found = op!(cx.em, "MatMul", found, places.clone())?;
            sum = Some(match sum {
                None => found,
                Some(other) => op!(cx.em, "AddV2", other, found)?,
            });
        }
    }
    let mut y = match sum {
        Some(sum) => sum,
        None => {
            let count = cx.size(rows, 0)?;
            let shape = cx.packed(&[count, Size::Known(width)])?;
            cx.fill(shape, 0.0, DType::F32)?
        }
    };
    let mode = n.str("mode", "TF")?;
    if mode == "IDF" {
        let some = op!(cx.em, "Greater", y, 0.0)?;
        y = cx.cast(some, DType::F32)?;
    }
    if let (Some(weights), "IDF" | "TFIDF") = (n.floats("weights"), mode) {
        // A weight for each gram; that of a column is its gram's.
        let mut by_column = vec![1f32; width as usize];
        columns.iter().zip(weights).for_each(|(&column, &weight)| by_column[column as usize] = weight);
        y = op!(cx.em, "Mul", y, Tensor::vector(by_column))?;
    }
    one(if rank == 1 { cx.squeeze(y, &[0])? } else { y })
}

/// Keys and values of a table, by the suffixes of its attributes.
fn list(cx: &Cx, n: &Node, prefix: &str) -> Result<Option<Tensor>> {
    if let Some(proto) = n.tensor_attr(&format!("{prefix}_tensor")) {
        return cx.weight(proto).map(|(tensor, _)| Some(tensor));
    }
    if let Some(values) = n.ints(&format!("{prefix}_int64s")) {
        return Ok(Some(Tensor::vector(values.to_vec())));
    }
    if let Some(values) = n.floats(&format!("{prefix}_floats")) {
        return Ok(Some(Tensor::vector(values.to_vec())));
    }
    let name = format!("{prefix}_strings");
    if n.has(&name) {
        return Ok(Some(strings(&n.strs(&name)?)));
    }
    Ok(None)
}

fn encode(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let missing = || Failure::invalid("it states no keys or no values");
    let (keys, values) = (list(cx, n, "keys")?.ok_or_else(missing)?, list(cx, n, "values")?.ok_or_else(missing)?);
    if keys.len() != values.len() || keys.rank() != 1 {
        return Err(Failure::invalid(format!("it has {} keys and {} values", keys.len(), values.len())));
    }
    let default = match (n.tensor_attr("default_tensor"), values.data()) {
        (Some(proto), _) => cx.weight(proto)?.0.reshaped(meshtf_tensor::Shape::scalar())?,
        (None, Data::String(_)) => Tensor::scalar(n.str("default_string", "_Unused")?.as_bytes().to_vec()),
        (None, Data::F32(_)) => Tensor::scalar(n.float("default_float", -0.0)),
        (None, Data::I64(_)) => Tensor::scalar(n.int("default_int64", -1)),
        (None, _) => crate::emit::number(-1.0, values.dtype())?,
    };
    one(looked_up(cx, x, (keys, values), default)?)
}

/// The values of a table at the keys `x`, and the default for others.
fn looked_up(cx: &mut Cx, x: Output, (keys, values): (Tensor, Tensor), default: Tensor) -> Result<Output> {
    let has_nan = keys.numbers().is_some_and(|mut numbers| numbers.any(f64::is_nan));
    let rank = cx.em.rank(x)?;
    let own = cx.unsqueeze(x, &[rank])?;
    let keys = cx.em.constant(keys)?;
    let mut same = op!(cx.em, "Equal", own, keys)?;
    if has_nan {
        let (left, right) = (op!(cx.em, "IsNan", own)?, op!(cx.em, "IsNan", keys)?);
        let both = op!(cx.em, "LogicalAnd", left, right)?;
        same = op!(cx.em, "LogicalOr", same, both)?;
    }
    let found = cx.reduce("Any", same, &[rank], false)?;
    // Of equal keys the last one counts.
    let count = values.len() as i64;
    let order: Vec<i64> = (1..=count).collect();
    let marks = cx.long(same)?;
    let marks = op!(cx.em, "Mul", marks, Tensor::vector(order))?;
    let at = cx.reduce("Max", marks, &[rank], false)?;
    let at = op!(cx.em, "Sub", at, 1i64)?;
    let at = op!(cx.em, "Maximum", at, 0i64)?;
    let taken = op!(cx.em, "GatherV2", values, at, 0i64)?;
    op!(cx.em, "SelectV2", found, taken, default)
}

fn map_categories(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let (texts, numbers) = (strings(&n.strs("cats_strings")?), n.ints("cats_int64s").unwrap_or(&[]));
    if texts.len() != numbers.len() || numbers.is_empty() {
        return Err(Failure::invalid(format!("it has {} cats_strings and {} cats_int64s", texts.len(), numbers.len())));
    }
    let numbers = Tensor::vector(numbers.to_vec());
    one(match cx.em.dtype(x) {
        DType::String => looked_up(cx, x, (texts, numbers), Tensor::scalar(n.int("default_int64", -1)))?,
        _ => {
            let default = Tensor::scalar(n.str("default_string", "_Unused")?.as_bytes().to_vec());
            let x = cx.long(x)?;
            looked_up(cx, x, (numbers, texts), default)?
        }
    })
}

fn extract(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, places) = (n.input(0)?, n.input(1)?);
    let rank = cx.em.rank(x)?;
    let places = op!(cx.em, "Reshape", places, [-1i64])?;
    let y = op!(cx.em, "GatherV2", x, places, rank as i64 - 1)?;
    one(if rank == 1 { cx.unsqueeze(y, &[0])? } else { y })
}

fn binarize(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let above = op!(cx.em, "Greater", x, f64::from(n.float("threshold", 0.0)))?;
    one(cx.cast(above, cx.em.dtype(x))?)
}
