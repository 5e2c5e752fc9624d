//! Holds `docs/graph.schema.json` against the parser: what one takes the other takes, and what is wrong in form both
//! refuse. What only reading can tell (a name that does not exist, ragged lists) is the parser's alone.

use std::path::Path;

use serde_json::{Value, json};

use crate::graph::json::from_json;
use crate::graph::{Graph, op};
use crate::tensor::DType;

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../docs/graph.schema.json")).unwrap()
}

/// A document of these nodes.
fn nodes(nodes: &str) -> String {
    format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#)
}

const X: &str = r#""x": {"op": "Placeholder", "attrs": {"dtype": "float32"}}"#;

/// Right, for both.
const GOOD: &[&str] = &[
    r#""x": 2"#,
    r#""x": -1.5e-3, "y": true, "z": "text", "w": [[1, 2], [3, 4]], "v": [], "u": ["a", {"base64": "/w=="}]"#,
    r#""x": {"value": 1, "dtype": "float64", "shape": [2, 3], "device": "/gpu:0", "control": [], "description": "d"}"#,
    r#""x": {"base64": "/w=="}, "y": {"op": "Identity", "inputs": [{"base64": ""}]}"#,
    r#""x": {"value": {"base64": ""}}, "y": {"value": ["NaN"], "dtype": "half"}"#,
    r#""a/b-c.d>e": 1, "_x": 2, "0": 3, ".y": 4"#,
    r#""x": {"op": "NoOp"}, "y": {"op": "NoOp", "inputs": [], "attrs": {}, "control": ["x"], "device": "", "description": ""}"#,
    r#""y": {"op": "Pack", "inputs": ["x", "x:0", 1, 2.5]}"#,
    r#""y": {"op": "Assert", "inputs": [true, [1, 2], {"value": "text"}, [{"base64": "AA=="}]]}"#,
    r#""y": {"op": "Add", "inputs": [1, {"value": 2, "dtype": "int32"}]}"#,
    r#""y": {"op": "Add", "inputs": [[1, 2], {"value": [1, 2]}]}"#,
    r#""y": {"op": "MatMul", "attrs": {"transpose_a": true, "T": "float32", "_class": ["loc:@x"], "_b": false, "_i": 1}}"#,
    r#""y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": null}}"#,
    r#""y": {"op": "Placeholder", "attrs": {"dtype": "int32", "shape": [null, 3]}}"#,
    r#""y": {"op": "FIFOQueueV2", "attrs": {"component_types": ["int32"], "shapes": [[2, 3]], "container": "c"}}"#,
    r#""y": {"op": "Const", "attrs": {"value": {"value": [1, 2], "dtype": "int64"}}}"#,
    r#""y": {"op": "Const", "attrs": {"value": [1, 2]}}"#,
    r#""y": {"op": "LeakyRelu", "attrs": {"alpha": 0.1}}, "z": {"op": "LeakyRelu", "attrs": {"alpha": "Infinity"}}"#,
    r#""y": {"op": "NoOp", "device": "/job:worker/replica:0/task:1/device:GPU:*"}"#,
];

/// Wrong in form, for both.
const BAD: &[&str] = &[
    r#""x": null"#,
    r#""x": [null]"#,
    r#""x": {}"#,
    r#""x": {"values": 1}"#,
    r#""x": {"value": null}"#,
    r#""x": {"value": 1, "op": "Add"}"#,
    r#""x": {"value": 1, "inputs": []}"#,
    r#""x": {"value": 1, "dtype": "int33"}"#,
    r#""x": {"value": 1, "dtype": "resource"}"#,
    r#""x": {"base64": "/w==", "device": ""}"#,
    r#""x": {"value": 1, "dtype": 3}"#,
    r#""x": {"value": 1, "shape": [null]}"#,
    r#""x": {"value": 1, "shape": [-1]}"#,
    r#""x": {"value": 1, "shape": 3}"#,
    r#""x": {"value": 1, "device": 0}"#,
    r#""x": {"value": 1, "device": "job:local"}"#,
    r#""x": {"value": 1, "description": 1}"#,
    r#""x": {"value": {"base64": "/w==", "more": 1}}"#,
    r#""x": {"value": {"base64": "-_"}}"#,
    r#""": 1"#,
    r#""a b": 1"#,
    r#""a:0": 1"#,
    r#""-a": 1"#,
    r#""y": {"op": "Addd"}"#,
    r#""y": {"op": 1}"#,
    r#""y": {"op": "NoOp", "transpose_a": true}"#,
    r#""y": {"op": "Add", "inputs": "x"}"#,
    r#""y": {"op": "Add", "inputs": [null]}"#,
    r#""y": {"op": "Add", "inputs": [""]}"#,
    r#""y": {"op": "Add", "inputs": ["^x"]}"#,
    r#""y": {"op": "Add", "inputs": [["x"]]}"#,
    r#""y": {"op": "Add", "inputs": [{"dtype": "int32"}]}"#,
    r#""y": {"op": "Add", "inputs": [{"value": 1, "device": ""}]}"#,
    r#""y": {"op": "NoOp", "control": "x"}"#,
    r#""y": {"op": "NoOp", "control": [""]}"#,
    r#""y": {"op": "NoOp", "control": ["^x"]}"#,
    r#""y": {"op": "NoOp", "control": [1]}"#,
    r#""y": {"op": "NoOp", "attrs": []}"#,
    r#""y": {"op": "MatMul", "attrs": {"T": {"type": "float32"}}}"#,
];

