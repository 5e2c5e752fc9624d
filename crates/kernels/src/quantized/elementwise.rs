//! Sums, products, biases and activations of quantised numbers; their shapes, and several tensors as one.

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Stored, Tensor, with_type};

use super::super::call::{input_dtype, output_dtype, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry, array};
use super::scale::{FromReal, Range, ToReal, between, least, most};
use super::{Channels, is_of, one, range, wide_range, with_range};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("QuantizedAdd", |node| of_bytes(node, add));
    ops.insert("QuantizedMul", |node| of_bytes(node, multiply));
    ops.insert("QuantizedBiasAdd", |node| {
        let dtype = input_dtype(node, 0)?;
        let is_held = matches!(dtype, DType::QI8 | DType::QU8) && is_of(node, &[dtype, dtype], DType::QI32);
        Ok(is_held.then(|| match dtype {
            DType::QI8 => Box::new(add_bias::<i8>) as HostKernel,
            _ => Box::new(add_bias::<u8>) as HostKernel,
        }))
    });
    ops.insert("QuantizedRelu", |node| clamped(node, None));
    ops.insert("QuantizedRelu6", |node| clamped(node, Some(6.0)));
    ops.insert("QuantizedReshape", |node| {
        let is_held = matches!(input_dtype(node, 0)?, DType::QU8 | DType::QI32);
        Ok(is_held.then(|| Box::new(reshape) as HostKernel))
    });
    ops.insert("QuantizedConcat", |node| {
        let dtype = output_dtype(node, 0)?;
        let count = node.attrs.int("N")?;
        let count =
            usize::try_from(count).map_err(|_| Failure::invalid(format!("N must not be negative, got {count}")))?;
        Ok(with_type!(dtype, T => {
            Box::new(move |inputs| concat::<T>(dtype, inputs, count)) as HostKernel
        }; QU8 u8, QI32 i32))
    });
}

fn reshape(inputs: Inputs) -> Result<Outputs> {
    let [x, shape, min, max] = take(inputs)?;
    let range = Range { min: one(&min, "input_min")?, max: one(&max, "input_max")? };
    Ok(with_range(array::reshape(x, &shape)?, range))
}

fn of_bytes(node: &KernelNode, kernel: fn(Inputs) -> Result<Outputs>) -> Result<Option<HostKernel>> {
    Ok(is_of(node, &[DType::QU8, DType::QU8], DType::QI32).then(|| Box::new(kernel) as HostKernel))
}

/// Two operands of which one may be repeated.
enum Pair {
    /// The first is a single number.
    First,
    /// The second is a single number.
    Second,
    /// As many numbers in both.
    Alike,
    /// The first is repeated along the outer dimensions.
    FirstRepeated,
    /// The second is repeated along the outer dimensions.
    SecondRepeated,
}

/// The shape of a result, and the relation of the operands' shapes. Others that broadcast are not supported, as in TensorFlow.
fn paired(x: &Tensor, y: &Tensor) -> Result<(Shape, Pair)> {
    fn bare(dims: &[usize]) -> &[usize] {
        let ones = dims.iter().take_while(|&&size| size == 1).count();
        &dims[ones..]
    }
    let shape = x.shape().broadcast(y.shape())?;
    let (of_x, of_y) = (bare(x.dims()), bare(y.dims()));
    let pair = if x.len() == 1 {
        Pair::First
    } else if y.len() == 1 {
        Pair::Second
    } else if of_x == of_y {
        Pair::Alike
    } else if x.len() < y.len() && of_y.ends_with(of_x) {
        Pair::FirstRepeated
    } else if y.len() < x.len() && of_x.ends_with(of_y) {
        Pair::SecondRepeated
    } else {
        let why = format!("Broadcast between {} and {} is not supported yet.", x.shape(), y.shape());
        return Err(Failure::new(Code::Unimplemented, why));
    };
    Ok((shape, pair))
}

