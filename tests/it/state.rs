//! Resources: variables that many clients increment, checkpoints of a node that is killed, very large graphs.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use crate::sandbox::Sandbox;

const CLIENTS: usize = 8;
const STEPS: usize = 100;

/// A counter on each of two parameter servers.
const COUNTERS: &str = r#"{ "version": 1, "nodes": {
  "a":      { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int64", "shape": [] } },
  "b":      { "op": "VarHandleOp", "device": "/job:ps/task:1", "attrs": { "dtype": "int64", "shape": [] } },
  "zero_a": { "op": "AssignVariableOp", "inputs": ["a", { "value": 0, "dtype": "int64" }], "device": "/job:ps/task:0" },
  "zero_b": { "op": "AssignVariableOp", "inputs": ["b", { "value": 0, "dtype": "int64" }], "device": "/job:ps/task:1" },
  "bump_a": { "op": "AssignAddVariableOp", "inputs": ["a", { "value": 1, "dtype": "int64" }], "device": "/job:ps/task:0" },
  "bump_b": { "op": "AssignAddVariableOp", "inputs": ["b", { "value": 2, "dtype": "int64" }], "device": "/job:ps/task:1" },
  "read_a": { "op": "ReadVariableOp", "inputs": ["a"], "device": "/job:ps/task:0", "attrs": { "dtype": "int64" } },
  "read_b": { "op": "ReadVariableOp", "inputs": ["b"], "device": "/job:ps/task:1", "attrs": { "dtype": "int64" } },
  "init":   { "op": "NoOp", "control": ["zero_a", "zero_b"] },
  "bump":   { "op": "NoOp", "control": ["bump_a", "bump_b"] } } }"#;

/// The same as a file with targets: counts in both, and fetches them.
fn counting() -> String {
    let nodes = COUNTERS.trim_end().strip_suffix("} }").expect("an object of objects");
    format!(
        r#"{nodes},
  "seen_a": {{ "op": "ReadVariableOp", "inputs": ["a"], "control": ["bump"], "device": "/job:ps/task:0", "attrs": {{ "dtype": "int64" }} }},
  "seen_b": {{ "op": "ReadVariableOp", "inputs": ["b"], "control": ["bump"], "device": "/job:ps/task:1", "attrs": {{ "dtype": "int64" }} }} }},
  "fetch": ["seen_a", "seen_b"], "targets": ["bump"], "init": ["init"] }}"#
    )
}

/// Counts, and saves a large tensor of the count each time.
const SAVES: &str = r#"{ "version": 1, "nodes": {
  "count":  { "op": "VarHandleOp", "attrs": { "dtype": "int32", "shape": [] } },
  "zero":   { "op": "AssignVariableOp", "inputs": ["count", 0] },
  "next":   { "op": "AssignAddVariableOp", "inputs": ["count", 1] },
  "read":   { "op": "ReadVariableOp", "inputs": ["count"], "control": ["next"], "attrs": { "dtype": "int32" } },
  "many":   { "op": "Fill", "inputs": [[300000], "read"] },
  "save":   { "op": "SaveV2", "inputs": [{ "value": "model" }, { "value": ["v"] }, { "value": [""] }, "many"] },
  "saved":  { "op": "Identity", "inputs": ["read"], "control": ["save"] },
  "v":      { "op": "RestoreV2", "inputs": [{ "value": "model" }, { "value": ["v"] }, { "value": [""] }],
              "attrs": { "dtypes": ["int32"] } },
  "least":  { "op": "Min", "inputs": ["v", 0] },
  "most":   { "op": "Max", "inputs": ["v", 0] } } }"#;

#[test]
fn eight_clients_lose_no_update() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("ps/0"), sandbox.node("ps/1")];
    let graph = sandbox.file("counters.json", COUNTERS);
    sandbox.run(&["submit", &graph, "--run", "init"]).expect(0);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (sandbox, graph) = (&sandbox, &graph);
            scope.spawn(move || {
                let target = ["ps/0", "ps/1"][client % 2];
                let steps = STEPS.to_string();
                sandbox.run(&["submit", graph, "--run", "bump", "--steps", &steps, "--target", target]).expect(0);
            });
        }
    });
    let counted = CLIENTS * STEPS;
    sandbox
        .run(&["submit", &graph, "--fetch", "read_a,read_b"])
        .prints(&format!("read_a: {counted}\nread_b: {}", 2 * counted));
}

/// The ps is lost with its values; the worker and the records of runs know of it.
#[test]
fn a_ps_that_was_restarted_is_named_when_init_runs_again() {
    let sandbox = Sandbox::new();
    let ps = sandbox.node("ps/0");
    let _worker = sandbox.node("worker/0");
    let text = r#"{"version": 1, "fetch": ["seen"], "init": ["zero"], "nodes": {
        "v": {"op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": {"dtype": "int32", "shape": []}},
        "zero": {"op": "AssignVariableOp", "inputs": ["v", 0]},
        "add": {"op": "AssignAddVariableOp", "inputs": ["v", 1]},
        "seen": {"op": "ReadVariableOp", "inputs": ["v"], "control": ["add"], "attrs": {"dtype": "int32"}}}}"#;
    let graph = sandbox.file("counting.json", text);
    let first = "no variable was initialized, so init runs: v begins from its first value";
    let submit = |steps: &str| sandbox.run(&["submit", &graph, "--steps", steps]);
    let ended = submit("150").complains(&[first]).prints("150");
    assert!(!ended.stderr.contains("restarted") && !ended.stderr.contains("before, run"), "{}", ended.stderr);
    submit("50").complains(&["init is skipped"]).prints("200");
    ps.process.signal("KILL");
    drop(ps);
    let _ps = sandbox.node("ps/0");
    let restarted = "ps/0 was restarted, up ";
    submit("1").complains(&[first, restarted, "of this graph did 150 steps"]).prints("1");
    assert_eq!(sandbox.run(&["submit", &graph, "--quiet"]).expect(0).stderr, "");
}

