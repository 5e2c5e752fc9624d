//! Variables that outlive the process of their task: copies in the memory of other nodes, from which the next process begins.

use std::time::Duration;

use crate::detached::program as counter;
use crate::grpc::Client;
use crate::sandbox::{NodeProcess, Sandbox, wait_until};

const WITHIN: Duration = Duration::from_secs(60);

/// A ps that keeps copies of its variables, and reports each.
fn ps(sandbox: &Sandbox) -> NodeProcess {
    sandbox.node_with("ps/0", &["--keep-variables", "50ms", "-vv"])
}

/// Waits for a copy with so many changes of all variables together at that task.
fn copied(ps: &NodeProcess, at: &str, changes: usize) {
    let line = format!("is at {at}, with {changes} changes\n");
    assert!(wait_until(WITHIN, || ps.process.stderr().contains(&line)), "{line}\n{}", ps.process.stderr());
}

/// The process is gone, without a word.
fn kill(node: NodeProcess) {
    node.process.signal("KILL");
    node.process.end();
}

/// The process leaves in order.
fn stop(node: NodeProcess) {
    node.process.signal("TERM");
    node.process.end().expect(0);
}

/// Raises the counter, and returns its value.
fn count(sandbox: &Sandbox, graph: &str) -> u64 {
    let ended = sandbox.run(&["submit", graph, "--target", "worker/0"]).expect(0);
    ended
        .stdout
        .trim()
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{}", ended.stdout))
}

fn came_back(ps: &NodeProcess, what: &str) {
    let told = ps.process.stderr();
    let line = told.lines().find(|line| line.contains("ps/0 has its variables back: "));
    let line = line.unwrap_or_else(|| panic!("nothing came back:\n{told}"));
    assert!(line.contains(what), "{line}");
}

#[test]
fn variables_come_back_after_each_kill_and_not_after_an_orderly_end() {
    let sandbox = Sandbox::new();
    let (_worker, graph) = (sandbox.node("worker/0"), counter(&sandbox));
    let mut node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0).prints("1");
    copied(&node, "worker/0", 2);
    for life in 1..4 {
        // Two changes each, of which the second process makes its own copies.
        assert_eq!(count(&sandbox, &graph), 2 * life);
        assert_eq!(count(&sandbox, &graph), 2 * life + 1);
        copied(&node, "worker/0", 2 * life as usize + 2);
        kill(node);
        node = ps(&sandbox);
        came_back(&node, "1 variable, ");
        came_back(&node, " ago, from worker/0");
    }
    let value = || sandbox.run(&["variable", "get", "ps/0", "v"]);
    value().expect(0).prints("7");
    // It has made no copy of its own yet, and leaves: what the process before it had is dropped, too.
    stop(node);
    let node = ps(&sandbox);
    assert!(!node.process.stderr().contains("variables back"), "{}", node.process.stderr());
    value().expect(2);
    // Nor does a process without the flag get anything back.
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0).prints("1");
    copied(&node, "worker/0", 2);
    kill(node);
    let node = sandbox.node("ps/0");
    assert!(!node.process.stderr().contains("variables back"), "{}", node.process.stderr());
    value().expect(2);
}

#[test]
fn no_client_begins_before_the_variables_are_back() {
    let sandbox = Sandbox::new();
    let (_worker, graph) = (sandbox.node("worker/0"), counter(&sandbox));
    let node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 2);
    kill(node);
    std::thread::scope(|scope| {
        // These run while the task is away, and as soon as it is there.
        let run = || {
            wait_until(WITHIN, || {
                let ended = sandbox.run(&["submit", &graph, "--target", "worker/0"]);
                assert!([0, 4].contains(&ended.code()), "{} {}", ended.code(), ended.stderr);
                ended.code() == 0
            })
        };
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        let node = ps(&sandbox);
        for client in clients {
            let has_run = client.join().expect("no run finds a variable without a value");
            assert!(has_run, "{}", node.process.stderr());
        }
        assert_eq!(count(&sandbox, &graph), 5);
    });
}

