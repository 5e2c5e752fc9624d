//! The columns of a table that a placeholder takes, and the numbers that their fields become.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meshtf_tensor::failure::{Failure, Result};
use meshtf_tensor::nearest::nearest;

use super::dates::{date, number_of};
use super::{Category, Classes, DatePart, Fit, TableOptions, column_name};

/// Names of columns in a message.
const MAX_NAMES: usize = 12;

/// Whether a field is missing in any table: empty, NA, NaN or null.
pub fn is_missing(field: &str) -> bool {
    field.is_empty() || field == "NA" || field.eq_ignore_ascii_case("nan") || field.eq_ignore_ascii_case("null")
}

/// The columns that are selected, by name, by number from 0, or as a range of either (`a..d`, the last one included).
///
/// # Errors
/// InvalidArgument for a column that does not exist, or cannot be taken.
pub fn selected(names: &[String], wanted: &[String]) -> Result<Vec<usize>> {
    let places = located(names, wanted)?;
    check_taken(names, &places)?;
    Ok(places)
}

/// Refuses columns that are no fields of a table.
pub(super) fn check_taken(names: &[String], places: &[usize]) -> Result<()> {
    let mut barred = places.iter().map(|&place| column_name(&names[place]));
    match barred.find_map(|(name, is)| Some((name, is?))) {
        None => Ok(()),
        Some((name, is)) => Err(Failure::invalid(format!(
            "column {name} {is}; the fields of a table are numbers, texts, dates, or true and false: name the columns to take in \
             \"columns\", or this one in \"except\""
        ))),
    }
}

/// As [`selected`], also columns that cannot be taken.
pub(super) fn located(names: &[String], wanted: &[String]) -> Result<Vec<usize>> {
    let find = |text: &str| {
        let by_number = || text.parse::<usize>().ok().filter(|number| *number < names.len());
        names.iter().position(|name| column_name(name).0 == text).or_else(by_number)
    };
    let missing = |text: &str| {
        let names: Vec<String> = names.iter().map(|name| visible(column_name(name).0)).collect();
        // A number is near to any other of as many digits, and is not a misspelt one.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let near = if is_number { Vec::new() } else { nearest(text, names.iter().map(String::as_str)) };
        let more = names.len().saturating_sub(MAX_NAMES);
        let hint = match (near.first(), &names[..]) {
            (Some(near), _) => format!("; did you mean {near}?"),
            (None, [only]) if only.contains([';', '\t', '|']) => {
                format!("; the only one is {only:.60}: say which character separates them with \"delimiter\"")
            }
            (None, _) if more > 0 => format!("; there are {} and {more} more", names[..MAX_NAMES].join(", ")),
            (None, _) => format!("; there are {}", names.join(", ")),
        };
        Failure::invalid(format!("there is no column {text}{hint}"))
    };
    let mut places = Vec::with_capacity(wanted.len());
    for text in wanted {
        if let Some(place) = find(text) {
            places.push(place);
            continue;
        }
        let (first, last) = text.split_once("..").ok_or_else(|| missing(text))?;
        let ends = [first, last].map(|end| find(end.trim()).ok_or_else(|| missing(end.trim())));
        let [first, last] = ends;
        let (first, last) = (first?, last?);
        if first > last {
            return Err(Failure::invalid(format!("the range {text} is empty: its first column comes after its last")));
        }
        places.extend(first..=last);
    }
    Ok(places)
}

/// The selected columns of a table, and the way in which each becomes numbers.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The names of all columns.
    names: Vec<String>,
    columns: Vec<Column>,
    options: TableOptions,
    /// The measured part; empty until it is known.
    fit: Fit,
}

#[derive(Clone, Debug)]
struct Column {
    place: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Number,
    Labels(Labels),
    Hash(u64),
    Date(Vec<DatePart>),
}

impl Kind {
    /// The number of numbers that a field becomes.
    fn width(&self) -> usize {
        match self {
            Kind::Labels(Labels { one_hot: true, known, .. }) => known.as_ref().map_or(0, HashMap::len),
            Kind::Date(parts) => parts.len(),
            Kind::Labels(_) | Kind::Number | Kind::Hash(_) => 1,
        }
    }
}

