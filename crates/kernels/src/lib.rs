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
mod audio;
mod broadcast;
pub mod call;
pub mod checkpoint;
mod cluster;
mod ctc;
mod debug;
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
mod quantized;
mod ragged;
mod random;
mod real;
mod reduce;
mod registry;
mod scatter;
mod sets;
mod sparse;
mod text;
mod train;
pub mod trees;
pub mod update;

pub use array::{Gather, ignores_bad_indices, nd_slices};
pub use broadcast::Broadcast;
pub use example::{count as count_features, feature};
pub use math::cast;
pub use math::condition_shape;
use std::sync::LazyLock;

use meshtf_graph::{Attrs, OutputType};
use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Tensor};
pub use nn::{Padding, PoolAttrs, Slide, local_response};
pub use nn::{SELU_SCALE, SELU_SCALE_ALPHA};
pub use ragged::checked_splits;
pub use random::{Dice, DicePosition, Generators, Position, Unigrams, binomial, fixed};
use registry::Registry;
use smallvec::SmallVec;
pub use text::Histogram;
pub use text::{Event, OpenHistogram, SummaryProto, SummaryValue};
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
    /// A bit for each of the first inputs: whether every call has the same value, which a kernel may keep in a form of its own.
    pub constants: u64,
}

impl KernelNode<'_> {
    /// Whether every call has the same value of an input.
    #[inline]
    pub fn is_constant(&self, input: usize) -> bool {
        input < 64 && self.constants >> input & 1 == 1
    }
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
    OPS.compile(node, generators)
}

/// The names of the ops that have a host kernel.
pub fn ops() -> impl Iterator<Item = &'static str> {
    OPS.names()
}

static OPS: LazyLock<Registry> = LazyLock::new(|| {
    let mut ops = Registry::default();
    math::register(&mut ops);
    array::register(&mut ops);
    reduce::register(&mut ops);
    matmul::register(&mut ops);
    nn::register(&mut ops);
    quantized::register(&mut ops);
    linalg::register(&mut ops);
    fft::register(&mut ops);
    sparse::register(&mut ops);
    ragged::register(&mut ops);
    text::register(&mut ops);
    example::register(&mut ops);
    image::register(&mut ops);
    audio::register(&mut ops);
    sets::register(&mut ops);
    ctc::register(&mut ops);
    debug::register(&mut ops);
    cluster::register(&mut ops);
    checkpoint::register(&mut ops);
    random::register(&mut ops);
    legacy::register(&mut ops);
    scatter::register(&mut ops);
    train::register(&mut ops);
    trees::register(&mut ops);
    ops
});
