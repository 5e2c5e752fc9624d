//! Ops that move elements, repeat them, or put tensors together.

use std::sync::Arc;

use burn_wgpu::CubeBackend;
use meshtf_tensor::Shape;
use meshtf_tensor::failure::Result;
use smallvec::smallvec;

use super::super::super::array::Part;
use super::super::super::fits;
use super::super::super::layout::{axis, one, reshaped, sliced, squeezed, strided};
use super::super::Deferral;
use super::super::node::{Axis, Function, Inputs, Node};
use super::{Nodes, Place, ints, operand, operands};
use crate::{Value, Values};

pub(super) fn reshape(op: &Deferral, inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    if matches!(inputs[0], Value::Host(_)) {
        return Ok(None);
    }
    let shape = inputs[0].shape();
    let numbers = match inputs.get(1) {
        Some(numbers) => ints(numbers)?,
        None => Some(Vec::new()),
    };
    let Some(numbers) = numbers else { return Ok(None) };
    let new = match op {
        Deferral::Squeeze(named) => squeezed(shape, named),
        Deferral::ExpandDims => one(&numbers).and_then(|at| axis(at, shape.rank() + 1)).map(|at| {
            let (before, behind) = shape.dims().split_at(at);
            before.iter().chain(&[1]).chain(behind).copied().collect()
        }),
        _ => reshaped(shape.elements(), &numbers),
    };
    let Some(new) = new.filter(|new| new.rank() <= 8) else { return Ok(None) };
    Ok(operand(&inputs[0], place)?.map(|node| as_shape(node, new)))
}

pub(super) fn as_shape(node: Arc<Node>, shape: Shape) -> Arc<Node> {
    if node.shape == shape {
        return node;
    }
    let dtype = node.dtype;
    Node::of(Function::Reshape, smallvec![node], dtype, shape)
}

/// Ops that move elements, or repeat them.
pub(super) fn views(op: &Deferral, inputs: &Values, place: &Place) -> Result<Option<Nodes>> {
    let data = usize::from(matches!(op, Deferral::Split(_)));
    if matches!(inputs[data], Value::Host(_)) {
        return Ok(None);
    }
    let shape = inputs[data].shape().clone();
    let mut numbers = Vec::with_capacity(inputs.len());
    for (_, input) in inputs.iter().enumerate().filter(|&(i, _)| i != data) {
        let Some(more) = ints(input)? else { return Ok(None) };
        numbers.push(more);
    }
    let own = |(i, &size): (usize, &usize)| Axis { from: (size > 1).then_some(i), start: 0, step: 1 };
    let whole: Vec<Axis> = shape.dims().iter().enumerate().map(own).collect();
    // The axes of each view, its shape, and the shape that it then gets.
    let mut parts: Vec<(Vec<Axis>, Shape, Shape)> = Vec::new();
    match op {
        Deferral::Transpose => {
            let axes: Option<Vec<usize>> = numbers[0].iter().map(|&i| axis(i, shape.rank())).collect();
            let Some(axes) = axes else { return Ok(None) };
            let places = (0..shape.rank()).map(|i| axes.iter().position(|&axis| axis == i)).collect::<Option<Vec<_>>>();
            let Some(places) = places.filter(|_| axes.len() == shape.rank()) else { return Ok(None) };
            let view = places.into_iter().map(|from| Axis { from: Some(from), start: 0, step: 1 }).collect();
            let new: Shape = axes.iter().map(|&axis| shape.dims()[axis]).collect();
            parts.push((view, new.clone(), new));
        }
        Deferral::Slice => {
            let Some(of) = sliced(&shape, &numbers[0], &numbers[1]) else { return Ok(None) };
            let new: Shape = of.iter().map(|part| part.count).collect();
            parts.push((taken(&of), new.clone(), new));
        }
        Deferral::StridedSlice(masks) => {
            let Some((of, new)) = strided(&shape, &numbers[0], &numbers[1], &numbers[2], masks) else {
                return Ok(None);
            };
            parts.push((taken(&of), of.iter().map(|part| part.count).collect(), new));
        }
        Deferral::Split(count) => {
            let along = one(&numbers[0]).and_then(|at| axis(at, shape.rank()));
            let Some(along) = along.filter(|&at| *count > 0 && shape.dims()[at].is_multiple_of(*count)) else {
                return Ok(None);
            };
            let each = shape.dims()[along] / count;
            let mut dims = shape.dims().to_vec();
            dims[along] = each;
            for i in 0..*count {
                let mut view = whole.clone();
                view[along] = Axis { from: Some(along), start: (i * each) as i64, step: 1 };
                parts.push((view, dims.as_slice().into(), dims.as_slice().into()));
            }
        }
        Deferral::Unpack { count, along } => {
            let Some(along) = axis(*along, shape.rank()) else { return Ok(None) };
            let mut dims = shape.dims().to_vec();
            if i64::try_from(dims.remove(along)) != Ok(*count) {
                return Ok(None);
            }
            for i in 0..shape.dims()[along] {
                let view = (0..shape.rank()).map(|k| match k {
                    _ if k == along => Axis { from: None, start: i as i64, step: 0 },
                    _ => Axis { from: Some(k - usize::from(k > along)), start: 0, step: 1 },
                });
                parts.push((view.collect(), dims.as_slice().into(), dims.as_slice().into()));
            }
        }
        Deferral::BroadcastTo => {
            let new =
                Shape::from_i64s(&numbers[0]).ok().filter(|new| shape.broadcast(new).is_ok_and(|all| all == *new));
            let Some(new) = new else { return Ok(None) };
            let missing = new.rank() - shape.rank();
            let view = whole.iter().map(|axis| Axis { from: axis.from.map(|from| from + missing), ..*axis }).collect();
            parts.push((view, new.clone(), new));
        }
        Deferral::Tile => {
            let is_simple = numbers[0].len() == shape.rank()
                && shape.dims().iter().zip(&numbers[0]).all(|(&size, &times)| times >= 1 && (size == 1 || times == 1));
            if !is_simple {
                return Ok(None);
            }
            let new: Shape =
                shape.dims().iter().zip(&numbers[0]).map(|(&size, &times)| size * times as usize).collect();
            parts.push((whole, new.clone(), new));
        }
        _ => return Ok(None),
    }
    let is_taken = |(_, seen, new): &(Vec<Axis>, Shape, Shape)| {
        [seen, new].into_iter().all(|shape| {
            shape.rank() <= 8 && shape.elements() > Some(0) && fits::<CubeBackend>(shape, inputs[data].dtype())
        })
    };
    if !parts.iter().all(is_taken) {
        return Ok(None);
    }
    let Some(node) = operand(&inputs[data], place)? else { return Ok(None) };
    let dtype = node.dtype;
    let view = |(axes, seen, new): (Vec<Axis>, Shape, Shape)| {
        as_shape(Node::of(Function::View(axes), smallvec![Arc::clone(&node)], dtype, seen), new)
    };
    Ok(Some(parts.into_iter().map(view).collect()))
}

