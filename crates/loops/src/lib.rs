//! Loops over float32, and their distribution over the cores.
//!
//! - **Is**: `vector`, the loops, each compiled for every vector width; `chunks`, which spreads chunks of work over
//!   the `threads`, one for each core; `turn`, by which a long loop learns that its step was cancelled; `denormals`, the
//!   flush-to-zero setting of a thread.
//! - **Knows**: slices and numbers.
//! - **Never** knows a tensor, a graph, a backend or a step; never opens a file, reads a clock or fails.
//! - Compiled as one unit (`codegen-units = 1`): a loop is only as fast as the code that is inlined into it.

pub mod chunks;
pub mod denormals;
pub mod threads;
pub mod turn;
pub mod vector;
