//! SparseSparseMaximum and -Minimum, and the reductions whose results are sparse.

use std::cmp::Ordering;

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Numeric, Ring as _, Shape, Tensor, with_number};
use smallvec::smallvec;

use super::super::call::{self, input_dtype, take, vector};
use super::super::{HostKernel, KernelNode, Outputs, Registry};
use super::{Sparse, matrix};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseSparseMaximum", |node| extreme(node, Ordering::Less));
    ops.insert("SparseSparseMinimum", |node| extreme(node, Ordering::Greater));
    ops.insert("SparseReduceSumSparse", |node| reduction(node, true));
    ops.insert("SparseReduceMaxSparse", |node| reduction(node, false));
}

/// The second element is taken if the first compares with it in this way.
fn extreme(node: &KernelNode, takes_second: Ordering) -> Result<Option<HostKernel>> {
    Ok(with_number!(input_dtype(node, 1)?, T => Box::new(move |inputs| {
        let [indices, values, shape, b_indices, b_values, b_shape] = take(inputs)?;
        let (a, b) = (Sparse::of(&indices, values, &shape)?, Sparse::of(&b_indices, b_values, &b_shape)?);
        union::<T>(&a, &b, |a, b| if a.partial_cmp(&b) == Some(takes_second) { b } else { a })
    }) as HostKernel))
}

/// The elements of both, combined by `fold`; a missing element is zero. The elements of each are in order.
fn union<T: Numeric>(a: &Sparse, b: &Sparse, fold: impl Fn(T, T) -> T) -> Result<Outputs> {
    if a.rank() != b.rank() {
        let text = format!("Ranks of input tensors must match, but saw ranks: {} and {}", a.rank(), b.rank());
        return Err(Failure::invalid(text));
    }
    if let Some(i) = (0..a.rank()).find(|&i| a.dims[i] != b.dims[i]) {
        return Err(Failure::invalid(format!(
            "Operands' shapes do not match: got {} and {} for dimension {i}",
            a.dims[i], b.dims[i]
        )));
    }
    let (own, other) = (a.values.slice::<T>()?, b.values.slice::<T>()?);
    let (mut at, mut values) = (Vec::new(), Vec::new());
    for (row, i, j) in a.merged(b) {
        at.extend_from_slice(row);
        values.push(fold(i.map_or(T::ZERO, |i| own[i]), j.map_or(T::ZERO, |j| other[j])));
    }
    Ok(smallvec![matrix(at, values.len(), a.rank()), Tensor::vector(values)])
}

fn reduction(node: &KernelNode, is_sum: bool) -> Result<Option<HostKernel>> {
    let keeps = node.attrs.bool("keep_dims")?;
    Ok(with_number!(input_dtype(node, 1)?, T => Box::new(move |inputs| {
        let [indices, values, shape, axes] = take(inputs)?;
        let fold = |a: T, b: T| if is_sum { a.add(b) } else if b > a { b } else { a };
        reduce::<T>(&Sparse::within(&indices, values, &shape)?, &axes, keeps, fold)
    }) as HostKernel))
}

/// Elements folded over axes, where there are any; a scalar has always one.
fn reduce<T: Numeric>(sparse: &Sparse, axes: &Tensor, keeps: bool, fold: impl Fn(T, T) -> T) -> Result<Outputs> {
    let rank = sparse.rank();
    let axes = vector(axes, "reduction_axes", true)?.into_iter().map(|axis| {
        call::axis(axis, rank).map_err(|_| {
            Failure::invalid(format!("Invalid reduction dimension {axis}, for input with {rank} dimensions."))
        })
    });
    let axes = axes.collect::<Result<Vec<usize>>>()?;
    let is_reduced = |axis: usize| axes.contains(&axis);
    let values = sparse.values.slice::<T>()?;
    let group = |i: usize| (0..rank).filter(|&axis| !is_reduced(axis)).map(move |axis| sparse.row(i)[axis]);
    let mut order: Vec<usize> = (0..sparse.len()).collect();
    order.sort_by(|&i, &j| group(i).cmp(group(j)).then_with(|| sparse.row(i).cmp(sparse.row(j))));
    let (mut at, mut out) = (Vec::new(), Vec::new());
    for same in order.chunk_by(|&i, &j| group(i).eq(group(j))) {
        let first = same[0];
        at.extend(
            (0..rank)
                .filter(|&axis| keeps || !is_reduced(axis))
                .map(|axis| if is_reduced(axis) { 0 } else { sparse.row(first)[axis] }),
        );
        out.push(same[1..].iter().fold(values[first], |sum, &i| fold(sum, values[i])));
    }
    let dims: Vec<i64> = (0..rank)
        .filter(|&axis| keeps || !is_reduced(axis))
        .map(|axis| if is_reduced(axis) { 1 } else { sparse.dims[axis] })
        .collect();
    Shape::from_i64s(&dims)?;
    Ok(smallvec![matrix(at, out.len(), dims.len()), Tensor::vector(out), Tensor::vector(dims)])
}
