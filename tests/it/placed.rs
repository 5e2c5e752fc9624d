//! Placement by cost: a model that no node holds alone runs over those that are up.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use meshtf_graph as graph;
use meshtf_tensor::{DType, Tensor};

use crate::network::Namespaces;
use crate::sandbox::{Sandbox, wait_until};

const SOON: Duration = Duration::from_secs(60);

/// Layers, each a product with a variable of 16.8 MB whose elements are all 1/2048: a row of ones stays one.
fn layers(count: usize) -> String {
    let mut nodes = r#""shape": {"op": "Const", "attrs": {"dtype": "int32", "value": [2048, 2048]}},
        "part": {"op": "Const", "attrs": {"dtype": "float32", "value": 0.00048828125}},
        "one": {"op": "Const", "attrs": {"dtype": "int32", "value": [1, 2048]}},
        "y0": {"op": "Fill", "inputs": ["one", 1.0]}"#
        .to_owned();
    let mut first = Vec::new();
    for layer in 1..=count {
        // One first value after the other: all at once would take twice the memory.
        let after = if layer > 1 { format!(r#", "control": ["i{}"]"#, layer - 1) } else { String::new() };
        write!(
            nodes,
            r#", "w{layer}": {{"op": "VarHandleOp", "attrs": {{"dtype": "float32", "shape": [2048, 2048]}}}},
            "f{layer}": {{"op": "Fill", "inputs": ["shape", "part"]{after}}},
            "i{layer}": {{"op": "AssignVariableOp", "inputs": ["w{layer}", "f{layer}"]}},
            "r{layer}": {{"op": "ReadVariableOp", "inputs": ["w{layer}"], "attrs": {{"dtype": "float32"}}}},
            "y{layer}": {{"op": "MatMul", "inputs": ["y{}", "r{layer}"]}}"#,
            layer - 1
        )
        .expect("text");
        first.push(format!("\"i{layer}\""));
    }
    format!(
        r#"{{"version": 1, "nodes": {{{nodes}, "sum": {{"op": "Sum", "inputs": ["y{count}", [0, 1]]}}}},
        "init": [{}], "fetch": ["sum"]}}"#,
        first.join(", ")
    )
}

#[test]
fn a_model_that_no_node_holds_alone_is_divided() {
    let sandbox = Sandbox::new();
    let node = |name| sandbox.node_with(name, &["--memory", "200MB", "--backend", "flex"]);
    let (_first, _second) = (node("t/0"), node("t/1"));
    // 201 MB of variables.
    let graph = sandbox.file("graph.json", layers(12));

    let plan = sandbox.run(&["plan", &graph, "--place", "auto", "--json"]).expect(0).json();
    assert_eq!(devices(&plan), ["/job:t/task:0/device:CPU:0", "/job:t/task:1/device:CPU:0"]);
    for total in plan["totals"].as_array().unwrap() {
        assert!(total["variable_bytes"].as_u64().unwrap() < 190_000_000, "{total}");
    }
    assert!(plan["expected"]["alone"].is_null(), "{}", plan["expected"]);
    let seconds = |value: &serde_json::Value| value.as_f64().unwrap();
    let expected = &plan["expected"];
    let path = &expected["critical_path"];
    assert!(seconds(&expected["step_seconds"]) > 0.0);
    let sum = seconds(&path["computes_seconds"]) + seconds(&path["transfers_seconds"]);
    assert!((sum - seconds(&expected["step_seconds"])).abs() < 1e-9, "{expected}");
    // Where processors are slow beside the link, one may compute with the variables of both.
    let computing: Vec<&str> =
        expected["devices"].as_array().unwrap().iter().map(|of| of["device"].as_str().unwrap()).collect();
    assert!(!computing.is_empty() && computing.iter().all(|device| devices(&plan).contains(device)), "{expected}");
    assert!(expected["next"].is_null(), "{expected}");
    let text = sandbox.run(&["plan", &graph, "--place", "auto"]).expect(0).stdout;
    for part in [
        "no device alone has the memory",
        "critical path: ",
        " by cost",
        "next best: no other choice that was compared has the memory",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }

    sandbox.run(&["submit", &graph, "--quiet", "--place", "auto"]).prints("2048.0");
    // The variables are where they were.
    sandbox.run(&["submit", &graph, "--quiet", "--place", "auto"]).prints("2048.0");
}

