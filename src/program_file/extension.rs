//! Nodes that a file of training sections adds to a model of another form: a loss, labels, layers.

use std::collections::BTreeSet;

use meshtf_graph::{Beside, FormatError, Graph, NodeDef, split_tensor_name};
use meshtf_tensor::json::{Kind, Value, parse};

/// The nodes of a document, and those that give variables first values: of its layers, and those that it states.
#[derive(Debug, Default)]
pub struct Extension {
    pub nodes: Vec<NodeDef>,
    pub init: Vec<String>,
}

/// An input of a node that is defined elsewhere.
struct Reference {
    /// The byte of the text at which it begins.
    at: usize,
    /// The name of the node, without a port.
    name: String,
}

fn all_references(value: &Value) -> Vec<Reference> {
    let own: BTreeSet<&str> =
        ["nodes", "variables"].iter().flat_map(|key| members(value, key)).map(|(name, _)| name).collect();
    let lists = members(value, "nodes").filter_map(|(_, node)| match &node.get("inputs")?.kind {
        Kind::List(inputs) => Some(inputs),
        _ => None,
    });
    let named = lists.flatten().filter_map(|input| match &input.kind {
        Kind::String(name) => {
            Some(Reference { at: input.at, name: split_tensor_name(name.trim_start_matches('^')).0.to_owned() })
        }
        _ => None,
    });
    named.filter(|one| !own.contains(one.name.as_str())).collect()
}

/// The nodes of a document that are defined elsewhere, by the inputs that name them.
pub fn references(text: &str) -> Vec<String> {
    let Ok(value) = parse(text) else { return Vec::new() };
    let names: BTreeSet<String> = all_references(&value).into_iter().map(|one| one.name).collect();
    names.into_iter().collect()
}

/// The text with the names that nodes have, in place of those of a model's values.
fn with_node_names(graph: &Graph, text: &str, references: &[Reference]) -> String {
    let mut written = String::with_capacity(text.len());
    let mut done = 0;
    for Reference { at, name } in references {
        let node = meshtf_onnx::node_name(name);
        // A name with characters that are escaped in JSON stays.
        let quoted = format!("\"{name}");
        if graph.find(name).is_none() && graph.find(&node).is_some() && text[*at..].starts_with(&quoted) && *at >= done
        {
            written.push_str(&text[done..*at]);
            written.push('"');
            written.push_str(&node);
            done = at + quoted.len();
        }
    }
    written.push_str(&text[done..]);
    written
}

/// The members of an object within an object.
fn members<'v, 'a>(value: &'v Value<'a>, key: &str) -> impl Iterator<Item = (&'v str, &'v Value<'a>)> {
    let members = match value.get(key).map(|value| &value.kind) {
        Some(Kind::Object(members)) => &members[..],
        _ => &[],
    };
    members.iter().map(|member| (&*member.key, &member.value))
}

/// Reads the nodes of a document, which may take tensors of a graph by their names; without nodes there are none.
///
/// # Errors
/// As for a graph.json.
pub fn read(graph: &Graph, text: &str, beside: &mut Beside) -> Result<Extension, FormatError> {
    let Ok(value) = parse(text) else { return Ok(Extension::default()) };
    let mut references = all_references(&value);
    references.sort_by_key(|one| one.at);
    let text = &with_node_names(graph, text, &references);
    let Ok(value) = parse(text) else { return Ok(Extension::default()) };
    let Some(Value { at, kind: Kind::Object(nodes) }) = value.get("nodes") else { return Ok(Extension::default()) };
    if nodes.is_empty() {
        return Ok(Extension::default());
    }
    // For the reader the graph's tensors are placeholders, so that it knows their dtypes and shapes. They are on the line where
    // the nodes begin, so that errors have the lines of the file.
    let mut stubs = String::new();
    let mut names = BTreeSet::new();
    for name in self::references(text) {
        let Ok(output) = graph.output(&name) else { continue };
        let mut attrs = serde_json::Map::new();
        attrs.insert("dtype".to_owned(), graph.output_type(output).dtype.name().into());
        if let Some(sizes) = graph.shapes().of(output).0 {
            attrs.insert("shape".to_owned(), sizes.into());
        }
        let stub = serde_json::json!({ "op": "Placeholder", "attrs": attrs });
        stubs.push_str(&format!("{}: {stub}, ", serde_json::Value::from(name.as_str())));
        names.insert(name);
    }
    let (before, after) = text.split_at((at + 1).min(text.len()));
    let text = format!("{before}{stubs}{after}");
    let (program, first_values) = meshtf_train::model::file::read_with_first_values(text.as_bytes(), beside)?;
    let nodes = program.nodes.into_iter().filter(|node| !names.contains(&node.name)).collect();
    let mut init = program.init;
    init.extend(first_values);
    // Those of the document, if it states none.
    let mut seen = BTreeSet::new();
    init.retain(|name| seen.insert(name.clone()));
    Ok(Extension { nodes, init })
}

#[cfg(test)]
mod tests {
    use meshtf_graph as graph;
    use meshtf_tensor::failure::Failure;

    use super::*;

    #[test]
    fn nodes_take_the_tensors_of_a_graph() {
        let model = r#"{"version": 1, "nodes": {"y": {"op": "Placeholder", "attrs": {"dtype": "float32", "shape": [null, 3]}}}}"#;
        let mut model = Graph::new(graph::read(model.as_bytes()).unwrap().nodes).unwrap();
        let text = r#"{"version": 1, "data": {}, "nodes": {
            "z": {"op": "Mul", "inputs": ["y", 2]},
            "head": {"layer": "dense", "inputs": ["z"], "units": 2}}}"#;
        assert_eq!(references(text), ["y"]);
        let mut none = |_: &str, _| Err(Failure::invalid("there is no other file"));
        let more = read(&model, text, &mut none).unwrap();
        assert!(!more.init.is_empty() && more.nodes.iter().all(|node| node.name != "y"));
        model.extend(more.nodes).unwrap();
        // The dtype of the literal and the sizes of the layer come from the graph.
        let head = model.output("head").unwrap();
        assert_eq!(model.output_type(head).dtype, meshtf_tensor::DType::F32);
        assert_eq!(model.shapes().of(head).to_string(), "[?,2]");
        let why = read(&model, &text.replace("Mul", "Mull"), &mut none).unwrap_err().to_string();
        assert!(why.contains("line 2"), "{why}");
        let named = text.replace("\"y\"", "\"/y\"").replace("head", "other");
        assert!(
            read(&model, &named, &mut none).unwrap().nodes.iter().any(|node| node.inputs.contains(&"y".to_owned()))
        );
        assert!(read(&model, "{}", &mut none).unwrap().nodes.is_empty());
        // Nodes that are stated are run with those of the layers.
        let stated = text
            .replace("\"head\"", "\"warm\": {\"op\": \"NoOp\"}, \"tail\"")
            .replace("\"data\"", "\"init\": [\"warm\"], \"data\"");
        assert_eq!(read(&model, &stated, &mut none).unwrap().init, ["warm", "tail/kernel/assign", "tail/bias/assign"]);
    }
}
