//! Lists of values, one dtype to a list: what loops keep for their gradients, and what they write and read by element.

use std::sync::Arc;

use super::super::engine::{Engine, Value};
use super::super::held::Tally;
use super::super::kernel::KernelNode;
use super::super::token::{Token, Tokens};
use super::queue::{row, stack};
use super::variant::{depth_over, held, sum};
use super::{Inputs, Site, StateOp, one, simple};
use crate::failure::{Failure, Held, Result};
use crate::memory;
use crate::tensor::{DType, Data, PartialShape, Shape, Tensor, with_type};

/// Most elements of one list.
const MAX_LIST: usize = 1 << 24;

/// A list of values.
#[derive(Clone)]
pub(in crate::exec) struct List {
    dtype: DType,
    /// What is known of the shape of every element.
    shape: PartialShape,
    limit: usize,
    /// `None` where nothing was set yet.
    items: Vec<Option<Token>>,
    depth: usize,
}

pub(super) fn compile(node: &KernelNode, _site: &Site, _engine: &dyn Engine) -> Result<Option<StateOp>> {
    if !node.op.starts_with("TensorList") && node.op != "EmptyTensorList" {
        return Ok(None);
    }
    let dtype = node.attrs.get("element_dtype").map_or(Ok(DType::Variant), |_| node.attrs.dtype("element_dtype"))?;
    match node.op {
        "EmptyTensorList" => simple(move |mut inputs, _| {
            let mut list = List::new(dtype, inputs.shape(0)?, 0)?;
            if let Ok(limit) = usize::try_from(inputs.host(1)?.to_i64()?) {
                list.limit = limit.min(MAX_LIST);
            }
            Ok(one(list))
        }),
        "TensorListReserve" => simple(move |mut inputs, _| {
            let shape = inputs.shape(0)?;
            Ok(one(List::new(dtype, shape, inputs.size(1)?)?))
        }),
        "TensorListPushBack" => simple(move |mut inputs, _| {
            let mut list = inputs.own_list(0, dtype)?;
            let item = held(inputs.token(1)?)?;
            list.check(&item, "Tried to append a tensor with incompatible shape to a list. Op element shape")?;
            let size = list.items.len();
            if size >= list.limit {
                let why =
                    format!("Tried to push item into a full list list size: {size} max_num_elements: {}", list.limit);
                return Err(Failure::invalid(why));
            }
            memory::grow().map_err(|failure| failure.held_by(|| list.held()))?;
            list.depth = list.depth.max(depth_over([&item].into_iter())?);
            list.items.push(Some(item));
            Ok(one(list))
        }),
        "TensorListPopBack" => simple(move |mut inputs, _| {
            let mut list = inputs.own_list(0, dtype)?;
            let shape = inputs.shape(1)?;
            let Some(last) = list.items.pop() else {
                return Err(Failure::invalid("Trying to pop from an empty list."));
            };
            let item = last.map_or_else(|| list.unset(&shape), Ok)?;
            Ok(Tokens::from_iter([Some(list.into()), Some(item)]))
        }),
        "TensorListGetItem" => simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            list.check_dtype(dtype)?;
            let (index, shape) = (inputs.host(1)?.to_i64()?, inputs.shape(2)?);
            let size = list.items.len();
            let item = usize::try_from(index).ok().and_then(|index| list.items.get(index)).ok_or_else(|| {
                Failure::invalid(format!("Trying to access element {index} in a list with {size} elements."))
            })?;
            item.clone().map_or_else(|| list.unset(&shape), Ok).map(one)
        }),
        "TensorListSetItem" => {
            let may_grow = node.attrs.bool("resize_if_index_out_of_bounds")?;
            simple(move |mut inputs, _| {
                let mut list = inputs.own_list(0, dtype)?;
                let (index, item) = (inputs.host(1)?.to_i64()?, held(inputs.token(2)?)?);
                list.set(index, item, may_grow)?;
                Ok(one(list))
            })
        }
        "TensorListLength" => simple(|mut inputs, _| Ok(one(Tensor::scalar(inputs.list(0)?.items.len() as i32)))),
        "TensorListElementShape" => {
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
        }
        "TensorListResize" => simple(|mut inputs, _| {
            let mut list = Arc::unwrap_or_clone(inputs.list(0)?);
            let size = inputs.size(1)?;
            memory::admit(size * size_of::<Option<Token>>())?;
            list.items.resize(size, None);
            Ok(one(list))
        }),
        "TensorListConcatLists" => simple(move |mut inputs, _| {
            let (mut a, b) = (inputs.own_list(0, dtype)?, inputs.own_list(1, dtype)?);
            in_limit((a.items.len() + b.items.len()) as i64)?;
            a.items.extend(b.items);
            a.depth = a.depth.max(b.depth);
            Ok(one(a))
        }),
        _ => compile_whole(node, dtype),
    }
}

