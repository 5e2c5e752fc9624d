//! Host kernels: what each op type computes, on host tensors, in plain Rust.
//!
//! A kernel is compiled once for a node (attributes read, dtypes known, bad ones refused) and then called once a step.
//! These kernels take every dtype that TensorFlow's CPU kernels take. If a burn backend is faster, `exec::burn` has
//! a second kernel for the same op, and the device prefers that. Nothing here knows a device, a step or the network.

mod array;
mod broadcast;
pub(in crate::exec) mod call;
pub mod checkpoint;
mod cluster;
mod ctc;
mod example;
mod fft;
mod image;
mod linalg;
mod math;
mod matmul;
mod named;
mod nn;
mod older;
mod ragged;
mod random;
mod real;
mod reduce;
mod scatter;
mod sets;
mod sparse;
#[cfg(test)]
pub(super) mod tests;
mod text;
mod train;
pub mod update;

#[cfg(feature = "exec")]
pub(in crate::exec) use array::{Gather, ignores_bad_indices, nd_slices};
#[cfg(feature = "exec")]
pub(in crate::exec) use broadcast::Broadcast;
#[cfg(test)]
pub use image::CODED;
pub use math::cast;
#[cfg(feature = "exec")]
pub(in crate::exec) use math::condition_shape;
#[cfg(feature = "exec")]
pub(in crate::exec) use nn::{Padding, PoolAttrs, Slide, local_response};
#[cfg(feature = "wgpu")]
pub(in crate::exec) use nn::{SELU_SCALE, SELU_SCALE_ALPHA};
pub use ragged::checked_splits;
pub use random::{Dice, Generators, Unigrams, fixed};

pub(in crate::exec) use example::count as count_features;
use smallvec::SmallVec;
#[cfg(feature = "node")]
pub(crate) use text::Histogram;
pub(crate) use text::{OpenHistogram, SummaryProto, SummaryValue};
pub(in crate::exec) use text::{check_defaults, push_default, push_field};

use crate::failure::Result;
use crate::graph::{Attrs, OutputType};
use crate::tensor::{DType, Tensor};

/// What a kernel is given: its inputs, its own to keep, change and hand on.
pub type Inputs = SmallVec<[Tensor; 4]>;
/// What a kernel returns: one tensor for each output.
pub type Outputs = SmallVec<[Tensor; 1]>;

/// A kernel compiled for one node.
pub type HostKernel = Box<dyn FnMut(Inputs) -> Result<Outputs> + Send>;

/// The node that a kernel is compiled for.
pub struct KernelNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its op.
    pub op: &'a str,
    /// Its attributes, complete.
    pub attrs: &'a Attrs,
    /// dtype of each input.
    pub inputs: &'a [DType],
    /// The type of each output.
    pub outputs: &'a [OutputType],
}

/// Compiles the host kernel of a node; `None` if the op has none (it is one of the executor's own: state, control
/// flow, queues).
///
/// # Errors
/// InvalidArgument or Unimplemented if the attributes or dtypes are such that no input could be right.
pub fn compile(node: &KernelNode) -> Result<Option<HostKernel>> {
    compile_with(node, &Generators::default())
}

/// As [`compile`], for a node whose random numbers, if it draws any, go on where other pieces of its session left them.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    match first(FAMILIES, node)? {
        None => random::kernel(node, generators),
        found => Ok(found),
    }
}

/// A family's function compiles the ops that are its own and returns `None` for all others.
type Compile = fn(&KernelNode) -> Result<Option<HostKernel>>;

/// The kernel from the first family that has the op.
fn first(families: &[Compile], node: &KernelNode) -> Result<Option<HostKernel>> {
    for compile in families {
        if let Some(kernel) = compile(node)? {
            return Ok(Some(kernel));
        }
    }
    Ok(None)
}

/// The families that have the op of a node, by their numbers.
#[cfg(test)]
pub(super) fn owners(node: &KernelNode) -> Vec<usize> {
    let mut answers: Vec<_> = FAMILIES.iter().map(|family| family(node)).collect();
    answers.push(random::kernel(node, &Generators::default()));
    (0..).zip(answers).filter(|(_, answer)| !matches!(answer, Ok(None))).map(|(family, _)| family).collect()
}

const FAMILIES: &[Compile] = &[
    math::kernel,
    array::kernel,
    reduce::kernel,
    matmul::kernel,
    nn::kernel,
    linalg::kernel,
    fft::kernel,
    sparse::kernel,
    ragged::kernel,
    text::kernel,
    example::kernel,
    image::kernel,
    sets::kernel,
    ctc::kernel,
    cluster::kernel,
    checkpoint::kernel,
    older::kernel,
];
