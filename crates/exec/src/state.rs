//! The ops on resources that last longer than a step (variables, queues, accumulators, staging areas, iterators, tables,
//! readers, files, ensembles of trees), and on values other than tensors that live as long as they flow through a step (tensor
//! arrays, stacks, lists, optionals, datasets).
//!
//! Each file registers its ops by name. An op is compiled once for its node, and then finds its resources through the handles
//! that flow in.

mod accumulator;
mod arrays;
mod barrier;
mod batch;
mod checkpoint;
mod dataset;
mod dataset_experimental;
mod dataset_graph;
mod dataset_rare;
mod file_dataset;
mod files;
mod generator;
mod iterator;
mod list;
mod map;
mod multi_iterator;
mod mutex;
mod named;
mod op;
mod optional;
mod python;
mod quantile_streams;
mod queue;
mod ragged;
mod reader;
mod record_input;
mod reference;
mod registry;
mod remap;
mod session;
mod sparse;
mod sparse_map;
mod stack;
mod staging;
mod statistics;
mod summary;
mod table;
mod temporary;
mod tensor_array;
mod trees;
mod variable;

use std::sync::LazyLock;

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
pub(super) use named::Site;
pub(super) use op::{OpContext, Outcome, StateOp};
pub(super) use optional::constant;
use registry::Registry;

/// Compiles an op that touches state; `None` for other ops.
///
/// # Errors
/// InvalidArgument if the attributes are wrong.
pub(super) fn compile(node: &KernelNode, site: &Site, engine: &dyn Engine) -> Result<Option<StateOp>> {
    OPS.compile(node, site, engine)
}

/// The names of the ops.
#[cfg(test)]
pub(super) fn ops() -> impl Iterator<Item = &'static str> {
    OPS.names()
}

static OPS: LazyLock<Registry> = LazyLock::new(|| {
    let mut ops = Registry::default();
    variable::register(&mut ops);
    temporary::register(&mut ops);
    queue::register(&mut ops);
    mutex::register(&mut ops);
    barrier::register(&mut ops);
    batch::register(&mut ops);
    accumulator::register(&mut ops);
    staging::register(&mut ops);
    arrays::register(&mut ops);
    tensor_array::register(&mut ops);
    stack::register(&mut ops);
    list::register(&mut ops);
    map::register(&mut ops);
    optional::register(&mut ops);
    checkpoint::register(&mut ops);
    dataset::register(&mut ops);
    dataset_graph::register(&mut ops);
    dataset_rare::register(&mut ops);
    dataset_experimental::register(&mut ops);
    statistics::register(&mut ops);
    file_dataset::register(&mut ops);
    python::register(&mut ops);
    iterator::register(&mut ops);
    multi_iterator::register(&mut ops);
    table::register(&mut ops);
    reader::register(&mut ops);
    record_input::register(&mut ops);
    files::register(&mut ops);
    session::register(&mut ops);
    summary::register(&mut ops);
    reference::register(&mut ops);
    remap::register(&mut ops);
    generator::register(&mut ops);
    sparse::register(&mut ops);
    ragged::register(&mut ops);
    sparse_map::register(&mut ops);
    trees::register(&mut ops);
    quantile_streams::register(&mut ops);
    ops
});
