//! The conclusions of `meshtf doctor` on networks with one fault each, and that `ps`, `submit` and a waiting node conclude
//! alike.

use serde_json::Value;

use crate::disk::SmallDisk;
use crate::network::{Namespaces, host_address};
use crate::sandbox::{SPLIT_238, Sandbox, wait_until};
use meshtf_testing::means::{Means, missing};

const SOON: std::time::Duration = std::time::Duration::from_secs(60);

/// The findings of a check, as level and text.
fn found(report: &Value, check: &str) -> Vec<String> {
    let findings = report["findings"].as_array().expect("a list");
    let of_check = findings.iter().filter(|finding| finding["check"] == check);
    of_check.map(|one| format!("{} {}", one["level"].as_str().unwrap(), one["what"].as_str().unwrap())).collect()
}

#[test]
fn a_machine_in_order_has_no_problem() {
    let sandbox = Sandbox::new();
    let _zero = sandbox.node("local/0");
    // A client presents the key.
    sandbox.run(&["ps"]).expect(0);
    let text = sandbox.run(&["doctor", "--no-mdns", "--quick", "--expect", "local/0"]).expect(0).stdout;
    let passed = "socket ok, TLS ok, key ok, version ok, mesh ok, clock ok";
    let reached = if cfg!(target_os = "linux") {
        format!("local/0 at a Unix socket (this machine): {passed}")
    } else {
        String::new()
    };
    for part in [&reached, "ok       key", "ok       registry", "local/0 has been up for", "ok       data"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let report = sandbox.run(&["doctor", "--quick", "--expect", "local/7", "--json"]).expect(1).json();
    assert_eq!(report["ok"], false);
    assert_eq!(found(&report, "peers").last().unwrap(), "problem local/7 is not up, or cannot be reached from here");
}

#[test]
fn doctor_reads_the_file_that_a_node_reads() {
    let sandbox = Sandbox::new();
    let node = sandbox.node_with("local/0", &["--open", "--no-mdns"]);
    let config = format!("mesh = \"{}\"\nopen = true\nno-mdns = true\npeer = \"{}\"\n", sandbox.mesh, node.address());
    sandbox.file("config.toml", config);
    // Neither a flag nor the environment names the mesh.
    let doctor = |arguments: &[&str]| {
        let mut command = sandbox.command(&[&["doctor", "--quick", "--json"], arguments].concat());
        command.env_remove("MESHTF_MESH");
        crate::sandbox::Running::start(command, "doctor".to_owned()).end()
    };
    let report = doctor(&["--expect", "local/0"]).expect(0).json();
    assert!(found(&report, "config")[0].ends_with("config.toml sets mesh, no-mdns, open, peer"), "{report}");
    assert!(found(&report, "key")[0].contains(&sandbox.mesh), "{report}");
    assert!(found(&report, "reach").iter().any(|line| line.contains("(configured peer)")), "{report}");
    let wrong = sandbox.file("wrong.toml", "open = 7.5\n");
    let report = doctor(&["--config", &wrong]).expect(1).json();
    assert!(found(&report, "config")[0].starts_with("problem a node would not start"), "{report}");
}

#[test]
fn a_mesh_goes_on_without_the_registry_folder() {
    let sandbox = Sandbox::new();
    sandbox.file("run", "this is no folder");
    let zero = sandbox.node("local/0");
    let warning = "processes of this machine are not found automatically";
    assert!(wait_until(SOON, || zero.process.stderr().contains(warning)), "{}", zero.process.stderr());
    let told = sandbox.run(&["ps", "--no-mdns", "--peer", zero.address()]).expect(0);
    assert!(told.stdout.contains("local/0") && told.stderr.contains("not found automatically"), "{}", told.stderr);
}

#[test]
fn what_ends_a_command_is_an_object_where_the_log_has_objects() {
    let sandbox = Sandbox::new();
    let objects = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
    };
    let ended = sandbox.run(&["ps", "--log-format", "json"]).expect(4);
    let told = objects(&ended.stderr);
    assert_eq!((told.len(), &told[0]["level"]), (1, &"error".into()), "{}", ended.stderr);
    assert!(told[0]["text"].as_str().unwrap().contains("has no key of mesh"), "{}", ended.stderr);
    let node = sandbox.node_with("local/0", &["--log-format", "json"]);
    assert!(wait_until(SOON, || node.process.stderr().contains('\n')));
    let told = objects(node.process.stderr().lines().next().unwrap());
    assert!(told[0]["text"].as_str().unwrap().contains("is new on this machine"), "{told:?}");
}

