//! Numbers with a scale and a zero point: an integer `q` stands for `(q - zero) * scale`. There is one of each for all numbers,
//! or for each slice along an axis.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape, Stored, Tensor, with_type};
use smallvec::smallvec;

use super::super::call::{input_dtype, kernel as call, output_dtype, take};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry, array};
use super::scale::truncated;
use super::{Channels, is_of};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("UniformQuantize", |node| {
        let (axis, limits) = (axis(node, "")?, Limits::of(node, "")?);
        let to = output_dtype(node, 0)?;
        Ok(with_type!(to, T => call(move |[x, scales, zeros]| quantize::<T>(&x, &Scaling::of(&scales, &zeros, x.shape(), axis)?, limits, to));
            QI8 i8, QU8 u8, QI32 i32))
    });
    ops.insert("UniformDequantize", |node| {
        let axis = axis(node, "")?;
        Limits::of(node, "")?;
        Ok(with_type!(input_dtype(node, 0)?, T => {
            call(move |[x, scales, zeros]| dequantize::<T>(&x, &Scaling::of(&scales, &zeros, x.shape(), axis)?))
        }; QI8 i8, QU8 u8, QI32 i32))
    });
    ops.insert("UniformRequantize", |node| {
        let axes = [axis(node, "input_")?, axis(node, "output_")?];
        if matches!(axes, [Some(from), Some(to)] if from != to) {
            return Err(Failure::invalid(
                "If input and output are both per-axis quantized, the quantization axis must be same.",
            ));
        }
        let limits = Limits::of(node, "output_")?;
        if output_dtype(node, 0)? != DType::QI8 {
            return Ok(None);
        }
        Ok(with_type!(input_dtype(node, 0)?, T => call(move |inputs| requantize::<T>(inputs, axes, limits)); QI8 i8, QI32 i32))
    });
    ops.insert("UniformQuantizedAdd", |node| {
        let axes = [axis(node, "lhs_")?, axis(node, "rhs_")?, axis(node, "output_")?];
        let limits = Limits::of(node, "output_")?;
        let kernel = move |inputs| add(inputs, axes, limits);
        Ok(is_of(node, &[DType::QI32, DType::QI32], DType::QI32).then(|| Box::new(kernel) as HostKernel))
    });
    ops.insert("UniformQuantizedClipByValue", |node| {
        let axis = axis(node, "")?;
        Limits::of(node, "")?;
        let kernel = call(move |inputs| clip(inputs, axis));
        Ok(is_of(node, &[DType::QI32], DType::QI32).then_some(kernel))
    });
}

/// The attribute `…quantization_axis`; `None` for -1, a single scale.
pub(super) fn axis(node: &KernelNode, of: &str) -> Result<Option<usize>> {
    let axis = node.attrs.int(&format!("{of}quantization_axis"))?;
    match axis {
        -1 => Ok(None),
        _ => usize::try_from(axis)
            .map(Some)
            .map_err(|_| Failure::invalid(format!("{of}quantization_axis must be at least -1, given: {axis}"))),
    }
}

/// The least and the greatest integer in use.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    min: i32,
    max: i32,
}

impl Limits {
    /// # Errors
    /// InvalidArgument if an attribute is no int32.
    pub fn of(node: &KernelNode, of: &str) -> Result<Limits> {
        let end = |end: &str| {
            let name = format!("{of}quantization_{end}_val");
            let value = node.attrs.int(&name)?;
            i32::try_from(value).map_err(|_| Failure::invalid(format!("{name} must be an int32, got {value}")))
        };
        Ok(Limits { min: end("min")?, max: end("max")? })
    }

    /// Every int8.
    pub const BYTE: Limits = Limits { min: i8::MIN as i32, max: i8::MAX as i32 };

    /// Every int32.
    pub const ALL: Limits = Limits { min: i32::MIN, max: i32::MAX };

    #[inline]
    pub fn clamped(self, x: i32) -> i32 {
        x.min(self.max).max(self.min)
    }
}

/// The scales and zero points of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Scaling {
    /// The axis along which each slice has a scale.
    pub axis: Option<usize>,
    pub scales: Vec<f32>,
    pub zeros: Vec<i32>,
}

impl Scaling {
    /// # Errors
    /// InvalidArgument if there are not as many scales and zero points as the shape has slices along the axis.
    pub fn of(scales: &Tensor, zeros: &Tensor, shape: &Shape, axis: Option<usize>) -> Result<Scaling> {
        if scales.shape() != zeros.shape() {
            return Err(Failure::invalid(format!(
                "scales and zero_points shape must be same, but given scales shape {} and zero_points shape {}",
                scales.shape(),
                zeros.shape()
            )));
        }
        match axis {
            None if scales.rank() == 0 => {}
            None => {
                return Err(Failure::invalid(format!(
                    "If quantization_axis is -1, scales and zero_points must be scalar tensors, but given shape {}",
                    scales.shape()
                )));
            }
            Some(axis) if axis >= shape.rank() => {
                return Err(Failure::invalid(format!(
                    "quantization_axis must be -1 or in range [0, input.rank), but given {axis}"
                )));
            }
            Some(axis) if scales.dims() == [shape.dims()[axis]] => {}
            Some(axis) => {
                return Err(Failure::invalid(format!(
                    "If quantization_axis is not -1, scales and zero_points must be vectors with an element for each of \
                     the {} slices along axis {axis}, but given shape {}",
                    shape.dims()[axis],
                    scales.shape()
                )));
            }
        }
        Ok(Scaling { axis, scales: scales.slice::<f32>()?.to_vec(), zeros: zeros.slice::<i32>()?.to_vec() })
    }

