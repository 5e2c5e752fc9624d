//! Detached runs: a node makes the steps after the client has left.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};

use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};

const WITHIN: Duration = Duration::from_secs(60);

/// A counter on ps/0 whose value after each step is fetched: the number of the step.
pub fn program(sandbox: &Sandbox) -> String {
    sandbox.file(
        "count.json",
        r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int64", "shape": [] } },
        "zero": { "op": "AssignVariableOp", "inputs": ["v", { "value": 0, "dtype": "int64" }], "device": "/job:ps/task:0" },
        "add": { "op": "AssignAddVariableOp", "inputs": ["v", { "value": 1, "dtype": "int64" }], "device": "/job:ps/task:0" },
        "count": { "op": "ReadVariableOp", "inputs": ["v"], "attrs": { "dtype": "int64" }, "control": ["add"],
                   "device": "/job:ps/task:0" } },
        "init": ["zero"], "fetch": ["count"] }"#,
    )
}

fn mesh(sandbox: &Sandbox) -> [NodeProcess; 2] {
    ["ps/0", "worker/0"].map(|name| sandbox.node(name))
}

/// Begins a run, whose name is returned.
fn launch(sandbox: &Sandbox, steps: &str, more: &[&str]) -> String {
    let graph = program(sandbox);
    let words = ["submit", &graph, "--init", "--steps", steps, "--target", "worker/0", "--detach"];
    sandbox.run(&[&words[..], more].concat()).expect(0).stdout.trim().to_owned()
}

fn listed(sandbox: &Sandbox, run: &str) -> Value {
    let all = sandbox.run(&["runs", "--json"]).expect(0).json();
    let is_it = |one: &&Value| one["id"].as_str().is_some_and(|id| id.starts_with(run));
    all.as_array().and_then(|all| all.iter().find(is_it)).cloned().unwrap_or_else(|| panic!("no {run} in {all}"))
}

#[test]
fn the_result_of_a_run_is_kept_for_those_who_ask_later() {
    let sandbox = Sandbox::new();
    let _mesh = mesh(&sandbox);
    let run = launch(&sandbox, "500", &["--every", "100"]);
    assert_eq!(run.len(), 8, "{run}");
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["state"] == "done"));
    let one = listed(&sandbox, &run);
    assert_eq!(
        (&one["kind"], &one["node"], &one["graph"]),
        (&json!("detached"), &json!("/job:worker/task:0"), &json!("count.json"))
    );
    assert_eq!(one["steps"], json!({ "done": 500, "total": 500 }));
    // As often as somebody asks.
    let lines = "step 100: 100\nstep 200: 200\nstep 300: 300\nstep 400: 400\nstep 500: 500\n";
    for name in [&run[..], "last", &run[..6]] {
        let ended = sandbox.run(&["attach", name]).expect(0);
        assert_eq!(ended.stdout, lines, "{}", ended.stderr);
        assert!(ended.stderr.contains("on worker/0: count.json is at step 500 of 500 steps"), "{}", ended.stderr);
    }
    let last = sandbox.run(&["attach", &run, "--json", "--quiet"]).expect(0);
    let last: Value = serde_json::from_str(last.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last, json!({ "step": 500, "values": { "count": { "dtype": "int64", "shape": [], "value": 500 } } }));
    let table = sandbox.run(&["runs"]).expect(0).stdout;
    assert!(
        table
            .lines()
            .any(|line| line.trim_start().starts_with(&run) && line.contains("worker/0") && line.ends_with("done")),
        "{table}"
    );
    assert!(sandbox.run(&["stop", &run]).expect(0).stderr.contains("is over already: done"));
    // One value alone is printed as `submit` does.
    let run = launch(&sandbox, "7", &[]);
    assert_eq!(sandbox.run(&["attach", &run]).expect(0).stdout, "7\n");
}

