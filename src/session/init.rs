//! The initialization of a graph's variables: run if they are uninitialized, and never over existing values.

use std::collections::BTreeSet;

use meshtf_graph::{Graph, NodeDef, NodeId, Output};
use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, Result};

use super::Session;

/// Maximum number of variables named in a message.
const MAX_NAMED: usize = 8;

/// The nodes of a graph that initialize its variables.
///
/// ```
/// # use meshtf::graph::{Graph, read};
/// # use meshtf::{BackendChoice, Client, Init, LocalCluster, SessionOptions, Task};
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let text = r#"{ "version": 1, "nodes": {
///     "v": { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] } },
///     "init": { "op": "AssignVariableOp", "inputs": ["v", 7] } } }"#;
/// let graph = Graph::new(read(text.as_bytes())?.nodes)?;
/// let (graph, init) = Init::of(graph, &["init"]);
/// # let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Auto)?;
/// let session = cluster.session(graph, None, SessionOptions::default()).await?;
/// assert!(init.is_due(&session).await?);
/// session.run().target("init").await?;
/// assert!(!init.is_due(&session).await?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Init(Vec<Check>);

#[derive(Debug)]
struct Check {
    variable: String,
    /// The device string of its node.
    device: String,
    /// The node that checks whether it is initialized.
    node: String,
}

impl Init {
    /// The initialization by these nodes, and the graph with a node for each variable that they, or nodes they depend on,
    /// assign: it checks whether the variable has a value.
    pub fn of<N: AsRef<str>>(graph: Graph, nodes: &[N]) -> (Graph, Init) {
        let ids = assigned(&graph, nodes);
        if ids.is_empty() {
            return (graph, Init(Vec::new()));
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
            Ok(graph) => (graph, Init(checks)),
            // Adding these nodes keeps a valid graph valid; otherwise init runs unconditionally.
            Err(_) => (graph, Init(Vec::new())),
        }
    }

    /// The variables that it sets, and the device strings of their nodes.
    #[doc(hidden)]
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|check| (check.variable.as_str(), check.device.as_str()))
    }

    /// Whether to run it: none of the variables has a value, or it sets none.
    ///
    /// # Errors
    /// FailedPrecondition, naming them, if some of the variables have a value and others do not; errors of the run that checks.
    ///
    /// # Cancellation
    /// As [`Run`](super::Run).
    pub async fn is_due(&self, session: &Session) -> Result<bool> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let nodes: Vec<&str> = self.0.iter().map(|check| check.node.as_str()).collect();
        let mut missing = Vec::new();
        for (check, answer) in self.0.iter().zip(session.run().fetches(&nodes).await?.values) {
            if !answer.item::<bool>()? {
                missing.push(check);
            }
        }
        match missing.len() {
            0 => Ok(false),
            all if all == self.0.len() => Ok(true),
            _ => Err(half_there(&missing, self.0.len())),
        }
    }
}

fn half_there(missing: &[&Check], all: usize) -> Failure {
    let named = |check: &&Check| match check.device.as_str() {
        "" => check.variable.clone(),
        device => format!("{} (on {device})", check.variable),
    };
    let mut names: Vec<String> = missing.iter().take(MAX_NAMED).map(named).collect();
    if missing.len() > MAX_NAMED {
        names.push(format!("and {} more", missing.len() - MAX_NAMED));
    }
    let why = format!(
        "{} of the {all} variables that init sets are uninitialized, but the others have values: a task was \
 restarted, or init failed halfway. Uninitialized: {}. Restore a checkpoint with a node of the graph (--run), or \
 start over with --init, which initializes all of them again",
        missing.len(),
        names.join(", ")
    );
    Failure::new(Code::FailedPrecondition, why)
}

/// The variables that these nodes and their dependencies assign, in the order of the graph.
fn assigned<N: AsRef<str>>(graph: &Graph, init: &[N]) -> BTreeSet<NodeId> {
    let mut open: Vec<NodeId> = init.iter().filter_map(|name| graph.find(name.as_ref())).collect();
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
            let (graph, Init(checks)) = Init::of(graph, &[init]);
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
