//! The ops on resources that last longer than a step (variables, queues, accumulators, staging areas, iterators, tables,
//! readers, files), and on values other than tensors that live as long as they flow through a step (tensor arrays, stacks,
//! lists, optionals, datasets).
//!
//! Each op is compiled once for its node, and then finds its resources through the handles that flow in.

mod accumulator;
mod arrays;
mod barrier;
mod checkpoint;
mod dataset;
mod dataset_experimental;
mod dataset_graph;
mod file_dataset;
mod files;
mod iterator;
mod list;
mod named;
mod op;
mod optional;
mod queue;
mod ragged;
mod reader;
mod remap;
mod sparse;
mod sparse_map;
mod stack;
mod staging;
mod statistics;
mod table;
mod temporary;
mod tensor_array;
mod variable;

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
pub(super) use named::Site;
pub(super) use op::{OpContext, Outcome, StateOp, answered};

/// Compiles an op that touches state; `None` for other ops.
///
/// # Errors
/// InvalidArgument if the attributes are wrong.
pub(super) fn compile(node: &KernelNode, site: &Site, engine: &dyn Engine) -> Result<Option<StateOp>> {
    for family in FAMILIES {
        if let Some(op) = family(node, site, engine)? {
            return Ok(Some(op));
        }
    }
    Ok(None)
}

/// A family's function compiles its own ops and returns `None` for all others.
type Compile = fn(&KernelNode, &Site, &dyn Engine) -> Result<Option<StateOp>>;

/// The families that have the op of a node, by their numbers.
#[cfg(test)]
pub(super) fn owners(node: &KernelNode, site: &Site, engine: &dyn Engine) -> Vec<usize> {
    let answers = FAMILIES.iter().map(|family| family(node, site, engine));
    (0..).zip(answers).filter(|(_, answer)| !matches!(answer, Ok(None))).map(|(family, _)| family).collect()
}

const FAMILIES: &[Compile] = &[
    variable::compile,
    temporary::compile,
    queue::compile,
    barrier::compile,
    accumulator::compile,
    staging::compile,
    arrays::compile,
    tensor_array::compile,
    stack::compile,
    list::compile,
    optional::compile,
    checkpoint::compile,
    dataset::compile,
    dataset_graph::compile,
    dataset_experimental::compile,
    statistics::compile,
    file_dataset::compile,
    iterator::compile,
    table::compile,
    reader::compile,
    files::compile,
    remap::compile,
    sparse::compile,
    ragged::compile,
    sparse_map::compile,
];