#[test]
fn a_run_is_followed_left_and_ended_between_two_steps() {
    let sandbox = Sandbox::new();
    let _mesh = mesh(&sandbox);
    let run = launch(&sandbox, "1000000000", &["--every", "50", "--guard", "0.2"]);
    let first = sandbox.start(&["attach", &run]);
    let next = |last: &mut u64| {
        let line = first.next_line(WITHIN).unwrap_or_else(|| panic!("it ended: {}", first.stderr()));
        let (step, value) = line.trim().trim_start_matches("step ").split_once(": ").unwrap();
        assert_eq!(step, value);
        let step: u64 = step.parse().unwrap();
        // Lines that are not kept any more may be missing; none comes twice.
        assert!(step > *last && step.is_multiple_of(50), "{step} after {last}");
        *last = step;
    };
    let mut last = 0;
    (0..20).for_each(|_| next(&mut last));
    first.signal("INT");
    let ended = first.end();
    assert_eq!(ended.code(), 130);
    assert!(ended.stderr.contains("left by SIGINT"), "{}", ended.stderr);
    // It continues, for others too.
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["steps"]["done"].as_u64().unwrap() > last + 1000));
    assert!(listed(&sandbox, &run)["steps_per_second"].as_f64().unwrap() > 0.0);
    let second = sandbox.start(&["attach", &run, "--quiet"]);
    sandbox.run(&["stop", &run]).expect(0).prints(&run);
    let ended = second.end();
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    assert!(ended.stderr.contains("was ended by "), "{}", ended.stderr);
    let one = listed(&sandbox, &run);
    let done = one["steps"]["done"].as_u64().unwrap();
    assert_eq!(one["state"], "stopped");
    // No step was half done: the counter has the number of the last step, and its value was kept.
    let value = sandbox.run(&["variable", "get", "ps/0", "v"]).expect(0).stdout;
    assert_eq!(value.trim(), done.to_string());
    assert!(ended.stdout.ends_with(&format!("step {done}: {done}\n")), "{}", ended.stdout);
}

#[test]
fn errors_are_those_of_the_launch_or_of_the_run() {
    let sandbox = Sandbox::new();
    let _mesh = mesh(&sandbox);
    let graph = program(&sandbox);
    sandbox
        .run(&["submit", &graph, "--init", "--steps", "9", "--guard", "off", "--detach", "--heir"])
        .expect(2)
        .complains(&["--heir", "guarded"]);
    let wrong = ["submit", &graph, "--init", "--fetch", "cuont", "--detach"];
    sandbox.run(&wrong).expect(2).complains(&["cuont"]);
    // Nobody gave the counter a value: the run fails in its first step, and says so to each who asks.
    let unset = program(&sandbox).replace("count.json", "unset.json");
    let text = std::fs::read_to_string(&graph).unwrap().replace(r#""init": ["zero"], "#, "");
    std::fs::write(&unset, text).unwrap();
    let run = sandbox.run(&["submit", &unset, "--detach"]).expect(0).stdout.trim().to_owned();
    for _ in 0..2 {
        sandbox.run(&["attach", &run]).expect(3).complains(&["uninitialized value", "--init", "--weights"]);
    }
    let failing = sandbox.file(
        "fails.json",
        r#"{ "version": 1, "nodes": { "z": { "op": "Div", "inputs": [{ "value": 1 }, { "value": 0 }] } }, "fetch": ["z"] }"#,
    );
    let run = sandbox.run(&["submit", &failing, "--detach"]).expect(0).stdout.trim().to_owned();
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["state"] == "failed"), "{}", listed(&sandbox, &run));
    for _ in 0..2 {
        sandbox.run(&["attach", &run]).expect(3).complains(&["node z"]);
    }
    // 68 MB, of which none is kept: no result is no success.
    let large = sandbox.file(
        "large.json",
        r#"{ "version": 1, "nodes": { "y": { "op": "Fill", "inputs": [[17000000], { "value": 0.5 }] } }, "fetch": ["y"] }"#,
    );
    let large = sandbox.run(&["submit", &large, "--detach"]).expect(0).stdout.trim().to_owned();
    sandbox.run(&["attach", &large]).expect(2).complains(&["is done, and the values of a step take", "up to 67.1 MB"]);
    for words in [["attach", "abcd"], ["stop", "abcd"]] {
        sandbox.run(&words).expect(2).complains(&["no node of the mesh has a detached run abcd", "meshtf runs"]);
    }
    assert!(listed(&sandbox, &run)["message"].as_str().is_some_and(|why| why.contains("node z")));
}

