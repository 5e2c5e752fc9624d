//! The ops of tensor arrays.

use std::sync::Arc;

use meshtf_engine::{Engine, EngineKernel, EngineOutcome, Value, Values};
use meshtf_graph::{Attr, Attrs, OutputType};
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::super::resource::{ArraySpec, MAX_TENSOR_ARRAY, TensorArray};
use super::super::token::{Token, Tokens};
use super::op::{StateOp, nothing, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    ops.insert_all(["TensorArrayV3", "TensorArrayV2", "TensorArray"], |node, _| make(node));
    ops.insert_call("TensorArrayWriteV3", |mut inputs, _| {
        let array = inputs.tensor_array(0)?;
        let index = inputs.host(1)?.to_i64()?;
        array.write(index, inputs.value(2)?)?;
        Ok(one(inputs.token(3)?))
    });
    ops.insert("TensorArrayReadV3", |node, _| {
        let dtype = node.attrs.dtype("dtype")?;
        simple(move |mut inputs, _| {
            let array = inputs.tensor_array(0)?;
            array.check_dtype(dtype)?;
            Ok(one(array.read(inputs.host(1)?.to_i64()?)?))
        })
    });
    ops.insert_on_engine("TensorArrayGatherV3", |node, _, engine| gather(node, engine, false));
    ops.insert_on_engine("TensorArrayPack", |node, _, engine| gather(node, engine, true));
    ops.insert_call("TensorArrayUnpack", |mut inputs, context| {
        let array = inputs.tensor_array(0)?;
        let values = inputs.value(1)?;
        let count = values.shape().dims().first().copied().unwrap_or(0);
        array.scatter(&up_to(count), values, |values| cut(values, context.engine))?;
        array.was_written_at_once(count);
        Ok(one(inputs.token(2)?))
    });
    ops.insert_call("TensorArrayScatterV3", |mut inputs, context| {
        let array = inputs.tensor_array(0)?;
        let indices = inputs.host(1)?;
        array.scatter(&indices, inputs.value(2)?, |values| cut(values, context.engine))?;
        Ok(one(inputs.token(3)?))
    });
    ops.insert_all(["TensorArrayGradV3", "TensorArrayGradWithShape"], |node, _| {
        let source = node.attrs.str("source")?.to_owned();
        let (has_flow, has_more) = (node.outputs.len() > 1, node.op == "TensorArrayGradWithShape");
        simple(move |mut inputs, _| {
            let before = if has_more { Shape::from_i64s(&inputs.host(2)?.to_i64s()?)? } else { Shape::scalar() };
            let gradients = inputs.tensor_array(0)?.gradients_for(&source, &before)?;
            let handle = Token::Resource(gradients);
            let flow = inputs.token(1)?;
            Ok(std::iter::once(Some(handle)).chain(has_flow.then_some(Some(flow))).collect())
        })
    });
    ops.insert_call("TensorArraySizeV3", |mut inputs, _| {
        let size = inputs.tensor_array(0)?.size();
        Ok(one(Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX))))
    });
    ops.insert("TensorArrayConcatV3", |node, _| {
        let dtype = node.attrs.dtype("dtype")?;
        let shape = node.attrs.shape("element_shape_except0")?.clone();
        simple(move |mut inputs, _| {
            let array = inputs.tensor_array(0)?;
            array.check_dtype(dtype)?;
            let (value, lengths) = array.concat(&shape)?;
            Ok(Tokens::from_iter([Some(value.into()), Some(lengths.into())]))
        })
    });
    ops.insert_call("TensorArraySplitV3", |mut inputs, _| {
        let array = inputs.tensor_array(0)?;
        let (value, lengths) = (inputs.host(1)?, inputs.host(2)?);
        array.split(&value, &lengths)?;
        Ok(one(inputs.token(3)?))
    });
    ops.insert_call("TensorArrayCloseV3", |mut inputs, _| {
        inputs.tensor_array(0)?.close();
        Ok(nothing())
    });
}

/// Elements as one tensor: all, or those that input 1 names.
fn gather(node: &KernelNode, engine: &dyn Engine, takes_all: bool) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("element_shape")?.clone();
    let mut pack = packing(node, dtype, engine)?;
    simple(move |mut inputs, _| {
        let array = inputs.tensor_array(0)?;
        array.check_dtype(dtype)?;
        let indices = if takes_all { up_to(array.joined()) } else { inputs.host(1)? };
        gathered(&array, array.rows(&indices)?, &shape, pack.as_mut())
    })
}

