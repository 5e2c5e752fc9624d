//! Comma-separated values: one example per line, with the names of the columns in the first line.

use std::collections::HashSet;

use meshtf_tensor::Tensor;
use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;
use meshtf_tensor::nearest::nearest;

use super::{MAX_LINE, admit_pieces};

/// A table of text, from which columns are taken as numbers.
#[derive(Clone, Debug)]
pub struct Csv {
    names: Vec<String>,
    /// The fields, line after line, each with as many as there are columns.
    fields: Vec<String>,
    /// The line number of each row in the file.
    lines: Vec<usize>,
}

impl Csv {
    /// Reads the text of a file. Fields may be quoted; a quote within such a field is doubled. Blank lines are skipped.
    ///
    /// # Errors
    /// InvalidArgument with the line that has another number of fields than the first; ResourceExhausted if it has too many
    /// fields to hold.
    pub fn read(bytes: &[u8]) -> Result<Csv> {
        // Commas within quotes and blank lines are counted, too: these are at least as many as the fields.
        let most = bytes.iter().filter(|byte| matches!(byte, b',' | b'\n' | b'\r')).count() + 1;
        admit_pieces("fields", most, size_of::<String>() + size_of::<usize>(), bytes.len())?;
        let mut names: Option<Vec<String>> = None;
        let (mut fields, mut lines) = (Vec::with_capacity(most), Vec::new());
        CsvRecords::default().all(bytes, |line, _, record| {
            match &names {
                None => names = Some(names_of(record)?),
                Some(names) => {
                    check_fields(names, line, record)?;
                    fields.extend(record.iter().map(|&field| field.to_owned()));
                    lines.push(line);
                }
            }
            Ok(())
        })?;
        let names = names.ok_or_else(|| Failure::invalid(EMPTY))?;
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
        let chosen = Chosen::of(self.names.clone(), columns)?;
        let mut numbers = Vec::with_capacity(self.lines.len() * chosen.count());
        for (record, line) in self.fields.chunks(self.names.len().max(1)).zip(&self.lines) {
            chosen.numbers(*line, record, &mut numbers)?;
        }
        Ok(Tensor::from_vec([self.lines.len(), chosen.count()], numbers))
    }
}

/// The error for a file without a line.
pub const EMPTY: &str = "it is empty; expected a line with the names of the columns";

/// The selected columns of a table.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The names of all.
    names: Vec<String>,
    places: Vec<usize>,
}

impl Chosen {
    /// Selects columns of a table whose columns are `names`.
    ///
    /// # Errors
    /// InvalidArgument for a column that does not exist.
    pub fn of(names: Vec<String>, columns: &[String]) -> Result<Chosen> {
        let mut places = Vec::with_capacity(columns.len());
        for column in columns {
            let place = names.iter().position(|name| name == column).ok_or_else(|| {
                let near = nearest(column, names.iter().map(String::as_str));
                let hint = match near.first() {
                    Some(near) => format!("; did you mean {near}?"),
                    None => format!("; there are {}", names.join(", ")),
                };
                Failure::invalid(format!("there is no column {column}{hint}"))
            })?;
            places.push(place);
        }
        Ok(Chosen { names, places })
    }

    /// The number of selected columns.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Appends the numbers of a line in the selected columns.
    ///
    /// # Errors
    /// InvalidArgument, with the line, for another number of fields than columns, and for a field that is not a number.
    pub fn numbers(&self, line: usize, record: &[impl AsRef<str>], to: &mut Vec<f64>) -> Result<()> {
        check_fields(&self.names, line, record)?;
        for &place in &self.places {
            let field = record[place].as_ref();
            let number = field.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| {
                let name = &self.names[place];
                Failure::invalid(format!("line {line}: column {name} has {field:?}, which is not a number"))
            })?;
            to.push(number);
        }
        Ok(())
    }
}

/// The names of the columns, from the first line.
///
/// # Errors
/// InvalidArgument if two are the same, or all are numbers: then it is an example, and the names are missing.
pub fn names_of(record: &[&str]) -> Result<Vec<String>> {
    if record.iter().all(|name| name.parse::<f64>().is_ok_and(f64::is_finite)) {
        let first = record.join(",");
        return Err(Failure::invalid(format!(
            "the first line has numbers alone ({first:.60}); expected the names of the columns there: add a line with them"
        )));
    }
    let mut seen = HashSet::new();
    match record.iter().find(|name| !seen.insert(**name)) {
        Some(name) => Err(Failure::invalid(format!("two columns are named {name}"))),
        None => Ok(record.iter().map(|&name| name.to_owned()).collect()),
    }
}