#[test]
fn schema_and_parser_agree() {
    let schema = schema();
    assert!(jsonschema::draft202012::meta::is_valid(&schema));
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let check = |text: &str, is_right: bool| {
        let read = from_json(text).map(|_| ());
        assert_eq!(read.is_ok(), is_right, "parser: {read:?}: {text}");
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(validator.is_valid(&value), is_right, "schema: {text}");
    };
    for good in GOOD {
        check(&nodes(good), true);
    }
    for bad in BAD {
        check(&nodes(bad), false);
    }
    let whole = |rest: &str| format!(r#"{{"version": 1, "nodes": {{{X}}}{rest}}}"#);
    check(&whole(""), true);
    check(
        &whole(
            r#", "fetch": ["x", "x:0"], "feed": {"x": [1, 2]}, "targets": ["x"], "init": ["x"], "$schema": "s", "description": """#,
        ),
        true,
    );
    check(&whole(r#", "feed": {"x": {"value": 1, "dtype": "float32"}, "y": "text", "z": true}"#), true);
    check(&whole(r#", "fetch": "x""#), false);
    check(&whole(r#", "fetch": [1]"#), false);
    check(&whole(r#", "fetches": []"#), false);
    check(&whole(r#", "init": "x""#), false);
    check(&whole(r#", "feed": [1]"#), false);
    check(&whole(r#", "feed": {"x": null}"#), false);
    check(&whole(r#", "feed": {"x": {"value": 1, "device": "/gpu:0"}}"#), false);
    check(&whole(r#", "description": ["x"]"#), false);
    check(r#"{"nodes": {}}"#, false);
    check(r#"{"version": 1}"#, false);
    check(r#"{"version": 1.0, "nodes": {}}"#, true);
    check(r#"{"version": 2, "nodes": {}}"#, false);
    check(r#"{"version": "1", "nodes": {}}"#, false);
    check(r#"{"version": 1, "nodes": [1]}"#, false);
    check("[]", false);
    check("1", false);
}

#[test]
fn the_schema_knows_every_op_and_dtype() {
    let schema = schema();
    let known: Vec<&str> = op::all().into_iter().map(|op| op.name).collect();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        return update(&known);
    }
    let advice = "docs/graph.schema.json lists other ops than the vocabulary; run this test with UPDATE_SCHEMA=1";
    assert!(schema["$defs"]["op"]["enum"] == json!(known), "{advice}");
    for name in schema["$defs"]["dtype"]["enum"].as_array().unwrap() {
        assert!(DType::from_name(name.as_str().unwrap()).is_some(), "{name}");
    }
    for dtype in DType::all() {
        assert!(schema["$defs"]["dtype"]["enum"].as_array().unwrap().contains(&json!(dtype.name())), "{dtype}");
    }
}

/// Writes the ops into the schema, in lines of at most 120 characters.
fn update(ops: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/graph.schema.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let begin = "    \"op\": {\n      \"enum\": [\n";
    let (before, rest) = text.split_once(begin).unwrap();
    let (_, after) = rest.split_once("\n      ]").unwrap();
    let mut lines = vec!["       ".to_owned()];
    for (i, op) in ops.iter().enumerate() {
        let item = format!(" \"{op}\"{}", if i + 1 < ops.len() { "," } else { "" });
        if lines.last().is_some_and(|line| line.len() + item.len() > 120) {
            lines.push("       ".to_owned());
        }
        lines.last_mut().unwrap().push_str(&item);
    }
    std::fs::write(path, format!("{before}{begin}{}\n      ]{after}", lines.join("\n"))).unwrap();
}

#[test]
fn every_example_is_right_for_both() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = schema();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(root.join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
        let program = from_json(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let graph = Graph::new(program.nodes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for tensor in program.fetch.iter().chain(program.feed.iter().map(|(name, _)| name)) {
            graph.output(tensor).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        for (name, value) in &program.feed {
            let output = graph.output(name).unwrap();
            assert_eq!(graph.output_type(output).dtype, value.dtype(), "{}: {name}", path.display());
        }
        seen += 1;
    }
    assert!(seen >= 9, "only {seen} examples");
}