#[test]
fn large_variables_come_back_and_only_changes_are_sent() {
    let sandbox = Sandbox::new();
    let _worker = sandbox.node("worker/0");
    // One of 220 MB, and one of 40 MB: each is more than a chunk has beside others.
    let graph = sandbox.file(
        "large.json",
        r#"{ "version": 1, "nodes": {
        "a": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "float32", "shape": [55000000] } },
        "b": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "float32", "shape": [10000000] } },
        "size_a": { "op": "Const", "attrs": { "value": { "dtype": "int32", "value": [55000000] } }, "device": "/job:ps/task:0" },
        "size_b": { "op": "Const", "attrs": { "value": { "dtype": "int32", "value": [10000000] } }, "device": "/job:ps/task:0" },
        "x": { "op": "Fill", "inputs": ["size_a", { "value": 2.0 }], "device": "/job:ps/task:0" },
        "y": { "op": "Fill", "inputs": ["size_b", { "value": 1.5 }], "device": "/job:ps/task:0" },
        "set_a": { "op": "AssignVariableOp", "inputs": ["a", "x"], "device": "/job:ps/task:0" },
        "set_b": { "op": "AssignVariableOp", "inputs": ["b", "y"], "device": "/job:ps/task:0" },
        "read_a": { "op": "ReadVariableOp", "inputs": ["a"], "attrs": { "dtype": "float32" }, "device": "/job:ps/task:0" },
        "read_b": { "op": "ReadVariableOp", "inputs": ["b"], "attrs": { "dtype": "float32" }, "device": "/job:ps/task:0" },
        "max_a": { "op": "Max", "inputs": ["read_a", 0], "device": "/job:ps/task:0" },
        "min_a": { "op": "Min", "inputs": ["read_a", 0], "device": "/job:ps/task:0" },
        "max_b": { "op": "Max", "inputs": ["read_b", 0], "device": "/job:ps/task:0" },
        "both": { "op": "AddV2", "inputs": ["max_a", "max_b"], "device": "/job:ps/task:0" },
        "all": { "op": "AddV2", "inputs": ["both", "min_a"], "device": "/job:ps/task:0" } },
        "init": ["set_a", "set_b"], "fetch": ["all"] }"#,
    );
    let node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 2);
    kill(node);
    let node = ps(&sandbox);
    came_back(&node, "2 variables, 260 MB");
    sandbox.run(&["submit", &graph, "--target", "worker/0"]).expect(0).prints("5.5");
    drop(node);
}

#[test]
fn a_spare_that_takes_the_name_has_the_variables() {
    let sandbox = Sandbox::new();
    let (_worker, graph) = (sandbox.node("worker/0"), counter(&sandbox));
    let node = ps(&sandbox);
    let spare = sandbox.start(&["node", "--spare", "--keep-variables", "50ms", "-vv", "--listen", "127.0.0.1:0"]);
    assert!(spare.next_line(WITHIN).is_some_and(|line| line.contains(" waits ")), "{}", spare.stderr());
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 2);
    kill(node);
    let spare = NodeProcess::start(spare, "ps/0");
    came_back(&spare, "1 variable, ");
    assert_eq!(count(&sandbox, &graph), 2);
    copied(&spare, "worker/0", 3);
}

#[test]
fn a_node_without_memory_to_spare_is_no_buddy() {
    let sandbox = Sandbox::new();
    let _worker = sandbox.node("worker/0");
    // The next by name, with less than the copy takes.
    let _small = sandbox.node_with("qs/0", &["--memory", "100MB"]);
    let graph = sandbox.file(
        "some.json",
        r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "float32", "shape": [30000000] } },
        "size": { "op": "Const", "attrs": { "value": { "dtype": "int32", "value": [30000000] } }, "device": "/job:ps/task:0" },
        "x": { "op": "Fill", "inputs": ["size", { "value": 2.0 }], "device": "/job:ps/task:0" },
        "set": { "op": "AssignVariableOp", "inputs": ["v", "x"], "device": "/job:ps/task:0" } },
        "targets": ["set"] }"#,
    );
    let node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 1);
    let told = node.process.stderr();
    assert!(told.contains("the variables of ps/0 are not copied for now: qs/0: "), "{told}");
    kill(node);
    came_back(&ps(&sandbox), "1 variable, 120 MB");
}

#[test]
fn another_node_keeps_the_copies_once_the_buddy_is_gone() {
    let sandbox = Sandbox::new();
    let (_worker, graph) = (sandbox.node("worker/0"), counter(&sandbox));
    let buddy = sandbox.node("qs/0");
    let node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "qs/0", 2);
    kill(buddy);
    copied(&node, "worker/0", 2);
    assert_eq!(count(&sandbox, &graph), 2);
    copied(&node, "worker/0", 3);
    // A process that comes back has forgotten everything.
    let buddy = sandbox.node("qs/0");
    kill(node);
    let node = ps(&sandbox);
    came_back(&node, "from worker/0");
    assert_eq!(count(&sandbox, &graph), 3);
    drop(buddy);
}

#[test]
fn what_a_session_clears_does_not_come_back() {
    let sandbox = Sandbox::new();
    let (worker, graph) = (sandbox.node_with("worker/0", &["--grpc", "127.0.0.1:0"]), counter(&sandbox));
    let node = ps(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 2);
    // tf.Session.reset
    Client::new(worker.said("grpc")).call("Reset", &[]).expect("no token is required");
    let dropped = || node.process.stderr().contains("the copies of ps/0 are dropped");
    assert!(wait_until(WITHIN, dropped), "{}", node.process.stderr());
    kill(node);
    let node = ps(&sandbox);
    assert!(!node.process.stderr().contains("variables back"), "{}", node.process.stderr());
    sandbox.run(&["variable", "get", "ps/0", "v"]).expect(2);
    // Later variables are copied as before.
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/0"]).expect(0);
    copied(&node, "worker/0", 2);
    kill(node);
    came_back(&ps(&sandbox), "1 variable, ");
}
