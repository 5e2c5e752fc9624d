//! The commands on a working mesh: the node's line, `submit`, `ps`, `plan`, tickets, exit codes.

use std::time::Duration;

use serde_json::json;

use crate::sandbox::{SPLIT_238, Sandbox, wait_until};

#[test]
fn two_nodes_and_a_split_graph_make_238() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("/job:local/task:1");
    sandbox.run(&["submit", &graph]).prints("238").complains(&[
        "/job:local/task:0/device:CPU:0: ",
        "/job:local/task:1/device:CPU:0: ",
        "y2",
    ]);
    // Any node can be the master.
    for target in ["local/0", "/job:local/task:1"] {
        sandbox.run(&["submit", &graph, "--target", target]).prints("238");
    }
    sandbox.run(&["submit", &graph, "--fetch", "y1,y2", "--fetch", "y"]).prints("y1: 302\ny2: -64\ny: 238");
    sandbox.run(&["submit", &graph, "--feed", "x=3", "--quiet"]).prints("240");
    let json = sandbox.run(&["submit", &graph, "--json"]).expect(0).json();
    assert_eq!(json["values"], json!({ "y": { "dtype": "int32", "shape": [], "value": 238 } }));
    assert_eq!(json["devices"].as_array().map(Vec::len), Some(2));
}

#[test]
fn many_steps_print_every_kth() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    sandbox.run(&["submit", &graph, "--steps", "10", "--every", "4"]).prints("step 4: 238\nstep 8: 238\nstep 10: 238");
    sandbox.run(&["submit", &graph, "--steps", "1000"]).prints("238");
}

#[test]
fn values_come_from_and_go_to_npy_files() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32"}},
            "y": {"op": "Mul", "inputs": ["x", 2.0]}},
            "fetch": ["y"]}"#,
    );
    let out = sandbox.path("out").display().to_string();
    sandbox.run(&["run", &graph, "--feed", "x=[[1, 2.5], [3, 4]]", "--out", &out]).prints("");
    let file = sandbox.path("out/y.npy");
    sandbox.run(&["run", &graph, "--feed", &format!("x=@{}", file.display())]).prints("[[ 4. 10.]\n [12. 16.]]");
}

#[test]
fn values_come_from_tables_and_text() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 1]}},
            "any": {"op": "Placeholder", "attrs": {"dtype": "float32"}},
            "text": {"op": "Placeholder", "attrs": {"dtype": "string"}},
            "y": {"op": "Mul", "inputs": ["x", 2.0]}, "z": {"op": "Mul", "inputs": ["any", 2.0]},
            "n": {"op": "StringLength", "inputs": ["text"]}}}"#,
    );
    let table = sandbox.file("t.csv", "a,b\n1,2.5\n3,4\n");
    let text = sandbox.file("t.txt", "one\nthree\n");
    let run = |fetch: &str, feed: String| sandbox.run(&["run", &graph, "--fetch", fetch, "--feed", &feed]);
    // A column is a vector, and a matrix where a placeholder takes only that.
    run("y", format!("x=@{table}:b")).prints("[[5.]\n [8.]]");
    run("z", format!("any=@{table}:b")).prints("[5. 8.]");
    run("z", format!("any=@{table}")).prints("[[2. 5.]\n [6. 8.]]");
    run("n", format!("text=@{text}")).prints("[3 5]");
    run("z", format!("any=@{table}:c")).expect(2).complains(&["--feed any", "there is no column c"]);
    run("z", format!("any=@{text}")).expect(2).complains(&["--feed any", "t.txt: line 1: \"one\" is not a number"]);
}

#[test]
fn ps_lists_who_is_up() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("ps/0");
    let _one = sandbox.node("worker/3");
    let listed = sandbox.run(&["ps", "--json"]).expect(0).json();
    let tasks: Vec<&str> = listed.as_array().unwrap().iter().map(|node| node["task"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["/job:ps/task:0", "/job:worker/task:3"]);
    let first = &listed[0];
    assert_eq!(first["peer"], zero.said("peer"));
    assert!(first["addresses"].as_array().is_some_and(|addresses| !addresses.is_empty()), "{first}");
    assert_eq!(first["devices"][0]["name"], "/job:ps/task:0/device:CPU:0");
    assert_eq!(first["incarnation"].as_str().map(str::len), Some(16));
    sandbox.run(&["ps"]).expect(0);
}

