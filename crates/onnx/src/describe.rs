//! The content of a model as a list: inputs, outputs, operators, weights. Nothing is lowered, and no other file is read.

use std::collections::{BTreeMap, HashSet};

use meshtf_graph::FormatError;
use prost::bytes::Bytes;

use crate::elem::Elem;
use crate::proto::{EXTERNAL, GraphProto, NodeProto, TensorProto, TypeProto, TypeValue, ValueInfoProto};
use crate::{Dim, cx, decoded, dims, kind, operators};

/// The content of a model, as it states it.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The program that wrote it.
    pub producer: String,
    /// Domains and the versions of their operators; `ai.onnx` for ONNX's own.
    pub opsets: Vec<(String, i64)>,
    /// Its inputs, apart from those that have a value in the file: name and type.
    pub inputs: Vec<(String, String)>,
    /// Its outputs.
    pub outputs: Vec<(String, String)>,
    /// Its operators with the number of nodes, those of subgraphs and functions included.
    pub operators: BTreeMap<String, u64>,
    /// Those of them that are not lowered.
    pub unknown: BTreeMap<String, u64>,
    /// Its initializers.
    pub weights: Vec<Weight>,
}

/// An initializer.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub elem: &'static str,
    /// Its sizes.
    pub dims: Vec<i64>,
    /// Its bytes, in the file or beside it.
    pub bytes: u64,
    /// The file beside the model that has them.
    pub file: Option<String>,
}

/// Describes a model.
///
/// # Errors
/// NoGraph or TooLarge if the bytes are no model, or exceed a limit.
pub fn describe(bytes: &Bytes) -> Result<Description, FormatError> {
    let proto = decoded(bytes)?;
    let graph = proto.graph.unwrap_or_default();
    let shown = |domain: &str| if cx::domain(domain).is_empty() { "ai.onnx".to_owned() } else { domain.to_owned() };
    let mut all = Description {
        producer: proto.producer_name,
        opsets: proto.opset_import.iter().map(|opset| (shown(&opset.domain), opset.version)).collect(),
        outputs: graph.output.iter().map(stated).collect(),
        ..Description::default()
    };
    let has_value: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    all.inputs = graph.input.iter().filter(|info| !has_value.contains(info.name.as_str())).map(stated).collect();
    let functions: HashSet<(&str, &str)> =
        proto.functions.iter().map(|function| (cx::domain(&function.domain), function.name.as_str())).collect();
    let known: HashSet<(&str, &str)> = operators().iter().map(|operator| (operator.domain, operator.name)).collect();
    let mut count = |node: &NodeProto| {
        let domain = cx::domain(&node.domain);
        let name = if domain.is_empty() { node.op_type.clone() } else { format!("{domain}.{}", node.op_type) };
        let key = (domain, node.op_type.as_str());
        if functions.contains(&key) {
            return;
        }
        if !known.contains(&key) {
            *all.unknown.entry(name.clone()).or_default() += 1;
        }
        *all.operators.entry(name).or_default() += 1;
    };
    let mut open: Vec<&GraphProto> = vec![&graph];
    let mut nodes: Vec<&NodeProto> = proto.functions.iter().flat_map(|function| &function.node).collect();
    while let Some(graph) = open.pop() {
        nodes.extend(&graph.node);
        for node in std::mem::take(&mut nodes) {
            count(node);
            open.extend(node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()));
        }
    }
    all.weights = graph.initializer.iter().map(weight).collect();
    Ok(all)
}

fn stated(info: &ValueInfoProto) -> (String, String) {
    (info.name.clone(), type_text(info.r#type.as_ref()))
}

/// `float32[batch,3]`, or the kind of a value that is no tensor.
fn type_text(ty: Option<&TypeProto>) -> String {
    if let Ok(crate::Kind::Tensor(elem)) = kind(ty) {
        let Some(dims) = dims(ty) else { return elem.name().to_owned() };
        let one = |dim: Dim| match dim {
            Dim::Size(size) => size.to_string(),
            Dim::Named(name) if name.is_empty() => "?".to_owned(),
            Dim::Named(name) => name,
        };
        let dims: Vec<String> = dims.into_iter().map(one).collect();
        return format!("{}[{}]", elem.name(), dims.join(","));
    }
    match ty.and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::Sequence(_)) => "a sequence",
        Some(TypeValue::Optional(_)) => "an optional",
        Some(TypeValue::Map(_)) => "a map",
        Some(TypeValue::SparseTensor(_)) => "a sparse tensor",
        _ => "of no stated type",
    }
    .to_owned()
}

fn weight(tensor: &TensorProto) -> Weight {
    let elem = Elem(tensor.data_type);
    let n = tensor.dims.iter().try_fold(1i64, |n, &dim| n.checked_mul(dim)).and_then(|n| u64::try_from(n).ok());
    let width = elem.dtype().ok().and_then(meshtf_tensor::DType::size).unwrap_or(1) as u64;
    let entry = |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &entry.value);
    let raw = match tensor.data_location {
        EXTERNAL => entry("length").and_then(|length| length.parse().ok()),
        _ => tensor.raw_data.as_ref().map(|raw| raw.len() as u64),
    };
    Weight {
        name: tensor.name.clone(),
        elem: elem.name(),
        dims: tensor.dims.clone(),
        bytes: raw.unwrap_or_else(|| n.unwrap_or(0).saturating_mul(width)),
        file: entry("location").filter(|_| tensor.data_location == EXTERNAL).cloned(),
    }
}
