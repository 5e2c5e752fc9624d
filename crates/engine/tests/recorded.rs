//! Test of every engine kernel against TensorFlow's results, on every backend available on this machine.
//!
//! The cases are those of the host kernels. An engine may decline a case, but not all cases of an op that it supports.

use std::collections::BTreeMap;

use meshtf_cases::{cases, list, same, tensor, with_node};
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Tensor};

use meshtf_engine::adapters::{self, BUILT, BackendChoice};
use meshtf_engine::{Engine, EngineOutcome, Value, Values};
use meshtf_testing::means::{Means, missing};

/// The number of cases of an op that are run on a GPU.
const MOST_RUNS_ON_A_GPU: usize = 6;

/// The first GPU, for a test that may go without on some machines.
fn gpu(test: &str) -> Option<Box<dyn Engine>> {
    let first = adapters::gpus(BackendChoice::Wgpu).into_iter().next();
    if first.is_none() {
        missing(Means::Gpu, test);
    }
    first.map(|offer| offer.open().expect("it was offered"))
}

/// The available engines, each with the factor on the tolerances for results that are less exact than the host's.
fn engines() -> Vec<(Box<dyn Engine>, f64)> {
    let mut engines: Vec<_> = BUILT.iter().map(|&choice| (adapters::cpu(choice).open().unwrap(), 4.0)).collect();
    engines.extend(gpu("kernels on a GPU").map(|gpu| (gpu, 60.0)));
    engines
}

/// The engine's outputs; `None` if it leaves the case to the host kernel.
fn run(
    engine: &dyn Engine,
    case: &serde_json::Value,
    inputs: &[Tensor],
    uploaded: bool,
) -> Result<Option<Vec<Tensor>>> {
    let Some(mut kernel) = with_node(case, inputs, |node| engine.compile(node))? else { return Ok(None) };
    // A GPU never has a single number in its own memory.
    let least = usize::from(engine.small() == 1);
    let place = |input: &Tensor| {
        let is_uploaded = uploaded && input.len() > least;
        if is_uploaded { engine.upload(input.clone()) } else { Ok(Value::Host(input.clone())) }
    };
    let inputs = inputs.iter().map(place).collect::<Result<Values>>()?;
    // Again with the same inputs, in case the first call overwrote one that it did not own.
    let first = (kernel.run)(inputs.clone())?;
    match (first, (kernel.run)(inputs)?) {
        (EngineOutcome::Done(_), EngineOutcome::Done(values)) => {
            values.into_iter().map(Value::into_host).collect::<Result<_>>().map(Some)
        }
        (EngineOutcome::Declined(_), EngineOutcome::Declined(_)) => Ok(None),
        _ => Err(Failure::invalid("declined once, but not twice")),
    }
}

