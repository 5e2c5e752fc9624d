//! Sequences and optionals. A sequence is the list of its tensors as long as it is known; otherwise it is a vector of strings,
//! each of which is a serialized tensor.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::{Operator, one, onnx};
use crate::Kind;
use crate::cx::Cx;
use crate::elem::Elem;
use crate::emit::op;
use crate::flow;
use crate::help::Size;
use crate::node::{Node, Packed, Sequence, Value};
use crate::unsupported;

pub const TABLE: &[Operator] = &[
    onnx("ConcatFromSequence", 11, concat),
    onnx("Optional", 15, optional),
    onnx("OptionalGetElement", 15, get_element),
    onnx("OptionalHasElement", 15, has_element),
    onnx("SequenceAt", 11, at),
    onnx("SequenceConstruct", 11, construct),
    onnx("SequenceEmpty", 11, empty),
    onnx("SequenceErase", 11, erase),
    onnx("SequenceInsert", 11, insert),
    onnx("SequenceLength", 11, length),
    onnx("SequenceMap", 17, map),
    onnx("SplitToSequence", 11, split),
];

/// The strings of some tensors.
pub fn pack_listed(cx: &mut Cx, all: &[Output]) -> Result<Output> {
    if all.is_empty() {
        return cx.em.constant(Tensor::vector(Vec::<Vec<u8>>::new()));
    }
    let mut strings = Vec::new();
    for &output in all {
        strings.push(op!(cx.em, "SerializeTensor", output)?.into());
    }
    cx.em.add("Pack", strings, &[])
}

/// A sequence as a vector of strings.
pub fn packed(cx: &mut Cx, value: &Value) -> Result<(Output, Packed)> {
    match value {
        Value::Sequence(Sequence::Packed(strings, of)) => Ok((*strings, of.clone())),
        Value::Sequence(Sequence::Listed(all)) => {
            let shapes = all.iter().map(|&output| cx.em.shape(output));
            let shape = shapes.reduce(|a, b| flow::widened(&a, &b)).unwrap_or(PartialShape::UNKNOWN);
            let dtype = all.first().map_or(DType::F32, |&output| cx.em.dtype(output));
            Ok((pack_listed(cx, all)?, Packed { dtype, shape }))
        }
        Value::Optional(Some(inner)) => packed(cx, inner),
        Value::Maybe(strings, of, true) => {
            let rest = cx.slice(*strings, 0, Size::Known(1), None)?;
            Ok((rest, of.clone()))
        }
        Value::Tensor(_) | Value::Optional(None) | Value::Maybe(..) => {
            Err(Failure::invalid("its input is not a sequence"))
        }
    }
}

/// The tensor in a string.
fn unpacked(cx: &mut Cx, string: Output, of: &Packed) -> Result<Output> {
    let value = op!(cx.em, "ParseTensor", string; "out_type" => of.dtype)?;
    if of.shape.0.is_none() {
        return Ok(value);
    }
    op!(cx.em, "EnsureShape", value; "shape" => of.shape.clone())
}

/// The tensor by which an output of the model is fetched, and its kind.
pub fn shown(cx: &mut Cx, value: Value) -> Result<(Output, Kind)> {
    match value {
        Value::Tensor(output) => Ok((output, Kind::Tensor(cx.em.elem(output)))),
        Value::Sequence(Sequence::Listed(ref all)) => {
            let elem = all.first().map_or(Elem::FLOAT, |&output| cx.em.elem(output));
            Ok((packed(cx, &value)?.0, Kind::Sequence(elem)))
        }
        Value::Sequence(Sequence::Packed(strings, of)) => Ok((strings, Kind::Sequence(Elem::of(of.dtype)))),
        Value::Maybe(strings, of, is_sequence) => {
            let elem = Elem::of(of.dtype);
            Ok((strings, if is_sequence { Kind::OptionalSequence(elem) } else { Kind::Optional(elem) }))
        }
        Value::Optional(None) => Ok((pack_listed(cx, &[])?, Kind::Optional(Elem::FLOAT))),
        Value::Optional(Some(inner)) => match *inner {
            Value::Tensor(output) => Ok((pack_listed(cx, &[output])?, Kind::Optional(cx.em.elem(output)))),
            inner => {
                let (strings, of) = packed(cx, &inner)?;
                let mark = cx.em.constant(Tensor::vector(vec![Vec::<u8>::new()]))?;
                Ok((cx.concat(&[mark, strings], 0)?, Kind::OptionalSequence(Elem::of(of.dtype))))
            }
        },
    }
}

