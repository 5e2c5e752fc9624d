//! SparseSegmentSum, -Mean and -SqrtN with their gradients: rows of a table, named by indices, folded by segment.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_type};
use smallvec::smallvec;

use super::super::call::{self, input_dtype, ints, kernel as call, take, vector};
use super::super::real::{self, with_real};
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use crate::math::widened;
use crate::reduce::check_sorted;

/// The divisor of a sum.
#[derive(Clone, Copy, PartialEq)]
enum Divisor {
    One,
    Count,
    RootOfCount,
}

impl Divisor {
    #[inline]
    fn of<T: Numeric>(self, count: usize) -> T {
        T::from_f64(match self {
            Divisor::One => 1.0,
            Divisor::Count => count as f64,
            Divisor::RootOfCount => (count as f64).sqrt(),
        })
    }
}

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseSegmentSum", |node| of_present(node, Divisor::One));
    ops.insert("SparseSegmentMean", |node| of_present(node, Divisor::Count));
    ops.insert("SparseSegmentSqrtN", |node| of_present(node, Divisor::RootOfCount));
    ops.insert("SparseSegmentSumWithNumSegments", |node| of_all(node, Divisor::One));
    ops.insert("SparseSegmentMeanWithNumSegments", |node| of_all(node, Divisor::Count));
    ops.insert("SparseSegmentSqrtNWithNumSegments", |node| of_all(node, Divisor::RootOfCount));
    ops.insert("SparseSegmentSumGrad", |node| back(node, Divisor::One));
    ops.insert("SparseSegmentMeanGrad", |node| back(node, Divisor::Count));
    ops.insert("SparseSegmentSqrtNGrad", |node| back(node, Divisor::RootOfCount));
    ops.insert("SparseSegmentSumGradV2", |node| back_to_rows(node, Divisor::One));
    ops.insert("SparseSegmentMeanGradV2", |node| back_to_rows(node, Divisor::Count));
    ops.insert("SparseSegmentSqrtNGradV2", |node| back_to_rows(node, Divisor::RootOfCount));
}

/// As many segments as there are ids.
fn of_present(node: &KernelNode, divisor: Divisor) -> Result<Option<HostKernel>> {
    Ok(folded(node, divisor, |[data, indices, ids]: [Tensor; 3]| (data, indices, ids, None)))
}

/// As many segments as the last input says.
fn of_all(node: &KernelNode, divisor: Divisor) -> Result<Option<HostKernel>> {
    Ok(folded(node, divisor, |[data, indices, ids, n]: [Tensor; 4]| (data, indices, ids, Some(n))))
}

/// The gradient of [`of_present`].
fn back(node: &KernelNode, divisor: Divisor) -> Result<Option<HostKernel>> {
    Ok(with_real!(input_dtype(node, 0)?, T => real::widened(node, call(move |[gradient, indices, ids, rows]| {
        spread::<T>(&gradient, &indices, &ids, &rows, divisor)
    }))))
}

/// As [`back`], of the rows that an index names alone, with their indices.
fn back_to_rows(node: &KernelNode, divisor: Divisor) -> Result<Option<HostKernel>> {
    let dtype = input_dtype(node, 1)?;
    Ok(with_real!(input_dtype(node, 0)?, T => real::widened(node, Box::new(move |inputs| {
        let [gradient, indices, ids, rows] = take(inputs)?;
        spread_rows::<T>(&gradient, &indices, &ids, &rows, divisor, dtype)
    }))))
}

type Parts = (Tensor, Tensor, Tensor, Option<Tensor>);

fn folded<const N: usize>(node: &KernelNode, divisor: Divisor, parts: fn([Tensor; N]) -> Parts) -> Option<HostKernel> {
    let dtype = node.inputs.first().copied()?;
    if dtype.is_float() {
        return with_real!(dtype, T => real::widened(node, call(move |inputs| {
            let (data, indices, ids, segments) = parts(inputs);
            fold::<T>(&data, &indices, &ids, segments.as_ref(), divisor)
        })));
    }
    widened(dtype, |wide| {
        with_type!(wide, T => call(move |inputs| {
            let (data, indices, ids, segments) = parts(inputs);
            fold::<T>(&data, &indices, &ids, segments.as_ref(), divisor)
        }); I32 i32, I64 i64, U64 u64)
    })
}

/// The segment of each index, after a check.
fn segments(indices: &Tensor, ids: &Tensor) -> Result<(Vec<i64>, Vec<i64>)> {
    let (indices, ids) = (vector(indices, "indices", false)?, vector(ids, "segment_ids", false)?);
    if indices.len() != ids.len() {
        return Err(Failure::invalid(format!(
            "segment_ids and indices should have same size. They have {} and {}",
            ids.len(),
            indices.len()
        )));
    }
    Ok((indices, ids))
}

