//! Intermediate checks of a builder, for code that adds to an existing graph, as gradients and training do: the nodes so far
//! become a checked graph, and more can follow.

use std::collections::HashSet;

use meshtf_tensor::device::DeviceSpec;
use meshtf_tensor::failure::Result;

use super::GraphBuilder;
use crate::{Graph, GraphError, NodeDef, Output};

impl GraphBuilder {
    /// Checks and links the nodes that were added so far; the builder extends that graph from then on. Ids stay unchanged.
    ///
    /// # Errors
    /// As [`Graph::new`]; the builder is then unchanged.
    pub fn settle(&mut self) -> Result<()> {
        if !self.nodes.is_empty() {
            self.base.extend(self.nodes.clone())?;
            self.nodes.clear();
        }
        Ok(())
    }

    /// Removes the nodes from the `len`th on, as if they had not been added: their names, and those of their scopes, are free.
    pub fn take_back_to(&mut self, len: usize) {
        let mut gone: Vec<String> = self.base.truncate(len);
        let kept = len.saturating_sub(self.base.len()).min(self.nodes.len());
        gone.extend(self.nodes.drain(kept..).map(|node| node.name));
        let mut free: HashSet<&str> = gone.iter().flat_map(|name| scopes(name)).collect();
        let rest = self.base.nodes().map(|(_, node)| &node.name).chain(self.nodes.iter().map(|node| &node.name));
        for name in rest {
            scopes(name).for_each(|scope| _ = free.remove(scope));
        }
        free.into_iter().for_each(|name| self.names.release(name));
        self.names.numbered.clear();
    }

    /// Adds nodes as they are, names included, after those so far.
    ///
    /// # Errors
    /// As [`Graph::new`].
    pub fn extend(&mut self, defs: Vec<NodeDef>) -> Result<(), GraphError> {
        let mut all = std::mem::take(&mut self.nodes);
        for def in &defs {
            self.reserve(&def.name);
        }
        all.extend(defs);
        self.base.extend(all)
    }

    /// The graph as of the last [`settle`](GraphBuilder::settle).
    pub fn settled(&self) -> &Graph {
        &self.base
    }

    /// Removes the nodes that were added since the last [`settle`](GraphBuilder::settle), all of which are in this scope.
    pub(crate) fn take_back(&mut self, scope: &str) {
        self.nodes.clear();
        let scope = format!("{}{scope}", self.scope).to_lowercase();
        let is_inside =
            |name: &str| name.strip_prefix(&scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.names.taken.retain(|name| !is_inside(name));
        self.names.numbered.clear();
    }

    /// The first of `wanted`, `wanted_1` and so on that is neither a node's name nor the scope of one.
    pub fn free_scope(&self, wanted: &str) -> String {
        let full = format!("{}{wanted}", self.scope).to_lowercase();
        let prefix = |name: &str| -> Option<String> {
            let rest = name.strip_prefix(&full)?;
            Some(rest.split('/').next().unwrap_or(rest).to_owned())
        };
        let used: std::collections::HashSet<String> = self.names.taken.iter().filter_map(|name| prefix(name)).collect();
        let suffixes = std::iter::once(String::new()).chain((1..).map(|n| format!("_{n}")));
        let free = suffixes.into_iter().find(|suffix| !used.contains(suffix));
        format!("{wanted}{}", free.unwrap_or_default())
    }

    /// Makes a node that was added since the last [`settle`](GraphBuilder::settle) wait for another.
    ///
    /// # Errors
    /// InvalidArgument if one of them is of another graph, or the first existed before that `settle`.
    pub(crate) fn add_control(&mut self, node: Output, before: Output) -> Result<()> {
        let name = format!("^{}", self.input_name(Output { node: before.node, port: 0 })?);
        let added = node.node.index().checked_sub(self.base.len()).and_then(|added| self.nodes.get_mut(added));
        added.ok_or_else(super::foreign)?.inputs.push(name);
        Ok(())
    }

    /// Replaces the `input`th input of the `index`th node that was added since the last [`settle`](GraphBuilder::settle).
    ///
    /// # Errors
    /// InvalidArgument if there is no such node or input, or the tensor is of another graph.
    pub(crate) fn replace_input(&mut self, index: usize, input: usize, with: Output) -> Result<()> {
        let name = self.input_name(with)?;
        let old = self.nodes.get_mut(index).and_then(|def| def.inputs.get_mut(input));
        *old.ok_or_else(super::foreign)? = name;
        Ok(())
    }

    /// The `index`th of the nodes that were added since the last [`settle`](GraphBuilder::settle).
    pub(crate) fn nth_added(&self, index: usize) -> Output {
        Output { node: crate::NodeId((self.base.len() + index) as u32), port: 0 }
    }

    /// The full name of a node of this name in the current scope.
    pub fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// Whether a node or a scope has this name.
    pub fn is_taken(&self, full_name: &str) -> bool {
        self.names.is_taken(full_name)
    }

    /// The device that a node requests; nothing for one of another graph.
    pub fn device_of(&self, output: Output) -> String {
        match output.node.index().checked_sub(self.base.len()) {
            None => self.base.node(output.node).device.clone(),
            Some(added) => self.nodes.get(added).map(|node| node.device.clone()).unwrap_or_default(),
        }
    }

    /// The beginning of [`with_device`](GraphBuilder::with_device); returns the argument of
    /// [`leave_device`](GraphBuilder::leave_device).
    ///
    /// # Errors
    /// InvalidArgument if it is not a device string.
    pub fn enter_device(&mut self, device: &str) -> Result<DeviceSpec> {
        let inner = super::over(&super::parse(device)?, &self.device);
        Ok(std::mem::replace(&mut self.device, inner))
    }

    /// Ends [`enter_device`](GraphBuilder::enter_device).
    pub fn leave_device(&mut self, outer: DeviceSpec) {
        self.device = outer;
    }

    /// The beginning of [`with_scope`](GraphBuilder::with_scope); returns the argument of
    /// [`leave_scope`](GraphBuilder::leave_scope).
    pub fn enter_scope(&mut self, scope: &str) -> String {
        let inner = format!("{}/", self.names.unique(&format!("{}{scope}", self.scope)));
        std::mem::replace(&mut self.scope, inner)
    }

    /// Leaves all scopes temporarily; returns the argument of [`leave_scope`](GraphBuilder::leave_scope).
    pub fn enter_root(&mut self) -> String {
        std::mem::take(&mut self.scope)
    }

    /// Ends [`enter_scope`](GraphBuilder::enter_scope) or [`enter_root`](GraphBuilder::enter_root).
    pub fn leave_scope(&mut self, outer: String) {
        self.scope = outer;
    }
}

/// A name, and the scopes that it is in: `a/b/c`, `a/b` and `a`.
fn scopes(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| at);
    ends.chain([name.len()]).map(|end| &name[..end])
}
