//! A graph that comes in pieces, with functions: each piece as nodes that call none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;

use super::expand::{Around, Expander, circle, is_handle, order, refuse};
use super::function::{Call, Functions};
use super::proto::{FunctionDef, GraphDef, NodeDef as NodeMessage};
use super::read_node;
use crate::graph::{FormatError, MAX_NODES, NodeDef, split_tensor_name};

/// The functions of a graph that comes in pieces, and what has become of the calls so far.
#[derive(Clone, Debug)]
pub struct Library {
    functions: Functions,
    /// Every node so far, stated or made.
    names: HashSet<String>,
    /// Where the outputs `caller:port` of calls come from that are handles of state.
    handles: HashMap<String, String>,
    /// Most nodes that the calls of one piece become.
    limit: usize,
}

impl Default for Library {
    fn default() -> Self {
        Library { functions: Functions::new(), names: HashSet::new(), handles: HashMap::new(), limit: MAX_NODES }
    }
}

impl Library {
    /// The nodes of a GraphDef, with each call of a function replaced by the nodes of its body. The functions are those
    /// that it brings and those that came before; one that comes again must be the same.
    ///
    /// A graph that is refused leaves the functions as they were.
    ///
    /// # Errors
    /// Node where a node states something that meshtf cannot hold, or a call cannot be expanded.
    pub fn expand(&mut self, graph: GraphDef) -> Result<Vec<NodeDef>, FormatError> {
        let mut added = Vec::new();
        let learned = graph.library.into_iter().flat_map(|library| library.function).try_for_each(|function| {
            let name = function.signature.as_ref().map(|signature| signature.name.clone()).unwrap_or_default();
            added.extend(self.learn(&name, function)?);
            Ok(())
        });
        let nodes = learned.and_then(|()| self.nodes(graph.node));
        if nodes.is_err() {
            added.iter().for_each(|name| drop(self.functions.remove(name)));
        }
        nodes
    }

    /// Takes a function in; its name, where it is new.
    fn learn(&mut self, name: &str, function: FunctionDef) -> Result<Option<String>, FormatError> {
        match self.functions.get(name) {
            // As bytes, because a NaN among its constants equals nothing.
            Some(known) if known.encode_to_vec() == function.encode_to_vec() => Ok(None),
            Some(_) => Err(FormatError::NoGraph { why: format!("there are two functions {name:?} that differ") }),
            None => {
                self.functions.insert(name.to_owned(), Arc::new(function));
                Ok(Some(name.to_owned()))
            }
        }
    }

    fn nodes(&mut self, nodes: Vec<NodeMessage>) -> Result<Vec<NodeDef>, FormatError> {
        let calls: Vec<Option<Call>> = nodes
            .iter()
            .map(|node| Call::of(node, &self.functions).map_err(|why| refuse(&node.name, why)))
            .collect::<Result<_, _>>()?;
        self.names.extend(nodes.iter().map(|node| node.name.clone()));
        let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, node)| (&*node.name, i)).collect();
        let source = |input: &str| by_name.get(split_tensor_name(input).0).copied();
        let order = order(&nodes, &calls, source).map_err(|node| refuse(&nodes[node].name, circle()))?;

        let mut expander = Expander::new(&self.functions, &mut self.names, self.limit);
        // Each call's nodes, to stand where the call stood.
        let mut expanded: HashMap<usize, Vec<NodeDef>> = HashMap::new();
        for i in order {
            let Some(call) = &calls[i] else { continue };
            let node = with_handles(nodes[i].clone(), &self.handles);
            let around = Around::default();
            let answer = expander.call(&node, call, &around)?;
            for (port, (tensor, &ty)) in answer.tensors.iter().zip(&answer.types).enumerate() {
                if is_handle(ty) {
                    self.handles.insert(format!("{}:{port}", node.name), tensor.clone());
                }
            }
            expander.caller(&node, answer, &around)?;
            expanded.insert(i, expander.take_made());
        }
        let mut all = Vec::with_capacity(nodes.len() + expanded.values().map(Vec::len).sum::<usize>());
        for (i, node) in nodes.into_iter().enumerate() {
            match expanded.remove(&i) {
                Some(nodes) => all.extend(nodes),
                None => all.push(read_node(with_handles(node, &self.handles), &mut expander.budget)?),
            }
        }
        Ok(all)
    }
}

/// The node, with the handles that it takes from calls taken from where they are.
fn with_handles(mut node: NodeMessage, handles: &HashMap<String, String>) -> NodeMessage {
    if !handles.is_empty() {
        for input in node.input.iter_mut().filter(|input| !input.starts_with('^')) {
            let (name, port) = split_tensor_name(input);
            if let Some(tensor) = handles.get(&format!("{name}:{port}")) {
                input.clone_from(tensor);
            }
        }
    }
    node
}

#[cfg(test)]
mod tests;
