//! The structure of a document: the keys that are allowed at each position, and the kind of each value.

use meshtf_tensor::json::{Fault, Kind, Member, Path, Value, is_whole};
use meshtf_tensor::{DType, Shape};

use super::layer_table::layer_named;
use super::{attr, layers, variables};
use crate::build::is_node_name;
use crate::op::{self, OpDef};
use crate::variable::VariableSpec;
use crate::{Attrs, GraphError};

/// A document with a valid structure.
pub(super) struct Document<'v, 'a> {
    pub nodes: Vec<Draft<'v, 'a>>,
    pub layers: Vec<layers::Layer<'v, 'a>>,
    pub fetch: Vec<String>,
    pub feed: Vec<(String, Literal<'v, 'a>)>,
    pub targets: Vec<String>,
    pub init: Vec<String>,
    pub variables: Vec<VariableSpec>,
}

/// A node as stated by the document.
pub(super) struct Draft<'v, 'a> {
    pub name: &'v str,
    pub device: String,
    pub control: Vec<String>,
    pub made: Made<'v, 'a>,
}

/// The definition of a node: a literal, a value in a file, or an op with its inputs and attributes.
pub(super) enum Made<'v, 'a> {
    Constant(Literal<'v, 'a>),
    Stored(Stored<'v, 'a>),
    Op { op: &'static OpDef, inputs: Vec<DraftInput<'v, 'a>>, attrs: Attrs },
}

/// An input of a node: the name of a tensor, or a literal.
pub(super) enum DraftInput<'v, 'a> {
    Tensor(&'v str),
    Literal(Literal<'v, 'a>),
}

/// A literal, with its dtype and shape if they are stated.
pub(super) struct Literal<'v, 'a> {
    pub value: &'v Value<'a>,
    /// The path of `value` in the document, for errors.
    pub path: String,
    pub dtype: Option<DType>,
    pub shape: Option<Shape>,
}

/// A constant whose value is in a file next to the graph.
pub(super) struct Stored<'v, 'a> {
    /// The name of the file in the document.
    pub file: &'v str,
    pub value: &'v Value<'a>,
    /// The path of `value` in the document, for errors.
    pub path: String,
    pub dtype: DType,
    pub shape: Shape,
}

type Read<T> = Result<T, Fault>;

/// The keys that a graph.json may have.
pub const ROOT_KEYS: &[&str] = &[
    "version",
    "nodes",
    "variables",
    "fetch",
    "feed",
    "targets",
    "init",
    "data",
    "train",
    "evaluate",
    "generate",
    "description",
    "$schema",
];

pub(super) fn document<'v, 'a>(value: &'v Value<'a>) -> Read<Document<'v, 'a>> {
    let root = Path::Root;
    let members = value.object(root, "graph.json is an object")?;
    // First of all: a document of another version may have any form.
    match value.get("version").map(|value| &value.kind) {
        Some(Kind::Number(number)) if number.parse() == Ok(f64::from(super::VERSION)) => {}
        Some(_) => {
            let at = value.get("version").unwrap_or(value);
            return Err(Fault::content(
                at,
                root.key("version"),
                format!("this program reads version {}", super::VERSION),
            ));
        }
        None => {
            let why = "\"version\" is missing; a graph.json has \"version\": 1 and \"nodes\", a GraphDef has \"node\"";
            return Err(Fault::content(value, root, why));
        }
    }
    let mut document = Document {
        nodes: Vec::new(),
        layers: Vec::new(),
        fetch: Vec::new(),
        feed: Vec::new(),
        targets: Vec::new(),
        init: Vec::new(),
        variables: Vec::new(),
    };
    let mut has_nodes = false;
    for Member { key, at, value } in members {
        let path = root.key(key);
        match &**key {
            "version" => {}
            "$schema" | "description" => _ = value.text(path)?,
            "nodes" => {
                has_nodes = true;
                for member in value.object(path, "nodes is an object of nodes by their names")? {
                    let path = path.key(&member.key);
                    match member.value.get("layer") {
                        Some(_) => document.layers.push(layers::read(member, path)?),
                        None => document.nodes.push(node(member, path)?),
                    }
                }
            }
            "fetch" => document.fetch = names(value, path, "tensors")?,
            "targets" => document.targets = names(value, path, "nodes")?,
            "init" => document.init = names(value, path, "nodes")?,
            "variables" => document.variables = variables::read(value, path)?,
            // Sections that `meshtf train` and other commands read and use.
            "data" | "train" | "evaluate" | "generate" => _ = value.object(path, "this is an object")?,
            "feed" => {
                document.feed = value
                    .object(path, "feed is an object of values by the names of tensors")?
                    .iter()
                    .map(|member| Ok((member.key.to_string(), literal(&member.value, path.key(&member.key), &[])?)))
                    .collect::<Read<_>>()?;
            }
            _ => {
                return Err(unknown_key(key, *at, path, ROOT_KEYS));
            }
        }
    }
    if !has_nodes {
        return Err(Fault::content(value, root, "\"nodes\" is missing"));
    }
    Ok(document)
}

fn node<'v, 'a>(member: &'v Member<'a>, path: Path) -> Read<Draft<'v, 'a>> {
    if !is_node_name(&member.key) {
        let why = GraphError::BadName { name: member.key.to_string() }.to_string();
        return Err(Fault::of_content(member.at, path, why));
    }
    let mut draft = Draft {
        name: &member.key,
        device: String::new(),
        control: Vec::new(),
        made: Made::Constant(Literal { value: &member.value, path: path.to_string(), dtype: None, shape: None }),
    };
    let Kind::Object(members) = &member.value.kind else { return Ok(draft) };
    if let Some(value) = member.value.get("device") {
        draft.device = device(value, path.key("device"))?;
    }
    if let Some(value) = member.value.get("control") {
        draft.control = names(value, path.key("control"), "nodes")?;
    }
    if let Some(value) = member.value.get("description") {
        value.text(path.key("description"))?;
    }
    let Some(op_name) = member.value.get("op") else {
        if is_base64(&member.value) {
            return Ok(draft);
        }
        if let Some(file) = member.value.get("file") {
            draft.made = Made::Stored(stored(&member.value, file, path)?);
            return Ok(draft);
        }
        if member.value.get("value").is_none() {
            let why = "a node has an \"op\" or a \"layer\", or a \"value\" or a \"file\" if it is a constant";
            return Err(Fault::content(&member.value, path, why));
        }
        draft.made = Made::Constant(literal(&member.value, path, &["device", "control", "description"])?);
        return Ok(draft);
    };
    let op = known_op(op_name, path.key("op"))?;
    let (mut inputs, mut attrs) = (Vec::new(), Attrs::default());
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "op" | "device" | "control" | "description" => {}
            "inputs" => {
                inputs = value
                    .list(path, "inputs are a list")?
                    .iter()
                    .enumerate()
                    .map(|(i, item)| input(item, path.index(i)))
                    .collect::<Read<_>>()?;
            }
            "attrs" => attrs = attr::read_all(op, value, path)?,
            _ if op.attr(key).is_some() => {
                let why = format!("{key:?} is an attribute of {}; put it inside \"attrs\"", op.name);
                return Err(Fault::of_content(*at, path, why));
            }
            _ => {
                let known = ["op", "inputs", "attrs", "device", "control", "description"];
                return Err(unknown_key(key, *at, path, &known));
            }
        }
    }
    draft.made = Made::Op { op, inputs, attrs };
    Ok(draft)
}

