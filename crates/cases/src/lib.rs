//! Recorded cases of TensorFlow's kernels (`tests/data/kernels/*.json`) and of its updates of variables (`tests/data/updates`),
//! for the tests of kernels and engines.
//!
//! - **Is**: the reader of cases, the node of a case, and the comparison with its recorded answer.
//! - **Knows**: kernels, and the folder of the recorded data.
//! - **Never** is shipped, or runs a kernel itself.
//!
//! A file is a list of cases: `op`, `attrs` (only those that differ from the default or cannot be inferred), `inputs`, and
//! either `outputs` or `error` (the canonical class; `message` is text that meshtf's message must contain). A tensor is
//! `[dtype, shape, values]`; a complex number is a list of its two parts, floats that JSON lacks are "nan", "inf" and "-inf",
//! strings have one character per byte. `rtol` and `atol` replace the dtype's tolerance, `check: "shape"` compares dtype and
//! shape alone, `gpu: false` skips the GPU. `limits.json` is not recorded but written for meshtf: requests that are refused
//! before memory is allocated for them. `special.json` has NaN, the infinities, zeros, denormals and the ends of float32, for
//! all elementwise ops.

use std::path::PathBuf;

use meshtf_graph::op::{self, AttrKind};
use meshtf_graph::{Attr, Attrs, Graph, NodeDef};
use meshtf_kernels::KernelNode;
use meshtf_tensor::failure::Result;
use meshtf_tensor::{Complex, DType, Data, Numeric, PartialShape, Shape, Tensor, with_float, with_stored};
use meshtf_testing::means::root;
use serde_json::Value;

/// The elements of a JSON array; none for any other value.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Every recorded case, with its file and index.
pub fn cases() -> Vec<(String, Value)> {
    let folder = root().join("tests/data/kernels");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    let read = |file: &PathBuf| -> Vec<(String, Value)> {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        all.into_iter().enumerate().map(|(i, case)| (format!("{name}[{i}]"), case)).collect()
    };
    files.iter().flat_map(read).collect()
}

/// Calls `f` with the node of a case. The op is alone in a graph with placeholders as its inputs, so that attributes are
/// inferred and completed as usual.
pub fn with_node<T>(case: &Value, inputs: &[Tensor], f: impl FnOnce(&KernelNode) -> Result<T>) -> Result<T> {
    let op = case["op"].as_str().unwrap();
    let mut defs: Vec<NodeDef> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| NodeDef {
            name: format!("input{i}"),
            op: "Placeholder".into(),
            attrs: Attrs::from([("dtype", Attr::Type(input.dtype()))]),
            ..NodeDef::default()
        })
        .collect();
    let mut attrs = Attrs::default();
    for (name, value) in case["attrs"].as_object().into_iter().flatten() {
        attrs.set(name.as_str(), attr(op, name, value));
    }
    let names = (0..inputs.len()).map(|i| format!("input{i}")).collect();
    defs.push(NodeDef { name: "node".into(), op: op.into(), inputs: names, attrs, ..NodeDef::default() });
    let graph = Graph::new(defs)?;
    let node = graph.node(graph.find("node").unwrap());
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    f(&KernelNode {
        name: &node.name,
        op: node.op.runs_as().name,
        attrs: &node.attrs,
        inputs: &dtypes,
        outputs: &node.outputs,
        constants: 0,
    })
}

/// An attribute of an op, in the form of a case.
pub fn attr(op: &str, name: &str, value: &Value) -> Attr {
    let def = op::lookup(op).unwrap().attr(name).unwrap_or_else(|| panic!("{op} has no attribute {name}"));
    let dtype = |value: &Value| DType::from_name(value.as_str().unwrap()).unwrap();
    let shape = |value: &Value| {
        PartialShape(value.as_array().map(|dims| dims.iter().map(|d| d.as_u64().map(|d| d as usize)).collect()))
    };
    match (def.kind, def.is_list) {
        (AttrKind::Int, false) => Attr::Int(value.as_i64().unwrap()),
        (AttrKind::Int, true) => Attr::Ints(list(value).iter().map(|v| v.as_i64().unwrap()).collect()),
        (AttrKind::Float, false) => Attr::Float(value.as_f64().unwrap() as f32),
        (AttrKind::Float, true) => Attr::Floats(list(value).iter().map(|v| v.as_f64().unwrap() as f32).collect()),
        (AttrKind::Bool, false) => Attr::Bool(value.as_bool().unwrap()),
        (AttrKind::Str, false) => Attr::Str(value.as_str().unwrap().into()),
        (AttrKind::Type, false) => Attr::Type(dtype(value)),
        (AttrKind::Type, true) => Attr::Types(list(value).iter().map(dtype).collect()),
        (AttrKind::Shape, false) => Attr::Shape(shape(value)),
        (AttrKind::Shape, true) => Attr::Shapes(list(value).iter().map(shape).collect()),
        (AttrKind::Str, true) => Attr::Strs(list(value).iter().map(|v| v.as_str().unwrap().into()).collect()),
        (kind, is_list) => panic!("no case has needed {kind:?}, list: {is_list}"),
    }
}