#[test]
fn engines_answer_as_tensorflow_does() {
    meshtf_loops::denormals::flush();
    let cases = cases();
    let mut wrong = Vec::new();
    for (engine, slack) in engines() {
        let mut ran: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, case) in &cases {
            let inputs: Vec<Tensor> = list(&case["inputs"]).iter().map(tensor).collect();
            let op = case["op"].as_str().unwrap();
            for uploaded in [false, true] {
                // A GPU compiles a shader for each op and dtype: a few cases of each suffice, and the special values, which
                // shaders are most likely to get wrong.
                let enough = ran.get(op).is_some_and(|&runs| runs >= MOST_RUNS_ON_A_GPU);
                if engine.name() == "wgpu" && (case["gpu"] == false || enough && !name.starts_with("special.json")) {
                    continue;
                }
                let outcome = run(&*engine, case, &inputs, uploaded);
                let why = match (case["error"].as_str(), outcome) {
                    (_, Ok(None)) | (Some(_), Err(_)) => continue,
                    (Some(class), Ok(Some(outputs))) => format!("answered {outputs:?}, wanted {class}"),
                    (None, Err(failure)) => format!("failed with {failure}"),
                    (None, Ok(Some(outputs))) => {
                        *ran.entry(op).or_default() += 1;
                        let wanted: Vec<Tensor> = list(&case["outputs"]).iter().map(tensor).collect();
                        let case = loosened(case, slack, &wanted);
                        let pairs = outputs.iter().zip(&wanted);
                        match pairs.into_iter().try_for_each(|(got, want)| same(&case, got, want)) {
                            Ok(()) if outputs.len() == wanted.len() => continue,
                            Ok(()) => format!("{} outputs, wanted {}", outputs.len(), wanted.len()),
                            Err(why) => why,
                        }
                    }
                };
                let inputs: String = case["inputs"].to_string().chars().take(200).collect();
                let attrs = &case["attrs"];
                wrong.push(format!("{} {name} uploaded: {uploaded} {op} {attrs} {inputs}: {why}", engine.name()));
            }
        }
        // Guards against engines that decline every case.
        for op in ["Add", "Mul", "Exp", "RealDiv", "Square", "Sqrt", "Neg", "AddN"] {
            assert!(ran.contains_key(op), "{} never ran {op}", engine.name());
        }
        let of_flex = ["BiasAddGrad", "FusedBatchNormV3", "FusedBatchNormGradV3", "LRN", "LRNGrad", "L2Loss"];
        for op in of_flex.into_iter().chain(["SoftmaxCrossEntropyWithLogits"]) {
            assert!(engine.name() != "flex" || ran.contains_key(op), "{} never ran {op}", engine.name());
        }
        let of_gpus = [
            "SparseSoftmaxCrossEntropyWithLogits",
            "FusedBatchNormV3",
            "FusedBatchNormGradV3",
            "UnsortedSegmentSum",
            "StridedSliceGrad",
            "Fill",
            "Tile",
            "Pow",
            "RsqrtGrad",
            "Elu",
            "Selu",
            "Sign",
        ];
        for op in of_gpus {
            assert!(engine.name() != "wgpu" || ran.contains_key(op), "{} never ran {op}", engine.name());
        }
        eprintln!("{} ran {ran:?}", engine.name());
    }
    let shown: Vec<&str> = wrong.iter().take(60).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), shown.join("\n"));
}

/// The case with a tolerance `slack` times as wide.
fn loosened(case: &serde_json::Value, slack: f64, wanted: &[Tensor]) -> serde_json::Value {
    let default = match wanted.first().map(Tensor::dtype) {
        Some(DType::F16) => 2e-3,
        Some(DType::BF16) => 1.6e-2,
        Some(DType::F32) => 2e-6,
        _ => 1e-12,
    };
    let rtol = case["rtol"].as_f64().unwrap_or(default);
    let atol = case["atol"].as_f64().unwrap_or(default / 10.0);
    let mut case = case.clone();
    case["rtol"] = (rtol * slack).into();
    case["atol"] = (atol * slack).into();
    case
}

#[test]
fn a_result_that_would_be_too_large_is_left_to_the_host_to_refuse() {
    // Two vectors whose product exceeds the limit of a tensor, while each is small.
    let long = 44_800;
    let zeros = |dims: &[usize]| Tensor::zeros(DType::F32, dims).unwrap();
    let ints = |values: &[i32]| Tensor::vector(values.to_vec());
    let (column, row) = (zeros(&[long, 1]), zeros(&[1, long]));
    let wide = [1, 1000, 1000, 2400];
    let cases = [
        ("Add", vec![column.clone(), row.clone()]),
        ("Mul", vec![row.clone(), column.clone()]),
        ("Maximum", vec![column.clone(), row.clone()]),
        // A bool takes less than a float.
        ("GreaterEqual", vec![zeros(&[2 * long, 1]), zeros(&[1, 2 * long])]),
        ("SelectV2", vec![Tensor::from_vec([long, 1], vec![true; long]), column.clone(), row.clone()]),
        ("MatMul", vec![column.clone(), row.clone()]),
        ("BatchMatMulV2", vec![zeros(&[long, 1, 1, 1]), zeros(&[1, long, 1, 1])]),
        ("BroadcastTo", vec![column.clone(), ints(&[long as i32, long as i32])]),
        ("Tile", vec![column.clone(), ints(&[1, long as i32])]),
        ("Pad", vec![column.clone(), Tensor::from_vec([2, 2], vec![0, 0, 0, long as i32])]),
        ("GatherV2", vec![row, Tensor::vector(vec![0; long]), Tensor::scalar(0)]),
        ("Conv2D", vec![zeros(&[1, 1000, 1000, 1]), zeros(&[1, 1, 1, 2400])]),
        ("MaxPool", vec![zeros(&[1, 2, 2, 1])]),
        ("AvgPoolGrad", vec![ints(&[1, 200_000, 200_000, 1]), zeros(&[1, 2, 2, 1])]),
        ("Conv2DBackpropInput", vec![ints(&wide), zeros(&[1, 1, 2400, 1]), zeros(&[1, 1000, 1000, 1])]),
    ];
    for (engine, _) in engines() {
        for (op, inputs) in &cases {
            let case = serde_json::json!({ "op": op, "attrs": match *op {
                "MaxPool" => {
                    serde_json::json!({ "ksize": [1, 100_000, 100_000, 1], "strides": [1, 1, 1, 1], "padding": "SAME" })
                }
                "AvgPoolGrad" => {
                    let strides = [1, 100_000, 100_000, 1];
                    serde_json::json!({ "ksize": [1, 1, 1, 1], "strides": strides, "padding": "SAME" })
                }
                "Conv2D" | "Conv2DBackpropInput" => serde_json::json!({ "strides": [1, 1, 1, 1], "padding": "VALID" }),
                _ => serde_json::json!({}),
            }});
            match run(&*engine, &case, inputs, true) {
                Ok(None) => {}
                Err(failure) if failure.code == Code::ResourceExhausted => {}
                Err(failure) => panic!("{} {op}: {failure}", engine.name()),
                Ok(Some(outputs)) => panic!("{} {op}: answered {}", engine.name(), outputs[0].shape()),
            }
        }
    }
}

