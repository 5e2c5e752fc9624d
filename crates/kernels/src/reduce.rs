//! Ops from many elements to few: reductions over axes, scans, segments and counts.

mod arg;
mod bins;
mod distance;
mod fold;
mod nth;
mod scan;
mod segment;

use meshtf_tensor::failure::Result;

use super::{HostKernel, KernelNode, first};

/// The kernel of a node with a reduction op.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    first(
        &[fold::kernel, arg::kernel, scan::kernel, segment::kernel, bins::kernel, nth::kernel, distance::kernel],
        node,
    )
}