/// The axes of a part of a tensor.
fn taken(parts: &[Part]) -> Vec<Axis> {
    let axis = |(i, part): (usize, &Part)| Axis { from: Some(i), start: part.start as i64, step: part.step as i64 };
    parts.iter().enumerate().map(axis).collect()
}

pub(super) fn concat(inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    let Some((along, values)) = inputs.split_last() else { return Ok(None) };
    let first = values[0].shape();
    let along = ints(along)?.as_deref().and_then(one).and_then(|along| axis(along, first.rank()));
    let Some(along) = along else { return Ok(None) };
    let agrees = |other: &Shape| {
        other.rank() == first.rank() && (0..first.rank()).all(|i| i == along || other.dims()[i] == first.dims()[i])
    };
    if !values.iter().all(|value| agrees(value.shape())) {
        return Ok(None);
    }
    let mut dims = first.dims().to_vec();
    dims[along] = values.iter().map(|value| value.shape().dims()[along]).sum();
    let shape = Shape::from(dims);
    if !fits::<CubeBackend>(&shape, values[0].dtype()) || values.iter().all(|value| matches!(value, Value::Host(_))) {
        return Ok(None);
    }
    joined(operands(values, place)?, along, shape)
}

pub(super) fn pack(inputs: &Values, along: i64, place: &Place) -> Result<Option<Arc<Node>>> {
    let shape = inputs[0].shape();
    let is_same = inputs.iter().all(|input| input.shape() == shape);
    let Some(along) = axis(along, shape.rank() + 1).filter(|_| is_same && shape.rank() < 8) else { return Ok(None) };
    let mut dims = shape.dims().to_vec();
    dims.insert(along, 1);
    let part = Shape::from(dims.as_slice());
    dims[along] = inputs.len();
    let whole = Shape::from(dims);
    if !fits::<CubeBackend>(&whole, inputs[0].dtype()) {
        return Ok(None);
    }
    let parts =
        operands(inputs, place)?.map(|parts| parts.into_iter().map(|node| as_shape(node, part.clone())).collect());
    joined(parts, along, whole)
}

fn joined(parts: Option<Inputs>, along: usize, shape: Shape) -> Result<Option<Arc<Node>>> {
    let Some(parts) = parts else { return Ok(None) };
    let dtype = parts[0].dtype;
    Ok((2..=parts[0].most_leaves())
        .contains(&parts.len())
        .then(|| Node::of(Function::Join(along), parts, dtype, shape)))
}
