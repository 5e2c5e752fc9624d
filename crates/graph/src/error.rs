//! The errors of graphs and graph files.

use std::fmt;

use meshtf_tensor::DType;
use meshtf_tensor::failure::{Code, Failure, counted};
use meshtf_tensor::json::{self, Fault};

use super::op;

/// The error of a graph that is refused, or of a name that denotes nothing in it. Every message states the error, its location,
/// and the remedy.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
// The text of each variant explains its fields.
#[allow(missing_docs)]
pub enum GraphError {
    /// Two nodes have the same name.
    #[error("two nodes are named {name:?}; names are unique")]
    DuplicateName { name: String },
    /// A node's name violates the grammar.
    #[error(
        "{name:?} is not a node name: it must begin with a letter, a digit, '.' or '_'; these, '-', '/', '\\' and '>' may follow"
    )]
    BadName { name: String },
    /// A node's op is not in the vocabulary.
    #[error("node {node}: unknown op {op:?}{}", op::hint(nearest))]
    UnknownOp { node: String, op: String, nearest: Vec<String> },
    /// The reader of the node found something that meshtf cannot represent.
    #[error("node {node}: {why}")]
    CannotRun { node: String, why: String },
    /// A node takes an input from a node that does not exist.
    #[error("node {node}: {} names a node that does not exist{}", shown(input), hint(nearest))]
    UnknownInput { node: String, input: String, nearest: Vec<String> },
    /// A node takes an input from an output that its node does not have.
    #[error("node {node}: input {input:?}: {producer} ({op}) has {}, numbered from 0", counted(*ports, "output"))]
    UnknownPort { node: String, input: String, producer: String, op: &'static str, ports: usize },
    /// A node has more or fewer inputs than its op takes.
    #[error("node {node}: {op} takes {}, got {got}", counted(*wanted, "input"))]
    InputCount { node: String, op: &'static str, wanted: usize, got: usize },
    /// An input has a dtype that the op does not accept.
    #[error("node {node}: input {index} of {op} ({argument}) is {wanted}, but {input} is {got}")]
    InputType {
        node: String,
        op: &'static str,
        index: usize,
        argument: &'static str,
        input: String,
        wanted: DType,
        got: DType,
    },
    /// An op takes a variable by reference, and the input is a value.
    #[error("node {node}: input {index} of {op} ({argument}) is a reference to a variable, but {input} is a value")]
    NotARef { node: String, op: &'static str, index: usize, argument: &'static str, input: String },
    /// An attribute is missing, or has a value that the op does not accept.
    #[error("node {node}: attribute {attr:?} of {op} {why}")]
    BadAttr { node: String, op: &'static str, attr: String, why: String },
    /// Every kernel of an op refuses the shapes of a node's inputs.
    #[error("node {node} ({op}): {inputs}: {why}")]
    Shapes { node: String, op: &'static str, inputs: String, why: String },
    /// A node's device string violates the grammar.
    #[error("node {node}: device {device:?}: {why}")]
    BadDevice { node: String, device: String, why: String },
    /// Nodes wait for each other in a cycle.
    #[error("the graph has a cycle: {}; only a loop through NextIteration may lead back", nodes.join(" -> "))]
    Cycle { nodes: Vec<String> },
    /// There are more nodes than the limit.
    #[error("the graph has {nodes} nodes; the limit is {limit}")]
    TooLarge { nodes: usize, limit: usize },
    /// A name denotes no node of the graph.
    #[error("The operation, '{name}', does not exist in the graph{}", hint(nearest))]
    NoSuchNode { name: String, nearest: Vec<String> },
    /// A name denotes an output that its node does not have.
    #[error("{tensor:?}: {op} has {}, numbered from 0", counted(*ports, "output"))]
    NoSuchPort { tensor: String, op: &'static str, ports: usize },
}

impl GraphError {
    /// The node with the error, if it is a single one.
    pub fn node(&self) -> Option<&str> {
        match self {
            GraphError::UnknownOp { node, .. }
            | GraphError::CannotRun { node, .. }
            | GraphError::UnknownInput { node, .. }
            | GraphError::UnknownPort { node, .. }
            | GraphError::InputCount { node, .. }
            | GraphError::InputType { node, .. }
            | GraphError::NotARef { node, .. }
            | GraphError::BadAttr { node, .. }
            | GraphError::Shapes { node, .. }
            | GraphError::BadDevice { node, .. } => Some(node),
            GraphError::Cycle { nodes } => nodes.first().map(String::as_str),
            GraphError::DuplicateName { .. }
            | GraphError::BadName { .. }
            | GraphError::TooLarge { .. }
            | GraphError::NoSuchNode { .. }
            | GraphError::NoSuchPort { .. } => None,
        }
    }
}

/// An input in the form of messages: `input "x:1"`, and `control input "x"` for `^x`.
fn shown(input: &str) -> String {
    match input.strip_prefix('^') {
        Some(control) => format!("control input {control:?}"),
        None => format!("input {input:?}"),
    }
}

/// `; did you mean a or b?`, or the empty string.
fn hint(nearest: &[String]) -> impl fmt::Display + '_ {
    fmt::from_fn(move |f| match nearest {
        [] => Ok(()),
        names => write!(f, "; did you mean {}?", names.join(" or ")),
    })
}

/// The reason why a file is not a program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
// The text of each variant explains its fields.
#[allow(missing_docs)]
pub enum FormatError {
    /// It is not valid JSON.
    #[error("line {line}, column {column}: {why}")]
    Syntax { line: usize, column: usize, why: String },
    /// It is JSON, but with content that a graph cannot have.
    #[error("{path} (line {line}, column {column}): {why}")]
    Content { path: String, line: usize, column: usize, why: String },
    /// It is a GraphDef, but something in it has no meaning in meshtf.
    #[error("node {node}: {why}")]
    Node { node: String, why: String },
    /// It holds no graph that can be read.
    #[error("{why}")]
    NoGraph { why: String },
    /// It is valid, but this process lacks the memory for it.
    #[error("{why}")]
    NoMemory { why: String },
    /// A part of it exceeds its limit.
    #[error("{what} is {bytes} bytes, over the limit of {limit}; feed large values instead, from .npy files")]
    TooLarge { what: String, bytes: u64, limit: u64 },
}

impl FormatError {
    /// The error of a reader of `text`.
    pub fn of_json(text: &str, fault: Fault) -> Self {
        let (line, column) = json::position(text, fault.at);
        match fault.path {
            Some(path) if fault.is_for_memory => {
                FormatError::NoMemory { why: format!("{path} (line {line}, column {column}): {}", fault.why) }
            }
            None => FormatError::Syntax { line, column, why: fault.why },
            Some(path) => FormatError::Content { path, line, column, why: fault.why },
        }
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        let code = match error {
            FormatError::TooLarge { .. } | FormatError::NoMemory { .. } => Code::ResourceExhausted,
            _ => Code::InvalidArgument,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        Failure::invalid(error.to_string())
    }
}
