//! A model for lines of text: from the bytes of a line so far, the next one.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{Length, Model, document, object, quoted};

/// The longest line of a model, whose steps are unrolled.
const MAX_LINE: usize = 256;
/// Bytes of a text that are read.
const MAX_READ: u64 = 256 << 20;

pub(super) fn model(path: &Path, name: &str) -> Result<Model, String> {
    if path.extension().is_none_or(|ending| ending != "txt") {
        return Err("a text is a .txt file, and each of its lines is an example".to_owned());
    }
    let mut text = BufReader::new(File::open(path).map_err(|error| error.to_string())?.take(MAX_READ));
    let (mut lines, mut longest, mut line) = (0, 0, Vec::new());
    loop {
        line.clear();
        // A line that is too long is not read to its end.
        let mut start = text.by_ref().take(MAX_LINE as u64 + 2);
        if start.read_until(b'\n', &mut line).map_err(|error| error.to_string())? == 0 {
            break;
        }
        lines += 1;
        let own = line.strip_suffix(b"\n").unwrap_or(&line);
        let own = own.strip_suffix(b"\r").unwrap_or(own);
        if own.len() > MAX_LINE {
            let why =
                format!("line {lines} has more than {MAX_LINE} bytes, the most of a model: break its lines, as with");
            return Err(format!("{why} fold -s -w {} {name}", MAX_LINE / 2));
        }
        longest = longest.max(own.len());
    }
    if longest < 2 {
        return Err("it has no line with two bytes or more".to_owned());
    }
    let steps = longest - 1;
    let takes = quoted(&format!("The bytes of a line, and zeros up to {longest}."));
    let node = |name: &str, node: &str| (name.to_owned(), node.to_owned());
    let nodes = [
        (
            "x".to_owned(),
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"int32\", \"shape\": [null, {longest}] }},\n           \
                 \"description\": {takes} }}"
            ),
        ),
        ("before".to_owned(), format!(r#"{{ "op": "Slice", "inputs": ["x", [0, 0], [-1, {steps}]] }}"#)),
        (
            "next".to_owned(),
            format!(
                r#"{{ "op": "Slice", "inputs": ["x", [0, 1], [-1, {steps}]], "description": "The byte after each of these." }}"#
            ),
        ),
        node(
            "seen",
            r#"{ "layer": "embedding", "inputs": ["before"], "rows": 256, "width": 32, "description": "32 numbers for each byte." }"#,
        ),
        node(
            "h",
            r#"{ "layer": "gru", "inputs": ["seen"], "units": 128, "description": "Remembers the line so far." }"#,
        ),
        node(
            "logits",
            r#"{ "layer": "dense", "inputs": ["h"], "units": 256, "description": "A number for each byte that may follow." }"#,
        ),
        node("rows", r#"{ "op": "Reshape", "inputs": ["logits", [-1, 256]] }"#),
        node("labels", r#"{ "op": "Reshape", "inputs": ["next", [-1]] }"#),
        node("losses", r#"{ "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["rows", "labels"] }"#),
        node(
            "is_text",
            r#"{ "op": "Cast", "inputs": ["is_byte"], "attrs": { "DstT": "float32" }, "description": "1 within the line, and 0 for the zeros after it." }"#,
        ),
        node("is_byte", r#"{ "op": "NotEqual", "inputs": ["labels", 0] }"#),
        node("within", r#"{ "op": "Mul", "inputs": ["losses", "is_text"] }"#),
        node("total", r#"{ "op": "Sum", "inputs": ["within", 0] }"#),
        node("bytes", r#"{ "op": "Sum", "inputs": ["is_text", 0] }"#),
        node("some", r#"{ "op": "Maximum", "inputs": ["bytes", 1] }"#),
        node(
            "loss",
            r#"{ "op": "RealDiv", "inputs": ["total", "some"], "description": "5.5 is the loss of knowing nothing." }"#,
        ),
        node("guess", r#"{ "op": "ArgMax", "inputs": ["rows", 1], "attrs": { "output_type": "int32" } }"#),
        node("right", r#"{ "op": "Equal", "inputs": ["guess", "labels"] }"#),
        node("ones", r#"{ "op": "Cast", "inputs": ["right"], "attrs": { "DstT": "float32" } }"#),
        node("hits", r#"{ "op": "Mul", "inputs": ["ones", "is_text"] }"#),
        node("all_hits", r#"{ "op": "Sum", "inputs": ["hits", 0] }"#),
        node(
            "accuracy",
            r#"{ "op": "RealDiv", "inputs": ["all_hits", "some"], "description": "The share of bytes that are guessed." }"#,
        ),
        node(
            "probabilities",
            r#"{ "op": "Softmax", "inputs": ["logits"], "description": "Of each byte, after each byte of the line." }"#,
        ),
    ];
    let length = Length::of(lines, 32, 600);
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(&format!("The next byte of the lines of {name}."))),
        ("nodes", object(&nodes)),
        ("data", length.data(&[("x", quoted(name))])),
        ("train", length.train(0.003, r#", "metrics": ["accuracy"]"#)),
    ];
    sections.extend(length.evaluate(r#", "metrics": ["accuracy"]"#));
    let summary = vec![format!("{lines} lines of up to {longest} bytes")];
    Ok(Model { text: document(&sections), summary })
}
