//! A model for a series: it forecasts a column from a window of the lines before.

use std::collections::BTreeSet;
use std::path::Path;

use super::column::Column;
use super::table::Table;
use super::{Length, Model, document, listed, object, quoted};

/// Lines of a window, and the least of a shorter one.
const WINDOW: usize = 24;
const LEAST_WINDOW: usize = 2;
/// Windows in a series, at least: a shorter series has a shorter window.
const WINDOWS: usize = 10;
/// Years of a series from which the day of the year is of use.
const YEARS: u32 = 2;

/// The columns that a window has.
struct Inputs<'c> {
    columns: Vec<&'c str>,
    dates: Vec<(&'c str, Vec<&'static str>)>,
    /// The place of the forecast column among the numbers of a line.
    target: usize,
    /// The numbers of a line.
    width: usize,
    has_missing: bool,
    left_out: Vec<String>,
}

impl<'c> Inputs<'c> {
    fn of(columns: &'c [Column], target: usize) -> Inputs<'c> {
        let mut inputs = Inputs {
            columns: Vec::new(),
            dates: Vec::new(),
            target: 0,
            width: 0,
            has_missing: false,
            left_out: Vec::new(),
        };
        for (at, column) in columns.iter().enumerate() {
            let mut leave = |why: &str| inputs.left_out.push(format!("column {} is left out: {why}", column.name));
            if at == target {
                inputs.target = inputs.width;
            } else if column.filled() == 0 {
                leave("it is empty");
                continue;
            } else if column.is_count() {
                leave("it counts the lines");
                continue;
            } else if column.is_date() {
                match of_date(column) {
                    parts if parts.is_empty() => leave("its dates have no hour, day or year that recurs"),
                    parts => {
                        inputs.width += parts.len();
                        inputs.columns.push(&column.name);
                        inputs.dates.push((&column.name, parts));
                        inputs.has_missing |= column.missing > 0;
                    }
                }
                continue;
            } else if !column.is_number() {
                leave(&column.remark().unwrap_or_else(|| "it is text".to_owned()));
                continue;
            } else if column.different.len() == 1 {
                leave("it has one value in all lines");
                continue;
            }
            inputs.width += 1;
            inputs.columns.push(&column.name);
            inputs.has_missing |= column.missing > 0;
        }
        inputs
    }
}

/// The numbers of a date that recur within the series: one that does not has values in the held-out part that no training saw.
fn of_date(column: &Column) -> Vec<&'static str> {
    let Some((first, last)) = &column.ends else { return Vec::new() };
    let mut parts = Vec::new();
    // A date with a time: 2026-05-31T12:30.
    if first.len() > "2026-05-31".len() {
        parts.push("hour");
    }
    let days: BTreeSet<&str> = column.different.iter().filter_map(|date| date.get(.."2026-05-31".len())).collect();
    if days.len() >= 2 * 7 {
        parts.push("day_of_week");
    }
    let year = |date: &str| date.get(..4).and_then(|year| year.parse::<u32>().ok()).unwrap_or_default();
    if year(last).saturating_sub(year(first)) >= YEARS {
        parts.push("day_of_year");
    }
    parts
}

/// The model of a series.
pub(super) fn model(path: &Path, name: &str, label: Option<&str>) -> Result<Model, String> {
    let mut table = Table::of(path, name, "a series")?;
    let columns = &table.columns;
    let at = match label {
        Some(label) => table.position(label)?,
        None => columns
            .iter()
            .rposition(|column| column.is_number() && !column.is_count() && column.different.len() > 1)
            .ok_or_else(|| "it has no column of numbers that could be forecast; name one with --label".to_owned())?,
    };
    let [layout, _] = table.divide(at, true);
    let columns = &table.columns;
    let target = &columns[at];
    if !target.is_number() {
        return Err(format!("column {} is not one of numbers, so it cannot be forecast; name another", target.name));
    }
    if target.different.len() < 2 {
        return Err(format!("column {} has one value in all lines; name another with --label", target.name));
    }
    let backwards = columns.iter().filter(|column| column.is_date()).find(|column| {
        // Dates of this form have the order of their texts.
        column.ends.as_ref().is_some_and(|(first, last)| first > last)
    });
    if let Some(date) = backwards {
        let why = "the dates go back in time; sort the lines, the oldest first";
        return Err(format!("column {}: {why}", date.name));
    }
    let length = (table.lines / WINDOWS).min(WINDOW);
    if length < LEAST_WINDOW {
        let least = LEAST_WINDOW * WINDOWS;
        return Err(format!("it has {} lines; a forecast needs {least} or more", table.lines));
    }
    let inputs = Inputs::of(columns, at);
    Ok(written(name, &table, &layout, target, &inputs, length))
}