#[test]
fn what_lies_in_this_process_is_computed_on_where_it_lies() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let check = |op: &str, attrs: serde_json::Value, inputs: &[Tensor], want: &Tensor| {
        let case = serde_json::json!({ "op": op, "attrs": attrs });
        for uploaded in [false, true] {
            let got = run(&*engine, &case, inputs, uploaded).unwrap();
            // The shape of a host tensor is read without an engine.
            let is_left = op.ends_with("Like") && !uploaded;
            assert!(got.as_ref().is_none_or(|got| got[0] == *want), "{op} {attrs}, uploaded: {uploaded}");
            assert!(got.is_some() || is_left, "{op} {attrs}, uploaded: {uploaded}: declined");
        }
    };
    let none = || serde_json::json!({});
    let floats = |dims: &[usize]| -> Tensor {
        let count: usize = dims.iter().product();
        Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 1009) as f32 - 300.25).collect::<Vec<f32>>())
    };
    let of = |dims: &[usize], f: &dyn Fn(usize) -> f32| {
        Tensor::from_vec(dims, (0..dims.iter().product()).map(f).collect::<Vec<f32>>())
    };
    let (x, y) = (floats(&[60, 50]), Tensor::from_vec([60, 50], vec![-1.5f32; 3000]));
    let xs = x.slice::<f32>().unwrap();
    check("ZerosLike", none(), std::slice::from_ref(&x), &Tensor::zeros(DType::F32, [60, 50]).unwrap());
    check("OnesLike", none(), std::slice::from_ref(&x), &of(&[60, 50], &|_| 1.0));
    let doubles = Tensor::from_vec([2000], vec![0.5f64; 2000]);
    check("OnesLike", none(), &[doubles], &Tensor::from_vec([2000], vec![1f64; 2000]));
    let rows = Tensor::from_vec([2, 2], vec![59i64, 0, 3, 3]);
    let row = |i: usize| [59, 0, 3, 3][i / 50] * 50 + i % 50;
    let axis = |axis: i32| Tensor::scalar(axis);
    check("GatherV2", none(), &[x.clone(), rows.clone(), axis(0)], &of(&[2, 2, 50], &|i| xs[row(i)]));
    let column = |i: usize| [49, 0, 3, 3][i % 4] + i / 4 * 50;
    let columns = Tensor::from_vec([2, 2], vec![49, 0, 3, 3]);
    check("GatherV2", none(), &[x.clone(), columns, axis(-1)], &of(&[60, 2, 2], &|i| xs[column(i)]));
    // Each of 60 rows has separate indices.
    let own = Tensor::from_vec([60, 2], (0..120).map(|i| i * 7 % 50).collect::<Vec<i32>>());
    let batch = serde_json::json!({ "batch_dims": 1 });
    let paired = of(&[60, 2], &|i| xs[i / 2 * 50 + i * 7 % 50]);
    check("GatherV2", batch, &[x.clone(), own, axis(1)], &paired);
    check("GatherNd", none(), &[x.clone(), rows.reshaped([4, 1]).unwrap()], &of(&[4, 50], &|i| xs[row(i)]));
    let flags = |dims: &[usize]| {
        let count: usize = dims.iter().product();
        Tensor::from_vec(dims, (0..count).map(|i| i % 3 == 1).collect::<Vec<bool>>())
    };
    let whole = of(&[60, 50], &|i| if i % 3 == 1 { xs[i] } else { -1.5 });
    check("Select", none(), &[flags(&[60, 50]), x.clone(), y.clone()], &whole);
    check("SelectV2", none(), &[flags(&[60, 50]), x.clone(), Tensor::scalar(-1.5f32)], &whole);
    let by_row = of(&[60, 50], &|i| if i / 50 % 3 == 1 { xs[i] } else { -1.5 });
    check("Select", none(), &[flags(&[60]), x.clone(), y.clone()], &by_row);
    check("SelectV2", none(), &[flags(&[60, 1]), x.clone(), y.clone()], &by_row);
    check("Select", none(), &[Tensor::scalar(false), y, x.clone()], &x);
    let by_column = of(&[60, 50], &|i| if i % 50 % 3 == 1 { 2.0 } else { xs[i] });
    check("SelectV2", none(), &[flags(&[50]), Tensor::scalar(2f32), x.clone()], &by_column);
    let cast = |to: &str| serde_json::json!({ "DstT": to });
    let ints: Vec<i32> = xs.iter().map(|x| x.trunc() as i32).collect();
    let inputs = std::slice::from_ref(&x);
    check("Cast", cast("int32"), inputs, &Tensor::from_vec([60, 50], ints.clone()));
    check("Cast", cast("int64"), inputs, &Tensor::from_vec([60, 50], ints.iter().map(|&i| i64::from(i)).collect()));
    check("Cast", cast("float64"), inputs, &Tensor::from_vec([60, 50], xs.iter().map(|&x| f64::from(x)).collect()));
    check("Cast", cast("float32"), &[Tensor::vector(ints.clone())], &of(&[3000], &|i| ints[i] as f32));
}