#[test]
fn the_last_step_of_a_run_that_is_ended_is_printed_once() {
    let sandbox = Sandbox::new();
    let _mesh = mesh(&sandbox);
    let run = launch(&sandbox, "1000000000", &["--every", "1"]);
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["steps"]["done"].as_u64().unwrap() > 5));
    sandbox.run(&["stop", &run, "--at-once"]).expect(0).prints(&run);
    for _ in 0..2 {
        let ended = sandbox.run(&["attach", &run]).expect(143);
        let steps: Vec<u64> = ended
            .stdout
            .lines()
            .map(|line| line.trim_start_matches("step ").split_once(": ").unwrap().0.parse().unwrap())
            .collect();
        assert!(!steps.is_empty() && steps.is_sorted_by(|one, next| one < next), "{}", ended.stdout);
    }
    // Steps that were ended in their midst are no part of a later run.
    let run = launch(&sandbox, "3", &["--every", "1"]);
    assert_eq!(sandbox.run(&["attach", &run]).expect(0).stdout, "step 1: 1\nstep 2: 2\nstep 3: 3\n");
}

#[test]
fn a_follower_ends_with_its_reader_or_a_signal_and_leaves_the_run() {
    let sandbox = Sandbox::new();
    let mesh = mesh(&sandbox);
    let run = launch(&sandbox, "1000000000", &["--every", "50"]);
    // As `meshtf attach RUN | head -1`.
    let mut follower = sandbox.command(&["attach", &run]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(follower.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("step "), "{line}");
    assert!(wait_until(WITHIN, || follower.try_wait().unwrap().is_some()), "it ends with its reader");
    assert_eq!(follower.wait().unwrap().code(), Some(0));
    // The code of SIGTERM is that of a run that somebody ended.
    let follower = sandbox.start(&["attach", &run]);
    assert!(follower.next_line(WITHIN).is_some());
    follower.signal("TERM");
    let ended = follower.end().expect(130);
    assert!(ended.stderr.contains("left by SIGTERM"), "{}", ended.stderr);
    assert_eq!(listed(&sandbox, &run)["state"], "running");
    // While no node is found, too.
    drop(mesh);
    let follower = sandbox.start(&["attach", &run]);
    assert!(wait_until(WITHIN, || handles_interrupts(follower.pid())));
    follower.signal("INT");
    follower.end().expect(130);
}

/// Whether a process has a handler for SIGINT: bit 1 of the mask SigCgt.
fn handles_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
}

/// The lines of a run that prints each `every`-th step: the number of the step, which is also the counter's value.
struct Counted {
    client: Running,
    every: u64,
    last: u64,
}

impl Counted {
    /// A run whose client stays; its master is worker/0.
    fn submit(sandbox: &Sandbox, steps: &str, every: u64) -> Counted {
        let graph = program(sandbox);
        let every_text = every.to_string();
        let words = ["submit", &graph, "--init", "--steps", steps, "--every", &every_text, "--guard", "0.1"];
        let client = sandbox.start(&[&words[..], &["--target", "worker/0", "--heir"]].concat());
        Counted { client, every, last: 0 }
    }

    /// The next line: none is missing, and none comes twice.
    fn next(&mut self) {
        let line = self.client.next_line(WITHIN).unwrap_or_else(|| panic!("it ended: {}", self.client.stderr()));
        let next = self.last + self.every;
        assert_eq!(line.trim(), format!("step {next}: {next}"), "{}", self.client.stderr());
        self.last = next;
    }

    fn reach(&mut self, beyond: u64) {
        while self.last < beyond {
            self.next();
        }
    }

    fn says(&self, what: &str) {
        assert!(wait_until(WITHIN, || self.client.stderr().contains(what)), "{what}: {}", self.client.stderr());
    }
}

/// The run of a client that stays, which is the only one.
fn the_only(sandbox: &Sandbox) -> Value {
    listed(sandbox, "")
}

