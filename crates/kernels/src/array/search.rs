//! TopKV2, InTopKV2, LowerBound, UpperBound and Where: positions found by value.

use std::cmp::Ordering;

use meshtf_loops::chunks::{chunk, in_chunks, threads};
use meshtf_loops::turn::{Pace, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_complex, with_type};

use super::super::call::{self, input_dtype, kernel as call, output_dtype};
use super::super::math::{cast, map_to, wide};
use super::super::{HostKernel, KernelNode, Registry};
use super::gather::indices_of;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("TopKV2", |node| {
        let (dtype, index) = (input_dtype(node, 0)?, output_dtype(node, 1)?);
        Ok(with_type!(wide(dtype), T => Box::new(move |inputs| {
                let [x, k] = call::take(inputs)?;
                let [values, places] = top_k::<T>(&cast(x, wide(dtype))?, &k)?;
                Ok([cast(values, dtype)?, cast(places, index)?].into_iter().collect())
            }) as HostKernel; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64))
    });
    ops.insert("InTopKV2", |_| Ok(Some(call(|[predictions, targets, k]| in_top_k(&predictions, &targets, &k)))));
    // An unordered pair, with a NaN, is not less for the lower bound, and not greater for the upper one.
    ops.insert("LowerBound", |node| bounds(node, |order| order == Some(Ordering::Less)));
    ops.insert("UpperBound", |node| bounds(node, |order| order != Some(Ordering::Greater)));
    ops.insert("Where", |node| {
        let dtype = input_dtype(node, 0)?;
        Ok((dtype.is_differentiable() || dtype.is_integer() || dtype == DType::Bool).then(|| {
            call(|[x]| {
                let is_set = with_complex!(x.dtype(), T => map_to(&x, |&x: &T| x != <T as Default>::default()));
                places_where(&is_set.unwrap_or_else(|| cast(x, DType::Bool))?)
            })
        }))
    });
}

fn bounds(node: &KernelNode, is_before: Before) -> Result<Option<HostKernel>> {
    let (dtype, index) = (input_dtype(node, 0)?, output_dtype(node, 0)?);
    Ok(with_type!(wide(dtype), T => call(move |[sorted, values]| {
        bound::<T>(&cast(sorted, wide(dtype))?, &cast(values, wide(dtype))?, index, is_before)
    }); F32 f32, F64 f64, I32 i32, I64 i64, U64 u64))
}

/// Descending order; NaN is less than every number.
#[inline]
fn descending<T: Numeric>(x: &T, y: &T) -> Ordering {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    y.partial_cmp(x).unwrap_or_else(|| is_nan(x).cmp(&is_nan(y)))
}

/// The work of comparing two elements that are apart in memory, in elements.
const COMPARISON: usize = 8;

fn top_k<T: Numeric>(x: &Tensor, k: &Tensor) -> Result<[Tensor; 2]> {
    let k = match *indices_of(k)?.as_slice() {
        [k] if k >= 0 => k as usize,
        [k] => return Err(Failure::invalid(format!("Need k >= 0, got {k}"))),
        _ => return Err(Failure::invalid(format!("k must be scalar, got shape {}", k.shape()))),
    };
    let Some(&columns) = x.dims().last() else {
        return Err(Failure::invalid("input must be >= 1-D, got shape []"));
    };
    if columns < k {
        return Err(Failure::invalid(format!("input must have at least k columns. Had {columns}, needed {k}")));
    }
    let mut dims = x.dims().to_vec();
    dims[x.rank() - 1] = k;
    let answers = Shape::from(dims.as_slice()).checked_elements(DType::I64)?;
    let orders = columns * size_of::<usize>() * threads();
    memory::admit(answers * (size_of::<T>() + size_of::<i64>()) + orders)?;
    let (mut values, mut places) = (vec![T::ZERO; answers], vec![0i64; answers]);
    if answers > 0 {
        let rows = chunk(COMPARISON * columns);
        let found = values.chunks_mut(rows * k).zip(places.chunks_mut(rows * k));
        in_chunks(x.slice::<T>()?.chunks(rows * columns).zip(found), |(rows, (values, places))| {
            top_k_of_rows(rows, columns, values, places, k);
        });
    }
    Ok([Tensor::from_vec(dims.as_slice(), values), Tensor::from_vec(dims, places)])
}

/// Writes the greatest `k` elements of each row, and their indices.
fn top_k_of_rows<T: Numeric>(rows: &[T], columns: usize, values: &mut [T], places: &mut [i64], k: usize) {
    let mut order: Vec<usize> = Vec::with_capacity(columns);
    let mut pace = Pace::new();
    let answers = values.chunks_exact_mut(k).zip(places.chunks_exact_mut(k));
    for (row, (values, places)) in rows.chunks_exact(columns).zip(answers) {
        order.clear();
        order.extend(0..columns);
        // Equal elements keep their order.
        let mut by = |&a: &usize, &b: &usize| {
            pace.go(COMPARISON);
            descending(&row[a], &row[b]).then(a.cmp(&b))
        };
        if k < columns {
            order.select_nth_unstable_by(k - 1, &mut by);
            order.truncate(k);
        }
        order.sort_unstable_by(by);
        for ((value, place), &i) in values.iter_mut().zip(places).zip(&order) {
            (*value, *place) = (row[i], i as i64);
        }
    }
}

