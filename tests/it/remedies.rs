//! Messages of mistakes: each is printed once, and names the place and a remedy.

use std::time::Duration;

use serde_json::Value;

use crate::sandbox::{Sandbox, wait_until};
use crate::training::example;

/// A layer of one number, trained with a table.
const LINE: &str = r#"{ "version": 1, "nodes": {
    "x": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 2] } },
    "label": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 1] } },
    "out": { "layer": "dense", "inputs": ["x"], "units": 1 },
    "squares": { "op": "SquaredDifference", "inputs": ["out", "label"] },
    "loss": { "op": "Mean", "inputs": ["squares", [0, 1]] } },
  "data": { "feed": { "x": { "file": "t.csv", "columns": ["a", "b"] }, "label": { "file": "t.csv", "columns": ["y"] } },
            "batch": 4 },
  "train": { "loss": "loss", "optimizer": "adam", "rate": 0.1, "epochs": 2 } }"#;

fn line(sandbox: &Sandbox) -> String {
    let lines: String = (0..16).map(|i| format!("{},{},{}\n", i % 4, i / 4, i % 4 - i / 4)).collect();
    sandbox.file("t.csv", format!("a,b,y\n{lines}"));
    sandbox.file("line.json", LINE)
}

#[test]
fn a_failed_step_is_reported_once_with_its_remedy() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let ended = sandbox.run(&["run", &graph, "--fetch", "out", "--feed", "x=[[1,2]]"]).expect(3);
    assert_eq!(ended.stderr.matches("Attempting to use uninitialized value out/").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("--init") && ended.stderr.contains("--weights PATH"), "{}", ended.stderr);
    assert!(ended.stderr.contains("layer out (dense), ") && ended.stderr.contains("line 4"), "{}", ended.stderr);
    sandbox.run(&["run", &graph, "--fetch", "out", "--feed", "x=[[1,2]]", "--init"]).expect(0);
    // A node reports a failure of its clients as before.
    let node = sandbox.node("local/0");
    sandbox.run(&["submit", &graph, "--fetch", "out", "--feed", "x=[[1,2]]"]).expect(3).complains(&["--init"]);
    assert!(wait_until(Duration::from_secs(20), || node.process.stderr().contains("a run failed: ")));
}

#[test]
fn an_unknown_placeholder_is_answered_by_those_that_there_are() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let table = sandbox.path("t.csv").display().to_string();
    let fed = |feed: &str, says: &[&str]| {
        sandbox.run(&["run", &graph, "--fetch", "out", "--weights", &run, "--feed", feed]).expect(2).complains(says);
    };
    fed(&format!("lable=@{table}"), &["there is no tensor lable; the placeholders of the graph are label, x"]);
    fed(&format!("x={table}"), &["for the content of the file use @"]);
    fed("q=@nothing.csv", &["there is no tensor q; the placeholders of the graph are"]);
    let named = format!("xx={table}");
    let ended = sandbox.run(&["predict", &graph, &run, &named, "--local"]).expect(2);
    ended.complains(&["there is no placeholder xx; the predictions need x"]);
    let named = format!("label={table}");
    sandbox.run(&["predict", &graph, &run, &named, "--local"]).expect(2).complains(&["need no file for label"]);
    // The loss needs labels, and is one number.
    let bare = sandbox.file("bare.csv", "a,b\n1,2\n");
    let fetch = |name: &str, says: &[&str]| {
        sandbox.run(&["predict", &graph, &run, &bare, "--local", "--fetch", name]).expect(2).complains(says);
    };
    fetch("loss", &["--fetch loss: it is one number for all examples together", "there are out"]);
    fetch("squares", &["squares cannot be computed without the labels (label)", "without labels there are out"]);
    sandbox.run(&["predict", &graph, &run, &bare, "--local", "--fetch", "out"]).expect(0);
}

#[test]
fn a_table_of_names_alone_has_one_message() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let table = sandbox.file("t.csv", "a,b,y\n");
    let feed = format!("x=@{table}");
    let out = sandbox.path("n.json").display().to_string();
    for words in [
        &["train", &graph, "--local"][..],
        &["predict", &graph, &run, &table, "--local"],
        &["run", &graph, "--weights", &run, "--fetch", "out", "--feed", &feed],
        &["new", "table", &table, "--out", &out],
        &["new", "series", &table, "--out", &out],
    ] {
        let says = ["t.csv: it has no lines of values, only one with the names of the columns"];
        sandbox.run(words).expect(2).complains(&says);
    }
}

#[test]
fn out_makes_the_folders_that_are_missing() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let table = sandbox.path("t.csv").display().to_string();
    let feed = format!("x=@{table}");
    let out = |name: &str| sandbox.path(name).display().to_string();
    let ran = ["run", &graph, "--weights", &run, "--fetch", "out", "--feed", &feed, "--out"];
    sandbox.run(&[&ran[..], &[&out("a/b/r.csv")]].concat()).expect(0);
    sandbox.run(&["predict", &graph, &run, &table, "--local", "--out", &out("c/d/p.csv")]).expect(0);
    let text = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    assert_eq!(text("a/b/r.csv"), text("c/d/p.csv"));
    // A file in the way is refused before anything runs, by both.
    let wrong = out("t.csv/p.csv");
    let ended = sandbox.run(&["predict", &graph, &run, &table, "--local", "--out", &wrong]).expect(2);
    ended.complains(&["t.csv is a file, not a folder"]);
    sandbox.run(&[&ran[..], &[&wrong]].concat()).expect(2).complains(&["t.csv is a file, not a folder"]);
}

