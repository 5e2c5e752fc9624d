//! The choice of a narrower range for the sums of products, and the change to one.

use meshtf_loops::turn::{blocks, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};
use smallvec::smallvec;

use super::super::call::{output_dtype, take};
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::scale::{Range, between, down, least};
use super::{Channels, is_of, one, range, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizeDownAndShrinkRange", |node| {
        kernel(node, &[DType::QI32], DType::QU8, |inputs| {
            let [x, min, max] = take(inputs)?;
            let own = range(&min, &max, ["input_min", "input_max"])?;
            let found = found(&x, own)?;
            requantized(&x, own, found)
        })
    });
    ops.insert("RequantizationRange", |node| {
        kernel(node, &[DType::QI32], DType::F32, |inputs| {
            let [x, min, max] = take(inputs)?;
            let found = found(&x, range(&min, &max, ["input_min", "input_max"])?)?;
            Ok(smallvec![Tensor::scalar(found.min), Tensor::scalar(found.max)])
        })
    });
    ops.insert("Requantize", |node| {
        let to = output_dtype(node, 0)?;
        if !matches!(to, DType::QI8 | DType::QU8) {
            return Ok(None);
        }
        kernel(node, &[DType::QI32], to, move |inputs| {
            let [x, min, max, new_min, new_max] = take(inputs)?;
            let (own, new) = (
                range(&min, &max, ["input_min", "input_max"])?,
                range(&new_min, &new_max, ["requested_output_min", "requested_output_max"])?,
            );
            if new.min > 0.0 {
                return Err(Failure::invalid(format!("requested_output_min must be <= 0, but got {}", new.min)));
            }
            if new.max < new.min {
                let why = format!(
                    "requested_output_max must be >= requested_output_min, but got {} and {}",
                    new.max, new.min
                );
                return Err(Failure::invalid(why));
            }
            if to == DType::QU8 {
                return requantized(&x, own, new);
            }
            x.shape().checked_elements(to)?;
            let one = between::<i32, i8>(own, new);
            let numbers = Channels::along(None, x.dims()).mapped(x.stored::<i32>()?, |_, x| one(x));
            Ok(with_range(Tensor::from_stored(to, x.shape().clone(), numbers), new))
        })
    });
    ops.insert("RequantizationRangePerChannel", |node| {
        let most = node.attrs.float("clip_value_max")?;
        kernel(node, &[DType::QI32], DType::F32, move |inputs| {
            let [x, min, max] = take(inputs)?;
            let found = found_in_channels(&x, &min, &max, most)?;
            Ok(smallvec![Tensor::scalar(found.min), Tensor::scalar(found.max)])
        })
    });
    ops.insert("RequantizePerChannel", |node| {
        let to = output_dtype(node, 0)?;
        if !matches!(to, DType::QI8 | DType::QU8) {
            return Ok(None);
        }
        kernel(node, &[DType::QI32], to, move |inputs| {
            let [x, mins, maxs, min, max] = take(inputs)?;
            let new = Range { min: one(&min, "requested_output_min")?, max: one(&max, "requested_output_max")? };
            requantized_in_channels(&x, &mins, &maxs, new, to)
        })
    });
}

/// The kernel of a node of these dtypes; none for others, as in TensorFlow.
fn kernel(
    node: &KernelNode,
    inputs: &[DType],
    output: DType,
    kernel: impl FnMut(super::super::Inputs) -> Result<Outputs> + Send + 'static,
) -> Result<Option<HostKernel>> {
    Ok(is_of(node, inputs, output).then(|| Box::new(kernel) as HostKernel))
}

/// The range that the numbers take. It reaches down to 0, so that 0 is one of its integers.
fn found(x: &Tensor, range: Range) -> Result<Range> {
    let (mut lowest, mut highest) = (i32::MAX, i32::MIN);
    for block in blocks(x.stored::<i32>()?) {
        for &x in block {
            (lowest, highest) = (lowest.min(x), highest.max(x));
        }
    }
    Ok(Range { min: least(0.0, range.real(lowest)), max: range.real(highest) })
}

