//! GraphDef, the format in which TensorFlow's own tools write graphs: binary, and protobuf's JSON mapping.
//!
//! Both are read into the same messages, and these into [`NodeDef`]s; writing is the reverse. If a node has an attribute that
//! meshtf cannot represent (a quantized dtype, for example), it is kept without that, as a node that no step can run; if the
//! attribute begins with `_`, which no op of the vocabulary reads, it is dropped. Calls of functions are expanded: see
//! [`Library`].

mod count;
mod derive;
mod expand;
mod flow;
mod function;
mod library;
pub mod meta;
mod proto;
mod read_json;
mod tensor;
mod value;
mod variant;
pub mod weigh;

use std::collections::BTreeMap;

use self::proto::{AttrValue, ListValue, Value};
use base64::prelude::{BASE64_STANDARD, Engine as _};
pub use library::{Growth, Library};
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::{PartialShape, Tensor};
use prost::Message as _;
pub use proto::{Dim, GraphDef, TensorProto, TensorShapeProto};

use super::program::Budget;
use super::{Attr, Attrs, FormatError, Function, NodeDef};

/// The version of GraphDef that is written: that of TensorFlow 2.21.
const PRODUCER: i32 = 2474;

/// Reads a binary GraphDef.
///
/// # Errors
/// NoGraph if the bytes are not a GraphDef, Node if a call consumes its own output.
pub fn from_binary(bytes: &[u8]) -> Result<Vec<NodeDef>, FormatError> {
    match weigh::weigh(bytes, &weigh::GRAPH, weigh::MAX_GRAPH_BYTES) {
        Err(failure) if failure.code == Code::ResourceExhausted => {
            return Err(FormatError::NoGraph { why: failure.message });
        }
        // If the bytes are not a message at all, the decoder reports the error.
        _ => {}
    }
    let graph = GraphDef::decode(bytes)
        .map_err(|error| FormatError::NoGraph { why: format!("not a valid GraphDef: {error}") })?;
    nodes(graph)
}

/// Reads a GraphDef in protobuf's JSON mapping, with field names in camelCase or as in the .proto file.
///
/// # Errors
/// Syntax, Content, or Node if a call consumes its own output.
pub fn from_json(text: &str) -> Result<Vec<NodeDef>, FormatError> {
    let value = meshtf_tensor::json::parse(text).map_err(|fault| FormatError::of_json(text, fault))?;
    from_json_value(text, &value)
}

pub(super) fn from_json_value(text: &str, value: &meshtf_tensor::json::Value) -> Result<Vec<NodeDef>, FormatError> {
    nodes(read_json::graph(value).map_err(|fault| FormatError::of_json(text, fault))?)
}

/// The nodes of a GraphDef that arrives whole; for one that arrives in pieces, see [`Library`].
///
/// # Errors
/// Node if a call of a function consumes its own output.
pub fn nodes(graph: GraphDef) -> Result<Vec<NodeDef>, FormatError> {
    Library::default().expand(graph)
}

/// The GraphDef of these nodes.
pub fn graph_def(nodes: &[NodeDef]) -> GraphDef {
    let names = value::Names::of(nodes);
    GraphDef {
        node: nodes.iter().map(|node| write_node(node, &names)).collect(),
        library: Some(names.library())
            .filter(|functions| !functions.is_empty())
            .map(|function| proto::FunctionDefLibrary { function, gradient: Vec::new() }),
        versions: Some(proto::VersionDef { producer: PRODUCER }),
    }
}

/// Writes a binary GraphDef.
pub fn to_binary(nodes: &[NodeDef]) -> Vec<u8> {
    graph_def(nodes).encode_to_vec()
}

/// Writes a GraphDef in protobuf's JSON mapping.
pub fn to_json(nodes: &[NodeDef]) -> String {
    serde_json::to_string_pretty(&graph_def(nodes)).expect("every key is a string")
}

/// The tensor in a message of TensorFlow.
///
/// # Errors
/// InvalidArgument if dtype, shape and values do not match, or meshtf lacks the dtype; ResourceExhausted if there is no memory
/// for it.
pub fn tensor_from_proto(proto: TensorProto) -> Result<Tensor> {
    let mut budget = Budget::new();
    let tensor = tensor::from_proto(proto, &mut budget);
    tensor.map_err(|why| match budget.refused {
        Some(refused) => refused.with_holder(),
        None => Failure::invalid(format!("the tensor {why}")),
    })
}

/// The message of a tensor, for TensorFlow's clients.
pub fn tensor_to_proto(value: &Tensor) -> TensorProto {
    tensor::to_proto(value)
}

/// The message of a shape.
pub fn shape_proto(shape: &PartialShape) -> TensorShapeProto {
    tensor::shape_proto(shape)
}

fn encode_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The state of reading the nodes of one GraphDef.
struct Reading {
    /// The memory left for their constants.
    budget: Budget,
    /// The version of GraphDef that their producer wrote.
    producer: i32,
}

/// The first version in which a Placeholder of shape [] is a scalar: in older ones, clients wrote that for an unknown shape.
const SCALAR_PLACEHOLDERS: i32 = 24;

/// Marks a ShuffleAndRepeatDataset written by TensorFlow 1, without the attribute that it has since: its random draws continue
/// from one repetition to the next.
pub const DRAWS_GO_ON: &str = "_draws_go_on";

