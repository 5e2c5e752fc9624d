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

/// The values that a graph's variables get of a file, under the variables' names.
#[test]
fn weights_for_a_graph_are_written_by_its_names() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "variables": {"w": {"shape": [2]}}, "nodes": {"y": {"op": "Neg", "inputs": ["w"]}}, "fetch": ["y"]}"#,
    );
    let own = sandbox.file("own.safetensors", weights(&[("model.v", &[2]), ("other", &[1])]));
    let map = sandbox.file("map.json", r#"[{"name": "model.v", "to": "w"}]"#);
    for to in ["w.npz", "w.safetensors", "w.ckpt"] {
        let ended = sandbox.run(&["export", &graph, "--weights", &own, "--map", &map, "--to", &path(to)]).expect(0);
        assert!(ended.stdout.contains(": 1 tensor, 8 bytes, from "), "{}", ended.stdout);
        // It fits the graph as it is.
        let ran = sandbox.run(&["run", &graph, "--weights", &path(to), "--json"]).expect(0).json();
        assert_eq!(ran["values"]["y"]["value"], serde_json::json!([-0.0625, -1.1875]), "{to}");
    }
    let all = ["export", &graph, "--weights", &own, "--map", &map, "--all", "--to"];
    sandbox
        .run(&[&all[..], &[&path("all.npz")]].concat())
        .expect(2)
        .complains(&["--all", "the variables of the graph alone"]);
    let bare = sandbox.run(&["export", &graph, "--to", &path("none.npz")]).expect(2);
    bare.complains(&["it is a graph, and no weights", "--weights FILE"]);
}

/// Weights without a graph: rules rename, turn, convert and leave out tensors, whatever the form of the file.
#[test]
fn weights_alone_are_written_under_other_names() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let own = sandbox.file("own.safetensors", weights(&[("model.w", &[2, 3]), ("model.b", &[2]), ("step", &[1])]));
    let map = sandbox.file(
        "map.json",
        r#"[{"prefix": "model.", "to": "out/"}, {"name": "out/w", "to": "out/kernel", "transpose": [1, 0], "dtype": "float64"},
            {"name": "step", "drop": true}, {"name": "model.c", "to": "c"}]"#,
    );
    for to in ["a.npz", "a.safetensors", "a.ckpt"] {
        let ended = sandbox.run(&["export", &own, "--map", &map, "--to", &path(to)]).expect(0);
        assert!(ended.stdout.contains(": 2 tensors, 56 bytes, from "), "{}", ended.stdout);
        ended.complains(&[r#"--map: name "model.c" matches no tensor"#]);
        let graph = sandbox.file(
            "graph.json",
            r#"{"version": 1, "variables": {"out/kernel": {"shape": [3, 2], "dtype": "float64"}, "out/b": {"shape": [2]}},
                "nodes": {"y": {"op": "Neg", "inputs": ["out/kernel"]}, "z": {"op": "Neg", "inputs": ["out/b"]}}, "fetch": ["y", "z"]}"#,
        );
        let ran = sandbox.run(&["run", &graph, "--weights", &path(to), "--json"]).expect(0).json();
        let sixteenths: Vec<f64> = (0..6).map(|i| -f64::from(i * 37 % 19 + 1) / 16.0).collect();
        let turned: Vec<[f64; 2]> = (0..3).map(|i| [sixteenths[i], sixteenths[i + 3]]).collect();
        assert_eq!(ran["values"]["y"]["value"], serde_json::json!(turned), "{to}");
        assert_eq!(ran["values"]["z"]["value"], serde_json::json!(sixteenths[..2]), "{to}");
    }
    // Of a training, the model's own tensors, whose list has the new names, too: the file can be exported again.
    let value = |name: &str, value: f32| (name.to_owned(), Tensor::from_vec([1], vec![value]));
    let tensors = vec![value("w", 1.0), value("w/Adam", 2.0), value("w/ExponentialMovingAverage", 3.0)];
    let metadata = [("meshtf.model".to_owned(), r#"["w"]"#.to_owned())].into();
    let mut bytes = Vec::new();
    safetensors::write(&mut bytes, &Contents { tensors, metadata }).unwrap();
    let state = sandbox.file("state.safetensors", bytes);
    let map = sandbox.file("map.json", r#"[{"pattern": "^w", "to": "v"}]"#);
    let read = |name: &str| safetensors::read(&std::fs::read(path(name)).unwrap()).unwrap().tensors;
    let export = |from: &str, more: &[&str], to: &str| {
        sandbox.run(&[&["export", from, "--to", &path(to)][..], more].concat()).expect(0);
        read(to)
    };
    assert_eq!(export(&state, &["--map", &map], "b.safetensors"), [value("v", 1.0)]);
    assert_eq!(export(&state, &["--map", &map, "--averages"], "c.safetensors"), [value("v", 3.0)]);
    let all = export(&state, &["--map", &map, "--all"], "d.safetensors");
    assert_eq!(all, [value("v", 1.0), value("v/Adam", 2.0), value("v/ExponentialMovingAverage", 3.0)]);
    assert_eq!(export(&path("d.safetensors"), &[], "e.safetensors"), [value("v", 1.0)]);
    // Rules that do not fit are refused, and nothing is written.
    for (rules, why) in [
        (r#"[{"pattern": "model.*", "to": "one"}]"#, "--map: two tensors get the name one"),
        (r#"[{"name": "model.b", "transpose": [1, 0]}]"#, "tensor model.b: axes [1, 0] are no order of its 1 axes"),
        (r#"[{"name": "step", "to": ""}]"#, "gives tensor step the name \"\""),
        (r#"[{"name": "step", "to": "__metadata__"}]"#, "no tensor can have the name __metadata__"),
        (r#"[{"name": "step"}]"#, "it does nothing"),
        ("{}", "expected a list of rules"),
    ] {
        let map = sandbox.file("wrong.json", rules);
        let to = path("wrong.safetensors");
        sandbox.run(&["export", &own, "--map", &map, "--to", &to]).expect(2).complains(&[why]);
        assert!(!sandbox.path("wrong.safetensors").exists(), "{rules}");
    }
    let model = sandbox.run(&["export", &own, "--map", &map, "--to", &path("m.onnx")]).expect(2);
    model.complains(&["--map: its rules are for the tensors of --weights"]);
}

/// A graph for a mesh is loaded where there is none: TensorFlow refuses devices that it does not have.
#[test]
fn a_saved_model_names_no_devices() {
    let sandbox = Sandbox::new();
    let graph = sandbox.file(
        "graph.json",
        r#"{"version": 1, "variables": {"w": {"shape": [2], "initial": 2, "device": "/job:worker/task:1"}},
        "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [2]}},
            "y": {"op": "Mul", "inputs": ["x", "w"], "device": "/job:worker/task:1"}}, "fetch": ["y"]}"#,
    );
    let own = sandbox.file("w.safetensors", weights(&[("w", &[2])]));
    let to = sandbox.path("saved").display().to_string();
    sandbox.run(&["export", &graph, "--weights", &own, "--to", &format!("{to}/")]).expect(0);
    let bytes = std::fs::read(sandbox.path("saved/saved_model.pb")).unwrap();
    assert!(!bytes.windows(7).any(|part| part == b"/job:wo"), "a device is named");
    // The weights are 1/16 and 19/16.
    assert_eq!(answer(&sandbox, &to, "x=[16,16]", "y"), [1.0, 19.0]);
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
