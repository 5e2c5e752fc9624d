//! A model for a table: its columns are looked up in the file.

use std::io::Read;
use std::path::Path;

use meshtf_tensor::nearest::nearest;
use meshtf_train::data::{FilePart, SPREADSHEET, is_spreadsheet, kind_of};

use super::column::{Column, Form, MAX_CLASSES, Style};
use super::layout::{DELIMITERS, START, layout_members, layout_options, open, own_delimiter, scan};
use super::{Length, Model, classifier, document, listed, object, quoted};

/// The most different texts of a column that become one number each.
const MAX_CATEGORIES: usize = 64;
/// The most whole numbers that are classes and not amounts.
const MAX_NUMBERED: usize = 20;
/// Columns in a message.
const MAX_SHOWN: usize = 12;

/// A table that was looked at.
pub(super) struct Table {
    pub columns: Vec<Column>,
    pub lines: usize,
    /// Whether these are all of its lines.
    pub is_whole: bool,
    /// The character between its fields.
    delimiter: char,
    /// The options by which its lines are cut, as members of JSON after others.
    layout: String,
    /// That of its dates, unless they are of ISO 8601.
    pub date_format: String,
    /// Remarks for the user.
    pub remarks: Vec<String>,
}

impl Table {
    pub fn of(path: &Path, name: &str, kind: &str) -> Result<Table, String> {
        let file = FilePart { file: name.to_owned(), part: None };
        if !file.is_table() {
            return Err(not_a_table(path, kind));
        }
        let (options, mut remarks) = layout_options(path, &file)?;
        let mut columns: Vec<Column> = Vec::new();
        let lines = scan(path, &file, &options, &mut |names, fields| {
            if columns.is_empty() {
                columns = names.iter().map(|name| Column::new(name)).collect();
            }
            columns.iter_mut().zip(fields).for_each(|(column, field)| column.add(field));
            Ok(())
        })?;
        let delimiter = options.delimiter.unwrap_or(own_delimiter(&file));
        let form = Form::of(&columns);
        columns.iter_mut().for_each(|column| column.decide(form));
        let has_dates = columns.iter().any(Column::is_date);
        let format = form.format().filter(|_| has_dates);
        let date_format = format.map(|format| format!(", \"date_format\": {}", quoted(format))).unwrap_or_default();
        let layout = layout_members(&options);
        remarks.extend(lines.remarks);
        Ok(Table { columns, lines: lines.count, is_whole: lines.are_all, delimiter, layout, date_format, remarks })
    }

    /// Decides how numbers are written in the columns that a model takes, and in the one that it predicts; returns the options of
    /// both, as members of JSON after others. If the model takes that column, too, they are the same.
    pub fn divide(&mut self, target: usize, is_taken: bool) -> [String; 2] {
        let of_target = [&self.columns[target]];
        let others = self.columns.iter().enumerate().filter(|(place, _)| *place != target).map(|(_, column)| column);
        let others: Vec<&Column> = others.collect();
        let [style, own] = match is_taken {
            true => [Style::of(&others, &of_target, self.delimiter); 2],
            false => [Style::of(&others, &[], self.delimiter), Style::of(&of_target, &[], self.delimiter)],
        };
        for (place, column) in self.columns.iter_mut().enumerate() {
            column.read_in(if place == target { own } else { style });
        }
        [style, own].map(|style| format!("{}{}", self.layout, style.members()))
    }

    /// The place of a column.
    pub fn position(&self, name: &str) -> Result<usize, String> {
        let found = self.columns.iter().position(|column| column.name == name);
        found.ok_or_else(|| unknown(name, &self.columns))
    }
}

