//! Neural network ops: activations, softmax and its losses, biases, convolutions, pooling, normalization, resizing.
//!
//! Everything is computed channels-last; the tensors of a channels-first node are transposed before and after. Half
//! floats are computed in f32 and rounded once (`real`).

mod activation;
mod argmax;
mod bias;
mod cell;
mod conv;
mod depthwise;
mod fractional;
mod gemm;
mod global_norm;
mod gru;
mod layout;
mod lstm;
mod morphology;
mod norm;
mod patches;
mod pool;
mod quantize;
mod resize;
mod softmax;
mod window;

pub use self::activation::{SELU_SCALE, SELU_SCALE_ALPHA};
pub use self::norm::local_response;
pub use self::pool::PoolAttrs;
pub use self::window::{Padding, Slide};
use meshtf_tensor::failure::Result;

use super::{HostKernel, KernelNode};

type Compile = fn(&KernelNode) -> Result<Option<HostKernel>>;

/// The kernel of a node with a neural network op.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes, or if no input could be valid for the attributes.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let families: [Compile; 17] = [
        activation::kernel,
        softmax::kernel,
        bias::kernel,
        conv::kernel,
        depthwise::kernel,
        pool::kernel,
        argmax::kernel,
        patches::kernel,
        norm::kernel,
        global_norm::kernel,
        resize::kernel,
        morphology::kernel,
        fractional::kernel,
        pool::sized_kernel,
        lstm::kernel,
        gru::kernel,
        quantize::kernel,
    ];
    families.iter().find_map(|compile| compile(node).transpose()).transpose()
}
