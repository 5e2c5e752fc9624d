//! Shapes of ops that make tensors of a shape stated by an attribute or the elements of an input, and of ops that output
//! shapes.

use super::{Entry, one};
use crate::FED_ANY_SHAPE;
use crate::shape::call::{Call, MAX_RANK, known, merge_sizes, whole};
use crate::shape::{Dims, Element, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("scalar", scalars, Extent::Shapes),
    ("const", constant, Extent::Shapes),
    ("placeholder", placeholder, Extent::Shapes),
    ("placeholder_with_default", placeholder_with_default, Extent::Shapes),
    ("fill", fill, Extent::First),
    ("sized", sized, Extent::First),
    ("ngrams", ngrams, Extent::Unknown),
    ("unicode_decode", unicode_decode, Extent::Unknown),
    ("unicode_encode", unicode_encode, Extent::Unknown),
    ("sized_with", sized_with, Extent::Unknown),
    ("sized_third", sized_third, Extent::Unknown),
    ("sized_second", sized_second, Extent::Unknown),
    ("edit_distance", edit_distance, Extent::Unknown),
    ("range", range, Extent::Unknown),
    ("lin_space", lin_space, Extent::Unknown),
    ("multinomial", multinomial, Extent::Unknown),
    ("key_counter", key_counter, Extent::Unknown),
    ("key_counter_alg", key_counter_alg, Extent::Unknown),
    ("generator_state", |_| one(known(&[3])), Extent::Unknown),
    ("sobol", sobol, Extent::Unknown),
    ("index_shuffle", index_shuffle, Extent::Unknown),
    ("bins_third", bins_third, Extent::Unknown),
    ("bins_second", bins_second, Extent::Unknown),
    ("dense_bins", dense_bins, Extent::Unknown),
    ("shape", shape, Extent::Shapes),
    ("shape_n", shape_n, Extent::Shapes),
    ("size", size, Extent::Shapes),
    ("rank", rank, Extent::Shapes),
    ("one_hot", one_hot, Extent::AllButFirst),
    ("string_split", string_split, Extent::Unknown),
    ("vectors", vectors, Extent::Unknown),
    ("decode_raw", decode_raw, Extent::Unknown),
    ("decode_padded", decode_padded, Extent::Unknown),
    ("csv", csv, Extent::Unknown),
    ("fingerprint", fingerprint, Extent::Unknown),
    ("broadcast_args", broadcast_args, Extent::Shapes),
    ("broadcast_gradient_args", broadcast_gradient_args, Extent::Shapes),
    ("concat_offset", concat_offset, Extent::Shapes),
    ("candidates", candidates, Extent::Unknown),
    ("accidental_hits", accidental_hits, Extent::Unknown),
    ("ctc_loss", ctc_loss, Extent::Unknown),
    ("ctc_greedy", ctc_greedy, Extent::Unknown),
    ("ctc_beam", ctc_beam, Extent::Unknown),
];

/// Most elements of a constant that is read as sizes or axes.
const MAX_VALUES: usize = 64;

fn scalars(call: &Call) -> Option<Vec<Fact>> {
    Some(call.node.outputs.iter().map(|_| Dims::new().into()).collect())
}

fn constant(call: &Call) -> Option<Vec<Fact>> {
    let attrs = &call.node.attrs;
    let dims = known(attrs.tensor_type("value").ok()?.1.dims());
    let value = attrs.tensor("value").ok().filter(|value| value.len() <= MAX_VALUES);
    let values = value.and_then(|value| value.to_i64s().ok());
    let elements = values.map(|values| values.into_iter().map(Element::Known).collect());
    Some(vec![Fact { dims: Some(dims), elements, ..Fact::default() }])
}

fn placeholder(call: &Call) -> Option<Vec<Fact>> {
    one(call.stated_in("shape")?).filter(|_| !may_have_any_shape(call))
}

/// Whether a client may feed another shape than the stated one, where that matters.
fn may_have_any_shape(call: &Call) -> bool {
    call.doubts_state() && call.node.attrs.get(FED_ANY_SHAPE).is_some()
}

