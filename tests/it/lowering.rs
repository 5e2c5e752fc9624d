//! Every rule compared with the answers of burn's flex backend: the cases of `tests/data/burn/*.json`, which
//! `examples/burn/record` makes.
//!
//! A case is a list of operations (as burn's serde has them), the inputs `[id, dtype, shape, values]`, and the outputs in the
//! same form. Floats that JSON lacks are "nan", "inf" and "-inf". Each case runs twice: with its scalars as constants, and with
//! all of them fed.

mod by_hand;
mod ctc;
mod pools;
mod random;
mod variants;

use std::collections::BTreeSet;

use burn_ir::{IrVisitorMut, OperationIr, ScalarIr, TensorId};
use meshtf::{Client, LocalCluster, SessionOptions};
use meshtf_engine::adapters::BackendChoice;
use meshtf_graph::GraphBuilder;
use meshtf_tensor::device::Task;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, Data, Numeric, Shape, Tensor, with_float, with_integer};
use serde_json::Value;

use meshtf_lowering::{FedValue, Lowering, Scalars, computes_with_scalars, name, scalar_tensor};

/// The operations that meshtf refuses by name.
const REFUSED: &[&str] = &["Float::Quantize", "Float::Dequantize"];

/// Cases that need another relative tolerance, by the start of their names, and why.
const LOOSER: &[(&str, f64)] = &[
    // Of float64, TensorFlow's op adds the probabilities of two ways up in float32.
    ("module/ctc_loss 9", 1e-7),
    ("module/ctc_loss 10", 1e-7),
    // flex transforms float64 in float32.
    ("custom/signal::rfft 13", 1e-5),
    ("custom/signal::irfft 11", 1e-5),
];

/// Cases whose answer differs by design, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("numeric_float/sign 7", "the sign of NaN is NaN, as in TensorFlow, and not 0"),
    ("numeric_float/arg_max 12", "TensorFlow's ArgMax passes over NaN"),
    ("numeric_float/arg_min 10", "TensorFlow's ArgMin passes over NaN"),
    (
        "module/conv1d_weight_backward 7",
        "burn 0.22.1 lets a row too long run into the next one; a direct sum gives ours",
    ),
    ("module/conv1d_weight_backward 19", "the same"),
];

struct Case {
    name: String,
    operations: Vec<OperationIr>,
    inputs: Vec<(TensorId, Tensor)>,
    outputs: Vec<(TensorId, Tensor)>,
}

