//! Loops over float32, and the cores that share them.
//!
//! - **Is**: `vector`, the loops, each compiled for every width of processor; `lots`, which spreads work over the cores;
//!   `turn`, by which a long loop hears that its step was given up; `denormals`, the setting of the threads.
//! - **Knows**: slices and numbers.
//! - **Never** knows a tensor, a graph, a backend or a step; never opens a file, reads a clock or fails.
//! - Compiled as one unit (`codegen-units = 1`): a loop is only as fast as what is inlined into it.

pub mod denormals;
pub mod lots;
pub mod turn;
pub mod vector;
