//! RaggedGather: rows of a ragged tensor by index.

use meshtf_loops::turn::Pace;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Shape, Tensor, with_moved};

use super::super::array::not_held;
use super::super::call::{check_copies, ints, output_dtype, place, product};
use super::super::{HostKernel, Inputs, KernelNode, Outputs, Registry};
use super::places;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("RaggedGather", kernel);
}

fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let nested = usize::try_from(node.attrs.int("PARAMS_RAGGED_RANK")?).unwrap_or(0);
    let ragged = usize::try_from(node.attrs.int("OUTPUT_RAGGED_RANK")?).unwrap_or(0);
    let dtype = if ragged > 0 { output_dtype(node, 0)? } else { DType::I64 };
    Ok(Some(Box::new(move |inputs| gather(inputs, nested, ragged, dtype))))
}

fn gather(inputs: Inputs, nested: usize, ragged: usize, dtype: DType) -> Result<Outputs> {
    let [nested_splits @ .., values, indices] = &inputs[..] else {
        return Err(Failure::new(Code::Internal, "RaggedGather takes splits, values and indices"));
    };
    if nested + indices.rank() != ragged + 1 {
        return Err(Failure::invalid(format!(
            "OUTPUT_RAGGED_RANK must be the rank of indices + PARAMS_RAGGED_RANK - 1: got {ragged}, rank {} and {nested}",
            indices.rank()
        )));
    }
    if nested_splits[0].rank() == 0 {
        return Err(Failure::invalid("Split tensors must not be scalars"));
    }
    let Some(&rows) = values.dims().first() else { return Err(Failure::invalid("params.rank must be nonzero")) };
    let limit = nested_splits[0].dims()[0].saturating_sub(1);
    let mut chosen = Vec::with_capacity(indices.len());
    for (i, index) in indices.to_i64s()?.into_iter().enumerate() {
        let inside = usize::try_from(index).ok().filter(|&index| index < limit);
        chosen.push(inside.ok_or_else(|| {
            Failure::invalid(format!("indices{} = {index} is not in [0, {limit})", place(i, indices.dims())))
        })?);
    }
    let splits = checked(nested_splits, rows)?;
    let outer = (1..indices.rank()).map(|axis| every(product(&indices.dims()[..axis]), indices.dims()[axis]));
    let outer = outer.collect::<Result<Vec<_>>>()?;
    let (inner, slices) = copied(&splits, &chosen, indices.rank() == 0)?;
    let mut outputs = Outputs::new();
    for splits in outer.iter().chain(&inner) {
        outputs.push(ints(dtype, [splits.len()], splits)?);
    }
    outputs.push(sliced(values, &slices)?);
    Ok(outputs)
}

/// The splits of `rows` rows of one size.
fn every(rows: usize, size: usize) -> Result<Vec<usize>> {
    Shape::from([rows.saturating_add(1)]).checked_elements(DType::I64)?;
    Ok((0..=rows).map(|row| row * size).collect())
}

/// The splits of each dimension, after a check that they are in range of the next dimension's rows and, at last, of the
/// values.
fn checked(nested: &[Tensor], rows: usize) -> Result<Vec<Vec<usize>>> {
    let ends = nested[1..].iter().map(|next| next.len().saturating_sub(1)).chain([rows]);
    let mut all = Vec::with_capacity(nested.len());
    for (splits, end) in nested.iter().zip(ends) {
        let splits = splits.to_i64s()?;
        let Some(&last) = splits.last() else { return Err(Failure::invalid("Ragged splits may not be empty")) };
        if splits[0] < 0 {
            return Err(Failure::invalid("Ragged splits must be non-negative"));
        }
        if last > end as i64 {
            return Err(Failure::invalid(format!("Ragged splits must not point past values: {last} is above {end}")));
        }
        if !splits.is_sorted() {
            return Err(Failure::invalid("Ragged splits must be sorted"));
        }
        all.push(places(&splits).unwrap_or_default());
    }
    Ok(all)
}

/// A range of rows of values: the first, and the end.
type Slice = (usize, usize);

/// The splits of the chosen rows, and their ranges of values. For a single row, the outermost splits are omitted.
fn copied(splits: &[Vec<usize>], chosen: &[usize], is_one: bool) -> Result<(Vec<Vec<usize>>, Vec<Slice>)> {
    let mut sizes = vec![1usize; splits.len()];
    let mut pace = Pace::new();
    for &index in chosen {
        let (mut start, mut limit) = (index, index + 1);
        pace.go(splits.len());
        for (splits, size) in splits.iter().zip(&mut sizes) {
            *size = size.saturating_add(limit - start);
            (start, limit) = (splits[start], splits[limit]);
        }
    }
    let total = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
    Shape::from([total.saturating_add(2 * chosen.len())]).checked_elements(DType::I64)?;
    let mut out: Vec<Vec<usize>> = sizes.into_iter().map(Vec::with_capacity).collect();
    out.iter_mut().for_each(|splits| splits.push(0));
    let mut slices = Vec::with_capacity(chosen.len());
    for &index in chosen {
        let (mut start, mut limit) = (index, index + 1);
        for (splits, out) in splits.iter().zip(&mut out) {
            pace.go(8 + limit - start);
            let (before, first) = (out.last().copied().unwrap_or(0), splits[start]);
            out.extend(splits[start + 1..=limit].iter().map(|split| split - first + before));
            (start, limit) = (first, splits[limit]);
        }
        slices.push((start, limit));
    }
    if is_one {
        out.remove(0);
    }
    Ok((out, slices))
}

fn sliced(values: &Tensor, slices: &[Slice]) -> Result<Tensor> {
    let inner = product(&values.dims()[1..]);
    let rows = slices.iter().fold(0usize, |sum, (start, limit)| sum.saturating_add(limit - start));
    let shape: Shape = std::iter::once(rows).chain(values.dims()[1..].iter().copied()).collect();
    let count = shape.checked_elements(values.dtype())?;
    check_copies(values, count)?;
    with_moved!(values.dtype(), T => {
        let all = values.moved::<T>()?;
        let mut out = Vec::with_capacity(count);
        let mut pace = Pace::new();
        for &(start, limit) in slices {
            pace.go(8 + (limit - start) * inner);
            out.extend_from_slice(&all[start * inner..limit * inner]);
        }
        Ok(Tensor::from_moved(values.dtype(), shape, out))
    })
    .unwrap_or_else(|| not_held(values.dtype()))
}
