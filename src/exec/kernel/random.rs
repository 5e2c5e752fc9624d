//! Random numbers, the same as TensorFlow's to the last bit: Philox counters, conversions from bits, seeds.
//!
//! A stateless op's numbers follow from its inputs. A stateful node continues from where the last step of its session
//! that ran it stopped. With both seeds 0 it starts at random, otherwise its first numbers follow from the seeds.

mod distribution;
mod philox;
mod stateful;
mod stateless;

pub use self::stateful::{Dice, Generators};
use super::{HostKernel, KernelNode};
use crate::failure::Result;

/// The kernel of a node whose op draws random numbers.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    Ok(match stateful::kernel(node, generators)? {
        None => stateless::kernel(node)?,
        found => found,
    })
}