/// The error for a file that is no table by its name, with the name of one that looks like a table.
fn not_a_table(path: &Path, kind: &str) -> String {
    let is = format!("{kind} is a .csv, .tsv, .jsonl or .parquet file, perhaps compressed (.gz, .zst)");
    if path.is_dir() {
        return format!("this is a folder; {is}");
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if is_spreadsheet(&name) {
        return format!("{SPREADSHEET}; {is}");
    }
    let mut start = Vec::new();
    match open(path).and_then(|file| file.take(START).read_to_end(&mut start).map_err(|error| error.to_string())) {
        Err(why) => return why,
        Ok(_) if kind_of(&start) != "text" => return format!("this is {}; {is}", kind_of(&start)),
        Ok(_) => {}
    }
    let text = String::from_utf8_lossy(&start);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    // Each line of a table has the same separators, but for quoted ones.
    let count = |line: &str, mark: char| line.matches(mark).count();
    let marks = DELIMITERS.into_iter().chain([',']).filter(|&mark| count(first, mark) > 0);
    let mark = marks.filter(|&mark| count(first, mark) == count(second, mark)).max_by_key(|&mark| count(first, mark));
    let ending = match mark {
        _ if [first, second].iter().all(|line| line.trim_start().starts_with('{')) => "jsonl",
        Some('\t') => "tsv",
        Some(_) => "csv",
        None => return format!("this is text; {is}"),
    };
    format!("it looks like a table: let its name end in .{ending}; {is}")
}

/// The model of a table.
pub(super) fn model(path: &Path, name: &str, label: Option<&str>) -> Result<Model, String> {
    let mut table = Table::of(path, name, "a table")?;
    let last = table.columns.len().checked_sub(1).ok_or("it has no columns")?;
    let at = label.map_or(Ok(last), |label| table.position(label))?;
    let layouts = table.divide(at, false);
    let Table { columns, lines, is_whole, date_format, remarks, .. } = table;
    let target = &columns[at];
    let few = target.different.len() <= MAX_NUMBERED && target.different.len() * 5 <= lines;
    let is_class =
        (!target.is_number() && !target.is_date()) || (few && target.whole == target.filled()) || is_truth(target);
    if target.different.len() < 2 {
        let why = format!("column {} has one value in all lines; name another label with --label", target.name);
        return Err(why);
    }
    if target.is_date() || (is_class && target.different.len() > MAX_CLASSES) {
        let kind =
            if target.is_date() { "dates".to_owned() } else { format!("more than {MAX_CLASSES} different texts") };
        let why = format!("column {} has {kind}, which are no label; name another with --label", target.name);
        return Err(why);
    }

    let mut chosen = Chosen { date_format, left_out: remarks, ..Chosen::default() };
    for column in columns.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, column)| column) {
        chosen.add(column, is_whole);
    }
    if chosen.width == 0 {
        return Err("no column besides the label can be taken".to_owned());
    }
    Ok(written(name, target, is_class, lines, &chosen, &layouts))
}

/// The error for a label that is no column.
fn unknown(label: &str, columns: &[Column]) -> String {
    let names = || columns.iter().map(|column| column.name.as_str());
    // A number is near to any other of as many digits, and is not a misspelt one.
    let is_number = label.bytes().all(|byte| byte.is_ascii_digit());
    let hint = match nearest(label, names()).first() {
        Some(near) if !is_number => format!("did you mean {near}?"),
        _ => format!("there are {}", names().take(MAX_SHOWN).collect::<Vec<_>>().join(", ")),
    };
    format!("there is no column {label}; {hint}")
}

fn is_truth(column: &Column) -> bool {
    column.different.iter().all(|field| field.eq_ignore_ascii_case("true") || field.eq_ignore_ascii_case("false"))
}

/// The columns that the model takes.
#[derive(Default)]
struct Chosen<'c> {
    columns: Vec<&'c str>,
    categories: Vec<&'c str>,
    dates: Vec<&'c str>,
    /// The numbers that they become.
    width: usize,
    has_missing: bool,
    has_numbers: bool,
    date_format: String,
    /// The columns that are left out, and why; and other remarks.
    left_out: Vec<String>,
}

/// The numbers that a date becomes.
const OF_DATE: [&str; 4] = ["year", "month", "day_of_year", "day_of_week"];

impl<'c> Chosen<'c> {
    fn add(&mut self, column: &'c Column, is_whole: bool) {
        let name = column.name.as_str();
        let mut leave = |why: &str| self.left_out.push(format!("column {name} is left out: {why}"));
        if column.filled() == 0 {
            return leave("it is empty");
        }
        if column.is_count() {
            return leave("it counts the lines");
        }
        if column.is_number() {
            self.width += 1;
            self.has_numbers = true;
        } else if column.is_date() {
            self.dates.push(name);
            self.width += OF_DATE.len();
            self.has_numbers = true;
        } else if let Some(why) = column.remark() {
            return leave(&why);
        } else if !is_whole {
            return leave("it is text, and the file is too large to look up all of its values");
        } else if column.different.len() > MAX_CATEGORIES {
            return leave("it is text, and nearly each line has another");
        } else {
            self.categories.push(name);
            self.width += column.categories();
            self.columns.push(name);
            return;
        }
        self.has_missing |= column.missing > 0;
        self.columns.push(name);
    }

