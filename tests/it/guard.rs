//! Guarded steps: a task is killed while they run and comes back, and the client sees the values of undisturbed steps.

use std::time::{Duration, Instant};

use crate::sandbox::{NodeProcess, Running, Sandbox, wait_until};
use crate::training::example;

const SPEAKS_WITHIN: Duration = Duration::from_secs(60);

/// A counter and a sum of random numbers on ps/0, computed with on worker/0: `count` is the number of the step.
fn program(sandbox: &Sandbox) -> String {
    sandbox.file(
        "guarded.json",
        r#"{ "version": 1, "nodes": {
        "v": { "op": "VarHandleOp", "device": "/job:ps/task:0", "attrs": { "dtype": "int64", "shape": [] } },
        "zero": { "op": "AssignVariableOp", "inputs": ["v", "0l"], "device": "/job:ps/task:0" },
        "0l": { "op": "Const", "attrs": { "value": { "dtype": "int64", "value": 0 } } },
        "one": { "op": "Const", "attrs": { "value": { "dtype": "int64", "value": 1 } }, "device": "/job:worker/task:0" },
        "before": { "op": "ReadVariableOp", "inputs": ["v"], "attrs": { "dtype": "int64" }, "device": "/job:ps/task:0" },
        "after": { "op": "AddV2", "inputs": ["before", "one"], "device": "/job:worker/task:0" },
        "set": { "op": "AssignVariableOp", "inputs": ["v", "after"], "device": "/job:ps/task:0" },
        "count": { "op": "Identity", "inputs": ["after"], "control": ["set"], "device": "/job:worker/task:0" } },
        "init": ["zero"], "targets": ["set"], "fetch": ["count"] }"#,
    )
}

/// The numbers that a client prints, each the next after the last.
struct Counted {
    client: Running,
    last: u64,
}

impl Counted {
    fn start(sandbox: &Sandbox, steps: &str, guard: &str) -> Counted {
        Counted::start_with(sandbox, steps, &["--guard", guard])
    }

    fn start_with(sandbox: &Sandbox, steps: &str, more: &[&str]) -> Counted {
        let graph = program(sandbox);
        let fixed = ["submit", &graph, "--init", "--steps", steps, "--every", "1", "--target", "worker/1"];
        let client = sandbox.start(&[&fixed[..], more].concat());
        Counted { client, last: 0 }
    }

    /// Reads the next number; `false` at the end.
    fn next(&mut self) -> bool {
        let Some(line) = self.client.next_line(SPEAKS_WITHIN) else { return false };
        // `step 3: 3`, and the last value alone.
        let number = line.trim().rsplit(' ').next().and_then(|number| number.parse::<u64>().ok());
        let number = number.unwrap_or_else(|| panic!("{line}\n{}", self.client.stderr()));
        assert_eq!(number, self.last + 1, "no step is left out, and none comes twice\n{}", self.client.stderr());
        self.last = number;
        true
    }

    fn reach(&mut self, number: u64) {
        while self.last < number {
            assert!(self.next(), "it ended after {}\n{}", self.last, self.client.stderr());
        }
    }
}

/// Reads on for many times the distance between two copies.
fn guarded(counted: &mut Counted) {
    let (done, began) = (counted.last, Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        assert!(counted.next(), "it ended after {}\n{}", counted.last, counted.client.stderr());
    }
    counted.reach(done + 100);
}

struct Mesh {
    ps: Option<NodeProcess>,
    worker: Option<NodeProcess>,
    _master: NodeProcess,
}

fn mesh(sandbox: &Sandbox) -> Mesh {
    Mesh { ps: Some(sandbox.node("ps/0")), worker: Some(sandbox.node("worker/0")), _master: sandbox.node("worker/1") }
}

#[test]
fn steps_continue_after_the_death_of_a_ps_and_of_a_worker() {
    let sandbox = Sandbox::new();
    let mut mesh = mesh(&sandbox);
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    for (role, place) in [("ps/0", &mut mesh.ps), ("worker/0", &mut mesh.worker)] {
        let node = place.take().unwrap();
        node.process.signal("KILL");
        drop(node);
        *place = Some(sandbox.node(role));
        guarded(&mut counted);
        let told = format!("{role} was lost at step ");
        assert!(counted.client.stderr().contains(&told), "{}", counted.client.stderr());
    }
    assert_eq!(counted.client.stderr().matches("; continued from ").count(), 2, "{}", counted.client.stderr());
}

