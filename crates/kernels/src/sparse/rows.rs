//! SparseFillEmptyRows with its gradient, SparseSoftmax, SparseReduceSum and SparseReduceMax: ops over the elements of
//! each row.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Float, Numeric, Ring, Shape, Tensor, with_number, with_type};
use smallvec::smallvec;

use super::super::call::{self, check_copies, input_dtype, kernel as call, take, vector};
use super::super::math::widened;
use super::super::real::exp;
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::{Sparse, matrix, picked};
use crate::array::{join, not_held};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseFillEmptyRows", |_| {
        Ok(Some(Box::new(|inputs| {
            let [indices, values, shape, default] = take(inputs)?;
            fill_empty_rows(&indices, values, &shape, &default)
        }) as HostKernel))
    });
    ops.insert("RaggedFillEmptyRows", |_| {
        Ok(Some(Box::new(|inputs| {
            let [rows, values, count, default] = take(inputs)?;
            fill_empty_ragged_rows(&rows, values, &count, &default)
        }) as HostKernel))
    });
    ops.insert_all(["SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad"], |node| {
        Ok(with_number!(input_dtype(node, 1)?, T => Box::new(|inputs| {
            let [places, gradients] = take(inputs)?;
            fill_empty_rows_gradient::<T>(&places, &gradients)
        }) as HostKernel))
    });
    ops.insert("SparseSoftmax", |node| {
        Ok(with_type!(input_dtype(node, 1)?, T => call(|[indices, values, shape]: [Tensor; 3]| {
            softmax::<T>(&Sparse::within(&indices, values, &shape)?)
        }); F16 half::f16, F32 f32, F64 f64))
    });
    ops.insert("SparseReduceSum", |node| reduction(node, true));
    ops.insert("SparseReduceMax", |node| reduction(node, false));
}

