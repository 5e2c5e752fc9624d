//! Cases of onnx's own suite, and whole models with the answers of onnxruntime, as `tests/onnx/record.py` records them.

use meshtf_graph::Graph;
use meshtf_onnx::proto::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TensorType,
    TypeProto, TypeValue, ValueInfoProto,
};
use meshtf_tensor::Tensor;
use prost::Message as _;

use super::{beside, check};

/// A file of recorded cases.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Cases {
    #[prost(message, repeated, tag = "1")]
    pub case: Vec<Case>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Case {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(double, tag = "2")]
    pub rtol: f64,
    #[prost(double, tag = "3")]
    pub atol: f64,
    #[prost(bytes = "vec", tag = "4")]
    pub model: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub inputs: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub outputs: Vec<Vec<u8>>,
}

/// Cases that are refused, and the part of the message that names the reason.
const REFUSED: &[(&str, &str)] = &[
    ("test_image_decoder_decode_jpeg2k_rgb", "Unknown image file format"),
    ("test_image_decoder_decode_pnm_rgb", "Unknown image file format"),
    ("test_image_decoder_decode_tiff_rgb", "Unknown image file format"),
    ("test_image_decoder_decode_webp_rgb", "Unknown image file format"),
    ("test_if_opt", "an optional, of which only a step tells"),
    ("test_loop16_seq_none", "an optional, of which only a step tells"),
    ("test_split_to_sequence_1", "that only a step computes"),
];

/// Cases whose answers differ, and the reason.
const DIFFERENT: &[(&str, &str)] = &[
    ("test_image_decoder_decode_jpeg_bgr", "JPEG decoders round differently: by 1 at most"),
    ("test_image_decoder_decode_jpeg_grayscale", "the same"),
    ("test_image_decoder_decode_jpeg_rgb", "the same"),
    ("test_dft_inverse", "the expected rounding errors around zero are those of NumPy's transform"),
    ("test_dft_inverse_opset19", "the same"),
];

pub fn cases(file: &str) -> Vec<Case> {
    let path = meshtf_testing::means::root().join("tests/data/onnx").join(file);
    Cases::decode(&std::fs::read(path).unwrap()[..]).unwrap().case
}

/// The feeds of a model, by the names of its tensors.
type Feeds = fn(&meshtf_onnx::Model) -> Vec<(String, Tensor)>;

fn run(case: &Case, feeds: Option<Feeds>) -> Result<(), String> {
    let model = meshtf_onnx::read(&case.model, &mut beside("".as_ref())).map_err(|error| error.to_string())?;
    let graph = Graph::new(model.nodes.clone()).map_err(|error| error.to_string())?;
    let all = |values: &[Vec<u8>]| values.iter().cloned().map(Some).collect::<Vec<_>>();
    let outputs = all(&case.outputs);
    match feeds {
        Some(feeds) => check::compared(&model, &graph, &feeds(&model), &outputs, (case.rtol, case.atol)),
        None => check::step(&model, &graph, &all(&case.inputs), &outputs, (case.rtol, case.atol)),
    }
}

