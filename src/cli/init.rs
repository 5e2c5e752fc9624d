//! A file's `init`: run if the variables that it sets are uninitialized, and never over existing values.

use std::collections::BTreeSet;

use meshtf_graph::{Graph, NodeDef, NodeId, Output};
use meshtf_tensor::DType;

use super::{Exit, Trouble};
use crate::Session;

/// Maximum number of variables named in a message.
const MAX_NAMED: usize = 8;

/// The variables that `init` sets.
pub(super) struct Checks(Vec<Check>);

struct Check {
    variable: String,
    /// The device string of its node.
    device: String,
    /// The node that checks whether it is initialized.
    node: String,
}

/// The action to take for `init`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// None of the variables has a value, or it sets none: run it.
    Run,
    /// All have values: skip it.
    Skip,
}

impl Checks {
    /// Adds a node to the graph for each variable that these nodes, or nodes they depend on, assign.
    pub fn add(graph: Graph, init: &[String]) -> (Graph, Checks) {
        let ids = assigned(&graph, init);
        if ids.is_empty() {
            return (graph, Checks(Vec::new()));
        }
        let mut defs = graph.to_defs();
        let mut checks = Vec::with_capacity(ids.len());
        for id in ids {
            let variable = graph.node(id);
            let free = |name: &String| graph.find(name).is_none();
            let name = (0..).map(|n| format!("_is_initialized_{n}/{}", variable.name)).find(free);
            let node = name.expect("there are more numbers than nodes");
            let op = if variable.outputs[0].is_ref { "IsVariableInitialized" } else { "VarIsInitializedOp" };
            defs.push(NodeDef {
                name: node.clone(),
                op: op.to_owned(),
                inputs: vec![variable.name.clone()],
                ..NodeDef::default()
            });
            checks.push(Check { variable: variable.name.clone(), device: variable.device.clone(), node });
        }
        match Graph::new(defs) {
            Ok(graph) => (graph, Checks(checks)),
            // Adding these nodes keeps a valid graph valid; otherwise init runs unconditionally.
            Err(_) => (graph, Checks(Vec::new())),
        }
    }

    /// Decides the action to take for `init`.
    ///
    /// # Errors
    /// If some of the variables have a value and others do not; errors of running the check.
    pub async fn due(&self, session: &Session) -> Result<Due, Trouble> {
        if self.0.is_empty() {
            return Ok(Due::Run);
        }
        let nodes: Vec<&str> = self.0.iter().map(|check| check.node.as_str()).collect();
        let mut missing = Vec::new();
        for (check, answer) in self.0.iter().zip(session.run().fetches(&nodes).await?.values) {
            if !answer.item::<bool>()? {
                missing.push(check);
            }
        }
        match missing.len() {
            0 => Ok(Due::Skip),
            all if all == self.0.len() => Ok(Due::Run),
            _ => Err(half_there(&missing, self.0.len())),
        }
    }
}

fn half_there(missing: &[&Check], all: usize) -> Trouble {
    let named = |check: &&Check| match check.device.as_str() {
        "" => check.variable.clone(),
        device => format!("{} (on {device})", check.variable),
    };
    let mut names: Vec<String> = missing.iter().take(MAX_NAMED).map(named).collect();
    if missing.len() > MAX_NAMED {
        names.push(format!("and {} more", missing.len() - MAX_NAMED));
    }
    let why = format!(
        "{} of the {all} variables that the file's init sets are uninitialized, but the others have values: a task was \
 restarted, or init failed halfway. Uninitialized: {}. Restore a checkpoint with a node of the graph (--run), or \
 start over with --init, which initializes all of them again",
        missing.len(),
        names.join(", ")
    );
    Trouble::new(Exit::GraphFailed, why)
}

/// The variables that these nodes and their dependencies assign, in the order of the graph.
fn assigned(graph: &Graph, init: &[String]) -> BTreeSet<NodeId> {
    let mut open: Vec<NodeId> = init.iter().filter_map(|name| graph.find(name)).collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    let mut variables = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if node.op.assigns {
            variables.extend(variable_of(graph, id));
        }
        let before = node.sources();
        open.extend(before.filter(|&before| seen.insert(before)));
    }
    variables
}

/// The variables whose reference or handle may reach a node's first input: one, unless a branch chooses a handle.
fn variable_of(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut open: Vec<NodeId> = graph.node(id).inputs.first().map(|input| input.node).into_iter().collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if node.op.makes_variable {
            found.push(id);
            continue;
        }
        let carries = |input: &&Output| {
            let output = graph.output_type(**input);
            output.is_ref || output.dtype == DType::Resource
        };
        let before = node.inputs.iter().filter(carries).map(|input| input.node);
        open.extend(before.filter(|&before| seen.insert(before)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshtf_graph::read;

    #[test]
    fn variables_that_init_assigns_are_found() {
        let check = |nodes: &str, init: &str, variables: &[&str]| {
            let text = format!(r#"{{ "version": 1, "nodes": {{ {nodes} }} }}"#);
            let graph = Graph::new(read(text.as_bytes()).unwrap().nodes).unwrap();
            let (graph, Checks(checks)) = Checks::add(graph, &[init.to_owned()]);
            let found: Vec<&str> = checks.iter().map(|check| check.variable.as_str()).collect();
            assert_eq!(found, variables, "{nodes}");
            assert!(checks.iter().all(|check| graph.find(&check.node).is_some()));
        };
        let two = r#"
            "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] } },
            "r": { "op": "VariableV2", "attrs": { "dtype": "int32", "shape": [] } },
            "other": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] } },
            "set_v": { "op": "AssignVariableOp", "inputs": ["v", 1] },
            "set_r": { "op": "Assign", "inputs": ["r", 2], "control": ["set_v"] },
            "bump": { "op": "AssignAddVariableOp", "inputs": ["other", 1], "control": ["set_r"] },
            "init": { "op": "NoOp", "control": ["bump"] },
            "_is_initialized_0/v": 7"#;
        check(two, "init", &["v", "r"]);
        check(two, "set_v", &["v"]);
        check(two, "other", &[]);
        let passed_on = r#"
            "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] } },
            "same": { "op": "Identity", "inputs": ["v"] },
            "set": { "op": "AssignVariableOp", "inputs": ["same", 1] }"#;
        check(passed_on, "set", &["v"]);
    }
}
