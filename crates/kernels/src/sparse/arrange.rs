//! SparseReshape, SparseReorder, SparseConcat, SparseSplit and SparseSlice: the same elements at other indices.

use meshtf_loops::turn::paced;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Numeric, Shape, Tensor, with_number};
use smallvec::smallvec;

use super::super::call::{self, take, vector};
use super::super::{Inputs, Outputs, Registry};
use super::{Sparse, matrix, picked};

pub(super) fn register(ops: &mut Registry) {
    ops.insert("SparseReshape", |_| {
        Ok(Some(Box::new(|inputs| {
            let [indices, shape, new] = take(inputs)?;
            reshape(&indices, &shape, &new)
        })))
    });
    ops.insert("SparseReorder", |_| {
        Ok(Some(Box::new(|inputs| {
            let [indices, values, shape] = take(inputs)?;
            let sparse = Sparse::of(&indices, values, &shape)?;
            let (at, values) = part(&sparse, &sparse.order(), |at| at)?;
            Ok(smallvec![at, values])
        })))
    });
    ops.insert("SparseConcat", |node| {
        let axis = node.attrs.int("concat_dim")?;
        Ok(Some(Box::new(move |inputs| concat(inputs, axis))))
    });
    ops.insert("SparseSplit", |node| {
        let parts = node.attrs.int("num_split")?;
        Ok(Some(Box::new(move |inputs| {
            let [axis, indices, values, shape] = take(inputs)?;
            split(&axis, &Sparse::of(&indices, values, &shape)?, parts)
        })))
    });
    ops.insert("SparseSlice", |_| {
        Ok(Some(Box::new(|inputs| {
            let [indices, values, shape, start, size] = take(inputs)?;
            let sparse = Sparse::of(&indices, values, &shape)?;
            slice(&sparse, &vector(&start, "start", false)?, &vector(&size, "size", false)?)
        })))
    });
    ops.insert("SparseSliceGrad", |node| {
        Ok(with_number!(call::input_dtype(node, 0)?, T => call::kernel(|[gradient, indices, start, outputs]| {
            slice_gradient::<T>(&gradient, &indices, &start, &outputs)
        })))
    });
}

/// Some of the elements, with `moved` applied to their indices.
fn part(sparse: &Sparse, places: &[usize], moved: impl Fn(i64) -> i64) -> Result<(Tensor, Tensor)> {
    let indices = places.iter().flat_map(|&i| sparse.row(i)).map(|&at| moved(at)).collect();
    Ok((matrix(indices, places.len(), sparse.rank()), picked(&sparse.values, places)?))
}

fn reshape(indices: &Tensor, shape: &Tensor, new: &Tensor) -> Result<Outputs> {
    let (from, mut to) = (vector(shape, "Input shape", false)?, vector(new, "Target shape", false)?);
    let [rows, width] = *indices.dims() else {
        return Err(Failure::invalid(format!(
            "Input indices should be a matrix but received shape {}",
            indices.shape()
        )));
    };
    if width != from.len() {
        return Err(Failure::invalid(format!(
            "Input tensor rank must match input shape length: {width} and {}",
            from.len()
        )));
    }
    let total = Shape::from_i64s(&from)?.elements().unwrap_or(usize::MAX);
    let unknown: Vec<usize> = (0..to.len()).filter(|&i| to[i] == -1).collect();
    if let [_, more, ..] = unknown[..] {
        return Err(Failure::invalid(format!("only one output dimension may be -1, not also {more}")));
    }
    if let Some(&size) = to.iter().find(|&&size| size < -1) {
        return Err(Failure::invalid(format!("size of the new shape must be non-negative, not {size}")));
    }
    if let [at] = unknown[..] {
        let known = to.iter().filter(|&&size| size != -1).try_fold(1i64, |product, &size| product.checked_mul(size));
        let rest = known.filter(|&known| known > 0 && total as i64 % known == 0).map(|known| total as i64 / known);
        to[at] = rest.ok_or_else(|| {
            let of = known.map_or("more elements than there can be".to_owned(), |known| known.to_string());
            Failure::invalid(format!(
                "Input to reshape is a SparseTensor with {total} dense values, but the requested shape requires a multiple \
                 of {of}. input_shape={from:?} output_shape={to:?}"
            ))
        })?;
    }
    let wanted = Shape::from_i64s(&to)?.elements();
    if wanted != Some(total) {
        return Err(Failure::invalid(format!(
            "Input to reshape is a tensor with {total} dense values, but the requested shape {to:?} has {}",
            wanted.map_or("too many".to_owned(), |wanted| wanted.to_string())
        )));
    }
    // Rows without indices take no memory themselves.
    Shape::from([rows, to.len().max(1)]).checked_elements(DType::I64)?;
    let mut at = Vec::with_capacity(rows * to.len());
    let all = indices.to_i64s()?;
    for row in paced((0..rows).map(|i| &all[i * width..][..width]), to.len() + 4) {
        let mut flat = row.iter().zip(&from).fold(0i64, |flat, (&at, &size)| flat.wrapping_mul(size).wrapping_add(at));
        let first = at.len();
        at.resize(first + to.len(), 0);
        for (own, &size) in at[first..].iter_mut().zip(&to).rev() {
            *own = flat.rem_euclid(size.max(1));
            flat = flat.div_euclid(size.max(1));
        }
    }
    Ok(smallvec![matrix(at, rows, to.len()), Tensor::vector(to)])
}

