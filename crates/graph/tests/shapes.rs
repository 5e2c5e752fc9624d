//! Comparison of inferred shapes with TensorFlow's, on a graph with nodes of every op: `tests/data/shapes/shapes.json`,
//! recorded by `tests/tf/record.py`.

use std::collections::BTreeSet;

use meshtf_tensor::PartialShape;
use serde_json::{Value, json};

use meshtf_graph::{Graph, NodeDef, Output, op, read};

/// Ops about which less is known than TensorFlow infers: ops of windows and files that few programs use, an Einsum with `...`,
/// and cases where TensorFlow's inference is wrong (pieces along an unknown axis, counts, diagonals of unknown length, variants
/// of rows that are not ragged).
const LESS_KNOWN: &[&str] = &[
    "DebugNanCount",
    "DenseCountSparseOutput",
    "Dilation2D",
    "Einsum",
    "ExtractVolumePatches",
    "FractionalAvgPool",
    "FractionalMaxPool",
    "FusedPadConv2D",
    "FusedResizeAndPadConv2D",
    "GenerateVocabRemapping",
    "LoadAndRemapMatrix",
    "MatrixDiagV2",
    "MatrixDiagV3",
    "MaxPoolGradGradV2",
    "MaxPoolV2",
    "RaggedBincount",
    "RaggedCountSparseOutput",
    "RaggedTensorToVariant",
    "RandomIndexShuffle",
    "SerializeIterator",
    "SparseBincount",
    "SparseCountSparseOutput",
    "SplitV",
];

/// Ops without recorded nodes: TensorFlow makes no new nodes of them, or they hold functions.
const NOT_RECORDED: &[&str] = &[
    "AdjustContrast",
    "AudioSummary",
    "BatchFunction",
    "BatchNormWithGlobalNormalization",
    "BatchNormWithGlobalNormalizationGrad",
    "ChooseFastestBranchDataset",
    "CompareAndBitpack",
    "Conv3DBackpropFilter",
    "Conv3DBackpropInput",
    "FilterDataset",
    "FixedLengthRecordReader",
    "FlatMapDataset",
    "GroupByReducerDataset",
    "GroupByWindowDataset",
    "IdentityReader",
    "InterleaveDataset",
    "LegacyParallelInterleaveDatasetV2",
    "MapAndBatchDataset",
    "MapDataset",
    "MapDefun",
    "MatrixExponential",
    "OneShotIterator",
    "ParallelFilterDataset",
    "ParallelInterleaveDataset",
    "ParallelInterleaveDatasetV2",
    "ParallelInterleaveDatasetV3",
    "ParallelInterleaveDatasetV4",
    "ParallelMapDataset",
    "ParallelMapDatasetV2",
    "QuantizeAndDequantize",
    "RandomCrop",
    "ReduceDataset",
    "ScanDataset",
    "SelfAdjointEig",
    "StatefulStandardNormal",
    "TFRecordReader",
    "TakeWhileDataset",
    "TensorArray",
    "TensorArrayGrad",
    "TensorArrayGradV2",
    "TensorArrayPack",
    "TensorArrayUnpack",
    "TensorArrayV2",
    "TextLineReader",
    "TopK",
];

fn recorded() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/shapes/shapes.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn definitions(cases: &[Value]) -> Vec<NodeDef> {
    let nodes: Vec<&Value> = cases.iter().map(|case| &case["node"]).collect();
    let graph = json!({ "node": nodes, "versions": { "producer": 1087 } });
    read(graph.to_string().as_bytes()).unwrap().nodes
}

fn shape(value: &Value) -> PartialShape {
    let size = |size: &Value| size.as_u64().map(|size| size as usize);
    PartialShape(value.as_array().map(|dims| dims.iter().map(size).collect()))
}

