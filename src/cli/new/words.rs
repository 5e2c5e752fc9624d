//! A model for texts with labels, from a table or a folder for each class: from the words of a text, its class.

use std::collections::BTreeSet;
use std::path::Path;

use meshtf::trainer::folder::{FileKind, ImageFolder};
use meshtf_tensor::failure::Failure;
use meshtf_train::data::{Counter, FIRST, FilePart, TextOptions, TokenKind, is_missing, unpacked, utf8};

use super::layout::{MAX_READ, layout_members, layout_options, scan};
use super::{Length, Model, classifier, document, object, quoted};

/// The most classes.
const MAX_CLASSES: usize = 1000;
/// The most numbers of a vocabulary.
const MOST_WORDS: usize = 10_000;
/// The fewest and the most words of an example; within them, 95 of 100 texts are whole.
const LENGTHS: (usize, usize) = (4, 256);

fn options() -> TextOptions {
    TextOptions { tokens: TokenKind::Words, ..TextOptions::default() }
}

/// The lengths of texts, and their words.
#[derive(Default)]
struct Looked {
    lengths: Vec<usize>,
    counter: Counter,
}

impl Looked {
    fn add(&mut self, text: &str) -> Result<(), Failure> {
        self.lengths.push(words(text));
        self.counter.add(&options(), text)
    }

    /// The number of words of an example.
    fn length(&mut self) -> usize {
        self.lengths.sort_unstable();
        let most = self.lengths.len() * 95 / 100;
        self.lengths.get(most).or(self.lengths.last()).copied().unwrap_or(0).clamp(LENGTHS.0, LENGTHS.1)
    }
}

fn words(text: &str) -> usize {
    let mut count = 0;
    options().split(text, &mut |_, _| {
        count += 1;
        true
    });
    count
}

/// A column of a table.
struct Column {
    name: String,
    words: usize,
    missing: usize,
    /// The different fields, up to one more than there may be classes.
    different: BTreeSet<String>,
}

/// A model for the column with the most words, and the column of labels.
pub(super) fn of_table(path: &Path, name: &str, label: Option<&str>) -> Result<Model, String> {
    let file = FilePart { file: name.to_owned(), part: None };
    let (layout, mut remarks) = layout_options(path, &file)?;
    let mut columns: Vec<Column> = Vec::new();
    let lines = scan(path, &file, &layout, &mut |names, fields| {
        if columns.is_empty() {
            let column =
                |name: &String| Column { name: name.clone(), words: 0, missing: 0, different: BTreeSet::new() };
            columns = names.iter().map(column).collect();
        }
        for (column, field) in columns.iter_mut().zip(fields) {
            column.words += words(field);
            column.missing += usize::from(is_missing(field));
            if column.different.len() <= MAX_CLASSES && !is_missing(field) && !column.different.contains(*field) {
                column.different.insert((*field).to_owned());
            }
        }
        Ok(())
    })?;
    remarks.extend(lines.remarks);
    let lines = lines.count;
    if lines == 0 {
        return Err("it has no lines of values".to_owned());
    }
    if let Some(label) = label
        && columns.iter().all(|column| column.name != label)
    {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        return Err(format!("there is no column {label}; there are {}", names.join(", ")));
    }
    let others = (0..columns.len()).filter(|&place| label != Some(columns[place].name.as_str()));
    let text = others.max_by_key(|&place| columns[place].words);
    let text = text.ok_or("it needs a column of texts and one of labels")?;
    let target = match label {
        Some(label) => columns.iter().position(|column| column.name == label),
        None => (0..columns.len()).rev().find(|&place| place != text),
    };
    let target = &columns[target.ok_or("it needs a column of texts and one of labels")?];
    let classes = target.different.len();
    if !(2..=MAX_CLASSES).contains(&classes) {
        let has = if classes < 2 { "one value".to_owned() } else { format!("more than {MAX_CLASSES} values") };
        return Err(format!("column {} has {has}; name the column of labels with --label", target.name));
    }
    let mut looked = Looked::default();
    scan(path, &file, &layout, &mut |_, fields| fields.get(text).map_or(Ok(()), |field| looked.add(field)))?;
    let of_layout = layout_members(&layout);
    let (file, text) = (quoted(name), quoted(&columns[text].name));
    let missing = if target.missing > 0 { ", \"missing\": \"drop\"" } else { "" };
    let own = quoted(&target.name);
    let label = format!("{{ \"file\": {file}, \"columns\": {own}, \"classes\": \"auto\"{missing}{of_layout} }}");
    let of_text = format!("\"file\": {file}, \"columns\": {text}{of_layout}");
    let description = format!("Tells {} by the words of the column {text} of {name}.", target.name);
    let labels = Labels { feed: label, column: &target.name, count: classes };
    let mut model = written(&description, &of_text, &labels, lines, looked);
    model.summary.extend(remarks);
    Ok(model)
}

