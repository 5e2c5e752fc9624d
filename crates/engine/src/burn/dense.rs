//! Kernels over contiguous float32 in this process's memory, computed in place by vectorised loops (`meshtf_loops::vector`):
//! burn-flex calls the C library for each element of most functions, and computes on one thread.
//!
//! An input is read in place, shared or not; an input that is not shared is overwritten if it has the output's shape. Other
//! inputs are declined: the backend's kernel of the op takes them, or the host's.

use std::sync::Arc;

use burn_backend::{Element as BurnElement, TensorData};
use meshtf_kernels::KernelNode;
use meshtf_loops::vector::{self, Binary, Comparison, Operand, Repeat, Rows, Unary};
use meshtf_tensor::failure::Result;
use meshtf_tensor::memory as budget;
use meshtf_tensor::{DType, Data, Element, Shape, Tensor};
use smallvec::smallvec;

use super::array::{Array, taken};
use super::memory::{Backing, held};
use super::order::as_stored;
use super::{batch_norm, cast, fold, gather, local_response, losses, mirror, select};
use crate::{DeviceTensor, EngineOutcome, Memory, Value, Values};

/// A kernel that needs no backend.
pub(super) type Direct = Box<dyn FnMut(Values) -> Result<EngineOutcome> + Send>;

/// The kernel of a node whose op this module computes.
pub(super) fn kernel<B: Backing>(node: &KernelNode) -> Result<Option<Direct>> {
    if !B::IN_PLACE || node.inputs.is_empty() {
        return Ok(None);
    }
    if let Some(op) = one_input(node)? {
        return Ok(Some(as_stored(unary(op))));
    }
    if let Some(direct) = of_elements(node)? {
        return Ok(Some(as_stored(with_order(direct))));
    }
    if let Some(direct) = fold::kernel(node)? {
        return Ok(Some(direct));
    }
    if let Some(direct) = mirror::kernel(node)? {
        return Ok(Some(with_order(direct)));
    }
    let direct: Option<Direct> = match node.op {
        "Cast" => cast::kernel(node)?,
        "GatherV2" | "GatherNd" => gather::kernel(node)?,
        "Select" | "SelectV2" => select::kernel(node),
        _ if node.inputs.iter().any(|&dtype| dtype != DType::F32) => None,
        "Softmax" => Some(rows(vector::softmax, vector::softmax_of)),
        "LogSoftmax" => Some(rows(vector::log_softmax, vector::log_softmax_of)),
        "BiasAdd" => {
            let channels_first = node.attrs.str("data_format")? == "NCHW";
            vector::binary("Add").map(|add| bias_add(add, channels_first))
        }
        op => match vector::comparison(op).map(comparison) {
            None => [batch_norm::kernel, local_response::kernel, losses::kernel]
                .into_iter()
                .find_map(|family| family(node).transpose())
                .transpose()?,
            direct => direct,
        },
    };
    Ok(direct.map(with_order))
}

/// The kernel of a node that computes a function of single elements of several inputs, which are broadcast together.
fn of_elements(node: &KernelNode) -> Result<Option<Direct>> {
    Ok(match node.op {
        _ if node.inputs.iter().any(|&dtype| dtype != DType::F32) => None,
        "AddN" => Some(Box::new(add_n)),
        "Pow" => vector::binary("Pow").map(power),
        "LeakyReluGrad" => Some(binary(vector::leaky_gradient(node.attrs.float("alpha")?))),
        op => vector::binary(op).map(binary),
    })
}

/// A kernel that receives its inputs in order.
fn with_order(mut direct: Direct) -> Direct {
    Box::new(move |inputs| direct(inputs.into_iter().map(in_order).collect::<Result<_>>()?))
}

/// The value with its elements in order. Views that repeat elements stay as they are.
pub(super) fn in_order(value: Value) -> Result<Value> {
    match value {
        Value::Device(DeviceTensor { dtype, shape, memory }) if matches!(memory.as_ref(), Some(Memory::Flex(raw)) if !raw.is_contiguous()) =>
        {
            let (memory, home) = taken(memory)?;
            match memory {
                Memory::Flex(raw) => Ok(Array::<burn_flex::Flex> { raw, dtype, shape, home }.in_order()?.value()),
                memory => Ok(Value::Device(DeviceTensor { dtype, shape, memory: Arc::new(Some(memory)) })),
            }
        }
        value => Ok(value),
    }
}

