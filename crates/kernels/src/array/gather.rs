//! GatherV2 and GatherNd: slices of a tensor by index.

use meshtf_loops::turn::{BLOCK, Pace, blocks, paced};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Data, Moved, Shape, Tensor, with_moved};

use super::super::call::{self, kernel as call};
use super::super::{KernelNode, Registry};
use super::view::not_held;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("GatherV2", |node| {
        let batch_dims = node.attrs.int("batch_dims")?;
        Ok(Some(call(move |[params, indices, axis]| {
            if axis.rank() != 0 {
                return Err(Failure::invalid("axis must be scalar"));
            }
            gather(&params, &indices, axis.to_i64()?, batch_dims)
        })))
    });
    ops.insert("GatherNd", |node| {
        let ignore = ignores_bad_indices(node)?;
        Ok(Some(call(move |[params, indices]| {
            with_moved!(params.dtype(), T => gather_nd::<T>(&params, &indices, ignore))
                .unwrap_or_else(|| not_held(params.dtype()))
        })))
    });
}

/// The slices of `params` along `axis` that `indices` names; the first `batch_dims` dimensions of both are paired.
///
/// # Errors
/// As [`Gather::new`]; ResourceExhausted if the answer would be too large.
pub fn gather(params: &Tensor, indices: &Tensor, axis: i64, batch_dims: i64) -> Result<Tensor> {
    let gather = Gather::new(params.shape(), indices, axis, batch_dims)?;
    let n = gather.shape.checked_elements(params.dtype())?;
    with_moved!(params.dtype(), T => {
        let mut out = Vec::with_capacity(n);
        if n > 0 {
            gather.read(params.moved::<T>()?, &mut out);
        }
        Ok(Tensor::from_moved(params.dtype(), gather.shape, out))
    })
    .unwrap_or_else(|| not_held(params.dtype()))
}

/// The slices that a gather reads, and the shape of its result.
pub struct Gather {
    batches: usize,
    outer: usize,
    /// The size of the axis.
    limit: usize,
    /// The indices, after a check.
    places: Vec<usize>,
    /// The number of elements of a slice.
    pub inner: usize,
    /// The shape of the answer.
    pub shape: Shape,
}

impl Gather {
    /// The slices that `gather` reads from a tensor of this shape.
    ///
    /// # Errors
    /// InvalidArgument `indices[0,1] = 7 is not in [0, 5)`, or, in TensorFlow's words, if the shapes do not match.
    pub fn new(params: &Shape, indices: &Tensor, axis: i64, batch_dims: i64) -> Result<Gather> {
        if params.rank() == 0 {
            return Err(Failure::invalid("params must be at least 1 dimensional"));
        }
        let at = call::axis(axis, params.rank()).map_err(|_| {
            let rank = params.rank();
            Failure::invalid(format!("Expected axis in the range [-{rank}, {rank}), but got {axis}"))
        })?;
        let batch = batches(params, indices, batch_dims)?;
        if batch > at {
            return Err(Failure::invalid(format!("batch_dims ({batch}) must be less than or equal to axis ({at}).")));
        }
        for (i, (size, other)) in params.dims().iter().zip(indices.dims()).take(batch).enumerate() {
            if size != other {
                return Err(Failure::invalid(format!(
                    "params.shape[{i}]: {size} should be equal to indices.shape[{i}]: {other}"
                )));
            }
        }
        let limit = params.dims()[at];
        let places = indices_of(indices)?
            .into_iter()
            .enumerate()
            .map(|(i, index)| {
                usize::try_from(index).ok().filter(|&index| index < limit).ok_or_else(|| {
                    let place = call::place(i, indices.dims());
                    Failure::invalid(format!("indices{place} = {index} is not in [0, {limit})"))
                })
            })
            .collect::<Result<Vec<usize>>>()?;
        let (before, after) = (&params.dims()[batch..at], &params.dims()[at + 1..]);
        let own = &indices.dims()[batch..];
        Ok(Gather {
            batches: call::product(&params.dims()[..batch]),
            outer: call::product(before),
            limit,
            places,
            inner: call::product(after),
            shape: [&params.dims()[..batch], before, own, after].concat().into(),
        })
    }

    /// The number of slices to read, if each has elements.
    #[inline]
    pub fn slices(&self) -> usize {
        self.places.len() * self.outer
    }

    /// The offset of a slice.
    #[inline]
    pub fn offset(&self, slice: usize) -> usize {
        if self.outer * self.batches == 1 {
            return self.places[slice] * self.inner;
        }
        let own = self.places.len() / self.batches;
        let (outer, place) = (slice / own, slice % own);
        (outer * self.limit + self.places[outer / self.outer * own + place]) * self.inner
    }