#[tokio::test]
async fn operations_answer_as_flex_does() {
    let cases = cases();
    assert!(cases.len() > 500, "only {} cases", cases.len());
    let cluster = LocalCluster::start(&[Task::new("local", 0)], BackendChoice::Flex).unwrap();
    let mut wrong = Vec::new();
    let different = |case: &&Case| !DIFFERENT.iter().any(|(name, _)| case.name == *name);
    for case in cases.iter().filter(different) {
        let outputs: Vec<TensorId> = case.outputs.iter().map(|(id, _)| *id).collect();
        for fed in [false, true] {
            let names: Vec<String> = case.operations.iter().map(name).collect();
            let is_refused = names.iter().any(|name| REFUSED.contains(&name.as_str()));
            let result = match run(&cluster, &case.operations, &case.inputs, &outputs, fed).await {
                Ok(_) if is_refused => Err("is answered, though it is listed as refused".to_owned()),
                Err(failure) if is_refused && failure.code == Code::Unimplemented => {
                    let named = names.iter().any(|name| failure.message.contains(name.split("::").last().unwrap()));
                    named.then_some(()).ok_or_else(|| format!("refused without its name: {}", failure.message))
                }
                Err(failure) => Err(failure.to_string()),
                Ok(got) => check(case, &got),
            };
            if let Err(why) = result {
                wrong.push(format!("{}{}: {why}", case.name, if fed { " (scalars fed)" } else { "" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} runs are wrong:\n{}", wrong.len(), 2 * cases.len(), wrong.join("\n"));
}

/// Lowers operations and runs them; returns the values of `outputs`.
async fn run(
    cluster: &LocalCluster,
    operations: &[OperationIr],
    inputs: &[(TensorId, Tensor)],
    outputs: &[TensorId],
    fed: bool,
) -> Result<Vec<Tensor>> {
    let mut operations = operations.to_vec();
    let mut scalars = Listing(Vec::new());
    if fed {
        let computing = operations.iter_mut().filter(|operation| computes_with_scalars(operation));
        computing.for_each(|operation| operation.visit_mut(&mut scalars));
    }
    let unknown = vec![None; scalars.0.len()];
    let mut graph = GraphBuilder::new();
    let mut lowering = Lowering::new(&mut graph, if fed { Scalars::Listed(&unknown) } else { Scalars::Constant });
    let mut feeds = Vec::new();
    for (id, value) in inputs {
        let placeholder =
            lowering.graph().placeholder(&format!("input_{}", id.value()), value.dtype(), value.shape())?;
        feeds.push((lowering.graph().tensor_name(placeholder), value.clone()));
        lowering.bind(*id, placeholder);
    }
    operations.iter().try_for_each(|operation| lowering.operation(operation))?;
    for fed in lowering.fed() {
        let value = match fed.what {
            FedValue::Scalar(place) => scalar_tensor(scalars.0[place], fed.dtype)?,
            FedValue::Seed(number) => Tensor::from([17, number as i64]),
        };
        feeds.push((fed.name.clone(), value));
    }
    let values: Vec<_> = outputs.iter().map(|id| lowering.value(*id)).collect();
    let fetches: Option<Vec<String>> = values.iter().map(|value| Some(graph.tensor_name((*value)?))).collect();
    let fetches = fetches.ok_or_else(|| Failure::invalid("an output was not made"))?;
    let session = cluster.session(graph.finish()?, &Task::new("local", 0), SessionOptions::default()).await?;
    let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    Ok(session.run().feeds(&feeds).fetches(&fetches).await?.values)
}

/// Moves the scalars of operations out into a list.
struct Listing(Vec<ScalarIr>);

impl IrVisitorMut for Listing {
    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        self.0.push(*scalar);
        *scalar = ScalarIr::UInt(self.0.len() as u64 - 1);
    }
}

fn check(case: &Case, got: &[Tensor]) -> Result<(), String> {
    got.iter().zip(&case.outputs).enumerate().try_for_each(|(i, (got, (_, wanted)))| {
        if (got.dtype(), got.shape()) != (wanted.dtype(), wanted.shape()) {
            let (is, should) = ((got.dtype(), got.shape()), (wanted.dtype(), wanted.shape()));
            return Err(format!("output {i} is {} {}, wanted {} {}", is.0, is.1, should.0, should.1));
        }
        let (mut rtol, atol) = match got.dtype() {
            DType::F16 => (2e-3, 1e-3),
            DType::BF16 => (1.6e-2, 1e-2),
            DType::F32 => (1e-5, 1e-6),
            _ => (1e-10, 1e-12),
        };
        if let Some((_, looser)) = LOOSER.iter().find(|(start, _)| case.name.starts_with(start)) {
            rtol = *looser;
        }
        let close = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= atol + rtol * y.abs();
        let differs = with_float!(got.dtype(), T => {
            let (got, wanted) = (got.slice::<T>().unwrap(), wanted.slice::<T>().unwrap());
            let place = got.iter().zip(wanted).position(|(x, y)| !close(Numeric::to_f64(*x), Numeric::to_f64(*y)));
            place.map(|at| format!("element {at} of output {i} is {:?}, wanted {:?}", got[at], wanted[at]))
        })
        .unwrap_or_else(|| (got != wanted).then(|| format!("output {i} is {got}, wanted {wanted}")));
        differs.map_or(Ok(()), Err)
    })
}

#[test]
fn every_operation_is_recorded_or_accounted_for() {
    let mut known: BTreeSet<String> = REFUSED.iter().map(|&name| name.to_owned()).collect();
    known.extend(variants::UNRECORDED.iter().map(|(name, _)| (*name).to_owned()));
    let recorded: BTreeSet<String> =
        cases().iter().flat_map(|case| case.operations.iter().map(name).collect::<Vec<_>>()).collect();
    let doubled: Vec<_> =
        variants::UNRECORDED.iter().filter(|(name, _)| recorded.contains(*name)).map(|(name, _)| name).collect();
    assert!(doubled.is_empty(), "recorded by now: {doubled:?}");
    known.extend(recorded);
    let all = variants::variants();
    assert!(all.len() > 270, "only {} variants: {all:?}", all.len());
    let missing: Vec<_> = all.iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "neither recorded nor accounted for: {missing:?}");
}

fn cases() -> Vec<Case> {
    let folder = meshtf_testing::means::root().join("tests/data/burn");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(!all.is_empty(), "{} has no case", file.display());
        for case in all {
            let name = case["name"].as_str().unwrap().to_owned();
            let operations = serde_json::from_value(case["operations"].clone());
            let operations: Vec<OperationIr> = operations.unwrap_or_else(|error| panic!("{name}: {error}"));
            let tensors = |key: &str| case[key].as_array().unwrap().iter().map(tensor);
            let outputs = tensors("outputs").map(|(id, value)| (id, promised(&operations, id, value))).collect();
            cases.push(Case { name, inputs: tensors("inputs").collect(), outputs, operations });
        }
    }
    cases
}

/// An output in the dtype that its operation promises. flex returns indices as int64 and some bools as uint8 in any case.
fn promised(operations: &[OperationIr], id: TensorId, value: Tensor) -> Tensor {
    let out = operations.iter().flat_map(|op| op.outputs()).find(|out| out.id == id).expect("an operation makes it");
    let dtype = meshtf_lowering::dtype(out.dtype).unwrap();
    if dtype == value.dtype() || dtype.is_float() {
        return value;
    }
    if dtype == DType::Bool {
        let bits = value.slice::<u8>().unwrap();
        return Tensor::from_vec(value.shape().clone(), bits.iter().map(|&bit| bit != 0).collect::<Vec<bool>>());
    }
    let values = value.to_i64s().unwrap();
    with_integer!(dtype, T => {
        Tensor::from_vec(value.shape().clone(), values.iter().map(|&v| <T as Numeric>::from_i64(v)).collect())
    })
    .unwrap()
}

/// `[id, dtype, shape, values]`.
fn tensor(value: &Value) -> (TensorId, Tensor) {
    let id = TensorId::new(value[0].as_u64().unwrap());
    let dtype = DType::from_name(value[1].as_str().unwrap()).unwrap();
    let shape: Shape = value[2].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect();
    let values = value[3].as_array().unwrap();
    let float = |v: &Value| v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap());
    let tensor = match dtype {
        DType::Bool => Tensor::new(shape, Data::Bool(values.iter().map(|v| v.as_bool().unwrap()).collect())).unwrap(),
        DType::U64 => Tensor::from_vec(shape, values.iter().map(|v| v.as_u64().unwrap()).collect()),
        _ => with_float!(dtype, T => {
            Tensor::from_vec(shape.clone(), values.iter().map(|v| <T as Numeric>::from_f64(float(v))).collect())
        })
        .or_else(|| {
            with_integer!(dtype, T => {
                Tensor::from_vec(shape, values.iter().map(|v| <T as Numeric>::from_i64(v.as_i64().unwrap())).collect())
            })
        })
        .unwrap(),
    };
    (id, tensor)
}
