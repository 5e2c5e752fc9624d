//! Nodes with little memory: whatever a graph does, its step fails with ResourceExhausted and the name of the largest
//! holder; the node stays up, the memory is freed, and another session continues. Every budget here is small, so that a
//! test takes little memory of its machine even if the budget fails.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};

/// The budget of a node in these tests.
const BUDGET: &str = "100MB";
/// Elements of a tensor of 20 MB.
const TWENTY_MB: usize = 5_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with [`BUDGET`], and a session on it that runs small steps all the time.
struct Crowded {
    sandbox: Sandbox,
    _node: NodeProcess,
    beside: Running,
}

impl Crowded {
    fn new() -> Crowded {
        let sandbox = Sandbox::new();
        let node = sandbox.node_with("local/0", &["--memory", BUDGET, "--backend", "flex"]);
        assert_eq!(node.said("memory"), BUDGET, "{}", node.line);
        let small = sandbox.file(
            "small.json",
            r#"{ "version": 1, "nodes": { "x": [1.5, 2.5], "y": { "op": "Mul", "inputs": ["x", 2.0] } }, "fetch": ["y"] }"#,
        );
        let beside = sandbox.start(&["submit", &small, "--steps", "1000000000", "--every", "500", "--quiet"]);
        Crowded { sandbox, _node: node, beside }
    }

    /// The graph's step fails with `holder` as the largest holder; afterwards everything is as before.
    #[track_caller]
    fn refuses(&self, graph: &str, arguments: &[&str], holder: &str) {
        self.goes_on("before");
        let graph = self.sandbox.file("graph.json", graph);
        let all: Vec<&str> = ["submit", &graph, "--quiet"].iter().chain(arguments).copied().collect();
        let parts = ["ResourceExhausted", "of its 100 MB (--memory) in use; the most is held by", holder];
        self.sandbox.run(&all).expect(3).complains(&parts);
        self.goes_on("after");
    }

    /// More than half of the budget is free: it can be allocated, and is freed with its step.
    #[track_caller]
    fn has_room(&self) {
        for _ in 0..2 {
            let graph = self.sandbox.file("room.json", fills(&["Fill"; 3], TWENTY_MB));
            self.sandbox.run(&["submit", &graph, "--fetch", "most", "--quiet"]).prints("3.0");
        }
    }

    /// The other session completes further steps.
    #[track_caller]
    fn goes_on(&self, when: &str) {
        // Only a new line counts, not the output so far.
        while self.beside.next_line(Duration::ZERO).is_some() {}
        assert!(self.beside.next_line(PATIENCE).is_some(), "{when}: {}", self.beside.stderr());
    }
}

/// A graph in which some ops each hold a tensor of this many elements at once; fetches the greatest of their sum.
fn fills(ops: &[&str], elements: usize) -> String {
    let mut nodes = String::new();
    let mut names = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        let inputs = if *op == "Fill" { format!("[[{elements}], 1.0]") } else { format!("[[{elements}]]") };
        let attrs = if *op == "Fill" { "{}" } else { r#"{ "dtype": "float32" }"# };
        write!(nodes, r#""n{i}": {{ "op": "{op}", "inputs": {inputs}, "attrs": {attrs} }}, "#).expect("text");
        names.push(format!("\"n{i}\""));
    }
    format!(
        r#"{{ "version": 1, "nodes": {{ {nodes}
          "sum": {{ "op": "AddN", "inputs": [{}] }},
          "most": {{ "op": "Max", "inputs": ["sum", 0] }} }} }}"#,
        names.join(", ")
    )
}

#[test]
fn results_over_the_budget_are_refused_and_freed() {
    let crowded = Crowded::new();
    crowded.has_room();
    let values = "the values of its nodes";
    crowded.refuses(&fills(&["Fill"; 3], 2 * TWENTY_MB), &["--fetch", "most"], values);
    crowded.refuses(&fills(&["RandomUniform"; 8], TWENTY_MB), &["--fetch", "most"], values);
    crowded.refuses(&fills(&["TruncatedNormal"; 8], TWENTY_MB), &["--fetch", "most"], values);
    // Each alone would exceed the budget.
    let line = fills(&["Fill"], 6 * TWENTY_MB);
    let graph = crowded.sandbox.file("large.json", line);
    crowded.sandbox.run(&["submit", &graph, "--fetch", "most"]).expect(3).complains(&[
        "ResourceExhausted: OOM when allocating tensor with shape[30000000] and type float32: this takes 120 MB",
        "node n0, op Fill, on /job:local/task:0/device:CPU:0",
    ]);
    crowded.has_room();
}