/// The shape of the values that may be fed, which the default has too.
fn placeholder_with_default(call: &Call) -> Option<Vec<Fact>> {
    let stated = call.stated_in("shape")?;
    let is_default_known = match call.dims(0) {
        Some(default) => default.len() == stated.len() && stated.iter().zip(&default).all(|(a, b)| admits(*a, *b)),
        None => false,
    };
    one(stated).filter(|_| !may_have_any_shape(call) && (is_default_known || !call.doubts_state()))
}

fn admits(stated: Size, own: Size) -> bool {
    stated.known().is_none() || stated == own
}

/// The shape held by the first input.
fn sized(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(0)?)
}

/// The shape stated by the first input, for each element of the second.
fn sized_with(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.sizes(0)?;
    dims.extend(call.dims(1)?);
    one(dims)
}

fn sized_second(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(1)?)
}

/// The larger of two shapes, without the last axis: that of the compared sequences.
fn edit_distance(call: &Call) -> Option<Vec<Fact>> {
    let (a, b) = (call.values(2)?, call.values(5)?);
    let greater = |(&a, &b): (&i64, &i64)| usize::try_from(a.max(b)).ok().map(Size::Known);
    one(a.iter().zip(&b).take(a.len().checked_sub(1)?).map(greater).collect::<Option<_>>()?)
}

/// As many numbers as the third input specifies.
fn lin_space(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size_in(2)?])
}

fn sized_third(call: &Call) -> Option<Vec<Fact>> {
    one(call.sizes(2)?)
}

fn fill(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.sizes(0);
    let count = dims.as_ref().filter(|dims| dims.len() <= 1).and_then(|dims| whole(dims)?.elements());
    let elements = match (count.filter(|&count| count <= MAX_VALUES), call.elements(1)) {
        (Some(count), Some(&[value])) => Some(vec![value; count]),
        _ => None,
    };
    Some(vec![Fact { dims, elements, like: call.shape_of(0), ..Fact::default() }])
}

fn range(call: &Call) -> Option<Vec<Fact>> {
    let ends = || Some((call.value(0)?, call.value(1)?, call.value(2)?));
    let Some((start, limit, delta)) = ends() else { return one(call.unknown(1)) };
    let (span, step) = (i128::from(limit) - i128::from(start), i128::from(delta));
    let count = (span + step - step.signum()).checked_div(step)?;
    let count = usize::try_from(count.max(0)).ok()?;
    let element = |i: usize| Element::Known(start.wrapping_add(delta.wrapping_mul(i as i64)));
    let elements = (count <= MAX_VALUES).then(|| (0..count).map(element).collect());
    Some(vec![Fact { dims: Some(known(&[count])), elements, ..Fact::default() }])
}

/// For each row of a matrix as many draws as the second input specifies.
fn multinomial(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.of_rank(0, 2)?[0], call.size_in(1)?])
}

fn key_counter(_: &Call) -> Option<Vec<Fact>> {
    Some(vec![known(&[1]).into(), known(&[2]).into()])
}

fn key_counter_alg(_: &Call) -> Option<Vec<Fact>> {
    Some(vec![known(&[1]).into(), known(&[2]).into(), Dims::new().into()])
}

/// A point of so many dimensions a row.
fn sobol(call: &Call) -> Option<Vec<Fact>> {
    let size = |input: usize| call.size_in(input).unwrap_or_else(|| call.size(None));
    one(vec![size(1), size(0)])
}

/// A scalar, or as many numbers as one of the inputs has in its first dimension.
fn index_shuffle(call: &Call) -> Option<Vec<Fact>> {
    let (index, seed, largest) = (call.dims(0)?, call.dims(1)?, call.dims(2)?);
    let list = [(&index, 1), (&seed, 2), (&largest, 1)].into_iter().find(|(dims, rank)| dims.len() == *rank);
    one(list.map(|(dims, _)| vec![dims[0]]).unwrap_or_default())
}