/// Reads a constant whose value is in a file. The file need not exist yet: dtype and shape are stated.
fn stored<'v, 'a>(node: &'v Value<'a>, value: &'v Value<'a>, path: Path) -> Read<Stored<'v, 'a>> {
    let known = ["file", "dtype", "shape", "device", "control", "description"];
    for Member { key, at, .. } in node.object(path, "a constant is an object")? {
        if !known.contains(&&**key) {
            return Err(unknown_key(key, *at, path.key(key), &known));
        }
    }
    let own = path.key("file");
    let file = value.text(own)?;
    if !is_beside(file) {
        let why = "a file is named from the folder of the graph, in that folder or below it: \"weights/w.npy\"";
        return Err(Fault::content(value, own, why));
    }
    let stated = |key: &str| {
        let why = format!("a constant in a file states its \"{key}\", against which the file is checked");
        node.get(key).ok_or_else(|| Fault::content(node, path, why))
    };
    let dtype = attr::dtype_of_value(stated("dtype")?, path.key("dtype"))?;
    let shape = shape(stated("shape")?, path.key("shape"))?;
    Ok(Stored { file, value, path: own.to_string(), dtype, shape })
}

/// Whether a file name denotes a file in the graph's folder or below it, on every operating system.
pub fn is_beside(file: &str) -> bool {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..");
    !file.contains(['\\', ':', '\0']) && file.split('/').all(is_plain)
}

fn known_op(value: &Value, path: Path) -> Read<&'static OpDef> {
    let name = value.text(path)?;
    op::lookup(name).ok_or_else(|| {
        let near = op::nearest(name);
        let hint = match layer_named(name) {
            Some(layer) => {
                let others: String = near.iter().map(|op| format!(" or {op}")).collect();
                format!("; did you mean the layer {}{others}?", layer.begun())
            }
            None => op::hint(&near),
        };
        Fault::content(value, path, format!("unknown op {name:?}{hint}"))
    })
}