#[test]
fn variables_fill_the_budget_and_stay() {
    let crowded = Crowded::new();
    let mut nodes = String::new();
    for i in 0..8 {
        write!(
            nodes,
            r#""v{i}": {{ "op": "VarHandleOp", "attrs": {{ "dtype": "float32", "shape": [{TWENTY_MB}] }} }},
               "r{i}": {{ "op": "Fill", "inputs": [[{TWENTY_MB}], {i}.5] }},
               "init{i}": {{ "op": "AssignVariableOp", "inputs": ["v{i}", "r{i}"] }},
               "read{i}": {{ "op": "ReadVariableOp", "inputs": ["v{i}"], "attrs": {{ "dtype": "float32" }} }},
               "most{i}": {{ "op": "Max", "inputs": ["read{i}", 0] }}, "#
        )
        .expect("text");
    }
    let graph = format!(r#"{{ "version": 1, "nodes": {{ {nodes} "x": 1 }} }}"#);
    let file = crowded.sandbox.file("variables.json", &graph);
    for i in 0..3 {
        crowded.sandbox.run(&["submit", &file, "--run", &format!("init{i}"), "--quiet"]).expect(0);
    }
    crowded.refuses(&graph, &["--run", "init3,init4,init5,init6,init7"], "variable 'v");
    // Existing elements are kept, and can be read and overwritten.
    crowded.sandbox.run(&["submit", &file, "--fetch", "most1", "--quiet"]).prints("1.5");
}

#[test]
fn a_queue_that_grows_is_stopped_and_can_be_emptied() {
    let crowded = Crowded::new();
    // Elements of 200 kB and of 4 B: neither large results nor small ones fill the budget.
    for (name, elements, steps) in [("large", 50_000, "10"), ("small", 1, "10000")] {
        let graph = format!(
            r#"{{ "version": 1, "nodes": {{
              "{name}": {{ "op": "FIFOQueueV2", "attrs": {{ "component_types": ["float32"], "shapes": [[{elements}]], "shared_name": "{name}" }} }},
              "many": {{ "op": "Fill", "inputs": [[200, {elements}], 1.5] }},
              "put": {{ "op": "QueueEnqueueManyV2", "inputs": ["{name}", "many"] }},
              "size": {{ "op": "QueueSizeV2", "inputs": ["{name}"] }},
              "ten": {{ "op": "QueueDequeueManyV2", "inputs": ["{name}", 10],
                        "attrs": {{ "component_types": ["float32"] }} }},
              "one": {{ "op": "QueueDequeueV2", "inputs": ["{name}"], "attrs": {{ "component_types": ["float32"] }} }},
              "first": {{ "op": "Max", "inputs": ["one", 0] }} }} }}"#
        );
        crowded.refuses(&graph, &["--run", "put", "--steps", steps], &format!("queue '{name}'"));
        let file = crowded.sandbox.file("queue.json", &graph);
        crowded.sandbox.run(&["submit", &file, "--fetch", "first", "--quiet"]).prints("1.5");
        // A full queue leaves little memory; emptied a few elements at a time, it frees memory for the next one.
        let size = crowded.sandbox.run(&["submit", &file, "--fetch", "size", "--quiet"]).expect(0).stdout;
        let tens = (size.trim().parse::<usize>().expect("a number") / 10).to_string();
        crowded.sandbox.run(&["submit", &file, "--run", "ten", "--steps", &tens, "--quiet"]).expect(0);
    }
    crowded.has_room();
}

