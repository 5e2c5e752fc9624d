//! Rotary positions, and attention whose state is a matrix.

use meshtf_graph::Output;
use meshtf_tensor::failure::{Failure, Result};

use super::attention::{divided, joined};
use super::control::{empty_list, stacked};
use super::{Operator, microsoft, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::flow;
use crate::help::Size;
use crate::node::{Node, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("LinearAttention", 27, linear),
    onnx("RotaryEmbedding", 23, rotary),
    microsoft("RotaryEmbedding", rotary_of_microsoft),
];

/// Rotates pairs of `x`, `[batch, heads, length, size]`, by angles whose cosines and sines are `[…, length, size / 2]`.
pub fn rotated(
    cx: &mut Cx,
    x: Output,
    cos: Output,
    sin: Output,
    dim: Option<i64>,
    interleaved: bool,
) -> Result<Output> {
    let half = cx.em.rank(cos).map(|rank| cx.em.size(cos, rank - 1))?;
    let size = cx.em.size(x, 3).map(|size| size as i64);
    let rotated = dim.filter(|&dim| dim > 0).or(half.map(|half| 2 * half as i64)).or(size);
    let rotated = rotated.ok_or_else(|| unsupported("unsupported: a rotation of a size that is not known"))?;
    let half = rotated / 2;
    // One set of angles for all heads.
    let (mut cos, mut sin) = (cos, sin);
    if cx.em.rank(cos)? == 3 {
        (cos, sin) = (cx.unsqueeze(cos, &[1])?, cx.unsqueeze(sin, &[1])?);
    }
    let dtype = cx.em.dtype(x);
    let (cos, sin) = (cx.cast(cos, dtype)?, cx.cast(sin, dtype)?);
    let rest = match size {
        Some(size) if size == rotated => None,
        _ => Some(cx.slice(x, 3, Size::Known(rotated), None)?),
    };
    let own = if rest.is_some() { cx.slice(x, 3, Size::Known(0), Some(Size::Known(rotated)))? } else { x };
    let sizes = cx.sizes(own)?;
    let (a, b) = if interleaved {
        let pairs = cx.reshape(own, &[sizes[0], sizes[1], sizes[2], Size::Known(half), Size::Known(2)])?;
        (op!(cx.em, "GatherV2", pairs, 0i64, 4i64)?, op!(cx.em, "GatherV2", pairs, 1i64, 4i64)?)
    } else {
        (
            cx.slice(own, 3, Size::Known(0), Some(Size::Known(half)))?,
            cx.slice(own, 3, Size::Known(half), Some(Size::Known(rotated)))?,
        )
    };
    let mut part = |first: Output, second: Output, name: &str| -> Result<Output> {
        let (first, second) = (op!(cx.em, "Mul", a, first)?, op!(cx.em, "Mul", b, second)?);
        op!(cx.em, name, first, second)
    };
    let (real, imaginary) = (part(cos, sin, "Sub")?, part(sin, cos, "AddV2")?);
    let y = if interleaved {
        let pairs = op!(cx.em, "Pack", real, imaginary; "axis" => 4i64)?;
        cx.reshape(pairs, &sizes)?
    } else {
        cx.concat(&[real, imaginary], 3)?
    };
    match rest {
        Some(rest) => cx.concat(&[y, rest], 3),
        None => Ok(y),
    }
}

fn rotary(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, mut cos, mut sin) = (n.input(0)?, n.input(1)?, n.input(2)?);
    if let Some(places) = n.maybe(3)? {
        (cos, sin) = (op!(cx.em, "GatherV2", cos, places, 0i64)?, op!(cx.em, "GatherV2", sin, places, 0i64)?);
    }
    let is_flat = cx.em.rank(x)? == 3;
    let own = if is_flat { divided(cx, x, n.int("num_heads", 0))? } else { x };
    let y = rotated(cx, own, cos, sin, n.maybe_int("rotary_embedding_dim"), n.flag("interleaved", false))?;
    one(if is_flat { joined(cx, y)? } else { y })
}

/// Positions come before the tables, and may be the first of them alone.
fn rotary_of_microsoft(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (x, places, cos, sin) = (n.input(0)?, n.input(1)?, n.input(2)?, n.input(3)?);
    let is_flat = cx.em.rank(x)? == 3;
    let dim = n.int("rotary_embedding_dim", 0);
    let heads = match (n.int("num_heads", 0), is_flat) {
        (heads, false) => heads,
        (0, true) => {
            let half = cx.em.size(cos, 1).ok_or_else(|| unsupported("unsupported: a table whose size is not known"))?;
            let width = cx.em.size(x, 2).ok_or_else(|| unsupported("unsupported: a width that is not known"))?;
            (width / (2 * half).max(1)) as i64
        }
        (heads, true) => heads,
    };
    let own = if is_flat { divided(cx, x, heads)? } else { x };
    let places = match cx.em.rank(places)? {
        1 => {
            let length = cx.size(own, 2)?;
            let range = cx.range(length)?;
            let first = cx.long(places)?;
            op!(cx.em, "AddV2", range, first)?
        }
        _ => places,
    };
    let (cos, sin) = (op!(cx.em, "GatherV2", cos, places, 0i64)?, op!(cx.em, "GatherV2", sin, places, 0i64)?);
    let y = rotated(cx, own, cos, sin, Some(dim), n.flag("interleaved", false))?;
    one(if is_flat { joined(cx, y)? } else { y })
}

