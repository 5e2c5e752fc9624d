//! Values in JSON, as TensorFlow Serving and the Open Inference Protocol have them: nested or flat lists; NaN and infinities
//! without quotes, which Python's reader takes; bytes that are no text as `{"b64": "…"}`.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{self, Fault, Kind, Path, Value};
use meshtf_tensor::render::to_json;
use meshtf_tensor::{DType, Data, Shape, Tensor, literal, memory};

/// Bytes of memory for each byte of a request's text, at most: `[[1]]` becomes lists that have room for four values each.
const OF_TEXT: usize = 72;
/// Bytes of memory for each element of an answer in JSON, at most: its value in two trees, and its digits.
const OF_ELEMENT: usize = 96;

/// The JSON of a request.
///
/// # Errors
/// InvalidArgument with the position if it is not JSON; ResourceExhausted if there is not enough memory to read it.
pub fn parsed(text: &str) -> Result<Value<'_>> {
    memory::admit(text.len().saturating_mul(OF_TEXT))?;
    json::parse_relaxed(text).map_err(|fault| placed(text, &fault))
}

/// An error in a request's text, with its place.
pub fn placed(text: &str, fault: &Fault) -> Failure {
    let (line, column) = json::position(text, fault.at);
    let path = fault.path.as_deref().unwrap_or("the request");
    Failure::invalid(format!("{path} (line {line}, column {column}): {}", fault.why))
}

/// The tensor of nested lists.
pub fn tensor(value: &Value, dtype: DType, path: Path) -> std::result::Result<Tensor, Fault> {
    if dtype != DType::String {
        return literal::from_json(value, Some(dtype), path);
    }
    // Bytes have an object of their own in these interfaces.
    let (dims, mut texts) = (literal::lengths(value), Vec::new());
    strings(value, &dims, path, &mut texts)?;
    Tensor::new(Shape::from(dims), Data::String(texts)).map_err(|failure| Fault::refused(value, path, failure))
}

fn strings(value: &Value, dims: &[usize], path: Path, into: &mut Vec<Vec<u8>>) -> std::result::Result<(), Fault> {
    match (&value.kind, dims) {
        (Kind::List(items), [length, inner @ ..]) if items.len() == *length => {
            items.iter().enumerate().try_for_each(|(i, item)| strings(item, inner, path.index(i), into))
        }
        (Kind::String(text), []) => {
            into.push(text.as_bytes().to_vec());
            Ok(())
        }
        (Kind::Object(_), []) if let Some(text) = value.get("b64") => {
            let wrong =
                |why: &dyn std::fmt::Display| Fault::content(text, path.key("b64"), format!("invalid base64: {why}"));
            into.push(STANDARD.decode(text.text(path.key("b64"))?).map_err(|why| wrong(&why))?);
            Ok(())
        }
        (Kind::List(_), _) => Err(Fault::content(value, path, "the lists are not equally long")),
        _ => {
            Err(Fault::content(value, path, format!("expected a string or {{\"b64\": …}}, found {}", value.describe())))
        }
    }
}

/// The tensor of bytes: the elements one after the other, least significant byte first; each string with its length, a number
/// of four bytes, in front.
///
/// # Errors
/// InvalidArgument if they are not those of the shape; ResourceExhausted if there is not enough memory for a copy.
pub fn of_bytes(mut bytes: &[u8], dtype: DType, shape: Shape) -> Result<Tensor> {
    if dtype != DType::String {
        memory::admit(bytes.len())?;
        return Tensor::from_bytes(dtype, shape, bytes);
    }
    let mut texts = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = u32::from_le_bytes(*length) as usize;
        let cut_off = || Failure::invalid(format!("a string of {length} bytes is cut off"));
        let (text, rest) = rest.split_at_checked(length).ok_or_else(cut_off)?;
        memory::admit(size_of::<Vec<u8>>() + length)?;
        texts.push(text.to_vec());
        bytes = rest;
    }
    if !bytes.is_empty() || shape.elements() != Some(texts.len()) {
        let why = format!("{} strings and {} bytes for the shape {shape}", texts.len(), bytes.len());
        return Err(Failure::invalid(why));
    }
    Tensor::new(shape, Data::String(texts))
}

/// Adds the bytes of a tensor, in the form of [`of_bytes`].
///
/// # Errors
/// ResourceExhausted if there is not enough memory.
pub fn add_bytes(tensor: &Tensor, into: &mut Vec<u8>) -> Result<()> {
    memory::admit(2 * tensor.byte_len())?;
    match (tensor.data(), tensor.bytes()) {
        (Data::String(texts), _) => {
            for text in texts {
                into.extend((text.len() as u32).to_le_bytes());
                into.extend(text);
            }
        }
        (_, bytes) => into.extend(bytes.unwrap_or_default()),
    }
    Ok(())
}

/// A tensor as nested lists.
pub fn nested(tensor: &Tensor, into: &mut String) {
    // An empty tensor is nested, too: the outer dimensions may have elements.
    if tensor.is_empty() {
        return empty(tensor.dims(), into);
    }
    write(&to_json(tensor), into);
}

