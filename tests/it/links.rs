//! Cables that are cut and connections that are reset during training: no value is lost or duplicated, and if a link
//! stays down, errors name it.
//!
//! Three nodes on a switch: ps/0 counts, worker/1 mixes each count into a state that depends on the whole history, and
//! chief/0 is the master, so that values do not travel through the master.

use std::thread;
use std::time::{Duration, Instant};

use crate::network::{Namespaces, host_address};
use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};
use meshtf_testing::means::{Means, missing};

/// The hosts at the switch; the client runs on the master's.
const PS: usize = 0;
const WORKER: usize = 1;
const CHIEF: usize = 2;

/// The limit of a step under load, and of a node's search for its peers after a fault.
const PATIENCE: Duration = Duration::from_secs(60);

/// The count of a step is sent to worker/1, `times` times in a tensor if that is more than 1; its result is sent back.
pub fn training(times: usize) -> String {
    let nodes = r#"{ "version": 1, "nodes": {
  "c":      { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int32", "shape": [] } },
  "c_zero": { "op": "AssignVariableOp", "inputs": ["c", 0], "device": "/job:ps/task:0" },
  "c_next": { "op": "AssignAddVariableOp", "inputs": ["c", 1], "device": "/job:ps/task:0" },
  "count":  { "op": "ReadVariableOp", "inputs": ["c"], "control": ["c_next"], "device": "/job:ps/task:0", "attrs": { "dtype": "int32" } },
  "many":   { "op": "Fill", "inputs": [[TIMES], "count"], "device": "/job:ps/task:0" },
  "one":    { "op": "Max", "inputs": ["many", 0], "device": "/job:worker/task:1" },
  "h":      { "op": "VarHandleOp", "device": "/job:worker/task:1", "attrs": { "dtype": "int32", "shape": [] } },
  "h_zero": { "op": "AssignVariableOp", "inputs": ["h", 0], "device": "/job:worker/task:1" },
  "h_old":  { "op": "ReadVariableOp", "inputs": ["h"], "device": "/job:worker/task:1", "attrs": { "dtype": "int32" } },
  "h_31":   { "op": "Mul", "inputs": ["h_old", 31], "device": "/job:worker/task:1" },
  "h_sum":  { "op": "AddV2", "inputs": ["h_31", "one"], "device": "/job:worker/task:1" },
  "h_new":  { "op": "FloorMod", "inputs": ["h_sum", 65521], "device": "/job:worker/task:1" },
  "h_keep": { "op": "AssignVariableOp", "inputs": ["h", "h_new"], "device": "/job:worker/task:1" },
  "state":  { "op": "Identity", "inputs": ["h_new"], "device": "/job:ps/task:0" },
  "zero":   { "op": "NoOp", "control": ["c_zero", "h_zero"] } } }"#;
    nodes.replace("TIMES", &times.to_string())
}

/// Three hosts at a switch, each with a node.
struct Field {
    namespaces: Namespaces,
    sandbox: Sandbox,
    graph: String,
    nodes: Vec<NodeProcess>,
}

impl Field {
    fn new(test: &str, times: usize) -> Option<Field> {
        let namespaces = Namespaces::new(4, test)?;
        namespaces.join_at_switch();
        let sandbox = Sandbox::new().in_namespace(&namespaces.names[CHIEF]);
        let graph = sandbox.file("training.json", training(times));
        let mut field = Field { namespaces, sandbox, graph, nodes: Vec::new() };
        for (place, name) in [(PS, "ps/0"), (WORKER, "worker/1"), (CHIEF, "chief/0")] {
            let machine = field.sandbox.at(&field.namespaces.names[place]);
            field.nodes.push(machine.node_with(name, &["--listen", &format!("{}:0", host_address(place))]));
        }
        Some(field)
    }

    /// A training that has just begun.
    fn train(&self) -> Training {
        Training::begin(&self.sandbox, &self.graph)
    }

    /// Cuts the cable between two hosts, in both directions, for a while.
    fn cut(&self, one: usize, other: usize, time: Duration) {
        self.namespaces.silence(one, other);
        self.namespaces.silence(other, one);
        thread::sleep(time);
        self.namespaces.restore(one, other);
        self.namespaces.restore(other, one);
    }
}

