//! Random numbers, identical to TensorFlow's to the last bit: Philox counters, conversions from bits, seeds.
//!
//! A stateless op's numbers follow from its inputs. A stateful node continues where it stopped in the last step of its
//! session that ran it. With both seeds 0 its first position is random, otherwise it follows from the seeds.

mod candidates;
mod distribution;
mod philox;
mod rejection;
mod simple;
mod stateful;
mod stateless;
mod unigrams;

pub use self::candidates::fixed;
pub use self::simple::Simple;
pub use self::stateful::{Dice, DicePosition, Generators};
pub use self::unigrams::Unigrams;
use meshtf_tensor::failure::Result;

use super::{HostKernel, KernelNode};

/// The kernel of a node whose op draws random numbers.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    for family in [stateful::kernel, candidates::kernel, rejection::kernel] {
        if let Some(kernel) = family(node, generators)? {
            return Ok(Some(kernel));
        }
    }
    stateless::kernel(node)
}
