//! ONNX models as nodes of a graph, in the vocabulary that meshtf plans and runs.
//!
//! - **Is**: the reader of `.onnx` files, opsets 7 to 26: one rule for each operator, functions inlined, subgraphs as loops and
//!   branches, weights from the file or from files beside it.
//! - **Knows**: graphs and tensors; other files only through the function that reads them.
//! - **Never** runs a node, opens a file, or guesses: an operator or a type that it lacks is an error with the node's name.
//!
//! [`read`] checks the bytes against limits (`bounds`), decodes them (`proto`), and lowers one node after another (`cx`, and
//! `lower` with a file for each family of operators). The emitter (`emit`) adds nodes to a graph at once, so that each rule
//! knows dtype and shape of its inputs, and the elements of constants and of small integer tensors.
//!
//! | file | |
//! |---|---|
//! | `apart` | a model's file without its large weights |
//! | `describe` | the content of a model as a list |
//! | `elem`, `weight` | element types, and the dtypes that hold those that meshtf lacks; constants |
//! | `save` | the way back: a graph as a model |
//! | `tuned` | a model with other values of its initializers |
//! | `node`, `fold` | a node as its rule sees it; constants computed from constants |
//! | `flow` | subgraphs spliced into branches and loops |
//! | `value` | protos of tensors, sequences and optionals, which steps are fed and results are written as |

mod apart;
mod bounds;
mod cx;
mod describe;
mod elem;
mod emit;
mod flow;
mod fold;
mod help;
mod lower;
mod node;
pub mod proto;
pub mod save;
mod tuned;
mod value;
mod weight;

use std::collections::{HashMap, HashSet};

pub use apart::without_weights;
pub use cx::Variable;
pub use describe::{Description, Weight, describe};
pub use elem::Elem;
pub use lower::{Operator, operators};
use meshtf_graph::{Beside, FormatError, NodeDef};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{DType, PartialShape, Tensor};
use prost::Message as _;
use prost::bytes::Bytes;
use proto::{DimensionValue, GraphProto, ModelProto, TensorProto, TypeProto, TypeValue};
pub use tuned::replaced;
pub use value::{Fed, Shown};

use crate::cx::{Cx, Library};
use crate::node::{Packed, Sequence, Value};

/// The largest file that is read, in bytes: protobuf's own limit.
const MAX_BYTES: usize = i32::MAX as usize;

/// A model as a program.
#[derive(Clone, Debug)]
pub struct Model {
    /// The nodes that its outputs need, in an order in which each comes after its inputs.
    pub nodes: Vec<NodeDef>,
    /// Its inputs, apart from those that have a value in the file.
    pub inputs: Vec<Port>,
    /// Its outputs.
    pub outputs: Vec<Port>,
    /// Its initializers that are variables.
    pub variables: Vec<Variable>,
    /// The node that gives all variables their first values, if there are some.
    pub init: Option<String>,
}

/// Parts of a model that are read in another way.
#[derive(Clone, Copy, Default)]
pub struct Tuning<'a> {
    /// Whether an initializer of floats is a variable, by its name. The others are constants. Graphs of other formats that have
    /// no variables are read so, too: their constants are initializers then.
    pub is_variable: Option<&'a dyn Fn(&str) -> bool>,
    /// Values within the model for which there are nodes of their names, as [`node_name`] writes them. Unknown ones are left
    /// out.
    pub tensors: &'a [String],
}

/// The name of the node for a value of a model: characters that a node's name cannot have become `_`, and a `/` at the beginning
/// is left out.
pub fn node_name(value: &str) -> String {
    sanitized(value, "value")
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// The name of the tensor by which it is fed or fetched. That of a sequence is a vector of serialized tensors.
    pub tensor: String,
    /// Its kind, and the type of its elements.
    pub kind: Kind,
    /// The sizes that the model states: a number, or a name for one that is the same wherever it stands.
    pub dims: Option<Vec<Dim>>,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor of these elements.
    Tensor(Elem),
    /// A sequence of tensors of these elements.
    Sequence(Elem),
    /// An optional tensor: no value is a vector without strings.
    Optional(Elem),
    /// An optional sequence.
    OptionalSequence(Elem),
}

/// A size that a model states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Size(usize),
    /// A name, which may be empty.
    Named(String),
}

/// The value of a message, and its element type.
///
/// # Errors
/// InvalidArgument if dims, type and data do not fit; Unimplemented for a type that onnx does not define.
pub fn tensor(proto: &TensorProto) -> Result<(Tensor, Elem)> {
    weight::tensor(proto, None)
}

