//! Fake quantization: numbers as they would be after quantization to a number of bits and dequantization.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Tensor, with_type};
use smallvec::smallvec;

use super::super::call::{axis, input_dtype, kernel as call, no_kernel, product, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("FakeQuantWithMinMaxArgs", |node| {
        let scale = of_attrs(node)?;
        let rounded =
            move |x: &Tensor| channels(x, &[Some(scale)], |scale, x| scale.map_or(0.0, |scale| scale.rounded(x)));
        for_f32(node, call(move |[x]| rounded(&x)))
    });
    ops.insert("FakeQuantWithMinMaxArgsGradient", |node| {
        let scale = of_attrs(node)?;
        let kernel = Box::new(move |inputs| {
            let [gradient, x] = take(inputs)?;
            Ok(back(&gradient, &x, &[Some(scale)])?.into_iter().take(1).collect())
        });
        for_f32(node, kernel)
    });
    ops.insert("FakeQuantWithMinMaxVars", |node| by_inputs(node, false));
    ops.insert("FakeQuantWithMinMaxVarsPerChannel", |node| by_inputs(node, true));
    ops.insert("FakeQuantWithMinMaxVarsGradient", |node| by_inputs_back(node, false));
    ops.insert("FakeQuantWithMinMaxVarsPerChannelGradient", |node| by_inputs_back(node, true));
    ops.insert_all(
        ["QuantizeAndDequantize", "QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4"],
        there_and_back,
    );
    ops.insert("QuantizeAndDequantizeV4Grad", |node| {
        let axis = rounded_axis(node)?;
        let kernel = with_type!(input_dtype(node, 0)?, T => {
            Box::new(move |inputs| passed_within::<T>(inputs, axis)) as HostKernel
        }; F32 f32, F64 f64);
        kernel.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
    });
}

fn for_f32(node: &KernelNode, kernel: HostKernel) -> Result<Option<HostKernel>> {
    Ok((input_dtype(node, 0)? == DType::F32).then_some(kernel))
}

/// The rounding between limits that are inputs.
fn by_inputs(node: &KernelNode, by_channel: bool) -> Result<Option<HostKernel>> {
    let levels = Levels::of(node)?;
    let kernel = call(move |[x, min, max]| {
        let scales = levels.scales(&x, &min, &max, by_channel)?;
        channels(&x, &scales, |scale, x| scale.map_or(0.0, |scale| scale.rounded(x)))
    });
    for_f32(node, kernel)
}

/// The gradient of [`by_inputs`].
fn by_inputs_back(node: &KernelNode, by_channel: bool) -> Result<Option<HostKernel>> {
    let levels = Levels::of(node)?;
    let kernel = Box::new(move |inputs| {
        let [gradient, x, min, max] = take(inputs)?;
        let scales = levels.scales(&x, &min, &max, by_channel)?;
        let outputs = back(&gradient, &x, &scales)?;
        let shaped = |sum: Tensor| if by_channel { Ok(sum) } else { sum.reshaped(min.shape().clone()) };
        let [by_x, by_min, by_max] = outputs;
        Ok(smallvec![by_x, shaped(by_min)?, shaped(by_max)?])
    });
    for_f32(node, kernel)
}

/// The least and the greatest quantized integer.
#[derive(Clone, Copy)]
struct Levels {
    least: f32,
    greatest: f32,
}

/// The range of the dequantized values, shifted so that it contains 0 exactly, and the distance between neighbouring
/// values.
#[derive(Clone, Copy)]
struct Scale {
    min: f32,
    max: f32,
    step: f32,
}

impl Levels {
    fn of(node: &KernelNode) -> Result<Levels> {
        let bits = node.attrs.int("num_bits")?;
        if !(2..=16).contains(&bits) {
            return Err(Failure::invalid("num_bits must be between 2 and 16, inclusive"));
        }
        let least = if node.attrs.bool("narrow_range")? { 1.0 } else { 0.0 };
        Ok(Levels { least, greatest: ((1u32 << bits) - 1) as f32 })
    }

    fn scale(self, min: f32, max: f32) -> Scale {
        let step = (max - min) / (self.greatest - self.least);
        let zero = self.least - min / step;
        let zero = if zero < self.least {
            self.least
        } else if zero > self.greatest {
            self.greatest
        } else {
            zero.round()
        };
        Scale { min: (self.least - zero) * step, max: (self.greatest - zero) * step, step }
    }

