//! Ops that move elements or only read shapes. The former take an engine's tensors only; tensors on the host are moved on the
//! host.

use burn_backend::{TensorData, TensorMetadata};
use meshtf_kernels::{self as kernel, KernelNode};
use meshtf_loops::vector;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};

use super::array::{Array, Home, Part, Site, done, host_scalar, places};
use super::dense::floats;
use super::memory::{Backing, held};
use super::{Body, fits, is_within};
use crate::{EngineOutcome, Value, Values};

pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if let Some(answer) = about_shapes::<B>(node)? {
        return Ok(Some(answer));
    }
    if node.op == "Fill" && B::REMOTE && node.outputs[0].dtype.is_float() {
        return Ok(Some(Box::new(filled)));
    }
    let data = match node.op {
        "Split" => 1,
        "StridedSliceGrad" => 4,
        _ => 0,
    };
    if !node.inputs.get(data).is_some_and(|dtype| dtype.is_float() || *dtype == DType::Bool) {
        return Ok(None);
    }
    let body: Body<B> = match node.op {
        "Reshape" => reshaping(|shape, sizes| reshaped(shape.elements(), sizes)),
        "ExpandDims" => reshaping(|shape, at| {
            let axis = axis(one(at)?, shape.rank() + 1)?;
            let (before, behind) = shape.dims().split_at(axis);
            Some(before.iter().chain(&[1]).chain(behind).copied().collect())
        }),
        "Squeeze" => {
            let named = node.attrs.ints("squeeze_dims").or_else(|_| node.attrs.ints("axis"))?.to_vec();
            reshaping(move |shape, _| squeezed(shape, &named))
        }
        "Transpose" => moved(0, |x, rest| {
            let axes = rest[0].iter().map(|&i| axis(i, x.shape.rank())).collect::<Option<Vec<_>>>()?;
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            (sorted.iter().copied().eq(0..x.shape.rank())).then(|| Ok(vec![x.clone().permute(&axes)]))
        }),
        "Slice" => moved(0, |x, rest| Some(Ok(vec![x.clone().slice(&sliced(&x.shape, &rest[0], &rest[1])?)]))),
        "StridedSlice" => {
            let masks = Masks::of(node)?;
            moved(0, move |x, rest| {
                let (parts, shape) = strided(&x.shape, &rest[0], &rest[1], &rest[2], &masks)?;
                (shape.rank() <= B::MAX_RANK).then(|| Ok(vec![x.clone().slice(&parts).reshape(shape)?]))
            })
        }
        "Split" => {
            let pieces = usize::try_from(node.attrs.int("num_split")?).unwrap_or(0);
            moved(1, move |x, rest| {
                let axis = axis(one(&rest[0])?, x.shape.rank())?;
                let size = x.shape.dims()[axis];
                if pieces == 0 || size % pieces != 0 {
                    return None;
                }
                let each = size / pieces;
                Some(Ok((0..pieces).map(|i| x.clone().narrow(axis, i * each, each)).collect()))
            })
        }
        "Unpack" => {
            let (pieces, along) = (node.attrs.int("num")?, node.attrs.int("axis")?);
            moved(0, move |x, _| {
                let axis = axis(along, x.shape.rank())?;
                let mut dims = x.shape.dims().to_vec();
                let size = dims.remove(axis);
                let row = |i| x.clone().narrow(axis, i, 1).reshape(dims.clone().into());
                (i64::try_from(size) == Ok(pieces)).then(|| (0..size).map(row).collect())
            })
        }
        "BroadcastTo" => moved(0, |x, rest| {
            let shape = Shape::from_i64s(&rest[0]).ok()?;
            let is_valid = shape.rank() <= B::MAX_RANK && x.shape.broadcast(&shape).ok()? == shape && !empty(&shape);
            (is_valid && fits::<B>(&shape, x.dtype)).then(|| Ok(vec![x.clone().expand(&shape)?]))
        }),
        "Tile" => moved(0, |x, rest| tiled(x, &rest[0])),
        "ReverseV2" => moved(0, |x, rest| {
            let axes = rest[0].iter().map(|&i| axis(i, x.shape.rank())).collect::<Option<Vec<_>>>()?;
            let distinct = axes.iter().enumerate().all(|(i, axis)| !axes[..i].contains(axis));
            (distinct && !axes.is_empty()).then(|| Ok(vec![x.clone().flip(&axes)]))
        }),
        "StridedSliceGrad" if B::REMOTE && node.inputs[4].is_float() => {
            let masks = Masks::of(node)?;
            moved(4, move |dy, rest| {
                let shape =
                    Shape::from_i64s(&rest[0]).ok().filter(|shape| fits::<B>(shape, dy.dtype) && !empty(shape))?;
                let (parts, _) = strided(&shape, &rest[1], &rest[2], &rest[3], &masks)?;
                let counts: Shape = parts.iter().map(|part| part.count).collect();
                (shape.rank() <= B::MAX_RANK && counts.elements() == dy.shape.elements())
                    .then(|| Ok(vec![dy.clone().reshape(counts)?.spread(&parts, shape)]))
            })
        }
        "ConcatV2" => concat(),
        "Pack" => pack(node.attrs.int("axis")?),
        "Pad" | "PadV2" if node.inputs[0].is_float() => padded(),
        "GatherV2" => gather(node.attrs.int("batch_dims").unwrap_or(0)),
        "ZerosLike" | "OnesLike" if node.inputs[0].is_float() => {
            let value = if node.op == "OnesLike" { 1.0 } else { 0.0 };
            let one = kernel::cast(Tensor::scalar(value), node.inputs[0])?;
            Box::new(move |site, inputs| {
                let Value::Device(x) = &inputs[0] else { return Ok(EngineOutcome::Declined(inputs)) };
                if B::REMOTE {
                    return done(site.full(value, x.dtype, x.shape.clone()));
                }
                let elements = x.shape.checked_elements(x.dtype)?;
                done(site.array(Value::Host(one.filled(x.shape.clone(), elements)))?)
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(body))
}

/// Kernels that read no element, for any dtype, wherever the tensor is stored.
fn about_shapes<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let wide = node.outputs.first().is_some_and(|output| output.dtype == DType::I64);
    let numbers = move |sizes: &[usize], shape: Shape| -> Value {
        let data = if wide {
            meshtf_tensor::Data::I64(sizes.iter().map(|&n| n as i64).collect())
        } else {
            meshtf_tensor::Data::I32(sizes.iter().map(|&n| n as i32).collect())
        };
        Value::Host(Tensor::new(shape, data).expect("as many sizes as the shape says"))
    };
    Ok(Some(match node.op {
        "Shape" | "ShapeN" => Box::new(move |_, inputs| {
            if inputs.iter().any(|input| !wide && input.len() > i32::MAX as usize) {
                return Ok(EngineOutcome::Declined(inputs));
            }
            Ok(EngineOutcome::Done(inputs.iter().map(|x| numbers(x.shape().dims(), Shape::from([x.rank()]))).collect()))
        }),
        "Rank" => Box::new(move |_, inputs| {
            Ok(EngineOutcome::Done(Values::from_iter([numbers(&[inputs[0].rank()], Shape::scalar())])))
        }),
        "Size" => Box::new(move |_, inputs| {
            if !wide && inputs[0].len() > i32::MAX as usize {
                return Ok(EngineOutcome::Declined(inputs));
            }
            Ok(EngineOutcome::Done(Values::from_iter([numbers(&[inputs[0].len()], Shape::scalar())])))
        }),
        _ => return Ok(None),
    }))
}

/// A kernel that moves the elements of input `data`, as directed by the other inputs, which are numbers on the host. Declines
/// if `data` is on the host or `how` returns `None`.
fn moved<B: Backing>(
    data: usize,
    how: impl Fn(&Array<B>, &[Vec<i64>]) -> Option<Result<Vec<Array<B>>>> + Send + 'static,
) -> Body<B> {
    Box::new(move |site, mut inputs| {
        if matches!(inputs[data], Value::Host(_)) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let mut rest = Vec::with_capacity(inputs.len() - 1);
        for (_, value) in inputs.iter().enumerate().filter(|&(i, _)| i != data) {
            match value {
                Value::Host(tensor) if tensor.rank() <= 1 && matches!(tensor.dtype(), DType::I32 | DType::I64) => {
                    rest.push(tensor.to_i64s()?)
                }
                _ => return Ok(EngineOutcome::Declined(inputs)),
            }
        }
        let x = site.array(std::mem::replace(&mut inputs[data], Value::Host(Tensor::scalar(false))))?;
        match how(&x, &rest) {
            Some(arrays) => Ok(EngineOutcome::Done(arrays?.into_iter().map(Array::value).collect())),
            None => {
                inputs[data] = x.value();
                Ok(EngineOutcome::Declined(inputs))
            }
        }
    })
}

/// A kernel that gives its first input another shape: the one that `how` computes from its shape and the numbers in the
/// second input, if there is one, which are on the host. Declines as [`moved`] does.
fn reshaping<B: Backing>(how: impl Fn(&Shape, &[i64]) -> Option<Shape> + Send + 'static) -> Body<B> {
    Box::new(move |site, mut inputs| {
        let numbers = match inputs.get(1) {
            Some(Value::Host(numbers)) if numbers.rank() <= 1 && matches!(numbers.dtype(), DType::I32 | DType::I64) => {
                numbers.to_i64s()?
            }
            Some(_) => return Ok(EngineOutcome::Declined(inputs)),
            None => Vec::new(),
        };
        let shape = match &inputs[0] {
            Value::Device(x) => how(&x.shape, &numbers).filter(|shape| shape.rank() <= B::MAX_RANK),
            Value::Host(_) => None,
        };
        let Some(shape) = shape else { return Ok(EngineOutcome::Declined(inputs)) };
        inputs.truncate(1);
        if *inputs[0].shape() == shape {
            return Ok(EngineOutcome::Done(inputs));
        }
        let [x] = super::elementwise::arrays(site, inputs)?;
        done(x.reshape(shape)?)
    })
}

pub(super) fn one(numbers: &[i64]) -> Option<i64> {
    if let [one] = numbers { Some(*one) } else { None }
}

/// The dimension of an axis, which may be counted from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(from_front).ok().filter(|&axis| axis < rank)
}