#[test]
fn a_series_of_steps_has_an_interval_and_each_device_its_share_of_it() {
    let sandbox = Sandbox::new();
    let (_first, _second) = (sandbox.node("t/0"), sandbox.node("t/1"));
    let graph = sandbox.file("graph.json", layers(2));
    let expected = &sandbox.run(&["plan", &graph, "--place", "throughput", "--json"]).expect(0).json()["expected"];
    let seconds = |value: &serde_json::Value| value.as_f64().unwrap();
    // The nodes of a machine share its cores: one has all, and is never idle.
    let [only] = &expected["devices"].as_array().unwrap()[..] else { panic!("{expected}") };
    let interval = seconds(&expected["interval_seconds"]);
    assert!((interval - seconds(&only["computes_seconds"])).abs() < 1e-9 && interval > 0.0, "{expected}");
    assert_eq!((seconds(&only["busy"]), seconds(&expected["alone"]["step_seconds"])), (1.0, interval), "{expected}");
    let text = sandbox.run(&["plan", &graph, "--place", "throughput"]).expect(0).stdout;
    for part in ["expected: a step of a series each ", "; each ", " BUSY ", " 100 % ", "\nnext best: a step each "] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let words = ["submit", &graph, "--quiet", "--place", "throughput", "--steps", "40", "--every", "0"];
    sandbox.run(&words).prints("2048.0");
}

#[test]
fn without_a_choice_by_cost_it_does_not_fit() {
    let sandbox = Sandbox::new();
    let node = |name| sandbox.node_with(name, &["--memory", "200MB", "--backend", "flex"]);
    let (_first, _second) = (node("t/0"), node("t/1"));
    let graph = sandbox.file("graph.json", layers(12));
    let parts = ["ResourceExhausted", "of its 200 MB (--memory) in use"];
    sandbox.run(&["submit", &graph, "--quiet"]).expect(3).complains(&parts);
}

/// The devices of a plan.
fn devices(plan: &serde_json::Value) -> Vec<&str> {
    plan["devices"].as_array().unwrap().iter().map(|device| device.as_str().unwrap()).collect()
}

