//! Elementwise ops: arithmetic, comparison, logic, bits, casts and selection.
//!
//! An op is registered with its formulas, each for a class of element types. The loop over the elements exists once for each
//! number of operands, in `zip`.

#[macro_use]
mod formula;
mod bessel;
mod binary;
mod cast;
mod compare;
mod complex;
mod gamma;
mod integral;
mod packed;
mod rows;
mod select;
mod special;
mod unary;
mod zip;

pub use cast::{cast, wide, widened};
pub(super) use complex::{ONE, Pair, conjugate_gradient};
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
