//! The Open Inference Protocol, version 2: what the server is, the tensors of the model, and inferences. Tensors are in JSON, or
//! in bytes behind it, as the protocol's extension for binary tensors has them.

use std::fmt::Write as _;

use meshtf_tensor::failure::Result;
use meshtf_tensor::json::{Fault, Kind, Path, Value};
use meshtf_tensor::{DType, PartialShape, Shape, Tensor};
use serde_json::{Value as Json, json};

use super::value::{self, flat, quoted, shown};
use super::{Asked, ServedModel, ServedPort, VERSION, names};

/// The names of dtypes in the protocol.
const DATATYPES: [(&str, DType); 14] = [
    ("BOOL", DType::Bool),
    ("UINT8", DType::U8),
    ("UINT16", DType::U16),
    ("UINT32", DType::U32),
    ("UINT64", DType::U64),
    ("INT8", DType::I8),
    ("INT16", DType::I16),
    ("INT32", DType::I32),
    ("INT64", DType::I64),
    ("FP16", DType::F16),
    ("BF16", DType::BF16),
    ("FP32", DType::F32),
    ("FP64", DType::F64),
    ("BYTES", DType::String),
];

/// The parameters of an output by which NVIDIA's server answers with the best classes alone.
const RANKING: [&str; 2] = ["classification", "class_count"];

/// An inference: its id, if it has one, and its values.
pub(super) struct Inference {
    pub id: Option<String>,
    pub asked: Asked,
    /// Whether an output, by its place among the fetches, is answered in bytes.
    pub in_bytes: Vec<bool>,
}

/// An answer: JSON, and the bytes behind it.
#[derive(Debug, PartialEq)]
pub(super) struct Answered {
    pub json: String,
    pub bytes: Vec<u8>,
}

fn datatype(dtype: DType) -> String {
    let own = DATATYPES.iter().find(|(_, one)| *one == dtype);
    own.map_or_else(|| dtype.proto_name().to_owned(), |(name, _)| (*name).to_owned())
}

/// The server.
pub fn server() -> Json {
    json!({ "name": "meshtf", "version": env!("CARGO_PKG_VERSION"), "extensions": ["binary_tensor_data"] })
}

/// The model and its tensors.
pub fn metadata(model: &ServedModel) -> Json {
    let sizes = |shape: &PartialShape| -> Vec<i64> {
        // The protocol has no unknown rank.
        shape.0.iter().flatten().map(|size| size.map_or(-1, |size| size as i64)).collect()
    };
    let ports = |ports: &[ServedPort]| -> Vec<Json> {
        let told = |port: &ServedPort| json!({ "name": port.name, "datatype": datatype(port.dtype), "shape": sizes(&port.shape) });
        ports.iter().map(told).collect()
    };
    let (inputs, outputs) = (ports(&model.inputs), ports(&model.outputs));
    json!({ "name": model.name, "versions": [VERSION], "platform": "meshtf", "inputs": inputs, "outputs": outputs })
}

/// The values of a request: its JSON, and the bytes behind it.
///
/// # Errors
/// InvalidArgument with the place in the text.
pub fn asked(model: &ServedModel, text: &str, bytes: &[u8]) -> Result<Inference> {
    let request = value::parsed(text)?;
    read(model, &request, bytes).map_err(|fault| value::placed(text, &fault))
}

