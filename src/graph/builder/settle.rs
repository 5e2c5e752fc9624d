//! What adding gradients asks of a builder: the nodes so far as a checked graph, with more to come.

use super::GraphBuilder;
use crate::failure::Result;
use crate::graph::Graph;

impl GraphBuilder {
    /// Checks and links the nodes that were added so far; the builder goes on with that graph. Ids stay as they are.
    ///
    /// # Errors
    /// As [`Graph::new`]; the builder is then as it was.
    pub(in crate::graph) fn settle(&mut self) -> Result<()> {
        if !self.nodes.is_empty() {
            self.base.extend(self.nodes.clone())?;
            self.nodes.clear();
        }
        Ok(())
    }

    /// The graph as of the last [`settle`](GraphBuilder::settle).
    pub(in crate::graph) fn settled(&self) -> &Graph {
        &self.base
    }

    /// Takes back the nodes that were added since the last [`settle`](GraphBuilder::settle), all of them in this scope.
    pub(in crate::graph) fn take_back(&mut self, scope: &str) {
        self.nodes.clear();
        let scope = format!("{}{scope}", self.scope).to_lowercase();
        let is_inside =
            |name: &str| name.strip_prefix(&scope).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.taken.retain(|name| !is_inside(name));
        self.numbered.clear();
    }

    /// `wanted`, or `wanted_1` and so on: the first scope that is no node's name and that no node's name begins with.
    pub(in crate::graph) fn free_scope(&self, wanted: &str) -> String {
        let full = format!("{}{wanted}", self.scope).to_lowercase();
        let prefix = |name: &str| -> Option<String> {
            let rest = name.strip_prefix(&full)?;
            Some(rest.split('/').next().unwrap_or(rest).to_owned())
        };
        let used: std::collections::HashSet<String> = self.taken.iter().filter_map(|name| prefix(name)).collect();
        let suffixes = std::iter::once(String::new()).chain((1..).map(|n| format!("_{n}")));
        let free = suffixes.into_iter().find(|suffix| !used.contains(suffix));
        format!("{wanted}{}", free.unwrap_or_default())
    }
}
