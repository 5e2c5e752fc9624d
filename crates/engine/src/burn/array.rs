//! A tensor as a kernel sees it: the backend's tensor with the dtype and shape of the graph, and the operations that work for
//! every dtype.
//!
//! Never empty, and of a float dtype or bool: other tensors stay on the host.

use std::sync::Arc;

use burn_backend::{BoolDType, FloatDType, Slice, TensorData, TensorMetadata};
use meshtf_kernels::call::owned;
use meshtf_loops::vector::{self, Stretch};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Shape, Tensor};

use super::memory::{Backing, Order, burn_type, held, upload};
use super::{SMALL, blocks};
use crate::{DeviceTensor, EngineOutcome, Memory, Value, Values};

/// The location of a kernel: a device of the backend, and the dtypes that it stores.
#[derive(Clone)]
pub(super) struct Site<B: Backing> {
    pub device: B::Device,
    /// The representation of a bool on the device.
    pub bools: BoolDType,
    /// The float dtypes that the device computes in.
    pub floats: Vec<DType>,
}

pub(super) struct Array<B: Backing> {
    /// Its shape is [`held`] of `shape`.
    pub raw: B::Raw,
    pub dtype: DType,
    pub shape: Shape,
    pub home: Home,
}

/// The emptied cell from which an unshared value was taken, to be reused for the value computed from it; or none.
#[derive(Default)]
pub(super) struct Home(Option<Arc<Option<Memory>>>);

impl<B: Backing> Clone for Array<B> {
    fn clone(&self) -> Self {
        Array { raw: self.raw.clone(), dtype: self.dtype, shape: self.shape.clone(), home: Home::default() }
    }
}

/// Calls the primitive for the dtype's class.
macro_rules! by_class {
    ($dtype:expr, $float:ident | $bool:ident ($($argument:expr),*)) => {
        if $dtype.is_float() { B::$float($($argument),*) } else { B::$bool($($argument),*) }
    };
}

impl<B: Backing> Site<B> {
    /// The value in the backend's memory.
    ///
    /// # Errors
    /// Internal if another engine holds the value and fails to pass it; ResourceExhausted if there is not enough memory for a
    /// copy.
    pub fn array(&self, value: Value) -> Result<Array<B>> {
        let tensor = match value {
            Value::Host(tensor) => tensor,
            Value::Device(DeviceTensor { dtype, shape, memory }) => {
                let (memory, home) = taken(memory)?;
                match B::from_memory(memory) {
                    Ok(raw) => return Ok(Array { raw, dtype, shape, home }),
                    Err(memory) => {
                        Value::Device(DeviceTensor { dtype, shape, memory: Arc::new(Some(memory)) }).into_host()?
                    }
                }
            }
        };
        let tensor = owned(tensor)?;
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        Ok(Array { raw: upload::<B>(tensor, &self.device, self.bools), dtype, shape, home: Home::default() })
    }

    /// An array whose elements are undefined.
    pub fn empty(&self, dtype: DType, shape: Shape) -> Array<B> {
        let raw = B::float_empty(held(&shape), &self.device, float(dtype));
        Array { raw, dtype, shape, home: Home::default() }
    }

    /// An array filled with one value.
    pub fn full(&self, value: f64, dtype: DType, shape: Shape) -> Array<B> {
        let raw = B::float_full(held(&shape), value.into(), &self.device, float(dtype));
        Array { raw, dtype, shape, home: Home::default() }
    }
}

impl<B: Backing> Array<B> {
    pub fn value(self) -> Value {
        let Array { raw, dtype, shape, home } = self;
        let memory = B::into_memory(raw);
        let memory = match home.0 {
            Some(mut place) => match Arc::get_mut(&mut place) {
                Some(empty) => {
                    *empty = Some(memory);
                    place
                }
                None => Arc::new(Some(memory)),
            },
            None => Arc::new(Some(memory)),
        };
        Value::Device(DeviceTensor { dtype, shape, memory })
    }

    /// Applies a primitive that keeps shape and dtype.
    pub fn map(self, primitive: impl FnOnce(B::Raw) -> B::Raw) -> Self {
        Array { raw: primitive(self.raw), ..self }
    }