/// Whether a file is an ONNX model, by its content.
pub fn is_model(bytes: &[u8]) -> bool {
    bounds::is_model(bytes)
}

/// The message of a model.
///
/// # Errors
/// NoGraph or TooLarge if the bytes are no model, or exceed a limit.
fn decoded(bytes: &Bytes) -> std::result::Result<ModelProto, FormatError> {
    if bytes.len() > MAX_BYTES {
        let (bytes, limit) = (bytes.len() as u64, MAX_BYTES as u64);
        return Err(FormatError::TooLarge { what: "the model".to_owned(), bytes, limit });
    }
    bounds::check(bytes).map_err(|why| FormatError::NoGraph { why: format!("this ONNX model is not read: {why}") })?;
    // The weights are parts of the bytes, and not copied.
    ModelProto::decode(bytes.clone())
        .map_err(|error| FormatError::NoGraph { why: format!("this ONNX model is damaged: {error}") })
}

/// Reads a model. `beside` reads a file in the model's folder, which may hold weights.
///
/// # Errors
/// The error, the node it is in, and the remedy: a file that is no model or exceeds a limit, an operator that is not supported,
/// a node that contradicts itself.
pub fn read(bytes: &[u8], beside: &mut Beside) -> std::result::Result<Model, FormatError> {
    read_tuned(&Bytes::copy_from_slice(bytes), beside, Tuning::default())
}

/// As [`read`], with parts that are read in another way.
///
/// # Errors
/// Those of [`read`]: also for a variable where an operator needs a constant.
pub fn read_tuned(bytes: &Bytes, beside: &mut Beside, tuning: Tuning) -> std::result::Result<Model, FormatError> {
    let proto = decoded(bytes)?;
    model(&proto, beside, tuning).map_err(|failure| match (failure.code, failure.node) {
        (Code::ResourceExhausted, node) => {
            let node = node.map(|node| format!("node {node}: ")).unwrap_or_default();
            FormatError::NoMemory { why: format!("{node}{}", failure.message) }
        }
        (_, Some(node)) => FormatError::Node { node, why: failure.message },
        (_, None) => FormatError::NoGraph { why: format!("this ONNX model is not read: {}", failure.message) },
    })
}

fn model(proto: &ModelProto, beside: &mut Beside, tuning: Tuning) -> Result<Model> {
    let graph = proto.graph.as_ref().ok_or_else(|| Failure::invalid("it has no graph"))?;
    let mut functions = HashMap::new();
    for function in &proto.functions {
        functions.insert((cx::domain(&function.domain), function.name.as_str(), function.overload.as_str()), function);
    }
    let library = Library { functions };
    let opsets = cx::opsets(&proto.opset_import);
    if let Some(version) = opsets.get("").filter(|&&version| !(MIN_OPSET..=MAX_OPSET).contains(&version)) {
        let why = format!("unsupported: opset {version} of ONNX; {MIN_OPSET} to {MAX_OPSET} are read");
        return Err(unsupported(why));
    }
    let mut weights = HashMap::new();
    let mut files = weight::Files::new(beside);
    external(graph, &mut files, &mut weights)?;
    let cx = Cx::new(&library, opsets, &weights);
    let mut cx = match tuning.is_variable {
        Some(is_variable) => cx.with_variables(is_variable),
        None => cx,
    };
    // Names that users state come first.
    let mut names: HashSet<&str> = HashSet::new();
    let has_value: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut inputs = Vec::new();
    for info in graph.input.iter().filter(|info| !has_value.contains(info.name.as_str())) {
        if !names.insert(&info.name) {
            return Err(Failure::invalid(format!("two inputs are named {:?}", info.name)));
        }
        inputs.push(input(&mut cx, info)?);
    }
    let named: Vec<String> = graph.output.iter().map(|info| cx.em.reserve(&sanitized(&info.name, "output"))).collect();
    cx.graph(graph)?;
    let values = cx.outputs(graph)?;
    let mut outputs = Vec::new();
    for ((info, value), name) in graph.output.iter().zip(values).zip(named) {
        outputs.push(output(&mut cx, info, value, name)?);
    }
    let kept = inner(&mut cx, tuning.tensors)?;
    let variables = std::mem::take(&mut cx.variables);
    let init = (!variables.is_empty()).then(|| cx.em.reserve("init"));
    cx.em.graph().check_shapes()?;
    let mut nodes = cx.em.into_graph().to_defs();
    if let Some(init) = &init {
        let assigns = variables.iter().map(|variable| format!("^{}", variable.assign)).collect();
        nodes.push(NodeDef { name: init.clone(), op: "NoOp".to_owned(), inputs: assigns, ..NodeDef::default() });
    }
    let ports = inputs.iter().chain(&outputs).map(|port| port.tensor.as_str());
    let nodes = reachable(nodes, ports.chain(kept.iter().chain(&init).map(String::as_str)));
    Ok(Model { nodes, inputs, outputs, variables, init })
}