fn written(name: &str, table: &Table, layout: &str, target: &Column, inputs: &Inputs, length: usize) -> Model {
    let (width, lines) = (inputs.width, table.lines);
    let text = |text: String| quoted(&text);
    let of_x = text(format!("{length} lines of {name} in order, the last one now, of {width} numbers each."));
    let of_y = text(format!("The column {} a line later: 0 is its mean, 1 a standard deviation above.", target.name));
    let now = text(format!("The column {} in the last line of the window.", target.name));
    let last = length - 1;
    let node = |name: &str, node: String| (name.to_owned(), node);
    let nodes = [
        node(
            "x",
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"float32\", \"shape\": [null, {length}, {width}] }},\n           \
                 \"description\": {of_x} }}"
            ),
        ),
        node(
            "y",
            format!(
                "{{ \"op\": \"Placeholder\", \"attrs\": {{ \"dtype\": \"float32\", \"shape\": [null, 1] }},\n           \
                 \"description\": {of_y} }}"
            ),
        ),
        node("recent", format!(r#"{{ "op": "Slice", "inputs": ["x", [0, {last}, {}], [-1, 1, 1]] }}"#, inputs.target)),
        node("now", format!(r#"{{ "op": "Reshape", "inputs": ["recent", [-1, 1]], "description": {now} }}"#)),
        node(
            "h",
            r#"{ "layer": "lstm", "inputs": ["x"], "units": 32, "last": true, "description": "Remembers the window; more units find more detail, and need more lines." }"#.to_owned(),
        ),
        node("change", r#"{ "layer": "dense", "inputs": ["h"], "units": 1, "description": "The change from now on." }"#.to_owned()),
        node("out", r#"{ "op": "AddV2", "inputs": ["now", "change"], "description": "The forecast." }"#.to_owned()),
        node("squares", r#"{ "op": "SquaredDifference", "inputs": ["out", "y"] }"#.to_owned()),
        node("loss", r#"{ "op": "Mean", "inputs": ["squares", [0, 1]] }"#.to_owned()),
        node("unchanged", r#"{ "op": "SquaredDifference", "inputs": ["now", "y"] }"#.to_owned()),
        node(
            "last_value",
            r#"{ "op": "Mean", "inputs": ["unchanged", [0, 1]], "description": "The loss of predicting the last value: a model that has learned something is below it." }"#.to_owned(),
        ),
    ];
    let mut x = format!("{{ \"file\": {}, \"columns\": {}", quoted(name), listed(inputs.columns.iter().copied()));
    if !inputs.dates.is_empty() {
        let each =
            inputs.dates.iter().map(|(name, parts)| format!("{}: {}", quoted(name), listed(parts.iter().copied())));
        let each = each.collect::<Vec<_>>().join(", ");
        x += &format!(",\n             \"dates\": {{ {each} }}{}", table.date_format);
    }
    if inputs.has_missing {
        x += ", \"missing\": \"median\"";
    }
    x += &format!(
        ", \"normalize\": \"standard\",\n             \"window\": {{ \"length\": {length}, \"stride\": 1 }}{layout} }}"
    );
    let missing = if target.missing > 0 { ", \"missing\": \"median\"" } else { "" };
    let y = format!(
        "{{ \"file\": {}, \"columns\": {}{missing}, \"normalize\": \"standard\",\n             \
         \"window\": {{ \"length\": {length}, \"stride\": 1, \"ahead\": 1 }}{layout} }}",
        quoted(name),
        listed([target.name.as_str()])
    );
    let of_training = Length::of(lines - length, 32, 1500);
    let data = format!(
        "{{\n    \"feed\": {{\n      \"x\": {x},\n      \"y\": {y}\n    }},\n    \"batch\": {}, \"shuffle\": 1, \
         \"hold_out\": {{ \"last\": 0.2 }}\n  }}",
        of_training.batch
    );
    let description = format!("Forecasts the column {} of {name} from the {length} lines before.", target.name);
    let mut sections = vec![
        ("version", "1".to_owned()),
        ("description", quoted(&description)),
        ("nodes", object(&nodes)),
        ("data", data),
        ("train", of_training.train(0.005, "")),
    ];
    sections.extend(of_training.evaluate(r#", "metrics": ["last_value"]"#));
    let mut summary = vec![format!(
        "{lines} lines: {length} of them, of {width} number{}, forecast {}",
        if width == 1 { "" } else { "s" },
        target.name
    )];
    summary.extend(table.remarks.iter().chain(&inputs.left_out).cloned());
    Model { text: document(&sections), summary }
}
