//! Shapes of ops on state: a handle is identified by the node that made it, whose attributes declare the shapes of the state.

use meshtf_tensor::PartialShape;

use super::{Entry, one};
use crate::Node;
use crate::shape::call::{Call, known};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("variable", variable, Extent::Shapes),
    ("old_variable", old_variable, Extent::Shapes),
    ("handle", handle, Extent::Shapes),
    ("named_handle", named_handle, Extent::Shapes),
    ("read", read, Extent::Shapes),
    ("assign", assign, Extent::Shapes),
    ("merged_variable", merged, Extent::Shapes),
    ("update", update, Extent::Shapes),
    ("variable_shape", variable_shape, Extent::Shapes),
    ("batch", batch, Extent::Unknown),
    ("unbatch", |call| rows_of_input(call, 0), Extent::Unknown),
    ("unbatch_gradient", |call| one(call.unknown(call.dims(2)?.len())), Extent::Unknown),
    ("dequeue", dequeue, Extent::Unknown),
    ("dequeue_many", dequeue_many, Extent::Unknown),
    ("dequeue_up_to", dequeue_up_to, Extent::Unknown),
    ("accumulated", read, Extent::Unknown),
    ("array_handle", array_handle, Extent::Unknown),
    ("array_handle_alone", |call| array_handle(call).map(|facts| facts.into_iter().take(1).collect()), Extent::Unknown),
    ("longer_array_handle", |_| Some(vec![known(&[2]).into(), Dims::new().into()]), Extent::Unknown),
    ("ref_select", ref_select, Extent::Unknown),
    ("array_read", array_read, Extent::Unknown),
    ("array_gather", array_gather, Extent::Unknown),
    ("array_concat", array_concat, Extent::Unknown),
    ("array_pack", array_pack, Extent::Unknown),
    ("table_find", table_find, Extent::Unknown),
    ("table_keys", table_keys, Extent::Unknown),
];

/// A reference to a variable, which has the variable's shape.
fn variable(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact { dims: call.stated_in("shape"), made_by: Some(call.id), ..Fact::default() }])
}

/// As [`variable`], for clients so old that a scalar's shape denotes an unknown one.
fn old_variable(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.stated_in("shape").filter(|dims| !dims.is_empty());
    Some(vec![Fact { dims, made_by: Some(call.id), ..Fact::default() }])
}

/// A new handle.
fn handle(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact { made_by: Some(call.id), ..Dims::new().into() }])
}

/// A new handle with two names: a container and a name in it.
fn named_handle(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact { made_by: Some(call.id), ..known(&[2]).into() }])
}

/// A handle with two names, and a number that orders the operations on it; the handle of a gradient is that of its array.
fn array_handle(call: &Call) -> Option<Vec<Fact>> {
    let made_by = call.fact(0).and_then(|fact| fact.made_by).unwrap_or(call.id);
    Some(vec![Fact { made_by: Some(made_by), ..known(&[2]).into() }, Dims::new().into()])
}

/// One of several variables, of which the first input gives the number.
fn ref_select(call: &Call) -> Option<Vec<Fact>> {
    let first = call.dims(1)?;
    let all = (2..call.node.inputs.len()).all(|index| call.dims(index).as_ref() == Some(&first));
    let is_whole = first.iter().all(|size| size.known().is_some());
    if all && is_whole { one(first) } else { Some(vec![Fact::default()]) }
}

/// The value of a variable.
fn read(call: &Call) -> Option<Vec<Fact>> {
    one(held(call)?)
}

fn held(call: &Call) -> Option<Dims> {
    call.stated(call.maker(0)?.attrs.shape("shape").ok()?)
}

/// A variable after an assignment; its shape is the value's if that is not checked against its own.
fn assign(call: &Call) -> Option<Vec<Fact>> {
    let dims = if call.bool("validate_shape")? { call.merged([0, 1]) } else { call.dims(1) };
    Some(vec![Fact { dims, made_by: call.fact(0).and_then(|fact| fact.made_by), ..Fact::default() }])
}

/// A variable after a value of its shape was added.
fn merged(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact {
        dims: call.merged([0, 1]),
        made_by: call.fact(0).and_then(|fact| fact.made_by),
        ..Fact::default()
    }])
}

/// A variable after an update.
fn update(call: &Call) -> Option<Vec<Fact>> {
    let made_by = call.fact(0).and_then(|fact| fact.made_by);
    Some(vec![Fact { dims: call.dims(0), made_by, ..Fact::default() }])
}

