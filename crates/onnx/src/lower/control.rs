//! Branches and loops: If, Loop and Scan.

use meshtf_graph::{Attr, Output};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};

use super::{Operator, onnx};
use crate::cx::{Cx, tensor_type};
use crate::elem::Elem;
use crate::emit::op;
use crate::flow::{self, Body};
use crate::node::{Node, Packed, Sequence, Value};
use crate::proto::GraphProto;
use crate::unsupported;

pub const TABLE: &[Operator] = &[onnx("If", 1, choose), onnx("Loop", 1, repeat), onnx("Scan", 8, scan)];

/// A sequence in a loop or a branch is a vector of strings, whatever its length.
pub fn as_tensor(cx: &mut Cx, value: &Value) -> Result<(Output, Option<Packed>)> {
    match value {
        Value::Tensor(output) => Ok((*output, None)),
        Value::Sequence(_) => {
            let (strings, of) = super::sequence::packed(cx, value)?;
            Ok((strings, Some(of)))
        }
        Value::Optional(Some(inner)) => as_tensor(cx, inner),
        Value::Optional(None) | Value::Maybe(..) => {
            Err(unsupported("unsupported: an optional, of which only a step tells, in a branch or a loop"))
        }
    }
}

fn as_value(output: Output, sequence: &Option<Packed>) -> Value {
    match sequence {
        // Another iteration or branch may have other shapes.
        Some(of) => Value::Sequence(Sequence::Packed(output, Packed { shape: PartialShape::UNKNOWN, dtype: of.dtype })),
        None => Value::Tensor(output),
    }
}

/// A condition is a scalar, or a tensor of one element.
fn condition(cx: &mut Cx, output: Output) -> Result<Output> {
    match cx.em.dims(output) {
        Some(dims) if dims.is_empty() => Ok(output),
        _ => op!(cx.em, "Reshape", output, Vec::<i64>::new()),
    }
}

fn choose(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let cond = n.input(0)?;
    let graphs = [n.graph("then_branch")?, n.graph("else_branch")?];
    if let Some(known) = cx.em.ints(cond) {
        return cx.inline(graphs[usize::from(known.first() == Some(&0))], &[]);
    }
    let cond = condition(cx, cond)?;
    let mut bodies = Vec::new();
    let mut kinds: Vec<Vec<Option<Packed>>> = Vec::new();
    for graph in graphs {
        let mut child = cx.child()?;
        child.graph(graph)?;
        let mut results = Vec::new();
        let mut own = Vec::new();
        for value in child.outputs(graph)? {
            let (output, sequence) = as_tensor(&mut child, &value)?;
            results.push(output);
            own.push(sequence);
        }
        kinds.push(own);
        bodies.push(Body::of(child, Vec::new(), &results));
    }
    let dtypes = |kinds: &[Option<Packed>]| -> Vec<Option<DType>> {
        kinds.iter().map(|kind| kind.as_ref().map(|of| of.dtype)).collect()
    };
    if dtypes(&kinds[0]) != dtypes(&kinds[1]) {
        return Err(Failure::invalid("its branches have outputs of different kinds"));
    }
    let bodies: [Body; 2] = bodies.try_into().map_err(|_| Failure::invalid("it has no two branches"))?;
    let outputs = flow::branch(cx, cond, bodies)?;
    Ok(outputs.into_iter().zip(&kinds[0]).map(|(output, kind)| as_value(output, kind)).collect())
}

/// An empty list of tensors, to which a loop adds.
pub fn empty_list(cx: &mut Cx, dtype: DType, shape: &PartialShape) -> Result<Output> {
    let shape = element_shape(shape);
    op!(cx.em, "EmptyTensorList", shape, -1i32; "element_dtype" => dtype)
}

/// The shape of a list's elements, -1 for sizes that differ or are not known.
fn element_shape(shape: &PartialShape) -> Tensor {
    match &shape.0 {
        None => Tensor::scalar(-1i32),
        Some(dims) => Tensor::vector(dims.iter().map(|size| size.map_or(-1, |size| size as i32)).collect::<Vec<i32>>()),
    }
}

