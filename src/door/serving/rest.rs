//! TensorFlow Serving's REST interface: the status and the signature of a model, and predictions by rows (`instances`) or by
//! inputs (`inputs`).

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::json::{Fault, Kind, Path, Value};
use meshtf_tensor::{PartialShape, Tensor};
use serde_json::{Map, Value as Json, json};

use super::value::{self, nested, nested_bytes, quoted, shown};
use super::{Asked, ServedModel, ServedPort, VERSION, names};

/// How a request has its values, and so its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// An object, or a value, for each example.
    Rows(usize),
    /// All examples of an input together.
    Columns,
}

/// The members of a request that have values; all but these and the signature's name have no effect, as in TensorFlow Serving.
const MEMBERS: [&str; 2] = ["instances", "inputs"];
/// The member that names a signature; without it, or empty, a request is for the one that is served.
const SIGNATURE: &str = "signature_name";
/// The ending of the names of outputs whose strings are always written as bytes.
const BYTES: &str = "_bytes";

/// The values of a request.
///
/// # Errors
/// InvalidArgument with the place in the text.
pub fn asked(model: &ServedModel, text: &str) -> Result<(Asked, Form)> {
    let request = value::parsed(text)?;
    read(model, request)
        .map_err(|fault| value::placed(text, &fault))
        .map(|(feeds, form)| (Asked { feeds, fetches: (0..model.outputs.len()).collect() }, form))
}

fn read(model: &ServedModel, request: Value) -> std::result::Result<(Vec<(usize, Tensor)>, Form), Fault> {
    let at = request.at;
    let Kind::Object(members) = request.kind else {
        return Err(Fault::of_content(at, Path::Root, "expected an object with \"instances\" or \"inputs\""));
    };
    let mut found = None;
    for member in members {
        if member.key == SIGNATURE {
            of_signature(model, &member.value)?;
        }
        if MEMBERS.contains(&&*member.key) && found.replace((member.key, member.value)).is_some() {
            return Err(Fault::of_content(member.at, Path::Root, "either \"instances\" or \"inputs\", not both"));
        }
    }
    let Some((key, value)) = found else {
        return Err(Fault::of_content(at, Path::Root, "\"instances\" or \"inputs\" is missing"));
    };
    let path = Path::Root;
    let path = path.key(&key);
    if key == "inputs" { Ok((columns(model, value, path)?, Form::Columns)) } else { rows(model, value, path) }
}

/// Refuses the name of a signature that is not served.
fn of_signature(model: &ServedModel, value: &Value) -> std::result::Result<(), Fault> {
    let path = Path::Root;
    let path = path.key(SIGNATURE);
    let name = value.text(path)?;
    if name.is_empty() || name == model.signature {
        return Ok(());
    }
    let why = format!("there is no signature {name:?}; this server has {:?}", model.signature);
    Err(Fault::content(value, path, why))
}

/// `{"x": [[1, 2], [3, 4]]}`, or the value of the only input.
fn columns(model: &ServedModel, value: Value, path: Path) -> std::result::Result<Vec<(usize, Tensor)>, Fault> {
    if !is_by_name(&value) {
        let (place, port) = only(model, &value, path)?;
        return Ok(vec![(place, value::tensor(&value, port.dtype, path)?)]);
    }
    let members = value.object(path, "expected an object of inputs")?.iter();
    let read = members.map(|member| {
        let (place, port) = named(model, &member.key).map_err(|why| Fault::of_content(member.at, path, why))?;
        Ok((place, value::tensor(&member.value, port.dtype, path.key(&member.key))?))
    });
    let mut feeds: Vec<(usize, Tensor)> = read.collect::<std::result::Result<_, _>>()?;
    feeds.sort_by_key(|(place, _)| *place);
    Ok(feeds)
}

