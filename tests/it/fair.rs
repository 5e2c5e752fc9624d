//! Long ops beside short ones, on the same device: nobody waits for them, and they end with their client.

use std::time::{Duration, Instant};

use crate::house::{House, NodeProcess, wait_until};

/// Far more than a small step takes, however busy the machine; far less than what it must not wait for.
const SOON: Duration = Duration::from_secs(10);

/// An op of half a minute or more.
fn slow(house: &House) -> String {
    let graph = r#"{"version": 1, "nodes": {
        "size": {"value": [3000, 3000], "dtype": "int32"},
        "x": {"op": "RandomStandardNormal", "inputs": ["size"], "attrs": {"dtype": "float64"}},
        "y": {"op": "MatrixInverse", "inputs": ["x"]},
        "w": {"op": "Slice", "inputs": ["y", [0, 0], [1, 1]]}}, "fetch": ["w"]}"#;
    house.file("slow.json", graph)
}

fn small(house: &House) -> String {
    let graph = r#"{"version": 1, "nodes": {"x": 2, "y": {"op": "Add", "inputs": ["x", 5]}}, "fetch": ["y"]}"#;
    house.file("small.json", graph)
}

/// Processor time that a node has used.
fn used(node: &NodeProcess) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process.pid())).expect("the node is there");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name in brackets").1.split_whitespace().collect();
    // In hundredths of a second on every Linux there is.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

/// Waits until the node computes something long.
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
    let house = House::new();
    let node = house.node("local/0");
    let (slow, small) = (slow(&house), small(&house));
    house.run(&["submit", &small]).prints("7");
    house.run(&["submit", &slow, "--timeout", "2"]).expect(5);
    let after = house.run(&["submit", &small]);
    let took = after.took;
    after.prints("7");
    assert!(took < SOON, "a small graph waited {took:?} behind one that was given up");
    assert!(rests(&node), "it computes on");
}

#[test]
fn a_small_session_does_not_wait_for_a_long_one() {
    let house = House::new();
    let node = house.node("local/0");
    let (slow, small) = (slow(&house), small(&house));
    house.run(&["submit", &small]).prints("7");
    let mut long = house.start(&["submit", &slow]);
    computes(&node);
    for steps in ["1", "20"] {
        let beside = house.run(&["submit", &small, "--steps", steps, "--quiet"]);
        let took = beside.took;
        beside.expect(0);
        assert!(took < SOON, "{steps} small steps took {took:?} beside a long one");
    }
    assert!(!long.has_ended(), "the long one was not long");
    // A client that is gone takes its op with it.
    long.signal("KILL");
    assert!(rests(&node), "it computes on");
}
