//! Attention of queries to keys and values, and the rotation of their positions.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Failure, Result};

use super::{Operator, microsoft, onnx};
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("Attention", 23, attention),
    Operator { domain: "ai.onnx.preview", name: "FlexAttention", since: 1, rule: flexible },
    microsoft("Attention", with_weights),
    microsoft("GroupQueryAttention", group_query),
    microsoft("MultiHeadAttention", multi_head),
];

/// Attention over heads: queries, keys and values are `[batch, heads, length, size]`.
pub struct Heads {
    pub q: Output,
    pub k: Output,
    pub v: Output,
    /// Added to the scores: broadcasts to `[batch, heads, length, keys]`.
    pub bias: Option<Output>,
    pub scale: Option<f64>,
    pub softcap: f64,
    /// The type in which the softmax is computed.
    pub precision: Option<DType>,
    /// Which intermediate is the second result.
    pub mode: i64,
}

/// `[batch, length, heads * size]` as `[batch, heads, length, size]`.
pub fn divided(cx: &mut Cx, x: Output, heads: i64) -> Result<Output> {
    if heads < 1 {
        return Err(Failure::invalid(format!("it has {heads} heads")));
    }
    let sizes = cx.sizes(x)?;
    let [batch, length, width] = sizes[..] else { return Err(Failure::invalid("its input is not of rank 3")) };
    let size = cx.compute("FloorDiv", width, Size::Known(heads))?;
    let y = cx.reshape(x, &[batch, length, Size::Known(heads), size])?;
    cx.transpose(y, &[0, 2, 1, 3])
}

/// The reverse of [`divided`].
pub fn joined(cx: &mut Cx, x: Output) -> Result<Output> {
    let y = cx.transpose(x, &[0, 2, 1, 3])?;
    let sizes = cx.sizes(y)?;
    let width = cx.compute("Mul", sizes[2], sizes[3])?;
    cx.reshape(y, &[sizes[0], sizes[1], width])
}

/// Heads of keys or values, each as often as queries share it.
fn repeated(cx: &mut Cx, x: Output, heads: usize) -> Result<Output> {
    let Some(own) = cx.em.size(x, 1) else { return Ok(x) };
    if own == heads || own == 0 {
        return Ok(x);
    }
    if !heads.is_multiple_of(own) {
        return Err(Failure::invalid(format!("{heads} heads of queries are no multiple of {own} of keys")));
    }
    let places: Vec<i64> = (0..heads).map(|head| (head * own / heads) as i64).collect();
    op!(cx.em, "GatherV2", x, places, 1i64)
}

/// The attended values, and the scores at the stage that `mode` names.
pub fn attend(cx: &mut Cx, of: Heads) -> Result<(Output, Output)> {
    let dtype = cx.em.dtype(of.q);
    let heads = cx.em.size(of.q, 1).ok_or_else(|| unsupported("unsupported: a number of heads that is not known"))?;
    let (k, v) = (repeated(cx, of.k, heads)?, repeated(cx, of.v, heads)?);
    let (q, k) = match of.scale {
        Some(scale) => {
            let root = scale.sqrt();
            (op!(cx.em, "Mul", of.q, root)?, op!(cx.em, "Mul", k, root)?)
        }
        None => {
            // The size of a head is known in nearly every model.
            let size = cx.size(of.q, 3)?;
            let size = cx.scalar(size)?;
            let size = cx.cast(size, DType::F32)?;
            let root = op!(cx.em, "Sqrt", size)?;
            let root = op!(cx.em, "Sqrt", root)?;
            let root = op!(cx.em, "Reciprocal", root)?;
            let root = cx.cast(root, dtype)?;
            (op!(cx.em, "Mul", of.q, root)?, op!(cx.em, "Mul", k, root)?)
        }
    };
    let raw = op!(cx.em, "BatchMatMulV2", q, k; "adj_y" => true)?;
    let capped = match of.softcap > 0.0 {
        true => {
            let y = op!(cx.em, "RealDiv", raw, of.softcap)?;
            let y = op!(cx.em, "Tanh", y)?;
            op!(cx.em, "Mul", y, of.softcap)?
        }
        false => raw,
    };
    let biased = match of.bias {
        Some(bias) => op!(cx.em, "AddV2", capped, bias)?,
        None => capped,
    };
    let wide = match of.precision {
        Some(precision) => cx.cast(biased, precision)?,
        None => biased,
    };
    let mut weights = op!(cx.em, "Softmax", wide)?;
    if let Some(bias) = of.bias {
        // A query that may attend to no key has no weights: a softmax of nothing would be NaN.
        let last = cx.em.rank(bias)? - 1;
        let best = cx.reduce("Max", bias, &[last], true)?;
        let is_masked = op!(cx.em, "Equal", best, f64::NEG_INFINITY)?;
        let zero = cx.em.number(0.0, cx.em.dtype(weights))?;
        weights = op!(cx.em, "SelectV2", is_masked, zero, weights)?;
    }
    let weights = cx.cast(weights, dtype)?;
    let y = op!(cx.em, "BatchMatMulV2", weights, v)?;
    let shown = match of.mode {
        1 => capped,
        2 => biased,
        3 => weights,
        _ => raw,
    };
    Ok((y, shown))
}