/// A tensor as one list.
pub fn flat(tensor: &Tensor, into: &mut String) {
    match tensor.clone().reshaped([tensor.len()]) {
        Ok(flat) => write(&to_json(&flat), into),
        Err(_) => into.push_str("[]"),
    }
}

fn empty(dims: &[usize], into: &mut String) {
    into.push('[');
    if let [length, inner @ ..] = dims
        && !inner.is_empty()
    {
        for i in 0..*length {
            if i > 0 {
                into.push(',');
            }
            empty(inner, into);
        }
    }
    into.push(']');
}

/// Writes what [`to_json`] makes of a tensor.
fn write(value: &serde_json::Value, into: &mut String) {
    use serde_json::Value as Json;
    match value {
        Json::Array(items) => {
            into.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    into.push(',');
                }
                write(item, into);
            }
            into.push(']');
        }
        Json::Object(members) => match members.get("base64") {
            Some(text) => {
                let _never = write!(into, "{{\"b64\":{text}}}");
            }
            None => into.push_str(&value.to_string()),
        },
        leaf => {
            let _never = write!(into, "{leaf}");
        }
    }
}

/// Writes the elements of a tensor, NaN and infinities, which [`to_json`] has in quotes, without them.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for the text.
pub fn shown(tensor: &Tensor, write: fn(&Tensor, &mut String), into: &mut String) -> Result<()> {
    memory::admit(OF_ELEMENT.saturating_mul(tensor.len()).saturating_add(2 * tensor.byte_len()))?;
    let from = into.len();
    write(tensor, into);
    if tensor.dtype().is_float() {
        // Of a float tensor, nothing else is in quotes.
        let bare = into[from..].replace('"', "");
        into.truncate(from);
        into.push_str(&bare);
    }
    Ok(())
}

/// A tensor of strings as nested lists of bytes, whether they are text or not.
pub fn nested_bytes(tensor: &Tensor, into: &mut String) {
    let coded = |text: &Vec<u8>| format!("{{\"b64\":\"{}\"}}", STANDARD.encode(text));
    match tensor.data() {
        Data::String(texts) if !texts.is_empty() => each(tensor.dims(), &mut texts.iter().map(coded), into),
        _ => nested(tensor, into),
    }
}

/// Writes elements as nested lists.
fn each(dims: &[usize], elements: &mut impl Iterator<Item = String>, into: &mut String) {
    let [length, inner @ ..] = dims else { return into.push_str(&elements.next().unwrap_or_default()) };
    into.push('[');
    for i in 0..*length {
        if i > 0 {
            into.push(',');
        }
        each(inner, elements, into);
    }
    into.push(']');
}

/// A text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, dtype: DType) -> std::result::Result<Tensor, String> {
        let value = parsed(text).map_err(|failure| failure.message)?;
        tensor(&value, dtype, Path::Root).map_err(|fault| placed(text, &fault).message)
    }

    fn written(tensor: &Tensor) -> String {
        let mut text = String::new();
        shown(tensor, nested, &mut text).unwrap();
        text
    }

    #[test]
    fn values_are_read_as_their_dtype() {
        assert_eq!(read("[[1, 2], [3, 4]]", DType::F32), Ok(Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0])));
        assert_eq!(read("[NaN, -Infinity]", DType::F32).unwrap().slice::<f32>().unwrap()[1], f32::NEG_INFINITY);
        let bytes = Tensor::from_vec([1, 2], vec![b"a".to_vec(), vec![255, 0]]);
        assert_eq!(read(r#"[["a", {"b64": "/wA="}]]"#, DType::String), Ok(bytes));
        let fails = |text: &str, dtype: DType, why: &str| {
            let error = read(text, dtype).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        fails("[1,\n x]", DType::F32, "(line 2, column 2)");
        fails("[[1], [2, 3]]", DType::F32, "$[1]");
        fails("[\"a\", [\"b\"]]", DType::String, "not equally long");
        fails("[1]", DType::String, "expected a string");
        fails("[1.5]", DType::I32, "$ (line 1, column 2): 1.5 is not an int32");
        fails(r#"[{"b64": "*"}]"#, DType::String, "invalid base64");
    }

    #[test]
    fn values_are_written_as_serving_does() {
        assert_eq!(
            written(&Tensor::from_vec([2, 2], vec![1f32, 0.1, f32::NAN, f32::INFINITY])),
            "[[1.0,0.1],[NaN,Infinity]]"
        );
        assert_eq!(written(&Tensor::vector(vec![b"a\"".to_vec(), vec![255]])), r#"["a\"",{"b64":"/w=="}]"#);
        assert_eq!(written(&Tensor::zeros(DType::F32, [2, 0, 3]).unwrap()), "[[],[]]");
        assert_eq!(written(&Tensor::scalar(true)), "true");
        let mut bytes = String::new();
        nested_bytes(&Tensor::from_vec([1, 2], vec![b"a".to_vec(), vec![]]), &mut bytes);
        assert_eq!(bytes, r#"[[{"b64":"YQ=="},{"b64":""}]]"#);
        let mut text = String::new();
        flat(&Tensor::from_vec([2, 1], vec![1i64, -2]), &mut text);
        assert_eq!(text, "[1,-2]");
    }
}