/// `[dtype, shape, values]` as a tensor.
pub fn tensor(value: &Value) -> Tensor {
    let dtype = DType::from_name(value[0].as_str().unwrap()).unwrap();
    let shape: Shape = list(&value[1]).iter().map(|d| d.as_u64().unwrap() as usize).collect();
    let values = list(&value[2]);
    let float = |v: &Value| v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap());
    let data = match dtype {
        DType::Bool => Data::Bool(values.iter().map(|v| v.as_bool().unwrap()).collect()),
        DType::String => {
            Data::String(values.iter().map(|v| v.as_str().unwrap().chars().map(|c| c as u8).collect()).collect())
        }
        DType::U64 => Data::U64(values.iter().map(|v| v.as_u64().unwrap()).collect()),
        DType::C64 => {
            Data::C64(values.iter().map(|v| Complex::new(float(&v[0]) as f32, float(&v[1]) as f32)).collect())
        }
        DType::C128 => Data::C128(values.iter().map(|v| Complex::new(float(&v[0]), float(&v[1]))).collect()),
        _ => {
            return with_float!(dtype, T => Tensor::from_vec(shape.clone(), values.iter().map(|v| {
                <T as meshtf_tensor::Numeric>::from_f64(float(v))
            }).collect()))
            .or_else(|| {
                with_stored!(dtype, T => Tensor::from_stored(dtype, shape, values.iter().map(|v| {
                <T as meshtf_tensor::Numeric>::from_i64(v.as_i64().unwrap())
            }).collect()))
            })
            .unwrap();
        }
    };
    Tensor::new(shape, data).unwrap()
}

/// Whether an answer equals the recorded one, within the tolerance of the case.
///
/// # Errors
/// The first element that differs.
pub fn same(case: &Value, got: &Tensor, want: &Tensor) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
        let (got, want) = ((got.dtype(), got.shape()), (want.dtype(), want.shape()));
        return Err(format!("answered {} {}, wanted {} {}", got.0, got.1, want.0, want.1));
    }
    if case["check"] == "shape" {
        return Ok(());
    }
    let close = |x: f64, y: f64| {
        let default = match got.dtype() {
            DType::F16 => 2e-3,
            DType::BF16 => 1.6e-2,
            DType::F32 | DType::C64 => 2e-6,
            _ => 1e-12,
        };
        let rtol = case["rtol"].as_f64().unwrap_or(default);
        let atol = case["atol"].as_f64().unwrap_or(default / 10.0);
        x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= atol + rtol * y.abs()
    };
    let parts = |tensor: &Tensor| -> Option<Vec<[f64; 2]>> {
        match tensor.data() {
            Data::C64(v) => Some(v.iter().map(|x| [f64::from(x.re), f64::from(x.im)]).collect()),
            Data::C128(v) => Some(v.iter().map(|x| [x.re, x.im]).collect()),
            _ => None,
        }
    };
    if let (Some(got), Some(want)) = (parts(got), parts(want)) {
        // Each part may differ by as much as the magnitude of the whole number allows.
        let far = |x: &[f64; 2], y: &[f64; 2]| {
            let size = y[0].hypot(y[1]);
            let near = |x: f64, y: f64| close(x, y) || (size.is_finite() && close(size + x - y, size));
            !(near(x[0], y[0]) && near(x[1], y[1]))
        };
        let at = got.iter().zip(&want).position(|(x, y)| far(x, y));
        return at.map_or(Ok(()), |i| Err(format!("element {i} is {:?}, wanted {:?}", got[i], want[i])));
    }
    let differs = with_float!(got.dtype(), T => {
        let (got, want) = (got.slice::<T>().unwrap(), want.slice::<T>().unwrap());
        got.iter()
            .zip(want)
            .position(|(x, y)| !close(Numeric::to_f64(*x), Numeric::to_f64(*y)))
            .map(|i| format!("element {i} is {:?}, wanted {:?}", got[i], want[i]))
    })
    .unwrap_or_else(|| (got != want).then(|| format!("answered {:?}, wanted {:?}", got.data(), want.data())));
    differs.map_or(Ok(()), Err)
}

/// Every recorded update of variables.
pub fn updates() -> Vec<Value> {
    let file = root().join("tests/data/updates/updates.json");
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// Calls `f` with the node of a case, with values instead of the references that the op takes.
pub fn with_update<T>(
    case: &Value,
    op: &str,
    variables: &[Tensor],
    rest: &[Tensor],
    f: impl FnOnce(&KernelNode) -> T,
) -> T {
    let def = op::lookup(op).unwrap();
    let mut attrs = Attrs::default();
    for attr in &def.attrs {
        match &attr.default {
            Some(value) => attrs.set(attr.name, value.clone()),
            None if attr.kind == AttrKind::Type && attr.name != "Tindices" => {
                attrs.set(attr.name, Attr::Type(variables[0].dtype()));
            }
            None => {}
        }
    }
    for (name, value) in case["attrs"].as_object().into_iter().flatten() {
        attrs.set(name.as_str(), attr(op, name, value));
    }
    let inputs: Vec<DType> = variables.iter().chain(rest).map(Tensor::dtype).collect();
    f(&KernelNode { name: "node", op, attrs: &attrs, inputs: &inputs, outputs: &[], constants: 0 })
}
