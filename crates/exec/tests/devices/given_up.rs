//! Tests that kernels that may take long check whether their step was cancelled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use meshtf_cases::with_node;
use meshtf_kernels as kernel;
use meshtf_loops::turn::{self, Signal};
use meshtf_tensor::{DType, Tensor};
use serde_json::{Value as Json, json};

/// Whether a kernel ends without an answer in a step that was cancelled before.
fn ends(run: impl FnOnce()) -> bool {
    let signal = Arc::new(Signal::default());
    signal.stop();
    let ended = catch_unwind(AssertUnwindSafe(|| turn::within(&signal, run)));
    ended.is_err_and(|panic| turn::is_stop(&*panic))
}

/// Zeros of a dtype and shape, `float32[2,3]`; or int32 numbers, `=1,2`.
fn tensor(text: &str) -> Tensor {
    if let Some(list) = text.strip_prefix('=') {
        let values: Vec<i32> = list.split(',').map(|value| value.parse().unwrap()).collect();
        return if list.contains(',') { Tensor::vector(values) } else { Tensor::scalar(values[0]) };
    }
    let (dtype, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dims: Vec<usize> = dims.split(',').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap()).collect();
    Tensor::zeros(DType::from_name(dtype).unwrap(), dims.as_slice()).unwrap()
}

#[test]
fn host_kernels_end_when_their_step_is_given_up() {
    let window = json!({"strides": [1, 1, 1, 1], "padding": "SAME"});
    let pool = json!({"ksize": [1, 3, 3, 1], "strides": [1, 1, 1, 1], "padding": "SAME"});
    let mut ran_on: Vec<String> = Vec::new();
    let mut check = |op: &str, attrs: Json, inputs: &[&str]| {
        let inputs: Vec<Tensor> = inputs.iter().map(|text| tensor(text)).collect();
        let case = json!({"op": op, "attrs": attrs});
        let mut kernel = with_node(&case, &inputs, kernel::compile).unwrap().unwrap_or_else(|| panic!("{op}"));
        if !ends(|| drop(kernel(inputs.into()))) {
            ran_on.push(op.to_owned());
        }
    };
    let none = || json!({});
    check("MatMul", none(), &["int32[128,128]", "int32[128,128]"]);
    check("BatchMatMulV2", none(), &["float64[8,64,64]", "float64[8,64,64]"]);
    check("Einsum", json!({"equation": "ij,jk->ik"}), &["float32[128,128]", "float32[128,128]"]);
    check("Conv2D", window.clone(), &["float64[4,32,32,8]", "float64[3,3,8,16]"]);
    check("Conv2DBackpropInput", window.clone(), &["=4,32,32,8", "float32[3,3,8,16]", "float32[4,32,32,16]"]);
    check("Conv2DBackpropFilter", window.clone(), &["float32[4,32,32,8]", "=3,3,8,16", "float32[4,32,32,16]"]);
    check("DepthwiseConv2dNative", window, &["float32[4,64,64,32]", "float32[3,3,32,1]"]);
    check("MaxPool", pool.clone(), &["float64[4,64,64,16]"]);
    check("AvgPool", pool.clone(), &["float64[4,64,64,16]"]);
    check("MaxPoolWithArgmax", pool.clone(), &["float64[4,64,64,16]"]);
    let of_pool = ["float32[4,64,64,16]", "float32[4,64,64,16]", "int64[4,64,64,16]"];
    check("MaxPoolGradWithArgmax", pool, &of_pool);
    let patches = json!({"ksizes": [1, 3, 3, 1], "strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"});
    check("ExtractImagePatches", patches, &["float32[4,64,64,16]"]);
    check("TensorStridedSliceUpdate", none(), &["int32[1100,1000]", "=0,0", "=1100,1000", "=1,1", "=7"]);
    check("MatrixInverse", none(), &["float32[130,130]"]);
    check("Cholesky", none(), &["float64[200,100,100]"]);
    check("MatrixDeterminant", none(), &["float64[128,128]"]);
    check("MatrixSolve", none(), &["float64[128,128]", "float64[128,1]"]);
    check("MatrixTriangularSolve", none(), &["float64[256,256]", "float64[256,256]"]);
    check("Unique", none(), &["int64[100000]"]);
    check("ListDiff", none(), &["float32[100000]", "float32[100000]"]);
    check("TopKV2", none(), &["float32[2,100000]", "=9"]);
    check("Where", none(), &["float32[1100,1000]"]);
    check("GatherV2", none(), &["float32[1000,100]", "int32[20000]", "=0"]);
    check("GatherNd", none(), &["float32[1000,100]", "int32[20000,1]"]);
    check("ScatterNd", none(), &["int32[20000,1]", "float32[20000,100]", "=9,100"]);
    check("DynamicPartition", json!({"num_partitions": 2}), &["float32[20000,100]", "int32[20000]"]);
    check("Cumsum", none(), &["float64[1100,1000]", "=0"]);
    check("Sum", none(), &["int32[1100,1000]", "=0"]);
    check("ArgMax", none(), &["float32[1100,1000]", "=0"]);
    check("UnsortedSegmentSum", none(), &["float32[1100,1000]", "int32[1100]", "=4"]);
    check("RandomUniform", json!({"dtype": "float32"}), &["=1000,1000"]);
    check("RandomStandardNormal", json!({"dtype": "float32"}), &["=1000,1000"]);
    check("TruncatedNormal", json!({"dtype": "float32"}), &["=1000,1000"]);
    check("RandomShuffle", none(), &["float32[100000]"]);
    check("Multinomial", none(), &["float32[10,10000]", "=9"]);
    check("Erf", none(), &["float64[200000]"]);
    check("AddV2", none(), &["int32[1100,1000]", "int32[1000]"]);
    check("Less", none(), &["int32[200000]", "int32[200000]"]);
    check("Select", none(), &["bool[1100,1000]", "int32[1100,1000]", "int32[1100,1000]"]);
    check("Cast", json!({"DstT": "float64"}), &["int32[200000]"]);
    check("Transpose", none(), &["float32[1100,1000]", "=1,0"]);
    check("Tile", none(), &["float32[10,100]", "=40,40"]);
    check("ConcatV2", none(), &["float32[1000,1000]", "float32[1000,1000]", "=1"]);
    check("Softmax", none(), &["float64[1000,1000]"]);
    check("LRN", none(), &["float32[10,100,10,10]"]);
    check("ResizeBilinear", none(), &["float32[4,64,64,8]", "=256,256"]);
    check("StringJoin", none(), &["string[20000]", "string[20000]"]);
    check("AsString", none(), &["int32[200000]"]);
    assert!(ran_on.is_empty(), "ran to their ends: {ran_on:?}");
}

