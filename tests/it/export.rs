//! `meshtf export` of graphs: ONNX models and SavedModels, whose answers are those of the graph.

use std::path::Path;

use meshtf_tensor::Tensor;
use meshtf_tensor::safetensors::{self, Contents};
use serde_json::Value;

use crate::sandbox::Sandbox;

fn saved() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/weights/saved").display().to_string()
}

/// All numbers of a value, in order.
fn numbers(value: &Value, into: &mut Vec<f64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| numbers(item, into)),
        other => into.push(other.as_f64().unwrap()),
    }
}

fn answer(sandbox: &Sandbox, model: &str, feed: &str, fetch: &str) -> Vec<f64> {
    let ran = sandbox.run(&["run", model, "--feed", feed, "--fetch", fetch, "--json"]).expect(0).json();
    let mut all = Vec::new();
    numbers(&ran["values"][fetch]["value"], &mut all);
    all
}

#[test]
fn a_saved_model_becomes_an_onnx_model_and_another_saved_model() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let feed = "keras_tensor=[[-1,2,-3],[0.5,-0.25,1]]";
    let wanted = answer(&sandbox, &saved(), feed, "output_0");
    for to in ["m.onnx", "served/", "m2.onnx"] {
        // The last is made of the first: a model that was written is read.
        let from = if to == "m2.onnx" { path("m.onnx") } else { saved() };
        let said = sandbox.run(&["export", &from, "--to", &path(to)]).expect(0).stdout;
        assert!(said.contains(": 1 input, 1 output, "), "{said}");
        assert_eq!(answer(&sandbox, path(to).trim_end_matches('/'), feed, "output_0"), wanted, "{to}");
    }
    let again = sandbox.run(&["export", &saved(), "--to", &path("served")]).expect(2);
    again.complains(&["this folder is not empty"]);
    sandbox.run(&["export", &saved(), "--to", &path("m.h5")]).expect(2).complains(&[".h5 is not a form", ".onnx"]);
    sandbox.run(&["export", &path("m.onnx"), "--to", &path("w.npz")]).expect(2);
    let parts =
        std::fs::read_dir(sandbox.path(".")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(parts.into_iter().all(|name| !name.ends_with(".part")));
}

/// Weights of these shapes, of some numbers above zero.
fn weights(shapes: &[(&str, &[usize])]) -> Vec<u8> {
    let one = |(name, shape): &(&str, &[usize])| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| ((i * 37 % 19) as f32 + 1.0) / 16.0).collect::<Vec<_>>();
        ((*name).to_owned(), Tensor::from_vec(shape.to_vec(), values))
    };
    let tensors = shapes.iter().map(one).collect();
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &Contents { tensors, ..Contents::default() }).unwrap();
    bytes
}

