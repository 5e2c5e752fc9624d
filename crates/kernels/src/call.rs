//! Helpers for kernels: unpacking inputs, resolving axes, rejecting dtypes.
//!
//! This module does not compute on elements.

use meshtf_loops::turn;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Data, MAX_TEXT_BYTES, Shape, Tensor, with_moved};

use super::{HostKernel, Inputs, KernelNode, Outputs};

/// The inputs by name: `let [x, y] = take(inputs)?`.
///
/// # Errors
/// Internal if there are not exactly `N`. The graph has checked the count, so only a bug in the caller causes this error.
pub fn take<const N: usize>(inputs: Inputs) -> Result<[Tensor; N]> {
    if inputs.len() != N {
        return Err(Failure::new(Code::Internal, format!("the kernel takes {N} inputs, got {}", inputs.len())));
    }
    let mut inputs = inputs.into_iter();
    Ok(std::array::from_fn(|_| inputs.next().expect("counted above")))
}

/// The outputs of a kernel with a single output.
#[inline]
pub fn one(output: Tensor) -> Outputs {
    smallvec::smallvec![output]
}

/// A kernel of `N` inputs and one output.
pub fn kernel<const N: usize>(f: impl FnMut([Tensor; N]) -> Result<Tensor> + Send + 'static) -> HostKernel {
    let mut f = f;
    Box::new(move |inputs| f(take(inputs)?).map(one))
}

/// The failure of a kernel family for one of its ops that has no kernel for these dtypes.
///
/// # Errors
/// Always InvalidArgument, as in TensorFlow.
pub fn no_kernel<T>(node: &KernelNode) -> Result<T> {
    let names: Vec<&str> = node.inputs.iter().map(|dtype| dtype.name()).collect();
    let others = node.outputs.iter().map(|output| output.dtype).filter(|dtype| !node.inputs.contains(dtype));
    let others: Vec<&str> = others.map(|dtype| dtype.name()).collect();
    let outputs = if others.is_empty() { String::new() } else { format!(" and outputs of {}", others.join(", ")) };
    Err(Failure::invalid(format!(
        "No OpKernel was registered to support Op '{}' with inputs of {}{outputs} on a CPU",
        node.op,
        names.join(", ")
    )))
}

/// The dtype of input `index`.
///
/// # Errors
/// Internal if the node has no such input.
pub fn input_dtype(node: &KernelNode, index: usize) -> Result<DType> {
    node.inputs
        .get(index)
        .copied()
        .ok_or_else(|| Failure::new(Code::Internal, format!("{} has no input {index}", node.op)))
}

/// The dtype of output `index`. Errors as [`input_dtype`].
pub fn output_dtype(node: &KernelNode, index: usize) -> Result<DType> {
    node.outputs
        .get(index)
        .map(|output| output.dtype)
        .ok_or_else(|| Failure::new(Code::Internal, format!("{} has no output {index}", node.op)))
}

/// The index of an axis, which counts from the end if it is negative.
///
/// # Errors
/// InvalidArgument if `rank` dimensions have no such axis.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let signed_rank = rank as i64;
    if (-signed_rank..signed_rank).contains(&axis) {
        Ok(if axis < 0 { axis + signed_rank } else { axis } as usize)
    } else {
        Err(Failure::invalid(format!(
            "axis {axis} is out of range [{}, {rank}) for a tensor of rank {rank}",
            -signed_rank
        )))
    }
}

/// A non-negative int32 or int64 scalar.
///
/// # Errors
/// InvalidArgument if it is negative or not such a scalar; `what` names it in the message.
pub fn size(tensor: &Tensor, what: &str) -> Result<usize> {
    if tensor.rank() > 0 && tensor.len() != 1 {
        return Err(Failure::invalid(format!("{what} must be a scalar, got shape {}", tensor.shape())));
    }
    let value = tensor.to_i64()?;
    usize::try_from(value).map_err(|_| Failure::invalid(format!("{what} must not be negative, got {value}")))
}

/// The ints of a rank-1 tensor; with `or_scalar`, a scalar counts as one, as TensorFlow allows for some inputs.
///
/// # Errors
/// InvalidArgument if it has another rank or dtype.
pub fn vector(tensor: &Tensor, what: &str, or_scalar: bool) -> Result<Vec<i64>> {
    if tensor.rank() == 1 || (or_scalar && tensor.rank() == 0) {
        tensor.to_i64s()
    } else {
        Err(Failure::invalid(format!("{what} must be 1-D, got shape {}", tensor.shape())))
    }
}

/// The product of some sizes. It saturates; the caller's shape check rejects a total that is too large.
#[inline]
pub fn product(dims: &[usize]) -> usize {
    dims.iter().fold(1usize, |n, &d| n.saturating_mul(d))
}

/// Admits strings of `bytes` bytes in total.
///
/// # Errors
/// ResourceExhausted if that exceeds [`MAX_TEXT_BYTES`], or the memory budget.
pub fn check_text_bytes(bytes: usize) -> Result<()> {
    if bytes <= MAX_TEXT_BYTES {
        return memory::admit(bytes);
    }
    let message = format!("strings of {bytes} bytes exceed the limit of {MAX_TEXT_BYTES} bytes per tensor of strings");
    Err(Failure::new(Code::ResourceExhausted, message))
}

/// Admits `count` copies of the longest of some strings. The memory of elements other than strings is admitted with their
/// tensor.
///
/// # Errors
/// As [`check_text_bytes`].
pub fn check_copies(of: &Tensor, count: usize) -> Result<()> {
    match of.data() {
        Data::String(strings) => {
            check_text_bytes(strings.iter().map(Vec::len).max().unwrap_or(0).saturating_mul(count))
        }
        _ => Ok(()),
    }
}

/// The tensor, not shared and ready for writing; a copy if its elements are shared.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for the copy.
pub fn owned(tensor: Tensor) -> Result<Tensor> {
    tensor.admit_writing()?;
    if tensor.is_unique() || tensor.len() <= turn::ELEMENTS {
        return Ok(tensor);
    }
    let copied = with_moved!(tensor.dtype(), T => {
        Ok(Tensor::from_moved(tensor.dtype(), tensor.shape().clone(), turn::copied(tensor.moved::<T>()?)))
    });
    copied.unwrap_or(Ok(tensor))
}

/// Sizes as int32 or int64 elements, as `dtype` specifies.
///
/// # Errors
/// InvalidArgument if one does not fit int32.
pub fn ints(dtype: DType, shape: impl Into<Shape>, values: &[usize]) -> Result<Tensor> {
    let data = match dtype {
        DType::I64 => Data::I64(values.iter().map(|&n| n as i64).collect()),
        _ => Data::I32(
            values
                .iter()
                .map(|&n| i32::try_from(n).map_err(|_| Failure::invalid(format!("{n} does not fit int32"))))
                .collect::<Result<_>>()?,
        ),
    };
    Tensor::new(shape, data)
}

/// `[0,1]`: the position of element `index` in a tensor of these dimensions; empty for a scalar.
pub fn place(mut index: usize, dims: &[usize]) -> String {
    if dims.is_empty() {
        return String::new();
    }
    let mut at: Vec<String> = dims
        .iter()
        .rev()
        .map(|&size| {
            let own = index % size.max(1);
            index /= size.max(1);
            own.to_string()
        })
        .collect();
    at.reverse();
    format!("[{}]", at.join(","))
}
