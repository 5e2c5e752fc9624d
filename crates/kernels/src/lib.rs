//! Host kernels: the computation of each op, on host tensors, in plain Rust.
//!
//! - **Is**: a kernel for every op that computes, for every dtype of TensorFlow's CPU kernels; [`update`], the arithmetic
//!   of optimizers; [`files`], the records of files that graphs name.
//! - **Knows**: the vocabulary of ops, tensors, `meshtf-loops` for float32, checkpoints for the ops that read and write
//!   them.
//! - **Never** knows a device, a step, a resource, a backend or the network. A backend may have a second, faster kernel
//!   for an op (`meshtf-engine`); the host kernel defines the answer.
//!
//! A kernel is compiled once for a node (attributes read, dtypes known, invalid ones rejected) and then called once a
//! step.

mod array;
mod broadcast;
pub mod call;
pub mod checkpoint;
mod cluster;
mod ctc;
mod example;
mod fft;
pub mod files;
mod image;
mod legacy;
mod linalg;
mod math;
mod matmul;
mod named;
mod nn;
mod ragged;
mod random;
mod real;
mod reduce;
mod scatter;
mod sets;
mod sparse;
mod text;
mod train;
pub mod update;

pub use array::{Gather, ignores_bad_indices, nd_slices};
pub use broadcast::Broadcast;
pub use example::count as count_features;
pub use math::cast;
pub use math::condition_shape;
use meshtf_graph::{Attrs, OutputType};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
pub use nn::{Padding, PoolAttrs, Slide, local_response};
pub use nn::{SELU_SCALE, SELU_SCALE_ALPHA};
pub use ragged::checked_splits;
pub use random::{Dice, DicePosition, Generators, Unigrams, fixed};
use smallvec::SmallVec;
pub use text::Histogram;
pub use text::{OpenHistogram, SummaryProto, SummaryValue};
pub use text::{check_defaults, push_default, push_field};

/// The inputs of a kernel, which owns them: it may keep them, change them and pass them on.
pub type Inputs = SmallVec<[Tensor; 4]>;
/// The results of a kernel: one tensor for each output.
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
    /// The dtype of each input.
    pub inputs: &'a [DType],
    /// The type of each output.
    pub outputs: &'a [OutputType],
}

/// Compiles the host kernel of a node; `None` if the op has none because the executor implements it (state, control flow,
/// queues).
///
/// # Errors
/// InvalidArgument or Unimplemented if no input could be valid for these attributes or dtypes.
#[inline]
pub fn compile(node: &KernelNode) -> Result<Option<HostKernel>> {
    compile_with(node, &Generators::default())
}

/// As [`compile`], for a node whose random numbers, if it draws any, continue where other parts of its session stopped.
///
/// # Errors
/// As [`compile`].
#[inline]
pub fn compile_with(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    match first(FAMILIES, node)? {
        None => random::kernel(node, generators),
        found => Ok(found),
    }
}

/// A family's function compiles the ops of that family and returns `None` for any other op.
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

/// The numbers of the families that have the op of a node: one, or none if the op has no host kernel.
#[inline]
pub fn owners(node: &KernelNode) -> Vec<usize> {
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
    legacy::kernel,
];