#[test]
fn what_engines_are_given_in_parts_ends_too_and_is_the_same() {
    use meshtf_engine::adapters::{BackendChoice, cpu};
    use meshtf_engine::{EngineOutcome, Value, Values};

    let engine = cpu(BackendChoice::Flex).open().unwrap();
    let check = |op: &str, attrs: Json, inputs: &[&str]| {
        let inputs: Vec<Tensor> = inputs.iter().map(|text| tensor(text)).collect();
        let case = json!({"op": op, "attrs": attrs});
        let mut kernel = with_node(&case, &inputs, |node| engine.compile(node)).unwrap().unwrap();
        let values: Values = inputs.into_iter().map(Value::Host).collect();
        let run = || match (kernel.run)(values).unwrap() {
            EngineOutcome::Done(_) => {}
            EngineOutcome::Declined(_) => panic!("{op} was declined"),
        };
        assert!(ends(run), "{op} ran to its end");
    };
    let window = json!({"strides": [1, 1, 1, 1], "padding": "SAME"});
    check("MatMul", json!({}), &["float32[2100,2100]", "float32[2100,2100]"]);
    check("BatchMatMul", json!({}), &["float64[30,700,700]", "float64[30,700,700]"]);
    check("Conv2D", window.clone(), &["float32[2,64,64,128]", "float32[5,5,128,128]"]);
    check("Conv2D", window.clone(), &["float32[1,64,64,256]", "float32[5,5,128,256]"]);
    let pool = json!({"ksize": [1, 3, 3, 1], "strides": [1, 1, 1, 1], "padding": "SAME"});
    check("MaxPool", pool.clone(), &["float32[1,1024,1024,8]"]);
    check("AvgPool", pool, &["float32[1,1024,1024,8]"]);
    check("Conv2DBackpropInput", window.clone(), &["=2,64,64,128", "float32[5,5,128,128]", "float32[2,64,64,128]"]);
    check("Conv2DBackpropFilter", window.clone(), &["float32[2,64,64,128]", "=5,5,128,128", "float32[2,64,64,128]"]);
    let (images, filter) = ("float32[8,256,256,32]", "float32[3,3,32,1]");
    check("DepthwiseConv2dNative", window.clone(), &[images, filter]);
    check("DepthwiseConv2dNativeBackpropInput", window.clone(), &["=8,256,256,32", filter, images]);
    check("DepthwiseConv2dNativeBackpropFilter", window, &[images, "=3,3,32,1", images]);
    let window = json!({"strides": [1, 1, 1, 1, 1], "padding": "SAME"});
    let (volumes, filter) = ("float32[2,16,64,64,32]", "float32[3,3,3,32,32]");
    check("Conv3D", window.clone(), &[volumes, filter]);
    check("Conv3DBackpropInputV2", window.clone(), &["=2,16,64,64,32", filter, volumes]);
    check("Conv3DBackpropFilterV2", window, &[volumes, "=3,3,3,32,32", volumes]);
}

