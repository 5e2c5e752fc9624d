//! The options of a table in a file of the section `data`.

use meshtf_tensor::json::{Fault, Kind, Member, Path, Value};

use super::{Read, count, list, names, number, one_of, unknown, whole};
use crate::data::{Category, ClassWeights, Classes, DatePart, LayoutOptions, Missing, Normalize, TableOptions, Window};

/// The keys of the options.
pub(super) const KEYS: &[&str] = &[
    "delimiter",
    "header",
    "skip",
    "decimal",
    "thousands",
    "missing",
    "missing_values",
    "classes",
    "categories",
    "dates",
    "date_format",
    "normalize",
    "class_weights",
    "window",
];

/// Reads an option; `false` if the key is none.
pub(super) fn option(options: &mut TableOptions, key: &str, value: &Value, path: Path) -> Read<bool> {
    let LayoutOptions { delimiter, no_header, skip } = &mut options.layout;
    match key {
        "delimiter" => *delimiter = Some(letter(value, path)?),
        "header" => *no_header = !truth(value, path)?,
        "skip" => *skip = whole(value, path)? as usize,
        "decimal" => options.decimal = Some(letter(value, path)?),
        "thousands" => options.thousands = Some(letter(value, path)?),
        "missing" => options.missing = Some(missing(value, path)?),
        "missing_values" => options.missing_values = names(value, path)?,
        "classes" => options.classes = Some(classes(value, path)?),
        "categories" => options.categories = by_column(value, path, category)?,
        "dates" => options.dates = by_column(value, path, dates)?,
        "date_format" => options.date_format = Some(date_format(value, path)?),
        "normalize" => options.normalize = normalize(value, path)?,
        "class_weights" => options.class_weights = Some(class_weights(value, path)?),
        "window" => options.window = Some(window(value, path)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Columns by name or by number, or one of them.
pub(super) fn columns(value: &Value, path: Path) -> Read<Vec<String>> {
    if let Kind::String(name) = &value.kind {
        return Ok(vec![name.to_string()]);
    }
    if matches!(value.kind, Kind::Number(_)) {
        return Ok(vec![column(value, path)?]);
    }
    list(value, path, column)
}

/// A column by its name, or by its number in a table without names.
pub(super) fn column(value: &Value, path: Path) -> Read<String> {
    match &value.kind {
        Kind::Number(_) => whole(value, path).map(|number| number.to_string()),
        _ => value.text(path).map(str::to_owned),
    }
}

fn letter(value: &Value, path: Path) -> Read<char> {
    let text = value.text(path)?;
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => Ok(letter),
        _ => Err(Fault::content(value, path, format!("{text:?} is not one character, such as \";\" or \"\\t\""))),
    }
}

fn truth(value: &Value, path: Path) -> Read<bool> {
    match value.kind {
        Kind::Bool(truth) => Ok(truth),
        _ => Err(Fault::content(value, path, "expected true or false")),
    }
}

fn missing(value: &Value, path: Path) -> Read<Missing> {
    let Kind::String(text) = &value.kind else { return number(value, path).map(Missing::Value) };
    match &**text {
        "drop" => Ok(Missing::Drop),
        "mean" => Ok(Missing::Mean),
        "median" => Ok(Missing::Median),
        _ => Err(Fault::content(value, path, "expected \"drop\", \"mean\", \"median\" or a number")),
    }
}

fn classes(value: &Value, path: Path) -> Read<Classes> {
    match &value.kind {
        Kind::String(text) if &**text == "auto" => Ok(Classes::Auto),
        Kind::List(_) => columns(value, path).map(Classes::Listed),
        _ => Err(Fault::content(value, path, "the classes of a column are \"auto\" or a list of labels")),
    }
}

fn by_column<T>(value: &Value, path: Path, read: impl Fn(&Value, Path) -> Read<T>) -> Read<Vec<(String, T)>> {
    let members = value.object(path, "expected an object by the names of columns")?;
    members.iter().map(|Member { key, value, .. }| Ok((key.to_string(), read(value, path.key(key))?))).collect()
}

fn category(value: &Value, path: Path) -> Read<Category> {
    let wrong = || Fault::content(value, path, "expected \"one_hot\", \"ids\" or {\"hash\": NUMBER}");
    match &value.kind {
        Kind::String(text) if &**text == "one_hot" => Ok(Category::OneHot),
        Kind::String(text) if &**text == "ids" => Ok(Category::Ids),
        Kind::Object(members) => match &members[..] {
            [Member { key, value, .. }] if &**key == "hash" => count(value, path.key("hash")).map(Category::Hash),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

fn dates(value: &Value, path: Path) -> Read<Vec<DatePart>> {
    list(value, path, |item, path| one_of(&DatePart::NAMES, item, path))
}

/// A form that chrono can read.
fn date_format(value: &Value, path: Path) -> Read<String> {
    let text = value.text(path)?;
    let is_valid = chrono::format::StrftimeItems::new(text).all(|item| item != chrono::format::Item::Error);
    match is_valid {
        true => Ok(text.to_owned()),
        false => Err(Fault::content(value, path, format!("{text:?} is not the form of a date, such as \"%d.%m.%Y\""))),
    }
}

fn normalize(value: &Value, path: Path) -> Read<Vec<(Option<String>, Normalize)>> {
    let one = |value: &Value, path: Path| match value.text(path)? {
        "standard" => Ok(Normalize::Standard),
        "minmax" => Ok(Normalize::MinMax),
        _ => Err(Fault::content(value, path, "expected \"standard\" or \"minmax\"")),
    };
    match &value.kind {
        Kind::Object(_) => {
            let all = by_column(value, path, one)?;
            Ok(all.into_iter().map(|(name, normalize)| (Some(name), normalize)).collect())
        }
        _ => Ok(vec![(None, one(value, path)?)]),
    }
}

fn class_weights(value: &Value, path: Path) -> Read<ClassWeights> {
    match &value.kind {
        Kind::String(text) if &**text == "balanced" => Ok(ClassWeights::Balanced),
        Kind::Object(_) => by_column(value, path, weight).map(ClassWeights::Listed),
        _ => Err(Fault::content(value, path, "expected \"balanced\" or an object of weights by class")),
    }
}

fn weight(value: &Value, path: Path) -> Read<f64> {
    let weight = number(value, path)?;
    match weight.is_finite() && weight >= 0.0 {
        true => Ok(weight),
        false => Err(Fault::content(value, path, format!("the weight is {weight}; expected a number of at least 0"))),
    }
}

/// Most rows of a window.
const MAX_ROWS: u64 = 1 << 24;

fn window(value: &Value, path: Path) -> Read<Window> {
    let rows = |value: &Value, path: Path| {
        let rows = count(value, path)?;
        match rows <= MAX_ROWS {
            true => Ok(rows as usize),
            false => {
                Err(Fault::content(value, path, format!("{rows} rows are more than {MAX_ROWS}, which is the limit")))
            }
        }
    };
    let (mut length, mut window) = (None, Window { length: 0, ahead: None, is_range: false, stride: 1 });
    for Member { key, at, value } in value.object(path, "a window is {\"length\", \"ahead\", \"stride\"}")? {
        let path = path.key(key);
        match &**key {
            "length" => length = Some(rows(value, path)?),
            "stride" => window.stride = rows(value, path)?,
            "ahead" => {
                let ends = match &value.kind {
                    Kind::List(_) => list(value, path, rows)?,
                    _ => vec![rows(value, path)?],
                };
                (window.ahead, window.is_range) = match ends[..] {
                    [row] => (Some((row, row)), matches!(value.kind, Kind::List(_))),
                    [first, last] if first <= last => (Some((first, last)), true),
                    _ => {
                        let why = "expected the number of a row after the window, from 1, or the first and the last of several";
                        return Err(Fault::content(value, path, why));
                    }
                };
            }
            _ => return Err(unknown(key, *at, path, &["length", "ahead", "stride"])),
        }
    }
    window.length = length.ok_or_else(|| Fault::content(value, path, "\"length\" is missing: the rows of a window"))?;
    Ok(window)
}