fn concat(inputs: Inputs, axis: i64) -> Result<Outputs> {
    let count = inputs.len() / 3;
    let all = (0..count)
        .map(|i| Sparse::of(&inputs[i], inputs[count + i].clone(), &inputs[2 * count + i]))
        .collect::<Result<Vec<_>>>()?;
    let first = &all[0];
    let at = call::axis(axis, first.rank()).map_err(|_| {
        Failure::invalid(format!(
            "Concat dimension must be in range [{0}, {1}), got {axis}",
            -(first.rank() as i64),
            first.rank()
        ))
    })?;
    let mut dims = first.dims.clone();
    let (mut indices, mut sources) = (first.indices.clone(), vec![(0, first.len())]);
    for (i, sparse) in all.iter().enumerate().skip(1) {
        let fits =
            sparse.rank() == dims.len() && (0..dims.len()).all(|axis| axis == at || sparse.dims[axis] == dims[axis]);
        if !fits {
            let why = format!("Input shapes must match: expected {dims:?} but got {:?} at position {i}", sparse.dims);
            return Err(Failure::invalid(why));
        }
        let moved =
            sparse.indices.iter().enumerate().map(|(k, &x)| if k % dims.len() == at { x + dims[at] } else { x });
        indices.extend(moved);
        dims[at] = dims[at].checked_add(sparse.dims[at]).ok_or_else(|| Failure::invalid("the sizes exceed int64"))?;
        sources.push((i, sparse.len()));
    }
    let values: Vec<Tensor> = all.iter().map(|sparse| sparse.values.clone()).collect();
    let length = sources.iter().map(|source| source.1).sum();
    let values = super::super::array::join(&values, 0, [length].into())?.remove(0);
    let rank = dims.len();
    let joined = Sparse { indices, values, dims };
    let (at, values) = part(&joined, &joined.order(), |at| at)?;
    debug_assert_eq!(at.dims(), [length, rank]);
    Ok(smallvec![at, values, Tensor::vector(joined.dims)])
}

/// The boundaries of `parts` parts of an axis of that size: if the sizes are uneven, the first parts have one more.
fn bounds(size: i64, parts: i64) -> Vec<i64> {
    let (least, more) = (size / parts, size % parts);
    (0..=parts).map(|i| i * least + i.min(more)).collect()
}