/// As many bins as an input specifies.
fn bins_second(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size_in(1)?])
}

fn bins_third(call: &Call) -> Option<Vec<Fact>> {
    one(vec![call.size_in(2)?])
}

fn dense_bins(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0).filter(|dims| dims.len() == 1 || dims.len() == 2)?;
    match call.value(1) {
        Some(bins) => one([&dims[..dims.len() - 1], &[Size::Known(usize::try_from(bins).ok()?)]].concat()),
        None => one(call.unknown(dims.len())),
    }
}

fn elements(dims: Dims) -> Option<Vec<Element>> {
    let element = |size| match size {
        Size::Known(size) => Some(Element::Known(i64::try_from(size).ok()?)),
        Size::Unknown(number) => Some(Element::Size(number)),
    };
    dims.into_iter().map(element).collect()
}

/// The shape of an input, as a vector.
fn shape_vector(call: &Call, input: usize) -> Fact {
    let dims = call.dims(input);
    let count = call.size(dims.as_ref().map(Vec::len));
    Fact {
        dims: Some(vec![count]),
        elements: dims.filter(|dims| dims.len() <= MAX_RANK).and_then(elements),
        shape_of: call.like(input),
        ..Fact::default()
    }
}

fn shape(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![shape_vector(call, 0)])
}

fn shape_n(call: &Call) -> Option<Vec<Fact>> {
    Some((0..call.len()).map(|input| shape_vector(call, input)).collect())
}

fn size(call: &Call) -> Option<Vec<Fact>> {
    let count = || Some(vec![Element::Known(i64::try_from(whole(&call.dims(0)?)?.elements()?).ok()?)]);
    Some(vec![Fact { dims: Some(Dims::new()), elements: count(), ..Fact::default() }])
}

fn rank(call: &Call) -> Option<Vec<Fact>> {
    let rank = call.dims(0).map(|dims| vec![Element::Known(dims.len() as i64)]);
    Some(vec![Fact { dims: Some(Dims::new()), elements: rank, ..Fact::default() }])
}

/// A new axis, of the length in the second input.
fn one_hot(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let at = match call.int("axis")? {
        -1 => dims.len(),
        at => usize::try_from(at).ok().filter(|&at| at <= dims.len())?,
    };
    dims.insert(at, call.size_in(1)?);
    one(dims)
}

/// Indices, values and shape of a sparse matrix.
fn string_split(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    Some(vec![vec![count, Size::Known(2)].into(), vec![count].into(), known(&[2]).into()])
}

/// The shape to which two shapes broadcast.
fn broadcast_args(call: &Call) -> Option<Vec<Fact>> {
    let (a, b) = (call.of_rank(0, 1)?, call.of_rank(1, 1)?);
    match (a[0], b[0]) {
        (Size::Known(a), Size::Known(b)) => one(known(&[a.max(b)])),
        _ => one(call.unknown(1)),
    }
}

/// The axes to sum over if either input was broadcast: none if the shapes are equal.
fn broadcast_gradient_args(call: &Call) -> Option<Vec<Fact>> {
    let same_elements = call.elements(0).is_some_and(|a| call.elements(1) == Some(a) && !a.contains(&Element::Unknown));
    let same_shapes = call.shape_of(0).is_some_and(|of| Some(of) == call.shape_of(1));
    let axes = || Fact {
        dims: Some(call.unknown(1)),
        elements: (same_elements || same_shapes).then(Vec::new),
        ..Fact::default()
    };
    Some(vec![axes(), axes()])
}

/// The offset of each of several shapes in their concatenation.
fn concat_offset(call: &Call) -> Option<Vec<Fact>> {
    (1..call.len()).map(|input| Some(call.of_rank(input, 1)?.into())).collect()
}

/// Vectors of unknown lengths.
fn vectors(call: &Call) -> Option<Vec<Fact>> {
    Some(call.node.outputs.iter().map(|_| call.unknown(1).into()).collect())
}

/// The elements in each string.
fn decode_raw(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    dims.push(call.size(None));
    one(dims)
}

