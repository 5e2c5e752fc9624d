//! Deferred values by the ops of a graph.

mod rows;
mod updates;
mod views;

use std::sync::Arc;

use burn_backend::BoolDType;
use burn_wgpu::{CubeBackend, CubeTensor};
use cubecl::Device;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Shape, Tensor};
use rows::{bias_grad, cross_entropy, fold, half_squares, matrix_product, normalised, softmax};
use smallvec::{SmallVec, smallvec};
use updates::{assign, update};
use views::{concat, pack, reshape, views};

use super::super::array::host_scalar;
use super::super::bits::UnaryFunction;
use super::super::elementwise::broadcast;
use super::super::fits;
use super::super::memory::upload;
use super::node::{Axis, Deferred, Function, Inputs, Node, flush, force, may_wait};
use super::{Deferral, Pairing};
use crate::{DeviceTensor, EngineOutcome, Memory, Value, Values};

/// The place of the values: a device, and its representation of a bool.
pub struct Place<'a> {
    pub device: &'a Device,
    pub bools: BoolDType,
}

/// Begins to compute those that wait among some values.
pub fn begin(values: &[Value]) {
    let waiting = |value: &Value| match value {
        Value::Device(DeviceTensor { memory, .. }) => match &**memory {
            Some(Memory::Deferred(Deferred(node))) if !node.is_done() => Some(Arc::clone(node)),
            _ => None,
        },
        Value::Host(_) => None,
    };
    let nodes: Vec<Arc<Node>> = values.iter().filter_map(waiting).collect();
    if let Some(first) = nodes.first() {
        if nodes.iter().any(|node| node.waits_as_update()) {
            flush(&first.device);
        }
        force(&nodes);
    }
}

/// The outputs of an op, if it takes these inputs and they can wait.
pub fn deferred(op: &Deferral, inputs: Values, place: &Place) -> Result<EngineOutcome> {
    if !may_wait(place.device) {
        return Ok(EngineOutcome::Declined(inputs));
    }
    if let Deferral::BatchNorm(norm) = op {
        return Ok(match normalised(norm, &inputs, place)? {
            // Outputs that only other implementations hand on to the gradient are empty.
            Some((nodes, empty)) => {
                let nothing = || Value::Host(Tensor::vector(Vec::<f32>::new()));
                EngineOutcome::Done(nodes.into_iter().map(value).chain((0..empty).map(|_| nothing())).collect())
            }
            None => EngineOutcome::Declined(inputs),
        });
    }
    Ok(match outputs(op, &inputs, place)? {
        Some(nodes) => EngineOutcome::Done(nodes.into_iter().map(value).collect()),
        None => EngineOutcome::Declined(inputs),
    })
}

fn value(node: Arc<Node>) -> Value {
    let (dtype, shape) = (node.dtype, node.shape.clone());
    Value::Device(DeviceTensor { dtype, shape, memory: Arc::new(Some(Memory::Deferred(Deferred(node)))) })
}

type Nodes = SmallVec<[Arc<Node>; 4]>;