fn split(axis: &Tensor, sparse: &Sparse, parts: i64) -> Result<Outputs> {
    let wanted = axis.to_i64()?;
    let at = call::axis(wanted, sparse.rank()).map_err(|_| {
        let rank = sparse.rank() as i64;
        Failure::invalid(format!("Input split_dim should be between [{}, {rank}), got {wanted}", -rank))
    })?;
    let size = sparse.dims[at];
    if parts < 1 || parts > size {
        return Err(Failure::invalid(format!(
            "Input num_split should be between 1 and the splitting dimension size ({size}), got {parts}"
        )));
    }
    let bounds = bounds(size, parts);
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); parts as usize];
    for (i, row) in sparse.rows().enumerate() {
        let within = (0..size).contains(&row[at]).then(|| bounds.partition_point(|&bound| bound <= row[at]) - 1);
        let part =
            within.ok_or_else(|| Failure::invalid(format!("indices[{i}] = {row:?} lies beyond the size {size}")))?;
        places[part].push(i);
    }
    let (mut indices, mut values, mut shapes) = (Outputs::new(), Outputs::new(), Outputs::new());
    for (k, places) in places.iter().enumerate() {
        let rows = places.iter().flat_map(|&i| sparse.row(i).iter().enumerate());
        let moved = rows.map(|(axis, &x)| if axis == at { x - bounds[k] } else { x }).collect();
        indices.push(matrix(moved, places.len(), sparse.rank()));
        values.push(picked(&sparse.values, places)?);
        let mut dims = sparse.dims.clone();
        dims[at] = bounds[k + 1] - bounds[k];
        shapes.push(Tensor::vector(dims));
    }
    Ok(indices.into_iter().chain(values).chain(shapes).collect())
}

fn slice(sparse: &Sparse, start: &[i64], size: &[i64]) -> Result<Outputs> {
    if start.len() != sparse.rank() || size.len() != sparse.rank() {
        let why = format!(
            "Expected start and size to be vectors of length {}, got {} and {}",
            sparse.rank(),
            start.len(),
            size.len()
        );
        return Err(Failure::invalid(why));
    }
    let dims: Vec<i64> = sparse
        .dims
        .iter()
        .zip(start)
        .zip(size)
        .map(|((&dim, &start), &size)| size.min(dim.saturating_sub(start)).max(0))
        .collect();
    let is_in =
        |row: &[i64]| row.iter().zip(start).zip(&dims).all(|((&x, &start), &size)| x >= start && x - start < size);
    let places: Vec<usize> = (0..sparse.len()).filter(|&i| is_in(sparse.row(i))).collect();
    let moved = places.iter().flat_map(|&i| sparse.row(i).iter().zip(start)).map(|(&x, &start)| x - start).collect();
    Ok(smallvec![matrix(moved, places.len(), sparse.rank()), picked(&sparse.values, &places)?, Tensor::vector(dims)])
}

/// The gradient of each element that was kept, and zero for the rest. Both lists of indices are in order.
fn slice_gradient<T: Numeric>(gradient: &Tensor, indices: &Tensor, start: &Tensor, outputs: &Tensor) -> Result<Tensor> {
    let start = vector(start, "input_start", false)?;
    let ([rows, width], [kept, kept_width]) = (indices.dims(), outputs.dims()) else {
        return Err(Failure::invalid("input_indices and output_indices must be matrices"));
    };
    if width != kept_width || *width != start.len() || gradient.dims() != [*kept] {
        return Err(Failure::invalid(format!(
            "indices {}, start of {}, output indices {} and gradients {} do not fit each other",
            indices.shape(),
            start.len(),
            outputs.shape(),
            gradient.shape()
        )));
    }
    let (indices, outputs) = (indices.to_i64s()?, outputs.to_i64s()?);
    let mut kept = (0..*kept).map(|i| (i, &outputs[i * width..][..*width])).peekable();
    Shape::from([*rows, 2]).checked_elements(DType::I64)?;
    let mut sources = vec![None; *rows];
    for (source, row) in sources.iter_mut().zip((0..*rows).map(|i| &indices[i * width..][..*width])) {
        let moved = row.iter().zip(&start).map(|(&x, &start)| x - start);
        if let Some((i, _)) = kept.next_if(|(_, own)| moved.eq(own.iter().copied())) {
            *source = Some(i);
        }
    }
    let gradient = gradient.slice::<T>()?;
    Ok(Tensor::vector(sources.iter().map(|source| source.map_or(T::ZERO, |i| gradient[i])).collect::<Vec<T>>()))
}
