//! Shapes of ops that reshape or reorder elements, join tensors or split them.

use meshtf_tensor::Shape;

use super::{Entry, one};
use crate::shape::call::{Call, MAX_RANK, axis, merge, merge_sizes, whole};
use crate::shape::{Dims, Element, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("reshape", reshape, Extent::AllButFirst),
    ("ensured", ensured, Extent::Shapes),
    ("unravel", unravel, Extent::Unknown),
    ("packed_bits", packed_bits, Extent::Unknown),
    ("broadcast_to", broadcast_to, Extent::AllButFirst),
    ("expand_dims", expand_dims, Extent::AllButFirst),
    ("squeeze", squeeze, Extent::Shapes),
    ("transpose", transpose, Extent::AllButFirst),
    ("tile", tile, Extent::AllButFirst),
    ("pad", pad, Extent::Unknown),
    ("unpad", unpad, Extent::Unknown),
    ("concat", concat, Extent::First),
    ("concat_v2", concat_v2, Extent::Last),
    ("pack", pack, Extent::Shapes),
    ("unpack", unpack, Extent::Shapes),
    ("split", split, Extent::First),
    ("split_v", split_v, Extent::AllButFirst),
    ("parallel_concat", parallel_concat, Extent::Unknown),
    ("bitcast", bitcast, Extent::Shapes),
    ("vector", vector, Extent::Unknown),
    ("diag", diag, Extent::Unknown),
    ("diag_part", diag_part, Extent::Unknown),
    ("matrix_diag", matrix_diag, Extent::Unknown),
    ("matrix_set_diag", matrix_set_diag, Extent::Unknown),
    ("matrix_diag_part", matrix_diag_part, Extent::Unknown),
];

pub(super) fn reshape(call: &Call) -> Option<Vec<Fact>> {
    let elements = call.elements(0).map(<[Element]>::to_vec);
    Some(vec![Fact { dims: reshaped(call), elements, like: call.shape_of(1), ..Fact::default() }])
}

fn reshaped(call: &Call) -> Option<Dims> {
    let Some(wanted) = call.elements_of_rank(1, 1) else { return call.sizes(1) };
    let is_open = |element: &Element| !matches!(element, Element::Known(size) if *size != -1);
    refuse_elements(call, wanted);
    // An open size follows from the others and the number of elements.
    let inferred = || {
        let known =
            |element: &Element| if let Element::Known(size) = element { usize::try_from(*size).ok() } else { None };
        let rest: Shape = wanted.iter().filter(|element| !is_open(element)).map(known).collect::<Option<_>>()?;
        whole(&call.dims(0)?)?.elements()?.checked_div(rest.elements()?)
    };
    let inferred = if wanted.iter().filter(|element| is_open(element)).count() == 1 { inferred() } else { None };
    let size = |element: &Element| match *element {
        Element::Size(number) if inferred.is_none() => Some(Size::Unknown(number)),
        Element::Known(size) if size != -1 => Some(Size::Known(usize::try_from(size).ok()?)),
        _ => Some(call.size(inferred)),
    };
    wanted.iter().map(size).collect()
}

/// Refuses a shape that takes another number of elements than there are.
fn refuse_elements(call: &Call, wanted: &[Element]) {
    let number = |element: &Element| if let Element::Known(size) = element { Some(*size) } else { None };
    let Some(wanted) = wanted.iter().map(number).collect::<Option<Vec<i64>>>() else { return };
    let open = wanted.iter().filter(|&&size| size == -1).count();
    let stated = wanted.iter().filter(|&&size| size != -1).try_fold(1i64, |all, size| all.checked_mul(*size));
    let own = call.dims(0).and_then(|dims| whole(&dims)).and_then(|shape| shape.elements());
    let (Some(stated), Some(own)) = (stated, own.and_then(|own| i64::try_from(own).ok())) else { return };
    let fits = match open {
        0 => own == stated,
        1 => stated != 0 && own % stated == 0,
        // The kernel tells why.
        _ => true,
    };
    if !fits {
        call.refuse::<()>(|| format!("{own} elements do not take the shape {wanted:?}"));
    }
}