fn read_node(node: proto::NodeDef, reading: &mut Reading) -> NodeDef {
    let proto::NodeDef { name, op, input, device, attr } = node;
    let mut attrs = Attrs::default();
    let mut refused = None;
    for (key, value) in attr {
        match read_attr(value, &mut reading.budget) {
            Ok(Some(value)) => attrs.set(key, value),
            Ok(None) => {}
            Err(_) if key.starts_with('_') => {}
            Err(why) => refused = refused.or_else(|| Some(format!("attribute {key:?} {why}"))),
        }
    }
    let scalar_is_any = op == "Placeholder" && reading.producer < SCALAR_PLACEHOLDERS;
    if scalar_is_any && attrs.shape("shape").is_ok_and(|shape| shape.0.as_ref().is_some_and(Vec::is_empty)) {
        attrs.set("shape", Attr::Shape(PartialShape::UNKNOWN));
    }
    if op == "ShuffleAndRepeatDataset" && attrs.get("reshuffle_each_iteration").is_none() {
        attrs.set(DRAWS_GO_ON, Attr::Bool(true));
    }
    NodeDef { name, op, inputs: input, device, attrs, refused }
}

/// `None` if the message holds no value.
fn read_attr(attr: AttrValue, budget: &mut Budget) -> Result<Option<Attr>, String> {
    let Some(value) = attr.value else { return Ok(None) };
    Ok(Some(match value {
        Value::S(v) => Attr::Str(v),
        Value::I(v) => Attr::Int(v),
        Value::F(v) => Attr::Float(v),
        Value::B(v) => Attr::Bool(v),
        Value::Type(number) => Attr::Type(tensor::dtype(number)?),
        Value::Shape(v) => Attr::Shape(tensor::partial_shape(&v)?),
        Value::Tensor(v) => tensor::attr_from_proto(*v, budget)?,
        Value::List(list) => read_list(*list)?,
        Value::Func(function) => return Err(function::no_caller(&function.name)),
        Value::Placeholder(name) => {
            return Err(format!("is a placeholder ({name:?}), which only has a value inside a function"));
        }
    }))
}

fn read_list(list: ListValue) -> Result<Attr, String> {
    let ListValue { s, i, f, b, r#type, shape, tensor, func } = list;
    let lists = [s.len(), i.len(), f.len(), b.len(), r#type.len(), shape.len(), tensor.len(), func.len()];
    if lists.iter().filter(|&&length| length > 0).count() > 1 {
        return Err("is a list of several kinds".into());
    }
    Ok(match () {
        () if !s.is_empty() => Attr::Strs(s),
        () if !i.is_empty() => Attr::Ints(i),
        () if !f.is_empty() => Attr::Floats(f),
        () if !b.is_empty() => Attr::Bools(b),
        () if !r#type.is_empty() => Attr::Types(r#type.into_iter().map(tensor::dtype).collect::<Result<_, _>>()?),
        () if !shape.is_empty() => Attr::Shapes(shape.iter().map(tensor::partial_shape).collect::<Result<_, _>>()?),
        () if !tensor.is_empty() => return Err("is a list of tensors, which no op of the vocabulary takes".into()),
        () if !func.is_empty() => return Err(function::no_caller(&func[0].name)),
        () => Attr::Empty,
    })
}

fn write_node(node: &NodeDef, names: &value::Names) -> proto::NodeDef {
    proto::NodeDef {
        name: node.name.clone(),
        op: node.op.clone(),
        input: node.inputs.clone(),
        device: node.device.clone(),
        attr: node
            .attrs
            .0
            .iter()
            .map(|(name, attr)| (name.clone(), AttrValue { value: Some(write_attr(attr, names)) }))
            .collect::<BTreeMap<_, _>>(),
    }
}

fn write_attr(attr: &Attr, names: &value::Names) -> Value {
    let list = |list: ListValue| Value::List(Box::new(list));
    let named = |v: &Function| proto::NameAttrList { name: names.of_function(v), attr: BTreeMap::new() };
    match attr {
        Attr::Int(v) => Value::I(*v),
        Attr::Float(v) => Value::F(*v),
        Attr::Bool(v) => Value::B(*v),
        Attr::Str(v) => Value::S(v.clone()),
        Attr::Type(v) => Value::Type(v.proto_number()),
        Attr::Shape(v) => Value::Shape(tensor::shape_proto(v)),
        Attr::Tensor(v) => Value::Tensor(Box::new(tensor::to_proto(v))),
        Attr::Filled(v) => Value::Tensor(Box::new(TensorProto {
            tensor_shape: Some(tensor::shape_proto(&v.shape().into())),
            ..tensor::to_proto(v.element())
        })),
        Attr::Variant(v) => Value::Tensor(Box::new(variant::to_proto(v))),
        Attr::Ints(v) => list(ListValue { i: v.clone(), ..ListValue::default() }),
        Attr::Floats(v) => list(ListValue { f: v.clone(), ..ListValue::default() }),
        Attr::Bools(v) => list(ListValue { b: v.clone(), ..ListValue::default() }),
        Attr::Strs(v) => list(ListValue { s: v.clone(), ..ListValue::default() }),
        Attr::Types(v) => {
            list(ListValue { r#type: v.iter().map(|dtype| dtype.proto_number()).collect(), ..ListValue::default() })
        }
        Attr::Shapes(v) => {
            list(ListValue { shape: v.iter().map(tensor::shape_proto).collect(), ..ListValue::default() })
        }
        Attr::Func(v) => Value::Func(named(v)),
        Attr::Funcs(v) => list(ListValue { func: v.iter().map(named).collect(), ..ListValue::default() }),
        Attr::Empty => list(ListValue::default()),
    }
}

#[cfg(test)]
mod tests;
