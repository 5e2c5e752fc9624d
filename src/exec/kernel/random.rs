//! Random numbers, TensorFlow's own to the last bit: Philox counters, its ways from bits to numbers, its seeds.
//!
//! A stateless op's numbers follow from its inputs. A stateful node draws on from where its session's last step that
//! had it stopped; with both seeds 0 it starts anywhere, otherwise its first step's numbers follow from the seeds.

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
/// InvalidArgument where the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
    Ok(match stateful::kernel(node, generators)? {
        None => stateless::kernel(node)?,
        found => found,
    })
}
