//! The table that a bench prints.

use std::fmt;

use comfy_table::{Table, presets};

pub struct Report {
    baseline: &'static str,
    rows: Vec<[String; 5]>,
}

impl Report {
    /// A table whose third column is headed `baseline`.
    pub fn new(baseline: &'static str) -> Self {
        Report { baseline, rows: Vec::new() }
    }

    /// The name of a measurement, its figure, the baseline's, and their ratio; `aim` is the project's target.
    pub fn row(&mut self, what: &str, figure: String, baseline: String, ratio: Option<f64>, aim: &str) {
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        eprintln!("measured: {what}: {figure}");
        self.rows.push([what.to_owned(), figure, baseline, ratio, aim.to_owned()]);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(["what", "meshtf", self.baseline, "ratio", "aim"]);
        for row in &self.rows {
            table.add_row(row);
        }
        writeln!(f, "{table}")
    }
}
