//! Programs: the nodes of a graph, and its fetches, feeds and targets. [`read`] reads all three file formats.

use meshtf_tensor::failure::Failure;
use meshtf_tensor::json::{Kind, Path};
use meshtf_tensor::{DType, MAX_TENSOR_BYTES, Shape, Tensor};
use std::ops::Range;

use super::{FormatError, NodeDef, graphdef, json};

/// The content of a graph file: its nodes, not yet validated, and the fetches, feeds and targets of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The nodes, in the order of the file.
    pub nodes: Vec<NodeDef>,
    /// Tensors to fetch (`name` or `name:port`); empty if the file names none. A GraphDef cannot name any.
    pub fetch: Vec<String>,
    /// Tensors to feed, each with its value.
    pub feed: Vec<(String, Tensor)>,
    /// Nodes to run without fetching their outputs.
    pub targets: Vec<String>,
    /// Nodes to run once, in a separate step, before the first step.
    pub init: Vec<String>,
}

/// The largest file that is read, in bytes: protobuf's own limit.
const MAX_BYTES: usize = i32::MAX as usize;
/// The largest JSON text that is read, in bytes: parsed, it takes several times its length.
const MAX_JSON_BYTES: usize = 256 << 20;

/// Most bytes of the constants of a file, and of the files next to it that it names.
const MAX_CONSTANTS_BYTES: usize = 4 * MAX_TENSOR_BYTES;

/// The remaining memory for the constants of one file. A constant of any size can be stated in a few bytes.
pub(super) struct Budget {
    /// Bytes left for all constants.
    left: usize,
    /// Bytes left for elements that the file does not contain one by one.
    expanded: usize,
    /// The failure of the first constant that was refused because the process lacked memory.
    pub refused: Option<Failure>,
}

/// The most bytes of elements that are not in the file: those that repeat the last value of a list up to the size of its shape.
const MAX_EXPANDED_BYTES: usize = 256 << 20;

impl Budget {
    pub fn new() -> Self {
        Budget { left: MAX_CONSTANTS_BYTES, expanded: MAX_EXPANDED_BYTES, refused: None }
    }

    /// The number of elements of a constant of this shape; memory for them is admitted.
    ///
    /// # Errors
    /// The reason why the constant cannot be made. A lack of memory is also stored in `refused`.
    pub fn elements(&mut self, shape: &Shape, dtype: DType) -> Result<usize, String> {
        shape.checked_elements(dtype).map_err(|failure| {
            let why = failure.message.clone();
            if failure.refusal.is_some() {
                self.refused.get_or_insert(failure);
            }
            why
        })
    }

    /// Takes `bytes` from the budget.
    ///
    /// # Errors
    /// A message that the limit is exceeded, and the remedy.
    pub fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            format!(
                "brings the constants of this file to more than {MAX_CONSTANTS_BYTES} bytes in total; feed large values instead"
            )
        })?;
        Ok(())
    }

    /// As [`Budget::take`], for elements that the file does not contain one by one.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn expand(&mut self, bytes: usize) -> Result<(), String> {
        self.expanded = self.expanded.checked_sub(bytes).ok_or_else(|| {
            format!(
                "brings the constants that the file states by fewer values than they have elements to more than \
                 {MAX_EXPANDED_BYTES} bytes in total; state each value, or use Fill"
            )
        })?;
        self.take(bytes)
    }
}

/// A reader of files next to a graph: from a name, relative to the graph's folder, and a range of its bytes to those that the
/// file has, or to a failure whose message names the file.
pub type Beside<'b> = dyn FnMut(&str, Range<u64>) -> meshtf_tensor::failure::Result<Vec<u8>> + 'b;

/// All bytes of a file.
pub const WHOLE: Range<u64> = 0..u64::MAX;

/// Reads a program from a native graph.json, a GraphDef in protobuf's JSON mapping, or a binary GraphDef. The content
/// determines the format. No other file is read: see [`read_beside`].
///
/// # Errors
/// The error, its location in the file, and the remedy: see [`FormatError`]. Only the format is checked;
/// [`Graph::new`](super::Graph::new) validates the graph.
pub fn read(bytes: &[u8]) -> Result<Program, FormatError> {
    let refuse = |file: &str| format!("{file:?} cannot be read: this graph was given without a folder");
    read_beside(bytes, &mut |file, _| Err(Failure::invalid(refuse(file))))
}

/// As [`read`]; `beside` reads the files next to a graph.json that may hold its constants.
///
/// # Errors
/// As [`read`]; Content if such a file cannot be read, or holds a tensor of another shape or dtype.
pub fn read_beside(bytes: &[u8], beside: &mut Beside) -> Result<Program, FormatError> {
    read_with(bytes, beside, &mut json::NoLayers)
}

