//! The status of nodes, and variables that are read and set without a graph.

use std::time::Duration;

use serde_json::Value;

use crate::sandbox::{Sandbox, wait_until};

const SOON: Duration = Duration::from_secs(60);

/// A parameter server's variables, and a worker that counts on one of them.
const COUNTING: &str = r#"{ "version": 1, "nodes": {
  "w":     { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "float32", "shape": [1000] } },
  "zeros": { "op": "Fill", "inputs": [[1000], { "value": 0.0 }], "device": "/job:ps/task:0" },
  "zero":  { "op": "AssignVariableOp", "inputs": ["w", "zeros"], "device": "/job:ps/task:0" },
  "n":     { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int64", "shape": [] } },
  "begin": { "op": "AssignVariableOp", "inputs": ["n", { "value": 0, "dtype": "int64" }], "device": "/job:ps/task:0" },
  "one":   { "op": "Const", "attrs": { "dtype": "int64", "value": { "dtype": "int64", "value": 1 } }, "device": "/job:worker/task:0" },
  "count": { "op": "AssignAddVariableOp", "inputs": ["n", "one"], "device": "/job:ps/task:0" },
  "seen":  { "op": "ReadVariableOp", "inputs": ["n"], "control": ["count"], "device": "/job:ps/task:0",
             "attrs": { "dtype": "int64" } } },
  "fetch": ["seen"], "init": ["zero", "begin"] }"#;

fn status(sandbox: &Sandbox, task: &str) -> Value {
    let told = sandbox.run(&["status", task, "--json"]).expect(0).json();
    let [node] = &told.as_array().expect("a list")[..] else { panic!("{told}") };
    node.clone()
}

fn items<'a>(node: &'a Value, list: &str) -> &'a [Value] {
    node[list]["items"].as_array().expect("a list")
}

fn named<'a>(items: &'a [Value], key: &str, name: &str) -> &'a Value {
    items.iter().find(|item| item[key] == name).unwrap_or_else(|| panic!("no {name} in {items:?}"))
}

#[test]
fn a_node_at_work_tells_its_sessions_pieces_variables_and_peers() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("ps/0"), sandbox.node("worker/0")];
    let graph = sandbox.file("counting.json", COUNTING);
    sandbox.run(&["submit", &graph, "--steps", "20"]).prints("20");

    let ps = status(&sandbox, "ps/0");
    assert_eq!((&ps["task"], &ps["mesh"]), (&"/job:ps/task:0".into(), &sandbox.mesh.clone().into()));
    assert_eq!(ps["version"], env!("CARGO_PKG_VERSION"));
    // The client has gone, and with it its session; its resources are kept.
    assert!(wait_until(SOON, || status(&sandbox, "ps/0")["sessions"]["total"] == 0));
    let w = named(items(&ps, "resources"), "name", "w");
    assert_eq!((&w["bytes"], &w["version"], &w["kind"]), (&4000.into(), &1.into(), &"variable".into()));
    assert_eq!((&w["dtypes"][0], &w["shape"][0]), (&"float32".into(), &1000.into()));
    let n = named(items(&ps, "resources"), "name", "n");
    assert_eq!((&n["bytes"], &n["version"]), (&8.into(), &21.into()), "one assignment and 20 steps");
    let worker = named(items(&ps, "peers"), "task", "/job:worker/task:0");
    assert_eq!(worker["state"], "up");
    // Processes of one user on one Linux machine meet through Unix sockets.
    let own = if cfg!(target_os = "linux") { "/unix/" } else { "127.0.0.1" };
    assert!(worker["address"].as_str().unwrap().contains(own), "{worker}");
    assert!(worker["round_trip_us"].as_u64().is_some_and(|us| us < 10_000_000), "{worker}");
    // A step sends the ps a number from the worker.
    assert!(worker["received_bytes"].as_u64().unwrap() > 20 * 8, "{worker}");
    let limits = ps["limits"].as_array().unwrap();
    assert!(named(limits, "name", "descriptors")["used"].as_u64().unwrap() > 3);
    assert!(named(limits, "name", "memory")["limit"].as_u64().is_some(), "a node has a budget");
    assert_eq!(named(limits, "name", "peers")["used"], ps["peers"]["total"]);

    // While a client runs steps, its session is listed on its master, and its pieces on both nodes.
    let client = sandbox.start(&["submit", &graph, "--steps", "1000000000", "--every", "100", "--target", "worker/0"]);
    client.next_line(SOON).expect("steps that are done");
    let (first, second) = (status(&sandbox, "worker/0"), status(&sandbox, "worker/0"));
    let session = |node: &Value| items(node, "sessions").first().cloned().unwrap_or_else(|| panic!("{node}"));
    let (before, after) = (session(&first), session(&second));
    assert_eq!(before["id"], after["id"]);
    assert!(before["steps"].as_u64().unwrap() >= 100 && after["steps"].as_u64() > before["steps"].as_u64());
    assert!(after["steps_per_second"].as_f64().unwrap() > 0.0, "{after}");
    assert_eq!((&after["runs"], status(&sandbox, "ps/0")["sessions"]["total"].as_u64()), (&1.into(), Some(0)));
    let ps = status(&sandbox, "ps/0");
    let piece = named(items(&ps, "pieces"), "session", after["id"].as_str().unwrap());
    assert!(piece["steps"].as_u64().unwrap() >= after["steps"].as_u64().unwrap(), "{piece} {after}");
    assert!(items(&ps, "devices")[0]["busy_share"].as_f64().unwrap() > 0.0, "{ps}");

    // For people, all nodes at once, and no broken lines.
    let text = sandbox.run(&["status"]).expect(0).stdout;
    for part in ["/job:ps/task:0 of mesh", "/job:worker/task:0 of mesh", "STEPS/S", "ROUND TRIP", "float32[1000]"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    drop(client);
    sandbox.run(&["status", "ps/7"]).expect(4).complains(&["ps/0"]);
}

