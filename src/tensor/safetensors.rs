//! Tensors by name in one file, in the form of safetensors: the length of a header in 8 bytes, the header as JSON, the elements.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{DType, Tensor};
use crate::failure::{Failure, Result};

/// The largest header that is read, as others limit it.
const MAX_HEADER_BYTES: usize = 100_000_000;
/// The header's key that is no tensor's name.
const METADATA: &str = "__metadata__";

/// The dtypes that the format has, by its names.
const DTYPES: &[(&str, DType)] = &[
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("F16", DType::F16),
    ("BF16", DType::BF16),
    ("I64", DType::I64),
    ("I32", DType::I32),
    ("I16", DType::I16),
    ("I8", DType::I8),
    ("U64", DType::U64),
    ("U32", DType::U32),
    ("U16", DType::U16),
    ("U8", DType::U8),
    ("BOOL", DType::Bool),
];

/// What a file has: tensors, in the order of their elements, and texts by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The tensors and their names.
    pub tensors: Vec<(String, Tensor)>,
    /// What else is said of them.
    pub metadata: BTreeMap<String, String>,
}

/// Writes a file.
///
/// # Errors
/// InvalidInput for strings, which the format does not have; those of `to`.
pub fn write(to: &mut impl Write, contents: &Contents) -> io::Result<()> {
    let mut header = Map::new();
    if !contents.metadata.is_empty() {
        header.insert(METADATA.to_owned(), json!(contents.metadata));
    }
    let mut end = 0;
    for (name, tensor) in &contents.tensors {
        let known = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype());
        let Some((dtype, _)) = known.filter(|_| name != METADATA) else {
            let why = format!("{name} is {}, which safetensors cannot hold", tensor.dtype());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let begin = end;
        end += tensor.byte_len();
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": tensor.dims(), "data_offsets": [begin, end] }));
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    // Elements begin at a multiple of 8 bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(&text)?;
    for (_, tensor) in &contents.tensors {
        to.write_all(tensor.bytes().unwrap_or_default())?;
    }
    Ok(())
}

/// Reads a file.
///
/// # Errors
/// InvalidArgument with what is wrong with it: a header that is no such, a tensor that is not where it says.
pub fn read(bytes: &[u8]) -> Result<Contents> {
    let wrong = |why: String| Failure::invalid(format!("no safetensors file: {why}"));
    let length = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    let length = length.and_then(|length| usize::try_from(length).ok()).filter(|&length| length <= MAX_HEADER_BYTES);
    let rest = &bytes[8.min(bytes.len())..];
    let Some((header, elements)) = length.and_then(|length| rest.split_at_checked(length)) else {
        return Err(wrong(format!("{} bytes do not hold the header that they promise", bytes.len())));
    };
    let header: Map<String, Value> = serde_json::from_slice(header).map_err(|error| wrong(error.to_string()))?;
    let mut contents = Contents::default();
    let mut found: Vec<(usize, usize, String, Tensor)> = Vec::with_capacity(header.len());
    for (name, value) in header {
        if name == METADATA {
            let texts = value.as_object().into_iter().flatten();
            contents.metadata =
                texts.filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned()))).collect();
            continue;
        }
        let at = |why: String| wrong(format!("tensor {name}: {why}"));
        let named = value["dtype"].as_str().unwrap_or_default();
        let Some((_, dtype)) = DTYPES.iter().find(|(known, _)| *known == named) else {
            return Err(at(format!("its dtype is {}", value["dtype"])));
        };
        let numbers = |key: &str| -> Option<Vec<usize>> {
            value[key].as_array()?.iter().map(|number| number.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
        };
        let (Some(shape), Some(&[begin, end])) = (numbers("shape"), numbers("data_offsets").as_deref()) else {
            return Err(at("its shape or its place is not stated".to_owned()));
        };
        let own = elements.get(begin..end).ok_or_else(|| at(format!("{begin} to {end} is not in the file")))?;
        let tensor = Tensor::from_bytes(*dtype, shape.into_iter().collect::<super::Shape>(), own);
        found.push((begin, end, name.clone(), tensor.map_err(|failure| at(failure.message))?));
    }
    found.sort_by_key(|&(begin, end, ..)| (begin, end));
    let mut last = 0;
    for (begin, end, name, tensor) in found {
        // As others read it: no byte belongs to two tensors, and none to nobody.
        if begin != last {
            return Err(wrong(format!("tensor {name} begins at {begin}, and the one before ends at {last}")));
        }
        last = end;
        contents.tensors.push((name, tensor));
    }
    if last != elements.len() {
        return Err(wrong(format!("{} bytes behind the last tensor", elements.len() - last)));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &Contents) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, contents).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let tensors = vec![
            ("w".to_owned(), Tensor::from_vec([2, 2], vec![1f32, -2.5, f32::INFINITY, 0.0])),
            ("step".to_owned(), Tensor::scalar(7i64)),
            ("empty".to_owned(), Tensor::from_vec([0, 3], Vec::<f64>::new())),
            ("mask".to_owned(), Tensor::vector(vec![true, false])),
            ("half".to_owned(), Tensor::scalar(half::bf16::from_f32(1.5))),
        ];
        let metadata = BTreeMap::from([("model".to_owned(), "a \"b\"".to_owned())]);
        let contents = Contents { tensors, metadata };
        assert_eq!(read(&file(&contents)).unwrap(), contents);
        assert_eq!(read(&file(&Contents::default())).unwrap(), Contents::default());
        let strings = vec![("s".to_owned(), Tensor::from("text"))];
        let mut nowhere = Vec::new();
        assert!(write(&mut nowhere, &Contents { tensors: strings, ..Contents::default() }).is_err());
    }

    /// The example of the format's description: a header, a float16 of shape [1, 16] and another.
    #[test]
    fn the_bytes_are_those_of_the_format() {
        let header = br#"{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}  "#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1, 0, 0, 0, 255, 255, 255, 255]);
        let contents = read(&bytes).unwrap();
        assert_eq!(contents.tensors, [("a".to_owned(), Tensor::vector(vec![1i32, -1]))]);
        assert_eq!(file(&contents)[8 + header.len()..], bytes[8 + header.len()..]);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let with = |header: &str, elements: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.resize(bytes.len() + elements, 0);
            read(&bytes).unwrap_err().message
        };
        let a = |dtype: &str, shape: &str, place: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{place}}}}}"#)
        };
        for (header, elements, why) in [
            (a("F32", "[2]", "[0,8]"), 4, "is not in the file"),
            (a("F32", "[2]", "[0,8]"), 9, "1 bytes behind"),
            (a("F32", "[3]", "[0,8]"), 8, "tensor a"),
            (a("F32", "[18446744073709551615,2]", "[0,8]"), 8, "tensor a"),
            (a("F33", "[2]", "[0,8]"), 8, "its dtype is \"F33\""),
            (a("F32", "[2]", "[8,0]"), 8, "is not in the file"),
            (a("F32", "[1]", "[4,8]"), 8, "begins at 4"),
            (a("F32", "[-1]", "[0,4]"), 4, "is not stated"),
            ("[]".to_owned(), 0, "invalid type"),
        ] {
            let message = with(&header, elements);
            assert!(message.contains(why), "{header}: {message}");
        }
        for bytes in [&b""[..], b"1234567", &u64::MAX.to_le_bytes(), &9u64.to_le_bytes()] {
            assert!(read(bytes).unwrap_err().message.contains("do not hold the header"));
        }
    }
}
