//! Comparison of inferred shapes with TensorFlow's, on a graph with nodes of every op: `tests/data/shapes/shapes.json`,
//! recorded by `tests/tf/record.py`.

use std::collections::BTreeSet;

use meshtf_tensor::PartialShape;
use serde_json::{Value, json};

use meshtf_graph::{Graph, NodeDef, Output, op, read};

/// Ops about which less is known than TensorFlow infers: ops of windows and files that few programs use, an Einsum with `...`,
/// and cases where TensorFlow's inference is wrong (pieces along an unknown axis, counts, diagonals of unknown length, variants
/// of rows that are not ragged, the range of a single slice).
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
    "QuantizeV2",
    "RaggedBincount",
    "RaggedCountSparseOutput",
    "RaggedTensorToVariant",
    "RandomIndexShuffle",
    "SerializeIterator",
    "SparseBincount",
    "SparseCountSparseOutput",
    "SplitV",
    "UniformQuantizedConvolution",
    "UniformQuantizedConvolutionHybrid",
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
    "EagerPyFunc",
    "FilterDataset",
    "FixedLengthRecordReader",
    "FlatMapDataset",
    "GeneratorDataset",
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
    "PyFunc",
    "PyFuncStateless",
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

/// The error for a node `n` that takes placeholders `a` and `b` of these shapes.
fn refused(a: &str, b: &str, node: &str) -> String {
    let placeholder = |name: &str, shape: &str| {
        format!(r#""{name}": {{"op": "Placeholder", "attrs": {{"dtype": "float32", "shape": {shape}}}}}"#)
    };
    let text =
        format!(r#"{{"version": 1, "nodes": {{{}, {}, "n": {{{node}}}}}}}"#, placeholder("a", a), placeholder("b", b));
    let graph = Graph::new(meshtf_graph::read(text.as_bytes()).unwrap().nodes).unwrap();
    graph.check_shapes().expect_err(node).to_string()
}

/// TensorFlow 2.21 refuses each of these nodes when it is added to a graph.
#[test]
fn shapes_that_contradict_each_other_are_found_without_running() {
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
        let error = refused(a, b, node);
        assert!(error.starts_with("node n (") && error.contains(why), "{error}");
    }
}

/// TensorFlow 2.21 refuses each of these nodes when it is added to a graph, and the slices beyond the end when they run.
#[test]
fn windows_slices_and_pieces_that_do_not_fit_are_found_without_running() {
    let window = |op: &str, more: &str| {
        let b = if op.starts_with("Conv") || op.starts_with("Depth") { r#", "b""# } else { "" };
        format!(r#""op": "{op}", "inputs": ["a"{b}], "attrs": {{{more}}}"#)
    };
    let plain = r#""strides": [1, 1, 1, 1], "padding": "VALID""#;
    for (a, b, node, why) in [
        (
            "[null, 8, 8, 1]",
            "[9, 9, 1, 4]",
            window("Conv2D", plain),
            "a is [?,8,8,1], b is [9,9,1,4]: the window spans 9 elements along axis 1, and the image has 8",
        ),
        (
            "[null, 10, 8, 1]",
            "[5, 5, 1, 4]",
            window("Conv2D", r#""strides": [1, 1, 1, 1], "padding": "VALID", "dilations": [1, 2, 2, 1]"#),
            "the window spans 9 elements along axis 2, and the image has 8",
        ),
        (
            "[2, 1, 4, 8]",
            "[7, 1, 1, 4]",
            window(
                "Conv2D",
                r#""strides": [1, 1, 1, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 0, 0, 1, 1, 0, 0],
                "data_format": "NCHW""#,
            ),
            "the window spans 7 elements along axis 2, and the image with its padding has 6",
        ),
        ("[2, 8, 8, 1]", "[9, 1, 1, 4]", window("DepthwiseConv2dNative", plain), "the window spans 9 elements"),
        (
            "[2, 8, 8, 1]",
            "[1]",
            window("MaxPool", r#""ksize": [1, 12, 12, 1], "strides": [1, 12, 12, 1], "padding": "VALID""#),
            "a is [2,8,8,1]: the window spans 12 elements along axis 1, and the image has 8",
        ),
        (
            "[2, 8, 8, 1]",
            "[1]",
            window("AvgPool", r#""ksize": [1, 1, 9, 1], "strides": [1, 1, 1, 1], "padding": "VALID""#),
            "the window spans 9 elements along axis 2",
        ),
        (
            "[2, 8, 8]",
            "[1]",
            window("MaxPool", r#""ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME""#),
            "input 0 (input) has rank 3, not 4",
        ),
    ] {
        let error = refused(a, b, &node);
        assert!(error.starts_with("node n (") && error.contains(why), "{error}");
    }
    for (a, b, node, why) in [
        (
            "[2, 3, 4]",
            "[2]",
            r#""op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["a", [0, 1]]"#,
            "input 0 (features) has rank 3, not 2",
        ),
        (
            "[4, 5]",
            "[1]",
            r#""op": "Slice", "inputs": ["a", [2, 0], [3, 2]]"#,
            "the slice takes 3 elements from 2 on along axis 0, which has 4",
        ),
        ("[4, 5]", "[1]", r#""op": "Slice", "inputs": ["a", [5, 0], [-1, 2]]"#, "begins at 5 along axis 0"),
        ("[4, 5]", "[1]", r#""op": "Slice", "inputs": ["a", [1], [1]]"#, "of rank 2 is sliced along 1 axes"),
        (
            "[4]",
            "[1]",
            r#""op": "StridedSlice", "inputs": ["a", [5], [6], [1]], "attrs": {"shrink_axis_mask": 1}"#,
            "5 is no index of 4 elements",
        ),
        (
            "[4]",
            "[1]",
            r#""op": "StridedSlice", "inputs": ["a", [0, 0], [1, 1], [1, 1]]"#,
            "a tensor of rank 1 is sliced along 2 axes",
        ),
        ("[4, 5]", "[1]", r#""op": "ArgMax", "inputs": ["a", 2]"#, "2 is not an axis of a tensor of rank 2"),
        (
            "[5, 2]",
            "[1]",
            r#""op": "Split", "inputs": [0, "a"], "attrs": {"num_split": 2}"#,
            "5 elements along axis 0 do not divide into 2 equal parts",
        ),
        ("[5, 2]", "[1]", r#""op": "Split", "inputs": [2, "a"], "attrs": {"num_split": 2}"#, "2 is not an axis"),
        (
            "[5, 2]",
            "[1]",
            r#""op": "SplitV", "inputs": ["a", [2, 2], 0], "attrs": {"num_split": 2}"#,
            "pieces of [2, 2] do not add up to the 5 elements along axis 0",
        ),
        (
            "[3]",
            "[1]",
            r#""op": "Unpack", "inputs": ["a"], "attrs": {"num": 2}"#,
            "3 elements along axis 0 do not give 2 outputs",
        ),
        (
            "[3, 1]",
            "[1]",
            r#""op": "Squeeze", "inputs": ["a"], "attrs": {"squeeze_dims": [0]}"#,
            "axis 0 has size 3, and only an axis of size 1 is removed",
        ),
        ("[3, 1]", "[1]", r#""op": "Tile", "inputs": ["a", [2]]"#, "of rank 2 is repeated along 1 axes"),
        ("[3, 1]", "[1]", r#""op": "Pad", "inputs": ["a", [[1, 1]]]"#, "of rank 2 has paddings for 1 axes"),
        ("[3, 1]", "[1]", r#""op": "Pad", "inputs": ["a", [[1, 1], [-1, 0]]]"#, "a padding of -1 is negative"),
        ("[3, 2]", "[1]", r#""op": "BroadcastTo", "inputs": ["a", [3, 4]]"#, "it does not broadcast to that shape"),
        (
            "[2, 3]",
            "[4, 5]",
            r#""op": "Einsum", "inputs": ["a", "b"], "attrs": {"equation": "ij,jk->ik"}"#,
            "for the label j, the sizes 3 and 4 differ",
        ),
        (
            "[2, 3, 1]",
            "[3, 5]",
            r#""op": "Einsum", "inputs": ["a", "b"], "attrs": {"equation": "ij,jk->ik"}"#,
            "input 0 has rank 3, and 2 labels, ij",
        ),
        ("[]", "[1]", r#""op": "Softmax", "inputs": ["a"]"#, "a scalar has no last axis"),
        ("[]", "[1]", r#""op": "LogSoftmax", "inputs": ["a"]"#, "a scalar has no last axis"),
        ("[3]", "[1]", r#""op": "TopKV2", "inputs": ["a", 5]"#, "the last axis has 3 elements, fewer than 5"),
        (
            "[3, 2]",
            "[1]",
            r#""op": "InTopK", "inputs": ["a", [1, 0]], "attrs": {"k": 1}"#,
            "the numbers of examples 3 and 2 differ",
        ),
        ("[3]", "[1]", r#""op": "GatherV2", "inputs": ["a", [0], 1]"#, "1 is not an axis of a tensor of rank 1"),
    ] {
        let error = refused(a, b, node);
        assert!(error.starts_with("node n (") && error.contains(why), "{error}");
    }
}
