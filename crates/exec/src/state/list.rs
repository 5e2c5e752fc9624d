//! The ops of lists.

use std::sync::Arc;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};

use super::super::rows::row;
use super::super::token::{Boxed, List, Token, Tokens, Variant, depth_over};
use super::super::variant::list::{MAX_LIST, in_limit, split};
use super::op::{StateInputs, one, simple};
use super::registry::Registry;

pub(super) fn register(ops: &mut Registry) {
    register_whole(ops);
    ops.insert_list("EmptyTensorList", |dtype, mut inputs| {
        let mut list = List::new(dtype, inputs.shape(0)?, 0)?;
        if let Ok(limit) = usize::try_from(inputs.host(1)?.to_i64()?) {
            list.limit = limit.min(MAX_LIST);
        }
        Ok(one(list))
    });
    ops.insert_list("TensorListReserve", |dtype, mut inputs| {
        let shape = inputs.shape(0)?;
        Ok(one(List::new(dtype, shape, inputs.size(1)?)?))
    });
    ops.insert_list("TensorListPushBack", |dtype, mut inputs| {
        let mut list = inputs.own_list(0, dtype)?;
        let item = inputs.token(1)?.held()?;
        list.check(&item, "Tried to append a tensor with incompatible shape to a list. Op element shape")?;
        let size = list.items.len();
        if size >= list.limit {
            let why = format!("Tried to push item into a full list list size: {size} max_num_elements: {}", list.limit);
            return Err(Failure::invalid(why));
        }
        memory::grow().map_err(|failure| failure.held_by(|| list.held()))?;
        list.depth = list.depth.max(depth_over([&item].into_iter())?);
        list.items.push(Some(item));
        Ok(one(list))
    });
    ops.insert_list("TensorListPopBack", |dtype, mut inputs| {
        let mut list = inputs.own_list(0, dtype)?;
        let shape = inputs.shape(1)?;
        let Some(last) = list.items.pop() else {
            return Err(Failure::invalid("Trying to pop from an empty list."));
        };
        let item = last.map_or_else(|| list.unset(&shape), Ok)?;
        Ok(Tokens::from_iter([Some(list.into()), Some(item)]))
    });
    ops.insert_list("TensorListGetItem", |dtype, mut inputs| {
        let list = inputs.list(0)?;
        list.check_dtype(dtype)?;
        let (index, shape) = (inputs.host(1)?.to_i64()?, inputs.shape(2)?);
        let size = list.items.len();
        let item = usize::try_from(index).ok().and_then(|index| list.items.get(index)).ok_or_else(|| {
            Failure::invalid(format!("Trying to access element {index} in a list with {size} elements."))
        })?;
        item.clone().map_or_else(|| list.unset(&shape), Ok).map(one)
    });
    ops.insert("TensorListPushBackBatch", |node, _| {
        let dtype = node.attrs.dtype("element_dtype")?;
        simple(move |mut inputs, _| {
            let Token::Variant(Variant::Boxed(lists)) = inputs.token(0)? else {
                return Err(Failure::invalid("input_handles must be a vector of lists, not one list"));
            };
            push_rows(&lists, dtype, &inputs.host(1)?)
        })
    });
    ops.insert("TensorListSetItem", |node, _| {
        let dtype = node.attrs.dtype("element_dtype")?;
        let may_grow = node.attrs.bool("resize_if_index_out_of_bounds")?;
        simple(move |mut inputs, _| {
            let mut list = inputs.own_list(0, dtype)?;
            let (index, item) = (inputs.host(1)?.to_i64()?, inputs.token(2)?.held()?);
            list.set(index, item, may_grow)?;
            Ok(one(list))
        })
    });
    ops.insert_call("TensorListLength", |mut inputs, _| Ok(one(Tensor::scalar(inputs.list(0)?.items.len() as i32))));
    ops.insert("TensorListElementShape", |node, _| {
        let dtype = node.attrs.dtype("shape_type")?;
        simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            let sizes = |dims: &Vec<Option<usize>>| dims.iter().map(|dim| dim.map_or(-1, |n| n as i64)).collect();
            let sizes: Option<Vec<i64>> = list.shape.0.as_ref().map(sizes);
            Ok(one(match (sizes, dtype) {
                (None, DType::I64) => Tensor::scalar(-1i64),
                (None, _) => Tensor::scalar(-1i32),
                (Some(sizes), DType::I64) => Tensor::vector(sizes),
                (Some(sizes), _) => Tensor::vector(sizes.into_iter().map(|size| size as i32).collect()),
            }))
        })
    });
    ops.insert_call("TensorListResize", |mut inputs, _| {
        let mut list = Arc::unwrap_or_clone(inputs.list(0)?);
        let size = inputs.host(1)?.to_i64()?;
        if size < 0 {
            return Err(Failure::invalid(format!("TensorListSlice expects size to be non-negative. Got: {size}")));
        }
        let size = in_limit(size)?;
        memory::admit(size * size_of::<Option<Token>>())?;
        list.items.resize(size, None);
        Ok(one(list))
    });
    ops.insert_list("TensorListConcatLists", |dtype, mut inputs| {
        let (mut a, b) = (inputs.own_list(0, dtype)?, inputs.own_list(1, dtype)?);
        if a.shape != b.shape {
            let why = format!(
                "input_a and input_b TensorList element shapes are not identical at index 0.  Saw {} vs. {}",
                a.shape, b.shape
            );
            return Err(Failure::invalid(why));
        }
        in_limit((a.items.len() + b.items.len()) as i64)?;
        a.items.extend(b.items);
        a.depth = a.depth.max(b.depth);
        Ok(one(a))
    });
}

