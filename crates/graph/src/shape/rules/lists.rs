//! Shapes of ops on lists of tensors and on optionals, whose elements have the shape stated by an input or attribute.

use meshtf_tensor::PartialShape;

use super::{Entry, one};
use crate::shape::call::{Call, merge_sizes};
use crate::shape::{Dims, Extent, Fact};

pub(super) const RULES: &[Entry] = &[
    ("list_item", item, Extent::Unknown),
    ("list_pop", pop, Extent::Unknown),
    ("list_stack", stack, Extent::Unknown),
    ("list_gather", gather, Extent::Unknown),
    ("list_concat", concat, Extent::Unknown),
    ("declared_outputs", declared, Extent::Unknown),
    ("of_each_row", of_each_row, Extent::Unknown),
];

/// An element, of the shape stated by the third input.
fn item(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(2)?)
}

/// The list without its last element, and that element, whose shape is not known.
fn pop(_: &Call) -> Option<Vec<Fact>> {
    Some(vec![Dims::new().into()])
}

/// All elements.
fn stack(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(call.int("num_elements").and_then(|count| usize::try_from(count).ok()));
    one([&[count], &call.sizes(1)?[..]].concat())
}

/// One element for each index.
fn gather(call: &Call) -> Option<Vec<Fact>> {
    let count = call.of_rank(1, 1)?[0];
    one([&[count], &call.sizes(2)?[..]].concat())
}

/// The concatenation of elements with several rows each; and the number of rows of each.
fn concat(call: &Call) -> Option<Vec<Fact>> {
    let element = if call.len() > 1 { call.sizes(1) } else { call.stated_in("element_shape") };
    let rows = element.and_then(|dims| Some([&[call.size(None)], dims.get(1..)?].concat()));
    Some(vec![rows.into(), call.unknown(1).into()])
}

/// The shapes declared by the attribute `output_shapes`.
fn declared(call: &Call) -> Option<Vec<Fact>> {
    let shapes = call.node.attrs.shapes("output_shapes").ok()?;
    Some(shapes.iter().map(|shape| call.stated(shape).into()).collect())
}

/// The shapes declared by the attribute `output_shapes`, for each row of the arguments.
fn of_each_row(call: &Call) -> Option<Vec<Fact>> {
    let arguments = call.node.attrs.dtypes("Targuments").ok()?.len();
    let rows = (0..arguments).filter_map(|i| call.dims(i)?.first().copied());
    let count = rows.reduce(|a, b| merge_sizes(a, b).unwrap_or(a)).unwrap_or_else(|| call.size(None));
    let shapes = call.node.attrs.shapes("output_shapes").ok()?;
    let whole = |row: &PartialShape| Fact::from(call.stated(row).map(|row| [&[count], &row[..]].concat()));
    Some(shapes.iter().map(whole).collect())
}