/// The tensors of a list, stacked. Those of an empty list have size 0 where a size is not known, as in onnxruntime.
pub fn stacked(cx: &mut Cx, list: Output, dtype: DType, shape: &PartialShape) -> Result<Output> {
    let open = element_shape(shape);
    let y = match &shape.0 {
        Some(dims) if dims.contains(&None) => {
            let of_none: Vec<i32> = dims.iter().map(|size| size.map_or(0, |size| size as i32)).collect();
            let length = op!(cx.em, "TensorListLength", list)?;
            let is_empty = op!(cx.em, "Equal", length, 0i32)?;
            let shape = op!(cx.em, "SelectV2", is_empty, Tensor::vector(of_none), open)?;
            op!(cx.em, "TensorListStack", list, shape; "element_dtype" => dtype)?
        }
        _ => op!(cx.em, "TensorListStack", list, open; "element_dtype" => dtype)?,
    };
    if cx.em.dims(y).is_some() {
        return Ok(y);
    }
    let Some(dims) = &shape.0 else { return Ok(y) };
    let whole: Vec<Option<usize>> = [None].into_iter().chain(dims.iter().copied()).collect();
    op!(cx.em, "EnsureShape", y; "shape" => PartialShape(Some(whole)))
}

/// The types of the results of a body that are stacked over the iterations, found by building the body once.
fn stacked_types(cx: &Cx, types: &[flow::Type], build: &mut flow::Build) -> Result<Vec<flow::Type>> {
    let mut wide = types.to_vec();
    let mut last = flow::body(cx, &wide, build)?;
    for _ in 0..4 {
        // The shapes of the variables after an iteration may be others than before it.
        let next: Vec<PartialShape> = wide.iter().zip(&last.results).map(|(a, b)| flow::widened(&a.1, &b.2)).collect();
        if next.iter().zip(&wide).all(|(new, old)| *new == old.1) {
            break;
        }
        wide.iter_mut().zip(next).for_each(|(ty, shape)| ty.1 = shape);
        last = flow::body(cx, &wide, build)?;
    }
    Ok(last.results.iter().skip(types.len()).map(|(_, dtype, shape, elem)| (*dtype, shape.clone(), *elem)).collect())
}

fn repeat(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let graph = n.graph("body")?;
    let (limit, first) = (n.maybe(0)?, n.maybe(1)?);
    let limit = match limit {
        Some(limit) => Some(if cx.em.rank(limit)? > 0 { cx.reshape(limit, &[])? } else { limit }),
        None => None,
    };
    let first = match first {
        Some(first) => condition(cx, first)?,
        None => cx.em.constant(Tensor::scalar(true))?,
    };
    let zero = cx.em.constant(Tensor::scalar(0i64))?;
    let mut start = vec![zero, first];
    let mut kinds = Vec::new();
    for i in 2..n.inputs.len() {
        let value = n.value(i).ok_or_else(|| Failure::invalid(format!("input {i} is missing")))?.clone();
        let (output, kind) = match value {
            // An empty sequence takes the type that the body states.
            Value::Sequence(Sequence::Listed(ref all)) if all.is_empty() => {
                let dtype = sequence_dtype(graph, i)?;
                let strings = super::sequence::pack_listed(cx, &[])?;
                (strings, Some(Packed { dtype, shape: PartialShape::UNKNOWN }))
            }
            value => as_tensor(cx, &value)?,
        };
        start.push(output);
        kinds.push(kind);
    }
    let carried = kinds.len();
    if graph.input.len() != carried + 2 || graph.output.len() < carried + 1 {
        return Err(Failure::invalid(format!(
            "its body has {} inputs and {} outputs; {carried} variables take {} and at least {}",
            graph.input.len(),
            graph.output.len(),
            carried + 2,
            carried + 1
        )));
    }
    // From (iteration, condition, variables) to (iteration, condition, variables, values to stack).
    let run = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        for (i, info) in graph.input.iter().enumerate() {
            let kind = i.checked_sub(2).map_or(&None, |i| &kinds[i]);
            child.bind(&info.name, as_value(params[i], kind));
        }
        child.graph(graph)?;
        let values = child.outputs(graph)?;
        let next = op!(child.em, "AddV2", params[0], 1i64)?;
        let mut results = vec![next];
        for (i, value) in values.iter().enumerate() {
            let (output, _) = as_tensor(child, value)?;
            results.push(if i == 0 { condition(child, output)? } else { output });
        }
        Ok(results)
    };
    let types: Vec<flow::Type> =
        start.iter().map(|&output| (cx.em.dtype(output), cx.em.shape(output), cx.em.elem(output))).collect();
    let lists = match graph.output.len() - carried - 1 {
        0 => Vec::new(),
        _ => stacked_types(cx, &types, &mut |child, params| run(child, params))?,
    };
    for (dtype, shape, _) in &lists {
        start.push(empty_list(cx, *dtype, shape)?);
    }
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let Some(limit) = limit else { return Ok(vec![op!(child.em, "Identity", params[1])?]) };
        let limit = child.outer_tensor(limit)?;
        let limit = child.long(limit)?;
        let less = op!(child.em, "Less", params[0], limit)?;
        Ok(vec![op!(child.em, "LogicalAnd", less, params[1])?])
    };
    let split = 2 + carried;
    let outputs = flow::repeat(cx, &start, &mut cond, &mut |child, params| {
        let mut results = run(child, &params[..split])?;
        for (list, value) in params[split..].iter().zip(results.split_off(split)) {
            results.push(op!(child.em, "TensorListPushBack", *list, value)?);
        }
        Ok(results)
    })?;
    let mut values: Vec<Value> =
        outputs[2..split].iter().zip(&kinds).map(|(&output, kind)| as_value(output, kind)).collect();
    for (&list, (dtype, shape, elem)) in outputs[split..].iter().zip(&lists) {
        let y = stacked(cx, list, *dtype, shape)?;
        values.push(cx.em.with_elem(y, *elem)?.into());
    }
    Ok(values)
}

