//! `meshtf train` in mode local: its bytes on the wire and its accuracy, compared with mode sync, and the loss of a worker.

use std::time::Duration;

use meshtf_tensor::{Tensor, npy};

use crate::sandbox::{NodeProcess, Sandbox, project, wait_until};
use crate::training::{last_state, next_step, reach, state};

/// The limit of a training: on a machine that is busy it takes a minute.
const LEARNS_WITHIN: Duration = Duration::from_secs(600);
const SYNC: &str = r#""workers": 2, "ps": 1"#;

/// The result of a training.
struct Trained {
    accuracy: f64,
    /// All bytes that arrived at nodes.
    bytes: f64,
}

/// Trains on new nodes whose files are those of the sandbox.
fn trained(sandbox: &Sandbox, name: &str, graph: &str) -> Trained {
    let data = sandbox.path("").display().to_string();
    let names = ["worker/0", "worker/1", "ps/0"];
    let names = if graph.contains(SYNC) { &names } else { &names[..2] };
    let _nodes: Vec<NodeProcess> = names.iter().map(|name| sandbox.node_with(name, &["--data", &data])).collect();
    let received = || -> f64 {
        let of = |task: &&str| {
            let told = sandbox.run(&["status", task, "--json"]).expect(0).json();
            told[0]["totals"]["received_bytes"].as_f64().expect("a number")
        };
        names.iter().map(of).sum()
    };
    let before = received();
    let graph = sandbox.file(name, graph);
    let ended = sandbox.start(&["train", &graph, "--guard", "off"]).end_within(LEARNS_WITHIN).expect(0);
    let bytes = received() - before;
    let last = ended.stdout.lines().rfind(|line| line.contains("held out:")).expect("an evaluation");
    let mut words = last.split_whitespace().skip_while(|word| *word != "accuracy");
    let accuracy = words.nth(1).and_then(|number| number.parse().ok()).expect("an accuracy");
    Trained { accuracy, bytes }
}

/// Changes of a graph's text.
type Changes<'a> = &'a [(&'a str, &'a str)];

/// Trains in both modes: the same number of passes over the data, which is on the workers. `most` is the share of the bytes.
fn compared(name: &str, graph: &str, (sync, local, most): (Changes, Changes, f64)) {
    let sandbox = Sandbox::new();
    let read = |file: &str| std::fs::read(project(&format!("examples/train/{file}"))).unwrap();
    sandbox.file("digits.npy", read("digits.npy"));
    // On a worker, a file has the dtype of its placeholder.
    let labels = npy::read(&read("digits_labels.npy")).unwrap();
    let labels: Vec<i32> = labels.numbers().unwrap().map(|label| label as i32).collect();
    sandbox.file("digits_labels.npy", npy::write(&Tensor::vector(labels)).unwrap());
    let with = |changes: Changes| {
        changes.iter().fold(graph.to_owned(), |graph, (find, replace)| {
            assert!(graph.contains(find), "{find}");
            graph.replace(find, replace)
        })
    };
    let (sync, local) = (trained(&sandbox, name, &with(sync)), trained(&sandbox, name, &with(local)));
    let (share, [was, is]) = (local.bytes / sync.bytes, [sync.accuracy, local.accuracy]);
    assert!(share <= most, "{share} of {} bytes", sync.bytes);
    assert!(is >= was - 0.01, "{is}, and {was} in mode sync");
}

