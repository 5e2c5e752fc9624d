//! Reductions, and the places of extremes.

use meshtf_graph::Output;
use meshtf_tensor::DType;
use meshtf_tensor::failure::Result;

use super::{Operator, one, onnx};
use crate::cx::Cx;
use crate::emit::op;
use crate::node::{Node, Value};

pub const TABLE: &[Operator] = &[
    onnx("ArgMax", 1, |cx, n| place(cx, n, "ArgMax")),
    onnx("ArgMin", 1, |cx, n| place(cx, n, "ArgMin")),
    onnx("ReduceL1", 1, |cx, n| reduction(cx, n, Kind::L1)),
    onnx("ReduceL2", 1, |cx, n| reduction(cx, n, Kind::L2)),
    onnx("ReduceLogSum", 1, |cx, n| reduction(cx, n, Kind::LogSum)),
    onnx("ReduceLogSumExp", 1, |cx, n| reduction(cx, n, Kind::LogSumExp)),
    onnx("ReduceMax", 1, |cx, n| reduction(cx, n, Kind::Plain("Max"))),
    onnx("ReduceMean", 1, |cx, n| reduction(cx, n, Kind::Plain("Mean"))),
    onnx("ReduceMin", 1, |cx, n| reduction(cx, n, Kind::Plain("Min"))),
    onnx("ReduceProd", 1, |cx, n| reduction(cx, n, Kind::Plain("Prod"))),
    onnx("ReduceSum", 1, |cx, n| reduction(cx, n, Kind::Plain("Sum"))),
    onnx("ReduceSumSquare", 1, |cx, n| reduction(cx, n, Kind::SumSquare)),
];

#[derive(Clone, Copy)]
enum Kind {
    Plain(&'static str),
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

/// The axes, as an attribute or, in newer opsets, as an input.
fn axes(cx: &mut Cx, n: &Node) -> Result<Option<Output>> {
    match (n.maybe(1)?, n.ints("axes")) {
        (Some(axes), _) => Ok(Some(axes)),
        (None, Some(axes)) => cx.ints(axes).map(Some),
        (None, None) => Ok(None),
    }
}

fn reduction(cx: &mut Cx, n: &Node, kind: Kind) -> Result<Vec<Value>> {
    let (x, keep) = (n.input(0)?, n.flag("keepdims", true));
    let stated = axes(cx, n)?;
    let is_empty = match stated {
        None => true,
        Some(axes) => cx.em.size(axes, 0) == Some(0),
    };
    if is_empty && n.flag("noop_with_empty_axes", false) {
        // No axis is reduced; what is computed for each element is.
        let none = cx.ints(&[])?;
        return one(reduced(cx, x, none, keep, kind)?);
    }
    let axes = match stated.filter(|_| !is_empty) {
        Some(axes) => axes,
        None => {
            let rank = cx.em.rank(x)? as i64;
            cx.ints(&(0..rank).collect::<Vec<_>>())?
        }
    };
    one(reduced(cx, x, axes, keep, kind)?)
}

fn reduced(cx: &mut Cx, x: Output, axes: Output, keep: bool, kind: Kind) -> Result<Output> {
    let dtype = cx.em.dtype(x);
    let plain = |cx: &mut Cx, name: &str, x: Output| op!(cx.em, name, x, axes; "keep_dims" => keep);
    match kind {
        Kind::Plain("Max") if dtype == DType::Bool => plain(cx, "Any", x),
        Kind::Plain("Min") if dtype == DType::Bool => plain(cx, "All", x),
        Kind::Plain(name) => plain(cx, name, x),
        Kind::L1 => {
            let x = if dtype.is_unsigned_integer() { x } else { op!(cx.em, "Abs", x)? };
            plain(cx, "Sum", x)
        }
        Kind::L2 => {
            let wide = if dtype.is_float() { x } else { cx.cast(x, DType::F64)? };
            let square = op!(cx.em, "Square", wide)?;
            let sum = plain(cx, "Sum", square)?;
            let root = op!(cx.em, "Sqrt", sum)?;
            cx.cast(root, dtype)
        }
        Kind::SumSquare => {
            let square = op!(cx.em, "Mul", x, x)?;
            plain(cx, "Sum", square)
        }
        Kind::LogSum => {
            let wide = if dtype.is_float() { x } else { cx.cast(x, DType::F64)? };
            let sum = plain(cx, "Sum", wide)?;
            let log = op!(cx.em, "Log", sum)?;
            cx.cast(log, dtype)
        }
        Kind::LogSumExp => {
            let wide = if dtype.is_float() { x } else { cx.cast(x, DType::F64)? };
            let max = op!(cx.em, "Max", wide, axes; "keep_dims" => true)?;
            // An infinite maximum is not subtracted: the difference would be NaN.
            let finite = op!(cx.em, "IsFinite", max)?;
            let zero = cx.em.number(0.0, cx.em.dtype(max))?;
            let max = op!(cx.em, "SelectV2", finite, max, zero)?;
            let from = op!(cx.em, "Sub", wide, max)?;
            let exp = op!(cx.em, "Exp", from)?;
            let sum = plain(cx, "Sum", exp)?;
            let log = op!(cx.em, "Log", sum)?;
            let max = match keep {
                true => max,
                false => {
                    let like = cx.shape_of(log)?;
                    op!(cx.em, "Reshape", max, like)?
                }
            };
            let log = op!(cx.em, "AddV2", log, max)?;
            cx.cast(log, dtype)
        }
    }
}

fn place(cx: &mut Cx, n: &Node, name: &str) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", 0), rank.max(1))?;
    let last = n.flag("select_last_index", false);
    let from = if last { op!(cx.em, "ReverseV2", x, [axis as i64])? } else { x };
    let mut at = op!(cx.em, name, from, axis as i32; "output_type" => DType::I64)?;
    if last {
        let size = cx.size(x, axis)?;
        let end = cx.compute("Sub", size, crate::help::Size::Known(1))?;
        let end = cx.scalar(end)?;
        at = op!(cx.em, "Sub", end, at)?;
    }
    if n.flag("keepdims", true) { one(cx.unsqueeze(at, &[axis])?) } else { one(at) }
}
