//! Ops on quantised numbers: integers that stand for real numbers, by the ends of a range (`Quantized…`) or by a scale and a zero
//! point (`Uniform…`).
//!
//! Fake quantisation, whose numbers stay floats, is in `nn/quantize.rs`.

mod elementwise;
mod image;
mod norm;
mod product;
mod quantize;
mod range;
mod scale;
mod uniform;
mod uniform_conv;
mod uniform_product;

use meshtf_loops::turn::{Pace, blocks};
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::{DType, Tensor};
use scale::Range;
use smallvec::smallvec;

use super::call::product;
use super::{KernelNode, Outputs, Registry};

/// Registers the ops on quantised numbers.
pub(super) fn register(ops: &mut Registry) {
    quantize::register(ops);
    range::register(ops);
    product::register(ops);
    elementwise::register(ops);
    image::register(ops);
    norm::register(ops);
    uniform::register(ops);
    uniform_product::register(ops);
    uniform_conv::register(ops);
}

/// Whether a node's first inputs, and its first output, have these dtypes.
fn is_of(node: &KernelNode, inputs: &[DType], output: DType) -> bool {
    node.inputs.starts_with(inputs) && node.outputs.first().is_some_and(|own| own.dtype == output)
}

/// The float32 of an input that must be a scalar.
fn scalar(tensor: &Tensor, name: &str) -> Result<f32> {
    match tensor.rank() {
        0 => tensor.item::<f32>(),
        _ => Err(Failure::invalid(format!("{name} must be a scalar, but got shape {}", tensor.shape()))),
    }
}

/// The element of an input that has one, whatever its rank.
fn one(tensor: &Tensor, name: &str) -> Result<f32> {
    match tensor.len() {
        1 => tensor.clone().reshaped([]).and_then(|one| scalar(&one, name)),
        _ => Err(Failure::invalid(format!("{name} must be a scalar, but got shape {}", tensor.shape()))),
    }
}

/// The range of an input, of which both ends are inputs, too.
fn range(min: &Tensor, max: &Tensor, names: [&str; 2]) -> Result<Range> {
    Ok(Range { min: scalar(min, names[0])?, max: scalar(max, names[1])? })
}

/// As [`range`], for ops that refuse a range without numbers between its ends.
fn wide_range(min: &Tensor, max: &Tensor, names: [&str; 2]) -> Result<Range> {
    let range = range(min, max, names)?;
    match range.max > range.min {
        true => Ok(range),
        false => Err(Failure::invalid(format!("{} must be larger than {}.", names[1], names[0]))),
    }
}

/// The output of a kernel that has one.
fn only(outputs: Outputs) -> Result<Tensor> {
    outputs.into_iter().next().ok_or_else(|| Failure::invalid("an output is missing"))
}

/// The outputs of an op: numbers and their range.
fn with_range(numbers: Tensor, range: Range) -> Outputs {
    smallvec![numbers, Tensor::scalar(range.min), Tensor::scalar(range.max)]
}

/// The channels along an axis of a tensor: each run of `inner` elements belongs to the next one of `depth` channels.
#[derive(Clone, Copy)]
struct Channels {
    depth: usize,
    inner: usize,
}

impl Channels {
    /// The channels along an axis; a single one without.
    fn along(axis: Option<usize>, dims: &[usize]) -> Channels {
        match axis {
            Some(axis) => Channels { depth: dims[axis], inner: product(&dims[axis + 1..]) },
            None => Channels { depth: 1, inner: product(dims) },
        }
    }

    /// Applies `f` to each element and the number of its channel.
    fn mapped<A: Copy, B>(self, from: &[A], f: impl Fn(usize, A) -> B) -> Vec<B> {
        let mut to = Vec::with_capacity(from.len());
        let mut pace = Pace::new();
        for (i, run) in from.chunks(self.inner.max(1)).enumerate() {
            let channel = i % self.depth.max(1);
            pace.go(8 + run.len());
            for block in blocks(run) {
                to.extend(block.iter().map(|&x| f(channel, x)));
            }
        }
        to
    }
}