/// The kernel that packs elements in a GPU's memory into one tensor.
fn packing(node: &KernelNode, dtype: DType, engine: &dyn Engine) -> Result<Option<EngineKernel>> {
    if engine.computes_here() {
        return Ok(None);
    }
    let attrs = Attrs::from([("axis", Attr::Int(0)), ("T", Attr::Type(dtype))]);
    engine.compile(&KernelNode { op: "Pack", attrs: &attrs, inputs: &[dtype], ..*node })
}

fn gathered(
    array: &TensorArray,
    mut rows: Vec<Value>,
    shape: &PartialShape,
    pack: Option<&mut EngineKernel>,
) -> Result<Tokens> {
    if let Some(pack) = pack.filter(|_| rows.iter().any(|row| matches!(row, Value::Device(_)))) {
        match (pack.run)(rows.into())? {
            EngineOutcome::Done(whole) => return Ok(whole.into_iter().map(|value| Some(value.into())).collect()),
            EngineOutcome::Declined(declined) => rows = declined.into_vec(),
        }
    }
    Ok(one(array.packed(rows, shape)?))
}

/// The rows of a value in a GPU's memory; other values are returned.
fn cut(values: Value, engine: &dyn Engine) -> Result<std::result::Result<Vec<Value>, Value>> {
    let (dtype, &[rows, ..]) = (values.dtype(), values.shape().dims()) else { return Ok(Err(values)) };
    if engine.computes_here() || matches!(values, Value::Host(_)) {
        return Ok(Err(values));
    }
    let attrs = Attrs::from([("axis", Attr::Int(0)), ("num", Attr::Int(rows as i64)), ("T", Attr::Type(dtype))]);
    let outputs = [OutputType { dtype, is_ref: false }];
    let unpack =
        KernelNode { name: "rows", op: "Unpack", attrs: &attrs, inputs: &[dtype], outputs: &outputs, constants: 0 };
    let Some(mut unpack) = engine.compile(&unpack)? else { return Ok(Err(values)) };
    match (unpack.run)(Values::from_iter([values]))? {
        EngineOutcome::Done(rows) => Ok(Ok(rows.into_vec())),
        EngineOutcome::Declined(mut values) => Ok(Err(values.swap_remove(0))),
    }
}

fn make(node: &KernelNode) -> Result<StateOp> {
    let given = node.attrs.str("tensor_array_name")?;
    let name = if given.is_empty() { node.name } else { given }.to_owned();
    let dtype = node.attrs.dtype("dtype")?;
    let shape = node.attrs.shape("element_shape")?.clone();
    let is_dynamic = node.attrs.bool("dynamic_size")?;
    let clears_after_read = node.attrs.bool("clear_after_read")?;
    // Older forms have neither this attribute nor the output of a flow.
    let is_uniform =
        node.attrs.get("identical_element_shapes").is_some() && node.attrs.bool("identical_element_shapes")?;
    let has_flow = node.outputs.len() > 1;
    // A node in a loop makes an array in each iteration: the number tells them apart, as TensorFlow's does.
    let mut made = 0u64;
    simple(move |mut inputs, _| {
        let number = made;
        made += 1;
        let size = inputs.host(0)?.to_i64()?;
        let size = usize::try_from(size).ok().filter(|&size| size <= MAX_TENSOR_ARRAY).ok_or_else(|| {
            let why = format!("TensorArray {name}: size {size} is not between 0 and {MAX_TENSOR_ARRAY}");
            Failure::invalid(why)
        })?;
        let (name, shape) = (name.clone(), shape.clone());
        let array = TensorArray::new(
            ArraySpec { name, number, dtype, shape, is_dynamic, clears_after_read, is_uniform },
            size,
        )?;
        let handle = Token::Resource(Arc::new(array));
        let flow = has_flow.then(|| Some(Tensor::scalar(0f32).into()));
        Ok(std::iter::once(Some(handle)).chain(flow).collect())
    })
}

/// The indices of the first `count` elements.
fn up_to(count: usize) -> Tensor {
    Tensor::vector((0..count as i64).collect())
}
