//! Files that lie, contradict themselves, or ask for more than there is: each is refused with the place and the reason, and none
//! ends the process.

use meshtf_onnx::proto::{
    AttributeProto, Dimension, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorType, TypeProto, TypeValue, ValueInfoProto,
};
use meshtf_tensor::failure::Failure;
use prost::Message as _;

use super::recorded;

fn info(name: &str) -> ValueInfoProto {
    let ty = TensorType { elem_type: 1, shape: Some(TensorShapeProto::default()) };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(ty)) }) }
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: op.to_owned(), input: names(inputs), output: names(&[output]), ..NodeProto::default() }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.to_owned(), version }
}

/// A model of these nodes from x to y.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto { node: nodes, input: vec![info("x")], output: vec![info("y")], ..GraphProto::default() };
    ModelProto { ir_version: 10, graph: Some(graph), opset_import: vec![opset("", 21)], ..ModelProto::default() }
}

fn refusal(bytes: &[u8]) -> String {
    let mut beside = |file: &str, _| Err(Failure::invalid(format!("{file} was opened")));
    match meshtf_onnx::read(bytes, &mut beside) {
        Ok(_) => panic!("it was read"),
        Err(error) => error.to_string(),
    }
}

fn refused(model: &ModelProto, parts: &[&str]) {
    let why = refusal(&model.encode_to_vec());
    assert!(parts.iter().all(|part| why.contains(part)), "{why}\nlacks one of {parts:?}");
}

/// The model of one constant.
fn constant(tensor: TensorProto) -> ModelProto {
    let mut made = model(vec![node("Identity", &["w"], "y")]);
    made.graph.as_mut().unwrap().initializer = vec![TensorProto { name: "w".to_owned(), data_type: 1, ..tensor }];
    made
}

#[test]
fn sizes_that_lie_are_refused() {
    let four = Some(vec![0u8; 4].into());
    refused(
        &constant(TensorProto { dims: vec![1 << 40], raw_data: four.clone(), ..TensorProto::default() }),
        &["node w", "limit"],
    );
    refused(
        &constant(TensorProto { dims: vec![2], raw_data: four.clone(), ..TensorProto::default() }),
        &["node w", "8 bytes", "4"],
    );
    refused(
        &constant(TensorProto { dims: vec![-1], raw_data: four, ..TensorProto::default() }),
        &["node w", "negative"],
    );
    refused(
        &constant(TensorProto { dims: vec![3], float_data: vec![1.0], ..TensorProto::default() }),
        &["node w", "1 element"],
    );
}

/// Begin and end of a slice whose steps a step computes have a number for every axis, so that their number must be known.
#[test]
fn a_slice_of_an_open_rank_with_computed_steps_is_refused_when_it_is_read() {
    let longs = |name: &str, number: i64| TensorProto {
        name: name.to_owned(),
        data_type: 7,
        dims: vec![1],
        int64_data: vec![number],
        ..TensorProto::default()
    };
    let open = |name: &str, elem_type: i32, rank: usize| {
        let dim = vec![Dimension { value: None }; rank];
        let ty = TensorType { elem_type, shape: Some(TensorShapeProto { dim }) };
        ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(ty)) }) }
    };
    let mut made =
        model(vec![node("Squeeze", &["x"], "s"), node("Slice", &["s", "first", "last", "first", "steps"], "y")]);
    let graph = made.graph.as_mut().unwrap();
    graph.input = vec![open("x", 1, 3), open("steps", 7, 1)];
    graph.output = vec![open("y", 1, 1)];
    graph.initializer = vec![longs("first", 0), longs("last", 2)];
    refused(&made, &["Slice", "the rank of", "is not known"]);
}