fn empty(shape: &Shape) -> bool {
    shape.dims().contains(&0)
}

pub(super) fn reshaped(elements: Option<usize>, sizes: &[i64]) -> Option<Shape> {
    let elements = elements?;
    let known = sizes
        .iter()
        .filter(|&&size| size != -1)
        .try_fold(1usize, |n, &size| n.checked_mul(usize::try_from(size).ok()?))?;
    let open = sizes.iter().filter(|&&size| size == -1).count();
    if open > 1 || known == 0 || elements % known != 0 || (open == 0 && elements != known) {
        return None;
    }
    Some(sizes.iter().map(|&size| if size == -1 { elements / known } else { size as usize }).collect())
}

pub(super) fn squeezed(shape: &Shape, named: &[i64]) -> Option<Shape> {
    let mut gone = vec![named.is_empty(); shape.rank()];
    for &i in named {
        gone[axis(i, shape.rank())?] = true;
    }
    let sizes = shape.dims().iter().zip(&gone);
    if !named.is_empty() && sizes.clone().any(|(&size, &gone)| gone && size != 1) {
        return None;
    }
    Some(sizes.filter(|&(&size, &gone)| !(gone && size == 1)).map(|(&size, _)| size).collect())
}

pub(super) fn sliced(shape: &Shape, begin: &[i64], size: &[i64]) -> Option<Vec<Part>> {
    if begin.len() != shape.rank() || size.len() != shape.rank() {
        return None;
    }
    let parts = shape.dims().iter().zip(begin.iter().zip(size)).map(|(&have, (&start, &count))| {
        let start = usize::try_from(start).ok()?;
        let count = if count == -1 { have.checked_sub(start)? } else { usize::try_from(count).ok()? };
        (count > 0 && start.checked_add(count)? <= have).then_some(Part { start, count, step: 1 })
    });
    parts.collect()
}

