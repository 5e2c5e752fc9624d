//! The writer of native graph.json.

use meshtf_tensor::{DType, PartialShape, Tensor, render};
use serde_json::{Map, Value, json};

use crate::{Attr, NodeDef, Program};

/// Writes a program so that [`from_json`](super::from_json) reads the same one. Of the attributes whose names begin with `_`,
/// only those that hold a bool, a number, a string or a list of these are written.
pub fn to_json(program: &Program) -> String {
    to_json_beside(program, &mut |_, _| None)
}

/// As [`to_json`], but with some constants in files: `beside` is called with the name and the value of each, and returns the
/// name of the .npy file that holds it, relative to the folder of the graph; `None` for a value that is written into the graph.
pub fn to_json_beside(program: &Program, beside: &mut dyn FnMut(&str, &Tensor) -> Option<String>) -> String {
    let mut text = format!("{{\n  \"version\": {},\n  \"nodes\": {{", super::VERSION);
    for (i, node) in program.nodes.iter().enumerate() {
        let separator = if i == 0 { "" } else { "," };
        text += &format!("{separator}\n    {}: {}", Value::from(node.name.as_str()), node_text(node, beside));
    }
    text += "\n  }";
    let mut section = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            text += &format!(",\n  \"{key}\": {value}");
        }
    };
    section("fetch", (!program.fetch.is_empty()).then(|| program.fetch.clone().into()));
    section(
        "feed",
        (!program.feed.is_empty())
            .then(|| Value::Object(program.feed.iter().map(|(name, value)| (name.clone(), tensor(value))).collect())),
    );
    section("targets", (!program.targets.is_empty()).then(|| program.targets.clone().into()));
    section("init", (!program.init.is_empty()).then(|| program.init.clone().into()));
    text + "\n}\n"
}

/// A node, with its keys in the usual order.
fn node_text(node: &NodeDef, beside: &mut dyn FnMut(&str, &Tensor) -> Option<String>) -> String {
    let (control, inputs): (Vec<&str>, Vec<&str>) =
        node.inputs.iter().map(String::as_str).partition(|input| input.starts_with('^'));
    let mut attrs = node.attrs.clone();
    let mut keys: Vec<(&str, Value)> = Vec::new();
    match (node.op.as_str(), attrs.tensor("value").cloned()) {
        ("Const", Ok(value))
            // The dtype need not be stated.
            if attrs.0.keys().all(|key| key == "value" || key == "dtype")
                && attrs.dtype("dtype").map_or(attrs.0.len() == 1, |dtype| dtype == value.dtype()) =>
        {
            attrs.0.clear();
            if let Some(file) = beside(&node.name, &value) {
                let (dtype, shape) = (value.dtype().name().into(), value.dims().into());
                keys.extend([("file", file.into()), ("dtype", dtype), ("shape", shape)]);
            } else if let Value::Object(literal) = tensor(&value) {
                for key in ["value", "dtype", "shape"] {
                    keys.extend(literal.get(key).map(|part| (key, part.clone())));
                }
            }
        }
        _ => keys.push(("op", node.op.as_str().into())),
    }
    if !inputs.is_empty() {
        keys.push(("inputs", inputs.into()));
    }
    let attrs: Map<String, Value> =
        attrs.0.iter().filter_map(|(name, value)| Some((name.clone(), attr(name, value)?))).collect();
    if !attrs.is_empty() {
        keys.push(("attrs", attrs.into()));
    }
    if !node.device.is_empty() {
        keys.push(("device", node.device.as_str().into()));
    }
    if !control.is_empty() {
        keys.push(("control", control.iter().map(|name| &name[1..]).collect::<Vec<_>>().into()));
    }
    let keys: Vec<String> = keys.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{ {} }}", keys.join(", "))
}

/// A literal with its dtype, and with its shape if nested lists cannot express it.
fn tensor(value: &Tensor) -> Value {
    let mut literal = json!({ "value": render::to_json(value), "dtype": value.dtype().name() });
    if value.is_empty() && value.rank() > 1 {
        literal["value"] = json!([]);
        literal["shape"] = value.dims().into();
    }
    literal
}

/// The JSON of an attribute; `None` if its name begins with `_` and its kind cannot be determined from the JSON.
fn attr(name: &str, value: &Attr) -> Option<Value> {
    let dtype = |dtype: &DType| Value::from(dtype.name());
    let string = |bytes: &Vec<u8>| render::string_to_json(bytes);
    let has_kind = !name.starts_with('_');
    Some(match value {
        Attr::Int(v) => (*v).into(),
        Attr::Float(v) => render::float_to_json(*v),
        Attr::Bool(v) => (*v).into(),
        Attr::Str(v) => string(v),
        Attr::Ints(v) => v.clone().into(),
        Attr::Floats(v) => v.iter().map(|&v| render::float_to_json(v)).collect(),
        Attr::Bools(v) => v.clone().into(),
        Attr::Strs(v) => v.iter().map(string).collect(),
        Attr::Empty => json!([]),
        Attr::Type(v) if has_kind => dtype(v),
        Attr::Shape(v) if has_kind => shape(v),
        Attr::Tensor(v) if has_kind => tensor(v),
        Attr::Filled(v) if has_kind => {
            let mut literal = tensor(v.element());
            literal["shape"] = v.shape().dims().into();
            literal
        }
        Attr::Types(v) if has_kind => v.iter().map(dtype).collect(),
        Attr::Shapes(v) if has_kind => v.iter().map(shape).collect(),
        // No op that graph.json can contain has one.
        Attr::Func(_) | Attr::Funcs(_) | Attr::Variant(_) => return None,
        Attr::Type(_) | Attr::Shape(_) | Attr::Tensor(_) | Attr::Filled(_) | Attr::Types(_) | Attr::Shapes(_) => {
            return None;
        }
    })
}

fn shape(shape: &PartialShape) -> Value {
    match &shape.0 {
        None => Value::Null,
        Some(dims) => dims.clone().into(),
    }
}