/// Whether fewer than `k` predictions of a row are greater than the target's.
fn in_top_k(predictions: &Tensor, targets: &Tensor, k: &Tensor) -> Result<Tensor> {
    let (k, classes) = (k.to_i64()?, targets.to_i64s()?);
    let &[rows, columns] = predictions.dims() else {
        return Err(Failure::invalid("predictions must be 2-dimensional"));
    };
    if targets.rank() != 1 || classes.len() != rows {
        return Err(Failure::invalid(format!(
            "First dimension of predictions {rows} must match length of targets {}",
            classes.len()
        )));
    }
    let predictions = predictions.slice::<f32>()?;
    let within = paced(classes.iter(), 2 * columns).enumerate().map(|(i, &class)| {
        let row = &predictions[i * columns..(i + 1) * columns];
        let target = usize::try_from(class).ok().and_then(|class| row.get(class)).filter(|target| target.is_finite());
        target.is_some_and(|target| {
            row.iter().all(|x| x.is_finite()) && (row.iter().filter(|x| *x > target).count() as i64) < k
        })
    });
    Ok(Tensor::vector(within.collect()))
}

/// Whether an element with this order relative to a value comes before it.
type Before = fn(Option<Ordering>) -> bool;

/// For each value, the number of elements of its sorted row that come before it.
fn bound<T: Numeric>(sorted: &Tensor, values: &Tensor, index: DType, is_before: Before) -> Result<Tensor> {
    let (&[rows, columns], &[value_rows, value_columns]) = (sorted.dims(), values.dims()) else {
        return Err(Failure::invalid(format!(
            "sorted_inputs and values must be matrices, got shapes {} and {}",
            sorted.shape(),
            values.shape()
        )));
    };
    if rows != value_rows {
        return Err(Failure::invalid(format!(
            "Leading dim_size of both tensors must match. Got {rows} and {value_rows}"
        )));
    }
    memory::admit(values.len() * 2 * size_of::<usize>())?;
    let (sorted, wanted) = (sorted.slice::<T>()?, values.slice::<T>()?);
    let places: Vec<usize> = paced(wanted.iter(), 32 * COMPARISON)
        .enumerate()
        .map(|(i, value)| {
            let row = i / value_columns;
            sorted[row * columns..(row + 1) * columns].partition_point(|x| is_before(x.partial_cmp(value)))
        })
        .collect();
    call::ints(index, values.shape().clone(), &places)
}

/// The coordinates of every true element, in order.
fn places_where(x: &Tensor) -> Result<Tensor> {
    if x.rank() == 0 {
        return Err(Failure::invalid("WhereOp : Unhandled input dimensions: 0; the input must not be a scalar"));
    }
    let strides = x.shape().strides();
    let rows = x.slice::<bool>()?.iter().filter(|x| **x).count();
    let mut coordinates: Vec<i64> = Vec::with_capacity(Shape::from([rows, x.rank()]).checked_elements(DType::I64)?);
    for (i, _) in paced(x.slice::<bool>()?.iter(), x.rank()).enumerate().filter(|(_, x)| **x) {
        coordinates.extend(x.dims().iter().zip(&strides).map(|(&size, &stride)| (i / stride % size) as i64));
    }
    Ok(Tensor::from_vec([rows, x.rank()], coordinates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_of_many_rows_are_those_of_a_sort() {
        for (rows, columns, k) in [(1, 5, 5), (700, 300, 7), (3000, 1000, 1), (3, 200_000, 40), (0, 4, 2), (5, 3, 0)] {
            let xs: Vec<f32> = (0..rows * columns).map(|i| (i * 7919 % 1013) as f32).collect();
            let x = Tensor::from_vec([rows, columns], xs.clone());
            let [values, places] = top_k::<f32>(&x, &Tensor::scalar(k as i32)).unwrap();
            let (mut want, mut of) = (Vec::new(), Vec::new());
            for row in xs.chunks(columns) {
                let mut order: Vec<usize> = (0..columns).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                want.extend(order[..k].iter().map(|&i| row[i]));
                of.extend(order[..k].iter().map(|&i| i as i64));
            }
            assert!(values == Tensor::from_vec([rows, k], want), "{k} of {rows}x{columns}");
            assert!(places == Tensor::from_vec([rows, k], of), "{k} of {rows}x{columns}");
        }
    }
}