fn outputs(op: &Deferral, inputs: &Values, place: &Place) -> Result<Option<Nodes>> {
    let takes_bools = place.bools == BoolDType::U32;
    if !takes_bools
        && (inputs.iter().any(|input| input.dtype() == DType::Bool) || matches!(op, Deferral::Comparison(..)))
    {
        return Ok(None);
    }
    // Values on the host alone are computed there, or go to the GPU when they are needed.
    if inputs.iter().all(|input| matches!(input, Value::Host(_))) && !matches!(op, Deferral::Fill) {
        return Ok(None);
    }
    let node = match op {
        Deferral::One(function) => elementwise(Function::One(*function), &inputs[..1], place)?,
        Deferral::Pair(pairing, same) => {
            let fits = !same || inputs[0].shape() == inputs[1].shape();
            if fits { pair(*pairing, inputs, place)? } else { None }
        }
        Deferral::Power => match host_scalar(&inputs[1]).filter(|_| inputs[1].rank() <= inputs[0].rank()) {
            Some(exponent) => match UnaryFunction::power(exponent) {
                Some(function) => elementwise(Function::One(function), &inputs[..1], place)?,
                None => None,
            },
            None => None,
        },
        Deferral::Comparison(comparison, swapped) => {
            let mut both: Values = inputs.clone();
            if *swapped {
                both.swap(0, 1);
            }
            elementwise(Function::Compare(*comparison), &both, place)?
        }
        Deferral::And => same_bools(Function::And, inputs, place)?,
        Deferral::Or => same_bools(Function::Or, inputs, place)?,
        Deferral::Not => same_bools(Function::Not, inputs, place)?,
        Deferral::Select { broadcasts } => {
            let whole = inputs[0].rank() == 0 || inputs[0].shape() == inputs[1].shape();
            let fits = *broadcasts || whole && inputs[1].shape() == inputs[2].shape();
            if fits { elementwise(Function::Select, inputs, place)? } else { None }
        }
        Deferral::ToFloat => elementwise(Function::ToFloat, inputs, place)?,
        Deferral::Sum => sum(inputs, place)?,
        Deferral::Bias { channels_first } => bias(inputs, *channels_first, place)?,
        Deferral::Like(number) => {
            let shape = inputs[0].shape();
            (shape.rank() <= 8).then(|| Node::number(*number, shape.clone(), place.device))
        }
        Deferral::Fill => fill(inputs, place)?,
        Deferral::Reshape | Deferral::ExpandDims | Deferral::Squeeze(_) => reshape(op, inputs, place)?,
        Deferral::Concat => concat(inputs, place)?,
        Deferral::Pack(along) => pack(inputs, *along, place)?,
        Deferral::Fold { keeps, kind } => fold(inputs, *keeps, *kind, place)?,
        Deferral::Softmax { is_log } => softmax(inputs, *is_log, place)?,
        Deferral::CrossEntropy { is_sparse } => return cross_entropy(inputs, *is_sparse, place),
        Deferral::BiasGrad { channels_first } => bias_grad(inputs, *channels_first, place)?,
        Deferral::HalfSquares => half_squares(inputs, place)?,
        Deferral::Product(transposed) => matrix_product(inputs, *transposed, place)?,
        Deferral::Update(rule) => return update(*rule, inputs, place),
        Deferral::Assign(pairing) => assign(*pairing, inputs, place)?,
        moved => return views(moved, inputs, place),
    };
    Ok(node.map(|node| smallvec![node]))
}

/// An input as a value that can wait; `None` for dtypes and memory that this module does not take.
fn operand(input: &Value, place: &Place) -> Result<Option<Arc<Node>>> {
    if !matches!(input.dtype(), DType::F32 | DType::Bool) || input.rank() > 8 || input.is_empty() {
        return Ok(None);
    }
    Ok(match input {
        Value::Host(tensor) if tensor.dtype() != DType::F32 => None,
        Value::Host(tensor) if tensor.len() == 1 => {
            let number = host_scalar(input).unwrap_or_default() as f32;
            Some(Node::number(number, tensor.shape().clone(), place.device))
        }
        Value::Host(tensor) => {
            let raw = upload::<CubeBackend>(tensor.clone(), place.device, place.bools);
            Some(Node::leaf(raw, DType::F32, tensor.shape().clone()))
        }
        Value::Device(DeviceTensor { dtype, shape, memory }) => match &**memory {
            Some(Memory::Deferred(Deferred(node))) => {
                if node.waits_as_update() {
                    flush(&node.device);
                }
                Some(Arc::clone(node))
            }
            Some(Memory::Wgpu(raw)) if !raw.meta.is_tiled() => {
                Some(Node::leaf(CubeTensor::clone(raw), *dtype, shape.clone()))
            }
            _ => None,
        },
    })
}

fn operands(inputs: &[Value], place: &Place) -> Result<Option<Inputs>> {
    inputs.iter().map(|input| operand(input, place)).collect()
}