#[test]
fn a_tensor_is_unchanged_after_upload_and_download() {
    for (engine, _) in engines() {
        let check = |tensor: Tensor| {
            let uploaded = engine.upload(tensor.clone()).unwrap();
            assert_eq!((uploaded.dtype(), uploaded.shape()), (tensor.dtype(), tensor.shape()), "{}", engine.name());
            assert_eq!(uploaded.into_host().unwrap(), tensor, "{}", engine.name());
        };
        check(Tensor::scalar(1.5f32));
        check(Tensor::scalar(-2.5f64));
        check(Tensor::from_vec([2, 0, 3], Vec::<f32>::new()));
        check(Tensor::from_vec([2, 3], vec![0f32, 1., 2., 3., 4., 5.]));
        check(Tensor::from_vec([1, 1, 1, 1, 1, 1, 1, 2], vec![1f32, 2.]));
        check(Tensor::vector(vec![half::f16::from_f32(0.5), half::f16::MAX]));
        check(Tensor::vector(vec![half::bf16::from_f32(0.5), half::bf16::MIN]));
        check(Tensor::vector(vec![i64::MIN, 7]));
        check(Tensor::vector(vec![b"text".to_vec()]));
        check(Tensor::vector(vec![true, false]));
    }
}

#[test]
#[allow(deprecated)]
fn elements_cross_into_a_cpu_engine_and_back_without_a_copy() {
    for &choice in BUILT {
        let engine = adapters::cpu(choice).open().unwrap();
        let tensor = Tensor::from_vec([4096], vec![1f32; 4096]);
        let address = tensor.slice::<f32>().unwrap().as_ptr();
        let back = engine.upload(tensor).unwrap().into_host().unwrap();
        assert_eq!(back.slice::<f32>().unwrap().as_ptr(), address, "{}", engine.name());
    }
}