fn read(model: &ServedModel, request: &Value, mut bytes: &[u8]) -> std::result::Result<Inference, Fault> {
    let root = Path::Root;
    let (mut id, mut feeds, mut fetches) = (None, Vec::new(), Vec::new());
    // Of outputs that do not say it themselves.
    let all_in_bytes = parameter(request, "binary_data_output") == Some(&Kind::Bool(true));
    let mut has_inputs = false;
    for member in request.object(root, "expected an object with \"inputs\"")? {
        let (value, path) = (&member.value, root.key(&member.key));
        match &*member.key {
            "id" => id = Some(value.text(path)?.to_owned()),
            // All but `binary_data_output` have no effect; those of outputs that would change the answer are refused.
            "parameters" => {}
            "inputs" => {
                has_inputs = true;
                for (i, item) in value.list(path, "expected a list of tensors")?.iter().enumerate() {
                    let (place, tensor) = input(model, item, path.index(i), &mut bytes)?;
                    if feeds.iter().any(|(own, _)| *own == place) {
                        let why = format!("input {} is there twice", model.inputs[place].name);
                        return Err(Fault::content(item, path.index(i), why));
                    }
                    feeds.push((place, tensor));
                }
            }
            "outputs" => {
                for (i, item) in value.list(path, "expected a list of outputs")?.iter().enumerate() {
                    let place = output(model, item, path.index(i))?;
                    if fetches.iter().any(|(own, _)| *own == place) {
                        let why = format!("output {} is there twice", model.outputs[place].name);
                        return Err(Fault::content(item, path.index(i), why));
                    }
                    let own = parameter(item, "binary_data");
                    fetches.push((place, own.map_or(all_in_bytes, |own| *own == Kind::Bool(true))));
                }
            }
            key => {
                let why = format!("unknown key {key:?}; expected id, parameters, inputs, outputs");
                return Err(Fault::of_content(member.at, root, why));
            }
        }
    }
    if !has_inputs {
        return Err(Fault::content(request, root, "\"inputs\" is missing"));
    }
    if fetches.is_empty() {
        fetches = (0..model.outputs.len()).map(|place| (place, all_in_bytes)).collect();
    }
    if !bytes.is_empty() {
        return Err(Fault::content(request, root, format!("{} bytes behind the JSON belong to no input", bytes.len())));
    }
    // One order, so that all requests for the same outputs have one plan.
    feeds.sort_by_key(|(place, _)| *place);
    fetches.sort_unstable();
    let (fetches, in_bytes) = fetches.into_iter().unzip();
    Ok(Inference { id, asked: Asked { feeds, fetches }, in_bytes })
}

/// A parameter of a request, an input or an output.
fn parameter<'v>(of: &'v Value, name: &str) -> Option<&'v Kind<'v>> {
    Some(&of.get("parameters")?.get(name)?.kind)
}

/// `{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}`; the data may be nested. In place of the data,
/// `"parameters": {"binary_data_size": 16}` takes the next of the bytes behind the JSON.
fn input(
    model: &ServedModel,
    item: &Value,
    path: Path,
    bytes: &mut &[u8],
) -> std::result::Result<(usize, Tensor), Fault> {
    let part =
        |key: &str| item.get(key).ok_or_else(|| Fault::content(item, path, format!("expected an object with {key:?}")));
    let name = part("name")?.text(path.key("name"))?;
    let found = model.inputs.iter().enumerate().find(|(_, port)| port.name == name);
    let no_input = || format!("there is no input {name:?}; the model takes {}", names(&model.inputs));
    let (place, port) = found.ok_or_else(|| Fault::content(item, path, no_input()))?;
    let stated = part("datatype")?.text(path.key("datatype"))?;
    if stated != datatype(port.dtype) {
        let why = format!("input {name} has the datatype {}, not {stated:?}", datatype(port.dtype));
        return Err(Fault::content(item, path.key("datatype"), why));
    }
    let key = path.key("shape");
    let sizes = part("shape")?.list(key, "expected a list of sizes")?.iter().enumerate().map(|(i, size)| {
        let Kind::Number(digits) = size.kind else {
            return Err(Fault::content(size, key.index(i), "expected a size"));
        };
        digits.parse::<usize>().map_err(|_| Fault::content(size, key.index(i), format!("{digits} is not a size")))
    });
    let shape = Shape::from(sizes.collect::<std::result::Result<Vec<usize>, Fault>>()?);
    if let Some(size) = parameter(item, "binary_data_size") {
        let wrong = |why: String| Fault::content(item, path, format!("binary_data_size of input {name}: {why}"));
        let count = match size {
            Kind::Number(digits) => digits.parse::<usize>().ok(),
            _ => None,
        };
        let count = count.ok_or_else(|| wrong("expected a number of bytes".to_owned()))?;
        let cut_off = || wrong(format!("it is {count}, and {} bytes are left behind the JSON", bytes.len()));
        let (own, rest) = bytes.split_at_checked(count).ok_or_else(cut_off)?;
        *bytes = rest;
        let tensor = value::of_bytes(own, port.dtype, shape);
        return Ok((place, tensor.map_err(|failure| Fault::refused(item, path, failure))?));
    }
    let (data, key) = (part("data")?, path.key("data"));
    let tensor = value::tensor(data, port.dtype, key)?;
    let count = tensor.len();
    if shape.elements() != Some(count) {
        return Err(Fault::content(data, key, format!("it has {count} elements, and the shape is {shape}")));
    }
    let tensor = tensor.reshaped(shape).map_err(|failure| Fault::refused(data, key, failure))?;
    Ok((place, tensor))
}