/// As [`read_beside`]; `expand` adds the nodes of a graph.json's layers.
///
/// # Errors
/// As [`read_beside`]; Content for a layer that cannot be added.
pub fn read_with(bytes: &[u8], beside: &mut Beside, expand: &mut dyn json::Expand) -> Result<Program, FormatError> {
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
        Ok(text) if is_text && is_json => read_json(text, beside, expand),
        Ok(_) if is_text && start.is_empty() => no_graph("the file is blank"),
        Ok(_) if is_text && (start.starts_with(b"node") || start.starts_with(b"versions")) => {
            no_graph("this looks like a GraphDef in protobuf's text format; write it as JSON or binary instead")
        }
        Ok(_) if is_text => no_graph("this is text, but not a graph: graph.json is a JSON object and begins with {"),
        text => match graphdef::from_binary(bytes) {
            Ok(nodes) => Ok(Program { nodes, ..Program::default() }),
            // For JSON with a stray control character, the error of the JSON parser is better: it has the position.
            Err(FormatError::NoGraph { .. }) if is_json && text.is_ok() => {
                read_json(text.expect("just checked"), beside, expand)
            }
            Err(FormatError::NoGraph { .. }) if is_json => no_graph("the file begins like JSON, but is not UTF-8"),
            Err(FormatError::NoGraph { why }) => {
                Err(FormatError::NoGraph { why: format!("neither graph.json nor GraphDef: {why}") })
            }
            Err(other) => Err(other),
        },
    }
}

/// The location of a node in a native graph.json: `$.nodes.y (line 6, column 5)`; of a node of a layer, that of the layer. `None`
/// if the document has no such node, as for the constant made of a literal input, and for the other formats.
pub fn place_of(bytes: &[u8], node: &str) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let value = meshtf_tensor::json::parse(text).ok()?;
    let Kind::Object(members) = &value.get("nodes")?.kind else { return None };
    let layer_of = |name: &str| members.iter().find(|member| member.key == name && member.value.get("layer").is_some());
    let scopes = node.rmatch_indices('/').find_map(|(end, _)| layer_of(&node[..end]));
    let member = members.iter().find(|member| member.key == node).or(scopes)?;
    let (line, column) = meshtf_tensor::json::position(text, member.at);
    let nodes = Path::Root.key("nodes");
    Some(format!("{} (line {line}, column {column})", nodes.key(&member.key)))
}

/// A layer of a native graph.json, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    /// Its name.
    pub name: String,
    /// Its kind, such as `dense`.
    pub kind: String,
    /// The number of its line, from 1.
    pub line: usize,
}

/// The layer of a native graph.json that a node belongs to, also one of a replica or of its gradients; `None` for any other.
pub fn layer_of(bytes: &[u8], node: &str) -> Option<LayerPlace> {
    let text = std::str::from_utf8(bytes).ok()?;
    let value = meshtf_tensor::json::parse(text).ok()?;
    let Kind::Object(members) = &value.get("nodes")?.kind else { return None };
    // `replica_1/h/MatMul`, `gradients/h/MatMul_grad/MatMul`.
    let mut own = node;
    while let Some((scope, rest)) = own.split_once('/') {
        let is_added = ["replica", "gradients"].iter().any(|name| {
            scope.strip_prefix(name).is_some_and(|number| {
                number.strip_prefix('_').map_or(number.is_empty(), |digits| digits.parse::<u32>().is_ok())
            })
        });
        if !is_added || members.iter().any(|member| member.key == scope) {
            break;
        }
        own = rest;
    }
    let ends = own.match_indices('/').map(|(end, _)| end).chain([own.len()]).rev();
    let (member, kind) = ends.into_iter().find_map(|end| {
        let member = members.iter().find(|member| member.key == own[..end])?;
        match &member.value.get("layer")?.kind {
            Kind::String(kind) => Some((member, kind.to_string())),
            _ => None,
        }
    })?;
    let (line, _) = meshtf_tensor::json::position(text, member.at);
    Some(LayerPlace { name: member.key.to_string(), kind, line })
}

fn within(bytes: &[u8], what: &str, limit: usize) -> Result<(), FormatError> {
    if bytes.len() <= limit {
        return Ok(());
    }
    Err(FormatError::TooLarge { what: what.to_owned(), bytes: bytes.len() as u64, limit: limit as u64 })
}

fn read_json(text: &str, beside: &mut Beside, expand: &mut dyn json::Expand) -> Result<Program, FormatError> {
    within(text.as_bytes(), "a graph as JSON", MAX_JSON_BYTES)?;
    let value = meshtf_tensor::json::parse(text).map_err(|fault| FormatError::of_json(text, fault))?;
    let has = |key: &str| matches!(&value.kind, Kind::Object(members) if members.iter().any(|m| m.key == key));
    if has("node") && !has("nodes") {
        let nodes = graphdef::from_json_value(text, &value)?;
        return Ok(Program { nodes, ..Program::default() });
    }
    json::from_value(&value, beside, expand).map_err(|fault| FormatError::of_json(text, fault))
}