#[test]
fn a_model_without_device_strings_and_variables_is_placed_by_cost_unless_a_task_is_named() {
    let sandbox = Sandbox::new();
    let node = |name| sandbox.node_with(name, &["--memory", "120MB", "--backend", "flex"]);
    let (_first, _second) = (node("t/0"), node("t/1"));
    // The sums of twelve tables of 8 MB, 96 MB together: more than three quarters of what each node has.
    let names: Vec<String> = (0..12).map(|table| format!("w{table}")).collect();
    let nodes: Vec<String> = names
        .iter()
        .map(|name| format!(r#""{name}": 1, "s_{name}": {{"op": "Sum", "inputs": ["{name}", 0]}}"#))
        .collect();
    let sums: Vec<String> = names.iter().map(|name| format!("\"s_{name}\"")).collect();
    let text = format!(
        r#"{{"version": 1, "nodes": {{{}, "y": {{"op": "AddN", "inputs": [{}]}}}}}}"#,
        nodes.join(", "),
        sums.join(", ")
    );
    let mut nodes = graph::read(text.as_bytes()).expect("a graph").nodes;
    for (first, name) in (0u32..).zip(&names) {
        let node = nodes.iter_mut().find(|node| node.name == *name).expect("a table");
        let table: Vec<f32> = (0..2_000_000u32).map(|at| ((at + first) % 8) as f32).collect();
        node.attrs.set("value", Tensor::vector(table).into());
        node.attrs.set("dtype", DType::F32.into());
    }
    let model = sandbox.file("model.pb", graph::graphdef::to_binary(&nodes));

    let plan =
        |more: &[&str]| sandbox.run(&[&["plan", &model, "--fetch", "y", "--json"], more].concat()).expect(0).json();
    let (one, both) = ("/job:t/task:0/device:CPU:0", ["/job:t/task:0/device:CPU:0", "/job:t/task:1/device:CPU:0"]);
    assert_eq!(devices(&plan(&[])), both);
    assert_eq!(devices(&plan(&["--place", "names"])), [one]);
    assert_eq!(devices(&plan(&["--target", "t/0"])), [one]);
    // Each table has 250,000 times 0 to 7.
    sandbox.run(&["submit", &model, "--fetch", "y", "--quiet"]).prints("84000000.0");
}

/// A model of a product and one of a look-up, each with one weight of 2048 x 8192 floats, 67 MB: (row % 2) * (column % 16).
fn with_one_weight(sandbox: &Sandbox) -> [String; 2] {
    let weight = Tensor::from_vec(
        vec![2048, 8192],
        (0..2048u32 * 8192).map(|at| ((at / 8192 % 2) * (at % 16)) as f32).collect(),
    );
    let models = [
        r#""x": {"op": "Fill", "inputs": [[1, 2048], 1.0]}, "y": {"op": "MatMul", "inputs": ["x", "w"]}"#,
        r#""y": {"op": "GatherV2", "inputs": ["w", [0, 5, 2047], 0]}"#,
    ];
    let file = |(at, nodes): (usize, &str)| {
        let text = format!(
            r#"{{"version": 1, "nodes": {{"w": 1.0, {nodes}, "sum": {{"op": "Sum", "inputs": ["y", 1]}},
            "sums": {{"op": "Cast", "inputs": ["sum"], "attrs": {{"DstT": "int64"}}}},
            "last": {{"op": "ArgMax", "inputs": ["y", 1]}}}}}}"#
        );
        let mut nodes = graph::read(text.as_bytes()).expect("a graph").nodes;
        let node = nodes.iter_mut().find(|node| node.name == "w").expect("the weight");
        node.attrs.set("value", weight.clone().into());
        sandbox.file(&format!("model{at}.pb"), graph::graphdef::to_binary(&nodes))
    };
    [file((0, models[0])), file((1, models[1]))]
}

#[test]
fn a_weight_that_no_node_can_hold_is_divided() {
    let sandbox = Sandbox::new();
    let node = |name| sandbox.node_with(name, &["--memory", "60MB", "--backend", "flex"]);
    let _nodes = ["t/0", "t/1", "t/2"].map(node);
    let [product, rows] = with_one_weight(&sandbox);
    let submit = |model: &str, more: &[&str]| {
        sandbox.run(&[&["submit", model, "--fetch", "sums", "--fetch", "last", "--quiet"], more].concat())
    };
    let parts = || {
        let plan = sandbox.run(&["plan", &product, "--fetch", "sums", "--json"]).expect(0).json();
        let names = plan["nodes"].as_array().unwrap().iter().map(|node| node["node"].to_string());
        names.filter(|name| name.contains("/part")).collect::<Vec<_>>()
    };
    let before = parts();
    // On one it does not fit.
    submit(&product, &["--target", "t/0"]).expect(4).complains(&["ResourceExhausted"]);
    let plan = sandbox.run(&["plan", &product, "--fetch", "sums", "--json"]).expect(0).json();
    assert!(devices(&plan).len() >= 2, "{:?}", devices(&plan));
    let is_there = |name: &str| plan["nodes"].as_array().unwrap().iter().any(|node| node["node"] == name);
    assert!(is_there("w/part0") && is_there("y/part1") && !is_there("w"), "{}", plan["nodes"]);
    // Of 2048 rows half are (column % 16): 1024 * 120 * 512 in all, and the first of the largest is column 15.
    submit(&product, &[]).prints("sums: [62914560]\nlast: [15]");
    // Again it has the same parts, whatever memory they take now.
    submit(&product, &[]).prints("sums: [62914560]\nlast: [15]");
    assert_eq!(parts(), before);
    // The even row has zeros alone.
    submit(&rows, &[]).prints("sums: [    0 61440 61440]\nlast: [ 0 15 15]");
}

