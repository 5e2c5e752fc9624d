//! Ops on shapes, and ops that change the shape or order of elements.

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_complex, with_float};
use smallvec::SmallVec;

use super::super::call::{self, kernel as call, output_dtype, vector};
use super::super::math::map;
use super::super::{Inputs, Outputs, Registry};
use super::view::View;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("Rank", |_| Ok(Some(call(|[x]| Ok(Tensor::scalar(x.rank() as i32))))));
    ops.insert_all(["Shape", "ShapeN"], |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(Some(Box::new(move |inputs: Inputs| {
            inputs.iter().map(|x| call::ints(dtype, [x.rank()], x.dims())).collect()
        })))
    });
    ops.insert("Size", |node| {
        let dtype = output_dtype(node, 0)?;
        Ok(Some(call(move |[x]| call::ints(dtype, Shape::scalar(), &[x.len()]))))
    });
    ops.insert("Reshape", |_| Ok(Some(call(|[x, shape]| reshape(x, &shape)))));
    ops.insert("ExpandDims", |_| {
        Ok(Some(call(|[x, dim]: [Tensor; 2]| {
            if dim.len() != 1 {
                return Err(Failure::invalid("'dim' must be a tensor with a single value"));
            }
            let at = call::axis(dim.to_i64()?, x.rank() + 1)?;
            let mut dims = x.dims().to_vec();
            dims.insert(at, 1);
            x.reshaped(dims)
        })))
    });
    ops.insert("Squeeze", |node| {
        let axes = node.attrs.ints("squeeze_dims")?.to_vec();
        Ok(Some(call(move |[x]| squeeze(x, &axes))))
    });
    ops.insert("Transpose", |_| Ok(Some(call(|[x, perm]| transpose(x, &perm)))));
    ops.insert("ConjugateTranspose", |_| {
        Ok(Some(call(|[x, perm]| {
            let x = transpose(x, &perm)?;
            with_complex!(x.dtype(), T => map(x.clone(), |x: T| x.conj())).unwrap_or(Ok(x))
        })))
    });
    ops.insert("InvertPermutation", |_| Ok(Some(call(|[x]| invert_permutation(&x)))));
    ops.insert("BroadcastTo", |_| Ok(Some(call(|[x, shape]| broadcast_to(x, shape_of(&shape)?)))));
    ops.insert("BroadcastArgs", |_| {
        Ok(Some(call(|[a, b]| {
            let shape = shape_of(&a)?.broadcast(&shape_of(&b)?)?;
            call::ints(a.dtype(), [shape.rank()], shape.dims())
        })))
    });
    ops.insert("BroadcastGradientArgs", |_| Ok(Some(Box::new(broadcast_gradient_args))));
    ops.insert("ConcatOffset", |_| Ok(Some(Box::new(concat_offset))));
    ops.insert("Bitcast", |node| {
        let to = output_dtype(node, 0)?;
        Ok(Some(call(move |[x]| bitcast(x, to))))
    });
    ops.insert("CheckNumerics", |node| {
        let message = node.attrs.str("message")?.to_owned();
        let is_float = call::input_dtype(node, 0)?.is_float();
        Ok(is_float.then(|| call(move |[x]| check_numerics(x, &message))))
    });
}

/// The shape that a shape tensor contains.
fn shape_of(tensor: &Tensor) -> Result<Shape> {
    Shape::from_i64s(&vector(tensor, "shape", false)?)
}

/// The same elements under the shape that a vector holds, of which one size may be -1.
///
/// # Errors
/// InvalidArgument if that holds another number of elements.
pub fn reshape(x: Tensor, shape: &Tensor) -> Result<Tensor> {
    let sizes = vector(shape, "sizes input", false)?;
    let mut unknown = None;
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    for (i, &size) in sizes.iter().enumerate() {
        match (usize::try_from(size), unknown) {
            (Ok(size), _) => dims.push(size),
            (Err(_), None) if size == -1 => {
                unknown = Some(i);
                dims.push(1);
            }
            (Err(_), Some(first)) if size == -1 => {
                return Err(Failure::invalid(format!("Only one input size may be -1, not both {first} and {i}")));
            }
            _ => return Err(Failure::invalid(format!("Size {i} must be non-negative, not {size}"))),
        }
    }
    if let Some(unknown) = unknown {
        // If the shape has a size of 0, sizes of 0 are matched with one another and the unknown size is inferred from the
        // rest.
        let zero = dims.contains(&0);
        let count = |sizes: &[usize]| {
            sizes.iter().filter(|&&size| size > 0 || !zero).fold(1usize, |n, &size| n.saturating_mul(size))
        };
        let (have, known) = (count(x.dims()), count(&dims));
        if have % known != 0 && !(zero && x.is_empty()) {
            return Err(Failure::invalid(format!(
                "Input to reshape is a tensor with {have} values, but the requested shape requires a multiple of {known}"
            )));
        }
        dims[unknown] = have / known;
    }
    x.reshaped(dims.as_slice())
}