/// Adds nodes for values within the model; returns their names, and those of nodes that have such a name already.
fn inner(cx: &mut Cx, wanted: &[String]) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    for name in wanted {
        let own = node_name(name);
        if cx.em.graph().find(&own).is_none() {
            let Some(value) = cx.value_like(name, &own) else { continue };
            // The name may be reserved for the nodes of an operator, which are below it; no node has it.
            cx.em.named(own.clone(), "Identity", &[value], &[])?;
        }
        kept.push(own);
    }
    Ok(kept)
}

/// The opsets whose operators are lowered.
pub const MIN_OPSET: i64 = 1;
/// The newest.
pub const MAX_OPSET: i64 = 28;

/// Reads the weights in files beside the model, of the graph and of its subgraphs.
fn external(
    graph: &GraphProto,
    files: &mut weight::Files,
    weights: &mut HashMap<*const TensorProto, (Tensor, Elem)>,
) -> Result<()> {
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        let attributes = graph.node.iter().flat_map(|node| &node.attribute);
        graphs.extend(attributes.clone().filter_map(|attr| attr.g.as_deref()));
        let tensors = graph.initializer.iter().chain(attributes.filter_map(|attr| attr.t.as_deref()));
        for proto in tensors.filter(|proto| proto.data_location == proto::EXTERNAL) {
            let read = weight::tensor(proto, Some(files)).map_err(|failure| Failure {
                message: format!("initializer: {}", failure.message),
                node: Some(proto.name.clone()),
                ..failure
            })?;
            weights.insert(std::ptr::from_ref(proto), read);
        }
    }
    Ok(())
}