    /// The value of `x` in the section `data`.
    fn feed(&self, name: &str, layout: &str) -> String {
        let mut feed = format!("{{ \"file\": {}, \"columns\": {}", quoted(name), listed(self.columns.iter().copied()));
        let each = |names: &[&str], value: &str| {
            names.iter().map(|name| format!("{}: {value}", quoted(name))).collect::<Vec<_>>().join(", ")
        };
        if !self.categories.is_empty() {
            feed += &format!(",\n             \"categories\": {{ {} }}", each(&self.categories, "\"one_hot\""));
        }
        if !self.dates.is_empty() {
            let dates = each(&self.dates, &listed(OF_DATE));
            feed += &format!(",\n             \"dates\": {{ {dates} }}{}", self.date_format);
        }
        if self.has_missing {
            feed += ", \"missing\": \"median\"";
        }
        if self.has_numbers {
            feed += ", \"normalize\": \"standard\"";
        }
        format!("{feed}{layout} }}")
    }
}

fn written(name: &str, target: &Column, is_class: bool, lines: usize, chosen: &Chosen, layouts: &[String; 2]) -> Model {
    let [of_x, layout] = layouts;
    let (width, classes) = (chosen.width, target.different.len());
    let length = Length::of(lines, 32, 2000);
    let of_label = format!("{{ \"file\": {}, \"columns\": {}", quoted(name), listed([target.name.as_str()]));
    let missing = if target.missing > 0 { ", \"missing\": \"drop\"" } else { "" };
    let text = |text: String| quoted(&text);
    let takes = text(format!("{} of {name}, as {width} numbers a line.", counted(chosen.columns.len(), "column")));
    let mut nodes = vec![(
        "x".to_owned(),
        format!(
            "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"float32\", \"shape\": [null, {width}] }},\n           \
             \"description\": {takes} }}"
        ),
    )];
    let dtype = if is_class { "\"int32\", \"shape\": [null]" } else { "\"float32\", \"shape\": [null, 1]" };
    let label = match is_class {
        true => text(format!("The column {}: the number of its class, in the order of their names.", target.name)),
        false => text(format!("The column {}: 0 is its mean, and 1 a standard deviation above it.", target.name)),
    };
    nodes.push((
        "y".to_owned(),
        format!(
            "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": {dtype} }},\n           \"description\": {label} }}"
        ),
    ));
    let mut add = |name: &str, node: String| nodes.push((name.to_owned(), node));
    add("h1", r#"{ "layer": "dense", "inputs": ["x"], "units": 64, "activation": "relu", "description": "More units find more detail, and need more examples." }"#.to_owned());
    add("h2", r#"{ "layer": "dense", "inputs": ["h1"], "units": 32, "activation": "relu" }"#.to_owned());
    let (train, evaluate, feed, mut summary);
    if is_class {
        add(
            "logits",
            format!(
                r#"{{ "layer": "dense", "inputs": ["h2"], "units": {classes}, "description": "A number for each class; the greatest wins." }}"#
            ),
        );
        nodes.extend(classifier());
        train = length.train(0.003, r#", "metrics": ["accuracy"]"#);
        evaluate =
            length.evaluate(r#", "metrics": ["accuracy"], "confusion": { "labels": "y", "predictions": "class" }"#);
        feed = format!("{of_label}, \"classes\": \"auto\"{missing}{layout} }}");
        summary = vec![format!("{lines} lines: {width} numbers tell {classes} classes of {}", target.name)];
    } else {
        add(
            "out",
            r#"{ "layer": "dense", "inputs": ["h2"], "units": 1, "description": "The prediction." }"#.to_owned(),
        );
        add("squares", r#"{ "op": "SquaredDifference", "inputs": ["out", "y"] }"#.to_owned());
        add("loss", r#"{ "op": "Mean", "inputs": ["squares", [0, 1]], "description": "1 is the loss of always predicting the mean." }"#.to_owned());
        train = length.train(0.003, "");
        evaluate = length.evaluate("");
        feed = format!("{of_label}, \"normalize\": \"standard\"{missing}{layout} }}");
        summary = vec![format!("{lines} lines: {width} numbers predict {}", target.name)];
    }
    summary.extend(chosen.left_out.iter().cloned());
    let description =
        format!("{} {} by the other columns of {name}.", if is_class { "Tells" } else { "Predicts" }, target.name);
    let feeds = [("x", chosen.feed(name, of_x)), ("y", feed)];
    let data = if is_class { length.data_of_classes(&feeds, &target.name) } else { length.data(&feeds) };
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(&description)),
        ("nodes", object(&nodes)),
        ("data", data),
        ("train", train),
    ];
    sections.extend(evaluate);
    Model { text: document(&sections), summary }
}

fn counted(count: usize, what: &str) -> String {
    meshtf_tensor::failure::counted(count, what)
}