#[test]
fn an_unshared_value_is_computed_in_place() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let case = serde_json::json!({ "op": "Neg" });
    let x = Tensor::from_vec([4096], vec![1f32; 4096]);
    let mut kernel = with_node(&case, std::slice::from_ref(&x), |node| engine.compile(node)).unwrap().unwrap();
    let address = x.slice::<f32>().unwrap().as_ptr();
    let EngineOutcome::Done(values) = (kernel.run)(Values::from_iter([Value::Host(x)])).unwrap() else {
        panic!("declined")
    };
    let y = values.into_iter().next().unwrap().into_host().unwrap();
    assert_eq!(y.slice::<f32>().unwrap()[0], -1.0);
    assert_eq!(y.slice::<f32>().unwrap().as_ptr(), address);
}

#[test]
fn a_gpu_updates_variables_as_tensorflow_does() {
    use meshtf_cases::{updates as cases, with_update};
    let Some(engine) = gpu("updates on a GPU") else { return };
    let mut ran: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in cases() {
        let read = |key: &str| -> Vec<Tensor> { list(&case[key]).iter().map(tensor).collect() };
        let (variables, rest, wanted) = (read("variables"), read("inputs"), read("outputs"));
        let op = case["op"].as_str().unwrap();
        let Ok(Some(mut kernel)) = with_update(&case, op, &variables, &rest, |node| engine.compile(node)) else {
            continue;
        };
        // Rates are on the host, or on the GPU if a kernel has computed them.
        for are_uploaded in [false, true] {
            let place = |tensor: &Tensor| match tensor.rank() {
                0 if !are_uploaded => Ok(Value::Host(tensor.clone())),
                _ => engine.upload(tensor.clone()),
            };
            let inputs = variables.iter().chain(&rest).map(place).collect::<Result<Values>>().unwrap();
            let outcome = (kernel.run)(inputs);
            let why = match (case["error"].as_str(), outcome) {
                (_, Ok(EngineOutcome::Declined(_))) => continue,
                (Some(class), Ok(EngineOutcome::Done(values))) => format!("answered {values:?}, wanted {class}"),
                (_, Err(failure)) => failure.to_string(),
                (None, Ok(EngineOutcome::Done(values))) => {
                    *ran.entry(op.replace("Resource", "")).or_default() += 1;
                    let got: Vec<Tensor> = values.into_iter().map(|value| value.into_host().unwrap()).collect();
                    let case = loosened(&case, 60.0, &wanted);
                    match got.iter().zip(&wanted).try_for_each(|(got, want)| same(&case, got, want)) {
                        Ok(()) if got.len() == wanted.len() => continue,
                        Ok(()) => format!("{} outputs, wanted {}", got.len(), wanted.len()),
                        Err(why) => why,
                    }
                }
            };
            wrong.push(format!("{op} {} {} {}: {why}", case["attrs"], case["variables"], case["inputs"]));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    for op in ["GradientDescent", "Momentum", "KerasMomentum", "Adagrad", "Adadelta", "Adam", "RMSProp"] {
        assert!(ran.contains_key(&format!("Apply{op}")), "never ran Apply{op}: {ran:?}");
    }
    assert!(ran.contains_key("ScatterAdd"), "{ran:?}");
}

#[test]
fn a_gpu_adds_to_variables() {
    let Some(engine) = gpu("sums on a GPU") else { return };
    for (op, wanted) in [("AssignAdd", [1.5, 1.0]), ("AssignSubVariableOp", [0.5, 3.0])] {
        let attrs = meshtf_graph::Attrs::default();
        let node =
            KernelNode { name: "update", op, attrs: &attrs, inputs: &[DType::F32; 2], outputs: &[], constants: 0 };
        let mut kernel = engine.compile(&node).unwrap().unwrap();
        let values = [[1f32, 2.0], [0.5, -1.0]].map(|values| engine.keep(Tensor::vector(values.to_vec())).unwrap());
        let EngineOutcome::Done(values) = (kernel.run)(Values::from_iter(values)).unwrap() else {
            panic!("{op} was declined")
        };
        assert_eq!(values[0].clone().into_host().unwrap().slice::<f32>().unwrap(), wanted, "{op}");
    }
}

#[test]
fn what_is_made_of_single_numbers_stays_with_the_host_of_a_gpu() {
    let Some(engine) = gpu("single numbers beside a GPU") else { return };
    let attrs = meshtf_graph::Attrs::default();
    let node =
        KernelNode { name: "product", op: "Mul", attrs: &attrs, inputs: &[DType::F32; 2], outputs: &[], constants: 0 };
    let node = KernelNode { outputs: &[meshtf_graph::OutputType { dtype: DType::F32, is_ref: false }], ..node };
    let kernel = engine.compile(&node).unwrap().unwrap();
    let number = Value::Host(Tensor::scalar(0.9f32));
    assert!(kernel.leaves([Some(&number), Some(&number)]));
    let many = engine.keep(Tensor::vector(vec![1f32, 2.0])).unwrap();
    assert!(!kernel.leaves([Some(&many), Some(&number)]));
}

#[test]
fn large_grouped_convolutions_are_cut() {
    use burn_backend::ops::{ConvOptions, ModuleOps};
    use burn_backend::{TensorData, TensorMetadata, ops::FloatTensorOps, try_read_sync};
    use burn_flex::Flex;
    use serde_json::json;

    // Integers small enough that no sum rounds.
    let numbers = |dims: [usize; 4]| {
        let count: usize = dims.iter().product();
        Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 5) as f32 - 2.0).collect::<Vec<_>>())
    };
    let raw = |tensor: &Tensor| {
        let data = TensorData::new(tensor.slice::<f32>().unwrap().to_vec(), tensor.dims().to_vec());
        Flex::float_from_data(data, &Default::default())
    };
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let attrs = json!({"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NCHW"});
    let check = |op: &str, inputs: [Tensor; 3], wanted: burn_flex::FlexTensor, of_filter: bool| {
        let inputs = if op == "Conv2D" { &inputs[..2] } else { &inputs[..] };
        let case = json!({"op": op, "attrs": attrs});
        let answer = run(&*engine, &case, inputs, true).unwrap().expect("an answer").remove(0);
        let wanted = if of_filter { Flex::float_permute(wanted, &[2, 3, 1, 0]) } else { wanted };
        assert_eq!(answer.dims(), wanted.shape().to_vec(), "{op}");
        let wanted = try_read_sync(Flex::float_into_data(wanted)).unwrap().unwrap();
        let differs =
            answer.slice::<f32>().unwrap().iter().zip(wanted.as_slice::<f32>().unwrap()).position(|(x, y)| x != y);
        assert_eq!(differs, None, "{op}");
    };
    let shape = |dims: &[usize]| Tensor::vector(dims.iter().map(|&size| size as i32).collect::<Vec<_>>());
    // Part of a group at a time, and several groups at a time.
    for (side, taken, groups) in [(64, 128, 2), (208, 8, 32)] {
        let (image, filter) = (numbers([1, 256, side, side]), numbers([5, 5, taken, 256]));
        let options = || ConvOptions::new([1, 1], [2, 2], [1, 1], groups);
        let weights = || Flex::float_permute(raw(&filter), &[3, 2, 0, 1]);
        let (x, gradient) = (raw(&image), raw(&image));
        let forward = Flex::conv2d(x.clone(), weights(), None, options());
        check("Conv2D", [image.clone(), filter.clone(), image.clone()], forward, false);
        let to_image = Flex::conv2d_x_backward(x.clone(), weights(), gradient.clone(), options());
        check("Conv2DBackpropInput", [shape(image.dims()), filter.clone(), image.clone()], to_image, false);
        let to_filter = Flex::conv2d_weight_backward(x, weights(), gradient, options());
        check("Conv2DBackpropFilter", [image.clone(), shape(filter.dims()), image.clone()], to_filter, true);
    }
}

