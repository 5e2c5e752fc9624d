//! Comma-separated values: a line an example, with the names of the columns in the first one.

use std::collections::HashMap;

use super::admit_pieces;
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
    /// InvalidArgument with the line that has another number of fields than the first; ResourceExhausted if it has too many
    /// fields to hold.
    pub fn read(bytes: &[u8]) -> Result<Csv> {
        let text = std::str::from_utf8(bytes).map_err(|error| Failure::invalid(format!("it is not UTF-8: {error}")))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // Commas within quotes and blank lines are counted, too: these are at least as many as the fields.
        let most = bytes.iter().filter(|byte| matches!(byte, b',' | b'\n' | b'\r')).count() + 1;
        admit_pieces("fields", most, size_of::<String>() + size_of::<usize>(), bytes.len())?;
        let mut names: Option<Vec<String>> = None;
        let (mut fields, mut lines) = (Vec::with_capacity(most), Vec::new());
        for (line, record) in Records::of(text) {
            match &names {
                None => names = Some(record),
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
    /// InvalidArgument for a missing column, and for a field that is not a number, with its line.
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
                let field = &record[place];
                let number = field.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| {
                    let name = &self.names[place];
                    Failure::invalid(format!("line {line}: column {name} has {field:?}, which is not a number"))
                })?;
                numbers.push(number);
            }
        }
        Ok(Tensor::from_vec([self.lines.len(), places.len()], numbers))
    }
}

/// The records of a text, each with the number of the line that it begins in, and its fields without spaces around them.
struct Records<'a> {
    reader: csv_core::Reader,
    rest: &'a [u8],
    /// Room for the fields of a record, and for where each ends; it grows to what the longest takes.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Records<'_> {
    fn of(text: &str) -> Records<'_> {
        Records { reader: csv_core::Reader::new(), rest: text.as_bytes(), text: vec![0; 256], ends: vec![0; 16] }
    }
}

impl Iterator for Records<'_> {
    type Item = (usize, Vec<String>);

    fn next(&mut self) -> Option<(usize, Vec<String>)> {
        // Blank lines belong to no record.
        let blank = self.rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let lines = self.rest[..blank].iter().filter(|byte| **byte == b'\n').count();
        self.rest = &self.rest[blank..];
        self.reader.set_line(self.reader.line() + lines as u64);
        let line = self.reader.line() as usize;
        let (mut written, mut ended) = (0, 0);
        loop {
            let (outcome, read, wrote, ends) =
                self.reader.read_record(self.rest, &mut self.text[written..], &mut self.ends[ended..]);
            self.rest = &self.rest[read..];
            (written, ended) = (written + wrote, ended + ends);
            match outcome {
                // Once more, with nothing, which tells the reader that this was all.
                csv_core::ReadRecordResult::InputEmpty => {}
                csv_core::ReadRecordResult::OutputFull => self.text.resize(2 * self.text.len(), 0),
                csv_core::ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                csv_core::ReadRecordResult::End => return None,
                csv_core::ReadRecordResult::Record => break,
            }
        }
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let field = |(from, to): (usize, &usize)| String::from_utf8_lossy(&self.text[from..*to]).trim().to_owned();
        Some((line, starts.zip(&self.ends[..ended]).map(field).collect()))
    }
}
