//! Comma-separated values: a line an example, with the names of the columns in the first one.

use std::collections::HashMap;

use crate::failure::{Failure, Result};
use crate::nearest::nearest;
use crate::tensor::Tensor;

/// A table of text, of which columns are taken as numbers.
#[derive(Clone, Debug)]
pub struct Csv {
    names: Vec<String>,
    /// The fields, line after line, each with as many as there are columns.
    fields: Vec<String>,
    /// The number of each line in the file.
    lines: Vec<usize>,
}

impl Csv {
    /// Reads the text of a file. Fields may stand in quotes, in which a quote is doubled. Blank lines are skipped.
    ///
    /// # Errors
    /// InvalidArgument with the line that has another number of fields than the first, or a quote that is not closed.
    pub fn read(bytes: &[u8]) -> Result<Csv> {
        let text = std::str::from_utf8(bytes).map_err(|error| Failure::invalid(format!("it is not UTF-8: {error}")))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut names: Option<Vec<String>> = None;
        let (mut fields, mut lines) = (Vec::new(), Vec::new());
        let mut records = Records { rest: text, line: 1 };
        while let Some((line, record)) = records.next()? {
            match &names {
                None => names = Some(record.iter().map(|name| name.trim().to_owned()).collect()),
                Some(names) if record.len() != names.len() => {
                    let (own, all) = (record.len(), names.len());
                    return Err(Failure::invalid(format!(
                        "line {line} has {own} fields, and the first line has {all}"
                    )));
                }
                Some(_) => {
                    fields.extend(record);
                    lines.push(line);
                }
            }
        }
        let names =
            names.ok_or_else(|| Failure::invalid("it is empty; expected a line with the names of the columns"))?;
        let mut seen = HashMap::new();
        for (i, name) in names.iter().enumerate() {
            if seen.insert(name, i).is_some() {
                return Err(Failure::invalid(format!("two columns are named {name}")));
            }
        }
        Ok(Csv { names, fields, lines })
    }

    /// The names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.names
    }

    /// Some columns as numbers, `[lines, columns]`, float64.
    ///
    /// # Errors
    /// InvalidArgument for a column that is not there, and for a field that is no number, with its line.
    pub fn numbers(&self, columns: &[String]) -> Result<Tensor> {
        let mut places = Vec::with_capacity(columns.len());
        for column in columns {
            let place = self.names.iter().position(|name| name == column).ok_or_else(|| {
                let near = nearest(column, self.names.iter().map(String::as_str));
                let hint = match near.first() {
                    Some(near) => format!("; did you mean {near}?"),
                    None => format!("; there are {}", self.names.join(", ")),
                };
                Failure::invalid(format!("there is no column {column}{hint}"))
            })?;
            places.push(place);
        }
        let mut numbers = Vec::with_capacity(self.lines.len() * places.len());
        for (record, line) in self.fields.chunks(self.names.len().max(1)).zip(&self.lines) {
            for &place in &places {
                let field = record[place].trim();
                let number: f64 = field.parse().map_err(|_| {
                    let name = &self.names[place];
                    Failure::invalid(format!("line {line}: column {name} has {field:?}, which is no number"))
                })?;
                numbers.push(number);
            }
        }
        Ok(Tensor::from_vec([self.lines.len(), places.len()], numbers))
    }
}

/// The lines of a file, where a field in quotes may go over several.
struct Records<'a> {
    rest: &'a str,
    line: usize,
}

impl Records<'_> {
    /// The next line that is not blank: its number, and its fields.
    fn next(&mut self) -> Result<Option<(usize, Vec<String>)>> {
        while !self.rest.is_empty() {
            let line = self.line;
            let record = self.record()?;
            if record.len() > 1 || record.iter().any(|field| !field.trim().is_empty()) {
                return Ok(Some((line, record)));
            }
        }
        Ok(None)
    }

    fn record(&mut self) -> Result<Vec<String>> {
        let (begin, mut fields) = (self.line, Vec::new());
        loop {
            let quoted = self.rest.trim_start_matches([' ', '\t']).strip_prefix('"');
            let mut field = String::new();
            if let Some(mut rest) = quoted {
                loop {
                    let Some(at) = rest.find('"') else {
                        return Err(Failure::invalid(format!("line {begin}: a quote is not closed")));
                    };
                    field.push_str(&rest[..at]);
                    self.line += rest[..at].matches('\n').count();
                    rest = &rest[at + 1..];
                    match rest.strip_prefix('"') {
                        Some(after) => {
                            field.push('"');
                            rest = after;
                        }
                        None => break,
                    }
                }
                self.rest = rest;
            }
            let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
            let behind = self.rest[..end].trim_end_matches('\r');
            match quoted {
                None => field.push_str(behind),
                Some(_) if behind.trim().is_empty() => {}
                Some(_) => return Err(Failure::invalid(format!("line {begin}: text follows a quote: {behind:?}"))),
            }
            fields.push(field);
            let ends = !self.rest[end..].starts_with(',');
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            if ends {
                self.line += 1;
                return Ok(fields);
            }
        }
    }
}
