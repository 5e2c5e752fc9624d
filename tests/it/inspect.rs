//! `meshtf inspect`, SavedModels and weights of other programs, on files of `tests/data/weights`.

use std::path::Path;

use serde_json::{Value, json};

use crate::sandbox::Sandbox;

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/weights").join(name).display().to_string()
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("expected.json")).unwrap()).unwrap()
}

#[test]
fn every_form_of_weights_is_listed() {
    let sandbox = Sandbox::new();
    for (file, form) in [
        ("a.safetensors", "safetensors"),
        ("model.safetensors.index.json", "index of safetensors files"),
        ("w.npy", "NumPy array (.npy)"),
        ("packed.npz", "NumPy arrays (.npz)"),
        ("state.pt", "PyTorch state dict"),
        ("legacy.pt", "PyTorch state dict (before 1.6)"),
        ("keras.h5", "HDF5"),
        ("dense.keras", "Keras model (.keras)"),
        ("model.json", "TensorFlow.js model"),
        ("blocks.gguf", "GGUF"),
    ] {
        let shown = sandbox.run(&["inspect", &data(file), "--json"]).expect(0).json();
        assert_eq!(shown["form"], form, "{file}");
        let names = |tensors: &Value| {
            let mut names: Vec<String> =
                tensors.as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&shown["tensors"]), names(&expected()[file]), "{file}");
    }
    sandbox.run(&["inspect", &data("make.py")]).expect(2).complains(&["make.py"]);
    let tflite = sandbox.file("m.tflite", b"\x1c\0\0\0TFL3\x14\0");
    for command in ["inspect", "run"] {
        sandbox.run(&[command, &tflite]).expect(2).complains(&["TensorFlow Lite", "ONNX"]);
    }
    sandbox.run(&["run", &data("state.pt")]).expect(2).complains(&["weights alone", "--weights"]);
}

#[test]
fn a_saved_model_of_keras_answers_as_in_keras() {
    let sandbox = Sandbox::new();
    let shown = sandbox.run(&["inspect", &data("saved"), "--json"]).expect(0).json();
    assert_eq!((&shown["form"], &shown["runs"]), (&json!("TensorFlow SavedModel"), &json!(true)), "{shown}");
    let signature = shown["signatures"].as_array().unwrap().iter().find(|own| own["name"] == "serving_default");
    assert_eq!(signature.unwrap()["inputs"], json!([{ "name": "keras_tensor", "type": "float32[?,3]" }]));
    let feed = "keras_tensor=[[-1,2,-3],[0.5,-0.25,1]]";
    let ran = sandbox.run(&["run", &data("saved"), "--feed", feed, "--json"]).expect(0).json();
    let wanted = &expected()["saved"][0]["values"];
    let got = &ran["values"]["output_0"]["value"];
    for (row, wanted) in got.as_array().unwrap().iter().zip(wanted.as_array().unwrap()) {
        assert!((row[0].as_f64().unwrap() - wanted.as_f64().unwrap()).abs() < 1e-6, "{ran}");
    }
    // The values that a model restores are part of it, also if the fetch is named.
    sandbox.run(&["run", &data("saved"), "--feed", feed, "--fetch", "output_0", "-q"]).expect(0);
    let wrong = sandbox.run(&["run", &data("saved"), "--signature", "serv", "--feed", feed]).expect(2);
    wrong.complains(&["no signature \"serv\"", "serving_default"]);
}

/// The function f gives `ids`, places of words in a table, and `v`, the variable [1, 2] times k; g gives `o`, it plus k.
#[test]
fn a_saved_model_without_a_default_signature_is_run_by_each() {
    let sandbox = Sandbox::new();
    let model = data("signatures");
    let shown = sandbox.run(&["inspect", &model, "--json"]).expect(0).json();
    // TensorFlow's own node for saving has an op that is not run, and that no signature needs.
    assert_eq!((&shown["runs"], &shown["unknown_ops"]), (&json!(true), &json!({ "DisableCopyOnRead": 1 })), "{shown}");
    sandbox.run(&["run", &model]).expect(2).complains(&["several signatures: use --signature f or g, or --fetch"]);
    let onnx = sandbox.path("m.onnx").display().to_string();
    sandbox.run(&["export", &model, "--to", &onnx]).expect(2).complains(&["--signature f or g"]);
    // Another node has the name v, and the answer has it nevertheless.
    let words = ["run", &model, "--signature", "f", "--feed", r#"words=["b","z"]"#, "--feed", "k=3"];
    let run = |more: &[&str]| sandbox.run(&[&words[..], more].concat()).expect(0);
    let wanted = json!({
        "ids": { "dtype": "int32", "shape": [2], "value": [2, -1] },
        "v": { "dtype": "float32", "shape": [2], "value": [3.0, 6.0] }
    });
    assert_eq!(run(&["--json"]).json()["values"], wanted);
    assert_eq!(run(&["--json", "--fetch", "v"]).json()["values"], json!({ "v": wanted["v"] }));
    let told = run(&[]);
    assert_eq!(told.stdout, "ids: [ 2 -1]\nv: [3. 6.]\n");
    assert!(told.stderr.contains("fetched ids, v in 1 step"), "{}", told.stderr);
    let out = sandbox.path("out").display().to_string();
    assert_eq!(run(&["--json", "--out", &out]).json()["files"]["v"], format!("{out}/v.npy"));
    let arrays = sandbox.path("v.npz").display().to_string();
    run(&["--out", &arrays]);
    let listed = sandbox.run(&["inspect", &arrays, "--json"]).expect(0).json();
    let names: Vec<&Value> = listed["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["name"]).collect();
    assert_eq!(names, ["ids", "v"]);
    // One that was not asked for by its name keeps that of its tensor.
    let tensor = "StatefulPartitionedCall:1";
    assert_eq!(run(&["--json", "--fetch", tensor]).json()["values"], json!({ tensor: wanted["v"] }));
}

#[test]
fn weights_of_a_state_dict_meet_a_graph() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "variables": {"out/kernel": {"shape": [3, 2]}}, "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype":
        "float32", "shape": [null, 3]}}, "y": {"op": "MatMul", "inputs": ["x", "out/kernel"]}}, "fetch": ["y"]}"#,
    );
    let map = sandbox.file(
        "map.json",
        r#"[{"prefix": "model.", "to": ""}, {"name": "fc.weight", "to": "out/kernel", "transpose": [1, 0]}]"#,
    );
    let state = data("nested.pt");
    let run = |more: &[&str]| {
        sandbox.run(&[&["run", &graph, "--feed", "x=[[1,0,0],[0,1,2]]", "--weights", &state][..], more].concat())
    };
    // The rows of the transpose of [[-0.625, -0.375, -0.125], [0.125, 0.375, 0.625]].
    let ran = run(&["--map", &map, "--json"]).expect(0);
    assert_eq!(ran.json()["values"]["y"]["value"], json!([[-0.625, 0.125], [-0.625, 1.625]]));
    assert!(ran.stderr.contains("4 tensors are of no variable of the graph: fc.turned"), "{}", ran.stderr);
    run(&[]).expect(2).complains(&["variable out/kernel (float32[3,2]) is not there"]);
    let bad = sandbox.file("bad.json", r#"[{"prefix": "model.", "too": ""}]"#);
    run(&["--map", &bad]).expect(2).complains(&["--map", "rule 1", "unknown key \"too\""]);
    let plan = sandbox.run(&["plan", &graph, "--local", "--weights", &state]).expect(2);
    plan.complains(&["--weights", "out/kernel"]);
}