/// A loop of a thousand iterations around `body`, which computes `state` from `flow` and the 400 kB tensor `block`.
fn looped(before: &str, start: &str, body: &str) -> String {
    format!(
        r#"{{ "version": 1, "nodes": {{ {before}
          "i_in":   {{ "op": "Enter", "inputs": [0], "attrs": {{ "frame_name": "loop" }} }},
          "s_in":   {{ "op": "Enter", "inputs": ["{start}"], "attrs": {{ "frame_name": "loop" }} }},
          "end_in": {{ "op": "Enter", "inputs": [1000], "attrs": {{ "frame_name": "loop", "is_constant": true }} }},
          "i":      {{ "op": "Merge", "inputs": ["i_in", "i_next"] }},
          "s":      {{ "op": "Merge", "inputs": ["s_in", "s_next"] }},
          "more":   {{ "op": "Less", "inputs": ["i", "end_in"] }},
          "go":     {{ "op": "LoopCond", "inputs": ["more"] }},
          "i_now":  {{ "op": "Switch", "inputs": ["i", "go"] }},
          "s_now":  {{ "op": "Switch", "inputs": ["s", "go"] }},
          "at":     {{ "op": "Identity", "inputs": ["i_now:1"] }},
          "size":   {{ "value": [100000], "control": ["at"] }},
          "half":   {{ "value": 0.5, "control": ["at"] }},
          "one":    {{ "value": 1, "control": ["at"] }},
          "block":  {{ "op": "Fill", "inputs": ["size", "half"] }},
          {body},
          "i_plus": {{ "op": "Add", "inputs": ["at", "one"] }},
          "i_next": {{ "op": "NextIteration", "inputs": ["i_plus"] }},
          "s_next": {{ "op": "NextIteration", "inputs": ["state"] }},
          "i_out":  {{ "op": "Exit", "inputs": ["i_now"] }},
          "s_out":  {{ "op": "Exit", "inputs": ["s_now"] }} }},
        "fetch": ["i_out"], "targets": ["s_out"] }}"#
    )
}

#[test]
fn values_gathered_by_a_loop_are_stopped_and_freed() {
    let crowded = Crowded::new();
    let array = looped(
        r#""array": { "op": "TensorArrayV3", "inputs": [0],
                      "attrs": { "dtype": "float32", "dynamic_size": true, "tensor_array_name": "rows" } },
           "array_in": { "op": "Enter", "inputs": ["array"], "attrs": { "frame_name": "loop", "is_constant": true } },"#,
        "array:1",
        r#""state": { "op": "TensorArrayWriteV3", "inputs": ["array_in", "at", "block", "s_now:1"] }"#,
    );
    crowded.refuses(&array, &[], "tensor array 'rows'");
    let list = looped(
        r#""list": { "op": "EmptyTensorList", "inputs": [[-1], -1], "attrs": { "element_dtype": "float32" } },"#,
        "list",
        r#""state": { "op": "TensorListPushBack", "inputs": ["s_now:1", "block"] }"#,
    );
    crowded.refuses(&list, &[], "a list of ");
    let stack = looped(
        r#""stack": { "op": "StackV2", "inputs": [-1], "attrs": { "elem_type": "float32", "stack_name": "kept" } },
           "stack_in": { "op": "Enter", "inputs": ["stack"], "attrs": { "frame_name": "loop", "is_constant": true } },"#,
        "array",
        r#""pushed": { "op": "StackPushV2", "inputs": ["stack_in", "block"] },
           "state": { "op": "Identity", "inputs": ["s_now:1"], "control": ["pushed"] }"#,
    );
    crowded.refuses(&stack.replace(r#"["array"]"#, "[1.0]"), &[], "stack 'stack'");
    crowded.has_room();
}

#[test]
fn values_that_wait_for_a_later_step_are_stopped() {
    let sandbox = Sandbox::new();
    let _nodes = [
        sandbox.node_with("local/0", &["--backend", "flex"]),
        sandbox.node_with("local/1", &["--memory", BUDGET, "--backend", "flex"]),
    ];
    // Task 0 runs ahead; task 1 waits in its first step for an element that is never enqueued.
    let graph = sandbox.file(
        "parks.json",
        r#"{ "version": 1, "nodes": {
          "made": { "op": "Fill", "inputs": [[1000000], 1.5], "device": "/job:local/task:0" },
          "queue": { "op": "FIFOQueueV2", "attrs": { "component_types": ["float32"] }, "device": "/job:local/task:1" },
          "get": { "op": "QueueDequeueV2", "inputs": ["queue"], "attrs": { "component_types": ["float32"] },
                   "device": "/job:local/task:1" },
          "used": { "op": "Mul", "inputs": ["made", "get"], "device": "/job:local/task:1" },
          "most": { "op": "Max", "inputs": ["used", 0], "device": "/job:local/task:1" } } }"#,
    );
    let parts = ["ResourceExhausted", "of its 100 MB (--memory) in use", "that wait for the next steps of session"];
    sandbox.run(&["submit", &graph, "--fetch", "most", "--steps", "1000", "--quiet"]).expect(3).complains(&parts);
    let room = sandbox.file(
        "room.json",
        fills(&["Fill"; 3], TWENTY_MB).replace("\"Fill\",", "\"Fill\", \"device\": \"/job:local/task:1\","),
    );
    sandbox.run(&["submit", &room, "--fetch", "most", "--quiet"]).prints("3.0");
}