/// Attention by a recurrent state of keys and values, token by token.
fn linear(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (heads, shared) = (n.int("q_num_heads", 0), n.int("kv_num_heads", 0));
    if shared < 1 || heads % shared != 0 {
        return Err(Failure::invalid(format!("it has {heads} heads of queries and {shared} of keys")));
    }
    let rule = n.str("update_rule", "gated_delta")?;
    let (is_gated, is_delta) = (rule.starts_with("gated"), rule.ends_with("delta"));
    if !matches!(rule, "linear" | "gated" | "delta" | "gated_delta") {
        return Err(Failure::invalid(format!("update_rule is {rule:?}")));
    }
    let (q, dtype) = {
        let x = n.input(0)?;
        cx.widened(x)?
    };
    let (k, _) = {
        let x = n.input(1)?;
        cx.widened(x)?
    };
    let (v, _) = {
        let x = n.input(2)?;
        cx.widened(x)?
    };
    let (q, k, v) = (divided(cx, q, heads)?, divided(cx, k, shared)?, divided(cx, v, shared)?);
    let (batch, length) = (cx.size(q, 0)?, cx.size(q, 2)?);
    let (deep, wide) = (cx.size(k, 3)?, cx.size(v, 3)?);
    let scale = match n.float("scale", 0.0) {
        0.0 => {
            let size = cx.em.size(q, 3).ok_or_else(|| unsupported("unsupported: a size of heads that is not known"))?;
            1.0 / (size as f64).sqrt()
        }
        scale => f64::from(scale),
    };
    let float = cx.em.dtype(q);
    let state = match n.maybe(3)? {
        Some(state) => cx.cast(state, float)?,
        None => {
            let shape = cx.packed(&[batch, Size::Known(shared), deep, wide])?;
            cx.fill(shape, 0.0, float)?
        }
    };
    // [batch, shared heads, length, size or 1]
    let mut sides = Vec::new();
    for (i, is_used) in [(4, is_gated), (5, is_delta)] {
        sides.push(match (n.maybe(i)?, is_used) {
            (Some(x), true) => {
                let x = cx.cast(x, float)?;
                let width = cx.em.size(x, 2);
                let own = if width == Some(1) { 1 } else { shared };
                Some(divided(cx, x, own)?)
            }
            (None, true) => return Err(Failure::invalid(format!("{rule} takes input {i}"))),
            _ => None,
        });
    }
    let (decay, rate) = (sides[0], sides[1]);
    let zero = cx.em.constant(meshtf_tensor::Tensor::scalar(0i64))?;
    let item = [cx.em.size(q, 0), Some(heads as usize), cx.em.size(v, 3)].to_vec();
    let item = meshtf_tensor::PartialShape(Some(item));
    let list = empty_list(cx, float, &item)?;
    let count = cx.scalar(length)?;
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let count = child.outer_tensor(count)?;
        Ok(vec![op!(child.em, "Less", params[0], count)?])
    };
    let outputs = flow::repeat(cx, &[zero, state, list], &mut cond, &mut |child, params| {
        let (t, mut state) = (params[0], params[1]);
        let at = |child: &mut Cx, x: Output| -> Result<Output> {
            let x = child.outer_tensor(x)?;
            op!(child.em, "GatherV2", x, t, 2i64)
        };
        let (q, k, v) = (at(child, q)?, at(child, k)?, at(child, v)?);
        if let Some(decay) = decay {
            let decay = at(child, decay)?;
            let decay = op!(child.em, "Exp", decay)?;
            let decay = child.unsqueeze(decay, &[3])?;
            state = op!(child.em, "Mul", state, decay)?;
        }
        let column = child.unsqueeze(k, &[3])?;
        let mut value = v;
        if let Some(rate) = rate {
            let known = op!(child.em, "Mul", state, column)?;
            let known = child.reduce("Sum", known, &[2], false)?;
            let new = op!(child.em, "Sub", v, known)?;
            let rate = at(child, rate)?;
            value = op!(child.em, "Mul", new, rate)?;
        }
        let row = child.unsqueeze(value, &[2])?;
        let outer = op!(child.em, "Mul", column, row)?;
        let state = op!(child.em, "AddV2", state, outer)?;
        let sizes = child.sizes(q)?;
        let grouped = child.reshape(q, &[sizes[0], Size::Known(shared), Size::Known(heads / shared), sizes[2]])?;
        let y = op!(child.em, "BatchMatMulV2", grouped, state)?;
        let y = op!(child.em, "Mul", y, scale)?;
        let width = child.size(y, 3)?;
        let y = child.reshape(y, &[sizes[0], Size::Known(heads), width])?;
        let next = op!(child.em, "AddV2", t, 1i64)?;
        Ok(vec![next, state, op!(child.em, "TensorListPushBack", params[2], y)?])
    })?;
    // [length, batch, heads, size]
    let y = stacked(cx, outputs[2], float, &item)?;
    let y = cx.transpose(y, &[1, 0, 2, 3])?;
    let width = cx.compute("Mul", Size::Known(heads), wide)?;
    let y = cx.reshape(y, &[batch, length, width])?;
    let state = match n.maybe(3)? {
        Some(old) => cx.cast(outputs[1], cx.em.dtype(old))?,
        None => cx.cast(outputs[1], dtype)?,
    };
    Ok(vec![cx.cast(y, dtype)?.into(), state.into()])
}
