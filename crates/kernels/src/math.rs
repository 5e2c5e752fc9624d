//! Elementwise ops: arithmetic, comparison, logic, bits, casts and selection.
//!
//! Each op is one row of a table in a function generic over the element type. The loop over the elements exists once for
//! each number of operands, in `zip`.

mod binary;
mod cast;
mod compare;
mod complex;
mod gamma;
mod packed;
mod rows;
mod select;
mod special;
mod unary;
mod zip;

pub use cast::{cast, wide, widened};
pub(super) use complex::{Pair, binary as complex_binary};
use meshtf_tensor::failure::Result;
pub use select::condition_shape;
pub use zip::{map, map_to, zip, zip_to};

use super::{HostKernel, KernelNode, first};

/// The kernel of a node whose op is elementwise.
///
/// # Errors
/// InvalidArgument if the op has no kernel for the dtypes.
pub fn kernel(node: &KernelNode) -> Result<Option<HostKernel>> {
    first(
        &[
            complex::kernel,
            unary::kernel,
            binary::kernel,
            compare::kernel,
            cast::kernel,
            select::kernel,
            rows::kernel,
            packed::kernel,
        ],
        node,
    )
}
