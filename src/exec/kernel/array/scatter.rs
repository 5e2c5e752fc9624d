//! ScatterNd, TensorScatterAdd and TensorScatterUpdate: slices written into a tensor by index.

use super::super::call::{input_dtype, kernel as call, no_kernel, vector};
use super::super::{HostKernel, KernelNode};
use super::gather::{ignores_bad_indices, indices_of, slices};
use crate::exec::turn::paced;
use crate::failure::{Failure, Result};
use crate::tensor::{DType, Element, Numeric, Shape, Tensor, with_number, with_type};

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
        "TensorScatterSub" | "TensorScatterMax" | "TensorScatterMin" => {
            let (dtype, ignore) = (input_dtype(node, 0)?, ignores_bad_indices(node)?);
            let op = node.op.to_owned();
            with_number!(dtype, T => call(move |[x, indices, updates]| {
                scatter(x, &indices, &updates, ignore, |to: &mut T, &from| match op.as_str() {
                    "TensorScatterSub" => *to = Numeric::sub(*to, from),
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
        _ => return Ok(None),
    };
    found.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
}

type Add = fn(Tensor, &Tensor, &Tensor, bool) -> Result<Tensor>;

/// The scatter that adds: numbers are summed, bools combined with or, strings concatenated.
fn adding(dtype: DType, make: impl Fn(Add) -> HostKernel) -> Option<HostKernel> {
    fn number<T: Numeric>(x: Tensor, indices: &Tensor, updates: &Tensor, ignore: bool) -> Result<Tensor> {
        scatter(x, indices, updates, ignore, |to: &mut T, &from| *to = to.add(from))
    }
    let add = match dtype {
        DType::Bool => |x, indices: &_, updates: &_, ignore| {
            scatter(x, indices, updates, ignore, |to: &mut bool, &from| *to |= from)
        },
        DType::String => |x, indices: &_, updates: &_, ignore| {
            scatter(x, indices, updates, ignore, |to: &mut Vec<u8>, from| to.extend_from_slice(from))
        },
        _ => with_number!(dtype, T => number::<T> as Add)?,
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
    if updates.is_empty() {
        return Ok(x);
    }
    let updates = updates.slice::<T>()?;
    let to = x.slice_mut::<T>()?;
    for (offset, updates) in paced(offsets.into_iter().zip(updates.chunks_exact(inner)), inner + 4) {
        if let Some(offset) = offset {
            to[offset..offset + inner].iter_mut().zip(updates).for_each(|(to, from)| combine(to, from));
        }
    }
    Ok(x)
}