/// The sums or the greatest elements along some axes.
fn reduction(node: &KernelNode, is_sum: bool) -> Result<Option<HostKernel>> {
    let keeps = node.attrs.bool("keep_dims")?;
    Ok(widened(input_dtype(node, 1)?, |wide| {
        with_type!(wide, T => {
            let fold = move |a: T, b: T| if is_sum { a.add(b) } else if b > a { b } else { a };
            call(move |[indices, values, shape, axes]: [Tensor; 4]| {
                reduce::<T>(&Sparse::within(&indices, values, &shape)?, &axes, keeps, fold)
            })
        }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    }))
}

/// Inserts `default` into each empty row, at its first position.
fn fill_empty_rows(indices: &Tensor, values: Tensor, shape: &Tensor, default: &Tensor) -> Result<Outputs> {
    let sparse = Sparse::of(indices, values, shape)?;
    if default.rank() > 0 {
        return Err(Failure::invalid(format!("default_value must be a scalar, saw: {}", default.shape())));
    }
    let Some(&size) = sparse.dims.first() else {
        return Err(Failure::invalid("Dense shape cannot be empty."));
    };
    let rows = Shape::from_i64s(&[size])?.dims()[0];
    // For each row the number of its elements and its first position; for each element its new position.
    Shape::from([rows.saturating_add(sparse.len()), 4]).checked_elements(DType::I64)?;
    let mut count = vec![0usize; rows];
    for (i, row) in sparse.rows().enumerate() {
        let row = usize::try_from(row[0]).ok().filter(|&row| row < rows);
        let row =
            row.ok_or_else(|| Failure::invalid(format!("indices({i}, 0) is invalid: {} >= {rows}", sparse.row(i)[0])))?;
        count[row] += 1;
    }
    // The position of the next element of each row; elements keep their order within it.
    let mut next = Vec::with_capacity(rows);
    let mut total = 0;
    for &count in &count {
        next.push(total);
        total += count.max(1);
    }
    let rank = sparse.rank();
    Shape::from([total, rank]).checked_elements(DType::I64)?;
    check_copies(default, total)?;
    let mut at = vec![0i64; total * rank];
    // The last value is the default.
    let mut sources = vec![sparse.len(); total];
    let mut places = Vec::with_capacity(sparse.len());
    for (row, _) in count.iter().enumerate().filter(|(_, count)| **count == 0) {
        at[next[row] * rank] = row as i64;
    }
    for (i, row) in sparse.rows().enumerate() {
        let place = next[row[0] as usize];
        next[row[0] as usize] += 1;
        at[place * rank..][..rank].copy_from_slice(row);
        sources[place] = i;
        places.push(place as i64);
    }
    let dtype = sparse.values.dtype();
    let last = default.clone().reshaped(Shape::from([1]))?;
    if last.dtype() != dtype {
        return not_held(dtype);
    }
    let with_default = join(&[sparse.values.clone(), last], 0, [sparse.len() + 1].into())?.remove(0);
    let is_empty: Vec<bool> = count.iter().map(|&count| count == 0).collect();
    Ok(smallvec![
        matrix(at, total, rank),
        picked(&with_default, &sources)?,
        Tensor::vector(is_empty),
        Tensor::vector(places)
    ])
}

/// As [`fill_empty_rows`], of a ragged tensor, whose rows are given by a number for each value.
fn fill_empty_ragged_rows(rows: &Tensor, values: Tensor, count: &Tensor, default: &Tensor) -> Result<Outputs> {
    let &[elements] = rows.dims() else {
        return Err(Failure::invalid(format!("value_rowids must be a vector, saw: {}", rows.shape())));
    };
    if values.rank() != 1 {
        return Err(Failure::invalid(format!("values must be a vector, saw: {}", values.shape())));
    }
    if count.rank() != 0 {
        return Err(Failure::invalid(format!("nrows must be a scalar, saw: {}", count.shape())));
    }
    let shape = Tensor::vector(vec![count.to_i64()?]);
    let indices = rows.clone().reshaped(Shape::from([elements, 1]))?;
    let mut outputs = fill_empty_rows(&indices, values, &shape, default)?;
    let total = outputs[0].len();
    // TensorFlow leaves the numbers of no rows a matrix.
    if shape.slice::<i64>()? == [0] {
        return Ok(outputs);
    }
    outputs[0] = outputs[0].clone().reshaped(Shape::from([total]))?;
    Ok(outputs)
}

fn fill_empty_rows_gradient<T: Numeric>(places: &Tensor, gradients: &Tensor) -> Result<Outputs> {
    let places = vector(places, "reverse_index_map", false)?;
    if gradients.rank() != 1 {
        return Err(Failure::invalid(format!("grad_values must be a vector, saw: {}", gradients.shape())));
    }
    let gradients = gradients.slice::<T>()?;
    let mut is_own = vec![false; gradients.len()];
    let mut by_values = Vec::with_capacity(places.len());
    for &place in &places {
        let at = usize::try_from(place).ok().filter(|&at| at < gradients.len());
        let at = at.ok_or_else(|| {
            Failure::invalid(format!("Elements in reverse index must be in [0, {}) but got {place}", gradients.len()))
        })?;
        is_own[at] = true;
        by_values.push(gradients[at]);
    }
    let rest = gradients.iter().zip(&is_own).filter(|(_, own)| !**own).fold(T::ZERO, |sum, (&x, _)| sum.add(x));
    Ok(smallvec![Tensor::vector(by_values), Tensor::scalar(rest)])
}

/// Softmax over the elements of each row of the last axis; missing elements count as minus infinity.
fn softmax<T: Float>(sparse: &Sparse) -> Result<Tensor> {
    if sparse.rank() < 2 {
        return Err(Failure::invalid(format!("Input should have rank >= 2, not {}", sparse.rank())));
    }
    let mut out = sparse.values.slice::<T>()?.to_vec();
    let order = sparse.order();
    let group = |i: &usize| &sparse.row(*i)[..sparse.rank() - 1];
    for same in order.chunk_by(|a, b| group(a) == group(b)) {
        let greatest = same.iter().fold(T::LOWEST, |greatest, &i| if out[i] > greatest { out[i] } else { greatest });
        same.iter().for_each(|&i| out[i] = exp(out[i] - greatest));
        let sum = same.iter().fold(T::ZERO, |sum, &i| sum + out[i]);
        same.iter().for_each(|&i| out[i] = out[i] / sum);
    }
    Ok(Tensor::vector(out))
}

/// Elements folded over axes; zero where there are none.
fn reduce<T: Numeric>(sparse: &Sparse, axes: &Tensor, keeps: bool, fold: impl Fn(T, T) -> T) -> Result<Tensor> {
    let axes = vector(axes, "reduction_axes", true)?;
    let axes = axes.into_iter().map(|axis| {
        let rank = sparse.rank() as i64;
        call::axis(axis, sparse.rank()).map_err(|_| {
            Failure::invalid(format!("Invalid reduction dimension {axis}, for input with {rank} dimensions."))
        })
    });
    let axes = axes.collect::<Result<Vec<usize>>>()?;
    let is_reduced = |axis: usize| axes.contains(&axis);
    let kept: Vec<usize> = (0..sparse.rank()).filter(|&axis| !is_reduced(axis)).collect();
    let sizes = kept.iter().map(|&axis| sparse.dims[axis]).collect::<Vec<_>>();
    let sizes = Shape::from_i64s(&sizes)?;
    let mut out = vec![None; sizes.checked_elements(T::DTYPE)?];
    let values = sparse.values.slice::<T>()?;
    // In the order of the indices, so that the rounding of sums does not depend on the order of the input.
    for i in sparse.order() {
        let row = sparse.row(i);
        let place = kept.iter().zip(sizes.dims()).fold(0, |place, (&axis, &size)| place * size + row[axis] as usize);
        out[place] = Some(out[place].map_or(values[i], |sum| fold(sum, values[i])));
    }
    let out: Vec<T> = out.into_iter().map(|sum| sum.unwrap_or(T::ZERO)).collect();
    let dims: Vec<i64> = (0..sparse.rank())
        .filter(|&axis| keeps || !is_reduced(axis))
        .map(|axis| if is_reduced(axis) { 1 } else { sparse.dims[axis] })
        .collect();
    Ok(Tensor::from_vec(Shape::from_i64s(&dims)?, out))
}
