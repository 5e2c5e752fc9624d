//! The best classes of an answer, with their labels: `--top` and `--labels`.

use std::path::{Path, PathBuf};

use meshtf::trainer::answers::{Answer, Meaning};
use meshtf_tensor::Tensor;
use meshtf_tensor::failure::counted;
use serde_json::{Map, Value, json};

use super::Trouble;
use super::inputs::read;
use super::paint::Paint;
use super::predictions::{csv_line, shortest, softmax};
use super::table::{number, table};

/// Most examples on a terminal.
const MAX_SHOWN: usize = 20;
/// How far the sum of probabilities may be from 1, since they are rounded.
const NEAR: f64 = 1e-3;

/// The best classes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct TopArgs {
    /// Print the K classes with the greatest values along the last axis, for each example, instead of all values: a table on a
    /// terminal, else .csv; --out writes them as .csv, .json or .jsonl
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub top: Option<u32>,
    /// Labels of the classes, in their order: a text with one in each line, or JSON, a list or an object with their numbers as
    /// keys (also as "id2label"); with --top [default: those of the training, if the graph's file has one]
    #[arg(long, value_name = "FILE", requires = "top")]
    labels: Option<PathBuf>,
}

/// The number of classes that are shown, and their labels.
#[derive(Clone, Debug)]
pub(super) struct Ranking {
    count: usize,
    labels: Vec<String>,
    /// The file of the labels.
    origin: String,
}

impl TopArgs {
    /// Reads the labels; `None` without --top.
    pub fn ranking(&self) -> Result<Option<Ranking>, Trouble> {
        let Some(count) = self.top else { return Ok(None) };
        let (mut labels, mut origin) = (Vec::new(), String::new());
        if let Some(path) = &self.labels {
            origin = format!("--labels {}", path.display());
            labels = labels_of(path).map_err(|why| Trouble::input(format!("{origin}: {why}")))?;
        }
        Ok(Some(Ranking { count: count as usize, labels, origin }))
    }

    /// The file that is read.
    pub fn file(&self) -> Option<&Path> {
        self.labels.as_deref()
    }
}

/// The labels of a file.
fn labels_of(path: &Path) -> Result<Vec<String>, String> {
    let bytes = read(path).map_err(|trouble| trouble.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    let text = text.trim_start_matches('\u{feff}');
    let lines = || text.lines().map(|line| line.trim().to_owned()).collect();
    if !text.trim_start().starts_with(['[', '{']) {
        return Ok(lines());
    }
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) if path.extension().is_some_and(|own| own == "json") => return Err(error.to_string()),
        // The first label begins so.
        Err(_) => return Ok(lines()),
    };
    let value = value.get("id2label").unwrap_or(&value);
    let label = |value: &Value| match value {
        Value::String(label) => Some(label.clone()),
        // Keras' list has a number of WordNet before each label.
        Value::Array(names) => names.last().and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let wrong = "expected a list of labels, or an object with the numbers of the classes, from 0, as keys";
    let labels: Option<Vec<String>> = match value {
        Value::Array(all) => all.iter().map(label).collect(),
        Value::Object(all) => (0..all.len()).map(|class| label(all.get(&class.to_string())?)).collect(),
        _ => None,
    };
    labels.ok_or_else(|| wrong.to_owned())
}

/// A class of one example.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    class: usize,
    /// The value as it was computed.
    value: f64,
    /// The probability, if the values are none.
    softmax: Option<f64>,
}

/// The best classes of each example, best first.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    fetch: String,
    examples: Vec<Vec<Entry>>,
    labels: Vec<String>,
    /// Whether the values are probabilities.
    are_probabilities: bool,
}

