//! A model for a table: its columns are looked up in the file.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use meshtf_tensor::failure::Failure;
use meshtf_tensor::nearest::nearest;
use meshtf_train::data::{
    FilePart, Layout, LayoutOptions, SPREADSHEET, column_name, is_missing, is_parquet, is_spreadsheet, kind_of,
};

use super::{Length, Model, classifier, document, listed, object, quoted};
use crate::trainer::DataFile;

/// Bytes of a table or of texts that are read; of more, the rest is not looked at.
pub(super) const MAX_READ: u64 = 256 << 20;
/// The most different texts of a column that become one number each.
const MAX_CATEGORIES: usize = 64;
/// The most classes.
const MAX_CLASSES: usize = 1000;
/// The most whole numbers that are classes and not amounts.
const MAX_NUMBERED: usize = 20;
/// Bytes in which the delimiter and the names are looked up.
const START: u64 = 1 << 16;
/// The separators of fields that are tried, besides a comma.
const DELIMITERS: [char; 3] = [';', '\t', '|'];
/// Columns in a message.
const MAX_SHOWN: usize = 12;

/// The kinds of fields of a column.
#[derive(Debug, Default)]
pub(super) struct Column {
    pub name: String,
    numbers: usize,
    /// Numbers with a comma before the fraction.
    commas: usize,
    whole: usize,
    dates: usize,
    texts: usize,
    pub missing: usize,
    /// The different fields, up to one more than there may be classes.
    pub different: BTreeSet<String>,
    /// Whether each field is the one before plus 1.
    counts: bool,
    last: Option<i64>,
    /// The first and the last field that are not missing.
    pub ends: Option<(String, String)>,
}

impl Column {
    fn add(&mut self, field: &str) {
        if is_missing(field) {
            self.missing += 1;
            return;
        }
        let number = field.strip_suffix('%').map_or(field, str::trim_end).parse::<f64>();
        let is_truth = field.eq_ignore_ascii_case("true") || field.eq_ignore_ascii_case("false");
        match number {
            Ok(number) if number.is_finite() => self.numbers += 1,
            _ if is_truth => self.numbers += 1,
            _ if is_with_comma(field) => self.commas += 1,
            _ if is_date(field) => self.dates += 1,
            _ => self.texts += 1,
        }
        let whole = field.parse::<i64>().ok();
        self.whole += usize::from(whole.is_some());
        self.counts &= match (self.last, whole) {
            (Some(last), Some(own)) => last.checked_add(1) == Some(own),
            (None, own) => own.is_some(),
            _ => false,
        };
        self.last = whole;
        match &mut self.ends {
            Some((_, last)) => field.clone_into(last),
            None => self.ends = Some((field.to_owned(), field.to_owned())),
        }
        if self.different.len() <= MAX_CLASSES && !self.different.contains(field) {
            self.different.insert(field.to_owned());
        }
    }

    /// Whether it only numbers the lines.
    pub fn is_count(&self) -> bool {
        self.counts && self.filled() > 2
    }

    pub fn filled(&self) -> usize {
        self.numbers + self.commas + self.dates + self.texts
    }

    pub fn is_number(&self) -> bool {
        self.filled() > 0 && self.numbers + self.commas == self.filled()
    }

    pub fn is_date(&self) -> bool {
        self.filled() > 0 && self.dates == self.filled()
    }

    /// The categories of a column of text, with that of missing fields.
    fn categories(&self) -> usize {
        self.different.len() + usize::from(self.missing > 0)
    }
}

/// `1,5` or `-12,25`, as numbers are written where a comma stands before the fraction.
fn is_with_comma(field: &str) -> bool {
    field.split_once(',').is_some_and(|(whole, rest)| {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits(whole.strip_prefix('-').unwrap_or(whole)) && digits(rest)
    })
}