fn broadcast_to(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.sizes(1);
    if let (Some(own), Some(wanted)) = (call.dims(0), &dims) {
        let differ = |(own, wanted): (&Size, &Size)| own.known() != Some(1) && merge_sizes(*own, *wanted).is_none();
        if own.len() > wanted.len() || own.iter().rev().zip(wanted.iter().rev()).any(differ) {
            return call.refuse(|| "it does not broadcast to that shape".to_owned());
        }
    }
    Some(vec![Fact { dims, like: call.shape_of(1), ..Fact::default() }])
}

fn expand_dims(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    dims.insert(call.axis(call.value(1)?, dims.len() + 1)?, Size::Known(1));
    let elements = call.elements(0).map(<[Element]>::to_vec);
    Some(vec![Fact { dims: Some(dims), elements, ..Fact::default() }])
}

fn squeeze(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    let axes = call.node.attrs.ints("squeeze_dims").ok()?;
    let axes: Vec<usize> = axes.iter().map(|&a| call.axis(a, dims.len())).collect::<Option<_>>()?;
    if let Some((at, size)) = axes.iter().find_map(|&at| Some((at, dims[at].known().filter(|size| *size != 1)?))) {
        return call.refuse(|| format!("axis {at} has size {size}, and only an axis of size 1 is removed"));
    }
    if axes.is_empty() && dims.iter().any(|size| size.known().is_none()) {
        return None;
    }
    let goes = |i: usize, size: Size| if axes.is_empty() { size == Size::Known(1) } else { axes.contains(&i) };
    let kept = dims.iter().enumerate().filter(|&(i, &size)| !goes(i, size)).map(|(_, &size)| size).collect();
    let elements = call.elements(0).map(<[Element]>::to_vec);
    Some(vec![Fact { dims: Some(kept), elements, ..Fact::default() }])
}

fn transpose(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0);
    let Some(order) = call.values(1) else {
        return one(call.unknown(dims.map(|dims| dims.len()).or_else(|| call.count(1))?));
    };
    let Some(dims) = dims else { return one(call.unknown(order.len())) };
    if order.len() != dims.len() {
        return call.refuse(|| format!("a tensor of rank {} has no order of {} axes", dims.len(), order.len()));
    }
    one(order.iter().map(|&from| Some(dims[call.axis(from, dims.len())?])).collect::<Option<_>>()?)
}

fn tile(call: &Call) -> Option<Vec<Fact>> {
    if let (Some(own), Some(count)) = (call.dims(0).map(|dims| dims.len()), call.count(1))
        && own != count
    {
        return call.refuse(|| format!("a tensor of rank {own} is repeated along {count} axes"));
    }
    let Some(times) = call.counts(1) else {
        return one(call.unknown(call.dims(0).map(|dims| dims.len()).or_else(|| call.count(1))?));
    };
    let dims = call.of_rank(0, times.len())?;
    let tiled = |(&size, times): (&Size, usize)| match times {
        1 => size,
        times => call.map(size, |size| size.checked_mul(times)),
    };
    one(dims.iter().zip(times).map(tiled).collect())
}

fn pad(call: &Call) -> Option<Vec<Fact>> {
    if let Some(negative) = call.values(1).and_then(|pads| pads.into_iter().find(|pad| *pad < 0)) {
        return call.refuse(|| format!("a padding of {negative} is negative"));
    }
    let Some(pads) = call.counts(1) else { return padded_by_unknown(call) };
    let (pads, _) = pads.as_chunks::<2>();
    let other = || {
        let own = call.dims(0)?.len();
        call.refuse(|| format!("a tensor of rank {own} has paddings for {} axes", pads.len()))
    };
    let dims = call.of_rank(0, pads.len()).or_else(other)?;
    let padded = |(&size, pads): (&Size, &[usize; 2])| match pads {
        [0, 0] => size,
        [before, after] => call.map(size, |size| size.checked_add(*before)?.checked_add(*after)),
    };
    one(dims.iter().zip(pads).map(padded).collect())
}