/// The ops between lists and tensors.
fn compile_whole(node: &KernelNode, dtype: DType) -> Result<Option<StateOp>> {
    match node.op {
        "TensorListStack" => {
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
                list.stack(&(0..size).collect::<Vec<_>>(), &shape).map(one)
            })
        }
        "TensorListGather" => simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            list.check_dtype(dtype)?;
            let size = list.items.len();
            let places = inputs.host(1)?.to_i64s()?.into_iter().map(|index| {
                usize::try_from(index).ok().filter(|&index| index < size).ok_or_else(|| {
                    // As TensorFlow words it.
                    let why = format!("Index {index} out o range; list only has {size} elements.");
                    Failure::invalid(why)
                })
            });
            let places = places.collect::<Result<Vec<_>>>()?;
            list.stack(&places, &inputs.shape(2)?).map(one)
        }),
        "TensorListFromTensor" => simple(move |mut inputs, _| {
            let (whole, shape) = (inputs.host(0)?, inputs.shape(1)?);
            let Some(&rows) = whole.dims().first() else {
                return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
            };
            let mut list = List::new(dtype, shape, rows)?;
            for i in 0..rows {
                list.set(i as i64, row(&whole, i)?.into(), false)?;
            }
            Ok(one(list))
        }),
        "TensorListScatter" | "TensorListScatterV2" => {
            let says_size = node.op == "TensorListScatterV2";
            simple(move |mut inputs, _| {
                let (whole, indices, shape) = (inputs.host(0)?, inputs.host(1)?.to_i64s()?, inputs.shape(2)?);
                let least = indices.iter().max().map_or(0, |&greatest| greatest + 1);
                let size = if says_size { inputs.host(3)?.to_i64()? } else { -1 };
                let size = if size < 0 { least } else { size };
                let mut list = List::new(dtype, shape, in_limit(size)?)?;
                list.scatter(&whole, &indices, false)?;
                Ok(one(list))
            })
        }
        "TensorListScatterIntoExistingList" => simple(move |mut inputs, _| {
            let mut list = inputs.own_list(0, dtype)?;
            let (whole, indices) = (inputs.host(1)?, inputs.host(2)?.to_i64s()?);
            list.scatter(&whole, &indices, true)?;
            Ok(one(list))
        }),
        "TensorListConcat" => {
            let stated = node.attrs.shape("element_shape")?.clone();
            simple(move |mut inputs, _| {
                let list = inputs.list(0)?;
                list.check_dtype(dtype)?;
                let (whole, lengths) = list.concat(&stated, &[])?;
                Ok(Tokens::from_iter([Some(whole.into()), Some(lengths.into())]))
            })
        }
        "TensorListConcatV2" => simple(move |mut inputs, _| {
            let list = inputs.list(0)?;
            list.check_dtype(dtype)?;
            let (whole, lengths) = list.concat(&inputs.shape(1)?, &inputs.host(2)?.to_i64s()?)?;
            Ok(Tokens::from_iter([Some(whole.into()), Some(lengths.into())]))
        }),
        "TensorListSplit" => simple(move |mut inputs, _| {
            let (whole, shape, lengths) = (inputs.host(0)?, inputs.shape(1)?, inputs.host(2)?);
            Ok(one(split(dtype, &whole, shape, &lengths)?))
        }),
        _ => Ok(None),
    }
}