/// Integers small enough that no sum rounds.
fn whole_numbers(dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|i| (i * 7919 % 11) as f32 - 5.0).collect::<Vec<_>>())
}

fn sizes_of(tensor: &Tensor) -> Tensor {
    Tensor::vector(tensor.dims().iter().map(|&size| size as i32).collect::<Vec<_>>())
}

/// Compares the engine's outputs with the host's.
fn same_as_the_host(engine: &dyn Engine, op: &str, attrs: &serde_json::Value, inputs: &[Tensor]) {
    let case = serde_json::json!({"op": op, "attrs": attrs});
    let got = run(engine, &case, inputs, true).unwrap().expect("an answer").remove(0);
    let mut host = with_node(&case, inputs, meshtf_kernels::compile).unwrap().unwrap();
    let want = host(inputs.iter().cloned().collect()).unwrap().remove(0);
    assert!(got == want, "{op} with {attrs} of {:?}", inputs.iter().map(Tensor::shape).collect::<Vec<_>>());
}

#[test]
fn convolutions_of_either_layout_are_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let check = |op: &str, format: &str, stride: usize, inputs: &[Tensor]| {
        let strides = if format == "NCHW" { [1, 1, stride, stride] } else { [1, stride, stride, 1] };
        let attrs = serde_json::json!({"strides": strides, "padding": "SAME", "data_format": format});
        same_as_the_host(&*engine, op, &attrs, inputs);
    };
    for (stride, [high, wide]) in [(1, [9, 14]), (2, [5, 7])] {
        for format in ["NHWC", "NCHW"] {
            let image = |height: usize, width: usize, channels: usize| match format {
                "NCHW" => whole_numbers(&[2, channels, height, width]),
                _ => whole_numbers(&[2, height, width, channels]),
            };
            let (image, filter, gradient) = (image(9, 14, 6), whole_numbers(&[3, 5, 6, 20]), image(high, wide, 20));
            check("Conv2D", format, stride, &[image.clone(), filter.clone()]);
            check("Conv2DBackpropInput", format, stride, &[sizes_of(&image), filter.clone(), gradient.clone()]);
            check("Conv2DBackpropFilter", format, stride, &[image, sizes_of(&filter), gradient]);
        }
    }
}

