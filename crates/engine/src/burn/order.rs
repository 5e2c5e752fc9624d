//! The order in which the elements of a view lie in memory. A transposed tensor is a view of its source, and the image that a
//! convolution returns channels first is a view of one that is stored channels last. A function of single elements is computed in
//! the order of the memory, and its result is a view of the same kind: nothing is moved between one convolution and the next.

use std::cmp::Reverse;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Data, Shape};
use smallvec::SmallVec;

use super::array::{Array, taken};
use super::dense::{Direct, in_order, made};
use crate::{DeviceTensor, EngineOutcome, Memory, Value, Values};

/// Dimension `i` of the result is dimension `axes[i]`.
pub(super) type Axes = SmallVec<[usize; 6]>;

/// Whether a value is float32 in this process's memory, in a form that this module moves.
pub(super) fn is_here(value: &Value) -> bool {
    let is_flex = |tensor: &DeviceTensor| matches!(tensor.memory.as_ref(), Some(Memory::Flex(_)));
    value.dtype() == DType::F32
        && matches!(value, Value::Host(_)) | matches!(value, Value::Device(tensor) if is_flex(tensor))
}

/// Whether the elements of a view fill its memory in the order of these axes.
pub(super) fn lies(value: &Value, axes: &[usize]) -> bool {
    let Value::Device(tensor) = value else { return false };
    let Some(Memory::Flex(raw)) = tensor.memory.as_ref() else { return false };
    let (dims, strides) = (tensor.shape.dims(), raw.layout().strides());
    if dims.len() != axes.len() || strides.len() != axes.len() {
        return false;
    }
    let mut next = 1;
    axes.iter().rev().filter(|&&axis| dims[axis] != 1).all(|&axis| {
        let follows = strides[axis] == next;
        next *= dims[axis] as isize;
        follows
    })
}

/// The axes that put the elements of a float32 view in the order of the memory, if they fill it in another order than their own.
pub(super) fn stored(value: &Value) -> Option<Axes> {
    let Value::Device(tensor) = value else { return None };
    let Some(Memory::Flex(raw)) = tensor.memory.as_ref() else { return None };
    if raw.is_contiguous() || tensor.dtype != DType::F32 {
        return None;
    }
    // An axis of one element stays behind the one before it.
    let mut step = isize::MAX;
    let steps = tensor.shape.dims().iter().zip(raw.layout().strides()).map(|(&size, &stride)| {
        step = if size == 1 { step } else { stride };
        step
    });
    let steps: SmallVec<[isize; 6]> = steps.collect();
    let mut axes: Axes = (0..steps.len()).collect();
    axes.sort_by_key(|&axis| Reverse(steps[axis]));
    lies(value, &axes).then_some(axes)
}

/// The axes that undo a permutation.
pub(super) fn inverse(axes: &[usize]) -> Axes {
    let mut back: Axes = axes.into();
    axes.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    back
}

/// A view with its axes in another order, of a value that [`is_here`].
///
/// # Errors
/// As [`taken`].
pub(super) fn permuted(value: Value, axes: &[usize]) -> Result<Value> {
    match value {
        Value::Host(tensor) => {
            let shape: Shape = axes.iter().map(|&axis| tensor.dims()[axis]).collect();
            if axes.iter().filter(|&&axis| tensor.dims()[axis] != 1).is_sorted() {
                return Ok(Value::Host(tensor.reshaped(shape)?));
            }
            let (shape, data) = tensor.into_parts();
            match data {
                Data::F32(elements) => permuted(made(&shape, elements), axes),
                _ => unreachable!("other dtypes are not moved here"),
            }
        }
        Value::Device(DeviceTensor { dtype, shape, memory }) => match taken(memory)? {
            (Memory::Flex(raw), home) => Ok(Array::<burn_flex::Flex> { raw, dtype, shape, home }.permute(axes).value()),
            #[cfg(any(feature = "ndarray", feature = "wgpu"))]
            _ => unreachable!("tensors of other engines are not moved here"),
        },
    }
}

