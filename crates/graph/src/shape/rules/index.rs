//! Shapes of ops that read parts of a tensor: slices, gathers, partitions.

use super::arrange::elements_at;
use super::{Entry, one};
use crate::shape::call::{Call, axis, merge};
use crate::shape::{Dims, Extent, Fact, Size};

pub(super) const RULES: &[Entry] = &[
    ("slice", slice, Extent::AllButFirst),
    ("strided_slice", strided_slice, Extent::AllButFirst),
    ("gather", gather, Extent::Shapes),
    ("gather_v2", gather_v2, Extent::Last),
    ("gather_nd", gather_nd, Extent::Shapes),
    ("resource_gather", resource_gather, Extent::Shapes),
    ("resource_gather_nd", resource_gather_nd, Extent::Shapes),
    ("where", indices_of, Extent::Unknown),
    ("unique", unique, Extent::Unknown),
    ("unique_slices", unique_slices, Extent::Unknown),
    ("list_diff", list_diff, Extent::Unknown),
    ("dynamic_partition", dynamic_partition, Extent::Unknown),
    ("dynamic_stitch", dynamic_stitch, Extent::Unknown),
];

fn slice(call: &Call) -> Option<Vec<Fact>> {
    let (dims, begins) = (call.dims(0), call.counts(1));
    fits(call)?;
    let Some(sizes) = call.values(2) else {
        return one(call.unknown(dims.map(|dims| dims.len()).or_else(|| call.count(1)).or_else(|| call.count(2))?));
    };
    let rest = |i: usize| {
        let (size, begin) = (*dims.as_ref()?.get(i)?, *begins.as_ref()?.get(i)?);
        if begin == 0 { Some(size) } else { Some(call.size(Some(size.known()?.checked_sub(begin)?))) }
    };
    let size = |(i, &size): (usize, &i64)| match size {
        -1 => rest(i).unwrap_or_else(|| call.size(None)),
        size => call.size(usize::try_from(size).ok()),
    };
    let taken: Dims = sizes.iter().enumerate().map(size).collect();
    let elements = match (begins.as_deref(), taken.as_slice()) {
        (Some(&[begin]), &[Size::Known(count)]) => elements_at(call, begin..begin.checked_add(count)?),
        _ => None,
    };
    Some(vec![Fact { dims: Some(taken), elements, ..Fact::default() }])
}

/// Refuses the slice, as the kernel does, if it is known to have another rank than its tensor or to leave it.
fn fits(call: &Call) -> Option<()> {
    let (Some(dims), Some(begins)) = (call.dims(0), call.values(1)) else { return Some(()) };
    if begins.len() != dims.len() {
        return call.refuse(|| format!("a tensor of rank {} is sliced along {} axes", dims.len(), begins.len()));
    }
    let sizes = call.values(2);
    for (at, (size, begin)) in dims.iter().zip(begins).enumerate() {
        let Some(own) = size.known().and_then(|own| i64::try_from(own).ok()) else { continue };
        if !(0..=own).contains(&begin) {
            return call.refuse(|| format!("the slice begins at {begin} along axis {at}, which has {own} elements"));
        }
        match sizes.as_ref().and_then(|sizes| sizes.get(at)) {
            Some(&taken) if taken < -1 || taken > own - begin => {
                let why =
                    || format!("the slice takes {taken} elements from {begin} on along axis {at}, which has {own}");
                return call.refuse(why);
            }
            _ => {}
        }
    }
    Some(())
}

