//! Shapes and places: ops that say, change or rearrange where elements are, and never compute with them.

pub mod join;
mod make;
mod shape;
mod slice;
mod view;

pub use view::View;

use super::{HostKernel, KernelNode};
use crate::failure::Result;

/// The kernel of a node whose op moves or describes elements.
///
/// # Errors
/// InvalidArgument where the op has no kernel for the dtypes, or an attribute has no meaning.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    let files: [fn(&KernelNode) -> Result<Option<HostKernel>>; 4] =
        [shape::kernel, slice::kernel, join::kernel, make::kernel];
    for file in files {
        if let Some(kernel) = file(node)? {
            return Ok(Some(kernel));
        }
    }
    Ok(None)
}
