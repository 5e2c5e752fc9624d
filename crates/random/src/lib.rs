//! Random numbers, identical to TensorFlow's to the last bit.
//!
//! - **Is**: `philox`, random bits by key and counter; `distribution`, the floats of a distribution; `integers`, those of a
//!   range.
//! - **Knows**: tensors, and the loops that fill them.
//! - **Never** knows a graph or a step; never keeps a position. The ops, and the positions of stateful nodes, are in the host
//!   kernels.
//! - Compiled as one unit (`codegen-units = 1`): the bits of many counts, and the numbers made of them, are one loop only if all
//!   of it is inlined.

mod distribution;
mod integers;
mod philox;

pub use self::distribution::{DRAW, Distribution, normal2_f64, uniform_f32, uniform_f64};
pub use self::integers::{between, of_all};
pub use self::philox::{Bits, Philox, Words};
