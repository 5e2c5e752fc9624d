//! `meshtf train` in mode pipeline, on nodes that have a stage each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshtf_tensor::safetensors;

use crate::sandbox::{NodeProcess, Sandbox, project, wait_until};
use crate::training::{SPEAKS_WITHIN, last_state, next_step, reach, state};

/// The digits with three layers, trained with these keys in addition.
fn digits(sandbox: &Sandbox, name: &str, train: &str) -> String {
    for file in ["digits.npy", "digits_labels.npy"] {
        sandbox.file(file, std::fs::read(project(&format!("examples/train/{file}"))).unwrap());
    }
    let graph = r#"{"version": 1,
        "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 64]}},
            "y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null]}},
            "first": {"layer": "dense", "inputs": ["x"], "units": 32, "activation": "relu"},
            "second": {"layer": "dense", "inputs": ["first"], "units": 32, "activation": "relu"},
            "around": {"op": "AddV2", "inputs": ["first", "second"]},
            "logits": {"layer": "dense", "inputs": ["around"], "units": 10},
            "losses": {"op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"]},
            "loss": {"op": "Mean", "inputs": ["losses", 0]},
            "right": {"op": "InTopKV2", "inputs": ["logits", "y", 1]},
            "ones": {"op": "Cast", "inputs": ["right"], "attrs": {"DstT": "float32"}},
            "accuracy": {"op": "Mean", "inputs": ["ones", 0]}},
        "data": {"feed": {"x": {"file": "digits.npy", "scale": 0.0625}, "y": "digits_labels.npy"},
            "batch": 50, "shuffle": 4, "hold_out": 0.2},
        "train": {"loss": "loss", "optimizer": "adam", "rate": 0.003, "steps": 200, TRAIN"metrics": ["accuracy"]},
        "evaluate": {"every": 100, "metrics": ["accuracy"]}}"#;
    sandbox.file(name, graph.replace("TRAIN", train))
}

/// The weights of a folder, by name.
fn weights(sandbox: &Sandbox, folder: &str) -> BTreeMap<String, Vec<f64>> {
    let file = format!("{folder}.safetensors");
    sandbox.run(&["export", folder, "--to", &file]).expect(0);
    let all = safetensors::read(&std::fs::read(&file).unwrap()).unwrap();
    all.tensors.into_iter().map(|(name, tensor)| (name, tensor.numbers().unwrap().collect())).collect()
}

