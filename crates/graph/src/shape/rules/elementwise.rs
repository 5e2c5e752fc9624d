//! Shapes of ops whose outputs have the shape of an input, or that to which several broadcast.

use super::{Entry, one};
use crate::shape::call::{Call, merge, merge_sizes};
use crate::shape::{Dims, Element, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("same", same, Extent::Shapes),
    ("same_of_rows", same_of_rows, Extent::Shapes),
    ("same_as_second", same_as_second, Extent::Shapes),
    ("forward", forward, Extent::Shapes),
    ("forward_all", forward_all, Extent::Shapes),
    ("merged", merged, Extent::Shapes),
    ("gradient", gradient, Extent::Shapes),
    ("sum", sum, Extent::Shapes),
    ("broadcast", broadcasting, Extent::Shapes),
    ("compare", comparing, Extent::Shapes),
    ("select", select, Extent::Shapes),
    ("alike_or_scalar", alike_or_scalar, Extent::Shapes),
    ("broadcast_all", broadcast_all, Extent::Shapes),
    ("cast", cast, Extent::Shapes),
    ("add", |call| arithmetic(call, i64::checked_add), Extent::Shapes),
    ("sub", |call| arithmetic(call, i64::checked_sub), Extent::Shapes),
    ("mul", |call| arithmetic(call, i64::checked_mul), Extent::Shapes),
    ("floor_div", |call| arithmetic(call, |a, b| a.checked_div_euclid(b).filter(|_| b > 0)), Extent::Shapes),
    ("maximum", |call| arithmetic(call, |a, b| Some(a.max(b))), Extent::Shapes),
    ("minimum", |call| arithmetic(call, |a, b| Some(a.min(b))), Extent::Shapes),
    ("bias", bias, Extent::Shapes),
    ("substr", substr, Extent::Unknown),
    ("string_join", string_join, Extent::Unknown),
    ("switch", switch, Extent::Unknown),
    ("merge", merge_of_branches, Extent::Unknown),
    ("fake_quant_gradient", fake_quant_gradient, Extent::Unknown),
    ("fake_quant_channels_gradient", fake_quant_channels_gradient, Extent::Unknown),
];

/// The shape of the first input.
pub(super) fn same(call: &Call) -> Option<Vec<Fact>> {
    like(call, 0)
}

/// As [`same`], for an op along the last axis.
fn same_of_rows(call: &Call) -> Option<Vec<Fact>> {
    match call.dims(0) {
        Some(dims) if dims.is_empty() => call.refuse(|| "a scalar has no last axis".to_owned()),
        _ => same(call),
    }
}

fn same_as_second(call: &Call) -> Option<Vec<Fact>> {
    like(call, 1)
}

fn like(call: &Call, input: usize) -> Option<Vec<Fact>> {
    Some(vec![Fact { dims: call.dims(input), like: call.like(input), ..Fact::default() }])
}

/// All facts about the first input: the output is the same tensor.
fn forward(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![call.fact(0)?.clone()])
}

fn forward_all(call: &Call) -> Option<Vec<Fact>> {
    Some((0..call.len()).map(|input| call.fact(input).cloned().unwrap_or_default()).collect())
}

/// The first input, at both outputs.
fn switch(call: &Call) -> Option<Vec<Fact>> {
    // The branch is not known, and so its elements are not followed, as in TensorFlow.
    let fact = Fact { elements: None, shape_of: None, ..call.fact(0)?.clone() };
    Some(vec![Fact { like: None, ..fact.clone() }, Fact { like: None, ..fact }])
}

/// The facts common to all inputs, one of which arrives; and its index.
fn merge_of_branches(call: &Call) -> Option<Vec<Fact>> {
    let mut inputs = (0..call.len()).filter(|&input| !call.keeps_first(input));
    let first = inputs.next().and_then(|input| call.dims(input));
    let common = inputs.try_fold(first, |common, input| {
        let dims = call.dims(input)?;
        let common = common.filter(|common| common.len() == dims.len())?;
        let same = |(&a, &b): (&Size, &Size)| if a == b { a } else { call.size(None) };
        Some(Some(common.iter().zip(&dims).map(same).collect()))
    });
    Some(vec![common.flatten().into(), Dims::new().into()])
}

