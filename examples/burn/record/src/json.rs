//! Cases as JSON, a line for each, and the comparison of two such lists.

use std::collections::BTreeMap;

use burn_backend::{DType, TensorData};
use burn_ir::TensorIr;
use serde_json::Value;

use crate::case::Recorded;

/// The tolerance of floats, relative to the larger of the value and 1.
const TOLERANCE: f64 = 1e-5;

pub fn list(cases: &[Recorded]) -> String {
    let lines: Vec<String> = cases.iter().map(line).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

fn line(case: &Recorded) -> String {
    let operation = serde_json::to_string(&case.operation).expect("an operation is JSON");
    format!(
        r#"{{"name":"{}","operations":[{operation}],"inputs":[{}],"outputs":[{}]}}"#,
        case.name,
        tensors(&case.inputs),
        tensors(&case.outputs)
    )
}

fn tensors(list: &[(TensorIr, TensorData)]) -> String {
    let one = |(ir, data): &(TensorIr, TensorData)| {
        let shape = serde_json::to_string(ir.shape.as_slice()).expect("numbers are JSON");
        format!(r#"[{},"{}",{shape},[{}]]"#, ir.id.value(), dtype_name(data.dtype()), values(data).join(","))
    };
    list.iter().map(one).collect::<Vec<_>>().join(",")
}

/// The name of a dtype in meshtf.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::I64 => "int64",
        DType::I32 => "int32",
        DType::I16 => "int16",
        DType::I8 => "int8",
        DType::U64 => "uint64",
        DType::U32 => "uint32",
        DType::U16 => "uint16",
        DType::U8 => "uint8",
        DType::Bool(_) => "bool",
        other => panic!("no case has {other:?}"),
    }
}

/// The shortest decimal of each that reads back as the same number of its type.
fn values(data: &TensorData) -> Vec<String> {
    match data.dtype() {
        DType::F64 => data.iter::<f64>().map(|x| float(format!("{x:?}"), x)).collect(),
        dtype if dtype.is_float() => data.iter::<f32>().map(|x| float(format!("{x:?}"), x.into())).collect(),
        DType::U64 => data.iter::<u64>().map(|x| x.to_string()).collect(),
        DType::Bool(_) => data.iter::<bool>().map(|x| x.to_string()).collect(),
        _ => data.iter::<i64>().map(|x| x.to_string()).collect(),
    }
}

fn float(text: String, x: f64) -> String {
    if x.is_nan() {
        "\"nan\"".into()
    } else if x.is_infinite() {
        if x > 0.0 { "\"inf\"".into() } else { "\"-inf\"".into() }
    } else if x == 0.0 {
        text
    } else {
        text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
    }
}

/// A line for each case of `old` and `new` that is in one of them alone, or answers differently.
pub fn differences(old: &str, new: &str) -> Result<Vec<String>, String> {
    let (old, new) = (by_name(old)?, by_name(new)?);
    let mut out: Vec<String> =
        new.keys().filter(|k| !old.contains_key(*k)).map(|k| format!("{k}: not recorded")).collect();
    for (name, was) in &old {
        match new.get(name) {
            None => out.push(format!("{name}: burn does not answer it now")),
            Some(is) if !close(was, is) => out.push(format!("{name}: was {}, is {}", was["outputs"], is["outputs"])),
            Some(_) => {}
        }
    }
    Ok(out)
}

fn by_name(text: &str) -> Result<BTreeMap<String, Value>, String> {
    let list: Vec<Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    list.into_iter()
        .map(|case| Ok((case["name"].as_str().ok_or("a case without a name")?.to_owned(), case)))
        .collect::<Result<_, &str>>()
        .map_err(str::to_owned)
}

fn close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| close(v, w)))
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1.0),
            _ => false,
        },
        _ => a == b,
    }
}
