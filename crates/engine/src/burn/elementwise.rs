//! Elementwise ops: functions of one and of two numbers with broadcasting, their gradients, comparisons, selection.
//!
//! Functions for which burn needs several passes over the elements are for GPUs only: on a CPU, the host kernel needs one
//! pass.

use burn_backend::Scalar;
use meshtf_kernels::KernelNode;
use meshtf_loops::turn;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Shape};
use smallvec::SmallVec;

use super::array::{Array, Home, Site, done, float, host_scalar};
use super::bits::{BinaryFunction, ComparisonFunction, UnaryFunction};
use super::memory::Backing;
use super::{Body, blocks, fits, is_within};
use crate::{EngineOutcome, Value, Values};

type Unary<B> = fn(Raw<B>) -> Raw<B>;
type Binary<B> = fn(Raw<B>, Raw<B>) -> Raw<B>;
type WithScalar<B> = fn(Raw<B>, Scalar) -> Raw<B>;
type Raw<B> = <B as Backing>::Raw;

/// The kernels of ops over floats.
pub(super) fn body<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    if B::REMOTE
        && let Some(careful) = careful(node)?
    {
        return Ok(Some(careful));
    }
    if let Some(function) = unary_function::<B>(node.op) {
        return Ok(Some(unary(function)));
    }
    if let Some((tensors, with_right, with_left)) = binary_function::<B>(node.op) {
        return Ok(Some(binary(tensors, with_right, with_left)));
    }
    Ok(match node.op {
        "AddN" => Some(add_n()),
        "BiasAdd" => Some(bias_add(node.attrs.str("data_format")? == "NCHW")),
        "LeakyRelu" => {
            let slope = node.attrs.float("alpha")?;
            Some(Box::new(move |site, inputs| {
                let [x] = arrays(site, inputs)?;
                done(mapped(site, x, |raw| B::leaky_relu(raw, slope.into()))?)
            }))
        }
        _ if !B::REMOTE => None,
        "SelectV2" => Some(select()),
        "Select" => Some(select_whole()),
        // Truncating a fraction is left to the host.
        "Cast" if node.attrs.bool("Truncate")? => None,
        "Cast" => cast(node.inputs[0], node.outputs[0].dtype),
        _ => None,
    })
}

/// Kernels that distinguish NaN, infinity or sign, for GPUs.
fn careful<B: Backing>(node: &KernelNode) -> Result<Option<Body<B>>> {
    let one = match node.op {
        "LeakyRelu" => Some(UnaryFunction::LeakyRelu(node.attrs.float("alpha")?.to_bits())),
        op => UnaryFunction::of(op),
    };
    if let Some(function) = one {
        return Ok(Some(Box::new(move |site, inputs| {
            let [x] = arrays(site, inputs)?;
            done(x.map(|raw| B::one(raw, function)))
        })));
    }
    if node.op == "Pow" {
        return Ok(Some(Box::new(power)));
    }
    let two = match node.op {
        "LeakyReluGrad" => Some(BinaryFunction::LeakyReluGrad(node.attrs.float("alpha")?.to_bits())),
        op => BinaryFunction::of(op),
    };
    if let Some(function) = two {
        // A gradient has its feature's shape; nothing is broadcast.
        let same = node.op.ends_with("Grad");
        return Ok(Some(Box::new(move |site, inputs| {
            let fits = |inputs: &Values| !same || inputs[0].shape() == inputs[1].shape();
            let Some(shape) = broadcast::<B>(&inputs).filter(|_| fits(&inputs)) else {
                return Ok(EngineOutcome::Declined(inputs));
            };
            let [x, y] = arrays(site, inputs)?;
            let (x, y) = (x.lifted(shape.rank())?, y.lifted(shape.rank())?);
            let dtype = x.dtype;
            done(Array::<B> { raw: B::two(x.raw, y.raw, function), dtype, shape, home: x.home })
        })));
    }
    // With this attribute off, shapes that do not match give a result, not an error.
    let strict = node.attrs.bool("incompatible_shape_error").unwrap_or(true);
    Ok(match node.op {
        "Equal" if strict => Some(comparison(ComparisonFunction::Equal, false)),
        "NotEqual" if strict => Some(comparison(ComparisonFunction::NotEqual, false)),
        "Greater" => Some(comparison(ComparisonFunction::Greater, false)),
        "GreaterEqual" => Some(comparison(ComparisonFunction::GreaterEqual, false)),
        "Less" => Some(comparison(ComparisonFunction::Greater, true)),
        "LessEqual" => Some(comparison(ComparisonFunction::GreaterEqual, true)),
        _ => None,
    })
}