impl Inputs {
    /// A list to change, for an op on elements of `dtype`.
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
            (_, sizes) => Err(Failure::invalid(format!("{sizes:?} is no shape of a list's elements"))),
        }
    }

    fn size(&mut self, index: usize) -> Result<usize> {
        in_limit(self.host(index)?.to_i64()?)
    }
}

fn in_limit(size: i64) -> Result<usize> {
    usize::try_from(size).ok().filter(|&size| size <= MAX_LIST).ok_or_else(|| {
        Failure::invalid(format!("The num_elements to reserve must be between 0 and {MAX_LIST}, but got {size}"))
    })
}

impl List {
    fn new(dtype: DType, shape: PartialShape, size: usize) -> Result<List> {
        memory::admit(size * size_of::<Option<Token>>())?;
        Ok(List { dtype, shape, limit: MAX_LIST, items: vec![None; size], depth: depth_over([].into_iter())? })
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    /// What it holds, all the way down.
    fn held(&self) -> Held {
        let mut tally = Tally::default();
        self.items().for_each(|token| tally.token(token));
        tally.most(&format!("a list of {} elements", self.items.len()))
    }

    pub(in crate::exec) fn items(&self) -> impl Iterator<Item = &Token> {
        self.items.iter().flatten()
    }

    fn check_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.dtype {
            return Ok(());
        }
        let why = format!("Invalid data types; op elements {dtype} but list elements {}", self.dtype);
        Err(Failure::invalid(why))
    }

    /// Refuses an element that does not go into the list.
    fn check(&self, item: &Token, what: &str) -> Result<()> {
        let Token::Value(value) = item else { return Ok(()) };
        if self.shape.admits(value.shape()) {
            return Ok(());
        }
        Err(Failure::invalid(format!("{what}: {} list shape: {}", value.shape(), self.shape)))
    }

    fn set(&mut self, index: i64, item: Token, may_grow: bool) -> Result<()> {
        let size = self.items.len();
        let at = match usize::try_from(index) {
            Ok(at) if at < size => at,
            Ok(at) if may_grow && at < MAX_LIST => {
                memory::admit((at + 1) * size_of::<Option<Token>>())?;
                self.items.resize(at + 1, None);
                at
            }
            _ => {
                let why = format!("Trying to modify element {index} in a list with {size} elements.");
                return Err(Failure::invalid(why));
            }
        };
        self.check(&item, "Tried to set a tensor with incompatible shape at a list index. Item element shape")?;
        memory::grow().map_err(|failure| failure.held_by(|| self.held()))?;
        self.depth = self.depth.max(depth_over([&item].into_iter())?);
        self.items[at] = Some(item);
        Ok(())
    }

    fn scatter(&mut self, whole: &Tensor, indices: &[i64], may_grow: bool) -> Result<()> {
        let rows = whole.dims().first().copied().unwrap_or(0);
        if rows != indices.len() {
            let why = format!("Invalid number of rows in input tensor. Expected: {} Actual: {rows}", indices.len());
            return Err(Failure::invalid(why));
        }
        for (i, &index) in indices.iter().enumerate() {
            self.set(index, row(whole, i)?.into(), may_grow)?;
        }
        Ok(())
    }

    /// What stands where nothing was set: zeros, of the shape that is stated, known or that of other elements.
    fn unset(&self, stated: &PartialShape) -> Result<Token> {
        if self.dtype == DType::Variant {
            return Err(Failure::invalid("Trying to read an element of a list of variants that was never set."));
        }
        let shape = self.shape_of_elements(stated)?.known().ok_or_else(|| {
            Failure::invalid(format!(
                "Trying to read an uninitialized tensor but element_shape is not fully defined: {stated} and no list \
                 element is set."
            ))
        })?;
        Ok(Tensor::zeros(self.dtype, shape)?.into())
    }

