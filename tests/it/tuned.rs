//! `meshtf train` of models without variables, on the files of `tests/data/tuned`: numpy computed the weights after five steps.

use std::path::Path;

use meshtf::graph::{ProgramFile, write_graphdef};
use meshtf_tensor::safetensors;
use serde_json::Value;

use crate::sandbox::Sandbox;

fn data(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tuned").join(name).display().to_string()
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("expected.json")).unwrap()).unwrap()
}

/// The file of the sections: a loss on the tensor `logits`, and the variables that train.
fn sections(sandbox: &Sandbox, name: &str, logits: &str, more: &str, variables: &str) -> String {
    // The files of a training lie in the folder of its sections.
    for file in ["x.npy", "y.npy"] {
        sandbox.file(file, std::fs::read(data(file)).unwrap());
    }
    sandbox.file(
        name,
        format!(
            r#"{{ "version": 1,
              "nodes": {{
                "labels": {{ "op": "Placeholder", "attrs": {{ "dtype": "int32", "shape": [null] }} }},{more}
                "losses": {{ "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["{logits}", "labels"] }},
                "loss": {{ "op": "Mean", "inputs": ["losses", [0]] }} }},
              "data": {{ "feed": {{ "x": "x.npy", "labels": "y.npy" }}, "batch": 8 }},
              "train": {{ "loss": "loss"{variables}, "optimizer": "sgd", "rate": 0.1, "steps": 5 }} }}"#
        ),
    )
}

/// The losses of the steps of a training.
fn losses(sandbox: &Sandbox, model: &str, with: &str, run: &str) -> Value {
    let words = ["train", model, "--with", with, "--local", "--checkpoint", run, "--report", "1", "--json"];
    let lines = sandbox.run(&words).expect(0).stdout;
    let loss = |line| serde_json::from_str::<Value>(line).unwrap()["values"]["loss"].clone();
    Value::Array(lines.lines().map(loss).filter(Value::is_number).collect())
}

fn close(got: &Value, wanted: &Value, what: &str) {
    let numbers = |value: &Value| -> Vec<f64> {
        fn all(value: &Value, into: &mut Vec<f64>) {
            match value {
                Value::Array(items) => items.iter().for_each(|item| all(item, into)),
                other => into.push(other.as_f64().unwrap()),
            }
        }
        let mut numbers = Vec::new();
        all(value, &mut numbers);
        numbers
    };
    let (got, wanted) = (numbers(got), numbers(wanted));
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (got, wanted) in got.iter().zip(&wanted) {
        assert!((got - wanted).abs() < 1e-6, "{what}: {got} {wanted}");
    }
}

