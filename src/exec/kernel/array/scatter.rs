//! ScatterNd, TensorScatterAdd and its kin, ScatterNdUpdate and its kin, SparseToDense: slices written by index.

use super::super::call::{check_copies, input_dtype, kernel as call, no_kernel, vector};
use super::super::update::Update;
use super::super::{HostKernel, KernelNode};
use super::gather::{ignores_bad_indices, indices_of, slices};
use crate::exec::turn::paced;
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Element, Moved, Ring, Shape, Tensor, with_moved, with_number, with_ring, with_type};

pub(super) fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let found = match node.op {
        "ScatterNd" => {
            let (dtype, ignore) = (input_dtype(node, 1)?, ignores_bad_indices(node)?);
            adding(dtype, move |add: Add| {
                call(move |[indices, updates, shape]: [Tensor; 3]| {
                    let shape = Shape::from_i64s(&vector(&Tensor::vector(indices_of(&shape)?), "shape", false)?)?;
                    add(Tensor::zeros(dtype, shape)?, &indices, &updates, ignore)
                })
            })
        }
        "TensorScatterAdd" => {
            let (dtype, ignore) = (input_dtype(node, 0)?, ignores_bad_indices(node)?);
            adding(dtype, move |add: Add| call(move |[x, indices, updates]| add(x, &indices, &updates, ignore)))
        }
        "TensorScatterSub" => {
            let (dtype, ignore) = (input_dtype(node, 0)?, ignores_bad_indices(node)?);
            with_ring!(dtype, T => call(move |[x, indices, updates]| {
                scatter(x, &indices, &updates, ignore, |to: &mut T, &from| *to = Ring::sub(*to, from))
            }))
        }
        "TensorScatterMax" | "TensorScatterMin" => {
            let (dtype, ignore) = (input_dtype(node, 0)?, ignores_bad_indices(node)?);
            let op = node.op.to_owned();
            with_number!(dtype, T => call(move |[x, indices, updates]| {
                scatter(x, &indices, &updates, ignore, |to: &mut T, &from| match op.as_str() {
                    "TensorScatterMax" if from > *to => *to = from,
                    "TensorScatterMin" if from < *to => *to = from,
                    _ => {}
                })
            }))
        }
        "TensorScatterUpdate" => {
            let (dtype, ignore) = (input_dtype(node, 0)?, ignores_bad_indices(node)?);
            with_type!(dtype, T => call(move |[x, indices, updates]| {
                scatter(x, &indices, &updates, ignore, |to: &mut T, from| to.clone_from(from))
            }))
        }
        "SparseToDense" => {
            let checks = node.attrs.bool("validate_indices")?;
            let dtype = input_dtype(node, 2)?;
            with_moved!(dtype, T => call(move |[indices, shape, values, otherwise]: [Tensor; 4]| {
                dense::<T>(&indices, &shape, &values, &otherwise, checks)
            }))
        }
        _ => return Ok(None),
    };
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

/// The change that an op of the name `ScatterNd...` makes to a variable.
pub(in crate::exec::kernel) fn change(node: &KernelNode, op: &str, dtype: DType) -> Result<Option<Update>> {
    let ignore = ignores_bad_indices(node)?;
    let found = match op {
        "NdUpdate" => with_type!(dtype, T => changing(ignore, |to: &mut T, from: &T| to.clone_from(from))),
        "NdAdd" => with_ring!(dtype, T => changing(ignore, |to: &mut T, &from| *to = Ring::add(*to, from))),
        "NdSub" => with_ring!(dtype, T => changing(ignore, |to: &mut T, &from| *to = Ring::sub(*to, from))),
        "NdMax" => with_number!(dtype, T => changing(ignore, |to: &mut T, &from| if from > *to { *to = from })),
        "NdMin" => with_number!(dtype, T => changing(ignore, |to: &mut T, &from| if from < *to { *to = from })),
        _ => return Ok(None),
    };
    found.map_or_else(|| no_kernel(node), |update| Ok(Some(update)))
}

fn changing<T: Element>(ignore: bool, combine: impl Fn(&mut T, &T) + Send + 'static) -> Update {
    Update::new(1, move |variables, rest| match (variables, rest) {
        ([var], [indices, updates]) => scatter_into(var, indices, updates, ignore, &combine),
        _ => Err(Failure::invalid("a scatter takes a variable, indices and updates")),
    })
}

/// A tensor of `shape` that is `otherwise` except at the indices, rows of `indices`, that have a value. With `checks`, the
/// indices must increase from row to row.
fn dense<T: Moved>(
    indices: &Tensor,
    shape: &Tensor,
    values: &Tensor,
    otherwise: &Tensor,
    checks: bool,
) -> Result<Tensor> {
    let dims = vector(shape, "output_shape", false)?;
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

type Add = fn(Tensor, &Tensor, &Tensor, bool) -> Result<Tensor>;

/// The scatter that adds: numbers are summed, bools combined with or, strings concatenated.
fn adding(dtype: DType, make: impl Fn(Add) -> HostKernel) -> Option<HostKernel> {
    fn number<T: Ring>(x: Tensor, indices: &Tensor, updates: &Tensor, ignore: bool) -> Result<Tensor> {
        scatter(x, indices, updates, ignore, |to: &mut T, &from| *to = to.add(from))
    }
    let add = match dtype {
        DType::Bool => |x, indices: &_, updates: &_, ignore| {
            scatter(x, indices, updates, ignore, |to: &mut bool, &from| *to |= from)
        },
        DType::String => |x, indices: &_, updates: &_, ignore| {
            scatter(x, indices, updates, ignore, |to: &mut Vec<u8>, from| to.extend_from_slice(from))
        },
        _ => with_ring!(dtype, T => number::<T> as Add)?,
    };
    Some(make(add))
}

fn scatter<T: Element>(
    mut x: Tensor,
    indices: &Tensor,
    updates: &Tensor,
    ignore: bool,
    combine: impl Fn(&mut T, &T),
) -> Result<Tensor> {
    scatter_into(&mut x, indices, updates, ignore, &combine)?;
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

/// Where each slice of the updates goes in `x`, and the number of its elements.
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