#[test]
fn plan_shows_devices_reasons_and_transfers() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    let _zero = sandbox.node("local/0");
    let _one = sandbox.node("local/1");
    let plan = sandbox.run(&["plan", &graph, "--json"]).expect(0).json();
    let place = |name: &str| {
        let nodes = plan["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("no {name} in {plan}"));
        (node["device"].as_str().unwrap().to_owned(), node["why"].as_str().unwrap().to_owned())
    };
    assert_eq!(place("y2"), ("/job:local/task:1/device:CPU:0".to_owned(), "requested".to_owned()));
    assert_eq!(place("y").0, "/job:local/task:0/device:CPU:0");
    let transfers = plan["transfers"].as_array().unwrap();
    let y2 = transfers.iter().find(|transfer| transfer["tensor"].as_str().unwrap().starts_with("y2")).unwrap();
    assert_eq!((&y2["bytes"], &y2["dtype"]), (&json!(4), &json!("int32")));
    assert_eq!(
        (y2["from"].as_str(), y2["to"].as_str()),
        (Some("/job:local/task:1/device:CPU:0"), Some("/job:local/task:0/device:CPU:0"),)
    );
    let text = sandbox.run(&["plan", &graph]).expect(0).stdout;
    assert!(text.contains("NODE") && text.contains("4 B"), "{text}");
    // Without a mesh, as `run` would.
    sandbox.run(&["plan", &graph, "--local"]).expect(0);
}

#[test]
fn a_name_is_held_once() {
    let sandbox = Sandbox::new();
    let first = sandbox.node("local/0");
    sandbox
        .start(&["node", "--name", "local/0", "--listen", "127.0.0.1:0"])
        .end_within(Duration::from_secs(20))
        .expect(4)
        .complains(&["/job:local/task:0", first.said("peer")]);
}

#[test]
fn a_node_stops_at_once_on_a_signal() {
    let sandbox = Sandbox::new();
    for signal in ["INT", "TERM"] {
        let node = sandbox.node("local/0");
        let told = std::time::Instant::now();
        node.process.signal(signal);
        node.process.end_within(Duration::from_secs(10)).expect(0);
        // The promised limit is one second; a busy machine gets another.
        assert!(told.elapsed() < Duration::from_secs(2), "{:?}", told.elapsed());
    }
}

#[test]
fn a_ticket_brings_another_machine_in() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    let ticket = sandbox.run(&["ticket"]).expect(0).stdout;
    assert_eq!(ticket.lines().count(), 1);
    let other = sandbox.elsewhere();
    other.run(&["join", ticket.trim()]).expect(0);
    other.run(&["join", &ticket.trim()[..ticket.len() / 2]]).expect(2).complains(&["ticket"]);
    let address = _zero.address().to_owned();
    let listed = other.run(&["ps", "--json", "--peer", &address]).expect(0).json();
    assert_eq!(listed[0]["task"], "/job:local/task:0");
    // A key that was never used to meet a node may be replaced; one in use is not replaced without --replace.
    let third = sandbox.elsewhere();
    third.run(&["ticket", "--no-mdns"]).expect(0);
    third.run(&["ps", "--no-mdns", "--peer", &address]).expect(4);
    third.run(&["join", ticket.trim()]).expect(0);
    third.run(&["ps", "--peer", &address]).expect(0);
    let fourth = sandbox.elsewhere();
    let _own = fourth.node("local/0");
    let foreign = fourth.run(&["ticket"]).expect(0).stdout;
    third.run(&["join", foreign.trim()]).expect(2).complains(&["--replace"]);
}

#[test]
fn without_a_mesh_the_exit_code_says_so() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file("graph.json", SPLIT_238);
    sandbox.run(&["submit", &graph]).expect(4).complains(&["meshtf node --name"]);
    // A machine with the key, and a mesh without nodes.
    sandbox.run(&["ticket", "--no-mdns"]).expect(0);
    sandbox.run(&["submit", &graph, "--timeout", "0.2"]).expect(4).complains(&["no node", "0.2 s"]);
    // Nor does this need a network.
    sandbox.run(&["run", &graph]).prints("238");
}