/// Only the rank is known, from the tensor or from the rows of the paddings.
fn padded_by_unknown(call: &Call) -> Option<Vec<Fact>> {
    let rows = call.of_rank(1, 2)?[0].known().filter(|&rows| rows <= MAX_RANK);
    one(call.unknown(call.dims(0).map(|dims| dims.len()).or(rows)?))
}

/// The opposite of [`pad`].
fn unpad(call: &Call) -> Option<Vec<Fact>> {
    let Some(pads) = call.counts(1) else { return padded_by_unknown(call) };
    let (pads, _) = pads.as_chunks::<2>();
    let dims = call.of_rank(0, pads.len())?;
    let less = |(&size, pads): (&Size, &[usize; 2])| match pads {
        [0, 0] => size,
        [before, after] => call.map(size, |size| size.checked_sub(*before)?.checked_sub(*after)),
    };
    one(dims.iter().zip(pads).map(less).collect())
}

fn concat(call: &Call) -> Option<Vec<Fact>> {
    concatenated(call, 1..call.len(), 0)
}

fn concat_v2(call: &Call) -> Option<Vec<Fact>> {
    concatenated(call, 0..call.len().checked_sub(1)?, call.len() - 1)
}

pub(super) fn concatenated(call: &Call, parts: std::ops::Range<usize>, axis_in: usize) -> Option<Vec<Fact>> {
    let all: Vec<Option<Dims>> = parts.clone().map(|input| call.dims(input)).collect();
    let known_parts = all.iter().flatten();
    let rank = known_parts.clone().next().map(Vec::len)?;
    if known_parts.clone().any(|part| part.len() != rank) {
        return call.refuse(|| "they have different ranks".to_owned());
    }
    let Some(along) = call.value(axis_in) else { return one(call.unknown(rank)) };
    let along = call.axis(along, rank)?;
    let mut dims: Option<Dims> = None;
    for part in known_parts {
        let mut part = part.clone();
        part[along] = Size::Known(0);
        let merged = dims.map_or(Some(part.clone()), |dims| merge(&dims, &part));
        dims = Some(merged.or_else(|| call.refuse(|| format!("they differ in another axis than {along}")))?);
    }
    let mut dims = dims?;
    let length = |part: &Option<Dims>| part.as_ref()?[along].known();
    dims[along] = call.size(all.iter().try_fold(0usize, |sum, part| sum.checked_add(length(part)?)));
    let vectors = parts.map(|input| call.elements_of_rank(1, input));
    let elements = vectors.collect::<Option<Vec<_>>>().map(|parts| parts.concat()).filter(|all| all.len() <= MAX_RANK);
    Some(vec![Fact { dims: Some(dims), elements, ..Fact::default() }])
}

fn pack(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.all_equal(0..call.len())?;
    dims.insert(axis(call.int("axis")?, dims.len() + 1)?, Size::Known(call.len()));
    // As in TensorFlow, with partial knowledge of the numbers.
    let is_vector = dims.len() == 1 && call.len() <= MAX_RANK && call.node.outputs.first()?.dtype.is_integer();
    let number = |input| call.elements(input).and_then(|all| all.first().copied()).unwrap_or(Element::Unknown);
    let elements = is_vector.then(|| (0..call.len()).map(number).collect());
    Some(vec![Fact { dims: Some(dims), elements, ..Fact::default() }])
}

fn of_each_output(call: &Call, dims: &Dims) -> Vec<Fact> {
    call.node.outputs.iter().map(|_| dims.clone().into()).collect()
}

