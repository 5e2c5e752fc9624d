//! The records of a table: lines with separated fields, or an object of JSON a line.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::io::{BufRead, Read};

use meshtf_tensor::failure::{Code, Failure, Result};
use meshtf_tensor::memory;

use super::file::{is_parquet, no_parquet};
use super::kind::binary;
use super::objects::{self, fields_of, keys_of};
use super::{FilePart, LayoutOptions, MAX_LINE, utf8};

/// The errors for a file without a line, and for one with the names of the columns alone.
const EMPTY: &str = "it is empty; expected a line with the names of the columns";
const NO_VALUES: &str = "it has no lines of values, only one with the names of the columns";

/// How the text of a table is cut into records and fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    fields: Fields,
    has_header: bool,
    skip: usize,
    /// The file is read as it is, without the section of a file that could say more of it.
    is_plain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fields {
    /// Separated by this character, and perhaps quoted.
    Separated(u8),
    /// Separated by runs of spaces and tabs.
    Spaced,
    /// The members of an object of JSON.
    Json,
    /// The text of a Parquet file: separated by commas; the rows are counted, without the names.
    Rows,
}

/// A record of a table.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The names of the columns.
    pub names: &'a [String],
    /// The number of its line, from 1.
    pub line: usize,
    /// The offset of its first byte.
    pub begin: u64,
    /// Its fields, trimmed of spaces; there may be more or fewer than names.
    pub fields: &'a [&'a str],
    /// The reason why its fields cannot be told apart; then there are none.
    pub fault: Option<&'a str>,
    /// A key of its object that is no column, since it is in none of the objects at the beginning of the file.
    pub other: Option<&'a str>,
}

impl Layout {
    /// The layout of a file by its name and the options.
    ///
    /// # Errors
    /// InvalidArgument for a delimiter that is not ASCII, or options that the kind of file does not take.
    pub fn of(file: &FilePart, options: &LayoutOptions) -> Result<Layout> {
        let LayoutOptions { delimiter, no_header, skip } = *options;
        let fields = match delimiter {
            _ if is_parquet(&file.file) && cfg!(not(feature = "parquet")) => return Err(no_parquet()),
            _ if is_parquet(&file.file) && *options != LayoutOptions::default() => {
                let why = "a .parquet file takes neither \"delimiter\" nor \"header\" nor \"skip\"";
                return Err(Failure::invalid(why));
            }
            _ if is_parquet(&file.file) => Fields::Rows,
            _ if file.ends_with(".jsonl") && *options != LayoutOptions::default() => {
                let why = "a .jsonl file takes neither \"delimiter\" nor \"header\" nor \"skip\"";
                return Err(Failure::invalid(why));
            }
            _ if file.ends_with(".jsonl") => Fields::Json,
            None if file.ends_with(".tsv") => Fields::Separated(b'\t'),
            None => Fields::Separated(b','),
            Some(' ') => Fields::Spaced,
            Some(other) if other.is_ascii() && !matches!(other, '"' | '\n' | '\r') => Fields::Separated(other as u8),
            Some(other) => return Err(Failure::invalid(format!("{other:?} cannot separate fields"))),
        };
        Ok(Layout { fields, has_header: !no_header, skip, is_plain: false })
    }

    /// As before, of a file that no section describes: errors advise none of its keys.
    pub fn plain(self) -> Layout {
        Layout { is_plain: true, ..self }
    }

