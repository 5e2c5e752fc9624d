//! Ops on lists of tensors and on optional tensors, whose elements have the shape that an input or attribute states.

use meshtf_tensor::PartialShape;

use super::one;
use crate::shape::call::{Call, merge_sizes};
use crate::shape::{Dims, Fact};

/// An element, of the shape that the third input states.
pub(super) fn item(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(2)?)
}

/// The list without its last element; that is not known.
pub(super) fn pop(_: &Call) -> Option<Vec<Fact>> {
    Some(vec![Dims::new().into()])
}

/// All elements.
pub(super) fn stack(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(call.int("num_elements").and_then(|count| usize::try_from(count).ok()));
    one([&[count], &call.sizes(1)?[..]].concat())
}

/// An element for each index.
pub(super) fn gather(call: &Call) -> Option<Vec<Fact>> {
    let count = call.of_rank(1, 1)?[0];
    one([&[count], &call.sizes(2)?[..]].concat())
}

/// Elements of several rows each, one after the other; and how many rows each has.
pub(super) fn concat(call: &Call) -> Option<Vec<Fact>> {
    let element = if call.len() > 1 { call.sizes(1) } else { call.stated_in("element_shape") };
    let rows = element.and_then(|dims| Some([&[call.size(None)], dims.get(1..)?].concat()));
    Some(vec![rows.into(), call.unknown(1).into()])
}

/// What the attribute `output_shapes` declares.
pub(super) fn declared(call: &Call) -> Option<Vec<Fact>> {
    let shapes = call.node.attrs.shapes("output_shapes").ok()?;
    Some(shapes.iter().map(|shape| call.stated(shape).into()).collect())
}

/// A row of what the attribute `output_shapes` declares for each row of the arguments.
pub(super) fn of_each_row(call: &Call) -> Option<Vec<Fact>> {
    let arguments = call.node.attrs.dtypes("Targuments").ok()?.len();
    let rows = (0..arguments).filter_map(|i| call.dims(i)?.first().copied());
    let count = rows.reduce(|a, b| merge_sizes(a, b).unwrap_or(a)).unwrap_or_else(|| call.size(None));
    let shapes = call.node.attrs.shapes("output_shapes").ok()?;
    let whole = |row: &PartialShape| Fact::from(call.stated(row).map(|row| [&[count], &row[..]].concat()));
    Some(shapes.iter().map(whole).collect())
}
