//! A program: a graph's nodes with what to fetch, feed and run, and the one way in for its three forms.

use super::{FormatError, NodeDef, graphdef, json};
use crate::failure::Failure;
use crate::json::{Kind, Path};
use crate::tensor::{DType, MAX_TENSOR_BYTES, Shape, Tensor};

/// What a file states: nodes, unchecked, and what a step of them is to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    pub nodes: Vec<NodeDef>,
    /// Tensors to fetch; empty if the file does not say, as a GraphDef never does.
    pub fetch: Vec<String>,
    /// Tensors and the values they are fed.
    pub feed: Vec<(String, Tensor)>,
    /// Nodes to run without fetching.
    pub targets: Vec<String>,
    /// Nodes to run once, as a step of their own, before the first of the others.
    pub init: Vec<String>,
}

/// Largest file that is read, protobuf's own limit.
const MAX_BYTES: usize = i32::MAX as usize;
/// Largest JSON that is read: as a tree it takes many times its length.
const MAX_JSON_BYTES: usize = 256 << 20;

/// How many bytes the constants of one file may take together: a few bytes can ask for a shape of any size.
pub(super) struct Budget {
    left: usize,
    /// Of that, what may be said in few bytes.
    expanded: usize,
    /// The first constant for which this process had no memory.
    pub refused: Option<Failure>,
}

/// Most bytes of a file's constants that are not in the file: values that fill what a list of others leaves open.
const MAX_EXPANDED_BYTES: usize = 256 << 20;

impl Budget {
    pub fn new() -> Self {
        Budget { left: MAX_TENSOR_BYTES, expanded: MAX_EXPANDED_BYTES, refused: None }
    }

    /// The number of elements of a constant that is about to be made.
    ///
    /// # Errors
    /// Why it cannot be read; notes if only memory is missing.
    pub fn elements(&mut self, shape: &Shape, dtype: DType) -> Result<usize, String> {
        shape.checked_elements(dtype).map_err(|failure| {
            let why = failure.message.clone();
            if failure.refusal.is_some() {
                self.refused.get_or_insert(failure);
            }
            why
        })
    }

    /// Takes `bytes` off what is left.
    ///
    /// # Errors
    /// Why not, if less is left.
    pub fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            format!(
                "takes the constants of this file past {MAX_TENSOR_BYTES} bytes together; feed large values instead"
            )
        })?;
        Ok(())
    }

    /// Takes `bytes` off what is left, which a few bytes of the file stand for.
    ///
    /// # Errors
    /// Why not, if less is left.
    pub fn expand(&mut self, bytes: usize) -> Result<(), String> {
        self.expanded = self.expanded.checked_sub(bytes).ok_or_else(|| {
            format!(
                "takes the values that fill the rest of their constants past {MAX_EXPANDED_BYTES} bytes together; state \
                 each value, or use Fill"
            )
        })?;
        self.take(bytes)
    }
}

/// Reads a program: native graph.json, GraphDef in protobuf's JSON mapping, or binary GraphDef, told apart by content.
///
/// # Errors
/// Where in the file what is wrong, and what would be right: see [`FormatError`]. That the graph hangs together is
/// checked by [`Graph::new`](super::Graph::new).
pub fn read(bytes: &[u8]) -> Result<Program, FormatError> {
    let no_graph = |why: &str| Err(FormatError::NoGraph { why: why.to_owned() });
    if bytes.is_empty() {
        return no_graph("the file is empty");
    }
    within(bytes, "the file", MAX_BYTES)?;
    // JSON is text without control characters; a binary GraphDef has one in every node, the tag of its op.
    let is_text = !bytes.iter().any(|&b| b < b' ' && !b"\t\n\r".contains(&b));
    let start = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let is_json = start.starts_with(b"{");
    match std::str::from_utf8(bytes) {
        Ok(text) if is_text && is_json => read_json(text),
        Ok(_) if is_text && start.is_empty() => no_graph("the file is blank"),
        Ok(_) if is_text && (start.starts_with(b"node") || start.starts_with(b"versions")) => {
            no_graph("this looks like a GraphDef in protobuf's text format; write it as JSON or binary instead")
        }
        Ok(_) if is_text => no_graph("this is text, but no graph: graph.json is a JSON object and begins with {"),
        text => match graphdef::from_binary(bytes) {
            Ok(nodes) => Ok(Program { nodes, ..Program::default() }),
            // A JSON document with a stray control character is better told where that is.
            Err(FormatError::NoGraph { .. }) if is_json && text.is_ok() => read_json(text.expect("just checked")),
            Err(FormatError::NoGraph { .. }) if is_json => no_graph("the file begins like JSON, but is not UTF-8"),
            Err(FormatError::NoGraph { why }) => {
                Err(FormatError::NoGraph { why: format!("neither graph.json nor GraphDef: {why}") })
            }
            Err(other) => Err(other),
        },
    }
}

/// Where a native graph.json states a node: `$.nodes.y (line 6, column 5)`. `None` if it does not, as for the constant that
/// a literal input becomes, and for every other form.
pub fn place_of(bytes: &[u8], node: &str) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let value = crate::json::parse(text).ok()?;
    let Kind::Object(members) = &value.get("nodes")?.kind else { return None };
    let member = members.iter().find(|member| member.key == node)?;
    let (line, column) = crate::json::position(text, member.at);
    let nodes = Path::Root.key("nodes");
    Some(format!("{} (line {line}, column {column})", nodes.key(node)))
}

fn within(bytes: &[u8], what: &str, limit: usize) -> Result<(), FormatError> {
    if bytes.len() <= limit {
        return Ok(());
    }
    Err(FormatError::TooLarge { what: what.to_owned(), bytes: bytes.len() as u64, limit: limit as u64 })
}

fn read_json(text: &str) -> Result<Program, FormatError> {
    within(text.as_bytes(), "a graph as JSON", MAX_JSON_BYTES)?;
    let value = crate::json::parse(text).map_err(|fault| FormatError::of_json(text, fault))?;
    let has = |key: &str| matches!(&value.kind, Kind::Object(members) if members.iter().any(|m| m.key == key));
    if has("node") && !has("nodes") {
        let nodes = graphdef::from_json_value(text, &value)?;
        return Ok(Program { nodes, ..Program::default() });
    }
    json::from_value(&value).map_err(|fault| FormatError::of_json(text, fault))
}