    /// The advice for a missing field.
    pub(super) fn missing(&self) -> &'static str {
        match self.is_plain {
            true => "; write a number there, or take other columns alone, as FILE:COLUMN,COLUMN",
            false => "; say what to do then: \"missing\": \"drop\", \"mean\", \"median\" or a number",
        }
    }

    /// Reads a whole table, and passes on its records.
    ///
    /// # Errors
    /// InvalidArgument for a table without a record and for bytes that are no text of UTF-8, or no JSON; ResourceExhausted for
    /// a line that is too long; those of reading and of `each`.
    pub fn scan(&self, mut from: impl BufRead, each: &mut dyn FnMut(Record<'_>) -> Result<()>) -> Result<Scanned> {
        let failed = |error: std::io::Error| Failure::invalid(error.to_string());
        if self.fields != Fields::Rows
            && let Some(why) = binary(from.fill_buf().map_err(failed)?)
        {
            return Err(Failure::invalid(why));
        }
        let mut names = None;
        let (mut begin, mut skipped) = (0, 0);
        while skipped < self.skip {
            let mut line = Vec::new();
            let read = from.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line).map_err(failed)?;
            if read > MAX_LINE {
                return Err(too_long(skipped + 1));
            }
            if read == 0 {
                break;
            }
            begin += read as u64;
            skipped += 1;
        }
        let (has_one, has_records) = (Cell::new(false), Cell::new(false));
        let other = RefCell::new(None::<String>);
        let mut each = |line: usize, begin: u64, fields: std::result::Result<&[&str], &str>| -> Result<()> {
            let (fields, fault) = (fields.unwrap_or_default(), fields.err());
            let other = other.take();
            let other = other.as_deref();
            let Some(names) = &names else {
                let own = names.insert(self.names(fields)?);
                has_one.set(own.len() == 1);
                has_records.set(!self.has_header);
                return match self.has_header {
                    false => each(Record { names: own, line, begin, fields, fault, other }),
                    true => Ok(()),
                };
            };
            has_records.set(true);
            each(Record { names, line, begin, fields, fault, other })
        };
        let end = match self.fields {
            Fields::Separated(_) | Fields::Rows => {
                let mut records = CsvRecords::new(self.delimiter(), begin, skipped, &has_one);
                let mut rows = 0;
                let mut each = |line: usize, begin: u64, fields: &[&str]| {
                    rows += 1;
                    // The line with the names is no row.
                    each(if self.fields == Fields::Rows { rows - 1 } else { line }, begin, Ok(fields))
                };
                loop {
                    let block = from.fill_buf().map_err(failed)?;
                    records.add(block, &mut each)?;
                    let read = block.len();
                    if read == 0 {
                        break records.at;
                    }
                    from.consume(read);
                }
            }
            Fields::Spaced => lines(from, begin, skipped, &mut |line, begin, text| {
                let fields: Vec<&str> = text.split_ascii_whitespace().collect();
                each(line, begin, Ok(&fields))
            })?,
            Fields::Json => {
                let (mut keys, from) = keys_of(from)?;
                let mut is_first = true;
                lines(from, begin, skipped, &mut |line, begin, text| {
                    let is_first = std::mem::replace(&mut is_first, false);
                    let (keys, objects::Fields { fields, other: own }) = match fields_of(line, text, &mut keys) {
                        // Without the first one there are no keys.
                        Err(failure) if !is_first => return each(line, begin, Err(&failure.message)),
                        read => read?,
                    };
                    if is_first {
                        each(line, begin, Ok(&keys.iter().map(String::as_str).collect::<Vec<_>>()))?;
                    }
                    *other.borrow_mut() = own;
                    each(line, begin, Ok(&fields.iter().map(String::as_str).collect::<Vec<_>>()))
                })?
            }
        };
        let names = names.ok_or_else(|| Failure::invalid(EMPTY))?;
        if has_records.get() { Ok(Scanned { names, end }) } else { Err(Failure::invalid(NO_VALUES)) }
    }

    /// The fields of so many records that a piece of the text consists of, in a table with these names.
    ///
    /// # Errors
    /// Those of [`scan`](Layout::scan); InvalidArgument if there are fewer.
    pub fn records(
        &self,
        piece: &[u8],
        names: &[String],
        count: usize,
        each: &mut dyn FnMut(usize, &[&str]) -> Result<()>,
    ) -> Result<()> {
        let seen = Cell::new(0);
        let mut next = |_: usize, _: u64, fields: &[&str]| -> Result<()> {
            let place = seen.replace(seen.get() + 1);
            if place < count { each(place, fields) } else { Ok(()) }
        };
        match self.fields {
            Fields::Separated(_) | Fields::Rows => {
                let has_one = Cell::new(names.len() == 1);
                let mut records = CsvRecords::new(self.delimiter(), 1, 0, &has_one);
                records.add(piece, &mut next)?;
                records.add(&[], &mut next)?;
                // Blank lines at the end of a piece may be records: missing fields of the only column.
                while has_one.get() && seen.get() < count {
                    next(0, 0, &[""])?;
                }
            }
            _ => {
                let mut keys = Some(names.to_vec());
                lines(piece, 1, 0, &mut |line, begin, text| match self.fields {
                    Fields::Json => {
                        let (_, objects::Fields { fields, .. }) = fields_of(line, text, &mut keys)?;
                        next(line, begin, &fields.iter().map(String::as_str).collect::<Vec<_>>())
                    }
                    _ => next(line, begin, &text.split_ascii_whitespace().collect::<Vec<_>>()),
                })?;
            }
        }
        if seen.get() >= count { Ok(()) } else { Err(Failure::invalid("the lines of the table have changed")) }
    }

    /// The character between fields, if it is one.
    fn delimiter(&self) -> u8 {
        if let Fields::Separated(delimiter) = self.fields { delimiter } else { b',' }
    }

    /// The names of the columns, from the first record.
    ///
    /// # Errors
    /// InvalidArgument if two are the same, or all are numbers: then it is an example, and the names are missing.
    fn names(&self, record: &[&str]) -> Result<Vec<String>> {
        if !self.has_header {
            return Ok((0..record.len()).map(|i| i.to_string()).collect());
        }
        let is_number = |name: &&str| name.parse::<f64>().is_ok_and(f64::is_finite);
        if !matches!(self.fields, Fields::Json | Fields::Rows) && record.iter().all(is_number) {
            let first = record.join(",");
            let or = if self.is_plain { "" } else { ", or say \"header\": false" };
            return Err(Failure::invalid(format!(
                "the first line has numbers alone ({first:.60}); expected the names of the columns there: add a line with them{or}"
            )));
        }
        let mut seen = HashSet::new();
        match record.iter().find(|name| !seen.insert(**name)) {
            Some(name) => Err(Failure::invalid(format!("two columns are named {name}"))),
            None => Ok(record.iter().map(|&name| name.to_owned()).collect()),
        }
    }
}