#[test]
fn a_machine_without_a_key_is_told_how_to_get_one() {
    let sandbox = Sandbox::new();
    let text = sandbox.run(&["doctor", "--quick"]).expect(1).stdout;
    assert!(text.contains("problem  key") && text.contains("meshtf join TICKET"), "{text}");
    assert!(text.ends_with("1 problem\n"), "{text}");
}

#[test]
fn a_firewall_that_drops_tcp_is_told_from_a_silent_network() {
    let Some(namespaces) = Namespaces::new(2, "doctor behind a firewall") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    here.admits(&there);
    let node = there.node_with("local/1", &["--listen", "10.77.0.2:0"]);
    if !namespaces.drop_tcp(1) {
        return missing(Means::Namespaces, "doctor behind a firewall");
    }
    let port = node.socket_address().port();
    let report = here.run(&["doctor", "--json"]).expect(1).json();
    assert_eq!(found(&report, "multicast"), ["ok mtf0 sends to 224.0.0.251:5353 and hears itself"]);
    let stale = "does not answer: a firewall, or the address is stale";
    assert_eq!(found(&report, "peers"), [format!("problem mDNS hears 10.77.0.2, but TCP {port} {stale}")]);
    let reach = found(&report, "reach");
    assert!(reach.contains(&format!("note 10.77.0.2:{port} (mDNS): TCP unanswered")), "{reach:?}");

    // A waiting node reports the same.
    let waiting = here.node("local/0");
    let told = format!("mDNS hears 10.77.0.2, but TCP {port} {stale}");
    assert!(wait_until(SOON, || waiting.process.stderr().contains(&told)), "{}", waiting.process.stderr());
    // So does the list of the tasks that are up, although it is not empty.
    here.run(&["ps"]).expect(0).complains(&[&told]);
}

/// A firewall at the worker drops the connections of one machine and admits those of the ps.
#[test]
fn a_node_that_only_others_reach_is_listed_with_them() {
    let Some(namespaces) = Namespaces::new(4, "a node that only others reach") else { return };
    namespaces.join_at_switch();
    namespaces.silence(0, 2);
    namespaces.silence(2, 0);
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let listen = |place: usize| format!("{}:0", host_address(place));
    let ps = here.at(&namespaces.names[1]).node_with("ps/0", &["--listen", &listen(1), "--no-mdns"]);
    let _worker = here
        .at(&namespaces.names[2])
        .node_with("worker/0", &["--listen", &listen(2), "--no-mdns", "--peer", ps.address()]);
    let ask = |arguments: &[&str]| here.run(&[arguments, &["--no-mdns", "--peer", ps.address()]].concat());
    let row = |stdout: &str| stdout.lines().find(|line| line.trim_start().starts_with("worker/0")).map(str::to_owned);
    let seen = wait_until(SOON, || {
        row(&ask(&["ps"]).expect(0).stdout).is_some_and(|row| row.contains(" reached through ps/0 "))
    });
    assert!(seen, "{}", ask(&["ps"]).stdout);
    let listed = ask(&["ps", "--json"]).expect(0).json();
    let worker = listed.as_array().unwrap().iter().find(|one| one["task"] == "/job:worker/task:0").unwrap().clone();
    assert_eq!(worker["through"], serde_json::json!(["/job:ps/task:0"]));

    // It is no problem, and the task that is expected is up.
    let report = ask(&["doctor", "--quick", "--json", "--expect", "worker/0"]).expect(0).json();
    let peers = found(&report, "peers");
    let note = "note worker/0, reached through ps/0: it is up, and this machine has no connection with it";
    assert!(peers.iter().any(|line| line == note), "{peers:?}");
    assert!(!peers.iter().any(|line| line.starts_with("problem")), "{peers:?}");
    ask(&["status", "worker/0"]).expect(4).complains(&["no connection with worker/0, reached through ps/0"]);
    ask(&["status"]).expect(0).complains(&["worker/0, reached through ps/0"]);

    // Through ps/0 it computes.
    let text = r#"{"version": 1, "fetch": ["y"], "nodes": {"y": {"op": "AddV2", "inputs": [40, 2], "device": "/job:worker/task:0"}}}"#;
    let graph = here.file("graph.json", text);
    assert!(ask(&["submit", &graph, "--target", "ps/0"]).expect(0).stdout.contains("42"));
}

