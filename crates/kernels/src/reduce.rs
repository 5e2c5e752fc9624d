//! Ops from many elements to few: reductions over axes, scans, segments and counts.

mod arg;
mod bins;
mod distance;
mod fold;
mod isotonic;
mod nth;
mod scan;
mod segment;

use super::Registry;
pub(crate) use segment::check_sorted;

/// Registers the reductions.
pub(super) fn register(ops: &mut Registry) {
    fold::register(ops);
    arg::register(ops);
    scan::register(ops);
    segment::register(ops);
    bins::register(ops);
    nth::register(ops);
    distance::register(ops);
    isotonic::register(ops);
}