/// The result of reading a whole table.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// The names of the columns.
    pub names: Vec<String>,
    /// The offset of its end.
    pub end: u64,
}

fn too_long(line: usize) -> Failure {
    let why = format!("line {line} has more than {MAX_LINE} bytes, the limit; does a quote not end?");
    Failure::new(Code::ResourceExhausted, why)
}

/// The byte order mark, with which some programs begin a text of UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Passes on the lines of a text that are not blank, with their numbers and offsets; returns the offset of the end.
fn lines(
    mut from: impl BufRead,
    mut at: u64,
    skipped: usize,
    each: &mut dyn FnMut(usize, u64, &str) -> Result<()>,
) -> Result<u64> {
    let (mut line, mut number) = (Vec::new(), skipped);
    loop {
        line.clear();
        number += 1;
        let read = from.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line);
        let read = read.map_err(|error| Failure::invalid(error.to_string()))?;
        if read == 0 {
            return Ok(at);
        }
        if read > MAX_LINE {
            return Err(too_long(number));
        }
        let begin = if at == 0 && line.starts_with(MARK) { MARK.len() } else { 0 };
        let text = utf8(&line[begin..]).map(str::trim);
        let text = text.map_err(|why| Failure::invalid(format!("line {number} is {why}")))?;
        if !text.is_empty() {
            each(number, at + begin as u64, text)?;
        }
        at += read as u64;
    }
}

/// The records of a text of separated fields that is read in blocks.
struct CsvRecords<'c> {
    reader: csv_core::Reader,
    /// The offset of the next byte.
    at: u64,
    /// The offset of the record that is being read, and its line number; `None` between records.
    begun: Option<(u64, usize)>,
    /// A buffer for the fields of a record, and for their ends; it grows to the size of the longest.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// The used part of both for this record.
    written: usize,
    ended: usize,
    /// Whether the table has one column: then a blank line between others is a record with a missing field.
    has_one: &'c Cell<bool>,
    /// The blank lines before the next record, and their offsets.
    blank: Vec<(usize, u64)>,
    /// Whether a carriage return ended the last record, so that a line feed belongs to it.
    has_returned: bool,
}