fn sequence(n: &Node, i: usize) -> Result<Value> {
    match n.value(i) {
        Some(Value::Optional(Some(inner))) => Ok((**inner).clone()),
        Some(value) => Ok(value.clone()),
        None => Err(Failure::invalid(format!("input {i} is missing"))),
    }
}

/// The tensors of a sequence if they are known.
fn listed(value: &Value) -> Option<&[Output]> {
    match value {
        Value::Sequence(Sequence::Listed(all)) => Some(all),
        _ => None,
    }
}

fn list(all: Vec<Output>) -> Result<Vec<Value>> {
    Ok(vec![Value::Sequence(Sequence::Listed(all))])
}

fn construct(_: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    list(n.all()?)
}

fn empty(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let elem = Elem(i32::try_from(n.int("dtype", 1)).unwrap_or(0));
    let strings = pack_listed(cx, &[])?;
    let of = Packed { dtype: elem.dtype()?, shape: PartialShape::UNKNOWN };
    Ok(vec![Value::Sequence(Sequence::Packed(strings, of))])
}

/// Whether a packed sequence is the empty constant.
fn is_empty(cx: &Cx, value: &Value) -> bool {
    matches!(value, Value::Sequence(Sequence::Packed(strings, _)) if cx.em.known(*strings).is_some_and(Tensor::is_empty))
}

/// A position, as a scalar.
fn position(cx: &mut Cx, n: &Node, i: usize) -> Result<Option<Output>> {
    let Some(at) = n.maybe(i)? else { return Ok(None) };
    let at = if cx.em.rank(at)? > 0 { cx.reshape(at, &[])? } else { at };
    cx.long(at).map(Some)
}

/// The place of a position that may count from the end.
fn place(cx: &Cx, at: Option<Output>, default: usize, len: usize) -> Result<Option<usize>> {
    let Some(at) = at else { return Ok(Some(default)) };
    let Some(known) = cx.em.ints(at) else { return Ok(None) };
    let at = known.first().copied().unwrap_or(0);
    let place = if at < 0 { at + len as i64 } else { at };
    let place = usize::try_from(place).ok().filter(|&place| place <= len);
    place.map(Some).ok_or_else(|| Failure::invalid(format!("position {at} is outside of a sequence of {len}")))
}

/// The same in a step, as a [`Size`].
fn place_in(cx: &mut Cx, strings: Output, at: Option<Output>, default: i64) -> Result<Size> {
    let count = op!(cx.em, "Size", strings; "out_type" => DType::I64)?;
    let Some(at) = at else { return Ok(Size::Of(op!(cx.em, "AddV2", count, default)?)) };
    let is_negative = op!(cx.em, "Less", at, 0i64)?;
    let from_end = op!(cx.em, "AddV2", at, count)?;
    Ok(Size::Of(op!(cx.em, "SelectV2", is_negative, from_end, at)?))
}

fn insert(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let (all, tensor) = (sequence(n, 0)?, n.input(1)?);
    let at = position(cx, n, 2)?;
    let own = if is_empty(cx, &all) { Some(Vec::new()) } else { listed(&all).map(<[Output]>::to_vec) };
    if let Some(mut own) = own
        && let Some(place) = place(cx, at, own.len(), own.len())?
    {
        own.insert(place, tensor);
        return list(own);
    }
    let (strings, of) = packed(cx, &all)?;
    let own = cx.em.shape(tensor);
    let one = pack_listed(cx, &[tensor])?;
    let place = place_in(cx, strings, at, 0)?;
    let (before, after) = (cx.slice(strings, 0, Size::Known(0), Some(place))?, cx.slice(strings, 0, place, None)?);
    let strings = cx.concat(&[before, one, after], 0)?;
    let of = Packed { shape: flow::widened(&of.shape, &own), dtype: cx.em.dtype(tensor) };
    Ok(vec![Value::Sequence(Sequence::Packed(strings, of))])
}

fn erase(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let all = sequence(n, 0)?;
    let at = position(cx, n, 1)?;
    if let Some(own) = listed(&all)
        && let Some(place) = place(cx, at, own.len().saturating_sub(1), own.len())?
    {
        let mut own = own.to_vec();
        if place >= own.len() {
            return Err(Failure::invalid(format!("position {place} is outside of a sequence of {}", own.len())));
        }
        own.remove(place);
        return list(own);
    }
    let (strings, of) = packed(cx, &all)?;
    let place = place_in(cx, strings, at, -1)?;
    let next = cx.compute("AddV2", place, Size::Known(1))?;
    let (before, after) = (cx.slice(strings, 0, Size::Known(0), Some(place))?, cx.slice(strings, 0, next, None)?);
    Ok(vec![Value::Sequence(Sequence::Packed(cx.concat(&[before, after], 0)?, of))])
}