/// The dtype of the elements of a body's input, a sequence.
fn sequence_dtype(graph: &GraphProto, i: usize) -> Result<DType> {
    use crate::proto::TypeValue;
    let ty = graph.input.get(i).and_then(|info| info.r#type.as_ref()).and_then(|ty| ty.value.as_ref());
    let Some(TypeValue::Sequence(inner)) = ty else { return Ok(DType::F32) };
    tensor_type(inner.elem_type.as_deref())?.map_or(Elem::FLOAT, |(elem, _)| elem).dtype()
}

fn scan(cx: &mut Cx, n: &Node) -> Result<Vec<Value>> {
    let graph = n.graph("body")?;
    let scanned = usize::try_from(n.int("num_scan_inputs", 0)).unwrap_or(0);
    let mut inputs: Vec<Output> = Vec::new();
    // Opset 8 has the lengths of the batch's elements first.
    let is_old = n.version < 9;
    for i in usize::from(is_old)..n.inputs.len() {
        inputs.push(n.input(i)?);
    }
    if is_old && n.value(0).is_some() {
        return Err(unsupported("unsupported: lengths of the sequences of a Scan, opset 8"));
    }
    let carried = inputs.len().checked_sub(scanned).filter(|_| scanned > 0);
    let carried = carried.ok_or_else(|| Failure::invalid(format!("num_scan_inputs is {scanned}")))?;
    let outputs =
        graph.output.len().checked_sub(carried).ok_or_else(|| Failure::invalid("its body has too few outputs"))?;
    if is_old {
        return batched(cx, n, graph, inputs, carried);
    }
    let list = |name: &str, i: usize| n.ints(name).and_then(|all| all.get(i)).copied().unwrap_or(0);
    let mut sources = Vec::new();
    for (i, &input) in inputs[carried..].iter().enumerate() {
        let rank = cx.em.rank(input)?;
        let axis = cx.axis(list("scan_input_axes", i), rank)?;
        let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&own| own != axis)).collect();
        let x = cx.transpose(input, &order)?;
        sources.push(if list("scan_input_directions", i) == 1 { op!(cx.em, "ReverseV2", x, [0i64])? } else { x });
    }
    let start = inputs[..carried].to_vec();
    let stacks = over_slices(cx, graph, &start, &sources)?;
    let mut values: Vec<Value> = stacks[..carried].iter().map(|&output| output.into()).collect();
    for i in 0..outputs {
        let mut y = stacks[carried + i];
        if list("scan_output_directions", i) == 1 {
            y = op!(cx.em, "ReverseV2", y, [0i64])?;
        }
        let rank = cx.em.rank(y)?;
        let axis = cx.axis(list("scan_output_axes", i), rank)?;
        let mut order: Vec<usize> = (1..rank).collect();
        order.insert(axis, 0);
        values.push(cx.transpose(y, &order)?.into());
    }
    Ok(values)
}

