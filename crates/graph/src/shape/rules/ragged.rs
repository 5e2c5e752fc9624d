//! Shapes of ops on ragged tensors: splits of rows as vectors, and the values.

use super::{Entry, one};
use crate::shape::call::{Call, merge_sizes};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("ragged_range", range, Extent::Unknown),
    ("ragged_gather", gather, Extent::Unknown),
    ("ragged_to_sparse", to_sparse, Extent::Unknown),
    ("ragged_to_variant", to_variant, Extent::Unknown),
    ("ragged_from_variant", from_variant, Extent::Unknown),
    ("ragged_to_tensor", to_dense, Extent::Unknown),
];

/// One row for each element of the inputs that are vectors.
fn range(call: &Call) -> Option<Vec<Fact>> {
    let inputs: Vec<Option<Dims>> = (0..3).map(|input| call.dims(input)).collect();
    let vectors = inputs.iter().flatten().filter(|dims| dims.len() == 1);
    let rows = vectors.map(|dims| dims[0]).try_fold(call.size(None), merge_sizes)?;
    let are_scalars = inputs.iter().all(|dims| dims.as_ref().is_some_and(|dims| dims.is_empty()));
    let splits = if are_scalars { Size::Known(2) } else { call.map(rows, |rows| rows.checked_add(1)) };
    Some(vec![vec![splits].into(), call.unknown(1).into()])
}

/// Splits, and values whose own shape is unchanged.
fn gather(call: &Call) -> Option<Vec<Fact>> {
    let values = call.len().checked_sub(2)?;
    let dims = call.dims(values).and_then(|dims| Some([&[call.size(None)], dims.get(1..)?].concat()));
    let splits = (1..call.node.outputs.len()).map(|_| call.unknown(1).into());
    Some(splits.chain([dims.map(Fact::from).unwrap_or_default()]).collect())
}

/// An index and a value for each element.
fn to_sparse(call: &Call) -> Option<Vec<Fact>> {
    let nested = call.len().checked_sub(1)?;
    let dims = call.dims(nested);
    let count = dims.as_ref().and_then(|dims| dims.iter().map(|size| size.known()).product::<Option<usize>>());
    let (count, rank) = (call.size(count), call.size(dims.map(|dims| dims.len() + nested)));
    Some(vec![vec![count, rank].into(), vec![count].into(), vec![rank].into()])
}

/// The shape requested by the first input, with open sizes taken from the values.
fn to_dense(call: &Call) -> Option<Vec<Fact>> {
    let forms = call.node.attrs.strs("row_partition_types").ok()?;
    let ragged = forms.iter().filter(|form| *form != b"FIRST_DIM_SIZE").count();
    let asked = call.sizes(0);
    let Some(inner) = call.dims(1).and_then(|dims| Some(dims.get(1..)?.to_vec())) else { return one(asked?) };
    let mut dims = asked.unwrap_or_else(|| call.unknown(ragged + 1 + inner.len()));
    for (asked, own) in dims.get_mut(ragged + 1..)?.iter_mut().zip(inner) {
        if asked.known().is_none() {
            *asked = own;
        }
    }
    one(dims)
}

/// A variant for each row, or one for all. TensorFlow infers one too few for rows that are not ragged.
fn to_variant(call: &Call) -> Option<Vec<Fact>> {
    if !call.bool("batched_input")? {
        return one(Dims::new());
    }
    let splits = call.dims(0).filter(|_| call.int("RAGGED_RANK") != Some(0));
    let first = splits.and_then(|dims| dims.first().copied()).unwrap_or_else(|| call.size(None));
    one(vec![call.map(first, |first| first.checked_sub(1))])
}

/// Splits and values.
fn from_variant(call: &Call) -> Option<Vec<Fact>> {
    let splits = (1..call.node.outputs.len()).map(|_| call.unknown(1).into());
    Some(splits.chain([Fact::default()]).collect())
}
