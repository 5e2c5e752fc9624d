//! Tests of valid documents, with their content, and of invalid ones, with the position and reason of the error.

mod schema;

use meshtf_tensor::{Complex, Data};
use proptest::prelude::*;

use super::*;
use crate::Graph;

/// Reads a document with one file, `w.npy`, next to it: [1, 2], as float32.
fn from_json(text: &str) -> Result<Program, FormatError> {
    super::from_json(text, &mut |file, _| match file {
        "w.npy" => Ok(npy::write(&Tensor::new([2], Data::F32(vec![1.0, 2.0])).unwrap()).unwrap()),
        _ => Err(Failure::invalid(format!("{file}: not there"))),
    })
}

fn read(text: &str) -> Program {
    from_json(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn value(program: &Program, node: &str) -> Tensor {
    let node = program.nodes.iter().find(|def| def.name == node).unwrap_or_else(|| panic!("no node {node}"));
    node.attrs.tensor("value").unwrap().clone()
}

/// A document of these nodes.
fn with_nodes(nodes: &str) -> String {
    format!(r#"{{"version": 1, "nodes": {{{nodes}}}}}"#)
}

#[test]
fn the_first_program() {
    let program = read(
        r#"{ "version": 1,
             "nodes": {
               "x":  2,
               "y2": { "op": "Sub", "inputs": ["x", 66],     "device": "/job:local/task:1" },
               "y1": { "op": "Add", "inputs": ["x", 300],    "device": "/job:local/task:0" },
               "y":  { "op": "Add", "inputs": ["y1", "y2"],  "device": "/job:local/task:0" } },
             "fetch": ["y"] }"#,
    );
    let summary: Vec<String> = program
        .nodes
        .iter()
        .map(|node| format!("{} {} {} {}", node.name, node.op, node.inputs.join(","), node.device))
        .collect();
    assert_eq!(
        summary,
        [
            "x Const  ",
            "y2/y Const  /job:local/task:1",
            "y2 Sub x,y2/y /job:local/task:1",
            "y1/y Const  /job:local/task:0",
            "y1 Add x,y1/y /job:local/task:0",
            "y Add y1,y2 /job:local/task:0",
        ]
    );
    assert_eq!(value(&program, "y2/y"), Tensor::scalar(66i32));
    assert_eq!(program.fetch, ["y"]);
    assert!(Graph::new(program.nodes).is_ok());
}

#[test]
fn constants_in_every_spelling() {
    let program = read(&with_nodes(
        r#""a": [[1, 2], [3, 4]], "b": "text", "c": true, "d": [1, 0.5],
           "e": {"value": [1, 2], "dtype": "float64", "device": "/gpu:0", "control": ["a"], "description": "e"},
           "f": {"value": 0, "dtype": "int64", "shape": [2, 3]}, "g": {"value": [], "shape": [0, 3]},
           "h": {"value": ["NaN", 1], "dtype": "float32"}, "i": {"value": {"base64": "/w=="}}"#,
    ));
    let check = |node: &str, want: Tensor| assert_eq!(value(&program, node), want, "{node}");
    check("a", Tensor::from_vec([2, 2], vec![1i32, 2, 3, 4]));
    check("b", Tensor::scalar(b"text".to_vec()));
    check("c", Tensor::scalar(true));
    check("d", Tensor::vector(vec![1f32, 0.5]));
    check("e", Tensor::vector(vec![1f64, 2.]));
    check("f", Tensor::zeros(DType::I64, [2, 3]).unwrap());
    check("g", Tensor::zeros(DType::F32, [0, 3]).unwrap());
    assert!(value(&program, "h").slice::<f32>().unwrap()[0].is_nan());
    check("i", Tensor::scalar(vec![0xff]));
    let e = program.nodes.iter().find(|node| node.name == "e").unwrap();
    assert_eq!((e.device.as_str(), e.inputs.as_slice()), ("/gpu:0", ["^a".to_owned()].as_slice()));
}

#[test]
fn a_literal_takes_the_dtype_of_where_it_stands() {
    let check = |nodes: &str, constant: &str, want: Tensor| {
        let program = read(&with_nodes(nodes));
        assert_eq!(value(&program, constant), want, "{nodes}");
        Graph::new(program.nodes).unwrap_or_else(|error| panic!("{error}: {nodes}"));
    };
    let x = r#""x": {"op": "Placeholder", "attrs": {"dtype": "float64"}}"#;
    // From another input, before or after it; through nodes that stand later in the document.
    check(&format!(r#"{x}, "y": {{"op": "Mul", "inputs": ["x", 2]}}"#), "y/y", Tensor::scalar(2f64));
    check(
        &format!(r#""y": {{"op": "Mul", "inputs": [2, "z"]}}, "z": {{"op": "Neg", "inputs": ["x"]}}, {x}"#),
        "y/x",
        Tensor::scalar(2f64),
    );
    // From the op, from a stated attribute, from a default that fits, and from the literals alone.
    check(
        &format!(r#"{x}, "y": {{"op": "Split", "inputs": [0, "x"], "attrs": {{"num_split": 2}}}}"#),
        "y/split_dim",
        Tensor::scalar(0i32),
    );
    check(r#""y": {"op": "Add", "inputs": [1, 2], "attrs": {"T": "float32"}}"#, "y/x", Tensor::scalar(1f32));
    check(r#""y": {"op": "Range", "inputs": [0, 3, 1]}"#, "y/limit", Tensor::scalar(3i32));
    check(r#""y": {"op": "Range", "inputs": [0, 3, 0.5]}"#, "y/limit", Tensor::scalar(3f32));
    check(r#""y": {"op": "Add", "inputs": [1, 0.5]}"#, "y/x", Tensor::scalar(1f32));
    check(
        r#""y": {"op": "Pack", "inputs": ["y/a", 7]}, "y/a": {"value": 1, "dtype": "int8"}"#,
        "y/values_1",
        Tensor::scalar(7i8),
    );
    // A literal that states its dtype determines it for the other literals.
    check(r#""y": {"op": "Add", "inputs": [1, {"value": 2, "dtype": "int64"}]}"#, "y/x", Tensor::scalar(1i64));
    // In a loop, from outside of it.
    check(
        r#""e": {"op": "Enter", "inputs": [{"value": 0, "dtype": "int64"}], "attrs": {"frame_name": "f"}},
           "m": {"op": "Merge", "inputs": ["e", "n"]}, "n": {"op": "NextIteration", "inputs": ["i"]},
           "i": {"op": "Add", "inputs": ["m", 1]}"#,
        "i/y",
        Tensor::scalar(1i64),
    );
}

#[test]
fn names_of_literals_are_never_taken() {
    let program = read(&with_nodes(r#""y/y": 1, "y": {"op": "Add", "inputs": ["y/y", 2]}, "y/y_1": 3"#));
    let names: Vec<&str> = program.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["y/y", "y/y_2", "y", "y/y_1"]);
}

#[test]
fn feeds_are_of_the_dtype_they_are_fed_to() {
    let program = read(
        r#"{"version": 1, "nodes": {"x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}}},
            "feed": {"x:0": [[1, 2]], "other": 1}, "targets": ["x"], "init": ["y"]}"#,
    );
    assert_eq!(program.feed[0], ("x:0".to_owned(), Tensor::from_vec([1, 2], vec![1f32, 2.])));
    assert_eq!(program.feed[1], ("other".to_owned(), Tensor::scalar(1i32)));
    assert_eq!(program.targets, ["x"]);
    assert_eq!(program.init, ["y"]);
}

#[test]
fn attributes_are_read_by_their_kind() {
    let program = read(&with_nodes(
        r#""c": {"op": "MaxPool", "inputs": ["x"], "attrs": {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1],
                 "padding": "SAME", "T": "float32", "explicit_paddings": [], "_class": ["loc:@x"], "_n": 1.5}},
           "x": {"op": "Placeholder", "attrs": {"dtype": "float", "shape": null}},
           "q": {"op": "FIFOQueueV2", "attrs": {"component_types": ["int32", "string"], "shapes": [[], [2, 3]]}}"#,
    ));
    let attr = |node: usize, name: &str| program.nodes[node].attrs.get(name).unwrap().clone();
    assert_eq!(attr(0, "ksize"), Attr::Ints(vec![1, 2, 2, 1]));
    assert_eq!(attr(0, "padding"), Attr::Str(b"SAME".to_vec()));
    assert_eq!(attr(0, "T"), Attr::Type(DType::F32));
    assert_eq!(attr(0, "explicit_paddings"), Attr::Empty);
    assert_eq!(attr(0, "_class"), Attr::Strs(vec![b"loc:@x".to_vec()]));
    assert_eq!(attr(0, "_n"), Attr::Float(1.5));
    assert_eq!(attr(1, "shape"), Attr::Shape(meshtf_tensor::PartialShape::UNKNOWN));
    assert_eq!(attr(2, "component_types"), Attr::Types(vec![DType::I32, DType::String]));
}

#[test]
fn every_fault_says_where_and_what_would_be_right() {
    let check = |text: &str, path: &str, part: &str| {
        let error = from_json(text).map(|_| ()).expect_err(text);
        let FormatError::Content { path: found, why, .. } = &error else { panic!("{error}: {text}") };
        assert_eq!(found, path, "{text}: {error}");
        assert!(why.contains(part), "{text}: {error}");
    };
    check("[]", "$", "graph.json is an object");
    check("{}", "$", "\"version\" is missing");
    check(r#"{"version": 2, "nodes": {}}"#, "$.version", "this program reads version 1");
    check(r#"{"version": "1", "nodes": {}}"#, "$.version", "reads version 1");
    check(r#"{"version": 1}"#, "$", "\"nodes\" is missing");
    check(r#"{"version": 1, "nodes": []}"#, "$.nodes", "an object of nodes");
    check(r#"{"version": 1, "nodes": {}, "fetches": []}"#, "$.fetches", "did you mean \"fetch\"?");
    check(r#"{"version": 1, "nodes": {}, "fetch": "y"}"#, "$.fetch", "a list of the names of tensors");
    check(r#"{"version": 1, "nodes": {}, "fetch": [""]}"#, "$.fetch[0]", "not empty");
    let check = |nodes: &str, path: &str, part: &str| check(&with_nodes(nodes), path, part);
    check(r#""y": null"#, "$.nodes.y", "null is not a tensor value");
    check(r#""y": {}"#, "$.nodes.y", "has an \"op\" or a \"layer\", or a \"value\"");
    check(r#""y": {"op": "MatMull"}"#, "$.nodes.y.op", "did you mean MatMul");
    let dense = r#"unknown op "Dense"; did you mean the layer {"layer": "dense", …} or MatMul or BiasAdd?"#;
    check(r#""y": {"op": "Dense"}"#, "$.nodes.y.op", dense);
    check(r#""y": {"op": "BatchNorm"}"#, "$.nodes.y.op", r#"did you mean the layer {"layer": "batch_norm", …}"#);
    check(r#""y": {"op": "Add", "input": ["x"]}"#, "$.nodes.y.input", "did you mean \"inputs\"?");
    check(r#""y": {"op": "Add", "inputs": "x"}"#, "$.nodes.y.inputs", "inputs are a list");
    check(r#""y": {"op": "Add", "inputs": ["^x"]}"#, "$.nodes.y.inputs[0]", "in \"control\", as \"x\"");
    check(r#""y": {"op": "Add", "inputs": [null]}"#, "$.nodes.y.inputs[0]", "not null");
    check(r#""y": {"op": "Pack", "inputs": [["a", "b"]]}"#, "$.nodes.y.inputs[0]", "name each node by itself");
    check(r#""y": {"op": "Add", "inputs": [[1, [2]]]}"#, "$.nodes.y.inputs[0][1]", "a list beside a scalar");
    check(r#""y": {"op": "Add", "inputs": [3000000000, 1]}"#, "$.nodes.y.inputs[0]", "out of the range of int32");
    check(
        r#""y": {"op": "Add", "inputs": [1.5, {"value": 1, "dtype": "int32"}]}"#,
        "$.nodes.y.inputs[0]",
        "1.5 is not an int32",
    );
    check(r#""y": {"op": "Add", "inputs": [{"dtype": "int32"}]}"#, "$.nodes.y.inputs[0]", "has a \"value\"");
    check(r#""y": {"op": "Add", "transpose_a": true}"#, "$.nodes.y.transpose_a", "unknown key");
    check(r#""y": {"op": "MatMul", "transpose_a": true}"#, "$.nodes.y.transpose_a", "put it inside \"attrs\"");
    check(
        r#""y": {"op": "MatMul", "attrs": {"transpose": true}}"#,
        "$.nodes.y.attrs.transpose",
        "did you mean \"transpose_a\"?",
    );
    check(
        r#""y": {"op": "MatMul", "attrs": {"transpose_a": 1}}"#,
        "$.nodes.y.attrs.transpose_a",
        "expected true or false, found 1",
    );
    check(r#""y": {"op": "MatMul", "attrs": {"T": "flaot32"}}"#, "$.nodes.y.attrs.T", "did you mean \"float32\"?");
    check(r#""y": {"op": "Pack", "attrs": {"axis": 1.5}}"#, "$.nodes.y.attrs.axis", "a whole number, found 1.5");
    check(r#""y": {"op": "Pack", "attrs": {"axis": 9223372036854775808}}"#, "$.nodes.y.attrs.axis", "64-bit");
    check(r#""y": {"op": "Placeholder", "attrs": {"shape": [-1]}}"#, "$.nodes.y.attrs.shape[0]", "null for an unknown");
    check(r#""y": {"op": "NoOp", "device": "job:local"}"#, "$.nodes.y.device", "does not begin with /");
    check(r#""y": {"op": "NoOp", "control": ["^x"]}"#, "$.nodes.y.control[0]", "write \"x\"");
    check(r#""y": {"value": 1, "dtype": "int33"}"#, "$.nodes.y.dtype", "did you mean");
    check(r#""y": {"value": 1, "dtype": "resource"}"#, "$.nodes.y.dtype", "bool, string");
    check(r#""y": {"value": [1, 2], "shape": [3]}"#, "$.nodes.y.value", "2 values do not fill shape [3]");
    check(r#""y": {"value": 1, "shape": [2.5]}"#, "$.nodes.y.shape[0]", "whole number");
    check(r#""y": {"value": 0, "dtype": "float64", "shape": [3000000000]}"#, "$.nodes.y.value", "exceeds the limit");
    check(
        r#""x": {"value": 0, "shape": [1900000000]}, "y": {"value": 0, "shape": [2100000000]}"#,
        "$.nodes.y.value",
        "exceeds the limit",
    );
    check(r#""b/c": {"op": "Add", "attrs": 1}"#, "$.nodes[\"b/c\"].attrs", "an object of attributes");
    check(r#""a b": 1"#, "$.nodes[\"a b\"]", "must begin with a letter, a digit, '.' or '_'");
}

#[test]
fn faults_of_syntax_have_line_and_column() {
    let check = |text: &str, want: &str| assert_eq!(from_json(text).unwrap_err().to_string(), want);
    check(
        "{\n  \"version\": 1,\n}",
        "line 3, column 1: expected a key in double quotes after ',', found '}'; JSON has no comma after the last item",
    );
    check("{\"a\": 1, \"a\": 2}", "line 1, column 10: the key \"a\" is repeated here");
    let deep = format!("{{\"version\": 1, \"nodes\": {{\"x\": {}", "[".repeat(200_000));
    check(&deep, "line 1, column 157: lists and objects nest deeper than 128 levels");
}

#[test]
fn a_program_is_written_and_read_back() {
    let text = r#"{"version": 1, "nodes": {
        "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}, "device": "/job:ps"},
        "c": {"value": [], "dtype": "int64", "shape": [0, 3]}, "s": ["a", {"base64": "/w=="}], "t": "t",
        "f": {"value": [0.1, "Infinity"], "dtype": "float16"},
        "y": {"op": "MatMul", "inputs": ["x", [[0.1], [1e-30]]], "attrs": {"transpose_a": true, "_class": ["loc:@x"]},
              "control": ["c", "s"]}},
        "fetch": ["y", "x:0"], "feed": {"x": [[0.3, 1]]}, "targets": ["y"], "init": ["x", "s"]}"#;
    let program = read(text);
    assert_eq!(read(&to_json(&program)), program);
    assert!(crate::read(to_json(&program).as_bytes()).is_ok());
}

#[test]
fn a_constant_may_be_in_a_file_beside_the_graph() {
    let stored = |keys: &str| with_nodes(&format!("\"w\": {{{keys}}}"));
    let text = stored(r#""file": "w.npy", "dtype": "float32", "shape": [2], "device": "/job:ps", "control": ["w"]"#);
    let program = read(&text);
    assert_eq!(value(&program, "w"), Tensor::new([2], Data::F32(vec![1.0, 2.0])).unwrap());
    assert_eq!((&*program.nodes[0].device, &*program.nodes[0].inputs), ("/job:ps", &["^w".to_owned()][..]));
    // It is converted like a feed, and determines the dtype of literals used with it.
    let ints = value(&read(&stored(r#""file": "w.npy", "dtype": "int64", "shape": [2]"#)), "w");
    assert_eq!(ints, Tensor::new([2], Data::I64(vec![1, 2])).unwrap());
    let sum = r#""w": {"file": "w.npy", "dtype": "float32", "shape": [2]}, "y": {"op": "Add", "inputs": ["w", 1]}"#;
    assert_eq!(value(&read(&with_nodes(sum)), "y/y"), Tensor::scalar(1f32));

    let check = |text: String, want: &str| {
        let error = from_json(&text).map(|_| ()).expect_err(&text).to_string();
        assert!(error.starts_with("$.nodes.w") && error.contains("line 1") && error.contains(want), "{error}");
    };
    let of = |file: &str, dtype: &str, shape: &str| {
        stored(&format!(r#""file": "{file}", "dtype": "{dtype}", "shape": {shape}"#))
    };
    check(of("w.npy", "float32", "[1, 2]"), r#""w.npy" holds a tensor of shape [2], not [1,2]"#);
    check(of("w.npy", "bool", "[2]"), "expected bool, got float32");
    check(of("v.npy", "float32", "[2]"), "v.npy: not there");
    check(of("v.npy", "float32", "[2147483648]"), "exceeds the limit of 8000000000 bytes per tensor");
    check(stored(r#""file": "w.npy", "shape": [2]"#), "states its \"dtype\"");
    check(stored(r#""file": "w.npy", "dtype": "float32""#), "states its \"shape\"");
    check(stored(r#""file": "w.npy", "dtype": "float32", "shape": [2], "value": 1"#), "unknown key \"value\"");
    for outside in ["", "/w.npy", "../w.npy", "a/../w.npy", "./w.npy", "a//w.npy", "c:w.npy", "a\\\\w.npy"] {
        check(of(outside, "float32", "[2]"), "a file is named from the folder of the graph");
    }

    // A file that was written next to a graph is read from there.
    let mut program = read(&with_nodes(r#""big": [[1, 2], [3, 4]], "small": 5"#));
    let whole = program.clone();
    // The constants of a builder do not state their dtype.
    program.nodes[0].attrs.0.remove("dtype");
    let mut files = HashMap::new();
    let text = to_json_beside(&program, &mut |name, value| {
        let file = (value.len() > 1).then(|| format!("values/{name}.npy"))?;
        files.insert(file.clone(), npy::write(value).unwrap());
        Some(file)
    });
    assert!(text.contains(r#""file": "values/big.npy", "dtype": "int32", "shape": [2,2]"#), "{text}");
    assert!(text.contains(r#""small": { "value": 5"#), "{text}");
    let again = super::from_json(&text, &mut |file, _| files.get(file).cloned().ok_or_else(|| Failure::invalid(file)));
    assert_eq!(again.unwrap(), whole);
}

#[test]
fn the_three_forms_are_told_apart() {
    let native = r#" {"version": 1, "nodes": {"x": 2}}"#;
    let nodes = read(native).nodes;
    let forms = [
        native.as_bytes().to_vec(),
        format!("\u{feff}{native}").into_bytes(),
        crate::graphdef::to_json(&nodes).into_bytes(),
        crate::graphdef::to_binary(&nodes),
    ];
    for form in forms {
        assert_eq!(crate::read(&form).unwrap().nodes, nodes);
    }
    // A binary GraphDef that begins as JSON might: line feed, then a brace that is the length of its first node.
    let long = NodeDef { name: "x".repeat(115), op: "NoOp".into(), ..NodeDef::default() };
    let bytes = crate::graphdef::to_binary(std::slice::from_ref(&long));
    assert!(bytes.starts_with(b"\n{"), "{:?}", &bytes[..2]);
    assert_eq!(crate::read(&bytes).unwrap().nodes, [long]);

    let check = |bytes: &[u8], part: &str| {
        let error = crate::read(bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check(b"", "the file is empty");
    check(b" \n", "blank");
    check(b"node {\n  name: \"x\"\n}", "text format");
    check(b"import tensorflow", "begins with {");
    check(b"\x00\x01\x02", "neither graph.json nor GraphDef");
    check(b"{\"version\": 1, \"nodes\": {\"x\": \"\x01\"}}", "line 1, column 32: control character 0x01");
    check(b"{\"version\": 1, \"\xff\": 1}", "not UTF-8");
}

/// A document with every feature of the format.
const RICH: &str = r#"{"version": 1, "description": "d", "nodes": {
    "x": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 2]}, "device": "/job:ps"},
    "c": {"value": [], "dtype": "int64", "shape": [0, 3]}, "s": ["a", {"base64": "/w=="}],
    "y": {"op": "MatMul", "inputs": ["x:0", [[0.1], [1e-30]]], "attrs": {"transpose_a": true}, "control": ["c"]},
    "r": {"op": "Range", "inputs": [0, {"value": 3, "dtype": "int64"}, 1]},
    "m": {"op": "Merge", "inputs": ["y", "n"]}, "n": {"op": "NextIteration", "inputs": ["m"]}},
    "fetch": ["y"], "feed": {"x": [[0.3, 1]]}, "targets": ["y"]}"#;

fn any_tensor() -> impl Strategy<Value = Tensor> {
    use proptest::collection::vec;
    let strings = vec(vec(any::<u8>(), 0..4), 0..4);
    let data = prop_oneof![
        vec(any::<f32>(), 0..5).prop_map(Data::F32),
        vec(any::<f64>(), 0..5).prop_map(Data::F64),
        vec(any::<u16>(), 0..5).prop_map(|v| Data::F16(v.into_iter().map(half::f16::from_bits).collect())),
        vec(any::<u16>(), 0..5).prop_map(|v| Data::BF16(v.into_iter().map(half::bf16::from_bits).collect())),
        vec(any::<[f32; 2]>(), 0..5)
            .prop_map(|v| Data::C64(v.into_iter().map(|[re, im]| Complex { re, im }).collect())),
        vec(any::<[f64; 2]>(), 0..5)
            .prop_map(|v| Data::C128(v.into_iter().map(|[re, im]| Complex { re, im }).collect())),
        vec(any::<i64>(), 0..5).prop_map(Data::I64),
        vec(any::<u64>(), 0..5).prop_map(Data::U64),
        vec(any::<i8>(), 0..5).prop_map(Data::I8),
        vec(any::<bool>(), 0..5).prop_map(Data::Bool),
        strings.prop_map(Data::String),
    ];
    (data, 0usize..3).prop_map(|(data, lists)| {
        let mut dims = vec![1; lists];
        dims.push(data.len());
        Tensor::new(dims, data).unwrap()
    })
}

proptest! {
    #[test]
    fn constants_are_written_and_read_back(tensor in any_tensor()) {
        let program = Program { nodes: vec![NodeDef::constant("c".into(), String::new(), Attr::Tensor(tensor.clone()))], ..Program::default() };
        let back = value(&read(&to_json(&program)), "c");
        // NaN equals nothing, but has only one text.
        prop_assert_eq!((back.dtype(), back.shape(), back.to_string()), (tensor.dtype(), tensor.shape(), tensor.to_string()));
    }

    #[test]
    fn no_damaged_document_panics(
        at in any::<prop::sample::Index>(),
        with in prop_oneof![r#"[\[\]{}",:0-9.e-]{0,3}"#, Just("null".to_owned()), Just("\"x\"".to_owned())],
        gone in 0usize..12,
    ) {
        // The document is ASCII.
        let at = at.index(RICH.len());
        let text = format!("{}{with}{}", &RICH[..at], &RICH[(at + gone).min(RICH.len())..]);
        if let Ok(program) = from_json(&text) {
            let _ = Graph::new(program.nodes);
        }
    }
}

#[test]
fn variables_are_nodes_that_begin_with_a_value() {
    let program = read(
        r#"{"version": 1,
            "variables": {
              "w": {"shape": [3, 2], "initial": "glorot_uniform", "seed": 5, "device": "/job:ps/task:1"},
              "n": {"shape": [], "dtype": "int64", "initial": 7, "trainable": false},
              "u": {"shape": [2], "dtype": "float64", "initial": {"uniform": {"low": 2}}, "description": "text"}},
            "nodes": {"y": {"op": "Mul", "inputs": ["u", 2]}, "z": {"op": "AddV2", "inputs": [1, "n"]}},
            "fetch": ["y"]}"#,
    );
    assert_eq!(program.init, ["w/assign", "n/assign", "u/assign"]);
    // Literals take the dtypes of variables.
    assert_eq!(value(&program, "y/y"), Tensor::scalar(2f64));
    assert_eq!(value(&program, "z/x"), Tensor::scalar(1i64));
    let graph = Graph::new(program.nodes).unwrap();
    let node = |name: &str| graph.node(graph.find(name).unwrap_or_else(|| panic!("no {name}")));
    for (name, op, device) in [
        ("w", "ReadVariableOp", "/job:ps/task:1"),
        ("w/variable", "VarHandleOp", "/job:ps/task:1"),
        ("w/assign", "AssignVariableOp", "/job:ps/task:1"),
        ("n", "ReadVariableOp", ""),
    ] {
        assert_eq!((node(name).op.name, node(name).device.as_str()), (op, device), "{name}");
    }
    assert_eq!(node("w/variable").attrs.str("shared_name").unwrap(), "w");
    let own =
        read(r#"{"version": 1, "variables": {"w": {"shape": []}}, "nodes": {"i": {"op": "NoOp"}}, "init": ["i"]}"#);
    assert_eq!(own.init, ["i"]);
}

/// A distribution by its name alone has the numbers that it has unless others are stated.
#[test]
fn a_distribution_needs_no_numbers() {
    for name in ["uniform", "normal", "truncated_normal"] {
        let of = |initial: &str| {
            let text = format!(
                r#"{{"version": 1, "variables": {{"w": {{"shape": [2], "initial": {initial}}}}}, "nodes": {{"a": 1}}}}"#
            );
            format!("{:?}", read(&text).nodes)
        };
        assert_eq!(of(&format!("{name:?}")), of(&format!(r#"{{{name:?}: {{}}}}"#)), "{name}");
    }
}

#[test]
fn what_no_variable_is_says_where_and_what_would_be_right() {
    let check = |variables: &str, path: &str, part: &str| {
        let text = format!(r#"{{"version": 1, "variables": {variables}, "nodes": {{"a": 1, "w/assign": 2}}}}"#);
        let error = from_json(&text).map(|_| ()).expect_err(&text);
        let FormatError::Content { path: found, why, .. } = &error else { panic!("{error}: {text}") };
        assert_eq!(found, path, "{text}: {error}");
        assert!(why.contains(part), "{text}: {error}");
    };
    check("[]", "$.variables", "an object of variables");
    check(r#"{"v": 1}"#, "$.variables.v", "an object with a \"shape\"");
    check(r#"{"v": {}}"#, "$.variables.v", "that of one number is []");
    check(r#"{"-": {"shape": []}}"#, "$.variables[\"-\"]", "is not a node name");
    check(r#"{"v": {"shape": [], "initail": 1}}"#, "$.variables.v.initail", "did you mean \"initial\"?");
    check(r#"{"v": {"shape": [-1]}}"#, "$.variables.v.shape[0]", "whole number");
    check(r#"{"v": {"shape": [], "initial": "zeroes"}}"#, "$.variables.v.initial", "did you mean zeros?");
    check(
        r#"{"v": {"shape": [], "initial": {"normal": {"std": 1}}}}"#,
        "$.variables.v.initial.normal.std",
        "there are mean, stddev",
    );
    check(r#"{"v": {"shape": [], "initial": {"gauss": {}}}}"#, "$.variables.v.initial.gauss", "there are zeros");
    check(r#"{"v": {"shape": [], "initial": {"ones": {}}}}"#, "$.variables.v.initial.ones", "ones takes no numbers");
    check(r#"{"v": {"shape": [], "initial": {}}}"#, "$.variables.v.initial", "one key");
    check(r#"{"v": {"shape": [], "dtype": "int32", "initial": 1.5}}"#, "$.variables.v.initial", "1.5 is not an int32");
    check(r#"{"v": {"shape": [2], "initial": [1.0]}}"#, "$.variables.v", "its initial value has shape [1]");
    check(
        r#"{"v": {"shape": [], "dtype": "int32", "initial": "he_normal"}}"#,
        "$.variables.v",
        "no random initial values",
    );
    check(r#"{"v": {"shape": [], "trainable": 1}}"#, "$.variables.v.trainable", "true or false");
    check(r#"{"v": {"shape": [], "seed": 0.5}}"#, "$.variables.v.seed", "whole number");
    check(r#"{"v": {"shape": [], "device": "job:x"}}"#, "$.variables.v.device", "does not begin with /");
    check(r#"{"a": {"shape": []}}"#, "$.variables.a", "there is also a node a");
    check(r#"{"w": {"shape": []}}"#, "$.variables.w", "there is also a node w/assign");
}