/// A function of the elements of the inputs, which are broadcast.
fn elementwise(function: Function, inputs: &[Value], place: &Place) -> Result<Option<Arc<Node>>> {
    let all: Values = inputs.iter().cloned().collect();
    let Some(shape) = broadcast::<CubeBackend>(&all).filter(|shape| shape.rank() <= 8) else { return Ok(None) };
    let Some(inputs) = operands(inputs, place)? else { return Ok(None) };
    let dtype = match function {
        Function::Compare(_) | Function::And | Function::Or | Function::Not => DType::Bool,
        _ => DType::F32,
    };
    Ok(Some(Node::of(function, inputs, dtype, shape)))
}

impl Pairing {
    fn function(self) -> Function {
        match self {
            Pairing::Two(function) => Function::Two(function),
            Pairing::Add => Function::Add,
            Pairing::Sub => Function::Sub,
            Pairing::Mul => Function::Mul,
            Pairing::Div => Function::Div,
        }
    }
}

fn pair(pairing: Pairing, inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    // One input stands for both of a square.
    if inputs.len() == 1 {
        return elementwise(pairing.function(), &[inputs[0].clone(), inputs[0].clone()], place);
    }
    elementwise(pairing.function(), inputs, place)
}

/// Bools of one shape that are in the GPU's memory.
fn same_bools(function: Function, inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    let is_same = inputs.iter().all(|input| input.shape() == inputs[0].shape());
    if is_same { elementwise(function, inputs, place) } else { Ok(None) }
}

/// AddN.
fn sum(inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    if inputs.iter().any(|input| input.shape() != inputs[0].shape()) {
        return Ok(None);
    }
    let Some(terms) = operands(inputs, place)? else { return Ok(None) };
    let shape = inputs[0].shape();
    let add = |sum, term| Node::of(Function::Add, smallvec![sum, term], DType::F32, shape.clone());
    Ok(terms.into_iter().reduce(add))
}

fn bias(inputs: &Values, channels_first: bool, place: &Place) -> Result<Option<Arc<Node>>> {
    let (shape, bias) = (inputs[0].shape().clone(), inputs[1].shape());
    let channels = if channels_first { 1 } else { shape.rank().saturating_sub(1) };
    if shape.rank() < 2 || bias.rank() != 1 || bias.dims()[0] != shape.dims()[channels] {
        return Ok(None);
    }
    let Some(mut inputs) = operands(inputs, place)? else { return Ok(None) };
    let along = (0..shape.rank()).map(|i| if i == channels { shape.dims()[i] } else { 1 }).collect::<Shape>();
    let axes = vec![Axis { from: Some(channels), start: 0, step: 1 }];
    let bias = inputs.pop().expect("there are two");
    inputs.push(Node::of(Function::View(axes), smallvec![bias], DType::F32, along));
    Ok(Some(Node::of(Function::Add, inputs, DType::F32, shape)))
}

/// Fill, of more than one element: a single one stays on the host.
fn fill(inputs: &Values, place: &Place) -> Result<Option<Arc<Node>>> {
    let (Value::Host(dims), Some(number), DType::F32) = (&inputs[0], host_scalar(&inputs[1]), inputs[1].dtype()) else {
        return Ok(None);
    };
    let shape = Shape::from_i64s(&dims.to_i64s()?).ok().filter(|_| dims.rank() == 1 && inputs[1].rank() == 0);
    let is_taken =
        |shape: &Shape| shape.rank() <= 8 && shape.elements() > Some(1) && fits::<CubeBackend>(shape, DType::F32);
    Ok(shape.filter(is_taken).map(|shape| Node::number(number as f32, shape, place.device)))
}

/// Whole numbers on the host.
fn ints(value: &Value) -> Result<Option<Vec<i64>>> {
    match value {
        Value::Host(tensor) if tensor.rank() <= 1 && matches!(tensor.dtype(), DType::I32 | DType::I64) => {
            tensor.to_i64s().map(Some)
        }
        _ => Ok(None),
    }
}
