//! SparseAdd with its gradient, and sparse with dense tensors: sums, products and matrix products.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Ring, Shape, Tensor, with_float, with_integer, with_number, with_ring, with_type};
use smallvec::smallvec;

use super::super::call::{self, input_dtype, kernel as call, take};
use super::super::math::widened;
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::{Sparse, matrix};
use crate::math::cast;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseAdd", |node| {
        Ok(with_number!(input_dtype(node, 1)?, T => Box::new(|inputs| {
            let [indices, values, shape, b_indices, b_values, b_shape, threshold] = take(inputs)?;
            let (a, b) = (Sparse::of(&indices, values, &shape)?, Sparse::of(&b_indices, b_values, &b_shape)?);
            add::<T>(&a, &b, cast(threshold, DType::F64)?.item::<f64>()?)
        }) as HostKernel))
    });
    ops.insert("SparseAddGrad", |node| {
        Ok(with_number!(input_dtype(node, 0)?, T => Box::new(|inputs| {
            let [gradient, a, b, sum] = take(inputs)?;
            Ok(smallvec![add_gradient::<T>(&gradient, &a, &sum)?, add_gradient::<T>(&gradient, &b, &sum)?])
        }) as HostKernel))
    });
    ops.insert("SparseTensorDenseMatMul", |node| {
        let (adjoint_a, adjoint_b) = (node.attrs.bool("adjoint_a")?, node.attrs.bool("adjoint_b")?);
        Ok(with_type!(input_dtype(node, 1)?, T => call(move |[indices, values, shape, b]: [Tensor; 4]| {
                multiply::<T>(&Sparse::of(&indices, values, &shape)?, &b, adjoint_a, adjoint_b)
            }); F32 f32, F64 f64, I32 i32, BF16 half::bf16))
    });
    ops.insert("SparseTensorDenseAdd", |node| {
        Ok(with_ring!(input_dtype(node, 1)?, T => {
            call(move |[indices, values, shape, b]: [Tensor; 4]| {
                let sparse = Sparse::within(&indices, values, &shape).map_err(|failure| {
                    Failure::new(failure.code, format!("Sparse tensor has an invalid index: {}", failure.message))
                })?;
                add_to::<T>(&sparse, b)
            })
        }))
    });
    ops.insert("SparseDenseCwiseAdd", |node| folded(node, true));
    ops.insert("SparseDenseCwiseMul", |node| folded(node, false));
    ops.insert("SparseDenseCwiseDiv", |node| {
        let dtype = input_dtype(node, 1)?;
        let floats = with_float!(dtype, T => call(|[indices, values, shape, dense]: [Tensor; 4]| {
            with_dense::<T>(&Sparse::within(&indices, values, &shape)?, &dense, |a, b| Ok(a / b))
        }));
        Ok(floats.or_else(|| {
            with_integer!(dtype, T => call(|[indices, values, shape, dense]: [Tensor; 4]| {
                let divide = |a: T, b: T| meshtf_tensor::Integer::checked_div(a, b);
                let divide = |a: T, b: T| divide(a, b).ok_or_else(|| Failure::invalid("Integer division by zero"));
                with_dense::<T>(&Sparse::within(&indices, values, &shape)?, &dense, divide)
            }))
        }))
    });
}