    /// The scaling, if all scales are positive.
    ///
    /// # Errors
    /// InvalidArgument if one is not; `of` names the tensor.
    pub fn positive(self, of: &str) -> Result<Scaling> {
        match self.scales.iter().all(|&scale| scale > 0.0) {
            true => Ok(self),
            false => Err(Failure::invalid(format!("{of} scales elements must be all positive."))),
        }
    }

    /// The scale of a slice.
    #[inline]
    pub fn scale(&self, slice: usize) -> f32 {
        self.scales[if self.axis.is_some() { slice } else { 0 }]
    }

    /// The zero point of a slice.
    #[inline]
    pub fn zero(&self, slice: usize) -> i32 {
        self.zeros[if self.axis.is_some() { slice } else { 0 }]
    }
}

/// The integer that stands for a number.
#[inline]
pub(super) fn quantized(x: f32, inverse: f32, zero: i32, limits: Limits) -> i32 {
    let steps: i32 = truncated((x * inverse + 0.5).floor());
    limits.clamped(steps.wrapping_add(zero))
}

fn quantize<T: Stored>(x: &Tensor, scaling: &Scaling, limits: Limits, to: DType) -> Result<Tensor> {
    x.shape().checked_elements(to)?;
    let inverse: Vec<f32> = scaling.scales.iter().map(|scale| 1.0 / scale).collect();
    let numbers = Channels::along(scaling.axis, x.dims())
        .mapped(x.slice::<f32>()?, |i, x| T::from_i64(i64::from(quantized(x, inverse[i], scaling.zeros[i], limits))));
    Ok(Tensor::from_stored(to, x.shape().clone(), numbers))
}

fn dequantize<T: Stored>(x: &Tensor, scaling: &Scaling) -> Result<Tensor> {
    x.shape().checked_elements(DType::F32)?;
    let numbers = Channels::along(scaling.axis, x.dims())
        .mapped(x.stored::<T>()?, |i, x| (x.to_i64() as i32).wrapping_sub(scaling.zeros[i]) as f32 * scaling.scales[i]);
    Ok(Tensor::from_vec(x.shape().clone(), numbers))
}

/// A positive factor as an integer and a number of bits: `whole / 2^31 * 2^shift`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor {
    whole: i32,
    shift: i32,
}

impl Factor {
    /// # Errors
    /// InvalidArgument if it is not a positive finite number.
    pub fn new(factor: f64) -> Result<Factor> {
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(Failure::invalid(format!(
                "the product of scales must be a positive finite number, given {factor}"
            )));
        }
        let (fraction, mut shift) = parts(factor);
        let mut whole = (fraction * 2f64.powi(31)).round() as i64;
        if whole == 1 << 31 {
            whole /= 2;
            shift += 1;
        }
        if shift < -31 {
            (whole, shift) = (0, 0);
        }
        if shift > 30 {
            (whole, shift) = ((1 << 31) - 1, 30);
        }
        Ok(Factor { whole: whole as i32, shift })
    }

    /// The product with an integer, rounded to the nearest one; halves are rounded up.
    #[inline]
    pub fn times(self, x: i32) -> i32 {
        let shift = 31 - self.shift;
        let product = i64::from(x) * i64::from(self.whole) + (1i64 << (shift - 1));
        (product >> shift).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    }
}

/// A positive finite number as a fraction of at least a half, and a power of 2.
fn parts(x: f64) -> (f64, i32) {
    // Denormal numbers are made normal first.
    let (x, less) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(54), 54) } else { (x, 0) };
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1022;
    (f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52), exponent - less)
}

/// Numbers as integers of another scaling, along the axis of either.
fn requantized<A: Stored, B: Stored>(x: &Tensor, from: &Scaling, to: &Scaling, limits: Limits) -> Result<Vec<B>> {
    let axis = from.axis.or(to.axis);
    let channels = Channels::along(axis, x.dims());
    let factors: Vec<Factor> = (0..channels.depth)
        .map(|i| Factor::new(f64::from(from.scale(i)) / f64::from(to.scale(i))))
        .collect::<Result<_>>()?;
    Ok(channels.mapped(x.stored::<A>()?, |i, x| {
        let whole = factors[i].times((x.to_i64() as i32).wrapping_sub(from.zero(i))).wrapping_add(to.zero(i));
        B::from_i64(i64::from(limits.clamped(whole)))
    }))
}