#[test]
fn variables_are_listed_read_and_set_from_the_command_line() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("ps/0"), sandbox.node("worker/0")];
    let graph = sandbox.file("counting.json", COUNTING);
    sandbox.run(&["submit", &graph, "--steps", "3"]).prints("3");
    let variable = |arguments: &[&str]| sandbox.run(&[&["variable"], arguments].concat());

    let listed = variable(&["list", "ps/0", "--json"]).expect(0).json();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["n", "w"]);
    let text = variable(&["list", "ps/0"]).expect(0).stdout;
    assert!(text.contains("float32[1000]") && text.contains("4.00 kB"), "{text}");
    variable(&["list", "worker/0"]).prints("");

    variable(&["get", "ps/0", "n"]).prints("3");
    let got = variable(&["get", "ps/0", "n", "--json"]).expect(0).json();
    assert_eq!((&got["version"], &got["n"]["value"], &got["n"]["dtype"]), (&4.into(), &3.into(), &"int64".into()));
    // As a file, it can be set to its old value, and steps continue from there.
    let file = sandbox.path("n.npy").display().to_string();
    variable(&["get", "ps/0", "n", "--out", &file]).prints("");
    sandbox.run(&["submit", &graph, "--steps", "2"]).prints("5");
    variable(&["set", "ps/0", "n", &format!("@{file}")]).prints("version 7");
    sandbox.run(&["submit", &graph]).prints("4");
    variable(&["set", "ps/0", "n", "-40", "--if-version", "8"]).prints("version 9");
    variable(&["set", "ps/0", "n", "1", "--if-version", "8"]).expect(4).complains(&["has version 9", "not 8"]);
    variable(&["get", "ps/0", "n", "--device", "cpu:0"]).prints("-40");

    variable(&["set", "ps/0", "n", "[1, 2]"]).expect(2).complains(&["wrong shape", "n"]);
    variable(&["set", "ps/0", "n", "0.5"]).expect(2).complains(&["int64"]);
    variable(&["get", "ps/0", "m"]).expect(2).complains(&["there is no variable 'm'"]);
    variable(&["set", "ps/0", "m", "1"]).expect(2).complains(&["there is no variable 'm'"]);
    variable(&["get", "ps/0", "n", "--device", "n"]).expect(2).complains(&["cpu:0"]);
}

#[test]
fn what_happens_on_a_node_is_told_in_order() {
    let sandbox = Sandbox::new();
    let _ps = sandbox.node("ps/0");
    let worker = sandbox.node("worker/0");
    let graph = sandbox.file("counting.json", COUNTING);
    sandbox.run(&["submit", &graph]).prints("1");
    worker.process.signal("KILL");
    drop(worker);
    let events = || -> Vec<Value> {
        let told = sandbox.run(&["events", "ps/0", "--now", "--json"]).expect(0).stdout;
        told.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    };
    let place = |events: &[Value], name: &str, part: &str| {
        events.iter().position(|event| event["event"] == name && event["text"].as_str().unwrap().contains(part))
    };
    assert!(wait_until(SOON, || place(&events(), "task_lost", "worker/0").is_some()));
    let told = events();
    let at =
        |name: &str, part: &str| place(&told, name, part).unwrap_or_else(|| panic!("no {name} {part} in {told:?}"));
    assert!(at("task_met", "worker/0") < at("session_opened", ""));
    assert!(at("session_opened", "") < at("session_ended", ""));
    assert!(at("session_ended", "") < at("task_lost", "worker/0"));
    let numbers: Vec<u64> = told.iter().map(|event| event["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=told.len() as u64).collect::<Vec<_>>());
    let text = sandbox.run(&["events", "ps/0", "--now"]).expect(0).stdout;
    assert!(text.contains("worker/0 (") && text.contains("is gone"), "{text}");
}

#[test]
fn steps_are_told_to_who_asks_for_them() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("ps/0"), sandbox.node("worker/0")];
    let graph = sandbox.file("counting.json", COUNTING);
    let follower = sandbox.start(&["events", "ps/0", "--steps", "--json"]);
    // It has made its first request when it prints the earlier events.
    follower.next_line(SOON).expect("the worker was met");
    sandbox.run(&["submit", &graph, "--steps", "3", "--target", "ps/0"]).prints("3");
    let is_last = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("an object a line");
        // "done with step 3", or "with steps 1 to 3".
        event["event"] == "steps_done" && event["text"].as_str().unwrap().ends_with(" 3")
    };
    while !is_last(&follower.next_line(SOON).expect("the third step is done")) {}
}