#[test]
fn a_feed_that_does_not_fit_is_not_received() {
    let crowded = Crowded::new();
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (30000000,), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    let padded = format!("{header:<117}\n");
    file.extend((padded.len() as u16).to_le_bytes());
    file.extend(padded.as_bytes());
    file.resize(file.len() + 120_000_000, 0);
    let feed = format!("x=@{}", crowded.sandbox.file("x.npy", file));
    let graph = r#"{ "version": 1, "nodes": {
        "x": { "op": "Placeholder", "attrs": { "dtype": "float32" } }, "most": { "op": "Max", "inputs": ["x", 0] } } }"#;
    let graph = crowded.sandbox.file("feed.json", graph);
    crowded.goes_on("before");
    crowded
        .sandbox
        .run(&["submit", &graph, "--fetch", "most", "--feed", &feed, "--quiet"])
        .expect(4)
        .complains(&["ResourceExhausted: this takes 120 MB, but the process has", "of its 100 MB (--memory) in use"]);
    crowded.goes_on("after");
    crowded.sandbox.run(&["submit", &graph, "--fetch", "most", "--feed", "x=[1,2,3]", "--quiet"]).prints("3.0");
}

#[test]
fn a_graph_that_does_not_fit_is_not_received() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node_with("local/0", &["--memory", "34MB", "--backend", "flex"]);
    // 40 MB of constants.
    let zeros = "0,".repeat(10_000_000);
    let graph = format!(
        r#"{{ "version": 1, "nodes": {{ "x": [{}0], "most": {{ "op": "Max", "inputs": ["x", 0] }} }} }}"#,
        zeros
    );
    let graph = sandbox.file("large.json", graph);
    sandbox
        .run(&["submit", &graph, "--fetch", "most"])
        .expect(4)
        .complains(&["ResourceExhausted: this takes 40.0 MB", "34.0 MB (--memory)"]);
    let small = sandbox.file("small.json", r#"{ "version": 1, "nodes": { "x": 7 }, "fetch": ["x"] }"#);
    sandbox.run(&["submit", &small, "--quiet"]).prints("7");
}

#[test]
fn meshtf_run_has_a_budget_too() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", fills(&["Fill"; 3], 2 * TWENTY_MB));
    sandbox.run(&["run", &graph, "--fetch", "most", "--memory", BUDGET]).expect(3).complains(&["(--memory)"]);
    sandbox.run(&["run", &graph, "--fetch", "most", "--memory", "1GB"]).prints("3.0");
    for (size, why) in [("lots", "4GB, 512MiB or 50%"), ("1kB", "too little"), ("200%", "between 1% and 100%")] {
        sandbox.run(&["run", &graph, "--memory", size]).expect(2).complains(&[why]);
        sandbox.run(&["node", "--name", "local/0", "--memory", size]).expect(2).complains(&[why]);
    }
}

/// Memory of its own, and that of the binary's file, of which a node gives back after its start what an idle one does not use.
#[test]
fn an_idle_node_holds_little() {
    const MOST_OWN_KB: u64 = 17_000;
    // The binary of tests is three times as large as that which is given away.
    const MOST_OF_FILES_KB: u64 = 32_000;
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--backend", "flex"]);
    let Some(status) = node.proc("status", "the memory of an idle node") else { return };
    let held = |status: &str, kind: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(kind)?.trim().strip_suffix(" kB")?.parse().ok())
    };
    let mut last = status;
    let is_at_rest = wait_until(Duration::from_secs(20), || {
        last = node.proc("status", "the memory of an idle node").unwrap_or_default();
        let is_below = |kind: &str, most: u64| held(&last, kind).is_some_and(|now| now < most);
        is_below("RssAnon:", MOST_OWN_KB) && is_below("RssFile:", MOST_OF_FILES_KB)
    });
    assert!(is_at_rest, "{last}");
}