fn squeeze(x: Tensor, axes: &[i64]) -> Result<Tensor> {
    let mut dropped = vec![axes.is_empty(); x.rank()];
    for &axis in axes {
        let at = call::axis(axis, x.rank()).map_err(|_| {
            Failure::invalid(format!("Tried to squeeze dim index {axis} for tensor with {} dimensions.", x.rank()))
        })?;
        if x.dims()[at] != 1 {
            return Err(Failure::invalid(format!(
                "Can not squeeze dim[{at}], expected a dimension of 1, got {}",
                x.dims()[at]
            )));
        }
        dropped[at] = true;
    }
    let kept: Shape =
        x.dims().iter().zip(dropped).filter(|&(&size, drop)| size != 1 || !drop).map(|(&size, _)| size).collect();
    x.reshaped(kept)
}

fn transpose(x: Tensor, perm: &Tensor) -> Result<Tensor> {
    let perm = vector(perm, "perm", false)?;
    let rank = x.rank();
    if perm.len() != rank {
        return Err(Failure::invalid(format!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm.len()
        )));
    }
    let mut seen = vec![false; rank];
    let mut order = Vec::with_capacity(rank);
    for &axis in &perm {
        let at =
            call::axis(axis, rank).map_err(|_| Failure::invalid(format!("{axis} is out of range [0 .. {rank})")))?;
        order.push(at);
        seen[at] = true;
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        return Err(Failure::invalid(format!("{missing} is missing from {perm:?}")));
    }
    let shape: Shape = order.iter().map(|&axis| x.dims()[axis]).collect();
    // If only dimensions of size 1 move, the order of the elements is unchanged.
    if order.iter().filter(|&&axis| x.dims()[axis] != 1).is_sorted() {
        return x.reshaped(shape);
    }
    let all = View::all(x.shape());
    View { offset: 0, dims: order.iter().map(|&axis| all.dims[axis]).collect() }.read(&x, shape)
}

fn invert_permutation(x: &Tensor) -> Result<Tensor> {
    let perm = vector(x, "invert_permutation input", false)?;
    let mut inverse = vec![usize::MAX; perm.len()];
    for (i, &at) in perm.iter().enumerate() {
        let slot = usize::try_from(at)
            .ok()
            .and_then(|at| inverse.get_mut(at))
            .ok_or_else(|| Failure::invalid(format!("{at} is not between 0 and {}", perm.len())))?;
        if *slot != usize::MAX {
            return Err(Failure::invalid(format!("{at} is duplicated in the input.")));
        }
        *slot = i;
    }
    call::ints(x.dtype(), [perm.len()], &inverse)
}

/// `x` with its elements repeated to fill `shape`.
///
/// # Errors
/// InvalidArgument if `x` cannot be broadcast to `shape`, ResourceExhausted if the result would be too large.
pub fn broadcast_to(x: Tensor, shape: Shape) -> Result<Tensor> {
    if *x.shape() == shape {
        return Ok(x);
    }
    if x.shape().broadcast(&shape).ok().as_ref() != Some(&shape) {
        return Err(Failure::invalid(format!(
            "Incompatible shapes: {} vs. {shape}: a tensor of shape {} cannot be broadcast to {shape}",
            x.shape(),
            x.shape()
        )));
    }
    let own = View::all(x.shape());
    let lead = shape.rank() - x.rank();
    let dims = shape
        .dims()
        .iter()
        .enumerate()
        .map(|(axis, &size)| match axis.checked_sub(lead).map(|own_axis| own.dims[own_axis]) {
            Some((own_size, stride)) if own_size == size => (size, stride),
            _ => (size, 0),
        })
        .collect();
    View { offset: 0, dims }.read(&x, shape)
}