fn at(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let all = sequence(n, 0)?;
    let at = position(cx, n, 1)?;
    if let Some(own) = listed(&all)
        && let Some(place) = place(cx, at, 0, own.len())?
    {
        let found = own
            .get(place)
            .ok_or_else(|| Failure::invalid(format!("position {place} is outside of a sequence of {}", own.len())))?;
        return one(*found);
    }
    let (strings, of) = packed(cx, &all)?;
    let place = place_in(cx, strings, at, 0)?;
    let place = cx.scalar(place)?;
    let string = op!(cx.em, "GatherV2", strings, place, 0i64)?;
    one(unpacked(cx, string, &of)?)
}

fn length(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let all = sequence(n, 0)?;
    if let Some(own) = listed(&all) {
        return one(cx.em.constant(Tensor::scalar(own.len() as i64))?);
    }
    let (strings, _) = packed(cx, &all)?;
    one(op!(cx.em, "Size", strings; "out_type" => DType::I64)?)
}

fn concat(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let all = sequence(n, 0)?;
    let (axis, is_new) = (n.int("axis", 0), n.flag("new_axis", false));
    if let Some(own) = listed(&all) {
        let first = *own.first().ok_or_else(|| Failure::invalid("its sequence is empty"))?;
        if is_new {
            let args = own.iter().map(|&part| part.into()).collect();
            return one(cx.em.add("Pack", args, &[("axis", Attr::Int(axis))])?);
        }
        let rank = cx.em.rank(first)?;
        let axis = cx.axis(axis, rank)?;
        return one(cx.concat(own, axis)?);
    }
    let (strings, of) = packed(cx, &all)?;
    let first = op!(cx.em, "GatherV2", strings, 0i64, 0i64)?;
    let first = unpacked(cx, first, &of)?;
    let first = if is_new { op!(cx.em, "ExpandDims", first, axis)? } else { first };
    let count = op!(cx.em, "Size", strings; "out_type" => DType::I64)?;
    let start = cx.em.constant(Tensor::scalar(1i64))?;
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let count = child.outer_tensor(count)?;
        Ok(vec![op!(child.em, "Less", params[0], count)?])
    };
    let outputs = flow::repeat(cx, &[start, first], &mut cond, &mut |child, params| {
        let strings = child.outer_tensor(strings)?;
        let next = op!(child.em, "GatherV2", strings, params[0], 0i64)?;
        let next = unpacked(child, next, &of)?;
        let next = if is_new { op!(child.em, "ExpandDims", next, axis)? } else { next };
        let both = op!(child.em, "ConcatV2", params[1], next, axis)?;
        Ok(vec![op!(child.em, "AddV2", params[0], 1i64)?, both])
    })?;
    one(outputs[1])
}

fn split(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let rank = cx.em.rank(x)?;
    let axis = cx.axis(n.int("axis", 0), rank)?;
    let size = cx
        .em
        .size(x, axis)
        .ok_or_else(|| unsupported("unsupported: a sequence of as many parts as only a step tells"))?
        as i64;
    let keep = n.flag("keepdims", true);
    let (sizes, squeezes) = match n.maybe(1)? {
        None => (vec![1; usize::try_from(size).unwrap_or(0)], !keep),
        Some(split) if cx.em.ints(split).is_none() && cx.em.rank(split)? == 1 => {
            // As many parts as there are sizes, which a step computes.
            let count = cx.em.size(split, 0).filter(|&count| count <= 1 << 16);
            let count =
                count.ok_or_else(|| unsupported("unsupported: a sequence of as many parts as only a step tells"))?;
            let args = vec![x.into(), split.into(), (axis as i32).into()];
            return list(cx.em.many("SplitV", args, &[("num_split", Attr::Int(count as i64))], count)?);
        }
        Some(split) => {
            let stated = cx.needed(split, "split")?;
            match (cx.em.rank(split)?, stated.first()) {
                (0, Some(&part @ 1..)) => {
                    let count = (size + part - 1) / part;
                    ((0..count).map(|i| part.min(size - i * part)).collect(), false)
                }
                (0, _) => return Err(Failure::invalid("split is not positive")),
                _ => (stated, false),
            }
        }
    };
    if sizes.len() > 1 << 16 {
        return Err(unsupported("unsupported: a sequence of more than 65536 parts"));
    }
    let mut parts = Vec::new();
    let mut from = 0;
    for part in sizes {
        let mut y = cx.slice(x, axis, Size::Known(from), Some(Size::Known(from + part)))?;
        if squeezes {
            y = cx.squeeze(y, &[axis])?;
        }
        parts.push(y);
        from += part;
    }
    list(parts)
}