#[test]
fn a_node_under_ulimit_stays_within_its_address_space() {
    let sandbox = Sandbox::new();
    let limited = |kilobytes: usize| {
        let node = sandbox.command(&["node", "--name", "local/0", "--listen", "127.0.0.1:0", "--backend", "flex"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"")]).arg(node.get_program());
        shell.args(node.get_args());
        shell.envs(node.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
        shell.stderr(std::process::Stdio::piped());
        NodeProcess::start(Running::start(shell, "a node under ulimit -v".to_owned()), "local/0")
    };
    let node = limited(2_000_000);
    // A variable for which the machine has memory, but the process no address space.
    let large = r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "attrs": { "dtype": "float32", "shape": [500000000] } },
        "zeros": { "op": "Fill", "inputs": [[500000000], 0.0] },
        "init": { "op": "AssignVariableOp", "inputs": ["v", "zeros"] } } }"#;
    let large = sandbox.file("large.json", large);
    sandbox.run(&["submit", &large, "--run", "init"]).expect(3).complains(&["ResourceExhausted", "(--memory)"]);
    // As many as fit, and one more.
    let many = sandbox.file("many.json", fills(&["Fill"; 100], TWENTY_MB));
    sandbox.run(&["submit", &many, "--fetch", "most"]).expect(3).complains(&["ResourceExhausted", "(--memory)"]);
    let few = sandbox.file("few.json", fills(&["Fill"; 5], TWENTY_MB));
    sandbox.run(&["submit", &few, "--fetch", "most", "--quiet"]).prints("5.0");
    drop(node);
}

#[test]
fn a_killed_node_is_reported_clearly() {
    let sandbox = Sandbox::new();
    let node = sandbox.node("local/0");
    let graph = sandbox.file("x.json", r#"{ "version": 1, "nodes": { "x": 7 }, "fetch": ["x"] }"#);
    let client = sandbox.start(&["submit", &graph, "--steps", "1000000000", "--every", "100", "--quiet"]);
    client.next_line(PATIENCE).expect("a step");
    node.process.signal("KILL");
    let ended = client.end().expect(4).complains(&["local/task:0 is gone", "its process"]);
    assert!(!ended.stderr.contains("http") && !ended.stderr.contains("close_notify"), "{}", ended.stderr);
}

#[test]
fn constants_that_do_not_fit_are_not_bad_input() {
    use meshtf_graph::{Attr, Attrs, NodeDef, graphdef};
    use meshtf_tensor::{DType, Tensor};
    let sandbox = Sandbox::new();
    let value = Tensor::zeros(DType::F32, [2 * TWENTY_MB]).expect("40 MB");
    let attrs = Attrs::from([("dtype", Attr::Type(DType::F32)), ("value", Attr::Tensor(value))]);
    let nodes = ["a", "b", "c"].map(|name| NodeDef {
        name: name.into(),
        op: "Const".into(),
        attrs: attrs.clone(),
        ..NodeDef::default()
    });
    let graph = sandbox.file("constants.pb", graphdef::to_binary(&nodes));
    // The file alone exceeds the budget, and each constant takes the same amount again.
    sandbox
        .run(&["run", &graph, "--fetch", "a", "--memory", "150MB"])
        .expect(4)
        .complains(&["ResourceExhausted", "of its 150 MB (--memory) in use"]);
    sandbox.run(&["run", &graph, "--run", "a", "--memory", "1GB", "--quiet"]).expect(0);
}

#[test]
fn results_no_larger_than_their_input_count_too() {
    let crowded = Crowded::new();
    // Each keeps its input, 40 MB, and makes twice as much.
    let twice = |op: &str, rest: &str, size: &str| {
        format!(
            r#"{{ "version": 1, "nodes": {{
              "x": {{ "op": "Fill", "inputs": [{size}, 1.5] }},
              "made": {{ "op": "{op}", "inputs": ["x"{rest}] }},
              "flat": {{ "op": "Reshape", "inputs": ["made", [-1]] }},
              "again": {{ "op": "{op}", "inputs": ["x"{rest}], "control": ["flat"] }},
              "flat_again": {{ "op": "Reshape", "inputs": ["again", [-1]], "control": ["flat"] }},
              "sum": {{ "op": "AddN", "inputs": ["flat", "flat_again"] }},
              "most": {{ "op": "Max", "inputs": ["sum", 0] }},
              "kept": {{ "op": "Max", "inputs": ["x", [0, 1]], "control": ["most"] }} }},
            "fetch": ["most", "kept"] }}"#
        )
    };
    crowded.refuses(&twice("Transpose", ", [1, 0]", "[5000, 2000]"), &[], "the values of its nodes");
    crowded.refuses(&twice("ReverseV2", ", [1]", "[5000, 2000]"), &[], "the values of its nodes");
    crowded.has_room();
}
