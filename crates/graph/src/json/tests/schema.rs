//! Tests of the parser against `docs/graph.schema.json`: both accept the same documents, and both refuse errors of form. Errors
//! that only a reader can detect (a name that does not exist, ragged lists) are the parser's alone.
//!
//! The schema itself is applied in `examples/schema`, a separate package: the dependencies of a validator would otherwise
//! change how every dependency of meshtf is built.

use meshtf_tensor::DType;
use serde_json::{Value, json};

use super::from_json;
use crate::Graph;
use crate::op::{self, OpDef};

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../../docs/graph.schema.json")).unwrap()
}

/// `examples/schema` checks the schema against the same documents.
#[test]
fn the_parser_takes_what_is_right_in_form() {
    let lines = include_str!("../../../../../tests/data/documents.txt").lines();
    let (mut right, mut wrong) = (0, 0);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (verdict, text) = line.split_once(' ').unwrap();
        let read = from_json(text).map(|_| ());
        match verdict {
            "right" => right += 1,
            "wrong" => wrong += 1,
            _ => panic!("a line is right or wrong: {line}"),
        }
        assert_eq!(read.is_ok(), verdict == "right", "{read:?}: {text}");
    }
    assert!(right >= 20 && wrong >= 50, "only {right} and {wrong} documents");
}

/// The ops of the schema, each with the text that an editor shows for it.
#[test]
fn the_schema_knows_every_op_and_dtype() {
    let schema = schema();
    let ops = op::all();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        return update(&ops);
    }
    let names: Vec<&str> = ops.iter().map(|op| op.name).collect();
    let advice = "docs/graph.schema.json has other ops than the vocabulary; run this test with UPDATE_SCHEMA=1";
    assert!(schema["$defs"]["op"]["enum"] == json!(names), "{advice}");
    let texts = schema["$defs"]["op"]["enumDescriptions"].as_array().expect(advice);
    assert_eq!(texts.len(), ops.len(), "{advice}");
    for (op, text) in ops.iter().zip(texts) {
        assert_eq!(*text, json!(op.in_brief()), "{}: {advice}", op.name);
    }
    for name in schema["$defs"]["dtype"]["enum"].as_array().unwrap() {
        assert!(DType::from_name(name.as_str().unwrap()).is_some(), "{name}");
    }
    for dtype in DType::all() {
        assert!(schema["$defs"]["dtype"]["enum"].as_array().unwrap().contains(&json!(dtype.name())), "{dtype}");
    }
}

/// Writes the ops into the schema: the names in lines of at most 120 characters, and a description a line in the same order.
fn update(ops: &[&OpDef]) {
    let path = meshtf_testing::means::root().join("docs/graph.schema.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines = vec!["       ".to_owned()];
    for (i, op) in ops.iter().enumerate() {
        let item = format!(" \"{}\"{}", op.name, if i + 1 < ops.len() { "," } else { "" });
        if lines.last().is_some_and(|line| line.len() + item.len() > 120) {
            lines.push("       ".to_owned());
        }
        lines.last_mut().unwrap().push_str(&item);
    }
    let texts: Vec<String> = ops.iter().map(|op| format!("        {}", json!(op.in_brief()))).collect();
    let text = replaced(&text, "\n    \"op\": {\n", "      \"enum\": [\n", &lines.join("\n"));
    let text = replaced(&text, "\n    \"op\": {\n", "      \"enumDescriptions\": [\n", &texts.join(",\n"));
    std::fs::write(path, text).unwrap();
}

/// A text with other items in a list: the one that begins with `list`, behind `after`.
fn replaced(text: &str, after: &str, list: &str, items: &str) -> String {
    let place = text.find(after).unwrap();
    let begin = place + text[place..].find(list).unwrap() + list.len();
    let end = begin + text[begin..].find("\n      ]").unwrap();
    format!("{}{items}{}", &text[..begin], &text[end..])
}

#[test]
fn every_example_is_right() {
    let root = meshtf_testing::means::root();
    let mut seen = 0;
    for entry in std::fs::read_dir(root.join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let program = from_json(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let graph = Graph::new(program.nodes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for tensor in program.fetch.iter().chain(program.feed.iter().map(|(name, _)| name)) {
            graph.output(tensor).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        for (name, value) in &program.feed {
            let output = graph.output(name).unwrap();
            assert_eq!(graph.output_type(output).dtype, value.dtype(), "{}: {name}", path.display());
        }
        seen += 1;
    }
    assert!(seen >= 9, "only {seen} examples");
}