/// A machine of two classes with a vector each, of which one attribute is another.
#[test]
fn support_vectors_that_contradict_their_numbers_are_refused() {
    let floats = |name: &str, all: &[f32]| AttributeProto {
        name: name.to_owned(),
        floats: all.to_vec(),
        r#type: 6,
        ..AttributeProto::default()
    };
    let ints = |name: &str, all: &[i64]| AttributeProto {
        name: name.to_owned(),
        ints: all.to_vec(),
        r#type: 7,
        ..AttributeProto::default()
    };
    let text = |name: &str, text: &str| AttributeProto {
        name: name.to_owned(),
        s: Some(text.as_bytes().to_vec().into()),
        r#type: 3,
        ..AttributeProto::default()
    };
    let machine = |other: Option<AttributeProto>| {
        let mut made = node("SVMClassifier", &["x"], "label");
        made.domain = "ai.onnx.ml".to_owned();
        made.output.push("y".to_owned());
        made.attribute = vec![
            ints("vectors_per_class", &[1, 1]),
            ints("classlabels_ints", &[3, 5]),
            floats("support_vectors", &[1.0, 2.0, 3.0, 4.0]),
            floats("coefficients", &[1.0, -1.0]),
            floats("rho", &[0.5]),
            text("kernel_type", "RBF"),
            floats("kernel_params", &[0.5, 0.0, 0.0]),
        ];
        if let Some(other) = other {
            made.attribute.retain(|own| own.name != other.name);
            made.attribute.push(other);
        }
        let mut all = model(vec![made]);
        all.opset_import.push(opset("ai.onnx.ml", 3));
        let graph = all.graph.as_mut().unwrap();
        let dim = vec![Dimension { value: None }; 2];
        let ty = TensorType { elem_type: 1, shape: Some(TensorShapeProto { dim }) };
        graph.input[0].r#type = Some(TypeProto { value: Some(TypeValue::Tensor(ty)) });
        all
    };
    let read = |made: &ModelProto| meshtf_onnx::read(&made.encode_to_vec(), &mut |_, _| Ok(Vec::new()));
    assert!(read(&machine(None)).is_ok());
    for (other, why) in [
        (ints("vectors_per_class", &[1, -1]), "vectors_per_class is negative"),
        (ints("vectors_per_class", &[i64::MAX; 3]), "vectors_per_class are too many"),
        (ints("vectors_per_class", &[i64::MAX, 1]), "for 9223372036854775808 vectors"),
        (ints("vectors_per_class", &[1, 1, 1]), "3 vectors_per_class for 2 classes"),
        (ints("vectors_per_class", &[1, 2]), "4 numbers of support_vectors for 3 vectors"),
        (ints("classlabels_ints", &[3]), "a single class"),
        (ints("classlabels_ints", &vec![7; 1 << 20]), "2 vectors_per_class for 1048576 classes"),
        (floats("support_vectors", &[]), "0 numbers of support_vectors"),
        (floats("coefficients", &[1.0]), "1 coefficients, and needs 2"),
        (floats("rho", &[]), "0 rho, and needs 1"),
        (floats("prob_a", &[1.0]), "0 prob_b, and needs 1"),
        (floats("kernel_params", &[1.0, 2.0]), "2 kernel_params, and not 3"),
        (text("kernel_type", "LAPLACE"), "\"LAPLACE\" is no kernel_type"),
        (text("post_transform", "LAPLACE"), "\"LAPLACE\" is no post_transform"),
    ] {
        refused(&machine(Some(other)), &["SVMClassifier", why]);
    }
}

#[test]
fn files_outside_of_the_folder_are_not_opened() {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.to_owned(), value: value.to_owned() };
    let external = |location: &str| {
        let external_data = vec![entry("location", location), entry("offset", "0"), entry("length", "4")];
        constant(TensorProto { dims: vec![1], data_location: 1, external_data, ..TensorProto::default() })
    };
    for location in ["../w.bin", "/etc/passwd", "a/../../w.bin", "a\\w.bin", "c:w.bin"] {
        refused(&external(location), &["node w", &format!("{location:?}"), "in the model's folder"]);
    }
    refused(&external("a/w.bin"), &["a/w.bin was opened"]);
    // Bytes beyond the end of the file.
    let bytes = external("w.bin").encode_to_vec();
    let why = meshtf_onnx::read(&bytes, &mut |_, _| Ok(vec![0; 3])).unwrap_err().to_string();
    assert!(why.contains("w.bin") && why.contains('4') && why.contains('3'), "{why}");
}

#[test]
fn graphs_that_lead_back_are_refused() {
    refused(
        &model(vec![node("Add", &["x", "b"], "a"), node("Neg", &["a"], "b"), node("Neg", &["b"], "y")]),
        &["node a", "\"b\""],
    );
    let call = |name: &str| NodeProto { domain: "own".to_owned(), ..node(name, &["x"], "y") };
    let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
        name: name.to_owned(),
        domain: "own".to_owned(),
        input: vec!["x".to_owned()],
        output: vec!["y".to_owned()],
        node: nodes,
        ..FunctionProto::default()
    };
    // A function that calls itself.
    let mut made = model(vec![call("f")]);
    made.opset_import.push(opset("own", 1));
    made.functions = vec![function("f", vec![call("f")])];
    refused(&made, &["nested more than"]);
    // Functions that call each other ten times each: a number of nodes with 18 digits.
    made.functions = (0..18)
        .map(|i| {
            let inner: Vec<NodeProto> = (0..10)
                .map(|j| {
                    let (from, to) = (format!("v{j}"), if j == 9 { "y".to_owned() } else { format!("v{}", j + 1) });
                    let from = if j == 0 { "x".to_owned() } else { from };
                    let op = if i == 0 { "Dropout".to_owned() } else { format!("f{}", i - 1) };
                    let domain = if i == 0 { String::new() } else { "own".to_owned() };
                    NodeProto { domain, ..node(&op, &[&from], &to) }
                })
                .collect();
            function(&format!("f{i}"), inner)
        })
        .collect();
    made.graph.as_mut().unwrap().node = vec![call("f17")];
    refused(&made, &["more than", "nodes"]);
}

