//! The rows of a Parquet file as text, decoded some rows at a time.
//!
//! The crate `parquet` decodes pages and values. Sizes that a file states are checked before memory is taken for them
//! (`footer`, `pages`), and pages are decompressed here, by the libraries that other files are unpacked with.

mod field;
mod footer;
mod pages;

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};

use meshtf_tensor::failure::{Failure, Result};
use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::SerializedPageReader;

use self::field::{Form, Values};
use self::pages::{Bytes, Pages};
use super::source::{Source, barred};

/// Rows that are decoded at a time.
const BATCH: usize = 1024;
/// Bytes of text after which it is passed on.
const BLOCK: usize = 1 << 18;

/// The text of a file's rows.
pub(super) struct Rows<S: Source> {
    file: Arc<Bytes<S>>,
    metadata: ParquetMetaData,
    columns: Vec<Column>,
    /// The next group of rows, and the rows of the present one that are not decoded yet.
    group: usize,
    left: usize,
    /// The rows that are decoded, and the next one to be written; the number of that row in the file, from 1.
    rows: usize,
    next: usize,
    number: u64,
    text: Vec<u8>,
    /// The text that was read.
    at: usize,
}

struct Column {
    name: String,
    /// Its place among those that are no groups of others; `None` if it is no field of a table, and all its fields are empty.
    leaf: Option<usize>,
    form: Form,
    is_optional: bool,
    reader: Option<ColumnReader>,
    /// For each row that is decoded 0 if its value is missing.
    levels: Vec<i16>,
    values: Values,
    /// The next one of the values.
    next: usize,
}

impl<S: Source> Rows<S> {
    /// Reads the description of a file.
    ///
    /// # Errors
    /// InvalidArgument if it is damaged.
    pub fn open(source: S) -> Result<Rows<S>> {
        let file = Bytes(Arc::new(source));
        let footer = footer::read(&*file.0)?;
        let metadata = guarded(|| ParquetMetaDataReader::decode_metadata(&footer).map_err(damaged))?;
        let schema = metadata.file_metadata().schema_descr();
        let leaves: Vec<usize> = (0..schema.num_columns()).map(|leaf| schema.get_column_root_idx(leaf)).collect();
        let mut text = Vec::new();
        let mut columns = Vec::new();
        let mut first_nested = None;
        for (i, field) in schema.root_schema().get_fields().iter().enumerate() {
            let leaf = leaves.iter().position(|root| *root == i);
            let of_leaf = |leaf| (Form::of(&schema.column(leaf)), schema.column(leaf).max_def_level() > 0);
            let (form, is_optional) = match (field::nested(field), leaf) {
                (Some(is), _) => (Err(is), false),
                (None, Some(leaf)) => of_leaf(leaf),
                (None, None) => (Err("is a structure without parts"), false),
            };
            if i > 0 {
                text.push(b',');
            }
            let name = form.as_ref().err().map_or_else(|| field.name().to_owned(), |is| barred(field.name(), is));
            field::quote(name.as_bytes(), &mut text);
            if let Err(is) = form {
                first_nested.get_or_insert_with(|| format!("{} {is}", field.name()));
            }
            let leaf = leaf.filter(|_| form.is_ok());
            let (form, values) = (form.unwrap_or(Form::Plain), Values::Bool(Vec::new()));
            let (reader, levels, next) = (None, Vec::new(), 0);
            columns.push(Column {
                name: field.name().to_owned(),
                leaf,
                form,
                is_optional,
                reader,
                levels,
                values,
                next,
            });
        }
        // The number of rows that a file states is checked by its columns alone.
        match first_nested {
            _ if columns.iter().any(|column| column.leaf.is_some()) => {}
            Some(why) => return Err(Failure::invalid(format!("none of its columns is a field of a table: {why}"))),
            None => return Err(Failure::invalid("it has no columns")),
        }
        text.push(b'\n');
        let (group, left, rows, next, number, at) = (0, 0, 0, 0, 1, 0);
        Ok(Rows { file: Arc::new(file), metadata, columns, group, left, rows, next, number, text, at })
    }

    /// Writes the next rows.
    fn fill(&mut self) -> Result<()> {
        self.text.clear();
        self.at = 0;
        while self.text.len() < BLOCK && (self.next < self.rows || self.decode()?) {
            let is_only = self.columns.len() == 1;
            for (i, column) in self.columns.iter_mut().enumerate() {
                if i > 0 {
                    self.text.push(b',');
                }
                let begin = self.text.len();
                let written = column.write(self.next, &mut self.text);
                let at = |why: String| Failure::invalid(format!("row {}: column {} {why}", self.number, column.name));
                written.map_err(at)?;
                // A blank line would be no row.
                if is_only && self.text.len() == begin {
                    self.text.extend(b"\"\"");
                }
            }
            self.text.push(b'\n');
            (self.next, self.number) = (self.next + 1, self.number + 1);
        }
        Ok(())
    }

