//! A model for a text: from its characters so far, the next one.

use std::path::Path;

use meshtf_train::data::{Counter, FIRST, FilePart, TextOptions, TokenKind, unpacked, utf8};

use super::layout::MAX_READ;
use super::{Length, Model, document, object, quoted};

/// The fewest characters of a text.
const FEWEST: usize = 40;
/// The most characters of an example, for each of which a step of the model is unrolled.
const MOST_STEPS: usize = 64;
/// The most numbers of a vocabulary.
const MOST: usize = 4000;

pub(super) fn model(path: &Path, name: &str) -> Result<Model, String> {
    let named = FilePart { file: name.to_owned(), part: None };
    if !named.is_text() {
        return Err(
            "a text is a .txt file, a table with a column of texts (.csv, .tsv, .jsonl, .parquet), or a folder with a folder of \
                    .txt files for each class"
                .to_owned(),
        );
    }
    let length = path.metadata().map_err(|error| error.to_string())?.len();
    if length > MAX_READ {
        return Err(format!("it has more than {MAX_READ} bytes, the most that are looked at: take a part of it"));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let bytes = unpacked(bytes).map_err(|failure| failure.message)?;
    let text = utf8(&bytes).map_err(|why| format!("it is {why}"))?;
    let options = TextOptions { tokens: TokenKind::Characters, ..TextOptions::default() };
    let (mut counter, mut count) = (Counter::default(), 0);
    options.split(text, &mut |_, letter| {
        count += 1;
        counter.count(letter).is_ok()
    });
    if count < FEWEST {
        return Err(format!("it has {count} characters, too few to learn from; expected {FEWEST} or more"));
    }
    // An example fits the part that is held out, a fifth.
    let steps = (count / 12).clamp(2, MOST_STEPS);
    let stride = (steps / 2).max(1);
    let size = (counter.different() + FIRST).min(MOST);
    let examples = (count - steps - 1) / stride + 1;
    let takes = quoted(&format!("{} characters of the text, each by its number in the vocabulary.", steps + 1));
    let nodes = [
        (
            "x",
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"int32\", \"shape\": [null, {}] }},\n           \
                 \"description\": {takes} }}",
                steps + 1
            ),
        ),
        ("before", format!(r#"{{ "op": "Slice", "inputs": ["x", [0, 0], [-1, {steps}]] }}"#)),
        (
            "next",
            format!(
                r#"{{ "op": "Slice", "inputs": ["x", [0, 1], [-1, {steps}]], "description": "The character after each of these." }}"#
            ),
        ),
        (
            "seen",
            format!(
                r#"{{ "layer": "embedding", "inputs": ["before"], "rows": {size}, "width": 32, "description": "32 numbers for each character." }}"#
            ),
        ),
        (
            "h",
            r#"{ "layer": "gru", "inputs": ["seen"], "units": 128, "description": "Remembers the text so far." }"#.to_owned(),
        ),
        (
            "logits",
            format!(
                r#"{{ "layer": "dense", "inputs": ["h"], "units": {size}, "description": "A number for each character that may follow." }}"#
            ),
        ),
        ("rows", format!(r#"{{ "op": "Reshape", "inputs": ["logits", [-1, {size}]] }}"#)),
        ("labels", r#"{ "op": "Reshape", "inputs": ["next", [-1]] }"#.to_owned()),
        ("losses", r#"{ "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["rows", "labels"] }"#.to_owned()),
        (
            "loss",
            format!(
                r#"{{ "op": "Mean", "inputs": ["losses", 0], "description": "{:.1} is the loss of knowing nothing." }}"#,
                (size as f64).ln()
            ),
        ),
        ("guess", r#"{ "op": "ArgMax", "inputs": ["rows", 1], "attrs": { "output_type": "int32" } }"#.to_owned()),
        ("right", r#"{ "op": "Equal", "inputs": ["guess", "labels"] }"#.to_owned()),
        ("ones", r#"{ "op": "Cast", "inputs": ["right"], "attrs": { "DstT": "float32" } }"#.to_owned()),
        (
            "accuracy",
            r#"{ "op": "Mean", "inputs": ["ones", 0], "description": "The share of characters that are guessed." }"#.to_owned(),
        ),
        (
            "probabilities",
            r#"{ "op": "Softmax", "inputs": ["logits"], "description": "Of each character, after each character of the text." }"#
                .to_owned(),
        ),
    ];
    let nodes: Vec<(String, String)> = nodes.into_iter().map(|(name, node)| (name.to_owned(), node)).collect();
    let length = Length::of(examples, 32, 600);
    let file = quoted(name);
    let feed = format!(
        "{{ \"file\": {file}, \"tokens\": \"characters\", \"vocabulary\": {size},\n             \"window\": {{ \"length\": {}, \
         \"stride\": {stride} }} }}",
        steps + 1
    );
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(&format!("The next character of {name}."))),
        ("nodes", object(&nodes)),
        ("data", length.data_held(&[("x", feed)], r#"{ "last": 0.2 }"#)),
        ("train", length.train(0.003, r#", "metrics": ["accuracy"]"#)),
    ];
    sections.extend(length.evaluate(r#", "metrics": ["accuracy"]"#));
    sections.push(("generate", r#"{ "feed": "before", "logits": "rows" }"#.to_owned()));
    let summary = vec![format!(
        "{count} characters, {} different: {examples} examples of {} each",
        counter.different(),
        steps + 1
    )];
    Ok(Model { text: document(&sections), summary })
}