#[test]
fn a_wrong_key_is_told_by_every_command() {
    let Some(namespaces) = Namespaces::new(2, "doctor with another key") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    // Each makes its own key, as happens without a ticket.
    let one = there.node_with("local/1", &["--listen", "10.77.0.2:0"]);
    let zero = here.node_with("local/0", &["--listen", "10.77.0.1:0"]);
    let address = one.socket_address();
    let refused = format!("One peer was seen and refused our key: {address}");

    let report = here.run(&["doctor", "--peer", one.address(), "--json"]).expect(1).json();
    assert!(found(&report, "key")[0].starts_with("note"), "{report}");
    assert!(found(&report, "peers").contains(&format!("problem {refused}")), "{report}");
    let stages = format!("note {address} (configured peer): TCP ok, TLS ok, key refused");
    assert!(found(&report, "reach").contains(&stages), "{report}");

    let peer = ["--peer", one.address()];
    here.run(&[&["ps"][..], &peer].concat()).expect(0).complains(&[&refused, "meshtf ticket"]);
    let graph = here.file("graph.json", SPLIT_238);
    here.run(&[&["submit", &graph][..], &peer].concat()).expect(4).complains(&["/job:local/task:1", &refused]);
    assert!(wait_until(SOON, || zero.process.stderr().contains(&refused)), "{}", zero.process.stderr());
    // Every command that misses a task reports it.
    for command in
        [&["plan", &graph][..], &["status", "local/1"], &["variable", "list", "local/1"], &["events", "local/1"]]
    {
        here.run(&[command, &peer].concat()).expect(4).complains(&["/job:local/task:1", &refused]);
    }
}

#[test]
fn a_node_that_only_listens_tells_who_came_with_another_key() {
    let Some(namespaces) = Namespaces::new(2, "a caller with another key") else { return };
    namespaces.join();
    let here = Sandbox::new().in_namespace(&namespaces.names[0]);
    let there = here.elsewhere().in_namespace(&namespaces.names[1]);
    let zero = here.node_with("local/0", &["--listen", "10.77.0.1:0", "--no-mdns"]);
    let _one = there.node_with("local/1", &["--listen", "10.77.0.2:0", "--no-mdns", "--peer", zero.address()]);
    let told = "One peer connected here with another mesh key: 10.77.0.2";
    assert!(wait_until(SOON, || zero.process.stderr().contains(told)), "{}", zero.process.stderr());
}

