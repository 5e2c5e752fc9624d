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
mod fused_pad;
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
pub(super) use self::pool::max_pool_kernel;
pub(super) use self::resize::{Between, Centers, sizes as image_sizes};
pub use self::window::{Padding, Slide};

use super::Registry;

/// Registers the ops of neural networks.
pub(super) fn register(ops: &mut Registry) {
    activation::register(ops);
    softmax::register(ops);
    bias::register(ops);
    conv::register(ops);
    depthwise::register(ops);
    pool::register(ops);
    argmax::register(ops);
    patches::register(ops);
    norm::register(ops);
    global_norm::register(ops);
    resize::register(ops);
    morphology::register(ops);
    fractional::register(ops);
    fused_pad::register(ops);
    lstm::register(ops);
    gru::register(ops);
    quantize::register(ops);
}