/// Pushes an element to each list of an array.
fn push_rows(lists: &Boxed, dtype: DType, rows: &Tensor) -> Result<Tokens> {
    let rank = lists.shape.rank();
    if rows.dims().get(..rank) != Some(lists.shape.dims()) {
        return Err(Failure::invalid(format!(
            "tensor has shape {}, which must begin with the shape of the lists, {}",
            rows.shape(),
            lists.shape
        )));
    }
    let flat: Shape = std::iter::once(lists.items().len()).chain(rows.dims()[rank..].iter().copied()).collect();
    let rows = rows.clone().reshaped(flat)?;
    let mut pushed = Vec::with_capacity(lists.items().len());
    for (i, list) in lists.items().iter().enumerate() {
        let Token::Variant(Variant::List(list)) = list else {
            return Err(Failure::invalid("Input handle is not a list"));
        };
        list.check_dtype(dtype)?;
        let (mut list, item) = (List::clone(list), Token::from(row(&rows, i)?));
        list.check(&item, "Tried to append a tensor with incompatible shape to a list. Op element shape")?;
        // TensorFlow does not look at the limit here.
        in_limit(list.items.len() as i64 + 1)?;
        memory::admit(size_of_val(&*list.items))?;
        list.items.push(Some(item));
        pushed.push(Token::from(list));
    }
    Ok(one(Boxed::new(lists.shape.clone(), pushed)?))
}

