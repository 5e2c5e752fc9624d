//! DecodeJSONExample: the JSON form of an Example as its binary form, with the fields in the order of the text.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{Kind, Value, parse_relaxed};
use meshtf_tensor::memory;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::super::call::{check_text_bytes, kernel as call};
use super::super::{HostKernel, KernelNode};

pub(super) fn kernel(_: &KernelNode) -> Result<HostKernel> {
    Ok(call(|[texts]| {
        let mut all = Vec::with_capacity(texts.len());
        for text in texts.slice::<Vec<u8>>()? {
            check_text_bytes(text.len())?;
            memory::admit(text.len().saturating_mul(16))?;
            all.push(example(text)?);
        }
        Ok(Tensor::from_vec(texts.shape().clone(), all))
    }))
}

fn example(text: &[u8]) -> Result<Vec<u8>> {
    let wrong = |why: String| Failure::invalid(format!("Error while parsing JSON: {why}"));
    let text = std::str::from_utf8(text).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    let value = parse_relaxed(text).map_err(|fault| wrong(format!("{} at byte {}", fault.why, fault.at)))?;
    let mut bytes = Vec::new();
    fields(&value, "Example", &mut bytes, |name, value, bytes| match name {
        "features" => nested(1, value, bytes, features),
        _ => Err(unknown(name, "Example")),
    })
    .map_err(wrong)?;
    Ok(bytes)
}

type Written = std::result::Result<(), String>;

fn unknown(name: &str, message: &str) -> String {
    format!("a {message} has no field {name:?}")
}

/// Each member of an object; null is a field that is not set.
fn fields(
    value: &Value,
    message: &str,
    bytes: &mut Vec<u8>,
    mut field: impl FnMut(&str, &Value, &mut Vec<u8>) -> Written,
) -> Written {
    let Kind::Object(members) = &value.kind else {
        return Err(format!("a {message} is an object, at byte {}", value.at));
    };
    for member in members.iter().filter(|member| member.value.kind != Kind::Null) {
        field(&member.key, &member.value, bytes)?;
    }
    Ok(())
}

/// A field that is a message.
fn nested(
    tag: u32,
    value: &Value,
    bytes: &mut Vec<u8>,
    write: impl FnOnce(&Value, &mut Vec<u8>) -> Written,
) -> Written {
    let mut inner = Vec::new();
    write(value, &mut inner)?;
    put(tag, &inner, bytes);
    Ok(())
}

fn put(tag: u32, content: &[u8], bytes: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, bytes);
    encode_varint(content.len() as u64, bytes);
    bytes.extend_from_slice(content);
}

fn features(value: &Value, bytes: &mut Vec<u8>) -> Written {
    fields(value, "Features", bytes, |name, value, bytes| match name {
        "feature" => fields(value, "map", bytes, |key, value, bytes| {
            let mut entry = Vec::new();
            put(1, key.as_bytes(), &mut entry);
            nested(2, value, &mut entry, feature)?;
            put(1, &entry, bytes);
            Ok(())
        }),
        _ => Err(unknown(name, "Features")),
    })
}

fn feature(value: &Value, bytes: &mut Vec<u8>) -> Written {
    fields(value, "Feature", bytes, |name, value, bytes| match name {
        "bytesList" | "bytes_list" => nested(1, value, bytes, |value, bytes| {
            list(value, bytes, |item, bytes| {
                put(1, &base64(item)?, bytes);
                Ok(())
            })
        }),
        "floatList" | "float_list" => nested(2, value, bytes, |value, bytes| {
            list(value, bytes, |item, bytes| {
                encode_key(1, WireType::ThirtyTwoBit, bytes);
                bytes.extend(float(item)?.to_le_bytes());
                Ok(())
            })
        }),
        "int64List" | "int64_list" => nested(3, value, bytes, |value, bytes| {
            list(value, bytes, |item, bytes| {
                encode_key(1, WireType::Varint, bytes);
                encode_varint(int(item)? as u64, bytes);
                Ok(())
            })
        }),
        _ => Err(unknown(name, "Feature")),
    })
}

/// The items of the field `value` of a list.
fn list(value: &Value, bytes: &mut Vec<u8>, mut item: impl FnMut(&Value, &mut Vec<u8>) -> Written) -> Written {
    fields(value, "list", bytes, |name, value, bytes| match (name, &value.kind) {
        ("value", Kind::List(items)) => items.iter().try_for_each(|value| item(value, bytes)),
        // One item stands for a list of it.
        ("value", _) => item(value, bytes),
        _ => Err(unknown(name, "list")),
    })
}

fn base64(value: &Value) -> std::result::Result<Vec<u8>, String> {
    let Kind::String(text) = &value.kind else { return Err(format!("bytes are a string, at byte {}", value.at)) };
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let standard = GeneralPurpose::new(&STANDARD, config).decode(text.as_bytes());
    let decoded = standard.or_else(|_| GeneralPurpose::new(&URL_SAFE, config).decode(text.as_bytes()));
    decoded.map_err(|_| format!("{text:?} is not base64"))
}

/// The text of a number, which may be written as a string.
fn number<'a>(value: &'a Value) -> std::result::Result<&'a str, String> {
    match &value.kind {
        Kind::Number(text) => Ok(text),
        Kind::String(text) => Ok(text),
        _ => Err(format!("a number is missing at byte {}", value.at)),
    }
}

fn float(value: &Value) -> std::result::Result<f32, String> {
    let text = number(value)?;
    match text {
        "NaN" => Ok(f32::NAN),
        "Infinity" => Ok(f32::INFINITY),
        "-Infinity" => Ok(f32::NEG_INFINITY),
        _ => {
            let read = text.parse::<f32>().ok().filter(|float| float.is_finite());
            read.ok_or_else(|| format!("{text:?} is not a float"))
        }
    }
}

fn int(value: &Value) -> std::result::Result<i64, String> {
    let text = number(value)?;
    let whole = text.parse::<f64>().ok().filter(|float| float.fract() == 0.0 && float.abs() < 9.2e18);
    text.parse().ok().or(whole.map(|float| float as i64)).ok_or_else(|| format!("{text:?} is not an int64"))
}
