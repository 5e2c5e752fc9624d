//! ConcatV2, Pack and ParallelConcat: the concatenation of several tensors.

use meshtf_loops::turn::Pace;
use meshtf_loops::vector;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{Moved, Shape, Tensor, with_moved};

use super::super::call::{self, one};
use super::super::{Inputs, Outputs, Registry};
use super::view::not_held;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("ConcatV2", |_| Ok(Some(Box::new(concat))));
    ops.insert("Pack", |node| {
        let axis = node.attrs.int("axis")?;
        Ok(Some(Box::new(move |inputs: Inputs| pack(&inputs, axis))))
    });
    ops.insert("ParallelConcat", |node| {
        let shape = node.attrs.shape("shape")?.clone();
        Ok(Some(Box::new(move |inputs: Inputs| {
            let first = inputs.first().map(|x| x.shape().clone()).unwrap_or_default();
            if inputs.iter().any(|x| *x.shape() != first) || first.dims().first() != Some(&1) {
                return Err(Failure::invalid("ParallelConcat takes inputs of one shape, with a first dimension of 1"));
            }
            let mut dims = first.dims().to_vec();
            dims[0] = inputs.len();
            if !shape.admits(&dims.as_slice().into()) {
                return Err(Failure::invalid(format!(
                    "ParallelConcat of {} inputs of shape {first} is not of shape {shape}",
                    inputs.len()
                )));
            }
            join(&inputs, 0, dims.into())
        })))
    });
}

/// Tensors joined along an axis, the last input.
///
/// # Errors
/// InvalidArgument if there is no such axis, or another size differs.
pub fn concat(mut inputs: Inputs) -> Result<Outputs> {
    let axis = inputs.pop().ok_or_else(|| Failure::invalid("ConcatV2 takes an axis"))?.to_i64()?;
    let first = inputs.first().ok_or_else(|| Failure::invalid("ConcatV2 takes at least one value"))?;
    let rank = first.rank() as i64;
    let at = call::axis(axis, first.rank()).map_err(|_| {
        Failure::invalid(format!(
            "ConcatOp : Expected concatenating dimensions in the range [{}, {rank}), but got {axis}",
            -rank
        ))
    })?;
    let mut dims = first.dims().to_vec();
    dims[at] = 0;
    for (i, input) in inputs.iter().enumerate() {
        let mismatch = |what: &str| {
            Failure::invalid(format!(
                "ConcatOp : {what} of inputs should match: shape[0] = {} vs. shape[{i}] = {}",
                first.shape(),
                input.shape()
            ))
        };
        if input.rank() != dims.len() {
            return Err(mismatch("Ranks"));
        }
        if (0..dims.len()).any(|axis| axis != at && input.dims()[axis] != dims[axis]) {
            return Err(mismatch("Dimensions"));
        }
        dims[at] += input.dims()[at];
    }
    if inputs.len() == 1 {
        return Ok(inputs.into_iter().collect());
    }
    join(&inputs, at, dims.into())
}

fn pack(inputs: &[Tensor], axis: i64) -> Result<Outputs> {
    let first = inputs.first().ok_or_else(|| Failure::invalid("Pack takes at least one value"))?;
    let at = call::axis(axis, first.rank() + 1)?;
    if let Some((i, other)) = inputs.iter().enumerate().find(|(_, input)| input.shape() != first.shape()) {
        return Err(Failure::invalid(format!(
            "Shapes of all inputs must match: values[0].shape = {} != values[{i}].shape = {}",
            first.shape(),
            other.shape()
        )));
    }
    let mut dims = first.dims().to_vec();
    dims.insert(at, inputs.len());
    join(inputs, at, dims.into())
}

/// The inputs concatenated along `axis` of the result.
pub(crate) fn join(inputs: &[Tensor], axis: usize, shape: Shape) -> Result<Outputs> {
    let dtype = inputs[0].dtype();
    let n = shape.checked_elements(dtype)?;
    if n == 0 {
        return Tensor::zeros(dtype, shape).map(one);
    }
    let outer = call::product(&shape.dims()[..axis]);
    // The common case: elements of 32 bits, that is floats, sizes and positions.
    if let Ok(parts) = inputs.iter().map(Tensor::moved::<u32>).collect::<Result<Vec<_>>>() {
        return Ok(one(Tensor::from_moved(dtype, shape, vector::joined(&parts, outer))));
    }
    with_moved!(dtype, T => Ok(one(Tensor::from_moved(dtype, shape, interleave::<T>(inputs, outer, n)?))))
        .unwrap_or_else(|| not_held(dtype))
}

fn interleave<T: Moved>(inputs: &[Tensor], outer: usize, n: usize) -> Result<Vec<T>> {
    let slices: Vec<&[T]> = inputs.iter().map(Tensor::moved::<T>).collect::<Result<_>>()?;
    let mut out = Vec::with_capacity(n);
    let mut pace = Pace::new();
    for i in 0..outer {
        for slice in &slices {
            let chunk = slice.len() / outer;
            pace.go(chunk);
            out.extend_from_slice(&slice[i * chunk..(i + 1) * chunk]);
        }
    }
    Ok(out)
}
