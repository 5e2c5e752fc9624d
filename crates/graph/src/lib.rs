//! Graphs as data: nodes with an op, inputs, attributes and a device request.
//!
//! - **Is**: the vocabulary of ops ([`op`]), graphs checked against it, inferred shapes ([`shape`]), gradients ([`gradient`]),
//!   the file formats ([`json`], [`graphdef`]); [`plan`], which cuts a graph into pieces, one per device; [`trace`], the record
//!   of a step.
//! - **Knows**: `meshtf-tensor`.
//! - **Never** runs a node, and knows no kernel, backend, mesh, clock or thread: the same input gives the same graph and plan.
//!
//! Files and clients provide [`NodeDef`]s; [`Graph::new`] checks them against the vocabulary, fills in defaults and the dtypes
//! that follow from the inputs, and returns a valid [`Graph`] or the first [`GraphError`].

pub mod attr;
mod build;
mod builder;
mod error;
pub mod function;
pub mod gradient;
pub mod graphdef;
pub mod json;
mod names;
pub mod op;
mod operations;
pub mod plan;
mod program;
mod refused;
pub mod shape;
pub mod trace;
pub mod variable;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

pub use attr::{Attr, Attrs, Filled};
pub use build::Addition;
pub use builder::{GraphBuilder, Input, OpBuilder};
pub use error::{FormatError, GraphError};
pub use function::{Function, FunctionBody};
pub use json::{json_members, read_json, read_literal};
use meshtf_tensor::DType;
use meshtf_tensor::device::{DeviceSpec, Task};
pub use names::UniqueNames;
pub use op::OpDef;
pub use operations::operations;
pub use program::{Beside, LayerPlace, Program, WHOLE, layer_of, place_of, read, read_beside, read_with};
pub use refused::Refused;
use serde::{Deserialize, Serialize};
pub use shape::Shapes;

/// An attribute of an op that uses files: a relative name is resolved against the folder in which the node of the mesh was
/// started, as in TensorFlow, and not against that node's data folder.
pub const FROM_WORKING_FOLDER: &str = "_from_working_folder";

/// An attribute of a placeholder that may be fed with a value of a shape other than its own, as in TensorFlow, where only
/// the client compares them.
pub const FED_ANY_SHAPE: &str = "_fed_any_shape";

/// Most nodes a graph may have.
pub const MAX_NODES: usize = 1 << 20;

/// A node as stated by a file or a client, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeDef {
    /// Its name, unique in the graph.
    pub name: String,
    /// The type of its op: `MatMul`.
    pub op: String,
    /// `name` or `name:port` for a tensor, `^name` for a control input.
    pub inputs: Vec<String>,
    /// Device string; empty if none is requested.
    pub device: String,
    /// Its attributes, as stated.
    pub attrs: Attrs,
    /// The reason why no step can run it, if its reader found something that meshtf cannot represent; that part is omitted from
    /// `attrs`.
    pub refused: Option<String>,
}

impl NodeDef {
    /// A definition that no reader refused, with a requested device.
    pub fn on(device: &str, name: String, op: &str, inputs: Vec<String>, attrs: Attrs) -> NodeDef {
        NodeDef { name, op: op.to_owned(), inputs, device: device.to_owned(), attrs, refused: None }
    }

    /// A constant of this value.
    pub fn constant(name: String, device: String, value: Attr) -> NodeDef {
        let mut attrs = Attrs::from([("value", value)]);
        if let Ok((dtype, _)) = attrs.tensor_type("value") {
            attrs.set("dtype", Attr::Type(dtype));
        }
        NodeDef { name, op: "Const".to_owned(), device, attrs, ..NodeDef::default() }
    }
}

/// A node of a [`Graph`], by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// Its index among the graph's nodes, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One output of a node, in TensorFlow's term a tensor: `name:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Output {
    /// The node that produces it.
    pub node: NodeId,
    /// Its index among the node's outputs, from 0.
    pub port: u32,
}

impl Output {
    /// Another output of the same node.
    #[must_use]
    pub fn port(self, port: u32) -> Output {
        Output { port, ..self }
    }
}

/// The type of an output: a dtype, or a reference to a variable of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputType {
    /// The dtype of the value, or of the variable's value.
    pub dtype: DType,
    /// Whether it is a reference to a variable, and not a value.
    pub is_ref: bool,
}

