//! Long ops in parallel with short ones, on the same device: the short ones do not wait for them, and they end with their
//! client.

use std::time::{Duration, Instant};

use crate::sandbox::{NodeProcess, Sandbox, wait_until};

/// Far more than a small step takes, however busy the machine; far less than the ops that it must not wait for.
const SOON: Duration = Duration::from_secs(10);

/// An op of half a minute or more.
fn slow(sandbox: &Sandbox) -> String {
    let graph = r#"{"version": 1, "nodes": {
        "size": {"value": [3000, 3000], "dtype": "int32"},
        "x": {"op": "RandomStandardNormal", "inputs": ["size"], "attrs": {"dtype": "float64"}},
        "y": {"op": "MatrixInverse", "inputs": ["x"]},
        "w": {"op": "Slice", "inputs": ["y", [0, 0], [1, 1]]}}, "fetch": ["w"]}"#;
    sandbox.file("slow.json", graph)
}

/// A chain of products of large matrices: work of seconds for matrix kernels.
fn products(sandbox: &Sandbox) -> String {
    let mut nodes = String::from(r#""x0": {"op": "Fill", "inputs": [[3000, 3000], 0.0001]}, "#);
    for i in 1..=40 {
        nodes += &format!(r#""x{i}": {{"op": "MatMul", "inputs": ["x{}", "x0"]}}, "#, i - 1);
    }
    let last = r#""w": {"op": "Slice", "inputs": ["x40", [0, 0], [1, 1]]}"#;
    sandbox.file("products.json", format!(r#"{{"version": 1, "nodes": {{ {nodes} {last} }}, "fetch": ["w"]}}"#))
}

/// 128 MB that are transposed, read and summed repeatedly: work of seconds for the memory.
fn passes(sandbox: &Sandbox) -> String {
    let mut nodes = String::from(r#""x0": {"op": "Fill", "inputs": [[4096, 8192], 0.5]}, "#);
    for i in (1..=240).step_by(2) {
        let (before, next) = (i - 1, i + 1);
        nodes += &format!(
            r#""t{i}": {{"op": "Transpose", "inputs": ["x{before}", [1, 0]]}},
               "x{i}": {{"op": "Reshape", "inputs": ["t{i}", [4096, 8192]]}},
               "s{i}": {{"op": "Sum", "inputs": ["x{i}", 0]}},
               "x{next}": {{"op": "Add", "inputs": ["x{i}", "s{i}"]}}, "#
        );
    }
    let last = r#""w": {"op": "Slice", "inputs": ["x240", [0, 0], [1, 1]]}"#;
    sandbox.file("passes.json", format!(r#"{{"version": 1, "nodes": {{ {nodes} {last} }}, "fetch": ["w"]}}"#))
}

fn small(sandbox: &Sandbox) -> String {
    let graph = r#"{"version": 1, "nodes": {"x": 2, "y": {"op": "Add", "inputs": ["x", 5]}}, "fetch": ["y"]}"#;
    sandbox.file("small.json", graph)
}

/// Processor time that a node has used.
fn used(node: &NodeProcess) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process.pid())).expect("the node is there");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name in brackets").1.split_whitespace().collect();
    // In hundredths of a second on every Linux.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

/// Waits until the node runs a long computation.
fn computes(node: &NodeProcess) {
    let before = used(node);
    assert!(wait_until(Duration::from_secs(60), || used(node) > before + Duration::from_millis(700)));
}

/// Waits until it computes nothing any more.
fn rests(node: &NodeProcess) -> bool {
    let (mut since, mut before) = (Instant::now(), used(node));
    wait_until(Duration::from_secs(30), || {
        let now = used(node);
        if now > before + Duration::from_millis(20) {
            (since, before) = (Instant::now(), now);
        }
        since.elapsed() > Duration::from_millis(400)
    })
}

#[test]
fn a_long_op_ends_with_its_client_s_patience() {
    let sandbox = Sandbox::new();
    let node = sandbox.node("local/0");
    let (slow, small) = (slow(&sandbox), small(&sandbox));
    sandbox.run(&["submit", &small]).prints("7");
    sandbox.run(&["submit", &slow, "--timeout", "2"]).expect(5);
    let after = sandbox.run(&["submit", &small]);
    let took = after.took;
    after.prints("7");
    assert!(took < SOON, "a small graph waited {took:?} behind one that was given up");
    assert!(rests(&node), "it computes on");
}

#[test]
fn a_small_session_does_not_wait_for_a_long_one() {
    let sandbox = Sandbox::new();
    let node = sandbox.node("local/0");
    let (slow, small) = (slow(&sandbox), small(&sandbox));
    sandbox.run(&["submit", &small]).prints("7");
    let mut long = sandbox.start(&["submit", &slow]);
    computes(&node);
    for steps in ["1", "20"] {
        let beside = sandbox.run(&["submit", &small, "--steps", steps, "--quiet"]);
        let took = beside.took;
        beside.expect(0);
        assert!(took < SOON, "{steps} small steps took {took:?} beside a long one");
    }
    assert!(!long.has_ended(), "the long one was not long");
    // The op of a client that is gone ends with it.
    long.signal("KILL");
    assert!(rests(&node), "it computes on");
}

#[test]
fn small_steps_go_on_beside_whatever_is_large() {
    /// The most time that a small step waits for a large one.
    const WAIT: Duration = Duration::from_millis(100);
    const STEPS: usize = 100;
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--backend", "flex"]);
    let small = small(&sandbox);
    for large in [slow(&sandbox), products(&sandbox), passes(&sandbox)] {
        let mut long = sandbox.start(&["submit", &large, "--quiet"]);
        computes(&node);
        // A line for each step; the faster half of them shows the time of one, whatever other load the machine has.
        let steps = STEPS.to_string();
        let beside = sandbox.start(&["submit", &small, "--steps", &steps, "--every", "1"]);
        let mut gaps = Vec::new();
        assert!(beside.next_line(SOON).is_some(), "beside {large}: {}", beside.stderr());
        let mut before = Instant::now();
        while let Some(_line) = beside.next_line(SOON) {
            gaps.push(before.elapsed());
            before = Instant::now();
        }
        assert!(!long.has_ended(), "{large} was not long");
        gaps.sort_unstable();
        assert!(gaps.len() >= STEPS / 2, "{} lines beside {large}: {}", gaps.len(), beside.stderr());
        let median = gaps[gaps.len() / 2];
        assert!(median < WAIT, "a small step takes {median:?} beside {large}");
        beside.end().expect(0);
        // Work that its client gave up leaves the device.
        long.signal("KILL");
        assert!(rests(&node), "{large} computes on");
    }
}
