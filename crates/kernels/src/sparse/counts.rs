//! SparseBincount, RaggedBincount and the CountSparseOutput ops: how often each value occurs in each row.

use std::collections::BTreeMap;

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, memory, with_type};
use smallvec::smallvec;

use super::super::call::{self, kernel as call, output_dtype, take};
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::matrix;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseBincount", |node| {
        let binary = node.attrs.bool("binary_output")?;
        Ok(with_type!(output_dtype(node, 0)?, T => call(move |[indices, values, shape, size, weights]: [Tensor; 5]| {
            let rows = sparse_rows(&indices, &values, &shape)?;
            bins::<T>(&rows, &values, &size, &weights, binary)
        }); F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("RaggedBincount", |node| {
        let binary = node.attrs.bool("binary_output")?;
        Ok(with_type!(output_dtype(node, 0)?, T => call(move |[splits, values, size, weights]: [Tensor; 4]| {
            let rows = ragged_rows(&splits, &values)?;
            bins::<T>(&rows, &values, &size, &weights, binary)
        }); F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("DenseCountSparseOutput", |node| {
        let limits = Limits::of(node)?;
        Ok(with_type!(output_dtype(node, 1)?, T => Box::new(move |inputs| {
            let [values, weights] = take(inputs)?;
            counts::<T>(&dense_rows(&values)?, &values, &weights, &limits)
        }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("SparseCountSparseOutput", |node| {
        let limits = Limits::of(node)?;
        Ok(with_type!(output_dtype(node, 1)?, T => Box::new(move |inputs| {
            let [indices, values, shape, weights] = take(inputs)?;
            let rows = sparse_rows(&indices, &values, &shape)?;
            if rows.count == Some(0) {
                return Err(Failure::invalid("Cannot allocate 0 batches, is the dense shape too wide?"));
            }
            counts::<T>(&rows, &values, &weights, &limits)
        }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64))
    });
    ops.insert("RaggedCountSparseOutput", |node| {
        let limits = Limits::of(node)?;
        Ok(with_type!(output_dtype(node, 1)?, T => Box::new(move |inputs| {
            let [splits, values, weights] = take(inputs)?;
            counts::<T>(&ragged_rows(&splits, &values)?, &values, &weights, &limits)
        }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64))
    });
}

/// The row of each value.
struct Rows {
    /// The number of rows; `None` if the values have no rows.
    count: Option<usize>,
    of: Vec<usize>,
}

fn dense_rows(values: &Tensor) -> Result<Rows> {
    match *values.dims() {
        [count] => Ok(Rows { count: None, of: vec![0; count] }),
        [rows, width] if rows > 0 => Ok(Rows { count: Some(rows), of: (0..rows * width).map(|i| i / width).collect() }),
        [_, _] => Err(Failure::invalid("Invalid input: Shapes dimension cannot be 0.")),
        _ => {
            let text = format!("Input must be a 1 or 2-dimensional tensor. Got: {}", values.shape());
            Err(Failure::invalid(text))
        }
    }
}

fn sparse_rows(indices: &Tensor, values: &Tensor, shape: &Tensor) -> Result<Rows> {
    let (&[count, width], &[values_count], &[rank]) = (indices.dims(), values.dims(), shape.dims()) else {
        return Err(Failure::invalid(format!(
            "Input indices must be a 2-dimensional tensor, values and shape vectors. Got: {}, {} and {}",
            indices.shape(),
            values.shape(),
            shape.shape()
        )));
    };
    if count != values_count {
        return Err(Failure::invalid(format!(
            "Number of values must match first dimension of indices. Got {values_count} values, indices shape: {}",
            indices.shape()
        )));
    }
    if width != rank {
        return Err(Failure::invalid(format!(
            "Number of dimensions must match second dimension of indices. Got {rank} dimensions, indices shape: {}",
            indices.shape()
        )));
    }
    if rank == 0 {
        return Err(Failure::invalid("The shape argument requires at least one element."));
    }
    let (at, dims) = (indices.to_i64s()?, shape.to_i64s()?);
    Shape::from_i64s(&dims)?;
    for (i, row) in at.chunks_exact(width).enumerate() {
        if let Some(j) = (0..width).find(|&j| !(0..dims[j]).contains(&row[j])) {
            return Err(Failure::invalid(format!(
                "Invalid index value at {i}: dimension {j} has value {} which is not in [0, {}) (as given by dense shape {dims:?})",
                row[j], dims[j]
            )));
        }
    }
    let of = at.chunks_exact(width).map(|row| if rank == 1 { 0 } else { row[0] as usize }).collect();
    Ok(Rows { count: (rank > 1).then_some(dims[0] as usize), of })
}

fn ragged_rows(splits: &Tensor, values: &Tensor) -> Result<Rows> {
    let ends = splits.to_i64s()?;
    let count = values.len();
    if ends.len() < 2 {
        return Err(Failure::invalid("Must provide at least 2 elements for the splits argument"));
    }
    if ends[0] != 0 {
        return Err(Failure::invalid(format!("Splits must start with 0, not with {}", ends[0])));
    }
    let last = ends[ends.len() - 1];
    if last != count as i64 {
        let text = format!("Splits must end with the number of values, got {last} instead of {count}");
        return Err(Failure::invalid(text));
    }
    if !ends.is_sorted() {
        return Err(Failure::invalid(format!("Splits must not decrease, got {ends:?}")));
    }
    let rows = ends.windows(2).enumerate();
    let of = rows.flat_map(|(row, ends)| std::iter::repeat_n(row, (ends[1] - ends[0]) as usize)).collect();
    Ok(Rows { count: Some(ends.len() - 1), of })
}

/// The weights, if there are any, which must be as many as the values.
fn weights_of<'a, T: Numeric>(weights: &'a Tensor, values: &Tensor) -> Result<Option<&'a [T]>> {
    if weights.is_empty() {
        return Ok(None);
    }
    if weights.shape() != values.shape() {
        return Err(Failure::invalid(format!(
            "Weights and values must have the same shape. Weight shape: {}; values shape: {}",
            weights.shape(),
            values.shape()
        )));
    }
    weights.slice::<T>().map(Some)
}

/// A row of bins for each row.
fn bins<T: Numeric>(rows: &Rows, values: &Tensor, size: &Tensor, weights: &Tensor, binary: bool) -> Result<Tensor> {
    let size = call::size(size, "size")?;
    let shape: Shape = rows.count.into_iter().chain([size]).collect();
    let mut out = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (numbers, weights) = (values.to_i64s()?, weights_of::<T>(weights, values)?);
    let mut pace = Pace::new();
    for (i, (&row, &value)) in rows.of.iter().zip(&numbers).enumerate() {
        pace.go(8);
        let bin =
            usize::try_from(value).map_err(|_| Failure::invalid(format!("Input must be non-negative, got {value}")))?;
        if bin < size {
            let count = &mut out[row * size + bin];
            *count = if binary { T::ONE } else { count.add(weights.map_or(T::ONE, |weights| weights[i])) };
        }
    }
    Ok(Tensor::from_vec(shape, out))
}

/// The values that are counted.
struct Limits {
    minimum: i64,
    /// Greater values are not counted; no limit if this is not positive.
    maximum: i64,
    binary: bool,
}

impl Limits {
    fn of(node: &KernelNode) -> Result<Limits> {
        let (minimum, maximum) = (node.attrs.int("minlength")?, node.attrs.int("maxlength")?);
        Ok(Limits { minimum, maximum, binary: node.attrs.bool("binary_output")? })
    }
}

/// The counts as a sparse tensor: of each row, the values that occur.
fn counts<T: Numeric>(rows: &Rows, values: &Tensor, weights: &Tensor, limits: &Limits) -> Result<Outputs> {
    let (numbers, weights) = (values.to_i64s()?, weights_of::<T>(weights, values)?);
    if numbers.iter().any(|&value| value < 0) {
        return Err(Failure::invalid("Input values must all be non-negative"));
    }
    // A value may need an entry of its own, with the tree's share.
    memory::admit(numbers.len().saturating_mul(64))?;
    let mut counts: BTreeMap<(usize, i64), T> = BTreeMap::new();
    let (mut greatest, mut pace) = (0, Pace::new());
    for (i, (&row, &value)) in rows.of.iter().zip(&numbers).enumerate() {
        pace.go(64);
        if limits.maximum > 0 && value >= limits.maximum {
            continue;
        }
        let count = counts.entry((row, value)).or_insert(T::ZERO);
        *count = if limits.binary { T::ONE } else { count.add(weights.map_or(T::ONE, |weights| weights[i])) };
        greatest = greatest.max(value);
    }
    let width = if limits.maximum > 0 { limits.maximum } else { (greatest.saturating_add(1)).max(limits.minimum) };
    let rank = 1 + usize::from(rows.count.is_some());
    Shape::from([counts.len(), rank]).checked_elements(DType::I64)?;
    let mut at = Vec::with_capacity(counts.len() * rank);
    for &(row, value) in counts.keys() {
        at.extend(rows.count.map(|_| row as i64));
        at.push(value);
    }
    let shape: Vec<i64> = rows.count.map(|count| count as i64).into_iter().chain([width]).collect();
    let found = counts.len();
    Ok(smallvec![
        matrix(at, found, rank),
        Tensor::vector(counts.into_values().collect::<Vec<T>>()),
        Tensor::vector(shape)
    ])
}