    /// All that is known of the elements' shape.
    fn shape_of_elements(&self, stated: &PartialShape) -> Result<PartialShape> {
        let mut shape = merged(stated, &self.shape)?;
        if shape.known().is_none() {
            for item in self.items.iter().flatten() {
                if let Token::Value(value) = item {
                    shape = merged(&shape, &value.shape().into())?;
                }
            }
        }
        Ok(shape)
    }

    /// The elements at some places as the rows of one tensor.
    fn stack(&self, places: &[usize], stated: &PartialShape) -> Result<Tensor> {
        let shape = self.shape_of_elements(stated)?.known().ok_or_else(|| {
            Failure::invalid(format!(
                "Tried to stack elements of {} list with non-fully-defined element_shape: {stated}",
                if self.items.is_empty() { "an empty" } else { "a" }
            ))
        })?;
        let mut zeros = None;
        let mut rows = Vec::with_capacity(places.len());
        for &place in places {
            rows.push(match &self.items[place] {
                Some(item) => item.clone().host()?,
                None if zeros.is_none() => zeros.insert(Tensor::zeros(self.dtype, shape.clone())?).clone(),
                None => zeros.clone().expect("just asked"),
            });
        }
        stack(self.dtype, &shape, &rows.iter().collect::<Vec<_>>())
    }

    /// All elements one after the other along their first dimension, and how long each is. `leading` are the lengths of
    /// those that were never set.
    fn concat(&self, stated: &PartialShape, leading: &[i64]) -> Result<(Tensor, Tensor)> {
        let but_first = |shape: &PartialShape| match &shape.0 {
            Some(dims) if dims.is_empty() => {
                Err(Failure::invalid("Concat requires elements to be at least vectors, found scalars instead."))
            }
            Some(dims) => Ok(PartialShape(Some(dims[1..].to_vec()))),
            None => Ok(PartialShape::UNKNOWN),
        };
        let mut rest = merged(&but_first(&self.shape)?, &but_first(stated)?)?;
        for item in self.items.iter().flatten() {
            if let Token::Value(value) = item {
                rest = merged(&rest, &but_first(&value.shape().into())?)?;
            }
        }
        let rest = rest.known().ok_or_else(|| {
            let why =
                format!("All except the first dimension must be fully defined when concating a list, got {stated}");
            Failure::invalid(why)
        })?;
        let mut parts: Vec<Tensor> = Vec::with_capacity(self.items.len());
        let mut lengths = Vec::with_capacity(self.items.len());
        for (i, item) in self.items.iter().enumerate() {
            let part = match (item, leading.get(i).and_then(|&length| usize::try_from(length).ok())) {
                (Some(item), _) => item.clone().host()?,
                (None, Some(length)) => {
                    let shape: Shape = std::iter::once(length).chain(rest.dims().iter().copied()).collect();
                    Tensor::zeros(self.dtype, shape)?
                }
                (None, None) => {
                    let why =
                        format!("List contains uninitialized tensor at index {i} but leading_dims has no size for it");
                    return Err(Failure::invalid(why));
                }
            };
            lengths.push(part.dims()[0]);
            parts.push(part);
        }
        let whole: Shape = std::iter::once(lengths.iter().sum()).chain(rest.dims().iter().copied()).collect();
        let elements = whole.checked_elements(self.dtype)?;
        let data: Option<Result<Data>> = with_type!(self.dtype, T => {
            let mut all: Vec<T> = Vec::with_capacity(elements);
            parts.iter().try_for_each(|part| part.slice::<T>().map(|part| all.extend_from_slice(part)))
                .map(|()| <T as crate::tensor::Element>::into_data(all))
        });
        let whole = Tensor::new(whole, data.ok_or_else(|| Failure::invalid("a variant is no tensor"))??)?;
        Ok((whole, Tensor::vector(lengths.into_iter().map(|length| length as i64).collect())))
    }

    /// Every element under `f`.
    pub fn map(mut self, f: impl Fn(Token) -> Result<Token>) -> Result<List> {
        for item in &mut self.items {
            *item = item.take().map(&f).transpose()?;
        }
        Ok(self)
    }