fn requantized(x: &Tensor, own: Range, new: Range) -> Result<Outputs> {
    x.shape().checked_elements(DType::QU8)?;
    let (channels, new_one) = (Channels::along(None, x.dims()), down(own, new));
    let numbers = channels.mapped(x.stored::<i32>()?, |_, x| new_one(x));
    Ok(with_range(Tensor::from_stored(DType::QU8, x.shape().clone(), numbers), new))
}

/// The channels in the last dimension, of which each has a range.
fn last(x: &Tensor, mins: &Tensor, maxs: &Tensor) -> Result<Channels> {
    let Some(axis) = x.rank().checked_sub(1) else { return Err(Failure::invalid("input must have channels")) };
    let channels = Channels::along(Some(axis), x.dims());
    for (name, ends) in [("input_min", mins), ("input_max", maxs)] {
        if ends.len() != channels.depth {
            let why = format!("{name} has incorrect size, expected {} was {}", channels.depth, ends.len());
            return Err(Failure::invalid(why));
        }
    }
    Ok(channels)
}

/// The greatest magnitude of each channel's range.
fn magnitudes(mins: &Tensor, maxs: &Tensor) -> Result<Vec<f32>> {
    let ends = mins.slice::<f32>()?.iter().zip(maxs.slice::<f32>()?);
    Ok(ends.map(|(min, max)| min.abs().max(max.abs())).collect())
}

/// The range that the numbers of all channels take, up to `most`: symmetric, or from 0 if none is negative.
fn found_in_channels(x: &Tensor, mins: &Tensor, maxs: &Tensor, most: f32) -> Result<Range> {
    if x.is_empty() {
        return Err(Failure::invalid("input must not be empty"));
    }
    if x.rank() != 4 {
        return Err(Failure::invalid(format!("input must be in NHWC format, but got shape {}", x.shape())));
    }
    let channels = last(x, mins, maxs)?;
    let mut greatest = vec![0u32; channels.depth];
    let mut is_negative = false;
    for row in paced(x.stored::<i32>()?.chunks(channels.depth), channels.depth) {
        for (greatest, &x) in greatest.iter_mut().zip(row) {
            *greatest = (*greatest).max(x.unsigned_abs());
            is_negative |= x < 0;
        }
    }
    let ends = magnitudes(mins, maxs)?.into_iter().zip(greatest);
    let max = ends.map(|(end, greatest)| end * greatest as f32 / 2f32.powi(31)).fold(f32::MIN_POSITIVE, f32::max);
    let max = if max > most { most } else { max };
    Ok(Range { min: if is_negative { -max } else { 0.0 }, max })
}

fn requantized_in_channels(x: &Tensor, mins: &Tensor, maxs: &Tensor, new: Range, to: DType) -> Result<Outputs> {
    let channels = last(x, mins, maxs)?;
    if !matches!(x.rank(), 4 | 5) {
        return Err(Failure::invalid(format!("input must be of rank 4 or 5, but got shape {}", x.shape())));
    }
    if to == DType::QI8 && new.min >= 0.0 {
        let why = format!("If out_type is qint8, requested_output_min must be negative, got {}", new.min);
        return Err(Failure::invalid(why));
    }
    x.shape().checked_elements(to)?;
    let factor = if to == DType::QI8 { 127.0 } else { 255.0 };
    let widest = new.min.abs().max(new.max.abs());
    let scales: Vec<f32> =
        magnitudes(mins, maxs)?.into_iter().map(|end| factor * (end / widest / 2f32.powi(31))).collect();
    let elements = x.stored::<i32>()?;
    let whole = |i: usize, x: i32| (x as f32 * scales[i]).round_ties_even();
    let numbers = match to {
        DType::QI8 => Tensor::from_stored(to, x.shape().clone(), channels.mapped(elements, |i, x| whole(i, x) as i8)),
        _ => Tensor::from_stored(to, x.shape().clone(), channels.mapped(elements, |i, x| whole(i, x) as u8)),
    };
    Ok(with_range(numbers, new))
}