/// For each of two shapes, the axes that a gradient of their broadcast must be summed over.
fn broadcast_gradient_args(inputs: Inputs) -> Result<Outputs> {
    let [a, b] = call::take(inputs)?;
    let (s0, s1) = (shape_of(&a)?, shape_of(&b)?);
    let shape = s0.broadcast(&s1)?;
    let summed = |own: &Shape| -> Vec<usize> {
        let lead = shape.rank() - own.rank();
        (0..shape.rank()).filter(|&axis| axis < lead || own.dims()[axis - lead] == 1).collect()
    };
    // Equal shapes need no sum, not even over their dimensions of size 1.
    let axes = if s0 == s1 { [Vec::new(), Vec::new()] } else { [summed(&s0), summed(&s1)] };
    axes.iter().map(|axes| call::ints(a.dtype(), [axes.len()], axes)).collect()
}

/// The offset of each input of a concatenation in the result.
fn concat_offset(inputs: Inputs) -> Result<Outputs> {
    let (dim, shapes) = inputs.split_first().ok_or_else(|| Failure::invalid("ConcatOffset takes an axis"))?;
    let first = shapes.first().map(|shape| vector(shape, "input 0", false)).transpose()?.unwrap_or_default();
    let axis = call::axis(dim.to_i64()?, first.len()).map_err(|_| {
        Failure::invalid(format!("Concat dim is out of range: {} vs. {}", dim.to_i64().unwrap_or(0), first.len()))
    })?;
    let mut offset = 0usize;
    shapes
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let shape = vector(tensor, "input", false)?;
            let fits = shape.len() == first.len()
                && shape.iter().zip(&first).enumerate().all(|(at, (a, b))| at == axis || a == b);
            if !fits {
                let (own, other) = (spaced(&shape), spaced(&first));
                return Err(Failure::invalid(format!(
                    "All dimensions except {axis} must match. Input {i} has shape {own} and doesn't match input 0 with shape \
                     {other}."
                )));
            }
            let mut offsets = vec![0; shape.len()];
            offsets[axis] = offset;
            offset = offset.saturating_add(usize::try_from(shape[axis]).unwrap_or(0));
            call::ints(tensor.dtype(), [offsets.len()], &offsets)
        })
        .collect()
}

/// Sizes as TensorFlow writes the elements of a vector: `[2 7 10]`.
fn spaced(sizes: &[i64]) -> String {
    format!("[{}]", sizes.iter().map(i64::to_string).collect::<Vec<_>>().join(" "))
}

fn bitcast(x: Tensor, to: DType) -> Result<Tensor> {
    let (Some(from_size), Some(to_size)) = (x.dtype().size(), to.size()) else {
        return Err(Failure::invalid(format!("Cannot bitcast from {} to {to}", x.dtype())));
    };
    let mut dims = x.dims().to_vec();
    if from_size > to_size {
        dims.push(from_size / to_size);
    } else if from_size < to_size && dims.pop() != Some(to_size / from_size) {
        return Err(Failure::invalid(format!(
            "Cannot bitcast from {} to {to}: the last dimension of shape {} is not {}",
            x.dtype(),
            x.shape(),
            to_size / from_size
        )));
    }
    match x.bytes() {
        Some(bytes) => Tensor::from_bytes(to, dims, bytes),
        None => super::view::not_held(x.dtype()),
    }
}

fn check_numerics(x: Tensor, message: &str) -> Result<Tensor> {
    let (nan, infinite) = with_float!(x.dtype(), T => {
        x.slice::<T>()?.iter().fold((false, false), |(nan, infinite), x| {
            let x = x.to_f64();
            (nan | x.is_nan(), infinite | x.is_infinite())
        })
    })
    .unwrap_or_default();
    match (nan, infinite) {
        (false, false) => Ok(x),
        (true, true) => Err(Failure::invalid(format!("{message} : Tensor had Inf and NaN values"))),
        (true, false) => Err(Failure::invalid(format!("{message} : Tensor had NaN values"))),
        (false, true) => Err(Failure::invalid(format!("{message} : Tensor had Inf values"))),
    }
}