#[test]
fn trained_variables_are_not_initialised_again() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("ps/0");
    let one = sandbox.node("ps/1");
    let graph = sandbox.file("counting.json", counting());
    let submit = |arguments: &[&str]| sandbox.run(&[&["submit", graph.as_str(), "--steps", "10"], arguments].concat());
    submit(&[]).prints("seen_a: 10\nseen_b: 20");
    // Run again, it continues and reports it.
    submit(&[]).complains(&["init is skipped", "--init starts over"]).prints("seen_a: 20\nseen_b: 40");
    submit(&["--init"]).prints("seen_a: 10\nseen_b: 20");
    // A client that dies in the middle of its steps loses none of them.
    let client = sandbox.start(&["submit", &graph, "--steps", "1000000000", "--every", "10"]);
    client.next_line(Duration::from_secs(60)).expect("a step");
    client.signal("KILL");
    drop(client);
    // It might have reconnected, so its steps continue for a moment.
    let read = || sandbox.run(&["submit", &graph, "--fetch", "read_a"]).expect(0).stdout;
    assert!(crate::sandbox::wait_until(Duration::from_secs(20), || read() == read()), "its steps go on");
    let ended = submit(&["--json"]).expect(0);
    assert!(ended.json()["values"]["seen_a"]["value"].as_i64().is_some_and(|seen| seen >= 30), "{}", ended.stdout);

    // One half of the model is lost: nothing is overwritten, and the missing variables are named.
    submit(&["--init"]).prints("seen_a: 10\nseen_b: 20");
    one.process.signal("KILL");
    drop(one);
    let one = sandbox.node("ps/1");
    submit(&[]).expect(3).complains(&["1 of the 2 variables", "b (on /job:ps/task:1)", "--init"]);
    sandbox.run(&["submit", &graph, "--fetch", "read_a"]).prints("10");
    submit(&["--init"]).prints("seen_a: 10\nseen_b: 20");

    // All of it is lost: it is a first run again.
    for node in [zero, one] {
        node.process.signal("KILL");
    }
    let _nodes = [sandbox.node("ps/0"), sandbox.node("ps/1")];
    submit(&[]).prints("seen_a: 10\nseen_b: 20");
    // Nothing is fed, and no variable is left of another run.
    sandbox.run(&["run", &graph, "--steps", "3"]).prints("seen_a: 3\nseen_b: 6");
    sandbox.run(&["run", &graph, "--init", "--fetch", "read_a"]).prints("0");
    let without = sandbox.file("without.json", r#"{ "version": 1, "nodes": { "y": 2 }, "fetch": ["y"] }"#);
    sandbox.run(&["run", &without, "--init"]).expect(2).complains(&["has no \"init\""]);
}

#[test]
fn a_node_killed_while_it_saves_leaves_the_old_or_the_new() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("saves.json", SAVES);
    let data = sandbox.path("data").display().to_string();
    for steps in [1, 4, 9] {
        let node = sandbox.node_with("local/0", &["--data", &data]);
        sandbox.run(&["submit", &graph, "--run", "zero"]).expect(0);
        let client =
            sandbox.start(&["submit", &graph, "--fetch", "saved", "--steps", "100000", "--every", "1", "--quiet"]);
        for _ in 0..steps {
            client.next_line(Duration::from_secs(60)).expect("a step");
        }
        node.process.signal("KILL");
        client.end().expect(4);
        drop(node);

        let _node = sandbox.node_with("local/0", &["--data", &data]);
        let answer = sandbox.run(&["submit", &graph, "--fetch", "least,most", "--json"]).expect(0).json();
        let value = |name: &str| answer["values"][name]["value"].as_i64().expect("a number");
        assert_eq!(value("least"), value("most"), "a torn checkpoint");
        assert!(value("most") >= steps, "{} was saved after {steps} steps", value("most"));
    }
}

#[test]
fn a_graph_of_a_hundred_thousand_nodes_runs() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("local/0"), sandbox.node("local/1")];
    let mut nodes = r#""n0": 1"#.to_owned();
    for i in 1..100_000 {
        let device = i / 1000 % 2;
        let from = i - 1;
        write!(
            nodes,
            r#", "n{i}": {{ "op": "Add", "inputs": ["n{from}", "n0"], "device": "/job:local/task:{device}" }}"#
        )
        .expect("text");
    }
    let graph =
        sandbox.file("large.json", format!(r#"{{ "version": 1, "nodes": {{ {nodes} }}, "fetch": ["n99999"] }}"#));
    sandbox.run(&["submit", &graph, "--quiet"]).prints("100000");
}