    /// One scale for each channel (the last dimension), or one for all; `None` where both ends are 0.
    fn scales(self, x: &Tensor, min: &Tensor, max: &Tensor, by_channel: bool) -> Result<Vec<Option<Scale>>> {
        let depth = match by_channel {
            true => x.dims().last().copied().ok_or_else(|| Failure::invalid("inputs must have channels"))?,
            false => 1,
        };
        for (name, end) in [("min", min), ("max", max)] {
            let rank = usize::from(by_channel);
            if end.rank() != rank {
                return Err(Failure::invalid(format!("`{name}` must be rank {rank} but is rank {}", end.rank())));
            }
            if end.len() != depth {
                let why = format!("{name} has incorrect size, expected {depth} was {}", end.len());
                return Err(Failure::invalid(why));
            }
        }
        let ends = min.slice::<f32>()?.iter().zip(max.slice::<f32>()?);
        Ok(ends.map(|(&min, &max)| (min != 0.0 || max != 0.0).then(|| self.scale(min, max))).collect())
    }
}

/// The scale of the attributes `min` and `max`.
fn of_attrs(node: &KernelNode) -> Result<Scale> {
    let (min, max) = (node.attrs.float("min")?, node.attrs.float("max")?);
    if min >= max {
        return Err(Failure::invalid(format!("min has to be smaller than max, was: {min} >= {max}")));
    }
    Ok(Levels::of(node)?.scale(min, max))
}

impl Scale {
    #[inline]
    fn rounded(self, x: f32) -> f32 {
        let inverse = 1.0 / self.step;
        let zero = (-self.min * inverse + 0.5).floor();
        let within = x.min(self.max).max(self.min) - self.min;
        (within * inverse - zero + 0.5).floor() * self.step
    }
}

/// The number of elements processed together: a multiple of the number of channels.
fn width(scales: &[Option<Scale>]) -> usize {
    if scales.len() < 2 { 4096 } else { scales.len() }
}

/// Applies `f` to each element with the scale of its channel; a single scale applies to all elements.
fn channels(x: &Tensor, scales: &[Option<Scale>], f: impl Fn(Option<Scale>, f32) -> f32) -> Result<Tensor> {
    let mut all = Vec::with_capacity(x.shape().checked_elements(DType::F32)?);
    for row in paced(x.slice::<f32>()?.chunks(width(scales)), 10 * width(scales)) {
        all.extend(row.iter().zip(scales.iter().cycle()).map(|(&x, &scale)| f(scale, x)));
    }
    Ok(Tensor::from_vec(x.shape().clone(), all))
}

/// The gradients of the values, and those of the minimum and the maximum of each scale.
fn back(gradient: &Tensor, x: &Tensor, scales: &[Option<Scale>]) -> Result<[Tensor; 3]> {
    if gradient.shape() != x.shape() {
        return Err(Failure::invalid("gradient and input must be the same size"));
    }
    let width = width(scales);
    let (mut by_min, mut by_max) = (vec![0f32; scales.len()], vec![0f32; scales.len()]);
    let mut by_x = Vec::with_capacity(x.shape().checked_elements(DType::F32)?);
    let rows = x.slice::<f32>()?.chunks(width).zip(gradient.slice::<f32>()?.chunks(width));
    for (row, gradients) in paced(rows, 10 * width) {
        for (i, (&x, &gradient)) in row.iter().zip(gradients).enumerate() {
            let channel = i % scales.len();
            let (below, above) = scales[channel].map_or((false, false), |scale| (x < scale.min, x > scale.max));
            // Both are false for NaN, which is not within the range either.
            let within = scales[channel].is_none_or(|scale| x >= scale.min && x <= scale.max);
            by_x.push(gradient * f32::from(u8::from(within)));
            by_min[channel] += gradient * f32::from(u8::from(below));
            by_max[channel] += gradient * f32::from(u8::from(above));
        }
    }
    Ok([Tensor::from_vec(x.shape().clone(), by_x), Tensor::vector(by_min), Tensor::vector(by_max)])
}