/// A checked node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name, unique in the graph.
    pub name: String,
    /// Its op: the entry in the vocabulary.
    pub op: &'static OpDef,
    /// The source of each input, in the op's order.
    pub inputs: Vec<Output>,
    /// Nodes that must have run before, without duplicates.
    pub control: Vec<NodeId>,
    /// Device string as stated; may be empty.
    pub device: String,
    /// Complete: every attribute of the op that has a value or default, and those that begin with `_`.
    pub attrs: Attrs,
    /// Whether each input is taken as a reference to a variable.
    pub input_refs: Vec<bool>,
    /// The type of each output, in the op's order.
    pub outputs: Vec<OutputType>,
    /// The original statement of a node that no step can run. Its `op` is then a placeholder for any op, its attributes are as
    /// stated, and its outputs are typed by the inputs that consume them.
    pub refused: Option<Arc<Refused>>,
}

impl Node {
    /// The nodes that it waits for: the producers of its inputs, and its control inputs.
    pub fn sources(&self) -> impl Iterator<Item = NodeId> {
        self.inputs.iter().map(|input| input.node).chain(self.control.iter().copied())
    }
}

/// A checked graph. Its nodes are in the order of their definitions.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    by_name: HashMap<String, NodeId>,
    /// Inferred on first use: the shapes under the declared shapes of state, and those without relying on the declarations.
    shapes: OnceLock<Shapes>,
    certain_shapes: OnceLock<Shapes>,
}

impl Graph {
    /// Checks `defs` and links them.
    ///
    /// A node whose op meshtf lacks, or which its reader refused, is kept: see [`Graph::refusal`].
    ///
    /// # Errors
    /// The first error: see [`GraphError`].
    pub fn new(defs: Vec<NodeDef>) -> Result<Self, GraphError> {
        let mut graph = Graph::default();
        graph.extend(defs)?;
        Ok(graph)
    }

    /// Adds nodes, which may consume outputs of the graph's own nodes. The cost depends on the added nodes, not on the size of
    /// the graph.
    ///
    /// # Errors
    /// As [`Graph::new`]; the graph is then unchanged.
    pub fn extend(&mut self, defs: Vec<NodeDef>) -> Result<(), GraphError> {
        let addition = self.check_addition(defs)?;
        let added = self.append(addition);
        debug_assert!(added, "it was checked against this graph");
        Ok(())
    }

    /// Removes the nodes from the `len`th on, and returns their names.
    pub(crate) fn truncate(&mut self, len: usize) -> Vec<String> {
        let gone: Vec<String> = self.nodes.drain(len.min(self.nodes.len())..).map(|node| node.name).collect();
        gone.iter().for_each(|name| _ = self.by_name.remove(name));
        if !gone.is_empty() {
            self.shapes.take();
            self.certain_shapes.take();
        }
        gone
    }

    /// The expensive part of [`Graph::extend`]; changes nothing.
    ///
    /// # Errors
    /// As [`Graph::new`].
    pub fn check_addition(&self, defs: Vec<NodeDef>) -> Result<Addition, GraphError> {
        build::check_addition(self, defs)
    }

    /// Adds nodes that were checked against this graph, and returns true. Adds none and returns false if the graph has changed
    /// since.
    #[must_use]
    pub fn append(&mut self, addition: Addition) -> bool {
        let before = self.len();
        let is_added = build::append(self, addition);
        for cached in [&mut self.shapes, &mut self.certain_shapes] {
            // Shapes are inferred on first use; only those of a few nodes are inferred at once.
            match cached.get_mut() {
                Some(shapes) if self.nodes.len() <= 2 * before => shapes.extend(&self.nodes),
                Some(_) => drop(cached.take()),
                None => {}
            }
        }
        is_added
    }

    /// The shapes of the graph's tensors as far as they can be inferred without running it, as TensorFlow infers them. Inferred
    /// once, on first use.
    pub fn shapes(&self) -> &Shapes {
        self.shapes.get_or_init(|| Shapes::of_graph(&self.nodes, shape::Declarations::Declared))
    }

    /// Checks the shapes that are known without running the graph.
    ///
    /// # Errors
    /// [`GraphError::Shapes`] for the first node whose op refuses the shapes of its inputs whenever it runs.
    pub fn check_shapes(&self) -> Result<(), GraphError> {
        /// Inputs in a message.
        const MAX_INPUTS: usize = 4;
        let shapes = self.shapes();
        let Some((id, why)) = shapes.conflict() else { return Ok(()) };
        let node = self.node(id);
        let shown = |input: &Output| format!("{} is {}", self.tensor_name(*input), shapes.of(*input));
        let mut inputs: Vec<String> = node.inputs.iter().take(MAX_INPUTS).map(shown).collect();
        if node.inputs.len() > MAX_INPUTS {
            inputs.push(format!("and {} more", node.inputs.len() - MAX_INPUTS));
        }
        let (node, op) = (node.name.clone(), node.op.name);
        Err(GraphError::Shapes { node, op, inputs: inputs.join(", "), why: why.to_owned() })
    }