#[test]
fn initializers_that_patterns_name_are_trained_and_exported() {
    let sandbox = Sandbox::new();
    let (model, x) = (data("mlp.onnx"), data("x.npy"));
    let path = |name: &str| sandbox.path(name).display().to_string();
    let (fed, expected) = (format!("x=@{x}"), expected());
    for (name, variables) in
        [("second", r#", "variables": ["fc2.*"]"#), ("both", r#", "variables": ["*.weight", "fc[12].bias"]"#)]
    {
        let (with, run, onnx) =
            (sections(&sandbox, "train.json", "logits", "", variables), path(name), path("tuned.onnx"));
        close(&losses(&sandbox, &model, &with, &run), &expected[name]["losses"], name);
        // The values of the file, with those of the training in place of some; the rest of the file stays as it is.
        sandbox.run(&["export", &model, "--weights", &run, "--to", &onnx]).expect(0);
        let shown = sandbox.run(&["inspect", &onnx, "--json"]).expect(0).json();
        assert_eq!(shown["tensors"].as_array().map(Vec::len), Some(4), "{shown}");
        let file = std::fs::read(&onnx).unwrap();
        assert!(file.windows(8).any(|part| part == b"a person"), "metadata");
        let answers = [
            &["run", &onnx][..],
            &["run", &model, "--weights", &run],
            &["run", &model, "--weights", &run, "--fetch", "logits"],
        ];
        for words in answers {
            let ran = sandbox.run(&[words, &["--feed", &fed, "--json"]].concat()).expect(0).json();
            close(&ran["values"]["logits"]["value"], &expected[name]["logits"], name);
        }
        // `predict` knows the classes by the loss.
        let out = sandbox.run(&["predict", &model, &run, &x, "--with", &with, "--local"]).expect(0).stdout;
        let first = &expected[name]["logits"][0];
        let best = usize::from(first[1].as_f64() > first[0].as_f64());
        assert!(out.starts_with(&format!("example,class,probability,p_0,p_1\n0,{best},")), "{out}");
    }
    // Without weights, the file's own values are run.
    let ran = sandbox.run(&["run", &model, "--feed", &fed, "--json"]).expect(0).json();
    assert_ne!(ran["values"]["logits"]["value"], expected["both"]["logits"]);
}

#[test]
fn constants_of_a_frozen_graph_are_trained_as_initializers_are() {
    let sandbox = Sandbox::new();
    let path = |name: &str| sandbox.path(name).display().to_string();
    let frozen = ProgramFile::load(data("mlp.onnx"), None).unwrap().graph.to_defs();
    let model = sandbox.file("frozen.pb", write_graphdef(&frozen));
    let expected = &expected()["both"];
    let (with, run) =
        (sections(&sandbox, "train.json", "logits", "", r#", "variables": ["*.weight", "fc[12].bias"]"#), path("run"));
    close(&losses(&sandbox, &model, &with, &run), &expected["losses"], "losses");
    // The file has its own values, and with the weights those of the training.
    let fed = format!("x=@{}", data("x.npy"));
    let exported = path("saved") + "/";
    sandbox.run(&["export", &model, "--weights", &run, "--to", &exported, "--fetch", "logits"]).expect(0);
    let run_with = |words: &[&str]| {
        let asked = [&["run"], words, &["--feed", &fed, "--fetch", "logits", "--json"]].concat();
        sandbox.run(&asked).expect(0).json()["values"]["logits"]["value"].clone()
    };
    for words in [&[&model, "--weights", &run][..], &[exported.as_str()]] {
        close(&run_with(words), &expected["logits"], "logits");
    }
    assert_ne!(run_with(&[&model]), expected["logits"]);
    // The SavedModel has variables, of which patterns name some; its inputs and outputs have the names of its signature.
    let (with, tuned) = (sections(&sandbox, "again.json", "logits", "", r#", "variables": ["fc2.*"]"#), path("again"));
    sandbox.run(&["train", &exported, "--with", &with, "--local", "--checkpoint", &tuned]).expect(0);
    let values = |weights: &str, name: &str| {
        let file = format!("{}/step-000000000005.safetensors", path(weights));
        let saved = safetensors::read(&std::fs::read(file).unwrap()).unwrap();
        saved.tensors.into_iter().find(|(own, _)| own == name).expect(name).1
    };
    for (name, is_same) in [("fc1.weight", true), ("fc1.bias", true), ("fc2.weight", false), ("fc2.bias", false)] {
        assert_eq!(values("run", name) == values("again", name), is_same, "{name}");
    }
    let refused = |variables: &str, says: &[&str]| {
        let with = sections(&sandbox, "wrong.json", "logits", "", variables);
        sandbox.run(&["train", &model, "--with", &with, "--local"]).expect(2).complains(says);
    };
    refused("", &["\"variables\" is missing", "fc1.weight"]);
    refused(r#", "variables": ["fc3.*"]"#, &["frozen.pb", "\"fc3.*\" matches no weight", "fc1.weight"]);
}

#[test]
fn layers_are_added_to_a_value_within_a_model() {
    let sandbox = Sandbox::new();
    let model = data("mlp.onnx");
    let head = r#" "head": { "layer": "dense", "inputs": ["/relu/Relu_output_0"], "units": 5 },"#;
    let with = sections(&sandbox, "head.json", "head", head, "");
    let run = sandbox.path("run").display().to_string();
    let trained = sandbox.run(&["train", &model, "--with", &with, "--local", "--checkpoint", &run]).expect(0);
    trained.complains(&["25 parameters"]);
    let predict = ["predict", &model, &run, &data("x.npy"), "--with", &with, "--local", "--json"];
    let out = sandbox.run(&predict).expect(0).stdout;
    assert_eq!(
        serde_json::from_str::<Value>(out.lines().next().unwrap()).unwrap()["probabilities"].as_array().map(Vec::len),
        Some(5)
    );
}

#[test]
fn layers_begin_with_their_values_whatever_init_states() {
    let sandbox = Sandbox::new();
    let model = data("mlp.onnx");
    let head =
        r#" "head": { "layer": "dense", "inputs": ["/relu/Relu_output_0"], "units": 5 }, "warm": { "op": "NoOp" },"#;
    let with = sections(&sandbox, "head.json", "head", head, r#", "variables": ["fc1.*"]"#);
    let text = std::fs::read_to_string(&with).unwrap().replace(r#""data": {"#, r#""init": ["warm"], "data": {"#);
    let with = sandbox.file("head.json", text);
    let trained = sandbox.run(&["train", &model, "--with", &with, "--local"]).expect(0);
    trained.complains(&["41 parameters"]);
    // Without layers, those of the model.
    let with =
        sections(&sandbox, "plain.json", "logits", r#" "warm": { "op": "NoOp" },"#, r#", "variables": ["fc1.*"]"#);
    let text = std::fs::read_to_string(&with).unwrap().replace(r#""data": {"#, r#""init": ["warm"], "data": {"#);
    let with = sandbox.file("plain.json", text);
    sandbox.run(&["train", &model, "--with", &with, "--local"]).expect(0).complains(&["16 parameters"]);
}

#[test]
fn initializers_whose_names_differ_in_case_alone_are_trained_and_exported() {
    let sandbox = Sandbox::new();
    let (model, x, expected) = (data("case.onnx"), data("x.npy"), expected());
    let path = |name: &str| sandbox.path(name).display().to_string();
    let fed = format!("x=@{x}");
    for (name, variables) in [("second", r#", "variables": ["w", "b"]"#), ("both", r#", "variables": ["*"]"#)] {
        let (with, run, onnx) =
            (sections(&sandbox, "train.json", "logits", "", variables), path(name), path("case.onnx"));
        sandbox.run(&["train", &model, "--with", &with, "--local", "--checkpoint", &run]).expect(0);
        sandbox.run(&["export", &model, "--weights", &run, "--to", &onnx]).expect(0);
        for words in [&["run", &onnx][..], &["run", &model, "--weights", &run]] {
            let ran = sandbox.run(&[words, &["--feed", &fed, "--json"]].concat()).expect(0).json();
            close(&ran["values"]["logits"]["value"], &expected[name]["logits"], name);
        }
    }
    // Weights that have the names of the model's initializers, of which two are the variables w_1 and b_1.
    let weights = path("own.npz");
    let of = |name: &str| {
        let listed = expected["both"]["weights"][name].as_array().unwrap();
        listed.iter().map(|number| number.as_f64().unwrap() as f32).collect::<Vec<f32>>()
    };
    let arrays = [
        ("W".to_owned(), meshtf_tensor::Tensor::from_vec([4, 3], of("fc1.weight"))),
        ("B".to_owned(), meshtf_tensor::Tensor::vector(of("fc1.bias"))),
        ("w".to_owned(), meshtf_tensor::Tensor::from_vec([2, 4], of("fc2.weight"))),
        ("b".to_owned(), meshtf_tensor::Tensor::vector(of("fc2.bias"))),
    ];
    meshtf_train::data::write_npz(std::fs::File::create(&weights).unwrap(), &arrays).unwrap();
    let says = ["the initializer w of", "is the variable w_1", r#"[{"name":"w","to":"w_1"}]"#];
    sandbox.run(&["run", &model, "--weights", &weights, "--feed", &fed]).expect(2).complains(&says);
    let map = sandbox.file("map.json", r#"[{"name": "w", "to": "w_1"}, {"name": "b", "to": "b_1"}]"#);
    let ran =
        sandbox.run(&["run", &model, "--weights", &weights, "--map", &map, "--feed", &fed, "--json"]).expect(0).json();
    close(&ran["values"]["logits"]["value"], &expected["both"]["logits"], "own names");
}

#[test]
fn a_node_replaces_an_input_of_a_model() {
    let sandbox = Sandbox::new();
    let model = data("mlp.onnx");
    // The model takes twice the half of the examples, which are the examples.
    let input = r#" "half": { "op": "Placeholder", "attrs": { "dtype": "float32", "shape": [null, 3] } },
        "x": { "op": "Mul", "inputs": ["half", 2] },"#;
    let with = sections(&sandbox, "train.json", "logits", input, r#", "variables": ["*"]"#);
    let x = meshtf_tensor::npy::read(&std::fs::read(data("x.npy")).unwrap()).unwrap();
    let half: Vec<f32> = x.slice::<f32>().unwrap().iter().map(|number| number / 2.0).collect();
    let half = meshtf_tensor::Tensor::from_vec(x.shape().clone(), half);
    sandbox.file("half.npy", meshtf_tensor::npy::write(&half).unwrap());
    let text = std::fs::read_to_string(&with).unwrap();
    let text = text.replace(r#""x": "x.npy""#, r#""half": "half.npy""#);
    let with = sandbox.file("train.json", text);
    let run = sandbox.path("run").display().to_string();
    sandbox.run(&["train", &model, "--with", &with, "--local", "--checkpoint", &run]).expect(0);
    let fed = format!("x=@{}", data("x.npy"));
    let ran = sandbox.run(&["run", &model, "--weights", &run, "--feed", &fed, "--json"]).expect(0).json();
    close(&ran["values"]["logits"]["value"], &expected()["both"]["logits"], "both");
}

#[test]
fn mistakes_in_a_training_of_a_model_are_named() {
    let sandbox = Sandbox::new();
    let model = data("mlp.onnx");
    let refused = |with: &str, says: &[&str]| {
        sandbox.run(&["train", &model, "--with", with, "--local"]).expect(2).complains(says);
    };
    refused(
        &sections(&sandbox, "a.json", "logits", "", ""),
        &["\"variables\" is missing", "fc1.weight, fc1.bias, fc2.weight"],
    );
    refused(
        &sections(&sandbox, "b.json", "logits", "", r#", "variables": ["fc2.*", "fc3.weight"]"#),
        &["\"fc3.weight\" matches no weight", "fc2.weight"],
    );
    refused(&sections(&sandbox, "c.json", "logit", "", r#", "variables": ["*"]"#), &["c.json", "logit"]);
    let other = sandbox.file(
        "w.json",
        r#"{"version": 1, "variables": {"v": {"shape": [2]}}, "nodes": {"y": {"op": "Neg", "inputs": ["v"]}}}"#,
    );
    let foreign = sandbox.path("v.npz");
    let arrays = [("v".to_owned(), meshtf_tensor::Tensor::vector(vec![1f32, 2.0]))];
    meshtf_train::data::write_npz(std::fs::File::create(&foreign).unwrap(), &arrays).unwrap();
    let foreign = foreign.display().to_string();
    sandbox.run(&["run", &other, "--fetch", "y", "--weights", &foreign, "-q"]).prints("[-1. -2.]");
    let fed = format!("x=@{}", data("x.npy"));
    sandbox
        .run(&["run", &model, "--feed", &fed, "--weights", &foreign])
        .expect(2)
        .complains(&["none has the name of a weight"]);
}