/// The function of a node with one input, if this module computes its op.
fn one_input(node: &KernelNode) -> Result<Option<Unary>> {
    Ok(match node.op {
        _ if node.inputs != [DType::F32] => None,
        "LeakyRelu" => Some(vector::leaky(node.attrs.float("alpha")?)),
        op => vector::unary(op),
    })
}

fn unary(op: Unary) -> Direct {
    Box::new(move |inputs| match rows_of(&inputs[0]) {
        // A part of each row, such as a gate of a recurrent cell, is not put in order first.
        Some((xs, rows)) => {
            let shape = inputs[0].shape();
            shape.checked_elements(DType::F32)?;
            done(shape, (op.rows)(xs, rows))
        }
        None => map(&op, inputs.into_iter().map(in_order).collect::<Result<_>>()?),
    })
}

/// The rows of a view, and the elements from the first on.
fn rows_of(value: &Value) -> Option<(&[f32], Rows)> {
    let Value::Device(tensor) = value else { return None };
    let Some(Memory::Flex(raw)) = tensor.memory.as_ref() else { return None };
    let layout = raw.layout();
    if raw.dtype() != burn_backend::DType::F32 || layout.is_contiguous() {
        return None;
    }
    let rows = vector::rows(layout.shape().as_slice(), layout.strides())?;
    let seen = (rows.count - 1) * rows.apart + rows.len;
    Some((raw.storage::<f32>().get(layout.start_offset()..)?.get(..seen)?, rows))
}

fn map(op: &Unary, mut inputs: Values) -> Result<EngineOutcome> {
    if over(&mut inputs[0], |xs| (op.over)(xs)) {
        inputs.truncate(1);
        return Ok(EngineOutcome::Done(inputs));
    }
    let Some(xs) = floats(&inputs[0]) else { return Ok(EngineOutcome::Declined(inputs)) };
    budget::admit(size_of_val(xs))?;
    done(inputs[0].shape(), (op.made)(xs))
}

fn binary(op: Binary) -> Direct {
    Box::new(move |inputs| zip(&op, inputs))
}

fn zip(op: &Binary, inputs: Values) -> Result<EngineOutcome> {
    match Meeting::of(&inputs).filter(|_| op.broadcasts || inputs[0].shape() == inputs[1].shape()) {
        Some(meeting) => meeting.compute(op, inputs),
        None => Ok(EngineOutcome::Declined(inputs)),
    }
}

/// Two inputs that are broadcast together.
struct Meeting {
    shape: Shape,
    repeats: [Repeat; 2],
}

impl Meeting {
    /// `None` if their shapes cannot be broadcast.
    fn of(inputs: &Values) -> Option<Meeting> {
        let [x, y] = inputs.as_slice() else { return None };
        Meeting::with([x.shape(), y.shape()])
    }

    fn with([x, y]: [&Shape; 2]) -> Option<Meeting> {
        let shape = x.broadcast(y).ok()?;
        let repeats = [Repeat::new(shape.dims(), x.dims())?, Repeat::new(shape.dims(), y.dims())?];
        Some(Meeting { shape, repeats })
    }

    /// The number of elements of a newly allocated output; `None` if no tensor may have that size: the host reports that.
    fn admitted(&self, dtype: DType) -> Result<Option<usize>> {
        if !self.repeats.iter().any(Repeat::is_none) {
            return Ok(self.shape.checked_elements(dtype).ok());
        }
        // As large as an input, for which there was memory.
        let Ok(len) = self.shape.limited_elements(dtype) else { return Ok(None) };
        budget::admit(len * dtype.size().unwrap_or(0))?;
        Ok(Some(len))
    }