#[test]
fn the_loss_of_no_node_ends_steps_whose_master_is_their_client() {
    let sandbox = Sandbox::new();
    let names = ["ps/0", "worker/0", "worker/1"];
    let mut nodes = names.map(|name| Some(sandbox.node(name)));
    let mut counted = Counted::start_with(&sandbox, "1000000000", &["--guard", "0.1", "--own-master"]);
    guarded(&mut counted);
    for (name, place) in names.iter().zip(&mut nodes) {
        let node = place.take().unwrap();
        node.process.signal("KILL");
        drop(node);
        *place = Some(sandbox.node(name));
        guarded(&mut counted);
    }
    // worker/1, the task of --target, has no part in the steps, and would end them as their master.
    let told = counted.client.stderr();
    for name in ["ps/0", "worker/0"] {
        assert!(told.contains(&format!("{name} was lost at step ")), "{name}: {told}");
    }
    assert_eq!(told.matches("; continued from ").count(), 2, "{told}");
}

#[test]
fn a_training_whose_master_is_its_client_survives_the_loss_of_every_node() {
    let sandbox = Sandbox::new();
    let names = ["ps/0", "worker/0", "worker/1"];
    let mut nodes = names.map(|name| Some(sandbox.node(name)));
    let graph = example(&sandbox, r#""workers": 2, "ps": 1, "mode": "sync", "#);
    let words = ["train", &graph, "--steps", "100000000", "--report", "10", "--guard", "0.1", "--own-master"];
    let mut client = sandbox.start(&words);
    let trains_for = |client: &Running, time: Duration| {
        let began = Instant::now();
        while began.elapsed() < time {
            assert!(client.next_line(SPEAKS_WITHIN).is_some(), "{}", client.stderr());
        }
    };
    // Many times the distance between two copies.
    trains_for(&client, Duration::from_secs(2));
    for ((name, place), count) in names.iter().zip(&mut nodes).zip(1..) {
        let node = place.take().unwrap();
        node.process.signal("KILL");
        drop(node);
        *place = Some(sandbox.node(name));
        let continues = || client.stderr().matches("; continued from ").count() == count;
        assert!(wait_until(SPEAKS_WITHIN, continues), "{name}: {}", client.stderr());
        trains_for(&client, Duration::from_secs(2));
    }
    assert!(!client.has_ended(), "{}", client.stderr());
    client.signal("INT");
    client.end_within(SPEAKS_WITHIN).expect(130);
}

#[test]
fn a_client_is_the_master_of_no_run_that_it_leaves() {
    let sandbox = Sandbox::new();
    let _node = sandbox.node("local/0");
    let graph = program(&sandbox);
    let refused = ["cannot be used with", "--own-master"];
    sandbox.run(&["submit", &graph, "--own-master", "--detach"]).expect(2).complains(&refused);
    sandbox.run(&["submit", &graph, "--own-master", "--heir"]).expect(2).complains(&refused);
    sandbox.run(&["train", &graph, "--own-master", "--local"]).expect(2).complains(&refused);
    let elastic = example(&sandbox, r#""workers": {"min": 1, "max": 2}, "mode": "sync", "#);
    sandbox.run(&["train", &elastic, "--own-master"]).expect(2).complains(&["another master by itself"]);
    let target = ["submit", &graph, "--own-master", "--target", "local/1"];
    sandbox.run(&target).expect(4).complains(&["No node serves /job:local/task:1"]);
}

#[test]
fn guarded_steps_are_as_exact_on_tasks_whose_variables_outlive_them() {
    let sandbox = Sandbox::new();
    let keeping = |name: &str| sandbox.node_with(name, &["--keep-variables", "50ms"]);
    let (_master, _worker) = (keeping("worker/1"), keeping("worker/0"));
    let mut ps = keeping("ps/0");
    // The variable exists before the guarded run, with a value that is none of its own.
    let graph = program(&sandbox);
    sandbox.run(&["submit", &graph, "--init", "--target", "worker/1"]).expect(0);
    let is_kept =
        |ps: &NodeProcess| ps.process.stderr().contains("keeps a copy of its variables at worker/0: 1 variable");
    assert!(wait_until(SPEAKS_WITHIN, || is_kept(&ps)), "{}", ps.process.stderr());
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    for _ in 0..3 {
        guarded(&mut counted);
        ps.process.signal("KILL");
        drop(ps);
        ps = keeping("ps/0");
    }
    guarded(&mut counted);
    assert_eq!(counted.client.stderr().matches("; continued from ").count(), 3, "{}", counted.client.stderr());
}

#[test]
fn steps_are_guarded_unless_that_is_off() {
    let sandbox = Sandbox::new();
    let mut mesh = mesh(&sandbox);
    let mut events = sandbox.start(&["events", "worker/1", "--json"]);
    let mut counted = Counted::start_with(&sandbox, "1000000000", &[]);
    let began = Instant::now();
    loop {
        assert!(counted.next(), "it ended after {}\n{}", counted.last, counted.client.stderr());
        if events.waiting_line().is_some_and(|line| line.contains("can be continued from step")) {
            break;
        }
        assert!(began.elapsed() < SPEAKS_WITHIN && !events.has_ended(), "no copy is taken: {}", events.stderr());
    }
    mesh.ps.take().unwrap().process.signal("KILL");
    mesh.ps = Some(sandbox.node("ps/0"));
    let done = counted.last;
    counted.reach(done + 2000);
    assert_eq!(counted.client.stderr().matches("; continued from ").count(), 1, "{}", counted.client.stderr());
}

#[test]
fn a_client_that_did_not_ask_for_copies_is_not_told_that_they_cannot_be_used() {
    let sandbox = Sandbox::new();
    let _mesh = mesh(&sandbox);
    let graph = program(&sandbox);
    // Both change the same variable.
    let words = ["submit", &graph, "--steps", "1000000000", "--target", "worker/1"];
    let quiet = sandbox.start(&[&words[..], &["--init"]].concat());
    let says = |client: &Running| client.stderr().contains("not guarded");
    let asked = sandbox.start(&[&words[..], &["--guard", "0.2"]].concat());
    assert!(wait_until(SPEAKS_WITHIN, || says(&asked)), "{}", asked.stderr());
    // Time for several copies of the first one's state, too.
    let began = Instant::now();
    wait_until(SPEAKS_WITHIN, || began.elapsed() > Duration::from_secs(4));
    assert!(!says(&quiet), "{}", quiet.stderr());
    for mut client in [quiet, asked] {
        assert!(!client.has_ended(), "{}", client.stderr());
        client.signal("INT");
        client.end();
    }
}

#[test]
fn a_loss_of_the_buddy_too_is_named() {
    let sandbox = Sandbox::new();
    let mut mesh = mesh(&sandbox);
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    // The copies of ps/0 are on the next task by name.
    let (ps, worker) = (mesh.ps.take().unwrap(), mesh.worker.take().unwrap());
    worker.process.signal("KILL");
    ps.process.signal("KILL");
    drop((ps, worker));
    let _back = (sandbox.node("ps/0"), sandbox.node("worker/0"));
    while counted.next() {}
    let ended = counted.client.end_within(SPEAKS_WITHIN);
    ended.expect(4).complains(&["ps/0 was lost, and worker/0, which kept the copy of its state, too: v", "checkpoint"]);
}

#[test]
fn a_stopped_ps_is_waited_for() {
    let sandbox = Sandbox::new();
    let mesh = mesh(&sandbox);
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    let ps = mesh.ps.as_ref().unwrap();
    ps.process.signal("STOP");
    let says = |what: &str| counted.client.stderr().contains(what);
    assert!(wait_until(SPEAKS_WITHIN, || says("waiting up to 60 s")), "{}", counted.client.stderr());
    ps.process.signal("CONT");
    assert!(wait_until(SPEAKS_WITHIN, || says("; continued from ")), "{}", counted.client.stderr());
    let done = counted.last;
    counted.reach(done + 2000);
}

/// A node without a task.
fn spare(sandbox: &Sandbox) -> Running {
    let spare = sandbox.start(&["node", "--spare", "--listen", "127.0.0.1:0"]);
    let line = spare.next_line(SPEAKS_WITHIN).unwrap_or_else(|| panic!("{}", spare.stderr()));
    assert!(line.starts_with("spare peer=") && line.ends_with(" waits for a task that is lost\n"), "{line}");
    spare
}

/// The tasks and the number of spares that are listed.
fn listed(sandbox: &Sandbox) -> (Vec<String>, usize) {
    let ps = sandbox.run(&["ps", "--json"]).expect(0).json();
    let all = ps.as_array().cloned().unwrap_or_default();
    let tasks = all.iter().filter_map(|one| Some(one["task"].as_str()?.to_owned()));
    (tasks.collect(), all.iter().filter(|one| one["spare"] == true).count())
}

#[test]
fn spares_take_the_names_of_a_lost_ps_and_of_a_lost_worker() {
    let sandbox = Sandbox::new();
    let mut mesh = mesh(&sandbox);
    let mut spares = [spare(&sandbox), spare(&sandbox)];
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).1 == 2), "{:?}", listed(&sandbox));
    assert_eq!(sandbox.run(&["ps"]).expect(0).stdout.matches("spare").count(), 2);
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    // Both want each name; one gets it.
    for (role, place, left) in [("ps/0", &mut mesh.ps, 1), ("worker/0", &mut mesh.worker, 0)] {
        place.take().unwrap().process.signal("KILL");
        guarded(&mut counted);
        let told = format!("{role} was lost at step ");
        assert!(counted.client.stderr().contains(&told), "{}", counted.client.stderr());
        assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).1 == left), "{:?}", listed(&sandbox));
    }
    assert_eq!(counted.client.stderr().matches("; continued from ").count(), 2, "{}", counted.client.stderr());
    assert!(!spares.iter_mut().any(Running::has_ended), "the one that did not get the first name took the second");
}