/// Three nodes with a stage each, and micro-batches of 8 and 7 examples, come to the weights of one process, which continues from
/// their state, and they from its.
#[test]
fn three_nodes_train_as_one_process_does() {
    let sandbox = Sandbox::new();
    let _nodes: Vec<NodeProcess> = (0..3).map(|task| sandbox.node(&format!("worker/{task}"))).collect();
    let one = digits(&sandbox, "one.json", "");
    let three = digits(&sandbox, "three.json", r#""mode": "pipeline", "workers": 3, "microbatches": 7, "#);
    let planned = sandbox.run(&["plan", &three, "--local", "--fetch", "loss"]).expect(0).stdout;
    let told = "a training has 3 stages and 7 micro-batches: each stage waits for 22 % of a step";
    assert!(planned.contains(told), "{planned}");
    let planned = sandbox.run(&["plan", &three, "--local", "--fetch", "loss", "--json"]).expect(0).json();
    assert_eq!(planned["pipeline"]["stages"].as_array().map(Vec::len), Some(3), "{planned:?}");
    let folder = |what: &str| sandbox.path(what).display().to_string();
    let (alone, staged) = (folder("alone"), folder("staged"));
    sandbox.run(&["train", &one, "--local", "--checkpoint", &alone]).expect(0);
    let ended = sandbox.run(&["train", &three, "--checkpoint", &staged, "--steps", "120"]).expect(0);
    for told in [
        "3 stages and 7 micro-batches: each stage waits for 22 % of a step if all take equally long, (3 - 1) / (7 + 3 - 1)",
        // The first product is more than half of the arithmetic, so it is alone.
        "\n  worker/0: 2048 parameters, ",
        "\n  worker/1: ",
        "; 32 numbers of each example cross the cut before it\n  worker/2: ",
    ] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    sandbox.run(&["train", &one, "--local", "--checkpoint", &staged, "--resume", "--steps", "160"]).expect(0);
    let trace = folder("trace.json");
    let ended = sandbox.run(&["train", &three, "--checkpoint", &staged, "--resume", "--trace", &trace]).expect(0);
    let last = ended.stdout.lines().rfind(|line| line.contains("held out:")).expect("an evaluation");
    assert!(last.starts_with("step 200/200"), "{last}");
    // The idle shares of the devices, and that of the formula.
    for told in ["busy", "waiting", "idle", "in theory, each stage waits for 22 % of a step"] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    let (alone, staged) = (weights(&sandbox, &alone), weights(&sandbox, &staged));
    assert_eq!(alone.len(), 6);
    for ((name, alone), (other, staged)) in alone.iter().zip(&staged) {
        assert_eq!((name, alone.len()), (other, staged.len()));
        for (a, b) in alone.iter().zip(staged) {
            assert!((a - b).abs() < 1e-3, "{name}: {a} and {b}");
        }
    }
}

/// Steps are guarded as in mode sync, and without a guard the training continues from its last saved state.
#[test]
fn a_lost_stage_costs_no_step() {
    let sandbox = Sandbox::new();
    let mut nodes: Vec<NodeProcess> = ["worker/0", "worker/1"].map(|name| sandbox.node(name)).into();
    let graph = digits(&sandbox, "two.json", r#""mode": "pipeline", "workers": 2, "#);
    let folder = |what: &str| sandbox.path(what).display().to_string();
    for (what, guard, told) in [
        ("guarded", &["--guard", "0.2"][..], "worker/1 was lost at step "),
        ("saved", &["--guard", "off", "--retries", "1"], "continuing after step "),
    ] {
        let (broken, whole) = (folder(what), folder(&format!("{what}_whole")));
        let train = |folder: &str, more: &[&str]| {
            let words = ["train", &graph, "--every", "100", "--report", "50", "--checkpoint", folder];
            sandbox.start(&[&words, more].concat())
        };
        let training = train(&broken, &[&["--steps", "100000000"], guard].concat());
        reach(&training, 300);
        // Many times the distance between two copies, since a copy waits for the batches that are on their way.
        let began = Instant::now();
        while what == "guarded" && began.elapsed() < Duration::from_secs(8) {
            next_step(&training);
        }
        nodes.pop().expect("a worker").process.signal("KILL");
        nodes.push(sandbox.node("worker/1"));
        assert!(wait_until(SPEAKS_WITHIN, || training.stderr().contains(told)), "{}", training.stderr());
        let from = next_step(&training);
        reach(&training, from + 200);
        training.signal("INT");
        let ended = training.end();
        assert_eq!(ended.status.code(), Some(130), "{}", ended.stderr);
        let steps = last_state(&broken);
        train(&whole, &["--steps", &steps.to_string(), "--guard", "off"]).end().expect(0);
        assert!(state(&broken, steps) == state(&whole, steps), "after {steps} steps");
    }
}

#[test]
fn what_does_not_go_together_is_refused_before_anything_runs() {
    let sandbox = Sandbox::new();
    for (train, why) in [
        (r#""mode": "pipeline", "workers": 7, "#, "and the model has 6 stages at most"),
        (r#""mode": "pipeline", "workers": 2, "microbatches": 51, "#, "a batch of 50 examples has no 51 micro-batches"),
        (r#""mode": "pipeline", "workers": 2, "ps": 1, "#, "each stage has its variables on its worker"),
    ] {
        let graph = digits(&sandbox, "refused.json", train);
        sandbox.run(&["train", &graph, "--local"]).expect(2).complains(&[why]);
    }
}