/// `{"name": "y"}`
fn output(model: &ServedModel, item: &Value, path: Path) -> std::result::Result<usize, Fault> {
    // An answer of another form than the one that is asked for would be read wrongly.
    let ranks = |name: &&&str| !matches!(parameter(item, name), None | Some(Kind::Null | Kind::Bool(false)));
    if let Some(name) = RANKING.iter().find(ranks) {
        let why =
            format!("{name}: the best classes are not ranked here; leave it out, and take them from the whole output");
        return Err(Fault::content(item, path.key("parameters"), why));
    }
    let named = item.get("name").ok_or_else(|| Fault::content(item, path, "expected an object with \"name\""))?;
    let name = named.text(path.key("name"))?;
    let place = model.outputs.iter().position(|port| port.name == name);
    place.ok_or_else(|| {
        let why = format!("there is no output {name:?}; the model has {}", names(&model.outputs));
        Fault::content(named, path.key("name"), why)
    })
}

/// The answer to an inference that asked for these outputs, each in JSON or in bytes.
///
/// # Errors
/// ResourceExhausted if there is not enough memory for it.
pub fn answer(
    model: &ServedModel,
    id: Option<&str>,
    fetches: &[usize],
    in_bytes: &[bool],
    values: &[Tensor],
) -> Result<Answered> {
    let mut bytes = Vec::new();
    let mut text = format!("{{\"model_name\":{},\"model_version\":\"{VERSION}\"", quoted(&model.name));
    if let Some(id) = id {
        let _never = write!(text, ",\"id\":{}", quoted(id));
    }
    text.push_str(",\"outputs\":[");
    for (i, ((place, value), is_in_bytes)) in fetches.iter().zip(values).zip(in_bytes).enumerate() {
        let port = &model.outputs[*place];
        let sizes: Vec<String> = value.dims().iter().map(usize::to_string).collect();
        let (comma, name, sizes) = (if i > 0 { "," } else { "" }, quoted(&port.name), sizes.join(","));
        let datatype = datatype(value.dtype());
        let _never = write!(text, "{comma}{{\"name\":{name},\"shape\":[{sizes}],\"datatype\":\"{datatype}\"");
        if *is_in_bytes {
            let before = bytes.len();
            value::add_bytes(value, &mut bytes)?;
            let _never = write!(text, ",\"parameters\":{{\"binary_data_size\":{}}}}}", bytes.len() - before);
        } else {
            text.push_str(",\"data\":");
            shown(value, flat, &mut text)?;
            text.push('}');
        }
    }
    text.push_str("]}");
    Ok(Answered { json: text, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ServedModel {
        let port = |name: &str, dtype: DType, shape: PartialShape| ServedPort {
            name: name.to_owned(),
            tensor: name.to_owned(),
            dtype,
            shape,
            is_optional: false,
        };
        let free = PartialShape(Some(vec![None, Some(2)]));
        ServedModel {
            name: "m".to_owned(),
            signature: ServedModel::SIGNATURE.to_owned(),
            inputs: vec![port("x", DType::F32, free.clone()), port("tag", DType::String, PartialShape::UNKNOWN)],
            outputs: vec![port("y", DType::F32, free), port("n", DType::I64, PartialShape(Some(vec![])))],
            fixed: vec![],
            batch: 1,
        }
    }

    /// The example of the protocol's text, with these names.
    #[test]
    fn an_inference_is_read_and_answered() {
        let text = r#"{"id": "42", "inputs": [
            {"name": "tag", "shape": [1], "datatype": "BYTES", "data": ["a"]},
            {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}], "outputs": [{"name": "n"}, {"name": "y"}]}"#;
        let Inference { id, asked, in_bytes } = asked(&model(), text, &[]).unwrap();
        assert_eq!(asked.feeds[0], (0, Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0])));
        assert_eq!(asked.feeds[1], (1, Tensor::vector(vec![b"a".to_vec()])));
        assert_eq!(asked.fetches, [0, 1]);
        let values = [Tensor::from_vec([1, 2], vec![0.5f32, f32::NAN]), Tensor::scalar(7i64)];
        let want = concat!(
            r#"{"model_name":"m","model_version":"1","id":"42","outputs":[{"name":"y","shape":[1,2],"datatype":"FP32","#,
            r#""data":[0.5,NaN]},{"name":"n","shape":[],"datatype":"INT64","data":[7]}]}"#
        );
        let answered = answer(&model(), id.as_deref(), &asked.fetches, &in_bytes, &values).unwrap();
        assert_eq!(answered, Answered { json: want.to_owned(), bytes: vec![] });
    }

    #[test]
    fn nested_data_and_all_outputs_are_taken() {
        let text = r#"{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}]}"#;
        let Inference { id, asked, .. } = asked(&model(), text, &[]).unwrap();
        assert_eq!((id, asked.fetches.as_slice()), (None, &[0, 1][..]));
        assert_eq!(asked.feeds[0].1.dims(), [2, 2]);
    }

    #[test]
    fn a_wrong_inference_is_told_what_is_right() {
        let fails = |text: &str, why: &str| {
            let error = asked(&model(), text, &[]).map(drop).unwrap_err().message;
            assert!(error.contains(why), "{text}: {error}");
        };
        let x = |rest: &str| format!(r#"{{"inputs": [{{"name": "x", {rest}}}]}}"#);
        fails("{}", "\"inputs\" is missing");
        fails(r#"{"input": []}"#, "unknown key \"input\"; expected id, parameters, inputs, outputs");
        fails(r#"{"inputs": [{"name": "z"}]}"#, "there is no input \"z\"; the model takes x, tag");
        fails(&x(r#""shape": [2]"#), "expected an object with \"datatype\"");
        fails(&x(r#""datatype": "FP64", "shape": [2], "data": [1, 2]"#), "has the datatype FP32, not \"FP64\"");
        fails(&x(r#""datatype": "FP32", "shape": [3], "data": [1, 2]"#), "it has 2 elements, and the shape is [3]");
        fails(&x(r#""datatype": "FP32", "shape": [-3], "data": [1, 2]"#), "-3 is not a size");
        fails(r#"{"inputs": [], "outputs": [{"name": "x"}]}"#, "there is no output \"x\"; the model has y, n");
        let tag = r#"{"name": "tag", "shape": [1], "datatype": "BYTES", "data": ["a"]}"#;
        fails(&format!(r#"{{"inputs": [{tag}, {tag}]}}"#), "input tag is there twice");
        for name in ["classification", "class_count"] {
            let text = format!(r#"{{"inputs": [], "outputs": [{{"name": "y", "parameters": {{"{name}": 3}}}}]}}"#);
            fails(&text, &format!("{name}: the best classes are not ranked here"));
        }
        fails(r#"{"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]}"#, "output y is there twice");
    }

    /// As the clients of NVIDIA's server send tensors by default.
    #[test]
    fn tensors_are_in_bytes_behind_the_json() {
        let text = r#"{"inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            {"name": "tag", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": 11}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": true}}, {"name": "n"}]}"#;
        let bytes = [&[0, 0, 128, 63, 0, 0, 0, 64][..], &[1, 0, 0, 0, b'a', 2, 0, 0, 0, 255, 0]].concat();
        let Inference { asked: found, in_bytes, .. } = asked(&model(), text, &bytes).unwrap();
        assert_eq!(found.feeds[0].1, Tensor::from_vec([1, 2], vec![1f32, 2.0]));
        assert_eq!(found.feeds[1].1, Tensor::vector(vec![b"a".to_vec(), vec![255, 0]]));
        let values = [Tensor::from_vec([1, 1], vec![2f32]), Tensor::scalar(7i64)];
        let answered = answer(&model(), None, &found.fetches, &in_bytes, &values).unwrap();
        let outputs = concat!(
            r#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","shape":[1,1],"datatype":"FP32","#,
            r#""parameters":{"binary_data_size":4}},{"name":"n","shape":[],"datatype":"INT64","data":[7]}]}"#
        );
        assert_eq!(answered, Answered { json: outputs.to_owned(), bytes: vec![0, 0, 0, 64] });

        let all = r#"{"inputs": [], "parameters": {"binary_data_output": true}}"#;
        assert_eq!(asked(&model(), all, &[]).unwrap().in_bytes, [true, true]);
        let fails = |text: &str, bytes: &[u8], why: &str| {
            let error = asked(&model(), text, bytes).map(drop).unwrap_err().message;
            assert!(error.contains(why), "{error}");
        };
        fails(text, &bytes[..15], "it is 11, and 7 bytes are left behind the JSON");
        fails(text, &[&bytes[..], &[0]].concat(), "1 bytes behind the JSON belong to no input");
        fails(&text.replace("[2], ", "[3], "), &bytes, "2 strings");
        fails(&text.replace("[1, 2], ", "[1, 3], "), &bytes, "12 bytes");
    }

    #[test]
    fn the_model_is_told_with_its_tensors() {
        let told = metadata(&model());
        assert_eq!(told["inputs"][0], json!({ "name": "x", "datatype": "FP32", "shape": [-1, 2] }));
        assert_eq!(told["outputs"][1], json!({ "name": "n", "datatype": "INT64", "shape": [] }));
        assert_eq!((&told["name"], &told["versions"]), (&json!("m"), &json!(["1"])));
    }
}