impl Ranking {
    /// Ranks the values of the only fetch, of which `answer` knows the meaning.
    pub fn rank(self, answers: &[Answer], values: &[Tensor]) -> Result<Ranked, Trouble> {
        let ([answer], [values]) = (answers, values) else {
            return Err(Trouble::input(format!(
                "--top ranks the values of one tensor, and {} are fetched: choose it with --fetch",
                answers.len()
            )));
        };
        let refuse = |why: String| Trouble::input(format!("--top: {} is {why}", answer.fetch));
        let numbers = values.numbers().ok_or_else(|| refuse(format!("{}, and no numbers", values.dtype())))?;
        let numbers: Vec<f64> = numbers.collect();
        let Some(&classes) = values.dims().last().filter(|classes| **classes > 0) else {
            return Err(refuse(format!("{}{}, and has no classes", values.dtype(), values.shape())));
        };
        let labels = if self.labels.is_empty() { answer.classes.clone() } else { self.labels };
        if !self.origin.is_empty() && labels.len() != classes {
            return Err(Trouble::input(format!(
                "{}: it has {}, and {} has {classes} classes",
                self.origin,
                counted(labels.len(), "label"),
                answer.fetch
            )));
        }
        let rows = || numbers.chunks_exact(classes);
        let is_distribution =
            |row: &[f64]| row.iter().all(|p| (0.0..=1.0).contains(p)) && (row.iter().sum::<f64>() - 1.0).abs() < NEAR;
        let are_probabilities = match answer.meaning {
            Meaning::Probabilities | Meaning::Probability => true,
            Meaning::Value => classes > 1 && rows().all(is_distribution),
            _ => false,
        };
        let examples = rows().map(|row| {
            let mut order: Vec<usize> = (0..row.len()).collect();
            // NaN comes last, and equals stay in their order.
            let key = |class: &usize| if row[*class].is_nan() { f64::NEG_INFINITY } else { row[*class] };
            order.sort_by(|a, b| key(b).total_cmp(&key(a)));
            order.truncate(self.count);
            let soft = (!are_probabilities).then(|| softmax(row));
            let entry = |class| Entry { class, value: row[class], softmax: soft.as_ref().map(|all| all[class]) };
            order.into_iter().map(entry).collect()
        });
        Ok(Ranked { fetch: answer.fetch.clone(), examples: examples.collect(), labels, are_probabilities })
    }
}

impl Ranked {
    /// The label of a class, if there is one.
    fn label(&self, class: usize) -> Option<&String> {
        self.labels.get(class)
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut columns = Vec::new();
        if self.examples.len() > 1 {
            columns.push("example");
        }
        columns.push("class");
        if !self.labels.is_empty() {
            columns.push("label");
        }
        match self.are_probabilities {
            true => columns.push("probability"),
            false => columns.extend(["value", "softmax"]),
        }
        columns
    }