fn input(cx: &mut Cx, info: &proto::ValueInfoProto) -> Result<Port> {
    let named = |failure: Failure| Failure {
        message: format!("input: {}", failure.message),
        node: Some(info.name.clone()),
        ..failure
    };
    let kind = kind(info.r#type.as_ref()).map_err(named)?;
    let dims = dims(info.r#type.as_ref());
    let (dtype, shape) = match kind {
        Kind::Tensor(elem) => {
            let size = |dim: &Dim| if let Dim::Size(size) = dim { Some(*size) } else { None };
            let shape = PartialShape(dims.as_ref().map(|dims| dims.iter().map(size).collect()));
            (elem.dtype().map_err(named)?, shape)
        }
        _ => (DType::String, PartialShape::from([None])),
    };
    let name = sanitized(&info.name, "input");
    let output = cx.parameter(&name, dtype, shape)?;
    let tensor = cx.em.graph().tensor_name(output);
    let value = match kind {
        Kind::Tensor(elem) => {
            cx.em.set_elem(output, elem);
            Value::Tensor(output)
        }
        Kind::Sequence(elem) => {
            let of = Packed { dtype: elem.dtype().map_err(named)?, shape: element_shape(info.r#type.as_ref()) };
            Value::Sequence(Sequence::Packed(output, of))
        }
        Kind::Optional(elem) | Kind::OptionalSequence(elem) => {
            let of = Packed { dtype: elem.dtype().map_err(named)?, shape: element_shape(info.r#type.as_ref()) };
            Value::Maybe(output, of, matches!(kind, Kind::OptionalSequence(_)))
        }
    };
    cx.bind(&info.name, value);
    Ok(Port { name: info.name.clone(), tensor, kind, dims })
}

fn output(cx: &mut Cx, info: &proto::ValueInfoProto, value: Value, name: String) -> Result<Port> {
    let dims = dims(info.r#type.as_ref());
    let (from, kind) = lower::sequence::shown(cx, value)?;
    let kind = match (kind, kind_of_output(info)) {
        (Kind::Tensor(own), Some(Kind::Tensor(stated))) if own.dtype() == stated.dtype() => Kind::Tensor(stated),
        (own, _) => own,
    };
    let output = cx.em.named(name, "Identity", &[from], &[])?;
    Ok(Port { name: info.name.clone(), tensor: cx.em.graph().tensor_name(output), kind, dims })
}

fn kind_of_output(info: &proto::ValueInfoProto) -> Option<Kind> {
    kind(info.r#type.as_ref()).ok()
}

/// The kind that a type states.
fn kind(ty: Option<&TypeProto>) -> Result<Kind> {
    let missing = || Failure::invalid("its type is not stated");
    let elem = |ty: Option<&TypeProto>| match ty.and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::Tensor(ty)) => Ok(Elem(ty.elem_type)),
        _ => Err(unsupported("unsupported: a sequence or optional of anything but tensors")),
    };
    match ty.and_then(|ty| ty.value.as_ref()).ok_or_else(missing)? {
        TypeValue::Tensor(ty) => Ok(Kind::Tensor(Elem(ty.elem_type))),
        TypeValue::Sequence(inner) => Ok(Kind::Sequence(elem(inner.elem_type.as_deref())?)),
        TypeValue::Optional(inner) => match inner.elem_type.as_deref().and_then(|ty| ty.value.as_ref()) {
            Some(TypeValue::Sequence(inner)) => Ok(Kind::OptionalSequence(elem(inner.elem_type.as_deref())?)),
            _ => Ok(Kind::Optional(elem(inner.elem_type.as_deref())?)),
        },
        TypeValue::Map(_) => Err(unsupported("unsupported: a map")),
        TypeValue::SparseTensor(_) => Err(unsupported("unsupported: a sparse tensor as a value")),
    }
}

fn dims(ty: Option<&TypeProto>) -> Option<Vec<Dim>> {
    let Some(TypeValue::Tensor(ty)) = ty.and_then(|ty| ty.value.as_ref()) else { return None };
    let dim = |dim: &proto::Dimension| match &dim.value {
        Some(DimensionValue::Value(size)) => {
            usize::try_from(*size).map_or_else(|_| Dim::Named(String::new()), Dim::Size)
        }
        Some(DimensionValue::Param(name)) => Dim::Named(name.clone()),
        None => Dim::Named(String::new()),
    };
    Some(ty.shape.as_ref()?.dim.iter().map(dim).collect())
}

/// The shape that the type of a sequence or optional states for its tensors.
fn element_shape(ty: Option<&TypeProto>) -> PartialShape {
    match ty.and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::Sequence(inner) | TypeValue::Optional(inner)) => element_shape(inner.elem_type.as_deref()),
        Some(TypeValue::Tensor(_)) => {
            cx::tensor_type(ty).ok().flatten().map_or(PartialShape::UNKNOWN, |(_, shape)| shape)
        }
        _ => PartialShape::UNKNOWN,
    }
}

/// The nodes that some tensors need, in their order.
fn reachable<'a>(nodes: Vec<NodeDef>, tensors: impl Iterator<Item = &'a str>) -> Vec<NodeDef> {
    let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, node)| (node.name.as_str(), i)).collect();
    let place = |input: &str| by_name.get(meshtf_graph::split_tensor_name(input.trim_start_matches('^')).0).copied();
    let mut is_needed = vec![false; nodes.len()];
    let mut open: Vec<usize> = tensors.filter_map(place).collect();
    while let Some(i) = open.pop() {
        if !std::mem::replace(&mut is_needed[i], true) {
            open.extend(nodes[i].inputs.iter().filter_map(|input| place(input)));
        }
    }
    nodes.into_iter().zip(is_needed).filter_map(|(node, needed)| needed.then_some(node)).collect()
}

/// A name as nodes have them.
fn sanitized(name: &str, other: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-/\\>".contains(c) { c } else { '_' };
    let name: String = name.trim_start_matches('/').chars().take(200).map(allowed).collect();
    match name.chars().next() {
        None => other.to_owned(),
        Some(first) if first.is_ascii_alphanumeric() || first == '.' || first == '_' => name,
        Some(_) => format!("_{name}"),
    }
}

/// The index that an axis denotes, counted from the end if it is negative.
fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    (-rank..rank).contains(&axis).then(|| axis.rem_euclid(rank) as usize)
}

/// The failure for a part of ONNX that meshtf lacks.
fn unsupported(why: impl Into<String>) -> Failure {
    Failure::new(Code::Unimplemented, why.into())
}