#[test]
fn a_client_follows_its_run_to_the_heir_of_a_master_that_is_killed() {
    let sandbox = Sandbox::new();
    let mut mesh: Vec<Option<NodeProcess>> =
        ["ps/0", "worker/0", "worker/1"].map(|name| Some(sandbox.node(name))).into();
    let mut run = Counted::submit(&sandbox, "1000000000", 20);
    run.reach(1000);
    let has_heir = || the_only(&sandbox)["heir"].is_string();
    assert!(wait_until(WITHIN, has_heir), "{}", the_only(&sandbox));
    mesh[1].take().unwrap().process.signal("KILL");
    run.says("the master worker/0 was lost at step ");
    let continued = run.last + 5000;
    run.reach(continued);
    let said = run.client.stderr();
    assert_eq!(said.matches("was lost at step ").count(), 1, "{said}");
    assert!(said.contains("; continued by worker/1 from "), "{said}");
    let one = the_only(&sandbox);
    assert_eq!((&one["state"], &one["node"]), (&json!("running"), &json!("/job:worker/task:1")));
    // The run ends with its client, wherever it is by now.
    run.client.signal("INT");
    let ended = run.client.end();
    assert_eq!(ended.code(), 130, "{}", ended.stderr);
    assert!(ended.stderr.contains(" is ended"), "{}", ended.stderr);
    assert!(wait_until(WITHIN, || the_only(&sandbox)["state"] == "stopped"), "{}", the_only(&sandbox));
}

#[test]
fn a_master_that_was_stopped_gives_its_run_up_to_the_heir() {
    let sandbox = Sandbox::new();
    let mesh = ["ps/0", "worker/0", "worker/1"].map(|name| sandbox.node(name));
    let mut run = Counted::submit(&sandbox, "1000000000", 20);
    run.reach(1000);
    let one = the_only(&sandbox);
    let follower = sandbox.start(&["attach", one["id"].as_str().unwrap()]);
    assert!(wait_until(WITHIN, || the_only(&sandbox)["heir"].is_string()), "{}", the_only(&sandbox));
    mesh[1].process.signal("STOP");
    let continued = "; continued by worker/1 from ";
    // Its lines wait until they are read.
    while !run.client.stderr().contains(continued) {
        run.next();
    }
    let beyond = run.last + 2000;
    run.reach(beyond);
    mesh[1].process.signal("CONT");
    // It learns of it, says so, and has the run no more.
    let told = "another node continues the session";
    assert!(wait_until(WITHIN, || mesh[1].process.stderr().contains(told)), "{}", mesh[1].process.stderr());
    let beyond = run.last + 5000;
    run.reach(beyond);
    let one = the_only(&sandbox);
    assert_eq!((&one["state"], &one["node"]), (&json!("running"), &json!("/job:worker/task:1")));
    assert_eq!(run.client.stderr().matches("was lost at step ").count(), 1, "{}", run.client.stderr());
    assert!(wait_until(WITHIN, || follower.stderr().contains(continued)), "{}", follower.stderr());
    sandbox.run(&["stop", one["id"].as_str().unwrap()]).expect(0);
    while run.client.next_line(WITHIN).is_some() {}
    for ended in [run.client.end(), follower.end()] {
        assert_eq!(ended.code(), 143, "{}", ended.stderr);
    }
    // No step was made by both.
    let done = the_only(&sandbox)["steps"]["done"].as_u64().unwrap();
    let value = sandbox.run(&["variable", "get", "ps/0", "v"]).expect(0).stdout;
    assert_eq!(value.trim(), done.to_string());
}

/// The heir computes again all that the client has not received, also if the run was far ahead.
#[test]
fn a_run_waits_for_its_client_and_its_heir_does_so_too() {
    let sandbox = Sandbox::new();
    let mut mesh: Vec<Option<NodeProcess>> =
        ["ps/0", "worker/0", "worker/1"].map(|name| Some(sandbox.node(name))).into();
    let mut run = Counted::submit(&sandbox, "1000000000", 1);
    run.reach(100);
    assert!(wait_until(WITHIN, || the_only(&sandbox)["heir"].is_string()), "{}", the_only(&sandbox));
    run.client.signal("STOP");
    let steps = || the_only(&sandbox)["steps"]["done"].as_u64().unwrap();
    // It makes the steps whose values are kept until they are fetched, and no more.
    let mut before = 0;
    assert!(wait_until(WITHIN, || std::mem::replace(&mut before, steps()) == before && before > 0));
    mesh[1].take().unwrap().process.signal("KILL");
    // For a moment no node has it.
    let nodes = || sandbox.run(&["runs", "--json"]).expect(0).stdout;
    assert!(wait_until(WITHIN, || nodes().contains("/job:worker/task:1")), "{}", nodes());
    run.client.signal("CONT");
    run.says("; continued by worker/1 from ");
    let beyond = steps() + 3000;
    run.reach(beyond);
    run.client.signal("TERM");
    let ended = run.client.end();
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
}