/// Applies `f` to each pair of numbers.
fn zipped(x: &[u8], y: &[u8], pair: &Pair, f: impl Fn(u8, u8) -> i32) -> Vec<i32> {
    let row = match pair {
        Pair::First | Pair::SecondRepeated => y.len(),
        Pair::Second | Pair::FirstRepeated => x.len(),
        Pair::Alike => x.len().max(1),
    };
    match pair {
        Pair::First => Channels { depth: 1, inner: row }.mapped(y, |_, y| f(x[0], y)),
        Pair::Second => Channels { depth: 1, inner: row }.mapped(x, |_, x| f(x, y[0])),
        // Each number of a row is a channel.
        Pair::Alike | Pair::SecondRepeated => Channels { depth: row, inner: 1 }.mapped(x, |i, x| f(x, y[i])),
        Pair::FirstRepeated => Channels { depth: row, inner: 1 }.mapped(y, |i, y| f(x[i], y)),
    }
}

fn add(inputs: Inputs) -> Result<Outputs> {
    let [x, y, min_x, max_x, min_y, max_y] = take(inputs)?;
    let (shape, pair) = paired(&x, &y)?;
    let (of_x, of_y) =
        (wide_range(&min_x, &max_x, ["min_x", "max_x"])?, wide_range(&min_y, &max_y, ["min_y", "max_y"])?);
    shape.checked_elements(DType::QI32)?;
    // Symmetric, so that the integer of 0 is 0.
    let widest = most(least(of_x.min, of_y.min).abs(), most(of_x.max, of_y.max).abs()) * (1 << 14) as f32;
    let total = Range { min: -widest, max: widest };
    // The integers of 0, and of the others by even steps; but a single number has its own.
    let line = |of: Range| {
        let [first, second] = [0u8, 1].map(|x| total.whole::<i32>(of.real(x)));
        let step = second.wrapping_sub(first) as i32;
        move |x: u8| {
            let whole = first.wrapping_add(i64::from(x) * i64::from(step));
            whole.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
        }
    };
    let (x_in_total, y_in_total) = (line(of_x), line(of_y));
    let (all_x, all_y) = (x.stored::<u8>()?, y.stored::<u8>()?);
    let sums = match pair {
        Pair::First => {
            let one: i32 = of_x.requantized(all_x[0], total);
            zipped(all_x, all_y, &pair, |_, y| y_in_total(y).wrapping_add(one))
        }
        Pair::Second => {
            let one: i32 = of_y.requantized(all_y[0], total);
            zipped(all_x, all_y, &pair, |x, _| x_in_total(x).wrapping_add(one))
        }
        _ => zipped(all_x, all_y, &pair, |x, y| x_in_total(x).wrapping_add(y_in_total(y))),
    };
    Ok(with_range(Tensor::from_stored(DType::QI32, shape, sums), total))
}

fn multiply(inputs: Inputs) -> Result<Outputs> {
    let [x, y, min_x, max_x, min_y, max_y] = take(inputs)?;
    let (shape, pair) = paired(&x, &y)?;
    let (of_x, of_y) =
        (wide_range(&min_x, &max_x, ["min_x", "max_x"])?, wide_range(&min_y, &max_y, ["min_y", "max_y"])?);
    shape.checked_elements(DType::QI32)?;
    let (zero_x, zero_y) = (of_x.zero::<u8>(), of_y.zero::<u8>());
    let products = zipped(x.stored::<u8>()?, y.stored::<u8>()?, &pair, |x, y| {
        i32::from(x).wrapping_sub(zero_x).wrapping_mul(i32::from(y).wrapping_sub(zero_y))
    });
    let range = Range::of_product::<u8, u8, i32>(of_x, of_y);
    Ok(with_range(Tensor::from_stored(DType::QI32, shape, products), range))
}

fn add_bias<T: Stored>(inputs: Inputs) -> Result<Outputs> {
    let [x, bias, min_x, max_x, min_bias, max_bias] = take(inputs)?;
    let (of_x, of_bias) =
        (range(&min_x, &max_x, ["min_input", "max_input"])?, range(&min_bias, &max_bias, ["min_bias", "max_bias"])?);
    let Some(&last) = x.dims().last().filter(|_| x.rank() > 1) else {
        return Err(Failure::invalid(format!("Input tensor must be at least 2D: {}", x.shape())));
    };
    if bias.dims() != [last] {
        return Err(Failure::invalid(format!(
            "Must provide as many biases as the last dimension of the input tensor, in a vector: {} vs. {}",
            bias.shape(),
            x.shape()
        )));
    }
    x.shape().checked_elements(DType::QI32)?;
    let max = most(of_x.max, most(-of_x.min, most(of_bias.max, -of_bias.min))) * (1 << 17) as f32;
    let total = Range { min: -max, max };
    let zero: i32 = total.quantized(0.0);
    let bias: Vec<i32> =
        bias.stored::<T>()?.iter().map(|&x| between::<T, i32>(of_bias, total)(x).wrapping_add(zero)).collect();
    let (real, whole) = (ToReal::new::<T>(of_x), FromReal::<i32>::new(total));
    let channels = Channels { depth: last, inner: 1 };
    let sums = channels.mapped(x.stored::<T>()?, |i, x| whole.quantized(real.real(x)).wrapping_add(bias[i]));
    Ok(with_range(Tensor::from_stored(DType::QI32, x.shape().clone(), sums), total))
}