/// Zero where a bool is true, and minus infinity where not.
pub fn bias_of(cx: &mut Cx, allowed: Output, dtype: DType) -> Result<Output> {
    let (zero, none) = (cx.em.number(0.0, dtype)?, cx.em.number(f64::NEG_INFINITY, dtype)?);
    op!(cx.em, "SelectV2", allowed, zero, none)
}

fn sum_of(cx: &mut Cx, a: Option<Output>, b: Output) -> Result<Option<Output>> {
    match a {
        Some(a) => op!(cx.em, "AddV2", a, b).map(Some),
        None => Ok(Some(b)),
    }
}

/// The keys that lie in the window of each query, from `left` before its position to `right` after it. `offset` is the position
/// of the first query, a scalar or one for each element of the batch.
pub fn within(
    cx: &mut Cx,
    queries: Size,
    keys: Size,
    offset: Option<Output>,
    left: i64,
    right: i64,
) -> Result<Option<Output>> {
    let (i, j) = (cx.range(queries)?, cx.range(keys)?);
    let i = cx.unsqueeze(i, &[1])?;
    let i = match offset {
        Some(offset) => {
            let offset = cx.long(offset)?;
            let offset = if cx.em.rank(offset)? == 1 { cx.unsqueeze(offset, &[1, 2, 3])? } else { offset };
            op!(cx.em, "AddV2", i, offset)?
        }
        None => i,
    };
    let mut allowed = None;
    if right >= 0 {
        let last = op!(cx.em, "AddV2", i, right)?;
        allowed = Some(op!(cx.em, "LessEqual", j, last)?);
    }
    if left >= 0 {
        let first = op!(cx.em, "Sub", i, left)?;
        let own = op!(cx.em, "GreaterEqual", j, first)?;
        allowed = Some(match allowed {
            Some(other) => op!(cx.em, "LogicalAnd", other, own)?,
            None => own,
        });
    }
    Ok(allowed)
}

/// A mask whose last axis is as long as the keys: what is missing is not attended to.
fn as_long(cx: &mut Cx, mask: Output, keys: Size) -> Result<Output> {
    let rank = cx.em.rank(mask)?;
    let own = cx.size(mask, rank - 1)?;
    let more = cx.compute("Sub", keys, own)?;
    if matches!(more, Size::Known(..=0)) {
        return Ok(mask);
    }
    let pairs: Vec<Size> =
        (0..rank).flat_map(|axis| [Size::Known(0), if axis + 1 == rank { more } else { Size::Known(0) }]).collect();
    let pairs = cx.packed(&pairs)?;
    let pairs = cx.reshape(pairs, &[rank.into(), Size::Known(2)])?;
    match cx.em.dtype(mask) {
        DType::Bool => op!(cx.em, "Pad", mask, pairs),
        _ => op!(cx.em, "PadV2", mask, pairs, f64::NEG_INFINITY),
    }
}