fn requantize<T: Stored>(inputs: [Tensor; 5], [from, to]: [Option<usize>; 2], limits: Limits) -> Result<Tensor> {
    let [x, scales, zeros, new_scales, new_zeros] = inputs;
    let from = Scaling::of(&scales, &zeros, x.shape(), from)?.positive("input")?;
    let to = Scaling::of(&new_scales, &new_zeros, x.shape(), to)?.positive("output")?;
    x.shape().checked_elements(DType::QI8)?;
    let numbers = requantized::<T, i8>(&x, &from, &to, limits)?;
    Ok(Tensor::from_stored(DType::QI8, x.shape().clone(), numbers))
}

fn add(inputs: Inputs, [lhs_axis, rhs_axis, axis]: [Option<usize>; 3], limits: Limits) -> Result<Outputs> {
    let [lhs, rhs, lhs_scales, lhs_zeros, rhs_scales, rhs_zeros, scales, zeros] = take(inputs)?;
    let of_lhs = Scaling::of(&lhs_scales, &lhs_zeros, lhs.shape(), lhs_axis)?.positive("lhs")?;
    let of_rhs = Scaling::of(&rhs_scales, &rhs_zeros, rhs.shape(), rhs_axis)?.positive("rhs")?;
    let shape = lhs.shape().broadcast(rhs.shape())?;
    let total = Scaling::of(&scales, &zeros, &shape, axis)?.positive("output")?;
    shape.checked_elements(DType::QI32)?;
    let operand = |x: &Tensor, own: &Scaling, name: &str| -> Result<Tensor> {
        // The slices of the sum are those of an operand only if that has as many.
        let same = total.axis.map(|axis| (axis + x.rank()).checked_sub(shape.rank()));
        let fits = match (same, own.axis) {
            (None, _) => true,
            (Some(at), None) => at.is_some_and(|at| x.dims()[at] == total.scales.len()),
            (Some(at), own) => at == own && x.dims().get(at.unwrap_or(0)) == Some(&total.scales.len()),
        };
        if !fits {
            return Err(Failure::invalid(format!(
                "If the output is per-axis quantized, {name} must have its quantization axis, and as many slices along it; \
                 given shape {} for {shape}",
                x.shape()
            )));
        }
        // Without zero points: that of the sum is added once.
        let new = Scaling { axis: same.flatten(), zeros: vec![0; total.zeros.len()], ..total.clone() };
        let numbers = requantized::<i32, i32>(x, own, &new, Limits::ALL)?;
        array::broadcast_to(Tensor::from_vec(x.shape().clone(), numbers), shape.clone())
    };
    let (lhs, rhs) = (operand(&lhs, &of_lhs, "lhs")?, operand(&rhs, &of_rhs, "rhs")?);
    let shifted = Channels::along(axis, shape.dims()).mapped(lhs.slice::<i32>()?, |i, x| x.wrapping_add(total.zero(i)));
    let pairs = paced(shifted.into_iter().zip(rhs.slice::<i32>()?), 2);
    let sums = pairs.map(|(x, &y)| limits.clamped(x.wrapping_add(y))).collect();
    Ok(smallvec![Tensor::from_stored(DType::QI32, shape, sums)])
}

fn clip(inputs: [Tensor; 5], axis: Option<usize>) -> Result<Tensor> {
    let [x, min, max, scales, zeros] = inputs;
    Scaling::of(&scales, &zeros, x.shape(), axis)?;
    for (name, end) in [("min", &min), ("max", &max)] {
        if end.shape() != scales.shape() {
            return Err(Failure::invalid(format!(
                "Input {name} shape must be same as scales/zero_points. Given {name} of shape {} and scales/zero_points of \
                 shape {}",
                end.shape(),
                scales.shape()
            )));
        }
    }
    x.shape().checked_elements(DType::QI32)?;
    let (min, max) = (min.stored::<i32>()?, max.stored::<i32>()?);
    let numbers = Channels::along(axis, x.dims()).mapped(x.stored::<i32>()?, |i, x| x.max(min[i]).min(max[i]));
    Ok(Tensor::from_stored(DType::QI32, x.shape().clone(), numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_products_with_rounded_integers() {
        assert_eq!(Factor::new(0.5).unwrap(), Factor { whole: 1 << 30, shift: 0 });
        assert_eq!(Factor::new(3.0).unwrap(), Factor { whole: 3 << 29, shift: 2 });
        // The nearest fraction of 31 bits is 1.
        assert_eq!(Factor::new(1.0 - 1e-12).unwrap(), Factor { whole: 1 << 30, shift: 1 });
        assert_eq!(Factor::new(1e-300).unwrap().times(i32::MAX), 0);
        assert_eq!(Factor::new(1e300).unwrap(), Factor { whole: i32::MAX, shift: 30 });
        assert_eq!(parts(f64::from_bits(1)), (0.5, -1073));
        assert_eq!([5, -5, 3, -3].map(|x| Factor::new(0.5).unwrap().times(x)), [3, -2, 2, -1]);
        assert_eq!(Factor::new(1e9).unwrap().times(i32::MIN), i32::MIN);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Factor::new(wrong).is_err());
        }
    }
}