/// The kernels of ops on bools: only a GPU holds those, as results of comparisons.
pub(super) fn logical<B: Backing>(node: &KernelNode) -> Option<Body<B>> {
    let both: Binary<B> = match node.op {
        "LogicalAnd" => B::bool_and,
        "LogicalOr" => B::bool_or,
        "LogicalNot" if B::REMOTE => {
            return Some(Box::new(|site, inputs| {
                if with_host(&inputs) {
                    return Ok(EngineOutcome::Declined(inputs));
                }
                let [x] = arrays(site, inputs)?;
                done(x.map(B::bool_not))
            }));
        }
        "Cast" if B::REMOTE => return cast(node.inputs[0], node.outputs[0].dtype),
        _ => return None,
    };
    let kernel: Body<B> = Box::new(move |site, inputs| {
        if with_host(&inputs) || inputs[0].shape() != inputs[1].shape() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [x, y] = arrays(site, inputs)?;
        done(x.map(|raw| both(raw, y.raw)))
    });
    B::REMOTE.then_some(kernel)
}

/// Functions that burn computes in one pass with enough precision.
fn unary_function<B: Backing>(op: &str) -> Option<Unary<B>> {
    Some(match op {
        "Abs" => B::float_abs,
        "Neg" => B::float_neg,
        "Exp" => B::float_exp,
        "Log" => B::float_log,
        "Log1p" => B::float_log1p,
        "Sqrt" => B::float_sqrt,
        "Reciprocal" => B::float_recip,
        "Tanh" => B::float_tanh,
        "Relu" => B::relu,
        "Floor" => B::float_floor,
        "Ceil" => B::float_ceil,
        "Sin" => B::float_sin,
        "Cos" => B::float_cos,
        "Erf" => B::float_erf,
        "Square" => |x| B::float_mul(x.clone(), x),
        "Rsqrt" => |x| B::float_recip(B::float_sqrt(x)),
        // Not burn's sigmoid, which computes in f32, through a logarithm.
        "Sigmoid" => |x| B::float_recip(B::float_add_scalar(B::float_exp(B::float_neg(x)), 1f32.into())),
        _ => return None,
    })
}

/// The primitive for two tensors, for a scalar on the right, and for a scalar on the left, if there is one that
/// computes the same.
type Primitives<B> = (Binary<B>, Option<WithScalar<B>>, Option<WithScalar<B>>);

fn binary_function<B: Backing>(op: &str) -> Option<Primitives<B>> {
    match op {
        "Add" | "AddV2" => Some((B::float_add, Some(B::float_add_scalar), Some(B::float_add_scalar))),
        "Mul" => Some((B::float_mul, Some(B::float_mul_scalar), Some(B::float_mul_scalar))),
        "Sub" => Some((B::float_sub, Some(B::float_sub_scalar), Some(|x, c| B::float_add_scalar(B::float_neg(x), c)))),
        "RealDiv" => Some((B::float_div, Some(B::float_div_scalar), None)),
        "Pow" => Some((B::float_powf, None, None)),
        _ => None,
    }
}

/// The shape to which all inputs are broadcast; `None` if they do not match or it is too large: the host reports that.
pub(super) fn broadcast<B: Backing>(inputs: &Values) -> Option<Shape> {
    let (first, rest) = inputs.split_first()?;
    let shape = rest.iter().try_fold(first.shape().clone(), |shape, input| shape.broadcast(input.shape()).ok())?;
    let dtype = inputs.last()?.dtype();
    let is_taken = if inputs.iter().any(|input| *input.shape() == shape) {
        // As large as an input, for which there was memory.
        is_within::<B>(&shape, dtype)
    } else {
        fits::<B>(&shape, dtype)
    };
    is_taken.then_some(shape)
}