#[test]
fn a_node_logs_who_comes_and_goes_sessions_and_failures() {
    let sandbox = Sandbox::new();
    let zero = sandbox.node("local/0");
    let one = sandbox.node_with("local/1", &["--log-format", "json", "-v"]);
    let graph = sandbox.file("graph.json", SPLIT_238);
    sandbox.run(&["submit", &graph, "--target", "local/1"]).prints("238");
    let wrong = r#"{"version": 1, "nodes": {"x": [1, 2], "y": {"op": "Placeholder", "attrs": {"dtype": "int32"}},
        "z": {"op": "Add", "inputs": ["x", "y"]}}, "fetch": ["z"]}"#;
    let wrong = sandbox.file("wrong.json", wrong);
    sandbox.run(&["submit", &wrong, "--feed", "y=[1, 2, 3]", "--target", "local/0"]).expect(3);
    one.process.signal("TERM");
    let log = |node: &crate::sandbox::NodeProcess| node.process.stderr();
    assert!(wait_until(SOON, || log(&zero).contains("is gone: it left")), "{}", log(&zero));
    let text = log(&zero);
    for part in ["INFO local/1 (", "is connected", "INFO session ", " is open", "WARN session ", "Incompatible shapes"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("client ") && !text.contains("began"), "{text}");

    let lines = log(&one);
    let objects: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for name in ["task_met", "session_opened", "steps_begun", "steps_done", "session_ended"] {
        assert!(objects.iter().any(|object| object["event"] == name), "{name} is not in\n{lines}");
    }
    assert!(objects.iter().all(|object| object["unix_ms"].as_u64().is_some() && object["text"].is_string()), "{lines}");
}

#[test]
fn a_node_takes_its_port_again_and_another_if_it_is_taken() {
    let Some(namespaces) = Namespaces::new(1, "a stable port") else { return };
    let sandbox = Sandbox::new().in_namespace(&namespaces.names[0]);
    let port = |node: &crate::sandbox::NodeProcess| node.socket_address().port();
    let first = sandbox.node("local/0");
    let (before, other) = (port(&first), port(&sandbox.node("local/1")));
    assert_ne!(before, other);
    first.process.signal("TERM");
    first.process.end_within(SOON).expect(0);
    let again = sandbox.node("local/0");
    assert_eq!(port(&again), before);
    // Another process has it now: of another home, so that it is not part of this mesh.
    again.process.signal("KILL");
    again.process.end_within(SOON);
    let unauthenticated = Sandbox::new().in_namespace(&namespaces.names[0]);
    let _holds = unauthenticated.node_with("local/0", &["--listen", &format!("0.0.0.0:{before}")]);
    assert_ne!(port(&sandbox.node("local/0")), before);
}

#[test]
fn a_machine_that_joins_is_told_of_nodes_with_its_old_key() {
    let sandbox = Sandbox::new();
    let ticket = sandbox.run(&["ticket", "--no-mdns"]).expect(0).stdout;
    let other = sandbox.elsewhere();
    // It began its own mesh before it was given the ticket.
    let _early = other.node_with("local/1", &["--no-mdns"]);
    other.run(&["join", ticket.trim()]).expect(0).complains(&["runs on this machine with the old key: restart it"]);
    let again = other.run(&["join", ticket.trim()]).expect(0);
    assert!(!again.stderr.contains("old key"), "{}", again.stderr);
}

#[test]
fn a_full_disk_is_a_problem_though_an_empty_file_can_be_made_on_it() {
    let sandbox = Sandbox::new();
    let Some(disk) = SmallDisk::new(&sandbox, "doctor on a full disk") else { return };
    let folder = disk.folder.display().to_string();
    let script = format!(r#"cat /dev/zero >{folder}/filler 2>/dev/null; exec "$@""#);
    let ended =
        disk.start(&sandbox, &script, &["doctor", "--quick", "--open", "--data", &folder, "--json"]).end().expect(1);
    let findings = ended.json()["findings"].clone();
    let data = findings.as_array().unwrap().iter().find(|finding| finding["check"] == "data").unwrap();
    assert!(data["level"] == "problem" && data["what"].as_str().unwrap().contains("No space left"), "{data}");
}