/// With this number of elements an engine computes in blocks: slightly more than the limit, in no round number of rows.
const MANY: [usize; 3] = [17, 1009, 1000];

/// The answers of an engine and of the host to inputs of [`MANY`] elements, and the number of the engine's checks.
fn both_answers(op: &str, attrs: &Json, inputs: &[Tensor]) -> ([Tensor; 2], usize) {
    use meshtf_engine::adapters::{BackendChoice, cpu};
    use meshtf_engine::{EngineOutcome, Value, Values};

    let engine = cpu(BackendChoice::Flex).open().unwrap();
    let case = json!({"op": op, "attrs": attrs});
    let mut kernel = with_node(&case, inputs, |node| engine.compile(node)).unwrap().unwrap();
    let keep = |tensor: &Tensor| engine.keep(tensor.clone()).unwrap();
    let values: Values = inputs.iter().map(keep).collect();
    let before = turn::LOOKS.get();
    let answer: Value = match (kernel.run)(values).unwrap() {
        EngineOutcome::Done(answers) => answers.into_iter().next().unwrap(),
        EngineOutcome::Declined(_) => panic!("{op} was declined"),
    };
    let answer = answer.into_host().unwrap();
    let looks = turn::LOOKS.get() - before;
    let mut host = with_node(&case, inputs, kernel::compile).unwrap().unwrap();
    ([answer, host(inputs.iter().cloned().collect()).unwrap().remove(0)], looks)
}

#[test]
fn what_engines_make_of_many_elements_is_made_in_blocks_and_the_same() {
    let count: usize = MANY.iter().product();
    // Whole numbers whose sums are all exact.
    let many = Tensor::from_vec(MANY, (0..count).map(|i| (i * 7919 % 13) as f32 - 6.0).collect::<Vec<_>>());
    let check = |op: &str, attrs: Json, others: &[&str]| {
        let mut inputs = vec![many.clone()];
        for &other in others {
            inputs.push(if other == "many" { many.clone() } else { tensor(other) });
        }
        let ([engine, host], looks) = both_answers(op, &attrs, &inputs);
        assert_eq!(engine.shape(), host.shape(), "{op} {others:?}");
        let (ours, wanted) = (engine.slice::<f32>().unwrap(), host.slice::<f32>().unwrap());
        let differs = ours.iter().zip(wanted).position(|(x, y)| x != y);
        assert_eq!(differs, None, "{op} {others:?}");
        assert!(looks >= 4, "{op} {others:?} looked {looks} times");
    };
    let none = || json!({});
    // Axes that are kept, removed, and both in turns; rows that are large by themselves.
    let keep = || json!({ "keep_dims": true });
    for axes in ["=0", "=1", "=2", "=0,1,2", "=0,1", "=1,2", "=0,2"] {
        check("Sum", keep(), &[axes]);
    }
    check("Max", none(), &["=0"]);
    check("Min", json!({"keep_dims": false}), &["=0,1,2"]);
    check("Transpose", none(), &["=2,0,1"]);
    check("Transpose", none(), &["=0,2,1"]);
    check("ReverseV2", none(), &["=0,2"]);
    check("GatherV2", none(), &["=0,3,1,2,16,15,14,13,12,11,10,9,8,7,6,5,4,4", "=0"]);
    check("ConcatV2", none(), &["many", "=1"]);
    check("AddN", none(), &["many", "many"]);
    check("LeakyRelu", none(), &[]);
    check("BiasAdd", none(), &["float32[1000]"]);
}
