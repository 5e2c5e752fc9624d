//! Named tensors in one file, in the safetensors format: the length of a header in 8 bytes, the header as JSON, the elements.

use std::collections::BTreeMap;
use std::io::{self, Write};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use super::npy::Head;
use super::{DType, Shape, Tensor};
use crate::failure::{Failure, Result};

/// Bytes of the header's length, at the beginning of the file.
const LENGTH: usize = 8;
/// Most bytes of a header, the limit of the format.
const MAX_HEADER: u64 = 100_000_000;
/// The key in the header that does not name a tensor.
const METADATA: &str = "__metadata__";

/// The dtypes supported both by the format and by tensors.
const DTYPES: &[(Dtype, DType)] = &[
    (Dtype::F64, DType::F64),
    (Dtype::F32, DType::F32),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::C64, DType::C64),
    (Dtype::I64, DType::I64),
    (Dtype::I32, DType::I32),
    (Dtype::I16, DType::I16),
    (Dtype::I8, DType::I8),
    (Dtype::U64, DType::U64),
    (Dtype::U32, DType::U32),
    (Dtype::U16, DType::U16),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool),
];

/// The contents of a file: tensors, in the order of their elements, and named texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// The tensors and their names.
    pub tensors: Vec<(String, Tensor)>,
    /// The named texts.
    pub metadata: BTreeMap<String, String>,
}

/// Writes a file: the same bytes for the same contents.
///
/// # Errors
/// InvalidInput for strings and complex128, which the format lacks, and for two tensors of the same name; the errors of `to`.
pub fn write(to: &mut impl Write, contents: &Contents) -> io::Result<()> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mut infos: Vec<(String, TensorInfo)> = Vec::with_capacity(contents.tensors.len());
    let mut names: Vec<&str> = contents.tensors.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refused(format!("two tensors are named {}", pair[0])));
    }
    let mut end = 0;
    for (name, tensor) in &contents.tensors {
        if name == METADATA {
            return Err(refused(format!("no tensor can have the name {METADATA}, which safetensors uses itself")));
        }
        let known = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype());
        let Some(&(dtype, _)) = known else {
            return Err(refused(format!("{name} is {}, which safetensors cannot hold", tensor.dtype())));
        };
        let begin = end;
        end += tensor.byte_len();
        infos.push((name.clone(), TensorInfo { dtype, shape: tensor.dims().to_vec(), data_offsets: (begin, end) }));
    }
    let texts = (!contents.metadata.is_empty()).then(|| contents.metadata.clone().into_iter().collect());
    let header = Metadata::new(texts, infos).map_err(|error| refused(error.to_string()))?;
    // Serialised as a value, whose keys are sorted: the crate's own maps have a different order each time.
    let mut text = serde_json::to_value(&header).map(|header: Value| header.to_string())?.into_bytes();
    // Elements begin at a multiple of 8 bytes.
    text.resize(text.len().next_multiple_of(LENGTH), b' ');
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
/// InvalidArgument with the error in it: a malformed header, or a tensor that is not at the offset stated in the header.
pub fn read(bytes: &[u8]) -> Result<Contents> {
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(|error| wrong(error.to_string()))?;
    let elements = bytes.get(LENGTH + length..).unwrap_or_default();
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let mut contents = Contents { tensors: Vec::new(), metadata };
    for (name, info) in tensors(&header) {
        let at = |why: String| wrong(format!("tensor {name}: {why}"));
        let (begin, end) = info.data_offsets;
        let own = elements.get(begin..end).ok_or_else(|| at(format!("{begin} to {end} is not in the file")))?;
        let shape: Shape = info.shape.iter().copied().collect();
        let tensor = Tensor::from_bytes(dtype(info).map_err(at)?, shape, own).map_err(|failure| at(failure.message))?;
        contents.tensors.push((name, tensor));
    }
    Ok(contents)
}

/// The number of bytes before the elements, in a file with this beginning.
///
/// # Errors
/// InvalidArgument if they are cut off, or more than the format allows.
pub fn header_bytes(start: &[u8]) -> Result<usize> {
    let length = start.first_chunk::<LENGTH>().ok_or_else(|| wrong("its header is cut off".to_owned()))?;
    let length = u64::from_le_bytes(*length);
    match length <= MAX_HEADER {
        true => Ok(LENGTH + length as usize),
        false => Err(wrong(format!("its header has {length} bytes; the limit is {MAX_HEADER}"))),
    }
}

/// The texts of a file that begins with this complete header.
///
/// # Errors
/// InvalidArgument with the error in the header.
pub fn metadata(header: &[u8]) -> Result<BTreeMap<String, String>> {
    Ok(parsed(header)?.1.metadata().clone().unwrap_or_default().into_iter().collect())
}

/// The number of bytes of a complete header, and its content.
fn parsed(header: &[u8]) -> Result<(usize, Metadata)> {
    let begin = header_bytes(header)?;
    let text = header.get(LENGTH..begin).ok_or_else(|| wrong("its header is cut off".to_owned()))?;
    Ok((begin, serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?))
}

/// The names, dtypes and shapes of the tensors of a file that begins with this complete header.
///
/// # Errors
/// InvalidArgument with the error in the header.
pub fn described(header: &[u8]) -> Result<Vec<(String, DType, Shape)>> {
    let (_, header) = parsed(header)?;
    let one = |(name, info): (String, &TensorInfo)| {
        let dtype = dtype(info).map_err(|why| wrong(format!("tensor {name}: {why}")))?;
        Ok((name, dtype, Shape::from(info.shape.clone())))
    };
    tensors(&header).map(one).collect()
}