/// A tree of these nodes, of which all but the last are branches: the next node if the comparison holds, and if not.
fn tree(next: &[[i64; 2]]) -> ModelProto {
    let count = next.len() + 1;
    let ints = |name: &str, ints: Vec<i64>| AttributeProto { name: name.to_owned(), ints, ..AttributeProto::default() };
    let floats =
        |name: &str, floats: Vec<f32>| AttributeProto { name: name.to_owned(), floats, ..AttributeProto::default() };
    let side = |side: usize| next.iter().map(|next| next[side]).chain([0]).collect();
    let modes = (0..count).map(|i| if i + 1 == count { "LEAF" } else { "BRANCH_LEQ" }.into()).collect();
    let mut tree = node("TreeEnsembleRegressor", &["x"], "y");
    tree.domain = "ai.onnx.ml".to_owned();
    tree.attribute = vec![
        ints("nodes_treeids", vec![0; count]),
        ints("nodes_nodeids", (0..count as i64).collect()),
        ints("nodes_featureids", vec![0; count]),
        ints("nodes_truenodeids", side(0)),
        ints("nodes_falsenodeids", side(1)),
        floats("nodes_values", vec![0.0; count]),
        AttributeProto { name: "nodes_modes".to_owned(), strings: modes, ..AttributeProto::default() },
        ints("target_ids", vec![0]),
        ints("target_treeids", vec![0]),
        ints("target_nodeids", vec![count as i64 - 1]),
        floats("target_weights", vec![1.0]),
    ];
    let mut made = model(vec![tree]);
    made.opset_import.push(opset("ai.onnx.ml", 3));
    let graph = made.graph.as_mut().unwrap();
    let Some(TypeValue::Tensor(ty)) = graph.input[0].r#type.as_mut().and_then(|ty| ty.value.as_mut()) else {
        unreachable!()
    };
    ty.shape = Some(TensorShapeProto { dim: vec![Dimension::default(); 2] });
    made
}

#[test]
fn trees_that_are_none_are_refused() {
    let leaf = 3;
    let read = tree(&[[1, 2], [leaf, leaf], [leaf, leaf]]).encode_to_vec();
    assert!(meshtf_onnx::read(&read, &mut |_, _| unreachable!()).is_ok());
    refused(&tree(&[[1, leaf], [2, leaf], [1, leaf]]), &["TreeEnsembleRegressor", "below two others"]);
    refused(&tree(&[[1, 2], [0, leaf], [leaf, leaf]]), &["it has no tree"]);
    refused(&tree(&[[1, 7]]), &["tree 0 has no node 7"]);
    let deep: Vec<[i64; 2]> = (0..100_000).map(|i| [i + 1, 100_000]).collect();
    refused(&tree(&deep), &["a tree of more than 1024 levels"]);
    let without = |name: &str| {
        let mut own = tree(&[[1, 1]]);
        own.graph.as_mut().unwrap().node[0].attribute.retain(|attr| attr.name != name);
        own
    };
    refused(&without("nodes_values"), &["0 values for 2 nodes"]);
    refused(&without("target_nodeids"), &["target_nodeids has 0 numbers"]);
    let mut targets = tree(&[[1, 1]]);
    let count = AttributeProto { name: "n_targets".to_owned(), i: Some(1 << 60), ..AttributeProto::default() };
    targets.graph.as_mut().unwrap().node[0].attribute.push(count);
    refused(&targets, &["2 leaves of 1152921504606846976 targets"]);
}