    /// The sum with another list, element by element.
    pub fn plus(mut self, other: List) -> Result<List> {
        self.check_dtype(other.dtype)?;
        if self.items.len() != other.items.len() {
            let why = format!(
                "Trying to add two lists of tensors with different lengths. One is {} and the other is {}",
                self.items.len(),
                other.items.len()
            );
            return Err(Failure::invalid(why));
        }
        self.shape = merged(&self.shape, &other.shape)?;
        for (a, b) in self.items.iter_mut().zip(other.items) {
            // What was never set counts as zeros.
            *a = match (a.take(), b) {
                (Some(a), Some(b)) => Some(sum(a, b)?),
                (a, b) => a.or(b),
            };
        }
        Ok(self)
    }
}

/// A tensor cut along its first dimension into a list.
fn split(dtype: DType, whole: &Tensor, shape: PartialShape, lengths: &Tensor) -> Result<List> {
    if lengths.rank() != 1 {
        let why = format!("Expected lengths to be a vector, received shape: {}", lengths.shape());
        return Err(Failure::invalid(why));
    }
    let Some(&rows) = whole.dims().first() else {
        return Err(Failure::invalid("Tensor must be at least a vector, but saw shape: []"));
    };
    match shape.0.as_ref().map(|dims| dims.split_first()) {
        Some(None) => {
            return Err(Failure::invalid(
                "TensorListSplit requires element_shape to be at least of rank 1, but saw: []",
            ));
        }
        Some(Some((_, rest))) if !PartialShape(Some(rest.to_vec())).admits(&whole.dims()[1..].into()) => {
            let why = format!("tensor shape {} is not compatible with element_shape {shape}", whole.shape());
            return Err(Failure::invalid(why));
        }
        _ => {}
    }
    let lengths = parts(&lengths.to_i64s()?, rows)?;
    let mut list = List::new(dtype, shape, lengths.len())?;
    let width: usize = whole.dims()[1..].iter().product();
    let mut first = 0;
    for (i, length) in lengths.into_iter().enumerate() {
        let dims: Shape = std::iter::once(length).chain(whole.dims()[1..].iter().copied()).collect();
        dims.checked_elements(dtype)?;
        let part: Option<Result<Data>> = with_type!(dtype, T => {
            let cut = first * width..(first + length) * width;
            whole.slice::<T>().map(|all| <T as crate::tensor::Element>::into_data(all[cut].to_vec()))
        });
        let part = Tensor::new(dims, part.ok_or_else(|| Failure::invalid("a variant is no tensor"))??)?;
        // Whether a part is as long as the elements are said to be is not looked at.
        list.items[i] = Some(Value::from(part).into());
        first += length;
    }
    Ok(list)
}

/// The lengths of the parts that a tensor of so many rows is cut into.
fn parts(lengths: &[i64], rows: usize) -> Result<Vec<usize>> {
    let mut start = 0usize;
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let part =
            usize::try_from(length).map_err(|_| Failure::invalid(format!("Invalid value in lengths: {length}")))?;
        let end = start.saturating_add(part);
        if end > rows {
            let why = format!("Attempting to slice [{start}, {end}] from tensor with length {rows}");
            return Err(Failure::invalid(why));
        }
        parts.push(part);
        start = end;
    }
    if start < rows {
        let why = format!("Unused values in tensor. Length of tensor: {rows} Values used: {start}");
        return Err(Failure::invalid(why));
    }
    Ok(parts)
}

/// What two statements of a shape say together.
fn merged(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (&a.0, &b.0) else { return Ok(if a.0.is_none() { b.clone() } else { a.clone() }) };
    if x.len() != y.len() {
        let why = format!("PartialTensorShape: Incompatible ranks during merge: {} vs. {}", x.len(), y.len());
        return Err(Failure::invalid(why));
    }
    let same = x.iter().zip(y).all(|(x, y)| x.is_none() || y.is_none() || x == y);
    if !same {
        return Err(Failure::invalid(format!("PartialTensorShape: Incompatible shapes during merge: {a} vs. {b}")));
    }
    Ok(PartialShape(Some(x.iter().zip(y).map(|(x, y)| x.or(*y)).collect())))
}
