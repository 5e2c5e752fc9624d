//! Bucketize, DenseBincount and HistogramFixedWidth: bins of values, and counts per value or per bin.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_type};

use super::super::Registry;
use super::super::call::{self, input_dtype, kernel as call, output_dtype};
use super::super::math::{cast, map_to};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("DenseBincount", |node| {
        let binary = node.attrs.bool("binary_output")?;
        let dtype = output_dtype(node, 0)?;
        Ok(with_type!(dtype, T => call(move |[input, size, weights]| bincount::<T>(&input, &size, &weights, binary));
                F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("Bucketize", |node| {
        let boundaries = node.attrs.floats("boundaries")?.to_vec();
        if !boundaries.is_sorted() {
            return Err(Failure::invalid("Expected sorted boundaries"));
        }
        Ok(with_type!(input_dtype(node, 0)?, T => call(move |[x]: [Tensor; 1]| {
                map_to(&x, |x: &T| {
                    // NaN belongs to the last bin.
                    let is_above = |boundary: &f32| x.to_f64() < f64::from(*boundary);
                    boundaries.partition_point(|boundary| !is_above(boundary)) as i32
                })
            }); F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("HistogramFixedWidth", |node| {
        let (dtype, to) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
        Ok(with_type!(dtype, T => call(move |[values, range, bins]| histogram::<T>(&values, &range, &bins, to));
                F32 f32, F64 f64, I32 i32, I64 i64))
    });
}

/// Counts (or, with weights, sums) of each value below `size`; row by row if the input has two dimensions.
fn bincount<T: Numeric>(input: &Tensor, size: &Tensor, weights: &Tensor, binary: bool) -> Result<Tensor> {
    let bins = call::size(size, "size")?;
    if input.rank() > 2 {
        return Err(Failure::invalid(
            "Shape must be at most rank 2 but is rank ".to_owned() + &input.rank().to_string(),
        ));
    }
    if !weights.is_empty() && weights.shape() != input.shape() {
        return Err(Failure::invalid(format!(
            "`weights` must be the same shape as `arr` or a length-0 `Tensor`, in which case it acts as all weights equal \
             to 1. Received {}",
            weights.shape()
        )));
    }
    let values = input.to_i64s()?;
    if values.iter().any(|&value| value < 0) {
        return Err(Failure::invalid("Input arr must be non-negative!"));
    }
    let shape: Shape = if input.rank() == 2 { [input.dims()[0], bins].into() } else { [bins].into() };
    let row = if input.rank() == 2 { input.dims()[1] } else { values.len() };
    let weights = weights.slice::<T>()?;
    let mut out = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    for (i, &value) in paced(values.iter().enumerate(), 8).filter(|(_, value)| (**value as u64) < bins as u64) {
        let count = &mut out[i / row * bins + value as usize];
        *count = if binary { T::ONE } else { count.add(weights.get(i).copied().unwrap_or(T::ONE)) };
    }
    Ok(Tensor::from_vec(shape, out))
}

fn histogram<T: Numeric>(values: &Tensor, range: &Tensor, bins: &Tensor, to: DType) -> Result<Tensor> {
    let &[low, high] = range.slice::<T>()? else {
        return Err(Failure::invalid("value_range should be a vector of 2 elements."));
    };
    let bins = call::size(bins, "nbins")?;
    if bins == 0 {
        return Err(Failure::invalid("nbins should be a positive number, but got '0'"));
    }
    if !matches!(low.partial_cmp(&high), Some(std::cmp::Ordering::Less)) {
        return Err(Failure::invalid(format!(
            "value_range should satisfy value_range[0] < value_range[1], but got '[{}, {}]'",
            low.to_f64(),
            high.to_f64()
        )));
    }
    Shape::from([bins]).checked_elements(DType::I64)?;
    let step = (high.to_f64() - low.to_f64()) / bins as f64;
    let mut counts = vec![0i64; bins];
    for &value in paced(values.slice::<T>()?.iter(), 8) {
        // Values outside the range are counted in the outermost bins.
        let bin = if value < low { 0.0 } else { ((value.to_f64() - low.to_f64()) / step).floor() };
        counts[(bin as usize).min(bins - 1)] += 1;
    }
    cast(Tensor::vector(counts), to)
}