/// `x[a:b:c, d]`; slices with `...` or new axes only if their specification is known.
fn strided_slice(call: &Call) -> Option<Vec<Fact>> {
    let dims = call.dims(0)?;
    let mask = |name: &str| call.int(name);
    let (begin_mask, end_mask, shrink_mask) = (mask("begin_mask")?, mask("end_mask")?, mask("shrink_axis_mask")?);
    let (ellipsis_mask, new_mask) = (mask("ellipsis_mask")?, mask("new_axis_mask")?);
    let bit = |mask: i64, i: usize| i < 64 && mask >> i & 1 == 1;
    let strides = call.values(3)?;
    let count = strides.len();
    let (begins, ends) = (call.values(1), call.values(2));
    // The number of the tensor's axes that the specification covers, apart from `...`.
    let is_ellipsis = |i: usize| bit(ellipsis_mask, i);
    let spoken = (0..count).filter(|&i| !is_ellipsis(i) && !bit(new_mask, i)).count();
    let left = dims.len().checked_sub(spoken);
    let many = || format!("a tensor of rank {} is sliced along {spoken} axes", dims.len());
    let left = left.or_else(|| call.refuse(many))?;
    let mut kept = Dims::new();
    let mut places = None;
    let mut at = 0;
    for (i, &stride) in strides.iter().enumerate() {
        if is_ellipsis(i) {
            kept.extend(dims.get(at..at + left)?);
            at += left;
        } else if bit(new_mask, i) {
            kept.push(Size::Known(1));
        } else {
            let size = *dims.get(at)?;
            at += 1;
            let value = |of: &Option<Vec<i64>>| of.as_ref().and_then(|of| of.get(i).copied());
            let (own_begin, end) = (value(&begins), value(&ends));
            if let (true, Some(at), Some(own)) = (bit(shrink_mask, i), own_begin, size.known()) {
                axis(at, own).or_else(|| call.refuse(|| format!("{at} is no index of {own} elements")))?;
            }
            if bit(shrink_mask, i) {
                places = own_begin.map(|begin| (begin, 1, 1));
                continue;
            }
            let masked = |value: Option<i64>, is_masked: bool| if is_masked { Some(None) } else { value.map(Some) };
            let begin = masked(own_begin, bit(begin_mask, i));
            let end = masked(end, bit(end_mask, i));
            kept.push(match (begin, end, stride) {
                (Some(None | Some(0)), Some(None), 1) => size,
                (Some(begin), Some(end), stride) => {
                    let taken = |size: usize| strides_taken(size, begin, end, stride);
                    places = size.known().and_then(taken).map(|(first, count)| (first, stride, count));
                    call.map(size, |size| Some(taken(size)?.1))
                }
                _ => call.size(None),
            });
        }
    }
    kept.extend(&dims[at.min(dims.len())..]);
    let size = dims.first().and_then(|size| size.known());
    let elements = match (places, size, dims.len() == 1 && count == 1) {
        (Some((first, step, count)), Some(size), true) => {
            let first = if first < 0 { first + i64::try_from(size).ok()? } else { first };
            let place = |k: i64| usize::try_from(first + k * step).ok();
            (0..i64::try_from(count).ok()?).map(place).collect::<Option<Vec<_>>>()
        }
        _ => None,
    };
    let from = call.elements(0);
    let elements =
        elements.zip(from).and_then(|(places, from)| places.iter().map(|&at| from.get(at).copied()).collect());
    Some(vec![Fact { dims: Some(kept), elements, ..Fact::default() }])
}

/// The first element that `begin:end:stride` selects of `size`, and the number of elements.
fn strides_taken(size: usize, begin: Option<i64>, end: Option<i64>, stride: i64) -> Option<(i64, usize)> {
    let size = i64::try_from(size).ok()?;
    let (first, last) = if stride > 0 { (0, size) } else { (size - 1, -1) };
    let place = |at: i64| (if at < 0 { at.saturating_add(size) } else { at }).clamp(first.min(last), first.max(last));
    let (begin, end) = (begin.map_or(first, place), end.map_or(last, place));
    let count = (end - begin).checked_add(stride)?.checked_sub(stride.signum())?.checked_div(stride)?;
    Some((begin, usize::try_from(count.max(0)).ok()?))
}

fn gather(call: &Call) -> Option<Vec<Fact>> {
    let (params, indices) = (call.dims(0)?, call.dims(1)?);
    one([&indices[..], params.get(1..)?].concat())
}