#[test]
fn a_matrix_is_divided_among_machines_that_multiply_it_sooner() {
    let Some(namespaces) = Namespaces::new(2, "a matrix that is divided among machines") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    here.admits(&there);
    let _zero = here.node("t/0");
    let [product, rows] = with_one_weight(&here);
    let parts_of = |model: &str| {
        let plan = here.run(&["plan", model, "--fetch", "sums", "--json"]).expect(0).json();
        let is_part = |node: &&serde_json::Value| node["node"].as_str().is_some_and(|name| name.starts_with("w/part"));
        plan["nodes"].as_array().unwrap().iter().filter(is_part).count()
    };
    assert_eq!(parts_of(&product), 0, "there is one machine");
    // Rates that were measured while a node had no processor are those of a slow machine; the next one measures its own.
    let two = (0..4).find_map(|_| {
        let one = there.node("t/1");
        wait_until(SOON / 4, || parts_of(&product) == 2).then_some(one)
    });
    assert!(two.is_some(), "{}", here.run(&["plan", &product, "--fetch", "sums"]).stdout);
    let submit = |more: &[&str]| {
        here.run(&[&["submit", product.as_str(), "--fetch", "sums", "--fetch", "last"], more].concat()).expect(0)
    };
    let told = "matrices are divided into 2 parts: a step is expected to take ";
    // A link that other tests keep busy is expected to be slow for a while.
    let divided = (0..16).map(|_| submit(&[])).find(|ran| ran.stderr.contains(told)).expect("a division");
    let whole = submit(&["--target", "t/0"]);
    assert_eq!(divided.stdout, "sums: [62914560]\nlast: [15]\n");
    assert_eq!(whole.stdout, divided.stdout);
    assert!(!whole.stderr.contains(told), "{}", whole.stderr);
    assert_eq!(parts_of(&rows), 0, "a look-up reads no more than its rows");
}

#[test]
fn an_estimate_says_where_more_tasks_stop_paying() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("t/0");
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train/digits.json");
    let json = sandbox.run(&["plan", digits, "--estimate", "--json"]).expect(0).json();
    // 64 x 64 + 64 + 64 x 10 + 10 floats.
    assert_eq!(
        (&json["kind"], &json["batch"], &json["gradient_bytes"]),
        (&"training".into(), &64.into(), &19_240.into())
    );
    let networks = json["networks"].as_array().unwrap();
    assert_eq!(networks.iter().map(|network| network["gigabits"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 10, 100]);
    for network in networks {
        let tasks: Vec<u64> =
            network["tasks"].as_array().unwrap().iter().map(|row| row["tasks"].as_u64().unwrap()).collect();
        assert_eq!(tasks, [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    }
    let larger = sandbox.run(&["plan", digits, "--estimate", "--batch", "512", "--json"]).expect(0).json();
    assert!(larger["step_seconds"].as_f64() > json["step_seconds"].as_f64());
    let text = sandbox.run(&["plan", digits, "--estimate"]).expect(0).stdout;
    assert!(text.contains("it pays up to ") && text.contains("19.2 kB of gradients"), "{text}");

    let open = r#"{"version": 1, "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 8]}},
        "y": {"op": "Exp", "inputs": ["x"]}}, "fetch": ["y"]}"#;
    let open = sandbox.file("open.json", open);
    sandbox.run(&["plan", &open, "--estimate"]).expect(2).complains(&["x has the shape [?,8]", "--feed x=", "--batch"]);
    let fed = sandbox.run(&["plan", &open, "--estimate", "--feed", "x=[[1,2,3,4,5,6,7,8]]", "--json"]).expect(0).json();
    assert_eq!((&fed["kind"], &fed["fed_bytes"], &fed["fetched_bytes"]), (&"inference".into(), &32.into(), &32.into()));
    let text = sandbox.run(&["plan", &open, "--estimate", "--batch", "4"]).expect(0).stdout;
    assert!(text.contains("replicas pay up to "), "{text}");
    sandbox.run(&["plan", &open, "--batch", "4"]).expect(2).complains(&["--estimate"]);
    // A plan needs no value.
    let planned = sandbox.run(&["plan", &open, "--json"]).expect(0).json();
    assert!(planned["nodes"].as_array().unwrap().iter().any(|node| node["node"] == "y"), "{planned}");
    // Flags that an estimate does not heed, and a fault in the sections.
    for flags in [&["--weights", "w.npz"][..], &["--soft-placement"], &["--weights", "w.npz", "--map", "m.json"]] {
        sandbox.run(&[&["plan", &open, "--estimate"], flags].concat()).expect(2).complains(&["--estimate", flags[0]]);
    }
    let text = std::fs::read_to_string(digits).expect("an example");
    let astray = sandbox.file("astray.json", text.replace("\"optimizer\"", "\"optimiser\""));
    sandbox.run(&["plan", &astray, "--estimate"]).expect(2).complains(&["astray.json", "optimiser"]);
}

