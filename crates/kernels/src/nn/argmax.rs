//! MaxPoolWithArgmax and its gradient: the largest element under each window, and its index in the image.

use meshtf_loops::chunks::{chunk, in_chunks};
use meshtf_loops::turn::{BLOCK, look};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Integer, Numeric, Shape, Tensor, with_number};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, output_dtype, take};
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::pool::{PoolAttrs, Windows};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("MaxPoolWithArgmax", |node| kernel(node, false));
    ops.insert("MaxPoolGradWithArgmax", |node| kernel(node, true));
}

fn kernel(node: &KernelNode, is_gradient: bool) -> Result<Option<HostKernel>> {
    let (pool, over_channels) = PoolAttrs::of(node, 2)?;
    if over_channels.is_some() {
        let message = "a maximum with its index is not taken over channels: ksize and strides must be 1 there";
        return Err(Failure::new(Code::Unimplemented, message));
    }
    let in_batch = node.attrs.bool("include_batch_in_index")?;
    let (dtype, index) =
        (input_dtype(node, 0)?, if is_gradient { input_dtype(node, 2)? } else { output_dtype(node, 1)? });
    let kernel: Option<HostKernel> = with_number!(dtype, T => match (is_gradient, index) {
        (false, DType::I32) => with_indices(move |input| largest::<T, i32>(&pool, in_batch, input)),
        (false, _) => with_indices(move |input| largest::<T, i64>(&pool, in_batch, input)),
        (true, DType::I32) => call(move |[input, gradient, indices]| {
            gradient_of::<T, i32>(&pool, in_batch, input.shape(), &gradient, &indices)
        }),
        (true, _) => call(move |[input, gradient, indices]| {
            gradient_of::<T, i64>(&pool, in_batch, input.shape(), &gradient, &indices)
        }),
    });
    Ok(kernel)
}

fn with_indices(f: impl Fn(&Tensor) -> Result<Outputs> + Send + 'static) -> HostKernel {
    Box::new(move |inputs| {
        let [input] = take(inputs)?;
        f(&input)
    })
}

/// The first of the largest elements under each window, and its index in the image or, with `in_batch`, in the batch. A NaN
/// is the largest if it comes first.
fn largest<T: Numeric, I: Integer>(pool: &PoolAttrs, in_batch: bool, input: &Tensor) -> Result<Outputs> {
    let windows = pool.over(input.shape())?;
    if input.is_empty() {
        return Err(Failure::invalid(format!("tensor_in must not be empty, got shape {}", input.shape())));
    }
    let indexed = if in_batch { input.len() } else { input.len() / windows.batch };
    if I::from_i64(indexed as i64 - 1).to_i64() != indexed as i64 - 1 {
        return Err(Failure::invalid(format!(
            "the indices of {indexed} elements do not fit {}: Targmax must be int64",
            I::DTYPE
        )));
    }
    let shape = windows.output_shape(2);
    let mut values = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let mut indices = vec![I::ZERO; shape.checked_elements(I::DTYPE)?];
    let from = input.slice::<T>()?;
    // The constant is the overhead of a window, even of a small one.
    let chunk = chunk(windows.largest() * windows.channels + 8);
    let chunks = values.chunks_mut(chunk * windows.channels).zip(indices.chunks_mut(chunk * windows.channels));
    in_chunks(chunks.enumerate(), |(i, (values, indices))| {
        largest_from(&windows, in_batch, from, i * chunk, values, indices);
    });
    Ok(smallvec![Tensor::from_vec(shape.clone(), values), Tensor::from_vec(shape, indices)])
}

/// As [`largest`], for the windows from `first` on.
fn largest_from<T: Numeric, I: Integer>(
    windows: &Windows,
    in_batch: bool,
    from: &[T],
    first: usize,
    values: &mut [T],
    indices: &mut [I],
) {
    let ([_, h, w], channels) = (&windows.axes, windows.channels);
    let [mut image, mut y, mut x] = [first / w.output / h.output, first / w.output % h.output, first % w.output];
    for (values, indices) in values.chunks_exact_mut(channels).zip(indices.chunks_exact_mut(channels)) {
        let mut is_first = true;
        for row in h.under(y) {
            for column in w.under(x) {
                let own = row * w.input + column;
                let in_all = image * h.input * w.input + own;
                let index = I::from_i64((if in_batch { in_all } else { own } * channels) as i64);
                let from = &from[in_all * channels..][..channels];
                if std::mem::take(&mut is_first) {
                    values.copy_from_slice(from);
                    indices.fill(index);
                    continue;
                }
                // Both are assigned in either case, so that the loop has no branch.
                for ((max, at), &value) in values.iter_mut().zip(indices.iter_mut()).zip(from) {
                    let is_larger = value > *max;
                    *max = if is_larger { value } else { *max };
                    *at = if is_larger { index } else { *at };
                }
            }
        }
        for (index, channel) in indices.iter_mut().zip(0..) {
            *index = I::add(*index, I::from_i64(channel));
        }
        x += 1;
        if x == w.output {
            (x, y) = (0, y + 1);
        }
        if y == h.output {
            (y, image) = (0, image + 1);
        }
    }
}

/// The gradient of each window goes to the element that its index names.
fn gradient_of<T: Numeric, I: Integer>(
    pool: &PoolAttrs,
    in_batch: bool,
    input: &Shape,
    gradient: &Tensor,
    indices: &Tensor,
) -> Result<Tensor> {
    let windows = pool.over(input)?;
    pool.check(&windows, "grad", gradient.shape())?;
    pool.check(&windows, "argmax", indices.shape())?;
    let mut back = vec![T::ZERO; input.checked_elements(T::DTYPE)?];
    if gradient.is_empty() {
        return Ok(Tensor::from_vec(input.clone(), back));
    }
    let parts = if in_batch { 1 } else { windows.batch };
    let (size, each) = (back.len() / parts, gradient.len() / parts);
    let given = gradient.slice::<T>()?.chunks_exact(each).zip(indices.slice::<I>()?.chunks_exact(each));
    for (back, (gradient, indices)) in back.chunks_exact_mut(size).zip(given) {
        for (gradient, indices) in gradient.chunks(BLOCK).zip(indices.chunks(BLOCK)) {
            look();
            for (&gradient, index) in gradient.iter().zip(indices) {
                // A negative index becomes one that is out of range.
                let Some(sum) = back.get_mut(index.to_i64() as usize) else {
                    let what = if in_batch { "batch" } else { "image" };
                    return Err(Failure::invalid(format!(
                        "argmax must be in [0, {size}), the elements of the {what}, but it has {}",
                        index.to_i64()
                    )));
                };
                *sum = T::add(*sum, gradient);
            }
        }
    }
    Ok(Tensor::from_vec(input.clone(), back))
}