fn fold<T: Numeric>(
    data: &Tensor,
    indices: &Tensor,
    ids: &Tensor,
    count: Option<&Tensor>,
    divisor: Divisor,
) -> Result<Tensor> {
    let (indices, ids) = segments(indices, ids)?;
    let Some(&rows) = data.dims().first() else {
        return Err(Failure::invalid("data must be at least rank 1, got a scalar"));
    };
    let count = count.map(|count| call::size(count, "num_segments")).transpose()?;
    check_sorted(&ids)?;
    let needed = ids.last().map_or(0, |&last| (last as usize).saturating_add(1));
    if count.is_some_and(|count| count < needed) {
        return Err(Failure::invalid(format!("segment ids must be < num_segments, got {}", needed - 1)));
    }
    let mut dims = data.dims().to_vec();
    dims[0] = count.unwrap_or(needed);
    let shape = Shape::from(dims);
    let mut out = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let width = call::product(&data.dims()[1..]);
    let (data, mut pace, mut first) = (data.slice::<T>()?, Pace::new(), 0);
    for same in ids.chunk_by(|a, b| a == b) {
        let to = &mut out[same[0] as usize * width..][..width];
        for (i, &row) in indices[first..first + same.len()].iter().enumerate() {
            pace.go(width + 4);
            let row = usize::try_from(row).ok().filter(|&row| row < rows).ok_or_else(|| {
                Failure::invalid(format!("Bad: indices[{}] == {row} out of range [0, {rows})", first + i))
            })?;
            to.iter_mut().zip(&data[row * width..]).for_each(|(sum, &x)| *sum = sum.add(x));
        }
        if divisor != Divisor::One {
            let by = divisor.of::<T>(same.len()).to_f64();
            to.iter_mut().for_each(|sum| *sum = T::from_f64(sum.to_f64() / by));
        }
        first += same.len();
    }
    Ok(Tensor::from_vec(shape, out))
}

/// The index, if it is within the size.
fn inside(at: i64, size: usize, what: &str) -> Result<usize> {
    usize::try_from(at)
        .ok()
        .filter(|&at| at < size)
        .ok_or_else(|| Failure::invalid(format!("{what} {at} out of range [0, {size})")))
}

/// The gradient: each row that an index names receives the gradient of its segment.
fn spread<T: Numeric>(
    gradient: &Tensor,
    indices: &Tensor,
    ids: &Tensor,
    rows: &Tensor,
    divisor: Divisor,
) -> Result<Tensor> {
    let (indices, ids) = segments(indices, ids)?;
    let rows = call::size(rows, "output_dim0")?;
    let to = indices.iter().map(|&row| inside(row, rows, "Index")).collect::<Result<Vec<_>>>();
    spread_to::<T>(gradient, to, &ids, rows, divisor)
}

/// The gradient of the rows that an index names, in the order of their indices, which are the second output.
fn spread_rows<T: Numeric>(
    gradient: &Tensor,
    indices: &Tensor,
    ids: &Tensor,
    rows: &Tensor,
    divisor: Divisor,
    dtype: DType,
) -> Result<Outputs> {
    for (tensor, name) in [(indices, "indices"), (ids, "segment_ids")] {
        if tensor.rank() != 1 {
            return Err(Failure::invalid(format!("{name} should be a vector. Its shape is {}", tensor.shape())));
        }
    }
    if rows.rank() != 0 {
        let text = format!("dense_output_dim0 should be a scalar. Its shape is {}", rows.shape());
        return Err(Failure::invalid(text));
    }
    let rows = rows.to_i64()?;
    let rows =
        usize::try_from(rows).map_err(|_| Failure::invalid(format!("Expected a non-negative size, got {rows}")))?;
    let (indices, ids) = if rows == 0 { (Vec::new(), Vec::new()) } else { segments(indices, ids)? };
    let mut named: Vec<i64> = indices.clone();
    named.sort_unstable();
    named.dedup();
    let place = |row: &i64| {
        inside(*row, rows, "Index")?;
        Ok(named.partition_point(|other| other < row))
    };
    let to = indices.iter().map(place).collect::<Result<Vec<_>>>();
    let sums = spread_to::<T>(gradient, to, &ids, named.len(), divisor)?;
    let named: Vec<usize> = named.into_iter().map(|row| row as usize).collect();
    Ok(smallvec![sums, ints(dtype, [named.len()], &named)?])
}

/// Adds to each row the gradients of the segments of its indices. The places of the indices in the output are checked after
/// the segments.
fn spread_to<T: Numeric>(
    gradient: &Tensor,
    to: Result<Vec<usize>>,
    ids: &[i64],
    rows: usize,
    divisor: Divisor,
) -> Result<Tensor> {
    let Some(&segments) = gradient.dims().first() else {
        return Err(Failure::invalid("grad must be at least rank 1, got a scalar"));
    };
    let mut dims = gradient.dims().to_vec();
    dims[0] = rows;
    let shape = Shape::from(dims);
    let mut out = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let width = call::product(&gradient.dims()[1..]);
    if ids.last().is_some_and(|&last| last >= segments as i64) {
        return Err(Failure::invalid("Invalid number of segments"));
    }
    let mut counts = vec![0usize; segments];
    for &id in ids {
        counts[inside(id, segments, "Segment id")?] += 1;
    }
    let (gradient, mut pace) = (gradient.slice::<T>()?, Pace::new());
    for (row, &id) in to?.into_iter().zip(ids) {
        pace.go(width + 4);
        let id = id as usize;
        let by = divisor.of::<T>(counts[id]).to_f64();
        let from = &gradient[id * width..][..width];
        for (sum, &x) in out[row * width..][..width].iter_mut().zip(from) {
            *sum = sum.add(if divisor == Divisor::One { x } else { T::from_f64(x.to_f64() / by) });
        }
    }
    Ok(Tensor::from_vec(shape, out))
}