/// `[{"x": [1, 2]}, {"x": [3, 4]}]`, or values of the only input.
fn rows(model: &ServedModel, value: Value, path: Path) -> std::result::Result<(Vec<(usize, Tensor)>, Form), Fault> {
    let at = value.at;
    let Kind::List(instances) = value.kind else {
        return Err(Fault::of_content(at, path, "expected a list of examples"));
    };
    let count = instances.len();
    let Some(first) = instances.first() else {
        return Err(Fault::of_content(at, path, "there is no example"));
    };
    if !is_by_name(first) {
        let whole = Value { at, kind: Kind::List(instances) };
        let (place, port) = only(model, &whole, path)?;
        return Ok((vec![(place, value::tensor(&whole, port.dtype, path)?)], Form::Rows(count)));
    }
    // The examples of each input.
    let mut all: Vec<Vec<Value>> = model.inputs.iter().map(|_| Vec::new()).collect();
    for (i, instance) in instances.into_iter().enumerate() {
        let (at, path) = (instance.at, path.index(i));
        let Kind::Object(members) = instance.kind else {
            return Err(Fault::of_content(at, path, "expected an object of inputs, as the first example is"));
        };
        for member in members {
            let (place, _) = named(model, &member.key).map_err(|why| Fault::of_content(member.at, path, why))?;
            all[place].push(member.value);
        }
        if let Some(place) = all.iter().position(|values| !values.is_empty() && values.len() != i + 1) {
            let why = format!("either all examples have input {}, or none", model.inputs[place].name);
            return Err(Fault::of_content(at, path, why));
        }
    }
    let given = all.into_iter().enumerate().filter(|(_, values)| !values.is_empty());
    let read = given.map(|(place, values)| {
        let whole = Value { at, kind: Kind::List(values) };
        Ok((place, value::tensor(&whole, model.inputs[place].dtype, path)?))
    });
    Ok((read.collect::<std::result::Result<_, Fault>>()?, Form::Rows(count)))
}

/// Whether a value is an object of inputs, and no bytes.
fn is_by_name(value: &Value) -> bool {
    matches!(value.kind, Kind::Object(_)) && value.get("b64").is_none()
}

fn named<'m>(model: &'m ServedModel, name: &str) -> std::result::Result<(usize, &'m ServedPort), String> {
    let found = model.inputs.iter().enumerate().find(|(_, port)| port.name == name);
    found.ok_or_else(|| format!("there is no input {name:?}; the model takes {}", names(&model.inputs)))
}

/// The input of a value without a name.
fn only<'m>(model: &'m ServedModel, value: &Value, path: Path) -> std::result::Result<(usize, &'m ServedPort), Fault> {
    if let [one] = model.inputs.as_slice() {
        return Ok((0, one));
    }
    let mut needed = model.inputs.iter().enumerate().filter(|(_, port)| !port.is_optional);
    match (needed.next(), needed.next()) {
        (Some(one), None) => Ok(one),
        _ => {
            let why = format!("expected an object, since the model takes {}", names(&model.inputs));
            Err(Fault::content(value, path, why))
        }
    }
}

/// The answer, in the form of the request.
///
/// # Errors
/// InvalidArgument if the request has rows, and an output does not have one for each; ResourceExhausted if there is not enough
/// memory for it.
pub fn answer(model: &ServedModel, outputs: &[Tensor], form: Form) -> Result<String> {
    let mut text = String::new();
    let named = || model.outputs.iter().zip(outputs);
    match form {
        Form::Columns => {
            text.push_str("{\"outputs\":");
            match outputs {
                [one] => write(&model.outputs[0], one, &mut text)?,
                _ => members(named(), &mut text)?,
            }
        }
        Form::Rows(count) => {
            if let Some((port, output)) = named().find(|(_, output)| output.dims().first() != Some(&count)) {
                return Err(Failure::invalid(format!(
                    "output {} has the shape {}, and no row for each of the {count} instances; use \"inputs\"",
                    port.name,
                    output.shape()
                )));
            }
            text.push_str("{\"predictions\":");
            match outputs {
                [one] => write(&model.outputs[0], one, &mut text)?,
                _ => {
                    text.push('[');
                    for i in 0..count {
                        if i > 0 {
                            text.push(',');
                        }
                        let rows =
                            outputs.iter().map(|output| super::batch::row(output, i)).collect::<Result<Vec<_>>>()?;
                        members(model.outputs.iter().zip(&rows), &mut text)?;
                    }
                    text.push(']');
                }
            }
        }
    }
    text.push('}');
    Ok(text)
}

/// Writes an output.
fn write(port: &ServedPort, output: &Tensor, text: &mut String) -> Result<()> {
    shown(output, if port.name.ends_with(BYTES) { nested_bytes } else { nested }, text)
}

