//! The registry of the ops on state: the function that compiles an op, by the op's name.

use std::collections::HashMap;

use meshtf_engine::Engine;
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;

use super::super::token::Tokens;
use super::named::Site;
use super::op::{OpContext, StateInputs, StateOp, simple};

type Compile = Box<dyn Fn(&KernelNode, &Site, &dyn Engine) -> Result<StateOp> + Send + Sync>;

struct Entry {
    /// Whether a node of the op is an op on state. If not, it has a host kernel.
    is_own: fn(&KernelNode) -> Result<bool>,
    compile: Compile,
}

/// The ops on state.
#[derive(Default)]
pub(super) struct Registry(HashMap<&'static str, Entry>);

impl Registry {
    /// Adds an op.
    pub fn insert(
        &mut self,
        op: &'static str,
        compile: impl Fn(&KernelNode, &Site) -> Result<StateOp> + Send + Sync + 'static,
    ) {
        self.insert_on_engine(op, move |node, site, _| compile(node, site));
    }

    /// Adds several ops that are compiled by the same function.
    pub fn insert_all<const N: usize>(
        &mut self,
        ops: [&'static str; N],
        compile: impl Fn(&KernelNode, &Site) -> Result<StateOp> + Copy + Send + Sync + 'static,
    ) {
        for op in ops {
            self.insert(op, compile);
        }
    }

    /// Adds an op that takes all its inputs, never waits, and does the same in every node.
    pub fn insert_call(
        &mut self,
        op: &'static str,
        call: impl Fn(StateInputs, &mut OpContext) -> Result<Tokens> + Copy + Send + Sync + 'static,
    ) {
        self.insert(op, move |_, _| simple(call));
    }

    /// Adds an op that the engine may compute.
    pub fn insert_on_engine(
        &mut self,
        op: &'static str,
        compile: impl Fn(&KernelNode, &Site, &dyn Engine) -> Result<StateOp> + Send + Sync + 'static,
    ) {
        self.add(op, Entry { is_own: |_| Ok(true), compile: Box::new(compile) });
    }

    /// Adds an op that has a host kernel as well, which computes the nodes for which `is_own` is false.
    pub fn insert_if(
        &mut self,
        is_own: fn(&KernelNode) -> Result<bool>,
        op: &'static str,
        compile: impl Fn(&KernelNode, &Site) -> Result<StateOp> + Send + Sync + 'static,
    ) {
        self.add(op, Entry { is_own, compile: Box::new(move |node, site, _| compile(node, site)) });
    }

    fn add(&mut self, op: &'static str, entry: Entry) {
        assert!(self.0.insert(op, entry).is_none(), "{op} is registered twice");
    }

    /// The names of the ops.
    #[cfg(test)]
    pub fn names(&self) -> impl std::iter::Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// Compiles the op of a node; `None` if the node is not an op on state.
    ///
    /// # Errors
    /// Those of the op.
    pub fn compile(&self, node: &KernelNode, site: &Site, engine: &dyn Engine) -> Result<Option<StateOp>> {
        match self.0.get(node.op) {
            Some(entry) if (entry.is_own)(node)? => (entry.compile)(node, site, engine).map(Some),
            _ => Ok(None),
        }
    }
}