    /// For a primitive that reads the elements in order and otherwise copies them first. Many elements are put in order by
    /// this function, in blocks; for few, memory is admitted.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for that.
    pub fn in_order(self) -> Result<Self> {
        if B::REMOTE || B::order(&self.raw) == Order::Whole {
            return Ok(self);
        }
        let elements: usize = self.shape.dims().iter().product();
        if B::IN_PLACE && self.dtype == DType::F32 && elements > SMALL {
            budget::admit(elements * size_of::<f32>())?;
            if let Some(elements) = B::laid_out(&self.raw) {
                let raw = B::float_from_data(TensorData::new(elements, held(&self.shape)), &self.raw.device());
                return Ok(Array { raw, ..self });
            }
        }
        if self.dtype.is_float() && blocks::is_large::<B>(&self.shape) {
            return blocks::laid_out(self);
        }
        budget::admit(elements * self.dtype.size().unwrap_or(0))?;
        Ok(self)
    }

    /// The same elements under another shape of equal size.
    ///
    /// # Errors
    /// As [`Array::in_order`].
    pub fn reshape(self, shape: Shape) -> Result<Self> {
        if self.shape == shape {
            return Ok(self);
        }
        let own = self.in_order()?;
        let raw = by_class!(own.dtype, float_reshape | bool_reshape(own.raw, held(&shape)));
        Ok(Array { raw, shape, ..own })
    }

    /// Adds dimensions of size 1 in front, up to `rank`.
    ///
    /// # Errors
    /// As [`Array::in_order`].
    pub fn lifted(self, rank: usize) -> Result<Self> {
        let missing = rank.saturating_sub(self.shape.rank());
        if missing == 0 {
            return Ok(self);
        }
        let shape = std::iter::repeat_n(1, missing).chain(self.shape.dims().iter().copied()).collect();
        self.reshape(shape)
    }

    /// Repeats dimensions of size 1, up to `shape`.
    ///
    /// # Errors
    /// As [`Array::in_order`].
    pub fn expand(self, shape: &Shape) -> Result<Self> {
        if self.shape == *shape {
            return Ok(self);
        }
        let lifted = self.lifted(shape.rank())?;
        let raw = by_class!(lifted.dtype, float_expand | bool_expand(lifted.raw, held(shape)));
        Ok(Array { raw, shape: shape.clone(), ..lifted })
    }

    /// Dimension `i` of the result is dimension `axes[i]`.
    pub fn permute(self, axes: &[usize]) -> Self {
        if axes.iter().enumerate().all(|(i, &axis)| i == axis) {
            return self;
        }
        let shape = axes.iter().map(|&axis| self.shape.dims()[axis]).collect();
        let raw = by_class!(self.dtype, float_permute | bool_permute(self.raw, axes));
        Array { raw, shape, ..self }
    }

    /// For each dimension, `count` elements from `start`, `step` apart. The rank is at least 1.
    pub fn slice(self, parts: &[Part]) -> Self {
        let whole = parts.iter().zip(self.shape.dims()).all(|(part, &size)| part.step == 1 && part.count == size);
        if whole {
            return self;
        }
        let slices = slices(parts);
        let shape = parts.iter().map(|part| part.count).collect();
        let raw = by_class!(self.dtype, float_slice | bool_slice(self.raw, &slices));
        Array { raw, shape, ..self }
    }

    /// An array of zeros with these elements at the positions of `parts`.
    pub fn spread(self, parts: &[Part], shape: Shape) -> Self {
        let zeros = B::float_zeros(held(&shape), &self.raw.device(), float(self.dtype));
        let raw = B::float_slice_assign(zeros, &slices(parts), self.raw);
        Array { raw, shape, dtype: self.dtype, home: Home::default() }
    }

    /// The elements, `times` along one dimension.
    pub fn repeated(self, axis: usize, times: usize) -> Self {
        let mut dims = self.shape.dims().to_vec();
        dims[axis] *= times;
        let raw = by_class!(self.dtype, float_repeat_dim | bool_repeat_dim(self.raw, axis, times));
        Array { raw, dtype: self.dtype, shape: dims.into(), home: Home::default() }
    }

    /// `count` consecutive elements along one dimension.
    pub fn narrow(self, axis: usize, start: usize, count: usize) -> Self {
        let mut parts: Vec<Part> =
            self.shape.dims().iter().map(|&size| Part { start: 0, count: size, step: 1 }).collect();
        parts[axis] = Part { start, count, step: 1 };
        self.slice(&parts)
    }