fn unary<B: Backing>(function: Unary<B>) -> Body<B> {
    Box::new(move |site, inputs| {
        let [x] = arrays(site, inputs)?;
        done(mapped(site, x, function)?)
    })
}

/// A function of each element, in blocks if there are many.
fn mapped<B: Backing>(site: &Site<B>, x: Array<B>, function: impl Fn(Raw<B>) -> Raw<B>) -> Result<Array<B>> {
    if !blocks::is_large::<B>(&x.shape) {
        return Ok(x.map(function));
    }
    blocks::elementwise(&site.device, x.dtype, x.shape.clone(), 0, [x], |[raw]| function(raw))
}

/// A function of the elements at each position of two arrays that are broadcast to `shape` and have its rank; in blocks
/// if there are many.
fn zipped<B: Backing>(site: &Site<B>, [x, y]: [Array<B>; 2], shape: Shape, function: Binary<B>) -> Result<Array<B>> {
    let dtype = x.dtype;
    if blocks::is_large::<B>(&shape) {
        return blocks::elementwise(&site.device, dtype, shape, 0, [x, y], |[x, y]| function(x, y));
    }
    Ok(Array { raw: function(x.raw, y.raw), dtype, shape, home: x.home })
}

fn binary<B: Backing>(tensors: Binary<B>, right: Option<WithScalar<B>>, left: Option<WithScalar<B>>) -> Body<B> {
    Box::new(move |site, inputs| {
        let Some(shape) = broadcast::<B>(&inputs) else { return Ok(EngineOutcome::Declined(inputs)) };
        // A number on the host needs no tensor, and allows the other operand to be overwritten.
        for (function, tensor, number) in [(right, 0, 1), (left, 1, 0)] {
            if let Some(function) = function
                && *inputs[tensor].shape() == shape
                && let Some(number) = host_scalar(&inputs[number])
            {
                let x = site.array(take(inputs, tensor))?;
                return done(mapped(site, x, |raw| function(raw, number.into()))?);
            }
        }
        let [x, y] = arrays(site, inputs)?;
        let both = [x.lifted(shape.rank())?, y.lifted(shape.rank())?];
        done(zipped(site, both, shape, tensors)?)
    })
}

/// A power whose exponent is a number on the host, and simple: shading languages have no power of a negative base.
fn power<B: Backing>(site: &Site<B>, inputs: Values) -> Result<EngineOutcome> {
    let is_whole = broadcast::<B>(&inputs).is_some_and(|shape| shape == *inputs[0].shape());
    let exponent = host_scalar(&inputs[1]).filter(|_| is_whole);
    let Some(function) = exponent.and_then(UnaryFunction::power) else { return Ok(EngineOutcome::Declined(inputs)) };
    let x = site.array(take(inputs, 0))?;
    done(x.map(|raw| B::one(raw, function)))
}

/// Compares the inputs in order, or swapped.
fn comparison<B: Backing>(comparison: ComparisonFunction, swapped: bool) -> Body<B> {
    Box::new(move |site, inputs| {
        let Some(shape) = broadcast::<B>(&inputs) else { return Ok(EngineOutcome::Declined(inputs)) };
        let [x, y] = arrays(site, inputs)?;
        let (x, y) = (x.lifted(shape.rank())?, y.lifted(shape.rank())?);
        let (x, y) = if swapped { (y, x) } else { (x, y) };
        let raw = B::compare(x.raw, y.raw, comparison, site.bools);
        done(Array::<B> { raw, dtype: DType::Bool, shape, home: Home::default() })
    })
}