/// A tensor as a header describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// The format's name of its element type.
    pub stored: String,
    /// The dtype of it; `None` if meshtf has none.
    pub dtype: Option<DType>,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The offset of its elements after the header.
    pub begin: u64,
    /// The offset of their end.
    pub end: u64,
}

/// The tensors of a file that begins with this complete header, in the order of their elements, also those of dtypes that meshtf
/// lacks.
///
/// # Errors
/// InvalidArgument with the error in the header.
pub fn entries(header: &[u8]) -> Result<Vec<Info>> {
    let (_, header) = parsed(header)?;
    let one = |(name, info): (String, &TensorInfo)| Info {
        name,
        stored: info.dtype.to_string(),
        dtype: dtype(info).ok(),
        shape: info.shape.clone(),
        begin: info.data_offsets.0 as u64,
        end: info.data_offsets.1 as u64,
    };
    Ok(tensors(&header).map(one).collect())
}

/// The tensors of a file of `length` bytes that begins with this complete header, in the order of their elements, each with the
/// [`Head`] of its examples; `None` for a scalar.
///
/// # Errors
/// InvalidArgument with the error in the header, or if the file's length is not the one that it implies.
pub fn heads(header: &[u8], length: u64) -> Result<Vec<(String, Option<Head>)>> {
    let (begin, header) = parsed(header)?;
    let end = tensors(&header).map(|(_, info)| info.data_offsets.1).max().unwrap_or(0) as u64;
    let follow = length.saturating_sub(begin as u64);
    if end != follow {
        return Err(wrong(format!("its tensors take {end} bytes, but {follow} follow the header")));
    }
    let head = |(name, info): (String, &TensorInfo)| -> Result<(String, Option<Head>)> {
        let dtype = dtype(info).map_err(|why| wrong(format!("tensor {name}: {why}")))?;
        let head = Head::of(dtype, false, &info.shape, begin as u64 + info.data_offsets.0 as u64);
        Ok((name, head))
    };
    tensors(&header).map(head).collect()
}

/// The tensors of a header, in the order of their elements.
fn tensors(header: &Metadata) -> impl Iterator<Item = (String, &TensorInfo)> {
    header.offset_keys().into_iter().filter_map(|name| header.info(&name).map(|info| (name, info)))
}

fn dtype(info: &TensorInfo) -> Result<DType, String> {
    let known = DTYPES.iter().find(|(known, _)| *known == info.dtype);
    known.map(|(_, dtype)| *dtype).ok_or_else(|| format!("its dtype is {}, for which meshtf has none", info.dtype))
}

fn wrong(why: String) -> Failure {
    Failure::invalid(format!("not a valid safetensors file: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

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
            ("wave".to_owned(), Tensor::vector(vec![Complex::new(1f32, -2.0), Complex::new(0.5, f32::NEG_INFINITY)])),
            ("half".to_owned(), Tensor::scalar(half::bf16::from_f32(1.5))),
        ];
        let metadata = BTreeMap::from([("model".to_owned(), "a \"b\"".to_owned())]);
        let contents = Contents { tensors, metadata };
        assert_eq!(read(&file(&contents)).unwrap(), contents);
        assert_eq!(read(&file(&Contents::default())).unwrap(), Contents::default());
        let strings = vec![("s".to_owned(), Tensor::from("text"))];
        let mut nowhere = Vec::new();
        assert!(write(&mut nowhere, &Contents { tensors: strings, ..Contents::default() }).is_err());
        let wide = vec![("s".to_owned(), Tensor::scalar(Complex::new(1f64, 2.0)))];
        let refused = write(&mut nowhere, &Contents { tensors: wide, ..Contents::default() }).unwrap_err();
        assert_eq!(refused.to_string(), "s is complex128, which safetensors cannot hold");
        let twice = vec![("a".to_owned(), Tensor::scalar(1)), ("a".to_owned(), Tensor::scalar(2))];
        assert!(write(&mut nowhere, &Contents { tensors: twice, ..Contents::default() }).is_err());
    }

    /// The example in the description of the format: a header, a float16 of shape [1, 16] and another.
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
            (a("F32", "[2]", "[0,8]"), 4, "incomplete metadata"),
            (a("F32", "[2]", "[0,8]"), 9, "incomplete metadata"),
            (a("F32", "[3]", "[0,8]"), 8, "invalid shape, data type, or offset"),
            (a("F32", "[18446744073709551615,2]", "[0,8]"), 8, "overflow"),
            (a("F33", "[2]", "[0,8]"), 8, "F33"),
            (a("F8_E4M3", "[8]", "[0,8]"), 8, "its dtype is F8_E4M3"),
            (a("F32", "[2]", "[8,0]"), 8, "invalid offset for tensor"),
            (a("F32", "[1]", "[4,8]"), 8, "invalid offset for tensor"),
            (a("F32", "[-1]", "[0,4]"), 4, "-1"),
            ("[]".to_owned(), 0, "invalid JSON"),
        ] {
            let message = with(&header, elements);
            assert!(message.contains(why), "{header}: {message}");
        }
        for bytes in [&b""[..], b"1234567", &u64::MAX.to_le_bytes(), &9u64.to_le_bytes()] {
            assert!(read(bytes).unwrap_err().message.contains("not a valid safetensors file: "));
        }
    }
}