fn unpack(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let along = call.axis(call.int("axis")?, dims.len())?;
    let (own, outputs) = (dims.remove(along), call.node.outputs.len());
    if let Some(own) = own.known().filter(|own| *own != outputs) {
        return call.refuse(|| format!("{own} elements along axis {along} do not give {outputs} outputs"));
    }
    let mut facts = of_each_output(call, &dims);
    if let (true, Some(elements)) = (dims.is_empty(), call.elements(0)) {
        facts.iter_mut().zip(elements).for_each(|(fact, &element)| fact.elements = Some(vec![element]));
    }
    Some(facts)
}

fn split(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(1)?;
    match call.value(0) {
        Some(along) => {
            let (along, parts) = (call.axis(along, dims.len())?, call.node.outputs.len());
            if let Some(size) = dims[along].known().filter(|size| !size.is_multiple_of(parts)) {
                return call
                    .refuse(|| format!("{size} elements along axis {along} do not divide into {parts} equal parts"));
            }
            dims[along] = call.map(dims[along], |size| size.checked_div(parts));
        }
        None => dims = call.unknown(dims.len()),
    }
    Some(of_each_output(call, &dims))
}

/// Pieces of the sizes in the second input, of which one may be -1: the remainder.
fn split_v(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    if call.node.outputs.len() == 1 {
        return one(dims);
    }
    let Some(along) = call.value(2) else { return Some(of_each_output(call, &call.unknown(dims.len()))) };
    let along = call.axis(along, dims.len())?;
    let sizes = call.values(1).filter(|sizes| sizes.len() == call.node.outputs.len());
    let stated: i64 = sizes.iter().flatten().filter(|&&size| size >= 0).sum();
    if let (Some(sizes), Some(whole)) = (&sizes, dims[along].known().and_then(|whole| i64::try_from(whole).ok()))
        && (stated > whole || (stated < whole && sizes.iter().all(|size| *size >= 0)))
    {
        return call.refuse(|| format!("pieces of {sizes:?} do not add up to the {whole} elements along axis {along}"));
    }
    let left = dims[along].known().and_then(|whole| whole.checked_sub(usize::try_from(stated).ok()?));
    let piece = |i: usize| {
        let size = match sizes.as_ref().map(|sizes| sizes[i]) {
            Some(-1) => call.size(left),
            Some(size) => call.size(usize::try_from(size).ok()),
            None => call.size(None),
        };
        let mut dims = dims.clone();
        dims[along] = size;
        dims.into()
    };
    Some((0..call.node.outputs.len()).map(piece).collect())
}

fn parallel_concat(call: &Call) -> Option<Vec<Fact>> {
    one(call.stated_in("shape")?)
}

/// One axis more, or less, if the elements become smaller or larger.
fn bitcast(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let own = call.node.attrs.dtype("T").ok()?.size()?;
    let new = call.node.attrs.dtype("type").ok()?.size()?;
    if own > new {
        dims.push(Size::Known(own / new));
    } else if own < new {
        dims.pop().filter(|size| size.known().is_none_or(|size| size == new / own))?;
    }
    one(dims)
}

/// A vector, as the input.
fn vector(call: &Call) -> Option<Vec<Fact>> {
    one(call.of_rank(0, 1)?)
}

/// The input's sizes, repeated once.
fn diag(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    one([&dims[..], &dims[..]].concat())
}

fn diag_part(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    let (first, second) = dims.split_at(dims.len() / 2);
    one(merge(&first.to_vec(), &second.to_vec())?)
}

/// The diagonals specified by input `k`: the lowest and the highest.
fn diagonals(call: &Call, k: usize) -> Option<(i64, i64)> {
    match call.values(k)?[..] {
        [one] => Some((one, one)),
        [low, high] if low <= high => Some((low, high)),
        _ => None,
    }
}

