//! Gradients of lists of tensors and of optionals: the gradient of a list is a list of the same length, of the gradients of its
//! elements.

use meshtf_tensor::{DType, PartialShape};

use super::{Rule, Stop};
use crate::Output;
use crate::gradient::Gradient;
use crate::gradient::call::{Added, Call, Grads, one};
use crate::gradient::reach::is_differentiable;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("tensor_list_push_back", |c| {
        let (item, list) = (c.x(1), c.dy()?);
        let shape = c.shape(item)?;
        let pop = typed(c, "TensorListPopBack", &[list, shape])?;
        lists([Some(pop.port(0)), Some(pop.port(1))])
    }),
    ("tensor_list_pop_back", |c| {
        let item = c.d(1)?;
        let list = match c.given(0)? {
            Some(list) => list,
            None => {
                let left = c.y(0);
                let (shape, dtype) = (element_shape(c, left)?, c.node.outputs[1].dtype);
                c.op("EmptyTensorList").input(shape).input(-1).attr("element_dtype", dtype).build()?
            }
        };
        one(typed(c, "TensorListPushBack", &[list, item])?)
    }),
    ("tensor_list_stack", |c| {
        let values = c.dy()?;
        let shape = shape_of_rows(c, values)?;
        one(typed(c, "TensorListFromTensor", &[values, shape])?)
    }),
    ("tensor_list_from_tensor", |c| {
        let (values, list) = (c.x(0), c.dy()?);
        let count = c.sizes(values).and_then(|sizes| *sizes.first()?).map_or(-1, |size| size as i64);
        let (shape, dtype) = (shape_of_rows(c, values)?, c.dtype(values));
        let stack = c.op("TensorListStack").input(list).input(shape).attr("element_dtype", dtype);
        one(stack.attr("num_elements", count).build()?)
    }),
    ("tensor_list_concat", |c| {
        let (list, lengths, values) = (c.x(0), c.y(1), c.dy()?);
        let shape = element_shape(c, list)?;
        one(typed(c, "TensorListSplit", &[values, shape, lengths])?)
    }),
    ("tensor_list_split", |c| {
        let (values, lengths, list) = (c.x(0), c.x(2), c.dy()?);
        let row = shape_of_rows(c, values)?;
        let any = c.g.constant("rows", [-1])?;
        let shape = c.concat([any, row], 0)?;
        let dtype = c.dtype(values);
        let concat = c.op("TensorListConcatV2").input(list).input(shape).input(lengths);
        one(concat.attr("element_dtype", dtype).build()?)
    }),
    ("tensor_list_get_item", |c| {
        let (index, item) = (c.x(1), c.dy()?);
        let zeros = reserved(c)?;
        one(typed(c, "TensorListSetItem", &[zeros, index, item])?)
    }),
    ("tensor_list_set_item", |c| {
        let (before, index, item, list) = (c.x(0), c.x(1), c.x(2), c.dy()?);
        let zeros = c.un("ZerosLike", item)?;
        let mut by_list = typed(c, "TensorListSetItem", &[list, index, zeros])?;
        if c.flag("resize_if_index_out_of_bounds") {
            let count = c.un("TensorListLength", before)?;
            by_list = c.bin("TensorListResize", by_list, count)?;
        }
        let shape = c.shape(item)?;
        let by_item = typed(c, "TensorListGetItem", &[list, index, shape])?;
        lists([Some(by_list), None, Some(by_item)])
    }),
    ("tensor_list_resize", |c| {
        let (before, list) = (c.x(0), c.dy()?);
        let count = c.un("TensorListLength", before)?;
        one(c.bin("TensorListResize", list, count)?)
    }),
    ("tensor_list_gather", |c| {
        let (indices, values) = (c.x(1), c.dy()?);
        let zeros = reserved(c)?;
        one(typed(c, "TensorListScatterIntoExistingList", &[zeros, values, indices])?)
    }),
    ("tensor_list_scatter", |c| {
        let (values, indices, list) = (c.x(0), c.x(1), c.dy()?);
        let shape = shape_of_rows(c, values)?;
        one(typed(c, "TensorListGather", &[list, indices, shape])?)
    }),
    ("tensor_list_scatter_into_existing_list", |c| {
        let (values, indices, list) = (c.x(1), c.x(2), c.dy()?);
        let shape = shape_of_rows(c, values)?;
        let by_values = typed(c, "TensorListGather", &[list, indices, shape])?;
        let zeros = c.un("ZerosLike", values)?;
        let by_list = typed(c, "TensorListScatterIntoExistingList", &[list, zeros, indices])?;
        lists([Some(by_list), Some(by_values)])
    }),
    ("optional_from_value", |c| {
        let inputs = c.node.inputs.clone();
        let dtypes: Vec<DType> = inputs.iter().map(|&x| c.dtype(x)).collect();
        let shapes: Vec<PartialShape> = inputs.iter().map(|&x| PartialShape(c.sizes(x))).collect();
        let optional = c.dy()?;
        let get = c.op("OptionalGetValue").input(optional).attr("output_types", dtypes.clone());
        let values = get.attr("output_shapes", shapes).build()?;
        let by = |(port, dtype): (u32, DType)| is_differentiable(dtype).then(|| Gradient::Dense(values.port(port)));
        Ok((0..).zip(dtypes).map(by).collect())
    }),
    ("optional_get_value", |c| {
        let values = (0..c.node.outputs.len()).map(|port| c.d(port)).collect::<Result<Vec<_>, _>>()?;
        one(c.op("OptionalFromValue").inputs(values).build()?)
    }),
];

fn lists<const N: usize>(gradients: [Option<Output>; N]) -> Grads {
    Ok(gradients.into_iter().map(|gradient| gradient.map(Gradient::Dense)).collect())
}

/// A node of an op whose elements have the dtype of those of the node.
fn typed(c: &mut Call, op: &str, inputs: &[Output]) -> Added {
    let dtype = c.node.attrs.dtype("element_dtype").map_err(Stop::Failed)?;
    Ok(c.op(op).inputs(inputs.iter().copied()).attr("element_dtype", dtype).build()?)
}

/// The element shape of a list, as a tensor.
fn element_shape(c: &mut Call, list: Output) -> Added {
    Ok(c.op("TensorListElementShape").input(list).attr("shape_type", DType::I32).build()?)
}

/// The shape of a tensor without its first dimension.
fn shape_of_rows(c: &mut Call, x: Output) -> Added {
    let shape = if x.node.index() < c.g.settled().len() { c.shape(x)? } else { c.shape_of_added(x)? };
    c.part(shape, 1, None)
}

/// A list with as many elements as the node's input list, none of which is set: they count as zeros.
fn reserved(c: &mut Call) -> Added {
    let list = c.x(0);
    let shape = element_shape(c, list)?;
    let count = c.un("TensorListLength", list)?;
    typed(c, "TensorListReserve", &[shape, count])
}