/// The shape of all inputs that are not scalars.
fn alike_or_scalar(call: &Call) -> Option<Vec<Fact>> {
    let all: Vec<Option<Dims>> = (0..call.len()).map(|input| call.dims(input)).collect();
    let alike = all.iter().flatten().filter(|dims| !dims.is_empty()).cloned();
    match alike.map(Some).reduce(|a, b| merge(&a?, &b?)) {
        Some(alike) => one(alike?),
        None => one(Dims::new()).filter(|_| all.iter().all(Option::is_some)),
    }
}

/// The shape of all inputs, which are equal in shape.
fn merged(call: &Call) -> Option<Vec<Fact>> {
    one(call.merged(0..call.len())?)
}

/// The shape of the first input; a gradient has the same.
fn gradient(call: &Call) -> Option<Vec<Fact>> {
    match call.doubts_state() {
        true => merged(call),
        false => one(call.dims(0)?),
    }
}

/// The shape of all inputs, which the kernel refuses if they differ.
fn sum(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact { dims: call.all_equal(0..call.len()), like: call.like(0), ..Fact::default() }])
}

/// The shape to which both inputs broadcast.
pub(super) fn broadcasting(call: &Call) -> Option<Vec<Fact>> {
    let is_scalar = |input: usize| call.dims(input).is_some_and(|dims| dims.is_empty());
    let like = match (call.like(0), call.like(1)) {
        (a, b) if a == b => a,
        (_, b) if is_scalar(0) => b,
        (a, _) if is_scalar(1) => a,
        _ => None,
    };
    let dims = match (call.dims(0), call.dims(1)) {
        (Some(a), Some(b)) => {
            broadcast(call, &a, &b).or_else(|| call.refuse(|| "they do not broadcast to one shape".to_owned()))
        }
        _ => None,
    };
    Some(vec![Fact { dims, like, ..Fact::default() }])
}

/// As [`broadcasting`], for an op that computes shapes from shapes: its elements are followed.
fn arithmetic(call: &Call, apply: fn(i64, i64) -> Option<i64>) -> Option<Vec<Fact>> {
    let mut facts = broadcasting(call)?;
    facts[0].elements = computed(call, apply);
    Some(facts)
}

/// The elements of a vector or scalar, if all operands are known.
fn computed(call: &Call, apply: fn(i64, i64) -> Option<i64>) -> Option<Vec<Element>> {
    let (a, b) = (call.values(0)?, call.values(1)?);
    let count = match (a.len(), b.len()) {
        (a, b) if a == b => a,
        (1, count) | (count, 1) => count,
        _ => return None,
    };
    // Broadcasting within matrices is not followed.
    if call.dims(0)?.len().max(call.dims(1)?.len()) > 1 || !call.node.outputs.first()?.dtype.is_integer() {
        return None;
    }
    let pick = |values: &[i64], i: usize| values[if values.len() == 1 { 0 } else { i }];
    let in_range = |value: &i64| i32::try_from(*value).is_ok();
    (0..count).map(|i| apply(pick(&a, i), pick(&b, i)).filter(in_range).map(Element::Known)).collect()
}

/// The shape to which both inputs broadcast, for an op that may also return a single false for shapes that do not fit.
fn comparing(call: &Call) -> Option<Vec<Fact>> {
    if call.bool("incompatible_shape_error").unwrap_or(true) {
        return broadcasting(call);
    }
    let (a, b) = (call.dims(0)?, call.dims(1)?);
    // As in TensorFlow, though unknown sizes may turn out not to fit.
    let may_fit = |(a, b): (&Size, &Size)| match (a.known(), b.known()) {
        (Some(1), _) | (_, Some(1)) => true,
        (a, b) => a.is_some() == b.is_some(),
    };
    let is_known = |dims: &Dims| dims.iter().all(|size| size.known().is_some());
    let answers_each = match call.doubts_state() {
        true => is_known(&a) && is_known(&b),
        false => a.iter().rev().zip(b.iter().rev()).all(may_fit),
    };
    one(broadcast(call, &a, &b)?).filter(|_| answers_each)
}

/// NumPy's rule; `None` if the shapes do not fit.
pub(super) fn broadcast(call: &Call, a: &Dims, b: &Dims) -> Option<Dims> {
    let rank = a.len().max(b.len());
    let size = |dims: &Dims, axis: usize| match (axis + dims.len()).checked_sub(rank) {
        Some(own) => dims[own],
        None => Size::Known(1),
    };
    let one = |axis: usize| match (size(a, axis), size(b, axis)) {
        (Size::Known(1), other) | (other, Size::Known(1)) => Some(other),
        (a, b) if a == b => Some(a),
        (Size::Known(_), Size::Known(_)) => None,
        // An unknown size is equal to the known one or 1: it broadcasts to the known one.
        (Size::Known(size), _) | (_, Size::Known(size)) => Some(Size::Known(size)),
        (Size::Unknown(_), Size::Unknown(_)) => Some(call.size(None)),
    };
    (0..rank).map(one).collect()
}