/// The labels of a column of text, and their numbers.
#[derive(Clone, Debug, Default)]
struct Labels {
    /// `None` while they are collected.
    known: Option<HashMap<String, usize>>,
    one_hot: bool,
    /// Whether a missing field is an error or a dropped line, and not a label.
    is_class: bool,
}

/// A line of a table that cannot be read, or lacks a field.
#[derive(Debug)]
pub enum BadLine {
    /// A field is missing.
    Missing(String),
    /// The reason.
    Wrong(String),
}

impl Chosen {
    /// Takes the columns with these indices, out of `names`. With `fit`, labels and numbers are those that were measured before.
    ///
    /// # Errors
    /// InvalidArgument for options of a column that is not taken.
    pub fn of(names: &[String], places: &[usize], options: &TableOptions, fit: Option<&Fit>) -> Result<Chosen> {
        options.check(&given_columns(names, places))?;
        if let Some(fit) = fit.filter(|fit| fit.columns.len() != places.len()) {
            let (own, trained) = (places.len(), fit.columns.len());
            return Err(Failure::invalid(format!("{own} columns are taken, and the model was trained with {trained}")));
        }
        // The columns of another table may have other names.
        let measured = |name: &String| {
            let at = places.iter().position(|&place| names[place] == *name)?;
            fit?.labels.get(fit?.columns.get(at)?)
        };
        let labels = |name: &String, one_hot, listed: Option<&Vec<String>>| {
            let known = measured(name).or(listed);
            let known = known.map(|known| known.iter().cloned().zip(0..).collect());
            Kind::Labels(Labels {
                known,
                one_hot,
                is_class: options.classes.is_some() || options.class_weights.is_some(),
            })
        };
        let kind = |name: &String| {
            let category = options.categories.iter().find(|(own, _)| own == name).map(|(_, category)| *category);
            let parts = options.dates.iter().find(|(own, _)| own == name).map(|(_, parts)| parts);
            match (&options.classes, category, parts) {
                _ if options.class_weights.is_some() => labels(name, false, None),
                (Some(Classes::Auto), ..) => labels(name, false, None),
                (Some(Classes::Listed(listed)), ..) => labels(name, false, Some(listed)),
                (_, Some(Category::OneHot), _) => labels(name, true, None),
                (_, Some(Category::Ids), _) => labels(name, false, None),
                (_, Some(Category::Hash(below)), _) => Kind::Hash(below),
                (.., Some(parts)) => Kind::Date(parts.clone()),
                _ => Kind::Number,
            }
        };
        let columns: Vec<Column> = places.iter().map(|&place| Column { place, kind: kind(&names[place]) }).collect();
        let is_text = |column: &Column| matches!(column.kind, Kind::Labels(_));
        if let Some(column) = columns.iter().find(|column| measured(&names[column.place]).is_some() && !is_text(column))
        {
            let name = &names[column.place];
            return Err(Failure::invalid(format!(
                "column {name} has labels where the model is trained: state \"classes\" or \"categories\" here, too"
            )));
        }
        let (names, options) = (names.to_vec(), options.clone());
        Ok(Chosen { names, columns, options, fit: fit.cloned().unwrap_or_default() })
    }

