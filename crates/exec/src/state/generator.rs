//! Random numbers of a generator whose state is a variable: its counter and its key, three int64.
//!
//! An op takes as many counts as TensorFlow does, whether or not it uses them, and draws with the kernel of the op without state.

use meshtf_engine::Value;
use meshtf_graph::{Attr, Attrs};
use meshtf_kernels::{self as kernel, Inputs, KernelNode};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use super::super::resource::Variable;
use super::op::{StateInputs, StateOp, nothing, one, simple};
use super::registry::Registry;

/// The id of the algorithm Philox in graphs.
const PHILOX: i64 = 1;
/// That of ThreeFry, which TensorFlow's kernels do not have.
const THREEFRY: i64 = 2;

/// The elements of a state: two of the counter, one of the key.
const STATE: usize = 3;

/// Counts for each number.
const COUNTS_PER_NUMBER: u64 = 256;

pub(super) fn register(ops: &mut Registry) {
    ops.insert("StatefulStandardNormal", |node, _| drawn(node, "StatelessRandomNormalV2"));
    ops.insert("StatefulStandardNormalV2", |node, _| drawn(node, "StatelessRandomNormalV2"));
    ops.insert("StatefulTruncatedNormal", |node, _| drawn(node, "StatelessTruncatedNormalV2"));
    ops.insert("StatefulUniform", |node, _| drawn(node, "StatelessRandomUniformV2"));
    ops.insert("StatefulUniformFullInt", |node, _| drawn(node, "StatelessRandomUniformFullIntV2"));
    ops.insert("StatefulUniformInt", |node, _| drawn(node, "StatelessRandomUniformIntV2"));
    ops.insert("StatefulRandomBinomial", |node, _| binomial(node));
    ops.insert_call("RngSkip", |mut inputs, _| {
        check_algorithm(&host(&mut inputs, 1)?)?;
        let delta = host(&mut inputs, 2)?;
        if delta.rank() != 0 {
            return Err(Failure::invalid(format!("delta must have shape [], not {}", delta.shape())));
        }
        let delta = delta.to_i64()? as u64;
        taken(&*inputs.variable(0)?, 0, delta)?;
        Ok(nothing())
    });
    ops.insert_call("RngReadAndSkip", |mut inputs, _| {
        check_algorithm(&host(&mut inputs, 1)?)?;
        let delta = host(&mut inputs, 2)?;
        let &[delta] = delta.slice::<u64>()? else {
            return Err(Failure::invalid(format!("delta must have shape [], not {}", delta.shape())));
        };
        let before = taken(&*inputs.variable(0)?, 0, delta)?;
        Ok(one(Tensor::vector(before.map(|word| word as i64).to_vec())))
    });
}

fn host(inputs: &mut StateInputs, index: usize) -> Result<Tensor> {
    inputs.value(index)?.into_host()
}

/// Admits the algorithm's id.
fn check_algorithm(id: &Tensor) -> Result<()> {
    if id.rank() != 0 {
        return Err(Failure::invalid(format!("algorithm must have shape [], not {}", id.shape())));
    }
    match id.to_i64()? {
        PHILOX => Ok(()),
        THREEFRY => Err(Failure::new(Code::Unimplemented, "Non-XLA devices don't support the ThreeFry algorithm.")),
        other => Err(Failure::invalid(format!("Unsupported algorithm id: {other} (1 is Philox)"))),
    }
}