/// The rounding of values to integers of a number of bits, and back.
#[derive(Clone, Copy)]
struct Rounding {
    is_signed: bool,
    is_narrow: bool,
    is_given: bool,
    half_up: bool,
    /// The dimension of the channels, if each channel has a range.
    axis: Option<i64>,
}

/// The attribute `axis`; `None` for a single range.
fn rounded_axis(node: &KernelNode) -> Result<Option<i64>> {
    match node.attrs.get("axis") {
        Some(_) => Ok(Some(node.attrs.int("axis")?).filter(|&axis| axis != -1)),
        None => Ok(None),
    }
}

fn there_and_back(node: &KernelNode) -> Result<Option<HostKernel>> {
    let has = |name: &str| node.attrs.get(name).is_some();
    let rounding = Rounding {
        is_signed: node.attrs.bool("signed_input")?,
        is_narrow: has("narrow_range") && node.attrs.bool("narrow_range")?,
        is_given: node.attrs.bool("range_given")?,
        half_up: has("round_mode") && node.attrs.str("round_mode")? == "HALF_UP",
        axis: rounded_axis(node)?,
    };
    let bits = if has("num_bits") { Some(rounding.bits(node.attrs.int("num_bits")?)?) } else { None };
    let range = match has("input_min") {
        true => Some((node.attrs.float("input_min")?, node.attrs.float("input_max")?)),
        false => None,
    };
    let dtype = input_dtype(node, 0)?;
    if !matches!(dtype, DType::F32 | DType::F64) {
        return no_kernel(node);
    }
    Ok(Some(Box::new(move |inputs| {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().ok_or_else(|| Failure::invalid("an input is missing"));
        let x = next()?;
        let rounded = with_type!(dtype, T => {
            let (mins, maxs) = match range {
                Some((min, max)) => (vec![T::from_f64(f64::from(min))], vec![T::from_f64(f64::from(max))]),
                None => (rounding.end::<T>(next()?, "input_min")?, rounding.end::<T>(next()?, "input_max")?),
            };
            let bits = match bits {
                Some(bits) => bits,
                None => rounding.bits(next()?.to_i64()?)?,
            };
            rounding.apply::<T>(x, &mins, &maxs, bits)
        }; F32 f32, F64 f64);
        rounded.unwrap_or_else(|| Err(Failure::invalid("the input must be of floats"))).map(|y| smallvec![y])
    })))
}

impl Rounding {
    /// The number of bits, checked against the limits of the integers.
    fn bits(self, bits: i64) -> Result<u32> {
        let most = if self.is_signed { 62 } else { 63 };
        let fits = u32::try_from(bits).ok().filter(|bits| (1..most).contains(bits));
        fits.ok_or_else(|| {
            let signed = u8::from(self.is_signed);
            Failure::invalid(format!("num_bits is out of range: {bits} with signed_input_ {signed}"))
        })
    }

    /// One end of the range. It must be a scalar if the range is given.
    fn end<T: Float>(self, end: Tensor, name: &str) -> Result<Vec<T>> {
        if self.is_given && end.rank() != 0 {
            return Err(Failure::invalid(format!("{name} must be a scalar.")));
        }
        end.into_vec::<T>()
    }

    fn apply<T: Float>(self, x: Tensor, mins: &[T], maxs: &[T], bits: u32) -> Result<Tensor> {
        let at = self.axis.map(|at| axis(at, x.rank())).transpose()?;
        let (depth, inner) = at.map_or((1, x.len().max(1)), |at| (x.dims()[at], product(&x.dims()[at + 1..])));
        if self.is_given {
            for (name, ends) in [("input_min_tensor", mins), ("input_max_tensor", maxs)] {
                if ends.len() != depth {
                    let why = format!("{name} has incorrect size, expected {depth} was {}", ends.len());
                    return Err(Failure::invalid(why));
                }
            }
            if let Some((min, max)) = mins.iter().zip(maxs).find(|(min, max)| min > max) {
                let why = format!("Invalid range: input_min {} > input_max {}", min.to_f64(), max.to_f64());
                return Err(Failure::invalid(why));
            }
        }
        x.shape().checked_elements(T::DTYPE)?;
        let shape = x.shape().clone();
        let mut all = x.into_vec::<T>()?;
        let span = (depth * inner).max(1);
        for channel in 0..depth {
            let starts = (channel * inner..all.len()).step_by(span);
            let (mut min, mut max) = match self.is_given {
                true => (mins[channel], maxs[channel]),
                false => (T::HIGHEST, T::LOWEST),
            };
            if !self.is_given {
                for start in starts.clone() {
                    for &value in paced(all[start..][..inner.min(all.len() - start)].iter(), 2) {
                        min = if value < min { value } else { min };
                        max = if value > max { value } else { max };
                    }
                }
            }
            let scale = self.scale(min, max, bits);
            for start in starts {
                let end = all.len().min(start + inner);
                paced(all[start..end].iter_mut(), 5).for_each(|value| *value = self.rounded(*value, &scale));
            }
        }
        Ok(Tensor::from_vec(shape, all))
    }