impl CsvRecords<'_> {
    /// For a text from the offset `at` on, before which there are `skipped` lines.
    fn new(delimiter: u8, at: u64, skipped: usize, has_one: &Cell<bool>) -> CsvRecords<'_> {
        let mut reader = csv_core::ReaderBuilder::new().delimiter(delimiter).build();
        reader.set_line(skipped as u64 + 1);
        let (text, ends) = (vec![0; 256], vec![0; 16]);
        let (blank, has_returned) = (Vec::new(), false);
        CsvRecords { reader, at, begun: None, text, ends, written: 0, ended: 0, has_one, blank, has_returned }
    }

    /// Reads the next block of a text: passes on each record that ends in it, with its line number and the offset of its
    /// first byte. An empty block is the end of the text.
    ///
    /// # Errors
    /// InvalidArgument for text that is not UTF-8; ResourceExhausted for a record that is too long; those of `each`.
    fn add(&mut self, bytes: &[u8], each: &mut impl FnMut(usize, u64, &[&str]) -> Result<()>) -> Result<()> {
        let is_end = bytes.is_empty();
        let mut rest = bytes;
        if self.at == 0 && rest.starts_with(MARK) {
            (rest, self.at) = (&rest[MARK.len()..], MARK.len() as u64);
        }
        while is_end || !rest.is_empty() {
            let (begin, line) = match self.begun {
                Some(begun) => begun,
                None => {
                    let blank = rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    self.skip_blank(&rest[..blank])?;
                    rest = &rest[blank..];
                    if rest.is_empty() && !is_end {
                        break;
                    }
                    *self.begun.insert((self.at, self.reader.line() as usize))
                }
            };
            let (text, ends) = (&mut self.text[self.written..], &mut self.ends[self.ended..]);
            let (outcome, read, wrote, ended) = self.reader.read_record(rest, text, ends);
            self.has_returned = rest[..read].last().map_or(self.has_returned, |byte| *byte == b'\r');
            (rest, self.at) = (&rest[read..], self.at + read as u64);
            (self.written, self.ended) = (self.written + wrote, self.ended + ended);
            match outcome {
                // At the end the loop continues once more, with no input, which marks the end for the reader.
                csv_core::ReadRecordResult::InputEmpty => {}
                csv_core::ReadRecordResult::OutputFull => {
                    if self.text.len() >= MAX_LINE {
                        return Err(too_long(line));
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
                    for (line, begin) in std::mem::take(&mut self.blank) {
                        each(line, begin, &[""])?;
                    }
                    each(line, begin, &self.fields(line)?)?;
                    (self.begun, self.written, self.ended) = (None, 0, 0);
                }
            }
        }
        Ok(())
    }

    /// Ends of lines between records: blank lines, unless the first one belongs to the last record.
    fn skip_blank(&mut self, ends: &[u8]) -> Result<()> {
        let mut line = self.reader.line();
        for byte in ends.iter().copied() {
            let belongs = std::mem::take(&mut self.has_returned);
            if byte == b'\n' {
                if self.has_one.get() && !belongs {
                    if self.blank.len() == self.blank.capacity() {
                        memory::admit(self.blank.len().saturating_mul(size_of::<(usize, u64)>()))?;
                    }
                    self.blank.push((line as usize, self.at));
                }
                line += 1;
            }
            self.at += 1;
        }
        self.reader.set_line(line);
        Ok(())
    }

    /// The fields of the record that was read.
    fn fields(&self, line: usize) -> Result<Vec<&str>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let field = |(from, to): (usize, &usize)| {
            let field = utf8(&self.text[from..*to]).map(str::trim);
            field.map_err(|why| Failure::invalid(format!("line {line} is {why}")))
        };
        starts.zip(&self.ends[..self.ended]).map(field).collect()
    }
}
