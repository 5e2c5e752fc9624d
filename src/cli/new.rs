//! `meshtf new`: a model for given data, as a graph.json that can be trained.

mod column;
mod images;
mod layout;
mod lines;
mod series;
mod table;
mod words;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use meshtf_train::data::is_table;

use super::paint::mention;
use super::{Exit, Outcome, Trouble, output};

/// Write a model for a table, a series, images or text
///
/// Looks at the data, and writes a graph.json with layers, a loss and the sections data, train and evaluate, for `meshtf train`.
/// Edit it as you like: each layer and each placeholder has a description.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  meshtf new table houses.csv
  meshtf new table flowers.csv --label species -o flowers.json
  meshtf new series power.csv --label load
  meshtf new images photos             a folder with a folder for each class
  meshtf new text poems.txt            writes: a model of the next character
  meshtf new text reviews.csv          classes of a column of texts
  meshtf new text reviews              a folder with a folder for each class
  meshtf train model.json --local --checkpoint run1

A table's label is the last column unless --label names another. Its model
tells classes if the label is text or has few different whole numbers, and
numbers otherwise. A series is a table in the order of time, the oldest line
first; its model forecasts the last column of numbers, unless --label names
another, from the lines before.")]
pub struct Args {
    /// Kind of data
    kind: DataKind,
    /// Data: a .csv, .tsv, .jsonl or .parquet file, a folder of images or texts, or a .txt file
    #[arg(value_name = "FILE")]
    data: PathBuf,
    /// Column of a table or a series that the model predicts [default: the last one; for texts, the last other one]
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// File to write, in the folder of the data or above it
    #[arg(short, long, value_name = "FILE", default_value = "model.json")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DataKind {
    /// Lines with columns
    Table,
    /// Lines with columns, one for each moment
    Series,
    /// A folder with a folder of images for each class
    Images,
    /// A text, or texts with classes
    Text,
}

pub(super) fn new(args: Args) -> Outcome {
    let Args { kind, data, label, out } = args;
    if out.exists() {
        return Err(Trouble::input(format!("{} exists; name another file with --out", out.display())));
    }
    let is_table = is_table(&data.to_string_lossy());
    let has_columns = match kind {
        DataKind::Table | DataKind::Series => true,
        DataKind::Images => false,
        DataKind::Text => is_table,
    };
    if label.is_some() && !has_columns {
        return Err(Trouble::input("--label names a column of a table or a series"));
    }
    let name = name_from(&out, &data)?;
    let Model { text, summary } = match kind {
        DataKind::Table => table::model(&data, &name, label.as_deref()),
        DataKind::Series => series::model(&data, &name, label.as_deref()),
        DataKind::Images => images::model(&data, &name),
        DataKind::Text if data.is_dir() => words::of_folder(&data, &name),
        DataKind::Text if is_table => words::of_table(&data, &name, label.as_deref()),
        DataKind::Text => lines::model(&data, &name),
    }
    .map_err(|why| Trouble::input(format!("{}: {why}", data.display())))?;
    std::fs::write(&out, text).map_err(|error| Trouble::input(format!("{}: {error}", out.display())))?;
    for line in &summary {
        mention(line);
    }
    output::line(&out.display().to_string())?;
    Ok(Exit::Ok)
}

/// A new model: the text of its file, and lines about it.
struct Model {
    text: String,
    summary: Vec<String>,
}

/// The name of the data from the folder of the model, which must be that of the data or above it.
fn name_from(out: &Path, data: &Path) -> Result<String, Trouble> {
    let at = |path: &Path, error: std::io::Error| Trouble::input(format!("{}: {error}", path.display()));
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let full = folder.canonicalize().map_err(|error| at(folder, error))?;
    let place = data.canonicalize().map_err(|error| at(data, error))?;
    let below = place.strip_prefix(&full).ok().filter(|below| !below.as_os_str().is_empty());
    let Some(below) = below.and_then(Path::to_str) else {
        let beside = beside(data);
        let why = format!("a model names data below its own folder: write it there, with --out {}", beside.display());
        return Err(Trouble::input(format!("{}: {why}", data.display())));
    };
    Ok(below.to_owned())
}

/// A model's file in the folder that contains the data.
fn beside(data: &Path) -> PathBuf {
    match data.file_name() {
        Some(_) => data.parent().unwrap_or(Path::new("")).join("model.json"),
        // Such as `.` or `..`, whose parent has no name in the path.
        None if data == Path::new(".") => PathBuf::from("../model.json"),
        None => data.join("../model.json"),
    }
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A list of strings of JSON.
fn listed<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    let all: Vec<String> = texts.into_iter().map(quoted).collect();
    format!("[{}]", all.join(", "))
}