#[test]
fn files_of_nothing_but_messages_are_refused() {
    // Two bytes for each of eight million nodes, within the graph.
    let nodes = [0x0a, 0x00].repeat(8 << 20);
    let mut bytes = vec![0x08, 10, 0x3a];
    let mut length = nodes.len();
    while length > 127 {
        bytes.push((length & 127) as u8 | 128);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(nodes);
    assert!(meshtf_onnx::is_model(&bytes));
    assert!(refusal(&bytes).contains("messages"), "{}", refusal(&bytes));
    // Branches within branches.
    let mut graph =
        GraphProto { output: vec![info("y")], node: vec![node("Neg", &["x"], "y")], ..GraphProto::default() };
    for _ in 0..60 {
        let branch = |name: &str| AttributeProto {
            name: name.to_owned(),
            g: Some(Box::new(graph.clone())),
            r#type: 5,
            ..AttributeProto::default()
        };
        let mut inner = node("If", &["x"], "y");
        inner.attribute = vec![branch("then_branch")];
        graph = GraphProto { output: vec![info("y")], node: vec![inner], ..GraphProto::default() };
    }
    let mut made = model(Vec::new());
    made.graph.as_mut().unwrap().node = graph.node;
    refused(&made, &["nested more than"]);
}

#[test]
fn what_is_not_supported_is_named() {
    refused(
        &model(vec![node("Frobnicate", &["x"], "y")]),
        &["node y", "unsupported ONNX operator: Frobnicate of ai.onnx, opset 21"],
    );
    let mut made = model(vec![node("Neg", &["x"], "y")]);
    made.opset_import = vec![opset("", 99)];
    refused(&made, &["opset 99"]);
    made.opset_import.clear();
    refused(&made, &["does not state which version"]);
    refused(&model(vec![node("Neg", &[], "y")]), &["node y", "Neg", "input 0 is missing"]);
    let mut axis = node("Softmax", &["x"], "y");
    axis.attribute =
        vec![AttributeProto { name: "axis".to_owned(), i: Some(7), r#type: 2, ..AttributeProto::default() }];
    refused(&constant_vector(axis), &["Softmax", "axis 7"]);
    for (attributes, why) in [
        (&[("tokenexp", "a|ab")][..], "unsupported: the longest of several matches of the pattern \"a|ab\""),
        (&[("separators", "a+?")], "unsupported: the longest of several matches"),
        (&[("separators", ","), ("tokenexp", "a")], "both separators and tokenexp"),
        (&[], "neither separators nor tokenexp"),
    ] {
        let text = |&(name, text): &(&str, &str)| AttributeProto {
            name: name.to_owned(),
            s: (name == "tokenexp").then(|| text.as_bytes().to_vec().into()),
            strings: if name == "tokenexp" { Vec::new() } else { vec![text.as_bytes().to_vec().into()] },
            r#type: if name == "tokenexp" { 3 } else { 8 },
            ..AttributeProto::default()
        };
        let mut tokenizer = node("Tokenizer", &["x"], "y");
        tokenizer.domain = "com.microsoft".to_owned();
        tokenizer.attribute = attributes.iter().map(text).collect();
        let mut made = constant_vector(tokenizer);
        made.opset_import.push(opset("com.microsoft", 1));
        let input = &mut made.graph.as_mut().unwrap().input[0].r#type;
        let Some(TypeProto { value: Some(TypeValue::Tensor(ty)) }) = input else { panic!("no tensor") };
        ty.elem_type = 8;
        refused(&made, &["Tokenizer", why]);
    }
}

/// A model of one node on a vector.
fn constant_vector(node: NodeProto) -> ModelProto {
    let mut made = model(vec![node]);
    let shape = TensorShapeProto { dim: vec![Default::default()] };
    let ty = TensorType { elem_type: 1, shape: Some(shape) };
    made.graph.as_mut().unwrap().input[0].r#type = Some(TypeProto { value: Some(TypeValue::Tensor(ty)) });
    made
}

#[test]
fn damaged_files_are_refused_or_read_and_never_panic() {
    let mut count = 0;
    let mut read = 0;
    let all = ["cases.pb", "contrib.pb", "classical.pb"].into_iter().flat_map(recorded::cases);
    for (number, case) in all.enumerate() {
        // Cut off.
        for length in (0..case.model.len()).step_by(case.model.len() / 4 + 1) {
            let mut beside = |file: &str, _| Err(Failure::invalid(format!("{file} was opened")));
            let _ = meshtf_onnx::read(&case.model[..length], &mut beside);
        }
        // One byte changed: at places, and to values, that follow from the number of the case.
        for change in 0..24usize {
            let mut bytes = case.model.clone();
            let at = (number * 31 + change * 97) % bytes.len();
            bytes[at] = match change % 4 {
                0 => bytes[at].wrapping_add(1),
                1 => bytes[at] ^ 0x80,
                2 => 0,
                _ => (number * 7 + change) as u8,
            };
            let mut beside = |file: &str, _| Err(Failure::invalid(format!("{file} was opened")));
            count += 1;
            read += usize::from(meshtf_onnx::read(&bytes, &mut beside).is_ok());
        }
    }
    assert!(count > 10_000 && read > 1_000, "{read} of {count} were read");
}
