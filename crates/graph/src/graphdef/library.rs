//! A graph with functions that arrives in pieces: turns each piece into nodes that call no function.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message as _;

use super::Reading;
use super::count::Counter;
use super::expand::{Around, Expander, circle, is_handle, order, refuse};
use super::function::{FunctionCall, Functions, control};
use super::proto::{FunctionDef, GradientDef, GraphDef, NodeMessage};
use crate::op::{self, Role};
use crate::program::Budget;
use crate::{FormatError, MAX_NODES, NodeDef, split_tensor_name};

/// The functions of a graph that arrives in pieces, and the names and handles of its expanded calls.
#[derive(Clone, Debug)]
pub struct Library {
    functions: Arc<Functions>,
    /// The names of all nodes so far, stated or made.
    names: HashSet<String>,
    /// The origin of each output `caller:port` of a call that is a handle of state.
    handles: HashMap<String, String>,
    /// Most nodes that the calls of one piece expand to.
    limit: usize,
}

impl Default for Library {
    fn default() -> Self {
        Library { functions: Arc::default(), names: HashSet::new(), handles: HashMap::new(), limit: MAX_NODES }
    }
}

/// The additions of a piece of a graph to the [`Library`] of the earlier pieces.
#[derive(Debug)]
pub struct Growth {
    functions: Arc<Functions>,
    names: HashSet<String>,
    handles: HashMap<String, String>,
}

impl Library {
    /// As [`Library::expanded`], and adds the piece to the library.
    ///
    /// # Errors
    /// As [`Library::expanded`]; the library is then unchanged.
    pub fn expand(&mut self, graph: GraphDef) -> Result<Vec<NodeDef>, FormatError> {
        let (nodes, growth) = self.expanded(graph)?;
        self.grow(growth);
        Ok(nodes)
    }

    /// Adds the piece that was expanded last. The cost depends on the piece, not on the size of the library.
    pub fn grow(&mut self, growth: Growth) {
        self.functions = growth.functions;
        self.names.extend(growth.names);
        self.handles.extend(growth.handles);
    }

    /// The nodes of a GraphDef, with each call of a function replaced by the nodes of its body. The functions are those in this
    /// piece and in earlier ones; a function that is sent again must be the same.
    ///
    /// A call that cannot be expanded is kept as a node that no step can run. The cost depends on the piece, not on the size of
    /// the graph: only a piece with a new function, with which a client sends all functions, copies the list of them.
    ///
    /// # Errors
    /// NoGraph if two functions of the same name differ or one has two gradients, Node if a call consumes its own output,
    /// NoMemory if there is no memory for the constants.
    pub fn expanded(&self, graph: GraphDef) -> Result<(Vec<NodeDef>, Growth), FormatError> {
        let mut functions = Arc::clone(&self.functions);
        let library = graph.library.unwrap_or_default();
        for function in library.function {
            learn(&mut functions, function)?;
        }
        for gradient in library.gradient {
            learn_gradient(&mut functions, gradient)?;
        }
        let producer = graph.versions.map_or(0, |versions| versions.producer);
        let reading = Reading { budget: Budget::new(), producer };
        self.nodes(functions, graph.node, reading)
    }

    fn nodes(
        &self,
        functions: Arc<Functions>,
        nodes: Vec<NodeMessage>,
        reading: Reading,
    ) -> Result<(Vec<NodeDef>, Growth), FormatError> {
        // The reasons why calls cannot be expanded.
        let mut refused: HashMap<usize, String> = HashMap::new();
        let mut calls: Vec<Option<FunctionCall>> = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            calls.push(FunctionCall::of(node, &functions).unwrap_or_else(|why| {
                refused.insert(i, why);
                None
            }));
        }
        let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, node)| (&*node.name, i)).collect();
        let source = |input: &str| by_name.get(split_tensor_name(input).0).copied();
        let order = order(&nodes, &calls, source).map_err(|node| refuse(&nodes[node].name, circle()))?;

        let in_loops = if calls.iter().any(Option::is_some) { in_loops(&nodes, source) } else { Vec::new() };
        let mut counter = Counter::new(&functions, self.limit);
        let mut expander = Expander::new(&functions, &self.names, self.limit, reading);
        expander.state(nodes.iter().map(|node| node.name.clone()));
        let mut handles = HashMap::new();
        // The nodes that replace each call.
        let mut expanded: HashMap<usize, Vec<NodeDef>> = HashMap::new();
        for i in order {
            let Some(call) = &calls[i] else { continue };
            let node = with_handles(nodes[i].clone(), [&self.handles, &handles]);
            // Its nodes without inputs run in the loop that the call is in.
            let input = node.input.first().filter(|_| in_loops.get(i).is_some_and(|&in_loop| in_loop));
            let around = Around { pivot: input.map(|input| control(input)), before: None };
            let admitted = expander.admits(&node.name, counter.nodes(call));
            let made = admitted.and_then(|()| expander.call(&node, call, &around)).and_then(|answer| {
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
                    let message = with_handles(node, [&self.handles, &handles]);
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
            Some(refused) => {
                Err(FormatError::NoMemory { why: format!("a constant: {}", refused.with_holder().message) })
            }
            None => {
                let names = expander.into_names();
                Ok((all, Growth { functions, names, handles }))
            }
        }
    }
}

