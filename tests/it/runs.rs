//! The records that trainings leave, and `meshtf runs`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::sandbox::{Sandbox, wait_until};
use crate::training::example;

/// The limit for a training to write its record.
const WITHIN: Duration = Duration::from_secs(60);

fn listed(sandbox: &Sandbox) -> Vec<Value> {
    let ended = sandbox.run(&["runs", "--json"]).expect(0);
    serde_json::from_str::<Vec<Value>>(&ended.stdout).unwrap()
}

fn shown(sandbox: &Sandbox, run: &str) -> Value {
    serde_json::from_str(&sandbox.run(&["runs", "show", run, "--json"]).expect(0).stdout).unwrap()
}

#[test]
fn a_training_leaves_a_record_that_can_be_compared_and_removed() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    let [states, log] = ["states", "log"].map(|name| sandbox.path(name).display().to_string());
    sandbox.run(&["train", &graph, "--local", "--steps", "200", "--checkpoint", &states, "--log", &log]).expect(0);
    let changed = std::fs::read_to_string(&graph).unwrap().replace("0.02", "0.05");
    let other = sandbox.file("other.json", changed);
    sandbox.run(&["train", &other, "--local", "--steps", "100", "--quiet"]).expect(0);
    sandbox.run(&["train", &other, "--local", "--steps", "100", "--quiet", "--no-record"]).expect(0);

    let runs = listed(&sandbox);
    let [second, first] = &runs[..] else { panic!("{runs:?}") };
    assert_eq!(
        (&first["state"], &first["kind"], &first["steps"]["done"]),
        (&json!("done"), &json!("train"), &json!(200))
    );
    // The nodes are the same, and the sections are not.
    assert_eq!(first["graph_hash"], second["graph_hash"]);
    let record = shown(&sandbox, first["id"].as_str().unwrap());
    assert_eq!(record["sections"]["train"]["rate"], json!(0.02));
    assert_eq!(record["checkpoints"][0]["step"], json!(200));
    assert_eq!(record["files"]["log"], json!(log));
    // The curve ends as the log does.
    let lines = std::fs::read_to_string(sandbox.path("log").join("log.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = |key: &str| lines.iter().rev().find_map(|line| line[key]["loss"].as_f64()).unwrap();
    let curve = |held_out: bool| {
        let curves = record["curves"].as_array().unwrap().iter();
        curves.clone().find(|one| one["name"] == "loss" && one["is_held_out"] == held_out).unwrap()
    };
    for (held_out, wanted) in [(false, last("values")), (true, last("evaluated"))] {
        let point = &curve(held_out)["last"];
        // The digits of a number may change when it is read and written again.
        assert!(point[0] == 200 && (point[1].as_f64().unwrap() - wanted).abs() < 1e-12, "{point} and {wanted}");
    }
    assert!(curve(false)["points"].as_array().unwrap().len() > 20);

    let newest = sandbox.run(&["runs", "-n", "1", "--json"]).expect(0).json();
    assert_eq!(newest.as_array().map(|all| (all.len(), &all[0]["id"])), Some((1, &second["id"])));
    let ids = [first, second].map(|run| run["id"].as_str().unwrap().to_owned());
    let compared = sandbox.run(&["runs", "compare", &ids[0], &ids[1], "--json"]).expect(0).stdout;
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(compared["differences"]["train.rate"], json!([0.02, 0.05]));
    assert_eq!(compared["results"]["steps"], json!([200, 100]));
    let text = sandbox.run(&["runs", "show", "last"]).expect(0).stdout;
    assert!(text.contains(&ids[1]) && text.contains("loss (held out)"), "{text}");

    sandbox.run(&["runs", "remove", &ids[0]]).expect(0);
    assert_eq!(listed(&sandbox).len(), 1);
    assert!(sandbox.path("states").join("step-000000000200.safetensors").exists());
    assert!(sandbox.run(&["runs", "show", &ids[0]]).expect(2).stderr.contains("there is no run"));
}

#[test]
fn a_training_says_that_it_was_killed_or_by_which_signal_it_was_stopped() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    let endless = ["train", &graph, "--local", "--steps", "100000000", "--quiet"];
    for (signal, state) in [("KILL", "killed"), ("TERM", "stopped")] {
        let training = sandbox.start(&endless);
        assert!(wait_until(WITHIN, || listed(&sandbox).iter().any(|run| run["state"] == "running")));
        let id = listed(&sandbox)[0]["id"].as_str().unwrap().to_owned();
        let refused = sandbox.run(&["runs", "remove", &id]).expect(2).stderr;
        assert!(refused.contains("is not over"), "{refused}");
        training.signal(signal);
        training.end();
        let record = shown(&sandbox, &id);
        assert_eq!(record["state"], json!(state));
        let message = record["end"]["message"].as_str().unwrap_or_default();
        assert!(state == "killed" || message.starts_with("stopped by SIGTERM "), "{record}");
    }
    sandbox.run(&["runs", "remove", "--older", "0h"]).expect(0);
    assert!(listed(&sandbox).is_empty());
}

#[test]
fn a_training_without_room_for_its_record_warns_once() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    sandbox.file("runs", "a file where the folder would be");
    let ended = sandbox.run(&["train", &graph, "--local", "--steps", "100", "--quiet"]).expect(0);
    assert_eq!(ended.stderr.matches("the record of the run cannot be written").count(), 1, "{}", ended.stderr);
}

#[test]
fn many_steps_of_a_graph_leave_a_record_and_one_step_does_not() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "count.json",
        r#"{"version": 1, "variables": {"n": {"shape": []}},
            "nodes": {"more": {"op": "AssignAddVariableOp", "inputs": ["n/variable", 0.5]},
                "read": {"op": "ReadVariableOp", "inputs": ["n/variable"], "control": ["more"], "attrs": {"dtype": "float32"}}},
            "fetch": ["read"]}"#,
    );
    for steps in ["1", "99"] {
        sandbox.run(&["run", &graph, "--steps", steps]).expect(0);
        assert!(listed(&sandbox).is_empty());
    }
    sandbox.run(&["run", &graph, "--steps", "100"]).expect(0);
    let runs = listed(&sandbox);
    assert_eq!((runs.len(), &runs[0]["kind"], &runs[0]["values"][0]["last"]), (1, &json!("run"), &json!(50.0)));
}