#[test]
fn depthwise_convolutions_are_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    for (stride, padding, dilation, [high, wide]) in [
        (1, "SAME", 1, [9, 14]),
        (2, "SAME", 1, [5, 7]),
        (2, "VALID", 1, [4, 5]),
        (1, "VALID", 2, [5, 6]),
        (1, "SAME", 3, [9, 14]),
    ] {
        let attrs = serde_json::json!({
            "strides": [1, stride, stride, 1], "padding": padding, "dilations": [1, dilation, dilation, 1],
        });
        for many in [1, 3] {
            let (image, filter) = (whole_numbers(&[2, 9, 14, 19]), whole_numbers(&[3, 5, 19, many]));
            let gradient = whole_numbers(&[2, high, wide, 19 * many]);
            let check = |op: &str, inputs: &[Tensor]| same_as_the_host(&*engine, op, &attrs, inputs);
            check("DepthwiseConv2dNative", &[image.clone(), filter.clone()]);
            let from = [sizes_of(&image), filter.clone(), gradient.clone()];
            check("DepthwiseConv2dNativeBackpropInput", &from);
            check("DepthwiseConv2dNativeBackpropFilter", &[image, sizes_of(&filter), gradient]);
        }
    }
}

#[test]
fn convolutions_of_volumes_are_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    for (strides, padding, dilations, space) in [
        ([1, 1, 1], "SAME", [1, 1, 1], [6, 9, 8]),
        ([2, 1, 3], "SAME", [1, 1, 1], [3, 9, 3]),
        ([1, 2, 1], "VALID", [1, 1, 1], [4, 4, 7]),
        ([1, 1, 1], "VALID", [2, 1, 3], [2, 7, 5]),
    ] {
        let five = |[depth, height, width]: [usize; 3]| [1, depth, height, width, 1];
        let attrs = serde_json::json!({"strides": five(strides), "padding": padding, "dilations": five(dilations)});
        let (volumes, filter) = (whole_numbers(&[2, 6, 9, 8, 5]), whole_numbers(&[3, 3, 2, 5, 7]));
        let gradient = whole_numbers(&[2, space[0], space[1], space[2], 7]);
        let check = |op: &str, inputs: &[Tensor]| same_as_the_host(&*engine, op, &attrs, inputs);
        check("Conv3D", &[volumes.clone(), filter.clone()]);
        check("Conv3DBackpropInputV2", &[sizes_of(&volumes), filter.clone(), gradient.clone()]);
        check("Conv3DBackpropFilterV2", &[volumes, sizes_of(&filter), gradient]);
    }
}

