//! Ragged tensors: their values, and for each ragged dimension its splits, which are the begin of each row and the end of
//! the last.

mod dense;
mod gather;
mod sparse;

use meshtf_loops::turn::{Pace, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_type};
use smallvec::smallvec;
pub use sparse::checked as checked_splits;

use super::call::{input_dtype, output_dtype, take};
use super::{HostKernel, KernelNode, Outputs, Registry};

/// Registers the ops on ragged tensors.
pub(super) fn register(ops: &mut Registry) {
    ops.insert("RaggedRange", ranges);
    gather::register(ops);
    sparse::register(ops);
    dense::register(ops);
}

fn ranges(node: &KernelNode) -> Result<Option<HostKernel>> {
    let dtype = output_dtype(node, 0)?;
    let kernel = with_type!(input_dtype(node, 0)?, T => Box::new(move |inputs| {
        range::<T>(&take(inputs)?, dtype)
    }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64);
    Ok(kernel)
}

/// A row of numbers for each start, limit and delta; scalars apply to all rows.
fn range<T: Numeric>(ends: &[Tensor; 3], dtype: DType) -> Result<Outputs> {
    let mut rows = None;
    for (input, name) in ends.iter().zip(["starts", "limits", "deltas"]) {
        if input.rank() > 1 {
            return Err(Failure::invalid(format!("{name} must be a scalar or vector, got shape {}", input.shape())));
        }
        if input.rank() == 1 && *rows.get_or_insert(input.len()) != input.len() {
            let [starts, limits, deltas] = ends;
            let shapes = format!("{}, {} and {}", starts.shape(), limits.shape(), deltas.shape());
            return Err(Failure::invalid(format!("starts, limits, and deltas must have the same shape, got {shapes}")));
        }
    }
    let rows = rows.unwrap_or(1);
    let [starts, limits, deltas] = [ends[0].slice::<T>()?, ends[1].slice::<T>()?, ends[2].slice::<T>()?];
    let at = |all: &[T], row: usize| if all.len() == 1 { all[0] } else { all[row] };
    let mut splits = Vec::with_capacity(Shape::from([rows.saturating_add(1)]).checked_elements(DType::I64)?);
    splits.push(0);
    let mut total = 0usize;
    for row in paced(0..rows, 8) {
        let size = range_size(at(starts, row), at(limits, row), at(deltas, row))?;
        total = usize::try_from(size).map_or(usize::MAX, |size| total.saturating_add(size));
        if dtype == DType::I32 && total > i32::MAX as usize {
            let why = "The total range size overflowed. Consider using int64 instead of int32 for row_splits_dtype.";
            return Err(Failure::invalid(why));
        }
        splits.push(total);
    }
    let mut values = Vec::with_capacity(Shape::from([total]).checked_elements(T::DTYPE)?);
    let mut pace = Pace::new();
    for row in 0..rows {
        let (mut value, delta) = (at(starts, row), at(deltas, row));
        for _ in splits[row]..splits[row + 1] {
            pace.go(1);
            values.push(value);
            value = value.add(delta);
        }
    }
    Ok(smallvec![super::call::ints(dtype, [rows + 1], &splits)?, Tensor::vector(values)])
}

/// The number of values from `start` on below `limit`, or above it if `delta` is negative.
fn range_size<T: Numeric>(start: T, limit: T, delta: T) -> Result<u128> {
    if delta == T::ZERO {
        return Err(Failure::invalid("Requires delta != 0"));
    }
    if (delta > T::ZERO && limit < start) || (delta < T::ZERO && limit > start) {
        return Ok(0);
    }
    if !T::DTYPE.is_float() {
        let exact = |x: T| i128::from(x.to_i64());
        return Ok((exact(limit) - exact(start)).unsigned_abs().div_ceil(exact(delta).unsigned_abs()));
    }
    // Rounded to the dtype.
    let quotient = T::from_f64(limit.sub(start).to_f64() / delta.to_f64()).to_f64().abs().ceil();
    if quotient <= i64::MAX as f64 {
        Ok(quotient as u128)
    } else {
        Err(Failure::invalid(format!("Requires ((limit - start) / delta) <= {}", i64::MAX)))
    }
}

/// The splits of rows as indices; `None` if one of them is negative.
fn places(splits: &[i64]) -> Option<Vec<usize>> {
    splits.iter().map(|&split| usize::try_from(split).ok()).collect()
}
