//! Array ops: ops that describe, change or move elements and never compute with them.

mod block;
mod diag;
mod gather;
mod inplace;
mod join;
mod make;
mod pad;
mod partition;
mod scatter;
mod search;
mod shape;
mod slice;
mod unique;
mod view;

pub use gather::{Gather, ignores_bad_indices, nd_slices};
pub(super) use join::join;
use meshtf_tensor::failure::Result;
pub(super) use scatter::change as scatter_nd;
pub use shape::broadcast_to;
pub(super) use slice::assign as strided_slice_assign;
pub use view::View;
pub(super) use view::not_held;

use super::{Compile, HostKernel, KernelNode, first};

/// The kernel of a node whose op moves or describes elements.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes, or an attribute is invalid.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let files: &[Compile] = &[
        shape::kernel,
        slice::kernel,
        join::kernel,
        make::kernel,
        gather::kernel,
        scatter::kernel,
        pad::kernel,
        block::kernel,
        partition::kernel,
        unique::kernel,
        search::kernel,
        diag::kernel,
        inplace::kernel,
    ];
    first(files, node)
}