    /// The inputs' elements, with their repetition.
    fn operands<'a>(&'a self, inputs: &'a Values) -> Option<[Operand<'a>; 2]> {
        let operand = |i: usize| Some(Operand { elements: floats(&inputs[i])?, repeat: &self.repeats[i] });
        Some([operand(0)?, operand(1)?])
    }

    /// Overwrites an input that has the output's shape, or allocates the output.
    fn compute(&self, op: &Binary, mut inputs: Values) -> Result<EngineOutcome> {
        if self.operands(&inputs).is_none() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        for (whole, pairs) in [&op.straight, &op.swapped].into_iter().enumerate() {
            let (left, right) = inputs.split_at_mut(1);
            let (x, y) = if whole == 0 { (&mut left[0], &right[0]) } else { (&mut right[0], &left[0]) };
            let ys = Operand { elements: floats(y).unwrap_or_default(), repeat: &self.repeats[1 - whole] };
            if *x.shape() == self.shape && over(x, |xs| (pairs.over)(xs, ys)) {
                let answer = inputs.swap_remove(whole);
                return Ok(EngineOutcome::Done(smallvec![answer]));
            }
        }
        let (Some(len), Some([x, y])) = (self.admitted(DType::F32)?, self.operands(&inputs)) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        // The operand with more elements is repeated less: it comes first, and is not broadcast in memory.
        let is_swapped = y.elements.len() > x.elements.len();
        done(&self.shape, if is_swapped { (op.swapped.made)(y, x, len) } else { (op.straight.made)(x, y, len) })
    }
}

/// A comparison of floats. Bools are kept on the host.
fn comparison(op: Comparison) -> Direct {
    Box::new(move |inputs| {
        let meeting = Meeting::of(&inputs);
        let Some((meeting, [x, y])) = meeting.as_ref().and_then(|met| Some((met, met.operands(&inputs)?))) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let Some(len) = meeting.admitted(DType::Bool)? else { return Ok(EngineOutcome::Declined(inputs)) };
        let is_swapped = y.elements.len() > x.elements.len();
        let made = if is_swapped { (op.swapped)(y, x, len) } else { (op.straight)(x, y, len) };
        let answer = Value::Host(Tensor::from_vec(meeting.shape.clone(), made));
        Ok(EngineOutcome::Done(smallvec![answer]))
    })
}

