//! Array ops: ops that describe, change or move elements and never compute with them.

mod approximate;
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
pub(super) use join::{concat, join};
pub use shape::broadcast_to;
pub(super) use shape::reshape;
pub use view::View;
pub(super) use view::not_held;

use super::Registry;

/// Registers the ops on shapes and positions.
pub(super) fn register(ops: &mut Registry) {
    shape::register(ops);
    slice::register(ops);
    join::register(ops);
    make::register(ops);
    gather::register(ops);
    scatter::register(ops);
    pad::register(ops);
    block::register(ops);
    partition::register(ops);
    unique::register(ops);
    search::register(ops);
    approximate::register(ops);
    diag::register(ops);
    inplace::register(ops);
}
