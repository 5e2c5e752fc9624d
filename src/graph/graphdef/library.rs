//! A graph that arrives in pieces, with functions: turns each piece into nodes that call none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;

use super::Reading;
use super::count::Counter;
use super::expand::{Around, Expander, circle, is_handle, order, refuse};
use super::function::{Call, Functions};
use super::proto::{FunctionDef, GraphDef, NodeDef as NodeMessage};
use crate::graph::program::Budget;
use crate::graph::{FormatError, MAX_NODES, NodeDef, split_tensor_name};

/// The functions of a graph that arrives in pieces, and what its calls were expanded to.
#[derive(Clone, Debug)]
pub struct Library {
    functions: Functions,
    /// Every node so far, stated or made.
    names: HashSet<String>,
    /// The origin of each output `caller:port` of a call that is a handle of state.
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
    /// A call that cannot be expanded is kept as a node that no step can run. A graph that is refused leaves the functions as
    /// they were.
    ///
    /// # Errors
    /// NoGraph if two functions of one name differ, Node if a call takes its own output, NoRoom if there is no
    /// memory for the constants.
    pub fn expand(&mut self, graph: GraphDef) -> Result<Vec<NodeDef>, FormatError> {
        let mut added = Vec::new();
        let learned = graph.library.into_iter().flat_map(|library| library.function).try_for_each(|function| {
            let name = function.signature.as_ref().map(|signature| signature.name.clone()).unwrap_or_default();
            added.extend(self.learn(&name, function)?);
            Ok(())
        });
        let producer = graph.versions.map_or(0, |versions| versions.producer);
        let reading = Reading { budget: Budget::new(), producer };
        let nodes = learned.and_then(|()| self.nodes(graph.node, reading));
        if nodes.is_err() {
            added.iter().for_each(|name| drop(self.functions.remove(name)));
        }
        nodes
    }

    /// Adds a function; returns its name if it is new.
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

    fn nodes(&mut self, nodes: Vec<NodeMessage>, reading: Reading) -> Result<Vec<NodeDef>, FormatError> {
        // Why calls cannot be expanded.
        let mut refused: HashMap<usize, String> = HashMap::new();
        let mut calls: Vec<Option<Call>> = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            calls.push(Call::of(node, &self.functions).unwrap_or_else(|why| {
                refused.insert(i, why);
                None
            }));
        }
        self.names.extend(nodes.iter().map(|node| node.name.clone()));
        let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, node)| (&*node.name, i)).collect();
        let source = |input: &str| by_name.get(split_tensor_name(input).0).copied();
        let order = order(&nodes, &calls, source).map_err(|node| refuse(&nodes[node].name, circle()))?;

        let mut counter = Counter::new(&self.functions, self.limit);
        let mut expander = Expander::new(&self.functions, &mut self.names, self.limit, reading);
        // Each call's nodes, which replace it.
        let mut expanded: HashMap<usize, Vec<NodeDef>> = HashMap::new();
        for i in order {
            let Some(call) = &calls[i] else { continue };
            let node = with_handles(nodes[i].clone(), &self.handles);
            let around = Around::default();
            let room = expander.has_room(&node.name, counter.nodes(call));
            let handles = &mut self.handles;
            let made = room.and_then(|()| expander.call(&node, call, &around)).and_then(|answer| {
                for (port, (tensor, &ty)) in answer.tensors.iter().zip(&answer.types).enumerate() {
                    if is_handle(ty) {
                        handles.insert(format!("{}:{port}", node.name), tensor.clone());
                    }
                }
                expander.caller(&node, answer, &around)
            });
            let nodes = expander.take_made();
            match made {
                Ok(()) => _ = expanded.insert(i, nodes),
                Err(error) => _ = refused.insert(i, why(&node.name, error)),
            }
        }
        let mut all = Vec::with_capacity(nodes.len() + expanded.values().map(Vec::len).sum::<usize>());
        for (i, node) in nodes.into_iter().enumerate() {
            match expanded.remove(&i) {
                Some(nodes) => all.extend(nodes),
                None => {
                    let message = with_handles(node, &self.handles);
                    let (name, op, input) = (message.name.clone(), message.op.clone(), message.input.clone());
                    let node = expander.read(message).unwrap_or_else(|error| {
                        let refused = Some(why(&name, error));
                        NodeDef { name, op, inputs: input, refused, ..NodeDef::default() }
                    });
                    all.push(NodeDef { refused: refused.remove(&i).or(node.refused), ..node });
                }
            }
        }
        match expander.reading.budget.refused.take() {
            Some(refused) => Err(FormatError::NoRoom { why: format!("a constant: {}", refused.with_holder().message) }),
            None => Ok(all),
        }
    }
}

/// What keeps a call from being expanded, as the call's own fault.
fn why(call: &str, error: FormatError) -> String {
    match error {
        FormatError::Node { node, why } if node == call => why,
        FormatError::Node { node, why } => format!("its node {node}: {why}"),
        other => other.to_string(),
    }
}

/// The node, with the handles that it takes from calls replaced by their origins.
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