fn gather_v2(call: &Call) -> Option<Vec<Fact>> {
    let (params, indices) = (call.dims(0)?, call.dims(1)?);
    let batch = usize::try_from(call.int("batch_dims")?).ok()?;
    let Some(along) = call.value(2) else {
        return one(call.unknown((params.len() + indices.len()).checked_sub(1 + batch)?));
    };
    let along = call.axis(along, params.len())?;
    let rest = indices.get(batch..)?;
    let dims: Dims = [params.get(..batch)?, params.get(batch..along)?, rest, &params[along + 1..]].concat();
    let elements = match (call.counts(1), params.len(), along) {
        (Some(at), 1, 0) if indices.len() <= 1 => elements_at(call, at.into_iter()),
        _ => None,
    };
    Some(vec![Fact { dims: Some(dims), elements, ..Fact::default() }])
}

fn gather_nd(call: &Call) -> Option<Vec<Fact>> {
    slices(&call.dims(0)?, &call.dims(1)?)
}

/// Slices of a variable.
fn resource_gather_nd(call: &Call) -> Option<Vec<Fact>> {
    slices(&call.stated(call.maker(0)?.attrs.shape("shape").ok()?)?, &call.dims(1)?)
}

/// Slices of a tensor with these dimensions, by indices whose last dimension has one index for each of its leading ones.
fn slices(params: &[Size], indices: &[Size]) -> Option<Vec<Fact>> {
    let (&depth, outer) = indices.split_last()?;
    one([outer, params.get(depth.known()?..)?].concat())
}

/// Rows of a variable.
fn resource_gather(call: &Call) -> Option<Vec<Fact>> {
    let params = call.stated(call.maker(0)?.attrs.shape("shape").ok()?)?;
    let indices = call.dims(1)?;
    let batch = usize::try_from(call.int("batch_dims")?).ok()?;
    let own = merge(&params.get(..batch)?.to_vec(), &indices.get(..batch)?.to_vec())?;
    one([&own[..], &indices[batch..], params.get(batch + 1..)?].concat())
}

/// The indices of the non-zero elements.
fn indices_of(call: &Call) -> Option<Vec<Fact>> {
    let rank = call.dims(0).map(|dims| dims.len());
    one(vec![call.size(None), call.size(rank)])
}

/// The distinct elements of a vector, the index of each element among them, and their counts.
fn unique(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    let all = [vec![count].into(), call.dims(0).into(), vec![count].into()];
    Some(all.into_iter().take(call.node.outputs.len()).collect())
}

/// Fewer slices of the same rank, and their indices.
fn unique_slices(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    let slices = call.dims(0).map(|dims| call.unknown(dims.len()));
    let all = [slices.into(), vec![call.size(None)].into(), vec![count].into()];
    Some(all.into_iter().take(call.node.outputs.len()).collect())
}

fn list_diff(call: &Call) -> Option<Vec<Fact>> {
    let count = call.size(None);
    Some(vec![vec![count].into(), vec![count].into()])
}

/// Parts, each with the rows assigned to it.
fn dynamic_partition(call: &Call) -> Option<Vec<Fact>> {
    let (data, places) = (call.dims(0)?, call.dims(1)?);
    merge(&data.get(..places.len())?.to_vec(), &places)?;
    let part = |_| [&[call.size(None)], &data[places.len()..]].concat().into();
    Some(call.node.outputs.iter().map(part).collect())
}

/// As many rows as the largest index requires.
fn dynamic_stitch(call: &Call) -> Option<Vec<Fact>> {
    let parts = call.len() / 2;
    let mut row: Option<Dims> = None;
    let mut largest = Some(-1);
    for part in 0..parts {
        let (indices, data) = (call.dims(part), call.dims(parts + part));
        let values = call.values(part);
        largest = largest.zip(values).map(|(largest, values)| values.into_iter().fold(largest, i64::max));
        if let (Some(indices), Some(data)) = (indices, data) {
            let own = data.get(indices.len()..)?.to_vec();
            row = Some(row.map_or(Some(own.clone()), |row| merge(&row, &own))?);
        }
    }
    let rows = call.size(largest.and_then(|largest| usize::try_from(largest + 1).ok()));
    one([&[rows], &row?[..]].concat())
}
