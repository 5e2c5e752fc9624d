//! A graph as an ONNX model: the way back. Placeholders become inputs, constants and variables initializers, and every other op
//! the operators of opset 17 that compute the same. What ONNX cannot say is named.

mod layers;
mod rules;
mod shapes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use meshtf_graph::op::Role;
use meshtf_graph::{Attr, Graph, Node, NodeId, Output};
use meshtf_tensor::failure::{Failure, Result, counted};
use meshtf_tensor::{DType, Shape, Tensor};
use prost::Message as _;
use prost::bytes::Bytes;

use crate::elem::Elem;
use crate::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorType, TypeProto, TypeValue, ValueInfoProto,
};
use crate::{MAX_BYTES, unsupported};

/// The opset that is written, and the version of the format that it belongs to.
const OPSET: i64 = 17;
const IR_VERSION: i64 = 8;
/// Most ops that are named in an error.
const MOST_NAMED: usize = 12;

/// A part of a graph to be written.
pub struct Export<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Names of inputs and the tensors that they feed; placeholders that are none of them are inputs under their own names.
    pub inputs: Vec<(String, Output)>,
    /// Names of outputs and their tensors.
    pub outputs: Vec<(String, Output)>,
    /// The values of variables, by the nodes that make them.
    pub values: HashMap<NodeId, Tensor>,
}

/// The bytes of a model.
///
/// # Errors
/// Unimplemented, naming each op that ONNX cannot say; InvalidArgument for a variable without a value, or a model above 2 GiB.
pub fn save(export: Export) -> Result<Vec<u8>> {
    let Export { graph, inputs, outputs, values } = export;
    let mut writer = Writer {
        graph,
        values,
        names: HashMap::new(),
        taken: BTreeSet::new(),
        numbered: HashMap::new(),
        nodes: Vec::new(),
        weights: Vec::new(),
        turned: HashMap::new(),
    };
    let names = inputs.iter().chain(&outputs).map(|(name, _)| name.clone());
    writer.taken.extend(names);
    for (name, output) in &inputs {
        writer.names.insert(*output, name.clone());
    }
    let order = order(graph, &inputs, &outputs);
    keeps_variables(graph, &order)?;
    let mut fed = inputs;
    for &id in &order {
        let node = graph.node(id);
        let output = Output { node: id, port: 0 };
        if node.op.role == Role::Placeholder && !writer.names.contains_key(&output) {
            let name = writer.unused(&node.name);
            writer.names.insert(output, name.clone());
            fed.push((name, output));
        }
    }
    if let Some((name, _)) = outputs.iter().find(|(name, _)| fed.iter().any(|(own, _)| own == name)) {
        return Err(Failure::invalid(format!(
            "an input and an output have the name {name}; fetch a node after the input"
        )));
    }
    let mut refused: BTreeMap<String, (u64, String)> = BTreeMap::new();
    // Nodes that are refused, and those that take their outputs, which are no cause of their own.
    let mut lost: HashSet<NodeId> = HashSet::new();
    for &id in &order {
        let node = graph.node(id);
        let is_after = node.inputs.iter().any(|input| lost.contains(&input.node) && !writer.names.contains_key(input));
        if is_after {
            lost.insert(id);
        } else if let Err(failure) = writer.node(id, node) {
            if failure.refusal.is_some() {
                return Err(failure);
            }
            lost.insert(id);
            let why = format!("{} (node {}: {})", node.op.name, node.name, failure.message);
            refused.entry(node.op.name.to_owned()).or_insert((0, why)).0 += 1;
        }
    }
    if !refused.is_empty() {
        let more = refused.len().saturating_sub(MOST_NAMED);
        let more = if more > 0 { format!(", and {}", counted(more, "other op")) } else { String::new() };
        let named: Vec<String> = refused
            .into_values()
            .take(MOST_NAMED)
            .map(|(count, why)| format!("{why}, {}", counted(count as usize, "node")))
            .collect();
        return Err(unsupported(format!("ONNX cannot say a part of this graph: {}{more}", named.join("; "))));
    }
    for (name, output) in &outputs {
        let from = writer.name(*output)?;
        writer.nodes.push(NodeProto {
            input: vec![from],
            output: vec![name.clone()],
            op_type: "Identity".to_owned(),
            ..NodeProto::default()
        });
    }
    let info = |(name, output): &(String, Output)| info(graph, name, *output);
    let proto = GraphProto {
        name: "meshtf".to_owned(),
        input: fed.iter().map(info).collect(),
        output: outputs.iter().map(info).collect(),
        node: writer.nodes,
        initializer: writer.weights,
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "meshtf".to_owned(),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        graph: Some(proto),
        ..ModelProto::default()
    };
    let bytes = model.encoded_len();
    if bytes > MAX_BYTES {
        return Err(Failure::invalid(format!("the model takes {bytes} bytes; an ONNX file has at most {MAX_BYTES}")));
    }
    meshtf_tensor::memory::admit(bytes)?;
    Ok(model.encode_to_vec())
}

