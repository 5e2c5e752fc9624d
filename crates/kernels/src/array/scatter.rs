//! ScatterNd, the TensorScatter and ScatterNdUpdate families, SparseToDense: slices written by index.

use std::slice::from_mut;

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Element, Moved, Ring, Shape, Tensor, with_moved, with_number, with_ring, with_type};

use super::super::call::{check_copies, input_dtype, kernel as call, vector};
use super::super::update::Update;
use super::super::{HostKernel, KernelNode, Registry, scatter};
use super::gather::{ignores_bad_indices, indices_of, slices};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ScatterNd", |node| {
        let dtype = input_dtype(node, 1)?;
        Ok(adding(node, dtype)?.map(|add| {
            call(move |[indices, updates, shape]: [Tensor; 3]| {
                let shape = Shape::from_i64s(&vector(&Tensor::vector(indices_of(&shape)?), "shape", false)?)?;
                changed(&add, [Tensor::zeros(dtype, shape)?, indices, updates])
            })
        }))
    });
    ops.insert("TensorScatterAdd", |node| {
        Ok(adding(node, input_dtype(node, 0)?)?.map(|add| call(move |inputs| changed(&add, inputs))))
    });
    ops.insert("TensorScatterSub", |node| of_tensor(sub(node, input_dtype(node, 0)?)));
    ops.insert("TensorScatterMax", |node| of_tensor(max(node, input_dtype(node, 0)?)));
    ops.insert("TensorScatterMin", |node| of_tensor(min(node, input_dtype(node, 0)?)));
    ops.insert("TensorScatterUpdate", |node| of_tensor(set(node, input_dtype(node, 0)?)));
    ops.insert_update(["ScatterNdAdd", "ResourceScatterNdAdd"], |node| add(node, scatter::dtype(node)?));
    ops.insert_update(["ScatterNdSub", "ResourceScatterNdSub"], |node| sub(node, scatter::dtype(node)?));
    ops.insert_update(["ScatterNdMax", "ResourceScatterNdMax"], |node| max(node, scatter::dtype(node)?));
    ops.insert_update(["ScatterNdMin", "ResourceScatterNdMin"], |node| min(node, scatter::dtype(node)?));
    ops.insert_update(["ScatterNdUpdate", "ResourceScatterNdUpdate"], |node| set(node, scatter::dtype(node)?));
    ops.insert("SparseToDense", |node| {
        let checks = node.attrs.bool("validate_indices")?;
        let dtype = input_dtype(node, 2)?;
        Ok(with_moved!(dtype, T => call(move |[indices, shape, values, otherwise]: [Tensor; 4]| {
            dense::<T>(&indices, &shape, &values, &otherwise, checks)
        })))
    });
}

fn set(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    Ok(with_type!(dtype, T => changing(ignore, |to: &mut T, from: &T| to.clone_from(from))))
}

fn add(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    Ok(with_ring!(dtype, T => changing(ignore, |to: &mut T, &from| *to = Ring::add(*to, from))))
}

fn sub(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    Ok(with_ring!(dtype, T => changing(ignore, |to: &mut T, &from| *to = Ring::sub(*to, from))))
}

fn max(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    Ok(with_number!(dtype, T => changing(ignore, |to: &mut T, &from| if from > *to { *to = from })))
}

fn min(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    Ok(with_number!(dtype, T => changing(ignore, |to: &mut T, &from| if from < *to { *to = from })))
}

/// The kernel that changes a tensor instead of a variable.
fn of_tensor(update: Result<Option<Update>>) -> Result<Option<HostKernel>> {
    Ok(update?.map(|update| call(move |inputs| changed(&update, inputs))))
}

#[inline]
fn changing<T: Element>(ignore: bool, combine: impl Fn(&mut T, &T) + Send + 'static) -> Update {
    Update::new(1, move |variables, rest| match (variables, rest) {
        ([var], [indices, updates]) => scatter_into(var, indices, updates, ignore, &combine),
        _ => Err(Failure::invalid("a scatter takes a variable, indices and updates")),
    })
}