#[test]
fn quiet_leaves_results_and_nothing_else() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let run = sandbox.path("run").display().to_string();
    let shown = |words: &[&str]| {
        let ended = sandbox.run(words).expect(0);
        (ended.stdout, ended.stderr)
    };
    let (stdout, stderr) = shown(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]);
    assert!(stdout.starts_with("step 8/8  ") && stdout.lines().count() == 1, "{stdout}");
    assert_eq!(stderr, "");
    let table = sandbox.path("t.csv").display().to_string();
    let (stdout, stderr) = shown(&["predict", &graph, &run, &table, "--local", "--quiet"]);
    assert_eq!((stdout.lines().count(), stderr.as_str()), (17, ""));
    let ran = ["run", &graph, "--weights", &run, "--fetch", "out", "--feed", "x=[[1,2]]", "--quiet"];
    let (stdout, stderr) = shown(&ran);
    assert!(stdout.starts_with("[[") && stderr.is_empty(), "{stdout}{stderr}");
    let out = sandbox.path("o").display().to_string();
    assert_eq!(shown(&[&ran[..], &["--out", &out]].concat()), (String::new(), String::new()));
    // Without the flag, the size of the training comes first.
    let (_, stderr) = shown(&["train", &graph, "--local"]);
    assert!(stderr.starts_with("3 parameters, 16 examples, 8 steps, 4 an epoch\n"), "{stderr}");
}

#[test]
fn a_saved_state_is_compared_by_its_model_first() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &graph, "--local", "--checkpoint", &run, "--quiet"]).expect(0);
    let again = sandbox.run(&["train", &graph, "--local", "--checkpoint", &run]).expect(2);
    again.complains(&["--resume", "name another folder with --checkpoint"]);
    // Of another model with another batch, the variables are what matters.
    let other = LINE
        .replace("\"batch\": 4", "\"batch\": 8")
        .replace("\"inputs\": [\"x\"], \"units\": 1", "\"inputs\": [\"h\"], \"units\": 1");
    let other = other
        .replace("\"out\": {", "\"h\": { \"layer\": \"dense\", \"inputs\": [\"x\"], \"units\": 3 },\n    \"out\": {");
    let other = sandbox.file("other.json", other);
    let ended = sandbox.run(&["train", &other, "--local", "--checkpoint", &run, "--resume"]).expect(2);
    assert!(ended.stderr.contains("is of another model: ") && !ended.stderr.contains("batch"), "{}", ended.stderr);
}

#[test]
fn a_log_that_cannot_begin_ends_no_training() {
    let sandbox = Sandbox::new();
    let graph = line(&sandbox);
    let log = sandbox.file("log", "a file where the folder would be");
    let run = sandbox.path("run").display().to_string();
    let words = ["train", &graph, "--local", "--checkpoint", &run, "--quiet", "--log", &log];
    let ended = sandbox.run(&words).expect(0);
    assert_eq!(ended.stderr.matches("the training continues").count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("could not be written"), "{}", ended.stderr);
    assert!(sandbox.path("run").join("step-000000000008.safetensors").exists());
}

#[test]
fn a_training_that_is_killed_at_once_has_its_record() {
    let sandbox = Sandbox::new();
    let graph = example(&sandbox, "");
    let listed = || -> Vec<Value> { serde_json::from_str(&sandbox.run(&["runs", "--json"]).expect(0).stdout).unwrap() };
    let training = sandbox.start(&["train", &graph, "--local", "--steps", "100000000", "--quiet"]);
    assert!(wait_until(Duration::from_secs(60), || !listed().is_empty()));
    training.signal("KILL");
    training.end();
    let text = sandbox.run(&["runs", "show", "last"]).expect(0).stdout;
    for part in ["killed: its process is gone", " train ", "graph ", "began ", "hash "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(listed()[0]["state"], "killed");
}

#[test]
fn small_values_of_a_run_have_their_digits() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "small.json",
        r#"{"version": 1, "variables": {"n": {"shape": []}}, "nodes": {
            "more": {"op": "AssignAddVariableOp", "inputs": ["n/variable", 1e-7]},
            "y": {"op": "ReadVariableOp", "inputs": ["n/variable"], "control": ["more"], "attrs": {"dtype": "float32"}}},
            "fetch": ["y"]}"#,
    );
    sandbox.run(&["run", &graph, "--steps", "200", "--every", "10", "--quiet"]).expect(0);
    let text = sandbox.run(&["runs", "show", "last"]).expect(0).stdout;
    assert!(text.contains("e-") && !text.contains("0.0000 to"), "{text}");
}