/// Runs a body over the slices of some tensors along their first axis: the last values of its variables, and its results stacked.
fn over_slices(cx: &mut Cx, graph: &GraphProto, start: &[Output], sources: &[Output]) -> Result<Vec<Output>> {
    let carried = start.len();
    let count = cx.size(sources[0], 0)?;
    let count = cx.scalar(count)?;
    let run = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let mut args: Vec<Output> = params[1..=carried].to_vec();
        for &source in sources {
            let own = child.outer_tensor(source)?;
            args.push(op!(child.em, "GatherV2", own, params[0], 0i64)?);
        }
        for (info, &arg) in graph.input.iter().zip(&args) {
            child.bind(&info.name, arg.into());
        }
        child.graph(graph)?;
        let mut results = vec![op!(child.em, "AddV2", params[0], 1i64)?];
        for value in child.outputs(graph)? {
            results.push(value.tensor()?);
        }
        Ok(results)
    };
    let zero = cx.em.constant(Tensor::scalar(0i64))?;
    let mut variables = vec![zero];
    variables.extend_from_slice(start);
    let types: Vec<flow::Type> =
        variables.iter().map(|&output| (cx.em.dtype(output), cx.em.shape(output), cx.em.elem(output))).collect();
    let lists = stacked_types(cx, &types, &mut |child, params| run(child, params))?;
    for (dtype, shape, _) in &lists {
        variables.push(empty_list(cx, *dtype, shape)?);
    }
    let split = 1 + carried;
    let mut cond = |child: &mut Cx, params: &[Output]| -> Result<Vec<Output>> {
        let count = child.outer_tensor(count)?;
        Ok(vec![op!(child.em, "Less", params[0], count)?])
    };
    let last = flow::repeat(cx, &variables, &mut cond, &mut |child, params| {
        let mut results = run(child, &params[..split])?;
        for (list, value) in params[split..].iter().zip(results.split_off(split)) {
            results.push(op!(child.em, "TensorListPushBack", *list, value)?);
        }
        Ok(results)
    })?;
    let mut outputs = last[1..split].to_vec();
    for (&list, (dtype, shape, _)) in last[split..].iter().zip(&lists) {
        outputs.push(stacked(cx, list, *dtype, shape)?);
    }
    Ok(outputs)
}

/// Scan of opset 8: the body runs for each element of the batch on its own.
fn batched(cx: &mut Cx, n: &Node, graph: &GraphProto, inputs: Vec<Output>, carried: usize) -> Result<Vec<Value>> {
    /// The elements of a batch are unrolled.
    const MAX_BATCH: usize = 64;
    let batch = cx.em.size(inputs[0], 0).filter(|&batch| batch <= MAX_BATCH);
    let batch = batch.ok_or_else(|| {
        unsupported("unsupported: a Scan of opset 8 over a batch whose size is not known, or is over 64")
    })?;
    let reversed = |i: usize| n.ints("directions").and_then(|all| all.get(i)).copied().unwrap_or(0) == 1;
    let mut parts: Vec<Vec<Output>> = Vec::new();
    for element in 0..batch {
        let mut own = Vec::new();
        for (i, &input) in inputs.iter().enumerate() {
            let x = op!(cx.em, "GatherV2", input, element as i64, 0i64)?;
            let is_reversed = i.checked_sub(carried).is_some_and(reversed);
            own.push(if is_reversed { op!(cx.em, "ReverseV2", x, [0i64])? } else { x });
        }
        parts.push(over_slices(cx, graph, &own[..carried], &own[carried..])?);
    }
    (0..graph.output.len())
        .map(|i| {
            let all = parts.iter().map(|part| part[i].into()).collect();
            cx.em.add("Pack", all, &[("axis", Attr::Int(0))]).map(Value::Tensor)
        })
        .collect()
}