pub struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new_axis: i64,
    shrink: i64,
}

impl Masks {
    pub fn of(node: &KernelNode) -> Result<Masks> {
        Ok(Masks {
            begin: node.attrs.int("begin_mask")?,
            end: node.attrs.int("end_mask")?,
            ellipsis: node.attrs.int("ellipsis_mask")?,
            new_axis: node.attrs.int("new_axis_mask")?,
            shrink: node.attrs.int("shrink_axis_mask")?,
        })
    }
}

/// The parts of each dimension, and the result's shape; `None` for negative steps, empty results and invalid input.
pub(super) fn strided(
    shape: &Shape,
    begin: &[i64],
    end: &[i64],
    step: &[i64],
    masks: &Masks,
) -> Option<(Vec<Part>, Shape)> {
    let count = begin.len();
    if end.len() != count || step.len() != count || count > 32 || masks.ellipsis.count_ones() > 1 {
        return None;
    }
    let has = |mask: i64, i: usize| mask >> i & 1 == 1;
    // An ellipsis stands for all dimensions that the other entries leave.
    let spent = (0..count).filter(|&i| !has(masks.ellipsis, i) && !has(masks.new_axis, i)).count();
    let whole = shape.rank().checked_sub(spent)?;
    let mut parts = Vec::with_capacity(shape.rank());
    let mut answer = Vec::with_capacity(shape.rank());
    let rest = |parts: &mut Vec<Part>, answer: &mut Vec<usize>| {
        for _ in 0..whole {
            let size = shape.dims()[parts.len()];
            parts.push(Part { start: 0, count: size, step: 1 });
            answer.push(size);
        }
    };
    for i in 0..count {
        if has(masks.ellipsis, i) {
            rest(&mut parts, &mut answer);
        } else if has(masks.new_axis, i) {
            answer.push(1);
        } else {
            let size = i64::try_from(shape.dims()[parts.len()]).ok()?;
            let from_front = |n: i64| if n < 0 { n + size } else { n };
            if has(masks.shrink, i) {
                let start = from_front(begin[i]);
                if start < 0 || start >= size || step[i] <= 0 || has(masks.begin, i) {
                    return None;
                }
                parts.push(Part { start: start as usize, count: 1, step: 1 });
                continue;
            }
            let step = usize::try_from(step[i]).ok().filter(|&step| step > 0)?;
            let start = if has(masks.begin, i) { 0 } else { from_front(begin[i]).clamp(0, size) };
            let stop = if has(masks.end, i) { size } else { from_front(end[i]).clamp(0, size) };
            let span = usize::try_from(stop - start).ok().filter(|&span| span > 0)?;
            let count = span.div_ceil(step);
            parts.push(Part { start: start as usize, count, step });
            answer.push(count);
        }
    }
    if masks.ellipsis == 0 {
        rest(&mut parts, &mut answer);
    }
    Some((parts, answer.into()))
}