/// Sections of a file, each from its key and the text of its value.
fn document(sections: &[(&str, String)]) -> String {
    let all: Vec<String> = sections.iter().map(|(key, value)| format!("  \"{key}\": {value}")).collect();
    format!("{{\n{}\n}}\n", all.join(",\n"))
}

/// An object with a line for each member.
fn object(members: &[(String, String)]) -> String {
    let all: Vec<String> = members.iter().map(|(key, value)| format!("    {}: {value}", quoted(key))).collect();
    format!("{{\n{}\n  }}", all.join(",\n"))
}

/// The nodes of a classifier after its logits: the loss, the share of right answers, the class and the probabilities.
fn classifier() -> Vec<(String, String)> {
    let nodes = [
        ("losses", r#"{ "op": "SparseSoftmaxCrossEntropyWithLogits", "inputs": ["logits", "y"] }"#),
        ("loss", r#"{ "op": "Mean", "inputs": ["losses", 0] }"#),
        ("class", r#"{ "op": "ArgMax", "inputs": ["logits", 1], "attrs": { "output_type": "int32" } }"#),
        ("right", r#"{ "op": "Equal", "inputs": ["class", "y"] }"#),
        ("ones", r#"{ "op": "Cast", "inputs": ["right"], "attrs": { "DstT": "float32" } }"#),
        (
            "accuracy",
            r#"{ "op": "Mean", "inputs": ["ones", 0], "description": "The share of examples whose class is right." }"#,
        ),
        (
            "probabilities",
            r#"{ "op": "Softmax", "inputs": ["logits"], "description": "For `meshtf run … --fetch probabilities`." }"#,
        ),
    ];
    nodes.map(|(name, node)| (name.to_owned(), node.to_owned())).to_vec()
}

/// The length of a training on so many examples.
struct Length {
    batch: usize,
    epochs: usize,
    /// Whether some examples are held out and evaluated.
    evaluates: bool,
}

impl Length {
    /// About this number of steps, in batches of at most `most` examples.
    fn of(examples: usize, most: usize, steps: usize) -> Length {
        let evaluates = examples >= 10;
        let trained = if evaluates { examples - examples / 5 } else { examples };
        let batch = (trained / 4).clamp(1, most);
        let epochs = (steps * batch).div_ceil(trained.max(1)).clamp(1, 200);
        Length { batch, epochs, evaluates }
    }

    /// The section `data` for these feeds, each a placeholder and the text of its file.
    fn data(&self, feeds: &[(&str, String)]) -> String {
        self.data_held(feeds, "0.2")
    }

    /// As [`data`](Length::data), for a classifier: the held-out part has the same share of each class, a value of a column or of
    /// a placeholder.
    fn data_of_classes(&self, feeds: &[(&str, String)], classes: &str) -> String {
        self.data_held(feeds, &format!("{{ \"share\": 0.2, \"stratify\": {} }}", quoted(classes)))
    }

    /// As [`data`](Length::data), with this choice of the examples that are held out, a fifth.
    fn data_held(&self, feeds: &[(&str, String)], held: &str) -> String {
        let feeds: Vec<String> = feeds.iter().map(|(name, file)| format!("      {}: {file}", quoted(name))).collect();
        let hold_out = if self.evaluates { format!(", \"hold_out\": {held}") } else { String::new() };
        format!(
            "{{\n    \"feed\": {{\n{}\n    }},\n    \"batch\": {}, \"shuffle\": 1{hold_out}\n  }}",
            feeds.join(",\n"),
            self.batch
        )
    }

    /// The section `train` at this rate.
    fn train(&self, rate: f64, metrics: &str) -> String {
        let epochs = self.epochs;
        format!(r#"{{ "loss": "loss", "optimizer": "adam", "rate": {rate}, "epochs": {epochs}{metrics} }}"#)
    }

    /// The section `evaluate`, if examples are held out.
    fn evaluate(&self, more: &str) -> Option<(&'static str, String)> {
        let patience = (self.epochs / 4).max(5);
        self.evaluates.then(|| ("evaluate", format!(r#"{{ "epochs": 1, "patience": {patience}{more} }}"#)))
    }
}

#[cfg(test)]
mod tests;