fn members<'t>(named: impl Iterator<Item = (&'t ServedPort, &'t Tensor)>, text: &mut String) -> Result<()> {
    text.push('{');
    for (i, (port, output)) in named.enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(&quoted(&port.name));
        text.push(':');
        write(port, output, text)?;
    }
    text.push('}');
    Ok(())
}

/// The state of the model: whether it has a session.
pub fn status(session: Result<()>) -> Json {
    let (state, code, message) = match session {
        Ok(()) => ("AVAILABLE", "OK", String::new()),
        Err(failure) => ("LOADING", "UNAVAILABLE", failure.message),
    };
    let status = json!({ "error_code": code, "error_message": message });
    json!({ "model_version_status": [{ "version": VERSION, "state": state, "status": status }] })
}

/// The signature of the model, as the JSON of TensorFlow's messages.
pub fn metadata(model: &ServedModel) -> Json {
    let ports = |ports: &[ServedPort]| -> Map<String, Json> {
        let info = |port: &ServedPort| {
            let dtype = format!("DT_{}", port.dtype.proto_name());
            let output = if port.tensor.contains(':') { String::new() } else { ":0".to_owned() };
            let name = format!("{}{output}", port.tensor);
            json!({ "dtype": dtype, "tensor_shape": shape(&port.shape), "name": name })
        };
        ports.iter().map(|port| (port.name.clone(), info(port))).collect()
    };
    let signature = json!({
        "inputs": ports(&model.inputs),
        "outputs": ports(&model.outputs),
        "method_name": "tensorflow/serving/predict",
    });
    json!({
        "model_spec": { "name": model.name, "signature_name": "", "version": VERSION },
        "metadata": { "signature_def": { "signature_def": { model.signature.as_str(): signature } } },
    })
}

fn shape(shape: &PartialShape) -> Json {
    let size =
        |size: &Option<usize>| json!({ "size": size.map_or("-1".to_owned(), |size| size.to_string()), "name": "" });
    let dims: Vec<Json> = shape.0.iter().flatten().map(size).collect();
    json!({ "dim": dims, "unknown_rank": shape.0.is_none() })
}

#[cfg(test)]
mod tests {
    use meshtf_tensor::DType;

    use super::*;

    fn port(name: &str, dtype: DType, shape: &[Option<usize>]) -> ServedPort {
        let shape = PartialShape(Some(shape.to_vec()));
        ServedPort { name: name.to_owned(), tensor: name.to_owned(), dtype, shape, is_optional: false }
    }

    fn model(inputs: Vec<ServedPort>) -> ServedModel {
        let outputs = vec![port("y", DType::F32, &[None]), port("label", DType::String, &[None])];
        let (name, signature) = ("m".to_owned(), ServedModel::SIGNATURE.to_owned());
        ServedModel { name, signature, inputs, outputs, fixed: vec![], batch: 1 }
    }