/// A sum whose second operand is repeated along all dimensions but that of the channels.
fn bias_add(add: Binary, channels_first: bool) -> Direct {
    Box::new(move |inputs| {
        let (shape, bias) = (inputs[0].shape(), inputs[1].shape());
        let channels = if channels_first { 1 } else { shape.rank().saturating_sub(1) };
        if shape.rank() < 2 || bias.rank() != 1 || shape.dims()[channels] != bias.dims()[0] {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let along: Shape =
            shape.dims().iter().enumerate().map(|(axis, &size)| if axis == channels { size } else { 1 }).collect();
        match Meeting::with([shape, &along]) {
            Some(meeting) => meeting.compute(&add, inputs),
            None => Ok(EngineOutcome::Declined(inputs)),
        }
    })
}

/// A single exponent for all is often a whole number, and then the power a product.
fn power(any: Binary) -> Direct {
    Box::new(move |inputs| {
        let exponent = inputs.get(1).filter(|y| y.len() == 1 && y.rank() <= inputs[0].rank());
        let to = exponent.and_then(floats).and_then(|exponent| vector::power_to(exponent[0]));
        match to {
            Some(op) => map(&op, inputs),
            None => zip(&any, inputs),
        }
    })
}

/// A function of each row of the last dimension, which takes all rows and the length of one: in place, or into a new vector.
fn rows(written: fn(&mut [f32], usize), made: fn(&[f32], usize) -> Vec<f32>) -> Direct {
    Box::new(move |mut inputs| {
        let Some(&classes) = inputs[0].shape().dims().last().filter(|&&classes| classes > 0) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        if over(&mut inputs[0], |xs| written(xs, classes)) {
            return Ok(EngineOutcome::Done(inputs));
        }
        let Some(xs) = floats(&inputs[0]) else { return Ok(EngineOutcome::Declined(inputs)) };
        budget::admit(size_of_val(xs))?;
        done(inputs[0].shape(), made(xs, classes))
    })
}

fn add_n(mut inputs: Values) -> Result<EngineOutcome> {
    let same = inputs.iter().all(|input| input.shape() == inputs[0].shape());
    if !same || inputs.iter().any(|input| floats(input).is_none()) {
        return Ok(EngineOutcome::Declined(inputs));
    }
    // Two may be swapped; more are added in their order, as each order rounds otherwise.
    if inputs.len() == 2 && !inputs[0].is_unshared() {
        inputs.swap(0, 1);
    }
    let (first, others) = inputs.split_at_mut(1);
    let others: Vec<&[f32]> = others.iter().filter_map(floats).collect();
    if over(&mut first[0], |xs| vector::sum_over(xs, &others)) {
        inputs.truncate(1);
        return Ok(EngineOutcome::Done(inputs));
    }
    let xs = floats(&first[0]).unwrap_or_default();
    budget::admit(size_of_val(xs))?;
    done(first[0].shape(), vector::sums(xs, &others))
}

/// The elements of a value, if they are contiguous in this process's memory.
pub(super) fn floats(value: &Value) -> Option<&[f32]> {
    match value {
        Value::Host(tensor) => tensor.slice().ok(),
        Value::Device(tensor) => match tensor.memory.as_ref() {
            Some(Memory::Flex(raw)) => burn_flex::Flex::floats(raw),
            _ => None,
        },
    }
}

/// Overwrites the elements of a value that is not shared; false if they are shared, or not contiguous.
pub(super) fn over(value: &mut Value, write: impl FnOnce(&mut [f32])) -> bool {
    if !value.is_unshared() {
        return false;
    }
    match value {
        Value::Device(tensor) => {
            let memory = Arc::get_mut(&mut tensor.memory).and_then(Option::as_mut);
            match memory {
                Some(Memory::Flex(raw)) if raw.dtype() == burn_backend::DType::F32 => {
                    raw.try_storage_mut::<f32>().map(write).is_some()
                }
                _ => false,
            }
        }
        Value::Host(tensor) => {
            if tensor.dtype() != DType::F32 {
                return false;
            }
            let own = std::mem::replace(tensor, Tensor::scalar(0f32));
            let (shape, data) = own.into_parts();
            let Data::F32(mut elements) = data else { unreachable!("the dtype was looked at") };
            write(&mut elements);
            // In the engine's memory it can be shared by the next kernels without a copy.
            *value = made(&shape, elements);
            true
        }
    }
}

/// A new value.
pub(super) fn made<T: Element + BurnElement>(shape: &Shape, elements: Vec<T>) -> Value {
    let raw = burn_flex::FlexTensor::from_data(TensorData::new(elements, held(shape)));
    let memory = Arc::new(Some(Memory::Flex(raw)));
    Value::Device(DeviceTensor { dtype: T::DTYPE, shape: shape.clone(), memory })
}

pub(super) fn done(shape: &Shape, elements: Vec<f32>) -> Result<EngineOutcome> {
    Ok(EngineOutcome::Done(smallvec![made(shape, elements)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_put_in_order_and_one_that_repeats_is_declined() {
        let (rows, columns) = (50, 40);
        let numbers: Vec<f32> = (0..rows * columns).map(|i| i as f32 - 700.5).collect();
        let whole = burn_flex::FlexTensor::from_data(TensorData::new(numbers.clone(), [rows, columns]));
        let value = |raw: burn_flex::FlexTensor, dims: [usize; 2]| {
            let memory = Arc::new(Some(Memory::Flex(raw)));
            Value::Device(DeviceTensor { dtype: DType::F32, shape: dims.into(), memory })
        };
        let turned = in_order(value(whole.transpose(0, 1), [columns, rows])).unwrap();
        let want: Vec<f32> = (0..numbers.len()).map(|i| numbers[i % rows * columns + i / rows]).collect();
        assert_eq!((floats(&turned), turned.shape().dims()), (Some(&want[..]), &[columns, rows][..]));
        let row = burn_flex::FlexTensor::from_data(TensorData::new(numbers[..columns].to_vec(), [1, columns]));
        let repeated =
            <burn_flex::Flex as burn_backend::ops::FloatTensorOps<_>>::float_expand(row, [rows, columns].into());
        assert!(floats(&in_order(value(repeated, [rows, columns])).unwrap()).is_none());
    }

    #[test]
    fn a_part_of_each_row_is_computed_on_where_it_lies() {
        let (rows, columns) = (50, 120);
        let numbers: Vec<f32> = (0..rows * columns).map(|i| i as f32 - 700.5).collect();
        let whole = burn_flex::FlexTensor::from_data(TensorData::new(numbers.clone(), [rows, columns]));
        let part = whole.narrow(1, 40, 35);
        let memory = Arc::new(Some(Memory::Flex(part)));
        let part = Value::Device(DeviceTensor { dtype: DType::F32, shape: [rows, 35].into(), memory });
        assert_eq!(rows_of(&part).map(|part| part.1), Some(Rows { count: rows, len: 35, apart: columns }));
        let EngineOutcome::Done(answer) = unary(vector::unary("Neg").unwrap())(smallvec![part]).unwrap() else {
            panic!("declined")
        };
        let want: Vec<f32> = (0..rows * 35).map(|i| -numbers[i / 35 * columns + 40 + i % 35]).collect();
        assert_eq!((floats(&answer[0]), answer[0].shape().dims()), (Some(&want[..]), &[rows, 35][..]));
    }

    #[test]
    fn inputs_are_broadcast_on_both_sides() {
        let numbers = |count: usize| (0..count).map(|i| i as f32 * 0.25 - 3.0).collect::<Vec<_>>();
        let (xs, ys) = (numbers(70), numbers(90));
        let difference: Vec<f32> = xs.iter().flat_map(|x| ys.iter().map(move |y| x - y)).collect();
        let inputs = smallvec![made(&[70, 1].into(), xs.clone()), made(&[90].into(), ys.clone())];
        let EngineOutcome::Done(answer) = zip(&vector::binary("Sub").unwrap(), inputs).unwrap() else {
            panic!("declined")
        };
        assert_eq!((answer[0].shape().dims(), floats(&answer[0]).unwrap()), (&[70, 90][..], &difference[..]));
        // The larger one is the second.
        let less: Vec<bool> = difference.iter().map(|&x| x < 0.0).collect();
        let inputs = smallvec![made(&[70, 1].into(), xs.clone()), made(&[1, 90].into(), ys.clone())];
        let EngineOutcome::Done(answer) = comparison(vector::comparison("Less").unwrap())(inputs).unwrap() else {
            panic!("declined")
        };
        assert_eq!(answer[0].clone().into_host().unwrap(), Tensor::from_vec([70, 90], less));
        for shapes in [[[70, 1], [2, 35]], [[2, 35], [35, 2]]] {
            let inputs = shapes.map(|dims| made(&dims.into(), xs.clone()));
            let outcome = zip(&vector::binary("Sub").unwrap(), Values::from_iter(inputs)).unwrap();
            assert!(matches!(outcome, EngineOutcome::Declined(_)), "{shapes:?}");
        }
    }

    #[test]
    fn what_is_shared_is_left_and_what_is_not_is_written_over() {
        let numbers = |count: usize| (0..count).map(|i| i as f32 * 0.25 - 3.0).collect::<Vec<_>>();
        let (xs, ys) = (numbers(24), numbers(6));
        let difference: Vec<f32> = xs.iter().zip(ys.iter().cycle()).map(|(x, y)| x - y).collect();
        let (host, device) = (
            |xs: &[f32], dims: [usize; 2]| Value::Host(Tensor::from_vec(dims, xs.to_vec())),
            |xs: &[f32], dims: [usize; 2]| made(&dims.into(), xs.to_vec()),
        );
        for make in [host as fn(&[f32], [usize; 2]) -> Value, device] {
            for is_shared in [false, true] {
                let (x, y) = (make(&xs, [4, 6]), make(&ys, [1, 6]));
                let place = floats(&x).unwrap().as_ptr();
                let holder = is_shared.then(|| x.clone());
                let outcome = zip(&vector::binary("Sub").unwrap(), smallvec![x, y]).unwrap();
                let EngineOutcome::Done(answer) = outcome else { panic!("declined") };
                assert_eq!(answer[0].shape().dims(), [4, 6]);
                assert_eq!(floats(&answer[0]).unwrap(), difference);
                assert_eq!(floats(&answer[0]).unwrap().as_ptr() == place, !is_shared);
                assert!(holder.is_none_or(|holder| floats(&holder) == Some(&xs[..])));
            }
        }
    }
}