    /// Concatenates along `axis`; the other dimensions agree.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for the result.
    pub fn concat(arrays: Vec<Self>, axis: usize) -> Result<Self> {
        let (dtype, device) = (arrays[0].dtype, arrays[0].raw.device());
        let mut dims = arrays[0].shape.dims().to_vec();
        dims[axis] = arrays.iter().map(|array| array.shape.dims()[axis]).sum();
        let shape = Shape::from(dims);
        if !B::IN_PLACE || dtype != DType::F32 {
            return Array::concat_by_backend(arrays, axis, shape);
        }
        let arrays = arrays.into_iter().map(Array::in_order).collect::<Result<Vec<_>>>()?;
        let parts: Option<Vec<&[f32]>> = arrays.iter().map(|array| B::floats(&array.raw)).collect();
        let Some(parts) = parts else { return Array::concat_by_backend(arrays, axis, shape) };
        let outer = shape.dims()[..axis].iter().product();
        let raw = B::float_from_data(TensorData::new(vector::joined(&parts, outer), held(&shape)), &device);
        Ok(Array { raw, dtype, shape, home: Home::default() })
    }

    fn concat_by_backend(arrays: Vec<Self>, axis: usize, shape: Shape) -> Result<Self> {
        let (dtype, device) = (arrays[0].dtype, arrays[0].raw.device());
        if !dtype.is_float() || !blocks::is_large::<B>(&shape) {
            let raws = arrays.into_iter().map(|array| array.raw).collect();
            let raw = by_class!(dtype, float_cat | bool_cat(raws, axis));
            return Ok(Array { raw, dtype, shape, home: Home::default() });
        }
        let block = blocks::leading(&shape, 0);
        blocks::by_blocks(&device, dtype, shape, &block, &mut |ranges| {
            let (from, count) = ranges[axis];
            let (mut parts, mut behind) = (Vec::new(), 0);
            for array in &arrays {
                let (before, size) = (behind, array.shape.dims()[axis]);
                behind += size;
                let (start, end) = (from.max(before), (from + count).min(behind));
                if start < end {
                    let mut own = ranges.clone();
                    own[axis] = (start - before, end - start);
                    parts.push(blocks::part(array, &own).raw);
                }
            }
            Ok(B::float_cat(parts, axis))
        })
    }

    /// The rows `indices` along `axis`.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for them.
    pub fn rows(self, site: &Site<B>, axis: usize, indices: Vec<i32>) -> Result<Self> {
        let own = self.in_order()?;
        let mut dims = own.shape.dims().to_vec();
        let size = std::mem::replace(&mut dims[axis], indices.len());
        let (shape, dtype) = (Shape::from(dims), own.dtype);
        let uploaded = |indices: Vec<i32>| upload::<B>(Tensor::vector(indices), &site.device, site.bools);
        if !dtype.is_float() || !blocks::is_large::<B>(&shape) {
            let raw = by_class!(dtype, float_select | bool_select(own.raw, axis, uploaded(indices)));
            return Ok(Array { raw, shape, ..own });
        }
        let block = blocks::leading(&shape, 0);
        blocks::by_blocks(&site.device, dtype, shape, &block, &mut |ranges| {
            let (from, count) = ranges[axis];
            let mut of = ranges.clone();
            if let &[row] = &indices[from..from + count] {
                of[axis] = (row as usize, 1);
                return Ok(blocks::part(&own, &of).raw);
            }
            of[axis] = (0, size);
            Ok(B::float_select(blocks::part(&own, &of).raw, axis, uploaded(indices[from..from + count].to_vec())))
        })
    }

