//! The registry of ops: the function that compiles the kernel of an op, or its update of variables, by the op's name.

use std::collections::HashMap;

use meshtf_tensor::failure::Result;

use super::call::no_kernel;
use super::files::Folder;
use super::update::Update;
use super::{Generators, HostKernel, KernelNode};

/// Compiles the kernel of a node; `None` if its op has no kernel for the dtypes.
type Compile = fn(&KernelNode) -> Result<Option<HostKernel>>;

/// As [`Compile`], of an op that draws random numbers.
type CompileDrawing = fn(&KernelNode, &Generators) -> Result<Option<HostKernel>>;

/// Compiles the update of a node; `None` if its op has none for the dtypes.
type CompileUpdate = fn(&KernelNode) -> Result<Option<Update>>;

/// Compiles the kernel of a node whose op saves or restores, below a folder.
type CompileOnDisk = fn(&KernelNode, Folder) -> Result<HostKernel>;

enum Entry {
    Computes(Compile),
    Draws(CompileDrawing),
    Updates(CompileUpdate),
    OnDisk(CompileOnDisk),
}

/// The ops of this crate.
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

    /// Adds ops that change variables by the same update: those that take references and those that take resources.
    pub(super) fn insert_update<const N: usize>(&mut self, ops: [&'static str; N], compile: CompileUpdate) {
        for op in ops {
            self.add(op, Entry::Updates(compile));
        }
    }

    /// Adds an op that saves or restores.
    pub(super) fn insert_on_disk(&mut self, op: &'static str, compile: CompileOnDisk) {
        self.add(op, Entry::OnDisk(compile));
    }

    fn add(&mut self, op: &'static str, entry: Entry) {
        assert!(self.0.insert(op, entry).is_none(), "{op} is registered twice");
    }

    /// The names of the ops that have a host kernel.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.named(|entry| matches!(entry, Entry::Computes(_) | Entry::Draws(_)))
    }

    /// The names of the ops that change variables.
    pub(super) fn updates(&self) -> impl Iterator<Item = &'static str> {
        self.named(|entry| matches!(entry, Entry::Updates(_)))
    }

    /// The names of the ops that save or restore.
    pub(super) fn on_disk(&self) -> impl Iterator<Item = &'static str> {
        self.named(|entry| matches!(entry, Entry::OnDisk(_)))
    }

    fn named(&self, is_wanted: fn(&Entry) -> bool) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(move |(_, entry)| is_wanted(entry)).map(|(&name, _)| name)
    }

    /// Compiles the kernel of a node; `None` if its op has no host kernel.
    ///
    /// # Errors
    /// Those of the op, and InvalidArgument if it has no kernel for the dtypes.
    pub(super) fn compile(&self, node: &KernelNode, generators: &Generators) -> Result<Option<HostKernel>> {
        let kernel = match self.0.get(node.op) {
            Some(Entry::Computes(compile)) => compile(node)?,
            Some(Entry::Draws(compile)) => compile(node, generators)?,
            Some(Entry::Updates(_) | Entry::OnDisk(_)) | None => return Ok(None),
        };
        kernel.map_or_else(|| no_kernel(node), |kernel| Ok(Some(kernel)))
    }

    /// Compiles the update of a node; `None` if its op is not an update.
    ///
    /// # Errors
    /// Those of the op, and InvalidArgument if it has no update for the dtypes.
    pub(super) fn compile_update(&self, node: &KernelNode) -> Result<Option<Update>> {
        let Some(Entry::Updates(compile)) = self.0.get(node.op) else { return Ok(None) };
        compile(node)?.map_or_else(|| no_kernel(node), |update| Ok(Some(update)))
    }

    /// Compiles the kernel of a node whose op saves or restores; `None` for any other op.
    ///
    /// # Errors
    /// Those of the op.
    pub(super) fn compile_on_disk(&self, node: &KernelNode, folder: Folder) -> Result<Option<HostKernel>> {
        let Some(Entry::OnDisk(compile)) = self.0.get(node.op) else { return Ok(None) };
        compile(node, folder).map(Some)
    }
}