/// A date as the section `data` reads it without a form: 2026-05-31, perhaps with a time.
fn is_date(field: &str) -> bool {
    let bytes = field.as_bytes();
    let is_day = bytes.len() >= 10
        && bytes[..10].iter().enumerate().all(|(i, byte)| match i {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    is_day && bytes.get(10).is_none_or(|byte| matches!(byte, b' ' | b'T'))
}

/// The text of the file.
fn open(path: &Path) -> Result<Box<dyn Read>, String> {
    DataFile::table(path).map_err(|failure| failure.message)
}

/// The options by which the lines are cut, from the beginning of the file.
pub(super) fn layout_options(path: &Path, file: &FilePart) -> Result<LayoutOptions, String> {
    let mut options = LayoutOptions::default();
    if file.ends_with(".jsonl") || is_parquet(&file.file) {
        return Ok(options);
    }
    let mut line = Vec::new();
    let mut start = BufReader::new(open(path)?.take(START));
    start.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
    let line = String::from_utf8_lossy(&line);
    let line = line.trim_start_matches('\u{feff}').trim_end();
    let own = if file.ends_with(".tsv") { '\t' } else { ',' };
    let count = |mark: char| line.matches(mark).count();
    let other = DELIMITERS.into_iter().filter(|mark| *mark != own).max_by_key(|mark| count(*mark));
    let delimiter = match other.filter(|mark| count(*mark) > count(own)) {
        Some(mark) => {
            options.delimiter = Some(mark);
            mark
        }
        None => own,
    };
    let is_value = |field: &str| {
        let field = field.trim().trim_matches('"');
        field.parse::<f64>().is_ok() || is_with_comma(field) || is_date(field)
    };
    options.no_header = !line.is_empty() && line.split(delimiter).all(is_value);
    Ok(options)
}

/// These options as members of JSON after others.
pub(super) fn layout_members(options: &LayoutOptions) -> String {
    let mut members = String::new();
    if let Some(mark) = options.delimiter {
        members += &format!(", \"delimiter\": {}", quoted(&mark.to_string()));
    }
    if options.no_header {
        members += ", \"header\": false";
    }
    members
}

/// Takes the names of columns and the fields of a line.
pub(super) type Each<'e> = dyn FnMut(&[String], &[&str]) -> Result<(), Failure> + 'e;

/// Passes on the names and the fields of each line. Returns the number of lines, and whether these are all.
pub(super) fn scan(
    path: &Path,
    file: &FilePart,
    options: &LayoutOptions,
    each: &mut Each<'_>,
) -> Result<(usize, bool), String> {
    let layout = Layout::of(file, options).map_err(|failure| failure.message)?;
    let (mut lines, mut is_cut) = (0, false);
    let scanned = layout.scan(BufReader::new(open(path)?), &mut |record| {
        if record.begin > MAX_READ {
            is_cut = true;
            return Err(Failure::invalid("enough was read"));
        }
        lines += 1;
        // Nested columns cannot be taken.
        let is_field = |(name, _): &(&String, &&str)| column_name(name).1.is_none();
        if record.names.iter().all(|name| column_name(name).1.is_none()) {
            return each(record.names, record.fields);
        }
        let taken = record.names.iter().zip(record.fields).filter(is_field);
        let (names, fields): (Vec<String>, Vec<&str>) = taken.map(|(name, field)| (name.clone(), *field)).unzip();
        each(&names, &fields)
    });
    match scanned {
        Err(failure) if !is_cut => Err(failure.message),
        _ => Ok((lines, !is_cut)),
    }
}

/// A table that was looked at.
pub(super) struct Table {
    pub columns: Vec<Column>,
    pub lines: usize,
    /// Whether these are all of its lines.
    pub is_whole: bool,
    /// The options by which its lines are cut, as members of JSON after others.
    pub layout: String,
}

impl Table {
    pub fn of(path: &Path, name: &str, kind: &str) -> Result<Table, String> {
        let file = FilePart { file: name.to_owned(), part: None };
        if !file.is_table() {
            return Err(not_a_table(path, kind));
        }
        let options = layout_options(path, &file)?;
        let mut columns: Vec<Column> = Vec::new();
        let (lines, is_whole) = scan(path, &file, &options, &mut |names, fields| {
            if columns.is_empty() {
                let column = |name: &String| Column { name: name.clone(), counts: true, ..Column::default() };
                columns = names.iter().map(column).collect();
            }
            columns.iter_mut().zip(fields).for_each(|(column, field)| column.add(field));
            Ok(())
        })?;
        let mut layout = layout_members(&options);
        if columns.iter().any(|column| column.commas > 0 && column.is_number()) {
            layout += ", \"decimal\": \",\"";
        }
        Ok(Table { columns, lines, is_whole, layout })
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
    let table = Table::of(path, name, "a table")?;
    let last = table.columns.len().checked_sub(1).ok_or("it has no columns")?;
    let at = label.map_or(Ok(last), |label| table.position(label))?;
    let Table { columns, lines, is_whole, layout } = table;
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

    let mut chosen = Chosen::default();
    for column in columns.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, column)| column) {
        chosen.add(column, is_whole);
    }
    if chosen.width == 0 {
        return Err("no column besides the label can be taken".to_owned());
    }
    Ok(written(name, target, is_class, lines, &chosen, &layout))
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
    /// The columns that are left out, and why.
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
            feed += &format!(",\n             \"dates\": {{ {} }}", each(&self.dates, &listed(OF_DATE)));
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

fn written(name: &str, target: &Column, is_class: bool, lines: usize, chosen: &Chosen, layout: &str) -> Model {
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
    let feeds = [("x", chosen.feed(name, layout)), ("y", feed)];
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