/// The answers of the ONNX model are the graph's; those of onnxruntime for such models were compared by hand.
#[test]
fn ops_of_images_and_shapes_are_written() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let shapes: &[(&str, &[usize])] =
        &[("filter", &[3, 3, 2, 4]), ("deep", &[2, 2, 4, 1]), ("scale", &[4]), ("w", &[4, 3])];
    let own = sandbox.file("w.safetensors", weights(shapes));
    let x = sandbox.file("x.safetensors", weights(&[("x", &[2, 6, 5, 2])]));
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1,
        "variables": {"filter": {"shape": [3, 3, 2, 4]}, "deep": {"shape": [2, 2, 4, 1]}, "scale": {"shape": [4]}, "w": {"shape": [4, 3]}},
        "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 6, 5, 2]}},
            "conv": {"op": "Conv2D", "inputs": ["x", "filter"], "attrs": {"strides": [1, 2, 1, 1], "padding": "SAME"}},
            "norm": {"op": "FusedBatchNormV3", "inputs": ["conv", "scale", "scale", "scale", "scale"], "attrs": {"is_training": false}},
            "relu": {"op": "Relu6", "inputs": ["norm:0"]},
            "spread": {"op": "DepthwiseConv2dNative", "inputs": ["relu", "deep"],
                "attrs": {"strides": [1, 1, 1, 1], "dilations": [1, 2, 2, 1], "padding": "SAME"}},
            "wide": {"op": "SpaceToBatchND", "inputs": ["spread", [2, 2], [[1, 2], [0, 1]]]},
            "part": {"op": "DepthwiseConv2dNative", "inputs": ["wide", "deep"], "attrs": {"strides": [1, 1, 1, 1], "padding": "VALID"}},
            "deepwise": {"op": "BatchToSpaceND", "inputs": ["part", [2, 2], [[0, 1], [1, 1]]]},
            "pool": {"op": "MaxPool", "inputs": ["deepwise"], "attrs": {"ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}},
            "mean": {"op": "AvgPool", "inputs": ["pool"], "attrs": {"ksize": [1, 2, 1, 1], "strides": [1, 1, 1, 1], "padding": "SAME"}},
            "all": {"op": "Mean", "inputs": ["mean", [1, 2]]},
            "product": {"op": "MatMul", "inputs": ["all", "w"]},
            "sliced": {"op": "StridedSlice", "inputs": ["product", [0, 2], [0, 0], [1, -1]], "attrs": {"begin_mask": 1, "end_mask": 3}},
            "two": {"op": "Pack", "inputs": ["product", "sliced"], "attrs": {"axis": 1}},
            "turned": {"op": "Transpose", "inputs": ["two", [0, 2, 1]]},
            "sum": {"op": "Sum", "inputs": ["turned", -1], "attrs": {"keep_dims": true}},
            "flat": {"op": "Reshape", "inputs": ["sum", [-1, 3]]},
            "root": {"op": "Rsqrt", "inputs": ["scale"]},
            "some": {"op": "Slice", "inputs": ["root", [1], [3]]},
            "scaled": {"op": "Mul", "inputs": ["flat", "some"]},
            "y": {"op": "Softmax", "inputs": ["scaled"]}},
        "fetch": ["y"]}"#,
    );
    let feed = format!("x=@{x}:x");
    let ran = sandbox.run(&["run", &graph, "--feed", &feed, "--weights", &own, "--json"]).expect(0).json();
    let mut wanted = Vec::new();
    numbers(&ran["values"]["y"]["value"], &mut wanted);
    for to in ["m.onnx", "m/"] {
        sandbox.run(&["export", &graph, "--weights", &own, "--to", &path(to)]).expect(0);
        let got = answer(&sandbox, path(to).trim_end_matches('/'), &feed, "y");
        assert!(
            got.len() == 6 && got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-5),
            "{to}: {got:?} {wanted:?}"
        );
    }
    // Runtimes refuse auto_pad beside dilations.
    let model = std::fs::read(path("m.onnx")).unwrap();
    let stated = model.windows(10).filter(|part| *part == b"SAME_UPPER").count();
    assert_eq!(stated, 3, "of the first convolution and the pools");
    // Each variable is one initializer, of its name, however many nodes read it.
    let told = sandbox.run(&["inspect", &path("m.onnx"), "--json"]).expect(0).json();
    let names = told["tensors"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str());
    let mut names: Vec<&str> =
        names.filter(|name| ["filter", "deep", "scale", "w"].iter().any(|own| name.starts_with(own))).collect();
    names.sort_unstable();
    assert_eq!(names, ["deep", "filter", "scale", "w"]);
    // An op that ONNX lacks is named, and nothing is written.
    let text = std::fs::read_to_string(&graph)
        .unwrap()
        .replace(r#""Softmax", "inputs": ["scaled"]"#, r#""Digamma", "inputs": ["scaled"]"#);
    let other = sandbox.file("other.json", text);
    let refused = sandbox.run(&["export", &other, "--weights", &own, "--to", &path("n.onnx")]).expect(2);
    refused.complains(&["ONNX cannot say a part of this graph: Digamma (node y: there is no rule for this op)"]);
    assert!(!sandbox.path("n.onnx").exists());
}

