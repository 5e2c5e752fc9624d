//! burn's operations as nodes of a graph: a burn program, in the vocabulary that meshtf plans and runs.
//!
//! - **Is**: one rule for each operation of burn's intermediate representation.
//! - **Knows**: `burn-ir`, graphs and tensors.
//! - **Never** runs anything or infers a shape: shapes are concrete in burn, and every output has one.
//!
//! A burn program that runs on a remote device, or is captured, is a list of [`OperationIr`]. Each becomes one node, or a few.
//!
//! | file | operations |
//! |---|---|
//! | `base` | of tensors of any kind: reshape, slice, gather, scatter, masks |
//! | `numeric` | of numbers: arithmetic, comparisons, reductions, sorting |
//! | `float`, `int`, `boolean` | of one kind alone |
//! | `activation` | relu, gelu, softmax and their gradients |
//! | `module`, `module/*` | layers: linear, convolutions, pools, normalisation, attention, interpolation |
//! | `signal` | burn-signal's Fourier transforms, which come as custom operations |
//! | `random` | random tensors |
//! | `compose` | the helpers from which the rules are composed |
//! | `values` | the tensors and scalars of a program as inputs of nodes |

mod activation;
mod base;
mod boolean;
mod compose;
mod float;
mod int;
mod module;
mod numeric;
mod random;
mod signal;
mod values;

use std::collections::HashMap;

use burn_ir::{FloatOperationIr, NumericOperationIr, OperationIr, ScalarIr, TensorId};
use meshtf_graph::{GraphBuilder, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};
use module::Pooled;
pub use values::name;
pub use values::{data, dtype, scalar_tensor, tensor};

/// Adds nodes for burn operations to a graph, one operation after another.
///
/// An operation reads tensors that were [bound](Lowering::bind) or that an earlier operation made.
#[derive(Debug)]
pub struct Lowering<'g> {
    graph: &'g mut GraphBuilder,
    /// The output that holds each tensor.
    values: HashMap<TensorId, Output>,
    scalars: Scalars<'g>,
    fed: Vec<Fed>,
    /// The placeholders in `fed`, in the same order.
    placeholders: Vec<Output>,
    /// The number of operations so far that draw random numbers.
    random: usize,
    /// Max pools, by the tensor of their indices.
    pooled: HashMap<TensorId, Pooled>,
}

/// The meaning of the operations' scalars.
#[derive(Clone, Copy, Debug)]
pub enum Scalars<'a> {
    /// Their values: each becomes a constant.
    Constant,
    /// Indices into this list: `ScalarIr::UInt(index)`. A `None` in the list is fed with every step.
    Listed(&'a [Option<ScalarIr>]),
}

/// A scalar whose value is not known before a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    Known(ScalarIr),
    Fed(usize),
}

/// A placeholder that a lowering added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fed {
    /// The name by which a step feeds it.
    pub name: String,
    /// The dtype of the value that it takes.
    pub dtype: DType,
    /// The value itself.
    pub what: FedValue,
}

/// The value that a placeholder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FedValue {
    /// The scalar at this index of the list, in the placeholder's dtype; shape [].
    Scalar(usize),
    /// The seed of the n-th operation that draws random numbers, counted from 0; int64, shape \[2\].
    Seed(usize),
}

impl<'g> Lowering<'g> {
    /// Starts to lower into a graph.
    pub fn new(graph: &'g mut GraphBuilder, scalars: Scalars<'g>) -> Self {
        Lowering {
            graph,
            values: HashMap::new(),
            scalars,
            fed: Vec::new(),
            placeholders: Vec::new(),
            random: 0,
            pooled: HashMap::new(),
        }
    }

    /// Sets the output that holds a tensor which no operation makes.
    pub fn bind(&mut self, id: TensorId, value: Output) {
        self.values.insert(id, value);
    }

    /// The output that holds a tensor, if it was bound or made.
    pub fn value(&self, id: TensorId) -> Option<Output> {
        self.values.get(&id).copied()
    }

    /// The graph, for nodes that the caller adds between operations.
    pub fn graph(&mut self) -> &mut GraphBuilder {
        self.graph
    }

    /// Requests a device for the nodes of the operations that follow.
    ///
    /// # Errors
    /// InvalidArgument if `device` is not a device string.
    pub fn on_device(&mut self, device: &str) -> Result<()> {
        self.graph.set_device(device)
    }

    /// The placeholders that each step is to feed, in the order in which they were added.
    pub fn fed(&self) -> &[Fed] {
        &self.fed
    }

    /// Adds the nodes of an operation.
    ///
    /// `Init` and `Drop` add nothing, and neither do collectives, which are between the sessions of a program.
    ///
    /// # Errors
    /// Unimplemented, with the operation's name, if there is no op for it or for its arguments; InvalidArgument if it reads a
    /// tensor that does not exist, or its arguments contradict each other.
    pub fn operation(&mut self, operation: &OperationIr) -> Result<()> {
        self.random += usize::from(draws_random(operation));
        match operation {
            OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => self.base(op),
            OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => self.numeric(op),
            OperationIr::Float(_, op) => self.float(op),
            OperationIr::Int(op) => self.int(op),
            OperationIr::Bool(op) => self.boolean(op),
            OperationIr::Activation(op) => self.activation(op),
            OperationIr::Module(op) => self.module(op),
            OperationIr::Init(_) | OperationIr::Drop(_) => Ok(()),
            OperationIr::Distributed(_) => Err(refused("Distributed", "it involves several devices of one program")),
            OperationIr::Custom(op) => self.custom(op),
        }
        .map_err(|failure| named(failure, operation))
    }
}

/// Whether an operation draws random numbers, and so takes a seed.
pub fn draws_random(operation: &OperationIr) -> bool {
    matches!(
        operation,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}

/// Whether an operation's scalars are numbers to compute with, which may be fed. Those of a custom one may be dims and
/// lengths, which determine the computation.
pub fn computes_with_scalars(operation: &OperationIr) -> bool {
    !matches!(operation, OperationIr::Custom(_))
}

/// The failure for an operation without an op, or without one for these arguments.
pub fn refused(operation: &str, why: &str) -> Failure {
    Failure::new(Code::Unimplemented, format!("burn's operation {operation} does not run on the mesh: {why}"))
}

/// A failure with the name of the operation that caused it.
fn named(failure: Failure, operation: &OperationIr) -> Failure {
    let name = name(operation);
    if failure.message.contains(&name) {
        return failure;
    }
    Failure { message: format!("burn's operation {name}: {}", failure.message), ..failure }
}