/// A model for a folder with a folder of texts for each class.
pub(super) fn of_folder(path: &Path, name: &str) -> Result<Model, String> {
    let folder = ImageFolder::of(path, FileKind::Texts)?;
    let (classes, count) = (folder.classes.len(), folder.images.len());
    if classes < 2 {
        return Err("a classifier needs two folders of texts or more, one for each class".to_owned());
    }
    let (mut looked, mut bytes) = (Looked::default(), 0);
    for (path, name) in folder.named_images() {
        let at = |why: String| format!("{name}: {why}");
        let text = std::fs::read(&path).map_err(|error| at(error.to_string()))?;
        let text = unpacked(text).map_err(|failure| at(failure.message))?;
        bytes += text.len() as u64;
        let text = utf8(&text).map_err(|why| at(format!("it is {why}")))?;
        looked.add(text).map_err(|failure| at(failure.message))?;
        if bytes > MAX_READ {
            break;
        }
    }
    let description = format!("Tells {classes} classes of texts in {name} by their words.");
    let label = format!("{{ \"classes\": {} }}", quoted(name));
    // The placeholder takes the classes of the folders.
    let labels = Labels { feed: label, column: "y", count: classes };
    Ok(written(&description, &format!("\"texts\": {}", quoted(name)), &labels, count, looked))
}

/// The classes of texts.
struct Labels<'l> {
    /// The value of `y` in the section `data`.
    feed: String,
    /// The column, or the placeholder, whose values they are.
    column: &'l str,
    count: usize,
}

fn written(description: &str, of_text: &str, labels: &Labels, count: usize, mut looked: Looked) -> Model {
    let classes = labels.count;
    let words = looked.length();
    let size = (looked.counter.different() + FIRST).clamp(FIRST + 1, MOST_WORDS);
    let takes = quoted(&format!("The first {words} words of a text, filled up with 0; 1 is a word that is unknown."));
    let text = |text: &str| quoted(text);
    let nodes = [
        (
            "x",
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"int32\", \"shape\": [null, {words}] }},\n           \
                 \"description\": {takes} }}"
            ),
        ),
        ("y", r#"{ "op": "Placeholder", "attrs": { "dtype": "int32", "shape": [null] }, "description": "The class." }"#.to_owned()),
        (
            "seen",
            format!(
                r#"{{ "layer": "embedding", "inputs": ["x"], "rows": {size}, "width": 32, "description": "32 numbers for each word." }}"#
            ),
        ),
        ("is_word", r#"{ "op": "NotEqual", "inputs": ["x", 0] }"#.to_owned()),
        ("weights", r#"{ "op": "Cast", "inputs": ["is_word"], "attrs": { "DstT": "float32" }, "description": "1 for each word, and 0 after the last." }"#.to_owned()),
        ("each", r#"{ "op": "ExpandDims", "inputs": ["weights", 2] }"#.to_owned()),
        ("within", r#"{ "op": "Mul", "inputs": ["seen", "each"] }"#.to_owned()),
        ("total", r#"{ "op": "Sum", "inputs": ["within", 1] }"#.to_owned()),
        ("words", r#"{ "op": "Sum", "inputs": ["weights", 1], "attrs": { "keep_dims": true } }"#.to_owned()),
        ("some", r#"{ "op": "Maximum", "inputs": ["words", 1] }"#.to_owned()),
        ("mean", format!("{{ \"op\": \"RealDiv\", \"inputs\": [\"total\", \"some\"], \"description\": {} }}", text("The mean of the words' numbers."))),
        ("h", r#"{ "layer": "dense", "inputs": ["mean"], "units": 32, "activation": "relu" }"#.to_owned()),
        ("kept", r#"{ "layer": "dropout", "inputs": ["h"], "rate": 0.2, "description": "Drops a fifth in steps that train, and none otherwise." }"#.to_owned()),
        (
            "logits",
            format!(
                r#"{{ "layer": "dense", "inputs": ["kept"], "units": {classes}, "description": "A number for each class; the greatest wins." }}"#
            ),
        ),
    ];
    let nodes: Vec<(String, String)> =
        nodes.into_iter().map(|(name, node)| (name.to_owned(), node)).chain(classifier()).collect();
    let length = Length::of(count, 32, 600);
    let feed = format!("{{ {of_text},\n             \"tokens\": \"words\", \"vocabulary\": {size} }}");
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(description)),
        ("nodes", object(&nodes)),
        ("data", length.data_of_classes(&[("x", feed), ("y", labels.feed.clone())], labels.column)),
        ("train", length.train(0.003, r#", "metrics": ["accuracy"]"#)),
    ];
    sections.extend(
        length.evaluate(r#", "metrics": ["accuracy"], "confusion": { "labels": "y", "predictions": "class" }"#),
    );
    let summary = vec![format!("{count} texts of {classes} classes, {words} of {size} words each")];
    Model { text: document(&sections), summary }
}