/// A client that trains, and the output expected of it so far.
pub struct Training {
    pub client: Running,
    step: u64,
    state: u64,
}

impl Training {
    /// One that has just begun, of a graph that [`training`] makes.
    pub fn begin(sandbox: &Sandbox, graph: &str) -> Training {
        Training::with_guard(sandbox, graph, "off")
    }

    fn with_guard(sandbox: &Sandbox, graph: &str, guard: &str) -> Training {
        sandbox.run(&["submit", graph, "--run", "zero", "--target", "chief/0"]).expect(0);
        let steps = ["--fetch", "count,state", "--run", "h_keep", "--steps", "1000000000", "--every", "7", "--json"];
        let fixed = ["submit", graph, "--target", "chief/0", "--guard", guard];
        let client = sandbox.start(&[&fixed[..], &steps].concat());
        let mut training = Training { client, step: 0, state: 0 };
        training.goes_on();
        training
    }

    /// Checks the next line that the client prints; returns whether there was one.
    fn next(&mut self) -> bool {
        let line = self.client.next_line(PATIENCE);
        line.as_ref().map(|line| self.check(line)).is_some()
    }

    fn check(&mut self, line: &str) {
        let shown: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let shown = |name: &str| shown["values"][name]["value"].as_u64().unwrap_or_else(|| panic!("no {name}: {line}"));
        let count = shown("count");
        assert!(count > self.step, "step {count} after {}", self.step);
        while self.step < count {
            self.step += 1;
            self.state = (self.state * 31 + self.step) % 65521;
        }
        assert_eq!(shown("state"), self.state, "a value was lost, came twice or was overtaken by step {count}");
    }

    /// Checks that steps that begin from now on succeed.
    pub fn goes_on(&mut self) {
        // Earlier output waits to be read; the window of steps under way is 32.
        while let Some(line) = self.client.waiting_line() {
            self.check(&line);
        }
        for _ in 0..12 {
            assert!(self.next(), "it stopped at step {}: {}", self.step, self.client.stderr());
        }
    }

    /// Reads until the client ends, or has continued for a while.
    fn goes_on_or_fails(mut self, parts: &[&str]) {
        let start = Instant::now();
        while self.next() {
            if start.elapsed() > Duration::from_secs(3) {
                return;
            }
        }
        self.client.end_within(PATIENCE).expect(4).complains(parts);
    }
}

#[test]
fn cuts_under_three_seconds_fail_no_step() {
    let Some(field) = Field::new("a wire cut for less than 3 s", 1) else { return };
    let mut training = field.train();
    for (one, other, milliseconds) in [(PS, WORKER, 200), (CHIEF, PS, 1000), (PS, WORKER, 2500), (WORKER, PS, 2900)] {
        field.cut(one, other, Duration::from_millis(milliseconds));
        training.goes_on();
    }
    // In one direction only.
    for (from, to) in [(PS, WORKER), (WORKER, PS)] {
        field.namespaces.silence(from, to);
        thread::sleep(Duration::from_millis(1500));
        field.namespaces.restore(from, to);
        training.goes_on();
    }
}

#[test]
fn large_values_survive_a_cut_too() {
    let Some(field) = Field::new("a wire cut under large values", 500_000) else { return };
    let mut training = field.train();
    for milliseconds in [700, 2500] {
        field.cut(PS, WORKER, Duration::from_millis(milliseconds));
        training.goes_on();
    }
}

#[test]
fn resets_are_not_noticed() {
    thread::scope(|scope| {
        for times in [1, 100_000] {
            scope.spawn(move || {
                let Some(field) = Field::new("connections that are reset", times) else { return };
                let mut training = field.train();
                // A fixed seed, so that a failure can be reproduced as far as possible.
                let mut draw = 7u64;
                let mut resets = 0;
                for _ in 0..40 {
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let places = [(PS, WORKER), (WORKER, PS), (CHIEF, PS), (WORKER, CHIEF)];
                    let (from, to) = places[(draw >> 40) as usize % places.len()];
                    resets += field.namespaces.reset(from, to);
                    for _ in 0..(draw >> 50) % 5 {
                        assert!(training.next(), "it stopped at step {}: {}", training.step, training.client.stderr());
                    }
                }
                training.goes_on();
                if resets == 0 {
                    missing(Means::SocketKill, "connections that are reset");
                }
            });
        }
    });
}

