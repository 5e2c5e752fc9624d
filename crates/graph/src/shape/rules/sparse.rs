//! Shapes of ops on sparse tensors: the indices of elements as rows of a matrix, the elements, and the shape as a vector.

use super::{Entry, one};
use crate::shape::call::{Call, axis, merge_sizes};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("set_operation", set_operation, Extent::Unknown),
    ("serialize_sparse", serialize, Extent::Unknown),
    ("serialize_many_sparse", serialize_many, Extent::Unknown),
    ("deserialize_sparse", deserialize, Extent::Unknown),
    ("deserialize_many_sparse", deserialize_many, Extent::Unknown),
    ("take_many_sparse", take_many, Extent::Unknown),
    ("sparse_cross", cross, Extent::Unknown),
    ("sparse_reshape", reshape, Extent::Unknown),
    ("sparse_reorder", reorder, Extent::Unknown),
    ("sparse_concat", concat, Extent::Unknown),
    ("sparse_split", split, Extent::Unknown),
    ("sparse_sum", sum, Extent::Unknown),
    ("sparse_same_values", same_values, Extent::Unknown),
    ("sparse_part", part, Extent::Unknown),
    ("sparse_matmul", matmul, Extent::Unknown),
    ("same_as_fourth", same_as_fourth, Extent::Unknown),
    ("sparse_reduce", reduce, Extent::Unknown),
    ("sparse_fill", fill_empty_rows, Extent::Unknown),
    ("sparse_fill_gradient", fill_empty_rows_gradient, Extent::Unknown),
    ("sparse_segment", segment, Extent::Unknown),
    ("sparse_segment_rows", segment_rows, Extent::Unknown),
    ("sparse_reduce_sparse", |_| Some(vec![Fact::default(), Fact::default(), Fact::default()]), Extent::Unknown),
    ("sparse_union", sparse_union, Extent::Unknown),
    ("sparse_counts", |call| Some(whole(call, call.size(None))), Extent::Unknown),
    ("sparse_bins", |_| None, Extent::Unknown),
    ("ragged_bins", |_| None, Extent::Unknown),
    ("ragged_fill", ragged_fill, Extent::Unknown),
    ("sparse_values", values, Extent::Unknown),
    ("sparse_add_gradient", add_gradient, Extent::Unknown),
    ("sparse_slice_gradient", slice_gradient, Extent::Unknown),
];

/// Indices, elements and shape of a sparse tensor of that rank.
fn whole(call: &Call, rank: Size) -> Vec<Fact> {
    let count = call.size(None);
    vec![vec![count, rank].into(), vec![count].into(), vec![rank].into()]
}

/// Crossed columns: one row of values for each row of theirs.
fn cross(call: &Call) -> Option<Vec<Fact>> {
    Some(whole(call, Size::Known(2)))
}

/// The size of an input's axis.
fn size(call: &Call, input: usize, axis: usize) -> Size {
    call.dims(input).and_then(|dims| dims.get(axis).copied()).unwrap_or_else(|| call.size(None))
}

fn reshape(call: &Call) -> Option<Vec<Fact>> {
    let rank = size(call, 2, 0);
    Some(vec![vec![size(call, 0, 0), rank].into(), vec![rank].into()])
}

fn reorder(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![call.of_rank(0, 2)?.into(), call.of_rank(1, 1)?.into()])
}

fn concat(call: &Call) -> Option<Vec<Fact>> {
    let count = call.len() / 3;
    let total = (0..count).map(|i| size(call, i, 0).known()).sum::<Option<usize>>();
    let rank =
        (0..count).map(|i| size(call, i, 1)).find(|size| size.known().is_some()).unwrap_or_else(|| call.size(None));
    let total = call.size(total);
    Some(vec![vec![total, rank].into(), vec![total].into(), vec![rank].into()])
}

fn split(call: &Call) -> Option<Vec<Fact>> {
    let parts = call.node.outputs.len() / 3;
    let rank = size(call, 3, 0);
    let [indices, values, _]: [Fact; 3] = whole(call, rank).try_into().ok()?;
    let shape = call.dims(3).map(Fact::from).unwrap_or_default();
    let each = [indices, values, shape].map(|fact| vec![fact; parts]);
    Some(each.concat())
}

/// Some elements of both tensors.
fn sum(call: &Call) -> Option<Vec<Fact>> {
    let [indices, values, _]: [Fact; 3] = whole(call, size(call, 2, 0)).try_into().ok()?;
    Some(vec![indices, values, call.of_rank(2, 1)?.into()])
}

/// One value for each element.
fn same_values(call: &Call) -> Option<Vec<Fact>> {
    one(call.of_rank(1, 1)?)
}

/// Some elements.
fn part(call: &Call) -> Option<Vec<Fact>> {
    let shape = call.dims(2).map(Fact::from).unwrap_or_default();
    let [indices, values, _]: [Fact; 3] = whole(call, size(call, 2, 0)).try_into().ok()?;
    Some(vec![indices, values, shape])
}

