//! The check of a file's bytes before they are decoded: the number of its messages, and their nesting, are limited.
//!
//! A message of two bytes takes hundreds of them in memory. The bytes are walked without an allocation, and a file that would
//! take more memory than a model needs is refused.

/// Most messages that a model may consist of: nodes, attributes, initializers, and so on.
const MAX_MESSAGES: usize = 1 << 22;

/// Most strings and numbers in the lists of a model, apart from those of tensors.
const MAX_ITEMS: usize = 1 << 24;

/// Deepest nesting of messages. A subgraph is four messages within each other.
const MAX_DEPTH: usize = 96;

/// The messages that contain others.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Info,
    Type,
    TensorType,
    Element,
    Shape,
    Function,
    /// Contains no message.
    Leaf,
}

impl Kind {
    /// The message in a field, if the field is one.
    fn field(self, number: u64) -> Option<Kind> {
        use Kind::*;
        Some(match (self, number) {
            (Model, 7) | (Attribute, 6) => Graph,
            (Model, 8) | (Function, 9) | (Tensor, 13) => Leaf,
            (Model, 25) => Function,
            (Graph, 1) | (Function, 7) => Node,
            (Graph, 5) | (Attribute, 5) | (Sparse, 1 | 2) => Tensor,
            (Graph, 11..=13) => Info,
            (Graph, 15) | (Attribute, 22) => Sparse,
            (Node, 5) | (Function, 11) => Attribute,
            (Attribute, 14) | (Info, 2) | (Element, 1) => Type,
            (Type, 1 | 8) => TensorType,
            (Type, 4 | 9) => Element,
            (Type, 5) => Leaf,
            (TensorType, 2) => Shape,
            (Shape, 1) => Leaf,
            _ => return None,
        })
    }
}

/// The number of messages and list items so far.
struct Count {
    messages: usize,
    items: usize,
}

/// Walks over a model.
///
/// # Errors
/// The limit that it exceeds, or the reason why the bytes are no messages.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    walk(bytes, Kind::Model, 0, &mut Count { messages: 0, items: 0 })
}

fn walk(mut bytes: &[u8], kind: Kind, depth: usize, count: &mut Count) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("its messages are nested more than {MAX_DEPTH} deep"));
    }
    count.messages += 1;
    if count.messages > MAX_MESSAGES {
        return Err(format!("it consists of more than {MAX_MESSAGES} messages"));
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let (number, wire) = (tag >> 3, tag & 7);
        count.items += usize::from(kind != Kind::Tensor);
        if count.items > MAX_ITEMS {
            return Err(format!("it has more than {MAX_ITEMS} fields"));
        }
        match wire {
            0 => drop(varint(&mut bytes)?),
            1 => drop(take(&mut bytes, 8)?),
            5 => drop(take(&mut bytes, 4)?),
            2 => {
                let length = varint(&mut bytes)?;
                let content = take(&mut bytes, usize::try_from(length).unwrap_or(usize::MAX))?;
                if let Some(inner) = kind.field(number) {
                    walk(content, inner, depth + 1, count)?;
                }
            }
            _ => return Err(format!("field {number} has wire type {wire}")),
        }
    }
    Ok(())
}

/// Whether bytes begin as a model does: fields of a ModelProto with their wire types, and a graph or opsets among them.
pub fn is_model(mut bytes: &[u8]) -> bool {
    let mut has_graph = false;
    let mut has_version = false;
    while !bytes.is_empty() {
        let Ok(tag) = varint(&mut bytes) else { return false };
        match (tag >> 3, tag & 7) {
            (1 | 5, 0) => {
                has_version = true;
                if varint(&mut bytes).is_err() {
                    return false;
                }
            }
            (number @ (2 | 3 | 4 | 6 | 7 | 8 | 14 | 20 | 25 | 26), 2) => {
                has_graph |= matches!(number, 7 | 8);
                let Ok(length) = varint(&mut bytes) else { return false };
                if take(&mut bytes, usize::try_from(length).unwrap_or(usize::MAX)).is_err() {
                    // A file that was cut off in its graph still is a model: the error of the decoder says so.
                    return has_graph && has_version;
                }
            }
            _ => return false,
        }
    }
    has_graph
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("it ends within a field")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number has more than 64 bits".to_owned())
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Result<&'a [u8], String> {
    let (taken, rest) =
        bytes.split_at_checked(n).ok_or_else(|| format!("a field claims {n} bytes, and {} follow", bytes.len()))?;
    *bytes = rest;
    Ok(taken)
}