/// Registers the ops between lists and tensors.
fn register_whole(ops: &mut Registry) {
    ops.insert("TensorListStack", |node, _| {
        let dtype = node.attrs.dtype("element_dtype")?;
        let wanted = node.attrs.int("num_elements")?;
        simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            list.check_dtype(dtype)?;
            let size = list.items.len();
            if wanted >= 0 && wanted != size as i64 {
                return Err(Failure::invalid(format!(
                    "Operation expected a list with {wanted} elements but got a list with {size} elements."
                )));
            }
            let shape = inputs.shape(1)?;
            list.stack(&shape).map(one)
        })
    });
    ops.insert_list("TensorListGather", |dtype, mut inputs| {
        let list = inputs.list(0)?;
        list.check_dtype(dtype)?;
        let size = list.items.len();
        let places = inputs.host(1)?.to_i64s()?.into_iter().map(|index| {
            usize::try_from(index).ok().filter(|&index| index < size).ok_or_else(|| {
                // TensorFlow's message.
                let why = format!("Index {index} out o range; list only has {size} elements.");
                Failure::invalid(why)
            })
        });
        let places = places.collect::<Result<Vec<_>>>()?;
        list.gather(&places, &inputs.shape(2)?).map(one)
    });
    ops.insert_list("TensorListFromTensor", |dtype, mut inputs| {
        let (whole, shape) = (inputs.host(0)?, inputs.shape(1)?);
        let Some(&rows) = whole.dims().first() else {
            return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
        };
        let mut list = List::new(dtype, shape, rows)?;
        list.check_rows(&whole)?;
        for i in 0..rows {
            list.set(i as i64, row(&whole, i)?.into(), false)?;
        }
        Ok(one(list))
    });
    ops.insert_list("TensorListScatter", |dtype, inputs| scattered(dtype, inputs, false));
    ops.insert_list("TensorListScatterV2", |dtype, inputs| scattered(dtype, inputs, true));
    ops.insert_list("TensorListScatterIntoExistingList", |dtype, mut inputs| {
        let mut list = inputs.own_list(0, dtype)?;
        let (whole, indices) = (inputs.host(1)?, inputs.host(2)?.to_i64s()?);
        list.scatter(&whole, &indices, true)?;
        Ok(one(list))
    });
    ops.insert("TensorListConcat", |node, _| {
        let dtype = node.attrs.dtype("element_dtype")?;
        let stated = node.attrs.shape("element_shape")?.clone();
        simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            list.check_dtype(dtype)?;
            let (whole, lengths) = list.concat(&stated, &[])?;
            Ok(Tokens::from_iter([Some(whole.into()), Some(lengths.into())]))
        })
    });
    ops.insert_list("TensorListConcatV2", |dtype, mut inputs| {
        let list = inputs.list(0)?;
        list.check_dtype(dtype)?;
        let (whole, lengths) = list.concat(&inputs.shape(1)?, &inputs.host(2)?.to_i64s()?)?;
        Ok(Tokens::from_iter([Some(whole.into()), Some(lengths.into())]))
    });
    ops.insert_list("TensorListSplit", |dtype, mut inputs| {
        let (whole, shape, lengths) = (inputs.host(0)?, inputs.shape(1)?, inputs.host(2)?);
        Ok(one(split(dtype, &whole, shape, &lengths)?))
    });
}

/// A list of the rows of a tensor, each at its index; with `says_size`, an input states the length of the list.
fn scattered(dtype: DType, mut inputs: StateInputs, says_size: bool) -> Result<Tokens> {
    let (whole, indices, shape) = (inputs.host(0)?, inputs.host(1)?.to_i64s()?, inputs.shape(2)?);
    let least = indices.iter().max().map_or(0, |&greatest| greatest.saturating_add(1)).max(0);
    let size = if says_size { inputs.host(3)?.to_i64()? } else { -1 };
    let size = if size < 0 { least } else { size };
    let mut list = List::new(dtype, shape, in_limit(size)?)?;
    list.check_rows(&whole)?;
    list.scatter(&whole, &indices, false)?;
    Ok(one(list))
}

impl Registry {
    /// Adds an op on a list whose elements have the dtype that the node states.
    fn insert_list(
        &mut self,
        op: &'static str,
        call: impl Fn(DType, StateInputs) -> Result<Tokens> + Copy + Send + Sync + 'static,
    ) {
        self.insert(op, move |node, _| {
            let dtype = node.attrs.dtype("element_dtype")?;
            simple(move |inputs, _| call(dtype, inputs))
        });
    }
}

impl StateInputs {
    /// A list to be changed, for an op on elements of `dtype`.
    fn own_list(&mut self, index: usize, dtype: DType) -> Result<List> {
        let list = self.list(index)?;
        list.check_dtype(dtype)?;
        if Arc::strong_count(&list) > 1 {
            memory::admit(size_of_val(&*list.items))?;
        }
        Ok(Arc::unwrap_or_clone(list))
    }

    /// A shape as a tensor: -1 for any size, the scalar -1 for any shape.
    fn shape(&mut self, index: usize) -> Result<PartialShape> {
        let sizes = self.host(index)?;
        match (sizes.rank(), sizes.to_i64s()?) {
            (0, size) if size == [-1] => Ok(PartialShape::UNKNOWN),
            (1, sizes) if sizes.iter().all(|&size| size >= -1) => {
                Ok(PartialShape(Some(sizes.into_iter().map(|size| usize::try_from(size).ok()).collect())))
            }
            (_, sizes) => Err(Failure::invalid(format!("{sizes:?} is not a shape of a list's elements"))),
        }
    }

    fn size(&mut self, index: usize) -> Result<usize> {
        in_limit(self.host(index)?.to_i64()?)
    }
}
