//! The Python module `meshtf._native`, below the package in `crates/python/meshtf`.
//!
//! - **Is**: meshtf's public interface as Python classes: meshes, clusters in this process, graphs, sessions, models, trainings.
//! - **Knows** `meshtf`, the data of `meshtf-train`, and Python's stable interface. Of numpy it knows
//!   `__array_interface__` and two functions.
//! - **Never** holds Python's lock while it waits, and never lets a panic or an error reach Python as anything but an exception.
//!
//! Default values, nested fetches and numpy's functions on tensors of a graph are written in Python.

mod array;
mod builder;
mod client;
mod convert;
mod error;
mod examples;
mod graph;
mod growth;
mod runtime;
mod session;
mod steps;
mod train;

use pyo3::prelude::*;

/// That of the command: it keeps the memory of large arrays for the next ones.
#[global_allocator]
static ALLOCATOR: meshtf::Allocator = meshtf::Allocator;

/// The part of meshtf that is written in Rust.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::builder::{Builder, Value};
    #[pymodule_export]
    use crate::client::{Client, join, local};
    #[pymodule_export]
    use crate::graph::{Graph, load, read};
    #[pymodule_export]
    use crate::session::{Pending, Session};
    #[pymodule_export]
    use crate::steps::Steps;
    #[pymodule_export]
    use crate::train::train;

    /// The version of meshtf.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