/// A tensor of `shape` that is `otherwise` except at the indices, rows of `indices`, that have a value. With `checks`,
/// the indices must increase from row to row.
fn dense<T: Moved>(
    indices: &Tensor,
    shape: &Tensor,
    values: &Tensor,
    otherwise: &Tensor,
    checks: bool,
) -> Result<Tensor> {
    if shape.rank() != 1 {
        return Err(Failure::invalid(format!("output_shape should be a vector, got shape {}", shape.shape())));
    }
    let dims = shape.to_i64s()?;
    let shape = Shape::from_i64s(&dims)?;
    let rows = match indices.dims() {
        [] => 1,
        [rows] | [rows, _] => *rows,
        _ => return Err(Failure::invalid(format!("sparse_indices must be of rank 0 to 2, got {}", indices.shape()))),
    };
    let width = if indices.rank() == 2 { indices.dims()[1] } else { 1 };
    if width != shape.rank() {
        let why = format!("output_shape has incorrect number of elements: {} should be: {width}", shape.rank());
        return Err(Failure::invalid(why));
    }
    if values.rank() > 1 || (values.rank() == 1 && values.len() != rows) {
        let why = format!("sparse_values has incorrect shape {}, should be [] or [{rows}]", values.shape());
        return Err(Failure::invalid(why));
    }
    let elements = shape.checked_elements(values.dtype())?;
    check_copies(otherwise, elements)?;
    check_copies(values, if values.len() == 1 { rows } else { 1 })?;
    let mut out = vec![otherwise.moved_item::<T>()?; elements];
    let (dtype, values, at) = (values.dtype(), values.moved::<T>()?, indices.to_i64s()?);
    let mut before: Option<&[i64]> = None;
    for (i, row) in paced(at.chunks_exact(width.max(1)).take(rows).enumerate(), width + 4) {
        let offset = row.iter().zip(shape.dims()).try_fold(0, |offset, (&at, &size)| {
            usize::try_from(at).ok().filter(|&at| at < size).map(|at| offset * size + at)
        });
        let offset = offset.ok_or_else(|| {
            Failure::invalid(format!("indices[{i}] = {row:?} is out of bounds: need 0 <= index < {shape}"))
        })?;
        if checks && before.is_some_and(|before| before >= row) {
            let fault = if before == Some(row) { "is repeated" } else { "is out of order" };
            return Err(Failure::invalid(format!("indices[{i}] = {row:?} {fault}")));
        }
        before = Some(row);
        out[offset].clone_from(&values[if values.len() == 1 { 0 } else { i }]);
    }
    Ok(Tensor::from_moved(dtype, shape, out))
}

/// The scatter that adds to a tensor: numbers are summed, bools combined by or, strings concatenated.
fn adding(node: &KernelNode, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    match dtype {
        DType::Bool => Ok(Some(changing(ignore, |to: &mut bool, &from| *to |= from))),
        DType::String => Ok(Some(changing(ignore, |to: &mut Vec<u8>, from| to.extend_from_slice(from)))),
        _ => add(node, dtype),
    }
}

/// The first input, changed by the indices and updates.
fn changed(update: &Update, [mut x, indices, updates]: [Tensor; 3]) -> Result<Tensor> {
    update.apply(from_mut(&mut x), &[indices, updates])?;
    Ok(x)
}

/// Changes slices of `x`. On an error nothing has changed.
fn scatter_into<T: Element>(
    x: &mut Tensor,
    indices: &Tensor,
    updates: &Tensor,
    ignore: bool,
    combine: &impl Fn(&mut T, &T),
) -> Result<()> {
    let (offsets, inner) = places(x, indices, updates, ignore)?;
    if updates.is_empty() {
        return Ok(());
    }
    let updates = updates.slice::<T>()?;
    let to = x.slice_mut::<T>()?;
    for (offset, updates) in paced(offsets.into_iter().zip(updates.chunks_exact(inner)), inner + 4) {
        if let Some(offset) = offset {
            to[offset..offset + inner].iter_mut().zip(updates).for_each(|(to, from)| combine(to, from));
        }
    }
    Ok(())
}

/// The offset in `x` of each slice of the updates, and the number of its elements.
fn places(x: &Tensor, indices: &Tensor, updates: &Tensor, ignore: bool) -> Result<(Vec<Option<usize>>, usize)> {
    let depth = indices.dims().last().copied().unwrap_or(0);
    let (offsets, inner) = slices(indices, x.dims(), "", ignore).map_err(|mut failure| {
        failure.message = failure.message.replace("into  shape", "into shape");
        failure
    })?;
    let wanted: Vec<usize> = [&indices.dims()[..indices.rank() - 1], &x.dims()[depth..]].concat();
    if wanted != updates.dims() {
        return Err(Failure::invalid(format!(
            "Dimensions of indices (shape {}), updates (shape {}) and output (shape {}) do not match: updates must have \
             shape {}",
            indices.shape(),
            updates.shape(),
            x.shape(),
            Shape::from(wanted)
        )));
    }
    Ok((offsets, inner))
}