#[test]
fn spares_take_the_names_of_tasks_that_are_lost_at_once() {
    let sandbox = Sandbox::new();
    let Mesh { ps, worker, _master } = mesh(&sandbox);
    let _spares = [spare(&sandbox), spare(&sandbox)];
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).1 == 2), "{:?}", listed(&sandbox));
    let all = listed(&sandbox).0;
    for lost in [ps, worker] {
        lost.unwrap().process.signal("KILL");
    }
    // If both want one name first, the one that does not get it takes the other.
    assert!(wait_until(2 * SPEAKS_WITHIN, || listed(&sandbox) == (all.clone(), 0)), "{:?}", listed(&sandbox));
}

#[test]
fn a_node_takes_the_name_of_a_lost_task_besides_its_own_if_it_was_asked_to() {
    let sandbox = Sandbox::new();
    let (ps, _worker) = (sandbox.node("ps/0"), sandbox.node("worker/0"));
    let master = sandbox.node_with("worker/1", &["--take-over"]);
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).1 == 1), "{:?}", listed(&sandbox));
    let all = listed(&sandbox).0;
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    ps.process.signal("KILL");
    guarded(&mut counted);
    assert!(counted.client.stderr().contains("ps/0 was lost at step "), "{}", counted.client.stderr());
    assert_eq!(listed(&sandbox), (all, 0));
    // One signal ends both.
    master.process.signal("TERM");
    master.process.end_within(SPEAKS_WITHIN).expect(0);
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).0 == ["/job:worker/task:0"]), "{:?}", listed(&sandbox));
}