    /// Decodes more rows; `false` if there are none.
    fn decode(&mut self) -> Result<bool> {
        while self.left == 0 {
            if self.group == self.metadata.num_row_groups() {
                return Ok(false);
            }
            self.begin()?;
        }
        let rows = self.left.min(BATCH);
        for column in self.columns.iter_mut().filter(|column| column.leaf.is_some()) {
            let why = match column.decode(rows) {
                Ok(own) if own == rows => continue,
                Ok(_) => "it has fewer rows than the group".to_owned(),
                Err(error) => said(&error),
            };
            return Err(Failure::invalid(format!("row group {}: column {}: {why}", self.group, column.name)));
        }
        (self.left, self.rows, self.next) = (self.left - rows, rows, 0);
        Ok(true)
    }

    /// Begins the next group of rows.
    fn begin(&mut self) -> Result<()> {
        let group = self.metadata.row_group(self.group);
        self.group += 1;
        let at = |why: String| Failure::invalid(format!("row group {}: {why}", self.group));
        self.left = usize::try_from(group.num_rows()).map_err(|_| at("its number of rows is negative".to_owned()))?;
        let leaves = self.metadata.file_metadata().schema_descr().num_columns();
        if group.num_columns() != leaves {
            return Err(at(format!("it has {} columns of {leaves}", group.num_columns())));
        }
        for column in &mut self.columns {
            let Some(leaf) = column.leaf else { continue };
            let reader = column_reader(&self.file, group, leaf);
            column.reader = Some(reader.map_err(|why| at(format!("column {}: {why}", column.name)))?);
        }
        Ok(())
    }
}

/// The values of a column in a group of rows.
fn column_reader<S: Source>(
    file: &Arc<Bytes<S>>,
    group: &RowGroupMetaData,
    place: usize,
) -> std::result::Result<ColumnReader, String> {
    let chunk = group.column(place);
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let end = start.checked_add(chunk.compressed_size());
    let is_within = start >= 0
        && chunk.compressed_size() >= 0
        && end.is_some_and(|end| u64::try_from(end).is_ok_and(|end| end <= file.0.length()));
    if !is_within {
        return Err("its pages begin or end outside of the file".to_owned());
    }
    let said = |error: ParquetError| said(&error);
    // They are decompressed by `Pages`.
    let plain = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build().map_err(said)?;
    let rows = usize::try_from(group.num_rows()).map_err(|_| "its number of rows is negative".to_owned())?;
    let raw = SerializedPageReader::new(Arc::clone(file), &plain, rows, None).map_err(said)?;
    let pages = Pages::of(Box::new(raw), chunk.compression(), chunk.column_descr().max_def_level())?;
    Ok(get_column_reader(chunk.column_descr_ptr(), Box::new(pages)))
}

impl Column {
    /// Decodes so many rows; returns their number, which is smaller at the end.
    fn decode(&mut self, rows: usize) -> parquet::errors::Result<usize> {
        let Some(reader) = &mut self.reader else { return Ok(0) };
        self.levels.clear();
        self.next = 0;
        let (values, own) = Values::read(reader, rows, &mut self.levels)?;
        self.values = values;
        Ok(own)
    }

    /// Writes the field of a row, the next one.
    fn write(&mut self, row: usize, to: &mut Vec<u8>) -> std::result::Result<(), String> {
        if self.leaf.is_none() || self.is_optional && self.levels.get(row) == Some(&0) {
            return Ok(());
        }
        self.next += 1;
        self.values.write(self.next - 1, &self.form, to)
    }
}

impl<S: Source> io::Read for Rows<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.text.len() {
            let filled = guarded(|| self.fill());
            filled.map_err(|failure| io::Error::new(io::ErrorKind::InvalidData, failure.message))?;
        }
        let rest = &self.text[self.at..];
        let read = rest.len().min(to.len());
        to[..read].copy_from_slice(&rest[..read]);
        self.at += read;
        Ok(read)
    }
}

/// Reads a part of a file. The library panics at some damages, such as fewer values than a page states: that is a failure like
/// others, and no report of a panic is written.
fn guarded<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    thread_local! { static IS_READING: Cell<bool> = const { Cell::new(false) } }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_READING.get() {
                others(info);
            }
        }));
    });
    IS_READING.set(true);
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    IS_READING.set(false);
    read.unwrap_or_else(|_| Err(Failure::invalid("the Parquet file is damaged: a page is not as its head states")))
}

fn damaged(error: ParquetError) -> Failure {
    Failure::invalid(format!("the Parquet file is damaged: {}", said(&error)))
}

/// The text of an error, without its kind.
fn said(error: &ParquetError) -> String {
    match error {
        ParquetError::General(why) | ParquetError::NYI(why) | ParquetError::EOF(why) => why.clone(),
        ParquetError::External(inner) => inner.to_string(),
        other => other.to_string(),
    }
}