/// Of these small variables, all differences are a three-hundredth of the gradients and values (`src/trainer/tests/local.rs`);
/// most of the rest is the indices of the examples, and the graph.
#[test]
fn digits_take_a_hundredth_of_the_bytes() {
    let graph = std::fs::read_to_string(project("examples/train/digits.json")).unwrap();
    let graph = graph.replace(
        r#""feed": { "x": { "file": "digits.npy", "scale": 0.0625 }, "y": "digits_labels.npy" }"#,
        r#""feed": { "x": { "on_workers": "digits.npy", "scale": 0.0625 }, "y": { "on_workers": "digits_labels.npy" } }"#,
    );
    let graph = graph.replace(r#""every": 100"#, r#""epochs": 40"#);
    let rounds = r#""rate": 0.004, "workers": 2, "mode": "local", "local": { "steps": 44, "momentum": 0.5 }"#;
    // As many examples in a step, half of them for each worker.
    let local = [(r#""rate": 0.004"#, rounds), (r#""batch": 64"#, r#""batch": 32"#)];
    compared("digits.json", &graph, (&[(r#""rate": 0.004"#, &format!(r#""rate": 0.004, {SYNC}"#))], &local, 0.01));
}

/// A block of a transformer that looks at the rows of a digit one after the other.
#[test]
fn a_transformer_takes_a_hundredth_of_the_bytes() {
    let graph = r#"{"version": 1,
        "variables": {"places": {"shape": [8, 64], "initial": "glorot_uniform"}},
        "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 64]}},
            "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
            "rows": {"op": "Reshape", "inputs": ["x", [-1, 8, 8]]},
            "wide": {"layer": "dense", "inputs": ["rows"], "units": 64},
            "placed": {"op": "AddV2", "inputs": ["wide", "places"]},
            "attention": {"layer": "self_attention", "inputs": ["placed"], "heads": 4},
            "added": {"op": "AddV2", "inputs": ["placed", "attention"]},
            "first": {"layer": "layer_norm", "inputs": ["added"]},
            "up": {"layer": "dense", "inputs": ["first"], "units": 128, "activation": "relu"},
            "down": {"layer": "dense", "inputs": ["up"], "units": 64},
            "sum": {"op": "AddV2", "inputs": ["first", "down"]},
            "second": {"layer": "layer_norm", "inputs": ["sum"]},
            "flat": {"layer": "flatten", "inputs": ["second"]},
            "logits": {"layer": "dense", "inputs": ["flat"], "units": 10},
            "losses": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]},
            "loss": {"op": "Mean", "inputs": ["losses", 0]},
            "right": {"op": "InTopKV2", "inputs": ["logits", "y", 1]},
            "ones": {"op": "Cast", "inputs": ["right"], "attrs": {"DstT": "float32"}},
            "accuracy": {"op": "Mean", "inputs": ["ones", 0]}},
        "data": {"feed": {"x": {"on_workers": "digits.npy", "scale": 0.0625}, "y": {"on_workers": "digits_labels.npy"}},
            "batch": 32, "shuffle": 4, "hold_out": 0.2},
        "train": {"loss": "loss", "optimizer": "adam", "rate": 0.003, "epochs": 8},
        "evaluate": {"epochs": 8, "metrics": ["accuracy"]}}"#;
    let rounds = r#""rate": 0.005, "workers": 2, "mode": "local", "local": {"steps": 44, "momentum": 0.5}"#;
    let local = [(r#""rate": 0.003"#, rounds), (r#""batch": 32"#, r#""batch": 16"#)];
    compared("transformer.json", graph, (&[(r#""rate": 0.003"#, &format!(r#""rate": 0.003, {SYNC}"#))], &local, 0.01));
}

/// A worker that is lost ends the training as in mode mirrored, or it continues from the last saved state: after a whole round.
#[test]
fn a_training_continues_from_its_last_round_once_a_lost_worker_is_there_again() {
    let sandbox = Sandbox::new();
    let mut nodes: Vec<NodeProcess> = ["worker/0", "worker/1"].map(|name| sandbox.node(name)).into();
    let graph = crate::training::example(&sandbox, r#""workers": 2, "mode": "local", "local": {"steps": 10}, "#);
    let folder = |what: &str| sandbox.path(what).display().to_string();
    let (broken, whole) = (folder("broken"), folder("whole"));
    let train = |folder: &str, more: &[&str]| {
        let words = ["train", &graph, "--every", "100", "--report", "50", "--checkpoint", folder];
        sandbox.start(&[&words, more].concat())
    };
    let lose = |nodes: &mut Vec<NodeProcess>| nodes.pop().expect("a worker").process.signal("KILL");
    let training = train(&broken, &["--steps", "100000000"]);
    reach(&training, 300);
    lose(&mut nodes);
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("/job:worker/task:1"), "{}", ended.stderr);
    nodes.push(sandbox.node("worker/1"));
    let training = train(&broken, &["--steps", "100000000", "--resume", "--retries", "1"]);
    let from = next_step(&training);
    reach(&training, from + 300);
    lose(&mut nodes);
    let limit = Duration::from_secs(60);
    assert!(wait_until(limit, || training.stderr().contains("waiting for worker/1 since ")), "{}", training.stderr());
    nodes.push(sandbox.node("worker/1"));
    assert!(wait_until(limit, || training.stderr().matches("continuing after step ").count() == 2));
    training.signal("INT");
    let ended = training.end();
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
    let steps = last_state(&broken);
    assert!(steps.is_multiple_of(10), "{steps}");
    let ended = train(&whole, &["--steps", &steps.to_string(), "--guard", "5"]).end().expect(0);
    assert!(ended.stderr.contains("the steps are not guarded, as those of mode local"), "{}", ended.stderr);
    assert!(state(&broken, steps) == state(&whole, steps), "after {steps} steps");
}