#[test]
fn pools_of_volumes_are_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    // Means are divided by a power of two, so that they are exact on either side.
    for (window, strides, padding, space) in [
        ([2, 2, 2], [2, 2, 2], "SAME", [3, 5, 4]),
        ([2, 4, 1], [1, 2, 3], "VALID", [5, 3, 3]),
        ([1, 2, 2], [1, 1, 1], "SAME", [6, 9, 8]),
        ([4, 1, 2], [3, 1, 2], "VALID", [1, 9, 4]),
    ] {
        let five = |[depth, height, width]: [usize; 3]| [1, depth, height, width, 1];
        let attrs = serde_json::json!({"ksize": five(window), "strides": five(strides), "padding": padding});
        let (volumes, gradient) =
            (whole_numbers(&[2, 6, 9, 8, 5]), whole_numbers(&[2, space[0], space[1], space[2], 5]));
        let check = |op: &str, inputs: &[Tensor]| same_as_the_host(&*engine, op, &attrs, inputs);
        check("MaxPool3D", std::slice::from_ref(&volumes));
        check("MaxPool3DGrad", &[volumes.clone(), gradient.clone(), gradient.clone()]);
        check("AvgPool3D", std::slice::from_ref(&volumes));
        check("AvgPool3DGrad", &[sizes_of(&volumes), gradient]);
    }
}

#[test]
fn the_product_of_a_column_and_a_row_is_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    for (rows, columns) in [(1, 600), (700, 1), (700, 5), (3, 16), (700, 300)] {
        for (of_column, of_row) in [(false, false), (true, false), (false, true), (true, true)] {
            let attrs = serde_json::json!({"transpose_a": of_column, "transpose_b": of_row});
            let column = whole_numbers(&if of_column { [1, rows] } else { [rows, 1] });
            let row = whole_numbers(&if of_row { [columns, 1] } else { [1, columns] });
            same_as_the_host(&*engine, "MatMul", &attrs, &[column, row]);
        }
    }
}

#[test]
fn what_is_padded_and_joined_is_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    let none = serde_json::json!({});
    for dims in [[2, 9, 14, 19], [3, 120, 90, 33]] {
        let image = whole_numbers(&dims);
        let sides = Tensor::from_vec([4, 2], vec![0, 0, 2, 1, 0, 3, 0, 0]);
        same_as_the_host(&*engine, "Pad", &none, &[image.clone(), sides.clone()]);
        same_as_the_host(&*engine, "PadV2", &none, &[image.clone(), sides.clone(), Tensor::scalar(-1.5f32)]);
        for mode in ["REFLECT", "SYMMETRIC"] {
            let all = Tensor::from_vec([4, 2], vec![1, 0, 2, 1, 0, 3, 5, 5]);
            same_as_the_host(&*engine, "MirrorPad", &serde_json::json!({"mode": mode}), &[image.clone(), all]);
        }
        let parts = [image.clone(), whole_numbers(&dims), image.clone()];
        for axis in 0..4 {
            let joined: Vec<Tensor> = parts.iter().cloned().chain([Tensor::scalar(axis)]).collect();
            same_as_the_host(&*engine, "ConcatV2", &serde_json::json!({"N": 3}), &joined);
            same_as_the_host(&*engine, "Pack", &serde_json::json!({"N": 3, "axis": axis}), &parts);
        }
    }
}

#[test]
fn reductions_over_any_axes_are_the_hosts() {
    let engine = adapters::cpu(BackendChoice::Flex).open().unwrap();
    for dims in [[7, 30, 3, 40], [70, 20, 1, 300]] {
        let x = whole_numbers(&dims);
        for axes in [vec![0], vec![1], vec![3], vec![1, 2], vec![0, 1], vec![0, 3], vec![-2, -1], vec![0, 1, 2, 3]] {
            let inputs = [x.clone(), Tensor::vector(axes)];
            for (op, keep_dims) in
                [("Sum", false), ("Mean", true), ("Max", false), ("Min", true), ("EuclideanNorm", false)]
            {
                same_as_the_host(&*engine, op, &serde_json::json!({"keep_dims": keep_dims}), &inputs);
            }
        }
        same_as_the_host(&*engine, "L2Loss", &serde_json::json!({}), std::slice::from_ref(&x));
        for format in ["NHWC", "NCHW"] {
            let attrs = serde_json::json!({"data_format": format});
            same_as_the_host(&*engine, "BiasAddGrad", &attrs, std::slice::from_ref(&x));
            let channels = if format == "NHWC" { dims[3] } else { dims[1] };
            same_as_the_host(&*engine, "BiasAdd", &attrs, &[x.clone(), whole_numbers(&[channels])]);
            for dims in [vec![300, 17], vec![9, 40, 30], vec![3, 20, 6, 5, 4]] {
                same_as_the_host(&*engine, "BiasAddGrad", &attrs, &[whole_numbers(&dims)]);
            }
        }
    }
}