/// Products that need not be on one device, of a scalar that is fed: `x`² times the sum of 256³ · k² for each branch k. Of so
/// many, even a device whose rate was measured while it was busy takes some.
fn branches(count: usize) -> String {
    let mut nodes = r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": []}}"#.to_owned();
    for k in 1..=count {
        write!(
            nodes,
            r#", "m{k}": {{"op": "Fill", "inputs": [[256, 256], {k}.0]}}, "a{k}": {{"op": "Mul", "inputs": ["m{k}", "x"]}},
            "p{k}": {{"op": "MatMul", "inputs": ["a{k}", "a{k}"]}}, "s{k}": {{"op": "Sum", "inputs": ["p{k}", [0, 1]]}}"#
        )
        .expect("text");
    }
    let sums: Vec<String> = (1..=count).map(|k| format!("\"s{k}\"")).collect();
    let sum = format!(r#""y": {{"op": "AddN", "inputs": [{}]}}"#, sums.join(", "));
    format!(r#"{{"version": 1, "fetch": ["y"], "nodes": {{{nodes}, {sum}}}}}"#)
}

#[test]
fn a_machine_that_joins_takes_a_part_of_what_is_served() {
    let Some(namespaces) = Namespaces::new(2, "a machine that joins a session placed by cost") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    here.admits(&there);
    let _zero = here.node("t/0");
    let graph = here.file("graph.json", branches(16));
    let server = here.start(&["serve", &graph, "--http", "127.0.0.1:0"]);
    let line = server.next_line(SOON).expect("the line of its addresses");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let port = address.and_then(|address| address.rsplit(':').next()).unwrap_or_else(|| panic!("no port in {line}"));
    // The address of the server is in its namespace.
    let body = r#"{"inputs": {"x": 0.000244140625}}"#;
    let request = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'POST /v1/models/graph:predict HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\
         Content-Length: {}\\r\\n\\r\\n%s' '{body}' >&3; cat <&3",
        body.len()
    );
    let ask = || {
        let arguments = ["netns", "exec", &namespaces.names[0], "bash", "-c", &request];
        let answer = Command::new("ip").args(arguments).output().expect("bash runs");
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        // 1 + 4 + 9 + … + 256, since x² is 256⁻³.
        assert!(answer.contains("1496"), "{answer}\n{}", server.stderr());
    };
    ask();
    let is_planned_anew = || {
        ask();
        let events = here.run(&["events", "t/0", "--now"]).expect(0).stdout;
        events.contains("its next steps run on /job:t/task:0/device:CPU:0, /job:t/task:1/device:CPU:0")
    };
    let told = || here.run(&["events", "t/0", "--now"]).expect(0).stdout;
    // A process whose rates were measured while it had no processor is of no use; the next one measures its own.
    let joined = (0..4).find_map(|_| {
        let one = there.node("t/1");
        wait_until(SOON / 4, is_planned_anew).then_some(one)
    });
    assert!(joined.is_some(), "{}\n{}", told(), server.stderr());
    ask();
}

/// As [`branches`], with a variable that counts the steps: `z` is 10,000 times the number of the step, and the sum.
fn counted_branches(count: usize) -> String {
    let counting = r#""count": {"op": "VarHandleOp", "attrs": {"dtype": "int64", "shape": []}},
        "zero": {"op": "AssignVariableOp", "inputs": ["count", {"value": 0, "dtype": "int64"}]},
        "one": {"op": "AssignAddVariableOp", "inputs": ["count", {"value": 10000, "dtype": "int64"}]},
        "n": {"op": "ReadVariableOp", "inputs": ["count"], "control": ["one"], "attrs": {"dtype": "int64"}},
        "i": {"op": "Cast", "inputs": ["y"], "attrs": {"DstT": "int64"}}, "z": {"op": "AddV2", "inputs": ["n", "i"]}"#;
    let graph = branches(count).replace(r#""fetch": ["y"]"#, r#""fetch": ["z"], "init": ["zero"]"#);
    graph.replacen(r#""nodes": {"#, &format!(r#""nodes": {{{counting}, "#), 1)
}

#[test]
fn a_machine_that_joins_takes_a_part_of_a_run_under_way_and_may_leave_it() {
    let Some(namespaces) = Namespaces::new(2, "a machine that joins a run placed by cost") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    here.admits(&there);
    let _zero = here.node("t/0");
    let graph = here.file("graph.json", counted_branches(16));
    let fixed = ["submit", &graph, "--init", "--place", "auto", "--feed", "x=0.000244140625", "--guard", "0.2"];
    let client = here.start(&[&fixed[..], &["--steps", "1000000000", "--every", "1"]].concat());
    let mut last = 0u64;
    let mut next_step = || {
        let line = client.next_line(SOON).unwrap_or_else(|| panic!("it ended after {last}\n{}", client.stderr()));
        let value = line.trim().rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        // 1 + 4 + 9 + … + 256, since x² is 256⁻³.
        assert_eq!(value, Some((last + 1) * 10_000 + 1496), "after {last} steps\n{}", client.stderr());
        last += 1;
        last
    };
    // It has begun before another node is there.
    while next_step() < 5 {}
    // Whether the node runs steps; the run continues meanwhile.
    let takes_part = |task: &str, next_step: &mut dyn FnMut() -> u64| {
        next_step();
        let told = here.run(&["status", task, "--json"]).expect(0).json();
        let pieces = told[0]["pieces"]["items"].as_array().expect("a list");
        pieces.iter().any(|piece| piece["steps"].as_u64().is_some_and(|steps| steps > 10))
    };
    let told = || here.run(&["events", "t/0", "--now"]).expect(0).stdout;
    // A process whose rates were measured while it had no processor is of no use; the next one measures its own.
    let joined = (0..4).find_map(|_| {
        let one = there.node("t/1");
        wait_until(SOON / 3, || takes_part("t/1", &mut next_step)).then_some(one)
    });
    let joined = joined.unwrap_or_else(|| panic!("{}\n{}", told(), client.stderr()));
    assert!(
        told().contains("its next steps run on /job:t/task:0/device:CPU:0, /job:t/task:1/device:CPU:0"),
        "{}",
        told()
    );
    // It has nothing that the others lack: they continue without it.
    let before = next_step();
    drop(joined);
    while next_step() < before + 100 || !client.stderr().contains("; continued from ") {}
    let lost = client.stderr().split("t/1 was lost at step ").nth(1).and_then(|rest| {
        let number = rest.split_once(|one: char| one != ',' && !one.is_ascii_digit())?.0.replace(',', "");
        number.parse::<u64>().ok()
    });
    let lost = lost.unwrap_or_else(|| panic!("{}", client.stderr()));
    while next_step() < lost + 100 {}
}
