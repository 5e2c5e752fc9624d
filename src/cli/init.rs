//! A file's `init`: run where the variables that it sets have no values yet, and never over values that are there.

use std::collections::BTreeSet;

use super::{Exit, Trouble};
use crate::Session;
use crate::graph::{Graph, NodeDef, NodeId, Output};
use crate::tensor::DType;

/// Most variables that a message names.
const MAX_NAMED: usize = 8;

/// The variables that `init` sets.
pub(super) struct Checks(Vec<Check>);

struct Check {
    variable: String,
    /// The device string that its node states.
    device: String,
    /// The node that tells whether it has a value.
    node: String,
}

/// What is to be done about `init`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// None of the variables has a value, or it sets none: it is to run.
    Run,
    /// All have theirs.
    Skip,
}

impl Checks {
    /// Adds a node to the graph for each variable that these nodes of it, or what they wait for, assign.
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
            // What was a graph is one with these nodes, too; if not, init runs as it stands there.
            Err(_) => (graph, Checks(Vec::new())),
        }
    }

    /// What is to be done about `init`, as things are.
    ///
    /// # Errors
    /// Where some of the variables have a value and some have not; what asking fails with.
    pub async fn due(&self, session: &Session) -> Result<Due, Trouble> {
        if self.0.is_empty() {
            return Ok(Due::Run);
        }
        let nodes: Vec<&str> = self.0.iter().map(|check| check.node.as_str()).collect();
        let mut missing = Vec::new();
        for (check, answer) in self.0.iter().zip(session.run(&[], &nodes, &[]).await?) {
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
        "{} of the {all} variables that the file's init sets have no value, and the others have theirs: a task was restarted, \
         or init failed half-way. Without a value: {}. Restore a checkpoint by a node of the graph (--run), or start over with \
         --init, which sets all of them anew",
        missing.len(),
        names.join(", ")
    );
    Trouble::new(Exit::GraphFailed, why)
}

/// The variables that these nodes, and whatever they wait for, assign; in the graph's order.
fn assigned(graph: &Graph, init: &[String]) -> BTreeSet<NodeId> {
    let mut open: Vec<NodeId> = init.iter().filter_map(|name| graph.find(name)).collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    let mut variables = BTreeSet::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if matches!(node.op.name, "Assign" | "AssignVariableOp") {
            variables.extend(variable_of(graph, id));
        }
        let before = node.inputs.iter().map(|input| input.node).chain(node.control.iter().copied());
        open.extend(before.filter(|&before| seen.insert(before)));
    }
    variables
}

/// The variables whose reference or handle can come to a node's first input: one, but for a handle that a branch chooses.
fn variable_of(graph: &Graph, id: NodeId) -> Vec<NodeId> {
    let mut open: Vec<NodeId> = graph.node(id).inputs.first().map(|input| input.node).into_iter().collect();
    let mut seen: BTreeSet<NodeId> = open.iter().copied().collect();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        if matches!(node.op.name, "Variable" | "VariableV2" | "VarHandleOp") {
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
    use crate::graph::read;

    #[test]
    fn what_init_assigns_is_found() {
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