fn check_fields<T>(names: &[String], line: usize, record: &[T]) -> Result<()> {
    let (own, all) = (record.len(), names.len());
    match own == all {
        true => Ok(()),
        false => Err(Failure::invalid(format!("line {line} has {own} fields, and the first line has {all}"))),
    }
}

/// The records of a text that is read in blocks, each with its fields, trimmed of spaces.
pub struct CsvRecords {
    reader: csv_core::Reader,
    /// The number of bytes that were read.
    at: u64,
    /// The offset of the record that is being read, and its line number; `None` between records.
    begun: Option<(u64, usize)>,
    /// A buffer for the fields of a record, and for their ends; it grows to the size of the longest.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// The used part of both for this record.
    written: usize,
    ended: usize,
}

impl Default for CsvRecords {
    fn default() -> Self {
        let (text, ends) = (vec![0; 256], vec![0; 16]);
        CsvRecords { reader: csv_core::Reader::new(), at: 0, begun: None, text, ends, written: 0, ended: 0 }
    }
}

impl CsvRecords {
    /// Reads a whole text: passes on each record, with its line number and the offset of its first byte.
    ///
    /// # Errors
    /// Those of [`add`](CsvRecords::add).
    pub fn all(&mut self, bytes: &[u8], mut each: impl FnMut(usize, u64, &[&str]) -> Result<()>) -> Result<()> {
        self.reader.reset();
        (self.at, self.begun, self.written, self.ended) = (0, None, 0, 0);
        self.add(bytes, &mut each)?;
        self.add(&[], &mut each)
    }

    /// Reads the next block of a text: passes on each record that ends in it, with its line number and the offset of its
    /// first byte. An empty block is the end of the text.
    ///
    /// # Errors
    /// InvalidArgument for text that is not UTF-8; ResourceExhausted for a record that is too long; those of `each`.
    pub fn add(&mut self, bytes: &[u8], each: &mut impl FnMut(usize, u64, &[&str]) -> Result<()>) -> Result<()> {
        /// The byte order mark, with which some programs begin a text of UTF-8.
        const MARK: &[u8] = "\u{feff}".as_bytes();
        let is_end = bytes.is_empty();
        let mut rest = bytes;
        if self.at == 0 && rest.starts_with(MARK) {
            (rest, self.at) = (&rest[MARK.len()..], MARK.len() as u64);
        }
        while is_end || !rest.is_empty() {
            let (begin, line) = match self.begun {
                Some(begun) => begun,
                None => {
                    // Blank lines belong to no record.
                    let blank = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    let lines = rest[..blank].iter().filter(|byte| **byte == b'\n').count();
                    (rest, self.at) = (&rest[blank..], self.at + blank as u64);
                    self.reader.set_line(self.reader.line() + lines as u64);
                    if rest.is_empty() && !is_end {
                        break;
                    }
                    *self.begun.insert((self.at, self.reader.line() as usize))
                }
            };
            let (text, ends) = (&mut self.text[self.written..], &mut self.ends[self.ended..]);
            let (outcome, read, wrote, ended) = self.reader.read_record(rest, text, ends);
            (rest, self.at) = (&rest[read..], self.at + read as u64);
            (self.written, self.ended) = (self.written + wrote, self.ended + ended);
            match outcome {
                // At the end the loop continues once more, with no input, which marks the end for the reader.
                csv_core::ReadRecordResult::InputEmpty => {}
                csv_core::ReadRecordResult::OutputFull => {
                    if self.text.len() >= MAX_LINE {
                        let why =
                            format!("line {line} has more than {MAX_LINE} bytes, the limit; does a quote not end?");
                        return Err(Failure::new(Code::ResourceExhausted, why));
                    }
                    memory::admit(self.text.len())?;
                    self.text.resize(2 * self.text.len(), 0);
                }
                csv_core::ReadRecordResult::OutputEndsFull => {
                    memory::admit(self.ends.len().saturating_mul(size_of::<usize>()))?;
                    self.ends.resize(2 * self.ends.len(), 0);
                }
                csv_core::ReadRecordResult::End => break,
                csv_core::ReadRecordResult::Record => {
                    each(line, begin, &self.fields(line)?)?;
                    (self.begun, self.written, self.ended) = (None, 0, 0);
                }
            }
        }
        Ok(())
    }

    /// The number of bytes that were read.
    pub fn end(&self) -> u64 {
        self.at
    }

    /// The fields of the record that was read.
    fn fields(&self, line: usize) -> Result<Vec<&str>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let field = |(from, to): (usize, &usize)| {
            let field = std::str::from_utf8(&self.text[from..*to]).map(str::trim);
            field.map_err(|error| Failure::invalid(format!("line {line} is not UTF-8: {error}")))
        };
        starts.zip(&self.ends[..self.ended]).map(field).collect()
    }
}