#[test]
fn a_client_that_stays_prints_what_submit_prints_and_says_if_no_node_continues() {
    let sandbox = Sandbox::new();
    let mut mesh: Vec<Option<NodeProcess>> =
        ["ps/0", "worker/0", "worker/1"].map(|name| Some(sandbox.node(name))).into();
    let graph = program(&sandbox);
    let words = ["submit", &graph, "--init", "--target", "worker/0", "--heir", "--steps"];
    assert_eq!(sandbox.run(&[&words[..], &["7"]].concat()).expect(0).stdout, "7\n");
    let lines: String = (1..=2000).map(|step| format!("step {step}: {step}\n")).collect();
    assert_eq!(sandbox.run(&[&words[..], &["2000", "--every", "1"]].concat()).expect(0).stdout, lines);
    let wrong = [&words[..], &["7", "--guard", "off"]].concat();
    sandbox.run(&wrong).expect(2).complains(&["--heir", "guarded"]);
    let mut run = Counted::submit(&sandbox, "1000000000", 50);
    run.reach(100);
    mesh[1..].iter_mut().for_each(|node| node.take().unwrap().process.signal("KILL"));
    while run.client.next_line(WITHIN).is_some() {}
    let ended = run.client.end();
    assert_eq!(ended.code(), 4, "{}", ended.stderr);
    for what in ["no other node continued the run within 15 s", "submit it again"] {
        assert!(ended.stderr.contains(what), "{what}: {}", ended.stderr);
    }
}

#[test]
fn another_node_continues_the_run_of_a_master_that_is_killed() {
    let sandbox = Sandbox::new();
    let mut mesh: Vec<Option<NodeProcess>> =
        ["ps/0", "worker/0", "worker/1"].map(|name| Some(sandbox.node(name))).into();
    let graph = program(&sandbox);
    let words = ["submit", &graph, "--init", "--steps", "1000000000", "--every", "500", "--guard", "0.1"];
    let master = ["--target", "worker/0", "--detach", "--heir"];
    let run = sandbox.run(&[&words[..], &master].concat()).expect(0).stdout.trim().to_owned();
    let follower = sandbox.start(&["attach", &run]);
    let mut last = 0;
    let mut reach = |beyond: u64| {
        while last < beyond {
            let line = follower.next_line(WITHIN).unwrap_or_else(|| panic!("it ended: {}", follower.stderr()));
            let (step, value) = line.trim().trim_start_matches("step ").split_once(": ").unwrap();
            assert_eq!(step, value, "each step counts once, whoever makes it");
            let step: u64 = step.parse().unwrap();
            assert!(step > last, "{step} after {last}");
            last = step;
        }
        last
    };
    reach(2000);
    // The heir has a copy of some time later.
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["heir"].is_string()), "{}", listed(&sandbox, &run));
    mesh[1].take().unwrap().process.signal("KILL");
    let lost = "the master worker/0 was lost at step ";
    assert!(wait_until(WITHIN, || follower.stderr().contains(lost)), "{}", follower.stderr());
    let steps = || listed(&sandbox, &run)["steps"]["done"].as_u64().unwrap();
    reach(steps() + 5000);
    assert_eq!(follower.stderr().matches(lost).count(), 1, "{}", follower.stderr());
    let one = listed(&sandbox, &run);
    assert_eq!((&one["state"], &one["node"]), (&json!("running"), &json!("/job:worker/task:1")));
    // The heir has one, too.
    assert!(wait_until(WITHIN, || listed(&sandbox, &run)["heir"].is_string()), "{}", listed(&sandbox, &run));
    // It continues after other losses, and with those who came since.
    mesh[1] = Some(sandbox.node("worker/0"));
    mesh[0].take().unwrap().process.signal("KILL");
    mesh[0] = Some(sandbox.node("ps/0"));
    assert!(wait_until(WITHIN, || follower.stderr().contains("ps/0 was lost at step ")), "{}", follower.stderr());
    reach(steps() + 5000);
    sandbox.run(&["stop", &run]).expect(0).prints(&run);
    let ended = follower.end();
    assert_eq!(ended.code(), 143, "{}", ended.stderr);
    let done = listed(&sandbox, &run)["steps"]["done"].as_u64().unwrap();
    let value = sandbox.run(&["variable", "get", "ps/0", "v"]).expect(0).stdout;
    assert_eq!(value.trim(), done.to_string());
}