/// The same elements under another shape of equal size, of a value that [`is_here`].
///
/// # Errors
/// As [`Array::reshape`].
pub(super) fn reshaped(value: Value, to: Shape) -> Result<Value> {
    match value {
        Value::Host(tensor) => Ok(Value::Host(tensor.reshaped(to)?)),
        Value::Device(DeviceTensor { dtype, shape, memory }) => match taken(memory)? {
            (Memory::Flex(raw), home) => Ok(Array::<burn_flex::Flex> { raw, dtype, shape, home }.reshape(to)?.value()),
            #[cfg(any(feature = "ndarray", feature = "wgpu"))]
            _ => unreachable!("tensors of other engines are not moved here"),
        },
    }
}

/// A kernel of functions of single elements, with broadcasting, in the order in which the largest of its inputs lies in memory.
pub(super) fn as_stored(mut kernel: Direct) -> Direct {
    Box::new(move |inputs| {
        let Some(axes) = order_of(&inputs) else { return kernel(inputs) };
        let shapes: SmallVec<[Shape; 4]> = inputs.iter().map(|input| input.shape().clone()).collect();
        let enter = |input: Value| {
            let missing = axes.len() - input.rank();
            let lifted = std::iter::repeat_n(1, missing).chain(input.shape().dims().iter().copied()).collect();
            in_order(permuted(reshaped(input, lifted)?, &axes)?)
        };
        let back = inverse(&axes);
        match kernel(inputs.into_iter().map(enter).collect::<Result<_>>()?)? {
            EngineOutcome::Done(values) => {
                let leave = |value| permuted(value, &back);
                Ok(EngineOutcome::Done(values.into_iter().map(leave).collect::<Result<_>>()?))
            }
            EngineOutcome::Declined(inputs) => {
                let leave = |(value, shape)| reshaped(permuted(value, &back)?, shape);
                Ok(EngineOutcome::Declined(inputs.into_iter().zip(shapes).map(leave).collect::<Result<_>>()?))
            }
        }
    })
}

/// The order of the largest input, if it is not the tensor's own.
fn order_of(inputs: &Values) -> Option<Axes> {
    let rank = inputs.iter().map(Value::rank).max()?;
    let of_rank = || inputs.iter().filter(|input| input.rank() == rank);
    let most = of_rank().map(Value::len).max()?;
    let axes = of_rank().filter(|input| input.len() == most).find_map(stored)?;
    inputs.iter().all(is_here).then_some(axes)
}

#[cfg(test)]
mod tests {
    use meshtf_graph::{Attr, Attrs, OutputType};
    use meshtf_kernels::{KernelNode, compile};
    use meshtf_tensor::Tensor;

    use super::super::BurnEngine;
    use super::*;
    use crate::Engine;

    fn whole(dims: &[usize], seed: usize) -> Tensor {
        let count = dims.iter().product();
        Tensor::from_vec(dims, (0..count).map(|i| ((i * 7919 + seed) % 17) as f32 - 8.0).collect::<Vec<f32>>())
    }

    /// The same tensor, stored in the order of these axes.
    fn view(tensor: &Tensor, axes: &[usize]) -> Value {
        let stored = in_order(permuted(Value::Host(tensor.clone()), axes).unwrap()).unwrap();
        permuted(stored, &inverse(axes)).unwrap()
    }

    #[test]
    fn the_order_of_a_view_is_found() {
        for (dims, axes) in [
            (&[3usize, 8, 9, 10][..], &[0usize, 2, 3, 1][..]),
            (&[1, 40, 5, 6], &[0, 2, 3, 1]),
            (&[10, 11, 12], &[2, 1, 0]),
            (&[30, 40], &[1, 0]),
            (&[2, 100, 1, 6], &[0, 2, 3, 1]),
        ] {
            let tensor = whole(dims, 1);
            let view = view(&tensor, axes);
            let found = stored(&view).expect("it is a view");
            assert!(lies(&view, axes) && lies(&view, &found), "{dims:?}, {axes:?}: {found:?}");
            assert_eq!(view.into_host().unwrap(), tensor);
        }
        let plain = Value::Host(whole(&[30, 40], 1));
        assert!(stored(&plain).is_none());
        // Every other column does not fill the memory.
        let value = permuted(Value::Host(whole(&[30, 40], 1)), &[1, 0]).unwrap();
        let Value::Device(DeviceTensor { memory, .. }) = value else { panic!("it was moved") };
        let Some(Memory::Flex(raw)) = memory.as_ref().clone() else { panic!("it is flex's") };
        let part =
            Array::<burn_flex::Flex> { raw, dtype: DType::F32, shape: [40, 30].into(), home: Default::default() };
        assert!(stored(&part.narrow(0, 0, 7).value()).is_none());
    }