    /// The range that the integers represent, with 0 at 0; the factor from values to integers, and its inverse.
    fn scale<T: Float>(self, min: T, max: T, bits: u32) -> [T; 4] {
        let (least, greatest) = match self.is_signed {
            true => (-(1i64 << (bits - 1)) + i64::from(self.is_narrow), (1i64 << (bits - 1)) - 1),
            false => (0, ((1u64 << bits) - 1) as i64),
        };
        let (least, greatest) = (T::from_f64(least as f64), T::from_f64(greatest as f64));
        let most = T::ZERO.map(|_| f32::MAX, |_| f64::MAX);
        let by = |end: T, of: T| if end * of > T::ZERO { end / of } else { most };
        let (from_min, from_max) = (by(least, min), by(greatest, max));
        if from_min < from_max {
            let inverse = min / least;
            [min, greatest * inverse, from_min, inverse]
        } else {
            let inverse = max / greatest;
            [least * inverse, max, from_max, inverse]
        }
    }

    fn rounded<T: Float>(self, x: T, &[min, max, scale, inverse]: &[T; 4]) -> T {
        let mut x = x;
        if self.is_given {
            x = if x > max { max } else { x };
            x = if x < min { min } else { x };
        }
        let scaled = x * scale;
        let half = |x: T| x.map(|x| (x + 0.5).floor(), |x| (x + 0.5).floor());
        let even = |x: T| x.map(f32::round_ties_even, f64::round_ties_even);
        (if self.half_up { half(scaled) } else { even(scaled) }) * inverse
    }
}

/// The gradients of values within the range pass; others, and those of its ends, are 0.
fn passed_within<T: Float>(inputs: Inputs, axis: Option<i64>) -> Result<Outputs> {
    let [gradient, x, min, max] = take(inputs)?;
    if gradient.shape() != x.shape() {
        return Err(Failure::invalid("gradient and input must be the same size"));
    }
    let at = match axis {
        Some(at) => Some(usize::try_from(at).ok().filter(|&at| at < x.rank()).ok_or_else(|| {
            Failure::invalid(format!("axis must be -1, or a dimension of the input of rank {}, but is {at}", x.rank()))
        })?),
        None => None,
    };
    let (depth, inner) = at.map_or((1, x.len()), |at| (x.dims()[at], product(&x.dims()[at + 1..])));
    for (name, end) in [("input_min", &min), ("input_max", &max)] {
        if end.rank() != usize::from(at.is_some()) || end.len() != depth {
            let why =
                format!("{name} must be a scalar, or a vector of {depth} with an axis, but has shape {}", end.shape());
            return Err(Failure::invalid(why));
        }
    }
    x.shape().checked_elements(T::DTYPE)?;
    let (mins, maxs) = (min.slice::<T>()?, max.slice::<T>()?);
    let mut back = Vec::with_capacity(x.len());
    let runs = x.slice::<T>()?.chunks(inner.max(1)).zip(gradient.slice::<T>()?.chunks(inner.max(1)));
    for (i, (run, gradients)) in runs.enumerate() {
        let (min, max) = (mins[i % depth], maxs[i % depth]);
        back.extend(paced(run.iter().zip(gradients), 2).map(|(&x, &gradient)| {
            let within = if x >= min && x <= max { T::ONE } else { T::ZERO };
            gradient * within
        }));
    }
    let ends = Tensor::zeros(T::DTYPE, min.shape().clone())?;
    Ok(smallvec![Tensor::from_vec(x.shape().clone(), back), ends.clone(), ends])
}