#[test]
fn a_spare_does_not_take_the_name_of_a_task_that_left() {
    let sandbox = Sandbox::new();
    let Mesh { ps, worker, _master } = mesh(&sandbox);
    let _spare = spare(&sandbox);
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).1 == 1), "{:?}", listed(&sandbox));
    let names = |names: &[&str]| names.iter().map(|name| format!("/job:{name}")).collect::<Vec<_>>();
    let ps = ps.unwrap().process;
    ps.signal("TERM");
    ps.end_within(SPEAKS_WITHIN).expect(0);
    let others = names(&["worker/task:0", "worker/task:1"]);
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox).0 == others), "{:?}", listed(&sandbox));
    worker.unwrap().process.signal("KILL");
    // It is the only one whose name is taken again.
    assert!(wait_until(SPEAKS_WITHIN, || listed(&sandbox) == (others.clone(), 0)), "{:?}", listed(&sandbox));
}

#[test]
fn a_node_has_a_name_or_is_a_spare() {
    let sandbox = Sandbox::new();
    sandbox.run(&["node"]).expect(2).complains(&["--name <TASK>", "--spare"]);
    sandbox.run(&["node", "--spare", "--name", "ps/0"]).expect(2).complains(&["cannot be used with"]);
    sandbox.run(&["node", "--spare", "--take-over"]).expect(2).complains(&["cannot be used with"]);
}

#[test]
fn without_a_guard_a_loss_ends_the_steps() {
    let sandbox = Sandbox::new();
    let mut mesh = mesh(&sandbox);
    let mut counted = Counted::start(&sandbox, "1000000000", "off");
    counted.reach(100);
    mesh.ps.take().unwrap().process.signal("KILL");
    while counted.next() {}
    counted.client.end_within(SPEAKS_WITHIN).expect(4).complains(&["ps/task:0"]);
}

#[test]
fn an_end_by_the_loss_of_the_master_says_how_to_survive_that() {
    let sandbox = Sandbox::new();
    let Mesh { ps: _ps, worker: _worker, _master: master } = mesh(&sandbox);
    let mut counted = Counted::start(&sandbox, "1000000000", "0.1");
    guarded(&mut counted);
    master.process.signal("KILL");
    while counted.next() {}
    let ended = counted.client.end_within(SPEAKS_WITHIN).expect(4);
    ended.complains(&["the master /job:worker/task:1 is gone", "--own-master or --heir"]);
}