#[test]
fn operators_answer_as_onnx_specifies() {
    let mut wrong = Vec::new();
    let all = cases("cases.pb");
    for case in &all {
        let outcome = run(case, None);
        if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == case.name) {
            match outcome {
                Err(message) if message.contains(why) => {}
                other => wrong.push(format!("{} is to be refused: {other:?}", case.name)),
            }
        } else if !DIFFERENT.iter().any(|(name, _)| *name == case.name)
            && let Err(why) = outcome
        {
            wrong.push(format!("{}: {why}", case.name));
        }
    }
    assert!(all.len() > 400, "{} cases", all.len());
    assert!(wrong.is_empty(), "{} of {} cases are wrong:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn operators_of_onnxruntime_answer_as_it_does() {
    let all = cases("contrib.pb");
    assert_eq!(all.len(), 34);
    let wrong: Vec<String> =
        all.iter().filter_map(|case| Some(format!("{}: {}", case.name, run(case, None).err()?))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn classical_models_answer_as_onnxruntime_does() {
    let all = cases("classical.pb");
    assert!(all.len() > 70, "{} cases", all.len());
    let wrong: Vec<String> =
        all.iter().filter_map(|case| Some(format!("{}: {}", case.name, run(case, None).err()?))).collect();
    assert!(wrong.is_empty(), "{} of {} cases are wrong:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn a_category_that_the_model_does_not_state_ends_the_step() {
    let all = cases("classical.pb");
    let case = all.iter().find(|case| case.name == "one_hot_of_known_ints").expect("the case");
    let model = meshtf_onnx::read(&case.model, &mut beside("".as_ref())).unwrap();
    let graph = Graph::new(model.nodes.clone()).unwrap();
    let fetches: Vec<String> = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let run = |rows: Vec<i64>| {
        let feeds = [(model.inputs[0].tensor.clone(), Tensor::from_vec([rows.len() / 2, 2], rows))];
        super::device::run(&graph, &feeds, &fetches)
    };
    assert_eq!(
        run(vec![-1, 2]).unwrap()[0].numbers().unwrap().collect::<Vec<_>>(),
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    );
    let refused = run(vec![-1, 3]).unwrap_err().to_string();
    assert!(refused.contains("a category is none of those that the model states"), "{refused}");
}

/// A loop that doubles x, and collects its values: without iterations a size that the model leaves open is 0, as in onnxruntime,
/// which takes the rank of the body's output.
#[test]
fn a_loop_without_iterations_collects_nothing() {
    let info = |name: &str, elem_type: i32, rank: usize| {
        let dim = vec![Dimension::default(); rank];
        let ty = TensorType { elem_type, shape: Some(TensorShapeProto { dim }) };
        ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(ty)) }) }
    };
    let node = |op: &str, inputs: &[&str], outputs: &[&str]| NodeProto {
        op_type: op.to_owned(),
        input: inputs.iter().map(|&name| name.to_owned()).collect(),
        output: outputs.iter().map(|&name| name.to_owned()).collect(),
        ..NodeProto::default()
    };
    let body = GraphProto {
        node: vec![
            node("Add", &["v", "v"], &["twice"]),
            node("Identity", &["c"], &["more"]),
            node("Identity", &["twice"], &["one"]),
        ],
        input: vec![info("i", 7, 0), info("c", 9, 0), info("v", 1, 1)],
        output: vec![info("more", 9, 0), info("twice", 1, 1), info("one", 1, 1)],
        ..GraphProto::default()
    };
    let mut repeat = node("Loop", &["n", "", "x"], &["last", "all"]);
    let body =
        AttributeProto { name: "body".to_owned(), g: Some(Box::new(body)), r#type: 5, ..AttributeProto::default() };
    repeat.attribute = vec![body];
    let graph = GraphProto {
        node: vec![repeat],
        input: vec![info("n", 7, 0), info("x", 1, 1)],
        output: vec![info("last", 1, 1), info("all", 1, 2)],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 21, ..OperatorSetIdProto::default() }];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..ModelProto::default() };
    let model = meshtf_onnx::read(&model.encode_to_vec(), &mut beside("".as_ref())).unwrap();
    let graph = Graph::new(model.nodes.clone()).unwrap();
    let fetches: Vec<String> = model.outputs.iter().map(|port| port.tensor.clone()).collect();
    let run = |n: i64| {
        let feeds = [("n".to_owned(), Tensor::scalar(n)), ("x".to_owned(), Tensor::vector(vec![1f32, 3.0]))];
        super::device::run(&graph, &feeds, &fetches).unwrap()
    };
    assert_eq!(run(0), [Tensor::vector(vec![1f32, 3.0]), Tensor::from_vec([0, 0], Vec::<f32>::new())]);
    let all = Tensor::from_vec([2, 2], vec![2f32, 6.0, 4.0, 12.0]);
    assert_eq!(run(2), [Tensor::vector(vec![4f32, 12.0]), all]);
}

/// The image that the recorder feeds.
fn image(model: &meshtf_onnx::Model) -> Vec<(String, Tensor)> {
    let port = &model.inputs[0];
    let size = |dim: &meshtf_onnx::Dim| match dim {
        meshtf_onnx::Dim::Size(size) => *size,
        meshtf_onnx::Dim::Named(_) => 1,
    };
    let dims: Vec<usize> = port.dims.iter().flatten().map(size).collect();
    let values = (0..dims.iter().product::<usize>()).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
    vec![(port.tensor.clone(), Tensor::from_vec(dims, values))]
}

#[test]
fn whole_models_answer_as_onnxruntime_does() {
    let all = cases("models.pb");
    assert_eq!(all.len(), 2);
    for case in all {
        run(&case, Some(image)).unwrap_or_else(|why| panic!("{}: {why}", case.name));
    }
}