#[test]
fn a_task_that_is_down_is_a_mesh_error() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let graph = sandbox.file("graph.json", SPLIT_238);
    sandbox.run(&["submit", &graph]).expect(4).complains(&["No node serves /job:local/task:1"]);
    sandbox.run(&["plan", &graph]).expect(4);
    // A port that another node listens on is refused, not shared with it.
    let address = zero.address().to_owned();
    sandbox.run(&["node", "--name", "local/1", "--listen", &address]).expect(4).complains(&["cannot listen on"]);
    // An invalid name leaves no files behind, inside the home folder or elsewhere.
    let outside = format!("meshtf-outside-{}", std::process::id());
    sandbox.run(&["node", "--name", "local/1", "--mesh", &format!("../../{outside}")]).expect(2);
    assert!(!sandbox.path(&format!("../{outside}")).exists());
}

#[test]
fn the_first_task_by_name_is_the_master() {
    let sandbox = Sandbox::new();
    let _nodes = [sandbox.node("b/0"), sandbox.node("a/1"), sandbox.node("a/0")];
    let graph = sandbox.file("x.json", r#"{ "version": 1, "nodes": { "x": 7 }, "fetch": ["x"] }"#);
    for _ in 0..8 {
        sandbox.run(&["submit", &graph]).expect(0).complains(&["/job:a/task:0/device:CPU:0: x"]);
    }
}

#[test]
fn a_timeout_has_its_own_exit_code() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    // A queue into which nothing is enqueued.
    let graph = sandbox.file(
        "waits.json",
        r#"{ "version": 1, "nodes": {
            "queue": { "op": "FIFOQueueV2", "attrs": { "component_types": ["float32"] } },
            "next": { "op": "QueueDequeueV2", "inputs": ["queue"], "attrs": { "component_types": ["float32"] } } },
          "fetch": ["next"] }"#,
    );
    // The time until a node is found counts.
    sandbox.run(&["submit", &graph, "--timeout", "3"]).expect(5).complains(&["timed out after 3 s"]);
    sandbox.run(&["run", &graph, "--timeout", "0.5"]).expect(5).complains(&["timed out after 0.5 s"]);
}

/// The words that a shell offers after these, the last of which is begun.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let mut command = sandbox.command(&[&["--", "meshtf"], words].concat());
    let place = words.len().to_string();
    command.current_dir(sandbox.path(""));
    command.envs([("MESHTF_COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", &place), ("_CLAP_IFS", "\n")]);
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn words_are_completed_by_the_tasks_that_are_up() {
    let sandbox = Sandbox::new();
    let _nodes = ["ps/0", "worker/0"].map(|name| sandbox.node(name));
    let all = ["submit", "g.json", "--target", ""];
    assert!(wait_until(Duration::from_secs(60), || completed(&sandbox, &all) == ["ps/0", "worker/0"]));
    // A shell does not wait for nodes that are late: they are left out then.
    let offered = |words: &[&str], word: &str| {
        assert!(wait_until(Duration::from_secs(60), || completed(&sandbox, words) == [word]), "{words:?}");
    };
    offered(&["submit", "g.json", "--target=w"], "--target=worker/0");
    offered(&["variable", "get", "p"], "ps/0");
    offered(&["variable", "get", "ps/0", "w", "--device", "c"], "cpu:0");
    assert!(completed(&sandbox, &["submit", "--mesh", "another", "--target", ""]).is_empty());
    assert_eq!(completed(&sandbox, &["ops", "BlockLSTMG"]), ["BlockLSTMGrad", "BlockLSTMGradV2"]);
    assert_eq!(completed(&sandbox, &["example", "di"]), ["digits"]);
    assert_eq!(completed(&sandbox, &["summ"]), ["summary"]);
    assert_eq!(completed(&sandbox, &["runs", "show", "l"]), ["last"]);
    sandbox.file("model.json", "{}");
    assert_eq!(completed(&sandbox, &["summary", "mod"]), ["model.json"]);
}

#[test]
fn completions_are_written_for_each_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.run(&["completions", shell]).expect(0).stdout;
        assert!(script.contains("meshtf") && script.contains("MESHTF_COMPLETE"), "{shell}");
    }
    let help = sandbox.run(&["--help"]).expect(0).stdout;
    assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    sandbox.run(&["submit"]).expect(2);
}
