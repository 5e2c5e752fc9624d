//! The registry of host kernels: the function that compiles the kernel of an op, by the op's name.

use std::collections::HashMap;

use meshtf_tensor::failure::Result;

use super::call::no_kernel;
use super::{Generators, HostKernel, KernelNode};

/// Compiles the kernel of a node; `None` if its op has no kernel for the dtypes.
type Compile = fn(&KernelNode) -> Result<Option<HostKernel>>;

/// As [`Compile`], of an op that draws random numbers.
type CompileDrawing = fn(&KernelNode, &Generators) -> Result<Option<HostKernel>>;

enum Entry {
    Computes(Compile),
    Draws(CompileDrawing),
}

/// The ops that have a host kernel.
#[derive(Default)]
pub(super) struct Registry(HashMap<&'static str, Entry>);

impl Registry {
    /// Adds an op.
    pub(super) fn insert(&mut self, op: &'static str, compile: Compile) {
        self.add(op, Entry::Computes(compile));
    }

    /// Adds several ops whose kernels are compiled by the same function.
    pub(super) fn insert_all<const N: usize>(&mut self, ops: [&'static str; N], compile: Compile) {
        for op in ops {
            self.insert(op, compile);
        }
    }

    /// Adds an op that draws random numbers.
    pub(super) fn insert_drawing(&mut self, op: &'static str, compile: CompileDrawing) {
        self.add(op, Entry::Draws(compile));
    }

    fn add(&mut self, op: &'static str, entry: Entry) {
        assert!(self.0.insert(op, entry).is_none(), "{op} has two kernels");
    }

    /// The names of the ops.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// Compiles the kernel of a node; `None` if its op is not registered.
    ///
    /// # Errors
    /// Those of the op, and InvalidArgument if it has no kernel for the dtypes.
    pub(super) fn compile(&self, node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
        let kernel = match self.0.get(node.op) {
            Some(Entry::Computes(compile)) => compile(node)?,
            Some(Entry::Draws(compile)) => compile(node, generators)?,
            None => return Ok(None),
        };
        kernel.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
    }
}