    /// As [`Graph::shapes`], but without the facts that hold only as long as variables have their declared shapes.
    pub fn certain_shapes(&self) -> &Shapes {
        self.certain_shapes.get_or_init(|| Shapes::of_graph(&self.nodes, shape::Declarations::Doubted))
    }

    /// The nodes as definitions that [`Graph::new`] accepts.
    pub fn to_defs(&self) -> Vec<NodeDef> {
        self.nodes
            .iter()
            .map(|node| NodeDef {
                name: node.name.clone(),
                op: node.refused.as_ref().map_or(node.op.name, |refused| &refused.op).to_owned(),
                inputs: node
                    .inputs
                    .iter()
                    .map(|&input| self.tensor_name(input))
                    .chain(node.control.iter().map(|&id| format!("^{}", self.node(id).name)))
                    .collect(),
                device: node.device.clone(),
                attrs: node.attrs.clone(),
                refused: node.refused.as_ref().and_then(|refused| refused.why.clone()),
            })
            .collect()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node of that id.
    ///
    /// # Panics
    /// If the graph has fewer nodes: the id belongs to another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Every node with its id, in the order stated.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The node of that name.
    ///
    /// # Errors
    /// NoSuchNode, with the nearest names.
    pub fn find_or_nearest(&self, name: &str) -> Result<NodeId, GraphError> {
        self.find(name).ok_or_else(|| GraphError::NoSuchNode { name: name.to_owned(), nearest: self.nearest(name) })
    }

    /// The output denoted by `name` or `name:port`.
    ///
    /// # Errors
    /// NoSuchNode or NoSuchPort; UnknownOp or CannotRun for an output of a node that no step can run.
    pub fn output(&self, tensor: &str) -> Result<Output, GraphError> {
        let (name, port) = split_tensor_name(tensor);
        let node = self.find_or_nearest(name)?;
        let ports = self.node(node).outputs.len();
        if let (true, Some(error)) = (port as usize >= ports, self.refusal(node)) {
            return Err(error);
        }
        if port as usize >= ports {
            return Err(GraphError::NoSuchPort { tensor: tensor.to_owned(), op: self.node(node).op.name, ports });
        }
        Ok(Output { node, port })
    }

    /// The type of an output. An output that is consumed only by nodes that no step can run may be of any type; it is reported
    /// as a variant.
    pub fn output_type(&self, output: Output) -> OutputType {
        self.node(output.node).outputs.get(output.port as usize).copied().unwrap_or(refused::UNTYPED)
    }

    /// The reason why no step can run a node; `None` if one can.
    pub fn refusal(&self, id: NodeId) -> Option<GraphError> {
        Some(self.node(id).refused.as_ref()?.error())
    }

    /// Whether there are nodes that no step can run.
    pub fn has_refused(&self) -> bool {
        self.nodes.iter().any(|node| node.refused.is_some())
    }

    /// `name` for port 0, `name:port` for every other port.
    pub fn tensor_name(&self, output: Output) -> String {
        let name = &self.node(output.node).name;
        if output.port == 0 { name.clone() } else { format!("{name}:{}", output.port) }
    }

    /// The tasks named by the device strings, sorted by name; a job without a number is its task 0.
    pub fn tasks(&self) -> Vec<Task> {
        let devices: HashSet<&str> = self.nodes.iter().map(|node| node.device.as_str()).collect();
        let mut tasks: Vec<Task> = devices
            .into_iter()
            .filter_map(|device| device.parse::<DeviceSpec>().ok())
            .filter_map(|spec| Some(Task::new(spec.job?, spec.task.unwrap_or(0))))
            .collect();
        tasks.sort_unstable();
        tasks.dedup();
        tasks
    }

    fn nearest(&self, name: &str) -> Vec<String> {
        meshtf_tensor::nearest::nearest(name, self.nodes.iter().map(|node| node.name.as_str()))
            .into_iter()
            .map(str::to_owned)
            .collect()
    }
}

/// `("a/b", 1)` for `a/b:1`; the port is 0 if none is stated.
pub fn split_tensor_name(tensor: &str) -> (&str, u32) {
    tensor.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse().ok()?))).unwrap_or((tensor, 0))
}

#[cfg(test)]
mod tests;