fn add_n<B: Backing>() -> Body<B> {
    Box::new(|site, inputs| {
        if inputs.iter().any(|input| input.shape() != inputs[0].shape()) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        if blocks::is_large::<B>(inputs[0].shape()) {
            let all = inputs.into_iter().map(|input| site.array(input)).collect::<Result<Vec<_>>>()?;
            let (dtype, shape) = (all[0].dtype, all[0].shape.clone());
            let block = blocks::leading(&shape, 0);
            let sum = blocks::by_blocks::<B>(&site.device, dtype, shape, &block, &mut |ranges| {
                let mut parts = all.iter().map(|array| blocks::part(array, ranges).raw);
                let first = parts.next().expect("AddN has an input");
                Ok(parts.fold(first, |sum, next| B::float_add(sum, next)))
            });
            return done(sum?);
        }
        let mut inputs = inputs.into_iter();
        let first = inputs.next().expect("AddN has an input");
        let sum = inputs.try_fold(site.array(first)?, |sum, next| {
            let next = site.array(next)?;
            turn::look();
            Ok::<_, Failure>(sum.map(|raw| B::float_add(raw, next.raw)))
        })?;
        done(sum)
    })
}

fn bias_add<B: Backing>(channels_first: bool) -> Body<B> {
    Box::new(move |site, inputs| {
        let (shape, bias) = (inputs[0].shape().clone(), inputs[1].shape());
        let axis = if channels_first { 1 } else { shape.rank().saturating_sub(1) };
        if shape.rank() < 2 || bias.rank() != 1 || bias.dims()[0] != shape.dims()[axis] {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [x, bias] = arrays(site, inputs)?;
        let along = (0..shape.rank()).map(|i| if i == axis { shape.dims()[i] } else { 1 }).collect();
        let bias = bias.reshape(along)?;
        done(zipped(site, [x, bias], shape, B::float_add)?)
    })
}

/// SelectV2: all three broadcast.
fn select<B: Backing>() -> Body<B> {
    Box::new(|site, inputs| {
        let Some(shape) = broadcast::<B>(&inputs) else { return Ok(EngineOutcome::Declined(inputs)) };
        if inputs[0].is_empty() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        let [condition, yes, no] = arrays(site, inputs)?;
        let (condition, yes) = (condition.expand(&shape)?, yes.expand(&shape)?);
        done(no.expand(&shape)?.map(|raw| B::float_mask_where(raw, condition.raw, yes.raw)))
    })
}

/// Select: only a scalar condition is broadcast; a condition for each row is left to the host.
fn select_whole<B: Backing>() -> Body<B> {
    let mut select = select::<B>();
    Box::new(move |site, inputs| {
        let whole = inputs[0].rank() == 0 || inputs[0].shape() == inputs[1].shape();
        if !whole || inputs[1].shape() != inputs[2].shape() {
            return Ok(EngineOutcome::Declined(inputs));
        }
        select(site, inputs)
    })
}

/// Between floats, and from bool; integers are left to the host.
fn cast<B: Backing>(from: DType, to: DType) -> Option<Body<B>> {
    if !to.is_float() || !(from.is_float() || from == DType::Bool) {
        return None;
    }
    Some(Box::new(move |site, inputs| {
        if with_host(&inputs) || !is_within::<B>(inputs[0].shape(), to) {
            return Ok(EngineOutcome::Declined(inputs));
        }
        if !B::REMOTE {
            inputs[0].shape().checked_elements(to)?;
        }
        let [x] = arrays(site, inputs)?;
        let raw = if from.is_float() { B::float_cast(x.raw, float(to)) } else { B::bool_into_float(x.raw, float(to)) };
        done(Array::<B> { raw, dtype: to, ..x })
    }))
}

/// Exactly `N` inputs, in the backend's memory.
pub(super) fn arrays<B: Backing, const N: usize>(site: &Site<B>, inputs: Values) -> Result<[Array<B>; N]> {
    B::begin(&inputs);
    let mut arrays = SmallVec::<[Array<B>; N]>::new();
    for value in inputs.into_iter().take(N) {
        arrays.push(site.array(value)?);
    }
    arrays.into_inner().map_err(|_| Failure::invalid("the node has too few inputs"))
}

/// One of the inputs.
pub(super) fn take(mut inputs: Values, index: usize) -> Value {
    inputs.swap_remove(index)
}

fn with_host(inputs: &Values) -> bool {
    inputs.iter().any(|input| matches!(input, Value::Host(_)))
}
