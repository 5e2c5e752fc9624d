//! Large constants between nodes: they are sent separately from messages, and once.

use meshtf_graph as graph;
use meshtf_tensor::{DType, Tensor};

use crate::sandbox::Sandbox;

/// Inside a header it would take its memory twice while it is received, before it is stored.
#[test]
fn one_of_nearly_the_memory_of_its_nodes_travels() {
    const BYTES: usize = 60_000_000;
    let sandbox = Sandbox::new();
    let node = |name| sandbox.node_with(name, &["--memory", "100MB", "--backend", "flex"]);
    let _nodes = [node("ps/0"), node("worker/0")];
    let count = r#"{ "version": 1, "nodes": {
        "table": 1, "count": { "op": "Size", "inputs": ["table"], "device": "/job:ps/task:0" } } }"#;
    let mut nodes = graph::read(count.as_bytes()).expect("a graph").nodes;
    let table = nodes.iter_mut().find(|node| node.name == "table").expect("a table");
    table.device = "/job:ps/task:0".to_owned();
    table.attrs.set("value", Tensor::vector(vec![7u8; BYTES]).into());
    table.attrs.set("dtype", DType::U8.into());
    let graph = sandbox.file("table.pb", graph::graphdef::to_binary(&nodes));
    for _ in 0..2 {
        sandbox.run(&["submit", &graph, "--fetch", "count", "--target", "worker/0", "--quiet"]).prints("60000000");
    }
}

#[test]
fn one_that_two_steps_use_goes_to_their_task_once() {
    // 800 kB of float64.
    const ELEMENTS: usize = 100_000;
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("ps/0"), sandbox.node("worker/0")];
    let elements = "0.5,".repeat(ELEMENTS - 1);
    let graph = format!(
        r#"{{ "version": 1, "nodes": {{
            "table": {{ "op": "Const", "device": "/job:ps/task:0",
                        "attrs": {{ "value": {{ "dtype": "float64", "value": [{elements}1.5] }}, "dtype": "float64" }} }},
            "v":     {{ "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": {{ "dtype": "float64", "shape": [] }} }},
            "most":  {{ "op": "Max", "inputs": ["table", 0], "device": "/job:ps/task:0" }},
            "begin": {{ "op": "AssignVariableOp", "inputs": ["v", "most"], "device": "/job:ps/task:0" }},
            "sum":   {{ "op": "Sum", "inputs": ["table", 0], "device": "/job:ps/task:0" }},
            "add":   {{ "op": "AssignAddVariableOp", "inputs": ["v", "sum"], "device": "/job:ps/task:0" }},
            "seen":  {{ "op": "ReadVariableOp", "inputs": ["v"], "control": ["add"], "device": "/job:ps/task:0",
                        "attrs": {{ "dtype": "float64" }} }} }},
          "fetch": ["seen"], "init": ["begin"] }}"#
    );
    let graph = sandbox.file("graph.json", graph);
    // 1.5, and a sum of 99,999 halves and 1.5.
    sandbox.run(&["submit", &graph, "--target", "worker/0", "--quiet"]).prints("50002.5");
    let told = |task: &str, what: &str| {
        let told = sandbox.run(&["status", task, "--json"]).expect(0).json();
        told[0]["totals"][what].as_u64().expect("a number")
    };
    let received = told("ps/0", "received_bytes");
    assert!((800_000..900_000).contains(&received), "{received}");
    // From the client, not through the master.
    let sent = told("worker/0", "sent_bytes");
    assert!(sent < 100_000, "{sent}");
}
