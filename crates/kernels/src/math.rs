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
pub use select::condition_shape;
pub use zip::{map, map_to, zip, zip_to};

use super::Registry;

/// Registers the elementwise ops.
pub(super) fn register(ops: &mut Registry) {
    complex::register(ops);
    unary::register(ops);
    binary::register(ops);
    compare::register(ops);
    cast::register(ops);
    select::register(ops);
    rows::register(ops);
    packed::register(ops);
}