    /// The names of the columns that are taken.
    pub fn taken(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| self.names[column.place].as_str())
    }

    /// The names of all columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of numbers that a line becomes.
    pub fn width(&self) -> usize {
        self.columns.iter().map(|column| column.kind.width()).sum()
    }

    /// For each number of a line: the column, and whether it is measured, since it is a number and no label.
    pub fn parts(&self) -> Vec<(&str, bool)> {
        let part = |Column { place, kind }: &Column| {
            let is_measured = matches!(kind, Kind::Number | Kind::Date(_));
            std::iter::repeat_n((self.names[*place].as_str(), is_measured), kind.width())
        };
        self.columns.iter().flat_map(part).collect()
    }

    /// Collects the labels of a line whose columns have none yet; `labels` by the columns' names.
    pub fn collect(&self, fields: &[&str], labels: &mut BTreeMap<String, BTreeSet<String>>) {
        for column in &self.columns {
            if let Kind::Labels(Labels { known: None, .. }) = &column.kind {
                let own = labels.entry(self.names[column.place].clone()).or_default();
                let field = self.label(fields[column.place]);
                if !own.contains(field) {
                    own.insert(field.to_owned());
                }
            }
        }
    }

    /// Sets the labels that were collected.
    pub fn set_labels(&mut self, labels: &BTreeMap<String, Vec<String>>) {
        for column in &mut self.columns {
            if let Kind::Labels(own @ Labels { known: None, .. }) = &mut column.kind {
                let known = labels.get(&self.names[column.place]).into_iter().flatten();
                own.known = Some(known.cloned().zip(0..).collect());
            }
        }
        let listed = self.columns.iter().filter_map(|column| match &column.kind {
            Kind::Labels(Labels { known: Some(known), .. }) => {
                Some((self.names[column.place].clone(), by_number(known).into_iter().map(str::to_owned).collect()))
            }
            _ => None,
        });
        self.fit.labels = listed.collect();
        self.fit.columns = self.columns.iter().map(|column| self.names[column.place].clone()).collect();
    }

    /// Sets what was measured.
    pub fn set_measured(&mut self, fill: Vec<Option<f64>>, shift: Vec<f64>, factor: Vec<f64>) {
        (self.fit.fill, self.fit.shift, self.fit.factor) = (fill, shift, factor);
    }

    /// Sets the weights of classes, by number.
    pub fn set_weights(&mut self, weights: Vec<f64>) {
        self.fit.weights = weights;
    }

    /// The labels of the classes that have weights, in the order of their numbers.
    pub fn classes(&self) -> &[String] {
        self.fit.labels.values().next().map_or(&[], Vec::as_slice)
    }

    /// The measured part, to use it for other tables.
    pub fn fit(&self) -> &Fit {
        &self.fit
    }

    /// The numbers of a line, with NaN for those that are missing, not normalised.
    ///
    /// # Errors
    /// [`BadLine`].
    pub fn raw(&self, line: usize, fields: &[&str], to: &mut Vec<f64>) -> std::result::Result<(), BadLine> {
        self.check(line, fields)?;
        for Column { place, kind } in &self.columns {
            let (field, name) = (fields[*place], &self.names[*place]);
            let is_missing = self.is_missing(field);
            let wrong = |why: &str| BadLine::Wrong(format!("line {line}: column {name} has {field:?}, which {why}"));
            let missing = || BadLine::Missing(format!("line {line}: column {name} has {field:?}, a missing value"));
            match kind {
                Kind::Labels(Labels { is_class: true, .. }) if is_missing => return Err(missing()),
                Kind::Number | Kind::Date(_) if is_missing && self.options.missing.is_none() => return Err(missing()),
                Kind::Number if is_missing => to.push(f64::NAN),
                Kind::Number => to.push(self.number(field).ok_or_else(|| wrong("is not a number"))?),
                Kind::Hash(below) => to.push((hash(self.label(field)) % below) as f64),
                Kind::Date(parts) if is_missing => to.extend(parts.iter().map(|_| f64::NAN)),
                Kind::Date(parts) => {
                    let format = self.options.date_format.as_deref();
                    let date = date(field, format).ok_or_else(|| {
                        wrong(&format!(
                            "is not a date; expected {}",
                            format.unwrap_or("2026-05-31, 2026-05-31 12:30 or 2026-05-31T12:30:00+02:00")
                        ))
                    })?;
                    to.extend(parts.iter().map(|part| number_of(date, *part)));
                }
                // They are being collected.
                Kind::Labels(Labels { known: None, .. }) => {}
                Kind::Labels(Labels { known: Some(known), one_hot, .. }) => {
                    let number = known.get(self.label(field)).copied();
                    match one_hot {
                        // A category that was not there when the model was trained is none of those.
                        true => to.extend((0..known.len()).map(|i| f64::from(u8::from(Some(i) == number)))),
                        false => {
                            let number = number.ok_or_else(|| wrong(&format!("is not among {}", listed(known))))?;
                            to.push(number as f64);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The numbers of a line, complete and normalised.
    ///
    /// # Errors
    /// [`BadLine`].
    pub fn numbers(&self, line: usize, fields: &[&str], to: &mut Vec<f64>) -> std::result::Result<(), BadLine> {
        let before = to.len();
        self.raw(line, fields, to)?;
        let Fit { fill, shift, factor, .. } = &self.fit;
        if self.options.class_weights.is_some() {
            // The column's number is that of the class.
            for number in &mut to[before..] {
                *number = self.fit.weights.get(*number as usize).copied().unwrap_or(1.0);
            }
            return Ok(());
        }
        for (i, number) in to[before..].iter_mut().enumerate() {
            if let (true, Some(Some(fill))) = (number.is_nan(), fill.get(i)) {
                *number = *fill;
            }
            if let (Some(shift), Some(factor)) = (shift.get(i), factor.get(i)) {
                *number = (*number - shift) * factor;
            }
            if number.is_nan() {
                let name = self.parts()[i].0.to_owned();
                return Err(BadLine::Missing(format!("line {line}: column {name} is missing")));
            }
        }
        Ok(())
    }

    /// The texts of a line.
    ///
    /// # Errors
    /// [`BadLine`] for another number of fields than columns.
    pub fn texts(&self, line: usize, fields: &[&str], to: &mut Vec<Vec<u8>>) -> std::result::Result<(), BadLine> {
        self.check(line, fields)?;
        to.extend(self.columns.iter().map(|column| fields[column.place].as_bytes().to_vec()));
        Ok(())
    }

    fn check(&self, line: usize, fields: &[&str]) -> std::result::Result<(), BadLine> {
        let (own, all) = (fields.len(), self.names.len());
        match own == all {
            true => Ok(()),
            false => Err(BadLine::Wrong(format!("line {line} has {own} fields, and the first line has {all}"))),
        }
    }

    fn is_missing(&self, field: &str) -> bool {
        is_missing(field) || self.options.missing_values.iter().any(|own| own == field)
    }

    /// A label; all missing fields are one.
    fn label<'f>(&self, field: &'f str) -> &'f str {
        if self.is_missing(field) { "" } else { field }
    }

    /// A number as the options write it; `12 %` is 0.12, true 1 and false 0.
    fn number(&self, field: &str) -> Option<f64> {
        let (text, scale) = match field.strip_suffix('%') {
            Some(text) => (text.trim_end(), 0.01),
            None => (field, 1.0),
        };
        let TableOptions { decimal, thousands, .. } = self.options;
        let number = match (decimal.filter(|decimal| *decimal != '.'), thousands) {
            (None, None) => text.parse::<f64>().ok(),
            (decimal, thousands) => {
                let plain: String = text
                    .chars()
                    .filter(|letter| Some(*letter) != thousands)
                    .map(|letter| match letter {
                        // A point is no part of a number that has a comma before its fraction.
                        '.' if decimal.is_some() => '?',
                        letter if Some(letter) == decimal => '.',
                        letter => letter,
                    })
                    .collect();
                plain.parse::<f64>().ok()
            }
        };
        let truth = || match field {
            _ if field.eq_ignore_ascii_case("true") => Some(1.0),
            _ if field.eq_ignore_ascii_case("false") => Some(0.0),
            _ => None,
        };
        number.filter(|number| number.is_finite()).map(|number| number * scale).or_else(truth)
    }
}

/// The names of the columns that are taken.
fn given_columns<'n>(names: &'n [String], places: &[usize]) -> Vec<&'n str> {
    places.iter().map(|&place| names[place].as_str()).collect()
}

/// Labels in the order of their numbers.
fn by_number(known: &HashMap<String, usize>) -> Vec<&str> {
    let mut all: Vec<(&String, &usize)> = known.iter().collect();
    all.sort_by_key(|(_, number)| **number);
    all.into_iter().map(|(label, _)| label.as_str()).collect()
}

/// A text without characters that control a terminal, for a message.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() && letter != '\t' {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Some labels, for a message.
fn listed(known: &HashMap<String, usize>) -> String {
    let all = by_number(known);
    let name = |label: &&str| if label.is_empty() { "\"\" (missing)".to_owned() } else { visible(label) };
    let shown: Vec<String> = all.iter().take(MAX_NAMES).map(name).collect();
    let more = if all.len() > MAX_NAMES { format!(" and {} more", all.len() - MAX_NAMES) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// FNV-1a of 64 bits: the same number on every machine.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl BadLine {
    /// As InvalidArgument.
    pub fn failure(self) -> Failure {
        match self {
            BadLine::Missing(why) | BadLine::Wrong(why) => Failure::invalid(why),
        }
    }
}