/// The nodes that outputs need, each after its inputs; inputs themselves are not among them.
fn order(graph: &Graph, inputs: &[(String, Output)], outputs: &[(String, Output)]) -> Vec<NodeId> {
    let fed: HashSet<Output> = inputs.iter().map(|(_, output)| *output).collect();
    let mut order = Vec::new();
    let mut seen: HashSet<NodeId> = HashSet::new();
    let needed = outputs.iter().map(|(_, output)| *output).filter(|output| !fed.contains(output));
    let mut open: Vec<(NodeId, bool)> = needed.map(|output| (output.node, false)).collect();
    while let Some((id, is_done)) = open.pop() {
        if is_done {
            order.push(id);
        } else if seen.insert(id) {
            open.push((id, true));
            let before = graph.node(id).inputs.iter().filter(|input| !fed.contains(input));
            open.extend(before.map(|input| (input.node, false)));
        }
    }
    order
}

/// Refuses nodes that change variables, before which others wait: the model would have the values of before.
///
/// # Errors
/// Unimplemented, naming such a node.
fn keeps_variables(graph: &Graph, order: &[NodeId]) -> Result<()> {
    let mut seen: HashSet<NodeId> = order.iter().copied().collect();
    let mut open: Vec<NodeId> = order.iter().flat_map(|&id| graph.node(id).control.iter().copied()).collect();
    open.retain(|&id| seen.insert(id));
    while let Some(id) = open.pop() {
        let node = graph.node(id);
        let takes = node.inputs.first().is_some_and(|input| graph.node(input.node).op.makes_variable);
        let asks = matches!(node.op.name, "Identity" | "ResourceGather" | "VariableShape" | "VarIsInitializedOp");
        if takes && !node.op.reads_variable && !asks {
            return Err(unsupported(format!(
                "node {} ({}) changes a variable, which ONNX cannot say",
                node.name, node.op.name
            )));
        }
        open.extend(node.sources().filter(|&before| seen.insert(before)));
    }
    Ok(())
}

fn info(graph: &Graph, name: &str, output: Output) -> ValueInfoProto {
    let dim = |(axis, size): (usize, &Option<usize>)| Dimension {
        value: Some(match size {
            Some(size) => DimensionValue::Value(*size as i64),
            None => DimensionValue::Param(format!("{name}_{axis}")),
        }),
    };
    let shape =
        graph.shapes().of(output).0.map(|dims| TensorShapeProto { dim: dims.iter().enumerate().map(dim).collect() });
    let tensor = TensorType { elem_type: Elem::of(graph.output_type(output).dtype).0, shape };
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { value: Some(TypeValue::Tensor(tensor)) }) }
}

/// A model under construction.
struct Writer<'g> {
    graph: &'g Graph,
    values: HashMap<NodeId, Tensor>,
    /// The name of each output that is computed.
    names: HashMap<Output, String>,
    taken: BTreeSet<String>,
    /// By name: the greatest number after it that was tried.
    numbered: HashMap<String, usize>,
    nodes: Vec<NodeProto>,
    weights: Vec<TensorProto>,
    /// Those of variables in another layout, by the names of the variables.
    turned: HashMap<String, Vec<usize>>,
}