/// Numbers less than 0 become 0, and those above `most` become that.
fn clamped(node: &KernelNode, most: Option<f32>) -> Result<Option<HostKernel>> {
    fn clamp<T: Stored>(dtype: DType, inputs: Inputs, most: Option<f32>) -> Result<Outputs> {
        let [x, min, max] = take(inputs)?;
        let range = range(&min, &max, ["min_features", "max_features"])?;
        x.shape().checked_elements(dtype)?;
        let least: T = range.quantized(0.0);
        let most: T = most.map_or(T::HIGHEST, |most| range.quantized(most));
        let channels = Channels::along(None, x.dims());
        let numbers = channels.mapped(x.stored::<T>()?, |_, x| x.max(least).min(most));
        Ok(with_range(Tensor::from_stored(dtype, x.shape().clone(), numbers), range))
    }
    Ok(match input_dtype(node, 0)? {
        dtype if !is_of(node, &[dtype], dtype) => None,
        DType::QU8 => Some(Box::new(move |inputs| clamp::<u8>(DType::QU8, inputs, most))),
        DType::QI32 => Some(Box::new(move |inputs| clamp::<i32>(DType::QI32, inputs, most))),
        _ => None,
    })
}

/// Tensors of several ranges, joined along an axis as numbers of one that contains all.
fn concat<T: Stored>(dtype: DType, inputs: Inputs, count: usize) -> Result<Outputs> {
    if inputs.len() != 1 + 3 * count {
        return Err(Failure::invalid(format!("{count} values must have as many ranges")));
    }
    let mut inputs = inputs.into_iter();
    let axis = inputs.next().ok_or_else(|| Failure::invalid("concat_dim is missing"))?;
    let values: Vec<Tensor> = inputs.by_ref().take(count).collect();
    let mins: Vec<Tensor> = inputs.by_ref().take(count).collect();
    let ends = mins.iter().zip(inputs).map(|(min, max)| range(min, &max, ["input_mins", "input_maxes"]));
    let ranges = ends.collect::<Result<Vec<Range>>>()?;
    let min = ranges.iter().fold(f32::MAX, |all, range| least(all, range.min));
    let max = ranges.iter().fold(f32::MIN, |all, range| most(all, range.max));
    let total = match T::LOWEST.to_i64() < 0 {
        true => {
            let widest = most(min.abs(), max.abs());
            Range { min: -widest, max: widest }
        }
        false => Range { min, max },
    };
    if axis.rank() != 0 {
        return Err(Failure::invalid(format!(
            "Concat dim tensor should be a scalar integer, but got shape {}",
            axis.shape()
        )));
    }
    let (axis, rank) = (axis.to_i64()?, values.first().map_or(0, Tensor::rank));
    if usize::try_from(axis).map_or(true, |axis| axis >= rank) {
        return Err(Failure::invalid(format!(
            "ConcatOp : Expected concatenating dimensions in the range [0, {rank}), but got {axis}"
        )));
    }
    let converted = values.into_iter().zip(ranges).map(|(value, range)| {
        if range == total {
            return Ok(value);
        }
        value.shape().checked_elements(dtype)?;
        let (channels, new) = (Channels::along(None, value.dims()), between::<T, T>(range, total));
        let numbers = channels.mapped(value.stored::<T>()?, |_, x| new(x));
        Ok(Tensor::from_stored(dtype, value.shape().clone(), numbers))
    });
    let mut parts = converted.collect::<Result<Inputs>>()?;
    parts.push(Tensor::scalar(axis));
    Ok(with_range(super::only(array::concat(parts)?)?, total))
}