#[test]
fn a_longer_cut_gives_right_values_or_a_named_failure() {
    thread::scope(|scope| {
        for seconds in [4, 6, 10] {
            scope.spawn(move || {
                let Some(field) = Field::new("a wire cut for longer", 1) else { return };
                let training = field.train();
                field.cut(PS, WORKER, Duration::from_secs(seconds));
                training.goes_on_or_fails(&["cannot reach", "worker/1", "ps/0"]);
                // And the link is complete again.
                let whole = wait_until(PATIENCE, || {
                    field.sandbox.run(&["submit", &field.graph, "--fetch", "state", "--target", "chief/0"]).code() == 0
                });
                assert!(whole, "after {seconds} s without a wire the mesh is not whole again");
            });
        }
    });
}

/// Between two workers, and between the master and a worker: the run waits for as long as the wire is cut.
#[test]
fn guarded_steps_outlive_a_cut_that_ends_a_link() {
    thread::scope(|scope| {
        for (one, other) in [(PS, WORKER), (PS, CHIEF)] {
            scope.spawn(move || {
                let Some(field) = Field::new("a wire cut under guarded steps", 1) else { return };
                let mut training = Training::with_guard(&field.sandbox, &field.graph, "0.5");
                // Many times the distance between two copies.
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(4) {
                    assert!(training.next(), "{}", training.client.stderr());
                }
                field.cut(one, other, Duration::from_secs(20));
                let continues = || training.client.stderr().contains("; continued from ");
                assert!(wait_until(PATIENCE, continues), "{}", training.client.stderr());
                training.goes_on();
            });
        }
    });
}

#[test]
fn a_link_that_stays_down_is_named() {
    let Some(field) = Field::new("a wire cut for good", 1) else { return };
    let said = ["cannot reach", "though both are up", "worker/1", "ps/0"];
    let training = field.train();
    field.namespaces.silence(PS, WORKER);
    field.namespaces.silence(WORKER, PS);
    let cut = Instant::now();
    let mut training = training;
    while training.next() {}
    training.client.end_within(PATIENCE).expect(4).complains(&said);
    assert!(cut.elapsed() < Duration::from_secs(12), "the client heard of it after {:?}", cut.elapsed());

    // Every node can see it, and none waits for it.
    let seen = wait_until(PATIENCE, || {
        let ps = field.sandbox.run(&["ps"]).expect(0);
        ["worker/1 cannot reach ps/0, though both are up", "ps/0 cannot reach worker/1, though both are up"]
            .iter()
            .all(|line| ps.stdout.lines().any(|said| said == *line))
    });
    assert!(seen, "{}", field.sandbox.run(&["ps"]).stdout);
    let task = |name: &str, ps: &serde_json::Value| {
        ps.as_array().into_iter().flatten().find(|member| member["task"] == *name).cloned().unwrap_or_default()
    };
    let ps = field.sandbox.run(&["ps", "--json"]).expect(0).json();
    assert_eq!(task("/job:worker/task:1", &ps)["cannot_reach"], serde_json::json!(["/job:ps/task:0"]));
    assert_eq!(task("/job:chief/task:0", &ps)["cannot_reach"], serde_json::json!([]));
    let submit = || field.sandbox.run(&["submit", &field.graph, "--fetch", "state", "--target", "chief/0"]);
    let refused = submit().expect(4).complains(&said);
    assert!(refused.took < Duration::from_secs(5), "{:?}", refused.took);
    // Steps that do not need the link run.
    field.sandbox.run(&["submit", &field.graph, "--fetch", "count", "--target", "chief/0"]).expect(0);

    field.namespaces.restore(PS, WORKER);
    field.namespaces.restore(WORKER, PS);
    assert!(wait_until(PATIENCE, || submit().code() == 0), "{}", submit().stderr);
    let unseen = wait_until(PATIENCE, || !field.sandbox.run(&["ps"]).stdout.contains("cannot reach"));
    assert!(unseen, "{}", field.sandbox.run(&["ps"]).stdout);
}