fn tiled<B: Backing>(x: &Array<B>, multiples: &[i64]) -> Option<Result<Vec<Array<B>>>> {
    if multiples.len() != x.shape.rank() || multiples.iter().any(|&times| times < 1) {
        return None;
    }
    let sizes = x.shape.dims().iter().zip(multiples);
    let shape: Shape = sizes.map(|(size, &times)| size.checked_mul(times as usize)).collect::<Option<_>>()?;
    if !fits::<B>(&shape, x.dtype) {
        return None;
    }
    if let Some(from) = B::floats(&x.raw).filter(|_| B::IN_PLACE && x.dtype == DType::F32) {
        let times: Vec<usize> = multiples.iter().map(|&times| times as usize).collect();
        let all = vector::tiled(from, x.shape.dims(), &times);
        let raw = B::float_from_data(TensorData::new(all, held(&shape)), &x.raw.device());
        return Some(Ok(vec![Array { raw, dtype: x.dtype, shape, home: Home::default() }]));
    }
    let mut repeated = multiples.iter().enumerate().filter(|&(_, &times)| times > 1);
    if B::REMOTE {
        return Some(Ok(vec![repeated.fold(x.clone(), |x, (axis, &times)| x.repeated(axis, times as usize))]));
    }
    let tiled = repeated.try_fold(x.clone(), |x, (axis, &times)| Array::concat(vec![x; times as usize], axis));
    Some(tiled.map(|tiled| vec![tiled]))
}

/// Fill, of more than one element: a single one stays on the host.
fn filled<B: Backing>(site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let (Value::Host(dims), Some(value)) = (&inputs[0], host_scalar(&inputs[1])) else {
        return Ok(EngineOutcome::Declined(inputs));
    };
    let dtype = inputs[1].dtype();
    let is_taken = |shape: &Shape| fits::<B>(shape, dtype) && shape.rank() <= B::MAX_RANK && shape.elements() > Some(1);
    match Shape::from_i64s(&dims.to_i64s()?)
        .ok()
        .filter(|shape| dims.rank() == 1 && inputs[1].rank() == 0 && is_taken(shape))
    {
        Some(shape) => done(site.full(value, dtype, shape)),
        None => Ok(EngineOutcome::Declined(inputs)),
    }
}

/// Whether every input but the last `rest` is on the host.
fn all_host(inputs: &Values, rest: usize) -> bool {
    inputs[..inputs.len() - rest].iter().all(|input| matches!(input, Value::Host(_)))
}