impl Writer<'_> {
    /// Adds the operators of a node.
    fn node(&mut self, id: NodeId, node: &Node) -> Result<()> {
        let output = Output { node: id, port: 0 };
        let is_made = self.names.contains_key(&output);
        // Handles, constants and reads of variables are named when something takes them.
        if is_made || self.constant(output).is_some() || node.op.makes_variable {
            return Ok(());
        }
        rules::node(self, id, node)
    }

    /// A name that nothing has yet.
    fn unused(&mut self, wanted: &str) -> String {
        if self.taken.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        let number = self.numbered.entry(wanted.to_owned()).or_default();
        loop {
            *number += 1;
            let name = format!("{wanted}_{number}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// The output that an output is unchanged, behind reads of variables and nodes that forward a value.
    fn origin(&self, mut output: Output) -> Output {
        // A chain may be as long as the graph.
        loop {
            let node = self.graph.node(output.node);
            let passes =
                node.op.reads_variable || matches!(node.op.name, "Identity" | "StopGradient" | "PreventGradient");
            match node.inputs.first().filter(|_| passes) {
                Some(input) => output = *input,
                None => return output,
            }
        }
    }

    /// The name that the initializer of a value gets: that of its variable, or of its node.
    fn wanted_name(&self, origin: Output) -> String {
        let node = self.graph.node(origin.node);
        let shared = node.attrs.str("shared_name").ok().filter(|name| node.op.makes_variable && !name.is_empty());
        let name = shared.unwrap_or(&node.name);
        name.strip_suffix("/variable").unwrap_or(name).to_owned()
    }

    /// The value of an output that no step changes: a constant, or a variable.
    fn constant(&self, output: Output) -> Option<Tensor> {
        let output = self.origin(output);
        let node = self.graph.node(output.node);
        if node.op.role == Role::Const {
            return match node.attrs.get("value")? {
                Attr::Tensor(value) => Some(value.clone()),
                Attr::Filled(value) => {
                    let shape = value.shape().clone();
                    let n = shape.checked_elements(value.element().dtype()).ok()?;
                    Some(value.element().filled(shape, n))
                }
                _ => None,
            };
        }
        node.op.makes_variable.then(|| self.values.get(&output.node).cloned()).flatten()
    }

    /// The whole numbers of a constant.
    fn numbers(&self, output: Output) -> Result<Vec<i64>> {
        let value = self.constant(output);
        value.ok_or_else(|| unsupported("one of its inputs must be a constant")).and_then(|value| value.to_i64s())
    }

    /// The name of an output, which is made if it is a constant.
    fn name(&mut self, output: Output) -> Result<String> {
        if let Some(name) = self.names.get(&output) {
            return Ok(name.clone());
        }
        let node = self.graph.node(output.node);
        let Some(value) = self.constant(output) else {
            return Err(match node.op.makes_variable || node.op.reads_variable {
                true => Failure::invalid(format!("variable {} has no value; give --weights", node.name)),
                false => unsupported(format!("it takes {}, which is not written", self.graph.tensor_name(output))),
            });
        };
        // Several nodes may read one variable: its value is written once.
        let origin = self.origin(output);
        let name = match self.names.get(&origin) {
            Some(name) => name.clone(),
            None => self.weight(&self.wanted_name(origin), &value)?,
        };
        self.names.insert(origin, name.clone());
        self.names.insert(output, name.clone());
        Ok(name)
    }

    /// The initializer of a variable in another layout: one, however many nodes read it so.
    fn weight_once(&mut self, wanted: &str, value: &Tensor) -> Result<String> {
        let is_same = |own: &&TensorProto| {
            let sizes = own.dims.iter().map(|&size| usize::try_from(size).ok());
            sizes.eq(value.dims().iter().map(|&size| Some(size)))
                && own.data_type == Elem::of(value.dtype()).0
                && value.bytes().is_some_and(|bytes| own.raw_data.as_deref() == Some(bytes))
        };
        let mut made = self.turned.get(wanted).into_iter().flatten().map(|&at| &self.weights[at]);
        if let Some(own) = made.find(is_same) {
            return Ok(own.name.clone());
        }
        let name = self.weight(wanted, value)?;
        self.turned.entry(wanted.to_owned()).or_default().push(self.weights.len() - 1);
        Ok(name)
    }

    /// Adds an initializer.
    fn weight(&mut self, wanted: &str, value: &Tensor) -> Result<String> {
        let elem = Elem::of(value.dtype());
        meshtf_tensor::memory::admit(value.byte_len())?;
        let mut proto = TensorProto {
            name: self.unused(wanted),
            data_type: elem.0,
            dims: value.dims().iter().map(|&size| size as i64).collect(),
            ..TensorProto::default()
        };
        match value.bytes() {
            Some(bytes) if elem != Elem(0) => proto.raw_data = Some(Bytes::copy_from_slice(bytes)),
            None => {
                proto.string_data = value.slice::<Vec<u8>>()?.iter().map(|text| Bytes::copy_from_slice(text)).collect()
            }
            Some(_) => return Err(unsupported(format!("ONNX has no {}", value.dtype()))),
        }
        let name = proto.name.clone();
        self.weights.push(proto);
        Ok(name)
    }

    /// Adds a vector of whole numbers.
    fn ints(&mut self, numbers: &[i64]) -> Result<String> {
        self.weight("numbers", &Tensor::vector(numbers.to_vec()))
    }

    /// Adds a scalar of a float dtype.
    fn float(&mut self, value: f32, dtype: DType) -> Result<String> {
        use meshtf_tensor::half::{bf16, f16};
        let value = match dtype {
            DType::F16 => Tensor::scalar(f16::from_f32(value)),
            DType::BF16 => Tensor::scalar(bf16::from_f32(value)),
            DType::F64 => Tensor::scalar(f64::from(value)),
            DType::F32 => Tensor::scalar(value),
            other => return Err(unsupported(format!("it is {other}, not a float"))),
        };
        self.weight("number", &value)
    }

    /// Adds an operator with one output, whose name is returned.
    fn put(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        self.put_many(op, inputs, attributes, 1).swap_remove(0)
    }

    fn put_many(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>, outputs: usize) -> Vec<String> {
        let output: Vec<String> = (0..outputs).map(|_| self.unused(&op.to_lowercase())).collect();
        let input = inputs.iter().map(|&name| name.to_owned()).collect();
        self.nodes.push(NodeProto {
            input,
            output: output.clone(),
            name: output[0].clone(),
            op_type: op.to_owned(),
            attribute,
            ..NodeProto::default()
        });
        output
    }

    /// The known shape of an output.
    fn shape(&self, output: Output) -> Option<Shape> {
        self.graph.shapes().of(output).known()
    }

    fn rank(&self, output: Output) -> Result<usize> {
        let dims = self.graph.shapes().of(output).0;
        dims.map(|dims| dims.len()).ok_or_else(|| unsupported("the rank of an input must be known"))
    }

    fn dtype(&self, output: Output) -> DType {
        self.graph.output_type(output).dtype
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i: Some(value), r#type: 2, ..AttributeProto::default() }
}

fn real(name: &str, value: f32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), f: Some(value), r#type: 1, ..AttributeProto::default() }
}

fn text(name: &str, value: &str) -> AttributeProto {
    let s = Some(Bytes::copy_from_slice(value.as_bytes()));
    AttributeProto { name: name.to_owned(), s, r#type: 3, ..AttributeProto::default() }
}

fn list(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { name: name.to_owned(), ints: values.to_vec(), r#type: 7, ..AttributeProto::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_in_one_pass() {
        let graph = Graph::new(Vec::new()).unwrap();
        let mut writer = Writer {
            graph: &graph,
            values: HashMap::new(),
            names: HashMap::new(),
            taken: BTreeSet::from(["w_2".to_owned()]),
            numbered: HashMap::new(),
            nodes: Vec::new(),
            weights: Vec::new(),
            turned: HashMap::new(),
        };
        let names: Vec<String> = ["w", "w", "w", "w_1", "W", "w"].map(|wanted| writer.unused(wanted)).to_vec();
        assert_eq!(names, ["w", "w_1", "w_3", "w_1_1", "W", "w_4"]);
        // By a search from 1 on for each, these would take an hour.
        let all: HashSet<String> = (0..200_000).map(|_| writer.unused("numbers")).collect();
        assert_eq!(all.len(), 200_000);
    }
}
