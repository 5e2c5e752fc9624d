//! How the lines of a table are cut into fields, and their fields.

use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::path::Path;

use meshtf::trainer::DataFile;
use meshtf_tensor::failure::Failure;
use meshtf_train::data::{FilePart, Layout, LayoutOptions, column_name, is_parquet};

use super::column::{is_amount, is_value};
use super::quoted;

/// Bytes of a table or of texts that are read; of more, the rest is not looked at.
pub(super) const MAX_READ: u64 = 256 << 20;
/// Bytes in which the delimiter and the names are looked up.
pub(super) const START: u64 = 1 << 16;
/// Lines that are compared with the first one, to find out whether it has names.
const MAX_COMPARED: usize = 200;
/// Most remarks on keys of JSON that are no columns.
const MAX_OTHERS: usize = 8;
/// The separators of fields that are tried, besides a comma.
pub(super) const DELIMITERS: [char; 3] = [';', '\t', '|'];

/// The text of the file.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, String> {
    DataFile::table(path).map_err(|failure| failure.message)
}

/// The options by which the lines are cut, from the beginning of the file; and remarks on them.
pub(super) fn layout_options(path: &Path, file: &FilePart) -> Result<(LayoutOptions, Vec<String>), String> {
    let mut options = LayoutOptions::default();
    if file.ends_with(".jsonl") || is_parquet(&file.file) {
        return Ok((options, Vec::new()));
    }
    let mut start = Vec::new();
    open(path)?.take(START).read_to_end(&mut start).map_err(|error| error.to_string())?;
    // The last line may be cut off.
    if start.len() as u64 == START
        && let Some(end) = start.iter().rposition(|byte| *byte == b'\n')
    {
        start.truncate(end + 1);
    }
    let text = String::from_utf8_lossy(&start);
    let text = text.trim_start_matches('\u{feff}');
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let own = own_delimiter(file);
    let count = |mark: char| line.matches(mark).count();
    let other = DELIMITERS.into_iter().filter(|mark| *mark != own).max_by_key(|mark| count(*mark));
    options.delimiter = other.filter(|mark| count(*mark) > count(own));
    let (no_header, remark) = header(&first_lines(&start, file, &options));
    options.no_header = no_header;
    Ok((options, remark.into_iter().collect()))
}

/// The separator of fields in a file without options.
pub(super) fn own_delimiter(file: &FilePart) -> char {
    if file.ends_with(".tsv") { '\t' } else { ',' }
}

/// The fields of the first lines.
fn first_lines(start: &[u8], file: &FilePart, options: &LayoutOptions) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    let options = LayoutOptions { no_header: true, ..options.clone() };
    if let Ok(layout) = Layout::of(file, &options) {
        // A fault of the text is reported where all of it is read.
        let _ = layout.scan(start, &mut |record| {
            lines.push(record.fields.iter().map(|&field| field.to_owned()).collect());
            match lines.len() > MAX_COMPARED {
                true => Err(Failure::invalid("enough was read")),
                false => Ok(()),
            }
        });
    }
    lines
}

/// Whether the first of these lines is one of values, and a remark for the user.
fn header(lines: &[Vec<String>]) -> (bool, Option<String>) {
    let Some((first, others)) = lines.split_first() else { return (false, None) };
    let values: Vec<&str> = first.iter().map(String::as_str).filter(|field| is_value(field)).collect();
    if values.is_empty() {
        return (false, None);
    }
    let mut seen = HashSet::new();
    let has_twins = !first.iter().all(|field| seen.insert(field));
    // A column may be named by a year or a date, but hardly by another number.
    let has_amount = values.iter().any(|field| is_amount(field) && field.parse::<u64>().is_err());
    let recurs = |(place, field): (usize, &String)| {
        !field.is_empty() && !is_value(field) && others.iter().any(|other| other.get(place) == Some(field))
    };
    if values.len() == first.len() || has_twins || has_amount || first.iter().enumerate().any(recurs) {
        let last = first.len() - 1;
        return (true, Some(format!("line 1 has values and no names: the columns are 0 to {last}, \"header\": false")));
    }
    let remark = format!(
        "line 1 is taken for the names of the columns, {} among them; if it has values, state \"header\": false",
        values[0]
    );
    (false, Some(remark))
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

/// A table whose lines were read.
pub(super) struct Lines {
    pub count: usize,
    /// Whether these are all.
    pub are_all: bool,
    /// Remarks on columns that cannot be taken.
    pub remarks: Vec<String>,
}

/// Passes on the names and the fields of each line.
pub(super) fn scan(
    path: &Path,
    file: &FilePart,
    options: &LayoutOptions,
    each: &mut Each<'_>,
) -> Result<Lines, String> {
    let layout = Layout::of(file, options).map_err(|failure| failure.message)?;
    let mut lines = Lines { count: 0, are_all: true, remarks: Vec::new() };
    let mut others = HashSet::new();
    let scanned = layout.scan(BufReader::new(open(path)?), &mut |record| {
        if record.begin > MAX_READ {
            lines.are_all = false;
            return Err(Failure::invalid("enough was read"));
        }
        lines.count += 1;
        if let Some(key) = record.other
            && others.len() < MAX_OTHERS
            && others.insert(key.to_owned())
        {
            let why = format!("it occurs from line {} on, and in none of the first 4 MiB", record.line);
            lines.remarks.push(format!("column {key} is left out: {why}"));
        }
        // Nested columns cannot be taken.
        let barred = |name: &String| column_name(name).1.is_some();
        if !record.names.iter().any(barred) {
            return each(record.names, record.fields);
        }
        if lines.count == 1 {
            let remark = |name: &String| match column_name(name) {
                (name, Some(is)) => Some(format!("column {name} is left out: it {is}")),
                _ => None,
            };
            lines.remarks.extend(record.names.iter().filter_map(remark));
        }
        let taken = record.names.iter().zip(record.fields).filter(|(name, _)| !barred(name));
        let (names, fields): (Vec<String>, Vec<&str>) = taken.map(|(name, field)| (name.clone(), *field)).unzip();
        each(&names, &fields)
    });
    match scanned {
        Err(failure) if lines.are_all => Err(failure.message),
        _ => Ok(lines),
    }
}
