//! TensorFlow.js weights: `model.json` lists groups of tensors, and the files with the elements of each group, in a row.

use std::sync::Arc;

use meshtf_tensor::failure::Result;
use meshtf_tensor::{DType, Data, Shape, Tensor, half, memory};
use serde_json::Value;

use super::source::{self, Beside, Shared, bytes, joined};
use super::{Entry, Form, Held, Load, arrays, limit, sizes, wrong};

/// The largest model.json.
const MAX_JSON: u64 = 256 << 20;
/// Most files of elements.
const MAX_SHARDS: usize = 1 << 16;

pub fn read(file: &Shared, beside: &Beside) -> Result<Held> {
    let text = source::text(&**file, MAX_JSON)?;
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let mut held = Held::new(Form::TfJs, Vec::new());
    let groups =
        json.get("weightsManifest").and_then(Value::as_array).ok_or_else(|| wrong("it has no weightsManifest"))?;
    let mut shards = 0;
    for group in groups {
        let paths =
            group.get("paths").and_then(Value::as_array).ok_or_else(|| wrong("a group of weights has no paths"))?;
        shards += paths.len();
        if shards > MAX_SHARDS {
            return Err(limit(format!("it names more than {MAX_SHARDS} files")));
        }
        let open = |path: &Value| {
            let path = path.as_str().ok_or_else(|| wrong("a path is no text"))?;
            source::named(beside, path).map_err(|failure| wrong(format!("{path}: {}", failure.message)))
        };
        let elements = joined(paths.iter().map(open).collect::<Result<_>>()?);
        let weights = group.get("weights").and_then(Value::as_array).ok_or_else(|| wrong("a group has no weights"))?;
        let mut at = 0;
        for weight in weights {
            let name = weight.get("name").and_then(Value::as_str).ok_or_else(|| wrong("a tensor has no name"))?;
            let entry = entry(name, weight, &elements, &mut at);
            held.tensors.push(entry.map_err(|failure| wrong(format!("tensor {name}: {}", failure.message)))?);
        }
        if at != elements.length() {
            return Err(wrong(format!("its tensors take {at} bytes, and the files have {}", elements.length())));
        }
    }
    for key in ["format", "generatedBy", "convertedBy"] {
        if let Some(text) = json.get(key).and_then(Value::as_str) {
            held.notes.push((key.to_owned(), text.chars().take(80).collect()));
        }
    }
    Ok(held)
}

/// The elements in the file, if they are packed: float16, or integers with a scale.
enum Packed {
    Half,
    /// `integer * scale + least`.
    Scaled {
        is_wide: bool,
        scale: f64,
        least: f64,
    },
}

fn packed(weight: &Value) -> Result<Option<Packed>> {
    let Some(how) = weight.get("quantization") else { return Ok(None) };
    let number = |key: &str| {
        how.get(key).and_then(Value::as_f64).ok_or_else(|| wrong(format!("its quantization has no number {key:?}")))
    };
    match how.get("dtype").and_then(Value::as_str) {
        Some("float16") => Ok(Some(Packed::Half)),
        Some(own @ ("uint8" | "uint16")) => {
            Ok(Some(Packed::Scaled { is_wide: own == "uint16", scale: number("scale")?, least: number("min")? }))
        }
        other => Err(wrong(format!("its quantization is {other:?}; expected float16, uint8 or uint16"))),
    }
}

fn entry(name: &str, weight: &Value, elements: &Shared, at: &mut u64) -> Result<Entry> {
    let dims = weight.get("shape").and_then(Value::as_array).ok_or_else(|| wrong("it has no shape"))?;
    let dims: Option<Vec<u64>> = dims.iter().map(Value::as_u64).collect();
    let dims = dims.ok_or_else(|| wrong("its shape is no list of sizes"))?;
    let stated = weight.get("dtype").and_then(Value::as_str).unwrap_or_default();
    let dtype = match stated {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "int32" => DType::I32,
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "complex64" => DType::C64,
        "string" => return strings(name, dims, elements, at),
        other => return Err(wrong(format!("its dtype is {other:?}"))),
    };
    let packed = packed(weight)?;
    let (shape, n) = sizes(dims, dtype.size().unwrap_or(1))?;
    let width = match packed {
        None => dtype.size().unwrap_or(1),
        Some(Packed::Half | Packed::Scaled { is_wide: true, .. }) => 2,
        Some(Packed::Scaled { .. }) => 1,
    };
    let (begin, length) = (*at, (n * width) as u64);
    *at = begin.checked_add(length).filter(|&end| end <= elements.length()).ok_or_else(|| {
        wrong(format!("it takes {length} bytes from byte {begin} on, and the files have {}", elements.length()))
    })?;
    let Some(packed) = packed else {
        let of = (dtype, Shape::from(shape.clone()));
        return Ok(Entry::new(name, dtype, shape, length, arrays::plain(elements, begin, of, length)));
    };
    if !matches!(dtype, DType::F32 | DType::I32) {
        return Err(wrong(format!("{stated} has no quantization")));
    }
    let stored = match &packed {
        Packed::Half => "float16".to_owned(),
        Packed::Scaled { is_wide, .. } => format!("{} with a scale", if *is_wide { "uint16" } else { "uint8" }),
    };
    let (elements, of) = (Arc::clone(elements), shape.clone());
    let load: Load = Arc::new(move || {
        let raw = bytes(&*elements, begin, length)?;
        memory::admit(n * 4)?;
        let values: Vec<f32> = match packed {
            Packed::Half => raw.as_chunks().0.iter().map(|&two| half::f16::from_le_bytes(two).to_f32()).collect(),
            Packed::Scaled { is_wide, scale, least } => {
                let value = |int: u16| (f64::from(int) * scale + least) as f32;
                match is_wide {
                    true => raw.as_chunks().0.iter().map(|&two| value(u16::from_le_bytes(two))).collect(),
                    false => raw.iter().map(|&one| value(one.into())).collect(),
                }
            }
        };
        let data = match dtype {
            DType::I32 => Data::I32(values.into_iter().map(|value| value.round() as i32).collect()),
            _ => Data::F32(values),
        };
        Tensor::new(Shape::from(of.clone()), data)
    });
    Ok(Entry { stored, ..Entry::new(name, dtype, shape, length, load) })
}

/// Strings, each after its length in 4 bytes.
fn strings(name: &str, dims: Vec<u64>, elements: &Shared, at: &mut u64) -> Result<Entry> {
    let (shape, n) = sizes(dims, 4)?;
    let begin = *at;
    for _ in 0..n {
        let length = bytes(&**elements, *at, 4)?;
        let length = u64::from(u32::from_le_bytes([length[0], length[1], length[2], length[3]]));
        *at += 4 + length;
        if *at > elements.length() {
            return Err(wrong("a string ends after the files"));
        }
    }
    let (elements, of, length) = (Arc::clone(elements), shape.clone(), *at - begin);
    let load: Load = Arc::new(move || {
        let raw = bytes(&*elements, begin, length)?;
        let mut rest = &raw[..];
        let mut texts = Vec::with_capacity(n);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize).unwrap_or((after, &[]));
            texts.push(text.to_vec());
            rest = after;
        }
        Tensor::new(Shape::from(of.clone()), Data::String(texts))
    });
    Ok(Entry::new(name, DType::String, shape, length, load))
}