fn concat<B: Backing>() -> Body<B> {
    Box::new(|site, mut inputs| {
        let first = inputs[0].shape().clone();
        let agree = |axis: usize, other: &Shape| {
            other.rank() == first.rank() && (0..first.rank()).all(|i| i == axis || other.dims()[i] == first.dims()[i])
        };
        let along = match inputs.last() {
            Some(Value::Host(axis_input)) => one(&axis_input.to_i64s()?).and_then(|along| axis(along, first.rank())),
            _ => None,
        };
        let values = &inputs[..inputs.len() - 1];
        let Some(along) = along.filter(|&along| values.iter().all(|value| agree(along, value.shape()))) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let mut dims = first.dims().to_vec();
        dims[along] = values.iter().map(|value| value.shape().dims()[along]).sum();
        let is_taken = fits::<B>(&Shape::from(dims), inputs[0].dtype());
        if !is_taken || all_host(&inputs, 1) || values.iter().any(Value::is_empty) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        inputs.pop();
        B::begin(&inputs);
        let arrays = inputs.into_iter().map(|value| site.array(value)).collect::<Result<Vec<_>>>()?;
        done(Array::concat(arrays, along)?)
    })
}

fn pack<B: Backing>(along: i64) -> Body<B> {
    Box::new(move |site, inputs| {
        let shape = inputs[0].shape().clone();
        let along = axis(along, shape.rank() + 1).filter(|_| shape.rank() < B::MAX_RANK);
        let same = inputs.iter().all(|input| *input.shape() == shape);
        let Some(along) = along.filter(|_| same && !all_host(&inputs, 0)) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let mut dims = shape.dims().to_vec();
        dims.insert(along, inputs.len());
        if !fits::<B>(&Shape::from(dims.as_slice()), inputs[0].dtype()) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        dims[along] = 1;
        B::begin(&inputs);
        let arrays = inputs
            .into_iter()
            .map(|value| site.array(value)?.reshape(dims.clone().into()))
            .collect::<Result<Vec<_>>>()?;
        done(Array::concat(arrays, along)?)
    })
}

/// Pads with zeros, or with the third input; the second has the number before and after each dimension.
fn padded<B: Backing>() -> Body<B> {
    Box::new(|site, mut inputs| {
        let number = |value: &Value| match floats(value) {
            Some(&[number]) => Some(f64::from(number)),
            _ => host_scalar(value),
        };
        let value = inputs.get(2).map_or(Some(0.0), number);
        let (Value::Device(x), Value::Host(paddings), Some(value)) = (&inputs[0], &inputs[1], value) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let rank = x.shape.rank();
        let paddings = paddings.to_i64s()?;
        if rank == 0 || paddings.len() != 2 * rank || paddings.iter().any(|&n| !(0..1 << 31).contains(&n)) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let sides: Vec<(usize, usize)> = paddings.chunks(2).map(|side| (side[0] as usize, side[1] as usize)).collect();
        let shape: Shape = x.shape.dims().iter().zip(&sides).map(|(size, side)| side.0 + size + side.1).collect();
        if !is_within::<B>(&shape, x.dtype) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        shape.checked_elements(x.dtype)?;
        inputs.truncate(1);
        let [x] = super::elementwise::arrays(site, inputs)?;
        done(x.padded(site, &sides, value)?)
    })
}

fn gather<B: Backing>(batch_dims: i64) -> Body<B> {
    Box::new(move |site, mut inputs| {
        let (Value::Device(x), Value::Host(indices)) = (&inputs[0], &inputs[1]) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let along = match inputs.get(2) {
            Some(Value::Host(along)) if along.rank() == 0 => one(&along.to_i64s()?),
            Some(_) => None,
            None => Some(0),
        };
        let Some(along) = along.and_then(|along| axis(along, x.shape.rank())).filter(|_| batch_dims == 0) else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        let (before, size, behind) = (&x.shape.dims()[..along], x.shape.dims()[along], &x.shape.dims()[along + 1..]);
        let rows = places(indices, size).unwrap_or_default();
        let shape: Shape = before.iter().chain(indices.dims()).chain(behind).copied().collect();
        let Some(rows) =
            rows.filter(|rows| !rows.is_empty() && shape.rank() <= B::MAX_RANK && fits::<B>(&shape, x.dtype))
        else {
            return Ok(EngineOutcome::Declined(inputs));
        };
        inputs.truncate(1);
        let [x] = super::elementwise::arrays(site, inputs)?;
        done(x.rows(site, along, rows)?.reshape(shape)?)
    })
}