    /// The forms of TensorFlow Serving's documentation of its REST interface.
    #[test]
    fn requests_have_rows_or_columns() {
        let one = model(vec![port("x", DType::F32, &[None, Some(2)])]);
        let two = model(vec![port("x", DType::F32, &[None, Some(2)]), port("tag", DType::String, &[None])]);
        let x = Tensor::from_vec([2, 2], vec![1f32, 2.0, 3.0, 4.0]);
        let tag = Tensor::vector(vec![b"foo".to_vec(), b"bar".to_vec()]);
        let check = |model: &ServedModel, text: &str, feeds: &[&Tensor], form: Form| {
            let (asked, own) = asked(model, text).unwrap();
            let values: Vec<&Tensor> = asked.feeds.iter().map(|(_, value)| value).collect();
            assert_eq!((values, own), (feeds.to_vec(), form), "{text}");
        };
        check(&one, r#"{"instances": [[1, 2], [3, 4]]}"#, &[&x], Form::Rows(2));
        check(&one, r#"{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}"#, &[&x], Form::Rows(2));
        check(&one, r#"{"signature_name": "serving_default", "inputs": [[1, 2], [3, 4]]}"#, &[&x], Form::Columns);
        check(&one, r#"{"instances": [[1, 2], [3, 4]], "signature_name": ""}"#, &[&x], Form::Rows(2));
        let rows = r#"{"instances": [{"tag": "foo", "x": [1, 2]}, {"x": [3, 4], "tag": {"b64": "YmFy"}}]}"#;
        check(&two, rows, &[&x, &tag], Form::Rows(2));
        check(&two, r#"{"inputs": {"tag": ["foo", "bar"], "x": [[1, 2], [3, 4]]}}"#, &[&x, &tag], Form::Columns);
    }

    #[test]
    fn a_wrong_request_is_told_what_is_right() {
        let two = model(vec![port("x", DType::F32, &[None]), port("tag", DType::String, &[None])]);
        let fails = |text: &str, why: &str| {
            let error = asked(&two, text).map(drop).unwrap_err().message;
            assert!(error.contains(why), "{text}: {error}");
        };
        fails("[]", "expected an object with \"instances\" or \"inputs\"");
        fails("{}", "\"instances\" or \"inputs\" is missing");
        fails(r#"{"instances": [], "inputs": []}"#, "not both");
        fails(r#"{"instances": []}"#, "there is no example");
        fails(r#"{"instances": 1}"#, "expected a list of examples");
        fails(r#"{"instances": [1, 2]}"#, "expected an object, since the model takes x, tag");
        fails(r#"{"instances": [{"x": 1}, 2]}"#, "$.instances[1] (line 1, column 26): expected an object of inputs");
        fails(r#"{"instances": [{"x": 1}, {"tag": "a"}]}"#, "either all examples have input x, or none");
        fails(r#"{"inputs": {"z": 1}}"#, "there is no input \"z\"; the model takes x, tag");
        fails(r#"{"inputs": {"x": "a"}}"#, "$.inputs.x (line 1, column 18)");
        let other = r#"{"signature_name": "g", "inputs": {"x": [1]}}"#;
        fails(
            other,
            "$.signature_name (line 1, column 20): there is no signature \"g\"; this server has \"serving_default\"",
        );
        fails(
            r#"{"inputs": {"x": [1]}, "signature_name": 1}"#,
            "$.signature_name (line 1, column 42): expected a string",
        );
        fails(r#"{"instance": [1]}"#, "\"instances\" or \"inputs\" is missing");
    }

    #[test]
    fn answers_have_the_form_of_the_request() {
        let model = model(vec![]);
        let outputs = [Tensor::vector(vec![0.5f32, 2.0]), Tensor::vector(vec![b"a".to_vec(), b"b".to_vec()])];
        let check = |form: Form, text: &str| assert_eq!(answer(&model, &outputs, form).as_deref(), Ok(text));
        check(Form::Rows(2), r#"{"predictions":[{"y":0.5,"label":"a"},{"y":2.0,"label":"b"}]}"#);
        check(Form::Columns, r#"{"outputs":{"y":[0.5,2.0],"label":["a","b"]}}"#);
        let one = ServedModel { outputs: vec![model.outputs[0].clone()], ..model.clone() };
        assert_eq!(answer(&one, &outputs[..1], Form::Rows(2)).as_deref(), Ok(r#"{"predictions":[0.5,2.0]}"#));
        assert_eq!(answer(&one, &outputs[..1], Form::Columns).as_deref(), Ok(r#"{"outputs":[0.5,2.0]}"#));
        let error = answer(&one, &outputs[..1], Form::Rows(3)).unwrap_err().message;
        assert!(error.contains("output y has the shape [2], and no row for each of the 3 instances"), "{error}");
    }

    #[test]
    fn the_signature_is_that_of_serving() {
        let model = model(vec![port("x", DType::F32, &[None, Some(2)])]);
        let told = metadata(&model);
        let signature = &told["metadata"]["signature_def"]["signature_def"]["serving_default"];
        let dims = json!([{ "size": "-1", "name": "" }, { "size": "2", "name": "" }]);
        let x = json!({ "dtype": "DT_FLOAT", "tensor_shape": { "dim": dims, "unknown_rank": false }, "name": "x:0" });
        assert_eq!(signature["inputs"]["x"], x);
        assert_eq!(signature["outputs"]["label"]["dtype"], "DT_STRING");
        let other = metadata(&ServedModel { signature: "f".to_owned(), ..model });
        let names = other["metadata"]["signature_def"]["signature_def"].as_object().unwrap();
        assert_eq!(names.keys().collect::<Vec<_>>(), ["f"]);
        assert_eq!(told["model_spec"], json!({ "name": "m", "signature_name": "", "version": "1" }));
    }
}