/// The sums or products of the elements of a sparse and a dense tensor.
fn folded(node: &KernelNode, is_sum: bool) -> Result<Option<HostKernel>> {
    Ok(widened(input_dtype(node, 1)?, |wide| {
        with_type!(wide, T => {
            let fold = move |a: T, b: T| Ok(if is_sum { a.add(b) } else { a.mul(b) });
            call(move |[indices, values, shape, dense]: [Tensor; 4]| {
                with_dense::<T>(&Sparse::within(&indices, values, &shape)?, &dense, fold)
            })
        }; F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    }))
}

/// The sum of two tensors of one shape, whose elements are in order. Elements of both are added, and omitted if the sum
/// is nearer to zero than `threshold`.
fn add<T: Numeric>(a: &Sparse, b: &Sparse, threshold: f64) -> Result<Outputs> {
    if a.dims != b.dims {
        return Err(Failure::invalid(format!("Operands' shapes do not match: got {:?} and {:?}", a.dims, b.dims)));
    }
    let (own, other) = (a.values.slice::<T>()?, b.values.slice::<T>()?);
    let (mut at, mut values) = (Vec::new(), Vec::new());
    for (row, i, j) in a.merged(b) {
        let value = match (i, j) {
            (Some(i), Some(j)) => {
                let sum = own[i].add(other[j]);
                // Not so for NaN, which is kept.
                if sum.to_f64().abs() < threshold {
                    continue;
                }
                sum
            }
            (Some(i), None) => own[i],
            (None, Some(j)) => other[j],
            (None, None) => continue,
        };
        at.extend_from_slice(row);
        values.push(value);
    }
    Ok(smallvec![matrix(at, values.len(), a.rank()), Tensor::vector(values), Tensor::vector(a.dims.clone())])
}

/// The gradient of each element of a summand: that of the sum's element with the same index, if there is one. All
/// elements are in order.
fn add_gradient<T: Numeric>(gradient: &Tensor, of: &Tensor, sum: &Tensor) -> Result<Tensor> {
    let ([rows, width], [sums_count, sum_width]) = (of.dims(), sum.dims()) else {
        return Err(Failure::invalid("the indices of summands and sum must be matrices"));
    };
    if width != sum_width || gradient.dims() != [*sums_count] {
        let why =
            format!("gradients {} and the indices {} and {} do not fit", gradient.shape(), of.shape(), sum.shape());
        return Err(Failure::invalid(why));
    }
    let (gradient, at, sums) = (gradient.slice::<T>()?, of.to_i64s()?, sum.to_i64s()?);
    Shape::from([*rows]).checked_elements(DType::F64)?;
    let mut out = Vec::with_capacity(*rows);
    let mut sums = (0..*sums_count).map(|i| &sums[i * width..][..*width]).zip(gradient).peekable();
    for row in paced((0..*rows).map(|i| &at[i * width..][..*width]), width + 4) {
        while sums.next_if(|(own, _)| *own < row).is_some() {}
        out.push(sums.peek().filter(|(own, _)| *own == row).map_or(T::ZERO, |(_, value)| **value));
    }
    Ok(Tensor::vector(out))
}

fn multiply<T: Numeric>(a: &Sparse, b: &Tensor, adjoint_a: bool, adjoint_b: bool) -> Result<Tensor> {
    let (&[a_rows, a_columns], &[b_rows, b_columns]) = (&a.dims[..], b.dims()) else {
        return Err(Failure::invalid(format!("both tensors must be matrices, got {:?} and {}", a.dims, b.shape())));
    };
    let (rows, inner) = if adjoint_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let (b_inner, columns) = if adjoint_b { (b_columns, b_rows) } else { (b_rows, b_columns) };
    if inner != b_inner as i64 {
        return Err(Failure::invalid(format!(
            "Cannot multiply A and B because inner dimension does not match: {inner} vs. {b_inner}.  Did you forget a \
             transpose?  Dimensions of A: [{a_rows}, {a_columns}).  Dimensions of B: {}",
            b.shape()
        )));
    }
    let shape = Shape::from_i64s(&[rows, columns as i64])?;
    let mut out = vec![T::ZERO; shape.checked_elements(T::DTYPE)?];
    let (values, b) = (a.values.slice::<T>()?, b.slice::<T>()?);
    for i in paced(0..a.len(), columns + 4) {
        let (row, column) = if adjoint_a { (a.row(i)[1], a.row(i)[0]) } else { (a.row(i)[0], a.row(i)[1]) };
        let is_in = |at: i64, size: i64| usize::try_from(at).ok().filter(|_| at < size);
        let (Some(row), Some(k)) = (is_in(row, rows), is_in(column, inner)) else {
            return Err(Failure::invalid(format!("a_indices[{i}] = {:?} is out of bounds of {:?}", a.row(i), a.dims)));
        };
        for (j, sum) in out[row * columns..][..columns].iter_mut().enumerate() {
            *sum = sum.add(values[i].mul(if adjoint_b { b[j * b_columns + k] } else { b[k * columns + j] }));
        }
    }
    Ok(Tensor::from_vec(shape, out))
}

/// The flat position of an index in a dense tensor of that shape.
fn place(row: &[i64], dims: &[usize]) -> usize {
    row.iter().zip(dims).fold(0, |place, (&at, &size)| place * size + at as usize)
}

fn add_to<T: Ring>(sparse: &Sparse, b: Tensor) -> Result<Tensor> {
    if !b.dims().iter().map(|&size| size as i64).eq(sparse.dims.iter().copied()) {
        let why = format!("Dimensions of a and b must be equal, got {:?} and {}", sparse.dims, b.shape());
        return Err(Failure::invalid(why));
    }
    let dims = b.dims().to_vec();
    let mut b = call::owned(b)?;
    let (values, out) = (sparse.values.slice::<T>()?, b.slice_mut::<T>()?);
    for (row, &value) in paced(sparse.rows().zip(values), 8) {
        let at = &mut out[place(row, &dims)];
        *at = at.add(value);
    }
    Ok(b)
}

/// Combines each element with the dense one at its index; the dense tensor is broadcast to the sparse one's shape.
fn with_dense<T: Numeric>(sparse: &Sparse, dense: &Tensor, fold: impl Fn(T, T) -> Result<T>) -> Result<Tensor> {
    let extra = sparse.rank().checked_sub(dense.rank());
    let fits = |extra: &usize| {
        dense.dims().iter().zip(&sparse.dims[*extra..]).all(|(&own, &size)| own == 1 || own as i64 == size)
    };
    let extra = extra.filter(fits).ok_or_else(|| {
        Failure::invalid(format!(
            "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible shapes: {:?} vs. {}",
            sparse.dims,
            dense.shape()
        ))
    })?;
    let (values, elements) = (sparse.values.slice::<T>()?, dense.slice::<T>()?);
    let mut out = Vec::with_capacity(values.len());
    for (row, &value) in paced(sparse.rows().zip(values), 8) {
        let at = row[extra..].iter().zip(dense.dims());
        let place = at.fold(0, |place, (&at, &size)| place * size + if size == 1 { 0 } else { at as usize });
        out.push(fold(value, elements[place])?);
    }
    Ok(Tensor::vector(out))
}