/// The shape of both branches, and of the condition unless that chooses rows.
fn select(call: &Call) -> Option<Vec<Fact>> {
    let branches = call.all_equal([1, 2])?;
    match call.dims(0).filter(|condition| condition.len() > 1) {
        Some(condition) => one(merge(&branches, &condition)?),
        None => one(branches),
    }
}

/// The shape to which all inputs broadcast.
fn broadcast_all(call: &Call) -> Option<Vec<Fact>> {
    let first = call.like(0).filter(|_| (1..call.len()).all(|input| call.like(input) == call.like(0)));
    let mut dims = call.dims(call.len() - 1);
    for input in (0..call.len() - 1).rev() {
        dims = match (dims, call.dims(input)) {
            (Some(a), Some(b)) => broadcast(call, &a, &b),
            _ => None,
        };
    }
    Some(vec![Fact { dims, like: first, ..Fact::default() }])
}

/// The same shape, and for integers the same elements.
fn cast(call: &Call) -> Option<Vec<Fact>> {
    let keeps = call.node.outputs.first().is_some_and(|output| output.dtype.is_integer());
    let fits = |element: &Element| match element {
        Element::Known(value) => i32::try_from(*value).is_ok(),
        Element::Size(_) | Element::Unknown => true,
    };
    // The conversion of a large number to a narrow type is not followed.
    let is_wide = |size: usize| size >= 4;
    let keeps = keeps && call.node.outputs[0].dtype.size().is_some_and(is_wide);
    let elements = call.elements(0).filter(|all| keeps && all.iter().all(fits)).map(<[Element]>::to_vec);
    let shape_of = call.shape_of(0).filter(|_| keeps);
    Some(vec![Fact { dims: call.dims(0), like: call.like(0), elements, shape_of, ..Fact::default() }])
}

/// The shape of the first input, whose number of channels is the number of elements of the second.
pub(super) fn bias(call: &Call) -> Option<Vec<Fact>> {
    let mut dims = call.dims(0).filter(|dims| dims.len() >= 2);
    if let (Some(dims), Some(bias)) = (&mut dims, call.dims(1)) {
        let channels_first = call.node.attrs.str("data_format") == Ok("NCHW");
        let channels = if channels_first { 1 } else { dims.len() - 1 };
        let [bias] = bias[..] else { return call.refuse(|| "a bias is a vector".to_owned()) };
        dims[channels] = call.common("the numbers of channels", dims[channels], bias)?;
    }
    Some(vec![Fact { dims, like: call.like(0), ..Fact::default() }])
}

/// The shape of the text, to which a position broadcasts.
fn substr(call: &Call) -> Option<Vec<Fact>> {
    let (text, at) = (call.dims(0)?, call.dims(1)?);
    one(broadcast(call, &text, &at)?)
}

/// The common shape of the inputs that are not scalars.
fn string_join(call: &Call) -> Option<Vec<Fact>> {
    let all: Vec<Dims> = (0..call.len()).map(|input| call.dims(input)).collect::<Option<_>>()?;
    let mut arrays = all.iter().filter(|dims| !dims.is_empty());
    let first = arrays.next().cloned().unwrap_or_default();
    one(arrays.try_fold(first, |dims, other| merge(&dims, other))?)
}

/// The gradients of quantized numbers, and of both ends of their range.
fn fake_quant_gradient(call: &Call) -> Option<Vec<Fact>> {
    Some(vec![Fact { dims: call.merged([0, 1]), ..Fact::default() }, Dims::new().into(), Dims::new().into()])
}

/// As [`fake_quant_gradient`], for ranges per channel, the last dimension.
fn fake_quant_channels_gradient(call: &Call) -> Option<Vec<Fact>> {
    let whole = call.merged([0, 1]);
    let mut channels = call.of_rank(2, 1)?[0];
    let others = [call.of_rank(3, 1)?[0]].into_iter().chain(whole.as_ref().and_then(|dims| dims.last().copied()));
    for other in others {
        channels = merge_sizes(channels, other)?;
    }
    let ends: Fact = vec![channels].into();
    Some(vec![Fact { dims: whole, ..Fact::default() }, ends.clone(), ends])
}