    /// Padded with `value`; `sides` has the number of elements before and after each dimension. Of a float dtype.
    ///
    /// # Errors
    /// ResourceExhausted if there is not enough memory for the result.
    pub fn padded(self, site: &Site<B>, sides: &[(usize, usize)], value: f64) -> Result<Self> {
        let dims = self.shape.dims().iter();
        let shape: Shape = dims.clone().zip(sides).map(|(size, side)| side.0 + size + side.1).collect();
        if let Some(from) = B::floats(&self.raw).filter(|_| B::IN_PLACE && self.dtype == DType::F32) {
            let around = |(&size, &(before, after)): (&usize, &(usize, usize))| {
                let inner = Stretch { count: size, from: Some(0) };
                [Stretch { count: before, from: None }, inner, Stretch { count: after, from: None }]
                    .into_iter()
                    .filter(|run| run.count > 0)
                    .collect()
            };
            let axes: Vec<Vec<Stretch>> = dims.zip(sides).map(around).collect();
            let all = vector::picked(from, self.shape.dims(), &axes, value as f32);
            let raw = B::float_from_data(TensorData::new(all, held(&shape)), &site.device);
            return Ok(Array { raw, dtype: self.dtype, shape, home: Home::default() });
        }
        if !blocks::is_large::<B>(&shape) {
            let inner: Vec<Slice> = dims.zip(sides).map(|(size, side)| Slice::from(side.0..side.0 + size)).collect();
            let whole = site.full(value, self.dtype, shape);
            return Ok(whole.map(|raw| B::float_slice_assign(raw, &inner, self.raw)));
        }
        let block = blocks::leading(&shape, 0);
        blocks::by_blocks(&site.device, self.dtype, shape, &block, &mut |ranges| {
            // The part of it that is in this block, and its position in the block.
            let (mut own, mut place) = (blocks::Ranges::new(), Vec::new());
            for ((&(from, count), &(before, _)), &size) in ranges.iter().zip(sides).zip(self.shape.dims()) {
                let (start, end) = (from.max(before), (from + count).min(before + size));
                own.push((start.saturating_sub(before), end.saturating_sub(start)));
                place.push(Slice::from(start - from..end.max(start) - from));
            }
            let around = site.full(value, self.dtype, ranges.iter().map(|range| range.1).collect());
            if own.iter().any(|range| range.1 == 0) {
                return Ok(around.raw);
            }
            Ok(B::float_slice_assign(around.raw, &place, blocks::part(&self, &own).raw))
        })
    }

    /// Reversed along `axes`.
    pub fn flip(self, axes: &[usize]) -> Self {
        let raw = by_class!(self.dtype, float_flip | bool_flip(self.raw, axes));
        Array { raw, ..self }
    }
}

/// The engine's tensor: taken out of its cell if it is not shared, which leaves the cell empty; otherwise a copy that shares
/// the elements.
///
/// # Errors
/// Internal if the cell is empty, which only a bug in a kernel could cause.
pub(super) fn taken(mut memory: Arc<Option<Memory>>) -> Result<(Memory, Home)> {
    let (tensor, home) = match Arc::get_mut(&mut memory) {
        Some(own) => (own.take(), Home(Some(memory))),
        None => (Option::clone(&memory), Home::default()),
    };
    Ok((tensor.ok_or_else(|| Failure::new(Code::Internal, "the value was already taken"))?, home))
}

/// A part of a dimension: at least one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    pub start: usize,
    pub count: usize,
    pub step: usize,
}

fn slices(parts: &[Part]) -> Vec<Slice> {
    let slice = |part: &Part| {
        let end = part.start + (part.count - 1) * part.step + 1;
        Slice::new(part.start as isize, Some(end as isize), part.step as isize)
    };
    parts.iter().map(slice).collect()
}

/// burn's name for a float dtype.
pub(super) fn float(dtype: DType) -> FloatDType {
    burn_type(dtype).expect("float dtypes are burn's").into()
}

/// The outcome of a kernel with one output.
pub(super) fn done<B: Backing>(array: Array<B>) -> Result<EngineOutcome> {
    Ok(EngineOutcome::Done(Values::from_iter([array.value()])))
}

/// Whole numbers as burn takes them for indices along a dimension; `None` if one is not below `size`.
pub(super) fn places(numbers: &Tensor, size: usize) -> Result<Option<Vec<i32>>> {
    let place = |number: i64| i32::try_from(number).ok().filter(|&place| place >= 0 && (place as usize) < size);
    Ok(numbers.to_i64s()?.into_iter().map(place).collect())
}

/// The element of a one-element tensor on the host.
pub(super) fn host_scalar(value: &Value) -> Option<f64> {
    let Value::Host(tensor) = value else { return None };
    if tensor.len() != 1 {
        return None;
    }
    use meshtf_tensor::Data;
    match tensor.data() {
        Data::F16(v) => Some(v[0].to_f64()),
        Data::BF16(v) => Some(v[0].to_f64()),
        Data::F32(v) => Some(f64::from(v[0])),
        Data::F64(v) => Some(v[0]),
        _ => None,
    }
}