    #[test]
    fn functions_of_elements_answer_alike_however_their_inputs_are_stored() {
        let engine = BurnEngine::<burn_flex::Flex>::new("flex", Default::default());
        let (whole_shape, last) = (&[2usize, 30, 5, 6][..], &[0usize, 2, 3, 1][..]);
        let (image, other) = (whole(whole_shape, 1), whole(whole_shape, 5));
        let of_channel = whole(&[30, 1, 1], 9);
        let outputs = [OutputType { dtype: DType::F32, is_ref: false }];
        let host = |tensor: &Tensor| Value::Host(tensor.clone());
        type Given<'a> = (&'a str, Vec<(Tensor, Value)>);
        let of_axes = |axes: &[i32]| (Tensor::vector(axes.to_vec()), host(&Tensor::vector(axes.to_vec())));
        let viewed = || (image.clone(), view(&image, last));
        let cases: Vec<Given> = vec![
            ("Relu", vec![viewed()]),
            ("Neg", vec![viewed()]),
            ("Sub", vec![viewed(), (other.clone(), view(&other, last))]),
            ("Sub", vec![viewed(), (other.clone(), host(&other))]),
            ("Sub", vec![(other.clone(), host(&other)), viewed()]),
            ("Sub", vec![viewed(), (other.clone(), view(&other, &[3, 2, 1, 0]))]),
            ("Sub", vec![viewed(), (of_channel.clone(), host(&of_channel))]),
            ("Sub", vec![(of_channel.clone(), host(&of_channel)), viewed()]),
            ("Mul", vec![viewed(), (Tensor::scalar(3f32), host(&Tensor::scalar(3f32)))]),
            ("Pow", vec![viewed(), (Tensor::scalar(2f32), host(&Tensor::scalar(2f32)))]),
            ("AddN", vec![viewed(), (other.clone(), host(&other)), viewed()]),
            ("Sum", vec![viewed(), of_axes(&[2, 3])]),
            ("Sum", vec![viewed(), of_axes(&[1])]),
            ("Sum", vec![viewed(), of_axes(&[0, 1])]),
            ("Max", vec![viewed(), of_axes(&[2])]),
        ];
        for (op, given) in cases {
            let dtypes: Vec<DType> = given.iter().map(|(tensor, _)| tensor.dtype()).collect();
            for keep_dims in [false, true] {
                let mut attrs = Attrs::default();
                attrs.set("T", Attr::Type(DType::F32));
                attrs.set("Tidx", Attr::Type(DType::I32));
                attrs.set("N", Attr::Int(given.len() as i64));
                attrs.set("keep_dims", Attr::Bool(keep_dims));
                let node =
                    KernelNode { name: "node", op, attrs: &attrs, inputs: &dtypes, outputs: &outputs, constants: 0 };
                let inputs = given.iter().map(|(tensor, _)| tensor.clone()).collect();
                let want = compile(&node).unwrap().unwrap()(inputs).unwrap().remove(0);
                let mut kernel = engine.compile(&node).unwrap().unwrap();
                let views = given.iter().map(|(_, value)| value.clone()).collect();
                let EngineOutcome::Done(mut got) = (kernel.run)(views).unwrap() else { panic!("{op} was declined") };
                assert_eq!(got.remove(0).into_host().unwrap(), want, "{op}, {keep_dims}");
            }
        }
    }
}