/// Runs a body for the elements of sequences.
fn map(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let graph = n.graph("body")?;
    let values: Vec<Value> = (0..n.inputs.len()).map(|i| sequence(n, i)).collect::<Result<_>>()?;
    if let Some(count) = listed(&values[0]).map(<[Output]>::len)
        && values.iter().all(|value| !matches!(value, Value::Sequence(Sequence::Packed(..)) | Value::Maybe(..)))
    {
        let mut outputs: Vec<Vec<Output>> = vec![Vec::new(); graph.output.len()];
        for i in 0..count {
            let arg = |value: &Value| match listed(value) {
                Some(all) => all.get(i).map(|&output| Value::Tensor(output)),
                None => Some(value.clone()),
            };
            let args: Option<Vec<Value>> = values.iter().map(arg).collect();
            let args = args.ok_or_else(|| Failure::invalid("its sequences differ in length"))?;
            for (all, value) in outputs.iter_mut().zip(cx.inline(graph, &args)?) {
                all.push(value.tensor()?);
            }
        }
        return Ok(outputs.into_iter().map(|all| Value::Sequence(Sequence::Listed(all))).collect());
    }
    let mut sources: Vec<(Output, Option<Packed>)> = Vec::new();
    for value in &values {
        sources.push(super::control::as_tensor(cx, value)?);
    }
    let count = op!(cx.em, "Size", sources[0].0; "out_type" => DType::I64)?;
    let mut types: Vec<Packed> = Vec::new();
    let mut run = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        for (info, (source, kind)) in graph.input.iter().zip(&sources) {
            let own = child.outer_tensor(*source)?;
            let value = match kind {
                None => own,
                Some(of) => {
                    let string = op!(child.em, "GatherV2", own, params[0], 0i64)?;
                    unpacked(child, string, of)?
                }
            };
            child.bind(&info.name, value.into());
        }
        child.graph(graph)?;
        let mut results = vec![op!(child.em, "AddV2", params[0], 1i64)?];
        types.clear();
        for (value, &strings) in child.outputs(graph)?.into_iter().zip(&params[1..]) {
            let value = value.tensor()?;
            types.push(Packed { dtype: child.em.dtype(value), shape: child.em.shape(value) });
            let string = pack_listed(child, &[value])?;
            results.push(child.concat(&[strings, string], 0)?);
        }
        Ok(results)
    };
    let mut start = vec![cx.em.constant(Tensor::scalar(0i64))?];
    for _ in &graph.output {
        start.push(pack_listed(cx, &[])?);
    }
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let count = child.outer_tensor(count)?;
        Ok(vec![op!(child.em, "Less", params[0], count)?])
    };
    let outputs = flow::repeat(cx, &start, &mut cond, &mut run)?;
    Ok(outputs[1..].iter().zip(types).map(|(&strings, of)| Value::Sequence(Sequence::Packed(strings, of))).collect())
}

fn optional(_: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    Ok(vec![Value::Optional(n.value(0).cloned().map(Box::new))])
}

fn has_element(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let known = match n.value(0) {
        None | Some(Value::Optional(None)) => false,
        Some(Value::Maybe(strings, ..)) => {
            let count = op!(cx.em, "Size", *strings; "out_type" => DType::I64)?;
            return one(op!(cx.em, "Greater", count, 0i64)?);
        }
        Some(_) => true,
    };
    one(cx.em.constant(Tensor::scalar(known))?)
}

fn get_element(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    match n.value(0) {
        Some(Value::Optional(Some(inner))) => Ok(vec![(**inner).clone()]),
        Some(value @ Value::Maybe(strings, of, is_sequence)) => {
            if *is_sequence {
                let (strings, of) = packed(cx, value)?;
                return Ok(vec![Value::Sequence(Sequence::Packed(strings, of))]);
            }
            let string = op!(cx.em, "GatherV2", *strings, 0i64, 0i64)?;
            one(unpacked(cx, string, of)?)
        }
        None | Some(Value::Optional(None)) => Err(Failure::invalid("its optional holds no value")),
        Some(value) => Ok(vec![value.clone()]),
    }
}