    /// The cells of the first examples, with all digits or with few.
    fn rows(&self, most: usize, shown: impl Fn(f64) -> String) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for (example, entries) in self.examples.iter().enumerate().take(most) {
            for entry in entries {
                let mut cells = Vec::new();
                if self.examples.len() > 1 {
                    cells.push(example.to_string());
                }
                cells.push(entry.class.to_string());
                if !self.labels.is_empty() {
                    cells.push(self.label(entry.class).cloned().unwrap_or_default());
                }
                cells.push(shown(entry.value));
                cells.extend(entry.softmax.map(&shown));
                rows.push(cells);
            }
        }
        rows
    }

    /// The table of the first examples, and the number of those that are left out.
    pub fn table(&self) -> (String, usize) {
        let left = self.examples.len().saturating_sub(MAX_SHOWN);
        (table(Paint::stdout(), &self.columns(), self.rows(MAX_SHOWN, number)), left)
    }

    /// All of them as a table with commas.
    pub fn csv(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        csv_line(self.columns().into_iter().map(str::to_owned).collect(), &mut bytes);
        let exact = |value: f64| (value as f32).to_string();
        self.rows(usize::MAX, exact).into_iter().for_each(|row| csv_line(row, &mut bytes));
        bytes
    }

    /// The classes of one example.
    fn example(&self, entries: &[Entry]) -> Value {
        let short = |value: f64| json!(shortest(value));
        let entry = |entry: &Entry| {
            let mut members = Map::new();
            members.insert("class".to_owned(), json!(entry.class));
            if let Some(label) = self.label(entry.class) {
                members.insert("label".to_owned(), json!(label));
            }
            let name = if self.are_probabilities { "probability" } else { "value" };
            members.insert(name.to_owned(), short(entry.value));
            members.extend(entry.softmax.map(|p| ("softmax".to_owned(), short(p))));
            Value::Object(members)
        };
        entries.iter().map(entry).collect()
    }

    /// `{"y": [[{"class": 3, "label": "cat", "probability": 0.9}, …], …]}`.
    pub fn json(&self) -> Value {
        let all: Vec<Value> = self.examples.iter().map(|entries| self.example(entries)).collect();
        json!({ (self.fetch.clone()): all })
    }

    /// An object for each example, a line each.
    pub fn json_lines(&self) -> Vec<u8> {
        let line = |(example, entries): (usize, &Vec<Entry>)| {
            format!("{}\n", json!({ "example": example, "top": self.example(entries) }))
        };
        self.examples.iter().enumerate().map(line).collect::<String>().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use temp_dir::TempDir;

    use super::*;

    fn ranked(values: Tensor, labels: &[&str]) -> Result<Ranked, String> {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        let ranking = Ranking { count: 2, labels, origin: "--labels l.txt".to_owned() };
        ranking.rank(&[Answer::of_values("y")], &[values]).map_err(|trouble| trouble.to_string())
    }

    #[test]
    fn the_best_classes_are_listed_with_labels() {
        let logits = Tensor::from_vec([2, 3], vec![0f32, 2.0, 1.0, f32::NAN, -1.0, 3.0]);
        let ranked = ranked(logits, &["a", "b, c", "d"]).unwrap();
        // exp(2) / (1 + exp(1) + exp(2)) = 0.66524, exp(1) / … = 0.24473.
        let csv = String::from_utf8(ranked.csv()).unwrap();
        assert!(csv.starts_with("example,class,label,value,softmax\n0,1,\"b, c\",2,0.66524"), "{csv}");
        assert!(
            csv.contains("\n0,2,d,1,0.24472") && csv.contains("\n1,2,d,3,") && csv.contains("\n1,1,\"b, c\",-1,"),
            "{csv}"
        );
    }

    #[test]
    fn probabilities_are_shown_alone() {
        let ranked = Ranking { count: 5, labels: Vec::new(), origin: String::new() };
        let ranked = ranked.rank(&[Answer::of_values("y")], &[Tensor::vector(vec![0.25f32, 0.75])]).unwrap();
        assert_eq!(
            ranked.json(),
            json!({ "y": [[{ "class": 1, "probability": 0.75 }, { "class": 0, "probability": 0.25 }]] })
        );
        assert_eq!(String::from_utf8(ranked.csv()).unwrap(), "class,probability\n1,0.75\n0,0.25\n");
    }

    #[test]
    fn labels_are_read_from_text_and_json() {
        let folder = TempDir::new().unwrap();
        let read = |text: &str| {
            std::fs::write(folder.child("l"), text).unwrap();
            labels_of(&folder.child("l"))
        };
        for text in [
            "a\r\nb c\n",
            r#"["a", "b c"]"#,
            r#"{"1": ["n2", "b c"], "0": ["n1", "a"]}"#,
            r#"{"id2label": {"0": "a", "1": "b c"}}"#,
        ] {
            assert_eq!(read(text).unwrap(), ["a", "b c"], "{text}");
        }
        assert_eq!(read("[PAD]\n{x}\n").unwrap(), ["[PAD]", "{x}"]);
        assert!(read(r#"{"a": 0}"#).unwrap_err().contains("expected a list of labels"));
        assert_eq!(
            ranked(Tensor::vector(vec![1f32, 2.0]), &["a"]).unwrap_err(),
            "--labels l.txt: it has 1 label, and y has 2 classes"
        );
        assert!(ranked(Tensor::scalar(1f32), &["a"]).unwrap_err().contains("has no classes"));
    }
}