fn matmul(call: &Call) -> Option<Vec<Fact>> {
    let (a, b) = (call.sizes(2), call.of_rank(3, 2)?);
    let a = match a {
        Some(a) if a.len() == 2 => a,
        Some(_) => return None,
        None => call.unknown(2),
    };
    let (adjoint_a, adjoint_b) = (call.bool("adjoint_a")?, call.bool("adjoint_b")?);
    merge_sizes(a[usize::from(!adjoint_a)], b[usize::from(adjoint_b)])?;
    one(vec![a[usize::from(adjoint_a)], b[usize::from(!adjoint_b)]])
}

fn same_as_fourth(call: &Call) -> Option<Vec<Fact>> {
    one(call.dims(3)?)
}

fn reduce(call: &Call) -> Option<Vec<Fact>> {
    let (dims, axes, keeps) = (call.values(2)?, call.values(3)?, call.bool("keep_dims")?);
    let axes: Vec<usize> = axes.iter().map(|&at| axis(at, dims.len())).collect::<Option<_>>()?;
    let mut left = Dims::new();
    for (at, &size) in dims.iter().enumerate() {
        match (axes.contains(&at), keeps) {
            (false, _) => left.push(Size::Known(usize::try_from(size).ok()?)),
            (true, true) => left.push(Size::Known(1)),
            (true, false) => {}
        }
    }
    one(left)
}

fn fill_empty_rows(call: &Call) -> Option<Vec<Fact>> {
    let [indices, values, _]: [Fact; 3] = whole(call, size(call, 2, 0)).try_into().ok()?;
    let rows = call.values(2).and_then(|sizes| usize::try_from(*sizes.first()?).ok());
    let places = Some(size(call, 0, 0)).filter(|size| size.known().is_some()).unwrap_or_else(|| size(call, 1, 0));
    Some(vec![indices, values, vec![call.size(rows)].into(), vec![places].into()])
}

fn fill_empty_rows_gradient(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![vec![size(call, 0, 0)].into(), Dims::new().into()])
}

/// As many rows as the fourth input specifies.
fn segment(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    *dims.first_mut()? = call.size_in(3)?;
    one(dims)
}

/// As many rows as different indices.
fn segment_rows(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    let values = call.dims(0).and_then(|mut dims| {
        *dims.first_mut()? = count;
        Some(dims)
    });
    Some(vec![values.map(Fact::from).unwrap_or_default(), vec![count].into()])
}

/// The elements of two tensors.
fn sparse_union(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    Some(vec![vec![count, call.size(None)].into(), vec![count].into()])
}

/// The rows of values, the values, a flag for each row, and a place for each value.
fn ragged_fill(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    let places = Some(size(call, 0, 0)).filter(|size| size.known().is_some()).unwrap_or_else(|| size(call, 1, 0));
    Some(vec![vec![count].into(), vec![count].into(), vec![call.size(None)].into(), vec![places].into()])
}

/// One value for each index.
fn values(call: &Call) -> Option<Vec<Fact>> {
    one(vec![size(call, 0, 0)])
}

fn add_gradient(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![vec![size(call, 1, 0)].into(), vec![size(call, 2, 0)].into()])
}

fn slice_gradient(call: &Call) -> Option<Vec<Fact>> {
    one(vec![size(call, 1, 0)])
}

/// Sets as a sparse tensor of the rank of the operands.
fn set_operation(call: &Call) -> Option<Vec<Fact>> {
    let rank = |input: usize| call.dims(input).map(|dims| Size::Known(dims.len()));
    let stated = |input: usize| Some(size(call, input, 0)).filter(|size| size.known().is_some());
    let rank = match call.len() {
        2 => rank(0).or_else(|| rank(1)),
        4 => rank(0).or_else(|| stated(3)),
        _ => stated(2).or_else(|| stated(5)),
    };
    Some(whole(call, rank.unwrap_or_else(|| call.size(None))))
}

/// Indices, elements and shape, serialised as one string each.
fn serialize(call: &Call) -> Option<Vec<Fact>> {
    call.of_rank(0, 2)?;
    one(vec![Size::Known(3)])
}

fn serialize_many(call: &Call) -> Option<Vec<Fact>> {
    call.of_rank(0, 2)?;
    one(vec![call.size(None), Size::Known(3)])
}

fn deserialize(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![call.unknown(2).into(), call.unknown(1).into(), call.unknown(1).into()])
}

fn take_many(call: &Call) -> Option<Vec<Fact>> {
    call.of_rank(0, 1)?;
    deserialize(call)
}

fn deserialize_many(call: &Call) -> Option<Vec<Fact>> {
    call.of_rank(0, 2)?;
    deserialize(call)
}