fn input<'v, 'a>(value: &'v Value<'a>, path: Path) -> Read<DraftInput<'v, 'a>> {
    match &value.kind {
        Kind::String(name) => match name.strip_prefix('^') {
            _ if name.is_empty() => Err(Fault::content(value, path, "an input is the name of a node, not \"\"")),
            Some(control) => {
                let why = format!("put a control input in \"control\", as {control:?}");
                Err(Fault::content(value, path, why))
            }
            None => Ok(DraftInput::Tensor(name)),
        },
        Kind::List(_) if holds_text(value) => {
            let why = "text among the inputs is the name of a node, and a list of names cannot be an input: \
                       name each node by itself, or write {\"value\": [\"…\"]} for text";
            Err(Fault::content(value, path, why))
        }
        Kind::Null => Err(Fault::content(value, path, "an input is the name of a node or a literal, not null")),
        _ => literal(value, path, &[]).map(DraftInput::Literal),
    }
}

/// Whether this is a base64 string of bytes that are not UTF-8.
fn is_base64(value: &Value) -> bool {
    matches!(&value.kind, Kind::Object(members) if matches!(&members[..], [member] if member.key == "base64"))
}

fn holds_text(value: &Value) -> bool {
    match &value.kind {
        Kind::String(_) => true,
        Kind::List(items) => items.iter().any(holds_text),
        _ => false,
    }
}

/// Reads a literal: a bare value, or an object with the value as "value" and optionally "dtype" and "shape". The keys in `also`
/// are allowed too; the caller reads them.
pub(super) fn literal<'v, 'a>(value: &'v Value<'a>, path: Path, also: &[&'static str]) -> Read<Literal<'v, 'a>> {
    let mut literal = Literal { value, path: path.to_string(), dtype: None, shape: None };
    let Kind::Object(members) = &value.kind else { return Ok(literal) };
    if is_base64(value) {
        return Ok(literal);
    }
    for Member { key, at, value } in members {
        let path = path.key(key);
        match &**key {
            "value" => (literal.value, literal.path) = (value, path.to_string()),
            "dtype" => literal.dtype = Some(attr::dtype_of_value(value, path)?),
            "shape" => literal.shape = Some(shape(value, path)?),
            key if also.contains(&key) => {}
            _ => {
                let known: Vec<&str> = ["value", "dtype", "shape"].into_iter().chain(also.iter().copied()).collect();
                return Err(unknown_key(key, *at, path, &known));
            }
        }
    }
    if value.get("value").is_none() {
        return Err(Fault::content(value, path, "a literal that is an object has a \"value\""));
    }
    Ok(literal)
}

pub(super) fn shape(value: &Value, path: Path) -> Read<Shape> {
    value
        .list(path, "a shape is a list of sizes")?
        .iter()
        .enumerate()
        .map(|(i, size)| {
            match size.kind {
                Kind::Number(number) if is_whole(number) => number.parse::<usize>().ok(),
                _ => None,
            }
            .ok_or_else(|| Fault::content(size, path.index(i), "a size is a whole number of at least 0"))
        })
        .collect::<Read<Vec<usize>>>()
        .map(Shape::from)
}

pub(super) fn device(value: &Value, path: Path) -> Read<String> {
    let device = value.text(path)?;
    match device.parse::<meshtf_tensor::device::DeviceSpec>() {
        Ok(_) => Ok(device.to_owned()),
        Err(error) => Err(Fault::content(value, path, error.to_string())),
    }
}

fn names(value: &Value, path: Path, what: &str) -> Read<Vec<String>> {
    value
        .list(path, &format!("this is a list of the names of {what}"))?
        .iter()
        .enumerate()
        .map(|(i, item)| {
            let name = item.text(path.index(i))?;
            match name.strip_prefix('^') {
                _ if name.is_empty() => Err(Fault::content(item, path.index(i), "a name is not empty")),
                Some(plain) => {
                    Err(Fault::content(item, path.index(i), format!("a name has no ^ here: write {plain:?}")))
                }
                None => Ok(name.to_owned()),
            }
        })
        .collect()
}

pub(super) fn unknown_key(key: &str, at: usize, path: Path, known: &[&str]) -> Fault {
    let near = meshtf_tensor::nearest::nearest(key, known.iter().copied());
    let hint = match near.first() {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("there are {}", known.join(", ")),
    };
    Fault::of_content(at, path, format!("unknown key {key:?}; {hint}"))
}