/// Whether `more` implies every fact in `less`.
fn says_no_more(less: &PartialShape, more: &PartialShape) -> bool {
    match (&less.0, &more.0) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(less), Some(more)) => {
            less.len() == more.len() && less.iter().zip(more).all(|(less, more)| less.is_none() || less == more)
        }
    }
}

#[test]
fn shapes_are_as_tensorflow_infers_them() {
    let cases = recorded();
    let graph = Graph::new(definitions(&cases)).unwrap();
    assert!(!graph.has_refused());
    // TensorFlow took them all.
    graph.check_shapes().unwrap();
    let mut wrong = Vec::new();
    for (case, (id, node)) in cases.iter().zip(graph.nodes()) {
        for (port, wanted) in (0..).zip(case["shapes"].as_array().unwrap()) {
            let wanted = shape(wanted);
            let got = graph.shapes().of(Output { node: id, port });
            // TensorFlow's Python client infers a loop before it has its back edges.
            let is_less_known = LESS_KNOWN.contains(&node.op.name) || node.name.starts_with("while/");
            let is_right = got == wanted || (is_less_known && says_no_more(&got, &wanted));
            if !is_right {
                let claims = if says_no_more(&got, &wanted) { "says less" } else { "CLAIMS" };
                let input = |&input: &Output| format!("{}", graph.shapes().of(input));
                let inputs: Vec<String> = node.inputs.iter().map(input).collect();
                wrong.push(format!(
                    "{} {}:{port}({}) {claims} {got}, not {wanted}",
                    node.op.name,
                    node.name,
                    inputs.join(" ")
                ));
            }
        }
    }
    let ops: BTreeSet<&str> = wrong.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(wrong.is_empty(), "{} of {} nodes, of {ops:?}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Every op whose outputs can have a known shape is among the recorded nodes; for an older op, the newer form.
#[test]
fn every_shape_rule_is_recorded() {
    let cases = recorded();
    let recorded: BTreeSet<&str> = cases.iter().filter_map(|case| case["node"]["op"].as_str()).collect();
    let missing = op::all().into_iter().filter(|op| {
        let own = op.runs_as();
        let is_alias = !std::ptr::eq(own, *op) && own.shape == op.shape;
        !is_alias && op.shape.name() != "none" && !recorded.contains(op.name)
    });
    let missing: Vec<&str> = missing.map(|op| op.name).collect();
    assert_eq!(missing, NOT_RECORDED);
}

/// The certain shapes state no more than TensorFlow infers.
#[test]
fn what_is_certain_is_known_to_tensorflow() {
    let cases = recorded();
    let graph = Graph::new(definitions(&cases)).unwrap();
    for (case, (id, node)) in cases.iter().zip(graph.nodes()) {
        for (port, wanted) in (0..).zip(case["shapes"].as_array().unwrap()) {
            let got = graph.certain_shapes().of(Output { node: id, port });
            assert!(says_no_more(&got, &shape(wanted)), "{} {}:{port}: {got}", node.op.name, node.name);
        }
    }
}

/// A graph that is extended infers the same shapes as one that is made at once.
#[test]
fn shapes_are_inferred_as_a_graph_grows() {
    let definitions = definitions(&recorded());
    let whole = Graph::new(definitions.clone()).unwrap();
    let mut grown = Graph::default();
    let mut pending = Vec::new();
    for part in definitions.chunks(100) {
        let _ = (grown.shapes(), grown.certain_shapes());
        pending.extend_from_slice(part);
        // Loops cannot be cut; an addition that fails leaves nothing behind.
        if grown.extend(pending.clone()).is_ok() {
            pending.clear();
        }
    }
    assert!(pending.is_empty());
    for (id, node) in whole.nodes() {
        for port in 0..node.outputs.len() as u32 {
            let output = Output { node: id, port };
            assert_eq!(grown.shapes().of(output), whole.shapes().of(output), "{}", node.name);
            assert_eq!(grown.certain_shapes().of(output), whole.certain_shapes().of(output), "{}", node.name);
        }
    }
}

/// TensorFlow 2.21 refuses each of these nodes when it is added to a graph.
#[test]
fn shapes_that_contradict_each_other_are_found_without_running() {
    let placeholder = |name: &str, shape: &str| {
        format!(r#""{name}": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {shape}}}}}"#)
    };
    for (a, b, node, why) in [
        (
            "[null, 4]",
            "[5, 16]",
            r#""op": "MatMul", "inputs": ["a", "b"]"#,
            "a is [?,4], b is [5,16]: the inner sizes 4 and 5 differ",
        ),
        ("[3, 4]", "[3]", r#""op": "MatMul", "inputs": ["a", "b"]"#, "b is [3]: both have to be matrices"),
        ("[2, 3, 4]", "[2, 5, 6]", r#""op": "BatchMatMulV2", "inputs": ["a", "b"]"#, "the inner sizes 4 and 5 differ"),
        (
            "[2, 3, 4]",
            "[3, 4, 6]",
            r#""op": "BatchMatMulV2", "inputs": ["a", "b"]"#,
            "the axes before the matrices do not broadcast",
        ),
        ("[null, 3]", "[4]", r#""op": "AddV2", "inputs": ["a", "b"]"#, "they do not broadcast to one shape"),
        ("[null, 3]", "[4]", r#""op": "BiasAdd", "inputs": ["a", "b"]"#, "the numbers of channels 3 and 4 differ"),
        ("[2, 3]", "[3, 2]", r#""op": "AddN", "inputs": ["a", "b"]"#, "their shapes differ"),
        ("[2, 3]", "[2, 4]", r#""op": "Pack", "inputs": ["a", "b"]"#, "their shapes differ"),
        ("[2, 3]", "[2, 3, 1]", r#""op": "ConcatV2", "inputs": ["a", "b", 1]"#, "they have different ranks"),
        ("[2, 3]", "[4, 3]", r#""op": "ConcatV2", "inputs": ["a", "b", 1]"#, "they differ in another axis than 1"),
        ("[2, 3]", "[1]", r#""op": "Reshape", "inputs": ["a", [4, 2]]"#, "6 elements do not take the shape [4, 2]"),
        ("[2, 3]", "[1]", r#""op": "Reshape", "inputs": ["a", [4, -1]]"#, "6 elements do not take the shape [4, -1]"),
        ("[2, 3]", "[1]", r#""op": "Mean", "inputs": ["a", 2]"#, "2 is not an axis of a tensor of rank 2"),
        (
            "[2, 3]",
            "[1]",
            r#""op": "Transpose", "inputs": ["a", [0, 2, 1]]"#,
            "a tensor of rank 2 has no order of 3 axes",
        ),
        ("[2, 3]", "[1]", r#""op": "ExpandDims", "inputs": ["a", 3]"#, "3 is not an axis of a tensor of rank 3"),
        (
            "[null, 8, 8, 3]",
            "[3, 3, 4, 8]",
            r#""op": "Conv2D", "inputs": ["a", "b"], "attrs": {"strides": [1, 1, 1, 1], "padding": "SAME"}"#,
            "the image has 3 channels, and the filter takes 4",
        ),
        (
            "[7, 3]",
            "[7, 4]",
            r#""op": "SoftmaxCrossEntropyWithLogits", "inputs": ["a", "b"]"#,
            "logits and labels do not broadcast",
        ),
    ] {
        let text = format!(
            r#"{{"version": 1, "nodes": {{{}, {}, "n": {{{node}}}}}}}"#,
            placeholder("a", a),
            placeholder("b", b)
        );
        let graph = Graph::new(meshtf_graph::read(text.as_bytes()).unwrap().nodes).unwrap();
        let error = graph.check_shapes().expect_err(node).to_string();
        assert!(error.starts_with("node n (") && error.contains(why), "{error}");
    }
}