    fn read<T: Moved>(&self, params: &[T], out: &mut Vec<T>) {
        let own = self.places.len() / self.batches;
        let mut pace = Pace::new();
        for (batch, places) in self.places.chunks_exact(own).enumerate() {
            for outer in 0..self.outer {
                let first = (batch * self.outer + outer) * self.limit;
                if self.inner == 1 {
                    pace.go(places.len().min(BLOCK));
                    for places in blocks(places) {
                        out.extend(places.iter().map(|&place| params[first + place].clone()));
                    }
                } else {
                    for &place in places {
                        pace.go(self.inner);
                        out.extend_from_slice(&params[(first + place) * self.inner..][..self.inner]);
                    }
                }
            }
        }
    }
}

/// The number of leading dimensions in which `params` and `indices` are paired.
fn batches(params: &Shape, indices: &Tensor, batch_dims: i64) -> Result<usize> {
    let rank = indices.rank() as i64;
    if batch_dims.unsigned_abs() > rank.unsigned_abs() {
        let why = format!("Expected batch_dims in the range [{}, {rank}], but got {batch_dims}", -rank);
        return Err(Failure::invalid(why));
    }
    let batch = if batch_dims < 0 { batch_dims + rank } else { batch_dims } as usize;
    if batch >= params.rank() {
        let why = format!("batch_dims ({batch}) must be less than rank(params) ({}).", params.rank());
        return Err(Failure::invalid(why));
    }
    Ok(batch)
}

/// The indices, from any integer dtype that indices can have.
pub(super) fn indices_of(indices: &Tensor) -> Result<Vec<i64>> {
    match indices.data() {
        Data::I16(values) => Ok(values.iter().map(|&x| i64::from(x)).collect()),
        Data::U16(values) => Ok(values.iter().map(|&x| i64::from(x)).collect()),
        _ => indices.to_i64s(),
    }
}

/// Whether the node ignores indices that are out of range instead of failing.
pub fn ignores_bad_indices(node: &KernelNode) -> Result<bool> {
    match node.attrs.str("bad_indices_policy")? {
        "IGNORE" => Ok(true),
        "" | "DEFAULT" | "ERROR" => Ok(false),
        other => Err(Failure::invalid(format!("bad_indices_policy is {other:?}, expected DEFAULT, ERROR or IGNORE"))),
    }
}

/// The slices of a tensor of `dims` that rows of coordinates name: the offset of each (`None` for an ignored invalid one)
/// and the number of elements in a slice.
pub(super) fn slices(
    indices: &Tensor,
    dims: &[usize],
    what: &str,
    ignore: bool,
) -> Result<(Vec<Option<usize>>, usize)> {
    let Some((&depth, prefix)) = indices.dims().split_last() else {
        return Err(Failure::invalid(format!("indices must be at least a vector, got shape {}", indices.shape())));
    };
    if depth > dims.len() {
        return Err(Failure::invalid(format!(
            "index innermost dimension length must be <= {what} rank; saw: {depth} vs. {}",
            dims.len()
        )));
    }
    let inner = call::product(&dims[depth..]);
    if depth == 0 {
        // Rows without coordinates take no memory themselves.
        Shape::from([call::product(prefix), 2]).checked_elements(DType::I64)?;
        return Ok((vec![Some(0); call::product(prefix)], inner));
    }
    let offsets = indices_of(indices)?
        .chunks_exact(depth)
        .enumerate()
        .map(|(i, coordinates)| {
            let offset = coordinates.iter().zip(dims).try_fold(0, |offset, (&at, &size)| {
                usize::try_from(at).ok().filter(|&at| at < size).map(|at| offset * size + at)
            });
            match offset {
                None if !ignore => Err(Failure::invalid(format!(
                    "indices{} = {coordinates:?} does not index into {what} shape {}",
                    call::place(i, prefix),
                    Shape::from(dims)
                ))),
                offset => Ok(offset.map(|offset| offset * inner)),
            }
        })
        .collect::<Result<_>>()?;
    Ok((offsets, inner))
}

/// The slices that GatherNd reads from a tensor of this shape: the offset of each (`None` for an ignored invalid one),
/// the number of elements of a slice, and the shape of the answer.
///
/// # Errors
/// InvalidArgument if the indices do not fit the shape.
pub fn nd_slices(params: &Shape, indices: &Tensor, ignore: bool) -> Result<(Vec<Option<usize>>, usize, Shape)> {
    let (offsets, inner) = slices(indices, params.dims(), "param", ignore)?;
    let depth = indices.dims()[indices.rank() - 1];
    let shape = [&indices.dims()[..indices.rank() - 1], &params.dims()[depth..]].concat().into();
    Ok((offsets, inner, shape))
}

fn gather_nd<T: Moved>(params: &Tensor, indices: &Tensor, ignore: bool) -> Result<Tensor> {
    let (offsets, inner, shape) = nd_slices(params.shape(), indices, ignore)?;
    let mut out = Vec::with_capacity(shape.checked_elements(params.dtype())?);
    let elements = params.moved::<T>()?;
    // Ignored indices give zeros.
    let zeros = vec![T::default(); inner];
    for offset in paced(offsets.into_iter(), inner + 4) {
        out.extend_from_slice(offset.map_or(&zeros, |offset| &elements[offset..offset + inner]));
    }
    Ok(Tensor::from_moved(params.dtype(), shape, out))
}