fn attention(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (mut q, mut k, mut v) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let dtype = cx.em.dtype(q);
    let is_flat = cx.em.rank(q)? == 3;
    if is_flat {
        let heads =
            |name: &str| n.maybe_int(name).ok_or_else(|| Failure::invalid(format!("inputs of rank 3 take {name}")));
        let (own, shared) = (heads("q_num_heads")?, heads("kv_num_heads")?);
        (q, k, v) = (divided(cx, q, own)?, divided(cx, k, shared)?, divided(cx, v, shared)?);
    }
    let mut offset = None;
    if let (Some(past_k), Some(past_v)) = (n.maybe(4)?, n.maybe(5)?) {
        let past = cx.size(past_k, 2)?;
        offset = Some(cx.scalar(past)?);
        (k, v) = (cx.concat(&[past_k, k], 2)?, cx.concat(&[past_v, v], 2)?);
    }
    let (queries, keys) = (cx.size(q, 2)?, cx.size(k, 2)?);
    let lengths = n.maybe(6)?;
    if let (Some(lengths), None) = (lengths, offset) {
        let lengths = cx.long(lengths)?;
        let queries = cx.scalar(queries)?;
        offset = Some(op!(cx.em, "Sub", lengths, queries)?);
    }
    let mut bias = None;
    if let Some(mask) = n.maybe(3)? {
        let mask = as_long(cx, mask, keys)?;
        bias = Some(if cx.em.dtype(mask) == DType::Bool { bias_of(cx, mask, dtype)? } else { mask });
    }
    let causal = n.flag("is_causal", false);
    let (left, right) = (n.int("left_window_size", -1), n.int("right_window_size", -1));
    if causal && let Some(allowed) = within(cx, queries, keys, offset, -1, 0)? {
        let own = bias_of(cx, allowed, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    if let Some(allowed) = within(cx, queries, keys, offset, left, right)? {
        let own = bias_of(cx, allowed, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    if let Some(lengths) = lengths {
        let j = cx.range(keys)?;
        let lengths = cx.long(lengths)?;
        let lengths = cx.unsqueeze(lengths, &[1, 2, 3])?;
        let valid = op!(cx.em, "Less", j, lengths)?;
        let own = bias_of(cx, valid, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    let precision = match n.maybe_int("softmax_precision") {
        Some(elem) => Some(Elem(i32::try_from(elem).unwrap_or(0)).dtype()?),
        None => None,
    };
    let of = Heads {
        q,
        k,
        v,
        bias,
        scale: n.attr("scale").and_then(|attr| attr.f).map(f64::from),
        softcap: n.float("softcap", 0.0).into(),
        precision,
        mode: n.int("qk_matmul_output_mode", 0),
    };
    let (y, shown) = attend(cx, of)?;
    let y = if is_flat { joined(cx, y)? } else { y };
    Ok(vec![y.into(), k.into(), v.into(), shown.into()])
}

/// Attention whose scores and weights are changed by subgraphs.
fn flexible(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (q, k, v) = (n.input(0)?, n.input(1)?, n.input(2)?);
    let dtype = cx.em.dtype(q);
    let precision = match n.maybe_int("softmax_precision").filter(|&elem| elem != 0) {
        Some(elem) => Elem(i32::try_from(elem).unwrap_or(0)).dtype()?,
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let heads = cx.em.size(q, 1).ok_or_else(|| unsupported("unsupported: a number of heads that is not known"))?;
    let (k, v) = (repeated(cx, k, heads)?, repeated(cx, v, heads)?);
    let size = cx.em.size(q, 3).ok_or_else(|| unsupported("unsupported: a size of heads that is not known"))?;
    let scale = n.attr("scale").and_then(|attr| attr.f).map_or_else(|| 1.0 / (size as f64).sqrt(), f64::from);
    let (q, k) = (cx.cast(q, precision)?, cx.cast(k, precision)?);
    let scores = op!(cx.em, "BatchMatMulV2", q, k; "adj_y" => true)?;
    let mut scores = op!(cx.em, "Mul", scores, scale)?;
    let change = |cx: &mut Cx, name: &str, x: Output| -> Result<Output> {
        if !n.has(name) {
            return Ok(x);
        }
        let changed = cx.inline(n.graph(name)?, &[x.into()])?;
        changed.first().ok_or_else(|| Failure::invalid(format!("{name} has no output")))?.tensor()
    };
    scores = change(cx, "score_mod", scores)?;
    let weights = op!(cx.em, "Softmax", scores)?;
    let weights = change(cx, "prob_mod", weights)?;
    let v = cx.cast(v, precision)?;
    let y = op!(cx.em, "BatchMatMulV2", weights, v)?;
    super::one(cx.cast(y, dtype)?)
}

/// The bias of com.microsoft's masks of keys: `[batch]` lengths, `[batch, keys]`, or one for each query.
fn padding_bias(cx: &mut Cx, mask: Output, keys: Size, filter: f64, dtype: DType) -> Result<Output> {
    let rank = cx.em.rank(mask)?;
    let allowed = if rank == 1 {
        let j = cx.range(keys)?;
        let lengths = cx.long(mask)?;
        let lengths = cx.unsqueeze(lengths, &[1, 2, 3])?;
        op!(cx.em, "Less", j, lengths)?
    } else {
        let allowed = if cx.em.dtype(mask) == DType::Bool { mask } else { op!(cx.em, "NotEqual", mask, 0.0)? };
        match rank {
            2 => cx.unsqueeze(allowed, &[1, 2])?,
            3 => cx.unsqueeze(allowed, &[1])?,
            _ => allowed,
        }
    };
    let (zero, none) = (cx.em.number(0.0, dtype)?, cx.em.number(filter, dtype)?);
    op!(cx.em, "SelectV2", allowed, zero, none)
}

fn scale_of(n: &Node) -> Option<f64> {
    n.attr("scale").and_then(|attr| attr.f).filter(|&scale| scale != 0.0).map(f64::from)
}

/// com.microsoft's Attention: queries, keys and values are one product of the input.
fn with_weights(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, weights, bias) = (n.input(0)?, n.input(1)?, n.maybe(2)?);
    let heads = n.int("num_heads", 0);
    if n.flag("do_rotary", false) {
        return Err(unsupported("unsupported: do_rotary of Attention"));
    }
    let width =
        cx.em.size(weights, 1).ok_or_else(|| unsupported("unsupported: weights whose sizes are not known"))? as i64;
    let mut y = super::matmul::product(cx, x, weights)?;
    if let Some(bias) = bias {
        y = op!(cx.em, "AddV2", y, bias)?;
    }
    let sizes = n.ints("qkv_hidden_sizes").map_or_else(|| vec![width / 3; 3], <[i64]>::to_vec);
    let mut parts = Vec::new();
    let mut from = 0;
    for &size in &sizes {
        let part = cx.slice(y, 2, Size::Known(from), Some(Size::Known(from + size)))?;
        parts.push(divided(cx, part, heads)?);
        from += size;
    }
    let [q, mut k, mut v] = parts[..] else {
        return Err(Failure::invalid("qkv_hidden_sizes has other than 3 numbers"));
    };
    let mut offset = None;
    let mut present = None;
    if let Some(past) = n.maybe(4)? {
        let (past_k, past_v) = (op!(cx.em, "GatherV2", past, 0i64, 0i64)?, op!(cx.em, "GatherV2", past, 1i64, 0i64)?);
        let length = cx.size(past_k, 2)?;
        offset = Some(cx.scalar(length)?);
        (k, v) = (cx.concat(&[past_k, k], 2)?, cx.concat(&[past_v, v], 2)?);
    }
    if n.has_output(1) {
        present = Some(op!(cx.em, "Pack", k, v)?);
    }
    let dtype = cx.em.dtype(q);
    let (queries, keys) = (cx.size(q, 2)?, cx.size(k, 2)?);
    let filter = f64::from(n.float("mask_filter_value", -10000.0));
    let mut bias = None;
    if let Some(mask) = n.maybe(3)? {
        bias = Some(padding_bias(cx, mask, keys, filter, dtype)?);
    }
    if n.flag("unidirectional", false)
        && let Some(allowed) = within(cx, queries, keys, offset, -1, 0)?
    {
        let own = bias_of(cx, allowed, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    if let Some(more) = n.maybe(5)? {
        bias = sum_of(cx, bias, more)?;
    }
    let (y, _) = attend(cx, Heads { q, k, v, bias, scale: scale_of(n), softcap: 0.0, precision: None, mode: 0 })?;
    let y = joined(cx, y)?;
    Ok([Some(y), present].into_iter().flatten().map(Value::Tensor).collect())
}

fn multi_head(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let heads = n.int("num_heads", 0);
    let (mut q, key, value) = (n.input(0)?, n.maybe(1)?, n.maybe(2)?);
    let (Some(mut k), Some(mut v)) = (key, value) else {
        return Err(unsupported("unsupported: queries, keys and values packed in one tensor"));
    };
    if let Some(bias) = n.maybe(3)? {
        let width = cx.em.size(bias, 0).ok_or_else(|| unsupported("unsupported: a bias whose size is not known"))?;
        let (own, last) = (cx.em.size(q, 2), cx.em.size(v, 2));
        let own = own.unwrap_or(width / 3) as i64;
        let last = last.map_or(width as i64 - 2 * own, |last| last as i64);
        let mut from = 0;
        for (x, size) in [(&mut q, own), (&mut k, own), (&mut v, last)] {
            let part = cx.slice(bias, 0, Size::Known(from), Some(Size::Known(from + size)))?;
            if cx.em.rank(*x)? == 3 {
                *x = op!(cx.em, "AddV2", *x, part)?;
            }
            from += size;
        }
    }
    let q = divided(cx, q, heads)?;
    let (mut k, mut v) = match cx.em.rank(k)? {
        3 => (divided(cx, k, heads)?, divided(cx, v, heads)?),
        _ => (k, v),
    };
    let mut offset = None;
    if let (Some(past_k), Some(past_v)) = (n.maybe(6)?, n.maybe(7)?) {
        let length = cx.size(past_k, 2)?;
        offset = Some(cx.scalar(length)?);
        (k, v) = (cx.concat(&[past_k, k], 2)?, cx.concat(&[past_v, v], 2)?);
    }
    let dtype = cx.em.dtype(q);
    let (queries, keys) = (cx.size(q, 2)?, cx.size(k, 2)?);
    let mut bias = None;
    if let Some(mask) = n.maybe(4)? {
        bias = Some(padding_bias(cx, mask, keys, n.float("mask_filter_value", -10000.0).into(), dtype)?);
    }
    if let Some(more) = n.maybe(5)? {
        bias = sum_of(cx, bias, more)?;
    }
    if n.flag("unidirectional", false)
        && let Some(allowed) = within(cx, queries, keys, offset, -1, 0)?
    {
        let own = bias_of(cx, allowed, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    let (y, _) = attend(cx, Heads { q, k, v, bias, scale: scale_of(n), softcap: 0.0, precision: None, mode: 0 })?;
    let y = joined(cx, y)?;
    Ok(vec![y.into(), k.into(), v.into()])
}

fn group_query(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (heads, shared) = (n.int("num_heads", 0), n.int("kv_num_heads", 0));
    let (q, key, value) = (n.input(0)?, n.maybe(1)?, n.maybe(2)?);
    if heads < 1 || shared < 1 {
        return Err(Failure::invalid(format!("it has {heads} heads of queries and {shared} of keys")));
    }
    let (q, k, v) = match (key, value) {
        (Some(k), Some(v)) => (divided(cx, q, heads)?, divided(cx, k, shared)?, divided(cx, v, shared)?),
        _ => {
            // All three are in one tensor.
            let all = divided(cx, q, heads + 2 * shared)?;
            let part = |cx: &mut Cx, from: i64, to: i64| cx.slice(all, 1, Size::Known(from), Some(Size::Known(to)));
            (part(cx, 0, heads)?, part(cx, heads, heads + shared)?, part(cx, heads + shared, heads + 2 * shared)?)
        }
    };
    let past = match (n.maybe(3)?, n.maybe(4)?) {
        (Some(k), Some(v)) => Some((k, v)),
        _ => None,
    };
    let before = match past {
        Some((k, _)) => cx.size(k, 2)?,
        None => Size::Known(0),
    };
    let offset = cx.scalar(before)?;
    let (mut q, mut k, mut v) = (q, k, v);
    let queries = cx.size(q, 2)?;
    if n.flag("do_rotary", false) {
        let (cos, sin) = (n.input(7)?, n.input(8)?);
        let places = cx.range(queries)?;
        let places = op!(cx.em, "AddV2", places, offset)?;
        let interleaved = n.flag("rotary_interleaved", false);
        let (cos, sin) = (op!(cx.em, "GatherV2", cos, places, 0i64)?, op!(cx.em, "GatherV2", sin, places, 0i64)?);
        q = super::rotary::rotated(cx, q, cos, sin, None, interleaved)?;
        k = super::rotary::rotated(cx, k, cos, sin, None, interleaved)?;
    }
    if let Some((past_k, past_v)) = past {
        (k, v) = (cx.concat(&[past_k, k], 2)?, cx.concat(&[past_v, v], 2)?);
    }
    let dtype = cx.em.dtype(q);
    let keys = cx.size(k, 2)?;
    let mut bias = None;
    let left = n.int("local_window_size", -1);
    // The window counts the query's own position.
    let left = if left > 0 { left - 1 } else { -1 };
    if let Some(allowed) = within(cx, queries, keys, Some(offset), left, 0)? {
        bias = Some(bias_of(cx, allowed, dtype)?);
    }
    if let Some(last) = n.maybe(5)? {
        let j = cx.range(keys)?;
        let last = cx.long(last)?;
        let last = op!(cx.em, "Reshape", last, [-1i64])?;
        let last = cx.unsqueeze(last, &[1, 2, 3])?;
        let valid = op!(cx.em, "LessEqual", j, last)?;
        let own = bias_of(cx, valid, dtype)?;
        bias = sum_of(cx, bias, own)?;
    }
    let softcap = f64::from(n.float("softcap", 0.0));
    let (y, _) = attend(cx, Heads { q, k, v, bias, scale: scale_of(n), softcap, precision: None, mode: 0 })?;
    let y = joined(cx, y)?;
    Ok(vec![y.into(), k.into(), v.into()])
}