/// Matrices with some diagonals, the second input, replaced.
fn matrix_set_diag(call: &Call) -> Option<Vec<Fact>> {
    let (low, high) = if call.len() == 2 { (0, 0) } else { diagonals(call, 2).unwrap_or((0, -1)) };
    let batch = call.dims(1).filter(|_| low <= high).and_then(|mut dims| {
        dims.pop()?;
        (low == high || dims.pop().is_some()).then_some(dims)
    });
    let Some(batch) = batch else { return one(call.dims(0)?) };
    let rest = |dims: Dims| dims.split_at_checked(dims.len().checked_sub(2)?).map(|(_, rest)| rest.to_vec());
    let rest = call.dims(0).map_or_else(|| Some(call.unknown(2)), rest)?;
    let of_batch: Dims = batch.into_iter().chain(rest).collect();
    one(match call.dims(0) {
        Some(dims) => merge(&dims, &of_batch)?,
        None => of_batch,
    })
}

/// Matrices with the given diagonals.
fn matrix_diag(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    if call.len() == 1 {
        dims.push(*dims.last()?);
        return one(dims);
    }
    let (low, high) = diagonals(call, 1)?;
    let longest = dims.pop()?;
    if low < high {
        dims.pop()?;
    }
    let (rows, columns) = (call.value(2), call.value(3));
    let (min_rows, min_columns) = match longest.known() {
        Some(longest) => {
            let longest = i64::try_from(longest).ok()?;
            (Some(longest - high.min(0)), Some(longest + low.max(0)))
        }
        None => (None, None),
    };
    // An unspecified size follows from the other, and the matrix is square if neither is specified.
    let (rows, columns) = match (rows?, columns?) {
        (-1, -1) => {
            let side = min_rows.zip(min_columns).map(|(rows, columns)| rows.max(columns));
            (side, side)
        }
        (-1, columns) => (min_rows, Some(columns)),
        (rows, -1) => (Some(rows), min_columns),
        (rows, columns) => (Some(rows), Some(columns)),
    };
    let size = |size: Option<i64>| call.size(size.and_then(|size| usize::try_from(size).ok()));
    dims.extend([size(rows), size(columns)]);
    one(dims)
}

/// Diagonals of matrices, the shorter ones padded.
fn matrix_diag_part(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let (columns, rows) = (dims.pop()?, dims.pop()?);
    let (low, high) = if call.len() == 1 { (0, 0) } else { diagonals(call, 1)? };
    let count = usize::try_from(high.checked_sub(low)?.checked_add(1)?).ok()?;
    let longest = || {
        let rows = i64::try_from(rows.known()?).ok()?.checked_add(high.min(0))?;
        let columns = i64::try_from(columns.known()?).ok()?.checked_sub(low.max(0))?;
        usize::try_from(rows.min(columns)).ok()
    };
    if count > 1 {
        dims.push(Size::Known(count));
    }
    dims.push(call.size(longest()));
    one(dims)
}

/// The elements at some indices of a vector, if all its elements are known.
pub(super) fn elements_at(call: &Call, places: impl Iterator<Item = usize>) -> Option<Vec<Element>> {
    call.values(0)?;
    let from = call.elements_of_rank(1, 0)?;
    places.map(|at| from.get(at).copied()).collect()
}

/// The shape that a tensor must have, merged with its own.
fn ensured(call: &Call) -> Option<Vec<Fact>> {
    let stated = call.stated_in("shape");
    match (call.dims(0), stated) {
        (Some(own), Some(stated)) => one(merge(&own, &stated)?),
        (own, stated) => one(own.or(stated)?),
    }
}

/// For each index as many coordinates as there are dimensions.
fn unravel(call: &Call) -> Option<Vec<Fact>> {
    let (indices, dims) = (call.dims(0)?, call.of_rank(1, 1)?);
    match indices[..] {
        [] => one(dims),
        [count] => one(vec![dims[0], count]),
        _ => None,
    }
}

/// One element per eight of the last axis.
fn packed_bits(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let last = dims.last_mut()?;
    *last = call.map(*last, |size| Some(size / 8));
    one(dims)
}