/// TensorFlow 2.21 loads the folder and gives the same answers, which was compared by hand.
#[test]
fn a_saved_model_has_what_fills_its_tables() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let words = sandbox.file("words.txt", "brain\nsalad\nsurgery\n");
    // Another file of the same name.
    std::fs::create_dir(sandbox.path("more")).unwrap();
    std::fs::write(sandbox.path("more/words.txt"), "tarkus\ntrilogy\n").unwrap();
    let text = r#"{"version": 1,
        "nodes": {
            "x": {"op": "Placeholder", "attrs": {"dtype": "string", "shape": [null]}},
            "file": {"op": "Const", "attrs": {"dtype": "string", "value": "FILE"}},
            "other": {"op": "Const", "attrs": {"dtype": "string", "value": "OTHER"}},
            "lines": {"op": "HashTableV2", "attrs": {"key_dtype": "string", "value_dtype": "int64"}},
            "records": {"op": "HashTableV2", "attrs": {"key_dtype": "string", "value_dtype": "int64", "shared_name": "records"}},
            "again": {"op": "HashTableV2", "attrs": {"key_dtype": "string", "value_dtype": "int64", "shared_name": "records"}},
            "years": {"op": "HashTableV2", "attrs": {"key_dtype": "int64", "value_dtype": "float32"}},
            "seen": {"op": "MutableHashTableV2", "attrs": {"key_dtype": "int64", "value_dtype": "int64"}},
            "fill_lines": {"op": "InitializeTableFromTextFileV2", "inputs": ["lines", "file"], "attrs": {"key_index": -2, "value_index": -1}},
            "fill_records": {"op": "InitializeTableFromTextFileV2", "inputs": ["again", "other"], "attrs": {"key_index": -2, "value_index": -1}},
            "fill_years": {"op": "InitializeTableV2", "inputs": ["years",
                {"dtype": "int64", "value": [0, 1, 2]}, {"dtype": "float32", "value": [0.5, 1.5, 2.5]}]},
            "fill": {"op": "NoOp", "control": ["fill_lines", "fill_records", "fill_years"]},
            "line": {"op": "LookupTableFindV2", "inputs": ["lines", "x", {"dtype": "int64", "value": -1}]},
            "record": {"op": "LookupTableFindV2", "inputs": ["records", "x", {"dtype": "int64", "value": -1}]},
            "year": {"op": "LookupTableFindV2", "inputs": ["years", "line", {"dtype": "float32", "value": -0.5}]},
            "known": {"op": "LookupTableFindV2", "inputs": ["seen", "line", {"dtype": "int64", "value": 7}]},
            "sum": {"op": "AddN", "inputs": ["line", "record", "known"]},
            "places": {"op": "AddV2", "inputs": ["sum", {"dtype": "int64", "value": 100}]}},
        "init": ["fill"],
        "fetch": ["places", "year"]}"#;
    let text = text.replace("FILE", &words).replace("OTHER", &path("more/words.txt"));
    let graph = sandbox.file("graph.json", &text);
    let feed = r#"x=["salad","nothing","trilogy","surgery"]"#;
    let answers = |model: &str, fetch: &str| answer(&sandbox, model, feed, fetch);
    let wanted = [vec![107.0, 105.0, 107.0, 108.0], vec![1.5, -0.5, -0.5, 2.5]];
    sandbox.run(&["export", &graph, "--to", &path("served/")]).expect(0);
    let mut assets: Vec<String> = std::fs::read_dir(sandbox.path("served/assets"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assets.sort();
    assert_eq!(assets, ["1_words.txt", "words.txt"]);
    // Nothing but the folder is needed, and what was written is written again.
    std::fs::remove_file(&words).unwrap();
    std::fs::remove_dir_all(sandbox.path("more")).unwrap();
    sandbox.run(&["export", &path("served"), "--to", &path("again/")]).expect(0);
    for model in ["served", "again"] {
        assert_eq!(["places", "year"].map(|fetch| answers(&path(model), fetch)), wanted, "{model}");
    }
    // A graph that cannot be written is refused, and nothing is written.
    let refuse = |text: String, to: &str, part: &str| {
        let graph = sandbox.file("refused.json", text);
        sandbox.run(&["export", &graph, "--to", &path(to)]).expect(2).complains(&[part]);
        assert!(!sandbox.path(to).exists());
    };
    refuse(text.replace(r#""init": ["fill"],"#, ""), "none/", "table lines would be empty");
    refuse(text.clone(), "none/", "words.txt");
    refuse(text, "none.onnx", "HashTableV2");
}