/// Whether each of some nodes is in a loop of Enter and Exit, as far as these nodes tell. Empty if none is.
fn in_loops(nodes: &[NodeMessage], source: impl Fn(&str) -> Option<usize>) -> Vec<bool> {
    if nodes.iter().all(|node| role_of(node) != Some(Role::Enter)) {
        return Vec::new();
    }
    // The number of loops around the outputs of each node, once it is known. A node that is open counts as outside of loops: its
    // input is its own output.
    let mut depths: Vec<Option<u32>> = vec![None; nodes.len()];
    let mut is_open = vec![false; nodes.len()];
    // The nodes that are being looked at, each with the number of its inputs that were.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for first in 0..nodes.len() {
        open.push((first, 0));
        while let Some((at, seen)) = open.last_mut() {
            let input = nodes[*at].input.get(*seen).filter(|_| depths[*at].is_none());
            if let Some(input) = input {
                *seen += 1;
                is_open[*at] = true;
                let from =
                    source(input.trim_start_matches('^')).filter(|&from| depths[from].is_none() && !is_open[from]);
                // The way back of a loop tells nothing new.
                open.extend(
                    from.filter(|&from| role_of(&nodes[from]) != Some(Role::NextIteration)).map(|from| (from, 0)),
                );
                continue;
            }
            let at = *at;
            let inputs = nodes[at].input.iter().filter_map(|input| source(input.trim_start_matches('^')));
            let around = inputs.filter_map(|from| depths[from]).max().unwrap_or(0);
            depths[at] = depths[at].or(Some(match role_of(&nodes[at]) {
                Some(Role::Enter) => around + 1,
                Some(Role::Exit) => around.saturating_sub(1),
                _ => around,
            }));
            is_open[at] = false;
            open.pop();
        }
    }
    depths.into_iter().map(|depth| depth.is_some_and(|depth| depth > 0)).collect()
}

fn role_of(node: &NodeMessage) -> Option<Role> {
    op::lookup(&node.op).map(|op| op.role)
}

/// Adds a function if it is new.
fn learn(functions: &mut Arc<Functions>, function: FunctionDef) -> Result<(), FormatError> {
    let name = function.signature.as_ref().map(|signature| signature.name.clone()).unwrap_or_default();
    match functions.get(&name) {
        // Compared as bytes, because a NaN among its constants equals nothing.
        Some(known) if known.encode_to_vec() == function.encode_to_vec() => Ok(()),
        Some(_) => Err(FormatError::NoGraph { why: format!("there are two functions {name:?} that differ") }),
        None => {
            Arc::make_mut(functions).by_name.insert(name, Arc::new(function));
            Ok(())
        }
    }
}

/// Adds the declaration of a function's gradient, if that is new.
fn learn_gradient(functions: &mut Arc<Functions>, gradient: GradientDef) -> Result<(), FormatError> {
    let GradientDef { function_name: of, gradient_func: is } = gradient;
    match functions.gradients.get(&of) {
        Some(known) if *known == is => Ok(()),
        Some(known) => {
            let why = format!("the gradient of function {of:?} is {known:?}, and cannot be {is:?}, too");
            Err(FormatError::NoGraph { why })
        }
        None => {
            Arc::make_mut(functions).gradients.insert(of, is);
            Ok(())
        }
    }
}

/// The error that prevents the expansion of a call, as the reason to refuse the call.
fn why(call: &str, error: FormatError) -> String {
    match error {
        FormatError::Node { node, why } if node == call => why,
        FormatError::Node { node, why } => format!("its node {node}: {why}"),
        other => other.to_string(),
    }
}

/// The node, with handles from calls replaced by their origins.
fn with_handles(mut node: NodeMessage, handles: [&HashMap<String, String>; 2]) -> NodeMessage {
    if handles.iter().any(|handles| !handles.is_empty()) {
        for input in node.input.iter_mut().filter(|input| !input.starts_with('^')) {
            let (name, port) = split_tensor_name(input);
            let output = format!("{name}:{port}");
            if let Some(tensor) = handles.iter().find_map(|handles| handles.get(&output)) {
                input.clone_from(tensor);
            }
        }
    }
    node
}

#[cfg(test)]
mod tests;