/// The state after the first `skipped` elements, from which as many numbers are taken for one op.
fn taken(variable: &Variable, skipped: usize, numbers: u64) -> Result<[u64; STATE]> {
    // Held throughout, so that no two ops draw the same numbers.
    let mut content = variable.hold();
    let value = content.value.clone().ok_or_else(|| variable.uninitialized())?.into_host()?;
    if value.dtype() != DType::I64 {
        return Err(Failure::invalid(format!("dtype of RNG state variable must be int64, not {}", value.dtype())));
    }
    if value.rank() != 1 {
        let text = format!("RNG state must have one and only one dimension, not {}", value.rank());
        return Err(Failure::invalid(text));
    }
    let mut state = value.slice::<i64>()?.to_vec();
    if skipped > 0 {
        match state.first() {
            None => return Err(Failure::invalid("Size of tensor must be at least 1")),
            Some(&PHILOX) => {}
            Some(other) => return Err(Failure::invalid(format!("Unsupported algorithm id: {other} (1 is Philox)"))),
        }
    }
    let size = state.len();
    let Some(&mut [ref mut low, ref mut high, key]) = state.get_mut(skipped..skipped + STATE) else {
        let text =
            format!("For the Philox algorithm, the size of state must be at least {}; got {size}", skipped + STATE);
        return Err(Failure::invalid(text));
    };
    let before = [*low as u64, *high as u64, key as u64];
    let counts = numbers.wrapping_mul(COUNTS_PER_NUMBER);
    let (after, carries) = before[0].overflowing_add(counts);
    // TensorFlow adds 32 bits at a time, and loses the carry into an upper half that is all ones.
    let is_lost = counts >> 32 == u64::from(u32::MAX) && (after as u32) < counts as u32;
    let carry = u64::from(carries && !is_lost);
    (*low, *high) = (after as i64, before[1].wrapping_add(carry) as i64);
    content.set(Value::from(Tensor::vector(state)));
    Ok(before)
}

/// An op that draws as `op` does, which takes a shape, a key, a counter, an algorithm and perhaps bounds.
fn drawn(node: &KernelNode, op: &'static str) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    let is_oldest = node.op == "StatefulStandardNormal";
    let mut attrs = Attrs::default();
    attrs.set("dtype", Attr::Type(dtype));
    attrs.set("Tshape", Attr::Type(node.attrs.dtype("shape_dtype")?));
    let (at, skipped) = if is_oldest { (1, 1) } else { (2, 0) };
    let mut dtypes = vec![node.inputs[at], DType::U64, DType::U64, DType::I32];
    dtypes.extend(&node.inputs[at + 1..]);
    let own = KernelNode { name: node.name, op, attrs: &attrs, inputs: &dtypes, outputs: node.outputs, constants: 0 };
    let no_kernel = || Failure::new(Code::Internal, format!("{op} has no kernel"));
    let mut kernel = kernel::compile(&own)?.ok_or_else(no_kernel)?;
    simple(move |mut inputs, _| {
        let mut given: Vec<Tensor> = (1..inputs.0.len()).map(|i| host(&mut inputs, i)).collect::<Result<_>>()?;
        if !is_oldest {
            check_algorithm(&given.remove(0))?;
        }
        let mut given = given.into_iter();
        let shape = given.next().ok_or_else(|| Failure::new(Code::Internal, "the shape is missing"))?;
        let bounds: Vec<Tensor> = given.collect();
        if let [low, high] = &bounds[..]
            && low.rank() == 0
            && high.rank() == 0
            && low.to_i64()? >= high.to_i64()?
        {
            let text = format!("Need minval < maxval, got {} >= {}", low.to_i64()?, high.to_i64()?);
            return Err(Failure::invalid(text));
        }
        let numbers = numbers(&shape)?;
        let [low, high, key] = taken(&*inputs.variable(0)?, skipped, numbers)?;
        let source = [Tensor::vector(vec![key]), Tensor::vector(vec![low, high]), Tensor::scalar(PHILOX as i32)];
        let all: Inputs = [shape].into_iter().chain(source).chain(bounds).collect();
        Ok(kernel(all)?.into_iter().map(|tensor| Some(tensor.into())).collect())
    })
}

/// The number of elements of a shape; an op that draws refuses a shape that is not one.
fn numbers(shape: &Tensor) -> Result<u64> {
    let sizes = shape.to_i64s()?;
    Ok(sizes.iter().fold(1u64, |all, &size| all.saturating_mul(u64::try_from(size).unwrap_or(0))))
}

fn binomial(node: &KernelNode) -> Result<StateOp> {
    let dtype = node.attrs.dtype("dtype")?;
    simple(move |mut inputs, _| {
        let [algorithm, shape, counts, probabilities] =
            [host(&mut inputs, 1)?, host(&mut inputs, 2)?, host(&mut inputs, 3)?, host(&mut inputs, 4)?];
        check_algorithm(&algorithm)?;
        let variable = inputs.variable(0)?;
        let drawn = kernel::binomial(&shape, &counts, &probabilities, dtype, |[samples, pairs]| {
            let numbers = (pairs as u64).wrapping_mul(200).wrapping_mul(samples as u64 + 3) / 4;
            taken(&variable, 0, numbers)
        })?;
        Ok(one(drawn))
    })
}