/// For each string as many elements as the bytes in the second input hold.
fn decode_padded(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0)?;
    let size = call.node.outputs.first()?.dtype.size()?;
    let width = call.value(1).and_then(|width| usize::try_from(width).ok());
    dims.push(call.size(width.map(|width| width / size)));
    one(dims)
}

/// One field of each record for each output.
fn csv(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    Some(call.node.outputs.iter().map(|_| dims.clone().into()).collect())
}

/// The bytes of each row's fingerprint.
fn fingerprint(call: &Call) -> Option<Vec<Fact>> {
    let rows = call.dims(0).and_then(|dims| dims.first().copied());
    one(vec![rows.unwrap_or_else(|| call.size(None)), call.size(None)])
}

/// Joined strings, and the row splits.
fn ngrams(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![vec![call.size(None)].into(), call.of_rank(1, 1)?.into()])
}

/// The row splits of the code points, the code points, and possibly the offset of each.
fn unicode_decode(call: &Call) -> Option<Vec<Fact>> {
    let texts = call.dims(0).and_then(|dims| dims.iter().map(|size| size.known()).product::<Option<usize>>());
    let codes = vec![call.size(None)];
    let ends = vec![call.size(texts.and_then(|count| count.checked_add(1)))];
    Some(std::iter::once(ends.into()).chain((1..call.node.outputs.len()).map(|_| codes.clone().into())).collect())
}

/// One string for each row of code points.
fn unicode_encode(call: &Call) -> Option<Vec<Fact>> {
    let ends = call.of_rank(1, 1)?[0].known();
    one(vec![call.size(ends.and_then(|count| count.checked_sub(1)))])
}

/// A loss for each example, and its gradient with respect to the scores.
fn ctc_loss(call: &Call) -> Option<Vec<Fact>> {
    let mut scores = call.of_rank(0, 3)?;
    scores[1] = merge_sizes(scores[1], call.of_rank(3, 1)?[0])?;
    Some(vec![vec![scores[1]].into(), scores.into()])
}

/// Decoded labels as indices, values and shape of a sparse matrix, and the likelihood of each.
fn ctc_greedy(call: &Call) -> Option<Vec<Fact>> {
    let (scores, count) = (call.of_rank(0, 3)?, call.size(None));
    let two = || Size::Known(2);
    let batch = merge_sizes(scores[1], call.of_rank(1, 1)?[0])?;
    let likely: Dims = vec![batch, Size::Known(1)];
    Some(vec![vec![count, two()].into(), vec![count].into(), vec![two()].into(), likely.into()])
}

/// As [`ctc_greedy`], for several sequences of labels for each example.
fn ctc_beam(call: &Call) -> Option<Vec<Fact>> {
    let scores = call.of_rank(0, 3)?;
    let paths = usize::try_from(call.int("top_paths")?).ok()?;
    let counts: Vec<Size> = (0..paths).map(|_| call.size(None)).collect();
    let indices = counts.iter().map(|&count| Fact::from(vec![count, Size::Known(2)]));
    let values = counts.iter().map(|&count| Fact::from(vec![count]));
    let shapes = counts.iter().map(|_| Fact::from(known(&[2])));
    let batch = merge_sizes(scores[1], call.of_rank(1, 1)?[0])?;
    let likely: Dims = vec![batch, Size::Known(paths)];
    Some(indices.chain(values).chain(shapes).chain([likely.into()]).collect())
}

/// Candidates, and the expected counts of the true classes and of the candidates.
fn candidates(call: &Call) -> Option<Vec<Fact>> {
    let size = |attr: &str| Some(Size::Known(usize::try_from(call.int(attr)?).ok()?));
    let (sampled, each) = (size("num_sampled")?, size("num_true")?);
    let batch = call.of_rank(0, 2)?[0];
    Some(vec![vec![sampled].into(), vec![batch, each].into(), vec![sampled].into()])
}

fn accidental_hits(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    Some((0..3).map(|_| vec![count].into()).collect())
}