/// The shape of a variable's value.
fn variable_shape(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size(held(call).map(|dims| dims.len()))])
}

/// The shapes that a queue declares for the components of its elements.
fn components(call: &Call) -> Option<Vec<PartialShape>> {
    let queue = call.maker(0)?;
    let mut shapes = queue.attrs.shapes("shapes").ok()?.to_vec();
    let outputs = call.node.outputs.len();
    if shapes.len() + 1 == outputs && outputs > 1 {
        // The priority of an element comes before the declared components.
        shapes.insert(0, PartialShape(Some(Vec::new())));
    }
    (shapes.len() == outputs).then_some(shapes)
}

/// An input with another number of rows.
fn rows_of_input(call: &Call, input: usize) -> Option<Vec<Fact>> {
    let dims = call.dims(input)?;
    one([&[call.size(None)], dims.get(1..)?].concat())
}

/// The inputs with the rows of other calls; then the number and the rows of each call, and the own number.
fn batch(call: &Call) -> Option<Vec<Fact>> {
    let rows = |input| rows_of_input(call, input).and_then(|facts| facts.into_iter().next()).unwrap_or_default();
    let index = vec![call.size(None), call.size(Some(3))];
    let inputs = (0..call.node.inputs.len()).map(rows);
    Some(inputs.chain([index.into(), Dims::new().into()]).collect())
}

/// An element of a queue.
fn dequeue(call: &Call) -> Option<Vec<Fact>> {
    Some(components(call)?.iter().map(|shape| call.stated(shape).into()).collect())
}

/// As many elements as the second input specifies.
fn dequeue_many(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size_in(1)?;
    rows_of(call, count)
}

/// As many elements as the second input specifies, or fewer.
fn dequeue_up_to(call: &Call) -> Option<Vec<Fact>> {
    rows_of(call, call.size(None))
}

fn rows_of(call: &Call, count: Size) -> Option<Vec<Fact>> {
    let rows = |shape: &PartialShape| call.stated(shape).map(|dims| [&[count], &dims[..]].concat()).into();
    Some(components(call)?.iter().map(rows).collect())
}

/// Whether all elements of a tensor array must have its declared shape.
fn is_checked(array: &Node) -> bool {
    array.attrs.bool("identical_element_shapes").unwrap_or(false)
}

/// The declared shape of a tensor array's elements, if all of them must have it.
fn element(call: &Call) -> Option<Dims> {
    call.stated(call.maker(0).filter(|array| is_checked(array))?.attrs.shape("element_shape").ok()?)
}

fn array_read(call: &Call) -> Option<Vec<Fact>> {
    one(element(call)?)
}

/// One element for each index.
fn array_gather(call: &Call) -> Option<Vec<Fact>> {
    let count = call.of_rank(1, 1)?[0];
    // For arrays whose elements may differ in shape, the shape stated by the op itself applies.
    let element = match call.maker(0)? {
        array if is_checked(array) => element(call)?,
        _ => call.stated_in("element_shape")?,
    };
    one([&[count], &element[..]].concat())
}

/// The concatenation of elements with several rows each; and the number of rows of each.
fn array_concat(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact::default(), call.unknown(1).into()])
}

/// All elements, of the shape stated by the op.
fn array_pack(call: &Call) -> Option<Vec<Fact>> {
    one([&[call.size(None)], &call.stated_in("element_shape")?[..]].concat())
}

/// The shapes of one key and one value of the mutable table that made the handle.
fn entry(call: &Call) -> Option<(Dims, Dims)> {
    let table = call.maker(0)?;
    let key = match table.inputs.first() {
        // The keys of a dense table have the shape of its empty key.
        Some(&empty) => call.known.fact(empty)?.dims.clone()?,
        None => Dims::new(),
    };
    let value = match table.attrs.shape("value_shape") {
        Ok(shape) => call.stated(shape)?,
        Err(_) => Dims::new(),
    };
    (table.op.name != "HashTableV2").then_some((key, value))
}

/// The values of the requested keys.
fn table_find(call: &Call) -> Option<Vec<Fact>> {
    let (key, value) = entry(call)?;
    let keys = call.dims(1)?;
    let prefix = keys.len().checked_sub(key.len())?;
    one([&keys[..prefix], &value[..]].concat())
}

/// All keys, and values of unknown shape.
fn table_keys(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![call.unknown(1).into(), Fact::default()])
}
