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
